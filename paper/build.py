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

Facts = dict[str, Any]


def gathered() -> Facts:
    """All that the text reads: verdicts, figures and numbers."""
    claims = evidence.claims()
    verdicts = Counter(each["verdict"] for each in claims)
    topics = [
        {"name": topic, "claims": [each for each in claims if each["topic"] == topic]}
        for topic in dict.fromkeys(each["topic"] for each in claims)
    ]
    places = {
        f"{name}/{arm['name']}": evidence.arm_text(f"{name}/{arm['name']}")
        for name, study in evidence.studies().items()
        for arm in study["arms"]
        if arm["effect"]
    }
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
        "cost": f"{runs} runs beside those that tuned the learning rates, on {machine}.",
    }


def main() -> None:
    import typst

    BUILD.mkdir(exist_ok=True)
    facts = gathered()
    facts["figures"] = figures.draw_all(BUILD)
    (BUILD / "data.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    typst.compile(str(HERE / "paper.typ"), output=str(PDF), root=str(HERE))
    typst.compile(str(HERE / "paper.typ"), output=str(HTML), root=str(HERE), format="html")
    verdicts = ", ".join(f"{facts['numbers'][each.replace(' ', '_')]} {each}" for each in evidence.VERDICTS)
    print(f"{PDF.relative_to(HERE.parent)} ({PDF.stat().st_size / 1e6:.1f} MB), {HTML.relative_to(HERE.parent)}")
    print(f"{len(facts['figures'])} figures, {facts['numbers']['claims']} claims: {verdicts}")


if __name__ == "__main__":
    main()
