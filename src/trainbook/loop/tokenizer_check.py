"""Before a pretrained model is trained: whether transformers will give it the ids that the run gives it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from trainbook.data import Tokenizer
from trainbook.errors import UserError
from trainbook.knobs import own_models
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.knobs.hub import find_folder, has_tokenizer, read_config
from trainbook.models.formats.exporting import KINDS, choose_format
from trainbook.models.formats.token_ids import first_difference, must_survive_export, probe_texts

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
    if model_type is None or not find_spec("transformers"):
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
    if name is None or ":" in config.model.type or own_models.is_recipe(name) or own_models.is_run(name):
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
