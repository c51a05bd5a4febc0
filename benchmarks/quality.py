"""Time to quality: how much sooner other settings reach the best validation loss of nanoGPT's, on three corpora.

    python benchmarks/quality.py tune --shakespeare tinyshakespeare.txt --out quality      # rates and lengths
    python benchmarks/quality.py seeds --shakespeare tinyshakespeare.txt --out quality     # at the best of them
    python benchmarks/quality.py parts --shakespeare tinyshakespeare.txt --out quality     # each part left out
    python benchmarks/quality.py speed --shakespeare tinyshakespeare.txt --out quality     # seconds per step, alone
    python benchmarks/quality.py report --out quality --json benchmarks/results/quality.json

Both sides are the same model of 6 layers and width 384 on characters or bytes, 256 at a time, 64 rows an update.
Learning rate and length of the run are tuned for each with the same number of trials. Several trainings share the GPU,
so a step's seconds are measured in trainings of their own; the steps do not depend on who else is there. What was run
is kept in DIR/trials.jsonl, and not run again. `--tiny` goes through all of it on a CPU, in small.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from common import write_json

# What is trained.


CORPORA = {
    "shakespeare": ("data.source={shakespeare}", "data.tokenizer=char"),
    "bible": ("data.source=builtin:bible", "data.tokenizer=byte"),
    "pystdlib": ("data.source=builtin:pystdlib", "data.tokenizer=byte"),
}
COMMON = (
    "evaluation.eval_steps=50",
    "evaluation.eval_max_samples=512",
    "checkpoint.save_steps=1000000",
    "checkpoint.save_total_limit=1",
    "data.num_workers=0",
)
TINY = (
    "model.num_hidden_layers=1",
    "model.hidden_size=32",
    "model.num_attention_heads=2",
    "data.max_seq_length=32",
    "batch.global_batch_size=4",
    "evaluation.eval_steps=5",
    "evaluation.eval_max_samples=16",
    "schedule.warmup_steps=2",
)
# Each part of the fast recipe, and what it takes the place of.
PARTS = {
    "muon": ("optimizer.type=muon",),
    "rotary": ("model.position=rotary",),
    "rmsnorm": ("model.norm=rmsnorm",),
    "qk-norm": ("model.qk_norm=true",),
    "relu2": ("model.activation=relu2",),
    "zero-init": ("model.residual_init=zero",),
    "linear-to-zero": ("schedule.type=linear", "schedule.floor=0"),
    "embedding-skip": ("model.embedding_skip=true",),
    "value-embeddings": ("model.value_embeddings=alternate",),
}
RATES = {"adamw": (5e-4, 1e-3, 2e-3, 4e-3), "muon": (2.5e-3, 5e-3, 1e-2, 2e-2)}
LENGTHS = {"plain": (1500, 2500), "fast": (500, 900)}
TUNING_SEED, FIRST_SEED = 1, 101


@dataclass(frozen=True)
class Trial:
    stage: str
    corpus: str
    arm: str  # plain, fast, or fast without a part: "-muon"
    rate: float
    steps: int
    seed: int

    @property
    def parts(self) -> list[str]:
        return [] if self.arm == "plain" else [part for part in PARTS if f"-{part}" != self.arm]

    def overrides(self, shakespeare: str, tiny: bool) -> list[str]:
        given = [setting.format(shakespeare=shakespeare) for setting in CORPORA[self.corpus]]
        given += [*COMMON, *(setting for part in self.parts for setting in PARTS[part])]
        given += [f"optimizer.learning_rate={self.rate:g}", f"training.max_steps={self.steps}"]
        given += [f"training.seed={self.seed}", *(TINY if tiny else ())]
        return list({setting.partition("=")[0]: setting for setting in given}.values())  # the last one counts


def optimizer_of(arm: str) -> str:
    return "adamw" if arm in ("plain", "-muon") else "muon"


# Running trials


def train(trial: Trial, shakespeare: str, tiny: bool, runs: Path) -> dict[str, Any]:
    from trainbook.api import train as trainbook_train
    from trainbook.runs.record import open_record

    name = f"{os.getpid()}"
    shutil.rmtree(runs / name, ignore_errors=True)
    began = time.time()
    trainbook_train(
        "shakespeare-char", trial.overrides(shakespeare, tiny), name=name, runs_dir=runs, resume="never", quiet=True
    )
    record = open_record(runs / name)
    steps, losses = record.rows("eval").series("loss")
    speeds = record.rows("train").series("tokens_per_second")[1]
    shutil.rmtree(runs / name, ignore_errors=True)
    return {
        **asdict(trial),
        "curve": [[int(step), round(float(loss), 5)] for step, loss in zip(steps, losses, strict=True)],
        "tokens_per_second": statistics.median(map(float, speeds[len(speeds) // 2 :])),
        "seconds": round(time.time() - began, 1),
    }


def worker(tasks: Any, results: Any, shakespeare: str, tiny: bool, runs: str) -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for trial in iter(tasks.get, None):
        try:
            results.put(train(trial, shakespeare, tiny, Path(runs)))
        except BaseException as error:  # a trial that fails is a result
            results.put({**asdict(trial), "failed": f"{type(error).__name__}: {error}"})


def run_all(trials: Sequence[Trial], options: argparse.Namespace, jobs: int) -> None:
    """Those that have no result yet, `jobs` at once; what is done is written at once."""
    path = options.out / "trials.jsonl"
    done = {key_of(result) for result in results_in(options.out)}
    left = [trial for trial in trials if key_of(asdict(trial)) not in done]
    print(f"{len(left)} of {len(trials)} trainings are left", flush=True)
    context = multiprocessing.get_context("spawn")
    tasks, results = context.Queue(), context.Queue()
    for trial in [*left, *[None] * jobs]:
        tasks.put(trial)
    given = (tasks, results, options.shakespeare, options.tiny, str(options.out / "runs"))
    workers = [context.Process(target=worker, args=given, daemon=True) for _ in range(min(jobs, len(left)))]
    for process in workers:
        process.start()
    ends = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    for number in range(len(left)):
        while time.monotonic() < ends and any(process.is_alive() for process in workers):
            try:
                found = results.get(timeout=1.0)
                break
            except Exception:  # nothing has come yet
                continue
        else:
            break
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(found) + "\n")
        best = min((loss for _, loss in found.get("curve", [])), default=math.nan)
        said = found.get("failed") or f"best {best:.4f}, {found['seconds']:.0f} s"
        which = f"{found['corpus']} {found['arm']} {found['rate']:g} {found['steps']} seed {found['seed']}"
        print(f"{number + 1}/{len(left)} {which}: {said}", flush=True)
    for process in workers:
        process.terminate()


def results_in(folder: Path) -> list[dict[str, Any]]:
    path = folder / "trials.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key_of(result: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(result[name] for name in ("stage", "corpus", "arm", "rate", "steps", "seed"))


# Which trials


def tuning(corpora: Iterable[str], tiny: bool) -> Iterator[Trial]:
    for corpus, arm in product(corpora, ("plain", "fast")):
        for rate, steps in product(RATES[optimizer_of(arm)], LENGTHS[arm]):
            yield Trial("tune", corpus, arm, rate, 10 if tiny else steps, TUNING_SEED)


def with_seeds(results: list[dict[str, Any]], corpora: Iterable[str], seeds: int) -> Iterator[Trial]:
    """The longest first, so that none is left over at the end."""
    for corpus, arm in product(corpora, ("plain", "fast")):
        rate, steps = chosen(results, corpus, arm)
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            yield Trial("seeds", corpus, arm, rate, steps, seed)


def without_parts(results: list[dict[str, Any]], corpora: Iterable[str], seeds: int) -> Iterator[Trial]:
    """Each at two learning rates around the one that suits the whole, or that suits AdamW."""
    for corpus, part in product(corpora, PARTS):
        rate, steps = chosen(results, corpus, "fast")
        rates = (rate, rate / 2) if part != "muon" else (1e-3, 2e-3)
        for each, seed in product(rates, range(FIRST_SEED, FIRST_SEED + seeds)):
            yield Trial("parts", corpus, f"-{part}", each, steps, seed)


def chosen(results: list[dict[str, Any]], corpus: str, arm: str) -> tuple[float, int]:
    """The plain settings: where the loss is lowest. The fast ones: where that loss is reached soonest, or, where it is
    not reached, where the loss is lowest."""
    tuned = [each for each in results if each["stage"] == "tune" and each["corpus"] == corpus and "curve" in each]
    plain, own = ([each for each in tuned if each["arm"] == name] for name in ("plain", arm))
    if not plain or not own:
        raise SystemExit(f"{corpus}: nothing is tuned yet; run `quality.py tune` first")
    target = min(best_of(each) for each in plain)

    def order(result: dict[str, Any]) -> tuple[float, float]:
        reached = first_below(result, target) if arm != "plain" else None
        return (math.inf if reached is None else reached, best_of(result))

    found = min(own, key=order)
    return found["rate"], found["steps"]


def best_of(result: dict[str, Any]) -> float:
    return min((loss for _, loss in result["curve"] if math.isfinite(loss)), default=math.inf)


def first_below(result: dict[str, Any], target: float) -> int | None:
    return next((step for step, loss in result["curve"] if loss <= target), None)


# What came of it

SLACK = 0.005  # nats above its own best, within which the plain run counts as there: its last bit takes long


def report(results: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for corpus in CORPORA:
        plain, fast = (
            {each["seed"]: each for each in results if key_of(each)[:3] == ("seeds", corpus, arm) and "curve" in each}
            for arm in ("plain", "fast")
        )
        seeds = sorted(set(plain) & set(fast))
        if len(seeds) < 2:
            continue
        target = statistics.fmean(best_of(plain[seed]) for seed in seeds)
        times = {
            arm: next(
                (each["tokens_per_second"] for each in results if key_of(each)[:3] == ("speed", corpus, arm)), None
            )
            for arm in ("plain", "fast")
        }
        there = [first_below(plain[seed], best_of(plain[seed]) + SLACK) or plain[seed]["steps"] for seed in seeds]
        reached = [first_below(fast[seed], target) for seed in seeds]
        found[corpus] = {
            "target": target,
            "seeds": len(seeds),
            "plain": arm_facts(plain, there, times["plain"]),
            "fast": arm_facts(fast, reached, times["fast"]),
            "reached": sum(step is not None for step in reached),
        }
        if all(step is not None for step in reached):
            in_steps = [math.log(a / b) for a, b in zip(there, reached, strict=True) if b]
            found[corpus]["sooner_in_tokens"] = interval(in_steps)
            if times["plain"] and times["fast"]:
                shift = math.log(times["fast"] / times["plain"])
                found[corpus]["sooner_in_seconds"] = interval([each + shift for each in in_steps])
        found[corpus]["parts"] = {part: part_facts(results, corpus, part, fast, target) for part in PARTS}
    return found


def arm_facts(runs: dict[int, dict[str, Any]], steps: list[int | None], speed: float | None) -> dict[str, Any]:
    some = next(iter(runs.values()))
    known = [step for step in steps if step is not None]
    return {
        "rate": some["rate"],
        "steps": some["steps"],
        "best": [best_of(run) for run in runs.values()],
        "steps_to_target": steps,
        "tokens_per_second": speed,
        "seconds_to_target": statistics.fmean(known) * 64 * 256 / speed if speed and known else None,
    }


def interval(logs: list[float]) -> dict[str, float]:
    """A geometric mean with its 95 % interval by Student's t, and the p of a ratio of 3 or less."""
    from scipy import stats

    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * error
    at_most = float(stats.t.sf((mean - math.log(3)) / error, len(logs) - 1)) if error else float(mean <= math.log(3))
    return {"ratio": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half), "p_3": at_most}


