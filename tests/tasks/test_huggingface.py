from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import later, needs

from trainbook.data.batches.filling import Batch, Ragged
from trainbook.data.tokenizers import LibraryBackedTokenizer
from trainbook.errors import ConfigError, UserError
from trainbook.knobs import Config, load
from trainbook.knobs.derive import task_name
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.memory import MemoryKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.knobs.sections.training import TrainingKnobs
from trainbook.models import named_roles
from trainbook.roles import Kind
from trainbook.tasks import IGNORED
from trainbook.tasks.beam import write
from trainbook.tasks.causal import CausalCollate
from trainbook.tasks.huggingface import huggingface_task, template
from trainbook.tasks.labels import LabelCollate, TagCollate
from trainbook.tasks.seq2seq import PairCollate
from trainbook.tasks.task import Facts

pytestmark = needs("transformers")
transformers = later("transformers")

CPU = torch.device("cpu")
VOCAB = 40
PAD, END = 0, 1
LABELS = ("bad", "good", "so-so")
LENGTHS = [7, 4, 5]

SMALL: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
    },
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 1},
    "bert": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
    },
    "t5": {"d_model": 16, "d_ff": 32, "d_kv": 4, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
    "bart": {
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 32,
        "decoder_start_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "forced_eos_token_id": 1,
    },
}
AUTO = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "classify": "AutoModelForSequenceClassification",
    "classify_many": "AutoModelForSequenceClassification",
    "regress": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory):
    """A folder with a random model of this architecture, saved for this task."""
    made: dict[tuple[str, str], Path] = {}

    def make(kind: str, task: str) -> Path:
        if (kind, task) not in made:
            torch.manual_seed(0)
            options = {"vocab_size": 48, "pad_token_id": PAD, **SMALL[kind]}
            config = transformers.AutoConfig.for_model(kind, **options)
            model = getattr(transformers, AUTO[task]).from_config(config)
            for parameter in model.parameters():  # far from uniform, so that a mistake shows
                parameter.data.normal_(std=0.3)
            made[kind, task] = tmp_path_factory.mktemp(f"{kind}-{task}")
            model.save_pretrained(made[kind, task])
        return made[kind, task]

    return make


def build(folder: Path, task: str, dtype: torch.dtype = torch.float32, seed: int = 0, **memory: Any) -> Any:
    config = Config(
        model=ModelKnobs(type="hf", pretrained=str(folder)),
        training=TrainingKnobs(task=task, seed=seed),
        data=DataKnobs(max_seq_length=16),
        memory=MemoryKnobs(**memory),
    )
    labels = LABELS if task in ("classify", "classify_many", "tag") else ()
    return huggingface_task(task_name(config)).build(config, Facts(VOCAB, labels, pad=PAD, end=END), CPU, dtype)


def ragged(lengths: list[int], low: int, high: int, seed: int = 0) -> Ragged:
    values = np.random.default_rng(seed).integers(low, high, sum(lengths))
    return Ragged(values, np.array(lengths))


def batch_of(**more: Any) -> Batch:
    rows = np.arange(len(LENGTHS))
    return Batch(rows, np.zeros_like(rows), ragged(LENGTHS, 3, VOCAB), rows, len(rows), None, 0.0, **more)


def mask_of(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([[1] * length + [0] * (max(lengths) - length) for length in lengths])


def padded(ragged: Ragged, fill: int) -> torch.Tensor:
    return torch.from_numpy(ragged.padded(int(ragged.lengths.max()), fill))


def reference(folder: Path, task: str, **options: Any) -> Any:
    return getattr(transformers, AUTO[task]).from_pretrained(folder, **options).eval()


# The loss is that of transformers itself


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_causal_loss_is_that_of_transformers_with_padding(folder_of, kind: str):
    folder, batch = folder_of(kind, "causal"), batch_of()
    step = CausalCollate(3, PAD)(batch)
    sums = build(folder, "causal").eval()(**step.micro_batches[0])
    ids = padded(batch.tokens, PAD)
    labels = ids.masked_fill(mask_of(LENGTHS) == 0, IGNORED)
    expected = reference(folder, "causal")(input_ids=ids, attention_mask=mask_of(LENGTHS), labels=labels).loss
    assert sums["cross_entropy"].item() / step.num_targets == pytest.approx(expected.item(), abs=1e-5)


def test_masked_loss_is_that_of_transformers_with_padding(folder_of):
    folder, batch = folder_of("bert", "masked"), batch_of()
    ids, mask = padded(batch.tokens, PAD), mask_of(LENGTHS)
    chosen = torch.tensor([1, 5, 8, 15])
    labels = torch.full_like(ids, IGNORED).flatten()
    labels[chosen] = ids.flatten()[chosen]
    task = build(folder, "masked").eval()
    sums = task(targets=labels[chosen], input_ids=ids, chosen=chosen, document_ids=mask)
    expected = reference(folder, "masked")(input_ids=ids, attention_mask=mask, labels=labels.view_as(ids)).loss
    assert sums["cross_entropy"].item() / 4 == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_the_loss_of_pairs_is_that_of_transformers_whatever_the_decoder_starts_with(folder_of, kind: str):
    folder, targets = folder_of(kind, "seq2seq"), ragged([3, 5, 2], 3, VOCAB, seed=1)
    batch = batch_of(targets=targets)
    step = PairCollate(3, PAD)(batch)
    sums = build(folder, "seq2seq").eval()(**step.micro_batches[0])
    expected = reference(folder, "seq2seq")(
        input_ids=padded(batch.tokens, PAD), attention_mask=mask_of(LENGTHS), labels=padded(targets, IGNORED)
    ).loss
    assert sums["cross_entropy"].item() / step.num_targets == pytest.approx(expected.item(), abs=1e-5)


LABELS_OF = {
    "classify": np.array([2, 0, 1]),
    "classify_many": np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]], dtype=np.float32),
    "regress": np.array([0.5, -1.0, 2.0], dtype=np.float32),
}


