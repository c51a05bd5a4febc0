"""The models of the doctor (src/trainbook/doctor/likeness.py, calibration.py), fitted on judged runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainbook.doctor import calibration
from trainbook.doctor.calibration import Thresholds
from trainbook.doctor.causes import CAUSES
from trainbook.doctor.likeness import HEALTHY, SCALE, Likeness, inputs, likeness, unpacked
from trainbook.finding import Finding

STRENGTH = 0.3  # of the evidence against the belief that weights are near 0, in the softmax regression …
OF_LOGISTIC = 1.0  # … and in the logistic ones
OF_HEALTHY = 0.35  # how much a healthy run counts: there are more of them than of any fault
SINGLE = 0.5  # how far weights of single rules and origins may be from 0, against others
UNKNOWN = "another"  # of a fault that the doctor has no word for, or that was seen in too few forms:
FEWEST_KINDS = 2  # what a single kind of fault looks like says little of its cause
PARTS = 10
INNER_PARTS = 3  # in which a calibration leaves out kinds once more, so that what it is fitted on does not flatter
MOST_ERRORS, MOST_ALARMS = 0.01, 0.04  # the share of healthy runs that may get an error; a warning or an error
TRIED = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # as thresholds
SURE = 0.9  # below it, at first, no run has an error that is more likely wrong than right


@dataclass(frozen=True)
class Row:
    """One record of a run: what rules said of it, what it looks like, and what is the truth."""

    program: str
    record: str  # which of the program's records
    cluster: str  # its kind; of a healthy run, its family
    causes: tuple[str, ...]  # any of them is right; none: the run is healthy
    findings: tuple[Finding, ...]
    traits: Mapping[str, float] | None  # None: nothing but rules judges it
    origin: str
    ruled_out: frozenset[str] = frozenset()  # causes
    facts: Mapping[str, Any] = field(default_factory=dict)  # for the scorer

    @property
    def inputs(self) -> dict[str, float]:
        return inputs(self.traits or {}, self.findings)

    @property
    def part(self) -> str:
        """Runs of one kind, or of one family, are in the same part."""
        return str(sum(self.cluster.encode()) * 2654435761 % 2**32 % PARTS)


def fit_likeness(rows: Sequence[Row]) -> dict[str, Any]:
    """Softmax regression. A run for which several causes are right counts for each with an equal share."""
    from sklearn.linear_model import LogisticRegression

    judged = [row for row in rows if row.traits is not None]
    found = [row.inputs for row in judged]
    names = sorted({name for each in found for name in each})
    places = {name: place for place, name in enumerate(names)}
    values = np.zeros((len(judged), len(names)))
    for number, each in enumerate(found):
        for name, value in each.items():
            values[number, places[name]] = value
    varies = values.std(0) > 1e-3
    names, values = [name for name, keep in zip(names, varies, strict=True) if keep], values[:, varies]
    kinds: dict[str, set[str]] = defaultdict(set)
    for row in judged:
        for cause in row.causes:
            kinds[cause].add(row.cluster)
    learnable = {cause for cause in CAUSES if len(kinds[cause]) >= FEWEST_KINDS}
    labels = [
        [HEALTHY] if not row.causes else [cause for cause in row.causes if cause in learnable] or [UNKNOWN]
        for row in judged
    ]
    which = [(number, label) for number, some in enumerate(labels) for label in some]
    shares = [(OF_HEALTHY if label == HEALTHY else 1.0) / len(labels[number]) for number, label in which]
    model = LogisticRegression(C=STRENGTH, max_iter=300)
    model.fit(values[[number for number, _ in which]], [label for _, label in which], sample_weight=shares)
    return {
        "classes": [str(each) for each in model.classes_],
        "inputs": names,
        "intercepts": np.round(model.intercept_ * SCALE).astype(int).tolist(),
        "weights": np.round(model.coef_ * SCALE).astype(int).tolist(),
    }


def likenesses(rows: Sequence[Row], stored: Mapping[str, Any]) -> list[Likeness | None]:
    model = unpacked(stored)
    return [None if row.traits is None else likeness(row.inputs, row.ruled_out, model) for row in rows]


def logistic(found: Sequence[Mapping[str, float]], right: Sequence[bool]) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression

    names = sorted({name for each in found for name in each})
    scales = np.array([SINGLE if ":" in name else 1.0 for name in names])
    values = np.array([[each.get(name, 0.0) for name in names] for each in found]) * scales
    model = LogisticRegression(C=OF_LOGISTIC, max_iter=2000).fit(values, list(right))
    weights = dict(zip(names, np.round(model.coef_[0] * scales, 4).tolist(), strict=True))
    return {"intercept": round(float(model.intercept_[0]), 4), "weights": {k: v for k, v in weights.items() if v}}


def fit_calibration(rows: Sequence[Row], likes: Sequence[Likeness | None]) -> dict[str, Any]:
    """`likes`: of models that have not seen the run, since the likeness of those that they were fitted on flatters."""
    known = [(row, like) for row, like in zip(rows, likes, strict=True) if like is not None]
    said = [
        (calibration.features(each, row.findings, row.origin), each.cause in row.causes)
        for row in rows
        for each in row.findings
        if not CAUSES[each.cause].is_observed
    ]
    model: dict[str, Any] = {"rules": _of_pairs(said), "causes": _of_candidates(known)}
    rights = _rights_left_out(known)
    looks = [
        calibration.run_features(row.findings, like, right, row.origin)
        for (row, like), right in zip(known, rights, strict=True)
    ]
    model["run"] = _of_pairs([(look, bool(row.causes)) for look, (row, _) in zip(looks, known, strict=True)])
    firsts = []
    for (row, _), right, look in zip(known, rights, looks, strict=True):
        first = max(right, key=lambda cause: right[cause])
        if calibration.probability(look, model["run"]) >= min(TRIED):
            firsts.append(({"right": calibration.log_odds(right[first])}, first in row.causes))
    model["shown"] = _of_pairs(firsts)
    model["thresholds"] = fit_thresholds(known, rights, model)._asdict()
    return model


def _of_candidates(known: Sequence[tuple[Row, Likeness]]) -> dict[str, Any]:
    return _of_pairs(
        [
            (calibration.candidate_features(each, row.findings, like, row.origin), each.cause in row.causes)
            for row, like in known
            for each in calibration.candidates(row.findings, like)
        ]
    )


def _rights_left_out(known: Sequence[tuple[Row, Likeness]]) -> list[dict[str, float]]:
    """Of each run the probability that each candidate is right, by a function that has seen nothing of its kind."""
    rights: list[dict[str, float]] = [{} for _ in known]
    for inner in range(INNER_PARTS):
        is_out = [int(row.part) % INNER_PARTS == inner for row, _ in known]
        model = {"causes": _of_candidates([pair for pair, out in zip(known, is_out, strict=True) if not out])}
        for place, ((row, like), out) in enumerate(zip(known, is_out, strict=True)):
            if out:
                rights[place] = calibration.how_right(row.findings, row.origin, like, model)
    return rights


def fit_thresholds(
    known: Sequence[tuple[Row, Likeness]], rights: Sequence[Mapping[str, float]], model: Mapping[str, Any]
) -> Thresholds:
    """Those with which most faults are noticed, of all with no more false alarms than may be."""
    weighed = [
        (row, calibration.weigh(row.findings, row.origin, like, right, model))
        for (row, like), right in zip(known, rights, strict=True)
    ]

    def worst(tried: Thresholds) -> Counter[tuple[bool, str]]:
        """How many runs are told of what at worst, of healthy runs and of others."""
        said = ((row, calibration.said_of(row.findings, row.origin, its, tried, model)) for row, its in weighed)
        return Counter((not row.causes, _worst(findings)) for row, findings in said)

    num_healthy = max(1, sum(not row.causes for row, _ in weighed))
    speaking = [Thresholds(suspect, alone, SURE) for suspect in TRIED for alone in TRIED if suspect <= alone]
    found = {tried: worst(tried) for tried in speaking}
    alarms = {tried: (counts[True, "error"] + counts[True, "warning"]) / num_healthy for tried, counts in found.items()}
    most = max(MOST_ALARMS, min(alarms.values()))  # of which rules raise some whatever the thresholds are
    # Of those that notice as many, the most reserved one.
    best = max(
        (tried for tried in speaking if alarms[tried] <= most),
        key=lambda tried: (found[tried][False, "error"] + found[tried][False, "warning"], *tried),
    )
    acting = [best._replace(act=act) for act in TRIED if act >= best.suspect]
    return next((each for each in acting if worst(each)[True, "error"] <= MOST_ERRORS * num_healthy), best)


def _worst(findings: Sequence[Finding]) -> str:
    severities = {each.severity for each in findings}
    return next((severity for severity in ("error", "warning") if severity in severities), "")


def _of_pairs(pairs: Sequence[tuple[Mapping[str, float], bool]]) -> dict[str, Any]:
    return logistic([found for found, _ in pairs], [is_right for _, is_right in pairs])


def likes_left_out(rows: Sequence[Row], group: Callable[[Row], str]) -> list[Likeness | None]:
    """Of each run, by a model that has seen nothing of its group."""
    groups = [group(row) for row in rows]
    likes: list[Likeness | None] = [None] * len(rows)
    for name in sorted(set(groups)):
        stored = fit_likeness([row for row, its in zip(rows, groups, strict=True) if its != name])
        places = [place for place, its in enumerate(groups) if its == name]
        for place, like in zip(places, likenesses([rows[place] for place in places], stored), strict=True):
            likes[place] = like
    return likes


def left_out(rows: Sequence[Row], group: Callable[[Row], str]) -> list[list[Finding]]:
    """What the doctor says of each run with models that have seen nothing of its group.

    The likeness of each run comes from a model without its group; the calibration of each group is fitted on those of
    all others."""
    groups, likes = [group(row) for row in rows], likes_left_out(rows, group)
    said: list[list[Finding]] = [[] for _ in rows]
    for name in sorted(set(groups)):
        others = [place for place, its in enumerate(groups) if its != name]
        model = fit_calibration([rows[place] for place in others], [likes[place] for place in others])
        for place, its in enumerate(groups):
            if its == name:
                row = rows[place]
                said[place] = calibration.calibrated(row.findings, row.origin, likes[place], model)
    return said
