"""What an ablation found, in sentences; the recipe of it, and its files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainbook.errors import MissingExtra, RunError
from trainbook.knobs import Loaded
from trainbook.knobs.measured_on import MEASURED_ON
from trainbook.runs import write_text_atomically
from trainbook.runs.jsonl import dumps
from trainbook.study.ablate.results import results
from trainbook.study.ablate.statistics import ALPHA, smallest_effect
from trainbook.study.ablate.study_file import CONTROL, RATE, AblateQuestion
from trainbook.study.space import base_text
from trainbook.study.tune.trial import Trial
from trainbook.terminal import this_command

ANSWER, RECIPE, WORDS = "ablation.json", "best.yaml", "conclusion.md"
NOTABLE = 0.05  # of speed or memory: a smaller change is not worth a sentence
LEARNED = 0.97  # of the loss of guessing by frequency, that a control must be below
MOST_SEEDS = 1_000  # that are counted up to, to see epsilon
# What it takes to call an arm more or less sensitive to the learning rate. There is no test of it, so that it has to be
# the same on several data sets.
SENSITIVE_RATES, SENSITIVE_RANGE, SENSITIVE_DATA = 5, 100.0, 2  # the least number of rates, their factor, data sets
LESS_SENSITIVE = 0.75  # times the control's mean excess loss, or less, on each of them; its inverse is more

Facts = dict[str, Any]


def conclude(facts: Facts) -> list[str]:
    """Sentences: a verdict for each arm, then what limits the answer."""
    if not any(each["losses"] for each in facts["control"]["by_data"]):
        return [_nothing(facts)]
    lines = [_verdict(each, facts) + contradiction(each, facts) for each in facts["arms"]]
    lines += [line for each in facts["arms"] for line in _sensitivity(each, facts)]
    lines += [line for each in facts["arms"] for line in _also(each)]
    if facts["cost"].get("runs_at_once", 1) > 1:  # studies of earlier versions have not counted them
        lines.append(
            "Speeds are not compared, because several runs shared the machine; for that, run with --workers 1."
        )
    lines += [line for each in facts["arms"] for line in _another_loss(each, facts)]
    lines += _unlearned(facts)
    lines += [line for each in (facts["control"], *facts["arms"]) for line in _edges(each, facts)]
    lines += [line for each in (facts["control"], *facts["arms"]) for line in _trouble(each)]
    if len(facts["data"]) > 1:
        lines.append(
            f"An effect is the mean over {len(facts['data'])} data sets, which count equally; its interval is for "
            "these, not for others."
        )
    return lines


def _verdict(arm: Facts, facts: Facts) -> str:
    effect, name = arm["effect"], arm["name"]
    if effect is None:
        return f"{name}: no evidence either way, because fewer than two seeds ended with a {facts['metric']}."
    if stuck := arm.get("never_varied"):
        places = ", ".join(f"{each['value']:.4g} on {each['data']}" for each in stuck)
        return (
            f"{name}: no evidence either way, because {facts['metric']} is the same in every run of it and of the "
            f"control ({places}). Either nothing was learned, as where the most frequent class is always predicted, or "
            "nothing is left to learn. Train longer, or compare by another metric, such as the loss."
        )
    number = _amount(effect["mean"], facts)
    pairs = f"{effect['pairs']} pairs of runs"
    interval = f"95 % interval {_amount(effect['low'], facts)} to {_amount(effect['high'], facts)}, {pairs}"
    arms = f" after Holm's correction for {len(facts['arms'])} arms" if len(facts["arms"]) > 1 else ""
    if arm["verdict"] in ("better", "worse"):
        return (
            f"{name} is {arm['verdict']} than the control: {facts['metric']} {number} ({interval}; p = "
            f"{arm['p_corrected']:.2g}{arms}; sign-flip test p = {effect['p_flips']:.2g})."
        )
    if arm["verdict"] == "equivalent":
        within = f"90 % interval {_amount(effect['low_90'], facts)} to {_amount(effect['high_90'], facts)}, {pairs}"
        return f"{name} is equivalent to the control within {_size(facts['epsilon'], facts)}: {number} ({within})."
    if reasons := _unconfirmed(arm, arms):
        return f"{name}: not confirmed: {number} ({interval}), because {reasons}. {_what_it_takes(arm, facts)}"
    return f"{name}: no evidence either way: {number} ({interval}). {_what_it_takes(arm, facts)}"


def _unconfirmed(arm: Facts, arms: str) -> str:
    """Why a difference that the interval alone would show is not called one; empty where it shows none."""
    effect = arm["effect"]
    if effect["low"] <= 0 <= effect["high"]:
        return ""
    reasons = []
    if arm["p_corrected"] > ALPHA:
        reasons.append(f"p = {arm['p_corrected']:.2g}{arms}")
    if effect["p_flips"] > max(ALPHA, effect["least_flips"]) * (1 + 1e-9):
        reasons.append(f"the sign-flip test does not agree (p = {effect['p_flips']:.2g})")
    return " and ".join(reasons)


def contradiction(arm: Facts, facts: Facts) -> str:
    """Where data sets disagree on the sign, the mean over them hides what the arm does: a sentence with both."""
    known = [each for each in arm["by_data"] if each["effect"] is not None]
    lower = [each for each in known if each["effect"]["high"] < 0]
    higher = [each for each in known if each["effect"]["low"] > 0]
    if not lower or not higher:
        return ""
    better, worse = (higher, lower) if facts["higher_is_better"] else (lower, higher)

    def listed(several: list[Facts]) -> str:
        return ", ".join(f"{each['data']} ({_amount(each['effect']['mean'], facts)})" for each in several)

    return f" It depends on the data: better on {listed(better)}, worse on {listed(worse)}."


def _what_it_takes(arm: Facts, facts: Facts) -> str:
    seen = arm["smallest_effect"]
    if seen is None or not math.isfinite(seen):
        return "More seeds are needed."
    line = f"With these seeds, an effect of {_size(seen, facts)} is found in 80 % of studies"
    needed = seeds_for(facts["epsilon"], arm["noise"], len(facts["data"]), len(facts["arms"]))
    if needed is None:
        return f"{line}; one of {_size(facts['epsilon'], facts)} takes more than {MOST_SEEDS:,} seeds."
    if needed > len(facts["seeds"]):
        return f"{line}; to find one of {_size(facts['epsilon'], facts)} takes about {needed} seeds."
    return f"{line}."


def seeds_for(effect: float, noise: float, data_sets: int, arms: int) -> int | None:
    """How many seeds see an effect of this size; None: more than anybody will train."""
    if not noise:
        return 2
    # The effect that is seen falls with the square root of the seeds, once there are many.
    many = 32
    seeds = max(2, math.ceil(many * (smallest_effect(noise, many, data_sets, arms) / effect) ** 2))
    while seeds <= MOST_SEEDS and smallest_effect(noise, seeds, data_sets, arms) > effect:
        seeds += max(1, seeds // 16)
    return seeds if seeds <= MOST_SEEDS else None


def _sensitivity(arm: Facts, facts: Facts) -> list[str]:
    """Where the arm's loss depends clearly more or less on the learning rate than the control's."""
    rates = facts["rates"]
    if len(rates) < SENSITIVE_RATES or rates[-1] < SENSITIVE_RANGE * rates[0] or len(facts["data"]) < SENSITIVE_DATA:
        return []
    ours, theirs = ([each["sensitivity"] for each in of["by_data"]] for of in (arm, facts["control"]))
    if None in ours or not all(theirs):
        return []
    ratios = [each / control for each, control in zip(ours, theirs, strict=True)]
    if max(ratios) <= LESS_SENSITIVE:
        which = "less"
    elif min(ratios) >= 1 / LESS_SENSITIVE:
        which = "more"
    else:
        return []
    own, of_control = (_listed([f"{each:.3g}" for each in values]) for values in (ours, theirs))
    return [
        f"{arm['name']} is {which} sensitive to the learning rate than the control: the loss is above its best one by "
        f"{own} on {_listed(facts['data'])}, against {of_control}, in the mean over {len(rates)} rates from "
        f"{rates[0]:g} to {rates[-1]:g} (as Wortsman et al. 2023 define it: a run that diverges counts as one that has "
        "learned nothing)."
    ]


def _listed(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _also(arm: Facts) -> list[str]:
    """What it costs or saves besides."""
    found = []
    for key, what in (("tokens_per_second_ratio", "tokens per second"), ("peak_bytes_ratio", "peak memory")):
        ratios = [each[key] for each in arm["by_data"] if each.get(key) is not None]
        if key == "tokens_per_second_ratio" and not all(each.get("speeds_are_apart", True) for each in arm["by_data"]):
            continue  # runs of one arm differ as much among themselves
        if ratios and abs(math.log(_middle(ratios))) > math.log1p(NOTABLE):
            found.append(f"{arm['name']} has {_middle(ratios):.2f} times the control's {what}.")
    ratios = [each["tokens_to_target"]["ratio"] for each in arm["by_data"]]
    known = [each for each in ratios if each is not None]
    if known and abs(math.log(_middle(known))) > math.log1p(NOTABLE):
        found.append(
            f"{arm['name']} needs {_middle(known):.2f} times the control's tokens to reach the control's final loss."
        )
    return found


def _another_loss(arm: Facts, facts: Facts) -> list[str]:
    """Of an arm that is evaluated on something else than the control is."""
    changed = [each for each in arm["values"] if each in MEASURED_ON]
    if not changed:
        return []
    return [
        f"{arm['name']} changes {_listed(changed)}, and with it what the {facts['metric']} is "
        f"measured on: its effect does not say which of the two learns more."
    ]


def _unlearned(facts: Facts) -> list[str]:
    """Data sets on which the control learned next to nothing, so that no arm can show what it does."""
    found = []
    for each in facts["control"]["by_data"]:
        guessing, mean = each.get("guessing_loss"), each["mean"]
        if facts["metric"] == "loss" and guessing and mean is not None and mean > LEARNED * guessing:
            found.append(
                f"On {each['data']} the control ends at a loss of {mean:.4g}, and guessing by frequency has "
                f"{guessing:.4g}: next to nothing was learned there, so no arm can show what it does, and effects seem "
                "smaller than they are. Train longer there, or replace the data set."
            )
    return found


def _edges(arm: Facts, facts: Facts) -> list[str]:
    name = "the control" if arm["name"] == CONTROL else arm["name"]
    ties = [
        f"On {each['data']} {facts['metric']} of {name} is the same at {len(each['tied_rates'])} learning rates "
        f"({', '.join(f'{rate:g}' for rate in each['tied_rates'])}): {each['rate']:g} was taken, and another may be "
        "better. Compare by a metric that tells them apart, such as the loss."
        for each in arm["by_data"]
        if each.get("tied_rates")
    ]
    return ties + _outermost(arm, name)


def _outermost(arm: Facts, name: str) -> list[str]:
    found = [each for each in arm["by_data"] if each["edge"]]
    if not found:
        return []
    places = ", ".join(f"{each['data']} ({each['edge']}, {each['rate']:g})" for each in found)
    return [
        f"The best learning rate of {name} was an outermost one of those tried on {places}: a better one may lie "
        "beyond. Repeat the study with a wider range of rates."
    ]


def _trouble(arm: Facts) -> list[str]:
    found = []
    for each in arm["by_data"]:
        for state, words in (("diverged", "diverged"), ("failed", "failed for other reasons")):
            if each[state]:
                found.append(f"{arm['name']}: {each[state]} of {each['runs']} runs on {each['data']} {words}.")
        if not each["runs"]:
            found.append(f"{arm['name']} could not be trained on {each['data']} at any of the learning rates.")
    return found


def _nothing(facts: Facts) -> str:
    reasons = [each["reason"] for each in facts["trials"] if each["reason"]]
    said = f" The first trial reported: {reasons[0]}." if reasons else ""
    return f"No run of the control ended with a value of {facts['metric']}.{said}"


def _amount(value: float, facts: Facts) -> str:
    """With its sign."""
    return f"{100 * value:+.2f} %" if facts["scale"] == "share" else f"{value:+.4f}"


def _size(value: float, facts: Facts) -> str:
    return f"{100 * value:.2g} %" if facts["scale"] == "share" else f"{value:.2g}"


def _middle(values: list[float]) -> float:
    """The geometric mean of ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))


