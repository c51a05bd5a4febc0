"""What to do about it: a few plain sentences, the most pressing first, with overrides that can be run as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainbook.data.report.padding import WORTH_IT

MAX_FINDINGS = 8
SEVERITIES = ("error", "warning", "info")
MANY_COPIES = 0.01  # of the training documents
RARE_CLASS = 10  # documents
SURE = 0.001  # a p-value: with thousands of documents, less is always something

WHOLE_WINDOW = 256  # tokens: a repeat this long fills a window of its own
TASKS_OF_WINDOWS = ("causal", "masked", "span")  # others need each record as it is

Facts = dict[str, Any]


def findings(facts: Facts) -> list[Facts]:
    """Each with a rule's name, a severity (error: act; warning: look; info), a text, and an override or None."""
    found = [finding for rule in _RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding["severity"]))[:MAX_FINDINGS]


def overrides(found: list[Facts]) -> list[str]:
    """All that is advised, each once, in order."""
    return list(dict.fromkeys(part for finding in found if finding["override"] for part in finding["override"].split()))


def _finding(rule: str, severity: str, text: str, override: str | None = None) -> Facts:
    return {"rule": rule, "severity": severity, "text": text, "override": override}


def _overlap(facts: Facts) -> Iterator[Facts]:
    between = facts["duplicates"]["between"]
    if between is None:
        return
    if between["exact"]:
        one = between["exact"] == 1
        yield _finding(
            "overlap",
            "error",
            f"{_counted(between['exact'], 'validation text')} ({between['exact_share']:.1%}) {'is' if one else 'are'} "
            "also in training: the validation loss will look too good. Leave one of the two out.",
        )
    elif between["near"]:
        severity = "warning" if between["near_share"] >= MANY_COPIES else "info"
        yield _finding(
            "near_overlap",
            severity,
            f"{_counted(between['near'], 'validation document')} ({between['near_share']:.1%}) "
            f"{'is' if between['near'] == 1 else 'are'} nearly the same as a training document: what the model scores "
            "there is memory.",
        )


def _shift(facts: Facts) -> Iterator[Facts]:
    if facts["shift"] is None:
        return
    domain = facts["shift"]["domain"]
    own_source = facts["validation"] is not None
    if domain["auc"] is None:
        yield _finding("shift", "info", f"Whether validation is like training was {domain['verdict']}.")
        return
    low, high = domain["interval"]
    area = f"(AUC {domain['auc']:.2f}, {domain['confidence']:.0%} interval {low:.2f} to {high:.2f})"
    if domain["verdict"] == "no shift seen":
        yield _finding("shift", "info", f"Validation text is like training text to a classifier {area}: no shift seen.")
        return
    if high < 0.5:
        yield _finding("shift", "warning", f"Many documents resemble one on the other side {area}: look for copies.")
        return
    terms = ", ".join(f"'{term}'" for term in domain["typical_of_validation"][:3])
    text = f"Validation text differs from training text {area}: {domain['verdict']}"
    text += f"; typical of validation: {terms}." if terms else "."
    text += " A validation loss above the training loss is then no proof of overfitting."
    severity = "info" if domain["verdict"] == "slight shift" else "warning"
    advice = "data.validation=none data.validation_ratio=0.1" if own_source and severity == "warning" else None
    if advice:
        text += " If both should be alike, hold out a part of the source instead."
    yield _finding("shift", severity, text, advice)


def _label_shift(facts: Facts) -> Iterator[Facts]:
    labels = facts["shift"] and facts["shift"]["labels"]
    if not labels or labels["kind"] == "number":
        return
    if labels["missing_in_train"]:
        names = _listed(labels["missing_in_train"])
        yield _finding("label_missing", "error", f"Validation has classes that training never shows: {names}.")
    if labels["p_value"] < SURE and labels["total_variation"] >= 0.05:
        yield _finding(
            "label_shift",
            "warning",
            f"Classes are differently common on the two sides (total variation {labels['total_variation']:.2f}): "
            f"'{labels['most_different']}' is {labels['share_in_train']:.1%} of training and "
            f"{labels['share_in_validation']:.1%} of validation.",
        )


