"""What to do about it: a few plain sentences, the most pressing first, with overrides that can be run as they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from trainbook.data.report import content
from trainbook.data.report.lengths import WORTH_IT
from trainbook.data.report.shift import RESPLITS, UNCORRECTED, many_unseen, tokens_differ
from trainbook.data.report.wording import MANY_COPIES, Facts, counted, finding, has, listed
from trainbook.data.sources.files import NOT_UTF8, is_not_utf8
from trainbook.data.sources.values import regression_hint
from trainbook.finding import ORDER

# What to do where training and validation have too much in common, or too little.


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
        reason = domain["verdict"].removeprefix("skipped: ").rstrip(".")
        yield finding("shift", "info", f"Shift between training and validation was not tested: {reason}.")
        return
    area = f"(AUC {domain['auc']:.2f}, p = {domain['p_value']:.2g})"
    if domain["verdict"] == "no shift detected":
        if not (tokens_differ(facts["shift"]["tokens"]) or many_unseen(facts["shift"]["tokens"])):
            labels = facts["shift"]["labels"]
            of_text = " of the text" if labels and labels["p_value"] < UNCORRECTED else ""
            text = f"A classifier cannot tell validation text from training text {area}: no shift{of_text} detected."
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
    if labels.get("missing_in_validation"):
        names = listed(labels["missing_in_validation"])
        text = f"Training has classes that do not occur in validation: {names}. No score will tell how well they are "
        text += "predicted: give a stratified file as data.validation, or hold out more."
        yield finding("label_unjudged", "warning", text)
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


MAX_FINDINGS = 12
RARE_CLASS = 10  # documents
MISSING = ("", "n/a", "na", "nan", "none", "null", "nil", "-", "--", "?", "missing", "<na>", "#n/a")  # no names
FAR_NUMBER = 10.0  # standard deviations from the mean
WHOLE_WINDOW = 256  # tokens: a repeat this long fills a window of its own
TASKS_OF_WINDOWS = ("causal", "masked", "span")  # others need each record as it is


def findings(facts: Facts) -> list[Facts]:
    """Each with a rule's name, a severity (error, warning or info), a text, and an override or None."""
    found = [each for rule in _RULES for each in rule(facts)]
    return sorted(found, key=lambda each: ORDER[each["severity"]])[:MAX_FINDINGS]


def overrides(found: list[Facts]) -> list[str]:
    """All that is advised, each once, in order."""
    return list(dict.fromkeys(part for each in found if each["override"] for part in each["override"].split()))


def _contradictions(facts: Facts) -> Iterator[Facts]:
    found = facts["contradictions"]
    if not found or not found["texts"]:
        return
    text = f"{counted(found['texts'], 'text')} {'occurs' if found['texts'] == 1 else 'occur'} with different labels"
    text += f" ({found['documents']:,} documents, {found['documents'] / found['of']:.1%})"
    if found["examples"]:
        one = found["examples"][0]
        text += f", such as {one['one']} ('{one['label']}') and {one['other']} ('{one['other_label']}')"
    share = found["documents"] / found["of"]
    severity = "warning" if share >= MANY_COPIES or found["texts"] > 1 else "info"
    yield finding("contradictory_labels", severity, f"{text}. No model can be right on all of them: check the labels.")


