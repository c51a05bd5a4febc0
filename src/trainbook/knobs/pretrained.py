"""What a pretrained model settles. Imports no torch.

A value that only a recipe or a default chose gives way to the model's; one that the user set against it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainbook.errors import ConfigError, Problem, UserError
from trainbook.knobs.aliases import by_path
from trainbook.knobs.architectures import DROPOUT, LENGTH, NEWER, SCALING, SETTLED, ModelReading, NotBuiltIn, read_model
from trainbook.knobs.derive import TASKS_OF_MODEL
from trainbook.knobs.hub import CONFIG, has_tokenizer, is_folder
from trainbook.knobs.origin import Origin
from trainbook.knobs.recipes import Load
from trainbook.knobs.resolve import Assignment
from trainbook.knobs.values import BrokenLaw, check, show

TOKENIZER = "data.tokenizer"
# More of what only a built-in network is asked for.
OF_OUR_NETWORKS = (
    "model.dropout",
    "model.initializer_range",
    "model.residual_init",
    "model.vocab_multiple",
    "model.logit_soft_cap",
)


@dataclass
class Settlement:
    """A configuration's assignments after a pretrained model had its say."""

    assigned: dict[str, Assignment]
    load: Load
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)  # paths about which there is a problem already


def settle_pretrained(assigned: Mapping[str, Assignment], load: Load) -> Settlement:
    """The pretrained model's values in place of those that only a recipe or a default chose.

    `load` reads the configuration of a model that was trained here, which may begin with a pretrained one in turn.
    """
    result = Settlement(dict(assigned), load)
    name = assigned["model.pretrained"].value if "model.pretrained" in assigned else None
    chosen = assigned["model.type"].value if "model.type" in assigned else None
    if name is None or (chosen is not None and ":" in chosen):  # a model of the user's own reads what it wants to
        return result
    written = {path for path, done in assigned.items() if done.origin.is_the_users}
    is_of_a_run = written.issuperset((*SETTLED, LENGTH, TOKENIZER))  # its config.yaml says all of this
    if is_of_a_run and not is_folder(name):
        return result  # its weights are in its checkpoints
    try:
        reading = _read(result, name, chosen)
    except ConfigError as error:
        result.problems += error.problems
        result.broken |= {*SETTLED, *NEWER, *SCALING, LENGTH, TOKENIZER}
        return result
    except UserError as error:
        place = assigned["model.pretrained"].origin.place
        result.problems.append(Problem(place, "model.pretrained", str(error).removeprefix("model.pretrained: ")))
        result.broken |= {*SETTLED, *NEWER, *SCALING, LENGTH, TOKENIZER}
        return result
    for path, value in reading.values.items():
        if is_of_a_run and path in NEWER and path not in written:
            continue  # it is older than these knobs: its checkpoints may have fewer rows
        if path == LENGTH:
            _settle_length(result, reading, value)
        elif path == DROPOUT:
            _take_over_dropout(result, reading, value, is_of_a_run)
        else:
            _settle(result, reading, path, value)
    _settle_task(result, reading)
    _settle_tokenizer(result, reading)
    _remark_on_length(result, reading)
    return result


def _read(result: Settlement, name: str, chosen: str | None) -> ModelReading:
    """As a built-in network, or else as one of transformers: where the user names neither, whichever can hold it."""
    if chosen == "hf":
        return _left_to_transformers(result, name)
    is_named = "model.type" in result.assigned and result.assigned["model.type"].origin.is_the_users
    try:
        reading = read_model(name, None, result.load)
    except NotBuiltIn as error:
        if is_named:
            raise
        reason, place = error.reason, error.place
    else:
        if is_named or (reason := _lacks_the_task(result, reading)) is None:
            return reading
        place = str(reading.folder / CONFIG)
    result.notices.append(f"{place}  model.type: hf (the model runs in transformers), because {reason}.")
    return _left_to_transformers(result, name)


def _left_to_transformers(result: Settlement, name: str) -> ModelReading:
    """What a recipe says of a network's parts is of another network."""
    for path in (*SETTLED, *NEWER, *SCALING, *OF_OUR_NETWORKS):
        if path in result.assigned and not result.assigned[path].origin.is_the_users:
            del result.assigned[path]
    return read_model(name, "hf", result.load)


def _lacks_the_task(result: Settlement, reading: ModelReading) -> str | None:
    """Why a built-in network of this kind cannot learn the task that is asked for, where one of transformers can."""
    task, kind = _asked(result, "training.task"), reading.values["model.type"]
    if task in (None, "auto"):
        task = "classify" if _asked(result, "data.label_field") is not None else None
    if (
        task is None
        or reading.tokenizer is not None
        or task in TASKS_OF_MODEL[kind]
        or task not in TASKS_OF_MODEL["hf"]
    ):
        return None
    return f"the built-in {kind} supports {' or '.join(TASKS_OF_MODEL[kind])}, but the task is {task}"


