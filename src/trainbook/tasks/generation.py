"""Generation: sampling, and the tokens that end it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainbook.bounded import json_text
from trainbook.data import Tokenizer
from trainbook.data.sources.chat import chat_with
from trainbook.errors import UserError
from trainbook.knobs import recipes
from trainbook.knobs.config import Config
from trainbook.knobs.hub import CONFIG, find_folder
from trainbook.tasks.beam import Decoder
from trainbook.tasks.causal import CausalLanguageModel
from trainbook.tasks.seq2seq import SearchableDecoder, Seq2SeqModel

GREEDY_BELOW = 1e-4  # dividing logits by less would overflow, and the choice is the likeliest token anyway


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0  # 0: always the likeliest token
    top_k: int | None = None  # only among the k likeliest
    top_p: float | None = None  # only among the fewest that together have this probability
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:  # also not a number
            raise UserError(f"temperature: must be >= 0, but got {self.temperature}.")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed: must be >= 0 and < 2^63, but got {self.seed}.")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top-k: must be >= 1, but got {self.top_k}.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top-p: must be > 0 and <= 1, but got {self.top_p}.")

    def pick(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """One token id for each row of logits (B, V)."""
        if self.temperature < GREEDY_BELOW:
            return logits.argmax(-1)
        probabilities = self.probabilities(logits.float().cpu())
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            smallest_kept = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < smallest_kept, float("-inf"))
        probabilities = logits.softmax(-1)
        if self.top_p is not None and self.top_p < 1:  # at 1, rounding in the sum would cut off the tail
            ordered, order = probabilities.sort(descending=True)
            reached_before = ordered.cumsum(-1) - ordered  # the token that crosses the line is kept
            ordered = ordered.masked_fill(reached_before >= self.top_p, 0.0)
            probabilities = torch.zeros_like(probabilities).scatter(-1, order, ordered)
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities


@torch.no_grad()
def generate_tokens(
    model: CausalLanguageModel | Seq2SeqModel | Any,
    prompt: list[int],
    max_new_tokens: int,
    sampling: Sampling,
    end_tokens: Collection[int] = (),
) -> Iterator[int]:
    """Yield new token ids: what follows the prompt, or, of a model with an encoder, the answer to it.

    An encoder is given the prompt as it was in training, with whatever the task puts around a text. A model that is not
    ours has `start`, `step` and `reorder`, as a search wants it.
    """
    model.eval()
    generator = torch.Generator().manual_seed(sampling.seed)
    if isinstance(model, CausalLanguageModel):
        tokens = _write_on(model, prompt, max_new_tokens, sampling, generator)
    else:  # a network that is not ours is itself what a search asks for tokens
        decoder: Decoder[Any] = model  # pyright: ignore[reportAssignmentType]
        if isinstance(model, Seq2SeqModel):
            max_new_tokens = model.most_tokens(max_new_tokens)
            decoder = SearchableDecoder(model, max_new_tokens)
        tokens = _answer(decoder, prompt, max_new_tokens, sampling, generator, _device(model))
    for token in tokens:
        if token in end_tokens:
            return
        yield token


def _answer(
    decoder: Decoder[Any],
    prompt: list[int],
    max_new_tokens: int,
    sampling: Sampling,
    generator: torch.Generator,
    device: torch.device,
) -> Iterator[int]:
    tokens, state = decoder.start({"input_ids": torch.tensor([prompt], device=device)})
    for _ in range(max_new_tokens):
        tokens = sampling.pick(decoder.step(tokens, state), generator).to(device)
        yield int(tokens)


def _write_on(
    model: CausalLanguageModel,
    prompt: list[int],
    max_new_tokens: int,
    sampling: Sampling,
    generator: torch.Generator,
) -> Iterator[int]:
    """Keys and values of earlier positions are kept, so each token costs one position.

    When the context is full, the older half of it is dropped and the newer half is read again.
    """
    device = _device(model)
    limit = model.body.shape.max_seq_length
    context = list(prompt)
    caches, pending = None, []
    for _ in range(max_new_tokens):
        if caches is None or caches[0].length + len(pending) > limit:
            pending = context[-limit:] if caches is None else context[-max(1, limit // 2) :]
            caches = model.body.new_caches(1, model.head.weight.dtype)
        logits = model.next_logits(torch.tensor([pending], device=device), caches)
        token = int(sampling.pick(logits, generator))
        yield token
        context.append(token)
        pending = [token]


def _device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


# Tokens at which generation stops: those of the tokenizer, of the chat template and of generation_config.json.


GENERATION_CONFIG = "generation_config.json"
FACTS_FILE = "facts.json"  # of an earlier run, beside its tokenizer


def end_tokens(config: Config, tokenizer: Tokenizer, chat_template: str | None) -> tuple[int, ...]:
    """The tokenizer's own end of text first. A number that a configuration names is taken only if the tokenizer has it
    as a special token: defaults of transformers stand in many a config.json, whatever the tokenizer."""
    found = [tokenizer.end_of_text]
    special = tokenizer.special_names
    if chat_template is not None:
        turn_end = chat_with(chat_template, tokenizer).turn_end()
        found += [number for number, name in special.items() if name == turn_end]
    found += [number for number in _of_pretrained(config) if number in special]
    return tuple(dict.fromkeys(number for number in found if number is not None))


def _of_pretrained(config: Config) -> list[int]:
    name = config.model.pretrained
    if name is None or recipes.is_recipe(name):
        return []
    try:
        folder = find_folder(name)
    except UserError:  # the folder is gone: its weights are in the run's own checkpoints
        return []
    if recipes.is_run(name):
        return _numbers(json_text.read_object(folder / "tokenizer" / FACTS_FILE).get("ends"))
    settings = json_text.read_object(folder / GENERATION_CONFIG) or json_text.read_object(folder / CONFIG)
    return _numbers(settings.get("eos_token_id"))


def _numbers(value: Any) -> list[int]:
    """One number or a list of them."""
    return [number for number in (value if isinstance(value, list) else [value]) if type(number) is int]
