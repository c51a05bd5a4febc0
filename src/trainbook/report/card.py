"""The card: a summary of a run on one screen, read from its folder alone."""

from __future__ import annotations

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainbook.doctor import CAUSES
from trainbook.doctor.causes import certainty_of, remedy_of
from trainbook.finding import Finding
from trainbook.knobs.derive import task_name
from trainbook.knobs.formats import can_be_exported
from trainbook.knobs.own_module import FIT, WATCH
from trainbook.knobs.recipes import as_config
from trainbook.report.facts import RunFacts
from trainbook.runs import RunFolder, write_text_atomically
from trainbook.runs.columns import are_numbers
from trainbook.runs.schema import Metric, fixed, judgements
from trainbook.runs.table import TableRows

LEVELS = "▁▂▃▄▅▆▇█"
WIDTH = 48
WORTH_TELLING = 0.25  # of the time of all steps: evaluations that take more are told
LONG_SECONDS = 10.0  # shorter evaluations need no advice


@dataclass
class Card:
    title: str
    lines: list[tuple[str, str]] = field(default_factory=list)  # label, text
    next_commands: list[tuple[str, str]] = field(default_factory=list)  # command, what it does

    def as_text(self) -> str:
        out = [self.title, ""]
        out += [f"  {label:<10} {text}" for label, text in self.lines]
        if self.next_commands:
            width = max(len(command) for command, _ in self.next_commands)
            out += ["", "  next"]
            out += [f"    {command:<{width}}   {what}" for command, what in self.next_commands]
        return "\n".join(out)

    def as_markdown(self) -> str:
        out = [f"# {self.title}", "", "| | |", "|---|---|"]
        out += [f"| {label} | {in_a_cell(text)} |" for label, text in self.lines]
        if self.next_commands:
            out += ["", "## Next", ""]
            out += [f"- `{command}`: {what}" for command, what in self.next_commands]
        return "\n".join(out) + "\n"


def in_a_cell(text: str) -> str:
    return " ".join(text.splitlines()).replace("|", "\\|")


def make_card(run: RunFolder) -> Card:
    return card_of(RunFacts(run))


def card_of(facts: RunFacts) -> Card:
    run, manifest, train, evaluations = facts.run, facts.manifest, facts.train, facts.evaluations
    card = Card(f"{run.name}  {status_text(facts)}")
    if train:
        seen = "" if facts.tokens is None else f"{facts.tokens:,} {facts.unit}, "
        card.lines.append(("steps", f"{_steps_made(facts)}, {seen}{time_text(facts)}"))
        card.lines.append(("speed", speed_text(facts)))
        card.lines.append(("train", f"{curve(train)}  {_loss(train[0])} → {_loss(train[-1])}"))
    if evaluations:
        text = f"{curve(evaluations)}  {_loss(evaluations[0])} → {_loss(evaluations[-1])}"
        card.lines.append(("validation", text))
        card.lines.append(("best", best_text(facts.best)))
    if isinstance(layers := facts.record.facts.get("fp8_layers"), int):
        card.lines.append(("products", f"fp8 in {layers:,} linear layers, in training only"))
    card.lines += _verdict(facts)
    card.lines += _slowest(train)
    card.lines += _long_evaluations(facts)
    card.lines += [("missing", facts.lost_metrics)] if facts.lost_metrics else []
    card.lines.append(("guard", healing_text(facts)))
    card.lines += [("taken back", text)] if (text := rolled_back_text(facts)) else []
    if manifest.injected_faults:
        card.lines.append(("faults", f"injected on purpose: {', '.join(manifest.injected_faults)}"))
    card.lines += _left_out(facts)
    if facts.resumes:
        often = "1 time," if facts.resumes == 1 else f"{facts.resumes} times, each"
        card.lines.append(("resumed", f"{often} from the newest complete checkpoint"))
    card.lines += [(event["kind"].replace("_", " "), str(event.get("reason", ""))) for event in facts.ends]
    card.lines.append(("folder", str(run.path)))
    card.next_commands = next_commands(facts)
    return card


def next_commands(facts: RunFacts) -> list[tuple[str, str]]:
    return [*_remedy(facts), *_uses(facts)]


def _steps_made(facts: RunFacts) -> str:
    """A step whose update was rejected is made up for by one more."""
    applied = facts.train[-1].get("applied_updates")
    is_less = isinstance(applied, (int, float)) and applied < facts.last_step
    return f"{facts.last_step:,} steps" + (f" with {applied:,.0f} updates" if is_less else "")


def _loss(row: Mapping[str, Any]) -> str:
    value = row.get("loss")
    return fixed(value, 4) if isinstance(value, (int, float)) else "none"


def write_report(run: RunFolder) -> Card | None:
    """Write the card of a run as its report.md."""
    if not run.manifest.is_file():
        return None
    card = make_card(run)
    write_text_atomically(run.report, card.as_markdown())
    return card


