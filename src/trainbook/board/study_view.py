"""A study: its conclusion, and what its charts are drawn from, whichever kind of study it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from trainbook.board.answers import text_of
from trainbook.board.finding_runs import Place
from trainbook.bounded.files import read_text
from trainbook.errors import TrainbookError
from trainbook.report.study_page import study_page
from trainbook.report.study_progress import StudyProgress, study_progress
from trainbook.runs.jsonl import loads

RATE = "optimizer.learning_rate"
DIFFERENT_KNOBS = 12  # of an unfinished study, that are shown as axes
LONGEST = 2_000

Facts = dict[str, Any]
MALFORMED = (TrainbookError, OSError, KeyError, TypeError, ValueError, AttributeError, IndexError)


def study_summary(place: Place, source: str, runs: Sequence[Facts]) -> Facts:
    """The row of a study in the list."""
    facts = _read(place.path)
    progress = study_progress(place.path, [each["status"] for each in runs])
    kind, answer = facts["kind"] or progress.kind, facts["answer"]
    metric = answer.get("metric") or "loss"
    values = [each["metric"]["value"] for each in runs if each.get("metric")]
    best = _best_of(answer, kind)
    higher = bool(answer.get("higher_is_better"))
    if best is None and values:
        best = max(values) if higher else min(values)
    status = "running" if progress.is_running else "complete" if answer else "unfinished"
    updated = max((each["updated"] for each in runs if each.get("updated")), default=None)
    return {
        "id": place.id,
        "name": text_of(place.path.name, 300),
        "source": source,
        "kind": kind,
        "status": status,
        "headline": _headline(facts, progress),
        "progress": {name: getattr(progress, name) for name in ("ended", "running", "planned", "budget")},
        "trials": len(answer.get("trials") or runs) if isinstance(answer.get("trials") or runs, list) else len(runs),
        "best": None if best is None else {"name": metric, "value": best},
        "updated": updated,
    }


def study_view(place: Place, summary: Facts, runs: Sequence[Facts]) -> Facts:
    facts = _read(place.path)
    kind = facts["kind"] or summary["kind"]
    shape = _SHAPES[kind if facts["answer"] else "unfinished"]
    ids = {Path(run["path"]).name: run["id"] for run in runs}
    told: Facts = {"trials": [], "axes": [], "rate_curves": [], "importance": None, "forest": None, "recipe": None}
    problem = None
    try:
        told |= shape(facts, ids, runs)
    except MALFORMED as error:
        problem = f"the answer of the study is damaged ({type(error).__name__}: {error})"
    metric = {
        "name": facts["answer"].get("metric") or "loss",
        "greater_is_better": bool(facts["answer"].get("higher_is_better")),
    }
    return {
        "summary": summary,
        "kind": kind,
        "headline": summary["headline"],
        "metric": metric,
        "conclusion": [text_of(line, LONGEST) for line in _conclusion(facts)] or [summary["headline"]],
        **told,
        "best_so_far": best_so_far(told["trials"], metric["greater_is_better"]),
        "sections": [
            each for each in _sections(place.path) if not (told["recipe"] and each["title"].startswith("Recipe:"))
        ],
        "problem": problem,
    }


def _read(folder: Path) -> Facts:
    """The answer in a study's folder, and its kind; without one, an empty answer and None."""
    for name, kind in (
        ("ablation.json", "ablate"),
        ("transfer.json", "proxy"),
        ("study.json", "tune"),
        ("answer.json", "rates"),
    ):
        if (folder / name).is_file():
            answer = _object(folder / name)
            search = _object(folder / "study.json") if kind == "proxy" else answer
            return {"kind": "transfer" if kind in ("proxy", "rates") else kind, "shape": kind, "folder": folder} | {
                "answer": search if kind == "proxy" else answer,
                "conclusion": answer.get("conclusion"),
            }
    return {"kind": None, "shape": None, "folder": folder, "answer": {}, "conclusion": None}


def _object(path: Path) -> Facts:
    if path.is_symlink():
        return {}
    try:
        found = loads(read_text(path))
    except (OSError, ValueError, TrainbookError):
        return {}
    return found if isinstance(found, dict) else {}


