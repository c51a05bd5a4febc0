"""The formula is the model: the same names, shapes and kinds."""

from __future__ import annotations

import pytest
import torch

from trainbook.errors import UserError
from trainbook.knobs import Config, load
from trainbook.models import named_roles
from trainbook.plan import network
from trainbook.plan.pages import MODELS, config_of
from trainbook.tasks import Facts, task_class

BASE = {"data": {"source": "text", "max_seq_length": 16}, "training": {"max_steps": 1}}
LLAMA = (
    "model.bias=false",
    "model.norm=rmsnorm",
    "model.activation=swiglu",
    "model.position=rotary",
    "model.tie_embeddings=false",
    "model.num_key_value_heads=2",
)
SHAPES = {
    "gpt": (),
    "one block": ("model.num_hidden_layers=1",),
    "llama": LLAMA,
    "llama with normed heads of another width": (*LLAMA, "model.qk_norm=true", "model.head_width=24"),
    "padded vocabulary": ("model.vocab_multiple=64", "model.intermediate_size=100"),
    "bert": ("model.type=bert",),
    "bert as published": ("model.type=bert", "model.norm_position=post", "model.token_types=2"),
    "bert with a head of its own": ("model.type=bert", "model.tie_embeddings=false", "model.bias=false"),
    "classifier": ("model.type=bert", "training.task=classify"),
    "tagger": ("model.type=bert", "training.task=tag"),
    "t5": ("model.type=t5", "model.position=relative", "model.norm=rmsnorm", "model.bias=false"),
    "t5, unequal stacks": ("model.type=t5", "model.num_decoder_layers=3", "data.max_target_length=40"),
    "t5, gated": ("model.type=t5", "model.activation=geglu", "model.tie_embeddings=false", "model.qk_norm=true"),
}


def built(config: Config, vocab_size: int) -> torch.nn.Module:
    with torch.device("meta"):
        return task_class(config)(config, Facts(vocab_size, label_names=("a", "b", "c")))


@pytest.mark.parametrize("shape", SHAPES)
def test_names_shapes_and_kinds_are_those_of_the_built_model(shape: str):
    config = load(BASE, SHAPES[shape]).config
    task = built(config, vocab_size=100)
    roles = named_roles(task)
    theirs = {name: (tuple(weight.shape), roles[name].kind) for name, weight in task.named_parameters()}
    model = network(config, vocab_size=100, num_labels=3)
    assert {weight.name: (weight.shape, weight.kind) for weight in model.weights()} == theirs
    assert model.parameters == sum(weight.numel() for weight in task.parameters())
    assert sum(model.by_part().values()) == model.parameters


def test_gpt2_has_124_439_808_parameters():
    config = load("gpt2-124m", ["model.vocab_multiple=1", "model.bias=true"]).config
    assert network(config, vocab_size=50_257).parameters == 124_439_808


@pytest.mark.parametrize(("name", "published"), [("8B", 8_030_261_248), ("70B", 70_553_706_496)])
def test_llama_3_has_as_many_parameters_as_published(name: str, published: int):
    (model,) = [each for each in MODELS if each.name == name]
    config = config_of(model)
    assert network(config, model.vocab_size).parameters == published
    assert sum(weight.numel() for weight in built(config, model.vocab_size).parameters()) == published


def test_what_is_not_known_on_paper_is_refused():
    with pytest.raises(UserError, match=r"model\.type must be gpt, bert or t5"):
        network(load({**BASE, "model": {"type": "my.module:Net"}}).config, vocab_size=100)
    with pytest.raises(UserError, match=r"model\.lora_rank: frozen weights with adapters are not counted yet"):
        config = load(BASE).config
        adapted = config.model.model_copy(update={"lora_rank": 8})
        network(config.model_copy(update={"model": adapted}), vocab_size=100)
