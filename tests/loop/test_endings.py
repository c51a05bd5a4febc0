"""Every way out of a run leaves its folder true."""

from __future__ import annotations

import json

import pytest

from trainbook.errors import Interrupted, MissingExtra, RunError, RunFolderError
from trainbook.knobs import load
from trainbook.loop import session
from trainbook.loop.job import Job


def broken(*_: object, **__: object):
    raise RuntimeError("the validation file is gone")


def test_a_finished_run_leaves_its_whole_story(lab):
    result = lab.train()
    run = lab.open()
    manifest = run.read_manifest()
    assert (result.ended, manifest.status, manifest.status_detail) == ("finished", "finished", "")
    assert [(part["segment"], part["start_step"], part["reason"]) for part in manifest.segments] == [(0, 0, "finished")]
    assert manifest.determinism["threads"] >= 1 and manifest.determinism["device"] == "cpu"
    assert load(run.config).config == lab.load().config
    kinds = [event["kind"] for event in run.events()]
    assert kinds[0] == "start" and kinds[-1] == "finish" and kinds.count("checkpoint") == 2
    assert "finished" in run.report.read_text()


def test_a_failing_step_ends_the_run_as_failed_and_loses_no_step_before_it(lab):
    def fail(number, state, step):
        if number == 8:
            raise RuntimeError("the GPU fell off the bus")
        return step()

    with lab.around_step(fail), pytest.raises(RuntimeError):
        lab.train()
    manifest = lab.open().read_manifest()
    assert (manifest.status, manifest.status_detail) == ("failed", "RuntimeError: the GPU fell off the bus")
    assert lab.events("failure")[0]["step"] == 7
    assert "the GPU fell off the bus" in lab.open().report.read_text()
    assert lab.steps_saved() == [6, 7]
    lab.train()
    lab.train(name="whole")
    lab.must_be_equal("run", "whole")


def test_a_failing_evaluation_ends_the_run_as_failed(lab, monkeypatch):
    from trainbook.loop import build as build_module

    monkeypatch.setattr(build_module, "evaluate", broken)
    with pytest.raises(RuntimeError):
        lab.train()
    assert lab.open().read_manifest().status == "failed"
    assert lab.events("failure")[0]["reason"] == "RuntimeError: the validation file is gone"


def test_an_interrupted_run_is_saved_at_that_step_and_says_how_to_go_on(lab, monkeypatch):
    real = session.Interrupts
    made = []
    monkeypatch.setattr(session, "Interrupts", lambda *given: made.append(real(*given)) or made[-1])

    def interrupt(number, state, step):
        if number == 5:
            made[-1].requested = "SIGTERM"
        return step()

    with lab.around_step(interrupt), pytest.raises(Interrupted) as stopped:
        lab.train()
    assert str(stopped.value) == f"SIGTERM: saved at step 5. To resume: trainbook resume {lab.open().path}"
    assert lab.steps_saved() == [5]
    manifest = lab.open().read_manifest()
    assert (manifest.status, manifest.status_detail) == ("interrupted", "SIGTERM: saved at step 5")
    assert [(event["kind"], event["step"]) for event in lab.open().events()[1:]] == [
        ("interrupt", 5),
        ("checkpoint", 5),
    ]


def test_an_interruption_during_the_last_step_lets_the_run_finish(lab, monkeypatch):
    real, made = session.Interrupts, []
    monkeypatch.setattr(session, "Interrupts", lambda *given: made.append(real(*given)) or made[-1])

    def interrupt(number, state, step):
        made[-1].requested = "Ctrl-C" if number == 12 else None
        return step()

    with lab.around_step(interrupt):
        assert lab.train().ended == "finished"


def test_the_rows_are_on_the_disk_before_the_checkpoint_that_stands_on_them(lab, monkeypatch):
    from trainbook.checkpoints import CheckpointStore
    from trainbook.tracking import Trackers

    calls = []
    fsync, save = Trackers.fsync, CheckpointStore.save
    monkeypatch.setattr(Trackers, "fsync", lambda self: (calls.append("rows"), fsync(self))[1])
    monkeypatch.setattr(
        CheckpointStore, "save", lambda self, *args, **kwargs: (calls.append("save"), save(self, *args, **kwargs))[1]
    )
    lab.train()
    assert calls == ["rows", "save"] * 2


