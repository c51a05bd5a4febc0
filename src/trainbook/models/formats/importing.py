"""Weights of a folder in Hugging Face format, into a task of ours."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.bounded import json_text
from trainbook.errors import DataError, UserError
from trainbook.knobs.config import Config
from trainbook.knobs.formats import objections
from trainbook.knobs.hub import CONFIG, find_weights, read_config
from trainbook.models.formats.folder import Weights, open_weights
from trainbook.models.formats.known import FORMATS, kind_of
from trainbook.models.formats.rules import WeightRule
from trainbook.models.shape import Shape

MOST_NAMED = 4  # in a message; the rest is counted


@dataclass
class Imported:
    folder: Path
    format: str
    loaded: int = 0  # tensors that were filled
    new: list[str] = field(default_factory=list)  # of a head that the folder does not have
    ignored: list[str] = field(default_factory=list)  # weights that this task has no use for
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """What a person should know of it."""
        shown = [f"{self.loaded} tensors from {self.folder} ({self.format})"]
        if self.new:
            shown.append(f"new head, randomly initialized: {_some(self.new)}")
        if self.ignored:
            shown.append(f"not used here: {_some(self.ignored)}")
        return shown + self.notes


@torch.no_grad()
def load_pretrained(task: nn.Module, folder: str | Path, config: Config, label_names: Sequence[str] = ()) -> Imported:
    """Fill the parameters of a task from a folder or hub name.

    All names and shapes are judged before anything is copied. What the folder has and the task does not, or the other
    way round, is an error, but for heads: one that the folder lacks starts anew (its names are then in `task.fresh`),
    one for other work is left out.
    """
    path = find_weights(str(folder))
    about = read_config(path)
    name = str(about.get("model_type"))
    if name not in FORMATS:
        raise UserError(f"{path / CONFIG}: {about.get('model_type')!r} is not built in. Set model.type=hf.")
    form, kind, tied = FORMATS[name], kind_of(task, config), config.model.tie_embeddings
    shape: Shape = task.body.shape  # pyright: ignore[reportAssignmentType, reportAttributeAccessIssue]
    if kind not in form.ARCHITECTURES:
        raise UserError(f"{path / CONFIG}: the model is a {name}, but model.type is {config.model.type}.")
    if wrong := objections(name, config):
        knob, needed = next(iter(wrong.items()))
        raise UserError(
            f"{path}: a {kind} {name} needs {knob} {' or '.join(needed)}, but it is {config.get(knob)}. Set "
            "model.type=hf."
        )
    parameters = dict(task.named_parameters())
    report = Imported(path, name)
    with open_weights(path) as weights:
        by_name = {form.canonical(original): original for original in weights.names()}
        rules = [rule for rule in form.rules(shape, kind, tied) if rule.native in parameters]
        _check_vocabulary(rules, weights, by_name, shape, path)
        ready = _Plan(rules, parameters, weights, by_name, shape, report)
        own_labels = getattr(getattr(task, "facts", None), "label_names", ())
        ready.label_order = _label_order(about, label_names or own_labels)
        ready.find()
        extra = [known for known in by_name if known not in ready.used and not form.ignored(known, kind, tied)]
        unclaimed = sorted(parameters.keys() - {rule.native for rule in rules})
        ready.complain(extra, unclaimed)
        if tied and form.HEAD in by_name and not form.ignored(form.HEAD, kind, tied=False):
            _check_tie(rules[0], form.HEAD, weights, by_name, path)
        report.ignored += sorted(known for known in by_name if known not in ready.used and known != form.HEAD)
        ready.copy()
    task.fresh = frozenset(report.new)  # pyright: ignore[reportArgumentType]
    return report


class _Plan:
    """Which tensor goes where; found first, copied only if nothing is wrong."""

    def __init__(
        self,
        rules: Sequence[WeightRule],
        parameters: Mapping[str, nn.Parameter],
        weights: Weights,
        by_name: Mapping[str, str],
        shape: Shape,
        report: Imported,
    ) -> None:
        self.rules, self.parameters, self.weights, self.by_name = rules, parameters, weights, by_name
        self.shape, self.report = shape, report
        self.used: set[str] = set()
        self.missing: list[str] = []
        self.misfits: list[str] = []
        self.label_order: list[int] | None = []  # rows of the folder's head for ours; None: it has other labels
        self._found: list[tuple[WeightRule, list[str]]] = []

    def find(self) -> None:
        for rule in self.rules:
            names = _names(rule, self.by_name)
            absent = [name for name in names if name not in self.by_name]
            if absent:
                if rule.may_be_new:
                    self.report.new.append(rule.native)
                else:
                    self.missing += absent
                self.used.update(name for name in names if name in self.by_name)
                continue
            self.used.update(names)
            if self._fits(rule, names):
                self._found.append((rule, names))

    def _fits(self, rule: WeightRule, names: list[str]) -> bool:
        given = rule.native_shape([self.weights.shape(self.by_name[name]) for name in names])
        needed = tuple(self.parameters[rule.native].shape)
        if rule.rows == "labels":
            fits = self.label_order is not None and given == needed
            if not fits:
                self.report.new.append(rule.native)
                self.report.ignored += names
            return fits
        if rule.rows == "vocabulary":
            fits = given[1:] == needed[1:] and given[0] >= self.shape.vocab_size
        elif rule.rows == "positions":
            fits = given[1:] == needed[1:] and given[0] >= needed[0]
        else:
            fits = given == needed
        if not fits:
            self.misfits.append(f"{' + '.join(names)} is {_size(given)}, but {rule.native} is {_size(needed)}")
        return fits

    def complain(self, extra: Sequence[str], unclaimed: Sequence[str]) -> None:
        folder = self.report.folder
        if self.misfits:
            raise UserError(f"{folder}: {len(self.misfits)} weights have the wrong shape: {_some(self.misfits, '; ')}.")
        if self.missing:
            raise UserError(f"{folder}: {len(self.missing)} weights are missing: {_some(self.missing)}.")
        if extra:
            raise UserError(f"{folder}: {len(extra)} weights do not belong to this model: {_some(sorted(extra))}.")
        if unclaimed:
            raise UserError(f"{folder}: no weights found for {len(unclaimed)} parameters: {_some(unclaimed)}.")

    def copy(self) -> None:
        for rule, names in self._found:
            value = rule.to_native([self.weights.get(self.by_name[name]) for name in names])
            self._copy(rule, self.parameters[rule.native], value)
            self.report.loaded += 1

    def _copy(self, rule: WeightRule, parameter: nn.Parameter, value: Tensor) -> None:
        if rule.rows == "vocabulary":
            size = self.shape.vocab_size
            parameter[:size].copy_(value[:size])
            if len(value) > size and rule is self.rules[0]:
                left_out = f"{len(value) - size} rows of its embedding have no token here and are dropped"
                self.report.notes.append(left_out)
        elif rule.rows == "labels" and self.label_order:
            parameter.copy_(value[self.label_order])
        else:
            parameter.copy_(value[: len(parameter)])


def _names(rule: WeightRule, by_name: Mapping[str, str]) -> list[str]:
    """Those by which the folder knows a rule's tensors."""
    if rule.otherwise is not None and rule.otherwise in by_name and rule.foreign[0] not in by_name:
        return [rule.otherwise]
    return list(rule.foreign)


