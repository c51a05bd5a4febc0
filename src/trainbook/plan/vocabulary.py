"""How many tokens there are, and how many labels: no knobs, but of the tokenizer and of the data. What paper cannot say
is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.knobs.hub import is_folder, read_config
from trainbook.knobs.loading import load
from trainbook.knobs.recipes import config_of, is_recipe

BYTES = 257  # all bytes, and the end of a text
BPE = 4096  # as the tokenizer's default is
SENTINELS = 100
# Special tokens that our own tokenizers append to the others, by what the task needs.
SPECIALS = {
    "masked": 4,
    "span": 1 + SENTINELS,
    "seq2seq": 1,
    "classify": 3,
    "classify_many": 3,
    "regress": 3,
    "tag": 3,
}
OWN = "tokenizer.json"  # what packaged recipes name, in the place of one that the user brings
PUBLISHED = {"bert": ("BERT", 30_522), "t5": ("T5", 32_100), "llama": ("Llama 2", 32_000), "gpt": ("GPT-2", 50_257)}
LABELLED = ("classify", "classify_many", "tag")


def vocabulary(config: Config, stated: int | None = None) -> int:
    """As stated (--vocab-size), or as the tokenizer's knobs or its file say."""
    if stated is not None:
        if stated < 1:
            raise UserError(f"--vocab-size: must be >= 1, but got {stated}.")
        return stated
    name, pretrained = config.data.tokenizer, config.model.pretrained
    # A model that a recipe trains first has the special tokens of that recipe's task.
    first = config_of(pretrained, load) if pretrained is not None and is_recipe(pretrained) else config
    specials = SPECIALS.get(task_name(first), 0)
    if name == "byte":
        return BYTES + specials
    if name == "bpe":
        return (config.data.vocab_size or BPE) + specials
    if config.model.type == "hf" and (rows := _rows_of(config.model.pretrained)) is not None:
        return rows
    file = Path(name).expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    if name not in ("char", "word") and file.is_file():
        return _in_file(file)
    if config.data.vocab_size is not None:
        return config.data.vocab_size
    if name == OWN:
        return _published(config)[1]
    why = "has it only after reading the text" if name in ("char", "word") else "is not available"
    raise UserError(
        f"plan: the size of the vocabulary must be known, but data.tokenizer={name} {why}. Pass --vocab-size N "
        "(characters of English text: about 65; GPT-2: 50257; BERT: 30522; T5: 32128; Llama 2: 32000)."
    )


def assumption(config: Config, stated: int | None = None) -> str | None:
    """What to say of a vocabulary that is only assumed."""
    if stated is not None or config.data.vocab_size is not None:
        return None
    if config.data.tokenizer == OWN and not Path(OWN).exists():
        model, size = _published(config)
        return (
            f"the vocabulary is assumed to have {size:,} tokens, as {model}'s has: {OWN} is not here (set another size "
            "with --vocab-size N)"
        )
    if config.data.tokenizer != "bpe":
        return None
    return (
        f"the vocabulary is assumed to have {BPE:,} tokens, the default of data.vocab_size with bpe; from a small text "
        "bpe makes fewer, and the model is smaller then (set another size with --vocab-size N)"
    )


def _published(config: Config) -> tuple[str, int]:
    """The model that this one is built after, and the size of its vocabulary."""
    model = config.model
    is_llama = model.type == "gpt" and model.norm == "rmsnorm" and model.position == "rotary"
    return PUBLISHED["llama" if is_llama else model.type]


ASSUMED_LABELS = "2 labels are assumed; set another number with --num-labels N"


def labels(config: Config, stated: int | None = None) -> tuple[int, str | None]:
    """How many, and a remark if that was not said."""
    task = task_name(config)
    if stated is not None and stated < 1:
        raise UserError(f"--num-labels: must be >= 1, but got {stated}.")
    if stated is not None and task not in LABELLED:
        raise UserError(
            f"--num-labels: has no effect with training.task={task}: only {', '.join(LABELLED)} predict labels."
        )
    if task not in LABELLED:
        return 1, None
    if stated is not None:
        return stated, None
    return 2, ASSUMED_LABELS


def _rows_of(pretrained: str | None) -> int | None:
    """Of a model of Hugging Face: its embedding may have more rows than its tokenizer has tokens."""
    if pretrained is None or not is_folder(pretrained):
        return None
    rows = read_config(Path(pretrained).expanduser()).get("vocab_size")
    return rows if type(rows) is int and rows > 0 else None


def _in_file(file: Path) -> int:
    try:
        content = json_text.read(file)
        return _ours(content) if "trainbook" in content else _librarys(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"data.tokenizer: {file} must be a tokenizer.json, but it cannot be read ({error!r})."
        ) from None


def _ours(content: Mapping[str, Any]) -> int:
    roles = content.get("specials", ())
    specials = sum(SENTINELS if role == "sentinels" else 1 for role in roles)
    if content["trainbook"] == "byte":
        return BYTES + specials
    pieces = content["characters"] if content["trainbook"] == "char" else content["words"]
    return len(pieces) + bool(content["end_of_text"]) + specials


def _librarys(content: Mapping[str, Any]) -> int:
    """Tokens of the model, and those added behind them."""
    model = content["model"]["vocab"]
    last = max(model.values()) if isinstance(model, Mapping) else len(model) - 1
    return 1 + max([last, *(token["id"] for token in content.get("added_tokens", ()))])
