"""trainbook generate"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainbook.cli.shared import AsJson, RunsDir, Trust, reports_errors
from trainbook.terminal import write

EXAMPLES = """[bold]Examples[/bold]

trainbook generate runs/first-try "def main("

trainbook generate first-try "To be" --temperature 0.7 --top-k 20 --seed 3

trainbook generate tuned "How was the film?" --system "You are a critic."
"""


@reports_errors
def generate(
    run: Annotated[str, typer.Argument(help="The folder or the name of a run.", show_default=False)],
    prompt: Annotated[str, typer.Argument(help="The text to continue.")] = "",
    system: Annotated[
        str | None, typer.Option(help="For a chat model: the system message before the prompt, as in its training.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The number of tokens to generate.")] = 200,
    temperature: Annotated[float, typer.Option(help="0: always the most likely token; higher: more random.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens only.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens that together have this probability.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The random seed: the same seed gives the same text.")] = 0,
    checkpoint: Annotated[str, typer.Option(help="The checkpoint: best, latest, or a step.")] = "best",
    device: Annotated[str, typer.Option(help="The device: auto, cpu or cuda.")] = "auto",
    runs_dir: RunsDir = Path("runs"),
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Generate text from a prompt."""
    from trainbook.loop.generate import answers, generate_text
    from trainbook.runs import RunFolder

    folder = RunFolder.open(run, runs_dir)
    pieces = generate_text(
        folder,
        prompt,
        system=system,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        checkpoint=checkpoint,
        device=device,
    )
    if as_json:
        from trainbook.cli.shared import print_json

        print_json({"prompt": prompt, "text": "".join(pieces)})
        return
    first_piece = next(pieces, "")  # before anything is shown: a mistake is found here
    write(prompt + ("\n" if answers(folder) else "") + first_piece)
    for piece in pieces:
        write(piece)
        sys.stdout.flush()
    write("\n")
