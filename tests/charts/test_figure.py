"""Where a picture may go, and what is told when it cannot be written after all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainbook.charts import figure, study
from trainbook.errors import UserError


def test_a_folder_in_the_place_of_a_picture_is_known_before_the_work(tmp_path: Path):
    (tmp_path / "d.png").mkdir()
    with pytest.raises(UserError, match=r"--picture: '.*d.png' is a folder"):
        figure.check_path(tmp_path / "d.png")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("losses", [[5.0, 4.0, 3.0, 2.0, 9.0], [5.0, 6.0, 7.0, 8.0, 9.0]], ids=["falls", "never falls"])
def test_a_rate_range_is_told_before_it_is_drawn(
    lab, losses: list[float], as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from trainbook.cli.rates import tell_rate_range
    from trainbook.study import rate_range

    def full(answer: dict[str, Any], path: Path) -> None:
        raise UserError("the picture cannot be written: No space left on device.")

    found = rate_range.read_curve([1e-4, 1e-3, 1e-2, 1e-1, 1.0], losses)
    monkeypatch.setattr(rate_range, "range_test", lambda config: found)
    monkeypatch.setattr(study, "draw_rate_range", full)
    overrides = ["training.max_steps=4", "schedule.warmup_steps=1"]
    with pytest.raises(UserError, match="No space left"):
        tell_rate_range("gpt-tiny", overrides, lab.root / "rates.png", as_json)
    told = capsys.readouterr().out
    if as_json:
        assert json.loads(told)["losses"] == losses
    else:
        assert "  5 steps, the learning rate growing" in told and "picture" not in told
