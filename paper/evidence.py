"""Every number of the paper, from the results files that studies and benchmarks wrote. Nothing is typed by hand."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from trainbook.study.ablate.conclusion import LESS_SENSITIVE
from trainbook.study.ablate.statistics import effect_of, judge

HERE = Path(__file__).parent
ROOT = HERE.parent
STUDIES, BENCHMARKS = ROOT / "studies" / "results", ROOT / "benchmarks" / "results"
HOLDS, FALSE, UNDECIDED, NOT_TESTED = VERDICTS = ("holds", "false", "undecided", "not tested")
GIB = 2**30
REPEATS = 500  # of a draw from each curve

Facts = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """To a claim: what was measured, in words, and what that makes of the claim."""

    text: str
    verdict: str
    source: str = ""  # the results file
    command: str = ""  # that made it


# What files say


def read(path: Path) -> Facts:
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def studies() -> dict[str, Facts]:
    return {path.stem: read(path) for path in sorted(STUDIES.glob("*.json"))}


@cache
def benchmark(name: str) -> Facts:
    return read(BENCHMARKS / f"{name}.json")


def arm_of(place: str) -> Facts | None:
    """Of STUDY/ARM, if it was measured."""
    study, _, name = place.partition("/")
    found = studies().get(study, {"arms": []})["arms"]
    return next((each for each in found if each["name"] == name and each["effect"]), None)


def _place(study: str) -> tuple[str, str]:
    """Where its results are, and the command that made them, if there are any."""
    command = studies().get(study, {}).get("command", "")
    return (f"studies/results/{study}.json" if command else "", command)


def is_planned(place: str) -> bool:
    study, _, name = place.partition("/")
    return name in _planned_arms(study)


@cache
def _planned_arms(study: str) -> Facts:
    path = ROOT / "studies" / f"{study}.yaml"
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))["arms"] if path.is_file() else {}


# Words for what a study found


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:+.{digits}f} %".replace("-", "\N{MINUS SIGN}")


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def arm_text(place: str) -> str:
    """A sentence on one arm."""
    study, _, name = place.partition("/")
    arm = arm_of(place)
    if arm is None:
        return f"{name}: not measured yet."
    facts, effect = studies()[study], arm["effect"]
    share = facts["scale"] == "share"
    mean, low, high = (
        percent(effect[key]) if share else f"{effect[key]:+.3f}".replace("-", "\N{MINUS SIGN}")
        for key in ("mean", "low", "high")
    )
    words = {
        "better": "better than the control",
        "worse": "worse than the control",
        "equivalent": f"equivalent to the control within {100 * facts['epsilon']:g} %",
        "no evidence": "no evidence either way" if effect["low"] <= 0 <= effect["high"] else "not confirmed",
    }
    sets = f"{len(facts['data'])} data sets" if len(facts["data"]) > 1 else "one data set"
    return (
        f"{name}: {words[arm['verdict']]}; {facts['metric']} {mean} "
        f"(95 % interval {low} to {high}, {effect['pairs']} pairs on {sets})."
    )


# Claims that several verdicts fit.
FITTING = {"not worse": ("better", "equivalent"), "different": ("better", "worse")}


def verdict_of_arms(places: Sequence[str], expect: str) -> str:
    """Of a claim that says `expect` of each arm."""
    opposite = {"better": "worse", "worse": "better"}
    found = [arm_of(place) for place in places]
    if any(each is None for each in found):
        return NOT_TESTED
    verdicts = [each["verdict"] for each in found if each is not None]
    if all(each in FITTING.get(expect, (expect,)) for each in verdicts):
        return HOLDS
    if expect == "not worse":
        return FALSE if "worse" in verdicts else UNDECIDED
    if expect == "different":
        return FALSE if all(each == "equivalent" for each in verdicts) else UNDECIDED
    if expect == "equivalent":
        return FALSE if any(each in opposite for each in verdicts) else UNDECIDED
    # Something that was said to differ, and does not, is as false as something that differs the other way.
    return FALSE if any(each in (opposite[expect], "equivalent") for each in verdicts) else UNDECIDED


# What benchmarks say: one function for each claim. Its name stands in claims.yaml.


MEASURED: dict[str, Callable[[], Answer]] = {}


def measures(source: str = "", *, study: str = "") -> Callable[[Callable[[], tuple[str, str]]], Callable[[], Answer]]:
    """A function that gives words and a verdict from benchmarks/results/SOURCE.json or studies/results/STUDY.json."""

    def register(function: Callable[[], tuple[str, str]]) -> Callable[[], Answer]:
        def answer() -> Answer:
            text, verdict = function()
            if study:
                return Answer(text, verdict, *_place(study))
            command = benchmark(source).get("command", "") if source else ""
            return Answer(text, verdict, f"benchmarks/results/{source}.json" if source else "", command)

        MEASURED[getattr(function, "__name__", "?")] = answer
        return answer

    return register


def _transfer(job: str = "gpt", arm: str = "standard") -> Facts:
    return benchmark("transfer-h200")[job]["arms"][arm]


@measures("transfer-h200")
def width_lowers_loss() -> tuple[str, str]:
    sizes = _transfer()["sizes"]
    losses = [each["best_loss"] for each in sizes]
    text = ", ".join(f"{each['size']}: {each['best_loss']:.3f}" for each in sizes)
    falls = all(later < earlier for earlier, later in itertools.pairwise(losses))
    return f"Best loss of a GPT by width, after as many steps: {text}.", HOLDS if falls else FALSE


@measures("transfer-h200")
def rate_has_an_optimum() -> tuple[str, str]:
    inside, worst = [], []
    for job in ("gpt", "bert", "t5"):
        for each in _transfer(job)["sizes"]:
            losses = [loss for _, loss in each["losses"]]
            best = losses.index(min(losses))
            inside.append(0 < best < len(losses) - 1)
            worst.append((losses[0] / min(losses) - 1, losses[-1] / min(losses) - 1))
    low, high = (max(each) for each in zip(*worst, strict=True))
    text = (
        f"In {sum(inside)} of {len(inside)} sweeps over three architectures the best rate lies inside the range; the "
        f"lowest rate costs up to {percent(low, 0)} and the highest up to {percent(high, 0)} of the loss."
    )
    return text, HOLDS if all(inside) else UNDECIDED


@measures("transfer-h200")
def rate_1e4_from_scratch() -> tuple[str, str]:
    best = [each["best_rate"] for job in ("gpt", "bert", "t5") for each in _transfer(job)["sizes"]]
    lost = [
        (each["losses"][0][1] / each["best_loss"] - 1, each["losses"][0][0])
        for job in ("gpt", "bert", "t5")
        for each in _transfer(job)["sizes"]
    ]
    text = (
        f"Best rates of models from scratch lie between {min(best):g} and {max(best):g}; even {lost[0][1]:g} costs "
        f"{percent(min(each for each, _ in lost), 0)} to {percent(max(each for each, _ in lost), 0)} of the loss. "
        "What suits a model of billions of parameters is too low for small ones."
    )
    return text, FALSE if min(best) > 2e-4 else HOLDS


@measures("transfer-h200")
def larger_models_need_lower_rates() -> tuple[str, str]:
    shifts = {job: _transfer(job)["shift"] for job in ("gpt", "bert", "t5")}
    sizes = _transfer()["sizes"]
    text = (
        f"From width {sizes[0]['size']} to {sizes[-1]['size']} the best rate of a GPT moves by a factor of "
        f"{2 ** shifts['gpt']:.2f} (BERT {2 ** shifts['bert']:.2f}, T5 {2 ** shifts['t5']:.2f})."
    )
    return text, HOLDS if all(each < -0.5 for each in shifts.values()) else UNDECIDED


@measures("transfer-h200")
def mup_transfers_width() -> tuple[str, str]:
    shifts = {job: (_transfer(job)["shift"], _transfer(job, "mup")["shift"]) for job in ("gpt", "bert", "t5")}
    text = "; ".join(f"{job}: {2**plain:.2f} without, {2**mup:.2f} with muP" for job, (plain, mup) in shifts.items())
    moved = all(abs(mup) < 0.5 < abs(plain) for plain, mup in shifts.values())
    return f"Factor by which the best rate moves from the smallest to the largest width: {text}.", (
        HOLDS if moved else UNDECIDED
    )


@measures()
def rate_matters_most() -> tuple[str, str]:
    """What the rate does over a factor of four, beside what each change of a study does."""
    by_rate, effects = [], []
    for study in studies().values():
        for cell in study["control"]["by_data"]:
            means = [sum(each) / len(each) for each in cell["by_rate"].values() if each and None not in each]
            if means and len(cell["by_rate"]) > 1:
                by_rate.append(max(means) / min(means) - 1)
        effects += [(abs(each["effect"]["mean"]), each["name"]) for each in study["arms"] if each["effect"]]
    if not by_rate or not effects:
        return "Not measured yet.", NOT_TESTED
    larger = [name for effect, name in effects if effect > min(by_rate)]
    text = (
        f"Over the tried rates the loss of the controls differs by {percent(min(by_rate))} to {percent(max(by_rate))}; "
        f"of {len(effects)} other changes, {len(larger)} did more than the smallest of these"
        f"{' (' + ', '.join(larger[:4]) + ')' if larger else ''}."
    )
    return text, HOLDS if not larger else UNDECIDED


@measures(study="gpt-batch")
def batch_moves_the_rate() -> tuple[str, str]:
    """The best learning rate by batch size, of the study that tuned it for each. Where data sets disagree on the
    direction, nothing is decided."""
    study = studies().get("gpt-batch")
    if study is None:
        return "Not measured yet.", NOT_TESTED
    sizes = {"half": 0.5, "control": 1.0, "double": 2.0, "eight-times": 8.0}
    arms = sorted((study["control"], *study["arms"]), key=lambda arm: sizes[arm["name"]])
    rates = {sizes[arm["name"]]: [each["rate"] for each in arm["by_data"]] for arm in arms}
    text = "; ".join(f"{size:g} times: {listed([f'{each:g}' for each in of])}" for size, of in rates.items())
    moves = [large / small for small, large in zip(rates[0.5], rates[8.0], strict=True)]
    rises = math.prod(moves) ** (1 / len(moves))
    verdict = HOLDS if rises > 1.5 and min(moves) >= 1 else FALSE if rises < 1 / 1.5 and max(moves) <= 1 else UNDECIDED
    return (
        f"Best learning rate by batch size, at equal tokens, on {listed(study['data'])}: {text}. The largest batch "
        "makes a sixteenth of the updates of the smallest."
    ), verdict


@measures(study="gpt-sensitivity")
def qk_norm_sensitivity() -> tuple[str, str]:
    """Whether the loss depends less on the learning rate with query-key normalization, on every data set."""
    study = studies().get("gpt-sensitivity")
    if study is None:
        return "Not measured yet.", NOT_TESTED
    control, arm = study["control"], next(each for each in study["arms"] if each["name"] == "qk-norm")
    with_norm, without = ([each["sensitivity"] for each in of["by_data"]] for of in (arm, control))
    rates = study["rates"]

    def losses(of: Facts, rate: float) -> str:
        found = [each["by_rate"][str(rate)] for each in of["by_data"]]
        return listed([f"{sum(each) / len(each):.2f}" for each in found])

    text = (
        f"Over {len(rates)} learning rates from {rates[0]:g} to {rates[-1]:g}, the mean excess loss of a GPT on "
        f"{listed(study['data'])} is {listed([f'{each:.2f}' for each in with_norm])} with query-key normalization and "
        f"{listed([f'{each:.2f}' for each in without])} without. At the highest rate the loss is "
        f"{losses(arm, rates[-1])} with it and {losses(control, rates[-1])} without."
    )
    ratios = [own / other for own, other in zip(with_norm, without, strict=True)]
    return text, HOLDS if max(ratios) <= LESS_SENSITIVE else FALSE if min(ratios) >= 1 else UNDECIDED


def _pairs(study: Facts, arm: str, other: str) -> dict[str, list[float]]:
    """By data set, the relative differences in loss between two arms of a study, of runs with the same seed."""
    by_data = ({each["data"]: each["losses"] for each in _arm(study, name)["by_data"]} for name in (arm, other))
    losses, others = by_data
    return {
        data: [losses[data][seed] / others[data][seed] - 1 for seed in losses[data] if seed in others[data]]
        for data in losses
    }


def _arm(study: Facts, name: str) -> Facts:
    return next(each for each in (study["control"], *study["arms"]) if each["name"] == name)


def _difference(study: Facts, arm: str, other: str) -> tuple[str, list[str]]:
    """What differs between two arms on each data set, in words, with the verdicts."""
    pairs = _pairs(study, arm, other)
    effects = {data: effect_of([differences]) for data, differences in pairs.items()}
    told = [
        f"{percent(each.mean)} on {data} (95 % interval {percent(each.low)} to {percent(each.high)})"
        for data, each in effects.items()
        if each is not None
    ]
    return listed(told), [each.verdict for each in judge(list(effects.values()), study["epsilon"])]


@measures(study="gpt-epochs")
def many_epochs_overfit() -> tuple[str, str]:
    """Sixteen times the steps against four times, each at its best learning rate, and at the same one."""
    study = studies().get("gpt-epochs")
    if study is None:
        return "Not measured yet.", NOT_TESTED
    text, verdicts = _difference(study, "sixteen-times", "four-times")
    rate = str(_arm(study, "four-times")["by_data"][0]["rate"])

    def losses(name: str) -> str:
        found = [each["by_rate"][rate] for each in _arm(study, name)["by_data"]]
        return listed([f"{sum(each) / len(each):.2f}" for each in found])

    verdict = HOLDS if set(verdicts) == {"worse"} else FALSE if "worse" not in verdicts else UNDECIDED
    return (
        f"Loss after sixteen times the steps against four times, each at its best learning rate: {text}. With the same "
        f"learning rate {rate}, where four times end at {losses('four-times')} on {listed(study['data'])}, sixteen "
        f"times end at {losses('sixteen-times')}."
    ), verdict


@measures(study="gpt-epochs")
def dropout_against_overfitting() -> tuple[str, str]:
    """Where the same text is repeated: with dropout against without, each at its best learning rate."""
    study = studies().get("gpt-epochs")
    if study is None:
        return "Not measured yet.", NOT_TESTED
    text, verdicts = _difference(study, "sixteen-times-with-dropout", "sixteen-times")
    verdict = HOLDS if set(verdicts) == {"better"} else FALSE if "better" not in verdicts else UNDECIDED
    return (
        f"Where a text is repeated until the model overfits, dropout of .2 changes the loss by {text}. Where no sample "
        "is seen twice, dropout only costs (Section 4)."
    ), verdict


def sensitivities(name: str) -> Facts:
    """Of a study, the mean excess loss over the tried rates: data sets, and a row for each arm."""
    study = studies().get(name)
    if study is None:
        return {"data": [], "rows": []}
    rows = [
        [arm["name"], *(f"{each['sensitivity']:.2f}" for each in arm["by_data"])]
        for arm in (study["control"], *study["arms"])
    ]
    return {"data": study["data"], "rows": rows}


@measures("step-times-h200")
def batch_speed() -> tuple[str, str]:
    rows = {row["name"]: row for row in benchmark("step-times-h200")["rows"]}

    def tokens(name: str) -> float:
        row = rows[name]
        return row["case"]["rows"] * row["case"]["length"] / row["seconds_per_step"]

    pairs = [("gpt-20m-64x256-bf16", "gpt-20m-128x256-bf16"), ("gpt-124m-4x1024-bf16", "gpt-124m-16x1024-bf16")]
    ratios = [tokens(large) / tokens(small) for small, large in pairs]
    text = (
        f"Twice the rows give {ratios[0]:.2f} times the tokens per second at 20M parameters, "
        f"four times the rows {ratios[1]:.2f} times at 124M."
    )
    return text, HOLDS if min(ratios) > 1.1 else FALSE


@measures("step-times-h200")
def fp16_speed() -> tuple[str, str]:
    rows = {row["name"]: row for row in benchmark("step-times-h200")["rows"]}
    half, full = rows["gpt-124m-16x1024-fp16"], rows["gpt-124m-8x1024-fp32"]
    faster = (full["seconds_per_step"] / full["case"]["rows"]) / (half["seconds_per_step"] / half["case"]["rows"])
    memory = (half["peak_bytes"] / half["case"]["rows"]) / (full["peak_bytes"] / full["case"]["rows"])
    text = f"fp16 trains a GPT of 124M {faster:.1f} times as fast as fp32, with {memory:.2f} times the memory per row."
    return text, HOLDS if faster > 1.1 and memory < 0.9 else FALSE


@measures("memory-h200")
def mixed_precision_memory() -> tuple[str, str]:
    rows = {row["name"]: row for row in benchmark("memory-h200")["rows"]}
    half, full = rows["gpt-124m-16x1024-bf16"], rows["gpt-124m-8x1024-fp32"]

    def beyond_weights(row: Facts) -> float:
        return (row["peak_bytes"] - row["held_bytes"]) / row["case"]["rows"]

    ratio = beyond_weights(half) / beyond_weights(full)
    text = (
        f"Beside weights and optimizer state, which stay in fp32, a row of a GPT of 124M takes {ratio:.2f} times the "
        f"memory. In all, 16 rows in bf16 take {half['peak_bytes'] / GIB:.1f} GiB and 8 rows in fp32 "
        f"{full['peak_bytes'] / GIB:.1f} GiB."
    )
    return text, HOLDS if ratio < 0.6 else FALSE


@measures("probes-h200")
def checkpointing_speed() -> tuple[str, str]:
    rows = {row["name"]: row for row in benchmark("probes-h200")["rows"]}
    large = rows["probe-gpt-1.3b"]["tokens_per_second"] / rows["probe-gpt-1.3b-full"]["tokens_per_second"] - 1
    times = {row["name"]: row for row in benchmark("step-times-h200")["rows"]}
    plain, full = times["gpt-124m-16x1024-bf16-compiled"], times["gpt-124m-32x1024-bf16-full-compiled"]
    small = full["seconds_per_step"] / 2 / plain["seconds_per_step"] - 1
    text = (
        f"Recomputing everything takes {percent(large, 0)} time at 1.3B parameters and {percent(small, 0)} at 124M "
        "(compiled, bf16): it depends on the model."
    )
    fits = [0.15 <= each <= 0.35 for each in (large, small)]
    return text, HOLDS if all(fits) else UNDECIDED if any(fits) else FALSE


@measures("memory-h200")
def checkpointing_memory() -> tuple[str, str]:
    rows = {row["name"]: row for row in benchmark("memory-h200")["rows"]}
    plain, full = rows["bert-110m-32x512-bf16"], rows["bert-110m-64x512-bf16-full"]

    def per_row(row: Facts) -> float:
        return (row["peak_bytes"] - row["held_bytes"]) / row["case"]["rows"]

    ratio = per_row(full) / per_row(plain)
    text = f"Beside weights and optimizer state, a row of BERT-base takes {ratio:.2f} times the memory."
    return text, HOLDS if ratio < 0.6 else FALSE


@measures("memory-h200")
def eight_bit_memory() -> tuple[str, str]:
    rows = {row["name"]: row for row in benchmark("memory-h200")["rows"]}
    row = rows["gpt-124m-16x512-bf16-adamw_8bit"]
    plain = rows["gpt-124m-16x1024-bf16"]
    eight, full = (each["held_bytes"] / each["parameters"] for each in (row, plain))
    text = (
        f"Weights and optimizer state of a GPT of 124M take {eight:.1f} bytes per parameter with 8-bit AdamW, "
        f"{full:.1f} with AdamW in fp32."
    )
    return text, HOLDS if eight < 0.8 * full else FALSE


@measures("padding-h200")
def padding_shares() -> tuple[str, str]:
    rows = {row["padding"]: row for row in benchmark("padding-h200")["timings"]}
    text = (
        f"Bucketed rows have {100 * rows['bucketed']['real_share']:.0f} % real tokens and train at "
        f"{rows['bucketed']['ratio']:.2f} of the speed of rows without padding; packed rows have "
        f"{100 * rows['packed']['real_share']:.0f} % and {rows['packed']['ratio']:.2f}."
    )
    return text, HOLDS


def _poison(part: str, name: str, policy: str) -> Facts:
    rows = benchmark("guard-poison")["held-out"][part]["by_placement"]
    return next(row for row in rows if row["name"] == name and row["policy"] == policy)


@measures("guard-poison")
def skipping_bad_batches() -> tuple[str, str]:
    plain, guard = (_poison("loops", "burst-12", policy) for policy in ("none", "guard"))
    text = (
        f"Twelve bad batches in a row, {plain['runs']} held-out runs: the median final loss is "
        f"{plain['median_loss']:.2f} standard deviations over seeds above the clean run without a guard "
        f"({plain['lost']} runs were lost), {guard['median_loss']:.2f} with skipping ({guard['lost']} lost)."
    )
    helps = guard["lost"] <= plain["lost"] and guard["median_loss"] < plain["median_loss"]
    return text, HOLDS if helps else UNDECIDED


def _rates(predicate: Callable[[Facts], bool]) -> list[tuple[Facts, Facts, Facts]]:
    return [
        (row, guard, plain)
        for row in benchmark("guard-rates")["table"]
        for guard, plain in zip(row["guard"], row["none"], strict=True)
        if predicate(guard)
    ]


@measures("guard-rates")
def rollback_recovers() -> tuple[str, str]:
    found = _rates(lambda guard: guard["events"]["rollback"] > 0)
    better = [guard["loss"] < plain["loss"] for _, guard, plain in found]
    text = (
        f"In {len(found)} runs with a rate far too high that was reached slowly, the guard rolled back and halved the "
        f"rate: {sum(better)} ended lower than without ("
        + "; ".join(f"{row['optimizer']} {plain['loss']:.1f} to {guard['loss']:.2f}" for row, guard, plain in found)
        + ")."
    )
    return text, HOLDS if found and all(better) else UNDECIDED


@measures("guard-rates")
def lower_rate_recovers() -> tuple[str, str]:
    found = _rates(lambda guard: guard["events"]["remedy"] > 0)
    better = [guard["loss"] < plain["loss"] / 2 for _, guard, plain in found]
    text = f"With the rate halved once or twice after a rollback, {sum(better)} of {len(found)} runs came back."
    return text, HOLDS if found and all(better) else UNDECIDED


def _searches(job: str, method: str) -> dict[int, float]:
    found = benchmark("tuning")["searches"]
    return {int(name.split()[2]): facts["mean"] for name, facts in found.items() if name.startswith(f"{job} {method} ")}


def _compared(first: str, second: str) -> tuple[float, float, int]:
    """Mean difference of `second` from `first` in shares, with half a 95 % interval: paired by job and repetition."""
    from scipy import stats

    pairs = []
    for job in ("gpt", "bert"):
        one, other = _searches(job, first), _searches(job, second)
        pairs += [other[key] / one[key] - 1 for key in one if key in other]
    mean, count = sum(pairs) / len(pairs), len(pairs)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in pairs) / (count - 1))
    return mean, float(stats.t.ppf(0.975, count - 1)) * deviation / math.sqrt(count), count


def _search_answer(first: str, second: str, names: tuple[str, str]) -> tuple[str, str]:
    mean, half, count = _compared(first, second)
    text = (
        f"{names[1]} against {names[0]}, 31 trials each: final loss {percent(mean)} "
        f"(95 % interval {percent(mean - half)} to {percent(mean + half)}, {count} searches)."
    )
    return text, HOLDS if mean + half < 0 else FALSE if mean - half > 0 else UNDECIDED


@measures("tuning")
def random_against_grid() -> tuple[str, str]:
    return _search_answer("grid", "sobol", ("a grid", "Quasi-random points"))


@measures("tuning")
def zoom_against_random() -> tuple[str, str]:
    return _search_answer("sobol", "zoom", ("quasi-random points", "Zooming in"))


@measures("transfer-h200")
def log_scale_for_rates() -> tuple[str, str]:
    """Best of eight draws on the measured curves of loss against rate, interpolated; a search of the same range."""
    draws, curves = 8, measured_curves()
    linear, logarithmic = (lost_by_drawing(draws, is_logarithmic=each) for each in (False, True))
    text = (
        f"Drawn from the measured curves of {len(curves)} sweeps, the best of {draws} rates between "
        f"{curves[0][0][0]:g} and {curves[0][-1][0]:g} loses {percent(linear)} on a linear and {percent(logarithmic)} "
        "on a logarithmic scale."
    )
    return text, HOLDS if logarithmic < linear / 1.5 else UNDECIDED


def measured_curves() -> list[Sequence[Sequence[float]]]:
    """Of loss against learning rate, with the standard parametrization."""
    return [each["losses"] for job in ("gpt", "bert", "t5") for each in _transfer(job)["sizes"]]


def lost_by_drawing(count: int, *, is_logarithmic: bool) -> float:
    """The share of the loss by which the best of so many drawn rates misses the best measured one, on average."""
    source, lost = random.Random(0), []
    for curve in measured_curves() * REPEATS:
        (low, _), (high, _) = curve[0], curve[-1]
        rates = [
            low * (high / low) ** source.random() if is_logarithmic else source.uniform(low, high) for _ in range(count)
        ]
        lost.append(min(_interpolated(curve, rate) for rate in rates) / min(loss for _, loss in curve) - 1)
    return sum(lost) / len(lost)


def _interpolated(curve: Sequence[Sequence[float]], rate: float) -> float:
    """A loss between two measured rates, on a logarithmic scale of rates."""
    for (low, below), (high, above) in itertools.pairwise(curve):
        if rate <= high:
            share = math.log(rate / low) / math.log(high / low)
            return below + max(0.0, share) * (above - below)
    return curve[-1][1]


def _averaged(beta: float) -> float:
    """Values that an exponential average with this weight is about the mean of."""
    return 1 / (1 - beta)


@measures()
def beta_of_9() -> tuple[str, str]:
    return f"Exact: 1/(1 \N{MINUS SIGN} .9) = {_averaged(0.9):.0f}.", HOLDS


@measures()
def beta_of_999() -> tuple[str, str]:
    return f"Exact: 1/(1 \N{MINUS SIGN} .999) = {_averaged(0.999):,.0f}, ten times fewer.", FALSE


@measures()
def beta_sensitivity() -> tuple[str, str]:
    values = ", ".join(f"{_averaged(each):,.2f}".rstrip("0").rstrip(".") for each in (0.9, 0.9005, 0.999, 0.9995))
    return f"Exact: {values} values for .9, .9005, .999 and .9995.", HOLDS


# Claims


def claims() -> list[Facts]:
    """Each claim of the notes with its answer."""
    file = YAML(typ="safe").load((HERE / "claims.yaml").read_text(encoding="utf-8"))
    return [{**claim, **asdict(answer_to(claim))} for claim in file["claims"]]


def answer_to(claim: Facts) -> Answer:
    if "arms" in claim:
        places = claim["arms"]
        first = places[0].partition("/")[0]
        source, command = _place(first)
        text = " ".join(
            [*(arm_text(place) for place in places), *([_sentence(claim["remark"])] if "remark" in claim else [])]
        )
        return Answer(text, verdict_of_arms(places, claim["expect"]), source, command)
    if "measured" in claim:
        return MEASURED[claim["measured"]]()
    if "test" in claim:
        return Answer(_sentence(claim["answer"]), HOLDS if claim["verdict"] else FALSE, claim["test"], "make test")
    return Answer(_sentence(claim["untested"]), NOT_TESTED)


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."
