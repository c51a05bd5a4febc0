"""The JSON schema of a configuration, for editors."""

from __future__ import annotations

from typing import Any

from trainbook.knobs.config import Config, declarations


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
