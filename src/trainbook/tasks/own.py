"""A model or a task of the user's own, named by its Python path.

A model: `model.type: package.module:Name`, something to call with (config, facts) that gives an nn.Module. Its forward
takes `input_ids` (B, L), `attention_mask` (B, L; 1 where a token is; left out where nothing hides), and, for tasks with
a target text, `decoder_input_ids`. It gives logits (B, L, C), or an object that has them as `.logits`; C is
`facts.vocab_size`, or the number of `facts.label_names` (1 for a number). For labels of whole texts it may give (B, C);
otherwise those of the first position count. What is learned with it is training.task. Should it load pretrained
weights, then with model.lora_rank they are frozen, but for the parameters that its attribute `fresh` names.

A task: `training.task: package.module:Name`, a subclass of trainbook.tasks.task.Task.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Self

import torch
from torch import nn

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.python_path import load_object, own_failure
from trainbook.tasks.seq2seq import Seq2SeqTask
from trainbook.tasks.span import SpanTask
from trainbook.tasks.task import Facts, Task
from trainbook.tasks.wrapped import OBJECTIVES, Wrapped

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
        was_training = self.training
        self.eval()
        with torch.random.fork_rng(devices=[]):
            try:
                self.logits(**inputs)
            except UserError:
                raise
            except Exception as error:
                names = ", ".join(["input_ids", "attention_mask", *list(inputs)[1:]])
                raise own_failure(f"{self.origin} failed on a small batch ({names})", error) from error
        self.train(was_training)


def _kind(found: Any) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
