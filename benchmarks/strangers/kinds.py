"""What a kind of fault is: what is wrong, what a doctor should say of it, where it can be, and how it is put in.

The sentence that says what is wrong is the docstring of the function that puts it in. `causes` are in the doctor's
vocabulary (trainbook.doctor.causes); a name that is not in it is what a doctor should say but cannot yet: the scorer
counts such a run as missed unless another of the causes is right as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strangers.job import Chance, Job
from strangers.programs.names import PROGRAMS

Change = Callable[[Job, Chance], None]


@dataclass(frozen=True)
class Kind:
    name: str
    group: str
    causes: tuple[str, ...]  # any of them is right
    put: Change
    programs: tuple[str, ...]
    needs: tuple[frozenset[str], ...]  # of a family: one trait (or task) of each set
    base: Change | None = None  # what the twin has as well
    is_plain: bool = False  # a mistake that Lightning does not allow
    misleads: bool = False  # the numbers lie: the model need not be worse than its twin
    source: str = ""  # where it was published

    @property
    def what(self) -> str:
        return " ".join((self.put.__doc__ or "").split())


KINDS: dict[str, Kind] = {}
TORCH = ("fit", "huggingface", "loop")
CODE = ("own", *TORCH)  # where the user writes code
TRAINCHECK = "TrainCheck, https://www.usenix.org/conference/osdi25/presentation/jiang"
AUTOTRAINER = "AutoTrainer, https://doi.org/10.1109/tdsc.2024.3450951"
DEEPCRIME = "the categories of DEFault, https://arxiv.org/abs/2501.12560, and DeepCrime, https://doi.org/10.1145/3460319.3464825"
TRAPS = "a bug of several public training frameworks"


def fault(
    name: str,
    group: str,
    causes: str,
    programs: tuple[str, ...] = PROGRAMS,
    needs: str = "",
    *,
    base: Change | None = None,
    is_plain: bool = False,
    misleads: bool = False,
    source: str = "",
) -> Callable[[Change], Change]:
    """`needs`: traits with a space between them, each with its alternatives: "tokens classes|causal"."""

    def register(put: Change) -> Change:
        assert name not in KINDS, name
        wanted = tuple(frozenset(each.split("|")) for each in needs.split())
        of = tuple(program for program in PROGRAMS if program in programs)
        KINDS[name] = Kind(name, group, tuple(causes.split()), put, of, wanted, base, is_plain, misleads, source)
        return put

    return register


# What several kinds share with their twins


def with_sgd(job: Job, chance: Chance) -> None:
    """Plain gradient descent, at a rate that is good for it."""
    if job.optimizer == "sgd":
        return
    job.optimizer, job.momentum, job.weight_decay = "sgd", 0.9, 0.0
    job.rate *= 40 if "encoder" in job.network or job.network in TRANSFORMERS else 15
    job.clip = 1.0


TRANSFORMERS = ("bert", "gpt", "t5", "gpt2", "gpt2-classify", "distilbert", "roberta", "llama", "bert-masked")


def with_adam(job: Job, chance: Chance) -> None:
    if job.optimizer == "sgd":
        job.optimizer, job.rate, job.weight_decay = "adamw", job.rate / 12, 0.0


def with_constant_adam(job: Job, chance: Chance) -> None:
    """No decay saves what went wrong early."""
    with_adam(job, chance)
    job.schedule = "constant"


def with_full_schedule(job: Job, chance: Chance) -> None:
    """A long enough run with a learning rate that does not fall, so that what happens late still counts."""
    job.schedule, job.steps = "constant", max(job.steps, 200)
