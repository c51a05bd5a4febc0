from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainbook.knobs.sections.batch import BatchKnobs as BatchKnobs
from trainbook.knobs.sections.precision import PrecisionKnobs as Knobs
from trainbook.precision import Precision, ZClip, clip_gradients

CPU = torch.device("cpu")
YES, NO = torch.tensor(True), torch.tensor(False)


class ByThePaper:
    """Plain numbers, with the buffer of the public code: mean and variance of 25 norms, then their averages."""

    def __init__(self, threshold: float = 2.5, alpha: float = 0.97) -> None:
        self.threshold, self.alpha, self.buffer = threshold, alpha, []
        self.mean = self.variance = None

    def let_through(self, norm: float) -> float:
        if self.mean is None or self.variance is None:
            self.buffer.append(norm)
            if len(self.buffer) == 25:
                self.mean = sum(self.buffer) / 25
                self.variance = sum((each - self.mean) ** 2 for each in self.buffer) / 25
            return norm
        deviation = math.sqrt(self.variance)
        z = (norm - self.mean) / (deviation + 1e-6)
        if z > self.threshold:
            norm = self.mean + self.threshold * deviation / (z / self.threshold)
        self.mean = self.alpha * self.mean + (1 - self.alpha) * norm
        self.variance = self.alpha * self.variance + (1 - self.alpha) * (norm - self.mean) ** 2
        return norm


def norms(count: int, spikes: dict[int, float] | None = None, seed: int = 0) -> list[float]:
    """Noise around 2 with spikes, as fp32 holds them."""
    draw = random.Random(seed)
    values = [2.0 + 0.3 * draw.gauss(0, 1) for _ in range(count)]
    for place, factor in (spikes or {}).items():
        values[place] *= factor
    return torch.tensor(values).tolist()


def zclip(threshold: float = 2.5, alpha: float = 0.97) -> ZClip:
    return ZClip(CPU, threshold=threshold, alpha=alpha)


def let_through(clip: ZClip, norm: float, applied: Tensor = YES) -> float:
    value = min(norm, float(clip.bound(torch.tensor(norm))))
    clip.update(torch.tensor(norm), applied)
    return value


SPIKES = {10: 30.0, 40: 3.0, 60: 100.0, 61: 50.0, 62: 1000.0, 120: 1.9, 121: 0.1}


@pytest.mark.parametrize(("threshold", "alpha"), [(2.5, 0.97), (1.0, 0.9), (4.0, 0.5), (2.5, 0.0)])
def test_norms_are_let_through_as_in_the_paper(threshold: float, alpha: float):
    clip, reference = zclip(threshold, alpha), ByThePaper(threshold, alpha)
    values = norms(200, SPIKES)
    found, expected = [], []
    for value in values:
        found.append(let_through(clip, value))
        expected.append(reference.let_through(value))
    assert found == pytest.approx(expected, rel=1e-12)
    assert float(clip.mean) == pytest.approx(reference.mean, rel=1e-12)
    assert float(clip.variance) == pytest.approx(reference.variance, rel=1e-10)
    cut = [place for place, (value, kept) in enumerate(zip(values, found, strict=True)) if kept < value]
    assert {60, 61, 62} <= set(cut)
    assert min(cut) >= 25 and 121 not in cut, "neither in warm-up nor below the mean"


def test_a_worse_outlier_is_cut_to_a_lower_bound():
    clip = zclip()
    for value in norms(100):
        let_through(clip, value)
    mean, deviation = float(clip.mean), math.sqrt(float(clip.variance))
    bounds = [float(clip.bound(torch.tensor(mean + z * deviation))) for z in (2.6, 3, 5, 10, 100, 1e4)]
    assert bounds == sorted(bounds, reverse=True) and len(set(bounds)) == len(bounds)
    assert mean < bounds[-1] < mean + 1e-2 * deviation
    assert bounds[0] == pytest.approx(mean + 2.5**2 / 2.6 * deviation, rel=1e-5)
    assert float(clip.bound(torch.tensor(mean + 2.4 * deviation))) == math.inf


