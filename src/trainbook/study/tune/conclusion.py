"""What a study found, in sentences; and the recipe of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainbook.errors import MissingExtra, RunError
from trainbook.knobs import Loaded
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.values import show
from trainbook.runs import write_text_atomically
from trainbook.runs.jsonl import dumps
from trainbook.study.space import base_text
from trainbook.study.tune.planning import Plan
from trainbook.study.tune.results import GOOD_POINTS, read, stands_for
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Trial
from trainbook.terminal import this_command

MUCH = 0.8  # of a budget: less is worth a sentence

Facts = dict[str, Any]


def conclude(facts: Facts) -> list[str]:
    """Sentences, the most important first."""
    best = facts["best"]
    if best is None:
        return [_nothing(facts)]
    lines = [_best(facts), *_replaced(facts), *_ties(facts), *_equal(facts), *map(_unstable, facts["unstable"])]
    lines += [*_against_the_base(facts), *_arms(facts)]
    lines += [] if _are_all_equal(facts) else map(_at_an_end, facts["boundary"])
    lines += [f"{line[:1].upper()}{line[1:]}." for line in facts["why_repeated"]]
    region = facts["good_region"]
    if not region["enough"]:
        lines.append(
            f"Only {_count(region['points'], 'trial is', 'trials are')} within {_number(region['within'])} of the "
            f"best; a reliable optimum has at least {GOOD_POINTS}. Extend the study with a larger --budget."
        )
    share = facts["infeasible_share"]
    if share:
        more = " That is a lot: the search range is too wide." if share > 0.25 else ""
        lines.append(f"{share:.0%} of the trials diverged, violated a constraint or ran out of memory.{more}")
    if facts["counts"]["failed"]:
        count = facts["counts"]["failed"]
        lines.append(f"{_count(count, 'trial', 'trials')} failed for other reasons and {_are(count)} left out.")
    if facts["counts"]["dropped"]:
        count = _count(facts["counts"]["dropped"], "trial was", "trials were")
        lines.append(f"{count} never started: the budget of {facts['budget']} was spent.")
    asked = sum(each["kind"] != "repeat" for each in facts["trials"])
    if asked < facts["planned"] and not facts["budget_is_spent"]:
        lines.append(f"The search ended after {asked} of {facts['planned']} trials: {_exhausted(facts)}.")
    elif facts["budget_used"] is not None and facts["budget_used"] < MUCH:
        lines.append(
            f"Only {facts['budget_used']:.0%} of {facts['budget']} was used: the trials cost less than the base, from "
            "which their number was planned."
        )
    if facts["importance"]:
        shares = ", ".join(f"{path} {share:.0%}" for path, share in facts["importance"].items())
        lines.append(f"Importance of the searched knobs: {shares}.")
    else:
        lines.append(f"Importance was not estimated: {facts['importance_refused']}.")
    return lines


def _exhausted(facts: Facts) -> str:
    """Of a search that has come to its end before its budget."""
    if facts["method"] == "zoom" or facts["arms"]:  # it may miss a point; and the space may end in one arm alone
        return f"{facts['method']} found no other point to try"
    return "there is no other point to try" + (
        ", one knob at a time" if facts["method"] == "one-at-a-time" else " in the search space"
    )


def _nothing(facts: Facts) -> str:
    reasons = [each["reason"] for each in facts["trials"] if each["reason"]]
    said = f" The first trial reported: {reasons[0]}." if reasons else ""
    return f"No trial ended with a value of {facts['metric']}.{said}"


def _best(facts: Facts) -> str:
    best, metric = facts["best"], facts["metric"]
    repeats = best["repeats"]
    values = ", ".join(f"{path}={yaml_value(value)}" for path, value in best["values"].items())
    what = f"trial {best['number']} ({values})" if values else "the unchanged base"
    line = f"Best: {what}, {metric} {_number(best['loss'])}"
    lost, failed = repeats["infeasible"], repeats["failed"]
    if repeats["mean"] is None and not lost and not failed:
        return f"{line}. It was not repeated, so the effect of the seed is unknown."
    if repeats["mean"] is None:
        what = f"{lost} could not be trained" if lost else ""
        what += " and " if lost and failed else ""
        what += f"{failed} failed for other reasons" if failed else ""
        return f"{line}. Of {_count(lost + failed, 'repetition', 'repetitions')} with new seeds {what}. Do not use it."
    more = f"; {_count(lost, 'repetition', 'repetitions')} could not be trained" if lost else ""
    more += f"; {_count(failed, 'repetition', 'repetitions')} failed for other reasons" if failed else ""
    return f"{line}; {_with_new_seeds(repeats)}{more}."


def _replaced(facts: Facts) -> list[str]:
    """Where new seeds put another trial before the one with the best single loss."""
    first = next(iter(facts["finalists"]), None)
    if first is None or first["number"] in [each["number"] for each in (facts["best"], *facts["unstable"])]:
        return []
    which, metric = "highest" if facts["higher_is_better"] else "lowest", facts["metric"]
    repeats, base = first["repeats"], facts["base"]
    again = f"no {metric} with new seeds" if repeats["mean"] is None else _with_new_seeds(repeats)
    number = facts["best"]["number"]
    taken = "the base" if base is not None and base["number"] == number else f"trial {number}"
    return [
        f"Trial {first['number']} had the {which} {metric} in the search ({_number(first['loss'])}), but {again}, so "
        f"{taken} is preferred."
    ]


def _ties(facts: Facts) -> list[str]:
    ties = facts["ties"]
    if not ties:
        return []
    names = f"Trial {ties[0]}" if len(ties) == 1 else f"Trials {', '.join(map(str, ties[:-1]))} and {ties[-1]}"
    return [f"{names} cannot be told apart from trial {facts['best']['number']} with these seeds: treat them as tied."]


def _are_all_equal(facts: Facts) -> bool:
    judged = [each for each in facts["trials"] if each["kind"] != "repeat" and each["loss"] is not None]
    return len(judged) > 1 and len(judged) == 1 + len(facts["equal"])


def _equal(facts: Facts) -> list[str]:
    """Trials that are the same to the last digit are no order of merit."""
    metric, value = facts["metric"], _number(facts["best"]["loss"])
    if not facts["equal"]:
        return []
    if _are_all_equal(facts):
        return [f"All trials have the same {metric} ({value}): what was searched makes no difference to it here."]
    base = facts["base"]["number"] if facts["base"] is not None else None
    names = [f"trial {each}" for each in facts["equal"] if each != base]
    names = [*(["the base"] if base in facts["equal"] else []), *names]
    told = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    has = "has" if len(names) == 1 else "have"
    best = facts["best"]["number"]
    other = f"{'it' if len(names) == 1 else 'them'} from {'the base' if best == base else f'trial {best}'}"
    said = f"{told[:1].upper()}{told[1:]} {has} the same {metric} ({value})"
    return [f"{said}, so this metric cannot separate {other}."]


def _with_new_seeds(repeats: Facts) -> str:
    count = len(repeats["losses"])
    deviation = f" ± {_number(repeats['spread'])} (standard deviation)" if repeats["spread"] is not None else ""
    return f"mean {_number(repeats['mean'])}{deviation} over {_count(count, 'new seed', 'new seeds')}"


def _unstable(trial: Facts) -> str:
    repeats = trial["repeats"]
    lost = repeats["infeasible"]
    total = _count(lost + repeats["failed"] + len(repeats["losses"]), "new seed", "new seeds")
    return (
        f"Trial {trial['number']} reached {_number(trial['loss'])}, but could not be trained with {lost} of {total}: "
        "it is not recommended."
    )


def _against_the_base(facts: Facts) -> list[str]:
    difference, base = facts["difference"], facts["base"]
    if base is not None and facts["best"]["number"] == base["number"]:
        holds = " and holds with new seeds" if facts["finalists"] else ""
        return [f"No trial beats the base{holds}: keep the base."]
    if difference is None:
        return []
    told = {
        "better": "The gain is larger than seed noise.",
        "worse": "That is worse: keep the base.",
        "cannot tell": "Seed noise alone could explain that.",
    }[difference["verdict"]]
    if difference["verdict"] == "cannot tell" and facts["best"]["repeats"]["infeasible"]:
        told = "It could not be trained with every seed, so it is no gain."
    elif difference["verdict"] == "cannot tell" and difference["mean"] > 0:
        told = "Seed noise alone could explain that: keep the base."
    return [f"With the same seeds it is {_amount(difference, facts)} than the base{_interval(difference)}. {told}"]


def _amount(difference: Facts, facts: Facts) -> str:
    is_lower = (difference["mean"] < 0) != facts["higher_is_better"]
    return f"{_number(abs(difference['mean']))} {'lower' if is_lower else 'higher'}"


def _interval(difference: Facts) -> str:
    if difference["interval"] is None:
        return ""
    low, high = difference["interval"]
    return f" (95 % confidence interval of the gain: {_number(-high)} to {_number(-low)})"


def _at_an_end(each: Facts) -> str:
    side = "below" if each["end"] == "low" else "above"
    return (
        f"The best {each['knob']} ({_number(each['value'])}) is at the {each['end']} end of what was tried. Search "
        f"{side} it before you rely on it."
    )


def _arms(facts: Facts) -> list[str]:
    lines = []
    for arm in facts["arms"] or ():
        name = ", ".join(f"{path}={show(value)}" for path, value in arm["compared"].items())
        best = stands_for(arm)
        if best is None:
            lines.append(f"{name}: no trial could be trained.")
            continue
        seeds = "" if best["repeats"]["mean"] is None else f"; {_with_new_seeds(best['repeats'])}"
        is_base = arm["base"] is not None and best["number"] == arm["base"]["number"]
        tuned = "with the base's values, which no trial beat" if is_base else "tuned separately"
        lines.append(f"{name}, {tuned}: {_number(best['loss'])}{seeds}.")
    return [*lines, *(_compared(each, facts) for each in facts["comparison"] or ())]


def _compared(difference: Facts, facts: Facts) -> str:
    """The answer to what was asked."""
    one, other = (
        ", ".join(f"{path}={show(value)}" for path, value in difference[which].items())
        for which in ("compared", "against")
    )
    if difference["mean"] is None:
        return f"{one} or {other}: undecided, because they share no repeated seed."
    told = "It is better." if difference["verdict"] == "better" else "The seeds do not show which one is better."
    return (
        f"{one} is {_amount(difference, facts)} than {other} with the same seeds{_interval(difference)}, each at its "
        f"best. {told}"
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# The recipe


def recipe_text(facts: Facts, loaded: Loaded, study: str) -> str:
    """What the base asks for with the values that were found; the base's own, where new seeds say that it is better."""
    chosen = chosen_trial(facts)
    lines = [f"# Found by trainbook tune: study {study}, {facts['budget']} with {facts['method']}.", "#"]
    lines += [f"# {line}" for line in conclude(facts)]
    if is_base(facts):
        compared = ", with what is compared at its best" if facts["arms"] else ""
        lines += ["#", f"# Nothing beat the base: these are its values{compared}."]
    return "\n".join([*lines, "", base_text(loaded, chosen["values"])])


