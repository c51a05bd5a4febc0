"""What is known of a knob, a section or a whole configuration, as plain data; render.py shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainbook.errors import UserError
from trainbook.knobs.aliases import SPECIAL, by_path, knobs_named, nearest_knobs_hint, nearest_section, section_named
from trainbook.knobs.config import Config, Declaration, declarations, section_types
from trainbook.knobs.derive import derived_facts
from trainbook.knobs.dumping import origin_text, yaml_value
from trainbook.knobs.laws import laws_of
from trainbook.knobs.measured import measured, measured_text
from trainbook.knobs.origin import Loaded
from trainbook.knobs.resume import resume_rule
from trainbook.knobs.topics import SYMPTOMS, topics
from trainbook.knobs.values import choices, law_text, show
from trainbook.nearest import nearest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_KNOBS = 10  # of a symptom, the most important first


def explain_knob(name: str) -> dict[str, Any]:
    """Everything about the knob of this path, name or alias."""
    declaration = _one_knob(name)
    knob, path = declaration.knob, declaration.path
    search = knob.search
    return {
        "path": path,
        "section": declaration.section,
        "name": declaration.name,
        "default": _plain(declaration.field.default),
        "law": law_text(declaration),
        "choices": list(choices(declaration)),
        "what": knob.what,
        "why": knob.why,
        "raised": knob.raised,
        "lowered": knob.lowered,
        "values": dict(knob.values),
        "cases": [{"when": case.when, "value": _plain(case.value), "why": case.why} for case in knob.cases],
        "usual": _plain(knob.usual),
        "search": search
        and {"scale": search.scale, "low": search.low, "high": search.high, "choices": _plain(search.choices)},
        "rank": knob.rank,
        "interacts": list(knob.interacts),
        "laws": [law.text for law in laws_of(path)],
        "symptoms": list(knob.symptoms),
        "derived": derived_facts(path, Config()),
        "aliases": [*knob.aliases, *(special for special, paths in SPECIAL.items() if path in paths)],
        "value_aliases": {show(foreign).strip("'"): _plain(own) for foreign, own in knob.value_aliases.items()},
        "correction": knob.correction,
        "sources": list(knob.sources),
        "measured": measured(path),
        "resume": resume_rule(path).policy,
        "resume_why": resume_rule(path).why,
    }


def explain_section(name: str) -> dict[str, Any]:
    section = section_named(name)
    if section is None:
        near = nearest_section(name)
        meant = f" Did you mean {near}?" if near else ""
        raise UserError(f"{name}: no such section.{meant} Sections: {', '.join(section_types())}.")
    kind = section_types()[section]
    return {
        "section": section,
        "what": (kind.__doc__ or "").strip(),
        "knobs": [
            {
                "path": declaration.path,
                "default": _plain(declaration.field.default),
                "law": law_text(declaration),
                "what": declaration.knob.what,
                "rank": declaration.knob.rank,
            }
            for declaration in by_path().values()
            if declaration.section == section
        ],
    }


def explain_config(loaded: Loaded, stated: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Each value with its origin; a remark where it is unusual, and the number that helps to judge it. `stated` has the
    origins that the file of a run states."""
    values: dict[str, dict[str, Any]] = {}
    for path, declaration in by_path().items():
        value, origin = loaded.config.get(path), origin_text(path, loaded.origins[path])
        if stated is not None and loaded.origins[path].kind == "file":
            origin = stated.get(path, origin)
        entry: dict[str, Any] = {
            "value": _plain(value),
            "origin": origin or "default",
            "law": law_text(declaration),
        }
        details = {
            "remark": _remark(declaration, value),
            "usual_for": [case.when for case in declaration.knob.cases if case.value == value] if origin else [],
            "derived": derived_facts(path, loaded.config),
        }
        values[path] = entry | {key: detail for key, detail in details.items() if detail}
    return {"values": values, "notices": list(loaded.notices)}


def _remark(declaration: Declaration, value: Any) -> str:
    usual = declaration.knob.usual
    if usual is None or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    low, high = usual
    if low <= value <= high:
        return ""
    effect = declaration.knob.lowered if value < low else declaration.knob.raised
    side = "below" if value < low else "above"
    return f"{side} the usual {show(low)} to {show(high)}. {effect}"