def test_a_run_that_fails_before_it_begins_leaves_no_folder(lab, monkeypatch):
    import trainbook.tracking

    monkeypatch.setattr(trainbook.tracking, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'trainbook\[wandb\]'"):
        lab.train("logging.report_to=[wandb]")
    assert not lab.open().path.exists()


def test_a_second_process_does_not_touch_the_folder_of_one_that_is_still_preparing(lab):
    from trainbook.runs import RunFolder

    first = RunFolder.create(lab.runs, "run")
    with first.lock():  # it reads its data: there is no manifest yet
        with pytest.raises(RunFolderError, match="is in use by process"):
            lab.train()
        assert first.lock_file.exists()
    assert lab.train().ended == "finished"


@pytest.mark.parametrize("moment", ["store", "trackers", "tokenizer"])
def test_a_process_killed_before_its_manifest_does_not_block_the_name(lab, monkeypatch, moment: str):
    """A killed process tidies nothing up."""
    from trainbook.runs import RunFolder

    class KilledError(BaseException):
        pass

    def die(*_, **__):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "discard", lambda self: None)
        patch.setattr(session.Manifest, "end_segment", die)
        if moment == "store":
            patch.setattr(session.tracking, "build", die)
        elif moment == "trackers":
            patch.setattr(session, "write_text_atomically", die)
        else:
            patch.setattr(session.Manifest, "start_segment", die)
        with pytest.raises(KilledError):
            lab.train()
    assert not lab.open().manifest.exists() and lab.open().checkpoints.exists()
    assert lab.train().ended == "finished"
    lab.train(name="whole")
    lab.must_be_equal("run", "whole")


def test_a_disk_that_refuses_the_last_words_does_not_hide_the_first_error(lab, monkeypatch):
    from trainbook.runs import RunFolder
    from trainbook.tracking.tracker import FileTracker

    def fill_the_disk():
        def refuse(*_):
            raise RunError("cannot be written: No space left on device")

        monkeypatch.setattr(RunFolder, "write_manifest", refuse)
        monkeypatch.setattr(FileTracker, "log_event", refuse)

    def crash(number, state, step):
        if number == 8:
            fill_the_disk()
            raise RunError("the first error")
        return step()

    with lab.around_step(crash), pytest.raises(RunError, match="the first error"):
        lab.train()


def test_a_description_is_printed_before_the_first_step_unless_quiet(lab, capsys):
    lab.train(quiet=False)
    out = capsys.readouterr().out
    assert out.index("parameters") < out.index("step      1/12")
    assert "batch      4 sequences, about 64 tokens" in out
    lab.train(name="other")
    assert capsys.readouterr().out == ""


def test_the_description_of_whole_epochs_counts_each_token_once_an_epoch(lab):
    import torch

    from trainbook.loop.describe import describe

    built = lab.build("training.num_train_epochs=2", "batch.global_batch_size=24", samples="documents")
    length = dict(describe(built, torch.device("cpu")))["length"]
    assert f"= {2 * built.data.train.num_tokens:,} tokens = 2.00 epochs" in length


def test_the_manifest_is_json_that_others_can_read(lab):
    lab.train()
    content = json.loads(lab.open().manifest.read_text())
    assert content["status"] == "finished" and content["seed"] == lab.load().config.training.seed


def test_a_job_without_validation_data_is_never_due_for_evaluation(lab):
    job: Job = lab.build("data.validation_ratio=0", "evaluation.eval_steps=null")
    assert not job.has_validation and not any(job.evaluation_is_due(step) for step in range(1, 30))


def test_a_disk_that_fills_up_is_named_and_the_run_goes_on_once_there_is_room(lab, monkeypatch):
    import errno
    import os

    from trainbook.checkpoints import folder
    from trainbook.errors import CheckpointError

    overrides = ("checkpoint.save_steps=3", "evaluation.eval_steps=100", "checkpoint.asynchronous=false")
    lab.train(*overrides, name="whole")
    real = os.write

    def fill_the_disk(number, state, step):
        if number == 8:
            monkeypatch.setattr(folder.os, "write", full)
        return step()

    def full(descriptor, content):
        if b"exp_avg" in bytes(content)[:2000]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, content)

    with lab.around_step(fill_the_disk), pytest.raises(CheckpointError, match="the disk is full") as told:
        lab.train(*overrides)
    assert told.value.exit_code == 1 and "The last complete checkpoint is that of step 6" in str(told.value)
    assert lab.state()["loop"]["step"] == 6
    assert lab.open().read_manifest().status == "failed"
    monkeypatch.setattr(folder.os, "write", real)
    assert lab.train(*overrides).ended == "finished"
    lab.must_be_equal("whole", "run")
