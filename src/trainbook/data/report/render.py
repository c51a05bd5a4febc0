"""The report for a terminal: findings first, then tables that fit into 80 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from trainbook.data.report.kept import EXCERPTED, NUM_PIECES, PIECE
from trainbook.data.report.leftovers import MARKUP
from trainbook.data.report.lengths import STRATEGIES
from trainbook.data.report.shift import P_VALUE, UNCORRECTED
from trainbook.finding import Finding, print_finding
from trainbook.terminal import marked

BAR = 36  # columns of the longest bar
BLOCKS = " ▏▎▍▌▋▊▉█"
MAX_CLASSES = 12
MAX_EXAMPLES = 3
MAX_REASONS = 5

Facts = dict[str, Any]


def render(facts: Facts, console: Console, command: str | None = None) -> None:
    """`command` is how to train with all that is advised."""
    _findings(facts["findings"], console, command)
    _sizes(facts, console)
    _histogram(facts, console)
    _coverage(facts["lengths"], console)
    _padding(facts["padding"], facts["lengths"], console)
    _duplicates(facts, console)
    _labels(facts, console)
    if facts["shift"]:
        _shift(facts["shift"], console)
    _oddities(facts["sides"], console)


def _findings(found: list[Facts], console: Console, command: str | None) -> None:
    for each in found:
        finding = Finding(each["rule"], each["severity"], evidence=each["text"], override=each["override"])
        print_finding(console, finding)
    if command:
        console.print(marked("\n[dim]apply all:[/dim] {}", command), soft_wrap=True)


def _sizes(facts: Facts, console: Console) -> None:
    sides = facts["sides"]
    table = _table(console, f"Size, in tokens of '{facts['tokenizer']}' ({facts['vocab_size']:,} entries)", "", *sides)
    for label, key in (("documents", "documents"), ("characters", "characters"), ("bytes", "bytes")):
        table.add_row(label, *(f"{side[key]:,}" for side in sides.values()))
    table.add_row(
        "tokens", *(("~" if side["tokens_estimated"] else "") + f"{side['tokens']:,}" for side in sides.values())
    )
    table.add_row("tokens per byte", *(f"{side['tokens_per_byte']:.3f}" for side in sides.values()))
    for share in ("50", "95", "99"):
        values = (side["lengths"]["percentiles"].get(share, 0) for side in sides.values())
        table.add_row(f"{share} % have at most", *(f"{value:,.0f}" for value in values))
    table.add_row("longest", *(f"{side['lengths']['max']:,}" for side in sides.values()))
    console.print(table)
    sampled = {name: side for name, side in sides.items() if side["sampled_documents"] < side["documents"]}
    if sampled:
        parts = (f"{side['sampled_documents']:,} of {side['documents']:,} ({name})" for name, side in sampled.items())
        console.print(
            f"From a random sample of {' and '.join(parts)} documents; documents, characters, bytes, labels, "
            "exact duplicates and odd characters are counted on all of them.",
            style="dim",
        )
    if count := sum(side["excerpted_documents"] for side in sides.values()):
        are = "document is" if count == 1 else "documents are"
        console.print(
            f"{count:,} {are} longer than {EXCERPTED / 1e6:.1f} million characters: near duplicates, languages "
            f"and markup are judged on {NUM_PIECES} pieces of each, {NUM_PIECES * PIECE / 1e6:.1f} million characters "
            "together; tokens and words are counted in full.",
            style="dim",
        )


def _histogram(facts: Facts, console: Console) -> None:
    bins = facts["sides"]["train"]["lengths"]["histogram"]
    if not bins:
        return
    table = _table(console, "Lengths of training documents, in tokens", "from", "to", "documents")
    table.add_column("", no_wrap=True)
    most = max(part["documents"] for part in bins)
    rows = [(f"{part['from']:,}", f"{part['to'] - 1:,}", f"{part['documents']:,}") for part in bins]
    names = (str(column.header) for column in table.columns)
    taken = sum(
        max(map(len, cells)) + 2 for cells in zip(names, *rows, strict=False)
    )  # on a narrow terminal: more of it
    room = max(8, min(BAR, console.width - taken - 2))
    for part, row in zip(bins, rows, strict=True):
        table.add_row(*row, bar(part["documents"] / most, room))
    console.print(table)


def bar(share: float, width: int = BAR) -> str:
    """Of full blocks and one that is partly full; what is not nothing is seen."""
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (BLOCKS[rest] if rest else "")


def _coverage(lengths: Facts, console: Console) -> None:
    table = _table(
        console, "What each length keeps", "positions", "documents whole", "tokens kept", "memory per sequence"
    )
    table.add_column("")
    for row in lengths["by_length"]:
        notes = [name for name in ("recommended", "configured") if row["length"] == lengths[name]]
        table.add_row(
            f"{row['length']:,}",
            f"{row['documents_whole']:.1%}",
            f"{row['tokens_kept']:.1%}",
            size(row["bytes_per_sequence"]),
            ", ".join(notes),
        )
    console.print(table)
    console.print(f"Recommended: {lengths['rule']}. Memory: {lengths['memory']}.", style="dim")


def size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} TiB"


def _padding(padding: Facts, lengths: Facts, console: Console) -> None:
    title = f"Padding, {padding['micro_batch']} documents at a time"
    shown = {"recommended": padding["length"], "configured": lengths["configured"]}
    if padding["length"] == lengths["configured"]:
        del shown["recommended"]
    table = _table(console, title, "strategy", *(f"at {length}" for length in shown.values()))
    table.add_column("")
    for name in STRATEGIES:
        notes = [note for note in ("recommended", "configured") if padding[note] == name]
        shares = (padding[f"at_{which}_length"][name] for which in shown)
        table.add_row(name, *(f"{share:.1%}" for share in shares), ", ".join(notes))
    console.print(table)


def _duplicates(facts: Facts, console: Console) -> None:
    found = facts["duplicates"]
    table = _table(console, "Duplicates", "", "exact", "near")
    for label, key in (("within train", "train"), ("within validation", "validation"), ("in both", "between")):
        if found[key]:
            table.add_row(label, f"{found[key]['exact']:,}", f"{found[key]['near']:,}")
    console.print(table)
    for key in ("between", "train"):
        for kind in ("exact", "near"):
            for example in ((found[key] or {}).get(f"{kind}_examples") or [])[:MAX_EXAMPLES]:
                console.print(f"  {_pair(kind, example)}", style="dim", markup=False, highlight=False)
                for text in ("one_text", "other_text") if kind == "near" else ():
                    console.print(f"    {example[text]}", style="dim", markup=False, highlight=False)
    console.print(f"Near: {found['method']}.", style="dim")
    for example in ((facts["contradictions"] or {}).get("examples") or [])[:MAX_EXAMPLES]:
        one, other = f"{example['one']} ({example['label']})", f"{example['other']} ({example['other_label']})"
        console.print(f"  same text, different label: {one} and {other}", style="dim")


def _pair(kind: str, example: Facts) -> str:
    if kind == "exact":
        return f"exact: {example['one']} = {example['other']}"
    return f"near: {example['one']} and {example['other']}, similarity {example['similarity']:.2f}"


def _labels(facts: Facts, console: Console) -> None:
    labels = {name: side["labels"] for name, side in facts["sides"].items() if side["labels"]}
    if "train" not in labels:
        return
    train = labels["train"]
    if train["kind"] == "number":
        table = _table(console, "Labels", "", *labels)
        for key in ("min", "mean", "max", "standard_deviation"):
            table.add_row(key.replace("_", " "), *(f"{side[key]:.4g}" for side in labels.values()))
        console.print(table)
        return
    table = _table(console, f"Labels: {train['classes']} classes", "class", *labels)
    table.add_column("", no_wrap=True)
    totals = {name: sum(side["counts"].values()) for name, side in labels.items()}
    most = max(train["counts"].values())
    shown = list(train["counts"])[:MAX_CLASSES]
    for name in shown:
        counts = (side["counts"].get(name, 0) for side in labels.values())
        cells = (f"{count:,} ({count / totals[side]:.1%})" for side, count in zip(labels, counts, strict=True))
        table.add_row(name, *cells, bar(train["counts"][name] / most, 16))
    if len(train["counts"]) > len(shown):
        table.add_row(f"… {len(train['counts']) - len(shown)} more", *("" for _ in labels), "")
    console.print(table)


def _shift(shift: Facts, console: Console) -> None:
    length, tokens, domain, labels = shift["length"], shift["tokens"], shift["domain"], shift["labels"]
    table = _table(console, "Training against validation", "what", "distance", "", justify="left")
    table.add_row("length", f"KS distance {length['ks_statistic']:.3f}", _p_value(length))
    divergence = f"Jensen-Shannon {tokens['jensen_shannon']:.4f} bit"
    table.add_row("tokens", divergence, f"random splits: up to {tokens['by_chance']:.4f}")
    table.add_row(
        "unseen in train", f"{tokens['unseen_tokens']:.2%} of tokens", f"{tokens['unseen_words']:.1%} of words"
    )
    if labels:
        distance = "total_variation" if "total_variation" in labels else "ks_statistic"
        name = "total variation" if distance == "total_variation" else "KS distance"
        table.add_row("labels", f"{name} {labels[distance]:.3f}", _p_value(labels))
    if domain["auc"] is None:
        table.add_row("classifier", domain["verdict"], "")
    else:
        low, high = domain["interval"]
        table.add_row(
            "classifier", f"AUC {domain['auc']:.3f} ({low:.3f} to {high:.3f})", f"p = {domain['p_value']:.2g}"
        )
        table.add_row("", domain["verdict"], f"called a shift if p < {P_VALUE:g}")
    console.print(table)
    if any(tested and tested["p_value"] < UNCORRECTED for tested in (length, labels)):
        console.print(f"Corrected: for the {shift['tests']} comparisons of this table (Bonferroni).", style="dim")
    if domain["cut_at_characters"] is not None:
        cut = f"on the first {domain['cut_at_characters']:,} characters of each text"
        console.print(f"  classifier: {cut}", style="dim")
    for side in ("train", "validation"):
        if terms := domain.get(f"typical_of_{side}"):
            console.print(f"  typical of {side}: {', '.join(terms)}", style="dim")


def _p_value(tested: Facts) -> str:
    corrected = f" ({tested['p_corrected']:.2g} corrected)" if tested["p_value"] < UNCORRECTED else ""
    return f"p = {tested['p_value']:.2g}{corrected}"


def _oddities(sides: Facts, console: Console) -> None:
    table = _table(console, "Oddities", "", *sides)
    rows = {
        "repeated tokens": [side["repeats"]["documents"] for side in sides.values()],
        "no text": [side["blank_records"] + side["empty_documents"] for side in sides.values()],
        "unusable": [side["bad_records"] for side in sides.values()],
        "with U+FFFD": [side["replacement_characters"]["documents"] for side in sides.values()],
        "decoded wrongly": [side["leftovers"]["mojibake"]["documents"] for side in sides.values()],
        **{
            f"with {kind}": [side["leftovers"][kind]["documents"] for side in sides.values()]
            for kind in MARKUP
            if any(side["leftovers"][kind]["documents"] for side in sides.values())
        },
        "with control characters": [side["control_characters"]["documents"] for side in sides.values()],
    }
    for label, counts in rows.items():
        table.add_row(label, *(f"{count:,}" for count in counts))
    shares = [side["unknown_share"] for side in sides.values()]
    if any(share is not None for share in shares):
        table.add_row("unknown tokens", *("-" if share is None else f"{share:.2%}" for share in shares))
    if any(side["languages"]["documents"] for side in sides.values()):
        table.add_row("languages", *(_languages(side["languages"]) for side in sides.values()))
    console.print(table)
    for example in sides["train"]["repeats"]["examples"][:MAX_EXAMPLES]:
        text = repr(example["excerpt"][:50])
        times = f"{example['period']} token{'s' if example['period'] > 1 else ''} x {example['repetitions']:,}"
        console.print(f"  {example['place']}, token {example['position']:,}: {times}: {text}", style="dim")

    for side in sides.values():
        for each in side["bad_reasons"][:MAX_REASONS]:
            more = (
                f" and {each['records'] - len(each['places']):,} more" if each["records"] > len(each["places"]) else ""
            )
            console.print(f"  unusable: {', '.join(each['places'])}{more}: {each['reason']}", style="dim")


def _languages(found: Facts) -> str:
    """All documents of a side: by language, the most frequent first, and how many were not recognized."""
    counts = list(found["documents"].items())
    parts = dict(counts[:2]) | {"other": sum(count for _, count in counts[2:]), "not recognized": found["undecided"]}
    return ", ".join(f"{name} {count:,}" for name, count in parts.items() if count)


def _table(console: Console, title: str, *columns: str, justify: Any = "right") -> Table:
    """Under a title of its own line; the first column is a label unless it is a number's."""
    console.print(f"\n{title}", style="bold")
    table = Table(box=None, padding=(0, 2, 0, 0))
    numeric = {"from", "to", "positions"}
    for number, name in enumerate(columns):
        is_label = number == 0 and name not in numeric
        table.add_column(name, justify="left" if is_label else justify, header_style="dim")
    return table