def _conclusion(facts: Facts) -> list[Any]:
    lines = facts["conclusion"]
    if isinstance(lines, list):
        return lines
    arms = facts["answer"].get("arms")
    if facts["shape"] == "rates" and isinstance(arms, dict):
        words = {True: "transfers", False: "does not transfer"}
        return [
            f"{arm}: {words.get(each.get('transfers'), 'cannot tell')}: {each.get('reason')}."
            for arm, each in arms.items()
        ]
    return []


def _headline(facts: Facts, progress: StudyProgress) -> str:
    lines = _conclusion(facts)
    if not lines:
        return progress.headline
    found = text_of(lines[0], LONGEST)
    return f"{progress.headline} Its answer so far: {found}" if progress.is_running else found


def _best_of(answer: Mapping[str, Any], kind: str) -> float | None:
    if kind == "rates" or not isinstance(answer.get("best"), dict):
        return None
    best = answer["best"]
    mean = best.get("repeats", {}).get("mean") if isinstance(best.get("repeats"), dict) else None
    found = mean if mean is not None else best.get("loss")
    return found if isinstance(found, (int, float)) else None


def best_so_far(trials: Sequence[Facts], higher_is_better: bool) -> list[Facts]:
    ended = [each for each in trials if isinstance(each["loss"], (int, float)) and each["loss"] == each["loss"]]
    ended = [each for each in ended if each["kind"] != "repeat"]
    better = max if higher_is_better else min
    best = accumulate((each["loss"] for each in ended), better)
    return [{"number": each["number"], "best": value} for each, value in zip(ended, best, strict=True)]


def _sections(folder: Path) -> list[Facts]:
    try:
        return study_page(folder, with_charts=False).as_facts()
    except MALFORMED:
        return []


def _trial(each: Mapping[str, Any], ids: Mapping[str, str], **more: Any) -> Facts:
    run = each.get("run")
    name = Path(run).name if isinstance(run, str) else None
    return {
        "number": each.get("number"),
        "id": ids.get(name or ""),
        "name": name,
        "kind": each.get("kind") or each.get("stage"),
        "values": dict(each.get("values") or {}),
        "loss": each.get("loss"),
        "state": each.get("state"),
        "seconds": each.get("seconds"),
        "seed": each.get("seed"),
        "arm": each.get("arm"),
        "reason": text_of(each.get("reason"), LONGEST) or None,
        **more,
    }


def _tuning(facts: Facts, ids: Mapping[str, str], runs: Sequence[Facts]) -> Facts:
    answer = facts["answer"]
    base = answer.get("base_values") or {}
    bases = {each["number"] for each in answer["trials"] if each.get("kind") == "base"}
    trials = []
    for each in answer["trials"]:
        is_base = bool(bases & {each["number"], each.get("of")})  # or a repetition of it
        values = {**base, **each["values"]} if is_base else each["values"]
        trials.append(_trial({**each, "values": values}, ids))
    axes = [{name: each.get(name) for name in ("path", "scale", "low", "high", "choices")} for each in answer["space"]]
    shares, refused = answer.get("importance"), answer.get("importance_refused")
    importance = None
    if isinstance(shares, dict):
        ordered = sorted(shares.items(), key=lambda item: -item[1])
        importance = {"method": "PED-ANOVA", "shares": [{"path": path, "share": share} for path, share in ordered]}
    return {
        "trials": trials,
        "axes": axes,
        "rate_curves": _rates_of_trials(trials),
        "importance": importance,
        "importance_refused": text_of(refused, LONGEST) or None,
        "recommended": answer.get("recommended"),
        "recipe": _recipe(facts["folder"], "large.yaml", "best.yaml"),
    }


def _rates_of_trials(trials: Sequence[Facts]) -> list[Facts]:
    points = [
        [each["values"][RATE], each["loss"]]
        for each in trials
        if each["kind"] != "repeat" and RATE in each["values"] and isinstance(each["loss"], (int, float))
    ]
    return [{"name": "trials", "points": sorted(points)}] if points else []