def _length(facts: Facts) -> Iterator[Facts]:
    lengths = facts["lengths"]
    configured, recommended = lengths["configured"], lengths["recommended"]
    rows = {row["length"]: row for row in lengths["by_length"]}
    kept = rows[configured]
    if facts["padding"]["configured"] == "windows":
        median = facts["sides"]["train"]["lengths"]["percentiles"].get("50", 0)
        yield _finding(
            "length",
            "info",
            f"Windows of {configured} positions lose no text; half of the documents have {median:,.0f} tokens or less, "
            f"and {kept['documents_whole']:.0%} of them fit into one window.",
        )
        return
    lost = f"At {configured} positions {1 - kept['tokens_kept']:.1%} of the tokens are cut off"
    if recommended is None:
        is_text = facts["task"] in TASKS_OF_WINDOWS
        advice = "Windows lose nothing." if is_text else "Cut the documents into parts, or see which end matters."
        override = "data.samples=windows" if is_text else None
        yield _finding("length", "warning", f"{lost}, and no length up to 8192 keeps nearly all. {advice}", override)
        return
    wanted = rows[recommended]
    override = f"data.max_seq_length={recommended}"
    keeps = (
        f"keeps {wanted['tokens_kept']:.1%} of the tokens and {wanted['documents_whole']:.1%} of the documents whole"
    )
    if configured < recommended:
        yield _finding("length", "warning", f"{lost}; {recommended} {keeps}.", override)
    elif configured > recommended:
        less = 1 - wanted["bytes_per_sequence"] / kept["bytes_per_sequence"]
        text = (
            f"{recommended} positions are enough: that {keeps}, and takes about {less:.0%} less memory a sequence than"
        )
        yield _finding("length", "info", f"{text} {configured}.", override)
    else:
        yield _finding("length", "info", f"{configured} positions fit the documents: that {keeps}.")


def _target_length(facts: Facts) -> Iterator[Facts]:
    targets = facts["lengths"]["targets"]
    if targets and targets["configured"] < (targets["recommended"] or 0):
        yield _finding(
            "target_length",
            "warning",
            f"At {targets['configured']} positions {1 - targets['tokens_kept']:.1%} of the target tokens are cut off.",
            f"data.max_target_length={targets['recommended']}",
        )


def _padding(facts: Facts) -> Iterator[Facts]:
    padding = facts["padding"]
    waste, configured, best = padding["at_recommended_length"], padding["configured"], padding["recommended"]
    if configured == "windows":
        return
    now, then = waste[configured], waste[best]
    at = f"at {padding['length']} positions and {padding['micro_batch']} documents at a time"
    if now - then > WORTH_IT:
        text = (
            f"{now:.0%} of all positions would be padding with data.padding={configured}, {then:.0%} with {best}, {at}."
        )
        yield _finding("padding", "warning", text, f"data.padding={best}")
    else:
        yield _finding("padding", "info", f"data.padding={configured} wastes {now:.0%} of the positions {at}: good.")


def _copies(facts: Facts) -> Iterator[Facts]:
    copies, documents = facts["duplicates"]["train"], facts["sides"]["train"]
    exact, near = (
        copies["exact"] / max(documents["documents"], 1),
        copies["near"] / max(documents["sampled_documents"], 1),
    )
    if exact < MANY_COPIES and near < MANY_COPIES:
        return
    parts = [f"{copies['exact']:,} exact copies ({exact:.1%})"] if copies["exact"] else []
    parts += [f"{copies['near']:,} near copies ({near:.1%})"] if copies["near"] else []
    text = f"Training has {' and '.join(parts)} of other documents: keep one of each, or they count as many times."
    yield _finding("duplicates", "warning", text)


def _repeats(facts: Facts) -> Iterator[Facts]:
    repeats = facts["sides"]["train"]["repeats"]
    if not repeats["documents"]:
        return
    longest = repeats["examples"][0]
    fills_a_window = longest["period"] * longest["repetitions"] >= WHOLE_WINDOW
    text = (
        f"{_counted(repeats['documents'], 'document')} of training {_has(repeats['documents'])} {repeats['rule']}, the "
    )
    text += f"longest in {longest['place']}."
    if facts["filters"]["repetition"]:
        yield _finding("repeated_tokens", "info", f"{text} data.repetition_filter leaves them out.")
        return
    if fills_a_window:
        text += " Batches of such text can make the loss spike: look at them, and leave them out."
    else:
        text += " Short ones, such as rulers, do little harm; data.repetition_filter=true would leave them out."
    override = "data.repetition_filter=true" if fills_a_window else None
    yield _finding("repeated_tokens", "warning" if fills_a_window else "info", text, override)


