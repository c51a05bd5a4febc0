"""A remedy tried: a short run with the doctor's change beside one without it, from the same point, and what came of it.

    RUN-try-RULE/
      try.json     the question, how each arm ended, and the answer once there is one
      control/     a run like any other; of a further seed, control-seed7/
      remedy/      the same with the change

The run itself is only read. The same question again goes on where it was stopped, and repeats no arm that has ended.
"""

from __future__ import annotations

import shlex
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from trainbook.doctor import Diagnosis, Finding, as_json
from trainbook.errors import Interrupted, TooLarge, UserError
from trainbook.knobs import Loaded, difference
from trainbook.knobs.dumping import dump_changes, yaml_value
from trainbook.knobs.text import read_file
from trainbook.loop.build import build
from trainbook.loop.data_paths import with_paths_found
from trainbook.loop.device import device_kind
from trainbook.loop.faults.faults import Faults
from trainbook.loop.faults.kinds import Fault, parse
from trainbook.loop.job import Job
from trainbook.loop.saved_files import fork, recover
from trainbook.loop.session import Launch, run_session
from trainbook.parallel import find_rank_env, joined
from trainbook.runs import RunFolder
from trainbook.runs.run_record import RunRecord
from trainbook.runs.trust import require_trust
from trainbook.study.child_run import run_child
from trainbook.study.remedy_plan import (
    RemedyPlan,
    ask,
    blamed_rate_at,
    changes,
    choose,
    total_steps,
    with_overrides,
)
from trainbook.study.try_folder import TryFolder, open_try
from trainbook.study.verdict import TAIL, Pair, RemedyComparison, are_the_same, compare, strayed
from trainbook.study.workers import side_by_side

AGAIN = "-again"
LEARNED = 0.99  # of the first loss
NO_EFFECT = "the change had no effect: the two runs are the same to the last digit"


