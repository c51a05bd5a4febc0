from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import later, needs
from torch import nn

from trainbook.errors import ResumeError, UserError
from trainbook.knobs import Config
from trainbook.knobs.derive import task_name
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.knobs.sections.optimizer import OptimizerKnobs
from trainbook.knobs.sections.precision import PrecisionKnobs as PrecisionKnobs
from trainbook.knobs.sections.training import TrainingKnobs
from trainbook.models import named_roles
from trainbook.optim import parameter_groups
from trainbook.precision import Precision
from trainbook.tasks.adapters import (
    FINGERPRINT,
    adaptable_layers,
    apply_adapters,
    load_saved_state,
    merged,
    saved_state,
)
from trainbook.tasks.causal import CausalLanguageModel
from trainbook.tasks.huggingface import huggingface_task
from trainbook.tasks.labels import TextClassifier
from trainbook.tasks.seq2seq import Seq2SeqModel
from trainbook.tasks.task import Facts

pytestmark = needs("transformers", "peft")
transformers = later("transformers")
peft = later("peft")

CPU = torch.device("cpu")
VOCAB = 40
LABELS = ("no", "yes")
SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    common = {"vocab_size": VOCAB, "pad_token_id": 0}
    llama = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    made = {
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**common, **llama)),
        "gpt2": transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**common, n_embd=32, n_layer=2, n_head=4, n_positions=32)
        ),
        "bert": transformers.BertForMaskedLM(transformers.BertConfig(**common, **llama, max_position_embeddings=32)),
    }
    found = {}
    for name, model in made.items():
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            parameter.data.normal_(std=0.1, generator=generator)
        found[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(found[name])
    return found


def config_of(model: dict[str, Any], task: str = "auto", seed: int = 0) -> Config:
    return Config(
        model=ModelKnobs(**{"lora_rank": 4, **model}),
        training=TrainingKnobs(task=task, seed=seed),
        data=DataKnobs(max_seq_length=16),
    )


def hugging_face(
    folder: Path,
    task: str = "causal",
    dtype: torch.dtype = torch.float32,
    compute: torch.dtype = torch.float32,
    **model: Any,
) -> Any:
    config = config_of({"type": "hf", "pretrained": str(folder), **model}, task)
    labels = LABELS if task == "classify" else ()
    made = huggingface_task(task_name(config)).build(config, Facts(VOCAB, labels), CPU, dtype)
    apply_adapters(made, config, CPU, compute)
    return made


def native(kind: str, **model: Any) -> tuple[Any, Config]:
    """As if its weights had been loaded: what they are does not matter here."""
    classes = {"gpt": CausalLanguageModel, "bert": TextClassifier, "t5": Seq2SeqModel}
    config = config_of({"type": kind, "pretrained": "somewhere", **SIZES, **model})
    facts = Facts(VOCAB, LABELS if kind == "bert" else ())
    return classes[kind].build(config, facts, CPU, torch.float32), config


def batch(seed: int = 0) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, VOCAB, (3, 9), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids[:, :-1], "targets": ids[:, 1:]}


def loss_of(task: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return task(**inputs)["cross_entropy"] / inputs["targets"].numel()


def train(task: nn.Module, steps: int, rate: float = 1e-2) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], lr=rate, weight_decay=0.0)
    losses = []
    for step in range(steps):
        loss = loss_of(task, batch(step % 2))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def trained_names(task: nn.Module) -> set[str]:
    return {name for name, parameter in task.named_parameters() if parameter.requires_grad}


# Training


