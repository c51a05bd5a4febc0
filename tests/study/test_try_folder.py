"""The folder of a try: the same question finds it again, and nothing else is ever taken for one."""

from __future__ import annotations

import pytest

from trainbook.errors import RunFolderError
from trainbook.runs import RunFolder
from trainbook.study.try_folder import STATE, open_try


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def test_the_same_question_finds_what_is_kept_and_another_has_a_folder_of_its_own(run, tmp_path):
    first = open_try(run, "-rule", {"question": {"override": "a=1"}}, {"arms": {}})
    assert first.path == tmp_path / "run-try-rule"
    first.state["arms"]["control"] = {"last_step": 8}
    first.keep()
    again = open_try(run, "-rule", {"question": {"override": "a=1"}}, {"arms": {}})
    assert (again.path, again.state) == (first.path, first.state)
    other = open_try(run, "-rule", {"question": {"override": "a=2"}}, {"arms": {}})
    assert other.path == tmp_path / "run-try-rule-2" and other.state["arms"] == {}
    assert open_try(run, "", {"last_step": 8}, {"seen": {}}).path == tmp_path / "run-try"


@pytest.mark.parametrize("text", ["{", "[]", '{"last_step": 8}'])
def test_a_damaged_file_is_a_message(run, text):
    (open_try(run, "", {"last_step": 8}, {"seen": {}}).path / STATE).write_text(text)
    with pytest.raises(RunFolderError, match=r"try\.json is damaged"):
        open_try(run, "", {"last_step": 8}, {"seen": {}})


def test_a_folder_of_somebody_else_is_left_alone(run, tmp_path):
    (tmp_path / "run-try").mkdir()
    (tmp_path / "run-try" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="was not made by doctor --try"):
        open_try(run, "", {"last_step": 8}, {"seen": {}})
