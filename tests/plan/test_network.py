"""The formula is the model: the same names, shapes and kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from trainbook.errors import UserError
from trainbook.knobs import Config, load, recipes
from trainbook.models import named_roles
from trainbook.plan import network
from trainbook.plan.pages import MODELS, config_of
from trainbook.plan.vocabulary import vocabulary
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
    "embedding skips": ("model.embedding_skip=true",),
    "value embeddings": (
        *LLAMA,
        "model.value_embeddings=alternate",
        "model.vocab_multiple=64",
        "model.num_hidden_layers=3",
    ),
    "biases of queries, keys and values": (*LLAMA, "model.qkv_bias=true"),
    "more positions and rows than are used": ("model.num_positions=40", "model.vocab_rows=130"),
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


WITH_A_SIZE = {"gpt2-124m": 50_257, "llama-1b": 32_000, "bert-base": 30_522, "t5-base": 32_128, "large-scale": 50_257}


@pytest.mark.parametrize("name", [name for name in recipes.names() if name != "finetune-chat"])
def test_every_recipe_has_as_many_parameters_as_its_model_once_it_is_built(name: str):
    """The one that is left out fine-tunes a model of the user's."""
    config = load(name).config
    stated = WITH_A_SIZE.get(name, 65 if config.data.tokenizer in ("char", "word") else None)
    size = vocabulary(config, stated)
    found = network(config, size, num_labels=3)
    assert found.parameters == sum(weight.numel() for weight in built(config, size).parameters())


@pytest.mark.parametrize("targets", [None, ("query_key_value", "up"), ("q_proj", "v_proj", "query", "gate_proj")])
@pytest.mark.parametrize("task_of", ["causal", "classify"])
def test_adapters_are_counted_as_they_are_built(targets: tuple[str, ...] | None, task_of: str):
    pytest.importorskip("peft")
    from trainbook.tasks.adapters import apply_adapters

    kind = "bert" if task_of == "classify" else "gpt"
    if targets is not None and "q_proj" in targets:  # by the names of the family
        targets = ("query",) if kind == "bert" else ("q_proj", "v_proj", "gate_proj")
    llama = ["model.position=rotary", "model.norm=rmsnorm", "model.activation=swiglu", "model.num_key_value_heads=1"]
    knobs = [
        f"model.type={kind}",
        *(llama if kind == "gpt" else ()),
        "model.hidden_size=32",
        "model.num_attention_heads=2",
        f"training.task={task_of}",
    ]
    config = load(BASE, knobs).config
    adapted = config.model.model_copy(update={"lora_rank": 2, "lora_targets": targets})
    config = config.model_copy(update={"model": adapted})
    task = task_class(config).build(config, Facts(100, ("a", "b", "c")), torch.device("cpu"), torch.float32)
    if kind == "bert":
        task.fresh = tuple(name for name, _ in task.named_parameters() if name.startswith(("head.", "pooler.")))
    apply_adapters(task, config, torch.device("cpu"), torch.float32)
    found = network(config, vocab_size=100, num_labels=3)
    assert found.parameters == sum(weight.numel() for weight in task.parameters())
    assert found.trained == sum(weight.numel() for weight in task.parameters() if weight.requires_grad)
    assert 0 < found.trained < 0.5 * found.parameters


def test_an_adapter_for_a_layer_that_is_not_there_is_refused():
    config = load(BASE).config
    adapted = config.model.model_copy(update={"lora_rank": 8, "lora_targets": ("q_proj",)})
    with pytest.raises(
        UserError, match=r"model\.lora_targets: no linear layer has a name that ends with 'q_proj'\. The names end with"
    ):
        network(config.model_copy(update={"model": adapted}), vocab_size=100)


@pytest.mark.parametrize(
    ("kind", "settings", "auto", "task"),
    [
        ("gpt2", {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64}, "AutoModelForCausalLM", "causal"),
        (
            "llama",
            {
                "num_hidden_layers": 2,
                "hidden_size": 32,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 48,
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},  # which our own models do not have
            },
            "AutoModelForCausalLM",
            "causal",
        ),
        (
            "bert",
            {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64},
            "AutoModelForMaskedLM",
            "masked",
        ),
        (
            "t5",
            {"num_layers": 2, "d_model": 32, "d_kv": 8, "num_heads": 2, "d_ff": 64},
            "AutoModelForSeq2SeqLM",
            "seq2seq",
        ),
    ],
)
def test_a_model_of_hugging_face_is_counted_from_its_config_alone(
    tmp_path: Path, kind: str, settings: dict[str, Any], auto: str, task: str
):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(kind, vocab_size=120, **settings)
    theirs.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = getattr(transformers, auto).from_config(theirs)
    config = load(BASE).config
    named = config.model.model_copy(update={"type": "hf", "pretrained": str(tmp_path)})
    what = config.training.model_copy(update={"task": task})
    tokenizer = config.data.model_copy(update={"tokenizer": str(tmp_path)})
    config = config.model_copy(update={"model": named, "training": what, "data": tokenizer})
    assert vocabulary(config) == 120
    assert network(config, vocabulary(config)).parameters == model.num_parameters()
    peft = pytest.importorskip("peft")
    adapted = config.model_copy(update={"model": named.model_copy(update={"lora_rank": 2})})
    beside = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules="all-linear", fan_in_fan_out=kind == "gpt2")
    )
    trained = sum(weight.numel() for weight in beside.parameters() if weight.requires_grad)
    assert network(adapted, 120).trained == trained


def test_a_model_of_a_kind_that_nobody_knows_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}', encoding="utf-8")
    config = load(BASE).config
    named = config.model.model_copy(update={"type": "hf", "pretrained": str(tmp_path)})
    with pytest.raises(UserError, match="describes a 'mamba' model, whose size is known only after it is built"):
        network(config.model_copy(update={"model": named}), vocab_size=100)
