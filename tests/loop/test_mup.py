"""muP through the real loop: at the base the standard run, resumed to the bit, kept by schedules and remedies, and
taken along by whoever goes on from it."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import slow

from trainbook.errors import ConfigError, ResumeError
from trainbook.loop.describe import describe
from trainbook.loop.state import RateTable, Remedy

MUP = (
    "model.parametrization=mup",
    "model.base_hidden_size=4",
    "model.base_num_hidden_layers=2",
    "model.num_attention_heads=4",
)
WIDER = ("optimizer.weight_decay=0", "model.hidden_size=64", "model.num_attention_heads=16")
BRIEF = ("training.max_steps=6", "evaluation.eval_steps=6", "schedule.warmup_steps=2", "model.num_hidden_layers=2")


def test_at_the_base_the_run_is_the_standard_one_to_the_bit(lab):
    lab.train(*BRIEF, name="standard")
    lab.train(*BRIEF, MUP[0], MUP[2], "model.base_hidden_size=16", name="mup")
    lab.must_be_equal("standard", "mup")


@pytest.mark.parametrize("kind", [slow("adamw"), "muon", slow("sgd"), slow("adamw_8bit")])
def test_an_interrupted_run_continues_bit_for_bit(lab, kind: str):
    if kind == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    optimizer = f"optimizer.type={kind}"
    lab.train(*BRIEF, *MUP, optimizer, name="whole")
    with lab.interrupted_at(3):
        lab.train(*BRIEF, *MUP, optimizer, name="cut")
    lab.train(*BRIEF, *MUP, optimizer, name="cut")
    lab.must_be_equal("whole", "cut")


def test_a_run_is_not_gone_on_with_from_another_base(lab):
    with lab.interrupted_at(3):
        lab.train(*BRIEF, *MUP, name="cut")
    with pytest.raises(ResumeError, match=r"model\.base_hidden_size"):
        lab.train(*BRIEF, MUP[0], *MUP[2:], "model.base_hidden_size=8", name="cut")


@pytest.mark.parametrize("kind", ["adamw", "adamw_8bit", "lion"])
def test_a_first_update_moves_hidden_matrices_by_their_own_rate(lab, kind: str):
    """Without a past, an Adam and a sign move every weight by the rate, whatever its gradient."""
    if kind == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    built = lab.build(*MUP[:3], f"optimizer.type={kind}", *WIDER)
    state = built.state
    state.rates.set_for(torch.tensor(3))  # behind warm-up: the rate is 1e-2
    before = {name: parameter.detach().clone() for name, parameter in state.task.named_parameters()}
    for parameter in state.task.parameters():
        parameter.grad = torch.full_like(parameter, 1e-2)
    from trainbook.optim import apply_update

    apply_update(state.optimizer, torch.tensor(True))
    moved = {name: float((before[name] - p.detach()).mean()) for name, p in state.task.named_parameters()}
    assert moved["body.token_embedding.weight"] == pytest.approx(state.rates.at(3), rel=1e-3)
    assert moved["body.blocks.0.feed_forward.up.weight"] == pytest.approx(state.rates.at(3) / 16, rel=1e-3)


def test_schedules_and_remedies_keep_the_ratio():
    rates = RateTable(0.4, [0.25, 0.5, 1.0, 0.1], torch.device("cpu"))
    hidden = rates.times(1 / 8)
    assert rates.times(1.0) is rates.rate and rates.times(1 / 8) is hidden
    for update in range(4):
        rates.set_for(torch.tensor(update))
        assert float(hidden) == float(rates.rate) / 8
    rates.apply([Remedy(2, 0.5, 1)])
    rates.set_for(torch.tensor(2))
    assert float(rates.rate) == pytest.approx(0.1) and float(hidden) == float(rates.rate) / 8


def test_the_first_lines_say_what_mup_makes_of_the_rates(lab):
    lines = dict(describe(lab.build(*MUP), torch.device("cpu")))
    assert "mup: the width is 4 x the base, 16 / 4; 0.5 x the base depth" in lines["model"]
    assert lines["model"].endswith("; learning rates x 0.25, 1")


def test_whoever_goes_on_from_it_takes_its_rule_along(lab):
    lab.train(*BRIEF, *MUP, "model.output_multiplier=2", name="earlier")
    config = lab.config()
    del config["model"]
    from trainbook.knobs import load

    start = f"model.pretrained={lab.runs / 'earlier'}"
    loaded = load(config, [start])
    model = loaded.config.model
    assert (model.parametrization, model.base_hidden_size, model.output_multiplier) == ("mup", 4, 2.0)
    with pytest.raises(ConfigError, match="decides it"):
        load(config, [start, "model.base_hidden_size=8"])
    from trainbook import api

    still = ["training.max_steps=1", "schedule.warmup_steps=0", "optimizer.learning_rate=1e-12"]
    api.train(config, [start, *still], name="later", runs_dir=lab.runs, quiet=True)
    losses = [lab.rows(name, "eval")[-1]["loss"] for name in ("earlier", "later")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