def gradients_of(norm: float) -> list[Tensor]:
    return [torch.tensor([0.6 * norm, 0.0]), torch.tensor([[0.0], [0.8 * norm]])]


def warm(clip: ZClip, seed: int = 0) -> ZClip:
    for value in norms(60, seed=seed):
        let_through(clip, value)
    return clip


def test_gradients_get_the_norm_that_is_let_through():
    clip = warm(zclip())
    gradients = gradients_of(50.0)
    bound = float(clip.bound(torch.tensor(50.0)))
    clipped = clip_gradients(gradients, None, clip)
    assert clipped.norm == 50.0 and clipped.scaled
    assert math.hypot(*(float(gradient.norm()) for gradient in gradients)) == pytest.approx(bound, rel=1e-6)
    assert gradients[0][0] / gradients[1][1] == pytest.approx(0.75), "the direction stays"


def test_the_usual_gradient_keeps_its_bits_and_max_grad_norm_holds_as_well():
    clip, before = warm(zclip()), gradients_of(2.1)
    gradients = gradients_of(2.1)
    assert not clip_gradients(gradients, None, clip).scaled
    assert all(torch.equal(one, other) for one, other in zip(gradients, before, strict=True))
    for norm, max_norm in ((2.1, 1.0), (50.0, 1.0), (50.0, 40.0)):
        gradients = gradients_of(norm)
        bound = min(max_norm, float(clip.bound(torch.tensor(norm))))
        assert clip_gradients(gradients, max_norm, clip).scaled
        assert math.hypot(*(float(each.norm()) for each in gradients)) == pytest.approx(bound, rel=1e-6)


def test_before_25_norms_are_known_only_max_grad_norm_holds():
    clip = zclip()
    for number, value in enumerate(norms(30)):
        gradients = gradients_of(1000.0)
        clipped = clip_gradients(gradients, None, clip)
        assert bool(clipped.scaled) is (number >= 25), number
        gradients = gradients_of(1000.0)
        assert clip_gradients(gradients, 1.0, clip).scaled
        assert math.hypot(*(float(each.norm()) for each in gradients)) == pytest.approx(1.0, rel=1e-5)
        let_through(clip, value)


@pytest.mark.parametrize("start", [5, 24, 25, 50])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 7.0])
def test_what_was_rejected_or_is_not_finite_leaves_no_trace(start: int, bad: float):
    """Compared with a twin that never saw it, bit for bit. Not finite: also where nobody rejected it."""
    hurt, twin = zclip(), zclip()
    for number, value in enumerate(norms(80)):
        if number in (start, start + 1):
            hurt.update(torch.tensor(bad), NO if math.isfinite(bad) or number == start else YES)
        hurt.update(torch.tensor(value), YES)
        twin.update(torch.tensor(value), YES)
        assert all(torch.equal(hurt.state_dict()[key], value) for key, value in twin.state_dict().items())
    assert twin.seen == 80


@pytest.mark.parametrize("cut", [0, 10, 25, 40])
def test_what_is_saved_goes_on_to_the_bit(cut: int):
    values = norms(60, {10: 5.0, 40: 20.0, 50: 100.0})
    whole, first = zclip(), zclip()
    expected = [let_through(whole, value) for value in values]
    found = [let_through(first, value) for value in values[:cut]]
    second = warm(zclip(), seed=5)
    second.load_state_dict({key: value.clone() for key, value in first.state_dict().items()})
    found += [let_through(second, value) for value in values[cut:]]
    assert found == expected
    assert all(torch.equal(value, second.state_dict()[key]) for key, value in whole.state_dict().items())


