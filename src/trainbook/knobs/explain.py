"""What is known of a knob, a section or a whole configuration, as plain data; render.py shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainbook.errors import UserError
from trainbook.knobs.aliases import SPECIAL, by_path, did_you_mean, knobs_named, nearest_section, section_named
from trainbook.knobs.config import Config, Declaration, section_types
from trainbook.knobs.derive import derived_facts
from trainbook.knobs.dumping import origin_text
from trainbook.knobs.laws import laws_of
from trainbook.knobs.origin import Loaded
from trainbook.knobs.resume import resume_rule
from trainbook.knobs.values import choices, law_text, show


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
    meant = did_you_mean(rest, section_named(head.split(".")[0]) if head else None)
    raise UserError(f"{name}: no such knob." + (f" {meant}" if meant else ""))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
