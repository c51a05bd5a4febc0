"""Whether the learning rate was raised since the model last trained well: trouble after that is its doing."""

from __future__ import annotations

from dataclasses import dataclass

SAME_RATE = 1.2  # a learning rate that was raised by more explains a loss that rises, up to that of the beginning
PROOF = 64  # updates at a raised learning rate, after which a new best loss shows that the model trains well with it


@dataclass
class RateHistory:
    good: float | None = None  # the last learning rate at which the model trained well
    good_step: int = 0  # the last step that had it
    raised_to: float | None = None  # the present learning rate, if it is higher
    raised_step: int = 0  # the first step that had more, or that of the last rollback since

    @property
    def was_raised(self) -> bool:
        return self.raised_to is not None

    def see(self, step: int, rate: float | None) -> None:
        """The present learning rate, where it is known."""
        if rate is None:
            return
        if self.good is None or rate <= SAME_RATE * self.good:
            self.good = rate if self.good is None else min(rate, self.good)
            self.good_step, self.raised_to = step, None
            return
        if not self.was_raised:
            self.raised_step = step
        self.raised_to = rate

    def see_best_loss(self, step: int) -> None:
        if self.raised_to is not None and step - self.raised_step >= PROOF:
            self.good, self.good_step, self.raised_to = self.raised_to, step, None

    def see_rollback(self, step: int) -> None:
        """What is the best loss from here on was learned before the trouble."""
        self.raised_step = max(step, self.raised_step)

    @property
    def in_words(self) -> str:
        """The end of a sentence about trouble."""
        if self.good is None or self.raised_to is None:
            return ""
        return f"; the learning rate rose from {self.good:.3g} at step {self.good_step} to {self.raised_to:.3g}"
