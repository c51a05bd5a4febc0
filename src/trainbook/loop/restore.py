"""A task with its weights: newly built, from pretrained ones, or from a run's checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from trainbook.checkpoints import CheckpointStore
from trainbook.data import Tokenizer, load_tokenizer
from trainbook.errors import DataError, RunFolderError, UserError
from trainbook.knobs import load
from trainbook.knobs.config import Config
from trainbook.knobs.earlier import is_run
from trainbook.models.formats import load_pretrained
from trainbook.precision import Precision
from trainbook.runs import RunFolder, write_text_atomically
from trainbook.tasks import Facts, Task, task_class
from trainbook.tasks.adapters import apply_adapters, first_device, load_saved_state, merged
from trainbook.tasks.tokens import TokenTask

FACTS_FILE = "facts.json"  # beside the tokenizer: what the task needs to know of its data


@dataclass(frozen=True)
class Restored:
    task: Task
    tokenizer: Tokenizer
    config: Config
    facts: Facts
    precision: Precision


def build_task(
    config: Config, facts: Facts, precision: Precision, say: Callable[[str], None] = lambda line: None
) -> Task:
    """The task as training begins: with pretrained weights where they are asked for, and adapters around them."""
    task = task_class(config).build(config, facts, first_device(config, precision.device), precision.weight_dtype)
    pretrained = config.model.pretrained
    if pretrained is not None and config.model.type in ("gpt", "bert", "t5"):
        if is_run(pretrained):
            task.fresh = tuple(load_run(task, pretrained))
            lines = [f"a new head, which starts from scratch: {', '.join(task.fresh)}"] if task.fresh else []
        else:
            imported = load_pretrained(task, pretrained, config)
            task.fresh, lines = tuple(imported.new), imported.lines()
        for line in lines:
            say(line)
    apply_adapters(task, config, precision.device, precision.compute_dtype)
    return task


@torch.no_grad()
def load_run(task: Task, path: str) -> list[str]:
    """The body of an earlier run's model, and its head if it is for the same work. Says what starts anew."""
    run = RunFolder.open(Path(path).expanduser(), "runs")
    restored = load_task(run, "best", torch.device("cpu"))
    earlier, facts, theirs = merged(restored.task), task.facts, restored.facts
    if facts.vocab_size > theirs.vocab_size:
        raise DataError(
            f"a tokenizer that doesn't fit the model: it has {facts.vocab_size} tokens, but {run.path} was trained "
            f"with {theirs.vocab_size} only. Take the model's own tokenizer: leave data.tokenizer out."
        )
    given, new = dict(earlier.state_dict()), []
    same_work = type(earlier) is type(task) and theirs.label_names == facts.label_names
    if isinstance(task, TokenTask):  # whichever tokens they predict, their heads mean the same
        same_work = isinstance(earlier, TokenTask)
    for name, value in task.state_dict().items():
        there = given.get(name)
        if not name.startswith("body.") and not same_work:
            new.append(name)
        elif there is None or there.shape[1:] != value.shape[1:] or len(there) < len(value):
            raise UserError(f"model.pretrained: {run.path} has no weights for {name}.")
        else:  # fewer positions may be asked for than there are
            value.copy_(there[: len(value)])
    return new


def write_facts(folder: Path, facts: Facts, tokenizer: Tokenizer) -> None:
    tokenizer.save(folder / "tokenizer")
    write_text_atomically(folder / "tokenizer" / FACTS_FILE, json.dumps(asdict(facts), indent=1))


def load_task(run: RunFolder, checkpoint: str, device: torch.device) -> Restored:
    """The task of a run with the weights of a checkpoint: best, latest, or a step."""
    if run.read_manifest().recipe == "fit":
        raise RunFolderError(
            f"{run.path} was made by trainbook.fit from a module of your own, which cannot be built here."
        )
    if not run.tokenizer.exists():
        raise RunFolderError(f"{run.path} has lost its tokenizer: resume the run, and it is written again.")
    config = stated = load(run.config).config
    tokenizer = load_tokenizer(run.tokenizer)
    facts = _read_facts(run.tokenizer / FACTS_FILE, tokenizer)
    has_frozen_weights = config.model.lora_rank is not None
    if not has_frozen_weights and config.model.type in ("gpt", "bert", "t5"):
        # The checkpoint has every weight: what it once started from may be gone.
        config = config.model_copy(update={"model": config.model.model_copy(update={"pretrained": None})})
    precision = Precision(config.precision, device, has_frozen_weights=has_frozen_weights)
    task = build_task(config, facts, precision)
    load_saved_state(task, weights_of(run, checkpoint))
    task.eval()
    return Restored(task, tokenizer, stated, facts, precision)


def _read_facts(path: Path, tokenizer: Tokenizer) -> Facts:
    if not path.is_file():  # of an older run, which could only be a causal one
        return Facts(tokenizer.vocab_size, end=tokenizer.end_of_text)
    facts = json.loads(path.read_text(encoding="utf-8"))
    return Facts(**{**facts, "label_names": tuple(facts["label_names"])})


def weights_of(run: RunFolder, checkpoint: str) -> dict[str, torch.Tensor]:
    store = CheckpointStore(run.checkpoints, read_only=True)
    which = int(checkpoint) if checkpoint.isdecimal() else checkpoint
    if which not in ("best", "latest") and not isinstance(which, int):
        raise UserError(f"checkpoint: must be best, latest or a step, but got {checkpoint!r}.")
    found = store.load(which, parts=("model",))  # pyright: ignore[reportArgumentType]
    if found is None and which == "best":
        found = store.load("latest", parts=("model",))
    if found is None:
        raise RunFolderError(f"{run.path} has no complete checkpoint yet.")
    return found.state["model"]
