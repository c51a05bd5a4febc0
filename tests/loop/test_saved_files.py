"""A run that lost some of its own files gets them back from a checkpoint; what cannot come back is told."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from tests.conftest import slow
from torch import nn

import trainbook
from trainbook.checkpoints import CheckpointStore
from trainbook.errors import NewerRun, ResumeError, RunFolderError, UserError
from trainbook.knobs import load

OFTEN = ("checkpoint.save_steps=3", "logging.dense_steps=100")


@pytest.fixture(scope="module")
def trained(shared_lab):
    """A lab with a run that nothing interrupted, and one that was cut off at step 8, to be copied and spoiled."""
    torch.backends.mkldnn.enabled = False  # as in each test, which this comes before
    shared_lab.train(*OFTEN, name="whole")
    with shared_lab.crashing_at(8):
        shared_lab.train(*OFTEN, name="cut")
    return shared_lab


@pytest.fixture
def cut(trained):
    shutil.copytree(trained.runs / "cut", trained.runs / "run")
    yield trained
    shutil.rmtree(trained.runs / "run")


def told(lab, name: str = "run") -> list[str]:
    return [event["reason"] for event in lab.events("notice", name)]


def spoil(path, harm: str) -> None:
    if harm == "gone":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes({"empty": b"", "zeros": b"\0" * 50, "cut": content[: len(content) // 2]}[harm])


def without_copies(lab) -> None:
    """As if the checkpoints were of a time when they held nothing of the run's own files."""
    store = CheckpointStore(lab.open().checkpoints)
    for step in lab.steps_saved():
        state = lab.state(which=step)
        del state["run"]
        store.save(step, state)


def files(lab) -> dict[str, bytes | None]:
    paths = lab.open().path.rglob("*")
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize(
    ("harm", "words"),
    [("gone", "was missing"), slow("empty", "was empty"), slow("zeros", "was empty"), ("cut", "was truncated")],
)
@pytest.mark.parametrize("command", ["train", "resume"])
def test_a_lost_configuration_comes_back_as_it_was(cut, capsys, command: str, harm: str, words: str):
    before = cut.open().config.read_bytes()
    spoil(cut.open().config, harm)
    if command == "train":
        cut.train(*OFTEN, quiet=False)
    else:
        trainbook.resume(cut.open().path)
    assert cut.open().config.read_bytes() == before
    assert told(cut) == [f"config.yaml {words}: restored from step-00000006"]
    assert f"config.yaml {words}: restored from step-00000006" in capsys.readouterr().out
    cut.must_be_equal("run", "whole")


@pytest.mark.parametrize(
    ("harm", "words"),
    [slow("gone", "was missing"), ("empty", "was empty"), slow("zeros", "was empty"), ("cut", "was damaged")],
)
@pytest.mark.parametrize("command", ["train", "resume"])
def test_a_lost_manifest_comes_back_as_it_stood_at_the_checkpoint(cut, capsys, command: str, harm: str, words: str):
    before = cut.open().read_manifest()
    spoil(cut.open().manifest, harm)
    if command == "train":
        cut.train(*OFTEN, quiet=False)
    else:
        trainbook.resume("run", runs_dir=cut.runs)
    line = f"manifest.json {words}: restored from step-00000006, as saved then"
    assert told(cut) == [line] and line in capsys.readouterr().out
    manifest = cut.open().read_manifest()
    assert (manifest.status, manifest.created, manifest.config) == ("finished", before.created, before.config)
    assert [part["segment"] for part in manifest.segments] == [0, 1]
    cut.must_be_equal("run", "whole")


@pytest.mark.parametrize("broken", [{"segments": "none"}, {"config": {"model": {"hidden_size": "wide"}}}])
def test_a_manifest_with_nonsense_in_it_is_damaged(cut, broken: dict):
    content = json.loads(cut.open().manifest.read_text())
    cut.open().manifest.write_text(json.dumps({**content, **broken}))
    cut.train(*OFTEN)
    assert told(cut) == ["manifest.json was damaged: restored from step-00000006, as saved then"]
    cut.must_be_equal("run", "whole")


def test_both_of_them_come_back(cut):
    cut.open().config.unlink()
    cut.open().manifest.unlink()
    trainbook.resume(cut.open().path, quiet=True)
    assert [line.split(":")[0] for line in told(cut)] == ["manifest.json was missing", "config.yaml was missing"]
    assert load(cut.open().config).config == load(cut.open("whole").config).config
    cut.must_be_equal("run", "whole")


def test_a_configuration_that_was_changed_since_the_checkpoint_comes_back_changed(cut):
    with cut.crashing_at(8):
        cut.train(*OFTEN, "logging.logging_steps=3")
    cut.open().config.unlink()
    trainbook.resume(cut.open().path, quiet=True)
    text = cut.open().config.read_text()
    assert "  logging_steps: 3  # manifest.json" in text and "  save_steps: 3  # override" in text