def speed_text(facts: RunFacts) -> str:
    rate = (facts.tokens or 0) / max(facts.seconds, 1e-9)
    return f"{f'{rate:,.0f}' if rate >= 100 else f'{rate:.3g}'} {facts.unit} per second of training"


def time_text(facts: RunFacts) -> str:
    """Of the steps, and of the evaluations where those take a good part of the time."""
    training, evaluating = duration(facts.seconds), duration(facts.evaluation_seconds)
    is_long = facts.evaluation_seconds > max(1.0, WORTH_TELLING * facts.seconds)
    return f"{training} of training, {evaluating} of evaluation" if is_long else training


def _long_evaluations(facts: RunFacts) -> list[tuple[str, str]]:
    """How to spend less on evaluations, where they take longer than all steps."""
    training, evaluating = facts.seconds, facts.evaluation_seconds
    if evaluating <= max(LONG_SECONDS, training):
        return []
    samples = "" if facts.manifest.recipe == FIT else ", or on fewer samples with evaluation.eval_max_samples"
    share = evaluating / (training + evaluating)
    less = f"evaluate less often with evaluation.eval_steps{samples}"
    return [("evaluation", f"{share:.0%} of the time was spent in evaluations: {less}")]


def _verdict(facts: RunFacts) -> list[tuple[str, str]]:
    """The doctor's errors and warnings: the first in full, the others by their number."""
    diagnosis, spoken = facts.diagnosis, facts.spoken
    if diagnosis is None or (facts.lost_metrics and not spoken):
        return []
    if not spoken:
        short = next((each for each in diagnosis.findings if each.rule == "still-improving"), None)
        count = len(diagnosis.findings) - (short is not None)
        shown = "1 info (trainbook doctor shows it)" if count == 1 else f"{count} infos (trainbook doctor shows them)"
        found = f"no errors or warnings, {shown}" if count else "no problems found"
        checked = f"{found} ({diagnosis.num_checked} rules checked)"
        return [("doctor", checked + (f"; {short.evidence}: train longer if it matters" if short else ""))]
    first = spoken[0]
    others = len(spoken) - 1
    more = f" There {'is' if others == 1 else 'are'} {others} more." if others else ""
    sentence = (
        f"{CAUSES[first.cause].sentence} {first.evidence[:1].upper()}{first.evidence[1:].removesuffix('.')}.{more}"
    )
    return [("doctor", f"{first.severity}, {certainty_of(first)}: {sentence}")]


def _remedy(facts: RunFacts) -> list[tuple[str, str]]:
    """The first of the next commands: the run again, with the change that the first finding suggests."""
    if not facts.spoken or not facts.run.config.exists():
        return []
    first = facts.spoken[0]
    commands = [(f"trainbook doctor {shlex.quote(str(facts.run.path))}", "show all findings with their evidence")]
    if (again := command_of(first, facts)) is not None:
        remedy = remedy_of(first).rstrip(".")
        commands.insert(0, (again, remedy[:1].lower() + remedy[1:]))
    return commands


def command_of(finding: Finding, facts: RunFacts) -> str | None:
    """The run again, with the change that a finding suggests; None if it suggests none, or nothing can be run."""
    if finding.override is None or not facts.run.config.exists():
        return None
    if facts.manifest.recipe == FIT:  # only the program that made the module can train it again
        return f"trainbook.fit(…, {finding.override})"
    return f"trainbook train {shlex.quote(str(facts.run.config))} {shlex.quote(finding.override)}"


SLOW = 1.5  # times the median of all: a rank that the others wait for


def best_text(row: dict[str, Any] | None) -> str:
    if row is None:
        return "none: no evaluation has a finite loss, so no best model was kept"
    told = (f"{metric.name.replace('_', ' ')} {shown(metric, value)}" for metric, value in judgements(row))
    return f"{', '.join(told)} at step {row['step']:,}"


def _slowest(rows: TableRows) -> list[tuple[str, str]]:
    """The rank that all others wait for, if there is one."""
    known = rows.with_true("rank_seconds")
    if not known:
        return []
    seconds = known[-1]["rank_seconds"]
    rank, most = max(seconds.items(), key=lambda item: item[1])
    usual = statistics.median(seconds.values())
    if most <= SLOW * usual:
        return []
    computing = f"{1000 * most:.0f} ms of compute per step, against a median of {1000 * usual:.0f} ms"
    return [("slowest", f"rank {rank}: {computing}; the others wait for it")]


def healing_text(facts: RunFacts) -> str:
    """What the guard did, and its last action in full."""
    acts, skipped = facts.actions, facts.skipped
    counts = Counter(event["kind"] for event in acts)
    said = [
        f"{skipped:,} update{'s were' if skipped != 1 else ' was'} rejected" if skipped else "no update was rejected"
    ]
    if counts["corruption"]:
        said.append(f"{counts['corruption']:,} computed again because a device had miscalculated")
    if counts["rollback"]:
        said.append(f"rolled back {counts['rollback']} time{'s' if counts['rollback'] > 1 else ''}")
    if counts["products"]:
        said.append("gave up fp8 products")
    if counts["remedy"]:
        factor = next(event.get("factor") for event in reversed(acts) if event["kind"] == "remedy")
        amount = f"{factor:.3g} times" if isinstance(factor, (int, float)) else "a part of"
        said.append(f"lowered the learning rate to {amount} the schedule's")
    if counts["oom"]:
        said.append("used smaller micro-batches after running out of memory")
    last = f" (step {acts[-1]['step']:,}: {acts[-1].get('reason', '')})" if acts else ""
    return ", ".join(said) + last


