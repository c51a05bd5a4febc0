"""The fault bench: what is in which half, that faults go as they came, and runs from end to end in small."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "doctor"))

import clean
import data_patches
import model_patches
import texts
from case import ARCHITECTURES, Case
from entries import FAULT_GROUPS, all_entries, case_of, clean_entries, fault_entries
from faults import KINDS
from runner import KEPT, TRUTH, Entry, train_case
from split import SEEDS, halves_of, shared

from trainbook.runs import RunFolder

PLACES = (*data_patches.PLACES, *model_patches.PLACES)
TINY = {
    "training.max_steps": 12,
    "model.num_hidden_layers": 1,
    "model.hidden_size": 16,
    "model.num_attention_heads": 2,
    "schedule.warmup_steps": 2,
    "evaluation.eval_steps": 6,
    "evaluation.eval_max_samples": 8,
    "logging.logging_steps": 2,
    "batch.global_batch_size": 4,
    "data.max_seq_length": 36,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[texts.Files]:
    """Small texts, of the same kinds."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("TEXT_CHARACTERS", 9_000), ("VALIDATION_CHARACTERS", 3_000)):
            patch.setattr(texts, name, size)
        patch.setattr(texts, "NUM_TEXTS", 750)
        patch.setattr(texts, "NUM_VALIDATION_TEXTS", 60)
        yield texts.Files(tmp_path_factory.mktemp("bench") / "data")


def built(kind: str, architecture: str, files: texts.Files, seed: int = 0, **changes: Any) -> Case:
    case = Case(architecture, seed, files, kind=kind, **changes)
    KINDS[kind].build(case)
    return case


# The halves


def test_there_are_enough_runs() -> None:
    held_out = [entry for entry in fault_entries() if entry.half == "held-out"]
    assert len({entry.kind for entry in held_out}) == len(KINDS) >= 28
    for name, kind in KINDS.items():
        for architecture in kind.architectures:
            seeds = {entry.seed for entry in held_out if (entry.kind, entry.architecture) == (name, architecture)}
            assert len(seeds) >= 5
    assert sum(kind.architectures == ARCHITECTURES for kind in KINDS.values()) >= 25
    assert sum(entry.half == "held-out" for entry in clean_entries()) >= 150


def test_no_run_of_one_half_is_in_the_other() -> None:
    runs = {half: {e.name for e in all_entries() if e.half == half} for half in ("development", "held-out")}
    assert runs["development"] and not runs["development"] & runs["held-out"]
    assert not set(SEEDS["development"]) & set(SEEDS["held-out"])


def test_half_of_the_kinds_of_each_group_are_never_seen_in_development() -> None:
    seen = {entry.kind for entry in fault_entries() if entry.half == "development"}
    assert seen == shared(FAULT_GROUPS)
    for group in set(FAULT_GROUPS.values()):
        names = {name for name, its_group in FAULT_GROUPS.items() if its_group == group}
        assert abs(len(names) - 2 * len(names & seen)) <= 1
    assert abs(len(KINDS) - 2 * len(seen)) <= 1


def test_the_split_is_the_one_that_the_rules_were_developed_under() -> None:
    """A kind that moved over would be reported on as if nobody had looked at it."""
    assert [name for name in sorted(KINDS) if len(halves_of(name, FAULT_GROUPS)) == 2] == IN_BOTH_HALVES


IN_BOTH_HALVES = [
    "accumulation-wrong",
    "attention-growing",
    "batch-tiny",
    "beta2-low",
    "clipping-tight",
    "data-duplicated",
    "data-sorted",
    "fp16-overflow",
    "gradients-nan",
    "init-small",
    "loader-stale",
    "logits-drift",
    "metric-wrong",
    "model-small",
    "order-restarted",
    "padding-counted",
    "rate-30th",
    "rate-x30",
    "schedule-late",
    "targets-shifted-twice",
    "throughput-drop",
    "training-short",
    "validation-foreign",
]


# Kinds


