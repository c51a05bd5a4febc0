"""What begins with two dashes: an option of the verb, another name of a knob, or a slip of either."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from trainbook.cli.main import app
from trainbook.cli.options import names_a_knob
from trainbook.knobs.aliases import SPECIAL, by_name
from trainbook.knobs.config import section_types


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("tune", "gpt-tiny", "--budgt", "3"), "error: --budgt: no such option. Did you mean --budget?"),
        (("transfer", "gpt-tiny", "--proxy", "64", "--metod=zoom"), "--metod: no such option. Did you mean --method?"),
        (("tune", "gpt-tiny", "--trials", "3"), "error: --trials: no such option. Did you mean --budget?"),
        (("explain", "learning_rate", "--lr", "3"), "has no effect here: only a recipe or a configuration file"),
        (("train", "gpt-tiny", "--name", ""), "error: a run's name must begin with a letter or digit"),
        (("train", "gpt-tiny", "--name", "", "--dry-run"), "error: a run's name must begin with a letter or digit"),
        (("tune", "gpt-tiny", "--name", ""), "error: a study's name must begin with a letter or digit"),
        (("plan", "gpt-tiny", "--num-labels", "3"), "--num-labels: has no effect with training.task=causal"),
        (("plan", "gpt-tiny", "--gpuu", "H200"), "--gpuu: no such option. Did you mean --gpu?"),
        (
            ("train", "gpt-tiny", "--gpu", "H100"),
            "--gpu: no such option of trainbook train. It is one of trainbook plan",
        ),
        (("train", "gpt-tiny", "--dryrun"), "--dryrun: no such option. Did you mean --dry-run?"),
        (("train", "gpt-tiny", "--num-gpus=8"), "--num-gpus: no such option. Did you mean --nproc?"),
        (("plan", "gpt-tiny", "--count", "8"), "--count: no such option. Did you mean --world?"),
        (("plan", "gpt-tiny", "--zzz", "8"), "no such option, and no such knob. See: trainbook plan --help"),
        (
            ("explain", "gpt-tiny", "--for-batch", "3"),
            "--for-batch: no such option of trainbook explain.",
        ),
        (("train", "gpt-tiny", "--learning_rat", "1e-3"), "no such knob. Did you mean optimizer.learning_rate?"),
        (("train", "gpt-tiny", "--learning-rate", "abc"), "optimizer.learning_rate: must be a number"),
    ],
)
def test_a_slip_is_told_with_what_was_meant(asked: tuple[str, ...], told: str):
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2 and told in result.output


LONG = "1" + 400 * "0"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            ("plan", "gpt-tiny", "--gpu", "H100", "--world", LONG),
            "--world: must be at most 1000000, but got a number",
        ),
        (("plan", "gpt-tiny", "--gpu", "H100", "--vocab-size", LONG), "--vocab-size: must be at most 2147483647"),
        (
            ("tune", "gpt-tiny", "--for-batch", str(10**20)),
            f"--for-batch: must be at most 2147483647, but got {10**20}.",
        ),
        (("tune", "gpt-tiny", "--for-batch", LONG), "but got a number of 401 digits."),
        (("plan", "gpt-tiny", "--measure", "--noise-after", LONG), "--noise-after: must be at most 10000000"),
        (("plan", "gpt-tiny", "--gpu", "H100", "--price-per-hour", "1" + 300 * "0"), "and at most 1,000,000,000"),
        (("generate", "no-run", "--temperature", "1e300"), "--temperature: must be a number of at most 1e+30"),
        (
            ("generate", "no-run", "--temperature", "nan"),
            "--temperature: must be a number of at most 1e+30, but got nan.",
        ),
        (("generate", "no-run", "--seed", LONG), "--seed: must be at most 9223372036854775807"),
        (("plan", "gpt-tiny", "--world", "1e20"), "error: --world: must be a whole number, but got 1e20."),
        (("plan", "gpt-tiny", "--world=nan"), "error: --world: must be a whole number, but got nan."),
        (("tune", "gpt-tiny", "--seeds", "1e9"), "error: --seeds: must be a whole number, but got 1e9."),
        (("tune", "gpt-tiny", "--seeds", str(10**9)), "--seeds: must be at most 1000, but got 1000000000."),
        (("tune", "gpt-tiny", "--workers", str(10**9)), "--workers: must be at most 1024"),
        (("train", "gpt-tiny", "--nproc", str(10**9)), "--nproc: must be at most 1024"),
        (("train", "gpt-tiny", "--nproc", "0"), "--nproc: must be a whole number >= 1, but got 0."),
        (
            ("transfer", "gpt-tiny", "--coordinate-check", "--steps", str(10**9)),
            "--steps: must be at most 10000000",
        ),
        (("transfer", "gpt-tiny", "--coordinate-check", "--rate", "abc"), "--rate: must be a number, but got abc."),
        (("tune", "gpt-tiny", "--budget", "1e30 hours"), "must be from 0.001 to 100,000,000 GPU-hours, but got"),
        (("tune", "gpt-tiny", "--budget", "1e-300 hours"), "must be from 0.001 to 100,000,000 GPU-hours"),
        (("tune", "gpt-tiny", "--budget", "1e400 tokens"), "must be from 1 to 1,000,000,000,000,000 tokens"),
        (("train", "gpt-tiny", "data.num_workers=1e6"), "data.num_workers: must be a whole number >= 0 and <= 1024"),
    ],
)
def test_a_number_without_end_is_told_with_its_bound(asked: tuple[str, ...], told: str):
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2 and told in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            ("train", "data.source=x.csv", "training.task=classify"),
            "error: data.source=x.csv: a recipe or a configuration file must come first, as in: trainbook train "
            "bert-tiny data.source=x.csv training.task=classify",
        ),
        (("plan", "lr=3e-4"), "must come first, as in: trainbook plan gpt-tiny lr=3e-4"),
        (("check", "--learning_rate", "3e-4"), "as in: trainbook check gpt-tiny --learning_rate 3e-4"),
        (("explain", "lr=3e-4"), "as in: trainbook explain gpt-tiny lr=3e-4"),
        (("data", "data.source=x.csv"), "the data, a recipe or a configuration file must come first"),
        (("resume", "lr=3e-4"), "the name of a run must come first, as in: trainbook resume first-try lr=3e-4"),
    ],
)
def test_an_override_in_place_of_the_recipe_is_told_as_that(asked: tuple[str, ...], told: str):
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2 and told in result.output


def test_every_name_of_a_knob_or_section_is_an_option():
    for name in (*by_name(), *SPECIAL, *section_types(), "optimizer.learning_rate"):
        assert names_a_knob(f"--{name}") and names_a_knob(f"--{name.replace('_', '-')}"), name
    assert not names_a_knob("--gpu")


@pytest.mark.parametrize("verb", [[], ["train"], ["generate"], ["tune"], ["compare"]])
def test_help_names_no_type_for_a_flag(verb):
    text = CliRunner().invoke(app, [*verb, "--help"], env={"COLUMNS": "120"}).output
    assert "--help" in text and "<bool>" not in text


def test_help_names_the_command_also_when_it_is_run_as_a_module():
    ended = subprocess.run(
        [sys.executable, "-m", "trainbook", "doctor", "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: trainbook doctor" in ended.stdout