def _asked(result: Settlement, path: str) -> Any:
    done = result.assigned.get(path)
    return None if done is None else done.value


def _settle_task(result: Settlement, reading: ModelReading) -> None:
    """A network of transformers has no kind that a task would follow from."""
    if reading.task is None or _asked(result, "training.task") not in (None, "auto"):
        return
    if _asked(result, "data.label_field") is not None:
        return
    if _asked(result, "data.target_field") is not None and reading.task != "seq2seq":
        return
    place = reading.place or str(reading.folder / CONFIG)
    result.assigned["training.task"] = Assignment("training.task", reading.task, Origin("pretrained", place))


def _settle(result: Settlement, reading: ModelReading, path: str, value: Any) -> None:
    place = reading.place or str(reading.folder / CONFIG)
    try:
        value = check(by_path()[path], value)
    except BrokenLaw as law:
        result.problems.append(Problem(place, path, law.message, law.hint))
        result.broken.add(path)
        return
    old = result.assigned.get(path)
    if old is None or old.value is None or not old.origin.is_the_users:
        result.assigned[path] = Assignment(path, value, Origin("pretrained", place))
    elif old.value != value and _is_overridden(result, old):
        remark = f"{path} {show(old.value)} -> {show(value)}: model.pretrained decides it"
        result.notices.append(f"{old.origin.place}, {place}  {remark}.")
        result.assigned[path] = Assignment(path, value, Origin("pretrained", place))
    elif old.value != value:
        message = f"is {show(old.value)} here, but {show(value)} in {place}, and model.pretrained decides it."
        result.problems.append(Problem(old.origin.place, path, message, "Omit it."))
        result.broken.add(path)


def _is_overridden(result: Settlement, old: Assignment) -> bool:
    """The pretrained model was named on the command line, over what a file says."""
    return result.assigned["model.pretrained"].origin.kind == "override" and old.origin.kind != "override"


def _take_over_dropout(result: Settlement, reading: ModelReading, rate: Any, is_of_a_run: bool) -> None:
    """The rate that the model was trained with, unless the user sets another one."""
    old = result.assigned.get(DROPOUT)
    if is_of_a_run or (old is not None and old.origin.is_the_users):
        return
    _settle(result, reading, DROPOUT, rate)
    place = reading.place or str(reading.folder / CONFIG)
    result.notices += [f"{place}  {remark}" for remark in reading.remarks]


def _settle_length(result: Settlement, reading: ModelReading, longest: int) -> None:
    """A shorter one is anybody's choice: positions that are never reached stay as they are."""
    if type(longest) is not int or longest < 1:
        raise UserError(f"model.pretrained: {reading.folder / CONFIG} has {show(longest)} positions.")
    old = result.assigned.get(LENGTH)
    length = old.value if old is not None else by_path()[LENGTH].field.default
    if length <= longest:
        return
    place = reading.place or str(reading.folder / CONFIG)
    if old is None or not old.origin.is_the_users or _is_overridden(result, old):
        if old is not None and old.origin.is_the_users:
            remark = f"{LENGTH} {length} -> {longest}: the model has learned positions for only {longest} tokens"
            result.notices.append(f"{old.origin.place}, {place}  {remark}.")
        result.assigned[LENGTH] = Assignment(LENGTH, longest, Origin("pretrained", place))
        return
    message = f"is {length} here, but {place} has learned positions for only {longest} tokens."
    result.problems.append(Problem(old.origin.place, LENGTH, message, f"Use {longest} or less."))
    result.broken.add(LENGTH)


def _settle_tokenizer(result: Settlement, reading: ModelReading) -> None:
    """The tokenizer belongs to the weights: it is the folder's own unless the user names another one."""
    old = result.assigned.get(TOKENIZER)
    if old is not None and old.origin.is_the_users:
        return
    if reading.tokenizer is None and not has_tokenizer(reading.folder):
        message = f"must be set: {reading.folder} has no tokenizer, and the model needs its own."
        result.problems.append(Problem(str(reading.folder), TOKENIZER, message))
        result.broken.add(TOKENIZER)
        return
    origin = Origin("pretrained", str(reading.folder))
    result.assigned[TOKENIZER] = Assignment(TOKENIZER, reading.tokenizer or str(reading.folder), origin)
    if "data.vocab_size" in reading.values:
        return
    size = result.assigned.get("data.vocab_size")
    if size is not None and not size.origin.is_the_users:
        result.assigned["data.vocab_size"] = Assignment("data.vocab_size", None, origin)


def _remark_on_length(result: Settlement, reading: ModelReading) -> None:
    old = result.assigned.get(LENGTH)
    if reading.trained_length is not None and old is not None and old.value > reading.trained_length:
        remark = f"{old.value} is more than the {reading.trained_length} that {reading.folder} was trained on."
        result.notices.append(f"{old.origin.place}  {LENGTH}: {remark}")
