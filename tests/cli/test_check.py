from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest

from trainbook.check import CHECKS

FEW = "token_ids,schedule,causal_leak,tied"


@pytest.fixture
def folder_of_scratch(monkeypatch, tmp_path) -> Path:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def test_each_check_has_a_line_and_nothing_is_left_behind(terminal, folder_of_scratch):
    before = {path.name for path in Path().iterdir()}
    text = terminal("check", *terminal.tiny, "--only", FEW).stdout
    assert [line.split()[:2] for line in text.splitlines()[:4]] == [["ok", name] for name in FEW.split(",")]
    assert "4 passed, 0 remarks, 0 failed, 0 skipped" in text and "checked: gpt, task causal, " in text
    assert {path.name for path in Path().iterdir()} == before and not list(folder_of_scratch.glob("trainbook*"))


def test_a_failed_check_is_exit_code_1_with_its_cause_and_an_override(terminal):
    text = terminal("check", *terminal.tiny, "init_std=1.0", "--only", "initial_loss", code=1).stdout
    assert re.search(r"^FAIL initial_loss +the first loss is", text)
    assert "likely: the initial logits are too large" in text and "model.initializer_range=0.02" in text


def test_a_remark_is_no_failure(terminal):
    texts = [f"text {number} of {number * number} and {number * 7 % 31} words" for number in range(297)]
    Path("copies.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, *texts[:3]]))
    given = [each.replace("text.txt", "copies.jsonl") for each in terminal.tiny]
    answer = terminal.json("check", *given, "--only", "duplicates", "--json")
    assert (answer["remarks"], answer["failed"], answer["causes"]) == (1, 0, [])
    assert "note duplicates" in terminal("check", *given, "--only", "duplicates").stdout


def test_json_has_every_number(terminal):
    deeper = [given.replace("num_hidden_layers=1", "num_hidden_layers=3") for given in terminal.tiny]
    answer = terminal.json("check", *deeper, "--only", FEW, "--json")
    assert (answer["passed"], answer["remarks"], answer["failed"], answer["skipped"]) == (4, 0, 0, 0)
    assert answer["changed"] == {"model.num_hidden_layers": {"asked": 3, "used": 2}}
    schedule = next(check for check in answer["checks"] if check["name"] == "schedule")
    assert schedule["status"] == "passed" and schedule["numbers"]["updates"] == 8
    keys = {"name", "proves", "status", "evidence", "cause", "advice", "override", "numbers", "seconds", "follows_from"}
    assert all(set(check) == keys for check in answer["checks"])


def test_a_wrong_name_of_a_check_is_told_with_the_right_one(terminal):
    error = terminal("check", "gpt-tiny", "--only", "casual_leak", code=2).stderr
    assert "unknown check 'casual_leak'" in error and "Did you mean causal_leak?" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt-tyni",), "gpt-tiny"),
        (("gpt-tiny", "data.source=nowhere.txt"), "nowhere.txt"),
        (("large-scale",), "the length of the run is not set"),
        (("finetune-chat",), "model.pretrained"),
        (("gpt-tiny", "model.type=nowhere:Model"), "nowhere"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(terminal, arguments, message):
    assert message in terminal("check", *arguments, code=2).stderr


def test_ctrl_c_leaves_nothing(terminal, folder_of_scratch, monkeypatch):
    from trainbook.check import run

    def interrupt(subject):
        raise KeyboardInterrupt

    stopped = [check if check.name != "causal_leak" else type(check)("causal_leak", "", interrupt) for check in CHECKS]
    monkeypatch.setattr(run, "CHECKS", tuple(stopped))
    assert "interrupted" in terminal("check", *terminal.tiny, "--only", FEW, code=130).stderr
    assert not list(folder_of_scratch.glob("trainbook*"))


def test_with_full_nothing_is_shrunk(terminal):
    answer = json.loads(terminal("check", *terminal.tiny, "--full", "--only", FEW, "--json").stdout)
    assert answer["changed"] == {} and answer["model"]["full"] and answer["failed"] == 0


# --kernels


@pytest.fixture
def own_verdicts(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "trainbook" / "kernels.json"


@pytest.fixture
def broken_loss(monkeypatch) -> None:
    from dataclasses import replace

    from trainbook.check.kernels import losses, run

    def doubled(case, inputs):
        return {part: 2 * each for part, each in losses.KERNELS[0].compute(case, inputs).items()}

    kernels = [replace(each, compute=doubled) if each.name == "cross_entropy" else each for each in run.KERNELS]
    monkeypatch.setattr(run, "KERNELS", tuple(kernels))


def test_kernels_are_checked_without_a_recipe(terminal, own_verdicts):
    text = terminal("check", "--kernels", "--only", "layer_norm,cross_entropy").stdout
    assert [line.split()[:2] for line in text.splitlines()[:2]] == [["ok", "layer_norm"], ["ok", "cross_entropy"]]
    assert "checked: kernels in fp32 and bf16 on " in text and "2 passed, 0 remarks, 0 failed" in text
    assert own_verdicts.is_file()


def test_json_of_kernels_has_the_shape_of_json_of_checks(terminal, own_verdicts):
    answer = terminal.json("check", "gpt-tiny", "precision.compute=fp16", "--kernels", "--only", "rms_norm", "--json")
    assert set(answer) == set(terminal.json("check", *terminal.tiny, "--only", "tied", "--json"))
    keys = {"name", "proves", "status", "evidence", "cause", "advice", "override", "numbers", "seconds", "follows_from"}
    (kernel,) = answer["checks"]
    assert set(kernel) == keys and kernel["status"] == "passed" and kernel["numbers"]["types"] == ["fp32", "fp16"]
    assert answer["model"]["types"] == ["fp32", "fp16"] and answer["model"]["torch"]


def test_a_wrong_kernel_is_exit_code_1_with_case_error_and_bound(terminal, own_verdicts, broken_loss):
    text = terminal("check", "--kernels", "--only", "cross_entropy,mean_loss", code=1).stdout
    assert re.search(r"^FAIL cross_entropy .*(the error is .*rounding explains at most|NaN)", text)
    assert "likely: the cross_entropy kernel computes something else on" in text and "ok   mean_loss" in text
    answer = json.loads(terminal("check", "--kernels", "--only", "cross_entropy", "--json", code=1).stdout)
    numbers = answer["checks"][0]["numbers"]
    assert numbers["largest_error"] > numbers["bound"] and "normal logits" in numbers["wrong_cases"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt-tyni", "--kernels"), "gpt-tiny"),
        (("gpt-tiny", "--kernels", "model.hidden_sise=3"), "hidden_size"),
        (("--kernels", "--only", "sdpa_flush"), "Did you mean sdpa_flash?"),
        (("--kernels", "--full"), "--full: has no meaning with --kernels"),
        ((), "check: name a recipe or a configuration file, as in: trainbook check gpt-tiny"),
    ],
)
def test_a_mistake_with_kernels_is_a_message_and_exit_code_2(terminal, own_verdicts, arguments, message):
    assert message in terminal("check", *arguments, code=2).stderr
    assert not own_verdicts.exists()


def test_ctrl_c_among_kernels_leaves_no_verdict(terminal, own_verdicts, monkeypatch):
    from trainbook.check.kernels import run

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "deviations", interrupt)
    assert "interrupted" in terminal("check", "--kernels", code=130).stderr
    assert not own_verdicts.exists()


def test_help_shows_kernels_with_an_example(terminal):
    assert "trainbook check --kernels" in terminal("check", "--help").stdout


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["gpt-tiny", "bert-tiny", "t5-tiny", "t5-cmudict", "gpt-bible"])
def test_a_packaged_recipe_passes(terminal, recipe):
    answer = terminal.json("check", recipe, "--json")
    assert {check["name"]: check["evidence"] for check in answer["checks"] if check["status"] == "failed"} == {}
    assert len(answer["checks"]) == len(CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["gpt2-124m", "bert-base", "t5-base", "llama-1b", "large-scale"])
def test_a_recipe_without_data_passes_on_text_of_ours(terminal, recipe):
    given = ("data.source=builtin:pystdlib", "data.tokenizer=bpe")
    length = ("training.max_steps=300000",) if recipe == "large-scale" else ()
    answer = terminal.json("check", recipe, *given, *length, "--json")
    assert {check["name"]: check["evidence"] for check in answer["checks"] if check["status"] == "failed"} == {}
