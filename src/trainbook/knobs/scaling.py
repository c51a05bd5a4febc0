"""muP: how first values, rates, decay, epsilon and multipliers follow from what a parameter is. Imports no torch.

The base model has the same proportions as this one; m says how many times wider this one is. What grows with m:

    tensor                                  first variance   rate of an Adam   forward
    embeddings, norms, biases (one side)    as at the base   as at the base    x embedding_multiplier
    hidden matrices (both sides)            / m              / m
    the output matrix (one side)            as at the base   as at the base    x output_multiplier / m
    attention logits                                                           x sqrt(base head width) / head width

Gradients of all of these are m times smaller than at the base, and so is Adam's epsilon. The rate and the decay of a
tensor move against each other, so that each update takes the same share of every weight. With r times as many layers
and the exponent alpha, what a block adds is multiplied by r^-alpha; inside blocks an Adam's rate gets r^(alpha - 1),
its epsilon r^-alpha (arXiv 2203.03466 and 2505.01618). At the base everything is 1.

A model whose every neuron is copied m times shows why: with these rules it computes and learns what the base does.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.knobs.config import Config
from trainbook.roles import Grows, Kind, Role


def head_width(config: Config) -> int:
    return config.model.head_width or config.model.hidden_size // config.model.num_attention_heads


@dataclass(frozen=True)
class Scaling:
    """How many times larger than the base a model is; all 1 at the base, and in the standard parametrization."""

    width: float = 1.0
    depth: float = 1.0
    head: float = 1.0
    exponent: float = 1.0

    @classmethod
    def of(cls, config: Config) -> Scaling:
        model = config.model
        if model.parametrization == "standard":
            return cls()
        assert model.base_hidden_size is not None, "a law asks for it"
        corrects_depth = model.base_num_hidden_layers is not None and model.depth_exponent > 0
        width = head_width(config)
        return cls(
            width=model.hidden_size / model.base_hidden_size,
            depth=model.num_hidden_layers / (model.base_num_hidden_layers or 1) if corrects_depth else 1.0,
            head=width / (model.base_head_width or width),
            exponent=model.depth_exponent,
        )

    @property
    def is_base(self) -> bool:
        """Everything is as in the standard parametrization."""
        return self.width == self.depth == self.head == 1.0

    @property
    def branch_multiplier(self) -> float:
        """Of what a block adds to the residual stream."""
        return self.depth**-self.exponent

    def growth(self, role: Role) -> float:
        """By how much the growing side of a parameter is larger than at the base."""
        match role.grows:
            case Grows.WIDTH:
                return self.width
            case Grows.HEAD:
                return self.head
            case Grows.NUM_HEADS:
                return self.width / self.head
            case Grows.NOT:
                return 1.0

    def rate(self, role: Role, optimizer: str) -> float:
        """What the rate of this parameter is multiplied by."""
        return self._rate_by_width(role, optimizer) * self._rate_by_depth(role, optimizer)

    def _rate_by_width(self, role: Role, optimizer: str) -> float:
        is_hidden = role.kind is Kind.HIDDEN
        if optimizer == "sgd":  # its update is the gradient, which is smaller by the growth
            return 1.0 if is_hidden else self.growth(role)
        if not is_hidden:
            return 1.0
        # An update of Adam or Lion is of one size whatever the gradient's. Muon's has singular values of
        # 0.2 x sqrt(larger side): the root is what has to go.
        return self.width**-0.5 if optimizer == "muon" else 1.0 / self.width

    def _rate_by_depth(self, role: Role, optimizer: str) -> float:
        if not role.in_block:
            return 1.0
        power = 2 * self.exponent - 1 if optimizer == "sgd" else self.exponent - 1
        return self.depth**power

    def epsilon(self, role: Role) -> float:
        """What Adam's epsilon is multiplied by: as much as the gradients of this parameter are."""
        return (self.branch_multiplier if role.in_block else 1.0) / self.growth(role)


STANDARD = Scaling()
