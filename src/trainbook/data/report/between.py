"""What to do where training and validation have too much in common, or too little."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.data.report.shift import RESPLITS, many_unseen, tokens_differ
from trainbook.data.report.wording import MANY_COPIES, Facts, counted, finding, listed

SURE = 0.001  # a p-value: with thousands of documents, less is always something


def overlap(facts: Facts) -> Iterator[Facts]:
    between = facts["duplicates"]["between"]
    if between is None:
        return
    exact, near = between["exact"], between["near"]
    if exact:
        parts = [f"{exact:,} word for word ({between['exact_share']:.1%})"]
        parts += [f"{near:,} nearly ({between['near_share']:.1%})"] if near else []
        share = min(1.0, between["exact_share"] + between["near_share"])
        yield finding(
            "overlap",
            "error",
            f"{share:.1%} of the validation documents are also in training, {' and '.join(parts)}: the validation loss "
            "will look too good. Remove them from one of the two.",
        )
    elif near:
        severity = "warning" if between["near_share"] >= MANY_COPIES else "info"
        yield finding(
            "near_overlap",
            severity,
            f"{counted(near, 'validation document')} ({between['near_share']:.1%}) {'is' if near == 1 else 'are'} "
            "nearly the same as a training document: their loss measures memory, not generalisation.",
        )


def domain_shift(facts: Facts) -> Iterator[Facts]:
    if facts["shift"] is None:
        return
    yield from _unseen(facts["shift"]["tokens"])
    domain = facts["shift"]["domain"]
    own_source = facts["validation"] is not None
    if domain["auc"] is None:
        yield finding("shift", "info", f"Shift between training and validation: {domain['verdict']}.")
        return
    area = f"(AUC {domain['auc']:.2f}, p = {domain['p_value']:.2g})"
    if domain["verdict"] == "no shift seen":
        if not (tokens_differ(facts["shift"]["tokens"]) or many_unseen(facts["shift"]["tokens"])):
            text = f"A classifier cannot tell validation text from training text {area}: no shift seen."
            yield finding("shift", "info", text)
        return
    if domain["auc"] < 0.5:
        yield finding("shift", "warning", f"Many documents resemble one on the other side {area}: look for copies.")
        return
    terms = ", ".join(f"'{term}'" for term in domain["typical_of_validation"][:3])
    text = f"Validation text differs from training text {area}: {domain['verdict']}"
    text += f"; typical of validation: {terms}." if terms else "."
    text += " A validation loss above the training loss is then no proof of overfitting."
    severity = "info" if domain["verdict"] == "slight shift" else "warning"
    advice = "data.validation=none data.validation_ratio=0.1" if own_source and severity == "warning" else None
    if advice:
        text += " If both should be alike, hold out a part of the source instead."
    yield finding("shift", severity, text, advice)


def _unseen(tokens: Facts) -> Iterator[Facts]:
    if many_unseen(tokens):
        chance = f" (a random split: at most {tokens['unseen_by_chance']:.1%})" if tokens["is_judged"] else ""
        yield finding(
            "unseen_tokens",
            "warning",
            f"{tokens['unseen_tokens']:.1%} of the validation tokens never occur in training{chance}: no model can "
            "have learned them, and the validation loss says little about what it has learned.",
        )
    elif tokens_differ(tokens):
        times = tokens["jensen_shannon"] / max(tokens["by_chance"], 1e-12)
        yield finding(
            "token_shift",
            "warning",
            f"Validation has other tokens than training: their distributions diverge {times:.1f} times as much as in "
            f"the worst of {RESPLITS} random splits.",
        )


def label_shift(facts: Facts) -> Iterator[Facts]:
    labels = facts["shift"] and facts["shift"]["labels"]
    if not labels or labels["kind"] == "number":
        return
    if labels["missing_in_train"]:
        names = listed(labels["missing_in_train"])
        yield finding("label_missing", "error", f"Validation has classes that training never shows: {names}.")
    if labels["p_value"] < SURE and labels["total_variation"] >= 0.05:
        yield finding(
            "label_shift",
            "warning",
            f"Classes are differently common on the two sides (total variation {labels['total_variation']:.2f}): "
            f"'{labels['most_different']}' is {labels['share_in_train']:.1%} of training and "
            f"{labels['share_in_validation']:.1%} of validation.",
        )
