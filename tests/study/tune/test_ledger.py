from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from tests.study.tune.conftest import Asks

from trainbook.errors import Interrupted, MissingExtra, ResumeError, RunError, UserError
from trainbook.study.tune import database as database_module
from trainbook.study.tune.ledger import MOST_ATTEMPTS, Ledger, is_extended, opened, sqlite_url
from trainbook.study.tune.planning import extended, is_spent, next_order
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Order, Trial
from trainbook.terminal import without_password


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "study.db")


@pytest.fixture
def question(ask: Asks) -> StudyQuestion:
    return ask()


@pytest.fixture
def ledger(url: str, question: StudyQuestion) -> Iterator[Ledger]:
    with opened(url, "s") as ledger:
        ledger.open(question.as_json())
        yield ledger


def take(ledger: Ledger, question: StudyQuestion, worker: str) -> Trial:
    taken = ledger.take(worker, lambda trials, plan: next_order(question, trials, plan))
    assert isinstance(taken, Trial)
    return taken


def end(ledger: Ledger, trial: Trial, worker: str, loss: float = 1.0) -> bool:
    return ledger.finish(replace(trial, state="done", loss=loss), worker)


def test_the_base_comes_first_then_all_points_then_the_repetitions(ledger: Ledger, question: StudyQuestion) -> None:
    kinds = []
    while True:
        taken = ledger.take("a", lambda trials, plan: next_order(question, trials, plan))
        if taken is None:
            break
        assert isinstance(taken, Trial)
        kinds.append(taken.kind)
        end(ledger, taken, "a", loss=10.0 - taken.number)
    assert kinds == ["base"] + ["search"] * 7 + ["repeat"] * 8  # 2 seeds of the best three and of the base
    trials = ledger.trials()
    assert [each.number for each in trials] == list(range(16))
    assert {each.of for each in trials if each.kind == "repeat"} == {0, 5, 6, 7}


