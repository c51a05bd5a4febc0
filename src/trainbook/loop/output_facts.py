"""What a loss asks of a model that reads tokens, read off the gradient of its outputs: whoever computes the loss, the
lowest gradient at a place is that of the token to be predicted there, and a place without gradients does not count.

A module is looked at in a few training passes. Nothing is changed, nothing is kept of a batch but a few sums, and no
device is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainbook.guard.hooks import Hook
from trainbook.loop.step_metrics import left_as_it_was

LOOKS = (1, 2, 3, 4, 8, 16, 32)  # training passes
TOKENS = ("decoder_input_ids", "input_ids", "tokens", "inputs", "x")  # names of what is read, before any other
OFFSETS = (0, 1, 2)  # from a place to the token that it is to predict
LEAST_TAIL = 2  # equal tokens at the end of a row: padding
ENOUGH = 64  # places that count
NEXT = 0.9  # of the targets: the model is trained to predict the next token, and must not see it

SUMS = (  # over the places of a batch
    "judged",  # they count in the loss and are no padding; the last two of each row are left out
    *(f"offset {each}" for each in OFFSETS),  # judged, and the target is the token at this offset
    "counted",  # in the loss
    "padding",  # counted in the loss, although it is padding
    "read",  # by the model, and no padding
    "commonest",  # read, and the token that is read most often
    "hidden",  # judged, and the token that is read most often stands in place of the target
    "all",
)


class ModelCall(NamedTuple):
    """Of one pass: the tokens, the outputs, and what was called to get them."""

    tokens: Tensor
    outputs: Tensor
    called: Callable[..., Any]
    arguments: tuple
    keywords: dict[str, Any]


class OutputFacts:
    """Of a module with tokens (rows, length) as inputs and outputs (rows, length, vocabulary).

    A task of a configuration answers with losses. Given its `vocab_size`, the outputs are those of its method `logits`
    or of one of its parts.
    """

    def __init__(self, model: nn.Module, *, vocab_size: int | None = None) -> None:
        self.sums: Tensor | None = None  # as SUMS, on the device
        self._model, self._vocab_size = model, vocab_size
        self._passes = self._added = self._told = 0
        self._failed = self._has_probed = False
        self._example: tuple[Callable[..., Any], tuple, dict[str, Any]] | None = None  # what was called, with what
        # A module of Lightning's is not called itself: then a part of it is what computes the outputs.
        self._is_called = False
        self._tokens: Tensor | None = None  # of a task, while it is called
        self._inside: ModelCall | None = None  # the last outputs while a task is called
        self._is_listening = False  # to `logits`
        self._hooks = [
            model.register_forward_pre_hook(Hook(self._before_forward), with_kwargs=True),
            model.register_forward_hook(
                Hook(self._after_forward), with_kwargs=True, always_call=vocab_size is not None
            ),
            *(part.register_forward_hook(Hook(self._after_part), with_kwargs=True) for part in model.children()),
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def news(self, *, is_last: bool = False) -> Tensor | None:
        """The sums, when there are twice as many passes behind them as when they were told before. No host sync."""
        if self.sums is None or self._added < (self._told + 1 if is_last else max(1, 2 * self._told)):
            return None
        self._told = self._added
        return self.sums

    def read(self) -> dict[str, Any]:
        """The news as facts. Reads the device."""
        return {} if (sums := self.news()) is None else self.facts(sums.tolist())

    def facts(self, sums: Sequence[float]) -> dict[str, Any]:
        """Given the news as they were read. Once, where the next token is to be predicted: whether later ones are seen,
        by two more passes in evaluation mode, after which all is as before."""
        facts = token_facts(sums)
        shares = facts.get("token_targets")
        if not self._has_probed and shares is not None:
            self._has_probed = True
            if shares["1"] > NEXT:
                self._quietly(self._probe, facts)
        if self._has_probed or self._is_over:
            self._example = None
        return facts

    @property
    def _is_over(self) -> bool:
        return self._passes > LOOKS[-1]

    @torch.no_grad()
    def _probe(self, facts: dict[str, Any]) -> None:
        if self._example is None or _is_distributed():
            return
        called, arguments, keywords = self._example
        tokens = _tokens_in([*_by_name(keywords), *arguments])
        assert tokens is not None
        changed = tokens.clone()
        half = tokens.shape[1] // 2
        changed[:, half:] = torch.where(tokens[:, half:] == tokens.max(), tokens.min(), tokens.max())
        device = next(self._model.parameters()).device
        found = []
        for ids in (tokens, changed):
            with left_as_it_was(self._model, device):
                given = [ids if each is tokens else each for each in arguments]
                named = {name: ids if each is tokens else each for name, each in keywords.items()}
                found.append(_outputs_in(called(*given, **named)))
        before, after = found
        if before is not None and after is not None and half:
            difference = (after[:, :half] - before[:, :half]).abs().amax().float()
            facts["later_tokens_seen"] = float(difference / before[:, :half].float().std().clamp(min=1e-6))

    # A pass

    @property
    def _is_looked_at(self) -> bool:
        return not (torch.compiler.is_compiling() or not torch.is_grad_enabled() or self._failed)

    def _before_forward(self, model: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> None:
        self._is_called = True
        if self._vocab_size is not None and self._is_looked_at and self._passes + 1 in LOOKS:
            self._quietly(self._begin_task, model, arguments, keywords)

    def _begin_task(self, task: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> None:
        self._tokens, self._inside = _tokens_in([*_by_name(keywords), *arguments]), None
        method = getattr(task, "logits", None)
        if method is None or "logits" in vars(task):
            return

        def logits(*given: Any, **named: Any) -> Any:
            output = method(*given, **named)
            self._quietly(self._note_inside, method, given, named, output)
            return output

        vars(task)["logits"], self._is_listening = logits, True  # until the pass is over

    def _note_inside(self, called: Callable[..., Any], arguments: tuple, keywords: dict[str, Any], output: Any) -> None:
        outputs, tokens = _outputs_in(output), self._tokens
        if tokens is None or outputs is None or self._vocab_size is None or outputs.shape[-1] < self._vocab_size:
            return
        if outputs.shape[:2] == tokens.shape:
            self._inside = ModelCall(tokens, outputs, called, arguments, keywords)

    def _after_part(self, part: nn.Module, arguments: tuple, keywords: dict[str, Any], output: Any) -> None:
        if not self._is_looked_at:
            return
        if self._tokens is not None:
            self._quietly(self._note_inside, part, arguments, keywords, output)
        elif not self._is_called:
            self._after_pass(part, arguments, keywords, output)

    def _after_forward(self, model: nn.Module, arguments: tuple, keywords: dict[str, Any], output: Any) -> None:
        if self._is_listening:
            del vars(model)["logits"]
            self._is_listening = False
        if self._is_looked_at:
            self._after_pass(model, arguments, keywords, output)
        self._tokens = self._inside = None

    def _after_pass(self, called: nn.Module, arguments: tuple, keywords: dict[str, Any], output: Any) -> None:
        self._passes += 1
        if self._passes in LOOKS:
            self._quietly(self._look, called, arguments, keywords, output)
        elif self._is_over:
            self.close()
            if self.sums is None:
                self._example = None

    def _look(self, called: nn.Module, arguments: tuple, keywords: dict[str, Any], output: Any) -> None:
        seen = self._inside if self._vocab_size is not None else _seen(called, arguments, keywords, output)
        if seen is None or not seen.outputs.requires_grad:
            return
        if not self._has_probed and _tokens_in([*_by_name(seen.keywords), *seen.arguments]) is not None:
            self._example = (seen.called, *_first_rows(seen.arguments, seen.keywords, len(seen.tokens)))
        tokens = seen.tokens.detach().clone()  # a loop may write into its own
        seen.outputs.register_hook(Hook(lambda gradient: self._quietly(self._add, tokens, gradient)))

    @torch.no_grad()
    def _add(self, tokens: Tensor, gradient: Tensor) -> None:
        found = sums_of(tokens, gradient)
        self._added += 1
        self.sums = found if self.sums is None else self.sums + found

    def _quietly(self, function: Any, *given: Any) -> None:
        """Whatever is odd about somebody's model, looking at it never stops their training."""
        try:
            function(*given)
        except Exception:
            self._failed, self.sums = True, None


