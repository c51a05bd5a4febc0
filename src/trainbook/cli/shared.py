"""Arguments and options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Recipe = Annotated[
    str, typer.Argument(help="The name of a packaged recipe, or a YAML or Python file.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Overrides, such as optimizer.learning_rate=1e-3.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress and no summary card.")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="The folder that holds the runs.")]
AcceptChanges = Annotated[
    bool, typer.Option("--accept-changes", help="Resume with changed knobs that affect the rest of the run.")
]
