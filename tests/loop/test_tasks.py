"""Every task learns what can be learned, and goes on after an interruption bit for bit, however its rows are padded."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.conftest import quick, slow

BERT = ("model.type=bert", "model.norm_position=pre", "data.tokenizer=char")
T5 = ("model.type=t5", "model.norm=rmsnorm", "data.tokenizer=char")
TASKS: dict[str, tuple[str, ...]] = {
    "masked": BERT,
    "span": (*T5, "model.position=relative", "model.attention_scale=none"),
    "seq2seq": (*T5, "data.source=builtin:copy?size=100"),
    "classify": (*BERT, "data.source=builtin:parity?size=100"),
    "classify_many": (*BERT, "data.source=builtin:vowels?size=100"),
    "regress": (*BERT, "data.source=builtin:count?size=100"),
    "tag": (*BERT, "data.source=builtin:tag?size=100"),
    "chat": ("data.source=builtin:echo?size=60", "data.max_seq_length=48"),
}


def settings(task: str, *overrides: str) -> list[str]:
    """Later ones win."""
    given = dict(override.split("=", 1) for override in (*TASKS[task], f"training.task={task}", *overrides))
    return [f"{name}={value}" for name, value in given.items()]


# Learning


LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ("red", "green", "blue", "yellow")


@pytest.fixture(scope="module")
def write(shared_lab) -> Callable[[str, list[dict[str, Any]]], str]:
    def write(name: str, records: list[dict[str, Any]]) -> str:
        path = shared_lab.root / f"{name}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return f"data.source={path}"

    return write


@pytest.fixture(scope="module")
def alphabets(write) -> str:
    """Texts of which each letter follows from its neighbours."""
    parts = itertools.product(range(26), range(6, 15))
    return write("alphabets", [{"text": (LETTERS * 2)[start : start + length]} for start, length in parts])


def learned(lab: Any, task: str, *overrides: str, steps: int = 150) -> tuple[dict[str, Any], dict[str, Any]]:
    """The evaluations before the first step and after the last one."""
    common = (
        "model.hidden_size=32",
        "model.num_attention_heads=4",
        "batch.global_batch_size=32",
        f"training.max_steps={steps}",
        "schedule.warmup_steps=15",
        "optimizer.beta2=0.98",
        f"evaluation.eval_steps={steps}",
        "evaluation.eval_on_start=true",
        "evaluation.eval_max_samples=200",
        "guard.enabled=false",  # each skipped update would be one more step
    )
    result = lab.train(*settings(task, *common, *overrides), name=f"learning-{task}", samples="documents")
    rows = result.run.metrics("eval")
    assert [row["step"] for row in rows] == [0, steps]
    return rows[0], rows[-1]


@pytest.mark.slow
def test_hidden_letters_are_learned(shared_lab, alphabets: str):
    before, after = learned(shared_lab, "masked", alphabets, "model.position=rotary", steps=200)
    assert before["loss"] == pytest.approx(math.log(26 + 5), rel=0.05), "letters and special tokens, all as likely"
    assert after["loss"] < 0.55 * math.log(26) and after["accuracy"] > 0.4


@pytest.mark.slow
def test_letters_that_were_cut_out_are_learned(shared_lab, alphabets: str):
    before, after = learned(shared_lab, "span", alphabets)
    assert after["loss"] < 0.2 * before["loss"] and after["accuracy"] > 0.8


def test_spans_are_cut_out_of_one_plain_text_of_characters(shared_lab):
    """Whose tokenizer would need no end of text, but for what the decoder writes."""
    overrides = settings("span", "training.max_steps=2", "schedule.warmup_steps=1", "evaluation.eval_steps=2")
    run = shared_lab.train(*overrides, name="one-text", samples="windows").run
    assert run.metrics("eval")[-1]["targets"] > 6


def test_copying_is_learned_and_written(shared_lab):
    source = ("data.source=builtin:copy?size=5000,length=4", "evaluation.generate=true", "optimizer.learning_rate=1e-2")
    before, after = learned(shared_lab, "seq2seq", *source, steps=250)
    assert before["exact_match"] < 0.05, "by chance, one in 26 for texts of a single letter"
    assert after["exact_match"] > 0.7 and after["loss"] < 0.2 * before["loss"]


def test_a_class_is_learned_better_than_by_guessing_the_most_frequent_one(shared_lab):
    source = "data.source=builtin:parity?length=3"
    _, after = learned(shared_lab, "classify", source)
    labels = labels_of(shared_lab, "classify", source)
    share = labels.count("even") / len(labels)
    chance = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert 0.6 < share < 0.8
    assert after["accuracy"] > 0.5 + share / 2 and after["loss"] < 0.7 * chance


def test_several_classes_are_learned(shared_lab, write):
    texts = ["".join(letters) for letters in itertools.product("abcd", repeat=4)]
    source = write("letters", [{"text": text, "labels": sorted(set(text))} for text in texts])
    before, after = learned(shared_lab, "classify_many", source, steps=80)
    assert before["loss"] == pytest.approx(math.log(2), rel=0.1)
    assert after["f1_micro"] > 0.9 and after["f1_macro"] > 0.9 and after["accuracy"] > 0.6


def test_numbers_are_learned_better_than_their_mean(shared_lab):
    source = "data.source=builtin:count?length=4"
    _, after = learned(shared_lab, "regress", source, steps=100)
    numbers = labels_of(shared_lab, "regress", source)
    mean = sum(numbers) / len(numbers)
    variance = sum((number - mean) ** 2 for number in numbers) / len(numbers)
    assert after["mean_squared_error"] < 0.1 * variance and after["pearson"] > 0.95


def test_tags_are_learned(shared_lab):
    _, after = learned(shared_lab, "tag", "data.source=builtin:tag?size=1000", steps=80)
    assert after["accuracy"] > 0.95 and after["f1_macro"] > 0.9


def test_answers_are_learned_and_questions_are_not(shared_lab, write):
    pairs = itertools.product(range(60), WORDS)
    source = write("chat", [{"prompt": f"{number} {word}", "response": word[::-1]} for number, word in pairs])
    before, after = learned(shared_lab, "chat", source, steps=80)
    # All evaluated answers with the end of each; what the user says is no target, or its numbers would cost much.
    assert before["targets"] <= 48 * (1 + max(map(len, WORDS))) and before["loss"] > 4
    assert after["loss"] < 0.3


def labels_of(lab: Any, task: str, source: str) -> list[Any]:
    from trainbook.data import open_records
    from trainbook.loop.build import request_of

    config = lab.load(*settings(task, source), samples="documents").config
    return [document.label for document in open_records(config.data, request_of(config)).train()]


@pytest.mark.parametrize("task", ["classify", "seq2seq", "chat"])
def test_records_are_samples_of_their_own_so_their_padding_is_not_said_to_be_idle(lab, task: str):
    assert not any("data.padding" in line for line in lab.load(*settings(task, "data.padding=bucketed")).notices)
    assert "has no effect" in lab.load("data.padding=bucketed").notices[0], "windows have all the same length"


# Resuming


PADDINGS = {
    "masked": ("longest", "bucketed", "packed"),
    "span": ("longest", "bucketed"),
    "seq2seq": ("longest", "bucketed", "packed"),
    "classify": ("longest", "bucketed", "packed"),
    "classify_many": ("packed",),
    "regress": ("bucketed",),
    "tag": ("packed",),
    "chat": ("longest", "packed"),
}


def cut_and_whole(lab: Any, everything: Sequence[str], stop: int = 4, crash: bool = False) -> None:
    def train(name: str) -> Any:
        return lab.train(*everything, name=name, samples="documents")

    train("whole")
    with lab.crashing_at(stop) if crash else lab.interrupted_at(stop):
        train("cut")
    assert train("cut").ended == "finished"
    assert len(lab.rows("whole")) == 7 and len(lab.rows("whole", "eval")) == 2
    assert len(lab.events("resume", "cut")) == 1
    lab.must_be_equal("whole", "cut")


RESUMED = (
    "model.dropout=0.1",
    "training.max_steps=7",
    "schedule.warmup_steps=1",
    "batch.per_device_train_batch_size=2",
    "checkpoint.save_steps=2",
    "evaluation.eval_steps=5",
)


EACH = [(task, padding) for task, paddings in PADDINGS.items() for padding in paddings]
SOME = (("masked", "packed"), ("span", "longest"), ("seq2seq", "bucketed"), ("classify", "packed"))


@pytest.mark.parametrize(("task", "padding"), quick(EACH, *SOME))
def test_an_interrupted_run_of_any_task_continues_bit_for_bit(lab, task: str, padding: str):
    # A power cut loses a step, which is done again; Ctrl-C loses none.
    cut_and_whole(lab, settings(task, *RESUMED, f"data.padding={padding}"), crash=padding == "packed")


@pytest.mark.parametrize("padding", [slow("bucketed"), "packed"])
def test_with_data_workers_an_interrupted_run_continues_bit_for_bit(lab, padding: str):
    everything = settings("masked", *RESUMED, f"data.padding={padding}")
    lab.train(*everything, name="without", samples="documents")
    cut_and_whole(lab, [*everything, "data.num_workers=2"])
    lab.must_be_equal("without", "cut")


def test_epochs_of_packed_rows_that_end_inside_a_batch_continue_bit_for_bit(lab):
    of_epochs = [override for override in RESUMED if "max_steps" not in override]
    everything = settings("classify", *of_epochs, "data.padding=packed", "training.num_train_epochs=1.5")
    lab.train(*everything, name="whole", samples="documents")
    rows = lab.rows("whole")
    assert rows[-1]["epoch"] == pytest.approx(1.5, abs=0.02) and len(rows) > 4
    with lab.interrupted_at(len(rows) - 2):
        lab.train(*everything, name="cut", samples="documents")
    lab.train(*everything, name="cut", samples="documents")
    lab.must_be_equal("whole", "cut")