def sums_of(tokens: Tensor, gradient: Tensor) -> Tensor:
    """As SUMS, of tokens (rows, length) and the gradient (rows, length, vocabulary) of the outputs there."""
    lowest, targets = gradient.min(-1)
    counts = lowest < 0
    is_tail = padding_of(tokens)
    length = max(0, tokens.shape[1] - max(OFFSETS))  # of which all these tokens are known
    judged = (counts & ~is_tail)[:, :length]
    alike = [(judged & (targets[:, :length] == tokens[:, each : each + length])).sum() for each in OFFSETS]
    commonest = commonest_of(tokens)
    is_commonest = (tokens == commonest) & ~is_tail
    hidden = judged & (is_commonest & (targets != commonest))[:, :length]
    padding = counts & is_tail & (targets == tokens)
    parts = [judged.sum(), *alike, counts.sum(), padding.sum(), (~is_tail).sum(), is_commonest.sum(), hidden.sum()]
    return torch.stack([*parts, torch.full_like(parts[0], tokens.numel())]).double()


def commonest_of(tokens: Tensor) -> Tensor:
    """The value that comes most often. `Tensor.mode` waits for the device."""
    ordered = tokens.flatten().sort().values
    counts = torch.searchsorted(ordered, ordered, right=True) - torch.searchsorted(ordered, ordered)
    return ordered[counts.argmax(keepdim=True)].squeeze(0)


