"""Checks of the parameters: each gets a gradient, is in the optimizer once, decays as asked, and is shared as said."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainbook.check.result import Check, CheckOutcome, failed, passed, skipped
from trainbook.check.shares import by_share
from trainbook.check.subject import CheckSubject
from trainbook.loop.step import train_step
from trainbook.models.parameters import NORMS
from trainbook.parallel import Strategy
from trainbook.parallel.strategy import Update
from trainbook.tasks.labels import LabelTask

STEPS = 3  # an adapter's first matrix has no gradient before its second one has moved
NAMED = 3
TOO_LARGE = 1.5  # times the gradient that it should be: one that is computed again is twice as large


class Watching(Strategy):
    """Sees the gradients of each step before they are used."""

    def __init__(self, updates: bool = True) -> None:
        super().__init__()
        self.updates = updates
        self.gradients: dict[str, torch.Tensor] = {}  # of the last step, by the name of the parameter
        self.reached: set[int] = set()  # parameters that have had one that is not zero

    def update(self, apply_update: Update, optimizer: Optimizer, apply: torch.Tensor) -> None:
        for group in optimizer.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                if parameter.grad is not None:
                    self.gradients[name] = parameter.grad.detach().clone()
        if self.updates:
            apply_update(optimizer, apply)

    def look(self, module: nn.Module) -> None:
        """Also at parameters that no optimizer has: call it while gradients are there."""
        for parameter in module.parameters():
            if parameter.grad is not None and bool((parameter.grad != 0).any()):
                self.reached.add(id(parameter))

    def collect_gradients(self) -> None:
        assert self.module is not None
        self.look(self.module)

    module: nn.Module | None = None


def gradients(subject: CheckSubject) -> CheckOutcome:
    task, watching = subject.task, Watching()
    watching.module = task
    state = subject.state(watching)
    trainable = {name: parameter for name, parameter in task.named_parameters() if parameter.requires_grad}
    batch = subject.collated(subject.batch(subject.rows_for(4)), 2)
    steps = 0
    for step in range(STEPS):
        subject.seed(step)
        train_step(state, batch)
        task.zero_grad(set_to_none=True)  # also of what no optimizer has
        steps = step + 1
        if all(id(parameter) in watching.reached for parameter in trainable.values()):
            break
    still = [name for name, parameter in trainable.items() if id(parameter) not in watching.reached]
    frozen = sum(1 for parameter in task.parameters() if not parameter.requires_grad)
    numbers = {"parameters": len(trainable), "without": still, "steps": steps, "frozen": frozen}
    if still:
        return failed(
            f"{len(still)} of {len(trainable)} parameters have no gradient after {steps} steps: {_few(still)}",
            "they are not on the path from inputs to loss: detached, never called, or multiplied by zero",
            "Look for .detach(), .data, torch.no_grad() or an unused layer; freeze parameters that should not be "
            "trained.",
            **numbers,
        )
    if frozen and subject.config.model.pretrained is None and subject.config.model.lora_rank is None:
        return _frozen(subject, numbers)
    rest = f"; {frozen} are frozen" if frozen else ""
    return passed(
        f"all {len(trainable)} trainable parameters have a gradient within {steps} "
        f"step{'s' if steps > 1 else ''}{rest}",
        **numbers,
    )


def _frozen(subject: CheckSubject, numbers: dict[str, Any]) -> CheckOutcome:
    """Of a model that begins with new weights."""
    sizes = {name: parameter.numel() for name, parameter in subject.task.named_parameters()}
    still = [name for name, parameter in subject.task.named_parameters() if not parameter.requires_grad]
    share = sum(sizes[name] for name in still) / max(1, sum(sizes.values()))
    return by_share(
        "frozen",
        share,
        f"{share:.0%} of the weights are new and frozen: {_few(still)}",
        "requires_grad is false where no pretrained weights were loaded: these stay as they were drawn",
        "Let them be trained, or load weights for them.",
        **numbers,
        frozen_share=share,
    )


def gradients_zeroed(subject: CheckSubject) -> CheckOutcome:
    """Two steps on the same batch with the same weights have the same gradient, and it is that of the loss."""
    batch = subject.collated(subject.batch(subject.rows_for(4)))
    watching = Watching(updates=False)
    watching.module = subject.task
    state = subject.state(watching)
    state.max_grad_norm, state.judge.enabled = None, False
    trainable = {name: parameter for name, parameter in subject.task.named_parameters() if parameter.requires_grad}
    found = []
    with subject.steady():
        subject.seed()
        given = torch.autograd.grad(subject.losses(batch), list(trainable.values()), allow_unused=True)
        of_loss = {name: value for name, value in zip(trainable, given, strict=True) if value is not None}
        subject.task.zero_grad(set_to_none=True)
        for _ in range(2):
            subject.seed()
            watching.gradients = {}
            train_step(state, batch)
            found.append(watching.gradients)
    first, second = found
    grown = _times(of_loss, {name: second[name] - first[name] for name in first if name in second}, nothing=0.0)
    by_loss = _times(of_loss, first, nothing=1.0)
    numbers: dict[str, Any] = {"grown_by": grown, "times_that_of_the_loss": by_loss}
    if grown > 1 / 2:
        return failed(
            f"a second step on the same batch adds {grown:.2f} times its gradient to that of the first",
            "gradients are added up from step to step: something keeps them when the loop sets them to zero",
            "Look for hooks on parameters and for gradients that the task stores and adds.",
            **numbers,
        )
    if by_loss > TOO_LARGE:
        return failed(
            f"the gradient of a step is {by_loss:.2f} times that of its loss",
            "gradients are computed twice: forward calls backward() by itself, or a hook multiplies them",
            "Return the loss only; the loop computes the gradients.",
            **numbers,
        )
    return passed("a second step on the same batch has the same gradient, which is that of the loss", **numbers)


def _times(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], *, nothing: float) -> float:
    """How often the second contains the first: 1 where they are the same, 2 where it was added once more."""
    shared = [name for name in one if name in other]
    product = sum(float((one[name].double() * other[name].double()).sum()) for name in shared)
    square = sum(float(one[name].double().square().sum()) for name in shared)
    return product / square if square > 0 else nothing


def in_optimizer(subject: CheckSubject) -> CheckOutcome:
    task, optimizer = subject.task, subject.built.state.optimizer
    counts = Counter(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    names = {id(parameter): name for name, parameter in task.named_parameters()}
    trainable = [name for name, parameter in task.named_parameters() if parameter.requires_grad]
    own = dict(task.named_parameters())
    missing = [name for name in trainable if counts[id(own[name])] == 0]
    twice = [names.get(key, "?") for key, count in counts.items() if count > 1]
    strangers = sum(1 for key in counts if key not in names)
    numbers = {"parameters": len(trainable), "missing": missing, "twice": twice, "not_of_the_model": strangers}
    if missing:
        return failed(
            f"{len(missing)} of {len(trainable)} trainable parameters are not in the optimizer: {_few(missing)}",
            "they get gradients but are never updated",
            "Build the optimizer from all parameters of the model, after its last layer was created or replaced.",
            **numbers,
        )
    if twice:
        return failed(
            f"{len(twice)} parameters are in the optimizer more than once: {_few(twice)}",
            "they are updated several times per step",
            "List each parameter in exactly one group.",
            **numbers,
        )
    if strangers:
        return failed(
            f"{strangers} parameters in the optimizer do not belong to the model",
            "the model's parameters were replaced after the optimizer was built",
            "Build the optimizer last.",
            **numbers,
        )
    return passed(f"all {len(trainable)} trainable parameters are in the optimizer, each once", **numbers)


def decay(subject: CheckSubject) -> CheckOutcome:
    """By what owns a parameter and by its shape, not by the groups that the optimizer was built from."""
    knobs, task = subject.asked.optimizer, subject.task
    owners: dict[int, tuple[str, nn.Module]] = {}
    for prefix, part in task.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            owners.setdefault(id(parameter), (f"{prefix}.{name}" if prefix else name, part))
    wrongly, lacking, decayed, total = [], [], 0, 0
    for group in subject.built.state.optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in owners:
                continue
            name, part = owners[id(parameter)]
            is_decayed = group["weight_decay"] > 0
            total, decayed = total + 1, decayed + is_decayed
            if isinstance(part, nn.Embedding):
                should = knobs.decay_embeddings
            else:
                should = parameter.ndim >= 2 and not isinstance(part, NORMS)
            if is_decayed and not should:
                wrongly.append(name)
            elif should and not is_decayed and knobs.weight_decay > 0:
                lacking.append(name)
    numbers = {"decayed": decayed, "parameters": total, "wrongly": wrongly, "lacking": lacking}
    if wrongly:
        return failed(
            f"{len(wrongly)} parameters have weight decay but should not: {_few(wrongly)}",
            "norms and biases (and embeddings, unless optimizer.decay_embeddings) are pulled towards zero",
            "Put them into a group without weight decay.",
            **numbers,
        )
    if lacking:
        return failed(
            f"{len(lacking)} matrices have no weight decay, although optimizer.weight_decay is "
            f"{knobs.weight_decay:g}: {_few(lacking)}",
            "their group has no weight decay",
            "Put every matrix into a group with weight decay.",
            **numbers,
        )
    if knobs.weight_decay == 0:
        return passed("optimizer.weight_decay is 0: no parameter has weight decay", **numbers)
    return passed(f"{decayed} of {total} parameters have weight decay: matrices only, no norm and no bias", **numbers)


def tied(subject: CheckSubject) -> CheckOutcome:
    """The same memory, not the same numbers: copies part at the first update."""
    task = subject.task
    if isinstance(task, LabelTask):
        return skipped("the output is over labels, not over the vocabulary, so there is nothing to tie")
    pair = input_and_output(task)
    if pair is None:
        return skipped("the model does not expose its input and output embeddings")
    given, output, should = pair
    if given.shape != output.shape:
        return skipped(
            f"input and output embeddings have different shapes: {tuple(given.shape)} and {tuple(output.shape)}"
        )
    is_same = given.data_ptr() == output.data_ptr()
    if should and is_same:
        return passed("the output matrix and the embedding are one tensor")
    if not should and not is_same:
        return passed("the output matrix is separate from the embedding, as configured")
    # Some pretrained models have two matrices, and a config.json that speaks of one.
    if should and hasattr(task, "network") and not torch.equal(given, output):
        return passed("the pretrained model's input and output embeddings differ")
    if should:
        return failed(
            "the output matrix is a copy of the embedding, not the same tensor",
            "it was cloned instead of shared: the two diverge at the first update",
            "Assign the parameter itself (head.weight = embedding.weight), also after the model is moved or loaded.",
            "model.tie_embeddings=false",
        )
    return failed(
        "the output matrix and the embedding are one tensor, although model.tie_embeddings is false",
        "they were tied in the model's code, or by the code that loads the weights",
        "Give the output its own parameter.",
        "model.tie_embeddings=true",
    )


def input_and_output(task: nn.Module) -> tuple[torch.Tensor, torch.Tensor, bool] | None:
    """Both matrices, and whether they are to be one."""
    body, head = getattr(task, "body", None), getattr(task, "head", None)
    if head is not None and hasattr(body, "token_embedding"):
        return body.token_embedding.weight, head.weight, bool(task.is_tied)  # pyright: ignore
    network = getattr(task, "network", None)
    if hasattr(network, "get_input_embeddings") and hasattr(network, "get_output_embeddings"):
        given, output = network.get_input_embeddings(), network.get_output_embeddings()  # pyright: ignore
        if given is not None and output is not None:
            return given.weight, output.weight, bool(getattr(network.config, "tie_word_embeddings", False))  # pyright: ignore
    return None


def _few(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


CHECKS = (
    Check("gradients", "every trainable parameter gets a gradient", gradients),
    Check("gradients_zeroed", "no gradient stays from one step to the next", gradients_zeroed),
    Check("optimizer", "every trainable parameter is in the optimizer, once", in_optimizer, computes=False),
    Check("decay", "weight decay applies to matrices only, and to embeddings if configured", decay, computes=False),
    Check("tied", "input and output embeddings are tied where the configuration says so", tied, computes=False),
)
