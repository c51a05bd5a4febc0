"""What begins with two dashes: an option of the verb, another name of a knob, or a slip of either."""

from __future__ import annotations

import pytest
import typer.main
from typer.testing import CliRunner

from trainbook.cli.main import app
from trainbook.cli.options import _meant
from trainbook.knobs.aliases import SPECIAL, by_name


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("tune", "gpt-tiny", "--budgt", "3"), "error: --budgt: no such option. Did you mean --budget?"),
        (("transfer", "gpt-tiny", "--proxy", "64", "--metod=zoom"), "--metod: no such option. Did you mean --method?"),
        (("plan", "gpt-tiny", "--gpuu", "H200"), "--gpuu: no such option. Did you mean --gpu?"),
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
            "--world: must be at most 2147483647, but got a number",
        ),
        (("plan", "gpt-tiny", "--gpu", "H100", "--vocab-size", LONG), "--vocab-size: must be at most 2147483647"),
        (
            ("tune", "gpt-tiny", "--for-batch", str(10**20)),
            f"--for-batch: must be at most 2147483647, but got {10**20}.",
        ),
        (("tune", "gpt-tiny", "--for-batch", LONG), "but got a number of 401 digits."),
        (("plan", "gpt-tiny", "--measure", "--noise-after", LONG), "--noise-after: must be at most 2147483647"),
        (("plan", "gpt-tiny", "--gpu", "H100", "--price-per-hour", "1" + 300 * "0"), "and at most 1,000,000,000"),
        (("generate", "no-run", "--temperature", "1e300"), "--temperature: must be a number of at most 1e+30"),
        (
            ("generate", "no-run", "--temperature", "nan"),
            "--temperature: must be a number of at most 1e+30, but got nan.",
        ),
        (("generate", "no-run", "--seed", LONG), "--seed: must be at most 9223372036854775807"),
    ],
)
def test_a_number_without_end_is_told_with_its_bound(asked: tuple[str, ...], told: str):
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2 and told in " ".join(result.output.split())


def test_no_name_of_a_knob_is_taken_for_a_slip():
    verbs = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    for own in ([name for each in verb.params for name in each.opts if name.startswith("--")] for verb in verbs):
        for knob in (*by_name(), *SPECIAL):
            assert _meant(f"--{knob}", own) is None and _meant(f"--{knob.replace('_', '-')}", own) is None, knob


@pytest.mark.parametrize("verb", [[], ["train"], ["generate"], ["tune"], ["compare"]])
def test_help_names_no_type_for_a_flag(verb):
    text = CliRunner().invoke(app, [*verb, "--help"], env={"COLUMNS": "120"}).output
    assert "--help" in text and "<bool>" not in text
