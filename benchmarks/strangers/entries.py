"""Every run of the bench, and from its name to what is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strangers import families, families_huggingface, families_text, faults  # noqa: F401 — faults register kinds
from strangers.families import Family
from strangers.families_unusual import UNUSUAL
from strangers.job import Chance, Job
from strangers.kinds import KINDS, Kind
from strangers.programs.names import PROGRAMS

HEALTHY = "healthy"
TRUTH = "truth.json"  # in an entry's folder, written last
SEEDS = (0, 1)
HEALTHY_SEEDS = (0, 1, 2)

FAMILIES: Mapping[str, Mapping[str, Family]] = {
    "builtin": families_text.BUILTIN,
    "own": families_text.OWN,
    "fit": families.FAMILIES,
    "huggingface": families_huggingface.FAMILIES,
    "loop": families.FAMILIES,
}


@dataclass(frozen=True)
class Entry:
    """One run. Everything else follows from it."""

    kind: str  # a kind of fault, or `healthy`
    program: str
    seed: int
    is_twin: bool = False  # the same without its fault: healthy
    family: str = ""  # of a healthy run

    @property
    def is_healthy(self) -> bool:
        return self.is_twin or self.kind == HEALTHY

    @property
    def name(self) -> str:
        return "-".join(
            [
                self.program,
                self.kind,
                *([self.family] if self.family else []),
                str(self.seed),
                *(["twin"] * self.is_twin),
            ]
        )

    def folder(self, out: Path) -> Path:
        return out / self.name

    def is_finished(self, out: Path) -> bool:
        return (self.folder(out) / TRUTH).is_file()

    def truth(self, out: Path) -> dict:
        return json.loads((self.folder(out) / TRUTH).read_text(encoding="utf-8"))


def all_entries() -> list[Entry]:
    faulty = [Entry(name, program, seed) for name, kind in KINDS.items() for program in kind.programs for seed in SEEDS]
    twins = [Entry(each.kind, each.program, each.seed, is_twin=True) for each in faulty]
    return [*faulty, *twins, *healthy_entries()]


def healthy_entries() -> list[Entry]:
    return [
        Entry(HEALTHY, program, seed, family=name)
        for program in PROGRAMS
        for name in healthy_families(program)
        for seed in HEALTHY_SEEDS
    ]


def healthy_families(program: str) -> list[str]:
    """A loop's families are twice: plain, and with Lightning."""
    names = list(FAMILIES[program])
    return [*names, *(f"{name}-lightning" for name in names)] if program == "loop" else names


def suits(family: Family, kind: Kind) -> bool:
    has = family.traits | {family.task, family.network}
    return all(any(trait in has for trait in wanted) for wanted in kind.needs)


def suitable(program: str, kind: Kind) -> list[Family]:
    """Families that a kind of fault can be put into; never those that look unusual already."""
    families = FAMILIES[program].values()
    return [each for each in families if UNUSUAL not in each.traits and suits(each, kind) and _has_code(each, kind)]


def job_of(entry: Entry) -> Job:
    """What is trained: a family's job, and its fault."""
    if entry.kind == HEALTHY:
        is_lightning = entry.family.endswith("-lightning")
        family = FAMILIES[entry.program][entry.family.removesuffix("-lightning")]
        job = family.make(Chance.of(entry.program, entry.family, entry.seed), entry.program)
        job.style = "lightning" if is_lightning else ""
        return job
    kind = KINDS[entry.kind]
    chance = Chance.of(entry.program, entry.kind, entry.seed)
    suitable = [
        family for family in FAMILIES[entry.program].values() if suits(family, kind) and _has_code(family, kind)
    ]
    if not suitable:
        raise LookupError(f"no family of {entry.program} suits {entry.kind}")
    job = chance.base.choice(suitable).make(chance, entry.program)
    if entry.program == "loop" and not kind.is_plain and chance.base.random() < 0.4:
        job.style = "lightning"
    if kind.base is not None:
        kind.base(job, chance)
    if not entry.is_twin:
        kind.put(job, chance)
    return job


def _has_code(family: Family, kind: Kind) -> bool:
    """Of the user's own parts, a mistake in a loss is made in a task, one in a network in either."""
    if not family.name.startswith("own-"):
        return True
    if kind.name in IN_A_TASK:
        return "task" in family.traits
    return "model" in family.traits if kind.name in IN_A_MODEL else True


IN_A_TASK = frozenset(
    name for name, kind in KINDS.items() if kind.group == "loss" and name != "label-smoothing-extreme"
) | {"not-shifted", "shifted-twice", "shifted-backwards", "fp16-overflow", "output-relu"}
IN_A_MODEL = frozenset({"mask-missing", "units-dead", "dropout-in-evaluation", "init-zero"})
