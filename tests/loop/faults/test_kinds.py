"""How faults are asked for."""

from __future__ import annotations

import pytest

from trainbook.errors import ConfigError, UserError
from trainbook.loop.faults.kinds import KINDS, Fault, must_suit_own_data, must_suit_world, parse


def test_a_fault_is_a_kind_and_a_step():
    assert parse(["nan-gradient@5", " kill@120 "]) == (Fault("nan-gradient", 5), Fault("kill", 120))
    assert parse([]) == ()
    assert parse("kill@7") == (Fault("kill", 7),), "one alone need not be in a list"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_and_written_alike(kind: str):
    (fault,) = parse([f"{kind}@3"])
    assert str(fault) == f"{kind}@3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nan-gradiant@5", "the kind must be one of repeated-tokens, "),
        ("nan-gradiant@5", "but got 'nan-gradiant'. Did you mean 'nan-gradient'?"),
        ("Kill@5", "Did you mean 'kill'?"),
        ("@5", "but got ''."),
        ("", "but got ''."),
        ("nan-gradient", "must be KIND@STEP, such as nan-gradient@5, but got no step."),
        ("nan-gradient@", "the step must be an integer >= 1, but got ''."),
        ("nan-gradient@0", "the step must be an integer >= 1, but got '0'."),
        ("nan-gradient@-3", "but got '-3'."),
        ("nan-gradient@1.5", "but got '1.5'."),
        ("nan-gradient@1_0", "but got '1_0'."),
        ("nan-gradient@five", "but got 'five'."),
        ("nan-gradient@٣", "but got '٣'."),
    ],
)
def test_a_mistake_names_the_law_the_value_and_the_nearest_kind(text: str, message: str):
    with pytest.raises(UserError) as error:
        parse([text])
    assert message in str(error.value) and str(error.value).startswith(f"inject  {text}: ")


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as error:
        parse(["kill@0", "kill@4", "kill@4", "fire@1"])
    assert [problem.name for problem in error.value.problems] == ["kill@0", "kill@4", "fire@1"]
    assert "must be given once" in str(error.value)


def test_samples_of_data_that_is_the_users_own_cannot_be_spoilt():
    must_suit_own_data(parse(["nan-gradient@1", "kill@2"]))
    with pytest.raises(ConfigError, match="inject  random-labels@3: has no effect on data of your own"):
        must_suit_own_data(parse(["kill@2", "random-labels@3"]))


def test_a_fault_may_name_a_rank():
    (fault,) = parse(["nan-gradient@5:rank=1"])
    assert fault == Fault("nan-gradient", 5, 1) and str(fault) == "nan-gradient@5:rank=1"
    assert len(parse(["kill@5", "kill@5:rank=0", "kill@5:rank=1"])) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nan-gradient@5:rank=", "the rank must be an integer >= 0, but got ''."),
        ("nan-gradient@5:rank=-1", "but got '-1'."),
        ("nan-gradient@5:rank", "but got ''."),
        ("nan-gradient@5:", "only a rank may follow the step, as in nan-gradient@5:rank=1, but got ''."),
        ("nan-gradient@5:node=1", "but got 'node=1'."),
        ("nan-gradient@:rank=1", "the step must be an integer >= 1, but got ''."),
        ("full-disk@5:rank=1", "full-disk changes files or trackers of the run, not of one rank. Use full-disk@5."),
    ],
)
def test_a_mistake_in_a_rank_names_the_law(text: str, message: str):
    with pytest.raises(UserError) as error:
        parse([text])
    assert message in str(error.value)


def test_a_rank_must_be_one_of_the_runs():
    must_suit_world(parse(["kill@5:rank=1", "kill@5"]), 2)
    must_suit_world(parse(["kill@5"]), 1)
    with pytest.raises(ConfigError, match="the rank must be between 0 and 1, but got 2: the run has 2 processes"):
        must_suit_world(parse(["kill@5:rank=2"]), 2)
    with pytest.raises(ConfigError, match=r"the run has a single process, so no rank can be named\. Use kill@5, or"):
        must_suit_world(parse(["kill@5:rank=0"]), 1)
