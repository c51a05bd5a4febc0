from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch

from trainbook.tasks import StepBatch, to_device

META = torch.device("meta")
Pair = namedtuple("Pair", ["left", "right"])


def test_tensors_move_wherever_they_are_and_the_rest_stays():
    tensor = torch.ones(2)
    batch = {"a": tensor, "b": [tensor, "word", 3], "c": (tensor, {"d": tensor}), "e": Pair(tensor, None)}
    moved = to_device(batch, META)
    assert moved["a"].device == moved["b"][0].device == moved["c"][0].device == moved["c"][1]["d"].device == META
    assert moved["b"][1:] == ["word", 3]
    assert isinstance(moved["c"], tuple) and isinstance(moved["e"], Pair) and moved["e"].left.device == META
    assert tensor.device.type == "cpu" and batch["a"] is tensor, "the given batch is not changed"


def test_a_mapping_that_is_no_dict_moves_and_keeps_its_kind():
    batch: UserDict[str, Any] = UserDict(input_ids=torch.ones(2))
    moved = to_device(batch, META)
    assert isinstance(moved, UserDict) and moved["input_ids"].device == META
    assert batch["input_ids"].device.type == "cpu"


def test_a_tokenizers_batch_moves():
    transformers = pytest.importorskip("transformers")
    moved = to_device(transformers.BatchEncoding({"input_ids": torch.ones(2)}), META)
    assert moved.input_ids.device == META


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_a_step_batch_can_be_pinned():
    batch = StepBatch([{"input_ids": torch.ones(2)}], num_targets=1, num_tokens=1).pin_memory()
    assert batch.micro_batches[0]["input_ids"].is_pinned()
