"""What may be in a folder, and what is said when it does not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainbook.errors import DataError, UserError
from trainbook.models.formats import load_pretrained
from trainbook.tasks.task import Facts, Task

from .conftest import LABELS, TASKS, Example


@pytest.fixture
def altered(example: Callable[[str], Example], tmp_path: Path) -> Callable[..., tuple[Example, Path]]:
    """A copy of an example's folder whose weights or config.json were changed."""

    def change(name: str, weights: Callable[[dict[str, Any]], dict[str, Any]] | None = None, **config: Any) -> Any:
        each = example(name)
        folder = tmp_path / "altered"
        shutil.copytree(each.folder, folder)
        if weights is not None:
            save_file(weights(load_file(folder / "model.safetensors")), folder / "model.safetensors")
        settings = json.loads((folder / "config.json").read_text()) | config
        (folder / "config.json").write_text(json.dumps(settings))
        return each, folder

    return change


def _filled(each: Example, folder: Path, *overrides: str, **options: Any) -> Task:
    config = each.config(*overrides)
    task = each.task(config)
    load_pretrained(task, folder, config, **options)
    return task


def _must_be_equal(one: Task, other: Task) -> None:
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name)), name


@pytest.mark.parametrize(
    ("name", "prefix"), [("gpt2", "transformer."), ("llama-tied", "model."), ("bert-masked", "bert.")]
)
def test_names_may_lack_the_prefix_that_a_model_with_a_head_has(altered, name: str, prefix: str) -> None:
    each, folder = altered(name, lambda weights: {key.removeprefix(prefix): value for key, value in weights.items()})
    _must_be_equal(_filled(each, folder), _filled(each, each.folder))


def test_old_names_and_buffers_and_other_heads_are_understood(altered) -> None:
    def age(weights: dict[str, Any]) -> dict[str, Any]:
        renamed = {
            key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
            for key, value in weights.items()
        }
        return renamed | {
            "bert.embeddings.position_ids": torch.arange(24)[None],
            "cls.seq_relationship.weight": torch.zeros(2, 16),
            "bert.pooler.dense.weight": torch.zeros(16, 16),
        }

    each, folder = altered("bert-masked", age)
    config = each.config()
    task = each.task(config)
    report = load_pretrained(task, folder, config)
    _must_be_equal(task, _filled(each, each.folder))
    assert len(report.ignored) == 3 and not report.new
    assert "not used here: bert.embeddings.position_ids" in "\n".join(report.lines())


def test_masks_kept_as_weights_and_a_written_tie_are_no_extras(altered) -> None:
    def add(weights: dict[str, Any]) -> dict[str, Any]:
        mask = torch.ones(1, 1, 24, 24)
        return weights | {
            "transformer.h.0.attn.bias": mask,
            "lm_head.weight": weights["transformer.wte.weight"].clone(),
        }

    each, folder = altered("gpt2", add)
    _must_be_equal(_filled(each, folder), _filled(each, each.folder))


def test_a_tie_that_is_none_is_an_error(altered) -> None:
    each, folder = altered("gpt2", lambda weights: weights | {"lm_head.weight": torch.zeros(257, 16)})
    with pytest.raises(UserError, match="are tied, but their weights differ"):
        _filled(each, folder)


def test_files_in_parts_and_of_the_old_format_are_read(altered, tmp_path: Path) -> None:
    each, folder = altered("llama")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    expected = _filled(each, each.folder)
    _must_be_equal(_filled(each, folder), expected)

    names = sorted(weights)
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: weights[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "pytorch_model.bin").write_text("never looked at when there is something safer")
    _must_be_equal(_filled(each, folder), expected)

    (folder / "model-1.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks 1 of the 2 files in model\.safetensors\.index\.json: model-1"):
        _filled(each, folder)


