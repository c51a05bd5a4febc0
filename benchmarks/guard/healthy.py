"""What a policy did to healthy runs: false stops, rollbacks and remedies, updates rejected, and the final quality
beside that of the same run without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from guard.intervals import Difference, Share, exact, paired

Row = dict[str, Any]


@dataclass
class Healthy:
    """Of one family, or of all of a half."""

    name: str
    kind: str
    runs: int
    stops: Share  # runs with at least one
    rollbacks: Share
    remedies: Share
    rejected: Share  # updates
    quarantined: int  # samples
    quality: Difference

    @property
    def summary(self) -> dict[str, Any]:
        return asdict(self)


def judged(rows: Sequence[Row], without: Sequence[Row]) -> tuple[list[Healthy], Healthy]:
    """Family by family, and all together. The final quality is compared where the run was not stopped."""
    rows = [row for row in rows if not row["does_not_apply"]]
    twins = {(row["family"], row["seed"]): row["quality"] for row in without}
    kinds = {row["family"]: row["kind"] for row in rows}
    found = [_of(name, kind, [row for row in rows if row["family"] == name], twins) for name, kind in kinds.items()]
    return found, _of("all", "", rows, twins)


def _of(name: str, kind: str, rows: Sequence[Row], twins: dict[tuple[str, int], float]) -> Healthy:
    def with_event(event: str) -> Share:
        return exact(sum(row["events"].get(event, 0) > 0 for row in rows), len(rows))

    pairs = [(row["quality"], twins.get((row["family"], row["seed"]), math.nan)) for row in rows]
    pairs = [(one, other) for one, other in pairs if math.isfinite(one) and math.isfinite(other)]
    one, other = [each for each, _ in pairs], [each for _, each in pairs]
    return Healthy(
        *(name, kind, len(rows), with_event("stop"), with_event("rollback"), with_event("remedy")),
        rejected=exact(sum(row["rejected"] for row in rows), sum(row["updates"] for row in rows)),
        quarantined=sum(row["quarantined"] for row in rows),
        quality=paired(one, other) if kind else _equal_pairs(one, other),
    )


def _equal_pairs(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Over families there is no common unit: only how many pairs are equal."""
    equal = sum(a == b for a, b in zip(one, other, strict=True))
    return Difference(len(one), equal, math.nan, math.nan, math.nan, math.nan)


def table(found: Sequence[Healthy], in_all: Healthy) -> list[str]:
    """Short lines for a terminal."""
    lines = [f"{'family':<32}{'runs':>5}{'stops':>7}{'back':>6}{'lower':>6}{'rejected':>10}  final quality, in seed SD"]
    for each in found:
        final = f"{each.quality.mean:+.2f} ({each.quality.low:+.2f} to {each.quality.high:+.2f})"
        if each.quality.pairs == 1:
            final = "not equal"
        if each.quality.equal == each.quality.pairs:
            final = "equal to the last bit" if each.quality.pairs else "none finished"
        lines.append(
            f"{each.name:<32}{each.runs:>5}{each.stops.hits:>7}{each.rollbacks.hits:>6}{each.remedies.hits:>6}"
            f"{each.rejected.value:>10.3%}  {final}"
        )
    lines.append(f"all: {in_all.runs} runs, {in_all.rejected.of:,} updates")
    for what, share in (
        ("stopped runs", in_all.stops),
        ("runs with a rollback", in_all.rollbacks),
        ("runs with a remedy", in_all.remedies),
        ("rejected updates", in_all.rejected),
    ):
        lines.append(f"  {what}: {share.hits}, {share.value:.4%} (95 %: {share.low:.4%} to {share.high:.4%})")
    lines.append(f"  samples quarantined: {in_all.quarantined}")
    lines.append(f"  pairs equal to the last bit: {in_all.quality.equal} of {in_all.quality.pairs}")
    return lines
