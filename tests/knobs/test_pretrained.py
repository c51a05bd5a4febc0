"""What a pretrained model's config.json settles, what gives way to it, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import ConfigError, UserError
from trainbook.knobs import dump, explain_config, load
from trainbook.knobs.architectures import SETTLED, read_model
from trainbook.knobs.derive import task_name

GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": 300}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
BERT = {
    "model_type": "bert",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 100,
    "max_position_embeddings": 40,
}
T5 = {"model_type": "t5", "d_model": 48, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}


def settled_by(name: str, model_type: str | None = None) -> dict[str, Any]:
    return read_model(name, model_type, load).values


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    def make(config: dict[str, Any], name: str = "model", tokenizer: bool = True, **changes: Any) -> str:
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(config | changes))
        if tokenizer:
            (path / "tokenizer.json").write_text("{}")
        return str(path)

    return make


@pytest.mark.parametrize("config", [GPT2, LLAMA, BERT, T5], ids=lambda config: config["model_type"])
def test_every_model_settles_all_of_the_network(folder, config: dict[str, Any]) -> None:
    assert set(settled_by(folder(config))) >= set(SETTLED)


def test_values_are_what_the_architecture_is(folder) -> None:
    gpt2 = settled_by(folder(GPT2))
    assert gpt2["model.type"] == "gpt" and gpt2["model.intermediate_size"] == 256 and gpt2["model.head_width"] == 16
    assert gpt2["model.activation"] == "gelu_tanh" and gpt2["model.bias"] and gpt2["model.norm"] == "layernorm"
    assert gpt2["data.max_seq_length"] == 128 and gpt2["model.tie_embeddings"]

    llama = settled_by(folder(LLAMA))
    assert llama["model.rope_theta"] == 500000.0 and llama["model.num_key_value_heads"] == 2
    assert llama["model.activation"] == "swiglu" and llama["model.norm"] == "rmsnorm" and not llama["model.bias"]
    assert "data.max_seq_length" not in llama and not llama["model.tie_embeddings"]
    written_by_newer = {**LLAMA, "rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}
    del written_by_newer["rope_theta"]
    assert settled_by(folder(written_by_newer))["model.rope_theta"] == 700.0

    bert = settled_by(folder(BERT))
    assert bert["model.norm_position"] == "post" and bert["model.norm_epsilon"] == 1e-12
    assert bert["model.token_types"] == 2 and bert["data.max_seq_length"] == 40 and bert["model.activation"] == "gelu"

    t5 = settled_by(folder(T5))
    assert t5["model.head_width"] == 16 and t5["model.num_decoder_layers"] == 2 and t5["model.position"] == "relative"
    assert t5["model.attention_scale"] == "none" and t5["model.activation"] == "relu" and t5["model.tie_embeddings"]
    newer = settled_by(folder(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False))
    assert newer["model.activation"] == "geglu_tanh" and not newer["model.tie_embeddings"]
    # As transformers 5 writes the same model:
    assert not settled_by(folder(T5, tie_word_embeddings=True, scale_decoder_outputs=False))["model.tie_embeddings"]


def test_the_defaults_of_transformers_stand_for_what_a_file_leaves_out(folder) -> None:
    transformers = pytest.importorskip("transformers")
    for kind in ("gpt2", "llama", "mistral", "qwen2", "qwen3", "bert", "t5"):
        whole = transformers.AutoConfig.for_model(kind).to_dict()
        assert settled_by(folder({"model_type": kind})) == settled_by(folder({**whole, "model_type": kind}, "whole"))


def test_a_mistral_without_a_window_is_a_llama_by_another_name(folder) -> None:
    mistral = settled_by(folder({**LLAMA, "model_type": "mistral", "sliding_window": None}))
    assert mistral.pop("model.family") == "mistral"
    llama = settled_by(folder(LLAMA, "llama"))
    assert llama.pop("model.family") == "llama" and mistral == llama


def test_scaled_rotary_positions_are_read_from_older_and_newer_files(folder) -> None:
    scaled = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    older = settled_by(folder(LLAMA, rope_scaling={"rope_type": "llama3", **scaled}))
    newer = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    newer["rope_parameters"] = {"rope_type": "llama3", "rope_theta": 500000.0, **scaled}
    assert older == settled_by(folder(newer)) and older["model.rope_scaling"] == "llama3"
    assert (older["model.rope_factor"], older["model.rope_original_positions"]) == (8.0, 64)
    yarn = settled_by(folder(LLAMA, rope_scaling={"type": "yarn", "factor": 4.0, "mscale": 0.8, "mscale_all_dim": 0.4}))
    assert yarn["model.rope_original_positions"] == 512
    expected = (1 + 0.08 * math.log(4)) / (1 + 0.04 * math.log(4))
    assert yarn["model.rope_attention_factor"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("config", "changes", "named"),
    [
        (LLAMA, {"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}, "rope_scaling is 'dynamic'"),
        (LLAMA, {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "truncate": False}}, "truncate of rope_scaling"),
        (LLAMA, {"attention_bias": True}, "attention_bias is true, but mlp_bias is false"),
        (LLAMA, {"hidden_act": "relu2"}, "hidden_act is 'relu2', not one of silu"),
        (LLAMA, {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, "to 1 of 2 layers"),
        (LLAMA, {"model_type": "qwen3", "attention_bias": True}, "attention_bias is true"),
        (LLAMA, {"model_type": "gemma"}, "the family 'gemma' is not built in (gpt2"),
        (LLAMA, {"quantization_config": {"bits": 4}}, "quantization_config is set"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is true, not false"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention is true"),
        (GPT2, {"n_head": 5}, "5 heads do not divide the hidden size 64"),
        (BERT, {"is_decoder": True}, "is_decoder is true"),
        (BERT, {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        (T5, {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64, not 32"),
        (T5, {"relative_attention_max_distance": 256}, "relative_attention_max_distance is 256, not 128"),
        (T5, {"feed_forward_proj": "gated-relu"}, "feed_forward_proj is 'gated-relu'"),
    ],
)
def test_what_the_built_in_networks_cannot_compute_is_left_to_transformers(folder, config, changes, named: str) -> None:
    """And said in one line with the reason. Where the user names a built-in kind, it is an error."""
    path = folder(config, **changes)
    loaded = load("gpt-tiny", [f"model.pretrained={path}"])
    (notice,) = [notice for notice in loaded.notices if "model.type" in notice]
    assert loaded.config.model.type == "hf" and loaded.config.model.hidden_size in (48, 64)
    assert notice.startswith(f"{path}/config.json  model.type: hf") and named in notice and "\n" not in notice
    assert loaded.origins["model.type"].kind == "pretrained"
    assert not any(
        "model.type" in notice for notice in load(None, [f"model.pretrained={path}", "model.type=hf"]).notices
    )

    kind = {"bert": "bert", "t5": "t5"}.get(config["model_type"], "gpt")
    with pytest.raises(ConfigError) as caught:
        load(None, [f"model.pretrained={path}", f"model.type={kind}"])
    assert named in str(caught.value) and "Omit model.type" in str(caught.value)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("config", "override", "reason"),
    [
        (GPT2, "training.task=classify", "the built-in gpt supports causal or chat, but the task is classify"),
        (LLAMA, "data.label_field=mood", "the built-in gpt supports causal or chat, but the task is classify"),
        (T5, "training.task=tag", "the built-in t5 supports span or seq2seq, but the task is tag"),
    ],
)
def test_a_task_that_the_built_in_network_lacks_is_left_to_transformers(folder, config, override, reason: str) -> None:
    loaded = load(None, [f"model.pretrained={folder(config)}", override])
    assert loaded.config.model.type == "hf" and any(reason in notice for notice in loaded.notices)
    kind = "t5" if config is T5 else "gpt"
    with pytest.raises(ConfigError, match=reason.split(" built-in ")[1]):
        load(None, [f"model.pretrained={folder(config)}", override, f"model.type={kind}"])


@pytest.mark.parametrize(
    ("about", "overrides", "task"),
    [
        ({"architectures": ["RobertaForMaskedLM"]}, (), "masked"),
        ({"architectures": ["OPTForCausalLM"]}, (), "causal"),
        ({"architectures": ["BartModel"], "is_encoder_decoder": True}, (), "seq2seq"),
        ({"architectures": ["BartModel"], "is_encoder_decoder": True}, ("data.target_field=summary",), "seq2seq"),
        ({"architectures": ["OPTForCausalLM"]}, ("data.target_field=answer",), "chat"),
        ({"architectures": ["RobertaForMaskedLM"]}, ("data.label_field=mood",), "classify"),
        ({"architectures": ["RobertaForMaskedLM"]}, ("training.task=causal",), "causal"),
        ({}, (), "causal"),
    ],
)
def test_the_task_of_a_model_of_transformers_is_what_it_was_made_for(folder, about, overrides, task: str) -> None:
    path = folder({"model_type": "another", "hidden_size": 64, **about})
    for chosen in ((), ("model.type=hf",)):
        loaded = load("bert-tiny", [f"model.pretrained={path}", *overrides, *chosen])
        assert loaded.config.model.type == "hf" and task_name(loaded.config) == task


def test_a_recipes_parts_and_sizes_give_way_to_a_model_of_transformers_too(folder, tmp_path: Path) -> None:
    path = folder({"model_type": "opt", "hidden_size": 60, "num_attention_heads": 5})
    loaded = load("llama-1b", [f"model.pretrained={path}"])
    model = loaded.config.model
    assert (model.type, model.num_attention_heads, model.num_key_value_heads) == ("hf", 5, None)
    assert loaded.origins["model.activation"].kind == "default"
    (tmp_path / "config.yaml").write_text(dump(loaded))
    again = load(tmp_path / "config.yaml")
    assert again.config == loaded.config and not any("model.type: hf" in notice for notice in again.notices)


def test_a_recipes_values_give_way_and_say_to_what(folder) -> None:
    path = folder(BERT)
    loaded = load("gpt-tiny", [f"model.pretrained={path}"])
    model = loaded.config.model
    assert (model.type, model.hidden_size, model.num_hidden_layers, model.norm_position) == ("bert", 64, 2, "post")
    assert loaded.config.data.tokenizer == path and loaded.config.data.max_seq_length == 40
    shown = explain_config(loaded)["values"]
    assert shown["model.hidden_size"]["origin"] == f"{path}/config.json" and shown["data.tokenizer"]["origin"] == path


@pytest.mark.parametrize(
    ("config", "changes", "rate"),
    [
        (GPT2, {}, 0.1),
        (GPT2, {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2}, 0.2),
        (LLAMA, {}, 0.0),
        (LLAMA, {"attention_dropout": 0.05}, 0.05),
        (BERT, {}, 0.1),
        (BERT, {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}, 0.0),
        (T5, {"dropout_rate": 0.3}, 0.3),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else None,
)
def test_dropout_is_that_of_the_model_unless_the_user_sets_it(folder, config, changes, rate: float) -> None:
    path = folder(config, **changes)
    loaded = load({"training": {"max_steps": 1}}, [f"model.pretrained={path}"])
    assert loaded.config.model.dropout == rate
    assert not any("dropout" in notice for notice in loaded.notices)
    own = load({"training": {"max_steps": 1}, "model": {"dropout": 0.25}}, [f"model.pretrained={path}"])
    assert own.config.model.dropout == 0.25


def test_several_dropout_rates_of_a_model_are_told(folder) -> None:
    path = folder(BERT, attention_probs_dropout_prob=0.0)
    loaded = load({"training": {"max_steps": 1}}, [f"model.pretrained={path}"])
    assert loaded.config.model.dropout == 0.1
    (notice,) = [notice for notice in loaded.notices if "model.dropout" in notice]
    assert (
        "0.1 is used everywhere, but the pretrained model has hidden_dropout_prob 0.1, "
        "attention_probs_dropout_prob 0" in notice
    )


@pytest.mark.parametrize("positions", [True, 0, -3, 12.5, "many", [512]])
def test_a_number_of_positions_that_is_none_is_refused(folder, positions: Any) -> None:
    with pytest.raises(UserError, match=r"positions"):
        load("gpt-tiny", [f"model.pretrained={folder(BERT, max_position_embeddings=positions)}"])


def test_a_length_that_the_model_allows_stays(folder) -> None:
    assert load("gpt-tiny", [f"model.pretrained={folder(GPT2)}"]).config.data.max_seq_length == 128
    assert load(None, [f"model.pretrained={folder(GPT2)}", "max_seq_length=100"]).config.data.max_seq_length == 100
    longer = load(None, [f"model.pretrained={folder(LLAMA)}", "max_seq_length=600"])
    assert longer.config.data.max_seq_length == 600
    assert any("600 is more than the 512" in notice for notice in longer.notices)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.hidden_size=128", "model.hidden_size: is 128 here, but 64 in "),
        ("model.type=gpt", "model.type: is 'gpt' here, but 'bert' in "),
        ("model.norm_epsilon=1e-5", "model.norm_epsilon: is 1e-5 here, but 1e-12 in "),
        ("model.qk_norm=true", "model.qk_norm: is true here, but false in "),
        ("max_seq_length=41", "data.max_seq_length: is 41 here, but "),
    ],
)
def test_a_value_that_the_user_set_against_the_model_is_an_error(folder, override: str, message: str) -> None:
    path = folder(BERT)
    with pytest.raises(ConfigError) as caught:
        load("gpt-tiny", [f"model.pretrained={path}", override])
    assert message in str(caught.value) and str(caught.value).startswith("override  ")
    assert len(caught.value.problems) == 1


def test_a_value_that_the_user_set_as_the_model_has_it_is_fine(folder) -> None:
    loaded = load({"model": {"pretrained": folder(BERT), "hidden_size": 64, "intermediate_size": None}})
    assert loaded.origins["model.hidden_size"].kind == "file"
    assert loaded.config.model.intermediate_size == 100


def test_a_written_configuration_loads_again_with_the_folder_and_without_it(folder, tmp_path: Path) -> None:
    path = folder(T5)
    loaded = load("gpt-tiny", [f"model.pretrained={path}"])
    assert f"hidden_size: 48  # {path}/config.json" in dump(loaded)
    (tmp_path / "config.yaml").write_text(dump(loaded))
    assert load(tmp_path / "config.yaml").config == loaded.config
    Path(path).rename(tmp_path / "gone")
    assert load(tmp_path / "config.yaml").config == loaded.config


def test_a_tokenizer_of_the_users_own_stays(folder) -> None:
    assert load(None, [f"model.pretrained={folder(GPT2)}", "data.tokenizer=byte"]).config.data.tokenizer == "byte"


def test_a_vocabulary_size_of_a_recipe_gives_way_with_its_tokenizer(folder, tmp_path: Path) -> None:
    from trainbook.knobs.origin import Origin
    from trainbook.knobs.pretrained import settle_pretrained
    from trainbook.knobs.resolve import Assignment

    recipe = Origin("recipe", "recipe x")
    values = {"model.pretrained": folder(GPT2), "data.tokenizer": "bpe", "data.vocab_size": 4096}
    settled = settle_pretrained({name: Assignment(name, value, recipe) for name, value in values.items()}, load)
    assert settled.assigned["data.vocab_size"].value is None and not settled.problems


def test_a_folder_without_a_tokenizer_asks_for_one(folder) -> None:
    with pytest.raises(ConfigError, match=r"data\.tokenizer: must be set: .* has no tokenizer"):
        load(None, [f"model.pretrained={folder(GPT2, tokenizer=False)}"])


def test_hf_takes_sizes_only(folder) -> None:
    config = load(None, [f"model.pretrained={folder(T5, model_type='anything')}", "model.type=hf"]).config
    assert (config.model.hidden_size, config.model.head_width, config.model.num_hidden_layers) == (48, 16, 2)
    assert config.model.norm == "layernorm"


def test_a_model_of_the_users_own_is_left_alone(folder) -> None:
    overrides = [f"model.pretrained={folder(GPT2)}", "model.type=package.module:Network", "training.task=causal"]
    assert load(None, overrides).config.model.hidden_size == 384


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "must hold a JSON object"),
        (json.dumps(GPT2 | {"n_embd": "wide"}), "is not a valid gpt2 configuration"),
        (
            json.dumps(LLAMA | {"num_hidden_layers": 0}),
            "model.num_hidden_layers: must be a whole number >= 1, but got 0",
        ),
    ],
)
def test_a_broken_config_json_is_a_message(folder, content: str, message: str) -> None:
    path = folder(GPT2)
    (Path(path) / "config.json").write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(None, [f"model.pretrained={path}"])
    assert message in str(caught.value)


def test_a_folder_that_is_none_names_the_nearest(folder, tmp_path: Path) -> None:
    folder(BERT, "bert-small")
    with pytest.raises(UserError, match=r"there is no folder .*bert-smal\. Did you mean .*bert-small\?"):
        settled_by(str(tmp_path / "bert-smal"))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="it holds only an adapter"):
        settled_by(str(tmp_path / "adapter"))


def test_a_hub_name_is_fetched_without_weights(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[Any] = []

    def download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return folder(BERT)

    monkeypatch.setattr(hub, "snapshot_download", download)
    loaded = load("gpt-tiny", ["model.pretrained=somebody/bert-small"])
    assert loaded.config.model.hidden_size == 64 and loaded.config.data.tokenizer == folder(BERT)
    assert asked[0][0] == "somebody/bert-small" and "*.safetensors" not in asked[0][1]["allow_patterns"]
    assert asked[0][1]["ignore_patterns"] == ["*/*"]


def test_a_hub_name_that_cannot_be_fetched_says_why_and_names_a_folder(
    folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("Cannot find the requested files, and outgoing traffic is disabled.\nMore.")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    monkeypatch.chdir(tmp_path)
    folder(BERT, "bert-small")
    with pytest.raises(ConfigError) as caught:
        load(None, ["model.pretrained=bert-smal"])
    assert str(caught.value) == (
        "override  model.pretrained: bert-smal is not a local folder, and could not be downloaded from the Hugging "
        "Face hub: Cannot find the requested files, and outgoing traffic is disabled. Did you mean bert-small?"
    )


def test_without_the_hub_package_a_name_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"pip install 'trainbook\[hf\]'"):
        load(None, ["model.pretrained=somebody/bert"])


def test_architectures_that_are_no_list_say_nothing():
    from trainbook.knobs.architectures import task_of

    assert task_of({"architectures": 1e308}) is None and task_of({"architectures": "GPT2LMHeadModel"}) is None


@pytest.mark.parametrize(
    ("config", "changes", "is_told"),
    [
        (BERT, [], True),
        (LLAMA, [], True),
        (LLAMA, ["model.type=hf"], True),
        (BERT, ["optimizer.learning_rate=3e-4"], False),
        (LLAMA, ["model.lora_rank=4"], False),
        (LLAMA, ["optimizer.type=sgd"], False),
        (T5, [], False),
    ],
)
def test_a_learning_rate_that_nobody_chose_for_fine_tuning_is_told(folder, config, changes, is_told: bool) -> None:
    told = "the default, 3e-4, is for training from scratch; to fine-tune all weights of a model as large as BERT, 5e-5"
    found = [told in notice for notice in load(None, [f"model.pretrained={folder(config)}", *changes]).notices]
    assert any(found) is is_told
    assert not any(told in notice for notice in load(None, []).notices)
