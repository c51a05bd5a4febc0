"""The training problems that AutoTrainer detects, each by several of the causes that it repairs, on dense,
convolutional and recurrent networks: circles and blobs as in its demonstrations, digits in place of MNIST."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from strangers.data import numbers, tokens
from strangers.data.table import Table
from strangers.models import MLP, ConvNet, Recurrent
from torch import Tensor, nn
from torch.nn import functional as F

from public_cases.cases import Run, Score, case
from public_cases.loop import Loop, Pair, halves

SOURCE = "autotrainer"


def circles(seed: int) -> tuple[Pair, Pair]:
    rng = np.random.default_rng(seed)
    return halves(numbers.rings(rng, 1200, 2), 300, rng)


def blobs(seed: int) -> tuple[Pair, Pair]:
    rng = np.random.default_rng(seed)
    return halves(numbers.blobs(rng, 1500, 8, 4), 300, rng)


def digits(seed: int, *, as_pixels: bool = False) -> tuple[Pair, Pair]:
    rng = np.random.default_rng(seed)
    table = numbers.digit_pictures()
    if as_pixels:
        table = Table(((table.x + 1) * 127.5).astype(np.float32), table.y)
    return halves(table, 300, rng)


def topics(seed: int, length: int = 16) -> tuple[Pair, Pair]:
    rng = np.random.default_rng(seed)
    return halves(tokens.topics(rng, 1500, length, 4), 300, rng)


def sgd(model: nn.Module, rate: float, momentum: float = 0.9) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)


def adam(model: nn.Module, rate: float) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=rate)


def loop(run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, data: tuple[Pair, Pair], **more) -> Score:
    return Loop(model, optimizer, *data, seed=run.seed, **more).run(run)


def initialize(model: nn.Module, scale: float = 1.0) -> None:
    """He's initial weights, times a factor."""
    for part in model.modules():
        if isinstance(part, nn.Linear):
            nn.init.kaiming_normal_(part.weight)
            with torch.no_grad():
                part.weight.mul_(scale)


# Vanishing gradients


@case("vanish-sigmoid", SOURCE, "vanishing gradient: activation", "gradients-vanish")
def vanish_sigmoid(run: Run) -> Score:
    """Eight dense layers with sigmoids, on circles; the twin has ReLU."""
    torch.manual_seed(run.seed)
    model = MLP(3, 2, width=32, depth=8, activation="sigmoid" if run.is_faulty else "relu")
    return loop(run, model, adam(model, 1e-3), circles(run.seed), steps=300)


@case("vanish-init", SOURCE, "vanishing gradient: initializer", "gradients-vanish init-small")
def vanish_init(run: Run) -> Score:
    """A dense network of six layers whose initial weights are a twentieth of the usual size."""
    torch.manual_seed(run.seed)
    model = MLP(64, 10, width=48, depth=6)
    initialize(model, 0.05 if run.is_faulty else 1.0)
    return loop(run, model, sgd(model, 0.02), digits(run.seed), steps=250)


@case("vanish-recurrent", SOURCE, "vanishing gradient: recurrent network", "gradients-vanish init-small")
def vanish_recurrent(run: Run) -> Score:
    """Three recurrent layers whose initial weights let hardly anything through."""
    torch.manual_seed(run.seed)
    model = Recurrent(4, width=32, kind="rnn", vocab=56, depth=3)
    if run.is_faulty:
        with torch.no_grad():
            for parameter in model.trunk.parameters():
                parameter.mul_(0.05)
    return loop(run, model, sgd(model, 0.1), topics(run.seed), steps=250, clip=1.0)


# Exploding gradients


@case(
    "explode-init", SOURCE, "exploding gradient: initializer", "gradients-explode init-large clipping-off", guard=True
)
def explode_init(run: Run) -> Score:
    """Six dense layers with initial weights eight times as large as usual, plain SGD, no clipping."""
    torch.manual_seed(run.seed)
    model = MLP(64, 10, width=48, depth=6)
    initialize(model, 8.0 if run.is_faulty else 1.0)
    return loop(run, model, sgd(model, 0.01), digits(run.seed))


