"""The names that are exported, and what importing them costs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainbook
from trainbook import api
from trainbook.errors import UserError


def test_the_exported_names_are_the_public_ones():
    assert sorted(trainbook.__all__) == [
        "Guard",
        "Result",
        "__version__",
        "explain",
        "fit",
        "generate",
        "load",
        "open_run",
        "resume",
        "train",
        "watch",
    ]
    assert dir(trainbook) == sorted(trainbook.__all__)
    for name in trainbook.__all__:
        assert getattr(trainbook, name) is not None


def test_every_exported_function_and_class_says_what_it_does():
    for name in trainbook.__all__:
        thing = getattr(trainbook, name)
        if callable(thing):
            assert inspect.getdoc(thing), name
            assert thing.__module__.startswith("trainbook.")


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'trainbook' has no attribute 'trian'"):
        trainbook.trian  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_the_version_is_the_one_of_the_project():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert trainbook.__version__ == project["version"]


def test_python_and_the_command_line_have_the_same_options():
    from trainbook.cli import train as verb

    starts_processes = {"nproc", "max_restarts"}  # which run a program, not a function
    of_the_process = {"timing"}  # which counts from where the process began
    own = {"recipe", "overrides", "dry_run", "as_json", *of_the_process, *starts_processes}
    assert set(inspect.signature(verb.train).parameters) - own <= set(inspect.signature(api.train).parameters)


@pytest.mark.parametrize(("function", "first"), [(trainbook.train, "gpt-tiny"), (trainbook.resume, "runs/NAME")])
def test_a_knob_as_a_keyword_is_told_how_knobs_are_passed(function: Any, first: str):
    with pytest.raises(UserError) as told:
        function(max_steps=30, learning_rate=1e-3)
    call = f'trainbook.{function.__name__}("{first}", ["max_steps=30", "learning_rate=0.001"])'
    assert str(told.value).startswith("max_steps, learning_rate: ") and call in str(told.value)
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_stepz'"):
        function("gpt-tiny", max_stepz=30)


def imported_by(program: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after running the program."""
    source = str(Path(trainbook.__file__).parents[1])
    report = "import sys; print('loaded:', *sorted({name.split('.')[0] for name in sys.modules}))"
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}\n{report}"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])},
    )
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.splitlines()[-1].removeprefix("loaded:").split())


def command(*arguments: str) -> str:
    return (
        "from trainbook.cli.main import app\n"
        "try:\n"
        f"    app({list(arguments)!r})\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code, ended.code"
    )


@pytest.mark.parametrize(
    "program",
    [
        "import trainbook, trainbook.errors, trainbook.roles, trainbook.knobs, trainbook.runs, trainbook.plan",
        "import trainbook.doctor, trainbook.report, trainbook.charts",
        "import trainbook; trainbook.explain; trainbook.load('gpt-tiny'); trainbook.open_run; trainbook.Result",
        "import trainbook.cli.main",
        command("--help"),
        command("explain", "learning_rate"),
        command("explain", "gpt-tiny", "--json"),
        command("plan", "gpt-tiny", "--json"),
        command("doctor", "gpt-tiny", "--json"),
        command("train", "gpt-tiny", "--dry-run"),
        command("train", "--help"),
    ],
    ids=[
        "packages",
        "packages with statistics",
        "names",
        "command line",
        "--help",
        "explain a knob",
        "explain a recipe",
        "plan",
        "doctor",
        "dry run",
        "train --help",
    ],
)
def test_what_works_on_files_alone_does_not_import_torch(program: str):
    loaded = imported_by(program)
    assert "trainbook" in loaded
    # Sources are read by NumPy, and the doctor's statistics are its.
    may_count = any(word in program for word in ("--dry-run", "doctor"))
    assert not loaded & {"torch", "transformers", "tensorboard", "wandb", *(() if may_count else ("numpy",))}


def test_the_loop_imports_torch_and_waits_for_nothing_that_few_runs_need():
    """SymPy comes with distributed checkpoints and the compiler, SciPy and scikit-learn with the linear baseline."""
    loaded = imported_by("import trainbook.loop.session")
    assert "torch" in loaded
    assert not loaded & {"scipy", "sklearn", "sympy", "transformers", "optuna", "matplotlib", "pyarrow"}