def test_four_workers_at_once_get_every_trial_once(url: str, ask: Asks) -> None:
    question = ask(budget=32, seeds=0)
    with opened(url, "s") as ledger:
        ledger.open(question.as_json())
    got: list[int] = []

    def work(name: str) -> None:
        with opened(url, "s") as mine:
            while (taken := mine.take(name, lambda trials, plan: next_order(question, trials, plan))) is not None:
                if isinstance(taken, Trial):
                    got.append(taken.number)
                    end(mine, taken, name)

    threads = [Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    with opened(url, "s") as ledger:
        trials = ledger.trials()
    assert sorted(got) == list(range(32)) == [each.number for each in trials]
    rates = Counter(each.values["optimizer.learning_rate"] for each in trials if each.kind == "search")
    assert set(rates.values()) == {1}  # Sobol's points, none of them twice


def test_a_trial_whose_lease_ran_out_is_taken_over_and_the_first_answer_counts(
    url: str, ledger: Ledger, question: StudyQuestion
) -> None:
    with opened(url, "s", lease_seconds=-1.0) as hasty:
        lost = take(hasty, question, "late")
        assert hasty.renew(lost, "late")  # renewing is always allowed, while nobody else has it
    again = take(ledger, question, "other")
    assert (again.number, again.attempts) == (lost.number, 2)
    assert not ledger.renew(lost, "late")
    assert end(ledger, lost, "late", loss=5.0), "it was alive, and only could not say so"
    assert not ledger.renew(again, "other")
    assert not end(ledger, again, "other", loss=4.0)
    assert [each.loss for each in ledger.trials() if each.is_over] == [5.0]


def test_nothing_is_taken_over_just_after_the_database_was_away(
    url: str, ledger: Ledger, question: StudyQuestion, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(url, "s", lease_seconds=-1.0) as hasty:
        lost = take(hasty, question, "alive")
    away(ledger, monkeypatch, times=1)
    assert take(ledger, question, "other").number != lost.number  # who came back at the same moment may still renew
    assert ledger.renew(lost, "alive")
    monkeypatch.setattr(ledger.database, "last_away", -1e9)
    with opened(url, "s", lease_seconds=-1.0) as hasty:
        assert hasty.renew(lost, "alive")  # and is gone
    assert take(ledger, question, "third").number == lost.number


def test_a_trial_that_is_busy_is_taken_only_if_there_is_no_other(ledger: Ledger, question: StudyQuestion) -> None:
    first = take(ledger, question, "a")
    second = take(ledger, question, "b")
    for each, worker in ((first, "a"), (second, "b")):
        ledger.give_back(each, worker)
    planner = lambda trials, plan: next_order(question, trials, plan)  # noqa: E731
    avoiding = ledger.take("c", planner, avoided={first.number})
    assert isinstance(avoiding, Trial) and avoiding.number == second.number


def test_failed_trials_are_tried_again_on_a_new_start_but_not_for_ever(ledger: Ledger, question: StudyQuestion) -> None:
    base = take(ledger, question, "a")
    ledger.finish(replace(base, state="failed", reason="the disk is full"), "a")
    for _ in range(MOST_ATTEMPTS + 1):  # all depends on it
        assert ledger.try_failed_again() == 1
        base = take(ledger, question, "a")
        ledger.finish(replace(base, state="failed", reason="the disk is full"), "a")
    assert ledger.try_failed_again() == 1
    end(ledger, take(ledger, question, "a"), "a")
    for attempt in range(1, MOST_ATTEMPTS + 1):
        trial = take(ledger, question, "a")
        assert (trial.kind, trial.number, trial.attempts) == ("search", 1, attempt)
        ledger.finish(replace(trial, state="failed", reason="odd"), "a")
        assert ledger.try_failed_again() == (attempt < MOST_ATTEMPTS)


def test_a_base_that_failed_refuses_only_for_as_long_as_it_has(ledger: Ledger, question: StudyQuestion) -> None:
    planner = lambda trials, plan: next_order(question, trials, plan)  # noqa: E731
    base = take(ledger, question, "a")
    for number in range(1, 8):
        end(ledger, take(ledger, question, "b"), "b", number)
    ledger.finish(replace(base, state="failed", reason="no such file"), "a")
    assert ledger.take("a", planner) is None
    ledger.try_failed_again()
    assert take(ledger, question, "a").number == 0


def test_what_is_left_when_the_budget_is_spent_is_never_begun(url: str, ask: Asks) -> None:
    question = ask(budget="20000 tokens", seeds=1)
    with opened(url, "spent") as ledger:
        ledger.open(question.as_json())
        tokens = 0
        while True:
            taken = ledger.take(
                "a",
                lambda trials, plan: next_order(question, trials, plan),
                lambda trials: is_spent(question, trials),
            )
            if taken is None:
                break
            assert isinstance(taken, Trial)
            cost = 1000 if taken.kind == "base" else 3000  # more than planned for
            tokens += cost
            loss = 2.0 if taken.kind == "base" else 1.0
            ledger.finish(replace(taken, state="done", loss=loss, tokens=cost), "a")
        trials = ledger.trials()
    assert tokens <= 20000 + 2 * 3000  # one trial that began before, and a dearer repetition
    assert {each.state for each in trials} == {"done", "dropped"}
    assert sum(each.kind == "repeat" and each.state == "done" for each in trials) == 4


def test_a_lease_that_is_renewed_is_kept(ledger: Ledger, question: StudyQuestion) -> None:
    mine = take(ledger, question, "a")
    assert ledger.renew(mine, "a", seconds=1.5) and ledger.renew(mine, "a", seconds=2.0)
    (running,) = [each for each in ledger.trials() if each.state == "running" and each.worker == "a"]
    assert running.number == mine.number and running.seconds == 3.5


def test_a_trial_that_kills_its_workers_is_not_lent_for_ever(url: str, ledger: Ledger, question: StudyQuestion) -> None:
    for attempt in range(MOST_ATTEMPTS):
        assert take(ledger, question, f"w{attempt}").number == 0
        ledger.bury(f"w{attempt}")
    first = ledger.trials()[0]
    assert first.state == "failed" and f"{MOST_ATTEMPTS} workers died" in (first.reason or "")


def test_what_is_given_back_counts_as_no_attempt(ledger: Ledger, question: StudyQuestion) -> None:
    mine = take(ledger, question, "a")
    ledger.give_back(mine, "a")
    assert (ledger.trials()[0].state, ledger.trials()[0].attempts) == ("waiting", 0)


def test_values_that_are_lists_come_back_as_they_are_chosen_from(ledger: Ledger, question: StudyQuestion) -> None:
    values = {"model.lora_targets": ("q", "v"), "model.dropout": 0.1}
    taken = ledger.take("a", lambda trials, plan: Order([Trial(0, "search", values)]))
    assert isinstance(taken, Trial) and ledger.trials()[0].values == values


def test_everything_can_be_said_twice(ledger: Ledger, question: StudyQuestion) -> None:
    """As after a connection that broke before the answer came."""
    mine = take(ledger, question, "a")
    assert take(ledger, question, "a") == mine
    assert end(ledger, mine, "a", 2.0) and end(ledger, mine, "a", 2.0)
    assert ledger.report(mine, 0.5, 3.0, {0}) == ledger.report(mine, 0.5, 3.0, {0}) == []
    assert len(ledger.reports()) == 1


def test_a_report_is_compared_only_with_those_that_it_is_said_to_be(ledger: Ledger, question: StudyQuestion) -> None:
    first, second = take(ledger, question, "a"), take(ledger, question, "b")
    ledger.report(first, 0.5, 1.0, {0, 1})
    assert ledger.report(second, 0.5, 2.0, {1}) == []
    (lost,) = [each for each in ledger.report(replace(first, number=99), 0.5, float("nan"), {0}) if each]
    assert lost == 1.0
    assert len(ledger.report(first, 0.5, 1.0, {0, 1, 99})) == 2  # what diverged is one of them


def test_a_study_that_was_changed_is_refused_with_the_difference(ledger: Ledger, ask: Asks) -> None:
    changed = ask("nuisance: {learning_rate: {high: 0.5}}\nfixed: {model.dropout: 0.1}\n", budget=6)
    with pytest.raises(ResumeError) as refused:
        ledger.open(changed.as_json())
    told = str(refused.value)
    assert "model.dropout: 0.0 -> 0.1" in told and "budget: 8 trials -> 6 trials" in told
    assert "high 0.01" in told and "high 0.5" in told and "--name" in told


def test_an_end_at_zero_is_told_where_it_was_changed(ledger: Ledger, ask: Asks) -> None:
    text = "nuisance: {{model.dropout: {{low: {}, high: 0.3}}}}\n"
    before, now = (ask(text.format(low)).as_json() for low in (0.0, 0.1))
    with pytest.raises(ResumeError, match=r"scale linear, low 0.0, high 0.3 -> scale linear, low 0.1, high 0.3"):
        is_extended(json.loads(json.dumps(before)), json.loads(json.dumps(now)), "s")


def test_a_study_is_extended_by_more_budget_or_seeds_and_only_by_these(ledger: Ledger, ask: Asks) -> None:
    base = take(ledger, ask(), "one")
    ledger.finish(replace(base, state="done", loss=2.0), "one")
    take(ledger, ask(), "one")
    space = (ledger.plan() or {})["space"]
    larger = ask(budget=16, seeds=4)
    assert ledger.open(larger.as_json(), lambda plan: extended(larger, plan))
    plan = ledger.plan() or {}
    assert plan["trials"] == 16 and plan["space"] == space and "extended to 16 trials" in plan["words"][0]
    assert not ledger.open(larger.as_json())  # the same again is no extension
    for smaller in (ask(budget=8, seeds=4), ask(budget=16, seeds=2), ask(budget="1 GPU-hour", seeds=4)):
        with pytest.raises(ResumeError, match="can be extended by a larger budget in the same unit, or by more seeds"):
            ledger.open(smaller.as_json())


def test_what_a_spent_budget_dropped_is_waiting_again_when_the_study_is_extended(ledger: Ledger, ask: Asks) -> None:
    question = ask()
    base = take(ledger, question, "one")
    ledger.finish(replace(base, state="done", loss=2.0), "one")
    first = take(ledger, question, "one")
    ledger.finish(replace(first, state="done", loss=1.0), "one")
    ledger.take("one", lambda trials, plan: next_order(question, trials, plan), lambda trials: True)
    assert {each.state for each in ledger.trials()[2:]} >= {"dropped"}
    larger = ask(budget=9)
    ledger.open(larger.as_json(), lambda plan: extended(larger, plan))
    assert "dropped" not in {each.state for each in ledger.trials()}


def test_more_workers_are_no_other_study(ledger: Ledger, ask: Asks) -> None:
    ledger.open(ask(workers=4).as_json())


def away(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    from sqlalchemy.exc import OperationalError

    monkeypatch.setattr(database_module.time, "sleep", lambda seconds: None)
    real, failures = ledger.database.engine.begin, [None] * times

    def begin() -> object:
        if failures:
            failures.pop()
            raise OperationalError("select", {}, Exception("database is locked"))
        return real()

    monkeypatch.setattr(ledger.database.engine, "begin", begin)


def test_a_database_that_comes_back_is_waited_for(
    url: str, ledger: Ledger, question: StudyQuestion, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    ledger.database.say = said.append
    monkeypatch.setattr(database_module, "TOLD_AFTER", -1.0)
    away(ledger, monkeypatch, times=2)
    assert take(ledger, question, "a").number == 0
    assert said == ["waiting for the database: database is locked"]
    ledger.database.is_asked_to_stop = lambda: True
    away(ledger, monkeypatch, times=1)
    with pytest.raises(Interrupted, match="waiting for the study's database"):
        ledger.trials()
    ledger.database._patience = -1.0
    away(ledger, monkeypatch, times=1)
    with pytest.raises(RunError, match="does not answer: database is locked"):
        ledger.trials()


def test_what_is_no_database_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("no database, but a file of some length" * 100)
    with pytest.raises(UserError, match="cannot be used: refuses: file is not a database"):
        Ledger(sqlite_url(tmp_path / "x.db"), "s")
    with pytest.raises(UserError, match="cannot be used: refuses: unable to open"):
        Ledger(sqlite_url(tmp_path / "no folder" / "x.db"), "s")


def test_a_table_that_is_not_as_it_should_be_is_a_message(ledger: Ledger) -> None:
    ledger._transact(lambda connection: connection.exec_driver_sql("drop table trainbook_reports"))
    with pytest.raises(RunError, match="the study's database refuses: no such table"):
        ledger.reports()


def test_a_password_is_never_shown() -> None:
    assert (
        without_password("postgresql+psycopg://me:se:cr/e@t@host:5432/name")
        == "postgresql+psycopg://me:***@host:5432/name"
    )
    assert without_password("postgresql+psycopg://host/name?password=secret&user=me").endswith("?password=***&user=me")
    assert without_password("postgresql+psycopg://me:secret@host/name") == "postgresql+psycopg://me:***@host/name"
    assert without_password("sqlite:////a/b@c/study.db") == "sqlite:////a/b@c/study.db"
    with pytest.raises(UserError) as refused:
        Ledger("nonsense://me:secret@host/name", "s")
    assert "secret" not in str(refused.value)


def test_an_address_that_is_none_and_a_missing_package_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--storage: must be the address of a database"):
        Ledger("nonsense", "s")
    monkeypatch.setitem(__import__("sys").modules, "sqlalchemy", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trainbook\[tune\]'"):
        Ledger("sqlite://", "s")