@case("explode-rate", SOURCE, "exploding gradient: learning rate", "gradients-explode learning-rate-high", guard=True)
def explode_rate(run: Run) -> Score:
    """A convolutional network without batch norm at forty times a good learning rate."""
    torch.manual_seed(run.seed)
    model = ConvNet(10, width=8, norm="")
    return loop(run, model, sgd(model, 2.0 if run.is_faulty else 0.05), digits(run.seed))


@case(
    "explode-recurrent",
    SOURCE,
    "exploding gradient: no clipping in a recurrent network",
    "gradients-explode clipping-off init-large learning-rate-high",
    guard=True,
)
def explode_recurrent(run: Run) -> Score:
    """A recurrent network over 30 tokens with large recurrent weights, without clipping; the twin clips, at usual
    weights."""
    torch.manual_seed(run.seed)
    model = Recurrent(4, width=32, kind="rnn", vocab=56)
    if run.is_faulty:
        with torch.no_grad():
            model.trunk.weight_hh_l0.mul_(6)
    clip = None if run.is_faulty else 1.0
    return loop(run, model, sgd(model, 0.1), topics(run.seed, 30), clip=clip)


# Dying ReLU


@case("dying-rate", SOURCE, "dying ReLU: learning rate", "units-dead learning-rate-high")
def dying_rate(run: Run) -> Score:
    """Adam at 0.5 kills the ReLUs of a dense network in its first steps."""
    torch.manual_seed(run.seed)
    model = MLP(8, 4, width=48, depth=3)
    return loop(run, model, adam(model, 0.5 if run.is_faulty else 2e-3), blobs(run.seed))


@case("dying-bias", SOURCE, "dying ReLU: initializer", "units-dead")
def dying_bias(run: Run) -> Score:
    """The biases of the hidden layers start at -3: no unit is ever on."""
    torch.manual_seed(run.seed)
    model = MLP(64, 10, width=48, depth=2)
    if run.is_faulty:
        for layer in model.trunk:
            if isinstance(layer, nn.Linear):
                nn.init.constant_(layer.bias, -3.0)
    return loop(run, model, adam(model, 2e-3), digits(run.seed))


@case("dying-convolution", SOURCE, "dying ReLU: convolutional network", "units-dead learning-rate-high")
def dying_convolution(run: Run) -> Score:
    """Adam at 0.2 on a convolutional network without batch norm."""
    torch.manual_seed(run.seed)
    model = ConvNet(10, width=8, norm="")
    return loop(run, model, adam(model, 0.2 if run.is_faulty else 3e-3), digits(run.seed))


# Oscillating loss


@case("oscillate-rate", SOURCE, "oscillating loss: learning rate", "learning-rate-high")
def oscillate_rate(run: Run) -> Score:
    """SGD on blobs at a learning rate of 2.5 with momentum: the loss jumps up and down."""
    torch.manual_seed(run.seed)
    model = MLP(8, 4, width=48, depth=2, activation="tanh")
    return loop(run, model, sgd(model, 2.5 if run.is_faulty else 0.05), blobs(run.seed))


@case("oscillate-batch", SOURCE, "oscillating loss: batch size", "batch-small learning-rate-high")
def oscillate_batch(run: Run) -> Score:
    """Batches of a single sample; the twin has 32."""
    torch.manual_seed(run.seed)
    model = MLP(64, 10, width=48, depth=2)
    size = 1 if run.is_faulty else 32
    return loop(run, model, sgd(model, 0.05), digits(run.seed), batch_size=size, steps=300)


@case("oscillate-momentum", SOURCE, "oscillating loss: optimizer", "momentum-high learning-rate-high")
def oscillate_momentum(run: Run) -> Score:
    """Momentum of 0.998: the updates overshoot for hundreds of steps."""
    torch.manual_seed(run.seed)
    model = MLP(64, 10, width=48, depth=2)
    return loop(run, model, sgd(model, 0.05, 0.998 if run.is_faulty else 0.9), digits(run.seed), steps=300)


