"""In, a step of training, out, and in again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trainbook.errors import RunError, UserError
from trainbook.knobs import Config, load
from trainbook.models.formats import checking, export_task, load_pretrained
from trainbook.models.formats.exporting import choose_format
from trainbook.tasks.causal import CausalLanguageModel
from trainbook.tasks.task import Facts

from .conftest import LABELS, LARGER, Example, Inputs, randomize


def test_a_trained_step_survives_export_and_reload(each: Example, tmp_path: Path) -> None:
    import transformers

    config, inputs = each.config(), Inputs.of(each)
    task = each.task(config)
    load_pretrained(task, each.folder, config)
    before = {name: parameter.detach().clone() for name, parameter in task.named_parameters()}
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    torch.stack(list(task(targets=inputs.targets, **inputs.ours).values())).sum().backward()
    optimizer.step()
    assert all(not torch.equal(before[name], parameter) for name, parameter in task.named_parameters())

    done = export_task(task, each.tokenizer, config, tmp_path / "out")
    assert done.difference <= 1e-4 and done.format == each.format
    assert done.architecture == type(each.theirs).__name__
    names = [sorted(load_file(folder / "model.safetensors")) for folder in (tmp_path / "out", each.folder)]
    assert names[0] == names[1]

    again = each.task(each.config(folder=tmp_path / "out"))
    load_pretrained(again, tmp_path / "out", config)
    for name, parameter in task.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name

    loaded = getattr(transformers, checking.AUTO_CLASSES[each.kind]).from_pretrained(tmp_path / "out").eval()
    assert type(loaded) is type(each.theirs)
    logits = task.logits(**inputs.ours)
    expected = logits[inputs.at] if logits.ndim == 3 else logits
    torch.testing.assert_close(loaded(**inputs.theirs).logits[inputs.at], expected, rtol=1e-4, atol=1e-4)
    if each.kind in ("classify", "tag"):
        assert loaded.config.id2label == dict(enumerate(LABELS))


@pytest.mark.parametrize("name", LARGER)
def test_an_export_has_all_positions_and_rows_of_its_base(name: str, example, tmp_path: Path) -> None:
    """Those that training did not reach have the base's weights."""
    each: Example = example(name)
    config = each.config()
    task: Any = each.task(config)
    load_pretrained(task, each.folder, config)
    optimizer = torch.optim.AdamW(task.parameters(), lr=0.01, weight_decay=0.0)
    inputs = Inputs.of(each)
    ours = {key: value[:, :24] for key, value in inputs.ours.items() if value.ndim == 2}
    if each.kind == "masked":
        ours["chosen"] = torch.arange(5)
    read = ours["decoder_input_ids" if each.kind == "seq2seq" else "input_ids"]
    targets = torch.full((5,) if each.kind == "masked" else read.shape, 7)
    torch.stack(list(task(targets=targets, **ours).values())).sum().backward()
    optimizer.step()
    export_task(task, each.tokenizer, config, tmp_path / "out")

    before, after = (json.loads((folder / "config.json").read_text()) for folder in (each.folder, tmp_path / "out"))
    kept = {"vocab_size", "n_positions", "max_position_embeddings", "type_vocab_size"} & before.keys()
    assert "vocab_size" in kept and {key: before[key] for key in kept} == {key: after[key] for key in kept}
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == task.body.shape.num_positions
    old, new = (load_file(folder / "model.safetensors") for folder in (each.folder, tmp_path / "out"))
    assert {key: tensor.shape for key, tensor in old.items()} == {key: tensor.shape for key, tensor in new.items()}
    for key, first in (
        ("wte", 390),
        ("wpe", 24),
        ("word_embeddings", 390),
        ("position_embeddings", 24),
        ("shared", 390),
    ):
        for full in (full for full in old if key in full):
            assert torch.equal(old[full][first:], new[full][first:]) and not torch.equal(old[full], new[full]), full


