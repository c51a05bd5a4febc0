from __future__ import annotations

import math

import pytest

from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.knobs.derive import rate_scale
from trainbook.study.batch import for_batch


def changes(recipe: str, batch: int, *overrides: str) -> dict[str, object]:
    return {each["knob"]: each["new"] for each in for_batch(load(recipe, overrides).config, batch)["changes"]}


def test_four_times_the_batch_is_a_quarter_of_the_steps_and_twice_the_rate() -> None:
    changed = changes("gpt-tiny", 64)
    assert changed["training.max_steps"] == 150 and changed["schedule.warmup_steps"] == 12
    assert changed["optimizer.beta2"] == pytest.approx(0.99**4, rel=1e-5)
    overrides = for_batch(load("gpt-tiny").config, 64)["overrides"]
    after = load("gpt-tiny", overrides).config
    assert after.optimizer.learning_rate * rate_scale(after, 64) == pytest.approx(2 * 2e-3)


def test_a_run_that_gets_very_short_stays_longer_than_its_warm_up() -> None:
    short = ["training.max_steps=10", "schedule.warmup_steps=3"]
    changed = changes("gpt-tiny", 256, *short)
    assert (changed["training.max_steps"], changed["schedule.warmup_steps"]) == (1, 0)


def test_beta2_averages_over_as_many_tokens_as_before() -> None:
    beta2 = changes("gpt-tiny", 8)["optimizer.beta2"]
    assert isinstance(beta2, float) and beta2**2 == pytest.approx(0.99, rel=1e-5)


def test_beta2_stays_below_1_for_a_batch_that_is_much_smaller() -> None:
    beta2 = changes("gpt-tiny", 1, "batch.global_batch_size=65536", "optimizer.beta2=0.9999")["optimizer.beta2"]
    assert beta2 == 0.99999999847404


def test_sgds_rate_grows_in_proportion_and_has_no_beta2() -> None:
    sgd = ("optimizer.type=sgd", "optimizer.beta2=0.95")
    answer = for_batch(load("gpt-tiny", sgd).config, 64)
    assert "0.002 becomes 0.008" in next(e["why"] for e in answer["changes"] if "tuned" in e["knob"])
    assert "optimizer.beta2" not in {each["knob"] for each in answer["changes"]}


def test_a_rate_that_was_found_at_another_batch_already_is_scaled_from_there() -> None:
    answer = for_batch(load("gpt-tiny", ["optimizer.tuned_batch_size=4"]).config, 64)
    assert not any(each["knob"] == "optimizer.tuned_batch_size" for each in answer["changes"])


def test_the_same_batch_changes_nothing() -> None:
    assert for_batch(load("gpt-tiny").config, 16)["changes"] == []


def test_beyond_the_critical_batch_the_rules_are_not_promised() -> None:
    config = load("gpt-tiny").config  # 128 tokens a sequence
    inside, beyond = (for_batch(config, 64, critical)["remarks"][0] for critical in (64 * 128 * 2, 16 * 128))
    assert "so the scaling rules should hold" in inside
    # With noise N and batch B a loss takes 1 + N / B times the fewest steps: (1 + 1/4) / (1 + 1) of them.
    assert "62% of the steps" in beyond and "2.5 times the tokens" in beyond


def test_a_critical_batch_in_tokens_of_documents_is_as_many_rows_as_were_measured() -> None:
    documents, windows = (load("gpt-tiny", [f"data.samples={kind}"]).config for kind in ("documents", "windows"))
    told = for_batch(documents, 64, 16 * 32, tokens_per_row=32)["remarks"][0]
    assert "about 16 sequences (512 tokens)" in told and "62% of the steps" in told
    assert "about 4 sequences" in for_batch(documents, 64, 16 * 32)["remarks"][0], "an older measurement"
    assert "about 4 sequences" in for_batch(windows, 64, 16 * 32, tokens_per_row=32)["remarks"][0]


def test_a_noise_scale_without_an_end_says_that_a_larger_batch_helps() -> None:
    told = for_batch(load("gpt-tiny").config, 64, math.inf)["remarks"][0]
    assert "smaller than its noise: a larger batch still helps" in told and "inf" not in told


def test_beta1_and_epsilon_of_the_square_root_rule_are_told() -> None:
    told = for_batch(load("gpt-tiny", ["optimizer.beta1=0.9", "optimizer.epsilon=1e-8"]).config, 64)["remarks"][-1]
    assert told.startswith("beta1 0.9 and epsilon 1e-08 are kept; to follow the square-root rule in full, add ")
    after = load("gpt-tiny", told.rpartition("add ")[2].split()).config.optimizer
    assert (after.beta1, after.epsilon) == (pytest.approx(1 - 4 * 0.1), pytest.approx(1e-8 / 2))


def test_beyond_the_end_of_beta1s_rule_only_epsilon_is_named() -> None:
    told = for_batch(load("gpt-tiny", ["optimizer.beta1=0.9"]).config, 16 * 16)["remarks"][-1]
    assert "it ends at 10 times the batch" in told and "optimizer.beta1=" not in told
    assert "optimizer.epsilon=2.5e-9" in told


@pytest.mark.parametrize("changes", [["optimizer.type=sgd"], ["optimizer.type=lion"]])
def test_other_optimizers_have_no_such_rule(changes: list[str]) -> None:
    assert len(for_batch(load("gpt-tiny", changes).config, 64)["remarks"]) == 1


@pytest.mark.parametrize(("optimizer", "has_beta2"), [("muon", True), ("lion", False)])
def test_muon_has_an_adam_whose_beta2_follows_the_batch(optimizer: str, has_beta2: bool) -> None:
    changed = changes("gpt-tiny", 64, f"optimizer.type={optimizer}", "optimizer.beta2=0.95")
    assert changed.get("optimizer.beta2") == (pytest.approx(0.95**4, rel=1e-5) if has_beta2 else None)


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="--for-batch: must be >= 1"):
        for_batch(load("gpt-tiny").config, 0)
