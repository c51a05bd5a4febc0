"""What a watched step measures: exact numbers, no trace left behind, and nothing that waits for the device."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.loop.waiting import Counted, nothing_waits
from torch import Tensor, nn

from trainbook.data.batches.filling import Batch, Ragged
from trainbook.knobs import Config
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.knobs.sections.precision import PrecisionKnobs as PrecisionKnobs
from trainbook.loop import step_metrics
from trainbook.loop.step_metrics import (
    first_rows,
    layer_norms,
    layer_of,
    log_z_of,
    over_targets,
    probe,
    sampled,
    update_ratio,
)
from trainbook.loop.train import updates_seen
from trainbook.models.attention import recorded_logits
from trainbook.parallel import Strategy
from trainbook.precision import Precision, clip_gradients
from trainbook.tasks import IGNORED, NATIVE, CausalCollate, CausalLanguageModel, Facts
from trainbook.tasks.labels import LabelCollate, TagCollate
from trainbook.tasks.masked import MaskedCollate
from trainbook.tasks.seq2seq import PairCollate
from trainbook.tasks.wrapped import OBJECTIVES, OwnModel

CPU = torch.device("cpu")
FP32 = Precision(PrecisionKnobs(compute="fp32"), CPU)
VOCAB, PAD, MASK = 40, 0, 39
LABELS = ("a", "b", "c")
FACTS = Facts(VOCAB, LABELS, pad=PAD, end=1)
LENGTHS = (6, 3, 5, 4, 2, 6)


# How far an update goes


def test_of_small_tensors_the_ratio_is_exact():
    weights = [torch.tensor([3.0, 0.0]), torch.tensor([[0.0], [4.0]]), torch.tensor(12.0)]
    before = sampled(weights)
    for tensor, change in zip(weights, (0.3, -0.4, 1.2), strict=True):
        tensor.view(-1)[0] += change
    assert float(update_ratio(before, weights)) == pytest.approx(1.3 / 13.0, rel=1e-6)


def test_a_model_is_counted_as_a_whole_and_not_tensor_by_tensor():
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    before, copies = sampled(model.parameters()), [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    whole = [torch.cat([part.detach().flatten().double() for part in parts]) for parts in (copies, model.parameters())]
    assert float(update_ratio(before, model.parameters())) == pytest.approx(
        float((whole[1] - whole[0]).norm() / whole[0].norm()), rel=1e-6
    )


def test_what_was_sampled_does_not_move_with_the_weights():
    weights = [torch.ones(3)]
    before = sampled(weights)
    weights[0] *= 2
    assert float(update_ratio(before, weights)) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_samples_are_the_parameters_own_numbers_of_one_type_or_of_several(dtype: torch.dtype):
    weights = [torch.randn(3), torch.randn(300, 70).to(dtype), torch.randn(()), torch.randn(5, 4).T]
    samples = sampled(weights)
    assert [sample.dtype for sample in samples] == [weight.dtype for weight in weights]
    for place in (0, 2, 3):
        assert torch.equal(samples[place], weights[place].flatten())
    assert set(samples[1].tolist()) <= set(weights[1].flatten().tolist())


def test_an_update_that_was_kept_out_has_the_ratio_zero():
    weights = [torch.ones(3), torch.randn(300, 70)]
    assert float(update_ratio(sampled(weights), weights)) == 0.0


def test_weights_of_16_bits_are_subtracted_in_32():
    weights = [torch.full((4,), 1.0078125, dtype=torch.bfloat16)]
    before = sampled(weights)
    weights[0].fill_(256.0)  # from which that is far less than half of what 16 bits can tell
    ratio = update_ratio(before, weights)
    assert ratio.dtype is torch.float32 and float(ratio) == pytest.approx((256 - 1.0078125) / 1.0078125, rel=1e-6)


def test_of_large_random_tensors_the_ratio_is_near_the_whole_ones():
    """The mean square of n Gaussian numbers has a relative standard error of sqrt(2 / n), a norm half of it, and the
    ratio of two independent norms sqrt(2) of that: 1 / sqrt(n) in all. Four of those."""
    generator = torch.Generator().manual_seed(0)
    for shape in ((2048, 1024), (50_257, 48), (999_983,)):
        weights = [torch.randn(shape, generator=generator)]
        change = [1e-3 * torch.randn(shape, generator=generator)]
        before = sampled(weights)
        num_sampled = len(before[0])
        assert 0.99 * step_metrics.MOST_SAMPLED < num_sampled <= step_metrics.MOST_SAMPLED
        exact = float(change[0].norm() / weights[0].norm())
        weights[0] += change[0]
        assert float(update_ratio(before, weights)) == pytest.approx(exact, rel=4 / math.sqrt(num_sampled))


def test_a_large_tensor_weighs_as_much_as_it_has_numbers():
    weights = [torch.full((100_000,), 2.0), torch.full((100,), 3.0)]
    before = sampled(weights)
    weights[0] += 0.01
    expected = math.sqrt(100_000 * 0.01**2) / math.sqrt(100_000 * 2.0**2 + 100 * 3.0**2)
    assert float(update_ratio(before, weights)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("shape", [(4096, 1024), (1024, 4096), (64, 64, 64), (50_304, 768)])
def test_numbers_are_taken_from_all_columns_and_not_from_a_few(shape: tuple[int, ...]):
    """Only every eighth column has changed."""
    weights = [torch.ones(shape)]
    before = sampled(weights)
    weights[0][..., ::8] += 0.1
    assert float(update_ratio(before, weights)) == pytest.approx(0.1 / math.sqrt(8), rel=0.01)


# Gradients of each layer


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("body.blocks.3.attention.query_key_value.weight", "body.blocks.3"),
        ("body.blocks.11.feed_forward_norm.weight", "body.blocks.11"),
        ("body.token_embedding.weight", "body.token_embedding"),
        ("body.encoder.blocks.0.attention.output.weight", "body.encoder.blocks.0"),
        ("body.decoder.relative_bias.weight", "body.decoder.relative_bias"),
        ("head.weight", "head"),
        ("network.transformer.h.2.attn.c_attn.weight", "network.transformer.h.2"),
        ("network.bert.encoder.layer.7.output.LayerNorm.bias", "network.bert.encoder.layer.7"),
        ("network.encoder.block.1.layer.0.SelfAttention.q.weight", "network.encoder.block.1"),
        ("network.lm_head.weight", "network.lm_head"),
        ("body.blocks.3.attention.output.lora_A.default.weight", "body.blocks.3"),
        ("transform.lora_B.default.weight", "transform"),
        ("0.weight", "0"),
        ("net.2.bias", "net.2"),
        ("weights.4", "weights.4"),
        ("scale", "scale"),
    ],
)
def test_the_layer_of_a_parameter(name: str, layer: str):
    assert layer_of(name) == layer


def norms_of(*values: float) -> list[Tensor]:
    return [torch.tensor(value) for value in values]


def test_norms_of_a_layer_add_up_as_squares_in_whatever_order_the_parameters_come():
    names = ("head.weight", "body.blocks.1.a.weight", "body.blocks.0.a.weight", "body.blocks.1.b.bias")
    found = layer_norms(names, norms_of(2.0, 3.0, 7.0, 4.0))
    assert {name: float(norm) for name, norm in found.items()} == {
        "head": 2.0,
        "body.blocks.1": 5.0,
        "body.blocks.0": 7.0,
    }


def test_what_is_not_finite_or_larger_than_its_square_can_be_stays_in_its_layer():
    names = [f"blocks.{layer}.{part}" for layer in range(3) for part in ("weight", "bias")]
    found = layer_norms(names, norms_of(math.inf, 1.0, math.nan, 1.0, 3e30, 4e30))
    assert float(found["blocks.0"]) == math.inf and math.isnan(float(found["blocks.1"]))
    assert float(found["blocks.2"]) == pytest.approx(5e30, rel=1e-6)


def test_layers_are_found_once_and_summed_with_the_same_few_operations_however_many_there_are():
    counts = []
    for layers in (2, 40):
        names = [f"body.blocks.{layer}.{part}" for layer in range(layers) for part in ("a", "b", "c")]
        norms = norms_of(*range(len(names)))
        layer_norms(names, norms)
        before = step_metrics._layers.cache_info().misses
        with Counted() as counted:
            layer_norms(list(names), norms)
        assert step_metrics._layers.cache_info().misses == before
        counts.append(counted.operations)
    assert counts[0] == counts[1] < 12


def state_of(task: nn.Module, parameters: list[nn.Parameter]) -> Any:
    """As much of a training state as is looked at."""
    names = {parameter: name for name, parameter in task.named_parameters()}
    group = {"params": parameters, "names": [names[parameter] for parameter in parameters]}
    optimizer = SimpleNamespace(param_groups=[group])
    return SimpleNamespace(task=task, parameters=parameters, optimizer=optimizer, strategy=Strategy())


def test_around_an_update_each_layer_has_its_norm_and_those_without_a_gradient_are_left_out():
    task = make("causal", tie_embeddings=True)
    task.body.blocks[0].requires_grad_(False)
    parameters = [parameter for parameter in reversed(list(task.parameters())) if parameter.requires_grad]
    task(**batch_of("causal"))["cross_entropy"].backward()
    unused = nn.Parameter(torch.ones(3))
    task.unused = unused
    parameters.insert(2, unused)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    exact = {
        name: math.sqrt(sum(float(part.grad.double().square().sum()) for part in parts))  # pyright: ignore
        for name, parts in {
            "body.blocks.1": list(task.body.blocks[1].parameters()),
            "body.token_embedding": [task.head.weight],
            "body.position_embedding": list(task.body.position_embedding.parameters()),
            "body.final_norm": list(task.body.final_norm.parameters()),
        }.items()
    }
    clipped = clip_gradients(gradients, 0.1)
    state = state_of(task, parameters)
    seen = step_metrics.before_update(state, clipped)
    with torch.no_grad():
        for parameter in parameters:
            parameter *= 1.25
    values = step_metrics.after_update(state, seen)
    assert values.keys() == {"update_ratio", "update_ratios", "weight_norm", "grad_norms"}
    assert {name: float(ratio) for name, ratio in values["update_ratios"].items()} == pytest.approx(
        dict.fromkeys([step_metrics.layer_of(name) for name in state.optimizer.param_groups[0]["names"]], 0.25),
        rel=1e-5,
    )
    assert float(values["update_ratio"]) == pytest.approx(0.25, rel=1e-5)
    assert {name: float(norm) for name, norm in values["grad_norms"].items()} == pytest.approx(exact, rel=1e-5)
    total = math.sqrt(sum(float(norm) ** 2 for norm in values["grad_norms"].values()))
    assert total == pytest.approx(float(clipped.norm), rel=1e-6) and total > 0.1, "before clipping"


# A look inside: tasks to look into


def config_of(task: str, **model: Any) -> Config:
    kind = {"causal": "gpt", "chat": "gpt", "seq2seq": "t5"}.get(task, "bert")
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "dropout": 0.3, **model}
    return Config(model=ModelKnobs(type=kind, **sizes), data=DataKnobs(max_seq_length=16, max_target_length=8))


def make(task: str, **model: Any) -> Any:
    facts = replace(FACTS, label_names=()) if task == "regress" else FACTS
    made = NATIVE[task].build(config_of(task, **model), facts, CPU, torch.float32)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return made.train()


def batch_of(task: str, *, packed: bool = False) -> dict[str, Tensor]:
    chance = np.random.default_rng(3)
    tokens = Ragged.of([chance.integers(2, MASK, length) for length in LENGTHS])
    rows = np.array([0, 0, 1, 1, 2, 2]) if packed else np.arange(len(LENGTHS))
    facts: dict[str, Any] = {"packed": packed}
    collate: Any = LabelCollate(100, PAD)
    match task:
        case "causal":
            collate = CausalCollate(100, PAD)
        case "masked":
            special = np.isin(np.arange(VOCAB), (PAD, 1, MASK))
            collate = MaskedCollate(100, 5, 0.4, MASK, PAD, special, np.flatnonzero(~special), None)
        case "seq2seq":
            collate = PairCollate(100, PAD)
            facts["targets"] = Ragged.of([chance.integers(2, MASK, length) for length in (2, 4, 1, 5, 3, 2)])
        case "classify":
            facts["labels"] = chance.integers(0, 3, len(LENGTHS))
        case "classify_many":
            facts["labels"] = chance.integers(0, 2, (len(LENGTHS), 3)).astype(np.float32)
        case "regress":
            facts["labels"] = chance.normal(size=len(LENGTHS)).astype(np.float32)
        case "tag":
            collate = TagCollate(100, PAD)
            marks = chance.integers(-1, 3, len(tokens.values))
            marks[np.cumsum(LENGTHS) - 1] = 1
            facts["marks"] = Ragged(marks, tokens.lengths)
    ids = np.arange(len(LENGTHS))
    batch = Batch(ids, np.zeros_like(ids), tokens, rows, int(rows[-1]) + 1, None, 0.0, **facts)
    (micro_batch,) = collate(batch).micro_batches
    return micro_batch


CHOOSING = ("causal", "masked", "seq2seq", "classify", "tag")
OF_LOGITS = ("log_z", "probe_loss")
OFFSETS: dict[str, tuple[str, ...]] = {"causal": ("offset_losses",), "seq2seq": ("offset_losses",)}
CAUSAL = {"attention_logit_max", "log_z", "probe_loss", "offset_losses", "dead_units"}
TASKS = (*CHOOSING, "classify_many", "regress")


# A look inside: the numbers


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("task", TASKS)
@torch.no_grad()
def test_the_first_rows_are_cut_so_that_each_target_keeps_its_logits(task: str, packed: bool):
    micro_batch, model = batch_of(task, packed=packed), make(task).eval()
    cut = first_rows(micro_batch)
    assert cut.keys() == micro_batch.keys() and cut["input_ids"].shape[0] == step_metrics.MOST_ROWS
    whole, part = (model.logits(**without_targets(batch)) for batch in (micro_batch, cut))
    rows = torch.arange(len(micro_batch["input_ids"]))
    if "chosen" in micro_batch:
        rows = micro_batch["chosen"] // micro_batch["input_ids"].shape[1]
    at = int((rows < step_metrics.MOST_ROWS).sum())
    assert 0 < at < len(micro_batch["targets"])
    assert torch.equal(micro_batch["targets"][:at], cut["targets"])
    torch.testing.assert_close(part, whole[:at], rtol=0, atol=1e-5)


def without_targets(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in batch.items() if name != "targets"}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_what_is_found_of_each_task(task: str, packed: bool):
    micro_batch, model = batch_of(task, packed=packed), make(task)
    found = probe(model, micro_batch, FP32, CPU)
    assert found.keys() == {
        "attention_logit_max",
        "dead_units",
        *(OF_LOGITS if task in CHOOSING else ()),
        *OFFSETS.get(task, ()),
    }
    cut, model = first_rows(micro_batch), model.eval()
    with recorded_logits() as recorder, torch.no_grad():
        logits = model.logits(**without_targets(cut))
    assert recorder.largest is not None and torch.equal(found["attention_logit_max"], recorder.largest)
    if task in CHOOSING:
        rows, targets = logits.flatten(0, -2).double(), cut["targets"].flatten()
        exact = [
            math.log(sum(math.exp(logit) for logit in row.tolist()))
            for row, target in zip(rows, targets.tolist(), strict=True)
            if target != IGNORED
        ]
        assert float(found["log_z"]) == pytest.approx(sum(exact) / len(exact), rel=1e-5)
        losses = torch.nn.functional.cross_entropy(rows, targets, ignore_index=IGNORED)
        assert float(found["probe_loss"]) == pytest.approx(float(losses), rel=1e-5)
    assert all(value.shape == () and value.grad_fn is None for value in flat(found))


def flat(found: dict[str, Any]) -> list[Tensor]:
    return [item for value in found.values() for item in (value.values() if isinstance(value, dict) else [value])]


def test_logits_are_summed_in_parts_where_there_are_many(monkeypatch: pytest.MonkeyPatch):
    logits, targets = torch.randn(3, 5, 7), torch.randint(0, 7, (3, 5))
    whole = log_z_of(logits, targets)
    monkeypatch.setattr(step_metrics, "MOST_AT_ONCE", 15)
    torch.testing.assert_close(log_z_of(logits, targets), whole)


def test_a_mean_over_no_target_is_no_number():
    assert over_targets(torch.randn(2), torch.full((2,), IGNORED)).isnan()


def test_cells_that_were_chosen_on_the_device_are_not_counted_there():
    micro_batch = {name: tensor.to("meta") for name, tensor in batch_of("masked").items()}
    assert {name: tensor.shape for name, tensor in first_rows(micro_batch).items()} == {
        name: tensor.shape for name, tensor in micro_batch.items()
    }


def test_it_computes_in_the_type_of_training_and_answers_in_fp32():
    model, micro_batch = make("causal"), batch_of("causal")
    exact = probe(model, micro_batch, FP32, CPU)
    found = probe(model, micro_batch, Precision(PrecisionKnobs(compute="bf16"), CPU), CPU)
    assert all(value.dtype is torch.float32 for value in flat(found))
    for name in ("attention_logit_max", "log_z", "probe_loss"):
        assert not torch.equal(found[name], exact[name])
        torch.testing.assert_close(found[name], exact[name], rtol=0.05, atol=0.05)


# A look inside: no trace


@pytest.mark.parametrize("task", TASKS)
def test_a_run_that_is_probed_is_the_same_to_the_bit(task: str):
    states = []
    for is_probed in (False, True):
        model = make(task)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(0)  # once: a single number drawn in between would change all dropout after it
        random.seed(0)
        np.random.seed(0)
        for step in range(4):
            if is_probed:
                assert probe(model, batch_of(task, packed=step % 2 == 0), FP32, CPU)
            losses = model(**batch_of(task))
            if is_probed:
                assert probe(model, batch_of(task), FP32, CPU)
            torch.stack(list(losses.values())).sum().backward()
            if is_probed:
                assert probe(model, batch_of(task), FP32, CPU)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        states.append((model.state_dict(), torch.get_rng_state(), random.random(), np.random.random()))
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_a_whole_run_is_the_same_to_the_bit_however_often_it_is_watched(lab):
    watched = {"update_ratio", "update_ratios", "weight_norm", "grad_norms", "target_match", "ordered_rows"} | CAUSAL
    for name, every in (("often", 1), ("seldom", 100)):
        lab.train("model.dropout=0.2", f"logging.logging_steps={every}", "logging.dense_steps=0", name=name)
    often, seldom = lab.rows("often"), lab.rows("seldom")
    assert len(often) == 12 and all(watched <= row.keys() for row in often)
    assert [row["step"] for row in seldom] == [1, 12]
    for row in seldom:
        other = often[row["step"] - 1]
        assert {name: row[name] for name in row if name != "clipped"} == {
            name: other[name] for name in other if name != "clipped"
        }
        total = math.sqrt(sum(norm**2 for norm in row["grad_norms"].values()))
        assert total == pytest.approx(row["grad_norm"], rel=1e-6)
        assert {"body.token_embedding", "body.blocks.0"} < row["grad_norms"].keys()
    assert lab.rows("often", "eval") == lab.rows("seldom", "eval")
    for part in ("model", "optimizer"):
        torch.testing.assert_close(lab.state("often")[part], lab.state("seldom")[part], rtol=0, atol=0)


def test_a_compiled_task_is_not_compiled_again_because_it_was_probed():
    model, micro_batch, graphs = Restless.build(config_of("causal"), FACTS, CPU, torch.float32), batch_of("causal"), []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model.train()
    torch._dynamo.reset()
    compiled = torch.compile(CausalLanguageModel.logits, backend=count, fullgraph=True)
    inputs = without_targets(micro_batch)
    for _ in range(3):
        compiled(model, **inputs)
        assert probe(model, micro_batch, FP32, CPU).keys() == CAUSAL
    assert len(graphs) == 1


class Restless(CausalLanguageModel):
    """Draws random numbers and counts its calls whatever mode it is in."""

    def __init__(self, config: Config, facts: Facts) -> None:
        super().__init__(config, facts)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))
        self.norm = nn.BatchNorm1d(VOCAB)

    def initialize(self, seed: int) -> None:
        super().initialize(seed)
        self.norm.reset_parameters()
        self.calls, self.last = torch.zeros(()), torch.zeros(())

    def logits(self, **inputs: Any) -> Tensor:
        self.calls += 1
        self.last = torch.rand(()) + random.random() + np.random.random()
        logits = super().logits(**inputs)
        return self.norm(logits[..., :VOCAB].transpose(1, 2)).transpose(1, 2) + self.last


class Failing(Restless):
    def logits(self, **inputs: Any) -> Tensor:
        super().logits(**inputs)
        raise KeyError("no logits here")


def numpy_state() -> tuple[bytes, int]:
    _, numbers, place, *_ = cast(tuple, np.random.get_state())
    return numbers.tobytes(), place


@pytest.mark.parametrize("kind", [Restless, Failing])
def test_random_numbers_modes_buffers_and_gradients_are_as_before_even_if_it_fails(kind: type[CausalLanguageModel]):
    model = kind.build(config_of("causal"), FACTS, CPU, torch.float32)
    model.train()
    model.body.blocks[0].eval()  # a part that its owner keeps in a mode of its own
    modes = [part.training for part in model.modules()]
    buffers = dict(model.named_buffers())
    copies = {name: buffer.clone() for name, buffer in buffers.items()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.manual_seed(0)
    before = torch.get_rng_state(), random.getstate(), numpy_state()
    found = probe(model, batch_of("causal"), FP32, CPU)
    assert found.keys() == (set() if kind is Failing else CAUSAL)
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert numpy_state() == before[2]
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name] and torch.equal(buffer, copies[name]), name
    assert all(torch.equal(parameter.grad, torch.ones_like(parameter)) for parameter in model.parameters())  # pyright: ignore


# A look inside: of others


class Bigram(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, columns)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.table(input_ids)


class Mean(Bigram):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.table(input_ids).mean(1)


@pytest.mark.parametrize(
    ("task", "network"), [("causal", Bigram(VOCAB)), ("classify", Bigram(3)), ("classify", Mean(3))]
)
def test_of_a_network_that_is_not_ours_there_is_what_its_logits_tell(task: str, network: nn.Module):
    kind: Any = type("Own", (OwnModel, OBJECTIVES[task]), {})
    model = kind.around(config_of(task), FACTS, network, "it")
    found = probe(model, batch_of(task), FP32, CPU)
    cut = first_rows(batch_of(task))
    with torch.no_grad():
        log_z = model.logits(**without_targets(cut)).logsumexp(-1).flatten()
    assert found.keys() == {*OF_LOGITS, *OFFSETS.get(task, ())}
    assert float(found["log_z"]) == pytest.approx(float(log_z[cut["targets"].flatten() != IGNORED].mean()), rel=1e-5)


def test_of_a_model_of_transformers_too():
    transformers = pytest.importorskip("transformers")
    from trainbook.tasks.huggingface import huggingface_task

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": VOCAB}
    network = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=1))
    model: Any = huggingface_task("causal").around(config_of("causal"), FACTS, network, "it")
    model.prepared(config_of("causal"), "it").train()
    cut = first_rows(batch_of("causal"))
    found = probe(model, batch_of("causal"), FP32, CPU)
    assert network.training
    with torch.no_grad():
        logits = network.eval()(input_ids=cut["input_ids"]).logits
    assert found.keys() == {*OF_LOGITS, "offset_losses"}
    expected = logits.logsumexp(-1)[cut["targets"] != IGNORED].mean()
    assert float(found["log_z"]) == pytest.approx(float(expected), rel=1e-5)


def test_a_task_with_inputs_of_its_own_is_given_all_of_them():
    class Weighted(CausalLanguageModel):
        seen = (0,)

        def logits(self, **inputs: Any) -> Tensor:
            weights = inputs.pop("weights")
            self.seen = (len(inputs["input_ids"]), len(weights))
            return super().logits(**inputs)

    model = Weighted.build(config_of("causal"), FACTS, CPU, torch.float32)
    micro_batch = {**batch_of("causal"), "weights": torch.ones(17)}
    assert probe(model, micro_batch, FP32, CPU).keys() == CAUSAL
    assert model.seen == (len(LENGTHS), 17)


@pytest.mark.parametrize("micro_batch", [{"input_ids": torch.ones(2, 3).long()}, [torch.ones(2)], torch.ones(2), None])
def test_of_a_batch_or_a_module_that_is_no_tasks_nothing_is_asked(micro_batch: Any):
    assert probe(make("causal"), micro_batch, FP32, CPU) == {}
    assert probe(nn.Linear(3, 3), batch_of("causal"), FP32, CPU) == {}


# Nothing waits


def test_reading_a_number_is_refused_here(monkeypatch: pytest.MonkeyPatch):
    """What the tests below rest on."""
    for wait in (lambda x: float(x.sum()), lambda x: x[x > 1], lambda x: bool((x > 0).all()), lambda x: x.tolist()):
        with pytest.raises(AssertionError), nothing_waits(monkeypatch):
            wait(torch.ones(3))


def test_measuring_an_update_waits_for_nothing(monkeypatch: pytest.MonkeyPatch):
    model = make("causal", tie_embeddings=False)
    model(**batch_of("causal"))["cross_entropy"].backward()
    parameters = [*model.parameters(), nn.Parameter(torch.ones(10_000))]
    state = state_of(model, parameters[:-1])
    clipped = clip_gradients([parameter.grad for parameter in model.parameters()], 1.0)
    with nothing_waits(monkeypatch):
        step_metrics.after_update(state, step_metrics.before_update(state, clipped))
        update_ratio(sampled(parameters), parameters)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_a_probe_waits_for_nothing(task: str, packed: bool, monkeypatch: pytest.MonkeyPatch):
    model, micro_batch = make(task), batch_of(task, packed=packed)
    cut = first_rows(micro_batch)  # on the host, where a batch is made
    monkeypatch.setattr(step_metrics, "first_rows", lambda micro_batch: cut)
    real = model.logits
    asked = []
    model.logits = lambda **inputs: asked.append(1) or real(**inputs)
    with nothing_waits(monkeypatch):
        found = probe(model, micro_batch, FP32, CPU)
    assert asked and len(found) == (2 + (2 + (task in OFFSETS)) * (task in CHOOSING)), (
        "an error in it would leave them out"
    )


def test_an_optimizer_has_seen_the_updates_of_its_busiest_parameter():
    unused, trained = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([unused, trained])
    assert updates_seen(optimizer, CPU) == {}
    optimizer.state[unused] = {"step": torch.tensor(0.0)}
    optimizer.state[trained] = {"step": torch.tensor(3.0)}
    assert float(updates_seen(optimizer, CPU)["optimizer_updates"]) == 3