@pytest.mark.parametrize("kind", ["bert", "llama", "gpt2"])
@pytest.mark.parametrize("task", LABELS_OF)
def test_the_loss_of_labels_is_that_of_transformers_with_padding(folder_of, kind: str, task: str):
    batch = batch_of(labels=LABELS_OF[task])
    step = LabelCollate(3, PAD)(batch)
    mine = build(folder_of(kind, "classify" if task != "regress" else "regress"), task).eval()
    sums = mine(**step.micro_batches[0])
    theirs = mine.network(
        input_ids=padded(batch.tokens, PAD),
        attention_mask=mask_of(LENGTHS),
        labels=torch.from_numpy(LABELS_OF[task]),
    )
    assert theirs.logits.shape == (3, 1 if task == "regress" else 3)
    assert sum(loss.item() for loss in sums.values()) / step.num_targets == pytest.approx(theirs.loss.item(), abs=1e-5)


def test_the_loss_of_tags_is_that_of_transformers_with_padding(folder_of):
    marks = Ragged(np.array([0, 1, -1, 2, 0, 0, -1, 2, -1, 1, 0, 1, -1, -1, 2, 0]), np.array(LENGTHS))
    batch = batch_of(marks=marks)
    step = TagCollate(3, PAD)(batch)
    mine = build(folder_of("bert", "tag"), "tag").eval()
    sums = mine(**step.micro_batches[0])
    labels = padded(marks, -1).masked_fill(padded(marks, -1) < 0, IGNORED)
    theirs = mine.network(input_ids=padded(batch.tokens, PAD), attention_mask=mask_of(LENGTHS), labels=labels)
    assert sums["cross_entropy"].item() / step.num_targets == pytest.approx(theirs.loss.item(), abs=1e-5)


# Building


def test_a_new_head_depends_on_the_seed_alone(folder_of):
    folder = folder_of("bert", "masked")
    torch.manual_seed(1)
    first = build(folder, "classify")
    torch.manual_seed(2)
    second, other = build(folder, "classify"), build(folder, "classify", seed=1)
    assert torch.equal(first.network.classifier.weight, second.network.classifier.weight)
    assert not torch.equal(first.network.classifier.weight, other.network.classifier.weight)
    assert {"network.classifier.weight", "network.classifier.bias"} <= first.fresh
    assert not any("encoder" in name for name in first.fresh)


def test_a_head_for_other_labels_is_made_anew_and_one_for_these_is_kept(folder_of, tmp_path: Path):
    mine = build(folder_of("bert", "masked"), "classify")
    mine.save(tmp_path)
    again = build(tmp_path, "classify", seed=5)
    assert again.network.config.id2label == dict(enumerate(LABELS))
    assert torch.equal(again.network.classifier.weight, mine.network.classifier.weight) and not again.fresh
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config.id2label = {0: "good", 1: "bad", 2: "so-so"}
    config.save_pretrained(tmp_path)
    swapped = build(tmp_path, "classify", seed=5)
    assert not torch.equal(swapped.network.classifier.weight, mine.network.classifier.weight)
    assert torch.equal(swapped.network.bert.pooler.dense.weight, mine.network.bert.pooler.dense.weight)
    assert swapped.fresh == {"network.classifier.weight", "network.classifier.bias"}


