"""Explanations on a terminal. rich is imported when something is shown, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainbook.knobs.dumping import yaml_value

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCALES = {
    "linear": "on a linear scale",
    "log": "on a log scale",
    "log_one_minus": "on a log scale of 1 − x",
    "choice": "among",
}


def render_knob(facts: dict[str, Any], console: Console) -> None:
    from rich.text import Text

    title = Text.assemble((facts["path"], "bold"), "  default ", (yaml_value(facts["default"]), "cyan"))
    console.print(title)
    console.print(Text(f"must be {facts['law']}", style="dim"))
    console.print()
    console.print(Text(facts["what"]))
    console.print(Text(facts["why"]))
    console.print()
    _pairs(console, _effects(facts))
    if facts["values"]:
        _heading(console, "Choices")
        _pairs(console, list(facts["values"].items()), style="cyan")
    if facts["cases"]:
        _heading(console, "Usual values")
        table = _table("value", "when", "because")
        for case in facts["cases"]:
            table.add_row(Text(yaml_value(case["value"]), style="cyan"), Text(case["when"]), Text(case["why"]))
        console.print(table)
    if facts["correction"]:
        _heading(console, "Often misunderstood", "yellow")
        console.print(Text(facts["correction"]))
    console.print()
    _pairs(console, _references(facts))


def _effects(facts: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = [("raised", facts["raised"]), ("lowered", facts["lowered"]), ("derived", _derived(facts))]
    return [(name, text) for name, text in pairs if text]


def _derived(facts: dict[str, Any]) -> str:
    return f"at the default: {facts['derived']}" if facts["derived"] else ""


def search_text(facts: dict[str, Any]) -> str:
    """Where to look for a better value, and how much it matters."""
    search = facts["search"]
    if search is None:
        return ""
    if search["scale"] == "choice":
        where = "among " + ", ".join(yaml_value(choice) for choice in search["choices"] or facts["choices"])
    else:
        where = f"{yaml_value(search['low'])} to {yaml_value(search['high'])}, {SCALES[search['scale']]}"
    return where + (f"; importance {facts['rank']} (1 is tuned first)" if facts["rank"] else "")


def usual_text(facts: dict[str, Any]) -> str:
    return f"{yaml_value(facts['usual'][0])} to {yaml_value(facts['usual'][1])}" if facts["usual"] else ""


def _references(facts: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = [
        ("usual range", usual_text(facts)),
        ("search", search_text(facts)),
        ("constraints", "\n".join(facts["laws"])),
        ("interacts with", ", ".join(facts["interacts"])),
        ("treats", ", ".join(facts["symptoms"])),
        ("on resume", resume_text(facts)),
        ("also known as", ", ".join(facts["aliases"])),
        ("sources", "; ".join(facts["sources"])),
    ]
    return [(name, text) for name, text in pairs if text]


RESUME_WORDS = {"free": "may change", "schedule": "may change with --accept-changes", "fixed": "cannot change"}


def resume_text(facts: dict[str, Any]) -> str:
    """Whether the knob may change when a run is resumed, and why."""
    return f"{RESUME_WORDS[facts['resume']]}: {facts['resume_why']}"


def render_section(facts: dict[str, Any], console: Console) -> None:
    from rich.text import Text

    console.print(Text.assemble((facts["section"], "bold"), f"  {facts['what']}"))
    console.print()
    table = _table("knob", "default", "what")
    for knob in facts["knobs"]:
        name = knob["path"].split(".", 1)[1]
        table.add_row(Text(name, style="bold"), Text(yaml_value(knob["default"]), style="cyan"), Text(knob["what"]))
    console.print(table)


def render_config(facts: dict[str, Any], console: Console, everything: bool = False) -> None:
    """The values that were chosen or are unusual; with `everything`, the defaults too."""
    from rich.text import Text

    table = _table("knob", "value", "from")
    hidden = 0
    remarks: dict[str, list[tuple[str, str]]] = {"remark": [], "derived": []}
    for path, entry in facts["values"].items():
        if entry["origin"] == "default" and not everything:
            hidden += 1
            continue
        table.add_row(
            Text(path, style="bold"), Text(yaml_value(entry["value"]), style="cyan"), Text(entry["origin"], style="dim")
        )
        for kind, found in remarks.items():
            if kind in entry:
                found.append((path, entry[kind]))
    if table.row_count:
        console.print(table)
    if hidden:
        console.print(Text(f"{hidden} more knobs have their default; --all shows them.", style="dim"))
    for title, kind in (("Unusual", "remark"), ("What follows from the values", "derived")):
        if remarks[kind]:
            _heading(console, title)
            _pairs(console, remarks[kind])
    for notice in facts["notices"]:
        console.print(Text(f"note: {notice}", style="yellow"))


def _heading(console: Console, text: str, style: str = "bold") -> None:
    from rich.text import Text

    console.print()
    console.print(Text(text, style=style))


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for column in columns[:-1]:
        table.add_column(column, overflow="fold")
    table.add_column(columns[-1], ratio=1, overflow="fold")
    return table


def _pairs(console: Console, pairs: list[tuple[str, str]], style: str = "bold") -> None:
    """Names on the left, wrapped text on the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style=style)
    table.add_column(ratio=1)
    for name, text in pairs:
        table.add_row(Text(name), Text(text))
    console.print(table)
