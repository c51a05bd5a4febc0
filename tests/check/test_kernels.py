from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainbook.check.kernels import attention, kernel, layers, losses, optimizers, products, run
from trainbook.check.kernels.attention import NAMES, AttentionCase
from trainbook.check.kernels.kernel import SEED, Inputs, Kernel, Rounding, gradients
from trainbook.check.result import CheckOutcome
from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.loop.device import prepared_device
from trainbook.loop.kernel_verdicts import excluded_backends, machine_of, recall
from trainbook.optim.selective import step_fused

MATH, FLASH = attention.KERNELS[0], attention.KERNELS[2]
CPU = torch.device("cpu")
LOWEST = -88.7  # of a row's logsumexp: below it, exp of what is 0 instead of -inf overflows


@pytest.fixture(autouse=True)
def _own_verdicts(monkeypatch, tmp_path):
    """What these tests find out about this machine is no verdict for the training of other tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def outcome_of(monkeypatch) -> Callable[..., CheckOutcome]:
    def outcome_of(kernel: Kernel, cases: Any = None, compute: Any = None, **options: Any) -> CheckOutcome:
        changed = replace(kernel, cases=tuple(cases or kernel.cases), compute=compute or kernel.compute)
        monkeypatch.setattr(run, "KERNELS", (changed,))
        return run.check_kernels(**options).results[0].outcome

    return outcome_of


def cases_of(kernel: Kernel, *words: str) -> list[Any]:
    """Those whose name has one of these words."""
    found = [case for case in kernel.cases if any(word in case.name for word in words)]
    assert found
    return found


def attended(
    case: AttentionCase, inputs: Inputs, mask: Tensor | None, spoil: Callable[[Tensor], Tensor] = lambda output: output
) -> dict[str, Tensor]:
    output = F.scaled_dot_product_attention(
        *(inputs[name] for name in NAMES), attn_mask=mask, is_causal=mask is None and case.sight == "causal"
    )
    output = spoil(output)
    found = gradients(output, inputs["upstream"], inputs, NAMES)
    return {"output": output, "output of hidden rows": output, **found}


def in_half_a_tile(length: int) -> bool:
    return length % 128 == 64


def test_the_kernels_of_this_machine_pass():
    report = run.check_kernels()
    assert {result.check.name: result.outcome.evidence for result in report.results if result.outcome.remedy} == {}
    assert report.count("failed") == report.count("remark") == 0
    statuses = {result.check.name: result.outcome.status for result in report.results}
    assert [name for name, status in statuses.items() if status == "skipped"] == [
        "sdpa_efficient",
        "sdpa_cudnn",
        "fp8_product",
    ]
    assert len(statuses) == len(run.KERNELS)


def test_a_kernel_that_drops_the_mask_in_half_a_tile_is_found_and_named(outcome_of):
    def broken(case: AttentionCase, inputs: Inputs) -> dict[str, Tensor]:
        mask = inputs.get("mask")
        return attended(case, inputs, None if mask is not None and in_half_a_tile(case.length) else mask)

    outcome = outcome_of(FLASH, cases_of(FLASH, "padding, ", "bias, ", "causal mask, 1"), broken)
    assert outcome.status == "failed" and "sdpa_flash" in outcome.cause
    wrong = outcome.numbers["wrong_cases"]
    assert {"padding, 64 positions", "bias, 192 positions", "causal mask, 192 positions"} <= set(wrong)
    assert not [name for name in wrong if "65" in name or "1 positions" in name]
    assert outcome.numbers["largest_error"] > outcome.numbers["bound"]
    assert "rounding explains at most" in outcome.evidence or "NaN" in outcome.evidence


def test_nan_in_half_a_tile_below_the_logarithm_of_the_largest_number_is_found(outcome_of):
    """As cuDNN's backward on Hopper: https://github.com/pytorch/pytorch/issues/196678"""

    def broken(case: AttentionCase, inputs: Inputs) -> dict[str, Tensor]:
        mask = inputs.get("mask")
        found = attended(case, inputs, mask)
        if mask is not None and in_half_a_tile(case.keys or case.length):
            query, key = (inputs[name].detach().float() for name in NAMES[:2])
            logits = (query @ key.mT * case.width**-0.5).masked_fill(
                ~mask if mask.dtype is torch.bool else mask == float("-inf"), float("-inf")
            )
            row = logits.logsumexp(-1, keepdim=True)
            is_bad = (row < LOWEST) & row.isfinite()
            found["gradient of query"] = found["gradient of query"].masked_fill(is_bad, float("nan"))
        return found

    cases = [case for case in FLASH.cases if case.kv_heads is None]
    outcome = outcome_of(FLASH, cases, broken)
    assert outcome.status == "failed" and "NaN or infinite" in outcome.evidence
    assert outcome.numbers["part"] == "gradient of query"
    assert outcome.numbers["wrong_cases"] == [
        "all mask, logsumexp below -88.7, 192 positions",
        "all mask, logsumexp below -88.7, 64 positions",
        "causal mask, logsumexp below -88.7, 192 positions",
        "causal mask, logsumexp below -88.7, 64 positions",
        "causal mask, logsumexp below -88.7, 704 positions",
        "padding, logsumexp below -88.7, 192 positions",
    ]