def test_every_cause_is_one_that_the_doctor_knows() -> None:
    from trainbook.doctor import causes

    named = {cause for kind in KINDS.values() for cause in kind.causes}
    assert named <= set(causes.CAUSES)


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_differs_from_its_twin_and_is_undone_afterwards(name: str, files: texts.Files) -> None:
    before = [place.content for place in PLACES]
    for architecture in KINDS[name].architectures:
        for seed in (0, 1):
            faulty, twin = (built(name, architecture, files, seed, is_faulty=faulty) for faulty in (True, False))
            patches = [*faulty.patches, *faulty.patches_of_resumed]
            assert patches or faulty.knobs != twin.knobs
            assert not twin.patches and not twin.patches_of_resumed
            with ExitStack() as held:
                for patch in patches:
                    held.enter_context(patch)
                is_replaced = any(place.content is not was for place, was in zip(PLACES, before, strict=True))
                assert is_replaced == bool(patches)
            assert all(place.content is was for place, was in zip(PLACES, before, strict=True))


def test_what_the_doctor_reads_does_not_name_the_fault(files: texts.Files) -> None:
    for name, kind in KINDS.items():
        for architecture in kind.architectures:
            for path in ("data.source", "data.validation"):
                place = Path(built(name, architecture, files).knobs[path])
                assert len(place.stem) == 12 and set(place.stem) <= set("0123456789abcdef")


def test_every_clean_setting_is_a_configuration(files: texts.Files) -> None:
    from trainbook.knobs import load

    for name in clean.SETTINGS:
        case = case_of(Entry("clean", name, 0, "development"), files.folder)
        load(case.recipe or {}, case.overrides)


# Runs, in small


def small(case: Case, **knobs: Any) -> Case:
    case.base({**TINY, **knobs})
    return case


def trained(case: Case, folder: Path) -> tuple[RunFolder, str]:
    ended = train_case(case, folder)
    return RunFolder(folder), ended


def test_a_token_that_predicts_itself_is_learnt_at_once(files: texts.Files, tmp_path: Path) -> None:
    losses = {}
    for is_faulty in (True, False):
        case = small(built("targets-unshifted", "gpt", files, is_faulty=is_faulty), **{"training.max_steps": 40})
        case.base({"optimizer.learning_rate": 1e-2})
        run, ended = trained(case, tmp_path / "half" / f"run-{is_faulty}")
        assert ended == "finished"
        losses[is_faulty] = run.metrics("eval")[-1]["loss"]
    assert losses[True] < losses[False] - 0.5


def test_a_resumed_run_that_lost_its_place_reads_the_first_batches_again(files: texts.Files, tmp_path: Path) -> None:
    epochs = {}
    for is_faulty in (True, False):
        case = small(built("order-restarted", "bert", files, is_faulty=is_faulty))
        case.stop_at = 6
        run, ended = trained(case, tmp_path / "half" / f"run-{is_faulty}")
        assert ended == "finished" and any(event["kind"] == "resume" for event in run.events())
        epochs[is_faulty] = {row["step"]: row["epoch"] for row in run.metrics("train")}
    assert epochs[True][12] == epochs[True][6] == epochs[False][6]
    assert epochs[False][12] == 2 * epochs[False][6]


@pytest.mark.parametrize("setting", ["bert-bucketed", "t5"])
def test_a_clean_run_learns_and_leaves_what_the_doctor_reads(setting: str, files: texts.Files, tmp_path: Path) -> None:
    case = small(case_of(Entry("clean", setting, 0, "development"), files.folder))
    run, ended = trained(case, tmp_path / "half" / "run")
    assert ended == "finished" and len(run.metrics("eval")) == 2
    assert {path.name for path in run.path.iterdir()} <= set(KEPT)
    assert "injected" not in json.dumps([event["kind"] for event in run.events()])


def test_checkpoints_stay_where_they_are_asked_for(files: texts.Files, tmp_path: Path) -> None:
    train_case(small(built("rate-x30", "gpt", files)), tmp_path / "half" / "run", keep_checkpoints=True)
    assert RunFolder(tmp_path / "half" / "run").has_checkpoints


# Batches that are spoilt


