"""Generates text with a run's model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from trainbook.data import Tokenizer
from trainbook.data.sources.chat import chat_with, encode_with_specials, special_tokens
from trainbook.data.tokenizers.around import template
from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.loop.device import choose_device, prepared_device
from trainbook.loop.load_task import LoadedTask, load_task
from trainbook.loop.predictors import framed_tokens
from trainbook.runs import RunFolder
from trainbook.tasks import Sampling, Task, generate_tokens
from trainbook.tasks.causal import CausalTask, ChatTask
from trainbook.tasks.masked import SpanTask
from trainbook.tasks.seq2seq import Seq2SeqTask

CONTEXT = 16  # tokens of the prompt that a continuation is decoded behind


def generate_text(
    run: RunFolder,
    prompt: str = "",
    *,
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    checkpoint: str = "best",
    device: str = "auto",
) -> Iterator[str]:
    """Yield the text piece by piece, as it is generated. `checkpoint` is best, latest, or a step."""
    sampling = Sampling(temperature, top_k, top_p, seed)
    if max_new_tokens < 1:
        raise UserError(f"max-new-tokens: must be >= 1, but got {max_new_tokens}.")
    where = choose_device(device)
    restored = load_task(run, checkpoint, where)
    task, tokenizer, config = restored.task, restored.tokenizer, restored.config
    if not isinstance(task, CausalTask | Seq2SeqTask):
        raise UserError(
            f"{run.path} has the task {task_name(config)}, which does not generate text. Use trainbook predict."
        )
    ids = _prompt(task, tokenizer, config, prompt)
    before = [] if isinstance(task, ChatTask | Seq2SeqTask) else ids[-CONTEXT:]  # an answer is a text of its own
    written: list[int] = []
    shown = ""
    with prepared_device(config, where, config.model.hidden_size), _computing(restored):
        for token in generate_tokens(task, ids, max_new_tokens, sampling, task.facts.ends):
            written.append(token)
            text = continuation(tokenizer, before, written)
            if not text.endswith("\ufffd"):  # a character whose bytes are not all there yet waits for the rest
                yield text[len(shown) :]
                shown = text
    if written and len(text := continuation(tokenizer, before, written)) > len(shown):
        yield text[len(shown) :]


def continuation(tokenizer: Tokenizer, before: list[int], written: list[int]) -> str:
    """The text of tokens behind others. Alone they may be another text: the tokenizers of Llama 2 and T5 leave out a
    blank at the beginning, those of words have blanks only between two."""
    text, whole = tokenizer.decode_plain(before), tokenizer.decode_plain([*before, *written])
    return whole[len(text) :] if whole.startswith(text) else tokenizer.decode_plain(written)


def answers(run: RunFolder) -> bool:
    """Whether the model answers a prompt, rather than continuing it."""
    return task_name(run.recorded()) in ("chat", "seq2seq")


def _computing(restored: LoadedTask) -> AbstractContextManager[object]:
    """Adapters are fp32 next to 16-bit weights: without autocast, the two cannot be multiplied."""
    return restored.precision.autocast() if restored.config.model.lora_rank is not None else nullcontext()


def _prompt(task: Task, tokenizer: Tokenizer, config: Config, prompt: str) -> list[int]:
    if isinstance(task, ChatTask) and task.facts.chat_template is not None and prompt:
        # As the training wrote it: a question, up to where the answer begins.
        text = chat_with(task.facts.chat_template, tokenizer).text([{"role": "user", "content": prompt}], True)
        return encode_with_specials([text], tokenizer, special_tokens(tokenizer))[0][0].tolist()
    tokens = tokenizer.encode(prompt)
    if isinstance(task, Seq2SeqTask):  # an input begins and ends as those of the training did
        frame = Seq2SeqTask.frame(config, tokenizer) if isinstance(task, SpanTask) else task.frame(config, tokenizer)
        return framed_tokens(tokens, frame, config.data.truncation_side).tolist()
    begin = list(template(tokenizer)[0])
    if begin or len(tokens):
        return begin + tokens.tolist()
    # Begin as a document begins: behind the end of another.
    return [tokenizer.end_of_text] if tokenizer.end_of_text is not None else tokenizer.encode("\n").tolist()
