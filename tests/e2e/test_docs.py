"""The pages are run as a reader would run them: their files written down, their commands typed in order, small.

A YAML or Python block whose first line is a comment with a file's name is that file; any other Python block is run
after the commands of its page. A command that is shown with an error must give that error.
"""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from tests.conftest import slow
from typer.testing import CliRunner, Result

from trainbook.cli.main import app

ROOT = Path(__file__).parents[2]
STUDIES = ("tune", "ablate", "transfer")  # many runs: by themselves
PAGES = ("README.md", "docs/data.md", "docs/finetuning.md", "docs/own-parts.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\w[\w.-]*\.(?:yaml|py))\b")

SHORT = (
    *("training.max_steps=2", "schedule.warmup_steps=1", "evaluation.eval_steps=2", "evaluation.eval_max_samples=4"),
    *("batch.global_batch_size=4", "training.device=cpu", "data.max_seq_length=64"),
)
SMALL = ("model.num_hidden_layers=1", "model.hidden_size=16", "model.num_attention_heads=2")
LLAMA = ("model.norm=rmsnorm", "model.activation=swiglu", "model.position=rotary", "model.bias=false")
BERT = ("model.norm_position=post", "model.position=learned")  # the parts that its Hugging Face format can hold


def run(*arguments: str) -> Result:
    answer = CliRunner().invoke(app, list(arguments))
    is_traceback = answer.exception is not None and not isinstance(answer.exception, SystemExit)
    assert not is_traceback, f"{shlex.join(arguments)}: {answer.exception!r}"
    return answer


def must_run(*arguments: str) -> None:
    answer = run(*arguments)
    assert answer.exit_code == 0, f"{shlex.join(arguments)}\n{answer.output}"


def write_data(folder: Path) -> None:
    """The files that the pages speak of."""
    draw = random.Random(0)
    things, words = ("film", "book", "play"), {"good": ("a joy", "lovely"), "bad": ("dull", "a waste")}
    rows = []
    for number in range(60):
        label = draw.choice(("good", "bad"))
        rows.append([number, f"{number}: the {draw.choice(things)} was {draw.choice(words[label])}.", label])
    for name, columns in (("reviews.csv", 3), ("new.csv", 2)):
        with (folder / name).open("w", newline="") as stream:
            csv.writer(stream).writerows([["id", "review", "label"][:columns], *(row[:columns] for row in rows)])
    (folder / "talks.csv").write_text("title,abstract,label\nOne,a b,x\nTwo,c d,y\n")
    chats = [
        [{"role": "user", "content": f"How was the {thing}?"}, {"role": "assistant", "content": "A joy."}]
        for thing in things * 4
    ]
    pairs = [{"question": f"{number} + 1", "answer": str(number + 1)} for number in range(20)]
    pages = [
        {"text": f"{number}: a page, and {'-' * 200 if number % 9 == 0 else row[1]}"} for number, row in enumerate(rows)
    ]
    files = {"conversations": [{"messages": chat} for chat in chats], "pairs": pairs, "pages": pages}
    for name, records in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "large.yaml").write_text("model: {type: gpt}\ndata: {source: books/*.txt}\n")
    (folder / "books").mkdir()
    (folder / "books" / "one.txt").write_text("A book that is one text. " * 40)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and pretrained models in Hugging Face format: small, and hardly trained."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    folder = tmp_path_factory.mktemp("material")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TRAINBOOK_CACHE", str(folder / "cache"))
        write_data(folder)
        for recipe, name, parts in (("gpt-tiny", "llama", LLAMA), ("bert-tiny", "bert", BERT)):
            must_run("train", recipe, "data.source=reviews.csv", *SHORT, *SMALL, *parts, "--name", name, "--quiet")
            must_run("export", name, "--to", f"models/{name}")
        shutil.rmtree("runs")
    return folder


@pytest.fixture
def place(material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(material, tmp_path / "place", ignore=shutil.ignore_patterns("cache"))
    shutil.copytree(ROOT / "studies", tmp_path / "place" / "studies")
    monkeypatch.chdir(tmp_path / "place")
    monkeypatch.setenv("TRAINBOOK_CACHE", str(material / "cache"))
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path / "place"


def shown_commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console block without its comment, and what is shown below it."""
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE)
    return [(re.sub(r"\s+#.*", "", command), below) for command, below in found if command.startswith("trainbook ")]


def smaller(arguments: list[str]) -> list[str]:
    """The same command with less to do. What a pretrained model settles cannot be made smaller."""
    verb = arguments[0]
    if verb == "generate":
        return [*arguments, "--max-new-tokens", "4", "--device", "cpu"]
    if verb == "predict":
        return [*arguments, "--device", "cpu"]
    if verb == "data":
        return [*arguments, "--limit", "100"]
    if "--kernels" in arguments:
        return [*arguments, "--only", "layer_norm"]
    if verb == "ablate":
        return [*arguments, *SHORT, *SMALL, "--seeds", "2"]
    if verb in ("tune", "transfer"):
        less = {"--budget": "3", "--workers": "1", "--sizes": "16,32", "--proxy": "8"}
        named = zip(["", *arguments], arguments, strict=False)
        more = {"--budget": ["--seeds", "1"], "--rates": ["--learning-rates", "1e-3,1e-2,1e-1"]}
        extra = [value for flag, values in more.items() if flag in arguments for value in values]
        return [*(less.get(flag, value) for flag, value in named), *SHORT, *SMALL, *extra]
    if verb != "train":
        return arguments
    file = Path(arguments[1])
    is_pretrained = "pretrained" in " ".join(arguments) + (file.read_text() if file.exists() else "")
    short = [override for override in SHORT if "global_batch_size" not in override or "finetune-chat" not in arguments]
    has_data = file.exists() or any("data.source" in override for override in arguments)
    source = () if has_data else ("data.source=books/*.txt",)
    return [*arguments, *source, *short, *(() if is_pretrained else SMALL), "--quiet"]


def can_run(command: str) -> bool:
    """Not what stands for a name that only a reader knows; the long one is what `make pictures` runs, and a board goes
    on until Ctrl-C."""
    return "…" not in command and "builtin:wordnet" not in command and command.split()[1] != "board"


@pytest.mark.parametrize(("page", "studies"), [*((page, False) for page in PAGES), slow("README.md", True)])
def test_a_page_works_as_it_is_shown(place: Path, page: str, studies: bool):
    programs = []
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    for language, block in blocks:
        if language in ("yaml", "python") and (name := FILE_NAME.match(block)):
            (place / name[1]).write_text(block)
        elif language == "python":
            programs.append(block)
    for command, below in [
        each for language, block in blocks if language == "console" for each in shown_commands(block)
    ]:
        if "error:" in below:
            if "talks.csv" in command:
                answer = run(*shlex.split(command)[1:])
                assert (answer.exit_code, answer.stderr) == (2, below)
        elif can_run(command) and (command.split()[1] in STUDIES) == studies:
            must_run(*smaller(shlex.split(command)[1:]))
    if page != "README.md":  # those of the README are run by themselves, as whole programs
        for program in programs:
            exec(compile(program, page, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", [*PAGES, "docs/tour.md"])
def test_every_link_of_a_page_leads_somewhere(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue  # nothing outside is asked
        file, _, anchor = target.partition("#")
        found = (ROOT / page).parent / file if file else ROOT / page
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), flags=re.MULTILINE)
            names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in names, target
