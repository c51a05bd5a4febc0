"""A task of ours as a folder in Hugging Face format, proved equal before it is called done."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.errors import Problem, RunError, UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.knobs.formats import OF_TYPE, nearest_format
from trainbook.knobs.hub import CONFIG
from trainbook.knobs.values import show
from trainbook.models.formats.checking import (
    framed_rows,
    import_transformers,
    largest_difference,
    quiet_transformers,
    token_rows,
)
from trainbook.models.formats.folder import write_weights
from trainbook.models.formats.importing import GENERATION_CONFIG, BaseSettings
from trainbook.models.formats.known import FORMATS, kind_of
from trainbook.models.formats.rules import to_foreign
from trainbook.models.formats.tokenizing import (
    Exportable,
    first_difference,
    ordinary_tokens,
    probe_texts,
    real_tokens,
    special_ids,
    write_tokenizer,
)
from trainbook.models.parameters import OutputLinear
from trainbook.models.shape import Shape

# Multipliers put into the weights, for formats that have none: the same function, with other numbers.


# The norm whose answer the head reads, by the kind of head that shares the embedding; it is read by nothing else.
NORMS_BEFORE_HEADS = ("transform_norm", "body.decoder.final_norm", "body.final_norm")
INPUTS = ("token_embedding", "position_embedding", "type_embedding")


@torch.no_grad()
def folded_parameters(task: nn.Module, shape: Shape, *, head_multiplier: float = 1.0) -> dict[str, Tensor]:
    """The parameters of a task of ours by name, such that multipliers are 1 and attention has the usual scale.

    `head_multiplier`: what the format multiplies logits by itself. Where a type of 16 bits would round
    products, all of them are fp32.
    """
    given: dict[str, Tensor] = dict(task.named_parameters())
    parameters = dict(given)
    factors: set[float] = set()

    def multiply(name: str, factor: float, rows: slice = slice(None)) -> None:
        if name in parameters and factor != 1.0:
            factors.add(factor)
            parameters[name] = parameters[name].detach().float().clone()
            parameters[name][rows] *= factor

    head: OutputLinear = task.head  # pyright: ignore[reportAssignmentType]
    is_tied = "head.weight" not in parameters
    embedding, logits = shape.embedding_multiplier, head.multiplier / head_multiplier
    for name in INPUTS:
        multiply(f"body.{name}.weight", embedding)
    if is_tied:
        norm = next(name for name in NORMS_BEFORE_HEADS if f"{name}.weight" in parameters)
        for kind in ("weight", "bias"):
            multiply(f"{norm}.{kind}", logits / embedding)  # the shared matrix already has the embedding's
    else:
        multiply("head.weight", logits)
    usual = 1.0 if shape.attention_scale == "none" else shape.head_width**-0.5
    queries = slice(shape.num_attention_heads * shape.head_width)
    for name in list(parameters):
        if name.endswith(("attention.query_key_value.weight", "attention.query_key_value.bias")):
            multiply(name, shape.softmax_scale / usual, queries)
        elif name.endswith(("cross_attention.query.weight", "cross_attention.query.bias")):
            multiply(name, shape.softmax_scale / usual)
        elif (".blocks." in name and ".output." in name) or ".feed_forward.down." in name:
            multiply(name, shape.scaling.branch_multiplier)
    if all(math.frexp(factor)[0] == 0.5 for factor in factors):  # powers of two: no type rounds their products
        return {name: tensor.to(given[name].dtype) for name, tensor in parameters.items()}
    return {name: tensor.float() for name, tensor in parameters.items()}  # all alike: a format states one type


PROBLEM_TYPES = {
    "classify": "single_label_classification",
    "classify_many": "multi_label_classification",
    "regress": "regression",
}

# What a head is for, by training.task.
KINDS = {
    "causal": "causal",
    "chat": "causal",
    "masked": "masked",
    "span": "seq2seq",
    "seq2seq": "seq2seq",
    "classify": "classify",
    "classify_many": "classify",
    "regress": "classify",
    "tag": "tag",
}


@dataclass(frozen=True)
class Exported:
    folder: Path
    format: str
    architecture: str
    parameters: int
    difference: float  # the largest one between our logits and those of the loaded folder
    added: int = 0  # parameters, all of them zero, that the format has and the model has not, such as biases


def export_task(
    task: nn.Module,
    tokenizer: Exportable,
    config: Config,
    folder: str | Path,
    *,
    format: str = "auto",
    label_names: Sequence[str] = (),
    base: BaseSettings | None = None,
) -> Exported:
    """Write config.json, weights and tokenizer; they are kept if transformers loads them and computes the same. What
    else the configuration of the pretrained model says (`base`) is kept."""
    import_transformers()  # said before anything is written
    kind = kind_of(task, config) if config.model.type in OF_TYPE else ""
    name = choose_format(config, format)
    form = FORMATS[name]
    shape: Shape = task.body.shape  # pyright: ignore[reportAssignmentType, reportAttributeAccessIssue]
    by_format = shape.hidden_size**-0.5 if name == "t5" and config.model.tie_embeddings else 1.0
    parameters = folded_parameters(task, shape, head_multiplier=by_format)
    rules = list(form.rules(shape, kind, config.model.tie_embeddings))
    if unknown := sorted(parameters.keys() - {rule.native for rule in rules}):
        raise UserError(f"the format {name} has no place for {len(unknown)} parameters, such as {unknown[0]}.")

    ids = special_ids(tokenizer, kind)
    about = {"architectures": [form.ARCHITECTURES[kind]], **form.config_json(config, shape), **_tokens(ids, kind)}
    about |= _labels(config, kind, label_names or _own_labels(task), task)
    tensors = to_foreign(rules, parameters, shape.vocab_size)
    about["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    settings, special = base or BaseSettings(), tokenizer.special_names

    def write(unfinished: Path) -> None:
        _write_json(unfinished / CONFIG, settings.with_config(about, special))
        if kind in ("causal", "seq2seq"):
            generation = settings.with_generation(_generation(ids, kind, _ends(task)), special)
            _write_json(unfinished / GENERATION_CONFIG, generation)
        write_weights(unfinished, tensors)

    longest = shape.num_positions if shape.position == "learned" else shape.max_seq_length
    difference = _prove_and_keep(task, tokenizer, config, kind, Path(folder), (longest, shape.num_positions), write)
    count = sum(tensor.numel() for tensor in tensors.values())
    added = max(0, count - sum(parameter.numel() for parameter in task.parameters()))
    return Exported(Path(folder), name, form.ARCHITECTURES[kind], count, difference, added)


def export_network(task: nn.Module, tokenizer: Exportable, config: Config, folder: str | Path) -> Exported:
    """The same for a task around a network of transformers, which writes itself."""
    kind = KINDS[task_name(config)]
    network: Any = task.network  # pyright: ignore[reportAttributeAccessIssue]
    names = _own_labels(task)
    if kind in ("classify", "tag"):
        network.config.id2label = dict(enumerate(names)) or network.config.id2label
        network.config.label2id = {name: number for number, name in network.config.id2label.items()}

    if kind in ("causal", "seq2seq") and (ends := _ends(task)) is not None:
        network.generation_config.eos_token_id = ends

    def write(unfinished: Path) -> None:
        with quiet_transformers():
            network.save_pretrained(unfinished)

    length = config.data.max_seq_length
    lengths = (length, max(length, _learned_positions(network)))
    difference = _prove_and_keep(task, tokenizer, config, kind, Path(folder), lengths, write)
    count = sum(parameter.numel() for parameter in network.parameters())
    return Exported(Path(folder), network.config.model_type, type(network).__name__, count, difference)


def _learned_positions(network: Any) -> int:
    """As many tokens as config.json has positions for, less those that are never used, as in RoBERTa."""
    positions = getattr(network.config, "max_position_embeddings", None) or 0
    table = getattr(getattr(network.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return positions if padding is None else positions - padding - 1


def _prove_and_keep(
    task: nn.Module,
    tokenizer: Exportable,
    config: Config,
    kind: str,
    target: Path,
    lengths: tuple[int, int],
    write: Callable[[Path], None],
) -> float:
    """Written beside the target, and renamed to it only when all of it was loaded and compared. `lengths`: the longest
    text to compare, and the longest that the model can read."""
    check_target(target)
    unfinished = target.parent / f".{target.name}.unfinished-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        write(unfinished)
        library = write_tokenizer(unfinished, tokenizer, kind, lengths[1], _chat_template(task))
        if difference := first_difference(unfinished, tokenizer, probe_texts(tokenizer), library):
            raise RunError(f"the exported tokenizer gives other ids than the run's: {difference}. Nothing was written.")
        rows = token_rows(ordinary_tokens(tokenizer), real_tokens(tokenizer), lengths[0])
        if kind in ("classify", "tag"):  # some heads read where a text ends: it must end as those of the training did
            rows = framed_rows(rows, type(task).frame(config, tokenizer))  # pyright: ignore[reportAttributeAccessIssue]
        largest = largest_difference(task, kind, unfinished, rows, tokenizer.padding)
        if target.exists():
            target.rmdir()  # it is empty
        unfinished.rename(target)
    except OSError as error:
        raise UserError(f"{target} could not be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return largest


def choose_format(config: Config, format: str = "auto") -> str:
    """The one that can hold this model exactly; UserError names the knobs that stand in the way."""
    if format != "auto" and format not in FORMATS:
        raise UserError(f"format: must be one of auto, {', '.join(FORMATS)}, but got {format!r}.")
    candidates = OF_TYPE.get(config.model.type, ())
    if not candidates:
        raise UserError(f"model.type {config.model.type} cannot be exported: only {', '.join(OF_TYPE)} can.")
    if format != "auto":
        if format not in candidates:
            raise UserError(
                f"format: a {config.model.type} can be exported as {' or '.join(candidates)}, not {format}."
            )
        candidates = (format,)
    elif config.model.family in candidates:
        candidates = (config.model.family, *(name for name in candidates if name != config.model.family))
    nearest, found = nearest_format(config, candidates)
    if not found:
        return nearest
    reasons = [
        str(Problem(nearest, path, f"must be {' or '.join(needed)}, but is {show(config.get(path))}."))
        for path, needed in found.items()
    ]
    raise UserError(
        f"no format can represent this model exactly. The closest is {nearest}, but:\n" + "\n".join(reasons)
    )


def check_target(target: Path) -> None:
    if target.is_symlink():
        raise UserError(f"{target} is a link to {target.resolve()}: choose a folder that does not exist.")
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists():
        raise UserError(f"{target} exists already: choose another folder, or remove it first.")


def _tokens(ids: dict[str, int], kind: str) -> dict[str, Any]:
    """Ids in config.json; null where there is none, or transformers would take its own default."""
    tokens: dict[str, Any] = {f"{role}_token_id": ids.get(role) for role in ("pad", "bos", "eos")}
    if kind == "seq2seq":
        tokens["decoder_start_token_id"] = ids.get("pad", 0)
    return tokens


def _generation(ids: dict[str, int], kind: str, ends: int | list[int] | None) -> dict[str, Any]:
    tokens = _tokens(ids, kind) | ({} if ends is None else {"eos_token_id": ends})
    return {name: number for name, number in tokens.items() if number is not None}


def _ends(task: nn.Module) -> int | list[int] | None:
    """Every token that stops generation here stops it in transformers too."""
    ends: list[int] = list(getattr(getattr(task, "facts", None), "ends", ()))
    return ends if len(ends) > 1 else next(iter(ends), None)


def _labels(config: Config, kind: str, names: Sequence[str], task: nn.Module) -> dict[str, Any]:
    if kind not in ("classify", "tag"):
        return {}
    count: int = task.head.out_features  # pyright: ignore
    names = list(names) or [f"LABEL_{number}" for number in range(count)]
    labels: dict[str, Any] = {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if kind == "classify":
        labels["problem_type"] = PROBLEM_TYPES.get(task_name(config), "single_label_classification")
    return labels


def _own_labels(task: nn.Module) -> Sequence[str]:
    return getattr(getattr(task, "facts", None), "label_names", ())


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _chat_template(task: nn.Module) -> str | None:
    return getattr(getattr(task, "facts", None), "chat_template", None)