def _check_vocabulary(
    rules: Sequence[WeightRule], weights: Weights, by_name: Mapping[str, str], shape: Shape, folder: Path
) -> None:
    name = _names(rules[0], by_name)[0]
    if name not in by_name:
        return  # said with everything else that is missing
    rows = weights.shape(by_name[name])[0]
    if rows < shape.vocab_size:
        raise DataError(
            f"the tokenizer does not fit the model: it has {shape.vocab_size} tokens, but {folder} has only {rows} "
            "embedding rows. Omit data.tokenizer to use the model's own tokenizer."
        )


def _check_tie(embedding: WeightRule, head: str, weights: Weights, by_name: Mapping[str, str], folder: Path) -> None:
    """A file may hold the shared matrix under both names; two different ones would not be what the model computes."""
    name = _names(embedding, by_name)[0]
    if not torch.equal(weights.get(by_name[head]), weights.get(by_name[name])):
        raise UserError(
            f"{folder}: {CONFIG} says that input and output embeddings are tied, but their weights differ. Set "
            "model.type=hf, or correct tie_word_embeddings there."
        )


def _label_order(about: Mapping[str, Any], label_names: Sequence[str]) -> list[int] | None:
    """Where each of the task's labels is among the folder's; empty: as they are; None: they are other labels.

    Names that nobody chose (LABEL_0, LABEL_1) tell nothing, and neither does a task without names.
    """
    names = about.get("id2label") or {}
    theirs = [str(names[key]) for key in sorted(names, key=int)]
    if not label_names or theirs == [f"LABEL_{number}" for number in range(len(theirs))]:
        return []
    if sorted(theirs) != sorted(label_names):
        return None
    return [theirs.index(label) for label in label_names]


