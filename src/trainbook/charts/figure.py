"""What all pictures share: matplotlib without a screen, colours that everybody can tell apart, quiet axes."""

from __future__ import annotations

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
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
        axis.title.set_fontsize(11)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    try:
        # Without a date or a version the same data always make the same file.
        metadata = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, dpi=DOTS_PER_INCH, metadata=metadata[path.suffix.lower()])
    except OSError as error:
        raise UserError(f"the figure '{path}' cannot be written: {error.strerror or error}.") from None


def _matplotlib(what: str) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra(what, "matplotlib", "charts") from None