def part_facts(results: list[dict[str, Any]], corpus: str, part: str, whole: dict[int, Any], target: float) -> Any:
    """How much the best loss rises, and how many more steps the target takes, without it: at its better rate."""
    by_rate: dict[float, dict[int, Any]] = {}
    for each in results:
        if key_of(each)[:3] == ("parts", corpus, f"-{part}") and "curve" in each:
            by_rate.setdefault(each["rate"], {})[each["seed"]] = each
    if not by_rate:
        return None
    rate, runs = min(by_rate.items(), key=lambda item: statistics.fmean(map(best_of, item[1].values())))
    seeds = sorted(set(runs) & set(whole))
    rises = [best_of(runs[seed]) - best_of(whole[seed]) for seed in seeds]
    return {"rate": rate, "rise": rises, "steps_to_target": [first_below(runs[seed], target) for seed in seeds]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("tune", "seeds", "parts", "speed", "report"))
    parser.add_argument("--shakespeare", metavar="FILE", default="tinyshakespeare.txt")
    parser.add_argument("--corpora", nargs="+", choices=list(CORPORA), default=list(CORPORA))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=8, help="trainings at once")
    parser.add_argument("--minutes", type=float, help="stop after so many; the rest is run by the same command")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    done = results_in(options.out)
    if options.stage == "report":
        found = report(done)
        print(json.dumps(found, indent=1))
        write_json(options.json, found)
    elif options.stage == "tune":
        trials = list(tuning(options.corpora, options.tiny))
        random.Random(0).shuffle(trials)
        run_all(sorted(trials, key=lambda trial: -trial.steps), options, options.jobs)
    elif options.stage == "speed":
        alone = [
            Trial("speed", corpus, arm, chosen(done, corpus, arm)[0], 20 if options.tiny else 400, TUNING_SEED)
            for corpus, arm in product(options.corpora, ("plain", "fast"))
        ]
        run_all(alone, options, 1)
    else:
        make = with_seeds if options.stage == "seeds" else without_parts
        trials = list(make(done, options.corpora, options.seeds))
        run_all(sorted(trials, key=lambda trial: (trial.seed, -trial.steps)), options, options.jobs)


if __name__ == "__main__":
    main()
