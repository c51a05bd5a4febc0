"""Models, tasks and sources of the user's own, and those of transformers: what cannot be asked is skipped, and said."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.check.conftest import QUICK, failing, outcomes
from tests.check.test_clean import OF_LABELS

from trainbook.check.result import NO_LABELS

MODULE = """
import torch
from torch import nn
from trainbook.tasks.labels import TextClassifier
from trainbook.tasks.task import Task


class Recurrent(nn.Module):
    def __init__(self, config, facts):
        super().__init__()
        width = config.model.hidden_size
        self.embedding = nn.Embedding(facts.vocab_size, width)
        self.lstm = nn.LSTM(width, width, config.model.num_hidden_layers, batch_first=True)
        self.head = nn.Linear(width, facts.vocab_size)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.lstm(self.embedding(input_ids))[0])


class BothWays(Recurrent):
    def __init__(self, config, facts):
        super().__init__(config, facts)
        width = config.model.hidden_size
        self.lstm = nn.LSTM(width, width // 2, 1, batch_first=True, bidirectional=True)


class Pooled(nn.Module):
    '''The mean over all positions, padding too.'''

    def __init__(self, config, facts):
        super().__init__()
        self.embedding = nn.Embedding(facts.vocab_size, 8)
        self.head = nn.Linear(8, len(facts.label_names))

    def forward(self, input_ids, attention_mask):
        return self.head(self.embedding(input_ids).mean(1))


class OneHot(nn.Module):
    def __init__(self, config, facts):
        super().__init__()
        self.size = facts.vocab_size
        self.head = nn.Linear(facts.vocab_size, facts.vocab_size)

    def forward(self, input_ids, attention_mask=None):
        return self.head(torch.nn.functional.one_hot(input_ids, self.size).float())


class Careful(TextClassifier):
    def forward(self, targets, **inputs):
        losses = torch.nn.functional.cross_entropy(self.logits(**inputs).float(), targets, reduction="none")
        return {"cross_entropy": torch.where(targets != 0, 3 * losses, losses).sum()}


class Fails(Careful):
    def forward(self, targets, **inputs):
        raise ValueError("no such thing")


def texts():
    for number in range(60):
        yield {"text": f"{number} and {number * 7 % 11} make {number + number * 7 % 11}"}
"""


@pytest.fixture
def own(bench, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("check_parts.py").write_text(MODULE)
    monkeypatch.delitem(__import__("sys").modules, "check_parts", raising=False)
    return bench


def test_a_model_of_the_users_own_passes_what_can_be_asked_of_it(own):
    found = outcomes(own.subject("model.type=check_parts:Recurrent"), *QUICK)
    skips = {name: outcome.evidence for name, outcome in found.items() if outcome.status != "passed"}
    assert {skips.pop(name) for name in OF_LABELS} == {NO_LABELS}
    assert skips == {"tied": "the model does not expose its input and output embeddings"}


def test_a_leak_in_a_model_of_the_users_own_is_found(own):
    assert failing(own.subject("model.type=check_parts:BothWays")) == {"causal_leak", "padding"}


def test_a_mean_over_padding_in_a_model_of_the_users_own_is_found(own):
    subject = own.subject("model.type=check_parts:Pooled", "training.task=classify", kind="classify")
    assert failing(subject) == {"padding", "accumulation", "evaluation_parts"}


def test_what_cannot_be_seen_in_a_foreign_model_is_skipped_with_the_reason(own):
    found = outcomes(own.subject("model.type=check_parts:OneHot"), "sample_leak", "gradients")
    assert found["sample_leak"].status == "skipped" and "nn.Embedding" in found["sample_leak"].evidence
    assert found["gradients"].status == "passed"


def test_a_task_of_the_users_own_passes(own):
    subject = own.subject("training.task=check_parts:Careful", kind="classify")
    found = outcomes(subject)
    assert {name: outcome.evidence for name, outcome in found.items() if outcome.status == "failed"} == {}


def test_code_that_fails_is_a_failure_with_its_line(own):
    found = outcomes(own.subject("training.task=check_parts:Fails", kind="classify"), "gradients", "decay")
    assert found["gradients"].status == "failed" and "check_parts.py, line" in found["gradients"].evidence
    assert "ValueError: no such thing" in found["gradients"].evidence and found["decay"].status == "passed"


def test_a_source_of_the_users_own_is_read(own):
    subject = own.subject("data.source=check_parts:texts", "data.tokenizer=char")
    assert failing(subject) == set()
    assert sum(side.num_documents for side in subject.sample.sides.values()) == 60


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A Llama of transformers that has learned nothing, with a tokenizer of bytes beside it."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("llama")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({**{"</s>": 0}, **{c: n + 1 for n, c in enumerate(alphabet)}}, []))
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    library.add_special_tokens(["</s>"])
    library.save(str(folder / "tokenizer.json"))
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=257, max_position_embeddings=64, eos_token_id=0, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_model_of_transformers_passes_but_for_weights_that_know_nothing(bench, llama):
    subject = bench.subject("model.type=hf", f"model.pretrained={llama}", f"data.tokenizer={llama}")
    found = outcomes(subject)
    assert {name for name, outcome in found.items() if outcome.status != "passed"} == {"initial_loss", *OF_LABELS}
    assert "pretrained weights were not loaded" in found["initial_loss"].cause


def test_adapters_beside_frozen_weights_pass_within_two_steps(bench, llama):
    pytest.importorskip("peft")
    given = ("model.type=hf", f"model.pretrained={llama}", f"data.tokenizer={llama}", "model.lora_rank=2")
    found = outcomes(bench.subject(*given), "gradients", "optimizer", "decay", "accumulation", "resume")
    assert {name for name, outcome in found.items() if outcome.status != "passed"} == set()
    assert found["gradients"].numbers["steps"] == 2 and found["gradients"].numbers["frozen"] > 0
