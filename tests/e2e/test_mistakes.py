"""A user's mistake is a message on the terminal, exit code 2, and nothing left behind."""

from __future__ import annotations


def test_a_typo_costs_a_second_and_leaves_nothing(shell):
    (shell.root / "my.yaml").write_text("optimizer:\n  lerning_rate: 1e-3\ntraining:\n  max_steps: 5\n")
    ended = shell.run("train", "my.yaml", "model.hidden_size=abc", "--name", "typo", fresh=True)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("error: 2 problems\n")
    assert "my.yaml:2  optimizer.lerning_rate: no such knob. Did you mean optimizer.learning_rate?" in ended.stderr
    assert "model.hidden_size: must be" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not shell.folder("typo").path.exists()


def test_data_that_is_not_there_is_said_and_leaves_nothing(shell):
    ended = shell.train("nodata", "data.source=nowhere.txt")
    assert ended.returncode == 2
    assert "nowhere.txt" in ended.stderr and "Traceback" not in ended.stderr
    assert not shell.folder("nodata").path.exists()
