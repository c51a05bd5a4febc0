"""What the forward pass keeps, against what autograd really saves."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from trainbook.knobs import Config, load
from trainbook.plan.activations import activations, lengths_of
from trainbook.plan.network import network
from trainbook.plan.types import types_of
from trainbook.precision import fp8_products
from trainbook.tasks import Facts, task_class
from trainbook.tasks.adapters import adaptable_layers

LENGTH, VOCAB, ROWS = 48, 512, 5  # 240 tokens: no weight has a side of that size
BASE = {
    "data": {"source": "text", "max_seq_length": LENGTH},
    "model": {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "dropout": 0.0},
    "training": {"max_steps": 1},
}
# CPU kernels keep what GPU kernels do for these. Left out: RMS norms, which a CPU computes in many small operations,
# and dropout and relative positions, for which it has no fused attention.
SHAPES = {
    "gpt": (),
    "relu": ("model.activation=relu",),
    "relu2": ("model.activation=relu2",),
    "swiglu": ("model.activation=swiglu",),
    "rotary": ("model.position=rotary",),
    "embedding skips": ("model.embedding_skip=true",),
    "value embeddings": ("model.value_embeddings=alternate",),
    "value embeddings, rotary": ("model.value_embeddings=alternate", "model.position=rotary"),
    "bert": ("model.type=bert",),
    "bert as published": ("model.type=bert", "model.norm_position=post"),
    "t5": ("model.type=t5",),
}


def inputs_of(config: Config) -> dict[str, Tensor]:
    lengths = lengths_of(config)
    ids = torch.randint(VOCAB, (ROWS, LENGTH))
    if config.model.type == "gpt":
        return {"input_ids": ids, "targets": ids}
    if config.model.type == "bert":
        count = ROWS * lengths.targets
        chosen = torch.randperm(ROWS * LENGTH)[:count]
        return {"input_ids": ids, "targets": torch.randint(VOCAB, (count,)), "chosen": chosen}
    written = torch.randint(VOCAB, (ROWS, lengths.written))
    return {"input_ids": ids, "decoder_input_ids": written, "targets": written}


def saved_bytes(config: Config) -> tuple[int, int]:
    """Of activations, and of rounded weights, once each."""
    task = task_class(config).build(config, Facts(VOCAB), torch.device("cpu"), torch.float32)
    task.train()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*task.parameters(), *task.buffers())}
    shapes = {shape for weight in task.parameters() for shape in (weight.shape, weight.shape[::-1])}
    found: dict[int, Tensor] = {}  # tensors, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    is_bf16 = config.precision.compute == "bf16"
    if config.precision.products == "fp8":
        fp8_products(task, adaptable_layers(task))
    rounding = torch.autocast("cpu", torch.bfloat16) if is_bf16 else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), rounding:
        losses = task(**inputs_of(config))
    assert losses
    is_weight = {
        key: each.ndim == 2 and each.dtype is torch.bfloat16 and each.shape in shapes for key, each in found.items()
    }
    sizes = {key: each.untyped_storage().nbytes() for key, each in found.items()}
    rounded = sum(size for key, size in sizes.items() if is_weight[key])
    log_probabilities = 4 * ROWS * lengths_of(config).targets * VOCAB  # of the head: not part of what blocks keep
    return sum(sizes.values()) - rounded - log_probabilities, rounded


TYPES = {
    "fp32": ("precision.compute=fp32",),
    "bf16": ("precision.compute=bf16",),
    "fp8": ("precision.compute=bf16", "precision.products=fp8"),
}


@pytest.mark.parametrize("compute", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_blocks_keep_is_what_autograd_saves(shape: str, compute: str):
    config = load(BASE, [*SHAPES[shape], *TYPES[compute]]).config
    model, types = network(config, VOCAB), types_of(config)
    measured, rounded = saved_bytes(config)
    assert activations(config, model, types, ROWS).kept == pytest.approx(measured, rel=0.015)
    if compute == "bf16" and config.model.type != "bert":  # whose transform is as large as an activation
        matrices = sum(weight.count * times for weight, times in model.grouped() if weight.multiplies)
        assert rounded == 2 * (matrices + VOCAB * 64)  # and the head, which is the embedding


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_recomputed_in_full_a_block_keeps_its_input_alone(compute: str):
    config = load(BASE, ["memory.gradient_checkpointing=full", f"precision.compute={compute}"]).config
    found = activations(config, network(config, VOCAB), types_of(config), ROWS)
    measured, rounded = saved_bytes(config)
    assert found.kept == pytest.approx(measured, rel=0.015)
    assert rounded == (0 if compute == "fp32" else 2 * VOCAB * 64)
    off = load(BASE, [f"precision.compute={compute}"]).config
    whole = activations(off, network(off, VOCAB), types_of(off), ROWS)
    assert found.kept + 4 * found.block == whole.kept  # four blocks are kept there, and one at a time here


def test_recomputed_selectively_is_between_the_two():
    kept = []
    for how in ("full", "selective", "off"):
        config = load(BASE, [f"memory.gradient_checkpointing={how}"]).config
        kept.append(activations(config, network(config, VOCAB), types_of(config), ROWS).kept)
    assert kept[0] < kept[1] < kept[2]


def test_a_block_of_gpt2_keeps_36_bytes_for_each_number_of_the_stream():
    """With 8 bytes of statistics a norm and 4 for each head; its 34 in the literature are of a 16-bit stream."""
    config = load(BASE, ["precision.compute=bf16"]).config
    one = activations(config, network(config, VOCAB), types_of(config), 1).kept
    config = load(BASE, ["precision.compute=bf16", "model.num_hidden_layers=5"]).config
    assert activations(config, network(config, VOCAB), types_of(config), 1).kept - one == LENGTH * (
        36 * 64 + 16 + 4 * 4
    )