def test_a_run_that_was_made_by_fit_gets_its_files_back(lab):
    def fit():
        options = {"name": "own", "runs_dir": lab.runs, "quiet": True, "max_steps": 8, "save_steps": 2}
        data = [(torch.ones(2, 3), torch.ones(2, 1))] * 4
        trainbook.fit(nn.Linear(3, 1), data, loss=lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]), **options)

    with lab.crashing_at(5):
        fit()
    lab.open("own").manifest.write_text("")
    lab.open("own").config.unlink()
    with pytest.raises(ResumeError, match=r"was made by trainbook\.fit"):
        trainbook.resume(lab.open("own").path)
    fit()
    assert len(told(lab, "own")) == 2 and lab.open("own").read_manifest().recipe == "fit"


def test_without_a_copy_a_lost_configuration_is_written_from_the_manifest(cut):
    without_copies(cut)
    expected = load(cut.open().config).config
    cut.open().config.unlink()
    trainbook.resume(cut.open().path, quiet=True)
    assert told(cut) == ["config.yaml was missing: rewritten from manifest.json"]
    assert load(cut.open().config).config == expected
    cut.must_be_equal("run", "whole")


@pytest.mark.parametrize("harm", ["gone", "empty", "cut"])
@pytest.mark.parametrize("command", ["train", "resume"])
def test_without_a_copy_a_lost_manifest_is_a_clear_error(cut, command: str, harm: str):
    without_copies(cut)
    spoil(cut.open().manifest, harm)
    before = files(cut)
    with pytest.raises(RunFolderError) as refused:
        cut.train(*OFTEN) if command == "train" else trainbook.resume(cut.open().path)
    said = str(refused.value)
    assert "manifest.json" in said and str(cut.open().path) in said
    assert ("is missing" if harm == "gone" else "must be JSON") in said
    assert "restore it, or start a new run under another --name" in said
    assert files(cut) == before


def test_a_damaged_checkpoint_still_has_the_files_if_its_state_is_whole(cut):
    weights = cut.open().checkpoints / "step-00000006" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    cut.open().manifest.unlink()
    cut.train(*OFTEN)
    assert told(cut) == ["manifest.json was missing: restored from step-00000006, as saved then"]
    assert [event["step"] for event in cut.events("resume")] == [3]
    cut.must_be_equal("run", "whole")


def test_a_manifest_of_a_newer_version_is_not_taken_for_a_damaged_one(cut):
    content = json.loads(cut.open().manifest.read_text())
    cut.open().manifest.write_text(json.dumps({**content, "schema_version": 99}))
    before = files(cut)
    for start in (lambda: cut.train(*OFTEN), lambda: trainbook.resume(cut.open().path)):
        with pytest.raises(NewerRun, match="written by a newer Trainbook"):
            start()
    assert files(cut) == before


def test_resume_never_refuses_a_run_that_lost_its_manifest(cut):
    cut.open().manifest.unlink()
    with pytest.raises(RunFolderError, match="already holds a run"):
        cut.train(*OFTEN, resume="never")


def test_readers_say_how_a_lost_manifest_comes_back(cut):
    for harm, said in (("empty", "must be JSON"), ("gone", "has no manifest.json")):
        spoil(cut.open().manifest, harm)
        with pytest.raises(RunFolderError, match=f"{said}.*Resume the run: a checkpoint restores the file"):
            trainbook.open_run(cut.open().path)


def test_a_model_from_a_run_with_a_broken_manifest_is_refused_in_words(cut):
    cut.open().manifest.write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json is damaged\. Resume that run"):
        cut.load(f"model.pretrained={cut.open().path}")


def test_a_model_from_a_run_without_its_configuration_is_still_a_runs(cut):
    cut.open().config.unlink()
    config = cut.load(f"model.pretrained={cut.open().path}").config
    assert config.model.hidden_size == 16


@pytest.mark.parametrize("file", ["metrics.jsonl", "events.jsonl"])
@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("gone", "is missing; it held {rows} rows"),
        slow("empty", "has 0 row(s); it held {rows}"),
        slow("first line gone", "has lost or changed some of the {rows} rows that it held"),
        ("a digit", "has lost or changed some of the {rows} rows that it held"),
    ],
)
def test_lost_rows_are_told_and_the_run_goes_on(cut, capsys, file: str, harm: str, words: str):
    path = cut.open().path / file
    rows = cut.state()["run"]["rows"][file]["rows"]
    lines = path.read_text().splitlines(keepends=True)
    if harm == "first line gone":
        path.write_text("".join(lines[1:]) + lines[-1])
    elif harm == "a digit":
        path.write_text("".join(lines).replace('"time": 1', '"time": 2', 1))
    else:
        spoil(path, harm)
    cut.train(*OFTEN, quiet=False)
    line = f"{file} {words.format(rows=rows)} when step 6 was saved. Lost rows cannot be restored"
    assert told(cut) == [line] and line in capsys.readouterr().out
    assert cut.open().read_manifest().status == "finished"
    assert {row["step"] for row in cut.rows()} >= set(range(7, 13))