def is_base(facts: Facts) -> bool:
    """Whether the recipe has the base's own values: nothing beat it."""
    return facts["base"] is not None and chosen_trial(facts)["number"] == facts["base"]["number"]


def chosen_trial(facts: Facts) -> Facts:
    chosen = stands_for(facts)
    assert chosen is not None, "a study without a best has no recipe"
    return chosen


# The end of a study: the facts, the conclusion, the recipe and the pictures, written into its folder


ANSWER, RECIPE, WORDS = "study.json", "best.yaml", "conclusion.md"


def finish(question: StudyQuestion, kept: dict[str, Any], trials: list[Trial], folder: Path) -> dict[str, Any]:
    """The answer for programs. RunError: no trial ended with a loss."""
    facts = read(question, Plan.from_json(kept), trials)
    more = {"conclusion": conclude(facts), "recipe": None, "pictures": [], "remarks": []}
    facts = {"study": folder.name, "command": this_command(), **facts, **more}
    # What took hours first: a picture that cannot be drawn is no reason to lose it.
    try:
        if facts["best"] is not None:
            recipe = folder / RECIPE
            write_text_atomically(recipe, recipe_text(facts, question.loaded, folder.name))
            facts["recipe"], facts["recipe_is_base"] = str(recipe), is_base(facts)
        _write(facts, folder)
        if facts["best"] is None:
            raise RunError(facts["conclusion"][0])
        facts["pictures"], facts["remarks"] = _pictures(facts, folder)
        _write(facts, folder)
    except OSError as error:
        raise RunError(
            f"the answer cannot be written into {folder}: {error.strerror or error}. All trials are kept: fix this "
            "and run the same command again."
        ) from None
    return facts


def _write(facts: dict[str, Any], folder: Path) -> None:
    write_text_atomically(folder / ANSWER, dumps(facts) + "\n")
    write_text_atomically(folder / WORDS, "\n\n".join([f"# Study {folder.name}", *facts["conclusion"], ""]))


def _pictures(facts: dict[str, Any], folder: Path) -> tuple[list[str], list[str]]:
    """Those that can be drawn, and remarks on what could not."""
    try:
        from trainbook.charts.study import draw_study

        return [str(path) for path in draw_study(facts, folder)], []
    except MissingExtra:
        return [], ["no figures: they need pip install 'trainbook[charts]'"]
    except Exception as error:
        return [], [f"the figures could not be drawn: {type(error).__name__}: {error}"]
