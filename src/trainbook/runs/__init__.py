"""The run folder: everything a run writes, in files that can be read while the run continues."""

from __future__ import annotations

from trainbook.runs.disk import write_text_atomically
from trainbook.runs.folder import RunFolder, check_name, default_name, list_runs, make_folder, name_of
from trainbook.runs.manifest import Manifest, ManifestDifference, differences
from trainbook.runs.schema import EVENTS, METRICS, SCHEMA_VERSION

__all__ = [
    "EVENTS",
    "METRICS",
    "SCHEMA_VERSION",
    "Manifest",
    "ManifestDifference",
    "RunFolder",
    "check_name",
    "default_name",
    "differences",
    "list_runs",
    "make_folder",
    "name_of",
    "write_text_atomically",
]
