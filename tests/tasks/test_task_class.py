from __future__ import annotations

import pytest
import torch

from trainbook.data.samples.frame import READ_BY_TASK
from trainbook.knobs.laws import TASKS
from trainbook.tasks import NATIVE
from trainbook.tasks.metrics import OF_TASK
from trainbook.tasks.task import evaluating


def test_every_task_that_a_configuration_may_name_is_there():
    assert NATIVE.keys() == READ_BY_TASK.keys() == OF_TASK.keys() == set(TASKS) - {"auto"}


@pytest.mark.parametrize("name", NATIVE)
def test_what_a_task_reads_is_what_is_opened_for_it(name: str):
    assert READ_BY_TASK[name][0] == NATIVE[name].records
    if NATIVE[name].records == "labelled":
        assert READ_BY_TASK[name][1] == NATIVE[name].labels


def test_after_an_evaluation_every_part_is_in_the_mode_that_it_was_in():
    module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.BatchNorm1d(2))
    module.train()
    module[1].eval()  # frozen statistics
    with pytest.raises(ValueError, match="stopped"), evaluating(module):
        assert not any(part.training for part in module.modules())
        raise ValueError("stopped")
    assert [part.training for part in module.modules()] == [True, True, False]
