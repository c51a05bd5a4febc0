from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainbook.study.ablate.study_file import read_ablation

STUDIES = sorted((Path(__file__).parents[3] / "studies").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_each_study_of_the_playbook_is_lawful_and_names_its_own_command(path: Path):
    """Every arm on every data set obeys all laws, and changes something."""
    question = read_ablation(path)
    assert question.num_runs > 0 and len(question.arms) >= 3
    assert re.findall(r"^# command   trainbook ablate (\S+)", path.read_text(), re.M) == [f"studies/{path.name}"]
