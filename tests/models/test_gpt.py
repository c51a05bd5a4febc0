"""The shape that a configuration asks for, and equality with the field's own models on random weights."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainbook.knobs import Config
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.memory import MemoryKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.models import shape_of
from trainbook.tasks import CausalLanguageModel, Facts

CPU = torch.device("cpu")
GPT2 = {"bias": True, "activation": "gelu_tanh", "position": "learned", "tie_embeddings": True}
LLAMA = {"norm": "rmsnorm", "activation": "swiglu", "position": "rotary", "tie_embeddings": False}


def config_of(length: int = 16, **model: Any) -> Config:
    return Config(model=ModelKnobs(**model), data=DataKnobs(max_seq_length=length))


def test_what_is_left_open_follows_from_the_width_and_the_heads():
    shape = shape_of(config_of(hidden_size=48, num_attention_heads=6), 100, causal=True)
    assert (shape.intermediate_size, shape.num_key_value_heads, shape.head_width) == (192, 6, 8)
    stated = shape_of(config_of(hidden_size=48, intermediate_size=100, num_key_value_heads=2), 100, causal=True)
    assert (stated.intermediate_size, stated.num_key_value_heads) == (100, 2)


@pytest.mark.parametrize(("size", "multiple", "rows"), [(100, 1, 100), (100, 64, 128), (128, 64, 128), (1, 64, 64)])
def test_the_vocabulary_is_rounded_up(size: int, multiple: int, rows: int):
    shape = shape_of(config_of(vocab_multiple=multiple), size, causal=True)
    assert (shape.vocab_size, shape.vocab_rows) == (size, rows)


def test_every_knob_of_the_model_reaches_the_shape():
    values: dict[str, Any] = {
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "intermediate_size": 50,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "dropout": 0.25,
        "bias": True,
        "norm": "rmsnorm",
        "norm_epsilon": 1e-6,
        "activation": "geglu",
        "position": "rotary",
        "qkv_bias": False,
        "sliding_window": 5,
        "num_positions": 20,
        "qk_norm": True,
        "embedding_skip": True,
        "initializer_range": 0.01,
    }
    rope = {
        "scaling": "yarn",
        "factor": 4.0,
        "theta": 500.0,
        "original_positions": 7,
        "low_frequency": 0.5,
        "high_frequency": 3.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.5,
    }
    model = ModelKnobs(**values, vocab_rows=11, **{f"rope_{name}": value for name, value in rope.items()})
    config = Config(model=model, memory=MemoryKnobs(gradient_checkpointing="full"), data=DataKnobs(max_seq_length=9))
    shape = shape_of(config, 7, causal=True)
    assert {name: getattr(shape, name) for name in values} == values
    assert asdict(shape.rotation) == rope
    assert (shape.max_seq_length, shape.recompute, shape.causal, shape.vocab_size) == (9, "full", True, 11)


def number_of_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_gpt2_has_124_439_808_parameters():
    config = config_of(1024, num_hidden_layers=12, hidden_size=768, num_attention_heads=12, **GPT2)
    with torch.device("meta"):
        assert number_of_parameters(CausalLanguageModel(config, Facts(50257))) == 124_439_808


def fill_randomly(module: nn.Module) -> None:
    """Biases and gains too, which first values leave at 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1))


def rename(name: str, names: dict[str, str]) -> str:
    for theirs, ours in names.items():
        name = name.replace(theirs, ours)
    return name


IDS = torch.randint(0, 60, (3, 16), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_logits_are_those_of_transformers_gpt2():
    transformers = pytest.importorskip("transformers")
    reference = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=60, n_positions=16, n_embd=32, n_layer=3, n_head=4, attn_implementation="eager"
        )
    ).eval()
    fill_randomly(reference)
    config = config_of(num_hidden_layers=3, hidden_size=32, num_attention_heads=4, **GPT2)
    model = CausalLanguageModel.build(config, Facts(60), CPU, torch.float32).eval()
    names = {
        "transformer.": "body.",
        "wte": "token_embedding",
        "wpe": "position_embedding",
        ".h.": ".blocks.",
        "ln_1": "attention_norm",
        "ln_2": "feed_forward_norm",
        "ln_f": "final_norm",
        "attn.c_attn": "attention.query_key_value",
        "attn.c_proj": "attention.output",
        "mlp.c_fc": "feed_forward.up",
        "mlp.c_proj": "feed_forward.down",
        "lm_head": "head",
    }
    weights = {}
    for name, value in reference.state_dict().items():
        is_conv1d = name.endswith("weight") and ("c_" in name)  # stored as inputs x outputs
        weights[rename(name, names)] = value.T if is_conv1d else value
    model.load_state_dict(weights, strict=True)
    assert number_of_parameters(model) == number_of_parameters(reference)
    expected = reference(IDS).logits
    assert expected.std() > 0.5, "logits of a size that can tell models apart"
    torch.testing.assert_close(model.logits(IDS), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_logits_are_those_of_transformers_llama():
    transformers = pytest.importorskip("transformers")
    reference = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=60,
            hidden_size=32,
            intermediate_size=40,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    ).eval()
    fill_randomly(reference)
    config = config_of(
        num_hidden_layers=3,
        hidden_size=32,
        intermediate_size=40,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_theta=1000.0,
        **LLAMA,
    )
    model = CausalLanguageModel.build(config, Facts(60), CPU, torch.float32).eval()
    names = {
        "model.": "body.",
        "layers": "blocks",
        "embed_tokens": "token_embedding",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "feed_forward_norm",
        "body.norm": "body.final_norm",
        "self_attn.o_proj": "attention.output",
        "mlp.down_proj": "feed_forward.down",
        "lm_head": "head",
    }
    theirs: dict[str, Tensor] = dict(reference.state_dict())
    weights = {}
    for layer in range(3):
        place, ours = f"model.layers.{layer}", f"body.blocks.{layer}"
        for parts, name in (
            (["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "attention.query_key_value"),
            (["mlp.gate_proj", "mlp.up_proj"], "feed_forward.up"),
        ):
            weights[f"{ours}.{name}.weight"] = torch.cat([theirs.pop(f"{place}.{part}.weight") for part in parts])
    weights |= {rename(name, names): value for name, value in theirs.items()}
    model.load_state_dict(weights, strict=True)
    assert number_of_parameters(model) == number_of_parameters(reference)
    expected = reference(IDS).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(model.logits(IDS), expected, rtol=0, atol=1e-5)
