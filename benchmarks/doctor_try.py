"""Whether `trainbook doctor RUN --try` finds the cause and a remedy that helps, on faulty runs of the doctor's bench.

    python benchmarks/doctor_try.py --jobs 16 --out runs-of-tries      the kinds that nobody has developed on
    python benchmarks/doctor_try.py --half development …               the other kinds, to develop on
    python benchmarks/doctor_try.py one warmup-none gpt 5 …            one run, with all that is said
    python benchmarks/doctor_try.py page                               the tables of docs/doctor-try.md

Each fault is put into a run, and the run is tried in a process that has the fault as well: in its code, where it is
one of code. What is compared with the truth is what the doctor said first of the run, and what it says after its
experiments. Beside them, healthy runs: tried, none of them has a cause; and a change that does nothing (the rate times
1.0005), for a quarter of the run and for all of it, neither helps nor harms. On a CPU, one core a try. What is finished
is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "doctor"))
RESULTS = HERE / "results" / "doctor-try.json"
PAGE = ROOT / "docs" / "doctor-try.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
ANSWER, NOTHING_TRIED = "tried.json", "tried-nothing.json"  # in a run's folder, written last

RUN_SEEDS = {"development": (0,), "held-out": (5, 6)}
HEALTHY_SEEDS = range(5, 10)
NOTHING = 1.0005  # times the rate
MUCH_WORSE = 0.05  # of the control's loss

if TYPE_CHECKING:
    from runner import Entry


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    return options.do(options)


def run(options: argparse.Namespace) -> int:
    """All, each in a process of its own; then the sums."""
    faulty = [
        [kind, architecture, str(seed)]
        for kind, architectures in kinds_of(options.half).items()
        for architecture in architectures
        for seed in options.run_seeds or RUN_SEEDS[options.half]
        if not options.kinds or kind in options.kinds
    ]
    healthy = (
        []
        if options.kinds
        else [["rate-30th", name, str(seed), "--twin"] for name in ("gpt", "bert") for seed in HEALTHY_SEEDS]
    )
    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(lambda words: _apart(words, options), [*faulty, *healthy]))
    answers = {
        "faulty": [each for each in found[: len(faulty)] if each is not None],
        "healthy": [each for each in found[len(faulty) :] if each is not None],
        "broke": sum(each is None for each in found),
        "about": {
            "command": f"python benchmarks/doctor_try.py --jobs {options.jobs} --half {options.half}",
            "half": options.half,
            "processor": platform.processor() or platform.machine(),
            "torch": version("torch"),
            "python": platform.python_version(),
        },
    }
    options.json.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    print(tables(answers))
    return 0


def kinds_of(half: str) -> dict[str, tuple[str, ...]]:
    """Their architectures, by name. Of the held-out half only the kinds that are in no other."""
    from entries import FAULT_GROUPS
    from faults import KINDS
    from split import halves_of

    is_developed_on = {name: len(halves_of(name, FAULT_GROUPS)) > 1 for name in KINDS}
    wanted = half == "development"
    return {name: kind.architectures for name, kind in KINDS.items() if is_developed_on[name] == wanted}


def _apart(words: Sequence[str], options: argparse.Namespace) -> dict[str, Any] | None:
    from runner import Entry

    entry = _entry(words[0], words[1], int(words[2]), "--twin" in words)
    assert isinstance(entry, Entry)
    file = entry.folder(options.out) / ANSWER
    if not file.is_file():
        command = [sys.executable, __file__, "one", *words, "--out", str(options.out), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not file.is_file():
            print(f"{entry.name}: BROKE: {done.stderr.strip()[-600:]}", flush=True)
            return None
    found = json.loads(file.read_text(encoding="utf-8"))
    print(f"{entry.name}: {_in_a_line(found)}", flush=True)
    return found


def one(options: argparse.Namespace) -> int:
    """Make the run, and try it, in this process."""
    import torch
    from runner import run_entry

    torch.set_num_threads(1)
    entry = _entry(options.kind, options.architecture, options.seed, options.twin)
    out = options.out.resolve()
    if not entry.is_finished(out):
        run_entry(entry, out, keep_checkpoints=True)
    say: Callable[[str], None] = (lambda line: None) if options.quiet else print
    found = tried(entry, out, say)
    if entry.is_twin:
        found["nothing"] = [nothing_tried(entry, out, length) for length in ("quarter", "whole")]
    _write(entry.folder(out) / ANSWER, found)
    say(json.dumps(found, indent=1))
    return 0


def _entry(kind: str, architecture: str, seed: int, is_twin: bool) -> Entry:
    from entries import half_of
    from faults import KINDS
    from runner import Entry

    causes = () if is_twin else KINDS[kind].causes
    return Entry(kind, architecture, seed, half_of(seed), causes, is_twin)


# One run, tried with its fault


def tried(entry: Entry, out: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    from trainbook.doctor import diagnose
    from trainbook.runs.record import open_record
    from trainbook.study.differential import try_out

    folder = entry.folder(out)
    record = open_record(str(folder), folder.parent)
    diagnosis = diagnose(record)
    warned = [each.cause for each in diagnosis.findings if each.severity != "info"]
    started = time.perf_counter()
    with each_with_the_fault(entry, out):
        answer = try_out(record, diagnosis, quiet=True, say=say)
    return {
        "kind": entry.kind,
        "architecture": entry.architecture,
        "seed": entry.seed,
        "causes": list(entry.causes),
        "said": warned[:3],
        "seconds": round(time.perf_counter() - started, 1),
        **_shortened(answer),
    }


@contextmanager
def each_with_the_fault(entry: Entry, out: Path) -> Iterator[None]:
    """Each look and each training has the fault anew, as in a process of its own: some count steps."""
    from trainbook.study import differential
    from trainbook.study.remedy import RemedyRun

    def faulty(do: Callable[..., Any]) -> Callable[..., Any]:
        def with_fault(*parts: Any, **options: Any) -> Any:
            with fault_of(entry, out):
                return do(*parts, **options)

        return with_fault

    look, train = differential.look, RemedyRun.train
    differential.look, RemedyRun.train = faulty(look), faulty(train)
    try:
        yield
    finally:
        differential.look, RemedyRun.train = look, train


@contextmanager
def fault_of(entry: Entry, out: Path) -> Iterator[None]:
    """The mistakes in code; of a run that was resumed, those of its second part."""
    from entries import case_of
    from runner import DATA

    case = case_of(entry, out / DATA)
    with ExitStack() as held:
        for patch in case.patches if case.stop_at is None else case.patches_of_resumed:
            held.enter_context(patch)
        yield


def _shortened(answer: dict[str, Any]) -> dict[str, Any]:
    """Without places on this machine."""
    kept = ("conclusion", "cause_ids", "sentence", "before", "after", "cost_steps", "run_steps")
    experiments = [
        {key: each[key] for key in ("experiment", "outcome", "seen", "steps", "after")}
        for each in answer["experiments"]
    ]
    remedies = [
        {"cause": each["cause_id"], **_remedy(each["answer"]), "cost_steps": each["cost_steps"]}
        for each in answer["remedies"]
        if each["error"] is None
    ]
    untried = [{"cause": each["cause_id"], "why": each["error"]} for each in answer["remedies"] if each["error"]]
    told = {key: answer[key] for key in kept}
    return {**told, "experiments": experiments, "remedies": remedies, "untried": untried}


def _remedy(answer: dict[str, Any]) -> dict[str, Any]:
    kept = ("override", "from_step", "steps", "measure", "difference", "interval", "verdict", "reason")
    values = {arm: answer[arm]["value"] for arm in ("control", "remedy")}
    return {**{key: answer[key] for key in kept}, **values}


def nothing_tried(entry: Entry, out: Path, length: str) -> dict[str, Any]:
    """A change of the rate that is no change, as if the doctor had asked for it."""
    from trainbook.doctor import Finding
    from trainbook.runs.record import open_record
    from trainbook.study.remedy import try_remedy

    record = open_record(str(entry.folder(out)))
    assert record.config is not None
    override = f"optimizer.learning_rate={NOTHING * record.config.optimizer.learning_rate}"
    finding = Finding(f"nothing-{length}", "info", "learning-rate-low", 0.5, "nothing is wrong", override=override)
    steps = record.train[-1]["step"] if length == "whole" else None
    return {"length": length, **_remedy(try_remedy(record, [finding], steps=steps, quiet=True))}


def _write(file: Path, found: dict[str, Any]) -> None:
    from trainbook.runs.jsonl import dumps  # NaN and infinity as words

    file.write_text(dumps(found) + "\n", encoding="utf-8")


# Sums


def is_right_before(each: dict[str, Any]) -> bool:
    return each["said"][:1] != [] and each["said"][0] in each["causes"]


def is_right(each: dict[str, Any]) -> bool:
    return each["conclusion"] in ("cause", "possible") and each["cause_ids"][0] in each["causes"]


def is_right_and_likely(each: dict[str, Any]) -> bool:
    return each["conclusion"] == "cause" and is_right(each)


def is_among_two(each: dict[str, Any]) -> bool:
    return any(cause in each["causes"] for cause in each["cause_ids"])


def helped(each: dict[str, Any]) -> bool:
    return any(remedy["verdict"] == "helped" for remedy in each["remedies"])


def worse_unsaid(each: dict[str, Any]) -> bool:
    """A remedy that was left standing is more than 5 % worse than its control, and the verdict does not say so."""
    for remedy in each["remedies"]:
        numbers = remedy["control"], remedy["difference"]
        is_known = all(isinstance(number, float | int) and math.isfinite(number) for number in numbers)
        is_loss = remedy["measure"].endswith("loss")
        if is_known and is_loss and numbers[1] > MUCH_WORSE * abs(numbers[0]) and remedy["verdict"] != "made it worse":
            return True
    return False


def tables(answers: dict[str, Any]) -> str:
    return "\n".join([*_sums(answers), "", *_each(answers)])


def _sums(answers: dict[str, Any]) -> list[str]:
    faulty, healthy = answers["faulty"], answers["healthy"]
    treated = [each for each in faulty if each["remedies"]]
    costs = sorted(each["cost_steps"] / each["run_steps"] for each in faulty)
    nothing = [each for run in healthy for each in run["nothing"]]
    claims = sum(each["verdict"] in ("helped", "made it worse") for each in nothing)
    blamed = sum(each["conclusion"] in ("cause", "either") for each in healthy)
    said_worse = sum(any(remedy["verdict"] == "made it worse" for remedy in each["remedies"]) for each in faulty)
    lines = ["| | share of runs (95 % interval over kinds) | runs |", "|---|---|---|"]
    lines += [
        _row("right cause, as the doctor says it first", faulty, is_right_before),
        _row("**right cause after experiments**", faulty, is_right),
        _row("right cause, and said to be likelier than not", faulty, is_right_and_likely),
        _row("right cause, or one of two that are named", faulty, is_among_two),
        _row("unknown, or no fault found", faulty, lambda each: each["conclusion"] in ("unknown", "nothing")),
        _row("another cause is named", faulty, lambda each: bool(each["cause_ids"]) and not is_among_two(each)),
        _row("**a remedy helps, of runs where one was tried**", treated, helped),
        _row("a remedy helps, of all runs", faulty, helped),
        _row("a remedy is more than 5 % worse, and that is not said", treated, worse_unsaid),
    ]
    lines += ["", f"In {said_worse} of {len(faulty)} runs a remedy made it worse, and the answer says so."]
    if costs:
        lines[-1] += (
            f" A try costs {statistics.median(costs):.2f} times the steps of the run in the median, "
            f"{statistics.fmean(costs):.2f} times on average, {costs[-1]:.1f} times at most."
        )
    if healthy:
        lines[-1] += (
            f" Of {len(healthy)} healthy runs, {blamed} {'was' if blamed == 1 else 'were'} blamed on a cause. Of "
            f"{len(nothing)} changes that do nothing, {claims} {'was' if claims == 1 else 'were'} called help or harm."
        )
    return lines


def _row(name: str, runs: Sequence[dict[str, Any]], ask: Callable[[dict[str, Any]], bool]) -> str:
    from intervals import clustered

    by_kind: dict[str, list[bool]] = defaultdict(list)
    for each in runs:
        by_kind[each["kind"]].append(ask(each))
    share = clustered(by_kind)
    if not share.of:
        return f"| {name} | | 0 |"
    return f"| {name} | {share.value:.1%} ({share.low:.0%} to {share.high:.0%}) | {share.hits} of {share.of} |"


def _each(answers: dict[str, Any]) -> list[str]:
    lines = ["| fault | the doctor first | after experiments | experiments | remedy tried | verdict | cost |"]
    lines.append("|---|---|---|---|---|---|---|")
    for each in answers["faulty"]:
        name = f"{each['kind']}, {each['architecture']}, {each['seed']}"
        first = each["said"][0] if each["said"] else "nothing"
        named = " or ".join(each["cause_ids"]) or each["conclusion"]
        mark = "" if is_right(each) else " ✗"
        done = [f"{one['experiment']}: {one['outcome']}" for one in each["experiments"] if one["outcome"]]
        telling = ", ".join(done[-2:]) + (f" (+{len(done) - 2})" if len(done) > 2 else "")
        remedies = ", ".join(f"`{one['override']}`" for one in each["remedies"])
        verdicts = ", ".join(_verdict(one) for one in each["remedies"])
        cost = f"{each['cost_steps'] / each['run_steps']:.2f}"
        lines.append(f"| {name} | {first} | {named}{mark} | {telling} | {remedies} | {verdicts} | {cost} |")
    return lines


def _verdict(remedy: dict[str, Any]) -> str:
    control, difference = remedy["control"], remedy["difference"]
    if isinstance(control, float | int) and isinstance(difference, float | int) and control:
        return f"{remedy['verdict']} ({difference / abs(control):+.0%})"
    return remedy["verdict"]


def _in_a_line(found: dict[str, Any]) -> str:
    remedies = ", ".join(f"{each['override']} {each['verdict']}" for each in found["remedies"])
    named = " or ".join(found["cause_ids"]) or found["conclusion"]
    truth = "/".join(found["causes"]) or "healthy"
    first = "".join(found["said"][:1]) or "nothing"
    return f"{truth}: {first} -> {named}; {remedies or 'nothing tried'}; {found['seconds']} s"


def write_page(options: argparse.Namespace) -> int:
    answers = json.loads(options.json.read_text(encoding="utf-8"))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{tables(answers)}\n{END}{after}", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _options_of_run(parser)
    verbs = parser.add_subparsers()
    _options_of_run(verbs.add_parser("run"))
    single = verbs.add_parser("one")
    single.set_defaults(do=one)
    single.add_argument("kind")
    single.add_argument("architecture")
    single.add_argument("seed", type=int)
    single.add_argument("--twin", action="store_true", help="the same run without its fault")
    single.add_argument("--quiet", action="store_true")
    single.add_argument("--out", type=Path, default=Path("runs-of-tries"))
    page = verbs.add_parser("page")
    page.set_defaults(do=write_page)
    page.add_argument("--json", type=Path, default=RESULTS)
    return parser


def _options_of_run(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(do=run)
    parser.add_argument("--half", choices=tuple(RUN_SEEDS), default="held-out")
    parser.add_argument("--kinds", nargs="+", help="of faults; all of the half by default, and healthy runs")
    parser.add_argument("--run-seeds", nargs="+", type=int, help="of the runs that are made")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("runs-of-tries"))
    parser.add_argument("--json", type=Path, default=RESULTS)


if __name__ == "__main__":
    sys.exit(main())