def _length(facts: Facts) -> Iterator[Facts]:
    lengths = facts["lengths"]
    configured, recommended = lengths["configured"], lengths["recommended"]
    rows = {row["length"]: row for row in lengths["by_length"]}
    kept = rows[configured]
    if facts["padding"]["configured"] == "windows":
        median = facts["sides"]["train"]["lengths"]["percentiles"].get("50", 0)
        yield finding(
            "length",
            "info",
            f"Windows of {configured} positions lose no text. The median document has {median:,.0f} tokens, and "
            f"{kept['documents_whole']:.0%} of the documents fit into one window.",
        )
        return
    lost = f"At {configured} positions {1 - kept['tokens_kept']:.1%} of the tokens are truncated"
    if recommended is None:
        is_text = facts["task"] in TASKS_OF_WINDOWS
        advice = "Windows lose nothing." if is_text else "Split the documents, or check which end matters."
        override = "data.samples=windows" if is_text else None
        yield finding("length", "warning", f"{lost}, and no length up to 8192 keeps nearly all. {advice}", override)
        return
    wanted = rows[recommended]
    override = f"data.max_seq_length={recommended}"
    keeps = (
        f"keeps {wanted['tokens_kept']:.1%} of the tokens and {wanted['documents_whole']:.1%} of the documents whole"
    )
    is_enough = all(kept[which] >= wanted[which] for which in ("tokens_kept", "documents_whole"))
    if configured < recommended and not is_enough:
        yield finding("length", "warning", f"{lost}; {recommended} {keeps}.", override)
    elif configured > recommended:
        less = 1 - wanted["bytes_per_sequence"] / kept["bytes_per_sequence"]
        text = f"{recommended} positions are enough: that {keeps}, with about {less:.0%} less memory per sequence than"
        yield finding("length", "info", f"{text} {configured}.", override)
    else:
        yield finding("length", "info", f"{configured} positions fit the documents: that {keeps}.")


