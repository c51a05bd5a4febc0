"""The end of a study: the facts, the conclusion, the recipe and the pictures, written into its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainbook.errors import MissingExtra, RunError
from trainbook.runs import write_text_atomically
from trainbook.runs.jsonl import dumps
from trainbook.study.tune.conclusion import conclude, recipe_text
from trainbook.study.tune.planning import Plan
from trainbook.study.tune.results import read
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Trial

ANSWER, RECIPE, WORDS = "study.json", "best.yaml", "conclusion.md"


def finish(question: StudyQuestion, kept: dict[str, Any], trials: list[Trial], folder: Path) -> dict[str, Any]:
    """The answer for programs. RunError: no trial ended with a loss."""
    facts = read(question, Plan.from_json(kept), trials)
    more = {"conclusion": conclude(facts), "recipe": None, "pictures": [], "remarks": []}
    facts = {"study": folder.name, **facts, **more}
    # What took hours first: a picture that cannot be drawn is no reason to lose it.
    try:
        if facts["best"] is not None:
            recipe = folder / RECIPE
            write_text_atomically(recipe, recipe_text(facts, question.loaded, folder.name))
            facts["recipe"] = str(recipe)
        _write(facts, folder)
        if facts["best"] is None:
            raise RunError(facts["conclusion"][0])
        facts["pictures"], facts["remarks"] = _pictures(facts, folder)
        _write(facts, folder)
    except OSError as error:
        raise RunError(
            f"the answer cannot be written into {folder}: {error.strerror or error}. All trials are kept: fix this "
            "and run the same command again."
        ) from None
    return facts


def _write(facts: dict[str, Any], folder: Path) -> None:
    write_text_atomically(folder / ANSWER, dumps(facts) + "\n")
    write_text_atomically(folder / WORDS, "\n\n".join([f"# Study {folder.name}", *facts["conclusion"], ""]))


def _pictures(facts: dict[str, Any], folder: Path) -> tuple[list[str], list[str]]:
    """Those that can be drawn, and remarks on what could not."""
    try:
        from trainbook.charts.study import draw_study

        return [str(path) for path in draw_study(facts, folder)], []
    except MissingExtra:
        return [], ["no figures: they need pip install 'trainbook[charts]'"]
    except Exception as error:
        return [], [f"the figures could not be drawn: {type(error).__name__}: {error}"]
