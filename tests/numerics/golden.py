"""Short fixed runs whose losses must not change unless someone means them to.

    python tests/numerics/golden.py           compare with golden.json
    python tests/numerics/golden.py --write   write it anew, and say what changed

On the platform that wrote the file losses must be equal to the last bit; elsewhere, other kernels round otherwise.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

FILE = Path(__file__).with_name("golden.json")
ELSEWHERE = {"fp16": 1e-3}  # relative; every matrix product of it rounds to three digits
ELSEWHERE_OTHERS = 1e-4

SMALL: dict[str, Any] = {
    "model": {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2},
    "data": {"max_seq_length": 32, "validation_ratio": 0.1},
    "batch": {"global_batch_size": 8},
    "training": {"max_steps": 20, "device": "cpu"},
    "optimizer": {"learning_rate": 5e-3},
    "schedule": {"type": "cosine", "warmup_steps": 4},
    "evaluation": {"eval_steps": 10},
    "precision": {"compute": "fp32"},
}

RUNS: dict[str, tuple[str, ...]] = {
    "gpt": (),
    "llama-like": (
        "model.norm=rmsnorm",
        "model.activation=swiglu",
        "model.position=rotary",
        "model.num_attention_heads=4",
        "model.num_key_value_heads=2",
        "model.tie_embeddings=false",
        "model.qk_norm=true",
        "training.z_loss=1e-4",
    ),
    "fp16": ("precision.compute=fp16", "precision.growth_interval=4"),
    "sgd": ("optimizer.type=sgd", "optimizer.learning_rate=0.3", "schedule.type=linear"),
    "accumulation, clipping and dropout": (
        "batch.gradient_accumulation_steps=4",
        "batch.max_grad_norm=0.5",
        "model.dropout=0.1",
        "model.bias=true",
        "training.label_smoothing=0.1",
    ),
}


def made_text() -> str:
    """From a generator of its own, so that it is the same with every Python."""
    words = ("the", "a", "of", "and", "to", "in", "that", "it", "is", "was", "for", "on", "are", "as", "with", "his")
    words += ("they", "at", "be", "this", "from", "have", "or", "by", "one")
    state, parts = 1, []
    for _ in range(3000):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        parts.append(words[(state >> 33) % len(words)])
        parts.append(".\n" if (state >> 50) % 9 == 0 else " ")
    return "".join(parts)


def fingerprint() -> dict[str, Any]:
    import torch

    return {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cpu": _cpu_part(),
        "threads": torch.get_num_threads(),
        "onednn": bool(torch.backends.mkldnn.enabled),  # pyright: ignore[reportAttributeAccessIssue]
    }


def _cpu_part() -> str:
    """Which processor it is: libraries choose kernels by it."""
    wanted = ("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    facts = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            facts[name.strip()] = value.strip()
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def measure(name: str, folder: Path) -> dict[str, list[float]]:
    """Losses by step: in training, and in evaluation."""
    import torch

    from trainbook import api

    torch.set_num_threads(1)
    text = folder / "text.txt"
    if not text.exists():
        text.write_text(made_text())
    config = {**SMALL, "data": {**SMALL["data"], "source": str(text), "cache_dir": str(folder / "cache")}}
    run = api.train(config, RUNS[name], name="golden", runs_dir=folder / name.replace(" ", "-"), quiet=True).run
    return {
        "train": [row["loss"] for row in run.metrics("train")],
        "grad_norm": [row["grad_norm"] for row in run.metrics("train")],
        "eval": [row["loss"] for row in run.metrics("eval")],
    }


def tolerance(name: str, same_platform: bool) -> float:
    return 0.0 if same_platform else ELSEWHERE.get(name, ELSEWHERE_OTHERS)


def read() -> dict[str, Any]:
    from trainbook.runs.jsonl import loads

    return loads(FILE.read_text())


def differences(expected: dict[str, list[float]], found: dict[str, list[float]], tolerance: float) -> list[str]:
    lines = []
    for kind in expected:
        if len(expected[kind]) != len(found[kind]):
            lines.append(f"{kind}: {len(expected[kind])} numbers before, {len(found[kind])} now")
            continue
        for number, (old, new) in enumerate(zip(expected[kind], found[kind], strict=True)):
            same = old == new or (old != old and new != new) or abs(new - old) <= tolerance * abs(old)
            if not same:
                lines.append(f"{kind}[{number}]: {old!r} before, {new!r} now, {(new - old) / old:+.2e} of it")
                break
    return lines


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = {name: measure(name, Path(folder)) for name in RUNS}
    here = fingerprint()
    before = read() if FILE.exists() else {"fingerprint": {}, "runs": {}}
    same_platform = before["fingerprint"] == here
    print("platform:", "the same" if same_platform else f"{before['fingerprint']} before, {here} now")
    changed = False
    for name, losses in found.items():
        lines = ["it is new"]
        if name in before["runs"]:
            lines = differences(before["runs"][name], losses, tolerance(name, same_platform))
        changed |= bool(lines)
        print(f"{name}: " + ("; ".join(lines) or "unchanged"))
    if "--write" not in sys.argv[1:]:
        return int(changed)
    from trainbook.runs.jsonl import dumps

    FILE.write_text(json.dumps(json.loads(dumps({"fingerprint": here, "runs": found})), indent=1) + "\n")
    print(f"written: {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