def test_twenty_steps_have_the_losses_of_peft_in_a_plain_loop(folders):
    """Same seed, same batches, torch's AdamW; the reference is built and trained by transformers and peft alone."""
    mine = train(hugging_face(folders["llama"]), 20)

    model = transformers.AutoModelForCausalLM.from_pretrained(folders["llama"])
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    torch.manual_seed(0)
    reference = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets))
    optimizer = torch.optim.AdamW([p for p in reference.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    theirs = []
    for step in range(20):
        inputs = batch(step % 2)
        logits = reference(input_ids=inputs["input_ids"]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["targets"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    assert mine == pytest.approx(theirs, abs=1e-4)
    assert mine[-1] < mine[0] - 0.01


@pytest.mark.parametrize("kind", ["gpt", "bert", "t5"])
def test_a_built_in_model_starts_as_it_was_and_trains_its_adapters_and_a_new_head_alone(kind: str):
    task, config = native(kind)
    task.eval()
    before = copy.deepcopy(task)
    ids = torch.randint(1, VOCAB, (2, 6))
    inputs = {"gpt": {}, "bert": {"chosen": torch.tensor([0, 6])}, "t5": {"decoder_input_ids": ids[:, :3]}}[kind]
    expected = task.logits(ids, **inputs)
    apply_adapters(task, config, CPU, torch.float32)
    torch.testing.assert_close(task.logits(ids, **inputs), expected, rtol=0, atol=0)
    names = trained_names(task)
    head = {"head.weight", "head.bias"} if kind == "bert" else set()
    assert names >= head and all(".lora_" in name for name in names - head)
    assert not any(name.startswith("head.lora") for name in names)
    task.logits(ids, **inputs).sum().backward()
    for name, parameter in task.named_parameters():
        assert (parameter.grad is not None) == (name in names), name
    values = dict(before.named_parameters())
    for name, parameter in merged(task).named_parameters():  # nothing was learned yet
        assert torch.equal(parameter, values[name]), name


def test_the_optimizer_keeps_no_state_of_frozen_weights(folders):
    task = hugging_face(folders["llama"])
    groups = parameter_groups(task, named_roles(task), OptimizerKnobs())
    named = {name for group in groups for name in group["names"]}
    assert named == trained_names(task) and len(named) == 2 * 7 * 2


def test_less_than_two_percent_are_trained_on_a_model_of_usual_size():
    config = config_of(
        {"pretrained": "x", "lora_rank": 8, "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
    )
    with torch.device("meta"):
        task = CausalLanguageModel(config, Facts(50257))
        apply_adapters(task, config, torch.device("meta"), torch.float32)
    trained = sum(p.numel() for p in task.parameters() if p.requires_grad)
    # For each layer rank x (inputs + outputs) of four matrices: 8 x (768 + 2304 + 768 + 768 + 2 x (768 + 3072)).
    assert trained == 12 * 8 * (768 + 2304 + 768 + 768 + 2 * (768 + 3072))
    assert trained / sum(p.numel() for p in task.parameters()) < 0.02


@pytest.mark.parametrize("alpha", [None, 1.0])
def test_the_factor_is_alpha_over_rank(folders, alpha: float | None):
    task = hugging_face(folders["llama"], lora_alpha=alpha)
    layer: Any = task.get_submodule("network.model.layers.0.mlp.up_proj")
    assert layer.scaling["default"] == (2.0 if alpha is None else 0.25)


def test_a_new_head_is_trained_as_a_whole_and_in_fp32(folders):
    task = hugging_face(folders["bert"], "classify", torch.float16, torch.float16)
    names = {name for name in trained_names(task) if ".lora_" not in name}
    # The pooler is new as well: a masked language model has none.
    assert names == {
        f"network.{part}.{own}" for part in ("classifier", "bert.pooler.dense") for own in ("weight", "bias")
    }
    for name, parameter in task.named_parameters():
        assert parameter.dtype is (torch.float32 if parameter.requires_grad else torch.float16), name


@pytest.mark.parametrize("weights", ["fp16", "bf16"])
def test_frozen_weights_of_16_bits_train_fp32_adapters(folders, weights: str):
    precision = Precision(PrecisionKnobs(weights=weights), CPU, has_frozen_weights=True)  # pyright: ignore
    assert precision.compute == weights
    task = hugging_face(folders["llama"], dtype=precision.weight_dtype, compute=precision.compute_dtype)
    exact = hugging_face(folders["llama"])
    with precision.autocast():
        assert torch.is_autocast_enabled("cpu")
        loss = loss_of(task, batch())
    assert loss.item() == pytest.approx(loss_of(exact, batch()).item(), abs=0.02)
    precision.backward(loss)
    assert all(p.grad is None or p.grad.dtype is torch.float32 for p in task.parameters())


@pytest.mark.parametrize("weights", ["fp16", "bf16"])
@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_a_built_in_model_of_16_bits_trains_fp32_adapters(weights: str, position: str):
    precision = Precision(PrecisionKnobs(weights=weights), CPU, has_frozen_weights=True)  # pyright: ignore
    exact, config = native("gpt", position=position)
    expected = loss_of(exact, batch()).item()
    task = CausalLanguageModel.build(config, Facts(VOCAB), CPU, precision.weight_dtype)
    apply_adapters(task, config, CPU, precision.compute_dtype)
    with precision.autocast():
        loss = loss_of(task, batch())
    assert loss.item() == pytest.approx(expected, abs=0.02)
    precision.backward(loss)
    assert all(p.grad is None or p.grad.dtype is torch.float32 for p in task.parameters())


def test_the_layer_of_t5_that_stays_in_fp32_uses_its_adapter_beside_fp16(tmp_path: Path):
    """The product of `wo` overflows fp16. It was computed from the frozen weight alone, so its adapter never learned:
    losses and gradients must be those of peft beside fp32 weights, up to the rounding of the other layers."""
    from trainbook.models.formats import load_pretrained

    theirs, reference = _t5_of_peft(tmp_path)
    precision = Precision(PrecisionKnobs(compute="fp16"), CPU, has_frozen_weights=True)
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4}
    like_t5 = dict(position="relative", norm="rmsnorm", attention_scale="none", activation="relu", bias=False)
    config = config_of(
        {"type": "t5", "pretrained": "there", **sizes, **like_t5, "tie_embeddings": True, "lora_targets": ("wo",)}
    )
    task = Seq2SeqModel.build(config, Facts(VOCAB), CPU, precision.weight_dtype)
    load_pretrained(task, tmp_path, config)
    apply_adapters(task, config, CPU, precision.compute_dtype)
    adapters = [parameter for parameter in task.parameters() if parameter.requires_grad]
    assert len(adapters) == len(reference) == 8
    with torch.no_grad():
        for mine, other in zip(adapters, reference, strict=True):
            mine.copy_(other)

    ids = torch.randint(2, VOCAB, (3, 8), generator=torch.Generator().manual_seed(1))
    with precision.autocast():
        logits = task.eval().logits(input_ids=ids, decoder_input_ids=ids[:, :6])
    losses = []
    for each in (logits.float(), theirs(input_ids=ids, decoder_input_ids=ids[:, :6]).logits):
        loss = torch.nn.functional.cross_entropy(each.flatten(0, 1)[:, :VOCAB], ids[:, 2:].flatten())
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], abs=5e-3)
    for mine, other in zip(adapters, reference, strict=True):
        assert mine.grad is not None and other.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, rtol=0.05, atol=0.02 * other.grad.abs().max().item())


def _t5_of_peft(folder: Path) -> tuple[Any, list[nn.Parameter]]:
    """A T5 with adapters at `wo` that are far from their first values, saved without them; and the adapters."""
    torch.manual_seed(0)
    settings = {"vocab_size": VOCAB, "pad_token_id": 0, "eos_token_id": 1, "dropout_rate": 0.0, **FAMILIES["t5"][1]}
    model = transformers.AutoModelForSeq2SeqLM.from_config(transformers.AutoConfig.for_model("t5", **settings))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    model.save_pretrained(folder)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["wo"])).eval()
    adapters = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    for parameter in adapters:
        parameter.data.normal_(std=0.3)
    return adapted, adapters


