"""A network that is not ours, behind one of the objectives: it is given tokens and asked for logits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.python_path import load_object, own_failure
from trainbook.tasks.causal import CausalTask, ChatTask
from trainbook.tasks.labels import Classify, ClassifyMany, LabelTask, Regress, Tag
from trainbook.tasks.masked import MaskedTask, SpanTask
from trainbook.tasks.seq2seq import Seq2SeqTask
from trainbook.tasks.task import Facts, Task, evaluating

# The objective of each task by name, without a network.
OBJECTIVES: dict[str, type[Task]] = {
    "causal": CausalTask,
    "chat": ChatTask,
    "masked": MaskedTask,
    "span": SpanTask,
    "seq2seq": Seq2SeqTask,
    "classify": Classify,
    "classify_many": ClassifyMany,
    "regress": Regress,
    "tag": Tag,
}


class Wrapped(Task):
    """Mixed with an objective. A row holds one text: nothing tells a foreign network where in it a document ends."""

    network: nn.Module
    origin: str  # what the network is called in messages
    context: int  # tokens that it looks back on when it writes

    @classmethod
    def around(cls, config: Config, facts: Facts, network: nn.Module, origin: str) -> Self:
        task = cls(config, facts)
        task.network, task.origin = network, origin
        task.context = config.data.max_seq_length
        return task

    def logits(
        self,
        input_ids: Tensor,
        document_ids: Tensor | None = None,
        chosen: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Tensor:
        inputs: dict[str, Any] = {"input_ids": input_ids}
        mask = self.attention_mask(input_ids, document_ids)
        if mask is not None:
            inputs["attention_mask"] = mask
        if decoder_input_ids is not None:
            inputs["decoder_input_ids"] = self.decoder_inputs(decoder_input_ids)
        logits = logits_of(self.call(inputs))
        places = input_ids if decoder_input_ids is None else decoder_input_ids
        self.check(logits, places)
        if chosen is None:
            return logits
        # A network that answers once for each text answers in the order of the rows, as `chosen` has them.
        return logits if logits.ndim == 2 else logits.flatten(0, 1)[chosen]

    def call(self, inputs: dict[str, Any]) -> Any:
        return self.network(**inputs)

    def attention_mask(self, input_ids: Tensor, document_ids: Tensor | None) -> Tensor | None:
        """1 where a token is. None where nothing hides: all are tokens, or what is not lies behind a causal mask."""
        if document_ids is not None:
            return (document_ids > 0).long()
        return None if isinstance(self, CausalTask) else torch.ones_like(input_ids)

    def decoder_inputs(self, decoder_input_ids: Tensor) -> Tensor:
        return decoder_input_ids

    @property
    def num_columns(self) -> int:
        """How many logits there must be at the least for a target to have one."""
        return self.num_outputs if isinstance(self, LabelTask) else self.facts.vocab_size

    def check(self, logits: Tensor, places: Tensor) -> None:
        shapes = [(*places.shape, logits.shape[-1])]
        if isinstance(self, LabelTask) and not isinstance(self, Tag):
            shapes.append((places.shape[0], logits.shape[-1]))
        exact = isinstance(self, LabelTask)
        columns = logits.shape[-1] == self.num_columns if exact else logits.shape[-1] >= self.num_columns
        if tuple(logits.shape) not in shapes or not columns:
            wanted = " or ".join(str((*shape[:-1], self.num_columns)) for shape in shapes)
            raise UserError(
                f"{self.origin}: its logits must have the shape {wanted} for inputs of {tuple(places.shape)}, but "
                f"they have {tuple(logits.shape)}."
            )

    # Writing: a search asks for one token after another.

    def start(self, batch: Any) -> tuple[Tensor, Writing]:
        """The token to go on from: the last one of the prompt, or the decoder's first."""
        input_ids = batch["input_ids"]
        if isinstance(self, CausalTask):
            return input_ids[:, -1], Writing({}, input_ids[:, :-1])
        inputs = {"input_ids": input_ids, "document_ids": batch.get("document_ids")}
        read = {name: tensor for name, tensor in inputs.items() if tensor is not None}
        return input_ids.new_full((len(input_ids),), self.facts.pad), Writing(read, input_ids[:, :0])

    def step(self, tokens_N: Tensor, state: Writing) -> Tensor:
        """All that was written is read again for each token: any network can do that."""
        state.written = torch.cat([state.written, tokens_N[:, None]], dim=1)
        if state.read:
            logits = self.logits(**state.read, decoder_input_ids=state.written)
        else:
            logits = self.logits(input_ids=state.written[:, -self.context :])
        return logits[:, -1, : self.facts.vocab_size]

    def reorder(self, state: Writing, index_M: Tensor) -> Writing:
        read = {name: tensor[index_M] for name, tensor in state.read.items()}
        return Writing(read, state.written[index_M], state.cache)