def test_the_dropout_is_that_of_its_own_configuration(folder_of):
    rates = {
        part.p for part in build(folder_of("bert", "masked"), "masked").modules() if isinstance(part, torch.nn.Dropout)
    }
    assert rates == {0.1}


def test_weights_have_the_asked_type(folder_of):
    assert {p.dtype for p in build(folder_of("llama", "causal"), "causal", torch.bfloat16).parameters()} == {
        torch.bfloat16
    }


@pytest.mark.parametrize("how", ["selective", "full"])
def test_recomputed_gradients_are_the_same(folder_of, how: str):
    folder, step = folder_of("llama", "causal"), CausalCollate(3, PAD)(batch_of())
    gradients = []
    for setting in ("off", how):
        task = build(folder, "causal", gradient_checkpointing=setting).train()
        assert task.network.is_gradient_checkpointing == (setting != "off")
        task(**step.micro_batches[0])["cross_entropy"].backward()
        gradients.append([parameter.grad for parameter in task.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_it_can_be_compiled_as_a_whole(folder_of):
    task, step = build(folder_of("llama", "causal"), "causal").eval(), CausalCollate(3, PAD)(batch_of())
    compiled = torch.compile(task, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(**step.micro_batches[0]), task(**step.micro_batches[0]))


# Roles


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_roles_know_transposed_matrices_tied_embeddings_and_the_head(folder_of, kind: str):
    roles = named_roles(build(folder_of(kind, "causal"), "causal"))
    if kind == "gpt2":
        up = roles["network.transformer.h.0.mlp.c_fc.weight"]
        assert (up.kind, up.fan_in, up.fan_out) == (Kind.HIDDEN, 16, 64)
        assert roles["network.transformer.wte.weight"].kind is Kind.EMBEDDING
        assert "network.lm_head.weight" not in roles
    else:
        assert roles["network.lm_head.weight"].kind is Kind.OUTPUT
        assert not roles["network.model.norm.weight"].is_matrix


def test_the_head_over_labels_is_an_output(folder_of):
    roles = named_roles(build(folder_of("bert", "classify"), "classify"))
    assert roles["network.classifier.weight"].kind is Kind.OUTPUT
    assert roles["network.bert.pooler.dense.weight"].kind is Kind.HIDDEN


# Writing


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_what_it_writes_is_what_transformers_writes(folder_of, kind: str, num_beams: int):
    folder, prompts = folder_of(kind, "causal"), torch.tensor([[5, 9, 22], [30, 4, 4]])
    task = build(folder, "causal").eval()
    task.facts = Facts(48, pad=PAD, end=None)
    mine = write(task, {"input_ids": prompts}, max_new_tokens=8, end_tokens=(), num_beams=num_beams)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "num_beams": num_beams}
    theirs = reference(folder, "causal").generate(prompts, attention_mask=torch.ones_like(prompts), **options)
    assert [answer.tokens for answer in mine] == theirs[:, 3:].tolist()


@torch.no_grad()
def test_a_full_context_goes_on_with_its_newer_half(folder_of):
    task = build(folder_of("gpt2", "causal"), "causal").eval()
    text = torch.arange(3, 23)[None]
    token, state = task.start({"input_ids": text[:, :17]})
    torch.testing.assert_close(task.step(token, state), task.logits(text[:, 1:17])[:, -1, :VOCAB])
    for end in (18, 19):  # 16 tokens were read: the last 8 are read again, and one more each time
        expected = task.logits(text[:, 10:end])[:, -1, :VOCAB]
        torch.testing.assert_close(task.step(text[:, end - 1], state), expected)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "task_name"), [("llama", "causal"), ("t5", "seq2seq")])
def test_rows_of_a_search_change_places_with_all_that_they_have_read(folder_of, kind: str, task_name: str):
    task = build(folder_of(kind, task_name), task_name).eval()
    texts, written = torch.tensor([[5, 9, 22], [30, 4, 17]]), torch.tensor([[7, 8, 9], [20, 21, 22]])
    order = torch.tensor([1, 0, 1])
    answers = []
    for rows, swapped in ((texts[order], None), (texts, order)):
        tokens, state = task.start({"input_ids": rows})
        task.step(tokens, state)
        task.step(written[order][:, 0] if swapped is None else written[:, 0], state)
        state = state if swapped is None else task.reorder(state, swapped)
        answers.append(task.step(written[order][:, 1], state))
    torch.testing.assert_close(*answers)