# Which layers


def test_targets_are_the_ends_of_names(folders):
    task = hugging_face(folders["llama"], lora_targets=("q_proj", "mlp.down_proj"))
    names = {name.split(".lora_")[0].split("layers.")[1] for name in trained_names(task)}
    assert names == {f"{layer}.{part}" for layer in (0, 1) for part in ("self_attn.q_proj", "mlp.down_proj")}


def test_a_target_that_is_nowhere_names_those_that_are(folders):
    with pytest.raises(
        UserError, match=r"no linear layer has a name that ends with 'q_porj'.*down_proj.*Did you mean 'q_proj'"
    ):
        hugging_face(folders["llama"], lora_targets=("q_porj",))


def test_the_head_is_never_a_target():
    task, _ = native("gpt", tie_embeddings=False)
    assert adaptable_layers(task) == [
        f"body.blocks.{layer}.{part}"
        for layer in (0, 1)
        for part in ("attention.query_key_value", "attention.output", "feed_forward.up", "feed_forward.down")
    ]


# The names, parameters and losses of peft on built-in models

FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "gpt2": ("AutoModelForCausalLM", {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}, "causal"),
    "llama": (
        "AutoModelForCausalLM",
        {
            "hidden_size": 16,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32,
        },
        "causal",
    ),
    "bert": (
        "AutoModelForMaskedLM",
        {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        "masked",
    ),
    "t5": ("AutoModelForSeq2SeqLM", {"d_model": 16, "d_ff": 32, "d_kv": 4, "num_layers": 2, "num_heads": 4}, "seq2seq"),
}
TARGETS = [
    ("gpt2", ("c_attn",)),
    ("gpt2", ("c_attn", "c_proj", "c_fc")),
    ("llama", ("q_proj", "v_proj")),
    ("llama", ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
    ("llama", ("self_attn.k_proj", "mlp.up_proj")),
    ("bert", ("query", "value")),
    ("bert", ("query", "key", "value", "dense")),
    ("t5", ("q", "v")),
    ("t5", ("q", "k", "v", "o", "wi", "wo")),
]


@pytest.mark.parametrize(("family", "targets"), TARGETS, ids=lambda value: value if isinstance(value, str) else None)
def test_a_built_in_model_has_the_adapters_of_peft_and_their_losses(tmp_path, family: str, targets: tuple[str, ...]):
    from trainbook.knobs import load
    from trainbook.models.formats import load_pretrained
    from trainbook.tasks import task_class

    auto, sizes, kind = FAMILIES[family]
    torch.manual_seed(0)
    settings = {"vocab_size": VOCAB, "pad_token_id": 0, "eos_token_id": 1, "dropout_rate": 0.0, **sizes}
    theirs = getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(family, **settings)).eval()
    for parameter in theirs.parameters():
        parameter.data.normal_(std=0.2)
    theirs.save_pretrained(tmp_path)
    overrides = [f"model.pretrained={tmp_path}", "data.max_seq_length=16", f"training.task={kind}"]
    overrides += ["model.lora_rank=4", f"model.lora_targets={list(targets)}", "data.tokenizer=byte"]
    config = load({"training": {"max_steps": 1}}, overrides).config
    ours = task_class(config).build(config, Facts(VOCAB), CPU, torch.float32)
    load_pretrained(ours, tmp_path, config)
    layers = ours.state_dict().keys()
    apply_adapters(ours, config, CPU, torch.float32)
    ours.eval()
    torch.manual_seed(config.training.seed)
    reference = peft.get_peft_model(
        theirs, peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(targets), fan_in_fan_out=family == "gpt2")
    ).eval()
    mine = [parameter for parameter in ours.parameters() if parameter.requires_grad]
    expected = [parameter for parameter in reference.parameters() if parameter.requires_grad]
    assert [parameter.shape for parameter in mine] == [parameter.shape for parameter in expected]
    for one, other in zip(mine, expected, strict=True):  # also the first values: the same seed, the same order
        torch.testing.assert_close(one, other, rtol=0, atol=0)

    ids = torch.randint(2, VOCAB, (3, 8), generator=torch.Generator().manual_seed(1))
    more = {"decoder_input_ids": ids[:, :6]} if kind == "seq2seq" else {}
    for step in range(4):
        if kind == "masked":
            logits = ours.logits(input_ids=ids, chosen=torch.arange(ids.numel())).view(3, 8, -1)
        else:
            logits = ours.logits(input_ids=ids, **more)
        losses = []
        for each, parameters in ((logits, mine), (reference(input_ids=ids, **more).logits, expected)):
            targets_BL = ids[:, : each.shape[1]].flip(1)
            loss = torch.nn.functional.cross_entropy(each.flatten(0, 1)[:, :VOCAB], targets_BL.flatten())
            losses.append(loss.item())
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= 0.1 * gradient
        assert losses[0] == pytest.approx(losses[1], abs=1e-6), step

    chosen = {"chosen": torch.arange(ids.numel())} if kind == "masked" else {}
    adapted = ours.logits(input_ids=ids, **more, **chosen)
    merged(ours)
    torch.testing.assert_close(ours.logits(input_ids=ids, **more, **chosen), adapted, rtol=0, atol=1e-5)
    assert ours.state_dict().keys() == layers


