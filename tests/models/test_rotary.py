from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trainbook.models import Shape, Transformer
from trainbook.models.positions import Rotary, Rotation


def test_a_pair_of_channels_turns_by_position_times_its_frequency():
    rotary = Rotary(head_width=8, max_seq_length=50, rotation=Rotation(100.0))
    x = torch.randn(1, 1, 50, 8)
    turned = rotary(x, 0)
    for position in (0, 1, 7, 49):
        for pair in range(4):
            angle = position * 100.0 ** (-2 * pair / 8)
            left, right = x[0, 0, position, pair].item(), x[0, 0, position, pair + 4].item()
            expected = complex(left, right) * complex(math.cos(angle), math.sin(angle))
            found = turned[0, 0, position]
            assert math.isclose(found[pair].item(), expected.real, abs_tol=1e-6)
            assert math.isclose(found[pair + 4].item(), expected.imag, abs_tol=1e-6)


def test_scores_depend_on_the_distance_only():
    rotary = Rotary(head_width=16, max_seq_length=1000, rotation=Rotation(10_000.0))
    query, key = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)
    scores = torch.stack([(rotary(query, first + 5) * rotary(key, first)).sum() for first in (0, 17, 900)])
    torch.testing.assert_close(scores, scores[:1].expand(3), rtol=1e-4, atol=1e-4)
    assert not torch.isclose(scores[0], (rotary(query, 6) * rotary(key, 0)).sum(), atol=1e-3)


def test_the_first_position_offsets_the_angles():
    rotary = Rotary(head_width=8, max_seq_length=20, rotation=Rotation(10_000.0))
    x = torch.randn(2, 3, 20, 8)
    assert torch.equal(rotary(x, 0)[:, :, 5:9], rotary(x[:, :, 5:9], 5))


def test_angles_are_exact_far_out():
    """In fp32 a position of 100,000 times a frequency would be off by thousandths of a turn."""
    rotary = Rotary(head_width=64, max_seq_length=100_001, rotation=Rotation(10_000.0))
    for channel in range(32):
        angle = 100_000 * 10_000.0 ** (-2 * channel / 64)
        assert math.isclose(rotary.cos[100_000, channel].item(), math.cos(angle), abs_tol=1e-6)


def test_tables_are_right_without_any_initialization():
    shape = Shape(10, 10, 8, 1, 16, 16, 4, 4, position="rotary")
    attention = Transformer(shape).blocks[0].attention
    torch.testing.assert_close(attention.rotary.cos[3, 0], torch.tensor(math.cos(3.0)))  # pyright: ignore


def test_narrow_input_is_turned_in_fp32_and_comes_back_narrow():
    rotary = Rotary(head_width=8, max_seq_length=50, rotation=Rotation(10_000.0))
    x = torch.randn(1, 2, 50, 8).to(torch.bfloat16)
    turned = rotary(x, 0)
    assert turned.dtype is torch.bfloat16
    assert torch.equal(turned, rotary(x.float(), 0).to(torch.bfloat16))


SCALINGS: dict[str, tuple[Rotation, dict[str, Any]]] = {
    "linear": (Rotation(5000.0, "linear", 2.5), {"factor": 2.5}),
    "llama3": (
        Rotation(500_000.0, "llama3", 8.0, 8192),
        {"factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    "yarn": (Rotation(10_000.0, "yarn", 4.0, 2048), {"factor": 4.0, "original_max_position_embeddings": 2048}),
    "yarn, stated": (
        Rotation(1e6, "yarn", 16.0, 4096, beta_fast=20.0, beta_slow=2.0, attention_factor=1.1),
        {
            "factor": 16.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
            "attention_factor": 1.1,
        },
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_frequencies_are_those_of_transformers(name: str):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rotation, theirs = SCALINGS[name]
    about = {"rope_type": rotation.scaling, "rope_theta": rotation.theta, **theirs}
    config = transformers.LlamaConfig(
        hidden_size=128, num_attention_heads=2, max_position_embeddings=65536, rope_parameters=about
    )
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[rotation.scaling](config, torch.device("cpu"))
    torch.testing.assert_close(rotation.frequencies(64).float(), frequencies, rtol=1e-5, atol=0)
    assert rotation.magnitude == pytest.approx(magnitude, rel=1e-12)
    assert not torch.allclose(rotation.frequencies(64), Rotation(rotation.theta).frequencies(64))
