"""Faults of the update: learning rate, optimizer, clipping, batch."""

from __future__ import annotations

from torch import nn

from strangers.job import Chance, Job
from strangers.kinds import (
    AUTOTRAINER,
    CODE,
    DEEPCRIME,
    TRAINCHECK,
    TRAPS,
    fault,
    with_adam,
    with_constant_adam,
    with_sgd,
)


@fault("rate-high", "rate", "learning-rate-high", base=with_constant_adam, source=AUTOTRAINER)
def rate_high(job: Job, chance: Chance) -> None:
    """The learning rate is 60 to 300 times too high."""
    job.rate *= chance.times(60, 300)


@fault("rate-high-sgd", "rate", "learning-rate-high", needs="", base=with_sgd)
def rate_high_sgd(job: Job, chance: Chance) -> None:
    """The learning rate of plain gradient descent is 20 to 100 times too high, and gradients are not clipped."""
    job.rate *= chance.times(20, 100)
    job.clip = None


@fault("rate-extreme", "rate", "learning-rate-high", base=with_adam)
def rate_extreme(job: Job, chance: Chance) -> None:
    """The learning rate has a misplaced decimal point: a thousand times too high."""
    job.rate *= chance.times(500, 3000)


@fault("rate-low", "rate", "learning-rate-low", source=AUTOTRAINER)
def rate_low(job: Job, chance: Chance) -> None:
    """The learning rate is 30 to 200 times too low."""
    job.rate /= chance.times(30, 200)


@fault("rate-tiny", "rate", "learning-rate-low")
def rate_tiny(job: Job, chance: Chance) -> None:
    """The learning rate is thousands of times too low: nothing moves."""
    job.rate /= chance.times(1_000, 30_000)


@fault("adam-with-sgd-rate", "rate", "learning-rate-high", base=with_adam)
def adam_with_sgd_rate(job: Job, chance: Chance) -> None:
    """Adam is given the learning rate that was right for plain gradient descent, 0.1 to 0.5."""
    job.rate = chance.times(0.1, 0.5)


@fault("sgd-with-adam-rate", "rate", "learning-rate-low", base=with_adam)
def sgd_with_adam_rate(job: Job, chance: Chance) -> None:
    """Plain gradient descent without momentum is given Adam's learning rate."""
    job.optimizer, job.momentum, job.weight_decay = "sgd", 0.0, 0.0
    job.rate = chance.times(5e-5, 1e-3)


@fault("rate-finetuning", "rate", "learning-rate-low", ("builtin", "own", "huggingface"), base=with_adam)
def rate_finetuning(job: Job, chance: Chance) -> None:
    """A model with random weights is trained at a learning rate for fine-tuning, 2e-5."""
    job.rate = chance.share(1e-5, 3e-5)


@fault("momentum-high", "optimizer", "momentum-high", base=with_sgd)
def momentum_high(job: Job, chance: Chance) -> None:
    """Momentum is .997 or more at an unchanged learning rate: updates overshoot."""
    job.momentum = chance.fault.choice((0.997, 0.998, 0.999))


@fault("beta2-low", "optimizer", "beta2-low learning-rate-high", needs="transformer", base=with_constant_adam)
def beta2_low(job: Job, chance: Chance) -> None:
    """Adam's beta2 is near 0: each update is as large as the learning rate whatever the gradient."""
    job.beta2 = chance.share(0.0, 0.2)
    job.rate *= 4


@fault("epsilon-high", "optimizer", "epsilon-high learning-rate-low", base=with_adam)
def epsilon_high(job: Job, chance: Chance) -> None:
    """Adam's epsilon is .3 or more, larger than the gradients: updates are as small as these."""
    job.epsilon = chance.times(0.5, 30)


@fault("decay-high", "optimizer", "decay-high", base=with_adam, source=DEEPCRIME)
def decay_high(job: Job, chance: Chance) -> None:
    """Weight decay is so strong that a weight is halved within 20 updates."""
    job.weight_decay = chance.times(0.03, 0.12) / job.rate
    job.optimizer = "adamw"


@fault("l2-on-everything", "optimizer", "decay-high", ("huggingface", "loop"), base=with_adam)
def l2_on_everything(job: Job, chance: Chance) -> None:
    """An L2 penalty of 1 or more in plain Adam drowns the gradients of the loss, also of norms and biases."""
    job.optimizer, job.weight_decay = "adam", chance.times(1, 10)


