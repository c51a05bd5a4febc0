"""A task with its weights: initialized, pretrained, or from a run's checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch

from trainbook.bounded import json_text
from trainbook.checkpoints import CheckpointStore
from trainbook.data import Tokenizer, load_tokenizer
from trainbook.errors import CheckpointError, DataError, RunFolderError, UserError
from trainbook.knobs import recipes
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.knobs.hub import CONFIG, find_folder, has_tokenizer, is_folder, read_config
from trainbook.knobs.recipes import is_run
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.loop.saved_files import base_file, base_step_of, newest_kept
from trainbook.models.formats import load_pretrained
from trainbook.models.formats.checking import has_transformers
from trainbook.models.formats.exporting import KINDS, choose_format
from trainbook.models.formats.importing import BaseSettings
from trainbook.models.formats.tokenizing import first_difference, must_survive_export, probe_texts
from trainbook.precision import Precision
from trainbook.runs import RunFolder, write_text_atomically
from trainbook.runs.kinds import must_hold_a_model
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
    must_hold_a_model(run)
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


# Before a pretrained model is trained: whether transformers will give it the ids that the run gives it.


REBUILT = ("qwen2",)  # of our formats: transformers builds a tokenizer of its own from the vocabulary alone


def check_tokenizer(
    config: Config, tokenizer: Tokenizer, sample: Iterable[str], chat_template: str | None
) -> list[str]:
    """UserError if the export of a pretrained model would be refused for its tokenizer; the answer is what else there
    is to say.

    `sample` is of the training text, and read only if it is needed. Without transformers nothing is compared.
    """
    _must_have_rows(config, tokenizer)
    model_type = _exported_type(config)
    if model_type is None or not has_transformers():
        return []
    kind, name = KINDS[task_name(config)], config.data.tokenizer
    texts = list(chain(probe_texts(tokenizer), sample))
    try:
        must_survive_export(tokenizer, kind, model_type, name, texts, chat_template)
    except UserError as error:
        if config.model.pretrained is not None:
            raise
        return [str(error)]  # a model from scratch need not be exported
    return _read_otherwise(Path(name).expanduser(), tokenizer, texts)


def _must_have_rows(config: Config, tokenizer: Tokenizer) -> None:
    """Tokens that were added to a model's own tokenizer need embeddings too. Of another tokenizer the model's loading
    says that it does not fit."""
    folder = _base_folder(config)
    if folder is None or Path(config.data.tokenizer).expanduser() != folder:
        return
    rows = read_config(folder).get("vocab_size")
    if not isinstance(rows, int) or tokenizer.vocab_size <= rows:
        return
    beyond = sorted((number, piece) for piece, number in tokenizer.to_library().get_vocab().items() if number >= rows)
    shown = ", ".join(f"{piece!r} ({number})" for number, piece in beyond[:3])
    more = f" and {len(beyond) - 3} more" if len(beyond) > 3 else ""
    raise UserError(
        f"data.tokenizer: the tokenizer of {folder} has {tokenizer.vocab_size} tokens, but the model has embeddings "
        f"for {rows} only: none for {shown}{more}. Remove these tokens from the tokenizer, or add rows with "
        f"transformers: model.resize_token_embeddings({tokenizer.vocab_size}), and save the model."
    )


def _exported_type(config: Config) -> str | None:
    """The `model_type` of the config.json that an export would write; None where there is nothing to compare."""
    name = config.model.pretrained
    if ":" in config.model.type or task_name(config) not in KINDS:
        return None
    if config.model.type == "hf":
        folder = _base_folder(config)
        found = read_config(folder).get("model_type") if folder is not None else None
        return found if isinstance(found, str) else None
    try:
        found = choose_format(config)
    except UserError:  # it is said at export which knobs no format can hold
        return None
    return found if name is not None or found in REBUILT else None


def _base_folder(config: Config) -> Path | None:
    """Of a pretrained model in Hugging Face format."""
    name = config.model.pretrained
    if name is None or ":" in config.model.type or recipes.is_recipe(name) or recipes.is_run(name):
        return None
    try:
        return find_folder(name)
    except UserError:  # whoever loads the model says so
        return None


def _read_otherwise(folder: Path, tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """What transformers makes of the folder that the tokenizer came from, where that is something else."""
    if not folder.is_dir() or not has_tokenizer(folder) or not (folder / "config.json").is_file():
        return []
    try:
        difference = first_difference(folder, tokenizer, texts, tokenizer.to_library())
    except Exception:  # what transformers cannot read here, nobody reads differently
        return []
    if difference is None:
        return []
    return [
        f"transformers reads the tokenizer of {folder} differently: {difference}. This run takes its tokenizer.json as "
        "it is. If the model was trained with the ids of transformers, save the tokenizer with "
        "AutoTokenizer.from_pretrained(...).save_pretrained(DIR) and set data.tokenizer=DIR."
    ]
