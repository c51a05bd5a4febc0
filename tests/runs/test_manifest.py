from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainbook.errors import RunFolderError
from trainbook.runs.manifest import Manifest, differences


def manifest(**changes: object) -> Manifest:
    facts = {
        "name": "a",
        "seed": 1,
        "versions": {"python": "3.12.1", "torch": "2.11.0", "numpy": "2.0.0"},
        "hardware": {"cpu": "X", "cores": 8, "gpus": ["H200"], "host": "one"},
        "environment": {"CUDA_VISIBLE_DEVICES": "0"},
        "determinism": {"tf32": False, "deterministic_algorithms": True},
    }
    return Manifest(**{**facts, **changes})  # type: ignore[arg-type]


def test_what_is_written_is_read_back(tmp_path: Path):
    old = Manifest.of_this_machine(
        "a", recipe="gpt-tiny", command=["trainbook", "train"], seed=7, gpus=["H200"], determinism={"tf32": False}
    )
    old.start_segment(0, start_step=0)
    old.end_segment("interrupted", "SIGTERM")
    old.write(tmp_path / "manifest.json")
    new = Manifest.read(tmp_path / "manifest.json")
    assert new == old
    assert new.status == "interrupted" and new.segments[0]["reason"] == "SIGTERM" and new.segments[0]["ended"]
    assert new.hardware["gpus"] == ["H200"] and new.hardware["cores"] >= 1 and new.hardware["memory_bytes"] > 0


def test_versions_are_recorded_without_importing_torch():
    code = (
        "import sys, trainbook.runs as runs; m = runs.Manifest.of_this_machine('a');"
        "assert 'torch' not in sys.modules; print(m.versions['torch'])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip()[0].isdigit()


def test_only_chosen_variables_are_recorded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SOME_API_KEY", "secret")
    recorded = Manifest.of_this_machine("a")
    assert recorded.environment["OMP_NUM_THREADS"] == "3"
    assert "secret" not in json.dumps(recorded.__dict__)


def test_a_resumed_run_is_running_again_and_keeps_its_history():
    old = manifest(injected_faults=["nan-gradient@3"])
    old.start_segment(0, 0)
    old.end_segment("failed", "disk full")
    old.continue_with(manifest(versions={"torch": "2.13.0"}, created="later", injected_faults=["oom@9"]))
    old.start_segment(1, 50)
    assert old.status == "running" and old.status_detail == ""
    assert [segment["start_step"] for segment in old.segments] == [0, 50]
    assert old.versions == {"torch": "2.13.0"} and old.created == ""
    assert old.injected_faults == ["nan-gradient@3", "oom@9"]


def test_a_status_outside_the_four_is_refused():
    with pytest.raises(ValueError, match="must be one of running, finished, interrupted, failed, but got 'done'"):
        manifest().end_segment("done")  # type: ignore[arg-type]


def test_manifests_of_the_same_circumstances_do_not_differ():
    assert differences(manifest(), manifest(name="b", created="other", command=["x"])) == []


@pytest.mark.parametrize(
    ("field", "changed", "said"),
    [
        ("seed", 2, "seed: 1 -> 2"),
        ("versions", {"torch": "2.13.0", "numpy": "2.0.0"}, "version of torch: 2.11.0 -> 2.13.0"),
        ("environment", {"OMP_NUM_THREADS": "4"}, "OMP_NUM_THREADS: not set -> 4"),
        ("hardware", {"cpu": "X", "cores": 2, "gpus": ["H200"]}, "cores: 8 -> 2"),
        ("hardware", {"cpu": "X", "cores": 8, "gpus": ["A100"]}, "gpus: ['H200'] -> ['A100']"),
        ("determinism", {"tf32": True, "deterministic_algorithms": True}, "tf32: False -> True"),
        ("determinism", {"tf32": False}, "deterministic_algorithms: True -> not set"),
    ],
)
def test_what_can_change_numbers_is_named(field: str, changed: object, said: str):
    assert [str(difference) for difference in differences(manifest(), manifest(**{field: changed}))] == [said]


def test_the_number_of_cores_does_not_matter_when_the_number_of_threads_is_set():
    old = manifest(environment={"OMP_NUM_THREADS": "4"})
    new = copy.deepcopy(old)
    new.hardware["cores"] = 2
    assert differences(old, new) == []


def test_a_newer_schema_is_refused(tmp_path: Path):
    (tmp_path / "manifest.json").write_text('{"schema_version": 99}')
    with pytest.raises(RunFolderError, match=r"schema_version must be at most 1, but got 99; .* newer Trainbook"):
        Manifest.read(tmp_path / "manifest.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be JSON"),
        ("{", "must be JSON"),
        ("[]", "has no schema_version"),
        ("{}", "has no schema_version"),
        ('{"schema_version": true}', "schema_version must be a whole number, but got true"),
        ('{"schema_version": 1, "segments": {}}', "segments must be a list of objects, .* but got {}"),
        ('{"schema_version": 1, "segments": [{"segment": "0"}]}', "segments must be a list of objects"),
        ('{"schema_version": 1, "segments": [{"segment": 1e400}]}', "segments must be a list of objects"),
        ('{"schema_version": 1, "config": null}', "config must be an object, but got null"),
        ('{"schema_version": 1, "name": 7}', "name must be a string, but got 7"),
        ('{"schema_version": 1, "seed": "7"}', 'seed must be a whole number or null, but got "7"'),
        ('{"schema_version": 1, "status": ["running"]}', "status must be one of running, finished"),
        ('{"schema_version": 1, "versions": {"torch": 2}}', "versions must be an object of strings"),
        ('{"schema_version": 1, "command": "train"}', "command must be a list of strings"),
        ('{"schema_version": 1, "created": {}}', "created must be a string"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path, text: str, said: str):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RunFolderError, match=said):
        Manifest.read(tmp_path / "manifest.json")


def test_fields_of_a_later_minor_version_are_passed_over(tmp_path: Path):
    (tmp_path / "manifest.json").write_text('{"schema_version": 1, "name": "a", "mood": "good"}')
    assert Manifest.read(tmp_path / "manifest.json").name == "a"
