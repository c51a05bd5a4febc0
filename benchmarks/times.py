"""Seconds of a step as `trainbook plan --measure` foretells them, and as a run of some hundred steps then takes them.

python benchmarks/times.py [--only NAME ...] [--steps 300] [--rounds 3] [--json FILE]

Each case is measured as `plan --measure` does in one process and trained in another: the same configuration, the
Python standard library as text. A run's seconds are the mean of its rows after the first 150 steps: the first 20 are
all written down, and until step 150 memory is found for the guard's copies. It writes no checkpoint before its end.
Measurement and run take turns, each first in every other round, and the medians of their rounds are compared: where
steps are so short that Python sets their pace, the same run takes up to a quarter more or less a few minutes later.
`--device cpu --tiny` goes through it on a CPU, in small.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from multiprocessing.connection import Connection
from typing import Any

SETTLED = 150  # steps
VOCABULARY = 4096
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch", "trainbook.api", "trainbook.study.measure"])


def _case(kind: str, layers: int, width: int, rows: int, length: int, **sections: dict[str, Any]) -> dict[str, Any]:
    knobs: dict[str, Any] = {
        "model": {
            "type": kind,
            "num_hidden_layers": layers,
            "hidden_size": width,
            "num_attention_heads": width // 64,
            **({"head_width": 64, "position": "relative", "attention_scale": "none"} if kind == "t5" else {}),
        },
        "data": {
            "source": "builtin:pystdlib",
            "tokenizer": "bpe",
            "vocab_size": VOCABULARY,
            "max_seq_length": length,
        },
        "batch": {"global_batch_size": rows, "per_device_train_batch_size": rows},
        "training": {"max_steps": 300},
        "optimizer": {"learning_rate": 3e-4},
        "evaluation": {"eval_strategy": "no"},
        "memory": {"compile": "off"},
        "checkpoint": {"save_steps": 10**6},  # a run of minutes would write all the time, and wait for Python with it
    }
    for name, values in sections.items():
        knobs[name] = knobs.get(name, {}) | values
    return knobs


CASES = {
    "gpt-20m": _case("gpt", 8, 384, 64, 256),
    "gpt-124m": _case("gpt", 12, 768, 16, 1024),
    "gpt-124m-full": _case("gpt", 12, 768, 32, 1024, memory={"gradient_checkpointing": "full"}),
    "gpt-124m-x4": _case("gpt", 12, 768, 32, 512, batch={"per_device_train_batch_size": 8}),
    "gpt-124m-compiled": _case("gpt", 12, 768, 16, 1024, memory={"compile": "on"}),
    "bert-110m": _case("bert", 12, 768, 32, 512),
    "t5-60m": _case("t5", 6, 512, 32, 512),
}


def configuration(name: str, options: argparse.Namespace) -> dict[str, Any]:
    knobs = CASES[name]
    knobs["training"] |= {"max_steps": options.steps, "device": options.device}
    if options.tiny:
        knobs["model"] |= {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 1}
        knobs["data"] |= {"max_seq_length": 32}
        knobs["memory"] |= {"compile": "off"}
    return knobs


def foretold(name: str, options: argparse.Namespace) -> dict[str, Any]:
    from trainbook.knobs import load
    from trainbook.study.measure import measure

    return measure(load(configuration(name, options)).config, device=options.device, steps=options.timed)


def trained(name: str, options: argparse.Namespace) -> dict[str, Any]:
    from trainbook import api

    with tempfile.TemporaryDirectory() as runs:
        result = api.train(configuration(name, options), name="timed", runs_dir=runs, quiet=True)
        rows = [row for row in result.run.metrics("train") if row["step"] > SETTLED]
    seconds = [row["step_seconds"] for row in rows]
    return {"seconds_per_step": statistics.fmean(seconds), "memory_bytes": max(row["memory_bytes"] for row in rows)}


def in_a_process(kind: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Its own, so that none finds a GPU warmed up or filled by another."""
    here, there = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_answer, args=(kind, name, options, there))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        return {"failed": f"the process ended with code {process.exitcode}"}
    finally:
        process.join()


def _answer(kind: str, name: str, options: argparse.Namespace, there: Connection) -> None:
    try:
        there.send({"foretold": foretold, "trained": trained}[kind](name, options))
    except Exception as error:
        there.send({"failed": f"{type(error).__name__}: {error}"[:300]})


def _median(rounds: list[dict[str, Any]]) -> float:
    return statistics.median(each["seconds_per_step"] for each in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="NAME", default=list(CASES))
    parser.add_argument("--steps", type=int, default=300, help="of each run")
    parser.add_argument("--timed", type=int, default=20, help="steps that a measurement times")
    parser.add_argument("--rounds", type=int, default=3, help="of a measurement and a run each")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toys of the same kinds, not compiled")
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file too")
    options = parser.parse_args()
    if options.steps <= SETTLED:
        parser.error(f"--steps must be > {SETTLED}, but got {options.steps}")
    from common import facts, print_facts, write_json

    described = facts(options.device)
    print_facts(described)
    rows: list[dict[str, Any]] = []
    for name in options.only:
        row: dict[str, Any] = {"name": name, "foretold": [], "trained": []}
        rows.append(row)
        for number in range(options.rounds):
            for kind in ("foretold", "trained") if number % 2 == 0 else ("trained", "foretold"):
                found = in_a_process(kind, name, options)
                row[kind].append(found)
                told = found.get("failed") or f"{found['seconds_per_step']:.4f} s a step"
                print(f"  {name}, round {number + 1}, {kind}: {told}", flush=True)
                write_json(options.json, {**described, "rows": rows})
        failed = [each["failed"] for kind in ("foretold", "trained") for each in row[kind] if "failed" in each]
        if failed:
            print(f"{name:<20}{failed[0]}", flush=True)
        else:
            before, after = (_median(row[kind]) for kind in ("foretold", "trained"))
            row["error"] = before / after - 1
            print(f"{name:<20}{before:>10.4f}{after:>10.4f}{row['error']:>+9.1%}", flush=True)
        write_json(options.json, {**described, "rows": rows})
    errors = [abs(row["error"]) for row in rows if "error" in row]
    if errors:
        print(f"seconds a step: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}")


if __name__ == "__main__":
    main()
