"""Training that begins where earlier training ended: with its loss, its weights, and by name in one command."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import slow

from trainbook import api
from trainbook.data import load_tokenizer
from trainbook.errors import Interrupted, UserError
from trainbook.knobs import load, recipes
from trainbook.runs import RunFolder
from trainbook.study.child_run import ChildRun
from trainbook.study.tune.run import Study
from trainbook.study.tune.study_file import read_question

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
    task_of = built.state.task
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
    (line,) = [note for note in built.notes if "randomly initialized" in note]
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
    theirs, ours = weights_of(earlier, name), dict(built.state.task.state_dict())
    assert ours.keys() == theirs.keys() and built.state.task.fresh == () and built.notes == []
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


# What became of the folder that a run began with


AS_HF = ("model.type=hf", "training.task=causal")


@pytest.mark.parametrize("kind", ["run", "exported", "hf"])
def test_an_interrupted_run_continues_bit_for_bit_after_the_model_that_it_began_with_is_gone(
    earlier, exported, kind: str
):
    folder, away = earlier.root / f"moved-{kind}", earlier.root / f"away-{kind}"
    shutil.copytree(earlier.open("gpt").path if kind == "run" else exported["gpt"], folder)
    given = AS_HF if kind == "hf" else ()
    tune(earlier, folder, *given, name=f"whole-{kind}")
    with earlier.interrupted_at(2):
        tune(earlier, folder, *given, name=f"cut-{kind}")
    folder.rename(away)
    api.resume(earlier.open(f"cut-{kind}").path, quiet=True)
    earlier.must_be_equal(f"whole-{kind}", f"cut-{kind}")


def test_conversations_are_written_as_before_when_the_folder_with_their_template_is_gone(lab, exported):
    folder = lab.root / "talker"
    shutil.copytree(exported["gpt"], folder)
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message['content'] + '|' }}{% endfor %}"
    )
    given = ("training.task=chat", "data.source=builtin:echo?size=60")
    tune(lab, folder, *given, name="whole")
    with lab.interrupted_at(2):
        tune(lab, folder, *given, name="cut")
    shutil.rmtree(folder)
    api.resume(lab.open("cut").path, quiet=True)
    lab.must_be_equal("whole", "cut")


def test_another_model_in_the_place_of_the_first_one_does_not_matter_to_a_fine_tuned_one(lab, exported):
    folder = lab.root / "model"
    shutil.copytree(exported["gpt"], folder)
    run = tune(lab, folder, *AS_HF, name="tuned")
    before = api.generate(run.path, "alpha", temperature=0, max_new_tokens=5)
    shutil.rmtree(folder)
    shutil.copytree(exported["bert"], folder)
    wider = (folder / "config.json").read_text().replace('"hidden_size": 16', '"hidden_size": 32')
    (folder / "config.json").write_text(wider)
    assert api.generate(run.path, "alpha", temperature=0, max_new_tokens=5) == before


def test_a_run_that_has_no_checkpoint_yet_still_needs_the_model_that_it_began_with(earlier):
    folder, away = earlier.root / "first", earlier.root / "first-away"
    shutil.copytree(earlier.open("gpt").path, folder)
    with earlier.crashing_at(1):
        tune(earlier, folder, "evaluation.eval_on_start=false", name="early")
    folder.rename(away)
    with pytest.raises(UserError, match=re.escape(str(folder))):
        api.resume(earlier.open("early").path, quiet=True)
    away.rename(folder)
    assert api.resume(earlier.open("early").path, quiet=True).ended == "finished"


@pytest.mark.parametrize("name", ["gpt", "bert", "t5"])
def test_a_fine_tuned_model_of_transformers_needs_nothing_but_its_own_run(
    lab, exported, name: str, monkeypatch: pytest.MonkeyPatch
):
    import transformers

    from trainbook.loop.export import export_run
    from trainbook.loop.predict import predict

    work = {
        "gpt": ("training.task=causal",),
        "bert": ("training.task=classify", "data.source=builtin:parity?size=60"),
        "t5": ("training.task=seq2seq", "data.source=builtin:copy?size=60", "data.max_target_length=12"),
    }[name]
    (lab.root / "models").mkdir()
    shutil.copytree(exported[name], lab.root / "models" / name)
    monkeypatch.chdir(lab.root)  # the path is relative, and looks like a name on the hub
    run = tune(lab, f"models/{name}", "model.type=hf", *work, name="tuned")
    shutil.rmtree(lab.root / "models")
    (lab.root / "elsewhere").mkdir()
    monkeypatch.chdir(lab.root / "elsewhere")
    (lab.root / "asked.txt").write_text("alpha beta\n")
    if name == "bert":
        assert len(list(predict(run, str(lab.root / "asked.txt")))) == 1
    else:
        assert api.generate(run.path, "alpha", temperature=0, max_new_tokens=3) is not None
    folder = export_run(run, lab.root / "out").folder
    kind = {"gpt": "CausalLM", "bert": "SequenceClassification", "t5": "Seq2SeqLM"}[name]
    network = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder)
    saved = lab.state("tuned", "best")["model"]
    for parameter, value in network.state_dict().items():
        torch.testing.assert_close(value, saved[f"network.{parameter}"], rtol=0, atol=0)


def test_a_run_records_whole_paths_and_is_resumed_by_relative_ones(lab, exported, monkeypatch: pytest.MonkeyPatch):
    (lab.root / "models").mkdir()
    shutil.copytree(exported["gpt"], lab.root / "models" / "gpt")
    monkeypatch.chdir(lab.root)
    with lab.interrupted_at(2):
        tune(lab, "models/gpt", name="run")
    config = lab.open().read_manifest().config
    assert config["model"]["pretrained"] == config["data"]["tokenizer"] == str(lab.root / "models" / "gpt")
    assert f"pretrained: {lab.root / 'models' / 'gpt'}  # override" in lab.open().config.read_text()
    assert tune(lab, "models/gpt", name="run").read_manifest().status == "finished"


def test_adapters_whose_model_is_gone_say_where_it_was_and_nothing_of_the_hub(
    lab, exported, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("peft")
    (lab.root / "models").mkdir()
    shutil.copytree(exported["gpt"], lab.root / "models" / "gpt")
    monkeypatch.chdir(lab.root)
    run = tune(lab, "models/gpt", *AS_HF, "model.lora_rank=2", name="adapted")
    (lab.root / "elsewhere").mkdir()
    monkeypatch.chdir(lab.root / "elsewhere")
    assert api.generate(run.path, "alpha", temperature=0, max_new_tokens=3) is not None
    shutil.rmtree(lab.root / "models")
    with pytest.raises(UserError, match=re.escape(f"there is no folder {lab.root / 'models' / 'gpt'}")) as caught:
        api.generate(run.path, "alpha")
    assert "hub" not in str(caught.value)


@pytest.mark.slow
def test_adapters_keep_to_the_checkpoint_that_they_began_with_when_the_earlier_run_goes_on(lab):
    pytest.importorskip("peft")
    from trainbook.loop.load_task import load_task

    common = ("evaluation.eval_steps=2", "checkpoint.save_total_limit=9")
    base = lab.train("training.max_steps=4", *common, name="base").run
    began = lab.state("base", "best")["model"]
    for name in ("adapted", "forgetful", "damaged"):
        with lab.interrupted_at(2):
            tune(lab, base.path, "model.lora_rank=2", name=name)
    tune(lab, base.path, "model.lora_rank=2", name="whole")
    lab.train("training.max_steps=8", *common, name="base", accept_changes=True)
    assert not torch.equal(lab.state("base", "best")["model"]["head.weight"], began["head.weight"])
    api.resume(lab.open("adapted").path, quiet=True)
    lab.must_be_equal("whole", "adapted")
    (lab.open("forgetful").network / "base.json").unlink()
    (lab.open("damaged").network / "base.json").write_text("{")
    for name in ("forgetful", "damaged"):
        api.resume(lab.open(name).path, quiet=True)
        lab.must_be_equal("whole", name)
    for name, harm in (("forgetful", "was missing"), ("damaged", "was damaged")):
        told = [event["reason"] for event in lab.events("notice", name)]
        assert f"network/base.json {harm}: restored from step-00000002" in told
    task = load_task(lab.open("whole"), "best", torch.device("cpu")).task
    torch.testing.assert_close(task.state_dict()["body.token_embedding.weight"], began["body.token_embedding.weight"])
    shutil.rmtree(base.checkpoints / "step-00000004")
    with pytest.raises(UserError, match=r"step 4 of .*base, which this run started from, can no longer be read"):
        api.resume(lab.open("adapted").path, ["training.max_steps=9"], accept_changes=True, quiet=True)


# Adapters around models of transformers


@pytest.mark.parametrize(
    ("name", "task", "overrides"),
    [
        ("gpt", "causal", ("data.samples=documents", "data.padding=bucketed")),
        slow("bert", "masked", ()),
        slow("bert", "classify", ("data.source=builtin:parity?size=100", "data.padding=bucketed")),
        slow("bert", "classify_many", ("data.source=builtin:vowels?size=100",)),
        slow("bert", "regress", ("data.source=builtin:count?size=100",)),
        slow("bert", "tag", ("data.source=builtin:tag?size=100", "data.num_workers=2")),
        slow("t5", "seq2seq", ("data.source=builtin:copy?size=100", "data.max_target_length=12")),
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


def test_ctrl_c_in_the_first_part_is_followed_by_the_same_command(lab, start, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: Any) -> None:
        raise Interrupted("Ctrl-C: saved at step 3")

    monkeypatch.setattr("trainbook.loop.start.run_session", interrupted)
    with pytest.raises(Interrupted, match="To resume: run the same command again") as caught:
        start("second", "training.seed=5")
    assert "trainbook resume" not in str(caught.value)


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


@pytest.mark.slow
def test_the_trials_of_a_study_start_from_one_pretraining(lab, start):
    overrides = ["training.seed=5", f"data.cache_dir={lab.root / 'cache'}"]
    question = read_question("tiny-second", overrides, budget="4 trials", seeds=0)
    study = Study(question, lab.runs / "study", quiet=True)
    study.prepare()
    base = load(lab.runs / "study" / "base.yaml").config
    first = lab.open("tiny-first-seed5")
    assert base.model.pretrained == str(first.path) and base.data.tokenizer == str(first.tokenizer)
    for seed in (7, 8):
        child = ChildRun(lab.runs / "study" / "base.yaml", [f"training.seed={seed}"], f"trial-{seed}", lab.runs)
        assert child.train().failure is None
    assert not any(lab.runs.glob("tiny-first-seed[78]"))

    before = contents(first.path)
    Study(question, lab.runs / "study", quiet=True).prepare()
    assert contents(first.path) == before, "it is not trained again for a study that goes on"
    assert load(lab.runs / "study" / "base.yaml").config.model.pretrained == str(first.path)
