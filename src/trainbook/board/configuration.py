"""The settings of a run: those that differ from its recipe first, each with what a knob's page says in a line."""

from __future__ import annotations

from functools import cache
from typing import Any

from trainbook.bounded.files import read_text
from trainbook.errors import UserError
from trainbook.knobs import load, recipes
from trainbook.knobs.aliases import by_path
from trainbook.knobs.dumping import origins_in, yaml_value
from trainbook.report.facts import RunFacts
from trainbook.runs.run_record import RunRecord

LONGEST = 500


def configuration_of(record: RunRecord, facts: RunFacts | None) -> list[dict[str, Any]]:
    origins = _origins(facts)
    recipe = facts.manifest.recipe if facts is not None else None
    usual = _of_recipe(recipe) if recipe in recipes.names() else {}
    known, rows = by_path(), []
    for path, value in record.settings.items():
        if path not in known:
            continue
        before = usual.get(path, known[path].field.default)
        rows.append(
            {
                "path": path,
                "value": yaml_value(value)[:LONGEST],
                "usual": yaml_value(before)[:LONGEST],
                "origin": origins.get(path) or ("default" if facts is not None else ""),
                "differs": value != before,
                "one_line": known[path].knob.what,
            }
        )
    return sorted(rows, key=lambda row: (not row["differs"], not row["origin"].startswith("override")))


@cache
def _of_recipe(name: str) -> dict[str, Any]:
    config = load(name).config
    return {path: config.get(path) for path in by_path()}


def _origins(facts: RunFacts | None) -> dict[str, str]:
    if facts is None:
        return {}
    try:
        return origins_in(read_text(facts.run.config), load(facts.run.config))
    except (UserError, OSError, ValueError):
        return {}