# The end of a study


def finish(question: AblateQuestion, plan: Mapping[str, Any], trials: list[Trial], folder: Path) -> Facts:
    """The answer for programs. RunError: no run of the control ended with a loss."""
    facts = {"study": folder.name, "command": this_command(), **results(question, plan, trials, folder)}
    best = best_arm(facts)
    facts |= {"conclusion": conclude(facts), "best": best["name"], "recipe": None, "pictures": [], "remarks": []}
    try:
        recipe = folder / RECIPE
        write_text_atomically(recipe, recipe_text(facts, question.loaded, folder.name))
        facts["recipe"], facts["recipe_is_base"] = str(recipe), best["name"] == CONTROL
        _write(facts, folder)
        if not any(each["losses"] for each in facts["control"]["by_data"]):
            raise RunError(facts["conclusion"][0])
        # What took hours is written by now: a picture that cannot be drawn is no reason to lose it.
        facts["pictures"], facts["remarks"] = _pictures(facts, folder)
        _write(facts, folder)
    except OSError as error:
        raise RunError(
            f"the answer cannot be written into {folder}: {error.strerror or error}. All runs are kept: fix this and "
            "run the same command again."
        ) from None
    return facts


def best_arm(facts: Facts) -> Facts:
    """The better one with the largest effect; the control, if there is none."""
    sign = -1 if facts["higher_is_better"] else 1
    better = [each for each in facts["arms"] if each["verdict"] == "better"]
    return min(better, key=lambda each: sign * each["effect"]["mean"], default=facts["control"])


