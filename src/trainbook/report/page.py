"""A page in sections, and the two files that are made of it: HTML that needs nothing else, and Markdown.

All text on a page may come from a stranger's run: the template escapes it, and so does the Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from trainbook.errors import MissingExtra, RunError, UserError
from trainbook.runs import write_text_atomically
from trainbook.runs.schema import fixed
from trainbook.terminal import visible

HTML, MARKDOWN = "report.html", "report.md"
WIDE = 6.0  # inches of a chart: it has a row of its own


@dataclass(frozen=True)
class Text:
    text: str
    kind: ClassVar[str] = "text"

    def markdown(self) -> list[str]:
        return [escaped(self.text)]


@dataclass(frozen=True)
class Bullets:
    lines: Sequence[str]
    kind: ClassVar[str] = "bullets"

    def markdown(self) -> list[str]:
        return [f"- {escaped(line)}" for line in self.lines]


@dataclass(frozen=True)
class PageTable:
    """The first cell of a row is its name. Without columns: names and what is known of them."""

    caption: str
    rows: Sequence[Sequence[Any]]  # None is an empty cell
    columns: Sequence[str] = ()
    kind: ClassVar[str] = "table"

    def markdown(self) -> list[str]:
        head = self.columns or [""] * max(map(len, self.rows), default=2)
        rows = [head, ["---"] * len(head), *self.rows]
        return [f"**{escaped(self.caption)}**", "", *(f"| {' | '.join(map(escaped, row))} |" for row in rows)]


def named(caption: str, facts: Mapping[str, Any]) -> PageTable:
    """Names and what is known of them; without those of which nothing is."""
    return PageTable(caption, [[name, value] for name, value in facts.items() if value not in (None, "")])


@dataclass(frozen=True)
class FindingCard:
    severity: str
    title: str
    certainty: str
    lines: Sequence[str]  # evidence, then the remedy
    command: str | None = None
    kind: ClassVar[str] = "finding"

    def markdown(self) -> list[str]:
        told = [f"- **{self.severity}**: {escaped(self.title)} ({escaped(self.certainty)})"]
        told += [f"  - {escaped(line)}" for line in self.lines]
        return told + ([f"  - {code(self.command)}"] if self.command else [])


@dataclass(frozen=True)
class Chart:
    svg: str
    label: str  # what it shows, for those who cannot see it
    caption: str
    sketch: str = ""  # the same in a line of text
    is_wide: bool = False  # needs the whole width of the page
    kind: ClassVar[str] = "chart"

    def markdown(self) -> list[str]:
        return [f"{escaped(self.label)}{f' ({escaped(self.sketch)})' if self.sketch else ''}."]


@dataclass(frozen=True)
class Commands:
    commands: Sequence[tuple[str, str]]  # with what each does
    kind: ClassVar[str] = "commands"

    def markdown(self) -> list[str]:
        return [f"- {code(command)}: {escaped(what)}" for command, what in self.commands]


@dataclass(frozen=True)
class Listing:
    text: str
    kind: ClassVar[str] = "listing"

    def markdown(self) -> list[str]:
        fence = "`" * max(3, 1 + _longest_ticks(self.text))
        return [fence, *visible(self.text).splitlines(), fence]


@dataclass
class PageSection:
    title: str
    blocks: list[Any] = field(default_factory=list)
    is_folded: bool = False


@dataclass
class Page:
    name: str
    what: str  # "run", "tuning study"
    status: str  # one word
    headline: str
    sections: list[PageSection] = field(default_factory=list)
    footer: str = ""
    notices: Sequence[str] = ()  # what of the files could not be read

    def add(self, title: str, *blocks: Any, is_folded: bool = False) -> None:
        """A section, unless it would be empty."""
        kept = [block for block in blocks if not isinstance(block, PageTable) or block.rows]
        if kept:
            self.sections.append(PageSection(title, kept, is_folded))

    def as_html(self) -> str:
        import jinja2

        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("trainbook", "report"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=lambda value: value if hasattr(value, "__html__") else _text(value),
        )
        return environment.get_template("page.html").render(page=self)

    def as_markdown(self) -> str:
        out = [f"# {escaped(self.name)}: {self.what}, {self.status}", "", escaped(self.headline)]
        for section in self.sections:
            told = [line for block in section.blocks if (lines := block.markdown()) for line in ["", *lines]]
            out += ["", f"## {escaped(section.title)}", *told] if told else []
        return "\n".join([*out, "", escaped(self.footer)]) + "\n"

    def as_facts(self) -> list[dict[str, Any]]:
        """The sections as plain data, for a program that shows them in its own way."""
        return [
            {
                "title": section.title,
                "is_folded": section.is_folded,
                "blocks": [{"kind": block.kind, **vars(block)} for block in section.blocks],
            }
            for section in self.sections
        ]

    def write(self, folder: Path) -> tuple[Path, Path]:
        paths = folder / HTML, folder / MARKDOWN
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text_atomically(paths[0], self.as_html())
            write_text_atomically(paths[1], self.as_markdown())
        except (OSError, RunError) as error:
            told = f"{folder}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
            raise UserError(f"{told}. Choose another folder with --to DIR.") from None
        return paths


def charts(*wanted: tuple[Callable[[], Any], str, str, str]) -> list[Chart | Text]:
    """Figures, each as a function that draws it, with the other fields of a chart; or why there are none."""
    from trainbook.charts.figure import svg_of

    drawn: list[Chart | Text] = []
    for number, (draw, label, caption, sketch) in enumerate(wanted):
        try:
            figure = draw()
            svg, is_wide = visible(svg_of(figure, f"chart-{number}")), figure.get_figwidth() > WIDE
            drawn.append(Chart(svg, label, caption, sketch, is_wide))
        except MissingExtra as missing:
            told = [f"{each[1]}{f' ({each[3]})' if each[3] else ''}." for each in wanted]
            return [Text(f"No charts: {missing}"), *map(Text, told)]
        except Exception as error:  # of numbers that nobody expected: the rest of the page is worth having
            drawn.append(Text(f"{label}. The chart could not be drawn ({type(error).__name__}: {error})."))
    return drawn


def number(value: Any) -> str:
    """A loss or another metric; empty where there is none."""
    return "" if value is None else fixed(value, 4) if isinstance(value, float) else str(value)


def _text(value: Any) -> str:
    return "" if value is None else visible(str(value))


def escaped(text: Any) -> str:
    """For a line or a cell of Markdown: no markup, no HTML, no link."""
    line = re.sub(r"([\\`\[\]|*])", r"\\\1", " ".join(_text(text).split()))
    return line.replace("&", "&amp;").replace("<", "&lt;")


def code(text: str) -> str:
    line = " ".join(visible(text).splitlines())
    ticks = "`" * (1 + _longest_ticks(line))
    return f"{ticks} {line} {ticks}" if len(ticks) > 1 else f"`{line}`"


def _longest_ticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
