"""What all pictures share: matplotlib without a screen, colours that everybody can tell apart, quiet axes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from trainbook.errors import MissingExtra, UserError

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8A8A8A"
SUFFIXES = (".png", ".svg", ".pdf")
WIDTH, HEIGHT, DOTS_PER_INCH = 11.0, 7.5, 130


def check_path(path: Path, what: str = "--picture") -> None:
    """Before the work is done: a picture that cannot be written should not be found out at the end."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{what}: the file must end in {', '.join(SUFFIXES)}, but got '{path}'.")
    if not path.parent.is_dir():
        raise UserError(f"{what}: there is no folder '{path.parent}'.")
    if path.is_dir():
        raise UserError(f"{what}: '{path}' is a folder, but a file is needed.")
    _matplotlib(what)


def new_figure(rows: int, columns: int, width: float = WIDTH, height: float = HEIGHT) -> tuple[Any, Any]:
    """A figure and its axes; drawn without a screen, whatever the user's settings say."""
    _matplotlib("a figure")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = _figure_type()(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
        axis.title.set_fontsize(11)
    return figure, axes


@cache
def _figure_type() -> Any:
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure that a notebook shows, also one that never imported pyplot."""

        def _repr_png_(self) -> bytes:
            stream = io.BytesIO()
            self.savefig(stream, format="png", dpi=DOTS_PER_INCH)
            return stream.getvalue()

    return NotebookFigure


def save(figure: Any, path: Path) -> None:
    try:
        # Without a date or a version the same data always make the same file.
        metadata = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, dpi=DOTS_PER_INCH, metadata=metadata[path.suffix.lower()])
    except OSError as error:
        raise UserError(f"the figure '{path}' cannot be written: {error.strerror or error}.") from None


def save_all(figures: Mapping[str, Any], folder: Path) -> list[Path]:
    """Each under its name, as a .png."""
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        save(figure, path)
    return paths


def svg_of(figure: Any, name: str) -> str:
    """To stand in a page: its text is text, without a background, and black is the page's own colour of text. `name`
    keeps what is defined in it apart from what other figures of the page define."""
    import matplotlib

    stream = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks, which the reader's own may have
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' id="[\w.]+_\d+"', "", text)  # names of its parts, which every figure has
    text = re.sub(r"(fill|stroke): #000000", r"\1: currentColor", text)
    text = text.replace(f": {BLUE.lower()}", f": var(--blue, {BLUE.lower()})")  # too dark for a dark page
    width, height = (72 * inches for inches in figure.get_size_inches())
    size = f'viewBox="0 0 {width:g} {height:g}" style="min-width: {0.8 * width:.0f}px; max-width: {1.6 * width:.0f}px"'
    begin = f'<svg {size} xmlns:xlink="http://www.w3.org/1999/xlink" aria-hidden="true">'
    return re.sub(r"<svg [^>]*>", begin, text, count=1)


def _matplotlib(what: str) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra(what, "matplotlib", "charts") from None


# Runs side by side: their curves, and how far each is from the first.


COLOURS = (BLUE, ORANGE, GREEN, RED, GREY, "#CC79A7", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
AXES = {"steps": "steps", "tokens": "tokens", "time": "training time (s)", "epochs": "epochs"}

Facts = dict[str, Any]


def draw_comparison(facts: Facts, path: Path) -> None:
    """From the answer of `trainbook compare --json`."""
    has_difference = any(len(pairing["way"]) > 1 for pairing in facts["comparisons"])
    figure, axes = new_figure(1, 2 if has_difference else 1, height=4.6)
    _curves(axes[0, 0], facts)
    if has_difference:
        draw_differences(axes[0, 1], facts)
    save(figure, path)


def _curves(axis: Any, facts: Facts) -> None:
    """A group has a colour; its seeds have styles of line."""
    side = "training" if facts["split"] == "train" else "validation"
    axis.set_title(f"{side.capitalize()} {facts['metric']}")
    for number, group in enumerate(facts["groups"]):
        colour = COLOURS[number % len(COLOURS)]
        for repeat, run in enumerate(group["runs"]):
            points = facts["curves"][run]
            style = STYLES[repeat % len(STYLES)]
            marker = "o" if len(points) < 30 else None
            places, values = [place for place, _ in points], [value for _, value in points]
            axis.plot(
                places, values, style, color=colour, label=plain_name(run), marker=marker, markersize=3, linewidth=1.4
            )
    axis.set_xlabel(AXES[facts["by"]])
    axis.set_ylabel(facts["unit"] or facts["metric"])
    axis.legend(fontsize=9, frameon=False)


def draw_differences(axis: Any, facts: Facts) -> None:
    first = facts["comparisons"][0]["reference"]
    axis.set_title(f"Difference from {plain_name(first)}")
    axis.axhline(0, color=GREY, linewidth=1)
    for number, pairing in enumerate(facts["comparisons"], start=1):
        colour = COLOURS[number % len(COLOURS)]
        places = [point["at"] for point in pairing["way"]]
        axis.plot(
            places,
            [point["difference"] for point in pairing["way"]],
            color=colour,
            label=plain_name(pairing["other"]),
            marker="o",
        )
        if pairing["interval"] is not None:
            low, high = pairing["interval"]
            axis.vlines(pairing["at"], low, high, color=colour, linewidth=3, alpha=0.4, label="95 % interval")
    axis.set_xlabel(AXES[facts["by"]])
    axis.legend(fontsize=9, frameon=False)


def plain_name(text: str) -> str:
    """As it is: between two dollars matplotlib sees mathematics."""
    return text.replace("$", "\\$")