def test_lost_rows_are_told_once(cut):
    cut.open().metrics_file.unlink()
    with cut.interrupted_at(8):
        cut.train(*OFTEN)
    cut.train(*OFTEN)
    assert len(told(cut)) == 1


def test_nothing_is_told_where_nothing_is_lost(cut):
    for file in (cut.open().metrics_file, cut.open().events_file):
        with file.open("ab") as stream:
            stream.write(b'{"step": 7, "segm')
    cut.train(*OFTEN)
    assert told(cut) == [] == told(cut, "whole")
    cut.must_be_equal("run", "whole")


@pytest.mark.parametrize("file", ["metrics.jsonl", "events.jsonl"])
def test_lines_that_are_no_rows_are_set_aside_and_told_by_file_and_line(cut, file: str):
    path = cut.open().path / file
    lines = path.read_bytes().splitlines(keepends=True)
    no_step = lines[1].replace(b'"step"', b'"stfp"', 1)
    path.write_bytes(b"".join([lines[0], no_step, b"\xff\x00nonsense\n", *lines[2:]]))
    cut.train(*OFTEN)
    assert path.with_name(f"{file}.unreadable").read_bytes() == no_step + b"\xff\x00nonsense\n"
    assert path.read_bytes().startswith(lines[0] + b"".join(lines[2:-1]))
    assert [line for line in told(cut) if "moved to" in line] == [
        f"{path}:2: must have a step: moved to {file}.unreadable",
        f"{path}:3: must be one JSON object per line, but got b'\\xff\\x00nonsense': moved to {file}.unreadable",
    ]
    for line in path.read_bytes().splitlines():
        json.loads(line)
    assert cut.open().metrics("train")[-1]["step"] == 12


def test_a_configuration_that_says_something_else_is_put_right_and_told(cut):
    before = cut.open().config.read_text()
    cut.open().config.write_text(before.replace("learning_rate: 0.01", "learning_rate: 0.5"))
    cut.train(*OFTEN)
    named = "optimizer.learning_rate"
    assert told(cut) == [f"config.yaml did not match the run and was corrected: {named}"]
    assert load(cut.open().config).config.optimizer.learning_rate == 0.01


@pytest.fixture
def finished(trained):
    shutil.copytree(trained.runs / "whole", trained.runs / "run")
    yield trained
    shutil.rmtree(trained.runs / "run")


def test_a_finished_run_gets_its_configuration_back(finished, capsys):
    before = finished.open().config.read_bytes()
    finished.open().config.unlink()
    assert finished.train(*OFTEN, quiet=False).ended == "already finished"
    line = "config.yaml was missing: restored from step-00000012"
    assert finished.open().config.read_bytes() == before
    assert told(finished) == [line] and capsys.readouterr().out.startswith(line + "\n")
    after = files(finished)
    assert finished.train(*OFTEN).ended == "already finished" and files(finished) == after


def test_a_finished_run_gets_its_manifest_back_and_is_finished_again(finished):
    finished.open().manifest.unlink()
    assert finished.train(*OFTEN).ended == "finished"
    assert finished.open().read_manifest().status == "finished"
    finished.must_be_equal("run", "whole")


def test_a_finished_run_tells_once_of_rows_that_are_lost(finished):
    finished.open().metrics_file.write_text("")
    for _ in range(2):
        assert finished.train(*OFTEN).ended == "already finished"
    (line,) = told(finished)
    assert line.startswith("metrics.jsonl has 0 row(s); it held ")


def test_lost_samples_of_the_quarantine_are_written_again(lab):
    entry = {"id": 3, "source": "text.txt", "text": "bad", "step": 2, "reason": "r", "loss": 9.0, "data": "x"}

    def keep_out(number, state, step):
        if number == 2:
            state.kept_out.append(3)
        return step()

    from trainbook.loop.guard_actions import GuardActions

    real = GuardActions.state_dict
    with pytest.MonkeyPatch.context() as patch, lab.around_step(keep_out), lab.interrupted_at(5):
        patch.setattr(GuardActions, "state_dict", lambda self: {**real(self), "entries": [entry]})
        lab.train()
    lab.train()
    assert told(lab) == ["quarantine.jsonl was missing: restored from step-00000005"]
    assert json.loads(lab.open().quarantine_file.read_text())["id"] == 3
    lab.open().quarantine_file.unlink()
    assert lab.train().ended == "already finished"
    assert told(lab)[1:] == ["quarantine.jsonl was missing: restored from step-00000012"]
    assert json.loads(lab.open().quarantine_file.read_text())["id"] == 3