# What is saved


def test_only_what_is_trained_is_saved_and_it_is_enough_to_go_on(folders):
    task = hugging_face(folders["llama"])
    train(task, 3)
    state = {name: tensor.clone() for name, tensor in saved_state(task).items()}
    assert state.keys() == trained_names(task) | {FINGERPRINT}
    again = hugging_face(folders["llama"])
    assert not torch.equal(again.logits(batch()["input_ids"]), task.logits(batch()["input_ids"]))
    load_saved_state(again, state)
    torch.testing.assert_close(again.logits(batch()["input_ids"]), task.logits(batch()["input_ids"]), rtol=0, atol=0)


def test_without_adapters_all_is_saved():
    task, config = native("gpt", lora_rank=None)
    apply_adapters(task, config, CPU, torch.float32)
    assert saved_state(task).keys() == task.state_dict().keys()
    other, _ = native("gpt", lora_rank=None)
    nn.init.ones_(other.get_parameter("body.final_norm.weight"))
    load_saved_state(other, saved_state(task))
    assert all(torch.equal(value, task.state_dict()[name]) for name, value in other.state_dict().items())
    with pytest.raises(ResumeError, match="belongs to a different model"):
        load_saved_state(other, {"x": torch.zeros(1)})


def test_adapters_are_not_put_beside_other_weights(folders, tmp_path: Path):
    state = saved_state(hugging_face(folders["llama"]))
    model = transformers.AutoModelForCausalLM.from_pretrained(folders["llama"])
    model.model.layers[1].mlp.up_proj.weight.data += 1e-3
    model.save_pretrained(tmp_path)
    with pytest.raises(ResumeError, match="frozen weights differ from those"):
        load_saved_state(hugging_face(tmp_path), state)


