"""docs/public-cases.md, from a results file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from public_cases.cases import CASES
from public_cases.published import FIGURES, SOURCES, TRAINCHECK
from public_cases.runs import named

TOP = """# The doctor on published bugs

Others have published bugs of training, and tools that find them. This bench re-makes those bugs small, on one CPU core,
as far as they apply to one process: the silent errors of TrainCheck, the training problems of AutoTrainer, the fault
categories of DEFault++ for transformers, and bugs that several public frameworks had. Each is trained from two seeds,
beside a healthy twin that lacks the bug alone. The programs are plain PyTorch loops with
[`trainbook.watch`](watch.md), or the Hugging Face Trainer with its callback. Whoever wrote them had not read the
doctor's rules, and the doctor was asked once, when they were final.
"""
COMPARABLE = """## What can be compared, and what cannot

- **Noticing.** A run is noticed here if the doctor warns of anything. TrainCheck and AutoTrainer detect in the same
  sense, but on the original programs and at their full size. Re-made bugs are smaller, and often more blatant.
- **When.** TrainCheck reports within one iteration, while a program runs. The doctor reads the record of a run that has
  ended, or is at least some hundred steps old. For single updates that are bad, the [guard](guard-anywhere.md) is our
  tool, and for a wrong mask or a missing gradient [`trainbook check`](check.md): both are in the tables below.
- **Several ranks.** TrainCheck compares the state of ranks with each other. A record of ours has one rank, so seven of
  its eighteen errors are not re-made here, four of them for that reason.
- **The right cause.** AutoTrainer names the symptom of a problem that it was built for, and repairs by trying; here the
  cause must be named among the eighty that the doctor knows, and the same causes are known for data, labels,
  evaluation and schedules. TrainCheck reports broken invariants, from which a person finds the cause.
- **Learned from.** DEFault++ is tested on mutations of the kinds that it was trained on, thousands of them, and DEFault
  on 52 real programs after training on mutated ones. The doctor has seen none of these runs, but many of their kinds
  are in [the bench of strangers](strangers.md), from which it has learned.
- **What is looked at.** DEFault++ reads 1,390 features from inside a transformer: entropies of attention, similarities
  of heads, statistics of norms. A record of `trainbook.watch` has losses, norms of gradients and updates by layer, and
  facts of the first batches. Much of what breaks inside attention leaves no trace in these; `trainbook check` sees some
  of it. DEFault++ fine-tunes pretrained models, and counts mutations only if they change the result; here models start
  from new weights and learn around some of the faults, which then do no harm: the second row leaves these out.
- **False alarms.** A twin is a healthy run. TrainCheck counts invariants that fail on healthy programs, not programs
  with an alarm, so its rates are not comparable with those of our twins.
