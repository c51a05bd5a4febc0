"""Configurations that do not fit, each for another cause, and what `trainbook plan` changes so that they do, on a GPU.

python benchmarks/fits.py [--only NAME ...] [--jobs 3] [--json FILE]

The GPU is made as small as the case says (torch.cuda.set_per_process_memory_fraction, less what CUDA itself takes).
Each configuration is tried as it is, and must run out of memory; then with the first change that the plan gives, and
must train two steps. Every attempt is a process of its own. `--device cpu` only prints the plan's answers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memory_cases import MODELS

from trainbook.knobs import Loaded, load

GB = 10**9
STEPS = 2
CONTEXT = 700_000_000  # bytes that CUDA and its libraries take beside all tensors on an H200, somewhat rounded up


@dataclass(frozen=True)
class Tight:
    cause: str
    model: str
    gigabytes: int  # of the GPU
    rows: int
    length: int
    knobs: dict[str, Any] = field(default_factory=dict)  # by section
    vocab_size: int | None = None  # if not the model's own

    @property
    def vocabulary(self) -> int:
        return self.vocab_size or MODELS[self.model][1]

    @property
    def memory(self) -> int:
        return self.gigabytes * GB

    def loaded(self, *overrides: str) -> Loaded:
        sections: dict[str, Any] = {
            "model": MODELS[self.model][0],
            "data": {"max_seq_length": self.length, "num_workers": 0},
            "batch": {"global_batch_size": self.rows, "per_device_train_batch_size": self.rows},
            "training": {"max_steps": 1000},
            "optimizer": {"learning_rate": 1e-4},
            "schedule": {"type": "linear", "warmup_steps": 10},
            "precision": {"compute": "bf16"},
            "memory": {"compile": "off"},
            "evaluation": {"eval_strategy": "no"},
        }
        for name, values in self.knobs.items():
            sections[name] = sections[name] | values
        return load(sections, overrides)


CASES = {
    "rows": Tight("too many rows at a time", "gpt-124m", 24, rows=64, length=1024),
    "vocabulary": Tight("logits of a large vocabulary", "gpt-20m", 16, rows=32, length=1024, vocab_size=128_000),
    "long-rows": Tight("activations of one long row", "llama-350m", 24, rows=1, length=16_384),
    "precision": Tight(
        "activations in fp32", "gpt-355m", 22, rows=8, length=1024, knobs={"precision": {"compute": "fp32"}}
    ),
    "optimizer": Tight(
        "optimizer state",
        "gpt-1.5b",
        24,
        rows=1,
        length=256,
        knobs={"memory": {"gradient_checkpointing": "full"}},
    ),
    "too-long": Tight(
        "one row longer than anything makes room for",
        "llama-60m",
        24,
        rows=1,
        length=131_072,
        knobs={"memory": {"gradient_checkpointing": "full"}, "precision": {"weights": "bf16"}},
    ),
}


def changes_for(tight: Tight) -> list[list[str]]:
    """What the plan says to change on one GPU, the best first, each as overrides."""
    from trainbook.plan.gpus import GPUS
    from trainbook.plan.subject import PlanSubject
    from trainbook.plan.suggest import suggestions

    loaded, gpu = tight.loaded(), replace(GPUS["RTX-4090"], memory_gb=tight.gigabytes)
    found = suggestions(PlanSubject(loaded.config, loaded.origins, tight.vocabulary, gpu))
    return [each.overrides for each in found if each.devices == 1]


# --------------------------------------------------------------------------------------------------------- One process


def attempt(tight: Tight, overrides: list[str], device_name: str = "cuda") -> dict[str, Any]:
    import torch

    from trainbook.study.measure import limited
    from trainbook.study.rehearsal import for_rehearsal, rehearsal, synthetic_data

    device = torch.device(device_name)
    config = for_rehearsal(tight.loaded(*overrides).config)
    data = synthetic_data(config, tight.vocabulary, rows=4 * (config.batch.global_batch_size or 1))
    found: dict[str, Any] = {"fits": False}
    try:
        with limited(device, tight.memory - CONTEXT), rehearsal(config, data, device) as training:
            stretch = training.advance(STEPS)
            found |= {"fits": int(training.state.applied) == STEPS, "peak_bytes": stretch.peak_bytes}
            found |= {"reserved_bytes": torch.cuda.max_memory_reserved(), "micro_batch": training.state.micro_batch}
    except torch.OutOfMemoryError as error:
        found["failed"] = f"out of memory: {str(error).splitlines()[0][:200]}"
    except Exception as error:
        found["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
    return found


def in_a_process(name: str, overrides: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, __file__, "--attempt", name, "--json", str(result), "--", *overrides]
        done = subprocess.run(command, capture_output=True, text=True, timeout=170)
        if result.exists():
            return json.loads(result.read_text(encoding="utf-8"))
        return {"fits": False, "failed": f"the process ended with {done.returncode}: {done.stderr.strip()[-300:]}"}


# ---------------------------------------------------------------------------------------------------------- All of them


def tried(name: str) -> dict[str, Any]:
    """As it is, then with the plan's first change. One that needs a package that is missing is passed over."""
    tight, passed_over = CASES[name], []
    row: dict[str, Any] = {"name": name, "cause": tight.cause, "gigabytes": tight.gigabytes}
    row["original"] = in_a_process(name, [])
    for overrides in changes_for(tight):
        found = in_a_process(name, overrides)
        if "MissingExtra" in found.get("failed", ""):
            passed_over.append(overrides)
            continue
        return {**row, "overrides": overrides, "changed": found, "passed_over": passed_over}
    return {**row, "overrides": None, "changed": {"fits": False, "failed": "the plan has no change"}}


def told(row: dict[str, Any]) -> str:
    original, changed = row["original"], row["changed"]
    first = "fits (it should not)" if original["fits"] else original.get("failed", "")[:40]
    then = f"fits, {changed['reserved_bytes'] / GB:.1f} GB" if changed["fits"] else changed.get("failed", "")
    return f"{row['cause']} ({row['gigabytes']} GB): {first} -> {' '.join(row['overrides'] or [])}: {then}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="NAME", default=list(CASES))
    parser.add_argument("--jobs", type=int, default=3, help="side by side; each has a GPU of its own size")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file too")
    parser.add_argument("--attempt", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attempt is not None:
        found = attempt(CASES[options.attempt], options.overrides)
        Path(options.json).write_text(json.dumps(found), encoding="utf-8")
        return
    if options.device == "cpu":
        for name in options.only:
            print(f"{CASES[name].cause} ({CASES[name].gigabytes} GB):")
            for overrides in changes_for(CASES[name]):
                print(f"    {' '.join(overrides)}")
        return
    from common import facts, print_facts, write_json

    described = facts(options.device)
    print_facts(described)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(tried, options.only):
            rows.append(row)
            print(told(row), flush=True)
            write_json(options.json, {**described, "rows": rows})
    good = sum(row["changed"]["fits"] and not row["original"]["fits"] for row in rows)
    print(f"{good} of {len(rows)} did not fit, and do with the plan's change")


if __name__ == "__main__":
    main()