def test_adapters_of_another_rank_are_refused(folders):
    state = saved_state(hugging_face(folders["llama"], lora_rank=2))
    with pytest.raises(ResumeError, match=r"lora_A.default.weight is \(2, 32\) in the checkpoint and \(4, 32\) here"):
        load_saved_state(hugging_face(folders["llama"]), state)


# Merging


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_merged_weights_compute_the_same_and_have_the_names_of_the_model(folders, kind: str, tmp_path: Path):
    task = hugging_face(folders[kind])
    train(task, 3)
    expected = task.eval().logits(batch()["input_ids"])
    plain: Any = merged(task)
    torch.testing.assert_close(plain.logits(batch()["input_ids"]), expected, rtol=0, atol=1e-5)
    plain.save(tmp_path)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(read(batch()["input_ids"]).logits, expected, rtol=0, atol=1e-5)


def test_a_merged_built_in_model_has_the_state_of_a_plain_one():
    task, config = native("gpt")
    names = task.state_dict().keys()
    apply_adapters(task, config, CPU, torch.float32)
    train(task, 2)
    expected = task.logits(batch()["input_ids"])
    plain: Any = merged(task)
    assert saved_state(plain).keys() == names
    torch.testing.assert_close(plain.logits(batch()["input_ids"]), expected, rtol=0, atol=1e-5)


# Weights of 4 and 8 bits


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_packed_weights_are_trained_beside_saved_without_and_merged(folders, kind: str, bits: str):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    task = hugging_face(folders[kind], quantize_base=bits)
    kinds = (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)
    packed = [part for part in task.modules() if isinstance(part, kinds[0 if bits == "4bit" else 1])]
    assert len(packed) == (14 if kind == "llama" else 8)
    exact = hugging_face(folders[kind])
    losses = loss_of(task, batch()).item(), loss_of(exact, batch()).item()
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], abs=0.1)
    found = train(task.eval(), 20)
    assert found[-1] < found[0] - 0.01
    state = saved_state(task)
    assert state.keys() == trained_names(task) | {FINGERPRINT}
    assert all(tensor.dtype is torch.float32 for name, tensor in state.items() if name != FINGERPRINT)
    again = hugging_face(folders[kind], quantize_base=bits).eval()
    load_saved_state(again, state)
    expected = task.logits(batch()["input_ids"])
    torch.testing.assert_close(again.logits(batch()["input_ids"]), expected, rtol=0, atol=0)
    plain: Any = merged(task)
    names = plain.state_dict().keys()
    assert names == plain_names(folders[kind])
    # 8-bit products also round their inputs; the merged model does not.
    closeness = 1e-5 if bits == "4bit" else 0.1
    torch.testing.assert_close(plain.logits(batch()["input_ids"]), expected, rtol=0, atol=closeness)


def plain_names(folder: Path):
    config = config_of({"type": "hf", "pretrained": str(folder), "lora_rank": None}, "causal")
    return huggingface_task(task_name(config)).build(config, Facts(VOCAB), CPU, torch.float32).state_dict().keys()


def test_a_built_in_model_is_packed_too():
    pytest.importorskip("bitsandbytes")
    task, config = native("gpt", quantize_base="4bit")
    expected = task.eval().logits(batch()["input_ids"])
    apply_adapters(task, config, CPU, torch.float32)
    assert torch.nn.functional.mse_loss(task.logits(batch()["input_ids"]), expected) < 0.05 * expected.var()
    losses = train(task, 20)
    assert losses[-1] < losses[0]
