"""`make paper`: from results files to paper/trainbook.pdf and paper/trainbook.html, offline."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import evidence  # noqa: E402
import figures  # noqa: E402

BUILD = HERE / "build"
PDF, HTML = HERE / "trainbook.pdf", HERE / "trainbook.html"

# For a page that is read on a screen: typst gives it no style of its own, and leaves out the title's layout.
HEAD = """<style>
:root { color-scheme: light dark }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 Georgia, "DejaVu Serif", serif }
h1 { text-align: center; line-height: 1.2 }
.byline { text-align: center }
h2, h3, h4, th { font-family: system-ui, sans-serif }
figure { margin: 1.5rem 0; text-align: center; overflow-x: auto }
figcaption { font-size: .9rem; color: GrayText }
img, svg { max-width: 100%; height: auto; background: white }
table { border-collapse: collapse; font-size: .85rem; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .5rem; border-bottom: 1px solid #8885 }
code { overflow-wrap: anywhere }
</style>"""
TITLE = "Notes on training transformers, put to the test"

Facts = dict[str, Any]


def gathered() -> Facts:
    """All that the text reads: verdicts, figures and numbers."""
    claims = evidence.claims()
    verdicts = Counter(each["verdict"] for each in claims)
    topics = [
        {"name": topic, "claims": [each for each in claims if each["topic"] == topic]}
        for topic in dict.fromkeys(each["topic"] for each in claims)
    ]
    arms = [(name, arm["name"]) for name, study in evidence.studies().items() for arm in study["arms"] if arm["effect"]]
    places = {f"{study}/{arm}": f"{study}, {evidence.arm_text(f'{study}/{arm}')}" for study, arm in arms}
    answers = {name: answer() for name, answer in evidence.MEASURED.items()}
    sources = {each.source: each.command for each in answers.values() if each.source}
    numbers = {
        "claims": len(claims),
        "techniques": (HERE / "techniques.typ").read_text(encoding="utf-8").count("#technique("),
        **{verdict.replace(" ", "_"): verdicts[verdict] for verdict in evidence.VERDICTS},
    }
    return {
        "numbers": {name: str(value) for name, value in numbers.items()},
        "topics": topics,
        "arms": places,
        "facts": {name: answer.text for name, answer in answers.items()},
        "studies": [_study(study) for study in evidence.studies().values()],
        "sensitivity": evidence.sensitivities("gpt-sensitivity"),
        "benchmarks": [{"source": source, "command": command} for source, command in sorted(sources.items())],
    }


def _study(study: Facts) -> Facts:
    hardware = study["hardware"]
    gpus = ", ".join(gpu if isinstance(gpu, str) else gpu["name"] for gpu in hardware["gpus"])
    runs = sum(len(cell["losses"]) for arm in (study["control"], *study["arms"]) for cell in arm["by_data"])
    machine = gpus or f"{hardware['cores']} cores ({hardware['cpu']})"
    return {
        "name": study["name"],
        "command": study["command"],
        "commit": study["commit"] or "",
        "arms": len(study["arms"]),
        "runs": runs,
        "hardware": machine,
        "metric": study["metric"],
        "remark": " ".join([_edges(study), *(line for line in study["conclusion"] if "is measured on" in line)]),
        "cost": f"{runs} runs beside those that tuned the learning rates, on {machine}.",
    }


def _edges(study: Facts) -> str:
    cells = [cell for arm in (study["control"], *study["arms"]) for cell in arm["by_data"] if cell["by_rate"]]
    outermost = sum(cell["edge"] is not None for cell in cells)
    if not outermost:
        return ""
    return f"In {outermost} of {len(cells)} searches the best rate was an outermost one; a better one may lie beyond."


def main() -> None:
    import typst

    BUILD.mkdir(exist_ok=True)
    facts = gathered()
    facts["figures"] = figures.draw_all(BUILD)
    (BUILD / "data.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    typst.compile(str(HERE / "paper.typ"), output=str(PDF), root=str(HERE))
    page = typst.compile(str(HERE / "paper.typ"), root=str(HERE), format="html")
    byline = f"A review of {facts['numbers']['techniques']} techniques, with demonstrations on toy data sets"
    title = f'<h1>{TITLE}</h1><p class="byline">{byline}<br>The Trainbook authors</p>'
    text = page.decode().replace("</head>", f"{HEAD}</head>", 1)
    HTML.write_text(text.replace("<body>", f"<body>{title}", 1), encoding="utf-8")
    verdicts = ", ".join(f"{facts['numbers'][each.replace(' ', '_')]} {each}" for each in evidence.VERDICTS)
    print(f"{PDF.relative_to(HERE.parent)} ({PDF.stat().st_size / 1e6:.1f} MB), {HTML.relative_to(HERE.parent)}")
    print(f"{len(facts['figures'])} figures, {facts['numbers']['claims']} claims: {verdicts}")


if __name__ == "__main__":
    main()