def padding_of(tokens: Tensor) -> Tensor:
    """Padding: places at the end of a row (rows, length) from which on all tokens are equal, two or more of them, and
    of a kind that the row does not have before. A row of a single token has none."""
    same = torch.ones_like(tokens, dtype=torch.int8)
    same[:, :-1] = tokens[:, :-1] == tokens[:, 1:]
    to_the_end = same.flip(1).cumprod(1).flip(1).bool()
    is_before = ((tokens == tokens[:, -1:]) & ~to_the_end).any(1, keepdim=True)
    lengths = to_the_end.sum(1, keepdim=True)
    return to_the_end & ~is_before & (lengths >= LEAST_TAIL) & (lengths < tokens.shape[1])


def token_facts(sums: Sequence[float]) -> dict[str, Any]:
    """`token_targets`: by offset, the share of targets that are the token there. `counted_share`: of the places, those
    that count in the loss. `padding_share`: of these, those whose target is padding. `commonest_share`: of the tokens
    read, without padding. `hidden_share`: of the places that count, those that read the commonest token and are to
    predict another."""
    found = dict(zip(SUMS, sums, strict=True))
    if found["counted"] < ENOUGH:
        return {}
    judged, read = max(1.0, found["judged"]), max(1.0, found["read"])
    facts: dict[str, Any] = {
        "counted_share": found["counted"] / found["all"],
        "padding_share": found["padding"] / found["counted"],
        "commonest_share": found["commonest"] / read,
        "hidden_share": found["hidden"] / judged,
    }
    if found["judged"] >= ENOUGH:
        facts["token_targets"] = {str(each): found[f"offset {each}"] / judged for each in OFFSETS}
    return facts


def _seen(called: nn.Module, arguments: tuple, keywords: dict[str, Any], output: Any) -> ModelCall | None:
    tokens, outputs = _tokens_in([*_by_name(keywords), *arguments]), _outputs_in(output)
    if tokens is None or outputs is None or outputs.shape[:2] != tokens.shape:
        return None
    if getattr(output, "encoder_last_hidden_state", None) is not None:
        return None  # it writes another text than the one it reads
    return ModelCall(tokens, outputs, called, arguments, keywords)


def _first_rows(arguments: tuple, keywords: Mapping[str, Any], rows: int) -> tuple[tuple, dict[str, Any]]:
    """Copies of the first row of all that has as many rows as the tokens."""

    def first(value: Any) -> Any:
        has_rows = isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows
        return value[:1].detach().clone() if has_rows else value

    return tuple(map(first, arguments)), {name: first(value) for name, value in keywords.items()}


def _is_distributed() -> bool:
    """A pass that not all processes make would wait for the others."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _by_name(keywords: Mapping[str, Any]) -> list[Any]:
    """Those that are named like tokens first."""
    first = [keywords[name] for name in TOKENS if name in keywords]
    return [*first, *(value for name, value in keywords.items() if name not in TOKENS)]


def _tokens_in(values: Iterable[Any]) -> Tensor | None:
    return next((each for each in values if isinstance(each, Tensor) and each.ndim == 2 and _is_whole(each)), None)


def _is_whole(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32) and tensor.numel() > 0


def _outputs_in(output: Any) -> Tensor | None:
    """The outputs themselves, or under the name or at the place that is usual."""
    if isinstance(output, Tensor):
        found = output
    elif isinstance(output, Mapping):
        found = output.get("logits")
    elif hasattr(output, "logits"):
        found = output.logits
    else:
        found = next(iter(output), None) if isinstance(output, (tuple, list)) else None
    return found if isinstance(found, Tensor) and found.ndim == 3 and found.is_floating_point() else None
