from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trainbook.data.tokenizers.plain import ByteTokenizer
from trainbook.knobs import Config, load
from trainbook.models.formats.known import FORMATS, kind_of
from trainbook.models.formats.rules import WeightRule, to_foreign
from trainbook.tasks.causal import CausalLanguageModel
from trainbook.tasks.labels import TextClassifier, WordTagger
from trainbook.tasks.masked import MaskedLanguageModel
from trainbook.tasks.seq2seq import Seq2SeqModel
from trainbook.tasks.task import Facts, Task

LABELS = ("no", "perhaps", "yes")
TASKS: dict[str, type[Task]] = {
    "causal": CausalLanguageModel,
    "masked": MaskedLanguageModel,
    "classify": TextClassifier,
    "tag": WordTagger,
    "seq2seq": Seq2SeqModel,
}
ROLES = {
    "causal": (),
    "masked": ("pad", "begin", "separator", "mask"),
    "classify": ("pad", "begin", "separator"),
    "tag": ("pad", "begin", "separator"),
    "seq2seq": ("pad", "sentinels"),
}


@dataclass
class Example:
    """A small model of transformers with random weights, saved in a folder; and ways to make the same of ours."""

    name: str
    kind: str
    folder: Path
    theirs: Any
    length: int
    tokenizer: ByteTokenizer = field(init=False)

    def __post_init__(self) -> None:
        self.tokenizer = ByteTokenizer(ROLES[self.kind])

    @property
    def format(self) -> str:
        return self.name.split("-")[0]

    def config(self, *overrides: str, folder: Path | None = None) -> Config:
        task = {"classify": "classify", "tag": "tag"}.get(self.kind, "auto")
        start = {
            "model": {"pretrained": str(folder or self.folder)},
            "data": {"tokenizer": "byte", "max_seq_length": self.length},
            "training": {"task": task},
        }
        return load(start, overrides).config

    def facts(self) -> Facts:
        labels = LABELS if self.kind in ("classify", "tag") else ()
        return Facts(self.tokenizer.vocab_size, labels, pad=self.pad, end=self.tokenizer.end_of_text)

    def task(self, config: Config | None = None, facts: Facts | None = None) -> Task:
        torch.manual_seed(1)
        return (
            TASKS[self.kind]
            .build(config or self.config(), facts or self.facts(), torch.device("cpu"), torch.float32)
            .eval()
        )

    @property
    def pad(self) -> int:
        return self.tokenizer.special("pad") or 0

    def rules(self, task: Task, config: Config) -> list[WeightRule]:
        shape: Any = task.body.shape  # pyright: ignore[reportAttributeAccessIssue]
        return list(FORMATS[self.format].rules(shape, kind_of(task, config), config.model.tie_embeddings))

    def in_their_names(self, task: Task, config: Config, values: dict[str, Tensor]) -> dict[str, Tensor]:
        present = [rule for rule in self.rules(task, config) if rule.native in values]
        return to_foreign(present, values, task.facts.vocab_size)