@dataclass
class Writing:
    """What a network has read and written so far, a row for each text."""

    read: dict[str, Tensor]  # what an encoder is given; empty without one
    written: Tensor
    cache: Any = None


def logits_of(answer: Any) -> Tensor:
    """The logits of whatever a network answers with: a tensor, an object or mapping that has them, a tuple."""
    if isinstance(answer, Tensor):
        return answer
    answer = answer.get("logits", answer) if isinstance(answer, dict) else getattr(answer, "logits", answer)
    if isinstance(answer, tuple | list) and answer:
        answer = answer[0]
    if not isinstance(answer, Tensor):
        raise UserError(
            "a model must return a tensor of logits, or an object with .logits, but it returned a "
            f"{type(answer).__name__}."
        )
    return answer


# A model or a task of the user's own, named by its Python path.


PROBE_LENGTH = 4


def own_task(path: str) -> type[Task]:
    found = load_object(path, "training.task")
    if not isinstance(found, type) or not issubclass(found, Task):
        raise UserError(
            f"training.task: '{path}' must be a subclass of trainbook.tasks.task.Task, but is {_kind(found)}."
        )
    missing = [name for name in dir(found) if getattr(getattr(found, name), "__isabstractmethod__", False)]
    if missing:
        raise UserError(f"training.task: '{path}' lacks what every task needs: {', '.join(missing)}.")
    return found


@cache
def around_own_model(path: str, task: str) -> type[Wrapped]:
    """The objective of a task around a model of the user's own."""
    return type(f"Own_{task}", (OwnModel, OBJECTIVES[task]), {"__module__": __name__, "path": path})


class OwnModel(Wrapped):
    path: str
    fresh: frozenset[str]

    @classmethod
    def build(cls, config: Config, facts: Facts, device: torch.device, dtype: torch.dtype) -> Self:
        path = cls.path
        make = load_object(path, "model.type")
        if not callable(make):
            raise UserError(f"model.type: '{path}' must be callable, but is {_kind(make)}.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.training.seed)
            try:
                network: Any = make(config, facts)
            except UserError:
                raise
            except Exception as error:
                raise own_failure(
                    f"model.type: '{path}' raised an error when called with (config, facts)", error
                ) from error
        if not isinstance(network, nn.Module):
            raise UserError(f"model.type: '{path}' must return an nn.Module, but returned {_kind(network)}.")
        task = cls.around(config, facts, network, f"model.type: '{path}'").to(device, dtype)
        task.fresh = frozenset(f"network.{name}" for name in getattr(network, "fresh", ()))
        task.probe(config)
        return task

    @torch.no_grad()
    def probe(self, config: Config) -> None:
        """One small batch, so that a mistake in it is found before anything else is done."""
        device = next((parameter.device for parameter in self.parameters()), torch.device("cpu"))
        length = min(PROBE_LENGTH, config.data.max_seq_length)
        tokens = torch.zeros(2, length, dtype=torch.long, device=device)
        inputs = {"input_ids": tokens}
        if isinstance(self, Seq2SeqTask | SpanTask):
            inputs["decoder_input_ids"] = tokens[:, : max(1, length // 2)]
        with evaluating(self), torch.random.fork_rng(devices=[]):
            try:
                self.logits(**inputs)
            except UserError:
                raise
            except Exception as error:
                names = ", ".join(["input_ids", "attention_mask", *list(inputs)[1:]])
                raise own_failure(f"{self.origin} failed on a small batch ({names})", error) from error


def _kind(found: Any) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
