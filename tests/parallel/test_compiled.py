"""What is compiled, and in how many graphs, under each strategy; a world of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.conftest import Lab, slow

from trainbook.loop.build import ConfiguredJob, build
from trainbook.loop.step import train_step
from trainbook.parallel import RankEnv, joined

# Torch itself keeps quiet about this one while it traces, unless warnings are errors.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),  # PyTorch's own, in its compiler
]

LAYERS = 3
ON = ("memory.compile=on", f"model.num_hidden_layers={LAYERS}", "batch.gradient_accumulation_steps=2")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.fx.GraphModule]]:
    """Those that were made, each run as it was traced: no compiler is needed for them."""
    made: list[torch.fx.GraphModule] = []
    real = torch.compile

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        made.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", lambda function, **how: real(function, backend=keep, **how))
    yield made
    torch.compiler.reset()


@contextmanager
def built(lab: Lab, strategy: str, *overrides: str) -> Iterator[ConfiguredJob]:
    config = lab.load(f"distributed.strategy={strategy}", *overrides).config
    with joined(RankEnv(), config.distributed, "cpu") as ranks:
        yield build(config, torch.device("cpu"), None, ranks)


def losses(lab: Lab, strategy: str, *overrides: str, steps: int = 3) -> list[float]:
    with built(lab, strategy, *overrides) as made:
        assert made.compiled == ("memory.compile=on" in overrides)
        reports = [train_step(made.state, batch) for batch in made.feed(0, steps)]
        return [float(sum(report.losses.values())) for report in reports]


@pytest.mark.parametrize(("strategy", "number"), [("single", 1), ("ddp", 1), ("fsdp", 4)])
def test_each_strategy_has_few_graphs_and_the_same_losses(
    lab: Lab, graphs: list[torch.fx.GraphModule], strategy: str, number: int
):
    """With fsdp: one for every block, and one each for embeddings, the last norm, and head and loss."""
    plain = losses(lab, "single", *ON[1:])
    assert not graphs
    assert losses(lab, strategy, *ON) == pytest.approx(plain, rel=1e-6)
    assert len(graphs) == number


@pytest.mark.parametrize("model", ["bert", pytest.param("t5", marks=pytest.mark.slow)])
def test_other_models_are_compiled_block_by_block_too(lab: Lab, graphs: list[torch.fx.GraphModule], model: str):
    given = {
        "bert": ("model.type=bert",),
        "t5": (
            "model.type=t5",
            "model.position=relative",
            "model.norm=rmsnorm",
            "model.attention_scale=none",
            "training.task=seq2seq",
            "data.source=builtin:reverse?size=70",
            "data.samples=documents",
            "data.padding=max_length",
        ),
    }[model]
    assert losses(lab, "fsdp", *ON, *given) == pytest.approx(losses(lab, "single", *ON[1:], *given), rel=1e-5)
    assert graphs


@pytest.mark.parametrize("how", ["full", "selective"])
def test_blocks_that_are_computed_again_are_compiled_as_well(lab: Lab, graphs: list[torch.fx.GraphModule], how: str):
    given = (*ON, f"memory.gradient_checkpointing={how}")
    assert losses(lab, "fsdp", *given) == pytest.approx(losses(lab, "single", *ON[1:]), rel=1e-6)
    assert len(graphs) == 4


@pytest.fixture
def fp8(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setattr("trainbook.loop.build.must_have_fp8", lambda device: None)
    return "precision.compute=bf16", "precision.products=fp8"


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's compiler does it
@pytest.mark.parametrize(
    ("strategy", "number", "how"),
    [("single", 1, "off"), ("ddp", 1, "off"), ("fsdp", 4, "off"), ("fsdp", 4, "selective"), slow("fsdp", 4, "full")],
)
def test_fp8_products_break_no_graph(
    lab: Lab, graphs: list[torch.fx.GraphModule], fp8: tuple[str, ...], strategy: str, number: int, how: str
):
    given = (*fp8, f"memory.gradient_checkpointing={how}")
    alone = losses(lab, "single", *ON[1:], *fp8)
    assert losses(lab, strategy, *ON, *given) == pytest.approx(alone, rel=1e-3)
    assert len(graphs) == number
    found = "".join(graph.print_readable(print_output=False) for graph in graphs)
    assert "autograd_function_apply" in found or "_scaled_mm" in found


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_fp8_products_that_are_given_up_are_compiled_anew(
    lab: Lab, graphs: list[torch.fx.GraphModule], fp8: tuple[str, ...]
):
    with built(lab, "single", *ON, *fp8) as made:
        feed = made.feed(0, 2)
        train_step(made.state, next(feed))
        assert len(graphs) == 1 and "autograd_function_apply" in graphs[0].print_readable(print_output=False)
        made.state.precision.widen_products()
        train_step(made.state, next(feed))
        feed.close()
    assert len(graphs) == 2 and "autograd_function_apply" not in graphs[1].print_readable(print_output=False)


def test_evaluation_and_probes_are_not_compiled(lab: Lab, graphs: list[torch.fx.GraphModule]):
    with built(lab, "fsdp", *ON) as made:
        made.evaluate()
        (batch,) = made.feed(0, 1)
        assert made.probe(batch, True)
        assert not graphs


def test_a_sharded_evaluation_never_brings_all_weights_together(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    from torch.distributed.fsdp import FSDPModule

    from trainbook.parallel.fsdp import FullyShard

    with built(lab, "single", ON[1]) as alone:
        theirs = alone.evaluate()
    monkeypatch.setattr(FullyShard, "whole", lambda strategy: pytest.fail("all weights are brought together"))
    with built(lab, "fsdp", ON[1]) as made:
        assert made.evaluate() == pytest.approx(theirs, rel=1e-6)
        parts = [module for module in made.state.task.modules() if isinstance(module, FSDPModule)]
        assert len(parts) == 1 + LAYERS
        for part in parts:
            for group in part._get_fsdp_state()._fsdp_param_groups:
                assert group.is_sharded, "afterwards a rank holds its slices only"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_compiled_for_real_the_losses_are_the_same(lab: Lab, strategy: str):
    torch.compiler.reset()
    assert losses(lab, strategy, *ON) == pytest.approx(losses(lab, "single", *ON[1:]), rel=1e-4)