def randomize(model: nn.Module, seed: int = 0) -> None:
    """Far from first values: with those, logits are so small that a mistake would not show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.2 * noise if is_gain else 0.2 * noise)


def _gpt2(tied: bool) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=257, n_positions=24, n_embd=16, n_layer=2, n_head=2, n_inner=40, tie_word_embeddings=tied
    )
    return GPT2LMHeadModel(config)


def _llama(tied: bool) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=None if tied else 8,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config)


def _like_llama(family: str, **more: Any) -> Any:
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 257,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    config = transformers.AutoConfig.for_model(family, **sizes | more)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **more}}


LLAMA3 = {"factor": 4.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}


def _bert(kind: str) -> Any:
    import transformers

    config = transformers.BertConfig(
        vocab_size=261 if kind == "masked" else 260,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=24,
        pad_token_id=257,  # 0, the default, is a byte here, whose embedding would get no gradient
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
    )
    classes = {
        "masked": transformers.BertForMaskedLM,
        "classify": transformers.BertForSequenceClassification,
        "tag": transformers.BertForTokenClassification,
    }
    return classes[kind](config)


def _t5(tied: bool) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=358,
        d_model=16,
        d_kv=6,
        d_ff=24,
        num_layers=2,
        num_decoder_layers=1,
        num_heads=2,
        feed_forward_proj="relu" if tied else "gated-gelu",
        tie_word_embeddings=tied,  # pyright: ignore[reportCallIssue]
    )
    model = T5ForConditionalGeneration(config)
    if not tied:
        model.lm_head.weight = nn.Parameter(torch.empty(358, 16))
    return model


MAKERS: dict[str, tuple[str, Callable[[], Any], int]] = {
    "gpt2": ("causal", lambda: _gpt2(True), 24),
    "gpt2-untied": ("causal", lambda: _gpt2(False), 24),
    "llama-tied": ("causal", lambda: _llama(True), 48),
    "llama": ("causal", lambda: _llama(False), 48),
    "llama-llama3": ("causal", lambda: _like_llama("llama", **_rope("llama3", **LLAMA3)), 48),
    "llama-yarn": ("causal", lambda: _like_llama("llama", **_rope("yarn", **YARN)), 48),
    "llama-linear": ("causal", lambda: _like_llama("llama", **_rope("linear", factor=3.0)), 48),
    "mistral": ("causal", lambda: _like_llama("mistral", sliding_window=None), 48),
    "mistral-window": ("causal", lambda: _like_llama("mistral", sliding_window=5), 48),
    "qwen2": ("causal", lambda: _like_llama("qwen2"), 48),
    "qwen2-window": (
        "causal",
        lambda: _like_llama("qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=0),
        48,
    ),
    "qwen3": ("causal", lambda: _like_llama("qwen3", head_dim=6, tie_word_embeddings=True), 48),
    "bert-masked": ("masked", lambda: _bert("masked"), 24),
    "bert-classify": ("classify", lambda: _bert("classify"), 24),
    "bert-tag": ("tag", lambda: _bert("tag"), 24),
    "t5": ("seq2seq", lambda: _t5(True), 200),
    "t5-gated": ("seq2seq", lambda: _t5(False), 200),
}
NAMES = tuple(MAKERS)


def _larger(kind: str) -> Any:
    """More rows than tokens and more positions than the training reads; random in all of them."""
    import transformers

    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 400}
    if kind == "gpt2":
        gpt2 = transformers.GPT2Config(vocab_size=400, n_positions=40, n_embd=16, n_layer=2, n_head=2, n_inner=40)
        return transformers.GPT2LMHeadModel(gpt2)
    if kind == "llama":
        llama = transformers.LlamaConfig(**sizes, intermediate_size=24, max_position_embeddings=4096)
        return transformers.LlamaForCausalLM(llama)
    if kind == "bert":
        bert = transformers.BertConfig(**sizes, intermediate_size=24, max_position_embeddings=40, type_vocab_size=3)
        return transformers.BertForMaskedLM(bert)
    t5 = transformers.T5Config(vocab_size=400, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=2, n_positions=512)  # pyright: ignore[reportCallIssue]
    return transformers.T5ForConditionalGeneration(t5)


# Only for what an export keeps: our loss gives rows without a token no probability, that of transformers does.
LARGER: dict[str, tuple[str, Callable[[], Any], int]] = {
    "gpt2-larger": ("causal", lambda: _larger("gpt2"), 24),
    "llama-larger": ("causal", lambda: _larger("llama"), 24),
    "bert-larger": ("masked", lambda: _larger("bert"), 24),
    "t5-larger": ("seq2seq", lambda: _larger("t5"), 24),
}


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Example]:
    made: dict[str, Example] = {}

    def make(name: str) -> Example:
        if name not in made:
            import transformers

            transformers.utils.logging.disable_progress_bar()
            logging.getLogger("transformers").setLevel(logging.ERROR)
            kind, maker, length = (MAKERS | LARGER)[name]
            theirs = maker().eval()
            randomize(theirs)
            folder = tmp_path_factory.mktemp("pretrained") / name
            theirs.save_pretrained(folder)
            made[name] = Example(name, kind, folder, theirs, length)
        return made[name]

    return make


@pytest.fixture(params=NAMES)
def each(request: pytest.FixtureRequest, example: Callable[[str], Example]) -> Example:
    return example(request.param)


@dataclass
class Inputs:
    """The same padded rows for both: theirs with labels, ours with targets."""

    ours: dict[str, Tensor]
    theirs: dict[str, Tensor]
    targets: Tensor
    at: Tensor  # where their logits are those of a target

    @classmethod
    def of(cls, example: Example, seed: int = 3) -> Inputs:
        kind, pad = example.kind, example.pad
        chance = np.random.default_rng(seed)
        rows, length = 3, 150 if kind == "seq2seq" else 20
        ids = torch.from_numpy(chance.integers(0, 256, (rows, length)))
        lengths = torch.tensor([length, length // 2, 3])
        is_real = torch.arange(length) < lengths[:, None]
        ids = ids.masked_fill(~is_real, pad)
        theirs = {"input_ids": ids, "attention_mask": is_real.long()}
        documents = is_real.long()
        if kind == "causal":
            labels = ids.masked_fill(~is_real, -100)
            targets = torch.cat((labels[:, 1:], torch.full((rows, 1), -100)), 1)
            return cls({"input_ids": ids}, theirs | {"labels": labels}, targets, is_real)
        if kind == "seq2seq":
            written = torch.from_numpy(chance.integers(0, 256, (rows, 140)))
            is_written = torch.arange(140) < torch.tensor([4, 140, 60])[:, None]
            targets = written.masked_fill(~is_written, -100)
            read = torch.cat((torch.full((rows, 1), pad), written[:, :-1]), 1).masked_fill(~is_written, pad)
            ours = {"input_ids": ids, "document_ids": documents, "decoder_input_ids": read}
            return cls(ours, theirs | {"decoder_input_ids": read, "labels": targets}, targets, is_written)
        if kind == "classify":
            targets = torch.tensor([0, 2, 1])
            ours = {"input_ids": ids, "document_ids": documents, "chosen": torch.arange(rows) * length}
            return cls(ours, theirs | {"labels": targets}, targets, torch.ones(rows, dtype=torch.bool))
        chosen = is_real & torch.from_numpy(chance.random((rows, length)) < 0.4)
        classes = len(LABELS) if kind == "tag" else 256
        labels = torch.from_numpy(chance.integers(0, classes, (rows, length))).masked_fill(~chosen, -100)
        ours = {"input_ids": ids, "document_ids": documents, "chosen": chosen.flatten().nonzero().squeeze(1)}
        return cls(ours, theirs | {"labels": labels}, labels[chosen], chosen)
