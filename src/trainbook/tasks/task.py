"""What every task is: a network with a head, a loss, metrics, and the way from samples to its inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from trainbook.data import DataBundle, Tokenizer
from trainbook.data.batches.filling import Batch
from trainbook.data.samples.frame import Frame
from trainbook.data.sources.records import LabelKind, RecordKind
from trainbook.knobs.config import Config
from trainbook.models.formats.importing import BaseSettings
from trainbook.tasks.layout import StepBatch

Collate = Callable[[Batch], StepBatch]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards every part is in the mode that it was in."""
    was_training, others = module.training, [part for part in module.modules() if part.training != module.training]
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)
        for part in others:
            part.training = not was_training


@dataclass(frozen=True)
class Facts:
    """What a task must know of its data to be built; a run keeps it beside its tokenizer."""

    vocab_size: int
    label_names: tuple[str, ...] = ()
    bytes_per_token: float = 0.0  # of the validation text; 0: not known
    pad: int = 0
    end: int | None = None
    ends: tuple[int, ...] = ()  # every token at which a text or an answer ends; unset, `end` alone
    chat_template: str | None = None  # how conversations were written, as a Jinja template
    fields: Mapping[str, str] = field(default_factory=dict)  # which field of a record was taken for what
    # Where a new regression head begins, and what it counts in; 0 and 1: no regression, ordinary targets, or a head
    # that was loaded.
    target_mean: float = 0.0
    target_scale: float = 1.0

    def __post_init__(self) -> None:
        alone = () if self.end is None else (self.end,)
        object.__setattr__(self, "ends", tuple(self.ends) or alone)

    @classmethod
    def of(cls, data: DataBundle, ends: tuple[int, ...] = ()) -> Facts:
        tokenizer = data.tokenizer
        return cls(
            tokenizer.vocab_size,
            data.label_names,
            data.bytes_per_token,
            tokenizer.padding,
            tokenizer.end_of_text,
            ends,
            data.chat_template,
            dict(data.summary.get("fields", {})),
        )


class Task(nn.Module):
    """A network, its head and its objective. A task of your own subclasses this.

    `forward` gives named sums over the targets of a micro-batch: their total, divided by the targets of the whole
    global batch, is what is trained on.
    """

    records: ClassVar[RecordKind] = "text"
    labels: ClassVar[LabelKind | None] = None
    specials: ClassVar[tuple[str, ...]] = ()  # roles of tokens that the tokenizer must have
    begins_documents: ClassVar[bool] = False  # in a stream, each begins with what the tokenizer puts before a text

    def __init__(self, config: Config, facts: Facts) -> None:
        super().__init__()
        self.facts = facts
        self.fresh: tuple[str, ...] | None = None  # parameters that pretrained weights had no values for
        self.base_step: int | None = None  # of an earlier run's checkpoint, if its weights are those begun with
        self.base_settings: BaseSettings | None = None  # of the pretrained model's folder
        self.label_smoothing = config.training.label_smoothing
        self.z_loss = config.training.z_loss

    @classmethod
    @abstractmethod
    def frame(cls, config: Config, tokenizer: Tokenizer) -> Frame:
        """What goes around a sample's tokens, and how much room there is."""

    @classmethod
    @abstractmethod
    def collate(cls, config: Config, data: DataBundle, rows_each: int) -> Collate:
        """From samples to micro-batches of so many rows. Runs in the data workers."""

    @abstractmethod
    def logits(self, **inputs: Tensor) -> Tensor:
        """A row of numbers for each target, (N, classes), or for each position, (B, L, classes)."""

    @abstractmethod
    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        """Named sums over the targets."""

    @abstractmethod
    def evaluation_sums(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        """What to add up over the batches of an evaluation."""

    @abstractmethod
    def metrics(self, sums: Mapping[str, Tensor], num_targets: int) -> dict[str, float]:
        """From those sums to numbers to show."""

    def must_fit_frame(self, frame: Frame) -> None:
        """UserError if the network cannot read texts with what this frame puts around them."""

    def tie(self) -> None:
        """Make shared parameters one again after memory was given to each."""

    def initialize(self, seed: int) -> None:
        """Give every parameter its first value."""

    @classmethod
    def build(cls, config: Config, facts: Facts, device: torch.device, dtype: torch.dtype) -> Self:
        """Built without memory on the meta device, then given its first values where it will live."""
        with torch.device("meta"):
            task = cls(config, facts).to(dtype)
        task.to_empty(device=device)
        task.tie()
        task.initialize(config.training.seed)
        return task