def _target_length(facts: Facts) -> Iterator[Facts]:
    targets = facts["lengths"]["targets"]
    if targets and targets["configured"] < (targets["recommended"] or 0):
        yield finding(
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
        more, batch = _packed_batch(padding) if best == "packed" else ("", "")
        yield finding("padding", "warning", text + more, f"data.padding={best}{batch}")
    else:
        yield finding("padding", "info", f"data.padding={configured} wastes {now:.0%} of the positions {at}: good.")


def _packed_batch(padding: Facts) -> tuple[str, str]:
    """A packed batch counts rows: what keeps the number of documents in an update, and the override for it. Where the
    batch is cut by other knobs too, one of them alone would not do."""
    waste = padding["at_recommended_length"]
    in_a_row = (1 - waste["packed"]) / (1 - waste["max_length"])
    now, then = padding["global_batch"], max(1, round(padding["global_batch"] / in_a_row))
    if then == now:
        return "", ""
    text = (
        f" A packed row holds {in_a_row:.1f} documents: {then} rows instead of {now} keep the documents of an update."
    )
    return text, "" if padding["batch_is_cut"] else f" batch.global_batch_size={then}"


def _copies(facts: Facts) -> Iterator[Facts]:
    copies, documents = facts["duplicates"]["train"], facts["sides"]["train"]
    measured = copies["same_text"] - copies["exact"]
    if measured >= MANY_COPIES * documents["documents"]:
        text = f"{counted(measured, 'training document')} {has(measured)} the text of another one, and another number. "
        text += "These are no copies: a model learns the mean of their numbers."
        yield finding("repeated_texts", "info", text)
    exact, near = (
        copies["exact"] / max(documents["documents"], 1),
        copies["near"] / max(documents["sampled_documents"], 1),
    )
    if exact < MANY_COPIES and near < MANY_COPIES:
        return
    parts = [f"{counted(copies['exact'], 'exact copy', 'exact copies')} ({exact:.1%})"] if copies["exact"] else []
    parts += [f"{counted(copies['near'], 'near copy', 'near copies')} ({near:.1%})"] if copies["near"] else []
    text = f"Training has {' and '.join(parts)} of other documents, which therefore count several times."
    text += " Remove the exact copies." if copies["exact"] else ""
    if copies["near"]:
        text += " Remove near copies unless they differ in what matters, such as a number or a name."
    yield finding("duplicates", "warning", text)


def _repeats(facts: Facts) -> Iterator[Facts]:
    for side, of_side in facts["sides"].items():
        repeats = of_side["repeats"]
        if not repeats["documents"]:
            continue
        longest = repeats["examples"][0]
        fills_a_window = longest["period"] * longest["repetitions"] >= WHOLE_WINDOW
        count = repeats["documents"]
        share = f" ({count / max(of_side['sampled_documents'], 1):.1%})"
        text = f"{counted(count, 'document')} of {side}{share} {has(count)} {repeats['rule']}, the longest in "
        text += f"{longest['place']}."
        severity = "warning" if fills_a_window else "info"
        if side == "validation":
            if fills_a_window:
                text += " Such text is easy to predict: it makes the validation loss look better than it is."
            yield finding("repeated_tokens", severity, text)
        elif facts["filters"]["repetition"]:
            yield finding("repeated_tokens", "info", f"{text} data.repetition_filter leaves them out.")
        elif fills_a_window:
            text += " Batches of such text can make the loss spike: look at them, and leave them out."
            yield finding("repeated_tokens", severity, text, "data.repetition_filter=true")
        else:
            text += " Short ones, such as rulers, do little harm; data.repetition_filter=true would leave them out."
            yield finding("repeated_tokens", severity, text)


def _gopher(facts: Facts) -> Iterator[Facts]:
    gopher = facts["filters"]["gopher"]
    if gopher is not None:
        reasons = ", ".join(f"{rule} in {count:,}" for rule, count in gopher["rules"].items())
        text = f"data.gopher_filter leaves out {gopher['left_out']:,} of {gopher['of']:,} training documents"
        yield finding("gopher", "info", f"{text}: {reasons}." if reasons else f"{text}.")


def _giveaway(facts: Facts) -> Iterator[Facts]:
    if (found := facts.get("giveaway")) is None:
        return
    yield finding(
        "giveaway",
        "error" if found["is_a_mark"] else "info",
        f"One token of a text tells its class: {found['told']}. That alone predicts {found['accuracy']:.1%} of "
        f"{found['judged']:,} held-out labels (the largest class is {found['guess']:.1%}). "
        + (
            "Remove it from the texts: a model will read it and learn nothing else."
            if found["is_a_mark"]
            else "If these words were added with the label, remove them; otherwise the task is easy."
        ),
    )


def _ignored_fields(facts: Facts) -> Iterator[Facts]:
    """Of records that are read as text alone."""
    if facts["task"] not in ("causal", "masked", "span") or not (names := facts.get("unused_fields")):
        return
    is_one = len(names) == 1
    yield finding(
        "ignored_fields",
        "info",
        f"The {'column' if is_one else 'columns'} {listed(names)} {'is' if is_one else 'are'} ignored: the task is to "
        "predict the text itself. To predict a class, add --task classify; for a number, --task regress.",
    )


def label_balance(facts: Facts) -> Iterator[Facts]:
    labels = facts["sides"]["train"]["labels"]
    if not labels or labels["kind"] == "number":
        return
    classes, share = labels["classes"], labels["majority_share"]
    what = "words" if labels["kind"] == "tags" else "documents"
    if classes == 1:
        yield finding(
            "one_class", "error", f"All {what} have the same class, '{labels['majority']}': there is nothing to learn."
        )
        return
    if labels["kind"] == "class" and classes > facts["sides"]["train"]["documents"] / 2:
        hint = regression_hint(labels["majority"])
        text = f"{classes:,} different classes for {facts['sides']['train']['documents']:,} documents: is"
        yield finding("too_many_classes", "error", f"{text} '{facts['fields'].get('label')}' really the label?{hint}")
        return
    if missing := [name for name in labels["counts"] if name.strip().lower() in MISSING]:
        text = f"A class is called {listed(missing)}: if that means that the label is missing, leave these {what} out."
        yield finding("label_unknown", "warning", text)
    rare = [name for name, count in labels["counts"].items() if count < RARE_CLASS]
    text = f"Always predicting '{labels['majority']}' is right for {share:.1%} of the {what}: the baseline to beat"
    if labels["kind"] == "classes":
        text = f"'{labels['majority']}' is {share:.1%} of all labels"
    if labels["effective_classes"] < 0.95 * classes:
        text += f"; the effective number of classes, by entropy, is {labels['effective_classes']:.1f} of {classes}."
    else:
        text += f"; the {classes} classes are about equally frequent."
    if rare:
        text += f" {len(rare)} of them {has(len(rare))} fewer than {RARE_CLASS} {what}: {listed(rare)}."
    skewed = share >= 2 / 3 or labels["effective_classes"] < classes / 2 or bool(rare)
    if skewed:
        text += " Judge by macro F1, not by accuracy alone."
    yield finding("label_balance", "warning" if skewed else "info", text)


def _numbers(facts: Facts) -> Iterator[Facts]:
    labels = facts["sides"]["train"]["labels"]
    if not labels or labels["kind"] != "number":
        return
    mean, std = labels["mean"], labels["standard_deviation"]
    if std == 0:
        text = f"All documents have the same number, {mean:g}: there is nothing to learn."
        yield finding("one_number", "error", text)
        return
    side = facts["sides"].get("validation") or {}
    judged, where = side.get("labels") or labels, "the validation split" if side.get("labels") else "this data"
    error = judged["standard_deviation"] ** 2 + (judged["mean"] - mean) ** 2
    text = f"Always predicting the mean, {mean:.4g}, has a mean squared error of {error:.4g} on {where}: the baseline"
    text += " to beat."
    if abs(mean) > std or std > 1:
        text += (
            f" A new head starts at this mean and learns in standard deviations ({std:.4g}). A loaded head and a "
            "model of your own do not: for them, scale the numbers to a mean of 0 and a standard deviation of 1."
        )
    yield finding("number_scale", "info", text)
    end = max(("min", "max"), key=lambda name: abs(labels[name] - mean))
    farthest, place = labels[end], labels.get(f"{end}_at")
    if (away := abs(farthest - mean) / std) > FAR_NUMBER:
        text = (
            f"{farthest:.4g}{f' ({place})' if place else ''} is {away:.0f} standard deviations from the mean "
            f"({mean:.4g}). A squared error is mostly "
        )
        text += "about such numbers: check them, or predict the logarithm."
        yield finding("number_outliers", "warning", text)


def _characters(facts: Facts) -> Iterator[Facts]:
    for side, of_side in facts["sides"].items():
        replaced, unknown = of_side["replacement_characters"], of_side["unknown_share"]
        if replaced["documents"]:
            yield finding(
                "replacement_characters",
                "warning",
                f"{counted(replaced['documents'], 'document')} of {side} with U+FFFD, which replaces undecodable "
                f"bytes, first {replaced['examples'][0]}: convert the file from its real encoding.",
            )
        if returns := of_side.get("carriage_returns"):
            yield finding(
                "carriage_returns",
                "info",
                f"{counted(returns, 'carriage return')} in the text of {side}, as at the line ends of Windows: they "
                "are tokens like any other, which a model learns to write. To leave them out, convert the files, for "
                "example with tr -d '\\r'.",
            )
        if unknown is not None and unknown >= 0.01:
            text = f"{unknown:.1%} of the {side} tokens are unknown to the tokenizer: their content is lost."
            yield finding("unknown_tokens", "warning", text, "data.tokenizer=bpe")
        left_out = of_side["blank_records"] + of_side["empty_documents"]
        if left_out:
            yield finding("empty", "info", _without_text(left_out, side))


def _without_text(count: int, side: str) -> str:
    of_side = "training" if side == "train" else side
    return f"{counted(count, f'{of_side} record')} {has(count)} no text and {'was' if count == 1 else 'were'} left out."


def _unusable(facts: Facts) -> Iterator[Facts]:
    is_skipped = facts["bad_lines"] == "skip"
    has_own_validation = facts["validation"] is not None
    for side, of_side in facts["sides"].items():
        if not (count := of_side["bad_records"]):
            continue
        together = [of_side] if has_own_validation else facts["sides"].values()  # a source is counted as a whole
        total = sum(each["documents"] + each["bad_records"] + each["blank_records"] for each in together)
        of = " of validation" if side == "validation" else ""
        undecoded = [each for each in of_side["bad_reasons"] if is_not_utf8(each["reason"])]
        if undecoded:
            yield _not_utf8(undecoded, of, total, is_skipped)
            count -= sum(each["records"] for each in undecoded)
        others = [each for each in of_side["bad_reasons"] if each not in undecoded]
        if not count:
            continue
        text = f"{counted(count, 'record')}{of} cannot be used"
        text += " and will be skipped" if is_skipped else ": training would stop at the first"
        if others:
            first = others[0]
            text += f". {first['places'][0]}: {first['reason'].rstrip('.')}"
        severity, override = ("warning", None) if is_skipped else ("error", "data.bad_lines=skip")
        yield finding("bad", severity, f"{text}." if is_skipped else f"{text}. Repair or skip them.", override)


def _not_utf8(undecoded: list[Facts], of: str, total: int, is_skipped: bool) -> Facts:
    """Skipping is no remedy here: it would leave out those texts that have letters outside of ASCII."""
    count = sum(each["records"] for each in undecoded)
    are = "is" if count == 1 else "are"
    text = f"{counted(count, 'record')}{of} ({count / max(total, 1):.1%}) {are} not UTF-8 text"
    text += f", such as {undecoded[0]['places'][0]}"
    text += ": skipping them leaves out texts with letters other than a to z" if is_skipped else ""
    more = f" The same holds for {counted(len(undecoded) - 1, 'other file')}." if len(undecoded) > 1 else ""
    return finding("not_utf8", "error", f"{text}.{more} {undecoded[0]['reason'].removeprefix(f'{NOT_UTF8}. ')}")


def spelled_alike(name: str) -> str:
    """The same for names that differ only in capitals, spaces or hyphens."""
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def label_spellings(facts: Facts) -> Iterator[Facts]:
    """Classes that are likely one: 'Spam' and 'spam', 'not good' and 'not_good'."""
    counts: Counter[str] = Counter()
    for of_side in facts["sides"].values():
        counts.update((of_side["labels"] or {}).get("counts", {}))
    alike: dict[str, list[str]] = {}
    for name, _ in counts.most_common():
        alike.setdefault(spelled_alike(name), []).append(name)
    groups = [names for names in alike.values() if len(names) > 1]
    if groups:
        shown = "; ".join(" and ".join(f"'{name}' ({counts[name]:,})" for name in names) for names in groups[:3])
        more = f"; and {len(groups) - 3} more" if len(groups) > 3 else ""
        text = (
            f"Classes differ only in capitals, spaces or hyphens: {shown}{more}. They are trained as different classes"
        )
        yield finding("label_spelling", "warning", f"{text}: if they mean the same, write them the same way.")


def _no_validation(facts: Facts) -> Iterator[Facts]:
    if "validation" not in facts["sides"]:
        text = "There is no validation split, so overfitting cannot be detected."
        yield finding("no_validation", "warning", text, "data.validation_ratio=0.1")


def _size(facts: Facts) -> Iterator[Facts]:
    train = facts["sides"]["train"]
    about = "about " if train["tokens_estimated"] else ""
    yield finding(
        "size",
        "info",
        f"{counted(train['documents'], 'document')} to train on, {about}{train['tokens']:,} tokens "
        f"({train['tokens_per_byte']:.2f} per byte).",
    )


# In this order within a severity.
_RULES = (
    *(
        _unusable,
        _ignored_fields,
        _giveaway,
        overlap,
        _contradictions,
        label_shift,
        domain_shift,
        _no_validation,
        _length,
        _target_length,
        _padding,
    ),
    *(_repeats, _gopher, _copies, label_balance, _numbers, label_spellings, _characters),
    *(content.mojibake, content.languages, content.markup, _size),
)
