"""The constants of the planner's roofline (src/trainbook/plan/roofline.json), fitted on step times of one H200.

python benchmarks/roofline.py           how well it foretells what it was not fitted on; changes nothing
python benchmarks/roofline.py --write   the constants, from all measurements

Measured: benchmarks/results/step-times-h200.json (made by step_times.py), times-h200.json, gpu-h200.json and
probes-h200.json. Each constant is positive, and near a first guess unless measurements say otherwise. Errors are those
of measurements that were left out: all that share a model with the one that is foretold, and then all of its
architecture. What `step_times.py --unseen` measured (step-times-unseen-h200.json) is foretold and never fitted on.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from memory_cases import GPT, MODELS, Case, sized
from scipy.optimize import least_squares

from trainbook.knobs import Config, load
from trainbook.knobs.derive import batch_shape
from trainbook.plan.gpus import find_gpu
from trainbook.plan.network import network
from trainbook.plan.roofline import micro_batch, update
from trainbook.plan.types import compute_type

RESULTS = Path(__file__).parent / "results"
CONSTANTS = Path(__file__).parents[1] / "src" / "trainbook" / "plan" / "roofline.json"
UNSEEN = "step-times-unseen-h200.json"
MODELS["gpt-1.3b"] = (sized(GPT, 24, 2048, 16, 8192), 50_257)
# Where nothing is known: times the ideal; then seconds.
GUESS = {"products": 1.3, "operands": 1.2, "attention": 0.8, "masked attention": 1.6, "bias": 4.0}
GUESS |= {"recomputed": 1.2}
GUESS |= {"eager": 3.5, "compiled": 1.6, "eager logits": 20.0, "compiled logits": 4.0, "casts": 1.2, "update": 1.4}
GUESS |= {"kernels": 3e-6, "host step": 8e-3, "host micro": 1e-3, "host eager": 1.5e-5, "host compiled": 1.5e-5}
TRUST = 0.25  # how much of a measurement's weight a first guess has, on the scale of logarithms
# How much more, where single kernels were measured.
KNOWN = {"update": 20.0, "attention": 8.0, "casts": 12.0}
ERROR, SINGLE = 0.1, 0.5  # of a measurement, as a share; weight of a single product


@dataclass(frozen=True)
class Measured:
    name: str
    model: str  # all of one model are left out together
    family: str
    config: Config
    vocab_size: int
    compiled: bool
    seconds: float
    weight: float = 1.0

    def amounts(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each kind of work in a step: the GPU's, and the processor's."""
        gpu_name = find_gpu("H200")
        cluster = gpu_name.cluster(compute_type(self.config, gpu_name.cluster("fp16")), tf32=self.config.precision.tf32)
        shape, model = batch_shape(self.config), network(self.config, self.vocab_size)
        micro = micro_batch(self.config, model, cluster, shape.micro_batch, compiled=self.compiled)
        gpu = defaultdict[str, float](float, update(self.config, model, cluster))
        host = defaultdict[str, float](float, {"host step": 1.0})
        for into, work in ((gpu, micro.forward), (gpu, micro.backward), (host, micro.host)):
            for name, amount in work.items():
                into[name] += shape.accumulation * amount
        return np.array([gpu[name] for name in GUESS]), np.array([host[name] for name in GUESS])


