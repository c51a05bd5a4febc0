"""What a study found, in plain words; and the recipe of it."""

from __future__ import annotations

from typing import Any

from trainbook.knobs import Loaded
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.values import show
from trainbook.study.tune.comparison import stands_for
from trainbook.study.tune.reading import GOOD_POINTS
from trainbook.study.tune.task import base_text

MUCH = 0.8  # of a budget: what is left of it is not worth a word

Facts = dict[str, Any]


def conclude(facts: Facts) -> list[str]:
    """Sentences, the most important first."""
    best = facts["best"]
    if best is None:
        return [_nothing(facts)]
    lines = [_best(facts), *_replaced(facts), *map(_unstable, facts["unstable"])]
    lines += [*_against_the_base(facts), *_arms(facts)]
    for each in facts["boundary"]:
        side, where = ("below", "low") if each["end"] == "low" else ("above", "high")
        lines.append(
            f"The best {each['knob']} ({_number(each['value'])}) lies at the {where} end of what was tried: search "
            f"{side} it before you trust it."
        )
    region = facts["good_region"]
    if not region["enough"]:
        lines.append(
            f"Only {_count(region['points'], 'trial is', 'trials are')} within {_number(region['within'])} of the "
            f"best, and {GOOD_POINTS} should be: the good region is hardly sampled. Spend more."
        )
    share = facts["infeasible_share"]
    if share:
        more = " That is much: the range reaches too far." if share > 0.25 else ""
        lines.append(f"{share:.0%} of the searched trials could not be trained like this.{more}")
    if facts["counts"]["failed"]:
        count = facts["counts"]["failed"]
        are = "is" if count == 1 else "are"
        lines.append(f"{_count(count, 'trial', 'trials')} failed for other reasons and {are} left out.")
    if facts["counts"]["dropped"]:
        count = _count(facts["counts"]["dropped"], "trial was", "trials were")
        lines.append(f"{count} not begun: the budget of {facts['budget']} was spent.")
    asked = sum(each["kind"] != "repeat" for each in facts["trials"])
    if asked < facts["planned"] and not facts["budget_is_spent"]:
        lines.append(f"{asked} of {facts['planned']} trials were all that {_to_try(facts)}.")
    elif facts["budget_used"] is not None and facts["budget_used"] < MUCH:
        lines.append(
            f"Only {facts['budget_used']:.0%} of {facts['budget']} were used: the trials took less than the base, by "
            "which their number was planned."
        )
    if facts["importance"]:
        shares = ", ".join(f"{path} {share:.0%}" for path, share in facts["importance"].items())
        lines.append(f"Of what was searched, this mattered: {shares}.")
    else:
        lines.append(f"No shares of importance: {facts['importance_refused']}.")
    return lines


def _to_try(facts: Facts) -> str:
    """Of a search that has come to its end before its budget."""
    if facts["method"] == "zoom" or facts["arms"]:  # it may miss a point; and the space may end in one arm alone
        return f"{facts['method']} found to try"
    return "there is to try" + (", one knob at a time" if facts["method"] == "one-at-a-time" else "")


def _nothing(facts: Facts) -> str:
    reasons = [each["reason"] for each in facts["trials"] if each["reason"]]
    said = reasons[0] if reasons else "nothing"
    return f"No trial ended with a number for {facts['metric']}. The first one says: {said}."


def _best(facts: Facts) -> str:
    best, metric = facts["best"], facts["metric"]
    repeats = best["repeats"]
    values = ", ".join(f"{path}={yaml_value(value)}" for path, value in best["values"].items())
    what = f"trial {best['number']} ({values})" if values else "the base as it is"
    line = f"The best is {what}: {metric} {_number(best['loss'])}"
    lost, failed = repeats["infeasible"], repeats["failed"]
    if repeats["mean"] is None and not lost and not failed:
        return f"{line}. It was not repeated: how much of that is luck is not known."
    if repeats["mean"] is None:
        what = f"{lost} could not be trained" if lost else ""
        what += " and " if lost and failed else ""
        what += f"{failed} failed for other reasons" if failed else ""
        return (
            f"{line}. With {_count(lost + failed, 'new seed', 'new seeds')} it has no {metric}: {what}. Do not use it."
        )
    more = f"; with {_count(lost, 'more', 'more')} it could not be trained" if lost else ""
    more += f"; {_count(failed, 'repetition', 'repetitions')} failed for other reasons" if failed else ""
    return f"{line}, and {_with_new_seeds(repeats)}{more}."


def _replaced(facts: Facts) -> list[str]:
    """Where new seeds put another one before the one with the best single loss."""
    first = next(iter(facts["finalists"]), None)
    if first is None or first["number"] in [each["number"] for each in (facts["best"], *facts["unstable"])]:
        return []
    which, metric = "highest" if facts["higher_is_better"] else "lowest", facts["metric"]
    repeats, base = first["repeats"], facts["base"]
    again = f"no {metric} with new seeds" if repeats["mean"] is None else _with_new_seeds(repeats)
    number = facts["best"]["number"]
    taken = "the base" if base is not None and base["number"] == number else f"trial {number}"
    return [
        f"Trial {first['number']} had the {which} {metric}, {_number(first['loss'])}, but {again}: {taken} is taken in "
        "its place."
    ]


