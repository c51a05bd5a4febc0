"""What the README and the tour show works as it is shown. The commands of the README are run by test_docs.py."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from trainbook.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/tour.md")


def blocks(page: str, language: str) -> list[str]:
    path = ROOT / page
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """What follows a prompt in a console block, without its comment."""
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    shown = [re.sub(r"\s+#.*", "", line[2:]) for line in lines if line.startswith("$ ")]
    return list(dict.fromkeys(line for line in shown if re.match(r"(\S*/)?trainbook ", line)))


COMMANDS = commands("docs/tour.md")


@pytest.mark.parametrize("number", range(len(blocks("README.md", "python"))))
def test_the_python_of_the_readme_runs(shell, tmp_path: Path, number: int):
    script = tmp_path / "shown.py"
    script.write_text(blocks("README.md", "python")[number])
    ended = shell.run(program=f"import os, runpy; os.chdir({str(tmp_path)!r}); runpy.run_path('shown.py')", fresh=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(blocks("docs/tour.md", "python"))))
def test_the_python_of_the_tour_runs(shell, tmp_path: Path, number: int):
    script = tmp_path / "shown.py"
    script.write_text(blocks("docs/tour.md", "python")[number])
    ended = shell.run(program=f"import os, runpy; os.chdir({str(tmp_path)!r}); runpy.run_path('shown.py')", fresh=True)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_shown_is_understood(place: Path, command: str):
    (place / "my.yaml").write_text(blocks("docs/tour.md", "yaml")[0])
    (place / "books").mkdir()
    (place / "books" / "one.txt").write_text("What the pages call books/*.txt.")
    arguments = shlex.split(command)[1:]
    verb = get_command(app).commands[arguments[0]]  # pyright: ignore[reportAttributeAccessIssue]
    verb.make_context(arguments[0], arguments[1:])  # raises where an option is unknown or an argument is missing
    if arguments[0] == "explain":
        answer = CliRunner().invoke(app, arguments)
    elif arguments[0] == "train":
        answer = CliRunner().invoke(app, [*arguments, "--dry-run"])
    else:
        return
    assert answer.exit_code == 0, answer.output
    assert not (place / "runs").exists()


@pytest.mark.parametrize("page", PAGES)
def test_every_yaml_that_is_shown_is_a_lawful_configuration(place: Path, page: str):
    from trainbook.knobs import load

    for number, block in enumerate(blocks(page, "yaml")):
        (place / f"{number}.yaml").write_text(block)
        load(str(place / f"{number}.yaml"))


def test_the_python_file_of_the_tour_is_a_lawful_configuration(place: Path):
    from trainbook.knobs import load

    (block,) = (block for block in blocks("docs/tour.md", "python") if block.startswith("# my.py\n"))
    (place / "my.py").write_text(block)
    config = load("my.py").config
    assert (config.optimizer.learning_rate, config.optimizer.beta2, config.training.max_steps) == (1e-3, 0.95, 5000)


def test_the_readme_counts_the_knobs_rightly():
    from trainbook.knobs.aliases import by_path

    (shown,) = re.findall(r"(\d+) hyperparameters", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert int(shown) == len(by_path())


def test_the_readme_counts_the_doctors_rules_rightly():
    from trainbook.doctor.rule import all_rules

    (shown,) = re.findall(r"findings of up to (\d+) rules", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert int(shown) == len(all_rules())


def test_the_tour_names_every_packaged_recipe():
    from trainbook.knobs import recipes

    rows = [line for line in (ROOT / "docs/tour.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert named >= set(recipes.names())


def test_the_readme_names_every_extra_and_installs_what_its_commands_need():
    readme, makefile = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "Makefile"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    table = readme[readme.index("| extra | needed for |") :].split("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(extras - {"test", "benchmarks"})
    line = r"install .*'\.\[([\w,]+)\]'"
    (told,) = re.findall(line, readme)
    assert told == re.findall(line, makefile)[0], "what `make train` installs"
    assert {"hf", "tune", "charts"} <= set(told.split(","))  # export, tune, data --picture