class Table:
    """Amounts of all measurements, as two matrices."""

    def __init__(self, rows: list[Measured], amounts: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        self.gpu, self.host = (np.array([amounts[row.name][number] for row in rows]) for number in (0, 1))
        self.seconds = np.array([row.seconds for row in rows])

    def foretold(self, values: np.ndarray) -> np.ndarray:
        return np.maximum(self.gpu @ values, self.host @ values)


# ----------------------------------------------------------------------------------------------------------- Measured


def measurements() -> list[Measured]:
    return [*_step_times("step-times-h200.json"), *_times(), *_compared(), *_probes()]


def _of_case(name: str, case: Case, took: float, **more: Any) -> Measured:
    config = case.config()
    for section, values in more.items():
        config = config.model_copy(update={section: getattr(config, section).model_copy(update=values)})
    return Measured(name, case.model, case.model.split("-")[0], config, case.vocab_size, case.compiled, took)


def _step_times(name: str) -> list[Measured]:
    rows = [row for row in json.loads((RESULTS / name).read_text(encoding="utf-8"))["rows"] if "failed" not in row]
    # Of the parts of what was timed, the first one waits for memory that the others find there.
    return [_of_case(row["name"], Case(**row["case"]), statistics.median(row["parts"][1:])) for row in rows]


def _times() -> list[Measured]:
    """Whole trainings on text."""
    from times import CASES, VOCABULARY

    found = []
    for row in json.loads((RESULTS / "times-h200.json").read_text(encoding="utf-8"))["rows"]:
        config = load(CASES[row["name"]]).config
        took = statistics.median(each["seconds_per_step"] for each in row["trained"])
        compiled, model = config.memory.compile == "on", "-".join(row["name"].split("-")[:2])
        found.append(Measured(f"run-{row['name']}", model, model.split("-")[0], config, VOCABULARY, compiled, took))
    return found


def _compared() -> list[Measured]:
    found = json.loads((RESULTS / "gpu-h200.json").read_text(encoding="utf-8"))
    setup, timed = found["setup"], found["results"]["Trainbook"][0]
    case = Case("gpt-124m", setup["micro_batch"], setup["context"], accumulation=setup["accumulation"], compiled=True)
    return [_of_case("compared-gpt-124m", case, timed["seconds"] / setup["steps"])]


def _probes() -> list[Measured]:
    found = []
    for row in json.loads((RESULTS / "probes-h200.json").read_text(encoding="utf-8"))["rows"]:
        knobs = {
            key: row[key] for key in ("model", "rows", "length", "accumulation", "weights", "recompute") if key in row
        }
        case = Case(**knobs, compiled=True)
        rows = case.rows * case.accumulation
        took = (
            rows / row["rows_per_second"] if "rows_per_second" in row else rows * case.length / row["tokens_per_second"]
        )
        if "target_length" in row:
            more = {"data": {"max_target_length": row["target_length"]}, "training": {"task": "seq2seq"}}
            found.append(_of_case(row["name"], case, took, **more))
        else:
            found.append(_of_case(row["name"], case, took))
    return found


# ------------------------------------------------------------------------------------------------------------- Fitted


def fit(rows: list[Measured], amounts: dict[str, Any]) -> np.ndarray:
    table, start, of_products = Table(rows, amounts), np.log(list(GUESS.values())), products()
    trust = np.array([TRUST * KNOWN.get(name, 1.0) for name in GUESS])

    def missed(logs: np.ndarray) -> np.ndarray:
        values = np.exp(logs)
        errors = np.log(table.foretold(values) / table.seconds) / ERROR
        singly = np.log(of_products[0] @ values / of_products[1]) / ERROR
        return np.concatenate([errors, SINGLE * singly, trust * (logs - start)])

    return np.exp(least_squares(missed, start, loss="soft_l1").x)


@cache
def products() -> tuple[np.ndarray, np.ndarray]:
    """Single matrix products in bf16 that take longer than it takes to ask for them: their work, and seconds."""
    gpu = find_gpu("H200").cluster("bf16")
    amounts, took = [], []
    for each in json.loads((RESULTS / "step-times-h200.json").read_text(encoding="utf-8"))["kernels"]["products"]:
        rows, outputs, inputs = each["shape"]
        if each["type"] != "bf16" or each["seconds"] < 2.5e-5:
            continue
        numbers = rows * (outputs + inputs) + outputs * inputs
        work = {"products": 2 * rows * outputs * inputs / gpu.peak, "operands": 2 * numbers / gpu.bandwidth}
        amounts.append([({"kernels": 1.0} | work).get(name, 0.0) for name in GUESS])
        took.append(each["seconds"])
    return np.array(amounts), np.array(took)


def left_out(rows: list[Measured], amounts: dict[str, Any], key: Callable[[Measured], str]) -> dict[str, float]:
    """Seconds by name, each foretold by constants that have seen none of its group."""
    found: dict[str, float] = {}
    for group in sorted({key(row) for row in rows}):
        values = fit([row for row in rows if key(row) != group], amounts)
        members = [row for row in rows if key(row) == group]
        told = Table(members, amounts).foretold(values)
        found |= {row.name: float(each) for row, each in zip(members, told, strict=True)}
    return found


def print_unseen(values: np.ndarray) -> list[float]:
    rows = _step_times(UNSEEN)
    told = Table(rows, {row.name: row.amounts() for row in rows}).foretold(values)
    errors = [float(each / row.seconds - 1) for row, each in zip(rows, told, strict=True)]
    print("Never fitted on:")
    for row, error in zip(rows, errors, strict=True):
        print(f"{row.name:<44}{1000 * row.seconds:>8.1f}ms{error:>+9.1%}")
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the constants")
    options = parser.parse_args()
    rows = measurements()
    amounts = {row.name: row.amounts() for row in rows}
    values = fit(rows, amounts)
    table = Table(rows, amounts)
    told = {
        "fitted": dict(zip(amounts, table.foretold(values), strict=True)),
        "model": left_out(rows, amounts, lambda row: row.model),
        "family": left_out(rows, amounts, lambda row: row.family),
    }
    errors = {how: [found[row.name] / row.seconds - 1 for row in rows] for how, found in told.items()}
    print("Errors: fitted on all; all of the same model left out; all of the same architecture left out")
    print(f"{'':<44}{'measured':>10}{'fitted':>9}{'model':>9}{'family':>9}")
    is_host = table.host @ values >= table.gpu @ values
    for number, row in enumerate(rows):
        shown = "".join(f"{each[number]:>+9.1%}" for each in errors.values())
        print(f"{row.name:<44}{1000 * row.seconds:>8.1f}ms{shown}{'  host' if is_host[number] else ''}")
    if (RESULTS / UNSEEN).exists():
        errors["unseen"] = print_unseen(values)
    for how, each in errors.items():
        sizes = sorted(map(abs, each))
        tenth = sizes[math.ceil(0.9 * len(sizes)) - 1]
        print(f"{how}: median {statistics.median(sizes):.1%}, nine of ten within {tenth:.1%}, worst {sizes[-1]:.1%}")
    constants = {name: float(f"{value:.4g}") for name, value in zip(GUESS, values, strict=True)}
    print(constants)
    if options.write:
        facts = {"made_by": "python benchmarks/roofline.py --write", "gpu": "H200", "measurements": len(rows)}
        facts["median_error"] = {how: round(statistics.median(map(abs, each)), 4) for how, each in errors.items()}
        CONSTANTS.write_text(json.dumps({**facts, "constants": constants}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
