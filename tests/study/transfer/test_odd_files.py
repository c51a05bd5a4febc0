"""A study of rates whose files were damaged, or that something lies in the way of: a message that names the file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.study.transfer.test_rates import Pretence, study

from trainbook.errors import RunFolderError, UserError

WHOLE = {"arm": "standard", "size": 16, "rate": 0.1, "seed": 0, "loss": 1.0, "reason": None, "run": None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"question.json is damaged: Expecting property name.* use another --name"),
        (b"", r"question.json is damaged: Expecting value.* use another --name"),
        (b'{"axis": "\xff"}', r"question.json: is not a UTF-8 text file"),
        (b"[]", "holds a study with other settings"),
    ],
)
def test_a_question_that_cannot_be_read_is_a_message(lab, content: bytes, message: str):
    study(lab, Pretence()).run()
    (lab.runs / "s" / "question.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        study(lab, Pretence()).run()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"arm": "standard"}, "it has no size"),
        ({name: value for name, value in WHOLE.items() if name != "run"}, "it has no run"),
        (WHOLE | {"rate": "0.1"}, "its rate is '0.1'"),
        (WHOLE | {"loss": [1.0]}, r"its loss is \[1.0\]"),
    ],
)
def test_a_row_of_something_else_among_the_results_is_a_message(lab, row: dict[str, Any], message: str):
    study(lab, Pretence()).run()
    path = lab.runs / "s" / "results.jsonl"
    kept = path.read_text().splitlines(keepends=True)
    path.write_text("".join([kept[0], json.dumps(row) + "\n", *kept[1:]]))
    with pytest.raises(RunFolderError, match=rf"results.jsonl:2 is damaged: {message}\. .*use another --name"):
        study(lab, Pretence()).run()


def test_a_folder_in_the_place_of_the_results_is_a_message(lab):
    study(lab, Pretence()).run()
    path = lab.runs / "s" / "results.jsonl"
    path.unlink()
    path.mkdir()
    with pytest.raises(RunFolderError, match=r"results.jsonl is a folder, but should be a file"):
        study(lab, Pretence()).run()
