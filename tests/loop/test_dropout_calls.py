"""Whether dropout is applied, however it is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.loop.dropout_calls import DropoutCalls

ROWS = torch.ones(2, 4, 8)
APPLIED: list[Callable[[Tensor], object]] = [
    nn.Dropout(0.1),
    lambda rows: F.dropout(rows, 0.1),
    lambda rows: torch.dropout(rows, 0.1, True),
    lambda rows: F.dropout1d(rows, 0.1, True),
    lambda rows: F.scaled_dot_product_attention(rows, rows, rows, dropout_p=0.1),
    lambda rows: nn.MultiheadAttention(8, 2, dropout=0.1)(rows, rows, rows),
]
NOT_APPLIED: list[Callable[[Tensor], object]] = [
    nn.Dropout(0.1).eval(),
    nn.Dropout(0.0),
    lambda rows: F.dropout(rows, 0.1, False),
    lambda rows: torch.dropout(rows, 0.1, False),
    lambda rows: F.scaled_dot_product_attention(rows, rows, rows),
    lambda rows: nn.MultiheadAttention(8, 2, dropout=0.1).eval()(rows, rows, rows),
    torch.randn_like,
]


@pytest.mark.parametrize("call", APPLIED)
def test_dropout_is_seen(call: Callable[[Tensor], object]):
    with DropoutCalls(nn.Linear(1, 1)) as calls:
        call(ROWS)
    assert calls.seen is True


@pytest.mark.parametrize("call", NOT_APPLIED)
def test_nothing_else_is_taken_for_dropout(call: Callable[[Tensor], object]):
    with DropoutCalls(nn.Linear(1, 1)) as calls:
        call(ROWS)
    assert calls.seen is False


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what compiling imports
def test_nothing_is_known_of_a_model_whose_calls_cannot_be_seen():
    model = nn.Dropout(0.1)
    model.compile()  # nothing is compiled before its first call
    with DropoutCalls(nn.Sequential(model)) as calls:
        pass
    assert calls.seen is None
