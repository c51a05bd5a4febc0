"""A task with its weights: initialized, pretrained, or from a run's checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from trainbook.bounded import json_text
from trainbook.checkpoints import CheckpointStore
from trainbook.data import Tokenizer, load_tokenizer
from trainbook.errors import CheckpointError, DataError, RunFolderError, UserError
from trainbook.knobs.config import Config
from trainbook.knobs.hub import CONFIG, is_folder
from trainbook.knobs.own_models import is_run
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.loop.saved_files import base_file, base_step_of, newest_kept
from trainbook.models.formats import load_pretrained
from trainbook.models.formats.base_settings import BaseSettings
from trainbook.precision import Precision
from trainbook.runs import RunFolder, write_text_atomically
from trainbook.runs.trust import OF_THE_MODEL, require_trust
from trainbook.tasks import Facts, Task, task_class
from trainbook.tasks.adapters import apply_adapters, first_device, load_saved_state, merged
from trainbook.tasks.labels import TextRegressor
from trainbook.tasks.tokens import TokenTask

FACTS_FILE = "facts.json"  # beside the tokenizer: what the task needs to know of its data
BASE_PREFIX = "base_"  # in the network's folder: the settings of the pretrained model that the run began with


@dataclass(frozen=True)
class LoadedTask:
    task: Task
    tokenizer: Tokenizer
    config: Config
    facts: Facts
    precision: Precision
    step: int  # of the checkpoint


def build_task(
    config: Config,
    facts: Facts,
    precision: Precision,
    say: Callable[[str], None] = lambda line: None,
    run: RunFolder | None = None,
) -> Task:
    """The task as training starts: with pretrained weights and adapters, if configured.

    If the run has a checkpoint, it holds all trained weights, and only frozen ones are read from the original again.
    """
    if run is not None and has_checkpoint(run):
        if config.model.lora_rank is None:
            return _without_weights(config, facts, precision, run)
        _base_must_be_there(config, run)
    task = task_class(config).build(config, facts, first_device(config, precision.device), precision.weight_dtype)
    pretrained = config.model.pretrained
    if pretrained is not None and config.model.type in BUILT_IN:
        if is_run(pretrained):
            task.base_step = _recorded_base(run)
            task.fresh = tuple(load_run(task, pretrained))
            lines = [f"new head, randomly initialized: {', '.join(task.fresh)}"] if task.fresh else []
        else:
            imported = load_pretrained(task, pretrained, config)
            task.base_settings = BaseSettings.read(imported.folder)
            task.fresh, lines = tuple(imported.new), imported.lines()
            if isinstance(task, TextRegressor) and "head.weight" not in task.fresh:
                task.keep_target_scale()
        for line in lines:
            say(line)
    apply_adapters(task, config, precision.device, precision.compute_dtype)
    return task


def has_checkpoint(run: RunFolder) -> bool:
    return bool(CheckpointStore(run.checkpoints, read_only=True).steps())


def _without_weights(config: Config, facts: Facts, precision: Precision, run: RunFolder) -> Task:
    """Build from the run's own folder: the pretrained model that it started from may be gone."""
    kind = task_class(config)
    if config.model.type in BUILT_IN:
        config = config.model_copy(update={"model": config.model.model_copy(update={"pretrained": None})})
    elif config.model.type == "hf" and (run.network / CONFIG).is_file():
        from trainbook.tasks.huggingface import HuggingFace

        if issubclass(kind, HuggingFace):
            return kind.rebuild(config, facts, precision.device, precision.weight_dtype, run.network)
    return kind.build(config, facts, precision.device, precision.weight_dtype)


def _base_must_be_there(config: Config, run: RunFolder) -> None:
    base = config.model.pretrained
    if base is not None and ":" not in config.model.type and Path(base).is_absolute() and not is_folder(base):
        raise RunFolderError(
            f"{run.path} holds adapters only, and their base model is missing: there is no folder {base}. "
            "Restore it there."
        )


def _recorded_base(run: RunFolder | None) -> int | None:
    if run is None:
        return None
    step = base_step_of(run)
    kept = newest_kept(run) if step is None else None
    return kept.base_step if kept is not None else step