@case("oscillate-recurrent", SOURCE, "oscillating loss: recurrent network", "learning-rate-high")
def oscillate_recurrent(run: Run) -> Score:
    """An LSTM with Adam at 0.3."""
    torch.manual_seed(run.seed)
    model = Recurrent(4, width=24, kind="lstm", vocab=56)
    return loop(run, model, adam(model, 0.3 if run.is_faulty else 4e-3), topics(run.seed), steps=250)


# Slow convergence


@case("slow-dense", SOURCE, "slow convergence: learning rate", "learning-rate-low")
def slow_dense(run: Run) -> Score:
    """SGD at 1e-5 on circles."""
    torch.manual_seed(run.seed)
    model = MLP(3, 2, width=48, depth=2)
    return loop(run, model, sgd(model, 1e-5 if run.is_faulty else 0.1), circles(run.seed))


@case("slow-convolution", SOURCE, "slow convergence: learning rate", "learning-rate-low")
def slow_convolution(run: Run) -> Score:
    """Adam at 2e-6 on pictures of digits."""
    torch.manual_seed(run.seed)
    model = ConvNet(10, width=8)
    return loop(run, model, adam(model, 2e-6 if run.is_faulty else 3e-3), digits(run.seed))


@case("slow-recurrent", SOURCE, "slow convergence: learning rate", "learning-rate-low")
def slow_recurrent(run: Run) -> Score:
    """A GRU with Adam at 1e-6."""
    torch.manual_seed(run.seed)
    model = Recurrent(4, width=24, vocab=56)
    return loop(run, model, adam(model, 1e-6 if run.is_faulty else 5e-3), topics(run.seed), steps=250)


# The further problems of the journal version


@case("data-unscaled", SOURCE, "data issue: no preprocessing", "inputs-unscaled")
def data_unscaled(run: Run) -> Score:
    """Pixels from 0 to 255 go into a convolutional network as they are."""
    torch.manual_seed(run.seed)
    model = ConvNet(10, width=8, norm="")
    return loop(run, model, sgd(model, 0.02), digits(run.seed, as_pixels=run.is_faulty))


class Ended(nn.Module):
    """A network with an activation after its last layer."""

    def __init__(self, network: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.network, self.activation = network, activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.network(x))


@case("activation-softmax", SOURCE, "improper activation", "softmax-twice")
def activation_softmax(run: Run) -> Score:
    """A softmax before a cross entropy that has its own."""
    torch.manual_seed(run.seed)
    model: nn.Module = MLP(64, 10, width=48, depth=2)
    if run.is_faulty:
        model = Ended(model, nn.Softmax(-1))
    return loop(run, model, adam(model, 1e-3), digits(run.seed))


@case("activation-relu", SOURCE, "improper activation", "softmax-twice units-dead")
def activation_relu(run: Run) -> Score:
    """A ReLU after the last layer: negative logits are lost."""
    torch.manual_seed(run.seed)
    model: nn.Module = ConvNet(10, width=8, norm="")
    if run.is_faulty:
        model = Ended(model, nn.ReLU())
    return loop(run, model, sgd(model, 0.05), digits(run.seed))


@case("loss-squares", SOURCE, "loss issue", "loss-mismatched")
def loss_squares(run: Run) -> Score:
    """The number of the class is fitted with a squared error; the twin has a cross entropy."""
    torch.manual_seed(run.seed)
    model = MLP(64, 1 if run.is_faulty else 10, width=48, depth=2)

    def squares(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs.squeeze(-1), targets.float())

    data = digits(run.seed)
    if not run.is_faulty:
        return loop(run, model, adam(model, 2e-3), data)
    guess = partial(guessed_accuracy, model, data[1])
    return loop(run, model, adam(model, 2e-3), data, criterion=squares, evaluate=guess, true_score=guess)


@torch.no_grad()
def guessed_accuracy(model: nn.Module, data: Pair) -> Score:
    """The nearest class is what is predicted."""
    guessed = model(data[0]).squeeze(-1)
    right = (guessed.round() == data[1]).float().mean()
    return {"loss": float(F.mse_loss(guessed, data[1].float())), "accuracy": float(right)}
