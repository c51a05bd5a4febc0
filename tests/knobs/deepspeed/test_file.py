from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import Config, load
from trainbook.knobs.deepspeed.contract import engine_settings

# As trainers write it, with everything that depends on the training left open.
USUAL: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "zero_optimization": {
        "stage": "auto",
        "overlap_comm": True,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": 1000,
        "offload_optimizer": {"device": "none", "pin_memory": True},
    },
    "steps_per_print": 2000,
}


class Beside:
    """A DeepSpeed file, and knobs beside it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "deepspeed.json"

    def load(self, said: object, **knobs: Any) -> Config:
        self.file.write_text(said if isinstance(said, str) else json.dumps(said))
        given = {"distributed.strategy": "deepspeed", "distributed.deepspeed_config": str(self.file)}
        return load({**given, **{name.replace("__", "."): value for name, value in knobs.items()}}).config

    def refusals(self, said: object, **knobs: Any) -> list[str]:
        with pytest.raises(ConfigError) as raised:
            self.load(said, **knobs)
        assert {problem.name for problem in raised.value.problems} == {"distributed.deepspeed_config"}
        return [problem.message.removeprefix(f"{self.file}: ") for problem in raised.value.problems]


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    return Beside(tmp_path)


@pytest.mark.parametrize(
    ("said", "knobs", "message"),
    [
        ({"gradient_clipping": 2.0}, {}, "gradient_clipping is 2, but batch.max_grad_norm is 1."),
        ({"gradient_clipping": 1}, {"batch__max_grad_norm": None}, "gradient_clipping is 1, but batch.max_grad_norm"),
        ({"zero_optimization": {"stage": 3}}, {}, "zero_optimization.stage is 3, but distributed.zero_stage is 2."),
        (
            {"zero_optimization": {"reduce_bucket_size": 5000}},
            {"distributed__bucket_mb": 1.0},
            "zero_optimization.reduce_bucket_size is 5000, but distributed.bucket_mb is 1, which gives 262144.",
        ),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            {},
            "zero_optimization.offload_optimizer.device is 'cpu', but distributed.offload_optimizer is 'none'.",
        ),
        (
            {"zero_optimization": {"offload_param": {"device": "nvme"}}},
            {},
            "zero_optimization.offload_param.device is 'nvme', but distributed.offload_parameters is 'none'.",
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"lr": 0.1}}},
            {"optimizer__learning_rate": 0.001},
            "optimizer.params.lr is 0.1, but optimizer.learning_rate is 0.001.",
        ),
        (
            {"optimizer": {"params": {"betas": [0.9, 0.5]}}},
            {"optimizer__beta2": 0.95},
            "optimizer.params.betas is [0.9, 0.5], but optimizer.beta1 is 0.9, which gives [0.9, 0.95].",
        ),
        ({"optimizer": {"type": "Lamb"}}, {}, "optimizer.type is 'Lamb', but optimizer.type is 'adamw'."),
        ({"fp16": {"enabled": True}}, {}, "fp16.enabled is true, but precision.compute is 'auto', which gives false."),
        (
            {"bf16": {"enabled": True}},
            {"precision__compute": "fp32"},
            "bf16.enabled is true, but precision.compute is 'fp32', which gives false.",
        ),
        ({"bf16": {"enabled": False}}, {"precision__compute": "bf16"}, "bf16.enabled is false, but precision.compute"),
    ],
)
def test_what_says_otherwise_than_a_knob_is_refused_with_both(beside: Beside, said: Any, knobs: Any, message: str):
    (found,) = beside.refusals(said, **knobs)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            {"scheduler": {"type": "WarmupLR"}},
            "scheduler would change the learning rate beside schedule.type",
        ),
        ({"torch_autocast": {"enabled": True}}, "torch_autocast is set from precision.compute"),
        ({"tensor_parallel": {"autotp_size": 2}}, "tensor_parallel splits the model"),
        (
            {"zero_optimization": {"zenflow": {}}},
            "zero_optimization.zenflow applies delayed updates with its own optimizer",
        ),
        ({"zero_optimization": True}, "zero_optimization must be an object"),
        ({"bf16": {"immediate_grad_update": True}}, "bf16.immediate_grad_update is not a setting that is passed"),
        (
            {"train_bach_size": 8},
            "train_bach_size is not a setting that is passed to DeepSpeed. Did you mean 'train_batch",
        ),
        ({"zero_optimization": {"overlap_com": 1}}, "zero_optimization.overlap_com is not a setting that is passed"),
        ({"optimizer": {"params": {"learning_rate": 1}}}, "optimizer.params.learning_rate is not a setting"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "none", "ratio": 0.5}}},
            "zero_optimization.offload_optimizer.ratio is not supported",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_reason(beside: Beside, said: Any, reason: str):
    (found,) = beside.refusals(said)
    assert found.startswith(reason)


def test_everything_that_is_wrong_is_told_at_once(beside: Beside):
    assert len(beside.refusals({"gradient_clipping": 7, "scheduler": {}, "zero_optimization": {"stage": 1}})) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", ":1: is not JSON: "),
        ('{"a', "Unterminated string starting at column 2."),
        ("[1]", "must be a JSON object"),
        (None, ": no such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_mistake_of_the_user(beside: Beside, text: str | None, message: str):
    if text is None:
        with pytest.raises(ConfigError, match="no such file"):
            load({"distributed.strategy": "deepspeed", "distributed.deepspeed_config": str(beside.file)})
    else:
        (found,) = beside.refusals(text)
        assert message in found


def test_the_engine_is_told_what_the_knobs_say_and_what_only_the_file_says(beside: Beside):
    config = beside.load(USUAL, distributed__zero_stage=3, batch__max_grad_norm=0.5)
    assert engine_settings(config, 4, "bfloat16") == {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.5,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": 25 * 2**20 // 4,
            "overlap_comm": True,
            "stage3_param_persistence_threshold": 1000,
        },
        "torch_autocast": {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []},
        "steps_per_print": 2000,
    }


def test_a_bucket_that_no_knob_names_is_the_files(beside: Beside):
    said = {"zero_optimization": {"reduce_bucket_size": 5000}}
    assert engine_settings(beside.load(said), 1, None)["zero_optimization"]["reduce_bucket_size"] == 5000
    config = beside.load({}, distributed__bucket_mb=2.0)
    assert engine_settings(config, 1, None)["zero_optimization"]["reduce_bucket_size"] == 2 * 2**20 // 4


def test_offloading_takes_the_files_details_and_the_knobs_place(beside: Beside):
    said = {"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": False}}}
    zero = engine_settings(beside.load(said, distributed__offload_optimizer="cpu"), 1, None)["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": False} and "offload_param" not in zero
