"""Writing the likeliest text for each sample of a batch: token by token, or with several candidates side by side.

Both search over anything that can say, for rows of a batch, which token may come next. Rows are dropped as soon as
their sample is finished, so that one long answer does not keep a whole batch busy.

Shapes in comments: N rows, S samples that are still written, K beams, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

State = TypeVar("State")
NEVER = float("-inf")  # the score of what cannot be


class Decoder(Protocol[State]):
    """What a search needs of a model."""

    def start(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """Read the inputs, once. The first token to go on from, for each row (N,), and what has been read."""
        ...

    def step(self, tokens_N: Tensor, state: State) -> Tensor:
        """Logits (N, V) of what follows these tokens, which the state remembers from now on."""
        ...

    def reorder(self, state: State, index_M: Tensor) -> State:
        """The state of other rows: row i is the old row index[i]. There may be more or fewer of them than before."""
        ...


@dataclass(frozen=True)
class Written:
    tokens: list[int]  # without the first token and the end
    score: float  # sum of log probabilities, the end's included, over length ** length_penalty
    ended: bool  # by an end token, not by the limit


@torch.no_grad()
def write(
    decoder: Decoder[State],
    batch: Mapping[str, Tensor],
    *,
    max_new_tokens: int,
    end_tokens: Collection[int],
    num_beams: int = 1,
    length_penalty: float = 1.0,
) -> list[Written]:
    """The best answer found for each row of the batch, in their order."""
    if num_beams == 1:
        return greedy_search(
            decoder, batch, max_new_tokens=max_new_tokens, end_tokens=end_tokens, length_penalty=length_penalty
        )
    return beam_search(
        decoder,
        batch,
        max_new_tokens=max_new_tokens,
        end_tokens=end_tokens,
        num_beams=num_beams,
        length_penalty=length_penalty,
    )


@torch.no_grad()
def greedy_search(
    decoder: Decoder[State],
    batch: Mapping[str, Tensor],
    *,
    max_new_tokens: int,
    end_tokens: Collection[int],
    length_penalty: float = 1.0,
) -> list[Written]:
    """The likeliest token each time."""
    tokens_S, state = decoder.start(batch)
    samples_S = torch.arange(len(tokens_S), device=tokens_S.device)
    scores_S = torch.zeros(len(tokens_S), dtype=torch.float32, device=tokens_S.device)
    written_SL = tokens_S.new_zeros(len(tokens_S), max_new_tokens)
    ends = tokens_S.new_tensor(list(end_tokens))
    results: dict[int, Written] = {}
    for place in range(max_new_tokens):
        log_probabilities = decoder.step(tokens_S, state).float().log_softmax(-1)
        gained_S, tokens_S = log_probabilities.max(-1)
        written_SL[:, place] = tokens_S
        scores_S = scores_S + gained_S
        is_done = torch.isin(tokens_S, ends) | (place + 1 == max_new_tokens)
        if not bool(is_done.any()):
            continue
        rates = scores_S / (place + 1) ** length_penalty
        done = is_done.nonzero().squeeze(-1)
        answers = written_SL[done, : place + 1], rates[done]
        results.update(_collect(samples_S[done], *answers, [place + 1] * len(done), end_tokens))
        going_on = (~is_done).nonzero().squeeze(-1)
        if len(going_on) == 0:
            break
        state = decoder.reorder(state, going_on)
        samples_S, scores_S, written_SL, tokens_S = _rows(going_on, samples_S, scores_S, written_SL, tokens_S)
    return [results[sample] for sample in sorted(results)]


@torch.no_grad()
def beam_search(
    decoder: Decoder[State],
    batch: Mapping[str, Tensor],
    *,
    max_new_tokens: int,
    end_tokens: Collection[int],
    num_beams: int,
    length_penalty: float = 1.0,
) -> list[Written]:
    """The best of `num_beams` candidates, by the sum of log probabilities over length ** length_penalty.

    Candidates that end are set aside. A sample is finished once `num_beams` of them are, and none of those still open
    would, if it ended now, do better than the worst of these: what transformers does by default. It is a guess: a
    longer candidate may have a better mean than it has now.
    """
    first_N, state = decoder.start(batch)
    device, num_samples = first_N.device, len(first_N)
    all_ends = first_N.new_tensor(list(end_tokens))
    state = decoder.reorder(state, torch.arange(num_samples, device=device).repeat_interleave(num_beams))
    samples_S = torch.arange(num_samples, device=device)
    last_SK = first_N[:, None].expand(-1, num_beams)
    open_SKL = first_N.new_zeros(num_samples, num_beams, max_new_tokens)
    # All beams of a sample are alike at first: only one of them may have candidates, or all would stay alike.
    scores_SK = torch.full((num_samples, num_beams), NEVER, device=device)
    scores_SK[:, 0] = 0.0
    closed_SKL, closed_scores_SK = torch.zeros_like(open_SKL), torch.full_like(scores_SK, NEVER)
    closed_lengths_SK = torch.zeros_like(last_SK)
    num_candidates = max(2, 1 + len(all_ends)) * num_beams
    results: dict[int, Written] = {}

    for place in range(max_new_tokens):
        length = place + 1
        logits = decoder.step(last_SK.reshape(-1), state)
        totals = logits.float().log_softmax(-1).view(*scores_SK.shape, logits.shape[-1]) + scores_SK[:, :, None]
        # Each beam can end in as many ways as there are end tokens: with so many candidates, enough of them stay open.
        every = totals.flatten(1)
        best, where = every.topk(min(num_candidates, every.shape[1]))
        beams, tokens = where // totals.shape[-1], where % totals.shape[-1]
        candidates = _of_each(open_SKL, beams)
        candidates[:, :, place] = tokens
        ends = torch.isin(tokens, all_ends) | (length == max_new_tokens)

        # Set aside what ends among the best; those of the second half stand in for it only.
        ending = torch.where(ends[:, :num_beams], best[:, :num_beams] / length**length_penalty, NEVER)
        closed_scores_SK, kept = torch.cat([closed_scores_SK, ending], 1).topk(num_beams)
        closed_SKL = _of_each(torch.cat([closed_SKL, candidates[:, :num_beams]], 1), kept)
        lengths = torch.full_like(tokens[:, :num_beams], length)
        closed_lengths_SK = torch.cat([closed_lengths_SK, lengths], 1).gather(1, kept)

        scores_SK, kept = torch.where(ends, NEVER, best).topk(num_beams)
        open_SKL, last_SK, beams = _of_each(candidates, kept), tokens.gather(1, kept), beams.gather(1, kept)

        is_done = scores_SK[:, 0] / length**length_penalty <= closed_scores_SK[:, -1]
        is_done |= length == max_new_tokens
        done, going_on = is_done.nonzero().squeeze(-1), (~is_done).nonzero().squeeze(-1)
        if len(done) > 0:
            lengths = closed_lengths_SK[done, 0].tolist()
            answers = closed_SKL[done, 0], closed_scores_SK[done, 0]
            results.update(_collect(samples_S[done], *answers, lengths, end_tokens))
        if len(going_on) == 0:
            break
        rows = torch.arange(len(samples_S), device=device)[:, None] * num_beams + beams
        state = decoder.reorder(state, rows[going_on].reshape(-1))
        if len(done) > 0:
            samples_S, last_SK, open_SKL, scores_SK = _rows(going_on, samples_S, last_SK, open_SKL, scores_SK)
            closed_SKL, closed_scores_SK, closed_lengths_SK = _rows(
                going_on, closed_SKL, closed_scores_SK, closed_lengths_SK
            )
    return [results[sample] for sample in sorted(results)]


def _rows(index: Tensor, *tensors: Tensor) -> list[Tensor]:
    return [values[index] for values in tensors]


def _of_each(values_SKL: Tensor, index_SK: Tensor) -> Tensor:
    """For each sample, the rows that its index names."""
    return values_SKL.gather(1, index_SK[:, :, None].expand(-1, -1, values_SKL.shape[-1]))


def _collect(
    samples: Tensor, tokens: Tensor, scores: Tensor, lengths: list[int], end_tokens: Collection[int]
) -> dict[int, Written]:
    results = {}
    for sample, row, score, length in zip(samples.tolist(), tokens.tolist(), scores.tolist(), lengths, strict=True):
        row = row[:length]
        ended = row[-1] in end_tokens
        results[sample] = Written(row[:-1] if ended else row, score, ended)
    return results
