from __future__ import annotations

import pytest

from trainbook.data.report.memory import LOGIT_BYTES, sequence_bytes
from trainbook.knobs import load

SIZE = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4}


def bytes_of(*overrides: str, length: int = 128, vocab_size: int = 1000, target_length: int = 0, **model) -> int:
    config = load({"model": {**SIZE, **model}, "precision": {"compute": "bf16"}}, overrides).config
    return sequence_bytes(config, length, vocab_size, target_length)


def test_a_layer_takes_34_bytes_a_number_of_the_width_as_in_the_literature():
    """Korthikanti et al. 2022: 34 s h a layer in 16 bits with dropout, less the scores, which fused attention does not
    keep; it keeps one normalizer a head."""
    logits = 128 * 1000 * LOGIT_BYTES
    assert bytes_of("model.dropout=0.1") == 3 * 128 * (34 * 64 + 4 * 4) + logits
    assert bytes_of("model.dropout=0") == 3 * 128 * (32 * 64 + 4 * 4) + logits


def test_memory_grows_in_proportion_to_the_length():
    assert bytes_of(length=512) == 4 * bytes_of(length=128)


def test_full_precision_takes_twice_as_much_of_all_but_decisions_and_normalizers():
    half, full = bytes_of("dropout=0", vocab_size=0), bytes_of("dropout=0", "precision.compute=fp32", vocab_size=0)
    assert full - 3 * 128 * 16 == 2 * (half - 3 * 128 * 16)


def test_full_recomputation_keeps_the_input_of_each_layer_and_one_layer():
    everything = bytes_of("dropout=0", vocab_size=0)
    kept = bytes_of("dropout=0", "memory.gradient_checkpointing=full", vocab_size=0)
    assert kept == 128 * (3 * 64 * 2) + everything / 3


def test_gates_cost_two_more_numbers_of_the_inner_width():
    plain, gated = bytes_of(), bytes_of("model.activation=swiglu")
    assert gated - plain == 3 * 128 * 2 * (4 * 64) * 2


def test_shared_keys_and_values_cost_less():
    assert bytes_of() - bytes_of("model.num_key_value_heads=1") == 3 * 128 * 2 * 3 * 16 * 2


@pytest.mark.parametrize(("task", "share"), [("classify", 0.0), ("masked", 0.15)])
def test_only_what_is_predicted_costs_logits(task: str, share: float):
    with_logits = bytes_of("model.type=bert", f"training.task={task}", "mask_ratio=0.15")
    without = bytes_of("model.type=bert", f"training.task={task}", "mask_ratio=0.15", vocab_size=0)
    assert with_logits - without == int(128 * share * 1000 * LOGIT_BYTES)


def test_a_decoder_costs_its_layers_and_the_keys_of_what_it_reads():
    short, long = (bytes_of("model.type=t5", target_length=length) for length in (16, 32))
    assert long > short > bytes_of("model.type=t5")


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_what_autograd_keeps_is_what_the_formula_says(activation: str):
    import torch

    from trainbook.tasks import Facts, task_class

    config = load(
        {"model": {**SIZE, "activation": activation, "dropout": 0}, "precision": {"compute": "fp32"}},
        ["memory.gradient_checkpointing=off"],
    ).config
    task = task_class(config).build(config, Facts(vocab_size=64), torch.device("cpu"), torch.float32)
    weights = {parameter.untyped_storage().data_ptr() for parameter in task.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.randint(0, 64, (1, 256))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        sums = task(ids, input_ids=ids)
    assert sums
    # Of the logits, one copy is kept; the others come and go in the backward pass.
    expected = sequence_bytes(config, 256, 64) - 256 * 64 * (LOGIT_BYTES - 4)
    assert sum(kept.values()) == pytest.approx(expected, rel=0.08)