def recipe_text(facts: Facts, loaded: Loaded, study: str) -> str:
    best = best_arm(facts)
    lines = [f"# Found by trainbook ablate: study {study}.", "#", *(f"# {line}" for line in conclude(facts))]
    if best["name"] == CONTROL:
        lines += ["#", "# No arm is better than the base: these are its values."]
    values = dict(best.get("values", {}))
    rates = {each["rate"] for each in best["by_data"]}
    if len(rates) == 1:
        values[RATE] = rates.pop()
    else:
        each = ", ".join(f"{each['rate']:g} on {each['data']}" for each in best["by_data"])
        lines += ["#", f"# The best learning rates are {each}; the base's own is kept here."]
    return "\n".join([*lines, "", base_text(loaded, values)])


def _write(facts: Facts, folder: Path) -> None:
    write_text_atomically(folder / ANSWER, dumps(facts) + "\n")
    write_text_atomically(folder / WORDS, "\n\n".join([f"# Ablation {folder.name}", *facts["conclusion"], ""]))


def _pictures(facts: Facts, folder: Path) -> tuple[list[str], list[str]]:
    """Those that can be drawn, and remarks on what could not."""
    try:
        from trainbook.charts.ablation import draw_ablation

        return [str(path) for path in draw_ablation(facts, folder)], []
    except MissingExtra:
        return [], ["no figures: they need pip install 'trainbook[charts]'"]
    except Exception as error:
        return [], [f"the figures could not be drawn: {type(error).__name__}: {error}"]
