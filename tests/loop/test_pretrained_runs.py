"""Training that begins where earlier training ended: with its loss, its weights, and by name in one command."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from trainbook import api
from trainbook.data import load_tokenizer
from trainbook.errors import UserError
from trainbook.knobs import recipes
from trainbook.runs import RunFolder

BERT = ("model.type=bert", "model.norm_position=post")
T5 = ("model.type=t5", "model.position=relative", "model.norm=rmsnorm", "model.attention_scale=none")
LEARNING = (
    "batch.global_batch_size=16",
    "training.max_steps=60",
    "schedule.warmup_steps=5",
    "evaluation.eval_steps=60",
    "evaluation.eval_max_samples=40",
)
EARLIER: dict[str, tuple[str, ...]] = {
    "gpt": ("model.tie_embeddings=false",),  # of an untied head nothing comes with the embedding
    "bert": (*BERT, "data.tokenizer=bpe", "data.vocab_size=300"),
    "t5": (*T5, "model.tie_embeddings=false", "data.max_target_length=12"),
}


# What decides which targets an evaluation has.
SAME = {
    name: (LEARNING[-1], *(override for override in EARLIER[name] if "target_length" in override)) for name in EARLIER
}


def merged(*overrides: str) -> list[str]:
    """Later ones win."""
    return [f"{name}={value}" for name, value in dict(override.split("=", 1) for override in overrides).items()]


def tune(lab: Any, pretrained: Any, *overrides: str, name: str, build: bool = False) -> Any:
    """A run of three steps from the earlier model, whose sizes and tokenizer come with it."""
    config = lab.config()
    del config["model"]
    common = ("training.max_steps=3", "schedule.warmup_steps=1", "evaluation.eval_on_start=true")
    given = merged(f"model.pretrained={pretrained}", *common, *overrides)
    if not build:
        return api.train(config, given, name=name, runs_dir=lab.runs, quiet=True).run
    from trainbook.knobs import load
    from trainbook.loop.build import build as build_job

    return build_job(load(config, given).config, torch.device("cpu"))


@pytest.fixture(scope="module")
def earlier(shared_lab) -> Any:
    for name, overrides in EARLIER.items():
        shared_lab.train(*merged(*overrides, *LEARNING), name=name)
    return shared_lab


@pytest.fixture(scope="module")
def exported(earlier) -> dict[str, Path]:
    """The same models as folders of transformers."""
    pytest.importorskip("transformers")
    from trainbook.loop.export import export_run

    return {name: export_run(earlier.open(name), earlier.root / f"{name}-exported").folder for name in EARLIER}


# The loss


@pytest.mark.parametrize("name", EARLIER)
def test_a_run_from_an_earlier_run_starts_with_its_loss(earlier, name: str):
    best = earlier.rows(name, "eval")[-1]
    run = tune(earlier, earlier.open(name).path, *SAME[name], name=f"from-{name}")
    first = run.metrics("eval")[0]
    assert first["step"] == 0 and first["targets"] == best["targets"]
    assert first["loss"] == pytest.approx(best["loss"], abs=1e-5)
    assert first["loss"] < 0.9 * math.log(load_tokenizer(run.tokenizer).vocab_size)


@pytest.mark.parametrize(
    ("name", "kind"), [("gpt", "ours"), ("gpt", "hf"), ("bert", "ours"), ("bert", "hf"), ("t5", "ours")]
)
def test_a_run_from_an_exported_folder_starts_with_its_loss(earlier, exported, name: str, kind: str):
    best = earlier.rows(name, "eval")[-1]
    as_hf = ("model.type=hf", f"training.task={'masked' if name == 'bert' else 'causal'}") if kind == "hf" else ()
    run = tune(earlier, exported[name], *SAME[name], *as_hf, name=f"from-{name}-exported-{kind}")
    first = run.metrics("eval")[0]
    assert first["targets"] == best["targets"]
    assert first["loss"] == pytest.approx(best["loss"], abs=1e-4)


# The weights


def weights_of(lab: Any, name: str) -> dict[str, torch.Tensor]:
    return lab.state(name, "best")["model"]


@pytest.mark.parametrize("task", ["classify", "tag"])
@pytest.mark.parametrize("kind", ["run", "exported"])
def test_a_classifier_takes_the_body_of_a_masked_model_and_gets_a_new_head(earlier, exported, task: str, kind: str):
    source = {"classify": "builtin:parity?size=60", "tag": "builtin:tag?size=60"}[task]
    folder = earlier.open("bert").path if kind == "run" else exported["bert"]
    built = tune(earlier, folder, f"training.task={task}", f"data.source={source}", name="", build=True)
    task_of = built.job.state.task
    theirs = weights_of(earlier, "bert")
    ours = task_of.state_dict()
    body = {name: value for name, value in ours.items() if name.startswith("body.")}
    added = body.keys() - theirs.keys() if kind == "exported" else set()  # what the format has, and nothing learned
    assert body.keys() - added == {name for name in theirs if name.startswith("body.")}
    for name, value in body.items():
        there = torch.zeros_like(value) if name in added else theirs[name][: len(value)]
        torch.testing.assert_close(value, there, rtol=0, atol=0)
    fresh = {name for name in ours if not name.startswith("body.")}
    assert fresh == {"head.weight", "head.bias"} | ({"pooler.weight", "pooler.bias"} if task == "classify" else set())
    assert set(task_of.fresh) == fresh
    (line,) = [note for note in built.notes if "from scratch" in note]
    assert "head.weight" in line


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("gpt", ("training.task=chat", "data.source=builtin:echo?size=60", "data.chat_template={template}")),
        ("bert", ("data.source={other}",)),
        ("t5", ("training.task=seq2seq", "data.source=builtin:copy?size=60", "data.max_target_length=12")),
    ],
)
def test_a_head_over_tokens_is_kept_for_other_text_and_other_work_on_tokens(earlier, name: str, overrides):
    template, other = earlier.root / "short.jinja", earlier.root / "other.txt"
    template.write_text("{% for message in messages %}{{ message['content'] + '|' }}{% endfor %}")
    other.write_text("other words than before, and again others than those. " * 80)
    given = [override.format(template=template, other=other) for override in overrides]
    built = tune(earlier, earlier.open(name).path, *given, name="", build=True)
    theirs, ours = weights_of(earlier, name), dict(built.job.state.task.state_dict())
    assert ours.keys() == theirs.keys() and built.job.state.task.fresh == () and built.notes == []
    for parameter, value in ours.items():
        torch.testing.assert_close(value, theirs[parameter][: len(value)], rtol=0, atol=0)


def test_a_classifier_goes_on_as_a_classifier_only_if_the_classes_are_the_same(earlier):
    first = tune(
        earlier,
        earlier.open("bert").path,
        "training.task=classify",
        "data.source=builtin:parity?size=60",
        name="classes",
    )
    same = tune(
        earlier, first.path, "training.task=classify", "data.source=builtin:parity?size=60,seed=1", name="", build=True
    )
    assert same.notes == []
    other = earlier.root / "other.jsonl"
    other.write_text("".join(f'{{"text": "word {number}", "label": "{"xy"[number % 2]}"}}\n' for number in range(40)))
    anew = tune(earlier, first.path, "training.task=classify", f"data.source={other}", name="", build=True)
    assert "head.weight" in anew.notes[0]


def test_an_interrupted_run_from_an_earlier_model_continues_bit_for_bit_and_loses_nothing_while_that_is_gone(earlier):
    folder, away = earlier.root / "moved", earlier.root / "away"
    shutil.copytree(earlier.open("gpt").path, folder)
    tune(earlier, folder, name="whole")
    with earlier.interrupted_at(2):
        tune(earlier, folder, name="cut")
    folder.rename(away)
    with pytest.raises(UserError, match=re.escape(str(folder))):
        api.resume(earlier.open("cut").path, quiet=True)
    away.rename(folder)
    api.resume(earlier.open("cut").path, quiet=True)
    earlier.must_be_equal("whole", "cut")


# Adapters around models of transformers


@pytest.mark.parametrize(
    ("name", "task", "overrides"),
    [
        ("gpt", "causal", ("data.samples=documents", "data.padding=bucketed")),
        ("bert", "masked", ()),
        ("bert", "classify", ("data.source=builtin:parity?size=100", "data.padding=bucketed")),
        ("bert", "classify_many", ("data.source=builtin:vowels?size=100",)),
        ("bert", "regress", ("data.source=builtin:count?size=100",)),
        ("bert", "tag", ("data.source=builtin:tag?size=100", "data.num_workers=2")),
        ("t5", "seq2seq", ("data.source=builtin:copy?size=100", "data.max_target_length=12")),
    ],
)
def test_an_interrupted_run_with_adapters_continues_bit_for_bit(
    lab, earlier, exported, name: str, task: str, overrides
):
    pytest.importorskip("peft")
    given = ("model.type=hf", "model.lora_rank=2", "model.lora_dropout=0.1", f"training.task={task}", *overrides)
    given = (*given, "training.max_steps=5", "batch.per_device_train_batch_size=2", "evaluation.eval_steps=4")
    tune(lab, exported[name], *given, name="whole")
    with lab.interrupted_at(3):
        tune(lab, exported[name], *given, name="cut")
    tune(lab, exported[name], *given, name="cut")
    assert len(lab.rows("whole")) == 5
    lab.must_be_equal("whole", "cut")
    saved = lab.state("whole")["model"]
    assert any(".lora_" in parameter for parameter in saved)
    heads = [parameter for parameter in saved if "classifier" in parameter or "score" in parameter]
    assert bool(heads) == (task in ("classify", "classify_many", "regress", "tag")), "a new head is trained and saved"


# A recipe's pretraining, in the same command


FIRST = """
model: {{type: bert, num_hidden_layers: 1, hidden_size: 16, num_attention_heads: 2, norm_position: pre}}
data: {{source: {text}, max_seq_length: 16, tokenizer: bpe, vocab_size: 300}}
batch: {{global_batch_size: 4}}
training: {{max_steps: 6}}
optimizer: {{learning_rate: 1e-2}}
schedule: {{warmup_steps: 1}}
evaluation: {{eval_steps: 6, eval_max_samples: 6}}
"""
SECOND = """
model: {type: bert, pretrained: "recipe:tiny-first"}
data: {source: "builtin:parity?size=60", max_seq_length: 16}
batch: {global_batch_size: 4}
training: {task: classify, max_steps: 5}
schedule: {warmup_steps: 1}
evaluation: {eval_steps: 5, eval_max_samples: 6}
"""


@pytest.fixture
def start(lab, monkeypatch: pytest.MonkeyPatch):
    """Trains the second recipe, whose model comes from the first one."""
    folder = lab.root / "recipes"
    folder.mkdir()
    (folder / "tiny-first.yaml").write_text(FIRST.format(text=lab.text))
    (folder / "tiny-second.yaml").write_text(SECOND)
    monkeypatch.setattr(recipes, "_folder", lambda: folder)

    def start(name: str, *overrides: str, runs: Path = lab.runs) -> RunFolder:
        given = [f"data.cache_dir={lab.root / 'cache'}", *overrides]
        return api.train("tiny-second", given, name=name, runs_dir=runs, quiet=True).run

    return start


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_pretraining_has_its_name_and_seed_and_is_done_once(lab, start):
    run = start("second", "training.seed=5")
    assert sorted(path.name for path in lab.runs.iterdir()) == ["second", "tiny-first-seed5"]
    first = lab.open("tiny-first-seed5").read_manifest()
    assert first.status == "finished" and first.recipe == "tiny-first"
    assert first.config["training"]["seed"] == 5
    assert first.config["data"]["cache_dir"] == str(lab.root / "cache"), "what is said of a run goes for both"
    assert run.read_manifest().config["model"]["pretrained"] == str(lab.runs / "tiny-first-seed5")
    body = {name for name in lab.state("second")["model"] if name.startswith("body.")}
    assert body == {name for name in lab.state("tiny-first-seed5")["model"] if name.startswith("body.")}

    before = contents(lab.open("tiny-first-seed5").path)
    start("again", "training.seed=5")
    assert contents(lab.open("tiny-first-seed5").path) == before
    lab.must_be_equal("second", "again")
    start("other", "training.seed=6")
    assert (lab.runs / "tiny-first-seed6").is_dir()
    assert lab.rows("tiny-first-seed6")[0]["loss"] != lab.rows("tiny-first-seed5")[0]["loss"]


def test_ctrl_c_in_the_first_part_goes_on_there(lab, start):
    seed = "training.seed=5"
    start("second", seed)
    elsewhere = lab.root / "elsewhere"
    with lab.interrupted_at(3):
        start("second", seed, runs=elsewhere)
    assert [path.name for path in elsewhere.iterdir()] == ["tiny-first-seed5"], "the second part has not begun"
    start("second", seed, runs=elsewhere)
    lab.runs, whole = elsewhere, lab.runs
    assert [event["step"] for event in lab.events("resume", "tiny-first-seed5")] == [3]
    for name in ("tiny-first-seed5", "second"):
        shutil.copytree(whole / name, elsewhere / f"whole-{name}")
        lab.must_be_equal(f"whole-{name}", name)


def test_ctrl_c_in_the_second_part_goes_on_there_with_either_command(lab, start):
    start("whole")
    for name, go_on in {
        "train": lambda: start("train"),
        "resume": lambda: api.resume(lab.open("resume").path, quiet=True),
    }.items():
        with lab.interrupted_at(4):
            start(name)
        go_on()
        lab.must_be_equal("whole", name)