def _some(names: Sequence[str], between: str = ", ") -> str:
    more = len(names) - MOST_NAMED
    return between.join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _size(shape: Sequence[int]) -> str:
    return " x ".join(str(size) for size in shape)


# What a pretrained model's config.json and generation_config.json say beside what is computed: kept by an export.


GENERATION_CONFIG = "generation_config.json"
# Of the files that came in, not of what is written: where the model lay, its code, how its weights were packed.
DROPPED = (
    "_name_or_path",
    "_attn_implementation",
    "_from_model_config",
    "auto_map",
    "quantization_config",
    "transformers_version",
)
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class BaseSettings:
    config: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, prefix: str = "") -> BaseSettings:
        """Of the files in a folder; a file that is missing or damaged says nothing."""
        return cls(*(json_text.read_object(folder / f"{prefix}{name}") for name in (CONFIG, GENERATION_CONFIG)))

    def write(self, folder: Path, prefix: str) -> None:
        for name, content in ((CONFIG, self.config), (GENERATION_CONFIG, self.generation)):
            if content:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{prefix}{name}").write_text(json.dumps(content, indent=1), encoding="utf-8")

    def with_config(self, own: Mapping[str, Any], special: Container[int]) -> dict[str, Any]:
        """What is written: our values, and what else the base says. Of another family it says nothing."""
        if self.config.get("model_type") != own.get("model_type"):
            return dict(own)
        written = _kept(self.config, special) | dict(own)
        if "torch_dtype" in written:  # what older versions called it
            written["torch_dtype"] = own.get("dtype", written["torch_dtype"])
        for name in TOKENS:
            written[name] = _token(_kept(self.config, special).get(name), own.get(name))
        return written

    def with_generation(self, own: Mapping[str, Any], special: Container[int]) -> dict[str, Any]:
        return _kept(self.generation, special) | dict(own)


def _kept(base: Mapping[str, Any], special: Container[int]) -> dict[str, Any]:
    """Without the ids of tokens that are not special ones of the tokenizer: defaults of transformers stand in many a
    file, whatever the tokenizer."""
    return {
        key: value
        for key, value in base.items()
        if key not in DROPPED and (not key.endswith("_token_id") or _are_special(value, special))
    }


def _are_special(value: Any, special: Container[int]) -> bool:
    return all(number in special for number in (value if isinstance(value, list) else [value]))


def _token(base: Any, own: int | None) -> Any:
    """The tokenizer's, unless it has none, or is one of several that the base names."""
    return base if own is None or (isinstance(base, list) and own in base) else own