@fault("clipping-tight", "optimizer", "clipping-tight", base=with_sgd)
def clipping_tight(job: Job, chance: Chance) -> None:
    """Gradients are clipped at a ten-thousandth: plain gradient descent hardly moves."""
    job.clip = chance.times(3e-5, 1e-3)


@fault("clipping-tight-adam", "optimizer", "clipping-tight", base=with_adam)
def clipping_tight_adam(job: Job, chance: Chance) -> None:
    """Gradients are clipped below Adam's epsilon: updates vanish."""
    job.clip = chance.times(1e-9, 1e-8)


@fault("batch-of-one", "batch", "batch-small", base=with_adam, source=TRAPS)
def batch_of_one(job: Job, chance: Chance) -> None:
    """A batch is a single sample at a learning rate that suits a large batch."""
    job.batch_size, job.rate = 1, job.rate * 2
    job.schedule = "constant"


@fault("batch-whole-set", "batch", "batch-large training-short")
def batch_whole_set(job: Job, chance: Chance) -> None:
    """A batch is a large part of the data, so that the same epochs make a tenth of the updates or less."""
    samples = job.batch_size * job.steps
    job.batch_size = min(len(job.train) // 2, 512 if job.is_language else 1024)
    job.steps = max(6, min(job.steps // 12, samples // job.batch_size))
    job.warmup, job.eval_every, job.log_every = 0, 2, 1


@fault("gradients-kept", "code", "gradients-not-zeroed", ("loop",), base=with_adam, is_plain=True, source=TRAINCHECK)
def gradients_kept(job: Job, chance: Chance) -> None:
    """Gradients are never zeroed: each update follows the sum of all gradients so far."""
    job.gradients, job.clip = "kept", None
    job.schedule = "constant"


@fault("gradients-kept-sgd", "code", "gradients-not-zeroed", ("loop",), base=with_sgd, is_plain=True, source=TRAINCHECK)
def gradients_kept_sgd(job: Job, chance: Chance) -> None:
    """Gradients are never zeroed, with plain gradient descent."""
    job.gradients, job.clip, job.schedule = "kept", None, "constant"


@fault("gradients-lost", "code", "updates-missing layers-frozen", ("loop",), is_plain=True, source=TRAINCHECK)
def gradients_lost(job: Job, chance: Chance) -> None:
    """zero_grad is called between backward and step: the optimizer never sees a gradient."""
    job.gradients = "lost"
    job.weight_decay = 0.0


@fault("optimizer-of-a-copy", "code", "updates-missing layers-frozen", ("huggingface", "loop"), source=TRAINCHECK)
def optimizer_of_a_copy(job: Job, chance: Chance) -> None:
    """The optimizer was made from the parameters of another instance of the model."""
    job.optimized = lambda network: [nn.Parameter(each.detach().clone()) for each in network.parameters()]


@fault("biases-alone-optimized", "code", "layers-frozen", ("huggingface", "loop"), needs="classes|causal|numbers")
def biases_alone_optimized(job: Job, chance: Chance) -> None:
    """A filter by name leaves the optimizer with biases alone: no matrix is trained."""
    job.optimized = lambda network: [each for each in network.parameters() if each.ndim < 2]


@fault("micro-batches-summed", "code", "accumulation-wrong learning-rate-high", ("loop",), base=with_sgd, is_plain=True)
def micro_batches_summed(job: Job, chance: Chance) -> None:
    """Gradients of 32 or 64 micro-batches are summed and not divided by their number."""
    job.accumulation, job.undivided, job.clip = chance.fault.choice((32, 64)), True, None
    job.steps, job.batch_size, job.schedule = 60, 8, "constant"
    job.eval_every = 10


@fault("ranks-summed", "code", "learning-rate-high gradients-summed accumulation-wrong", CODE, base=with_sgd)
def ranks_summed(job: Job, chance: Chance) -> None:
    """Gradients of many ranks are summed where they should be averaged."""
    world = chance.fault.choice((32, 64, 128))
    job.clip = None
    job.surgery.append(lambda network: _scale_gradients(network, world))


def _scale_gradients(network: nn.Module, factor: float) -> None:
    for each in network.parameters():
        each.register_hook(lambda gradient: gradient * factor)


@fault("weights-anew", "code", "weights-lost", ("loop",), is_plain=True)
def weights_anew(job: Job, chance: Chance) -> None:
    """The model is made inside the loop over epochs: each epoch begins with random weights."""
    job.forgets = "weights"
    job.train = job.train.take(slice(12 * job.batch_size))
