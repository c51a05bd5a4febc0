"""The Hugging Face trainer's `trainer_state.json`: its log, and what is known of the arguments beside it.

All arguments are in `training_args.bin`. It is a pickle, which can run anything, so it is never unpickled: plain values
are read off its opcodes. Without it they are taken from a `training_args.json`, from what the trainer told TensorBoard,
or from the model card, and else from the state alone. The model's `config.json` and the header of its weights tell
what was trained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text, pickled
from trainbook.bounded.files import read_text
from trainbook.errors import BeyondBounds, UserError, without_stop
from trainbook.runs.foreign import tensorboard
from trainbook.runs.foreign.metrics import Logged, as_step, number, rows_of
from trainbook.runs.foreign.vocabulary import is_hugging_face, knobs_in, names_for, of_hugging_face, read_mapping
from trainbook.runs.run_record import HUGGING_FACE, RunRecord

STATE = "trainer_state.json"
SUMMARY = "train_samples_per_second"  # only the last entry has it: means over the whole run
LOG_MORE = (
    "Set logging_steps lower than the number of steps (the Trainer's default is 500), or train with "
    "callbacks=[WatchCallback()] of trainbook.watching.huggingface, which notes numbers by itself."
)
# A model card lists these only where they are something else.
UNLESS_LISTED = {"gradient_accumulation_steps": 1, "lr_scheduler_warmup_steps": 0, "label_smoothing_factor": 0.0}


def find(folder: Path) -> Path | None:
    """The folder's own state, or its newest checkpoint's."""
    if (folder / STATE).is_file():
        return folder / STATE
    found = [
        (int(match[1]), path)
        for path in folder.glob(f"checkpoint-*/{STATE}")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.parent.name))
    ]
    return max(found)[1] if found else None


def read(path: Path) -> RunRecord | None:
    """None if it is some other JSON file."""
    state = _read_state(path)
    if state is None:
        return None
    arguments, model = _arguments(path), read_mapping(path.parent / "config.json")
    facts = _facts(state) | _facts_of_arguments(arguments) | facts_of_model(model) | _sizes(path.parent)
    logged = _logged(path, state["log_history"], facts)
    if not logged.points:
        raise UserError(f"{path}: has no logged numbers{_after(state)}. {LOG_MORE}")
    rows = rows_of(logged)
    settings, _ = knobs_in(*_configs(path, state, arguments), settings_of_model(model))
    settings = _without_contradicted(settings, logged)
    return rows.record(path, "huggingface", _name(path), settings, facts, names_for({}, is_hugging_face=True))


def _read_state(path: Path) -> dict[str, Any] | None:
    try:
        state = json_text.read(path)  # Python's reader takes NaN and Infinity too
    except BeyondBounds:
        raise
    except ValueError as error:
        if path.name != STATE:
            return None
        raise UserError(f"{path} must be JSON, but is incomplete or damaged: {without_stop(error)}.") from None
    history = state.get("log_history") if isinstance(state, dict) else None
    if isinstance(history, list) and all(isinstance(entry, dict) for entry in history):
        return state
    if path.name == STATE:
        raise UserError(f"{path} must have a log_history (a list of logged values), but has none.")
    return None


def _logged(path: Path, history: list[dict[str, Any]], facts: dict[str, Any]) -> Logged:
    logged = Logged(str(path))
    prefix = _evaluation_prefix(history)
    for entry in history:
        step = as_step(entry.get("step"))
        if SUMMARY in entry:
            facts["train_seconds"] = number(entry.get("train_runtime"))
            continue
        if step is None:
            continue
        if (samples := _evaluated_samples(entry, prefix)) is not None:
            facts["validation_samples"] = samples
        for name, value in entry.items():
            if (found := number(value)) is None or name == "step":
                continue
            if name == "train_runtime":
                name = "time"  # seconds since training began, in each entry when tokens are counted
            elif name.startswith("eval_"):
                name = f"eval/{name.removeprefix(prefix)}" if name.startswith(prefix) else name
            elif not name.startswith("test_") and name not in ("epoch", "num_input_tokens_seen"):
                name = f"train/{name}"
            logged.add(name, step, found)
    return logged


def _after(state: Mapping[str, Any]) -> str:
    steps = as_step(state.get("global_step"))
    return f" after {steps:,} step{'s' * (steps != 1)}" if steps else ""


def _evaluation_prefix(history: list[dict[str, Any]]) -> str:
    """`eval_`, or `eval_NAME_` of the first of several sets: each has entries of its own, of the same steps."""
    names = [name for entry in history for name in entry if name.startswith("eval_") and name.endswith("_loss")]
    return "eval_" if not names or "eval_loss" in names else names[0].removesuffix("loss")


def _evaluated_samples(entry: dict[str, Any], prefix: str) -> int | None:
    """The trainer logs how many there are in a second, and the seconds."""
    speed, seconds = (number(entry.get(f"{prefix}{name}")) for name in ("samples_per_second", "runtime"))
    found = speed * seconds if speed is not None and seconds is not None else 0.0
    return round(found) if 1 <= found < math.inf else None


def _facts(state: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {"tool": HUGGING_FACE, "loss_is": "the mean since the row before"}
    if (total := number(state.get("max_steps"))) is not None and 0 < total < math.inf:
        known["total_updates"] = int(total)
    for name in ("best_metric", "best_global_step", "best_model_checkpoint", "total_flos"):
        if state.get(name) is not None:
            known[name] = state[name]
    return known


def _places(path: Path) -> list[Path]:
    """The folder of the state, and that of the run if it is a checkpoint's."""
    folder = path.parent
    return [folder, folder.parent] if folder.name.startswith("checkpoint-") else [folder]


