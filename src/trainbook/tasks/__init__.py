"""Kinds of work: what is predicted, by which head, with which loss and metrics."""

from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.tasks.causal import CausalCollate, CausalLanguageModel, ChatModel
from trainbook.tasks.generation import Sampling, generate_tokens
from trainbook.tasks.labels import TextClassifier, TextMultiClassifier, TextRegressor, WordTagger
from trainbook.tasks.layout import StepBatch, to_device
from trainbook.tasks.losses import IGNORED, cross_entropy_parts
from trainbook.tasks.masked import MaskedLanguageModel, SpanModel
from trainbook.tasks.seq2seq import Seq2SeqModel
from trainbook.tasks.task import Collate, Facts, Task

NATIVE: dict[str, type[Task]] = {
    "causal": CausalLanguageModel,
    "chat": ChatModel,
    "masked": MaskedLanguageModel,
    "span": SpanModel,
    "seq2seq": Seq2SeqModel,
    "classify": TextClassifier,
    "classify_many": TextMultiClassifier,
    "regress": TextRegressor,
    "tag": WordTagger,
}


def task_class(config: Config) -> type[Task]:
    """The task that a configuration asks for: of ours, around a Hugging Face model, or the user's own."""
    name, kind = task_name(config), config.model.type
    if ":" in name:
        from trainbook.tasks.wrapped import own_task

        return own_task(name)
    if kind == "hf":
        from trainbook.tasks.huggingface import huggingface_task

        return huggingface_task(name)
    if ":" in kind:
        from trainbook.tasks.wrapped import around_own_model

        return around_own_model(kind, name)
    return NATIVE[name]


__all__ = [
    "IGNORED",
    "CausalCollate",
    "CausalLanguageModel",
    "Collate",
    "Facts",
    "MaskedLanguageModel",
    "Sampling",
    "Seq2SeqModel",
    "StepBatch",
    "Task",
    "cross_entropy_parts",
    "generate_tokens",
    "task_class",
    "to_device",
]
