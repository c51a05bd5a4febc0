"""The door that every update of the bench goes through: no guard, the guard, a recorder, or a rival."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from guard.rivals import RIVALS

DAMPED = 0.5
POLICIES = ("none", "trace", "guard", "guard-remedy", "guard-shuffled", *RIVALS)


class NotForIt(Exception):
    """A program that brings its own loop has no place for a rival."""


class Decides(Protocol):
    def __call__(self, loss: Tensor, norm: Tensor, gradients: list[Tensor], ids: Any) -> bool: ...


class Gate:
    """Of one loss: asked after backward, it clips if the program clips, and says whether to apply the update."""

    def __init__(self, door: Door, name: str, decide: Decides | None, clip: float | None) -> None:
        self.door, self.name, self.clip = door, name, clip
        self.decide = decide
        self.seen = 0

    def step(self, loss: Tensor, parameters: Iterable[Tensor], ids: Any = None) -> bool:
        given = [each for each in parameters if each.grad is not None]
        gradients = [_dense(each) for each in given]
        loss, norm = loss.detach(), nn.utils.get_total_norm(gradients)
        self.seen += 1
        is_finite = math.isfinite(float(loss)) and math.isfinite(float(norm))
        self.door.saw(self, float(loss), float(norm))
        accepted = True if self.decide is None else self.decide(loss, norm, gradients, ids)
        if accepted and self.door.policy in RIVALS and nn.utils.get_total_norm(gradients) < DAMPED * norm:
            self.door.damped_at.setdefault(self.name, []).append(self.seen)
        if accepted and self.clip is not None:
            torch._foreach_mul_(gradients, float(torch.clamp(self.clip / (norm + 1e-6), max=1.0)))
        if not accepted:
            self.door.rejected_at.setdefault(self.name, []).append(self.seen)
            self.door.rejected += is_finite
            self.door.not_finite += not is_finite
        return accepted


class Door:
    """One for each run: it makes a gate for each loss, and keeps what happened at all of them."""

    def __init__(self, policy: str, options: dict[str, Any] | None = None) -> None:
        self.policy, self.options = policy, options or {}
        self.updates = self.rejected = self.not_finite = 0
        self.rejected_at: dict[str, list[int]] = {}
        self.damped_at: dict[str, list[int]] = {}  # applied, but scaled by a rival to less than half
        self.events: list[dict[str, Any]] = []
        self.traces: dict[str, list[tuple[float, float]]] = {}

    @property
    def guards(self) -> bool:
        """For programs that train through Trainbook itself."""
        if self.policy in RIVALS:
            raise NotForIt
        return self.policy.startswith("guard")

    def __call__(self, name: str, *objects: Any, clip: float | None = None) -> Gate:
        if self.policy in RIVALS:
            return Gate(self, name, RIVALS[self.policy](), clip)
        if not self.guards:
            return Gate(self, name, None, clip)
        from trainbook import Guard
        from trainbook.errors import Diverged

        has_rates = any(hasattr(each, "param_groups") for each in objects)
        options = {"lower_rate": True} if self.policy == "guard-remedy" and has_rates else {}
        if self.policy == "guard-shuffled":  # for programs whose batches are drawn at random
            options = {"shuffled": True}
        guard = Guard(*objects, on_event=lambda event: self.tell(name, event), **{**options, **self.options})

        def decide(loss: Tensor, norm: Tensor, gradients: list[Tensor], ids: Any) -> bool:
            try:
                return guard.accepts(loss, norm, *([] if ids is None else [ids]))
            except Diverged as stop:
                self.tell(name, {"kind": "stop", "step": guard.step, "reason": str(stop)})
                raise

        return Gate(self, name, decide, clip)

    def saw(self, gate: Gate, loss: float, norm: float) -> None:
        self.updates += 1
        if self.policy == "trace":
            self.traces.setdefault(gate.name, []).append((loss, norm))

    def tell(self, name: str, event: dict[str, Any]) -> None:
        self.events.append({"loss_name": name, **event})


@dataclass
class Outcome:
    """What is left of one run."""

    family: str
    kind: str
    seed: int
    policy: str
    quality: float  # lower is better; NaN where the run was stopped
    updates: int
    rejected: int  # with a finite loss and gradient
    not_finite: int  # rejected, but not finite: fp16's loss scaling
    events: dict[str, int] = field(default_factory=dict)  # how many of each kind
    quarantined: int = 0
    verdict: str = ""  # why it was stopped
    told: list[dict[str, Any]] = field(default_factory=list)  # the first few events but skips
    seconds: float = 0.0
    does_not_apply: bool = False
    broke: str = ""  # the program itself failed

    @property
    def row(self) -> dict[str, Any]:
        return asdict(self)


def outcome_of(door: Door, family: str, kind: str, seed: int, quality: float, seconds: float) -> Outcome:
    counts = Counter(event["kind"] for event in door.events)
    stops = [event["reason"] for event in door.events if event["kind"] == "stop"]
    notable = [
        {key: event.get(key) for key in ("loss_name", "kind", "step", "reason")}
        for event in door.events
        if event["kind"] != "skip"
    ]
    return Outcome(
        *(family, kind, seed, door.policy, quality, door.updates, door.rejected, door.not_finite, dict(counts)),
        quarantined=sum(event.get("count", 0) for event in door.events if event["kind"] == "quarantine"),
        verdict=stops[0] if stops else "",
        told=notable[:6],
        seconds=round(seconds, 3),
    )


def _dense(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return gradient
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()  # in place: what is scaled here is scaled in the gradient