def test_the_tokenizer_frames_texts_as_the_task_does(example, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    for name in ("bert-masked", "t5"):
        each: Example = example(name)
        config = each.config()
        task = each.task(config)
        load_pretrained(task, each.folder, config)
        export_task(task, each.tokenizer, config, tmp_path / name)
        loaded = AutoTokenizer.from_pretrained(tmp_path / name)
        frame = type(task).frame(config, each.tokenizer)
        ids = [*frame.prefix, *each.tokenizer.encode("né"), *frame.suffix]
        assert loaded("né")["input_ids"] == ids
        assert loaded.pad_token_id == each.tokenizer.special("pad")
        if name == "t5":
            assert {"<|sentinel_0|>", "<|sentinel_99|>"} <= set(loaded.all_special_tokens)
            about = json.loads((tmp_path / name / "generation_config.json").read_text())
            assert about["decoder_start_token_id"] == each.pad and about["eos_token_id"] == each.tokenizer.end_of_text
        else:
            assert loaded.mask_token_id == each.tokenizer.special("mask")
            assert loaded("a", "b")["input_ids"] == [*frame.prefix, 97, *frame.suffix, 98, *frame.suffix]


LLAMA = ("model.position=rotary", "model.norm=rmsnorm", "model.activation=swiglu")
SMALL = {
    "model": {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2},
    "data": {"max_seq_length": 12},
}


def _randomized(config: Config) -> CausalLanguageModel:
    task = CausalLanguageModel.build(config, Facts(257, end=256), torch.device("cpu"), torch.float32)
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return task


@pytest.mark.parametrize(
    ("overrides", "format"),
    [
        (("model.activation=gelu_tanh", "model.bias=true"), "gpt2"),
        ((), "gpt2"),  # without biases: zeros are exact
        (("model.position=none", "model.activation=relu", "model.vocab_multiple=64"), "gpt2"),
        (("model.activation=relu2",), "gpt2"),
        (("model.attention_scale=none", "model.tie_embeddings=false"), "gpt2"),
        (("model.position=rotary", "model.norm=rmsnorm", "model.activation=swiglu"), "llama"),
        (("model.position=rotary", "model.norm=rmsnorm", "model.activation=geglu", "model.bias=true"), "llama"),
        (("model.position=rotary", "model.norm=rmsnorm", "model.activation=geglu_tanh", "model.head_width=4"), "llama"),
        ((*LLAMA, "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_positions=6"), "llama"),
        ((*LLAMA, "model.rope_scaling=llama3", "model.rope_factor=2"), "llama"),
        ((*LLAMA, "model.sliding_window=3"), "mistral"),
        ((*LLAMA, "model.family=mistral", "model.tie_embeddings=false"), "mistral"),
        ((*LLAMA, "model.qkv_bias=true", "model.sliding_window=4"), "qwen2"),
        ((*LLAMA, "model.qk_norm=true", "model.head_width=6"), "qwen3"),
    ],
)
def test_a_model_from_scratch_goes_into_the_format_that_can_hold_it(overrides, format: str, tmp_path, example) -> None:
    config = load(SMALL, overrides).config
    done = export_task(_randomized(config), example("gpt2").tokenizer, config, tmp_path / "out")
    assert done.format == format
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["vocab_size"] == 257 and settings["eos_token_id"] == 256


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        # Neither biases nor token types nor positions: zeros are exact.
        ("bert-masked", ("model.type=bert", "model.norm_position=post", "model.position=none")),
        ("bert-masked", ("model.type=bert", "model.norm_position=post", "model.tie_embeddings=false")),
        ("bert-tag", ("model.type=bert", "model.norm_position=post", "model.activation=silu", "training.task=tag")),
        ("t5", ("model.type=t5", "model.norm=rmsnorm", "model.attention_scale=none", "model.activation=swiglu",
                "model.position=none", "model.tie_embeddings=false")),
    ],
)  # fmt: skip
def test_encoders_and_both_stacks_from_scratch_are_exported_exactly(
    name: str, overrides, tmp_path: Path, example
) -> None:
    each: Example = example(name)
    config = load(SMALL, overrides).config
    task = each.task(config)
    randomize(task)
    assert export_task(task, each.tokenizer, config, tmp_path / "out").format == each.format


@pytest.mark.parametrize(
    ("task", "problem"),
    [("classify_many", "multi_label_classification"), ("regress", "regression")],
)
def test_the_kind_of_labels_is_written(task: str, problem: str, tmp_path: Path, example) -> None:
    each: Example = example("bert-classify")
    config = load(SMALL, ("model.type=bert", "model.norm_position=post", f"training.task={task}")).config
    facts = Facts(each.tokenizer.vocab_size, LABELS if task == "classify_many" else ())
    export_task(each.task(config, facts), each.tokenizer, config, tmp_path / "out")
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    assert about["problem_type"] == problem and len(about["id2label"]) == (3 if task == "classify_many" else 1)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("model.qk_norm=true",), ("model.qk_norm: must be false, but is true",)),
        (("model.embedding_skip=true",), ("gpt2", "model.embedding_skip: must be false, but is true")),
        (("model.value_embeddings=alternate",), ("model.value_embeddings: must be none, but is 'alternate'",)),
        (("model.logit_soft_cap=30",), ("model.logit_soft_cap: must be null, but is 30",)),
        (("model.norm=rmsnorm",), ("gpt2", "model.norm: must be layernorm, but is 'rmsnorm'")),
        (("model.norm_position=post",), ("model.norm_position: must be pre, but is 'post'",)),
        (("model.position=rotary", "model.norm=rmsnorm"), ("llama", "model.activation: must be swiglu or geglu")),
        (("model.num_key_value_heads=1",), ("model.num_key_value_heads: must be 2, but is 1",)),
    ],
)
def test_what_no_format_can_hold_is_refused_by_the_names_of_the_knobs(overrides, named) -> None:
    with pytest.raises(UserError) as caught:
        choose_format(load(SMALL, overrides).config)
    assert all(text in str(caught.value) for text in named), caught.value


def test_a_format_is_taken_by_name_only_if_it_can_hold_the_model() -> None:
    config = load(SMALL).config
    assert choose_format(config, "gpt2") == "gpt2"
    with pytest.raises(UserError, match=r"model\.position: must be rotary, but is 'learned'"):
        choose_format(config, "llama")
    with pytest.raises(UserError, match="can be exported as gpt2 or llama or mistral or qwen2 or qwen3, not bert"):
        choose_format(config, "bert")
    with pytest.raises(UserError, match="must be one of auto, gpt2"):
        choose_format(config, "gptj")


def test_a_difference_leaves_nothing_behind(tmp_path: Path, example, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(SMALL).config
    task = _randomized(config)
    real = type(task).logits
    monkeypatch.setattr(type(task), "logits", lambda self, **inputs: real(self, **inputs) + 0.01)
    with pytest.raises(RunError, match=r"logits differ by up to 0\.01"):
        export_task(task, example("gpt2").tokenizer, config, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_not_written_to(tmp_path: Path, example) -> None:
    config = load(SMALL).config
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(UserError, match="exists already"):
        export_task(_randomized(config), example("gpt2").tokenizer, config, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_weights_in_16_bits_stay_so(tmp_path: Path, example) -> None:
    config = load(SMALL).config
    export_task(_randomized(config).bfloat16(), example("gpt2").tokenizer, config, tmp_path / "out")
    assert {tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}
