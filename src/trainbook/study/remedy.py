"""A remedy tried: a short run with the doctor's change beside one without it, from the same point, and what came of it.

    RUN-try-RULE/
      try.json     the question, how each arm ended, and the answer once there is one
      control/     a run like any other; of a further seed, control-seed7/
      remedy/      the same with the change

The run itself is only read. The same question again goes on where it was stopped, and repeats no arm that has ended.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trainbook.bounded.files import read_bytes
from trainbook.contained import must_stay_inside
from trainbook.doctor import Diagnosis, Finding, as_json
from trainbook.errors import RunFolderError, UserError
from trainbook.knobs.dumping import yaml_value
from trainbook.runs import RunFolder, jsonl, write_text_atomically
from trainbook.runs.run_record import RunRecord
from trainbook.runs.trust import require_trust
from trainbook.study.outcomes import Pair, compare, strayed
from trainbook.study.remedy_plan import RemedyPlan, ask, changes, choose
from trainbook.study.remedy_run import SET_ASIDE, RemedyRun
from trainbook.study.verdict import TAIL, RemedyComparison

ANSWER = "try.json"
AGAIN = "-again"
LEARNED = 0.99  # of the first loss


def try_remedy(
    record: RunRecord,
    findings: Sequence[Finding],
    *,
    rule: str | None = None,
    steps: int | None = None,
    seeds: int = 1,
    quiet: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Try the change of the first finding that has one, or of the rule that is named. The answer is for programs."""
    finding = choose(record, findings, rule)
    parent = _run_of(record)
    question = ask(record, parent, finding, steps)
    folder, state = _folder_of(parent, question)
    repetitions = _repetitions(question, parent.recorded().training.seed, seeds)
    for stop_at in question.stops:
        if stop_at is not None and any(arm["last_step"] > stop_at for arm in state["arms"].values()):
            continue  # nothing could be told there, and they went on
        pairs = []
        for tag, seed in repetitions:
            kinds: list[tuple[str, list[str]]] = [("control", []), ("remedy", shlex.split(question.override))]
            for kind, change in reversed(kinds) if tag == AGAIN else kinds:
                run = RunFolder(folder / (kind + tag))
                if not _is_there(state["arms"].get(run.name), stop_at):
                    _train(RemedyRun(parent, run, change, seed, stop_at, question), state, quiet, say)
            pairs.append((state["arms"][f"control{tag}"], state["arms"][f"remedy{tag}"]))
        state["answer"] = _answer(record, parent, question, finding, pairs)
        _keep(folder, state)
        if not _may_tell_later(state["answer"], pairs):
            break
    return state["answer"]


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


def _train(arm: RemedyRun, state: dict[str, Any], quiet: bool, say: Callable[[str], None]) -> None:
    """One arm, from where it begins or was left to here."""
    name, plan = arm.run.name, arm.plan
    left = state["arms"].get(name)
    begin = f"step {left['last_step'] if left else plan.from_step}"
    begin = begin if left or plan.from_step else "the start"
    end = f"step {arm.stop_at}" if arm.stop_at else "the end"
    say(f"{name}: from {begin} to {end}, seed {arm.seed}{', ' + plan.override if arm.change else ''}")
    state["arms"][name] = arm.train(quiet)
    say(f"{name}: {_ended(state['arms'][name])}")
    _keep(arm.run.path.parent, state)


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


def _run_of(record: RunRecord) -> RunFolder:
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


# The folder of a try


def _folder_of(parent: RunFolder, question: RemedyPlan) -> tuple[Path, dict[str, Any]]:
    """Where this question is answered; another question about the same rule has another folder."""
    path = parent.path if parent.path.name == parent.name else parent.path.resolve()  # as for `.` or a link
    number = 1
    while True:
        folder = path.with_name(f"{path.name}-try-{question.rule}" + (f"-{number}" if number > 1 else ""))
        must_stay_inside(folder)
        state = _read(folder)
        if state is None or state["question"] == asdict(question):
            break
        number += 1
    if state is None:
        state = {"question": asdict(question), "arms": {}, "answer": None}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"{folder} cannot be created: {error.strerror}.") from None
        _keep(folder, state)
    return folder, state


def _read(folder: Path) -> dict[str, Any] | None:
    file = folder / ANSWER
    if not file.is_file():
        if folder.exists() and any(folder.iterdir()):
            raise RunFolderError(f"{folder} already exists and was not made by doctor --try. Rename it.")
        return None
    try:
        state = jsonl.loads(read_bytes(file))
        return {"question": state["question"], "arms": state["arms"], "answer": state["answer"]}
    except (ValueError, LookupError, TypeError):
        raise RunFolderError(f"{file} is damaged. Remove the folder to try again.") from None


def _keep(folder: Path, state: Mapping[str, Any]) -> None:
    write_text_atomically(folder / ANSWER, jsonl.dumps(state) + "\n")


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
    return {
        "finding": as_json(Diagnosis([finding]))["findings"][0],
        "override": question.override,
        "from_step": question.from_step,
        "steps": last - question.from_step,
        "seeds": [pair[0]["seed"] for pair in pairs],
        "measure": comparison.measure,
        "last_evaluations": TAIL if comparison.measure == "validation loss" else None,
        "control": _told(comparison.control, [pair[0] for pair in pairs]),
        "remedy": _told(comparison.remedy, [pair[1] for pair in pairs]),
        "difference": comparison.difference,
        "interval": list(comparison.interval) if comparison.interval else None,
        "verdict": comparison.verdict,
        "control_is_like_the_run": astray is None,
        "reason": comparison.reason,
        "command": _command(parent, question, comparison, pairs[0][1]),
        "runs": [arm["run"] for arm in arms],
    }


def _told(value: float, arms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all seeds: the value, and what else may be asked."""
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