def rolled_back_text(facts: RunFacts) -> str:
    """What no number and no curve of the report counts; empty if there is nothing."""
    steps, evaluations = facts.rolled_back_steps, facts.rolled_back_evaluations
    if not steps:
        return ""
    more = f" and {evaluations:,} evaluation{'s' * (evaluations != 1)}" if evaluations else ""
    return f"{steps:,} step{'s' * (steps != 1)}{more}, which the curves and numbers leave out"


def _left_out(facts: RunFacts) -> list[tuple[str, str]]:
    """Samples that were not trained on: excluded by filters, by an earlier quarantine, and by this run's own."""
    lines = [("left out", "; ".join(facts.left_out))] if facts.left_out else []
    if kept_out := len(facts.quarantined):
        samples = "1 sample was" if kept_out == 1 else f"{kept_out:,} samples were"
        lines.append(("quarantine", f"{samples} excluded from training, see {facts.run.quarantine_file.name}"))
    return lines


CONTINUING = ("causal", "chat")
WRITING = (*CONTINUING, "seq2seq")


def _uses(facts: RunFacts) -> list[tuple[str, str]]:
    run, manifest, commands = facts.run, facts.manifest, []
    # A module that was given to `fit`, or a loop that was watched, can be built again by its own program only.
    status, is_ours = facts.status, manifest.recipe not in (FIT, WATCH)
    has_weights = run.has_checkpoints
    path, file = shlex.quote(str(run.path)), shlex.quote(str(run.config))
    config = as_config(manifest.config, run.manifest)
    if (again := resume_command(facts)) is not None:
        commands.append((again, "resume the run where it stopped"))
    if is_ours and has_weights:
        if task_name(config) in WRITING:
            commands.append((f"trainbook generate {path}", "generate text from a prompt"))
        if task_name(config) not in CONTINUING:
            commands.append((f"trainbook predict {path} FILE", "predict each record of a file"))
        if status == "finished" and can_be_exported(config):
            commands.append((f"trainbook export {path} --to DIR", "export a folder that transformers can load"))
    place = [] if str(run.path.parent) == "runs" else [str(run.path.parent)]
    commands.append((shlex.join(["trainbook", "board", *place]), "watch the curves of all runs in a browser"))
    if is_ours and run.config.exists():
        commands.append((f"trainbook explain {file}", "show what was set, where it came from and what is unusual"))
    commands.append(("trainbook explain learning_rate", "show what a knob does and when to change it"))
    return commands


def resume_command(facts: RunFacts) -> str | None:
    """None of a run that has reached its end or is running, and of a loop that was watched."""
    if facts.status in ("finished", "diverged", "running") or facts.manifest.recipe == WATCH:
        return None
    if facts.manifest.recipe == FIT:
        return f"fit(…, name={facts.run.name!r})"
    return f"trainbook resume {shlex.quote(str(facts.run.path))}"


def status_text(facts: RunFacts) -> str:
    if facts.status == "diverged":
        return f"diverged: {facts.lost_text}"
    status, detail = facts.manifest.status, facts.manifest.status_detail
    return f"{status}: {detail}" if detail and detail != status else status


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {rest:02}s" if minutes else f"{rest}s"


def shown(metric: Metric, value: float) -> str:
    if metric.name == "perplexity":
        return f"{value:,.2f}"
    is_share = metric.unit == "share" or metric.name.endswith("error_rate")
    return f"{value:.1%}" if is_share and math.isfinite(value) else fixed(value, 4)


def curve(rows: TableRows) -> str:
    """The loss over steps as a line of blocks; each block shows the highest of its stretch, so a spike stays seen."""
    width = min(WIDTH, len(rows))
    first = rows[0]["step"]
    last = rows.last_step
    tops = np.full(width, -np.inf)  # NaN counts as infinite
    low, high = np.inf, -np.inf
    for steps, losses in rows.blocks("step", "loss"):
        places = np.clip((steps - first) * width // (last - first + 1), 0, width - 1).astype(int)
        known = are_numbers(losses)
        np.maximum.at(tops, places[known], np.where(np.isnan(losses), np.inf, losses)[known])
        finite = losses[known & np.isfinite(losses)]
        if len(finite):
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    blocks, previous = "", LEVELS[0]
    for top in tops.tolist():
        if top == math.inf:
            previous = "!"
        elif top != -math.inf:  # which is also what a stretch without rows has
            previous = LEVELS[0 if high == low else round((top - low) / (high - low) * (len(LEVELS) - 1))]
        blocks += previous
    return blocks
