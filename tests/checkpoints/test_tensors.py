from __future__ import annotations

import pytest
import torch
from safetensors import safe_open

from trainbook.checkpoints.encoding import NATIVE_DTYPES, TensorFile, snapshot
from trainbook.checkpoints.folder import write_file


def test_the_size_is_known_before_and_the_library_reads_the_file(tmp_path):
    tensors = {str(dtype): torch.ones(3, dtype=dtype) for dtype in NATIVE_DTYPES} | {"empty": torch.ones(0, 2)}
    file = TensorFile(tensors)
    path = tmp_path / "x.safetensors"
    assert write_file(path, file.pieces()).size == file.size == path.stat().st_size
    with safe_open(path, framework="pt") as opened:
        assert set(opened.keys()) == set(tensors)
        for name, tensor in tensors.items():
            assert opened.get_tensor(name).dtype == tensor.dtype and opened.get_tensor(name).shape == tensor.shape


def test_every_tensor_starts_at_a_multiple_of_its_width(tmp_path):
    tensors = {
        "a": torch.ones(3, dtype=torch.int8),
        "b": torch.ones(3, dtype=torch.bfloat16),
        "c": torch.ones(3).double(),
    }
    path = tmp_path / "x.safetensors"
    write_file(path, TensorFile(tensors).pieces())
    content = path.read_bytes()
    assert int.from_bytes(content[:8], "little") % 8 == 0
    with safe_open(path, framework="pt") as opened:
        assert opened.offset_keys() == ["c", "b", "a"]


def test_a_snapshot_is_contiguous_and_out_of_reach_of_the_original():
    base = torch.arange(6.0).view(2, 3)
    copies = snapshot([base.t(), base[0].expand(2, 3), base])
    base.zero_()
    assert all(copy.is_contiguous() for copy in copies)
    assert copies[0].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert copies[1].tolist() == [[0, 1, 2]] * 2
    assert copies[2].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_snapshot_of_cuda_tensors_is_taken_at_the_call():
    weight = torch.zeros(2**24, device="cuda")
    for value in range(1, 20):
        weight.fill_(value)
        (copy, turned) = snapshot([weight, weight.view(2**12, 2**12).t()])
        weight.fill_(-1)
        assert copy.device.type == "cpu" and copy.is_pinned()
        assert bool((copy == value).all()) and bool((turned == value).all())
