"""One worker in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.study.tune.conftest import Asks

from trainbook.errors import DataError, Interrupted
from trainbook.study.tune.ledger import Ledger, opened, sqlite_url
from trainbook.study.tune.planning import Tuning, next_order
from trainbook.study.tune.pruning import RUNGS, bracket_of
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Trial
from trainbook.study.tune.trial_run import Failed, TrialOutcome, TrialTask
from trainbook.study.tune.worker import MayBeUnwell, Worker


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with opened(sqlite_url(tmp_path / "study.db"), "s") as ledger:
        yield ledger


def work(
    ledger: Ledger,
    question: StudyQuestion,
    objective: Callable[[TrialTask], TrialOutcome],
    folder: Path = Path("unused"),
) -> list[Trial]:
    ledger.open(question.as_json())
    Worker(ledger, Tuning(question), folder, objective, "w").work()
    return ledger.trials()


def test_what_diverged_before_a_rung_is_the_worst_there(ledger: Ledger, ask: Asks) -> None:
    """One in three goes on, of all: with two lost ones the third best of six is still in the best third of nine."""
    losses = iter([None, None, None, None, 1.0, 2.0])

    def objective(task: TrialTask) -> TrialOutcome:
        if task.trial.kind == "base" or task.until > RUNGS[0]:
            return TrialOutcome(1.0)
        return TrialOutcome(next(losses), reason="diverged")

    trials = work(ledger, ask(budget=7, seeds=0, pruning="asha"), objective)
    assert [each.state for each in trials[1:]] == ["infeasible"] * 4 + ["done"] * 2
    assert sum(each.loss is None for each in ledger.reports()) == 4


def test_hyperband_compares_within_a_bracket_and_counts_them_within_an_arm(ledger: Ledger, ask: Asks) -> None:
    text = "nuisance: {learning_rate: }\nscientific: {model.dropout: [0.0, 0.1]}\n"
    question = ask(text, budget=20, seeds=0, pruning="hyperband")
    paused: dict[int, list[float]] = {}

    def objective(task: TrialTask) -> TrialOutcome:
        paused.setdefault(task.trial.number, []).append(task.until)
        return TrialOutcome(1.0 + 1e-3 * task.trial.number)

    trials = work(ledger, question, objective)
    for arm in (0, 1):
        searched = [each for each in trials if each.kind == "search" and each.arm == arm]
        firsts = [paused[each.number][0] for each in searched]
        assert firsts == [(*RUNGS, 1.0)[bracket_of("hyperband", place)] for place in range(len(searched))]
        # Each one is worse than those before it: of a bracket the first two have nobody to be compared with.
        at_first = [each.state for each, first in zip(searched, firsts, strict=True) if first == RUNGS[1]]
        assert at_first == ["done", "done", "pruned"][: len(at_first)]


def test_a_trial_that_is_taken_over_is_not_judged_again_where_it_was(ledger: Ledger, ask: Asks) -> None:
    question = ask(budget=4, seeds=0, pruning="asha")
    ledger.open(question.as_json())
    planner = lambda trials, plan: next_order(question, trials, plan)  # noqa: E731
    first, taken = ledger.take("a", planner), ledger.take("b", planner)
    assert isinstance(first, Trial) and isinstance(taken, Trial)
    ledger.finish(replace(first, state="done", loss=1.0), "a")
    ledger.report(taken, RUNGS[0], 3.0, {1})
    ledger.bury("b")
    seen: list[float] = []

    def objective(task: TrialTask) -> TrialOutcome:
        seen.extend([task.until] if task.trial.number == taken.number else [])
        return TrialOutcome(1.0)

    Worker(ledger, Tuning(question), Path("unused"), objective, "w").work()
    assert seen == [RUNGS[1], 1.0]
    kept = [each.loss for each in ledger.reports() if (each.number, each.rung) == (taken.number, RUNGS[0])]
    assert kept == [3.0]


def test_what_a_failed_trial_has_cost_is_kept_and_an_expected_error_ends_no_worker(ledger: Ledger, ask: Asks) -> None:
    def objective(task: TrialTask) -> TrialOutcome:
        if task.trial.number == 1:
            raise Failed("the disk is full", tokens=500)
        if task.trial.number == 2:
            raise DataError("no such file")
        return TrialOutcome(1.0, tokens=1000)

    trials = work(ledger, ask(budget=4, seeds=0), objective)
    assert [(each.state, each.tokens) for each in trials[:3]] == [("done", 1000), ("failed", 500), ("failed", 0)]
    assert trials[2].reason == "no such file"


def test_after_an_error_that_is_not_ours_the_worker_takes_no_other_trial(ledger: Ledger, ask: Asks) -> None:
    def objective(task: TrialTask) -> TrialOutcome:
        raise RuntimeError("CUDA error")

    with pytest.raises(MayBeUnwell, match="RuntimeError: CUDA error"):
        work(ledger, ask(budget=4, seeds=0), objective)
    assert [each.state for each in ledger.trials()] == ["failed"]


def test_a_worker_that_is_asked_to_stop_does_so_between_rungs_and_gives_the_trial_back(
    ledger: Ledger, ask: Asks
) -> None:
    question = ask(budget=4, seeds=0, pruning="asha")
    ledger.open(question.as_json())
    asked: list[bool] = []

    def objective(task: TrialTask) -> TrialOutcome:
        asked.extend([True] if task.until < 1 else [])
        return TrialOutcome(1.0)

    worker = Worker(ledger, Tuning(question), Path("unused"), objective, "w", is_asked_to_stop=lambda: bool(asked))
    with pytest.raises(Interrupted):
        worker.work()
    assert [each.state for each in ledger.trials()][:2] == ["done", "waiting"] and len(asked) == 1


def test_of_a_gpu_that_several_share_each_trial_has_its_part(ledger: Ledger, ask: Asks) -> None:
    question = ask(budget=4, seeds=0)
    ledger.open(question.as_json())
    Worker(ledger, Tuning(question), Path("unused"), lambda task: TrialOutcome(1.0), "w", share=0.25).work()
    assert all(each.gpu_seconds == pytest.approx(each.seconds / 4) and each.seconds > 0 for each in ledger.trials())


def test_a_repetition_with_a_lucky_seed_does_not_take_the_place_of_the_best(
    ledger: Ledger, ask: Asks, tmp_path: Path
) -> None:
    def objective(task: TrialTask) -> TrialOutcome:
        run = tmp_path / "trials" / task.name
        (run / "checkpoints" / "step-1").mkdir(parents=True)
        return TrialOutcome(0.5 if task.trial.kind == "repeat" else 3.0 - task.trial.number, run=str(run))

    trials = work(ledger, ask(budget=3, seeds=2), objective, tmp_path)
    assert len(trials) == 3 + 6
    assert [each.number for each in trials if any(Path(each.run or "").glob("checkpoints/*"))] == [2]


def test_what_may_be_the_best_keeps_its_weights_until_new_seeds_have_decided(
    ledger: Ledger, ask: Asks, tmp_path: Path
) -> None:
    again = {4: 3.0, 3: 1.0, 2: 2.0, 0: 5.0}
    kept: list[set[str]] = []

    def objective(task: TrialTask) -> TrialOutcome:
        kept.append({path.parents[1].name for path in tmp_path.glob("trials/*/checkpoints/*")})
        run = tmp_path / "trials" / str(task.trial.number)
        (run / "checkpoints" / "step-1").mkdir(parents=True)
        of = task.trial.of
        return TrialOutcome(5.0 - task.trial.number if of is None else again[of], run=str(run))

    trials = work(ledger, ask(budget=5, seeds=1), objective, tmp_path)
    assert kept[5:] == [{"0", "2", "3", "4"}] * 4, "before each repetition"
    assert [each.number for each in trials if any(Path(each.run or "").glob("checkpoints/*"))] == [3]


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_the_best_keeps_its_weights_and_no_other_that_has_ended(
    ledger: Ledger, ask: Asks, tmp_path: Path, metric: str
) -> None:
    """Those of all trials would fill a disk. What failed is tried again, from where it was."""
    values = {0: 3.0, 1: 2.0, 2: None, 3: 1.0, 4: 2.5}

    def objective(task: TrialTask) -> TrialOutcome:
        run = tmp_path / "trials" / task.name
        (run / "checkpoints" / "step-1").mkdir(parents=True)
        if task.trial.number == 5:
            raise Failed("a full disk", run=str(run))
        value = values[task.trial.number]
        return TrialOutcome(-value if value and metric == "accuracy" else value, run=str(run))

    trials = work(
        ledger, ask(f"nuisance: {{learning_rate: }}\nmetric: {metric}\n", budget=6, seeds=0), objective, tmp_path
    )
    assert [each.state for each in trials] == ["done", "done", "infeasible", "done", "done", "failed"]
    assert [each.number for each in trials if any(Path(each.run or "").glob("checkpoints/*"))] == [3, 5]
