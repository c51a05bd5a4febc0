"""The Hugging Face trainer's `trainer_state.json`: its log, and what is known of the arguments beside it.

`training_args.bin` would know all arguments, but it is a pickle, which can run anything: it is never opened. They are
taken from a `training_args.json`, from what the trainer told TensorBoard, or from the model card, and else from the
state alone.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.bounded.files import read_text
from trainbook.errors import BeyondBounds, UserError
from trainbook.runs.foreign import tensorboard
from trainbook.runs.foreign.metrics import Logged, as_step, number, rows_of
from trainbook.runs.foreign.vocabulary import knobs_in, names_for, of_hugging_face, read_mapping
from trainbook.runs.run_record import RunRecord

STATE = "trainer_state.json"
SUMMARY = "train_samples_per_second"  # only the last entry has it: means over the whole run


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
    facts = _facts(state)
    rows = rows_of(_logged(path, state["log_history"], facts))
    configs = _configs(path, state)
    settings, _ = knobs_in(*configs)
    return rows.record(path, "huggingface", _name(path), settings, facts, names_for({}, is_hugging_face=True))


def _read_state(path: Path) -> dict[str, Any] | None:
    try:
        state = json_text.read(path)  # Python's reader takes NaN and Infinity too
    except BeyondBounds:
        raise
    except ValueError as error:
        if path.name != STATE:
            return None
        raise UserError(f"{path} must be JSON, but is incomplete or damaged: {error}.") from None
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
    known: dict[str, Any] = {"tool": "Hugging Face trainer", "loss_is": "the mean since the row before"}
    if (total := number(state.get("max_steps"))) is not None and 0 < total < math.inf:
        known["total_updates"] = int(total)
    for name in ("best_metric", "best_global_step", "best_model_checkpoint", "total_flos"):
        if state.get(name) is not None:
            known[name] = state[name]
    return known


def _configs(path: Path, state: dict[str, Any]) -> list[dict[str, Any]]:
    """The surest first."""
    folder = path.parent
    above = folder.parent if folder.name.startswith("checkpoint-") else folder
    arguments = [read_mapping(place / "training_args.json") for place in dict.fromkeys((folder, above))]
    try:
        told = tensorboard.settings_in(tensorboard.read_contents(tensorboard.event_files(above / "runs")[-1:], above))
    except UserError:  # a damaged mirror: the state is what was asked for
        told = []
    card = _card(above / "README.md")
    own = {name: state.get(name) for name in ("train_batch_size", "eval_steps", "logging_steps", "save_steps")}
    own |= {} if any((*arguments, *told, card)) else {"max_steps": state.get("max_steps")}
    model = read_mapping(folder / "config.json")
    return [*map(of_hugging_face, arguments), *told, of_hugging_face(card), of_hugging_face(own), model]


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
    return found


def _name(path: Path) -> str:
    folder = path.resolve().parent
    is_checkpoint = folder.name.startswith("checkpoint-")
    return path.stem if path.name != STATE else f"{folder.parent.name}/{folder.name}" if is_checkpoint else folder.name
