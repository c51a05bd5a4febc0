from __future__ import annotations

import json
import math
import struct
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from trainbook.checkpoints import CheckpointStore
from trainbook.errors import CheckpointError

DTYPES = [
    getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32", "bool"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    )
    if hasattr(torch, name)
]


@pytest.fixture
def round_trip(tmp_path):
    def go(part, asynchronous=False):
        store = CheckpointStore(tmp_path / "checkpoints", asynchronous=asynchronous)
        store.save(1, {"part": part})
        store.close()
        loaded = store.load()
        assert loaded is not None
        return loaded.state["part"]

    return go


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_tensor_type_comes_back_bit_for_bit(round_trip, assert_same, dtype, asynchronous):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (48,), dtype=torch.uint8, generator=generator)  # NaNs with payloads among them
    flat = noise > 127 if dtype == torch.bool else noise.view(dtype)
    part = {
        "flat": flat,
        "scalar": flat[1],
        "empty": flat[:0].reshape(0, 3),
        "also empty": flat[:0],
        "strided": flat[::2],
        "matrix": flat[: len(flat) // 2 * 2].reshape(2, -1),
    }
    part["transposed"] = part["matrix"].t()
    part["expanded"] = flat[:1].expand(5)
    assert_same(part, round_trip(part, asynchronous))


@pytest.mark.parametrize(
    "value",
    [
        0.1,
        -0.0,
        5e-324,
        1e308,
        1e22,
        3.0,
        math.inf,
        -math.inf,
        math.nan,
        struct.unpack(">d", b"\xff\xf8" + b"\1" * 6)[0],
    ],
)
def test_floats_keep_every_bit(round_trip, assert_same, value):
    assert_same([value, {"deep": (value,)}], round_trip([value, {"deep": (value,)}]))


def test_scalars_and_containers_keep_their_types(round_trip, assert_same):
    part = {
        "int": 2**70,
        "bool": True,
        "zero": 0,
        "none": None,
        "text": "µ\n\ud800\"'",
        "": "empty key",
        "tuple": (1, (2.0, [None, ()]), {"dict": {"tuple": [1]}}),
        "looks like a tag": {"tensor": "weight", "dtype": "float32", "items": [[1, 2]]},
        "mixed keys": {0: "int", "0": "text", True: "bool is 1", None: "none", 1.5: "float"},
        "empties": [{}, [], ()],
    }
    assert_same(part, round_trip(part))


def test_a_part_may_be_a_single_value(round_trip, assert_same):
    for part in (torch.arange(3), 5, [1.5], {}):
        assert_same(part, round_trip(part))


def test_adamw_state_comes_back_so_that_training_goes_on_identically(tmp_path, assert_same):
    def build():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1)).bfloat16()
        groups = [{"params": model[0].parameters(), "lr": 1e-2}, {"params": list(model[1:].parameters())}]
        return model, torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), amsgrad=True)

    def train(model, optimizer, steps):
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            loss = model(torch.randn(16, 4, generator=generator).bfloat16()).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    straight = build()
    train(*straight, range(6))
    first = build()
    train(*first, range(3))
    store = CheckpointStore(tmp_path)
    store.save(3, {"model": first[0].state_dict(), "optimizer": first[1].state_dict()})
    loaded = store.load()
    assert loaded is not None
    assert_same(first[1].state_dict(), loaded.state["optimizer"])
    assert set(loaded.state["optimizer"]["state"]) == set(range(6))
    resumed = build()
    resumed[0].load_state_dict(loaded.state["model"])
    resumed[1].load_state_dict(loaded.state["optimizer"])
    train(*resumed, range(3, 6))
    assert_same(dict(straight[0].state_dict()), dict(resumed[0].state_dict()))
    assert_same(straight[1].state_dict(), resumed[1].state_dict())