@pytest.fixture
def batch() -> Any:
    import numpy as np

    from trainbook.data.batches.filling import Batch, Ragged

    tokens = Ragged(np.array([1, 2, 3, 4, 5, 6, 7]), np.array([4, 3]))
    rest: dict[str, Any] = {"targets": None, "labels": None, "marks": None, "equally_long": False}
    return Batch(
        **{"ids": np.arange(2), "epochs": np.zeros(2), "tokens": tokens, "rows": np.arange(2), "num_rows": 2},
        **{"width": 4, "epoch": 0.5, "step": 3, **rest},
    )


@pytest.mark.parametrize(
    ("patch", "targets", "count"),
    [
        (data_patches.targets_are_inputs, [[1, 2, 3, -100], [5, 6, -100, -100]], 5),
        (data_patches.targets_shifted_again, [[3, 4, -100, -100], [7, -100, -100, -100]], 3),
        (data_patches.padding_counted, [[2, 3, 4, 0], [6, 7, 0, 0]], 8),
    ],
)
def test_targets_are_spoilt_as_the_fault_says(patch: Any, targets: list, count: int, batch: Any) -> None:
    from trainbook.tasks.causal import CausalCollate

    right = CausalCollate(2)(batch)
    assert right.micro_batches[0]["targets"].tolist() == [[2, 3, 4, -100], [6, 7, -100, -100]]
    with patch():
        made = CausalCollate(2)(batch)
    assert made.micro_batches[0]["targets"].tolist() == targets and made.num_targets == count


def test_shuffled_targets_are_the_same_ones_elsewhere_and_only_in_training(batch: Any) -> None:
    from trainbook.tasks.causal import CausalCollate

    with data_patches.targets_shuffled(1):
        (spoilt,) = CausalCollate(2)(batch).micro_batches
        batch.epochs[:] = -1
        (evaluated,) = CausalCollate(2)(batch).micro_batches
    assert sorted(spoilt["targets"].flatten().tolist()) == sorted(evaluated["targets"].flatten().tolist())
    assert evaluated["targets"].tolist() == [[2, 3, 4, -100], [6, 7, -100, -100]]


def test_a_schedule_that_ends_early_stays_at_zero() -> None:
    from trainbook.knobs import load
    from trainbook.loop import job

    schedule = load({}, ["schedule.type=linear", "training.max_steps=100"]).config.schedule
    with model_patches.schedule_of(0.25):
        early = job.shares(schedule, 100, 4)
    with model_patches.schedule_of(10):
        late = job.shares(schedule, 100, 4)
    assert len(early) == len(late) == 100
    assert early[4] == 1.0 and early[24] > 0 and early[25:] == [0.0] * 75
    assert late[99] == pytest.approx(1 - 95 / 996)


def test_truth_is_written_last() -> None:
    assert TRUTH in KEPT


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_fault_trains_to_an_end(name: str, files: texts.Files, tmp_path: Path) -> None:
    for architecture in KINDS[name].architectures:
        for seed in (0, 1):
            case = built(name, architecture, files, seed)
            kept = {path: case.knobs[path] for path in ("batch.global_batch_size", "model.hidden_size")}
            small(case, **(kept if name in ("batch-tiny", "model-small", "accumulation-wrong") else {}))
            case.stop_at = case.stop_at and 6
            folder = tmp_path / "half" / f"run-{architecture}-{seed}"
            ended = train_case(case, folder)
            assert ended == "finished" or ended.startswith("Diverged")
            assert RunFolder(folder).metrics("train")


@pytest.mark.slow
@pytest.mark.parametrize("setting", clean.SETTINGS)
def test_every_clean_setting_trains_to_its_end(setting: str, files: texts.Files, tmp_path: Path) -> None:
    case = case_of(Entry("clean", setting, 0, "development"), files.folder)
    for path in {*TINY} - {"training.max_steps", "data.max_seq_length", "batch.global_batch_size"}:
        case.knobs[path] = TINY[path]
    if "training.max_steps" in case.knobs:
        case.knobs["training.max_steps"] = 12
    case.stop_at = case.stop_at and 6
    assert train_case(case, tmp_path / "half" / "run") in ("finished", "early_stop")
