"""Regression on numbers of ordinary scales: a new head begins where its targets are, a loaded one keeps what it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import needs, slow

from trainbook.doctor import diagnose
from trainbook.knobs import load
from trainbook.loop.build import build
from trainbook.loop.export import export_run
from trainbook.loop.load_task import FACTS_FILE, load_task
from trainbook.runs.record import open_record
from trainbook.tasks import Facts, task_class

CPU = torch.device("cpu")
WORDS = ("one", "two", "three", "four")
TOKENS = {"input_ids": torch.tensor([[5, 6, 7], [7, 6, 5]]), "chosen": torch.tensor([0, 3])}


def write(folder: Path, name: str, mean: float, spread: float) -> str:
    """Sixteen texts of two words, each some twenty times; the number is a sum over its words."""
    pairs = [(number % 4, number // 4 % 4) for number in range(320)]
    deviation = 2.5**0.5  # of a + b
    records = [{"text": f"{WORDS[a]} {WORDS[b]}", "score": mean + spread * (a + b - 3) / deviation} for a, b in pairs]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def settings(source: str, steps: int = 80, **model: Any) -> dict[str, Any]:
    return {
        "model": {
            "type": "bert",
            "norm_position": "post",
            "num_hidden_layers": 1,
            "hidden_size": 16,
            "num_attention_heads": 2,
            **model,
        },
        "data": {"source": source, "tokenizer": "word", "max_seq_length": 8, "validation": source},
        "batch": {"global_batch_size": 16},
        "training": {"task": "regress", "max_steps": steps},
        "optimizer": {"learning_rate": 1e-2},
        "schedule": {"warmup_steps": min(10, steps - 1)},
        "evaluation": {"eval_steps": steps, "eval_on_start": True},
    }


def train(lab: Any, config: dict[str, Any], name: str) -> Any:
    from trainbook import api

    return api.train(config, name=name, runs_dir=lab.runs, quiet=True).run


@pytest.mark.parametrize(("mean", "spread"), [slow(50.0, 12.0), (-3e5, 7e4), slow(0.7, 0.1)])
def test_numbers_far_from_zero_are_learned(lab, mean: float, spread: float):
    first, last = train(lab, settings(write(lab.root, "far", mean, spread)), "far").metrics("eval")
    assert first["loss"] == pytest.approx(spread**2, rel=0.5), "it begins near the variance"
    assert last["loss"] < 0.2 * spread**2 and last["pearson"] > 0.9


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([40.0, 60.0], (50.0, 10.0)),
        ([3.0, 3.5], (3.25, 1.0)),
        ([-1.0, 1.5], (0.0, 1.25)),
        ([0.0, 1.0], (0.0, 1.0)),  # as the head has always begun
        ([7.0, 7.0], (7.0, 1.0)),
    ],
)
def test_where_a_new_head_begins(numbers: list[float], expected: tuple[float, float], monkeypatch):
    from trainbook.loop import facts

    monkeypatch.setattr(facts, "_labels", lambda side: np.array(numbers, dtype=np.float32))
    assert facts.target_mean_and_scale(None) == expected  # pyright: ignore[reportArgumentType]


def test_a_run_from_before_targets_were_scaled_is_resumed_with_its_own_head(lab):
    config = settings(write(lab.root, "far", 50.0, 12.0), steps=3)
    assert train(lab, config, "old")
    facts = lab.runs / "old" / "tokenizer" / FACTS_FILE
    kept = json.loads(facts.read_text())
    assert kept["target_mean"] == pytest.approx(50.0, abs=2) and kept["target_scale"] == pytest.approx(12.0, rel=0.1)

    def multiplier() -> float:
        task: Any = build(load(config).config, CPU, lab.open("old")).state.task
        return task.head.multiplier

    assert multiplier() == kept["target_scale"]
    facts.write_text(json.dumps({name: value for name, value in kept.items() if not name.startswith("target_")}))
    assert multiplier() == 1.0
    facts.write_text("{")  # damaged: the data is what it was
    assert multiplier() == kept["target_scale"]


@needs("transformers")
def test_a_trained_head_keeps_its_scale_in_an_export_and_in_other_runs(lab):
    import transformers

    train(lab, settings(write(lab.root, "far", 50.0, 12.0), steps=5), "first")
    first: Any = load_task(lab.open("first"), "best", CPU).task
    with torch.no_grad():
        expected = first.logits(**TOKENS).squeeze(-1)
    folder = export_run(lab.open("first"), lab.root / "exported").folder
    theirs: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        assert torch.allclose(theirs(TOKENS["input_ids"]).logits.squeeze(-1), expected, atol=1e-4)
    assert expected.mean() == pytest.approx(50.0, abs=10)

    other = settings(write(lab.root, "near", 0.0, 1.0), steps=2)  # the same words, on another scale
    for number, pretrained in enumerate((folder, lab.runs / "first")):
        given = {**other, "model": {"pretrained": str(pretrained)}}
        given["data"] = {name: value for name, value in other["data"].items() if name != "tokenizer"}
        task: Any = build(load(given).config, CPU).state.task.eval()
        with torch.no_grad():
            assert torch.allclose(task.logits(**TOKENS).squeeze(-1), expected, atol=1e-4)
        train(lab, given, f"second-{number}")
        kept = load_task(lab.open(f"second-{number}"), "latest", CPU)
        assert kept.facts.target_scale == (1.0 if number == 0 else first.facts.target_scale)
        assert kept.task.head.multiplier == kept.facts.target_scale  # pyright: ignore[reportAttributeAccessIssue]


@needs("transformers")
def test_a_new_head_of_transformers_begins_at_the_targets_too(lab):
    import transformers

    shape = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertForMaskedLM(shape).save_pretrained(lab.root / "base")
    config = load(
        {
            "model": {"type": "hf", "pretrained": str(lab.root / "base")},
            "data": {"tokenizer": "byte"},
            "training": {"task": "regress"},
        }
    ).config
    heads: list[Any] = [
        task_class(config).build(config, Facts(32, target_mean=mean, target_scale=std), CPU, torch.float32).network  # pyright: ignore
        for mean, std in ((0.0, 1.0), (50.0, 12.0))
    ]
    plain, scaled = (network.classifier for network in heads)
    assert torch.equal(scaled.weight, plain.weight * 12.0) and scaled.bias.item() == 50.0


@needs("transformers")
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_new_head_without_a_bias_begins_near_the_targets(lab, family: str):
    import transformers

    torch.manual_seed(0)
    shapes: dict[str, Any] = {
        "gpt2": transformers.GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=2, n_positions=32),
        "llama": transformers.LlamaConfig(
            vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
        ),
    }
    transformers.AutoModelForCausalLM.from_config(shapes[family]).save_pretrained(lab.root / "base")
    config = settings(write(lab.root, "far", 50.0, 2.0), steps=20)
    config["model"] = {"type": "hf", "pretrained": str(lab.root / "base")}
    config["data"] |= {"tokenizer": "byte", "max_seq_length": 16}
    config["optimizer"] = {"learning_rate": 1e-3}
    first, last = train(lab, config, "headless").metrics("eval")
    assert first["loss"] < 0.2 * 50.0**2, "an answer of 0 would have a loss of 2504"
    assert last["loss"] < first["loss"]
    kept = load_task(lab.open("headless"), "latest", CPU)
    assert kept.facts.target_mean == pytest.approx(50.0, abs=1)
    assert kept.task.began_at == (kept.facts.target_mean, kept.facts.target_scale)  # pyright: ignore
    if family == "llama":
        assert export_run(lab.open("headless"), lab.root / "exported").difference < 1e-3


def test_a_regression_has_the_mean_as_its_baseline_and_is_told_if_it_is_no_better(lab):
    from trainbook.doctor import diagnose
    from trainbook.loop.describe import describe
    from trainbook.runs.record import open_record

    config = settings(write(lab.root, "far", 50.0, 12.0))
    config["evaluation"] |= {"baseline": True, "eval_on_start": False, "eval_steps": 20}
    good = train(lab, config, "good")
    assert good.metrics("eval")[-1]["baseline_mean_squared_error"] == pytest.approx(144.0, rel=0.01)
    assert "constant-missed" not in {each.cause for each in diagnose(open_record(str(good.path), lab.runs)).findings}
    lines = dict(describe(build(load(config).config, CPU), CPU))
    assert lines["baseline"].endswith("the mean of the training targets has a mean squared error of 144")

    config["optimizer"] = {"learning_rate": 1e-9}
    bad = diagnose(open_record(str(train(lab, config, "bad").path), lab.runs)).findings
    found = next(each for each in bad if each.cause == "constant-missed")
    assert "always predicting the mean of the training targets has 144" in found.evidence


@pytest.mark.parametrize(
    ("task", "records", "expected"),
    [
        ("classify", [{"text": "one", "label": "a"}] * 8 + [{"text": "two", "label": "b"}] * 8, np.log(2)),
        ("classify_many", [{"text": "one", "label": ["a"]}] * 8 + [{"text": "two", "label": ["b"]}] * 8, np.log(2)),
        ("tag", [{"words": ["one", "two"], "tags": ["A", "B"]}] * 8, np.log(2)),
    ],
)
def test_every_task_of_labels_knows_the_loss_of_a_constant_prediction(lab, task: str, records: Any, expected: float):
    path = lab.root / "some.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    config = settings(str(path), steps=2)
    config["training"]["task"] = task
    facts = build(load(config).config, CPU).facts()
    assert facts["validation_prior_loss"] == pytest.approx(expected, rel=1e-6)


def test_gradients_do_not_grow_with_the_unit_of_the_targets(lab):
    rows = [
        train(lab, settings(write(lab.root, f"of-{spread:g}", 500.0, spread)), f"of-{spread:g}").metrics("train")
        for spread in (1.0, 100.0)
    ]
    small, large = ([row["grad_norm"] for row in each] for each in rows)
    assert np.all(np.array(large) < 1.05 * np.array(small))
    assert rows[1][0]["loss"] == pytest.approx(1e4 * rows[0][0]["loss"], rel=0.02), "the loss keeps its unit"


def test_numbers_are_not_rounded_in_mixed_precision():
    config = load(settings("builtin:count")).config
    task: Any = task_class(config).build(config, Facts(32, target_mean=1000.0), CPU, torch.float32).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = task.logits(**TOKENS)
    assert found.dtype == torch.float32 and len(np.unique(found.numpy())) == 2


def test_the_doctor_names_the_target_that_the_squared_error_is_about_alone(lab):
    path = Path(write(lab.root, "far", 0.0, 1.0))
    lines = path.read_text().splitlines()
    lines[100] = json.dumps({**json.loads(lines[100]), "score": 1e6})
    path.write_text("\n".join(lines) + "\n")
    run = train(lab, settings(str(path), steps=3), "outlying")
    (told,) = [each for each in diagnose(open_record(run.path)).findings if each.cause == "targets-outlying"]
    assert told.is_observed and told.severity == "warning" and "far.jsonl:101" in told.evidence
