"""Generates text with a run's model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from trainbook.errors import UserError
from trainbook.knobs.derive import task_name
from trainbook.loop.device import choose_device, prepared_device
from trainbook.loop.load_task import LoadedTask, load_task
from trainbook.loop.prompts import Messages, can_generate, conversation, generate_pieces
from trainbook.runs import RunFolder
from trainbook.tasks import Sampling


def generate_text(
    run: RunFolder,
    prompt: str = "",
    *,
    system: str | None = None,
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    checkpoint: str = "best",
    device: str = "auto",
) -> Iterator[str]:
    """Yield the text piece by piece, as it is generated. `system` is what a chat model is told before the prompt,
    `checkpoint` is best, latest, or a step."""
    sampling = Sampling(temperature, top_k, top_p, seed)
    if max_new_tokens < 1:
        raise UserError(f"max-new-tokens: must be >= 1, but got {max_new_tokens}.")
    where = choose_device(device)
    restored = load_task(run, checkpoint, where)
    task, tokenizer, config = restored.task, restored.tokenizer, restored.config
    if not can_generate(task):
        raise UserError(
            f"{run.path} has the task {task_name(config)}, which does not generate text. Use trainbook predict."
        )
    asked = prompt if system is None else _conversation(restored, run, prompt, system)
    with prepared_device(config, where, config.model.hidden_size), _computing(restored):
        yield from generate_pieces(task, tokenizer, config, asked, max_new_tokens, sampling)


def _conversation(restored: LoadedTask, run: RunFolder, prompt: str, system: str) -> Messages:
    if task_name(restored.config) != "chat" or restored.task.facts.chat_template is None:
        raise UserError(
            f"system: {run.path} has the task {task_name(restored.config)}: only a chat model reads a system message."
        )
    if not prompt:
        raise UserError("system: needs a message that the model answers, beside it.")
    return conversation(prompt, system)


def answers(run: RunFolder) -> bool:
    """Whether the model answers a prompt, rather than continuing it."""
    return task_name(run.recorded()) in ("chat", "seq2seq")


def _computing(restored: LoadedTask) -> AbstractContextManager[object]:
    """Adapters are fp32 next to 16-bit weights: without autocast, the two cannot be multiplied."""
    return restored.precision.autocast() if restored.config.model.lora_rank is not None else nullcontext()