def try_remedy(
    record: RunRecord,
    findings: Sequence[Finding],
    *,
    rule: str | None = None,
    steps: int | None = None,
    seeds: int = 1,
    workers: int = 1,
    budget: int | None = None,
    spent: int = 0,
    control: Mapping[str, Any] | None = None,
    quiet: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Try the change of the first finding that has one, or of the rule that is named. The answer is for programs.
    `workers`: runs side by side, if it is not their speed that is compared. `budget`: the steps of all arms, and of
    what has been `spent` before; None: as many as it takes. `control`: how the same control has ended elsewhere; it is
    taken over from there instead of being trained again."""
    finding = choose(record, findings, rule)
    parent = run_of(record)
    question = ask(record, parent, finding, steps)
    repetitions = _repetitions(question, parent.recorded().training.seed, seeds)
    if budget is not None:
        costs = [_cost(question, record, parent, stop_at, len(repetitions), control) for stop_at in question.stops]
        stops = _affordable(question, costs, budget, spent)
    else:
        stops = question.stops
    folder = open_try(parent, f"-{question.rule}", {"question": asdict(question)}, {"arms": {}, "answer": None})
    state = folder.state
    if control is not None and not (folder.path / "control").exists():
        _take_over(control, folder, say)
    for stop_at in stops:
        if stop_at is not None and any(arm["last_step"] > stop_at for arm in state["arms"].values()):
            continue  # nothing could be told there, and they went on
        arms = []
        for tag, seed in repetitions:
            kinds: list[tuple[str, list[str]]] = [("control", []), ("remedy", shlex.split(question.override))]
            for kind, change in reversed(kinds) if tag == AGAIN else kinds:
                run = RunFolder(folder.path / (kind + tag))
                if not _is_there(state["arms"].get(run.name), stop_at):
                    arms.append(RemedyRun(parent, run, change, seed, stop_at, question))
        if workers > 1 and len(arms) > 1 and question.measure != "speed":
            _train_side_by_side(arms, folder, workers, say)
        else:
            for arm in arms:
                _train(arm, folder, quiet, say)
        pairs = [(state["arms"][f"control{tag}"], state["arms"][f"remedy{tag}"]) for tag, _ in repetitions]
        state["answer"] = _answer(record, parent, question, finding, pairs)
        folder.keep()
        if not _may_tell_later(state["answer"], pairs):
            break
    return state["answer"]


def _affordable(question: RemedyPlan, costs: Sequence[int], budget: int, spent: int) -> list[int | None]:
    """The stops that the budget suffices for. UserError: not even for the first."""
    if (needed := spent + costs[0]) > budget:
        before = f", with the {spent:,} of the experiments before it" if spent else ""
        raise UserError(
            f"--budget: {budget:,} steps are too few: {question.override} beside a control needs {needed:,}{before}."
        )
    return [stop_at for stop_at, cost in zip(question.stops, costs, strict=True) if spent + cost <= budget]


def _cost(
    question: RemedyPlan,
    record: RunRecord,
    parent: RunFolder,
    stop_at: int | None,
    num_pairs: int,
    control: Mapping[str, Any] | None,
) -> int:
    """In steps. The remedy may have a schedule of another length."""
    configs = [with_overrides(parent, each).config for each in ((), shlex.split(question.override))]
    ends = [stop_at or config.training.max_steps or total_steps(record, config) for config in configs]
    reused = control["last_step"] if control is not None else 0
    return num_pairs * (sum(ends) - 2 * question.from_step) - reused


def _take_over(control: Mapping[str, Any], folder: TryFolder, say: Callable[[str], None]) -> None:
    """A copy: this one may go on, and the other stays as it is."""
    run, halfway = folder.path / "control", folder.path / ".control"
    shutil.rmtree(halfway, ignore_errors=True)  # of a copy that was interrupted
    shutil.copytree(control["run"], halfway, ignore=shutil.ignore_patterns("lock"))
    halfway.rename(run)
    steps = control["last_step"]
    folder.state["arms"]["control"] = {**control, "run": str(run), "reused_steps": steps}
    say(f"control: that of the experiments, to step {steps}, seed {control['seed']}")
    folder.keep()


def _is_there(arm: Mapping[str, Any] | None, stop_at: int | None) -> bool:
    return arm is not None and (stop_at is None or arm["last_step"] >= stop_at or bool(arm["failure"]))


def _may_tell_later(answer: Mapping[str, Any], pairs: Sequence[Pair]) -> bool:
    """Nothing can be told yet; or the change is worse than a control that has not learned anything yet, as one may be
    that begins to."""
    if any(arm["failure"] for pair in pairs for arm in pair) or not answer["control_is_like_the_run"]:
        return False
    is_open = answer["verdict"] == "cannot tell" and answer["interval"] is not None
    return is_open or (
        answer["verdict"] == "made it worse"
        and answer["from_step"] == 0
        and not any(_has_learned(control["evaluations"]) for control, _ in pairs)
    )


def _has_learned(evaluations: Sequence[Sequence[float]]) -> bool:
    return len(evaluations) > 1 and evaluations[-1][1] < LEARNED * evaluations[0][1]


def _train(arm: RemedyRun, folder: TryFolder, quiet: bool, say: Callable[[str], None]) -> None:
    """One arm, from where it begins or was left to here."""
    say(_begins(arm, folder.state))
    _note(arm, arm.train(quiet), folder, say)


def _train_side_by_side(arms: Sequence[RemedyRun], folder: TryFolder, workers: int, say: Callable[[str], None]) -> None:
    for arm in arms:
        say(_begins(arm, folder.state))
    for place, outcome in side_by_side(train_arm, arms, workers):
        _note(arms[place], outcome, folder, say)


def train_arm(arm: RemedyRun) -> dict[str, Any]:
    """In a process of its own, which imports this."""
    return arm.train(quiet=True)


def _begins(arm: RemedyRun, state: Mapping[str, Any]) -> str:
    name, plan = arm.run.name, arm.plan
    left = state["arms"].get(name)
    begin = f"step {left['last_step'] if left else plan.from_step}"
    begin = begin if left or plan.from_step else "the start"
    end = f"step {arm.stop_at}" if arm.stop_at else "the end"
    return f"{name}: from {begin} to {end}, seed {arm.seed}{', ' + plan.override if arm.change else ''}"


def _note(arm: RemedyRun, outcome: dict[str, Any], folder: TryFolder, say: Callable[[str], None]) -> None:
    before = folder.state["arms"].get(arm.run.name, {})
    folder.state["arms"][arm.run.name] = {**outcome, "reused_steps": before.get("reused_steps", 0)}
    say(f"{arm.run.name}: {_ended(outcome)}")
    folder.keep()


def _ended(arm: Mapping[str, Any]) -> str:
    if arm["failure"]:
        return f"failed after step {arm['last_step']}: {arm['failure']}"
    loss = f", validation loss {arm['evaluations'][-1][1]:.4f}" if arm["evaluations"] else ""
    return f"ended after step {arm['last_step']}{loss}"


def _repetitions(question: RemedyPlan, seed: int, seeds: int) -> list[tuple[str, int]]:
    """What is put behind the names of a pair of arms, and its seed. Speeds are measured twice, the second time in the
    other order: what was meanwhile slow in the machine is not blamed on one of them."""
    again = [(AGAIN, seed)] if question.measure == "speed" else []
    return [("", seed), *again, *((f"-seed{each}", each) for each in range(seed + 1, seed + seeds))]


def run_of(record: RunRecord) -> RunFolder:
    assert record.path is not None
    run = RunFolder.open(record.path)
    if run.read_manifest().recipe == "fit":
        raise UserError(f"{run.path} was made by trainbook.fit with your own module, which cannot be built here.")
    if (world := run.read_manifest().determinism.get("world", 1)) > 1:
        raise UserError(
            f"{run.path} was trained by {world} processes, but a trial runs in one process, with different batches. "
            "Make the change in a separate run, and compare the two with trainbook compare."
        )
    require_trust(run, run.recorded())
    return run


# The answer


def _answer(
    record: RunRecord, parent: RunFolder, question: RemedyPlan, finding: Finding, pairs: Sequence[Pair]
) -> dict[str, Any]:
    comparison = compare(question.measure, pairs, question.same_evaluation, looks=len(question.stops))
    astray = strayed(record, pairs[0][0])
    if astray is not None:
        comparison = replace(comparison, verdict="cannot tell", reason=astray)
    arms = [arm for pair in pairs for arm in pair]
    last = max(arm["last_step"] for arm in arms)
    blamed = blamed_rate_at(record, parent, finding)
    if astray is None and last <= blamed and not any(arm["failure"] for arm in arms):
        reason = f"too early to tell, since the learning rate only comes to what it was at step {blamed:,}"
        comparison = replace(comparison, verdict="cannot tell", reason=reason)
    had_effect = question.measure not in ("loss", "scatter") or not all(are_the_same(*pair) for pair in pairs)
    if not had_effect and astray is None:
        comparison = replace(comparison, verdict="did not help", reason=NO_EFFECT)
    return {
        "finding": as_json(Diagnosis([finding]))["findings"][0],
        "override": question.override,
        "from_step": question.from_step,
        "steps": last - question.from_step,
        "reused_steps": sum(arm.get("reused_steps", 0) for arm in arms),
        "seeds": [pair[0]["seed"] for pair in pairs],
        "measure": comparison.measure,
        "last_evaluations": TAIL if comparison.measure == "validation loss" else None,
        "control": _told(comparison.control, [pair[0] for pair in pairs]),
        "remedy": _told(comparison.remedy, [pair[1] for pair in pairs]),
        "difference": comparison.difference,
        "interval": list(comparison.interval) if comparison.interval else None,
        "verdict": comparison.verdict,
        "control_is_like_the_run": astray is None,
        "had_effect": had_effect,
        "reason": comparison.reason,
        "command": _command(parent, question, comparison, pairs[0][1]),
        "runs": [arm["run"] for arm in arms],
    }


def _told(value: float, arms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The metric over all seeds, with tokens, speed, memory and evaluations."""
    speeds = [speed for arm in arms for speed in arm["tokens_per_second"]]
    return {
        "value": value,
        "tokens": statistics.fmean(arm["tokens"] for arm in arms),
        "tokens_per_second": statistics.median(speeds) if speeds else None,
        "memory_bytes": max((size for arm in arms for _, size in arm["memory"]), default=None),
        "evaluations": [arm["evaluations"] for arm in arms],
        "failures": [arm["failure"] for arm in arms if arm["failure"]],
    }


def _command(
    parent: RunFolder, question: RemedyPlan, comparison: RemedyComparison, remedy: Mapping[str, Any]
) -> str | None:
    """To go on with what helped: from the start, the run anew; else the remedy's own run, to the end of its schedule,
    evaluated, saved and logged as the run was."""
    if comparison.verdict != "helped":
        return None
    if question.from_step == 0:
        place = [] if str(parent.path.parent) == "runs" else ["--runs-dir", str(parent.path.parent)]
        name = f"{parent.name}-{question.rule}"
        return shlex.join(
            ["trainbook", "train", str(parent.config), *shlex.split(question.override), "--name", name, *place]
        )
    was, changed = parent.recorded(), {change.path for change in changes(parent, shlex.split(question.override))}
    is_now = RunFolder(remedy["run"]).recorded()
    back = [
        f"{path}={yaml_value(was.get(path))}"
        for path in SET_ASIDE
        if path not in changed and was.get(path) != is_now.get(path)
    ]
    return shlex.join(["trainbook", "resume", remedy["run"], *back])


# One arm of a try: a run that goes on from another run's checkpoint, or begins as it did, with or without a change


# Faults that were put in on purpose are part of what is tried; not those that end or hang the process itself.
NOT_AGAIN = ("kill", "full-disk", "corrupt-checkpoint", "slow-tracker", "dead-tracker")

SETTINGS: Mapping[str, Any] = {
    "evaluation.eval_strategy": "steps",
    "evaluation.early_stopping_patience": None,
    "checkpoint.save_total_limit": 1,
    "logging.report_to": (),
}
# Knobs by which an arm may differ from its parent without learning anything else.
SET_ASIDE = (*SETTINGS, "evaluation.eval_steps", "logging.logging_steps")


@dataclass(frozen=True)
class RemedyRun:
    parent: RunFolder
    run: RunFolder
    change: Sequence[str]  # overrides; none: the control
    seed: int
    stop_at: int | None  # None: where the schedule ends
    plan: RemedyPlan

    def train(self, quiet: bool) -> dict[str, Any]:
        """To its end, from wherever it was stopped; what came of it."""
        try:
            ended = run_child(self.run, lambda: self._launch(quiet))
        except Interrupted as stop:
            raise Interrupted(f"{stop}. To resume, run the same command again") from None
        if ended.failure == "too large":
            raise TooLarge(ended.reason)
        return self._outcome(ended.reason if ended.failure else None)

    def loaded(self) -> Loaded:
        """The parent's configuration with the change, and with what all arms have. None of that changes what is
        learned from the same seed, and what the change itself sets stays as it says."""
        settings = {
            **SETTINGS,
            "training.seed": self.seed,
            "evaluation.eval_steps": self._eval_steps(),
            "logging.logging_steps": self.plan.logging_steps,
        }
        changed = {change.path for change in changes(self.parent, self.change)}
        ours = [f"{path}={yaml_value(value)}" for path, value in settings.items() if path not in changed]
        return with_overrides(self.parent, [*self.change, *ours])

    def _eval_steps(self) -> int:
        """As often in a run of another length: the last evaluations are of the same part of each arm."""
        lengths = [with_overrides(self.parent, each).config.training.max_steps for each in ((), self.change)]
        before, after = (None if steps is None else steps - self.plan.from_step for steps in lengths)
        if self.stop_at is not None or not before or not after:
            return self.plan.eval_steps
        return max(1, round(self.plan.eval_steps * after / before))

    def _launch(self, quiet: bool) -> None:
        """As `trainbook train` and `resume` do it, but for where it stops."""
        if not self.run.has_begun and self.plan.from_step:
            fork(self.parent, self.plan.from_step, self.run)
        loaded, manifest = self.loaded(), self.parent.read_manifest()
        config = loaded.config
        before = recover(self.parent).config_text or read_file(self.parent.config)
        differing = difference(self.run.recorded(), config) if self.run.has_begun else []
        run = self.run if self.run.has_begun else RunFolder.create(self.run.path.parent, self.run.name)
        plan = Launch(
            run,
            config,
            dump_changes(before, loaded, difference(self.parent.recorded(), config)),
            manifest.recipe,
            differing,
            loaded.notices,
            quiet,
            config.model.hidden_size,
            Faults([fault for fault in parse(manifest.injected_faults) if _is_tried_again(fault)]),
            str(self.parent.path),
        )
        with joined(find_rank_env(), config.distributed, device_kind(config.training.device)) as ranks:
            if ranks.are_several:
                raise UserError("a remedy is tried in a single process, but this is one of several.")

            def build_job(device: torch.device) -> Job:
                job = build(with_paths_found(config, self.parent)[0], device, run, ranks)
                job.stop_at = self.stop_at
                self.prepare(job)
                return job

            run_session(plan, build_job, ranks)

    def prepare(self, job: Job) -> None:
        """For an experiment that no knob makes."""

    def _outcome(self, failure: str | None) -> dict[str, Any]:
        """What is compared, as the run's files have it."""
        rows = [row for row in self.run.metrics("train") if row["step"] > self.plan.from_step]
        evaluations = [row for row in self.run.metrics("eval") if row["step"] > self.plan.from_step]
        shortages = [e for e in self.run.events() if e["kind"] == "oom" and e["step"] > self.plan.from_step]
        steady = rows[1:] if len(rows) > 2 else rows  # the first has the start of the process in it
        return {
            "run": str(self.run.path),
            "seed": self.seed,
            "failure": failure,
            "last_step": max((row["step"] for row in rows), default=self.plan.from_step),
            "tokens": max((row["tokens"] for row in rows), default=0),
            "evaluations": [[row["step"], row["loss"]] for row in evaluations],
            "targets": evaluations[-1].get("targets") if evaluations else None,
            "losses": [[row["step"], row.get("cross_entropy", row["loss"])] for row in rows],
            "tokens_per_second": [row["tokens_per_second"] for row in steady],
            "memory": [[row["step"], row["memory_bytes"]] for row in steady],
            "memory_shortages": len(shortages),
        }


def _is_tried_again(fault: Fault) -> bool:
    """A remedy is tried in a single process: what acted on one rank of several has no place there."""
    return fault.kind not in NOT_AGAIN and fault.rank is None