@pytest.mark.parametrize(
    "kernel",
    [MATH, *(kernel for kernel in run.KERNELS if kernel.make is not MATH.make)],  # attention's are the same
    ids=lambda kernel: kernel.name,
)
def test_inputs_and_exact_results_fit_their_type_in_all_but_a_few_numbers(kernel):
    """A case of which nothing can be compared would always pass."""
    for dtype in kernel.dtypes:
        for case in kernel.cases:
            if kernel.name == "mean_loss" and case.targets == 0:
                continue  # a mean over nothing is not a number
            torch.manual_seed(SEED)
            inputs = kernel.make(case, CPU, dtype)
            with torch.no_grad():
                expected = kernel.expect(case, inputs, Rounding(dtype, CPU))
            for part, each in expected.items():
                fits = each.value.abs() <= torch.finfo(dtype).max
                assert fits.double().mean() > 0.5, (case.name, dtype, part)


def test_the_reported_case_is_as_it_was_reported():
    (case,) = cases_of(FLASH, "704")
    inputs = attention.make(case, torch.device("cpu"), torch.bfloat16)
    assert inputs["query"].shape == inputs["key"].shape == (1, 1, 704, 64)
    assert inputs["mask"].dtype is torch.bool and torch.equal(inputs["mask"][0, 0], torch.ones(704, 704).tril() > 0)
    assert torch.all(inputs["query"][..., 0] == 1) and torch.all(inputs["key"][..., 0] == -120 * 8)


def test_nan_gradients_of_rows_that_see_nothing_are_found(outcome_of):
    def broken(case: AttentionCase, inputs: Inputs) -> dict[str, Tensor]:
        found = attended(case, inputs, inputs["mask"])
        is_hidden = ~inputs["mask"].any(-1, keepdim=True)
        return {**found, "gradient of query": found["gradient of query"].masked_fill(is_hidden, float("nan"))}

    outcome = outcome_of(MATH, cases_of(MATH, "fully hidden rows"), broken)
    assert outcome.status == "failed" and "gradient of query" in outcome.evidence and "NaN" in outcome.evidence


def test_a_value_at_rows_that_see_nothing_is_a_remark_and_excludes_nothing(outcome_of):
    def uniform(case: AttentionCase, inputs: Inputs) -> dict[str, Tensor]:
        found = attended(case, inputs, inputs["mask"])
        is_hidden = ~inputs["mask"].any(-1, keepdim=True)
        output = torch.where(is_hidden, inputs["value"].mean(-2, keepdim=True), found["output"])
        return {**found, "output": output, "output of hidden rows": output}

    outcome = outcome_of(FLASH, cases_of(FLASH, "fully hidden rows"), uniform)
    assert outcome.status == "remark" and "output of hidden rows" in outcome.evidence


