from __future__ import annotations

import math

import pytest
from tests.conftest import Lab

from trainbook.loop.describe import describe


@pytest.mark.parametrize(("optimizer", "factor"), [("adamw", math.sqrt(8)), ("lion", math.sqrt(8)), ("sgd", 8.0)])
def test_the_rate_goes_with_the_batch_and_is_told(lab: Lab, optimizer: str, factor: float):
    more = ("optimizer.weight_decay=0",) if optimizer == "sgd" else ()
    given = ("batch.global_batch_size=16", f"optimizer.type={optimizer}", "optimizer.learning_rate=1e-3", *more)
    built = lab.build(*given, "optimizer.tuned_batch_size=2")
    plain = lab.build(*given)
    assert built.state.rates.rates == pytest.approx([factor * rate for rate in plain.state.rates.rates])
    assert built.config.optimizer.learning_rate == 1e-3, "what was asked for is what is written down"
    told = dict(describe(built, built.state.device))
    assert f"rate {1e-3 * factor:.4g} = 0.001 x {factor:.4g} (batch of 16, tuned at a batch of 2)" in told["length"]
    assert "rate 0.001, cosine" in dict(describe(plain, plain.state.device))["length"]


def test_the_batch_that_was_tuned_at_changes_nothing(lab: Lab):
    given = ("batch.global_batch_size=16", "optimizer.learning_rate=1e-3")
    one, other = (lab.build(*given, *more) for more in ((), ("optimizer.tuned_batch_size=16",)))
    assert one.state.rates.rates == other.state.rates.rates