def test_no_value_is_asked_of_the_device():
    """On the meta device there are no values: whoever asked for one would fail."""
    meta = torch.device("meta")
    clip = ZClip(meta, threshold=2.5, alpha=0.97)
    norm = torch.zeros((), device=meta)
    clip_gradients([torch.zeros(3, device=meta)], 1.0, clip)
    clip.update(norm, torch.ones((), dtype=torch.bool, device=meta))


def test_norms_that_jump_for_good_are_cut_for_ever_and_those_that_drift_are_not():
    """What the explanation of batch.clipping warns of."""
    draw = random.Random(0)
    for jumps in (True, False):
        clip = warm(zclip())
        cut = 0
        for number in range(500):
            value = 2.0 * (3.0 if jumps else 1.0 + number / 500) * (1 + 0.15 * draw.gauss(0, 1))
            cut += let_through(clip, value) < value
        assert cut > 490 if jumps else cut < 25


# Behind the precision of a step


def precision_of(batch: dict[str, Any], **knobs: Any) -> Precision:
    return Precision(Knobs(**knobs), CPU, batch=BatchKnobs(**batch))


def step(precision: Precision, norm: float, applied: Tensor = YES, max_norm: float | None = None) -> float:
    """The norm of the gradient after clipping."""
    parameter = nn.Parameter(torch.zeros(2))
    scale = precision.loss_scale
    parameter.grad = torch.tensor([0.6 * norm, 0.8 * norm]) * (1.0 if scale is None else scale)
    clipped = precision.clip_gradients([parameter], max_norm)
    precision.after_update(clipped.norm, applied)
    return float(parameter.grad.norm())


def test_knobs_reach_the_clipping():
    assert precision_of({}).zclip is None and Precision(Knobs(), CPU).zclip is None
    clip = precision_of({"clipping": "zclip", "zclip_threshold": 3.0, "zclip_alpha": 0.5}).zclip
    assert clip is not None and (clip.threshold, clip.alpha) == (3.0, 0.5)


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
def test_a_step_clips_by_norms_before_scaling_and_before_clipping(compute: str):
    precision, reference = precision_of({"clipping": "zclip"}, compute=compute), ByThePaper()
    values = norms(80, {40: 20.0, 50: 100.0})
    found = [step(precision, value, max_norm=1.0 if number == 60 else None) for number, value in enumerate(values)]
    expected = [reference.let_through(value) for value in values]
    assert found[60] == pytest.approx(1.0, rel=1e-5)
    expected[60] = found[60]
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_rejected_step_and_an_overflow_enter_nothing():
    precision, twin = (precision_of({"clipping": "zclip"}, compute="fp16") for _ in range(2))
    for value in norms(40):
        step(precision, value)
        step(precision, 900.0, NO)
        step(precision, math.inf, NO)
        step(twin, value)
    assert precision.state_dict()["zclip"] == twin.state_dict()["zclip"]


def test_the_state_is_saved_beside_the_scalers_and_each_may_be_new():
    saved = precision_of({"clipping": "zclip"}, compute="fp16", initial_scale_power=9)
    for value in norms(30):
        step(saved, value)
    state = saved.state_dict()
    assert set(state) == {"scale", "clean_steps", "zclip"}
    loaded = precision_of({"clipping": "zclip"}, compute="fp16")
    loaded.load_state_dict(state)
    assert loaded.loss_scale == 2.0**9 and loaded.state_dict()["zclip"] == state["zclip"]
    only_bound = precision_of({"clipping": "zclip"}, compute="bf16")
    only_bound.load_state_dict(state)
    assert only_bound.state_dict() == {"zclip": state["zclip"]}
    only_scale = precision_of({}, compute="fp16")
    only_scale.load_state_dict(only_bound.state_dict())
    assert only_scale.loss_scale == 2.0**16
    fresh = precision_of({"clipping": "zclip"}, compute="bf16")
    fresh.load_state_dict({})
    assert fresh.zclip is not None and fresh.zclip.seen == 0