def _ablation(facts: Facts, ids: Mapping[str, str], runs: Sequence[Facts]) -> Facts:
    answer = facts["answer"]
    curves = []
    for arm in (answer["control"], *answer["arms"]):
        for cell in arm["by_data"]:
            points = []
            for rate, losses in cell["by_rate"].items():
                known = [each for each in losses if each is not None]
                if known and len(known) == len(losses):
                    points.append([float(rate), sum(known) / len(known)])
            name = arm["name"] if len(answer["data"]) == 1 else f"{arm['name']}, {cell['data']}"
            curves.append({"name": name, "points": sorted(points)})
    factor, unit = (100.0, "%") if answer["scale"] == "share" else (1.0, answer["metric"])
    rows = [
        {
            "arm": arm["name"],
            "difference": factor * arm["effect"]["mean"] if arm["effect"] else None,
            "low": factor * arm["effect"]["low"] if arm["effect"] else None,
            "high": factor * arm["effect"]["high"] if arm["effect"] else None,
            "p": arm.get("p_corrected"),
            "verdict": arm["verdict"],
        }
        for arm in answer["arms"]
    ]
    return {
        "trials": [_trial(each, ids) for each in answer.get("trials", ())],
        "rate_curves": [each for each in curves if len(each["points"]) > 1],
        "forest": {"unit": unit, "epsilon": factor * answer["epsilon"], "rows": rows},
        "arm_curves": answer.get("curves", []),
        "recipe": _recipe(facts["folder"], "best.yaml"),
    }


def _rates(facts: Facts, ids: Mapping[str, str], runs: Sequence[Facts]) -> Facts:
    answer = facts["answer"]
    curves = [
        {
            "name": f"{arm}, {answer['axis']} {each['size']}",
            "arm": arm,
            "points": [pair for pair in each["losses"] if pair[1] is not None],
            "best_rate": each["best_rate"],
        }
        for arm, found in answer["arms"].items()
        for each in found["sizes"]
    ]
    return {"rate_curves": curves, "trials": _of_runs(runs)}


def _unfinished(facts: Facts, ids: Mapping[str, str], runs: Sequence[Facts]) -> Facts:
    trials = _of_runs(runs)
    paths = dict.fromkeys(path for each in trials for path in each["values"])
    axes = [_axis(path, [each["values"][path] for each in trials if path in each["values"]]) for path in paths]
    return {"trials": trials, "axes": axes[:DIFFERENT_KNOBS], "rate_curves": _rates_of_trials(trials)}


def _axis(path: str, values: Sequence[Any]) -> Facts:
    from trainbook.knobs.aliases import by_path

    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) < len(values) or not numbers:
        choices = list(dict.fromkeys(map(str, values)))
        return {"path": path, "scale": "choice", "low": None, "high": None, "choices": choices}
    search = by_path()[path].knob.search if path in by_path() else None
    scale = search.scale if search is not None and search.scale != "choice" else "linear"
    is_lawful = scale != "log" or min(numbers) > 0
    return {
        "path": path,
        "scale": scale if is_lawful else "linear",
        "low": min(numbers),
        "high": max(numbers),
        "choices": [],
    }


def _of_runs(runs: Sequence[Facts]) -> list[Facts]:
    """Of runs that no answer tells of yet: in which settings they differ, and how far they are."""
    from trainbook.report.seed_groups import ASIDE

    settings = [run["settings"] for run in runs]
    paths = [path for path in dict.fromkeys(path for each in settings for path in each) if not path.startswith(ASIDE)]
    differing = [path for path in paths if len({repr(each.get(path)) for each in settings}) > 1]
    found = []
    for number, run in enumerate(sorted(runs, key=lambda run: str(run.get("started")))):
        values = {path: run["settings"][path] for path in differing if path in run["settings"]}
        metric = run.get("metric")
        told = {"number": number, "values": values, "state": run["status"], "kind": "run", "seed": run.get("seed")}
        told |= {"loss": metric["value"] if metric else None, "run": run["path"]}
        found.append(_trial(told, {Path(run["path"]).name: run["id"]}))
    return found


def _recipe(folder: Path, *names: str) -> str | None:
    for name in names:
        if (folder / name).is_file() and not (folder / name).is_symlink():
            try:
                return text_of(read_text(folder / name, 1 << 20))
            except (OSError, ValueError, TrainbookError):
                return None
    return None


_SHAPES: Mapping[str, Callable[[Facts, Mapping[str, str], Sequence[Facts]], Facts]] = {
    "tune": _tuning,
    "ablate": _ablation,
    "transfer": lambda facts, ids, runs: (_rates if facts["shape"] == "rates" else _tuning)(facts, ids, runs),
    "unfinished": _unfinished,
}
