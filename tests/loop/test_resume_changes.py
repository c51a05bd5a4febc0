"""What may change when a run goes on, what only on request, and what never."""

from __future__ import annotations

import pytest

from trainbook.errors import ResumeError


@pytest.fixture
def cut(lab):
    with lab.interrupted_at(5):
        lab.train()
    return lab


def test_what_does_not_change_the_learning_is_taken_and_written_down(cut):
    cut.train("logging.logging_steps=3", "data.num_workers=1", "checkpoint.save_steps=4")
    assert [event["reason"] for event in cut.events("config_change")] == [
        "data.num_workers: 0 -> 1",
        "checkpoint.save_steps: None -> 4",
        "logging.logging_steps: 10 -> 3",
    ]
    cut.train(name="whole")
    cut_losses = {row["step"]: row["loss"] for row in cut.rows()}
    assert cut_losses == {row["step"]: row["loss"] for row in cut.rows("whole")}


def test_what_changes_the_rest_of_the_run_is_refused_with_the_difference(cut):
    with pytest.raises(ResumeError) as refused:
        cut.train("optimizer.learning_rate=1e-3", "training.max_steps=20", "logging.logging_steps=3")
    assert str(refused.value) == "\n".join(
        [
            f"{cut.open().path} was started with another configuration:",
            "  optimizer.learning_rate: 0.01 -> 0.001   (changes the rest of the run)",
            "  training.max_steps: 12 -> 20   (changes the rest of the run)",
            "  logging.logging_steps: 10 -> 3",
            "Use the old values, add --accept-changes to resume with the new ones, or start a new run under another "
            "--name.",
        ]
    )
    assert cut.open().read_manifest().status == "interrupted"
    assert len(cut.open().read_manifest().segments) == 1


def test_it_is_taken_on_request(cut):
    cut.train("optimizer.learning_rate=1e-3", "training.max_steps=20", accept_changes=True)
    rows = cut.rows()
    assert rows[-1]["step"] == 20
    assert max(row["learning_rate"] for row in rows[5:]) <= 1e-3, "the configuration wins over the checkpoint"
    assert [event["reason"] for event in cut.events("config_change")] == [
        "optimizer.learning_rate: 0.01 -> 0.001",
        "training.max_steps: 12 -> 20",
    ]
    from trainbook.knobs import load

    assert load(cut.open().config).config.training.max_steps == 20


def test_what_the_checkpoints_do_not_fit_is_refused_always(cut):
    for accept in (False, True):
        with pytest.raises(ResumeError) as refused:
            cut.train("model.hidden_size=32", "training.max_steps=20", accept_changes=accept)
        assert str(refused.value) == "\n".join(
            [
                f"{cut.open().path} was started with another configuration:",
                "  model.hidden_size: 16 -> 32   (the model's parameters or their shapes would not match the "
                "checkpoint)",
                "  training.max_steps: 12 -> 20   (changes the rest of the run)",
                "Use the old values, or start a new run under another --name.",
            ]
        )


def test_other_data_under_the_same_name_is_refused_and_leaves_the_run_as_it_was(cut, make_text):
    events, manifest = cut.open().events_file.read_bytes(), cut.open().manifest.read_bytes()
    text = cut.text.read_text()
    cut.text.write_text(make_text(1200, seed=2))
    with pytest.raises(ResumeError, match="the data has changed since step 5 was saved"):
        cut.train()
    assert (cut.open().events_file.read_bytes(), cut.open().manifest.read_bytes()) == (events, manifest)
    cut.text.write_text(text)
    assert cut.train().ended == "finished"


def test_a_run_whose_split_was_made_by_an_earlier_version_says_so_when_its_data_differs(cut, make_text, monkeypatch):
    monkeypatch.setattr("trainbook.loop.train.SPLIT_VERSION", 4)
    cut.text.write_text(make_text(1200, seed=2))
    with pytest.raises(ResumeError, match="earlier version of Trainbook, which chose the validation split"):
        cut.train()


def test_a_finished_run_goes_on_when_it_is_made_longer(lab):
    lab.train()
    with pytest.raises(ResumeError, match=r"training\.max_steps: 12 -> 15"):
        lab.train("training.max_steps=15")
    assert lab.train("training.max_steps=15", accept_changes=True).ended == "finished"
    assert lab.rows()[-1]["step"] == 15


def test_overrides_for_a_loaded_configuration_are_refused_and_not_forgotten(lab):
    from trainbook import api
    from trainbook.errors import UserError

    with pytest.raises(UserError, match="cannot be applied to a loaded configuration"):
        api.train(lab.load(), ["training.max_steps=3"], runs_dir=lab.runs)
    assert not lab.runs.exists()


def test_dropout_changes_on_request_and_the_number_of_heads_never(cut):
    with pytest.raises(
        ResumeError, match=r"model\.dropout: 0\.0 -> 0\.1   \(the weights still fit; [^)]*\)\n.*--accept-changes"
    ):
        cut.train("model.dropout=0.1")
    with pytest.raises(
        ResumeError, match=r"model\.num_attention_heads: 2 -> 4   \(the weights were trained with the old value"
    ):
        cut.train("model.num_attention_heads=4", accept_changes=True)
    assert cut.train("model.dropout=0.1", accept_changes=True).ended == "finished"
    assert [event["reason"] for event in cut.events("config_change")] == ["model.dropout: 0.0 -> 0.1"]
