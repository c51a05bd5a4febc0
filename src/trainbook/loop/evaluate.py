"""Evaluation: total loss over total targets, once, whatever the batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from trainbook.data import DataBundle, Tokenizer
from trainbook.data.batches.filling import Batch
from trainbook.data.batches.plan import eval_batches, num_eval_batches
from trainbook.knobs.config import Config
from trainbook.knobs.derive import max_target_length
from trainbook.loop.evaluation_record import MOST_TEXTS, EvaluationRecord
from trainbook.loop.prompts import generate_pieces
from trainbook.loop.state import TrainState
from trainbook.parallel import Ranks
from trainbook.tasks import Collate, Sampling, StepBatch, Task, to_device
from trainbook.tasks.metrics import text_metrics, text_sums
from trainbook.tasks.task import evaluating
from trainbook.tasks.tokens import TokenTask

NEW_TOKENS = 100  # of a continued prompt, unless the configuration says
TEMPERATURE = 0.8  # as `trainbook generate` has it


@torch.no_grad()
def evaluate(
    state: TrainState, task: Task, batches: Iterable[StepBatch], record: EvaluationRecord | None = None
) -> dict[str, float]:
    """Metrics over all batches, weighted by targets."""
    sums: dict[str, Tensor] = {}
    num_targets = 0
    with evaluating(task):
        for batch in batches:
            num_targets += batch.num_targets
            num_counted = len(batch.micro_batches) - batch.num_idle
            for number, micro_batch in enumerate(batch.micro_batches, start=1):
                with state.precision.autocast():
                    found = task.evaluation_sums(**to_device(micro_batch, state.device))
                for name, total in found.items() if number <= num_counted else ():
                    sums[name] = sums[name] + total if name in sums else total
    ranks = state.strategy.ranks
    if ranks.are_several:
        num_targets, sums = _added_up(ranks, num_targets, sums)
    sums = {name: total.cpu() for name, total in sums.items()}
    if record is not None and "confusion" in sums:
        record.confusion = sums["confusion"].tolist()
    metrics = task.metrics(sums, max(1, num_targets))
    return {**metrics, "targets": num_targets}


def shown(batches: Iterable[Batch], total: int, doing: str, show: Callable[[str], None]) -> Iterator[Batch]:
    """The batches; the terminal shows how many are done."""
    for number, batch in enumerate(batches, start=1):
        show(f"{doing} {number}/{total}")
        yield batch


def in_step(batches: Iterable[Batch], collate: Collate, stand_in: Callable[[], Batch]) -> Iterator[StepBatch]:
    """A rank's batches. If the last one has too few rows for all ranks, the others compute a row that does not count:
    with sharded weights, all ranks must take part."""
    last: Batch | None = None
    for batch in batches:
        is_idle = not batch.num_rows
        last = (last or stand_in()) if is_idle else batch
        made = collate(last)
        if is_idle:
            made.num_targets, made.num_idle = 0, len(made.micro_batches)
        yield made


def _added_up(ranks: Ranks, num_targets: int, sums: dict[str, Tensor]) -> tuple[int, dict[str, Tensor]]:
    """Sums over all ranks. A rank without a sample has no sums."""
    of_all = ranks.gather((num_targets, {name: total.cpu() for name, total in sums.items()}))
    together: dict[str, Tensor] = {}
    for _, found in of_all:
        for name, total in found.items():
            together[name] = together[name] + total if name in together else total
    return sum(count for count, _ in of_all), together


@torch.no_grad()
def evaluate_writing(
    state: TrainState,
    task: TokenTask,
    data: DataBundle,
    config: Config,
    batch_size: int,
    show: Callable[[str], None] = lambda text: None,
    record: EvaluationRecord | None = None,
) -> dict[str, float]:
    """Generate answers and compare them with the targets. Samples with the same input are one question with several
    references; the nearest one counts."""
    validation, tokenizer, knobs = data.validation, data.tokenizer, config.evaluation
    assert validation is not None
    collate = task.collate(config, data, batch_size)
    references: dict[bytes, list[str]] = {}
    outputs: dict[bytes, str] = {}
    ranks = state.strategy.ranks
    batches = eval_batches(
        validation,
        batch_size * ranks.world,
        knobs.eval_max_samples,
        ranks.rank,
        ranks.world,
        padding=config.data.padding,
    )
    total = num_eval_batches(validation, batch_size * ranks.world, knobs.eval_max_samples)
    with evaluating(task):
        for batch in shown(batches, total, "generating", show):
            if not batch.num_rows:
                continue
            assert batch.targets is not None
            asked = [tokens.tobytes() for tokens in batch.tokens.split()]
            for question, target in zip(asked, batch.targets.split(), strict=True):
                references.setdefault(question, []).append(tokenizer.decode_plain(target))
            new = [row for row, each in enumerate(asked) if each not in outputs and asked.index(each) == row]
            if not new:
                continue
            (entries,) = collate(batch).micro_batches
            inputs = {name: entries[name][new] for name in ("input_ids", "document_ids") if name in entries}
            with state.precision.autocast():
                answers = task.write(
                    to_device(inputs, state.device),
                    max_new_tokens=knobs.max_new_tokens or max_target_length(config),
                    num_beams=knobs.num_beams,
                )
            for row, answer in zip(new, answers, strict=True):
                outputs[asked[row]] = tokenizer.decode_plain(answer)
    right: dict[bytes, list[str]] = {}
    written: dict[bytes, str] = {}
    for of_one, by_one in ranks.gather((references, outputs)):
        written |= by_one  # to the same question each gives the same answer
        for question, answers in of_one.items():
            right.setdefault(question, []).extend(answers)
    if record is not None:
        for question in list(written)[:MOST_TEXTS]:
            asked_for = tokenizer.decode_plain(np.frombuffer(question, dtype=np.int64))
            record.add_text(asked_for, written[question], reference=right[question][0])
    sums = text_sums(list(written.values()), [right[question] for question in written])
    return text_metrics(sums, knobs.target_unit)


@torch.no_grad()
def continue_prompts(
    state: TrainState,
    task: Task,
    tokenizer: Tokenizer,
    config: Config,
    record: EvaluationRecord,
    show: Callable[[str], None] = lambda text: None,
) -> None:
    """Every rank generates the same texts: with sharded weights, all must take part."""
    prompts = config.evaluation.prompts or ()
    longest = config.evaluation.max_new_tokens or NEW_TOKENS
    with evaluating(task), state.precision.autocast():
        for number, prompt in enumerate(prompts, start=1):
            show(f"generating {number}/{len(prompts)}")
            sampling = Sampling(TEMPERATURE, seed=number)
            record.add_text(prompt, "".join(generate_pieces(task, tokenizer, config, prompt, longest, sampling)))