@pytest.mark.parametrize("part", ["output", "gradient of query", "gradient of key", "gradient of value"])
def test_an_error_of_a_tenth_of_one_number_is_found_in_each_part(outcome_of, part):
    def broken(case: AttentionCase, inputs: Inputs) -> dict[str, Tensor]:
        found = attended(case, inputs, inputs.get("mask"))
        spoilt = found[part].detach().clone()
        largest = spoilt.flatten().abs().argmax()
        spoilt.view(-1)[largest] *= 1.1
        return {**found, part: spoilt}

    outcome = outcome_of(FLASH, cases_of(FLASH, "causal, 64"), broken)
    assert outcome.status == "failed" and outcome.numbers["part"] == part and outcome.numbers["wrong_numbers"] == 1


def test_a_norm_without_epsilon_is_found(outcome_of):
    def without_epsilon(rows: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        from_mean = rows - rows.mean(-1, keepdim=True)
        return from_mean / from_mean.square().mean(-1, keepdim=True).sqrt() * gain + bias

    def compute(case: Any, inputs: Inputs) -> Any:
        return layers.normalized(case, inputs, without_epsilon, layers.NORM_PARTS)

    outcome = outcome_of(layers.NORMS[0], None, compute)
    assert outcome.status == "failed" and "zeros" in outcome.numbers["wrong_cases"]
    assert "tiny variance" in outcome.numbers["wrong_cases"]
    assert outcome.numbers["excluded"] is None and "Update PyTorch" in (outcome.remedy or "")


def test_a_loss_that_averages_over_ignored_targets_is_found(outcome_of):
    def over_all_rows(logits: Tensor, targets: Tensor) -> Tensor:
        return losses.summed(logits, targets) / len(targets)

    outcome = outcome_of(losses.KERNELS[1], None, lambda case, inputs: losses.compute(case, inputs, over_all_rows))
    assert outcome.status == "failed" and "normal logits" in outcome.numbers["wrong_cases"]
    assert "all rows are targets" not in outcome.numbers["wrong_cases"]


def test_products_in_fp8_pass_and_one_that_divides_by_an_amax_of_zero_is_found(outcome_of, monkeypatch):
    monkeypatch.setattr(products.float8, "has_fp8", lambda device: True)  # PyTorch computes them on a CPU, too
    assert outcome_of(products.KERNELS[0]).status == "passed"
    monkeypatch.setattr(products.float8, "LEAST_AMAX", 0.0)
    outcome = outcome_of(products.KERNELS[0])
    assert outcome.numbers["wrong_cases"] == ["gradients of zeros", "inputs of zeros"]
    assert "precision.products=same" in (outcome.remedy or "")


def test_an_optimizer_that_applies_a_refused_update_is_found(outcome_of, monkeypatch):
    monkeypatch.setattr(optimizers, "step_fused", lambda optimizer, apply: step_fused(optimizer, apply | True))
    outcome = outcome_of(optimizers.KERNELS[0])
    assert outcome.numbers["wrong_cases"] == ["a refused update", "every update refused"]
    assert "stable_adamw" in (outcome.remedy or "")


def test_an_activation_whose_gradient_is_lost_where_exp_overflows_is_found(outcome_of):
    (silu,) = [kernel for kernel in layers.KERNELS if kernel.name == "silu"]

    def by_exp(x: Tensor) -> Tensor:
        return x * x.exp() / (1 + x.exp())

    outcome = outcome_of(silu, None, lambda case, inputs: layers.activated(case, inputs, by_exp))
    assert outcome.status == "failed" and "huge values, and where exp overflows" in outcome.numbers["wrong_cases"]


def test_a_kernel_that_raises_is_named_with_its_error(outcome_of):
    def broken(case: AttentionCase, inputs: Inputs) -> dict[str, Tensor]:
        raise RuntimeError("no execution plan supports the graph")

    outcome = outcome_of(FLASH, cases_of(FLASH, "one element"), broken)
    assert outcome.status == "failed"
    assert "it raised RuntimeError: no execution plan supports the graph" in outcome.evidence


def raising(case: AttentionCase, inputs: Inputs) -> dict[str, Tensor]:
    raise RuntimeError("it failed")


def test_a_failed_attention_kernel_is_left_out_from_then_on(outcome_of):
    outcome = outcome_of(FLASH, cases_of(FLASH, "one element"), raising)
    assert outcome.numbers["excluded"] == "flash" and "does without it from now on" in (outcome.remedy or "")
    assert list(excluded_backends(CPU)) == ["flash"]
    outcome_of(FLASH, cases_of(FLASH, "one element"), FLASH.compute)
    assert excluded_backends(CPU) == {}


def test_where_no_verdict_can_be_kept_the_advice_is_the_switch_itself(outcome_of, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME")
    outcome = outcome_of(FLASH, cases_of(FLASH, "one element"), raising)
    assert outcome.numbers["excluded"] is None and "enable_flash_sdp(False)" in (outcome.remedy or "")


def test_after_a_kernel_that_took_the_gpu_down_the_others_are_skipped_and_have_no_verdict(monkeypatch):
    few = FLASH.cases[:3]
    broken, after = replace(FLASH, cases=few, compute=raising), replace(MATH, cases=few)
    monkeypatch.setattr(run, "KERNELS", (broken, after, *layers.NORMS))
    for module in (run, kernel):
        monkeypatch.setattr(module, "is_lost", lambda device: True)
    first, *others = run.check_kernels().results
    assert first.outcome.status == "failed" and list(excluded_backends(CPU)) == ["flash"]
    assert len(others) == 3 and {each.outcome.status for each in others} == {"skipped"}
    assert all("the GPU stopped answering when sdpa_flash ran" in each.outcome.evidence for each in others)
    assert {each.kernel for each in recall(machine_of(CPU))} == {"sdpa_flash"}


def test_a_kernel_that_takes_no_case_is_skipped_and_never_counts_as_passed(outcome_of):
    outcome = outcome_of(attention.KERNELS[3])
    assert outcome.status == "skipped" and outcome.numbers["cases"] == 0


def test_a_configuration_gives_types_and_a_shape(outcome_of):
    config = load("gpt-tiny", ["precision.compute=bf16", "data.max_seq_length=72"]).config
    seen = set()

    def noting(case: AttentionCase, inputs: Inputs) -> Any:
        seen.add((case.name, inputs["query"].dtype))
        return FLASH.compute(case, inputs)

    # The shape is added to all cases of attention, which are those of the package.
    outcome = outcome_of(FLASH, attention.CASES, noting, config=config)
    heads, width = config.model.num_attention_heads, config.model.hidden_size // config.model.num_attention_heads
    name = f"causal, {heads} heads of {width}, {heads} of keys, 72 positions"
    assert (name, torch.bfloat16) in seen and outcome.numbers["types"] == ["fp32", "bf16"]
    assert not [dtype for _, dtype in seen if dtype is torch.float16]


def test_random_numbers_and_switches_are_as_before():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    before = torch.backends.cuda.flash_sdp_enabled(), torch.get_num_threads()
    run.check_kernels(only=["rms_norm"])
    assert torch.equal(torch.rand(2), expected)
    assert (torch.backends.cuda.flash_sdp_enabled(), torch.get_num_threads()) == before


def test_a_wrong_name_of_a_kernel_is_told_with_the_right_one():
    with pytest.raises(UserError, match=r"unknown kernel 'sdpa_flsh'.*Did you mean sdpa_flash\?"):
        run.selected_kernels(["sdpa_flsh"])


@pytest.mark.gpu
def test_on_a_gpu_training_does_without_what_failed_and_only_attention_fails():
    report = run.check_kernels()
    wrong = {result.check.name: result.outcome for result in report.results if result.outcome.status == "failed"}
    assert set(wrong) <= {"sdpa_cudnn", "sdpa_flash", "sdpa_efficient"}, wrong
    excluded = {outcome.numbers["excluded"] for outcome in wrong.values()}
    switches = {"cudnn": torch.backends.cuda.cudnn_sdp_enabled, "flash": torch.backends.cuda.flash_sdp_enabled}
    with prepared_device(load(None).config, torch.device("cuda"), None) as said:
        assert set(filter(None, said.get("excluded_attention", "").split(", "))) == excluded
        assert all(is_on() is (name not in excluded) for name, is_on in switches.items())
