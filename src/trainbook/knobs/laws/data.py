"""What the data is cut into, and what only some tasks read of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from trainbook.knobs.derive import has_windows, task_name
from trainbook.knobs.laws.model import TASKS
from trainbook.knobs.laws.registry import Broken, Settings, law
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.nearest import nearest


@law(
    "data.padding", "data.samples", "model.type", "training.task", "data.label_field", "data.target_field", yields=True
)
def only_built_in_models_pack(s: Settings) -> Iterator[Broken]:
    """data.padding packed needs a built-in model: others cannot keep the documents of a row apart."""
    kind = s.get("model.type")
    if s.get("data.padding") == "packed" and not has_windows(s.config) and kind not in BUILT_IN:
        message = f"packed puts several documents into a row, but model.type {kind} cannot keep them apart."
        yield ("data.padding", "model.type"), message, "Use bucketed, which also has little padding."


TASK_FOLLOWS_FROM = ("model.type", "data.label_field", "data.target_field")


def _any_of(tasks: tuple[str, ...]) -> str:
    return f"{', '.join(tasks[:-1])} or {tasks[-1]}" if tasks[1:] else tasks[0]


def _no_effect_in_task(path: str, *tasks: str) -> None:
    def check(s: Settings) -> Iterator[Broken]:
        task = task_name(s.config)
        if s.is_set(path) and task in TASKS and task not in tasks:
            chosen_by = [other for other in TASK_FOLLOWS_FROM if other != path and s.is_overridden(other)]
            yield (
                (path, "training.task", *chosen_by),
                f"has no effect unless the task is {_any_of(tasks)}, but it is {task}.",
                "",
            )

    check.__doc__ = f"{path} has an effect only if the task is {_any_of(tasks)}."
    law(path, "training.task", *TASK_FOLLOWS_FROM, yields=True)(check)


_no_effect_in_task("training.mask_ratio", "masked", "span")
_no_effect_in_task("training.whole_word_masking", "masked")
_no_effect_in_task("training.span_length", "span")
_no_effect_in_task("evaluation.baseline", "classify", "regress")
_no_effect_in_task("evaluation.prompts", "causal", "chat", "span", "seq2seq")
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
    """data.padding packed does not work with training.task span: lengths after span corruption vary."""
    if s.get("data.padding") == "packed" and task_name(s.config) == "span" and not has_windows(s.config):
        message = (
            "packed does not work with the task span: the length of a text after span corruption is not known in "
            "advance."
        )
        yield ("data.padding", "training.task"), message, "Use bucketed, or data.samples=windows."


TOKENIZERS = ("byte", "char", "word", "bpe")
# Kinds of tokenizers that go by these names elsewhere, and what comes nearest to them here.
RELATED_TOKENIZERS = {
    "bytes": "byte",
    "characters": "char",
    "words": "word",
    "whitespace": "word",
    "symbols": "word",
    "sentencepiece": "bpe",
    "wordpiece": "bpe",
    "unigram": "bpe",
    "tiktoken": "bpe",
}


FILES = (".json", ".txt", ".model")  # what tokenizers are saved in


@law("data.tokenizer")
def a_tokenizer_is_known(s: Settings) -> Iterator[Broken]:
    """data.tokenizer is byte, char, word, bpe, or the path of a tokenizer.json or of a folder that has one."""
    name = s.get("data.tokenizer")
    # Whether a file is there is asked when it is read: a plan or an explanation may be made on another machine.
    if name not in TOKENIZERS and not is_path(name) and not os.path.exists(os.path.expanduser(name)):
        pretrained = s.get("model.pretrained") if s.is_written("model.pretrained") else None
        yield ("data.tokenizer",), *unknown_tokenizer(name, pretrained)


def is_path(name: str) -> bool:
    return "/" in name or os.sep in name or name.endswith(FILES)


def unknown_tokenizer(name: str, pretrained: str | None = None) -> tuple[str, str]:
    """What is wrong with a name that is neither a kind of tokenizer nor a path, and what to do."""
    message = (
        f"must be {', '.join(TOKENIZERS)}, the path of a tokenizer.json, or that of a folder with a tokenizer, but "
        f"got '{name}'."
    )
    near = nearest(name, (*TOKENIZERS, *RELATED_TOKENIZERS), cutoff=0.65)
    if near:
        return message, f"Did you mean {RELATED_TOKENIZERS.get(near, near)}?"
    if pretrained is not None:
        return message, f"Omit it: model.pretrained={pretrained} brings its own tokenizer."
    return message, "A tokenizer from the Hugging Face hub comes with its model: set model.pretrained."


@law("data.vocab_size", "data.tokenizer", yields=True)
def only_a_learned_vocabulary_has_a_size(s: Settings) -> Iterator[Broken]:
    """data.vocab_size applies to a tokenizer that is trained on the data; others have their own."""
    tokenizer = s.get("data.tokenizer")
    brings_its_own = tokenizer in ("byte", "char", "word") or tokenizer.endswith(".json") or "/" in tokenizer
    if s.is_set("data.vocab_size") and brings_its_own:
        message = f"has no effect: data.tokenizer {s.show('data.tokenizer')} brings its own vocabulary."
        yield ("data.vocab_size", "data.tokenizer"), message, "Omit it, or set data.tokenizer=bpe."
