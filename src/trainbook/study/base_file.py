"""What all runs of a study share, as a file: beside runs that were trained with it, it is not another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainbook.errors import ResumeError
from trainbook.knobs import Loaded, load, section_types
from trainbook.knobs.aliases import by_path
from trainbook.knobs.dumping import origin_text, yaml_value
from trainbook.knobs.loading import ALTERNATIVES
from trainbook.knobs.origin import Origin
from trainbook.knobs.text import read_file
from trainbook.runs import write_text_atomically

BASE = "base.yaml"


def keep_base(path: Path, text: str, has_runs: bool) -> None:
    """Write it, unless it is there. ResumeError: it has other values, and there are runs."""
    if path.is_file():
        if read_file(path) == text:
            return
        changed = _differing(path, text) if has_runs else []
        if changed:
            raise ResumeError(
                f"{path} no longer matches the base of this study: {', '.join(changed)} differ. Its runs were trained "
                "with the old values: start a new study under another --name."
            )
    write_text_atomically(path, text)


def _differing(path: Path, text: str) -> list[str]:
    """The knobs by which a base's file differs from what it should be."""
    there, asked = load(path), load(path, text=text)
    return [knob for knob in by_path() if there.get(knob) != asked.get(knob)]


def base_text(loaded: Loaded, found: Mapping[str, Any] | None = None, why: str = "found") -> str:
    """What was asked for, and over it what was found; no defaults: those may depend on what a trial changes.

    What was asked for is said to be taken over: beside another schedule or optimizer it may be without effect.
    """
    found = dict(found or {})
    lines: list[str] = []
    for section, kind in section_types().items():
        knobs = [f"{section}.{name}" for name in kind.model_fields]
        written = [path for path in knobs if path in found or path in written_values(loaded, found)]
        lines += [f"{section}:"] if written else []
        for path in written:
            value = found.get(path, loaded.get(path))
            origin = why if path in found else _taken_over(path, loaded.origins[path])
            lines.append(f"  {path.removeprefix(section + '.')}: {yaml_value(value)}  # {origin}")
    return "\n".join([*lines, ""])


def _taken_over(path: str, origin: Origin) -> str:
    return origin_text(path, replace(origin, is_taken_over=True))


# All trials must apply the same number of updates, to the same data, at the learning rate that they were given. The
# guard of a trial only ends it when it diverges.
TRIAL_GUARD = {
    "guard.skip_threshold": None,
    "guard.quarantine": False,
    "guard.max_rollbacks": 0,
    "guard.remedy": "none",
}


def trials_text(loaded: Loaded) -> str:
    """The base as the trials train it."""
    return base_text(loaded, trial_guard(loaded), "the same updates in all trials")


def trial_guard(loaded: Loaded) -> dict[str, Any]:
    """What of the guard differs in trials; the user's own choices stay."""
    if not loaded.config.guard.enabled:
        return {}
    return {
        path: value
        for path, value in TRIAL_GUARD.items()
        if loaded.get(path) != value and not loaded.origins[path].is_the_users
    }


def written_values(loaded: Loaded, over: Iterable[str] = ()) -> dict[str, Any]:
    """Of a configuration what is not a default, nor an alternative to one of these."""
    displaced = set().union(*(group for group in ALTERNATIVES if group & set(over)))
    return {
        path: loaded.get(path)
        for path, origin in loaded.origins.items()
        if origin.kind not in ("default", "derived") and path not in displaced
    }