def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path, round_trip):
    weight = torch.nn.Parameter(torch.randn(6, 2))
    back = round_trip({"embedding": weight, "head": weight.detach(), "twin": weight.detach().clone()})
    assert torch.equal(back["embedding"], weight) and torch.equal(back["twin"], weight)
    assert back["embedding"].data_ptr() == back["head"].data_ptr() != back["twin"].data_ptr()
    assert set(load_file(tmp_path / "checkpoints/step-00000001/part.safetensors")) == {"embedding", "twin"}


def test_overlapping_views_of_one_storage_are_each_saved_right(round_trip, assert_same):
    base = torch.arange(12.0)
    part = {
        "base": base,
        "head": base[:6],
        "tail": base[6:],
        "square": base.view(3, 4),
        "turned": base.view(3, 4).t(),
        "bits": base.view(torch.int32),
        "every other": base[::2],
        "imaginary": torch.view_as_complex(base.view(6, 2)).imag,
        "its negative": torch.view_as_complex(base.view(6, 2)).conj().imag,
    }
    assert_same({name: tensor.resolve_neg() for name, tensor in part.items()}, round_trip(part))


def test_conjugated_views_are_saved_with_their_values(round_trip):
    numbers = torch.randn(4, dtype=torch.complex64)
    for asynchronous in (False, True):
        back = round_trip({"plain": numbers, "conjugate": numbers.conj()}, asynchronous)
        assert torch.equal(back["plain"], numbers) and torch.equal(back["conjugate"], numbers.conj())


def test_names_that_flatten_alike_stay_apart(round_trip, assert_same):
    part = {
        "a.b": torch.tensor(1),
        "a": {"b": torch.tensor(2), "b#2": torch.tensor(3)},
        "k": {0: torch.tensor(4), "0": torch.tensor(5)},
        "__metadata__": torch.tensor(6),
        "": torch.tensor(7),
    }
    assert_same(part, round_trip(part))


def test_the_model_file_has_the_names_of_the_parameters_for_other_readers(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    CheckpointStore(tmp_path).save(7, {"model": model.state_dict()})
    other = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    other.load_state_dict(load_file(tmp_path / "step-00000007/model.safetensors"))
    assert torch.equal(model.state_dict()["0.weight"], other.state_dict()["0.weight"])


def test_an_ordered_dict_comes_back_in_its_order(round_trip):
    assert list(round_trip(OrderedDict(b=1, a=2))) == ["b", "a"]


class _Wrapped(torch.Tensor):
    def __tensor_flatten__(self):
        return [], None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(2), "numpy.ndarray"),
        ({1, 2}, "builtins.set"),
        (b"bytes", "builtins.bytes"),
        (object(), "builtins.object"),
        (torch.empty(2, device="meta"), "meta device"),
        (torch.eye(2).to_sparse(), "layout"),
        (torch.eye(2).as_subclass(_Wrapped), "_Wrapped; gather it"),
        ({(1, 2): 3}, "builtins.tuple"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_stored_exactly_is_refused_by_its_place(tmp_path, value, words):
    store = CheckpointStore(tmp_path, asynchronous=True)
    with pytest.raises(CheckpointError, match=r"loop\.inner\.1.* " + words):
        store.save(1, {"loop": {"inner": [0, value]}})
    assert store.steps() == []


@pytest.mark.parametrize("name", ["../model", "Model", "", ".hidden", "a/b", 3])
def test_a_part_is_named_like_a_file(tmp_path, name):
    with pytest.raises(CheckpointError, match="lower-case letters"):
        CheckpointStore(tmp_path).save(1, {name: {}})
    assert not list(tmp_path.glob("step-*"))


def test_the_files_hold_no_pickle(tmp_path):
    CheckpointStore(tmp_path).save(1, {"model": {"w": torch.ones(2)}, "loop": {"n": 1}}, metrics={"loss": math.nan})
    folder = tmp_path / "step-00000001"
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "state.json", "complete.json"}
    json.loads((folder / "state.json").read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
