"""The bench of strangers: its entries, its split, and a faulty and a healthy run of each program from end to end."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import slow

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

pytest.importorskip("transformers")
pytest.importorskip("lightning")
pytest.importorskip("sklearn")

from strangers import runner
from strangers.data.table import Table
from strangers.entries import FAMILIES, HEALTHY, KINDS, Entry, all_entries, healthy_families, job_of, suitable
from strangers.job import Job
from strangers.judged import Judged, judge
from strangers.programs.names import PROGRAMS, WATCHED
from strangers.score import by_kind, lines, reliability, share_of, summary
from strangers.split import OPEN, SEALED, folds, half_of_family, half_of_kind
from strangers.validate import harms, learned

FAULTY = {
    "builtin": "rate-extreme",
    "own": "loss-negated",
    "fit": "labels-shuffled",
    "huggingface": "shifted-twice",
    "loop": "gradients-kept",
}


def small(job: Job) -> Job:
    """The same job, in seconds."""
    job.steps, job.eval_every, job.log_every, job.warmup = 12, 6, 2, 2
    job.train, job.valid = job.train.take(slice(150)), job.valid.take(slice(60))
    job.true_valid = job.true_valid.take(slice(60))
    return job


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "job_of", lambda entry: small(job_of(entry)))
    monkeypatch.setattr(sys, "argv", sys.argv)


# Runs


@pytest.mark.parametrize("program", [slow(name) if name == "huggingface" else name for name in PROGRAMS])
@pytest.mark.usefixtures("quick")
def test_a_faulty_and_a_healthy_run_of_each_program_are_made_opened_and_scored(program: str, tmp_path: Path) -> None:
    faulty = Entry(FAULTY[program], program, 0)
    healthy = Entry(HEALTHY, program, 0, family=healthy_families(program)[-1])
    for entry in (faulty, healthy):
        assert not entry.is_finished(tmp_path)
        runner.run_entry(entry, tmp_path)
        assert entry.is_finished(tmp_path)
    runs = [run for entry in (faulty, healthy) for run in judge(entry, tmp_path)]
    names = [program, WATCHED[program]] if program in WATCHED else [program]
    assert [(run.program, run.is_healthy) for run in runs] == [(name, it) for it in (False, True) for name in names]
    assert all(run.causes == (() if run.is_healthy else KINDS[FAULTY[program]].causes) for run in runs)
    assert not any(run.refusal for run in runs)
    found = summary(runs)
    for name in names:
        assert found["faulty"][name]["noticed"].of == found["healthy"][name]["error"].of == 1
    assert "faulty runs" in lines(found, runs)[0]


@pytest.mark.usefixtures("quick")
def test_what_the_doctor_can_read_of_a_run_does_not_name_its_fault(tmp_path: Path) -> None:
    for program in ("builtin", "loop"):
        entry = Entry(FAULTY[program], program, 0)
        runner.run_entry(entry, tmp_path)
        for path in (entry.folder(tmp_path) / "run").rglob("*"):
            if path.is_file():
                text = path.read_text(encoding="utf-8", errors="ignore").replace(str(tmp_path / entry.name), "")
                assert entry.kind not in text, path


# Entries


def test_the_bench_is_as_broad_as_it_says() -> None:
    entries = all_entries()
    assert len(entries) == len({entry.name for entry in entries})
    faulty = [entry for entry in entries if not entry.is_healthy]
    assert len({entry.kind for entry in faulty}) >= 60
    assert len({(entry.kind, entry.program) for entry in faulty}) >= 250
    assert len(entries) - len(faulty) >= 500
    assert sum(len(healthy_families(program)) for program in PROGRAMS) >= 60


def test_every_kind_says_what_is_wrong_and_has_a_family_in_each_of_its_programs() -> None:
    for kind in KINDS.values():
        assert kind.what.endswith(".") and kind.causes
        assert all(suitable(program, kind) for program in kind.programs)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_twin_is_the_same_job_without_the_fault(program: str) -> None:
    of_program = [kind for kind in KINDS.values() if program in kind.programs]
    for kind in of_program[::7]:
        entry = Entry(kind.name, program, 0)
        faulty, twin = job_of(entry), job_of(replace(entry, is_twin=True))
        assert faulty.family == twin.family and faulty.seed == twin.seed
        assert not (twin.criteria or twin.surgery or twin.batches or twin.at_step or twin.rate_at)


def test_an_entry_is_the_same_job_each_time() -> None:
    for program in ("fit", "own"):
        one, other = (job_of(Entry("labels-noisy", program, 1)) for _ in range(2))
        assert (one.train.x == other.train.x).all() and (one.train.labels == other.train.labels).all()
        assert one.rate == other.rate and one.family == other.family


# The split


def test_half_of_the_kinds_of_each_group_is_sealed() -> None:
    halves = [half_of_kind(name) for name in KINDS]
    assert abs(halves.count(OPEN) - halves.count(SEALED)) <= 1
    families = [half_of_family(program, name) for program in PROGRAMS for name in FAMILIES[program]]
    assert {OPEN, SEALED} == set(families)
    assert all(program not in others and len(others) == 4 for program, others in folds())


# Scores


def judged(kind: str, *said: tuple[str, str, float], causes: tuple[str, ...] = ("overfitting",)) -> Judged:
    findings = tuple(
        {
            "rule": "r",
            "severity": severity,
            "cause": cause,
            "confidence": confidence,
            "explained_by": "",
            "is_observed": False,
        }
        for severity, cause, confidence in said
    )
    half = half_of_kind(kind) if kind != HEALTHY else OPEN
    return Judged(kind, "fit", 0, "blobs", kind == HEALTHY, False, half, causes, "finished", findings)


def test_any_of_the_causes_is_right_and_remarks_do_not_count() -> None:
    run = judged("rate-low", ("info", "overfitting", 0.9), ("warning", "model-small", 0.5))
    assert run.is_noticed and not run.is_first and not run.is_among_three
    run = judged("rate-low", ("warning", "model-small", 0.5), ("error", "overfitting", 0.4))
    assert not run.is_first and run.is_among_three and run.worst == "error"


def test_a_statement_about_a_healthy_run_is_wrong_whatever_it_says() -> None:
    right = judged("rate-low", ("error", "overfitting", 0.8))
    wrong = judged(HEALTHY, ("error", "overfitting", 0.8), causes=())
    found = reliability([right, wrong])
    assert found["deciles"] == [{"from": 0.8, "to": 0.9, "runs": 2, "stated": 0.8, "right": 0.5}]
    assert found["expected_calibration_error"] == pytest.approx(0.3)


def test_no_hit_at_all_still_has_an_interval() -> None:
    share = share_of([judged(HEALTHY, causes=())] * 5, lambda run: run.is_noticed)
    assert (share.hits, share.of, share.low) == (0, 5, 0.0) and 0.9 < share.high < 1.0  # they are of one family


def test_lines_of_sealed_kinds_are_not_printed_unless_asked_for() -> None:
    sealed = next(name for name in KINDS if half_of_kind(name) == SEALED)
    opened = next(name for name in KINDS if half_of_kind(name) == OPEN)
    runs = [judged(sealed), judged(opened)]
    printed = [line.split()[0] for line in lines(summary(runs), runs)]
    assert opened in printed and sealed not in printed
    assert sealed in [line.split()[0] for line in lines(summary(runs), runs, show_sealed=True)]
    assert {row["kind"] for row in by_kind(runs)} == {sealed, opened}


def test_harm_is_a_clearly_worse_model() -> None:
    def truth(loss: float, accuracy: float | None = None) -> dict:
        return {"true": {"loss": loss, "accuracy": accuracy}, "baseline": 1.0, "ended": "finished"}

    assert harms(truth(0.5), truth(0.3)) and not harms(truth(0.31), truth(0.3))
    assert harms(truth(0.3, 0.8), truth(0.3, 0.9)) and harms(truth(float("nan")), truth(0.3))
    assert learned(truth(0.5)) and not learned(truth(0.95))


def test_tables_are_taken_by_copy() -> None:
    table = job_of(Entry(HEALTHY, "fit", 0, family="blobs")).train
    part = table.take(slice(5))
    part.x[:] = 0
    assert isinstance(part, Table)
    assert table.x[:5].any()
