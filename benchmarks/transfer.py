"""Does the best rate stay as a model widens, and does a search on a small model serve a large one?

    python benchmarks/transfer.py --workers 8 --json transfer.json    all four parts
    python benchmarks/transfer.py --only gpt --out studies             one of them; what is done is kept under --out
    python benchmarks/transfer.py --tiny --device cpu                  every path of it, in small

gpt, bert and t5: `trainbook transfer RECIPE --rates`, standard beside muP. proxy: `trainbook transfer --proxy` finds a
rate on a small model; the recipe that it writes is trained, and beside it the large model at each rate of a grid. All
have the same tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import facts, print_facts, write_json

from trainbook.study.child_run import ChildRun
from trainbook.study.transfer.rates import train_cell

Knobs = dict[str, Any]


def lasting(steps: int, warmup: int) -> Knobs:
    """Evaluated and saved at its end alone."""
    ends = dict.fromkeys(("training.max_steps", "evaluation.eval_steps", "checkpoint.save_steps"), steps)
    return {**ends, "schedule.warmup_steps": warmup}


COMMON: Knobs = {
    **lasting(200, warmup=20),
    "memory.compile": "off",
    "batch.global_batch_size": 64,
    "evaluation.eval_max_samples": 512,
}
TINY: Knobs = {
    **lasting(4, warmup=1),
    "batch.global_batch_size": 4,
    "evaluation.eval_max_samples": 8,
    "data.max_seq_length": 32,
    "model.num_hidden_layers": 2,
    "model.hidden_size": 64,
    "model.num_attention_heads": 4,
}
RATES: dict[str, tuple[str, Knobs, str, int]] = {  # recipe, overrides, widths, seeds
    "gpt": ("gpt-tiny", {"model.num_attention_heads": 2}, "128,256,512,1024", 3),
    "bert": ("bert-tiny", {}, "128,512", 2),
    "t5": ("t5-tiny", {}, "128,512", 2),
}
LARGE_STEPS = 600
LARGE = f"""\
model:
  type: gpt
  num_hidden_layers: 12
  hidden_size: 768
  num_attention_heads: 12
data:
  source: builtin:pystdlib
  tokenizer: bpe
  vocab_size: 4096
  max_seq_length: 256
batch:
  global_batch_size: 64
training:
  max_steps: {LARGE_STEPS}
optimizer:
  learning_rate: 0.01  # ten times too high: what is found is not what was there
schedule:
  type: cosine
  warmup_steps: 60
evaluation:
  eval_steps: {LARGE_STEPS}
  eval_max_samples: 512
checkpoint:
  save_steps: {LARGE_STEPS}
"""
SMALL_WIDTH = 128
STUDY = """\
base: large.yaml
nuisance: {optimizer.learning_rate: null}
method: zoom
budget: BUDGET
seeds: SEEDS
"""
GRID = tuple(1e-4 * 2.0**power for power in range(8))  # 1e-4 to 0.0128


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out = Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)

    def rates(self, kind: str) -> dict[str, Any]:
        recipe, overrides, sizes, seeds = RATES[kind]
        if self.options.tiny:
            sizes, seeds = "32,64", 1
        changes = self._changes(COMMON | overrides)
        arguments = ["transfer", recipe, *changes, "--rates", "--sizes", sizes, "--seeds", str(seeds)]
        arguments += ["--workers", str(self.options.workers), "--name", f"rates-{kind}", "--picture"]
        answer = self._answer([*arguments, str(self.out / f"rates-{kind}.png")])
        return {
            "recipe": recipe,
            "overrides": changes,
            **{key: answer[key] for key in ("axis", "seeds", "arms", "runs")},
        }

    def proxy(self) -> dict[str, Any]:
        large, study = self.out / "large.yaml", self.out / "study.yaml"
        large.write_text(LARGE, encoding="utf-8")
        width, budget, seeds = (32, 3, 1) if self.options.tiny else (SMALL_WIDTH, 12, 2)
        study.write_text(STUDY.replace("BUDGET", str(budget)).replace("SEEDS", str(seeds)), encoding="utf-8")
        changes = self._changes({})
        search = ["transfer", str(study), *changes, "--proxy", str(width), "--name", "proxy"]
        search += ["--workers", str(self.options.workers)]
        began = time.perf_counter()
        answer = self._answer(search)
        took = time.perf_counter() - began
        carried = self._trained("carried", answer["recipe"], [])
        grid = GRID[3:5] if self.options.tiny else GRID
        direct = [
            {"rate": rate, **self._trained(f"direct-{rate:g}", str(large), [*changes, f"learning_rate={rate:g}"])}
            for rate in grid
        ]
        best = min((each["loss"] for each in direct if each["loss"] is not None), default=None)
        flops = answer["cost"]["large_run_flops"] * len(direct)
        return {
            "found": answer["found"],
            "carried": carried,
            "direct": direct,
            "best_direct_loss": best,
            "excess": None if best is None or carried["loss"] is None else carried["loss"] / best - 1,
            "cost": answer["cost"] | {"grid_flops": flops, "share_of_grid": answer["cost"]["flops"] / flops},
            "search_seconds": took,
        }

    def _changes(self, knobs: Knobs) -> list[str]:
        knobs = {"training.device": self.options.device} | knobs | (TINY if self.options.tiny else {})
        return [f"{path}={value}" for path, value in knobs.items()]

    def _trained(self, name: str, recipe: str, changes: list[str]) -> dict[str, Any]:
        """The loss at its end: None, if it diverged. One that is there is not trained again."""
        ended, began = self.out / f"{name}.json", time.perf_counter()
        if not ended.is_file():
            outcome = train_cell(ChildRun(Path(recipe), [*changes, "guard.enabled=false"], name, self.out))
            write_json(str(ended), {"loss": outcome.loss, "seconds": time.perf_counter() - began})
            print(f"  {name}: {outcome.loss or outcome.reason}", flush=True)
        return json.loads(ended.read_text(encoding="utf-8"))

    def _answer(self, arguments: list[str]) -> dict[str, Any]:
        command = [sys.executable, "-m", "trainbook", *arguments, "--runs-dir", str(self.out), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}")
        return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = (*RATES, "proxy")
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toys of the same kinds")
    parser.add_argument("--out", default="transfer-studies", help="the folder of studies and runs")
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file too")
    options = parser.parse_args()
    bench, found = Bench(options), facts(options.device)
    print_facts(found)
    for part in options.only:
        began = time.perf_counter()
        found[part] = bench.proxy() if part == "proxy" else bench.rates(part)
        found[part]["seconds"] = time.perf_counter() - began
        write_json(options.json, found)
        tell(part, found[part])


def tell(part: str, found: dict[str, Any]) -> None:
    print(f"{part}, {found['seconds']:.0f} s", flush=True)
    if part != "proxy":
        for arm, summary in found["arms"].items():
            print(f"  {arm:<9}{json.dumps({k: v for k, v in summary.items() if not isinstance(v, (dict, list))})}")
        return
    print(f"  found {found['found']}: {found['carried']['loss']}, the best of the grid {found['best_direct_loss']}")
    if found["excess"] is not None:
        print(f"  excess {found['excess']:+.2%} at {found['cost']['share_of_grid']:.1%} of the grid's FLOPs")


if __name__ == "__main__":
    main()
