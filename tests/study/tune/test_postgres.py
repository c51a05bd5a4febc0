"""A study in PostgreSQL, where workers of many machines meet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.study.tune.conftest import Asks, worker_with

pytest.importorskip("psycopg")

from tests.study.tune.postgres import CannotStart, Server, running

from trainbook.errors import ResumeError, UserError
from trainbook.study.tune.ledger import Ledger, opened
from trainbook.study.tune.planning import next_order
from trainbook.study.tune.run import Study
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Order, Trial

pytestmark = pytest.mark.usefixtures("objectives_on_path", "forked_workers")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        with running() as server:
            yield server
    except CannotStart as reason:
        pytest.skip(f"no PostgreSQL server: {reason}")


def take(ledger: Ledger, question: StudyQuestion, worker: str) -> Trial:
    taken = ledger.take(worker, lambda trials, plan: next_order(question, trials, plan))
    assert isinstance(taken, Trial)
    return taken


@pytest.mark.slow
def test_two_workers_finish_one_study_though_the_database_is_killed_in_the_middle(
    server: Server, tmp_path: Path, ask: Asks
) -> None:
    question = ask(budget=12, seeds=1, workers=2)
    command = worker_with("bowl")
    made = Study(question, tmp_path / "runs" / "killed", server.url, command)
    made.prepare()
    notes = made.folder / "notes.txt"
    with server.killed_after(notes, ended=3):
        trials = made.run()
    assert [each.number for each in trials] == list(range(16))
    assert {each.state for each in trials} == {"done", "infeasible"}
    begun = Counter(line.split()[1] for line in notes.read_text().splitlines() if line.startswith("begun"))
    assert begun == {str(number): 1 for number in range(16)}, "nothing is lost, and nothing done twice"
    assert len({line.split()[2] for line in notes.read_text().splitlines()}) == 2, "both workers had some"


def test_a_lease_that_ran_out_is_taken_over_but_not_just_after_the_database_was_started(
    server: Server, ask: Asks
) -> None:
    question = ask()
    with opened(server.url, "leases", lease_seconds=0.01) as hasty, opened(server.url, "leases", 1e6) as patient:
        hasty.open(question.as_json())
        lost = take(hasty, question, "dead")
        assert take(patient, question, "second").number != lost.number, "the server was started within this lease"
        again = take(hasty, question, "third")
        while again.number != lost.number:  # until the lease has run out
            hasty.give_back(again, "third")
            again = take(hasty, question, "third")
        assert again.attempts == 2
        assert not hasty.renew(lost, "dead")
        assert hasty.finish(replace(lost, state="done", loss=5.0), "dead"), "the first answer counts"
        assert not hasty.finish(replace(again, state="done", loss=4.0), "third")


def test_workers_of_two_machines_get_every_trial_once(server: Server, ask: Asks) -> None:
    question = ask(budget=24, seeds=0)
    got: list[int] = []

    def work(name: str) -> None:
        with opened(server.url, "together") as mine:
            mine.open(question.as_json())  # two begin it at the same moment
            while (taken := mine.take(name, lambda trials, plan: next_order(question, trials, plan))) is not None:
                if isinstance(taken, Trial):
                    got.append(taken.number)
                    mine.finish(replace(taken, state="done", loss=1.0), name)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(got) == list(range(24))
    with opened(server.url, "together") as ledger, pytest.raises(ResumeError, match="24 trials -> 8 trials"):
        ledger.open(ask(budget=8, seeds=0).as_json())


def test_a_seed_may_be_larger_than_a_databases_own_whole_numbers(server: Server, ask: Asks) -> None:
    with opened(server.url, "seeds") as ledger:
        ledger.open(ask().as_json())
        repeat = Trial(0, "repeat", {}, seed=2**40, of=0)
        taken = ledger.take("a", lambda trials, plan: Order([repeat]))
        assert isinstance(taken, Trial) and ledger.trials()[0].seed == 2**40


def test_a_wrong_password_or_address_is_told_in_seconds_and_not_shown(server: Server) -> None:
    for url in (server.url.replace("secret", "wrong-one"), "postgresql://owner:wrong-one@127.0.0.1:1/postgres"):
        with pytest.raises(UserError, match="cannot be used: does not answer") as refused:
            Ledger(url, "s", first_patience=0.1)
        assert "wrong-one" not in str(refused.value) and "owner:***@127.0.0.1" in str(refused.value)
