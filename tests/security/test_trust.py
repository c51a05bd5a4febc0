"""A run folder that somebody hands over names code: nothing imports it unless the user agrees."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainbook
from trainbook.errors import Untrusted
from trainbook.python_path import NO_FILE, file_of
from trainbook.runs import RunFolder
from trainbook.runs.trust import state_file, trusting

MODEL = """
from pathlib import Path
from torch import nn

Path("imported").touch()


class Net(nn.Module):
    def __init__(self, config, facts):
        super().__init__()
        self.embedding = nn.Embedding(facts.vocab_size, 8)
        self.head = nn.Linear(8, facts.vocab_size)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.embedding(input_ids))
"""
SOURCE = """
from pathlib import Path

Path("imported").touch()


def texts():
    yield from ["alpha beta"] * 40
"""
MARK = Path("imported")


class Case:
    """A folder with a module, and a run that was trained with it by this user."""

    def __init__(self, lab: Any, module: str) -> None:
        self.lab, self.module = lab, module
        self.file = lab.root / f"{module}.py"
        self.file.write_text(MODEL)
        self.path = lab.runs / "own"

    def train(self) -> None:
        self.lab.train(f"model.type={self.module}:Net", "data.padding=longest", name="own", samples="documents")
        self.forget_module()

    def forget_module(self) -> None:
        sys.modules.pop(self.module, None)
        MARK.unlink(missing_ok=True)

    def run(self) -> RunFolder:
        return RunFolder.open(self.path)


@pytest.fixture
def case(lab: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    monkeypatch.chdir(lab.root)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = Case(lab, f"net_{abs(hash(request.node.name)) % 10**8}")
    request.addfinalizer(made.forget_module)
    return made


@pytest.fixture
def as_stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """From then on it is another user, for whom nothing was ever trained here."""
    return lambda: monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another-state"))


def generate(case: Case, **options: Any) -> str:
    return trainbook.generate(case.path, "alpha", max_new_tokens=2, device="cpu", **options)


def test_a_run_made_here_needs_no_trust_and_says_what_it_imports(case: Case, capsys: pytest.CaptureFixture[str]):
    case.train()
    generate(case)
    told = f"importing {case.module}:Net (model.type) from {os.path.realpath(case.file)}"
    assert told in capsys.readouterr().err and MARK.exists()
    known = state_file()
    assert known is not None and known.stat().st_mode & 0o777 == 0o600
    assert json.loads(known.read_text())["file"] == os.path.realpath(case.file)


def test_a_run_made_elsewhere_is_not_imported(case: Case, as_stranger: Callable[[], None]):
    case.train()
    as_stranger()
    with pytest.raises(Untrusted) as refused:
        generate(case)
    assert f"model.type: {case.module}:Net, from {os.path.realpath(case.file)}" in str(refused.value)
    assert "--trust" in str(refused.value) and not MARK.exists()


def test_trust_is_remembered_for_that_run_and_no_other(case: Case, as_stranger: Callable[[], None]):
    case.train()
    as_stranger()
    generate(case, trust=True)
    case.forget_module()
    generate(case)
    case.forget_module()
    manifest = json.loads((case.path / "manifest.json").read_text())
    (case.path / "manifest.json").write_text(json.dumps(manifest | {"id": "another"}))
    with pytest.raises(Untrusted):
        generate(case)
    assert not MARK.exists()


def test_the_variable_trusts_and_is_not_remembered(
    case: Case, as_stranger: Callable[[], None], monkeypatch: pytest.MonkeyPatch
):
    case.train()
    as_stranger()
    with monkeypatch.context() as patch:
        patch.setenv("TRAINBOOK_TRUST", "1")
        generate(case)
    case.forget_module()
    with pytest.raises(Untrusted):
        generate(case)


def test_the_same_name_in_another_file_is_asked_for(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    case.train()
    other = tmp_path / "elsewhere"
    other.mkdir()
    shutil.move(case.file, other)
    monkeypatch.chdir(other)
    with pytest.raises(Untrusted, match="elsewhere"):
        generate(case)


def test_code_put_into_a_run_that_had_none_is_asked_for(case: Case):
    case.lab.train(name="own")
    content = json.loads((case.path / "manifest.json").read_text())
    content["config"]["model"]["type"] = f"{case.module}:Net"
    (case.path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(Untrusted):
        generate(case)
    assert not MARK.exists()


def test_without_a_home_nothing_is_known(case: Case, monkeypatch: pytest.MonkeyPatch):
    case.train()
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    with pytest.raises(Untrusted):
        generate(case)


def test_a_record_that_others_can_write_is_not_believed(case: Case):
    case.train()
    known = state_file()
    assert known is not None
    known.chmod(0o666)
    with pytest.raises(Untrusted):
        generate(case)


def test_resume_asks_before_it_imports_and_then_the_run_is_ones_own(case: Case, as_stranger: Callable[[], None]):
    case.train()
    as_stranger()
    longer = ["training.max_steps=14"]
    with pytest.raises(Untrusted):
        trainbook.resume(case.path, longer, accept_changes=True, quiet=True)
    assert not MARK.exists()
    trainbook.resume(case.path, longer, accept_changes=True, quiet=True, trust=True)
    case.forget_module()
    generate(case)


def test_the_source_of_a_run_is_code_too(case: Case, as_stranger: Callable[[], None]):
    case.file.write_text(SOURCE)
    case.lab.train(f"data.source={case.module}:texts", "training.max_steps=4", name="own")
    case.forget_module()
    as_stranger()
    generate(case)  # the model is one of ours
    with pytest.raises(Untrusted, match=r"data\.source"):
        trainbook.resume(case.path, ["training.max_steps=6"], accept_changes=True, quiet=True)
    assert not MARK.exists()


def test_a_remedy_is_not_tried_on_a_strangers_run(case: Case, as_stranger: Callable[[], None]):
    from trainbook.runs.record import open_record
    from trainbook.study.remedy import run_of

    case.train()
    run_of(open_record(case.path))
    as_stranger()
    with pytest.raises(Untrusted):
        run_of(open_record(case.path))
    assert not MARK.exists()


def test_a_configuration_inside_of_a_run_folder_is_the_runs(case: Case, as_stranger: Callable[[], None]):
    case.train()
    as_stranger()
    with pytest.raises(Untrusted):
        trainbook.train(case.path / "config.yaml", name="again", runs_dir=case.lab.runs, quiet=True)
    assert not MARK.exists()


VERBS = {
    "generate": ("generate", "runs/own", "alpha"),
    "predict": ("predict", "runs/own", "text.txt"),
    "export": ("export", "runs/own", "--to", "exported"),
    "resume": ("resume", "runs/own", "training.max_steps=20", "--accept-changes"),
    "train": ("train", "runs/own/config.yaml", "--name", "new"),
    "dry run": ("train", "runs/own/config.yaml", "--dry-run"),
    "check": ("check", "runs/own/config.yaml"),
    "tune": ("tune", "runs/own/config.yaml"),
    "plan": ("plan", "runs/own/config.yaml", "--measure"),
}
READERS = {
    "doctor": ("doctor", "runs/own"),
    "compare": ("compare", "runs/own", "runs/own"),
    "explain": ("explain", "runs/own/config.yaml"),
}


def test_every_verb_asks_or_imports_nothing(case: Case, as_stranger: Callable[[], None]):
    """Each in this process, where an import leaves its mark."""
    from typer.testing import CliRunner

    from trainbook.cli.main import app

    case.train()
    as_stranger()
    for arguments in VERBS.values():
        answer = CliRunner().invoke(app, list(arguments))
        assert (answer.exit_code, MARK.exists()) == (2, False), (arguments, answer.output)
        assert f"{case.module}:Net" in answer.output and "--trust" in answer.output, (arguments, answer.output)
    for arguments in READERS.values():
        answer = CliRunner().invoke(app, list(arguments))
        assert (answer.exit_code in (0, 2), MARK.exists()) == (True, False), (arguments, answer.output)
    answer = CliRunner().invoke(app, [*VERBS["generate"], "--trust", "--max-new-tokens", "2"])
    assert (answer.exit_code, MARK.exists()) == (0, True), answer.output
    assert "TRAINBOOK_TRUST" not in os.environ


def test_the_file_of_a_path_is_found_without_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = tmp_path / "outer_package" / "no_init" / "inner"
    package.mkdir(parents=True)
    loud = "raise SystemExit('imported')\n"
    for folder in (tmp_path / "outer_package", package):
        (folder / "__init__.py").write_text(loud)
    (package / "part.py").write_text(loud)
    assert file_of("outer_package.no_init.inner.part:Net") == str(package / "part.py")
    assert file_of("outer_package:Net") == str(tmp_path / "outer_package" / "__init__.py")
    assert file_of("outer_package.made_later:Net") == NO_FILE
    assert file_of("there_is_none:Net") is None
    assert file_of("\0:Net") in (None, NO_FILE)
    assert file_of("json:loads") == os.path.realpath(json.__file__)


def test_a_model_of_transformers_with_code_of_its_own_is_refused_without_a_question(tmp_path: Path):
    """With a terminal, transformers would ask; the answer is no before that."""
    pytest.importorskip("transformers")
    folder = tmp_path / "theirs"
    folder.mkdir()
    auto_map = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto_map, "vocab_size": 300}))
    (folder / "evil.py").write_text('from pathlib import Path\nPath("imported").touch()\n')
    program = (
        "from pathlib import Path; from trainbook.tasks.huggingface import TASKS; import torch, trainbook.errors as e\n"
        "kind = TASKS['causal']; task = kind.__new__(kind); torch.nn.Module.__init__(task); task.origin = 'theirs'\n"
        "try: task.load(Path('theirs'), torch.float32)\n"
        "except e.UserError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, text=True, capture_output=True, input="y\n", timeout=120
    )
    assert "it brings Python code of its own, which Trainbook never runs" in done.stdout, done.stderr
    assert not (tmp_path / "imported").exists()


def test_no_pickle_and_no_remote_code_is_loaded_by_the_package():
    """Of every call in the source: what it says about code."""
    seen = set()
    for path in Path(trainbook.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            name, said = ast.unparse(call.func), {each.arg: ast.unparse(each.value) for each in call.keywords}
            if name.endswith((".from_pretrained", "auto.from_config")) and "GenerationConfig" not in name:
                assert said.get("trust_remote_code") == "False", f"{path}:{call.lineno}"
            elif name == "torch.load":
                assert said.get("weights_only") == "True" or "require_trust_of_pickle(folder)" in text, path
            elif name == "np.load":
                assert said.get("allow_pickle") == "False", f"{path}:{call.lineno}"
            else:
                continue
            seen.add(name.rsplit(".")[-1])
    assert seen == {"from_pretrained", "from_config", "load"}


def test_trusting_ends(case: Case):
    from trainbook.runs import trust

    with trusting():
        assert trust._trusts.get()
    assert not trust._trusts.get()
