"""trainbook export"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainbook.cli.shared import AsJson, RunsDir, Trust, reports_errors
from trainbook.terminal import echo

EXAMPLES = """[bold]Examples[/bold]

trainbook export runs/first-try --to models/first-try

trainbook export first-try --to models/first-try --checkpoint latest --format gpt2
"""


@reports_errors
def export(
    run: Annotated[str, typer.Argument(help="The folder or the name of a run.", show_default=False)],
    to: Annotated[Path, typer.Option(help="The folder to write; it must not exist yet.", show_default=False)],
    checkpoint: Annotated[str, typer.Option(help="The checkpoint: best, latest, or a step.")] = "best",
    format: Annotated[
        str,
        typer.Option(help="The model family to write: auto, gpt2, llama, mistral, qwen2, qwen3, bert or t5."),
    ] = "auto",
    runs_dir: RunsDir = Path("runs"),
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Export a run's model and tokenizer in Hugging Face format, and verify that it computes the same."""
    from trainbook.loop.export import export_run
    from trainbook.runs import RunFolder

    done = export_run(RunFolder.open(run, runs_dir), to, checkpoint=checkpoint, format=format)
    if as_json:
        from dataclasses import asdict

        from trainbook.cli.shared import print_json

        print_json(asdict(done) | {"folder": str(done.folder)})
        return
    added = (
        f" ({done.added:,} more than the model: zeros, such as biases, that the format asks for)" if done.added else ""
    )
    echo(f"{done.folder}: {done.architecture} ({done.format}), {done.parameters:,} parameters{added}")
    echo(f"loaded with transformers and compared: logits differ by {done.difference:.1e} at most")
