from __future__ import annotations

from pathlib import Path

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import load
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import section_types
from trainbook.knobs.deepspeed.contract import ALL, CONTRACT, Clause, with_table

PAGE = Path(__file__).parents[3] / "docs" / "scale.md"
DEEPSPEED = {"distributed.strategy": "deepspeed"}
# A value of each that is refused, with what it needs beside it.
REFUSED = {
    "optimizer.type": "muon",
    "batch.clipping": "zclip",
    "precision.compute": "fp16",
    "precision.products": "fp8",
    "precision.weights": "bf16",
    "memory.compile": "on",
    "model.lora_rank": 8,
    "model.quantize_base": "4bit",
}
BESIDE = {
    "precision.weights": {"precision.compute": "bf16", "optimizer.beta2": 0.95},
    "model.quantize_base": {"model.lora_rank": 8, "model.pretrained": "somewhere", "model.type": "hf"},
}
LIMITED = [clause for clause in CONTRACT if clause.honoured != ALL]


def test_the_page_shows_the_contract():
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "run: python -m trainbook.knobs.deepspeed.contract docs/scale.md"


def test_every_clause_is_about_knobs_that_there_are():
    for clause in CONTRACT:
        section, _, name = clause.path.partition(".")
        assert clause.path in by_path() or (name == "*" and section in section_types()), clause.path
    assert {clause.path for clause in LIMITED} == REFUSED.keys()


@pytest.mark.parametrize("clause", LIMITED, ids=lambda clause: clause.path)
def test_what_is_not_honoured_is_refused_with_its_reason(clause: Clause):
    given = {**BESIDE.get(clause.path, {}), clause.path: REFUSED[clause.path]}
    with pytest.raises(ConfigError) as raised:
        load({**DEEPSPEED, **given})
    found = {problem.name: problem.message for problem in raised.value.problems}
    assert clause.why_not in found[clause.path] and "with deepspeed" in found[clause.path]


@pytest.mark.parametrize("clause", LIMITED, ids=lambda clause: clause.path)
def test_what_is_honoured_is_accepted(clause: Clause):
    for value in clause.honoured:
        assert load({**DEEPSPEED, clause.path: value}).get(clause.path) == value


def test_other_strategies_do_not_know_the_contract():
    assert load({"distributed.strategy": "ddp", "batch.clipping": "zclip"})


@pytest.mark.parametrize(
    ("knob", "value"),
    [("zero_stage", 3), ("offload_optimizer", "cpu"), ("offload_parameters", "cpu"), ("deepspeed_config", "ds.json")],
)
def test_its_knobs_have_no_effect_elsewhere(knob: str, value: object):
    with pytest.raises(ConfigError, match=f"distributed.{knob}: has no effect unless distributed.strategy is"):
        load({f"distributed.{knob}": value})


def test_a_file_is_run_in_another_way_by_the_last_word(tmp_path: Path):
    """A run of stage 3 goes on with one device, without a word about the stage."""
    file = tmp_path / "run.yaml"
    file.write_text("distributed: {strategy: deepspeed, zero_stage: 3, bucket_mb: 5}\n")
    assert load(file, ["distributed.strategy=single"]).get("distributed.zero_stage") == 3
    with pytest.raises(ConfigError, match=r"distributed\.zero_stage: has no effect"):
        load(file, ["distributed.strategy=single", "distributed.zero_stage=1"])


def test_weights_are_offloaded_by_stage_3_alone_and_from_gpus_alone():
    with pytest.raises(ConfigError, match=r"offload_parameters: has no effect unless distributed\.zero_stage is 3"):
        load({**DEEPSPEED, "distributed.offload_parameters": "cpu"})
    given = {**DEEPSPEED, "distributed.offload_optimizer": "cpu"}
    assert load(given)
    with pytest.raises(ConfigError, match=r"offload_optimizer: needs GPUs: with training\.device 'cpu'"):
        load({**given, "training.device": "cpu"})