def _gopher(facts: Facts) -> Iterator[Facts]:
    gopher = facts["filters"]["gopher"]
    if gopher is not None:
        reasons = ", ".join(f"{rule} in {count:,}" for rule, count in gopher["rules"].items())
        text = f"data.gopher_filter leaves out {gopher['left_out']:,} of {gopher['of']:,} training documents"
        yield _finding("gopher", "info", f"{text}: {reasons}." if reasons else f"{text}.")


def _labels(facts: Facts) -> Iterator[Facts]:
    labels = facts["sides"]["train"]["labels"]
    if not labels or labels["kind"] == "number":
        return
    classes, share = labels["classes"], labels["majority_share"]
    what = "words" if labels["kind"] == "tags" else "documents"
    if classes == 1:
        yield _finding("one_class", "error", f"All {what} have the class '{labels['majority']}': nothing to learn.")
        return
    if labels["kind"] == "class" and classes > facts["sides"]["train"]["documents"] / 2:
        text = f"{classes:,} different classes for {facts['sides']['train']['documents']:,} documents: is"
        yield _finding("too_many_classes", "error", f"{text} '{facts['fields'].get('label')}' really the label?")
        return
    rare = [name for name, count in labels["counts"].items() if count < RARE_CLASS]
    text = f"Always saying '{labels['majority']}' is right for {share:.1%} of the {what}: the score to beat"
    if labels["kind"] == "classes":
        text = f"'{labels['majority']}' is {share:.1%} of all labels"
    text += f"; {classes} classes weigh like {labels['effective_classes']:.1f} equal ones."
    if rare:
        text += f" {len(rare)} of them {_has(len(rare))} fewer than {RARE_CLASS} {what}: {_listed(rare)}."
    skewed = share >= 2 / 3 or labels["effective_classes"] < classes / 2 or bool(rare)
    if skewed:
        text += " Judge by macro F1, not by accuracy alone."
    yield _finding("label_balance", "warning" if skewed else "info", text)


def _characters(facts: Facts) -> Iterator[Facts]:
    for side, of_side in facts["sides"].items():
        replaced, unknown = of_side["replacement_characters"], of_side["unknown_share"]
        if replaced["documents"]:
            yield _finding(
                "replacement_characters",
                "warning",
                f"{_counted(replaced['documents'], 'document')} of {side} with U+FFFD, left where bytes were no text, "
                f"first {replaced['examples'][0]}: convert the file from its real encoding.",
            )
        if unknown is not None and unknown >= 0.01:
            text = f"{unknown:.1%} of the {side} tokens are unknown to the tokenizer: what they say is lost."
            yield _finding("unknown_tokens", "warning", text, "data.tokenizer=bpe")
        left_out = of_side["blank_records"] + of_side["empty_documents"]
        if left_out:
            yield _finding("empty", "info", f"{_counted(left_out, 'record')} of {side} without text: left out.")
        if of_side["bad_records"]:
            yield _finding(
                "bad", "warning", f"{_counted(of_side['bad_records'], 'record')} of {side} could not be read."
            )


def _no_validation(facts: Facts) -> Iterator[Facts]:
    if "validation" not in facts["sides"]:
        text = "Nothing is held out: without validation text no run can be judged."
        yield _finding("no_validation", "warning", text, "data.validation_ratio=0.1")


def _size(facts: Facts) -> Iterator[Facts]:
    train = facts["sides"]["train"]
    about = "about " if train["tokens_estimated"] else ""
    yield _finding(
        "size",
        "info",
        f"{_counted(train['documents'], 'document')} to train on, {about}{train['tokens']:,} tokens "
        f"({train['tokens_per_byte']:.2f} a byte).",
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _listed(names: list[str], most: int = 5) -> str:
    shown = ", ".join(f"'{name if len(name) <= 30 else name[:29] + '…'}'" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


# In this order within a severity.
_RULES = (
    *(_overlap, _label_shift, _shift, _no_validation, _length, _target_length, _padding),
    *(_repeats, _gopher, _copies, _labels, _characters, _size),
)