- **Chance.** {cases} cases are few: the intervals say how few. They are 95 % bootstrap intervals over cases.
"""


def write(results: Path, page: Path) -> None:
    page.write_text("\n".join(lines(json.loads(results.read_text(encoding="utf-8")))) + "\n", encoding="utf-8")


def lines(found: dict[str, Any]) -> Iterator[str]:
    yield TOP
    yield f"Measured with `python benchmarks/public_cases/bench.py` (`run`, `check`, `score`; {found['measured']}).\n"
    yield from ours(found)
    yield "\n## Beside the published figures\n"
    yield from table(("tool", "how it works", "measured on", "finds", "false alarms", "source"), published(found))
    yield "\n" + nearest(found)
    yield "\n" + COMPARABLE.format(cases=found["summary"]["all"]["cases"])
    yield "## What is missed\n"
    yield "Cases whose cause does not come first, from either seed, and what is said first instead:\n"
    yield from table(("case", "what is wrong", "should be said", "is said"), missed(found["runs"]))
    yield "\n## Before and during the run\n"
    yield from before_and_during(found)
    yield "\n## TrainCheck's errors\n"
    yield "The eighteen that it detected, as its artifact lists them, and the case that re-makes each:\n"
    yield from table(
        ("error", "what is wrong", "here"), [(error, what, shown(here)) for error, what, here in TRAINCHECK]
    )
    yield "\nOne more case, `optimizer-of-a-copy`, is accelerate-2665, which TrainCheck's pages tell as a success.\n"
    yield "## All cases\n"
    yield "Causes in brackets are what a doctor should say and ours has no word for. Hits are of two seeds.\n"
    yield from table(("case", "from", "what is wrong", "accepted", "noticed", "first", "in three"), all_cases(found))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]] | Iterator[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def ours(found: dict[str, Any]) -> Iterator[str]:
    words = {
        "all": "**all cases**",
        "with effect": "those with an effect: the model is worse than its twin's, or its numbers mislead",
        "with effect, nameable": "of these, with a cause that the doctor has a word for",
        **SOURCES,
    }
    heads = ("bugs", "cases", "runs", "noticed", "right cause first", "among the first three")
    rows = [
        (words[name], str(its["cases"]), str(its["runs"]), *(share(its[key]) for key in ("noticed", "first", "three")))
        for name, its in found["summary"].items()
    ]
    yield from table(heads, rows)
    its = found["summary"]["all"]
    yield ""
    yield (
        f"Of the {its['runs']} healthy twins, {its['twin error']['hits']} got an error and "
        f"{its['twin warning']['hits']} a warning."
    )


def share(its: dict[str, float]) -> str:
    return f"{its['value']:.0%} ({its['low']:.0%} to {its['high']:.0%})"


def published(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    its = found["summary"]["all"]
    yield (
        "**Trainbook's doctor**",
        "rules, and likeness to known runs, over the record of a run",
        f"{its['cases']} re-made public bugs, two seeds each",
        f"{its['noticed']['value']:.0%} noticed, {its['first']['value']:.0%} with the right cause first",
        f"errors: {its['twin error']['hits']}, warnings: {its['twin warning']['hits']}, on {its['runs']} healthy twins",
        "this page",
    )
    for each in FIGURES:
        yield each.tool, each.what, each.on, each.found, each.false_alarms, each.source


def nearest(found: dict[str, Any]) -> str:
    """The comparisons that come nearest to like with like."""
    again = [here for _, _, here in TRAINCHECK if here in CASES]
    noticed = {row["case"] for row in found["runs"] if row["noticed"]}
    of_autotrainer = found["summary"]["autotrainer"]
    return (
        f"Nearest to like with like: of TrainCheck's eighteen detected errors, {len(again)} are re-made here; "
        f"TrainCheck detects these {len(again)}, and the doctor notices {sum(here in noticed for here in again)} of "
        "them from at least one of two seeds. Of AutoTrainer's training problems, AutoTrainer detects all in its own "
        f"models, and the doctor notices {of_autotrainer['noticed']['hits']} of {of_autotrainer['runs']} runs here."
    )


def missed(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for case in CASES.values():
        its = [row for row in rows if row["case"] == case.name]
        if all(row["first"] for row in its):
            continue
        said = []
        for row in its:
            causes = [each["cause"] for each in row["said"][:3]]
            effect = "" if row["harms"] or row["misleads"] else ", and does no harm"
            said.append(
                (", ".join(f"**{cause}**" if cause in case.causes else cause for cause in causes) or "nothing") + effect
            )
        yield f"`{case.name}`", case.what, named(case.causes), "; ".join(dict.fromkeys(said))


def before_and_during(found: dict[str, Any]) -> Iterator[str]:
    guarded = [row for row in found["runs"] if "guard_acted" in row]
    yield "Where a single update can be bad, the same program also ran under the guard:\n"
    rows = []
    for name in dict.fromkeys(row["case"] for row in guarded):
        its = [row for row in guarded if row["case"] == name]
        rows.append(
            (
                f"`{name}`",
                f"{sum(row['guard_acted'] for row in its)} of {len(its)}",
                f"{sum(row['guard_saved'] for row in its)} of {len(its)}",
            )
        )
    yield from table(("case", "the guard acts", "the model ends as good as the twin's"), rows)
    if found["checks"]:
        yield "\nEach broken transformer as the user's own model in a configuration, given to `trainbook check`:\n"
        yield from table(
            ("model", "checks that fail"),
            [(f"`{name}`", ", ".join(failed) or "none") for name, failed in found["checks"].items()],
        )


def shown(here: str) -> str:
    return f"`{here}`" if here in CASES else here


def all_cases(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for case in CASES.values():
        its = [row for row in found["runs"] if row["case"] == case.name]
        hits = (f"{sum(row[key] for row in its)} of {len(its)}" for key in ("noticed", "first", "three"))
        yield f"`{case.name}`", case.bug, case.what, named(case.causes), *hits