def test_an_old_file_that_would_run_code_is_refused(altered) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return (print, ("harm",))

    each, folder = altered("gpt2")
    (folder / "model.safetensors").unlink()
    torch.save({"transformer.wte.weight": Harmful()}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be loaded as plain tensors"):
        _filled(each, folder)


def test_16_bit_weights_become_what_the_task_has(altered) -> None:
    each, folder = altered("t5", lambda weights: {name: value.bfloat16() for name, value in weights.items()})
    task = _filled(each, folder)
    expected = load_file(each.folder / "model.safetensors")["encoder.final_layer_norm.weight"].bfloat16().float()
    found = task.get_parameter("body.encoder.final_norm.weight")
    assert found.dtype is torch.float32 and torch.equal(found, expected)


def test_rows_beyond_the_length_and_the_vocabulary_are_kept(example) -> None:
    each: Example = example("gpt2")
    config = each.config("data.max_seq_length=10", "model.vocab_multiple=64")
    first = each.task(config)
    task = each.task(config)
    load_pretrained(task, each.folder, config)
    weights = load_file(each.folder / "model.safetensors")
    assert torch.equal(task.get_parameter("body.position_embedding.weight"), weights["transformer.wpe.weight"])
    rows = task.get_parameter("body.token_embedding.weight")
    assert len(rows) == 320 and torch.equal(rows[:257], weights["transformer.wte.weight"])
    assert torch.equal(rows[257:], first.get_parameter("body.token_embedding.weight")[257:])

    fewer = each.task(config, Facts(200))
    report = load_pretrained(fewer, each.folder, config)
    assert torch.equal(fewer.get_parameter("body.token_embedding.weight")[:257], weights["transformer.wte.weight"])
    assert report.notes == []


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_does_not_fit(example) -> None:
    each: Example = example("gpt2")
    config = each.config()
    with pytest.raises(
        DataError, match=r"the tokenizer does not fit the model: it has 300 tokens.* only 257 embedding rows"
    ):
        load_pretrained(each.task(config, Facts(300)), each.folder, config)


def test_missing_weights_are_counted_and_named_and_nothing_is_changed(altered) -> None:
    def lose(weights: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in weights.items() if ".layers.1." not in name}

    each, folder = altered("llama", lose)
    config = each.config()
    task, untouched = each.task(config), each.task(config)
    with pytest.raises(UserError, match=r"9 weights are missing: model\.layers\.1\.\S+, .* and 5 more"):
        load_pretrained(task, folder, config)
    _must_be_equal(task, untouched)


def test_extra_weights_are_an_error_that_names_them(altered) -> None:
    extra = {"model.layers.2.input_layernorm.weight": torch.zeros(16)}
    each, folder = altered("llama", lambda weights: weights | extra)
    with pytest.raises(UserError, match=r"1 weights do not belong to this model: model\.layers\.2\.input_layernorm"):
        _filled(each, folder)


def test_another_shape_is_an_error_that_says_both(altered) -> None:
    each, folder = altered("t5", lambda weights: weights | {"encoder.final_layer_norm.weight": torch.zeros(17)})
    expected = r"1 weights have the wrong shape: encoder\.final_layer_norm\.weight is 17, but body\.encoder\.final_norm"
    with pytest.raises(UserError, match=expected):
        _filled(each, folder)


def test_a_head_that_the_folder_lacks_is_new_and_said_to_be(example) -> None:
    masked: Example = example("bert-masked")
    each: Example = example("bert-classify")
    config = each.config(folder=masked.folder)
    task, first = each.task(config), each.task(config)
    report = load_pretrained(task, masked.folder, config)
    heads = ["pooler.weight", "pooler.bias", "head.weight", "head.bias"]
    assert report.new == heads and task.fresh == frozenset(heads)  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.equal(task.get_parameter("head.weight"), first.get_parameter("head.weight"))
    assert any(line.startswith("new head, randomly initialized: pooler.weight") for line in report.lines())


def test_labels_in_another_order_keep_their_rows_and_other_labels_get_a_new_head(example) -> None:
    each: Example = example("bert-classify")
    config = each.config()
    rows = load_file(each.folder / "model.safetensors")["classifier.weight"]

    def filled(*labels: str) -> tuple[Any, Any]:
        facts = Facts(each.tokenizer.vocab_size, labels)
        task = TASKS["classify"].build(config, facts, torch.device("cpu"), torch.float32)
        report = load_pretrained(task, each.folder, config)
        return task.get_parameter("head.weight"), report

    head, report = filled(*LABELS)
    assert torch.equal(head, rows) and not report.new
    head, report = filled("yes", "no", "perhaps")
    assert torch.equal(head, rows[[2, 0, 1]]) and not report.new
    head, report = filled("a", "b", "c")
    assert not torch.equal(head, rows) and report.new == ["head.weight", "head.bias"]
    head, report = filled("no", "yes")
    assert len(head) == 2 and report.new == ["head.weight", "head.bias"] and "classifier.weight" in report.ignored


def test_a_folder_without_weights_says_so(altered) -> None:
    each, folder = altered("gpt2")
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match="is not a complete safetensors file"):
        _filled(each, folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="has no weights"):
        _filled(each, folder)


def test_a_hub_name_brings_weights_the_same_way(example, monkeypatch: pytest.MonkeyPatch) -> None:
    each: Example = example("gpt2")
    asked: list[Any] = []

    def download(name: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append((name, tuple(allow_patterns)))
        return str(each.folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    _must_be_equal(_filled(each, "somebody/small-gpt"), _filled(each, each.folder))  # pyright: ignore[reportArgumentType]
    assert [name for name, _ in asked] == ["somebody/small-gpt"]
    assert "*.safetensors" in asked[0][1] and not any("bin" in pattern for pattern in asked[0][1])


def test_a_masked_head_uses_the_activation_of_its_body(altered) -> None:
    each, folder = altered("bert-masked", hidden_act="relu")
    config = each.config(folder=folder)
    task = each.task(config)
    load_pretrained(task, folder, config)
    assert task.activation is torch.nn.functional.relu
