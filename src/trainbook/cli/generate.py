"""trainbook generate"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainbook.cli.errors import reports_errors
from trainbook.cli.train import AsJson, RunsDir

EXAMPLES = """[bold]Examples[/bold]

trainbook generate runs/first-try "def main("

trainbook generate first-try "To be" --temperature 0.7 --top-k 20 --seed 3
"""


@reports_errors
def generate(
    run: Annotated[str, typer.Argument(help="A run folder, or a run's name.", show_default=False)],
    prompt: Annotated[str, typer.Argument(help="What the text begins with.")] = "",
    max_new_tokens: Annotated[int, typer.Option(help="How many tokens to write.")] = 200,
    temperature: Annotated[float, typer.Option(help="0: the likeliest token each time; higher: bolder.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Only among the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Only among the fewest tokens with this probability.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed writes the same text.")] = 0,
    checkpoint: Annotated[str, typer.Option(help="best, latest, or a step.")] = "best",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Let a trained model write on from a prompt."""
    from trainbook.loop.generate import answers, generate_text
    from trainbook.runs import RunFolder

    folder = RunFolder.open(run, runs_dir)
    pieces = generate_text(
        folder,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        checkpoint=checkpoint,
        device=device,
    )
    if as_json:
        from trainbook.cli.output import print_json

        print_json({"prompt": prompt, "text": "".join(pieces)})
        return
    first_piece = next(pieces, "")  # before anything is shown: a mistake is found here
    sys.stdout.write(prompt + ("\n" if answers(folder) else "") + first_piece)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
