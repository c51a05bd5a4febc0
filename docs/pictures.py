"""Draws the pictures of the pages from real commands: `make pictures`."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
FIRST_LINES, LAST_LINES = 11, 23  # what is shown of the output; the steps between are cut


def main() -> None:
    draw_first_run()
    draw_data_report()


def draw_first_run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainbook", "train", "gpt-tiny", "--name", "first-run"]
        finished = subprocess.run(
            command, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    lines = finished.stdout.rstrip().splitlines()
    console = Console(record=True, width=112, file=io.StringIO())
    console.print(Text("$ trainbook train gpt-tiny", style="bold green"))
    for line in [*lines[:FIRST_LINES], "…", *lines[-LAST_LINES:]]:
        console.print(Text(line), no_wrap=True, overflow="ellipsis")
    # Fonts are the reader's own: a picture should load nothing from anywhere.
    template = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    template = template.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace")
    template = re.sub(r"<!--.*?-->", "", template, flags=re.DOTALL)
    (HERE / "first-run.svg").write_text(console.export_svg(title="trainbook", code_format=template), encoding="utf-8")


def draw_data_report() -> None:
    """Needs WordNet's files, which `make pictures` installs where it may."""
    command = ["data", "builtin:wordnet", "--task", "classify", "data.tokenizer=bpe", "data.vocab_size=8192"]
    subprocess.run(
        [sys.executable, "-m", "trainbook", *command, "--picture", str(HERE / "data-report.png")], check=True
    )


if __name__ == "__main__":
    main()
