"""What to do where training and validation have too much in common, or too little."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.data.report.shift import RESPLITS, UNCORRECTED, many_unseen, tokens_differ
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
            f"{share:.1%} of the validation documents also occur in training, {' and '.join(parts)}: the validation "
            "loss will look too good. Remove them from one of the two splits.",
        )
    elif near:
        severity = "warning" if between["near_share"] >= MANY_COPIES else "info"
        yield finding(
            "near_overlap",
            severity,
            f"{counted(near, 'validation document')} ({between['near_share']:.1%}) {'is' if near == 1 else 'are'} "
            "nearly the same as a training document: their loss measures memorization, not generalization.",
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
            labels = facts["shift"]["labels"]
            what = "no shift of the text seen" if labels and labels["p_value"] < UNCORRECTED else "no shift seen"
            text = f"A classifier cannot tell validation text from training text {area}: {what}."
            yield finding("shift", "info", text)
        return
    if domain["auc"] < 0.5:
        yield finding("shift", "warning", f"Many documents resemble one in the other split {area}: look for copies.")
        return
    terms = ", ".join(f"'{term}'" for term in domain["typical_of_validation"][:3])
    text = f"Validation text differs from training text {area}: {domain['verdict']}"
    text += f"; typical of validation: {terms}." if terms else "."
    text += " So a validation loss above the training loss does not prove overfitting."
    severity = "info" if domain["verdict"] == "slight shift" else "warning"
    advice = "data.validation=none data.validation_ratio=0.1" if own_source and severity == "warning" else None
    if advice:
        text += " If both splits should be alike, hold out a part of the source instead."
    yield finding("shift", severity, text, advice)


def _unseen(tokens: Facts) -> Iterator[Facts]:
    if many_unseen(tokens):
        chance = f" (a random split: at most {tokens['unseen_by_chance']:.1%})" if tokens["is_judged"] else ""
        yield finding(
            "unseen_tokens",
            "warning",
            f"{tokens['unseen_tokens']:.1%} of the validation tokens never occur in training{chance}: the model "
            "cannot learn them, so the validation loss says little about what it has learned.",
        )
    elif tokens_differ(tokens):
        times = tokens["jensen_shannon"] / max(tokens["by_chance"], 1e-12)
        yield finding(
            "token_shift",
            "warning",
            f"The token distributions of validation and training diverge {times:.1f} times as much as in the worst of "
            f"{RESPLITS} random splits.",
        )


def label_shift(facts: Facts) -> Iterator[Facts]:
    labels = facts["shift"] and facts["shift"]["labels"]
    if not labels:
        return
    if labels.get("missing_in_train"):
        names = listed(labels["missing_in_train"])
        yield finding("label_missing", "error", f"Validation has classes that do not occur in training: {names}.")
    if labels["p_value"] >= UNCORRECTED:
        return
    tests = (
        f"p = {labels['p_value']:.2g}, {labels['p_corrected']:.2g} corrected for {facts['shift']['tests']} comparisons"
    )
    if labels["kind"] == "number":
        what, distance = "Label values are distributed", labels["ks_statistic"]
        text = f"differently in the splits (KS distance {distance:.2f}; {tests})"
    else:
        what, distance = f"'{labels['most_different']}' is", labels["total_variation"]
        shares = f"{labels['share_in_train']:.1%} of training and {labels['share_in_validation']:.1%} of validation"
        text = f"{shares} (total variation of the classes {distance:.2f}; {tests})"
    # Several labels of one document depend on each other: there, the test finds too much.
    is_sure = labels["p_corrected"] < UNCORRECTED if labels["kind"] in ("class", "number") else labels["p_value"] < SURE
    if not is_sure:
        yield finding("label_shares", "info", f"{what} {text}: this may be chance.")
    elif distance >= 0.05:
        text += ": more than chance explains. For splits with equal shares, give a stratified file as data.validation."
        yield finding("label_shift", "warning", f"{what} {text}")
