"""The pages of plan, data and knobs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.board.asking import asking, get, make_run, refused

import trainbook.board
from trainbook.board.plan_view import TURNED
from trainbook.knobs.aliases import by_path

REPORT = {"source": "d.csv", "task": "classify", "findings": [], "sides": {"train": {"documents": 3}}}


def test_a_plan_is_that_of_the_command(tmp_path: Path):
    from trainbook.knobs import load
    from trainbook.plan import PlanSubject, plan
    from trainbook.plan.gpus import find_gpu, known_gpus

    loaded = load("gpt-tiny", ["batch.global_batch_size=64"])
    wanted = plan(
        PlanSubject(loaded.config, loaded.origins, 257, find_gpu("H100", known_gpus()), 2), price_per_hour=2.5
    )
    with asking(tmp_path) as client:
        found = get(client, "/api/plan?recipe=gpt-tiny&set=batch.global_batch_size=64&gpu=H100&gpus=2&price=2.5")
    assert found["errors"] == [] and found["values"]["batch.global_batch_size"] == "64"
    assert {name: found[name] for name in ("memory", "peak", "time", "fits")} == {
        name: json.loads(json.dumps(wanted[name])) for name in ("memory", "peak", "time", "fits")
    }
    assert found["command"] == (
        "trainbook plan gpt-tiny batch.global_batch_size=64 --gpu H100 --world 2 --price-per-hour 2.5"
    )


def test_mistakes_in_values_are_told_beside_the_recipes_own(tmp_path: Path):
    with asking(tmp_path) as client:
        found = get(client, "/api/plan?recipe=gpt-tiny&set=batch.global_batch_size=-1&set=precision.compute=fp7")
    assert len(found["errors"]) == 2 and "must be a whole number >= 1" in found["errors"][0]
    assert found["values"]["batch.global_batch_size"] == "16"


@pytest.mark.parametrize(
    "question",
    [
        "recipe=/etc/passwd",
        "recipe=../../x.yaml",
        "recipe=gpt-tiny&set=data.tokenizer=/etc/passwd",
        "recipe=gpt-tiny&set=model.pretrained=/etc",
        "recipe=gpt-tiny&set=distributed.deepspeed_config=/etc/passwd",
        "recipe=gpt-tiny&set=model.type=os:system",
        "recipe=gpt-tiny&set=batch",
        "recipe=gpt-tiny&price=x",
        "recipe=gpt-tiny&gpus=0",
        "recipe=gpt-tiny&gpus=99999999999999999999",
        "recipe=gpt-tiny&vocab=-1",
    ],
)
def test_a_plan_opens_no_file_that_is_asked_for(tmp_path: Path, question: str):
    with asking(tmp_path) as client:
        assert client.get(f"/api/plan?{question}").status_code == 400 or get(client, f"/api/plan?{question}")["errors"]


def test_where_only_the_text_would_tell_the_vocabulary_a_usual_one_is_assumed(tmp_path: Path):
    with asking(tmp_path) as client:
        found = get(client, "/api/plan?recipe=shakespeare-char&gpu=H100")
        stated = get(client, "/api/plan?recipe=shakespeare-char&gpu=H100&vocab=1000")
    assert found["errors"] == [] and any("50,257" in note for note in found["notes"])
    assert stated["parameters"] < found["parameters"]


def test_the_knobs_to_turn_have_a_kind_a_range_and_a_law(tmp_path: Path):
    with asking(tmp_path) as client:
        found = get(client, "/api/plan/choices")
    knobs = {each["path"]: each for each in found["knobs"]}
    assert list(knobs) == list(TURNED) and set(TURNED) <= set(by_path())
    assert knobs["model.num_hidden_layers"]["kind"] == "integer"
    assert knobs["precision.compute"]["kind"] == "choice" and "bf16" in knobs["precision.compute"]["choices"]
    assert {"name": "H100", "gb": 80} in found["gpus"] and len(found["recipes"]) > 10


@pytest.mark.parametrize("name", ["learning_rate", "optimizer.learning_rate", "lr"])
def test_a_knob_is_explained_by_any_of_its_names(tmp_path: Path, name: str):
    with asking(tmp_path) as client:
        found = get(client, f"/api/explain/{name}")
    assert found["path"] == "optimizer.learning_rate"
    assert {"What it is", "Raised", "Lowered", "Where to search", "Sources"} <= {
        each["title"] for each in found["blocks"]
    }


def test_every_knob_can_be_explained(tmp_path: Path):
    with asking(tmp_path) as client:
        for path in by_path():
            assert get(client, f"/api/explain/{path}")["blocks"]
        status, message = refused(client, "/api/explain/lerning_rate")
        assert status == 400 and "learning_rate" in message


def test_reports_on_data_in_the_folders_are_shown_with_their_samples(tmp_path: Path):
    run = make_run(tmp_path)
    (run.path / "not-shown.json").write_text(json.dumps(REPORT))
    (tmp_path / "data").mkdir()
    example = {"examples": [{"document": 3, "place": "d.csv:4", "text": "la la la"}]}
    (tmp_path / "data" / "reviews.json").write_text(json.dumps({**REPORT, "sides": {"train": {"repeats": example}}}))
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "link.json").symlink_to(tmp_path / "data" / "reviews.json")
    with asking(tmp_path) as client:
        reports = get(client, "/api/data")["reports"]
        assert [each["name"] for each in reports] == ["reviews"] and reports[0]["facts"]["task"] == "classify"
        wanted = {"split": "train", "id": 3, "place": "d.csv:4", "reason": "repeats", "text": "la la la"}
        assert reports[0]["samples"] == [wanted]


def test_what_the_board_is_and_shows(tmp_path: Path):
    with asking(tmp_path) as client:
        found = get(client, "/api/board")
        assert found["sources"] == [{"name": tmp_path.name, "path": str(tmp_path)}] and found["actions"] is False
        assert refused(client, "/api/nothing")[0] == 404 and refused(client, "/api/plan", recipe="nothing")[0] == 400
        for path in ("/", "/run/0~x", "/compare", "/study/0~x", "/plan", "/data", "/open"):
            assert client.get(path).headers["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("name", ["healthy", "tickets", "overfitting"])
def test_a_plan_of_a_run_has_as_many_parameters_as_the_run(name: str, tmp_path: Path):
    recorded = Path(trainbook.board.__file__).parent / "demo" / name
    shutil.copytree(recorded, tmp_path / name)
    with asking(tmp_path) as client:
        found = get(client, "/api/plan", run=f"0~{name}", gpu="H100")
        made = get(client, f"/api/runs/0~{name}")["summary"]["parameters"]
    assert found["errors"] == [] and found["parameters"] == made
    assert found["run"] == {"id": f"0~{name}", "name": name}
    assert found["command"].startswith(f"trainbook plan {tmp_path / name}/config.yaml --gpu H100 --vocab-size ")


def test_messages_of_a_plan_have_the_names_of_the_form(tmp_path: Path):
    with asking(tmp_path) as client:
        told = [refused(client, "/api/plan", **{name: "x"})[1] for name in ("gpus", "price", "gpu")]
        assert refused(client, "/api/plan", run="0~nobody")[0] == 404
    assert told[0].startswith("Number of GPUs: must be") and told[1].startswith("Price of a GPU hour: must be")
    assert told[2].startswith("GPU: must be one of") and "--gpus" not in told[2]
