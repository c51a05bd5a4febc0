"""Faults of the schedule: warm-up, decay, length, resume."""

from __future__ import annotations

import torch
from torch import nn

from strangers.job import Chance, Job
from strangers.kinds import TRAPS, fault, with_adam, with_full_schedule

SCHEDULED = ("huggingface", "loop")  # where the user passes a schedule of his own


def _post_norm(job: Job, chance: Chance) -> None:
    """A transformer that needs a warm-up: deeper, at a high rate, with one."""
    with_adam(job, chance)
    if job.is_text and job.network in ("gpt", "bert"):
        job.knobs["model.norm_position"] = "post"
    elif job.network == "encoder":
        job.shape["post"] = True
    job.shape["depth"] = 3
    job.rate *= 1.3
    job.warmup, job.schedule, job.steps = 50, "linear", 160


@fault(
    "warmup-missing", "schedule", "warmup-short learning-rate-high", needs="transformer causal|classes", base=_post_norm
)
def warmup_missing(job: Job, chance: Chance) -> None:
    """A post-norm transformer at a high learning rate starts without a warm-up."""
    job.warmup = 0
    job.rate *= chance.times(3, 6)


@fault("warmup-endless", "schedule", "learning-rate-low warmup-long")
def warmup_endless(job: Job, chance: Chance) -> None:
    """The warm-up was meant for a run a hundred times as long: the learning rate never gets near its peak."""
    job.warmup = int(job.steps * chance.times(40, 200))
    if job.program in SCHEDULED:
        job.rate_at = lambda step: (step + 1) / job.warmup
    elif job.program in ("builtin", "own", "fit"):
        job.rate, job.warmup = job.rate * job.steps / job.warmup, job.steps - 1


@fault("decay-per-batch", "schedule", "schedule-ends-early", SCHEDULED, source=TRAPS)
def decay_per_batch(job: Job, chance: Chance) -> None:
    """A decay meant for each epoch is stepped with each batch: the learning rate is gone after a few dozen steps."""
    gamma = chance.share(0.7, 0.9)
    job.rate_at = lambda step: gamma**step


@fault("decay-steep", "schedule", "schedule-ends-early learning-rate-low", ("builtin", "own", "fit"))
def decay_steep(job: Job, chance: Chance) -> None:
    """A polynomial decay with a power of 40 or more leaves no learning rate after a tenth of the run."""
    job.schedule, job.power, job.warmup = "polynomial", chance.share(50, 120), 0


@fault("schedule-ends-early", "schedule", "schedule-ends-early", SCHEDULED)
def schedule_ends_early(job: Job, chance: Chance) -> None:
    """The cosine was made for a twelfth of the run or less, and stays at zero after it."""
    length = max(4, int(job.steps * chance.share(0.04, 0.08)))
    job.rate_at = lambda step: max(0.0, 1 - step / length)


@fault("schedule-grows", "schedule", "learning-rate-high schedule-inverted", SCHEDULED, base=with_adam)
def schedule_grows(job: Job, chance: Chance) -> None:
    """The factor of an exponential decay is above 1: the learning rate grows a thousandfold."""
    total = chance.times(300, 3000)
    job.rate_at = lambda step: total ** (step / job.steps)


@fault("rate-jumps", "schedule", "learning-rate-high", SCHEDULED, base=with_adam)
def rate_jumps(job: Job, chance: Chance) -> None:
    """From mid-run on the learning rate is 50 to 300 times as high, as after a resume with another setting."""
    start, factor = int(job.steps * chance.share(0.4, 0.7)), chance.times(50, 300)
    usual = job.usual_factor
    job.rate_at = lambda step: max(usual(step), 0.3) * factor if step >= start else usual(step)


@fault("restarts-too-often", "schedule", "learning-rate-high schedule-restarts", SCHEDULED, base=with_adam)
def restarts_too_often(job: Job, chance: Chance) -> None:
    """A schedule with warm restarts goes back to a far too high peak every few steps, to the end."""
    period, factor = chance.fault.randint(8, 20), chance.times(80, 300)
    job.rate_at = lambda step: factor * (1 - (step % period) / period)


@fault("training-short", "schedule", "training-short", source="")
def training_short(job: Job, chance: Chance) -> None:
    """The run ends after a tenth of the steps it needs, while its loss is falling."""
    job.steps = max(10, int(job.steps * chance.share(0.06, 0.12)))
    job.warmup = min(job.warmup, 2)
    job.eval_every, job.log_every = max(2, job.steps // 5), 1
    job.schedule = "constant"


@fault("resumed-from-scratch", "schedule", "weights-lost", ("fit", "huggingface", "loop"), source=TRAPS)
def resumed_from_scratch(job: Job, chance: Chance) -> None:
    """After a resume late in the run the weights are random again: the checkpoint was not loaded."""
    job.at_step[int(job.steps * chance.share(0.85, 0.93))] = _reset
    job.knobs |= {"guard.enabled": False} if job.program == "fit" else {}


def _reset(network: nn.Module) -> None:
    torch.manual_seed(1)
    for module in network.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()


@fault("weights-corrupted", "schedule", "device-corrupt", ("fit", "loop", "huggingface"), base=with_full_schedule)
def weights_corrupted(job: Job, chance: Chance) -> None:
    """In mid-run some weights of one matrix are hit by flipped bits and become huge."""
    step, factor = int(job.steps * chance.share(0.85, 0.95)), chance.times(1e3, 1e5)

    def corrupt(network: nn.Module) -> None:
        matrices = [each for each in network.parameters() if each.ndim > 1]
        chosen = matrices[len(matrices) // 2]
        chosen.view(-1)[::7] *= factor

    job.at_step[step] = corrupt
    job.knobs |= {"guard.enabled": False} if job.program == "fit" else {}
