"""What the data is cut into, and what only some tasks read of it."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.knobs.derive import has_windows, task_name
from trainbook.knobs.laws.model import TASKS
from trainbook.knobs.laws.registry import Broken, Settings, law


@law(
    "data.padding", "data.samples", "model.type", "training.task", "data.label_field", "data.target_field", yields=True
)
def only_built_in_models_pack(s: Settings) -> Iterator[Broken]:
    """data.padding packed is for the built-in models: others cannot be told where a document ends."""
    kind = s.get("model.type")
    if s.get("data.padding") == "packed" and not has_windows(s.config) and kind not in ("gpt", "bert", "t5"):
        message = f"packed puts several documents into a row, and model.type {kind} has no way to keep them apart."
        yield ("data.padding", "model.type"), message, "Take bucketed, which also wastes little."


TASK_FOLLOWS_FROM = ("model.type", "data.label_field", "data.target_field")


def _no_effect_in_task(path: str, *tasks: str) -> None:
    def check(s: Settings) -> Iterator[Broken]:
        task = task_name(s.config)
        if s.is_set(path) and task in TASKS and task not in tasks:
            chosen_by = [other for other in TASK_FOLLOWS_FROM if other != path and s.is_overridden(other)]
            yield (
                (path, "training.task", *chosen_by),
                f"has no effect unless the task is {' or '.join(tasks)}, but it is {task}.",
                "",
            )

    check.__doc__ = f"{path} has an effect only if the task is {' or '.join(tasks)}."
    law(path, "training.task", *TASK_FOLLOWS_FROM, yields=True)(check)


_no_effect_in_task("training.mask_ratio", "masked", "span")
_no_effect_in_task("training.whole_word_masking", "masked")
_no_effect_in_task("training.span_length", "span")
_no_effect_in_task("evaluation.baseline", "classify")
_no_effect_in_task("data.label_field", "classify", "classify_many", "regress", "tag")
_no_effect_in_task("data.target_field", "seq2seq", "chat")
_no_effect_in_task("data.chat_template", "chat")
_no_effect_in_task("data.mask_prompt", "chat")
_no_effect_in_task("data.max_target_length", "span", "seq2seq")
OF_TOKENS = ("causal", "chat", "masked", "span", "seq2seq")  # tasks whose targets are tokens
_no_effect_in_task("training.label_smoothing", *OF_TOKENS, "classify", "tag")
_no_effect_in_task("training.z_loss", *OF_TOKENS, "classify", "tag")
_no_effect_in_task("model.logit_soft_cap", *OF_TOKENS)
_no_effect_in_task("model.tie_embeddings", *OF_TOKENS)


@law(
    "data.padding", "data.samples", "training.task", "model.type", "data.label_field", "data.target_field", yields=True
)
def spans_are_not_packed(s: Settings) -> Iterator[Broken]:
    """data.padding packed is not for training.task span: what is left of a text after cutting is not known before."""
    if s.get("data.padding") == "packed" and task_name(s.config) == "span" and not has_windows(s.config):
        message = "packed is not for the task span: how long a text is after spans were cut out is not known before."
        yield ("data.padding", "training.task"), message, "Take bucketed, or data.samples=windows."


@law("data.vocab_size", "data.tokenizer", yields=True)
def only_a_learned_vocabulary_has_a_size(s: Settings) -> Iterator[Broken]:
    """data.vocab_size is for a tokenizer that is learned from the data; the others bring theirs."""
    tokenizer = s.get("data.tokenizer")
    brings_its_own = tokenizer in ("byte", "char", "word") or tokenizer.endswith(".json") or "/" in tokenizer
    if s.is_set("data.vocab_size") and brings_its_own:
        message = f"has no effect: data.tokenizer {s.show('data.tokenizer')} brings its own vocabulary."
        yield ("data.vocab_size", "data.tokenizer"), message, "Leave it out, or choose tokenizer bpe."