@pytest.mark.parametrize("kind", ["t5", "bart"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_answers_of_an_encoder_and_decoder_are_those_of_transformers(folder_of, kind: str, num_beams: int):
    folder, batch = folder_of(kind, "seq2seq"), batch_of()
    task = build(folder, "seq2seq").eval()
    task.facts = Facts(48, pad=PAD, end=None)
    inputs = {"input_ids": padded(batch.tokens, PAD), "document_ids": mask_of(LENGTHS)}
    mine = write(task, inputs, max_new_tokens=6, end_tokens=(), num_beams=num_beams)
    theirs = reference(folder, "seq2seq").generate(
        inputs["input_ids"],
        attention_mask=mask_of(LENGTHS),
        max_new_tokens=6,
        min_new_tokens=6,
        num_beams=num_beams,
        eos_token_id=None,
        forced_eos_token_id=None,
    )
    assert [answer.tokens for answer in mine] == theirs[:, 1:].tolist()


# What goes around a text


def test_a_text_stands_between_what_the_models_tokenizer_puts_there():
    from tokenizers import Tokenizer, models, processors

    library = Tokenizer(models.WordLevel({"a": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3}, unk_token="[UNK]"))
    assert template(LibraryBackedTokenizer(library)) == ((), ())
    library.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    assert template(LibraryBackedTokenizer(library)) == ((1,), (2,))
    library.enable_padding(length=8, pad_id=3, pad_token="[UNK]")
    library.enable_truncation(4)
    assert template(LibraryBackedTokenizer(library)) == ((1,), (2,))


# Mistakes


def test_a_tokenizer_of_other_weights_is_refused(folder_of):
    config = Config(
        model=ModelKnobs(type="hf", pretrained=str(folder_of("llama", "causal"))), data=DataKnobs(max_seq_length=16)
    )
    with pytest.raises(UserError, match="embeddings for 48 tokens, but the tokenizer has 49"):
        huggingface_task(task_name(config)).build(config, Facts(49), CPU, torch.float32)


@pytest.mark.parametrize(
    ("kind", "task", "knob"),
    [
        ("gpt2", "causal", "data.max_seq_length"),
        ("bert", "masked", "data.max_seq_length"),
        ("bart", "seq2seq", "data.max_seq_length"),
    ],
)
def test_more_positions_than_were_learned_are_refused(folder_of, kind: str, task: str, knob: str):
    folder = str(folder_of(kind, task))
    for length, is_fine in ((32, True), (33, False)):
        config = Config(
            model=ModelKnobs(type="hf", pretrained=folder),
            training=TrainingKnobs(task=task),
            data=DataKnobs(max_seq_length=length),
        )
        if is_fine:
            huggingface_task(task).build(config, Facts(VOCAB), CPU, torch.float32)
        else:
            with pytest.raises(
                UserError, match=f"{knob}: is 33, but .* has learned positions for 32 tokens. Set {knob}=32 or less"
            ):
                huggingface_task(task).build(config, Facts(VOCAB), CPU, torch.float32)


def test_a_folder_that_lacks_weights_is_refused(folder_of, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    source = folder_of("llama", "causal")
    weights = load_file(source / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    with pytest.raises(UserError, match=r"lacks weights .* model.layers.1.mlp.up_proj.weight\."):
        build(tmp_path, "causal")


def test_a_model_without_the_asked_head_is_refused(folder_of):
    with pytest.raises(UserError, match=r"no head for training\.task=seq2seq on a bert model: AutoModelForSeq2SeqLM"):
        build(folder_of("bert", "masked"), "seq2seq")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {"dropout": 0.3}}, "model.dropout: has no effect with model.type hf"),
        (
            {"data": {"padding": "packed", "samples": "documents"}},
            "data.padding: packed puts several documents into a row",
        ),
        ({"precision": {"weights": "fp16"}}, "precision.weights: fp16 is only for frozen weights"),
        ({"model": {"quantize_base": "4bit"}}, "model.quantize_base: needs model.lora_rank"),
        ({"model": {"lora_alpha": 4.0}}, "model.lora_alpha: has no effect unless model.lora_rank is set"),
    ],
)
def test_what_a_foreign_model_cannot_do_is_said_before_it_is_loaded(folder_of, settings: dict, message: str):
    folder = folder_of("llama", "causal")
    asked = {"model": {"type": "hf", "pretrained": str(folder), **settings.get("model", {})}}
    asked |= {name: value for name, value in settings.items() if name != "model"}
    asked.setdefault("data", {})["tokenizer"] = "byte"
    with pytest.raises(ConfigError) as error:
        load(asked)
    assert message in str(error.value)


def test_queries_keys_and_values_of_gpt2_are_three_matrices_to_an_optimizer(folder_of):
    network: Any = build(folder_of("gpt2", "causal"), "causal").network
    blocks = network.transformer.h
    assert all(block.attn.c_attn.column_parts == [16, 16, 16] for block in blocks)
    assert not any(hasattr(block.mlp.c_fc, "column_parts") for block in blocks)