@torch.no_grad()
def load_run(task: Task, path: str) -> list[str]:
    """Load the body of an earlier run's model, and its head if the task is the same. Returns what is newly initialized.

    At first the best checkpoint, and after a resume the same one, even if the earlier run has a better one by then.
    """
    run = RunFolder.open(Path(path).expanduser(), "runs")
    try:
        restored = load_task(run, "best" if task.base_step is None else str(task.base_step), torch.device("cpu"))
    except CheckpointError as error:
        if task.base_step is None:
            raise
        raise RunFolderError(
            f"model.pretrained: the weights of step {task.base_step} of {run.path}, which this run started from, can "
            f"no longer be read. {error}"
        ) from None
    task.base_step = restored.step
    task.base_settings = BaseSettings.read(run.network, BASE_PREFIX)
    earlier, facts, theirs = merged(restored.task), task.facts, restored.facts
    if facts.vocab_size > theirs.vocab_size:
        raise DataError(
            f"data.tokenizer: must fit the model, but it has {facts.vocab_size} tokens and {run.path} was trained with "
            f"{theirs.vocab_size}. Leave data.tokenizer out to use the model's own tokenizer."
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
    if isinstance(task, TextRegressor) and same_work:
        task.keep_target_scale(theirs.target_mean, theirs.target_scale)
    return new


def write_facts(folder: Path, task: Task, tokenizer: Tokenizer) -> None:
    """What is needed to build the task again and is not in its checkpoints."""
    run = RunFolder(folder)
    tokenizer.save(run.tokenizer)
    write_text_atomically(run.tokenizer / FACTS_FILE, json.dumps(asdict(task.facts), indent=1))
    save_plan = getattr(task, "save_plan", None)  # of a network that our knobs do not describe
    if save_plan is not None:
        save_plan(run.network)
    if task.base_settings is not None:
        task.base_settings.write(run.network, BASE_PREFIX)
    if task.base_step is not None:
        run.network.mkdir(exist_ok=True)
        write_text_atomically(base_file(run), json.dumps({"step": task.base_step}))


def load_task(run: RunFolder, checkpoint: str, device: torch.device) -> LoadedTask:
    """The task of a run with the weights of a checkpoint: best, latest, or a step."""
    if run.read_manifest().recipe == "fit":
        raise RunFolderError(f"{run.path} was made by trainbook.fit with your own module, which cannot be built here.")
    if not run.tokenizer.exists():
        raise RunFolderError(f"{run.path} has no tokenizer any more. Resume the run to write it again.")
    config = run.recorded()
    require_trust(run, config, OF_THE_MODEL)
    tokenizer = load_tokenizer(run.tokenizer)
    facts = read_facts(run, tokenizer)
    step, weights = weights_of(run, checkpoint)
    precision = Precision(config.precision, device, has_frozen_weights=config.model.lora_rank is not None)
    task = build_task(config, facts, precision, run=run)
    load_saved_state(task, weights)
    task.eval()
    return LoadedTask(task, tokenizer, config, facts, precision, step)


def read_facts(run: RunFolder, tokenizer: Tokenizer) -> Facts:
    path = run.tokenizer / FACTS_FILE
    if not path.is_file():  # of an older run, which could only be a causal one
        return Facts(tokenizer.vocab_size, end=tokenizer.end_of_text)
    try:
        facts = json_text.read(path)
        return Facts(**{**facts, "label_names": tuple(facts["label_names"])})
    except (ValueError, LookupError, TypeError):
        raise RunFolderError(f"{path} is damaged. Resume the run to write it again.") from None


def weights_of(run: RunFolder, checkpoint: str) -> tuple[int, dict[str, torch.Tensor]]:
    """The step of a checkpoint, and its weights. `last` is the latest, and a checkpoint's folder name is its step."""
    store = CheckpointStore(run.checkpoints, read_only=True)
    number = checkpoint.removeprefix("step-")
    which = int(number) if number.isdecimal() else {"last": "latest"}.get(checkpoint, checkpoint)
    if which not in ("best", "latest") and not isinstance(which, int):
        raise UserError(f"checkpoint: must be best, latest or a step, but got {checkpoint!r}.")
    found = store.load(which, parts=("model",))  # pyright: ignore[reportArgumentType]
    if found is None and which == "best":
        found = store.load("latest", parts=("model",))
    if found is None:
        raise RunFolderError(f"{run.path} has no complete checkpoint yet.")
    return found.step, found.state["model"]