def _one_knob(name: str) -> Declaration:
    special = SPECIAL.get(name, ())
    if len(special) == 1:
        return by_path()[special[0]]
    owners = knobs_named(name)
    if len(owners) == 1:
        return owners[0]
    if special or owners:
        paths = special or [owner.path for owner in owners]
        raise UserError(f"{name}: stands for several knobs. Name one of {', '.join(paths)}.")
    head, _, rest = name.rpartition(".")
    meant = nearest_knobs_hint(rest, section_named(head.split(".")[0]) if head else None)
    if not meant and (near := nearest(name.lower(), topics())):
        meant = f"Did you mean {near}?"
    if not meant:
        raise UserError(f"{name}: no such knob, technique or symptom. Symptoms: {', '.join(SYMPTOMS)}.")
    raise UserError(f"{name}: no such knob. {meant}")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# Explanations on a terminal. rich is imported when something is shown, not before.


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
    if facts["measured"]:
        _heading(console, "Measured")
        _pairs(console, [(yaml_value(each["value"]), measured_text(each)) for each in facts["measured"]], style="cyan")
    console.print()
    _pairs(console, _references(facts))


def render_topic(facts: dict[str, Any], console: Console, everything: bool = False) -> None:
    from rich.text import Text

    console.print(Text.assemble((facts["topic"], "bold"), f"  {facts['kind']}"))
    console.print(Text(facts["what"]))
    if facts.get("causes"):
        _heading(console, "What the doctor looks for")
        for each in facts["causes"]:
            console.print(Text(each["sentence"]))
            _pairs(console, [("  →", each["remedy"])])
    if facts["knobs"]:
        _heading(console, "Knobs")
    shown = facts["knobs"] if everything else facts["knobs"][:MOST_KNOBS]
    _pairs(console, [(_setting_of(each), _about(each)) for each in shown], style="cyan")
    if len(shown) < len(facts["knobs"]):
        console.print(Text(f"{len(facts['knobs']) - len(shown)} more with --all", style="dim"))
    if facts["measured"]:
        _heading(console, "Measured")
        found = [(_setting_of(each), measured_text(each)) for each in facts["measured"]]
        _pairs(console, found, style="cyan")
    if facts["sources"]:
        console.print()
        _pairs(console, [("sources", "; ".join(facts["sources"]))])
    console.print()
    nexts = [("next", f"trainbook explain {each['path']}") for each in facts["knobs"][:1]]
    if facts["kind"] == "symptom":
        nexts.insert(0, ("next", "trainbook doctor RUN names the most likely cause in a run, with its evidence"))
    _pairs(console, nexts)


def _setting_of(facts: dict[str, Any]) -> str:
    return facts["path"] if facts["value"] is None else f"{facts['path']}={yaml_value(facts['value'])}"


def _about(facts: dict[str, Any]) -> str:
    default = f"default {yaml_value(facts['default'])}"
    return f"{facts['what']} Raised: {facts['raised']} Lowered: {facts['lowered']} ({default})"


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


# The JSON schema of a configuration, for editors.


def json_schema() -> dict[str, Any]:
    """The canonical tree with descriptions, defaults, bounds and choices; other names are not part of it."""
    schema = _named_by_section(Config.model_json_schema())
    for declaration in declarations():
        owner = schema["$defs"][declaration.section.capitalize()]
        facts = owner["properties"][declaration.name]
        facts["description"] = f"{declaration.knob.what} {declaration.knob.why}".strip()
    for section, reference in schema["properties"].items():
        # A default of the whole section would be offered by editors as a block of a hundred lines.
        schema["properties"][section] = {key: item for key, item in reference.items() if key != "default"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Trainbook configuration",
    }


def _named_by_section(part: Any) -> Any:
    """Definitions are named as the sections of the file, and not as the classes that declare them."""
    if isinstance(part, dict):
        return {name.removesuffix("Knobs"): _named_by_section(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_named_by_section(value) for value in part]
    return part.removesuffix("Knobs") if isinstance(part, str) else part
