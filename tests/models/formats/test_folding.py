"""muP's multipliers inside the weights of other people's formats: the exported folder computes the same logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainbook.data.tokenizers.plain import ByteTokenizer
from trainbook.knobs import load
from trainbook.models.formats import export_task
from trainbook.models.shape import Shape

from .conftest import LABELS, ROLES, TASKS, randomize

GPT2 = {"type": "gpt", "bias": True, "embedding_multiplier": 3.0, "base_num_hidden_layers": 1}
LLAMA = GPT2 | {"bias": False, "position": "rotary", "norm": "rmsnorm", "activation": "swiglu"}
BERT = {"type": "bert", "norm_position": "post", "bias": True}
T5 = {
    "type": "t5",
    "position": "relative",
    "norm": "rmsnorm",
    "attention_scale": "none",
    "activation": "relu",
    "embedding_multiplier": 3.0,
    "base_num_hidden_layers": 1,
    "depth_exponent": 0.5,
}
CASES = {"gpt2": ("causal", GPT2), "llama": ("causal", LLAMA), "bert": ("masked", BERT), "t5": ("seq2seq", T5)}
MUP = {"parametrization": "mup", "base_hidden_size": 4, "base_head_width": 2, "output_multiplier": 1.5}
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}


def exported(kind: str, model: dict[str, Any], folder: Path, weights: str = "float32") -> Any:
    import torch

    task_name = {"classify": "classify"}.get(kind, "auto")
    config = load(
        {"model": {**SIZES, **MUP, **model}, "data": {"max_seq_length": 12}, "training": {"task": task_name}}
    ).config
    tokenizer = ByteTokenizer(ROLES[kind])
    from trainbook.tasks.task import Facts

    labels = LABELS if kind == "classify" else ()
    facts = Facts(tokenizer.vocab_size, labels, pad=tokenizer.special("pad") or 0, end=tokenizer.end_of_text)
    task: Any = TASKS[kind].build(config, facts, torch.device("cpu"), getattr(torch, weights)).eval()
    randomize(task)
    shape: Shape = task.body.shape
    assert shape.scaling.width == 4 and shape.scaling.head == 4 and task.head.multiplier != 1.0
    before = {name: parameter.detach().clone() for name, parameter in task.named_parameters()}
    done = export_task(task, tokenizer, config, folder)
    assert all(torch.equal(before[name], parameter) for name, parameter in task.named_parameters())
    return done


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("form", list(CASES))
def test_a_folder_without_multipliers_computes_the_same(form: str, tied: bool, tmp_path: Path):
    pytest.importorskip("transformers")
    kind, model = CASES[form]
    done = exported(kind, {**model, "tie_embeddings": tied}, tmp_path / "out")
    assert done.format == form and done.difference < 1e-4
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    assert about["tie_word_embeddings"] is tied


def test_labels_of_a_bert_too(tmp_path: Path):
    pytest.importorskip("transformers")
    assert exported("classify", BERT, tmp_path / "out").difference < 1e-4


@pytest.mark.parametrize(("multiplier", "dtype"), [(1.5, "float32"), (2.0, "bfloat16")])
def test_weights_of_16_bits_are_folded_without_rounding(multiplier: float, dtype: str, tmp_path: Path):
    """Powers of two change no digit; with another factor all weights are written as fp32."""
    pytest.importorskip("transformers")
    from safetensors.torch import load_file

    model = GPT2 | {"embedding_multiplier": 4.0, "output_multiplier": multiplier}
    assert exported("causal", model, tmp_path / "out", "bfloat16").difference < 1e-4
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {str(each.dtype) for each in tensors.values()} == {f"torch.{dtype}"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == dtype
