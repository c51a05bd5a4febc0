"""What made a run, `trainbook train`, `fit` or `watch`, decides what can be done with it; a study is no run."""

from __future__ import annotations

from pathlib import Path

from trainbook.errors import ResumeError, RunFolderError
from trainbook.knobs.own_module import FIT, WATCH
from trainbook.runs.folder import RunFolder


def must_be_resumable(run: RunFolder) -> None:
    """A run of `fit` is resumed by the program that made it. One that `watch` recorded has no checkpoints of ours."""
    if (recipe := _recipe(run)) == FIT:
        raise ResumeError(
            f"{run.path} was made by trainbook.fit from a module of your own: call fit again with name={run.name!r}."
        )
    if recipe == WATCH:
        raise ResumeError(
            f"{run.path} was recorded by trainbook.watch and has no checkpoints of Trainbook's: resume your own "
            f"program. watch with name={run.name!r} continues the recording."
        )


def must_hold_a_model(run: RunFolder) -> None:
    """A model that can be built again from the run folder alone."""
    if (recipe := _recipe(run)) == FIT:
        raise RunFolderError(
            f"{run.path} was made by trainbook.fit with your own module, which cannot be built here: call fit again "
            f"with name={run.name!r} to get its weights, and use the module in Python."
        )
    if recipe == WATCH:
        raise RunFolderError(
            f"{run.path} was recorded by trainbook.watch, which saves no model: use the one that your program saved."
        )


def must_describe_a_run(source: str | Path | None) -> None:
    """A configuration file. In the folder of a run of `fit`, model and data are not those of the run."""
    if source is None or not Path(source).is_file():
        return
    run = RunFolder(Path(source).parent)
    if run.manifest.is_file() and _recipe(run) == FIT:
        raise RunFolderError(
            f"{source} does not describe a model or data: {run.path} was made by trainbook.fit with a module and data "
            f"of your own. Change the call of fit instead, with another name."
        )


def _recipe(run: RunFolder) -> str | None:
    try:
        return run.read_manifest().recipe
    except RunFolderError:  # told where the manifest is needed
        return None