def _with_new_seeds(repeats: Facts) -> str:
    spread = f" ± {_number(repeats['spread'])}" if repeats["spread"] is not None else ""
    return f"{_number(repeats['mean'])}{spread} with {_count(len(repeats['losses']), 'new seed', 'new seeds')}"


def _unstable(trial: Facts) -> str:
    repeats = trial["repeats"]
    lost = repeats["infeasible"]
    return (
        f"Trial {trial['number']} had {_number(trial['loss'])}, but could not be trained with {lost} of "
        f"{_count(lost + repeats['failed'] + len(repeats['losses']), 'new seed', 'new seeds')}: it is not recommended."
    )


def _against_the_base(facts: Facts) -> list[str]:
    difference, base = facts["difference"], facts["base"]
    if base is not None and facts["best"]["number"] == base["number"]:
        holds = " that holds with new seeds" if facts["finalists"] else ""
        return [f"No trial{holds} was better than the base as it is: keep it."]
    if difference is None:
        return []
    is_lower = (difference["mean"] < 0) != facts["higher_is_better"]
    amount = f"{_number(abs(difference['mean']))} {'lower' if is_lower else 'higher'}"
    interval = ""
    if difference["interval"] is not None:
        low, high = difference["interval"]
        interval = f" (95 % interval of the gain {_number(-high)} to {_number(-low)})"
    told = {
        "better": "That is a gain that seeds do not explain.",
        "worse": "That is worse: the base is kept.",
        "cannot tell": "Seeds alone could explain that.",
    }[difference["verdict"]]
    if difference["verdict"] == "cannot tell" and facts["best"]["repeats"]["infeasible"]:
        told = "And it could not be trained with every seed: that is no gain."
    elif difference["verdict"] == "cannot tell" and difference["mean"] > 0:
        told = "Seeds alone could explain that; the base is kept."
    return [f"With the same seeds it is {amount} than the base{interval}. {told}"]


def _arms(facts: Facts) -> list[str]:
    lines = []
    for arm in facts["arms"] or ():
        name = ", ".join(f"{path}={show(value)}" for path, value in arm["compared"].items())
        best = stands_for(arm)
        if best is None:
            lines.append(f"{name}: no trial could be trained.")
            continue
        repeats = best["repeats"]
        mean, spread = repeats["mean"], repeats["spread"]
        seeds = (
            ""
            if mean is None
            else f", {_number(mean)}{f' ± {_number(spread)}' if spread is not None else ''} with new seeds"
        )
        is_base = arm["base"] is not None and best["number"] == arm["base"]["number"]
        tuned = "with the values of the base, which nothing was better than" if is_base else "tuned for itself"
        lines.append(f"{name}, {tuned}: {_number(best['loss'])}{seeds}.")
    return [*lines, *(_compared(each, facts) for each in facts["comparison"] or ())]


def _compared(difference: Facts, facts: Facts) -> str:
    """The answer to what was asked."""
    one, other = (
        ", ".join(f"{path}={show(value)}" for path, value in difference[which].items())
        for which in ("compared", "against")
    )
    if difference["mean"] is None:
        return f"{one} or {other}: cannot tell, for they have no repetitions with the same seeds."
    word = "higher" if (difference["mean"] < 0) == facts["higher_is_better"] else "lower"
    amount = f"{_number(abs(difference['mean']))} {word} than {other} with the same seeds"
    interval = ""
    if difference["interval"] is not None:
        low, high = difference["interval"]
        interval = f" (95 % interval of the gain {_number(-high)} to {_number(-low)})"
    told = "It is better." if difference["verdict"] == "better" else "Which one is better cannot be told from that."
    return f"{one} is {amount}{interval}, each at its best. {told}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# The recipe


def recipe_text(facts: Facts, loaded: Loaded, study: str) -> str:
    """What the base asks for with the values that were found; the base's own, where new seeds say that it is better."""
    chosen = chosen_trial(facts)
    lines = [f"# Found by trainbook tune: study {study}, {facts['budget']} by {facts['method']}.", "#"]
    lines += [f"# {line}" for line in conclude(facts)]
    if facts["base"] is not None and chosen["number"] == facts["base"]["number"]:
        compared = ", with what is compared at its best" if facts["arms"] else ""
        lines += ["#", f"# Nothing was better: these are the values of the base{compared}."]
    return "\n".join([*lines, "", base_text(loaded, chosen["values"])])


def chosen_trial(facts: Facts) -> Facts:
    chosen = stands_for(facts)
    assert chosen is not None, "a study without a best has no recipe"
    return chosen
