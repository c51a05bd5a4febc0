"""Whether the doctor's advice helps: `trainbook doctor RUN --try` on ten faulty runs of the doctor's bench.

    python benchmarks/doctor_try.py --jobs 16 --out runs-of-tries --json benchmarks/results/doctor-try.json
    python benchmarks/doctor_try.py page          the table in docs/doctor-try.md, from the results

The faults are those of the bench whose cause lies in a knob, so that a change of a knob can mend them; what is tried is
what the doctor says first, right or wrong. Beside them, healthy runs with a change that does nothing (the rate times
1.0005), for a quarter of the run and for all of it: what is called help or harm there is a false claim. On a CPU, one
core a try. What is finished is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results" / "doctor-try.json"
PAGE = ROOT / "docs" / "doctor-try.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"

SEED = 5  # of the half of the bench that is held out; but tries, and two rules, were mended with these runs in view
FAULTS = (
    ("rate-x30", "gpt"),
    ("rate-30th", "bert"),
    ("warmup-none", "gpt"),
    ("clipping-tight", "bert"),
    ("clipping-off", "gpt"),
    ("dropout-high", "bert"),
    ("momentum-high", "gpt"),
    ("decay-x100", "bert"),
    ("batch-tiny", "gpt"),
    ("beta2-low", "bert"),
)
HEALTHY_SEEDS = range(5, 10)
NOTHING = 1.0005  # times the rate


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "page"), default="run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("runs-of-tries"))
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=1, help="of each try")
    options = parser.parse_args(arguments)
    if options.what == "page":
        write_page(json.loads(options.json.read_text(encoding="utf-8")))
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    with ThreadPoolExecutor(options.jobs) as pool:
        faulty = pool.map(lambda fault: of_fault(fault[0], fault[1], options.out, options.seeds), FAULTS)
        cases = [(architecture, seed) for architecture in ("gpt", "bert") for seed in HEALTHY_SEEDS]
        healthy = pool.map(lambda case: of_healthy(case[0], case[1], options.out), cases)
        answers: dict[str, Any] = {"faulty": list(faulty), "healthy": [each for pair in healthy for each in pair]}
    answers["about"] = {
        "command": f"python benchmarks/doctor_try.py --jobs {options.jobs} --seeds {options.seeds}",
        "processor": platform.processor() or platform.machine(),
        "torch": version("torch"),
        "python": platform.python_version(),
    }
    options.json.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    print(table(answers))
    return 0


def of_fault(kind: str, architecture: str, out: Path, seeds: int) -> dict[str, Any]:
    """Make the run, ask the doctor, try what it says."""
    run = _make(kind, architecture, SEED, out)
    truth = json.loads((run / "bench.json").read_text(encoding="utf-8"))
    facts = {"kind": kind, "architecture": architecture, "seed": SEED, "causes": truth["causes"]}
    command = [sys.executable, "-m", "trainbook", "doctor", str(run), "--try", "--seeds", str(seeds), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:  # such as: nothing was found that a knob could change
        print(f"{kind}-{architecture}: {done.stderr.strip()}", flush=True)
        return {**facts, "verdict": None, "error": done.stderr.strip()}
    print(f"{kind}-{architecture}: tried", flush=True)
    return {**facts, **_shortened(json.loads(done.stdout))}


def of_healthy(architecture: str, seed: int, out: Path) -> list[dict[str, Any]]:
    run = _make("rate-30th", architecture, seed, out, "--twin")
    answers = []
    for length in ("quarter", "whole"):
        command = [sys.executable, __file__, "--nothing", str(run), length]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        answer = _shortened(json.loads(done.stdout.splitlines()[-1]))
        answers.append({"architecture": architecture, "seed": seed, "length": length, **answer})
    print(f"healthy {architecture} {seed}: tried", flush=True)
    return answers


def try_nothing(run: str, length: str) -> None:
    """A change of the rate that is no change, as if the doctor had asked for it."""
    from trainbook.doctor import Finding
    from trainbook.runs.jsonl import dumps
    from trainbook.runs.record import open_record
    from trainbook.study.remedy import try_remedy

    record = open_record(run)
    assert record.config is not None
    override = f"optimizer.learning_rate={NOTHING * record.config.optimizer.learning_rate}"
    finding = Finding(f"nothing-{length}", "info", "learning-rate-low", 0.5, "nothing is wrong", override=override)
    print(
        dumps(try_remedy(record, [finding], steps=record.train[-1]["step"] if length == "whole" else None, quiet=True))
    )


def _make(kind: str, architecture: str, seed: int, out: Path, *more: str) -> Path:
    half = "twins" if more else "held-out"
    run = out.resolve() / half / "-".join([kind, architecture, str(seed), *(["twin"] if more else [])])
    if not (run / "bench.json").is_file():
        bench = [sys.executable, str(HERE / "doctor" / "bench.py"), "make", kind, architecture, str(seed)]
        done = subprocess.run(
            [*bench, "--out", str(out), "--keep-checkpoints", *more], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{kind}-{architecture}-{seed}: {done.stderr}")
    return run


def _shortened(answer: dict[str, Any]) -> dict[str, Any]:
    """Without places on this machine."""
    finding = {key: answer["finding"][key] for key in ("rule", "severity", "cause_id", "confidence", "evidence")}
    kept = ("override", "from_step", "steps", "seeds", "measure", "difference", "interval", "verdict", "reason")
    arms = {arm: {"value": answer[arm]["value"], "tokens": answer[arm]["tokens"]} for arm in ("control", "remedy")}
    return {"finding": finding, **{key: answer[key] for key in kept}, **arms}


def table(answers: dict[str, Any]) -> str:
    faulty, healthy = answers["faulty"], answers["healthy"]
    lines = ["| fault | the doctor's finding | change tried | control | remedy | difference | verdict |"]
    lines.append("|---|---|---|---|---|---|---|")
    for each in faulty:
        name = f"{each['kind']}, {each['architecture']}"
        if each["verdict"] is None:
            lines.append(f"| {name} | {each['error'].removeprefix('error: ')} | | | | | nothing tried |")
            continue
        finding, low_high = each["finding"], each["interval"]
        difference = _number(each["difference"], "+.3f")
        if isinstance(each["difference"], str):  # not finite: in words
            difference = each["reason"]
        elif low_high:
            difference += f" ({_number(low_high[0], '+.3f')} to {_number(low_high[1], '+.3f')})"
        numbers = (_number(each[arm]["value"], ".3f") for arm in ("control", "remedy"))
        found = f"{finding['rule']} ({finding['cause_id']})"
        lines.append(
            f"| {name} | {found} | `{each['override']}` | {' | '.join(numbers)} | {difference} | {each['verdict']} |"
        )
    helped = sum(each["verdict"] == "helped" for each in faulty)
    claims = sum(each["verdict"] in ("helped", "made it worse") for each in healthy)
    lines += [
        "",
        f"Helped: {helped} of {len(faulty)}. Of {len(healthy)} changes that do nothing, {claims} were called ",
    ]
    lines[-1] += "help or harm."
    return "\n".join(lines)


def _number(value: Any, how: str) -> str:
    return value if isinstance(value, str) else f"{value:{how}}"  # not finite: a word, as in a run's files


def write_page(answers: dict[str, Any]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(answers)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--nothing"]:  # this program, for one try
        try_nothing(*sys.argv[2:4])
    else:
        sys.exit(main())
