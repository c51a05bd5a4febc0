"""A plan on a terminal of 80 columns. rich is imported when something is shown, not before."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trainbook.finding import Finding, print_finding
from trainbook.plan.machines import GB
from trainbook.plan.memory import LOGITS
from trainbook.terminal import marked

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BAR = 20  # columns
NARROW = 60  # columns of a terminal
PAPER = "estimated, calibrated on an H200"
SMALLEST = 0.005  # of the unit: what would be shown as 0.00 is left to --json
MOMENTS = {LOGITS: "the computation of the loss"}  # where `--json` has a shorter name
PARTS = {  # what each part of the memory is
    "weights": "the parameters themselves",
    "optimizer state": "moments and other state",
    "gradients": "of trainable parameters",
    "whole weights": "gathered from other GPUs",
    "rounded weights": "16-bit copies for matrix products",
    "activations": "kept for the backward pass",
    "logits": "logits of each target, and the loss",
    "temporary": "held only at that moment",
    "snapshots": "the guard's copies",
    "rounding": "allocation rounding in PyTorch",
    "workspace": "of matrix products",
    "fragmentation": "lost between tensors",
    "context": "CUDA and its libraries",
    "beyond the formula": "measured, but not explained by the formula",
}


def render_plan(facts: dict[str, Any], console: Console, symbol: str = "") -> None:
    from rich.text import Text

    console.print(Text(title(facts), style="bold"))
    console.print()
    console.print(_parameters(facts))
    console.print()
    of = "Peak memory of a GPU" if facts["gpu"] else "Peak memory without PyTorch itself"
    console.print(Text(f"{of}, at {_moment(facts)}", style="bold"))
    console.print(_memory(facts, console.width))
    console.print(Text(fitting(facts), style={True: "green", False: "red"}.get(facts["fits"], "")))
    if facts["time"] is not None:
        console.print()
        _pairs(console, time_lines(facts, symbol))
    if facts["measured"] is not None:
        console.print()
        _pairs(console, measured_lines(facts["measured"]))
    _suggestions(facts, console)
    if facts["questions"] or facts["notes"]:
        console.print()
    for question in facts["questions"]:
        print_finding(console, Finding("", "warning", evidence=question))
    for note in facts["notes"]:
        print_finding(console, Finding("", "info", evidence=note))


def _moment(facts: dict[str, Any]) -> str:
    moment: str = facts["moment"]
    return MOMENTS.get(moment, moment)


def title(facts: dict[str, Any]) -> str:
    batch, gpus = facts["batch"], facts["gpu"] or "CPU"
    where = f"one {gpus}" if facts["world"] == 1 else f"{facts['world']} × {gpus}"
    return f"{count(facts['parameters'])} parameters on {where}, {rows_of(batch)}, {facts['compute']}"


def rows_of(batch: dict[str, Any]) -> str:
    rows = "1 row" if batch["micro_batch"] == 1 else f"{batch['micro_batch']} rows"
    return f"{rows} at a time" if batch["accumulation"] == 1 else f"{rows} × {batch['accumulation']} accumulated"


def line(facts: dict[str, Any]) -> str:
    """What a run needs, in one line."""
    text = f"{count(facts['parameters'])} parameters, {size(facts['peak'])} of memory at {_moment(facts)}"
    if facts["capacity"]:
        text += f" of {size(facts['capacity'])}"
    time = facts["time"]
    if time is not None and time["hours"] is not None:
        text += f", about {duration(time['hours'])}"
    return text


def fitting(facts: dict[str, Any]) -> str:
    peak = f"{size(facts['peak'])}, of which {size(facts['allocated'])} in tensors"
    if facts["fits"] is None:
        return f"{peak}."
    sold = "" if facts["sold_gb"] is None else f" (sold as {facts['sold_gb']:g})"
    room, largest = f"the {facts['gpu']}'s {size(facts['capacity'])}{sold}", facts["largest_micro_batch"]
    if facts["fits"]:
        how_many = "At least" if facts["largest_is_cap"] else "Up to"
        return f"{peak}: fits into {room}. {how_many} {largest:,} rows at a time fit."
    most = f"at most {largest:,} rows at a time would" if largest else "not even one row at a time would"
    return f"{peak}: does not fit into {room}; {most}."


def _parameters(facts: dict[str, Any]) -> Table:
    table = _table("parameters", "", "")
    total = facts["parameters"]
    for part, number in facts["parameters_by_part"].items():
        table.add_row(part, f"{number:,}", f"{number / total:.0%}")
    if facts["trained_parameters"] != total:
        table.add_row("trained", f"{facts['trained_parameters']:,}", f"{facts['trained_parameters'] / total:.2%}")
    table.add_row("all", f"{total:,}", "", style="bold")
    return table


def _memory(facts: dict[str, Any], width: int) -> Table:
    unit, name = (GB, "GB") if facts["allocated"] >= GB else (10**6, "MB")
    more = 0 if width < NARROW else 2  # a narrow terminal has room for the parts and their numbers alone
    table = _table("part", name, *[""] * more)
    if more:
        table.columns[2].no_wrap = True  # on one that is not wide the words give way, not the bars
    largest = max(facts["memory"].values())
    for part, number in facts["memory"].items():
        if abs(number) >= SMALLEST * unit:
            bar = "█" * round(BAR * max(0, number) / largest)
            told = (bar, marked("[dim]{}[/dim]", PARTS[part]))[:more]
            table.add_row(part, f"{number / unit:,.2f}", *told)
    table.add_row("all", f"{facts['peak'] / unit:,.2f}", *[""] * more, style="bold")
    return table


def time_lines(facts: dict[str, Any], symbol: str = "") -> list[tuple[str, str]]:
    time, batch = facts["time"], facts["batch"]
    paper = "estimated; steps this short may take several times as long" if time["is_short"] else PAPER
    how = "as measured" if time["from"] == "measured" else paper
    lines = [
        ("a step", f"{time['flops_per_step']:.3g} FLOPs, {batch['tokens']:,} tokens"),
        (
            "speed",
            f"{three_digits(time['tokens_per_second']):,} tokens/s, {seconds(time['seconds_per_step'])} per step, "
            f"{share(time['utilization'])} of the GPU's peak ({how})",
        ),
    ]
    if time["hours"] is not None:
        text = f"{duration(time['hours'])} for {time['steps']:,} updates, {energy(time['kwh'])}"
        if time["cost"] is not None:
            text += f", {symbol}{time['cost']:,.2f}"
        lines.append(("the run", f"{text}; without start-up, compilation and evaluation"))
    return lines


def measured_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    if found["peak_bytes"] is not None:
        of = "in tensors" if found["gpu"] else "in the whole process, including PyTorch and Python,"
        rows = "1 row" if found["micro_batch"] == 1 else f"{found['micro_batch']} rows"
        lines.append(("measured", f"{size(found['peak_bytes'])} {of} with {rows} at a time"))
    if found["tokens_per_second"] is not None:
        lines.append(("", f"{found['tokens_per_second']:,.0f} tokens/s, {seconds(found['seconds_per_step'])} per step"))
    if found["hours"] is not None:
        lines.append(("the run", f"{duration(found['hours'])} for {found['steps']:,} updates on this CPU"))
    if found["largest_micro_batch"] is not None:
        most = "at least" if found["largest_is_cap"] else "at most"
        lines.append(("rows", f"{most} {found['largest_micro_batch']:,} at a time"))
    if found["flattens_at"] is not None:
        lines.append(("", f"throughput stops growing at {found['flattens_at']:,}"))
    if found["noise_scale_tokens"] is not None:
        lines.append(("batch", _noise(found["noise_scale_tokens"], found["noise_tokens_per_row"])))
    return lines


def _noise(tokens: float, per_row: float | None) -> str:
    if math.isinf(tokens):
        return "noise scale: too large to measure, so a larger batch still helps"
    rows = "" if per_row is None else f", about {max(1.0, tokens / per_row):,.0f} rows"
    return f"noise scale: {tokens:,.0f} tokens{rows}; a larger batch per update is mostly wasted"


def _suggestions(facts: dict[str, Any], console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    told = facts["faster"] if facts["fits"] else facts["suggestions"]
    if facts["fits"] is None or (facts["fits"] and not told):
        return
    console.print()
    if not told:
        console.print(Text("No change of a knob makes it fit: use a smaller model or a larger GPU.", style="red"))
        return
    title = "What makes it faster, fastest first" if facts["fits"] else "What makes it fit, best first"
    console.print(Text(title, style="bold"))
    for each in told:
        where = f"--world {each['world']} " if each["world"] else ""
        console.print(Text(f"  {where}{each['override']}", style="cyan"), soft_wrap=True)
        effect = Text(f"{size(each['peak'])}, {slower(each['slowdown'])}: {each['why']}")
        console.print(Padding(effect, (0, 0, 0, 4)))


def slower(ratio: float) -> str:
    """Of the time of a token, against what it was."""
    if abs(ratio - 1) < 0.005:
        return "same speed"
    if 0.67 < ratio < 1.5:
        return f"{ratio - 1:.0%} slower" if ratio > 1 else f"{1 / ratio - 1:.0%} faster"
    return f"{ratio:.1f} times slower" if ratio > 1 else f"{1 / ratio:.1f} times faster"


def count(number: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)


def size(number: float) -> str:
    return f"{number / GB:.1f} GB" if number >= GB else f"{number / 1e6:.0f} MB"


def three_digits(number: float) -> int:
    """What is known within a factor of two is not told to seven digits."""
    return int(float(f"{number:.3g}")) if number >= 100 else round(number)


def share(number: float) -> str:
    return f"{number:.0%}" if number >= 0.01 else "less than 1%"


def energy(kilowatt_hours: float) -> str:
    return f"{plain(kilowatt_hours)} kWh" if kilowatt_hours >= 1 else f"{plain(1000 * kilowatt_hours)} Wh"


def seconds(number: float) -> str:
    return f"{plain(number)} s" if number >= 1 else f"{plain(1000 * number)} ms"


def plain(number: float) -> str:
    """Three digits, and never a power of ten."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def duration(hours: float) -> str:
    if hours < 1 / 60:
        whole = max(1, round(3600 * hours))
        return f"{whole} second{'s' if whole > 1 else ''}"
    if hours < 1:
        whole = round(60 * hours)
        return f"{whole} minute{'s' if whole > 1 else ''}"
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


def _table(*titles: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(titles):
        table.add_column(name, justify="right" if number == 1 else "left")
    return table


def _pairs(console: Console, pairs: list[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for name, text in pairs:
        table.add_row(Text(name, style="dim"), Text(text))
    console.print(table)
