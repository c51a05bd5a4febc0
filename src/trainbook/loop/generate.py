"""A run's model, read from its folder and let write."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from trainbook.checkpoints import CheckpointStore
from trainbook.data.tokenizers import load_tokenizer
from trainbook.errors import RunFolderError, UserError
from trainbook.knobs import load
from trainbook.loop.device import choose_device, prepared_device
from trainbook.precision import Precision
from trainbook.runs import RunFolder
from trainbook.tasks import CausalLanguageModel, Sampling, generate_tokens


def generate_text(
    run: RunFolder,
    prompt: str = "",
    *,
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    checkpoint: str = "best",
    device: str = "auto",
) -> Iterator[str]:
    """Yield the text piece by piece, as it is written. `checkpoint` is best, latest, or a step."""
    sampling = Sampling(temperature, top_k, top_p, seed)
    if max_new_tokens < 1:
        raise UserError(f"max-new-tokens: must be >= 1, but got {max_new_tokens}.")
    if run.read_manifest().recipe == "fit":
        raise RunFolderError(
            f"{run.path} was made by trainbook.fit from a module of your own, which cannot be built here."
        )
    if not run.tokenizer.exists():
        raise RunFolderError(f"{run.path} has lost its tokenizer: resume the run, and it is written again.")
    config = load(run.config).config
    where = choose_device(device)
    tokenizer = load_tokenizer(run.tokenizer)
    precision = Precision(config.precision, where)
    model = CausalLanguageModel.build(config, tokenizer.vocab_size, where, precision.weight_dtype)
    model.load_state_dict(_weights(run, checkpoint))

    ids = tokenizer.encode(prompt).tolist() if prompt else []
    if not ids:  # begin as a document begins: behind the end of another
        ids = [tokenizer.end_of_text] if tokenizer.end_of_text is not None else tokenizer.encode("\n").tolist()
    written: list[int] = []
    shown = ""
    with prepared_device(config, where, config.model.hidden_size):
        for token in generate_tokens(model, ids, max_new_tokens, sampling, tokenizer.end_of_text):
            written.append(token)
            text = tokenizer.decode(written)
            if not text.endswith("\ufffd"):  # a character whose bytes are not all there yet waits for the rest
                yield text[len(shown) :]
                shown = text
    if written and len(text := tokenizer.decode(written)) > len(shown):
        yield text[len(shown) :]


def _weights(run: RunFolder, checkpoint: str) -> dict[str, torch.Tensor]:
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