def _arguments(path: Path) -> list[dict[str, Any]]:
    """All arguments of the training, from each file that has them."""
    written = [read_mapping(place / "training_args.json") for place in _places(path)]
    return [found for found in (*written, *map(_pickled_arguments, _places(path))) if found]


def _pickled_arguments(folder: Path) -> dict[str, Any]:
    try:
        found = pickled.read_state(folder / "training_args.bin")
    except (OSError, ValueError):
        return {}
    return found if is_hugging_face(found) else {}


def _configs(path: Path, state: dict[str, Any], arguments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The surest first."""
    above = _places(path)[-1]
    try:
        told = tensorboard.settings_in(tensorboard.read_contents(tensorboard.event_files(above / "runs")[-1:], above))
    except UserError:  # a damaged mirror: the state is what was asked for
        told = []
    card = _card(above / "README.md")
    own = {name: state.get(name) for name in ("train_batch_size", "eval_steps", "logging_steps", "save_steps")}
    own |= {} if any((*arguments, *told, card)) else {"max_steps": state.get("max_steps")}
    return [*map(of_hugging_face, arguments), *told, of_hugging_face(card), of_hugging_face(own)]


def _facts_of_arguments(arguments: list[dict[str, Any]]) -> dict[str, Any]:
    """`hides_nan`: a loss that is not finite is logged as the mean of those before it."""
    filters = [found["logging_nan_inf_filter"] for found in arguments if "logging_nan_inf_filter" in found]
    return {"hides_nan": bool(filters[0])} if filters else {}


def settings_of_model(config: dict[str, Any]) -> dict[str, Any]:
    """With the name of what it was fine-tuned from, where its configuration tells (before transformers 5). How long its
    rows may be says nothing of how long those were that it was trained on."""
    name = config.get("_name_or_path")
    is_known = isinstance(name, str) and name and "checkpoint-" not in name  # one of its own says nothing
    kept = {key: value for key, value in config.items() if key not in ("max_position_embeddings", "n_positions")}
    return {**kept, "pretrained": name} if is_known else kept


def _without_contradicted(settings: dict[str, Any], logged: Logged) -> dict[str, Any]:
    """A logged rate above that of the arguments is of an optimizer that the trainer was handed: theirs say nothing."""
    rates = [rate for _, rate in logged.points.get("train/learning_rate", ())]
    stated = settings.get("optimizer.learning_rate")
    if stated is None or max(rates, default=0.0) <= 1.01 * stated:
        return settings
    return {path: value for path, value in settings.items() if not path.startswith(("optimizer.", "schedule."))}


def facts_of_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a model's config.json: what it is built for, and from how many classes or tokens it chooses."""
    found: dict[str, Any] = {}
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        found["model_class"] = names[0]
    if isinstance(config.get("vocab_size"), int):
        found["vocab_size"] = config["vocab_size"]
    classes = config.get("id2label")
    # Every configuration has two labels by default; they say something of a model that has a head for them.
    is_classifier = str(found.get("model_class", "")).endswith(("ForSequenceClassification", "ForTokenClassification"))
    if is_classifier and isinstance(classes, Mapping):
        found["num_classes"] = len(classes)
    elif is_classifier and isinstance(config.get("num_labels"), int):
        found["num_classes"] = config["num_labels"]
    return found


def _sizes(folder: Path) -> dict[str, int]:
    """The number of parameters, from the headers of the weights: of a model, or of an adapter the trained ones."""
    adapter, whole = _count(folder / "adapter_model.safetensors"), _count(folder / "model.safetensors")
    if whole is None:
        parts = sorted(folder.glob("model-*-of-*.safetensors"))
        counts = [count for part in parts if (count := _count(part)) is not None]
        # Some parts alone would say too little.
        is_complete = bool(parts) and parts[0].stem.endswith(f"-{len(counts):05}")
        whole = sum(counts) if is_complete else None
    known = {"num_parameters": whole, "num_trained": adapter}
    return {name: count for name, count in known.items() if count is not None}


def _count(path: Path) -> int | None:
    from trainbook.bounded.arrays import tensor_shapes  # with NumPy

    try:
        shapes = tensor_shapes(path)
    except (OSError, ValueError):
        return None
    # Buffers of whole numbers, such as positions, are no parameters.
    return sum(math.prod(shape) for dtype, shape in shapes.values() if "F" in dtype) or None


def _card(path: Path) -> dict[str, Any]:
    """What the model card that the trainer writes lists under its hyper-parameters."""
    try:
        text = read_text(path).partition("### Training hyperparameters")[2].partition("\n#")[0]
    except (OSError, ValueError):
        return {}
    found: dict[str, Any] = {}
    for name, value in re.findall(r"^- (\w+): (.+)$", text, flags=re.MULTILINE):
        found[name] = plain if (plain := number(value)) is not None else value.strip()
    written = str(found.pop("optimizer", ""))
    if betas := re.search(r"betas=\(([\d.e-]+), ?([\d.e-]+)\) and epsilon=([\d.e-]+)", written):
        found |= dict(zip(("adam_beta1", "adam_beta2", "adam_epsilon"), map(float, betas.groups()), strict=True))
    if kind := re.search(r"Use (?:OptimizerNames\.)?(\w+)", written):
        found["optim"] = kind[1].lower()
    return UNLESS_LISTED | found if found else {}


def _name(path: Path) -> str:
    folder = path.resolve().parent
    is_checkpoint = folder.name.startswith("checkpoint-")
    return path.stem if path.name != STATE else f"{folder.parent.name}/{folder.name}" if is_checkpoint else folder.name
