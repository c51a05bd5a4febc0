"""Prompts as a model reads them, and the text of what it generates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trainbook.data import Tokenizer
from trainbook.data.samples.frame import Frame
from trainbook.data.sources.chat import chat_with, encode_with_specials, special_tokens
from trainbook.data.tokenizers.around import template
from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.tasks import Sampling, Task, generate_tokens
from trainbook.tasks.causal import CausalTask, ChatTask
from trainbook.tasks.masked import SpanTask
from trainbook.tasks.seq2seq import Seq2SeqTask

Messages = Sequence[Mapping[str, Any]]  # each with a role and a content
CONTEXT = 16  # tokens of the prompt that a continuation is decoded behind


def can_generate(task: Task) -> bool:
    return isinstance(task, CausalTask | Seq2SeqTask)


def generate_pieces(
    task: Task,
    tokenizer: Tokenizer,
    config: Config,
    prompt: str | Messages,
    max_new_tokens: int,
    sampling: Sampling,
) -> Iterator[str]:
    """The text that follows a prompt, or the answer to it or to the last of several messages, piece by piece."""
    ids = prompt_tokens(task, tokenizer, config, prompt)
    before = [] if isinstance(task, ChatTask | Seq2SeqTask) else ids[-CONTEXT:]  # an answer is a text of its own
    written: list[int] = []
    shown = ""
    for token in generate_tokens(task, ids, max_new_tokens, sampling, task.facts.ends):
        written.append(token)
        text = continuation(tokenizer, before, written)
        if not text.endswith("\ufffd"):  # a character whose bytes are not all there yet waits for the rest
            yield text[len(shown) :]
            shown = text
    if written and len(text := continuation(tokenizer, before, written)) > len(shown):
        yield text[len(shown) :]


def conversation(message: str, system: str | None = None) -> Messages:
    """What a user asks, behind what the model is told to be."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": message}]


def prompt_text(template: str, tokenizer: Tokenizer, messages: Messages) -> str:
    """As the training wrote it: a conversation, up to where the next answer begins."""
    text = chat_with(template, tokenizer, "the run's chat template").text(messages, True)
    for each in messages:
        if each["role"] == "system" and each["content"].strip() not in text:
            raise UserError("The run's chat template leaves out a system message, so the model would not read it.")
    return text


def prompt_tokens(task: Task, tokenizer: Tokenizer, config: Config, prompt: str | Messages) -> list[int]:
    if isinstance(task, ChatTask) and task.facts.chat_template is not None and prompt:
        messages = conversation(prompt) if isinstance(prompt, str) else prompt
        text = prompt_text(task.facts.chat_template, tokenizer, messages)
        return encode_with_specials([text], tokenizer, special_tokens(tokenizer))[0][0].tolist()
    assert isinstance(prompt, str), "only a chat model reads messages"
    tokens = tokenizer.encode(prompt)
    if isinstance(task, Seq2SeqTask):  # an input begins and ends as those of the training did
        frame = Seq2SeqTask.frame(config, tokenizer) if isinstance(task, SpanTask) else task.frame(config, tokenizer)
        return framed_tokens(tokens, frame, config.data.truncation_side).tolist()
    begin = list(template(tokenizer)[0])
    if begin or len(tokens):
        return begin + tokens.tolist()
    # Begin as a document begins: behind the end of another.
    return [tokenizer.end_of_text] if tokenizer.end_of_text is not None else tokenizer.encode("\n").tolist()


def continuation(tokenizer: Tokenizer, before: list[int], written: list[int]) -> str:
    """The text of tokens behind others. Alone they may be another text: the tokenizers of Llama 2 and T5 leave out a
    blank at the beginning, those of words have blanks only between two."""
    text, whole = tokenizer.decode_plain(before), tokenizer.decode_plain([*before, *written])
    return whole[len(text) :] if whole.startswith(text) else tokenizer.decode_plain(written)


def framed_tokens(tokens: np.ndarray, frame: Frame, side: str, fill: int | None = None) -> np.ndarray:
    """Cut to what fits, between prefix and suffix; or, for numbers beside the tokens, between as many of `fill`."""
    room = frame.room
    kept = tokens[len(tokens) - room :] if side == "left" and len(tokens) > room else tokens[:room]
    around = [
        np.array(part if fill is None else [fill] * len(part), dtype=np.int64) for part in (frame.prefix, frame.suffix)
    ]
    return np.concatenate([around[0], kept, around[1]])
