from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainbook.knobs import load
from trainbook.plan import gpus
from trainbook.study import measure


@pytest.fixture(autouse=True)
def no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "ASKED", ["no-such-program"])


def test_a_plan_says_what_a_run_needs(terminal):
    shown = " ".join(terminal("plan", "gpt-tiny", "--gpu", "RTX-4090").stdout.split())
    for words in ("836,864", "fits into the RTX-4090's 25.4 GB (sold as 24)", "tokens/s", "Wh"):
        assert words in shown
    facts = terminal.json("plan", "gpt-tiny", "--gpu", "rtx4090", "--price-per-hour", "0.5", "--json")
    assert facts["parameters"] == 836_864 and facts["fits"] is True and facts["suggestions"] == []
    assert facts["time"]["cost"] > 0 and sum(facts["memory"].values()) == facts["peak"]


def test_what_does_not_fit_gets_overrides_that_do(terminal):
    asked = ("llama-1b", "--vocab-size", "32000", "--gpu", "A100-40GB", "--json")
    facts = terminal.json("plan", *asked, "batch.per_device_train_batch_size=32")
    assert facts["fits"] is False
    for each in facts["suggestions"]:
        kept = [] if "per_device_train_batch_size" in each["override"] else ["batch.per_device_train_batch_size=32"]
        assert terminal.json("plan", *asked, *kept, *each["overrides"])["fits"] is True
    shown = terminal("plan", *asked[:-1], "batch.per_device_train_batch_size=32").stdout
    assert "does not fit into the A100-40GB's 42.4 GB (sold as 40)" in " ".join(shown.split())
    assert facts["suggestions"][0]["override"] in shown and "What makes it fit, best first" in shown


def test_a_price_may_have_a_symbol(terminal):
    for price in ("€2.5", "2.5€", "$ 2.5", "2.5"):
        shown = terminal("plan", "gpt-tiny", "--gpu", "H100", "--price-per-hour", price).stdout
        assert f"{price.strip('2.5 ')}0.0" in shown
    for price in ("-1", "much", "€2.5€", "nan"):
        answer = terminal("plan", "gpt-tiny", "--gpu", "H100", f"--price-per-hour={price}", code=2)
        assert "--price-per-hour: must be a number >= 0" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt-tiny", "--gpu", "H1000"), "--gpu: must be one of"),
        (("gpt-tiny", "--world", "0"), "--world: must be >= 1, but got 0"),
        (("gpt2-124m", "data.tokenizer=mine.json"), "Pass --vocab-size N"),
        (("gpt-tiny", "--largest"), "--largest: has no effect without --measure"),
        (("gpt-tiny", "--noise-after", "5"), "--noise-after: has no effect without --measure"),
        (("gpt-tiny", "--gpus", "none.yaml"), "none.yaml: no such file"),
        (("gpt-tiny", "--gpus", "8"), "--gpus: must be a YAML file of GPUs, but got 8. Did you mean --world 8?"),
        (("gpt-tiny", "--measured", "none.json"), "none.json: no such file"),
        (("finetune-chat",), "model.type hf needs model.pretrained"),
        (("gpt-tiny", "batch.global_batch_size=10", "--world", "4"), "must be a multiple of the number of devices"),
        (("gpt-tny",), "gpt-tiny"),
    ],
)
def test_a_mistake_is_a_message(terminal, arguments: tuple[str, ...], message: str):
    assert message in " ".join(terminal("plan", *arguments, code=2).stderr.split())


def test_without_a_gpu_it_says_what_is_known(terminal):
    facts = terminal.json("plan", "gpt-tiny", "--json")
    assert facts["gpu"] is facts["fits"] is facts["time"] is None and facts["parameters"] == 836_864


def test_a_gpu_here_that_nobody_knows_is_asked_for(terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpus, "gpu_here", lambda known: gpus.Here("NVIDIA Abacus", 10**10, None))
    answer = terminal("plan", "gpt-tiny", code=2)
    assert "this machine has a NVIDIA Abacus, which is not in the table" in " ".join(answer.stderr.split())
    assert terminal.json("plan", "gpt-tiny", "training.device=cpu", "--json")["gpu"] is None


def test_gpus_of_the_users_own(terminal):
    Path("gpus.yaml").write_text("X1: {memory_gb: 5, bandwidth_gb: 100, watts: 50, fp16: 9, fp32: 1}\n")
    facts = terminal.json("plan", "gpt-tiny", "--gpus", "gpus.yaml", "--gpu", "x1", "--json")
    assert facts["capacity"] == 5 * 10**9 and facts["compute"] == "fp32"


def test_a_measurement_is_read_again(terminal):
    paper: dict[str, Any] = terminal.json("plan", "gpt-tiny", "--gpu", "H200", "--json")
    found = {
        "gpu": "NVIDIA H200",
        "peak_bytes": 2 * paper["allocated"],
        "seconds_per_step": 0.5,
        "micro_batch": 16,
        "config": {},
        "peaks": {"16": 2 * paper["allocated"]},
        "throughput": {},
    }
    Path("found.json").write_text(json.dumps(found))
    facts = terminal.json("plan", "gpt-tiny", "--gpu", "H200", "--measured", "found.json", "--json")
    assert facts["time"]["seconds_per_step"] == pytest.approx(0.5) and facts["time"]["from"] == "measured"
    assert facts["allocated"] > 1.5 * paper["allocated"]


def test_measure_runs_a_few_steps_and_its_file_corrects_the_next_plan(terminal):
    facts = json.loads(
        terminal("plan", *terminal.tiny, "--measure", "--measured", "found.json", "--gpu", "H200", "--json").stdout
    )
    assert facts["measured"]["seconds_per_step"] > 0 and facts["measured"]["gpu"] is None
    assert any("measured on a CPU" in note for note in facts["notes"])
    again = terminal.json("plan", *terminal.tiny, "--measured", "found.json", "--gpu", "H200", "--json")
    assert again == facts


def test_a_place_that_no_measurement_can_be_written_to_is_told_before_measuring(
    terminal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measure, "measure", lambda *_, **__: pytest.fail("it was measured"))
    for place, message in (
        (".", "must be a file to write to, but . is a folder."),
        ("cache", "must be a file to write to, but cache is a folder."),
        ("none/x.json", "none/x.json cannot be written: there is no folder none."),
        ("text.txt/x.json", "text.txt/x.json cannot be written: there is no folder text.txt."),
    ):
        Path("cache").mkdir(exist_ok=True)
        answer = terminal("plan", *terminal.tiny, "--measure", "--measured", place, code=2)
        assert f"error: --measured: {message}" in " ".join(answer.stderr.split())


def test_a_measurement_that_cannot_be_written_is_shown_all_the_same(terminal, monkeypatch: pytest.MonkeyPatch):
    found = {"gpu": None, "peak_bytes": 10**9, "seconds_per_step": 0.5, "micro_batch": 4, "config": {}}
    found["interrupted"] = False
    monkeypatch.setattr(measure, "measure", lambda *_, **__: found)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    asked = ("plan", *terminal.tiny, "--measure", "--measured", "found.json")
    for arguments, shown in (((), "4 seconds for 8 updates on this CPU"), (("--json",), '"peak_bytes": 1000000000')):
        answer = terminal(*asked, *arguments, code=1)
        assert shown in " ".join(answer.stdout.split())
        assert "error: found.json: cannot be written: No space left on device" in answer.stderr
    assert not Path("found.json").exists()


def test_ctrl_c_ends_with_130_and_never_writes_nothing_over_a_measurement(terminal, monkeypatch: pytest.MonkeyPatch):
    asked = ("plan", *terminal.tiny, "--measure", "--measured", "found.json")
    found = {"gpu": None, "micro_batch": 4, "config": {}, "out_of_memory": False, "interrupted": True}
    nothing, some = {"peak_bytes": None, "seconds_per_step": None}, {"peak_bytes": 10**9, "seconds_per_step": 0.5}
    monkeypatch.setattr(measure, "measure", lambda *_, **__: found | nothing)
    Path("found.json").write_text("what was measured before")
    assert "nothing was measured yet" in terminal(*asked, code=130).stderr
    assert Path("found.json").read_text() == "what was measured before"

    monkeypatch.setattr(measure, "measure", lambda *_, **__: found | some)
    answer = terminal(*asked, "--json", code=130)
    assert json.loads(answer.stdout)["measured"]["seconds_per_step"] == 0.5 and "measured until then" in answer.stderr
    assert json.loads(Path("found.json").read_text())["interrupted"]
    told = " ".join(terminal(*asked, code=130).stderr.split())
    assert told.count("interrupted") == 1 and "found.json has it" in told and "written to" not in told


def test_a_measurement_that_is_interrupted_leaves_the_message_to_its_caller(monkeypatch: pytest.MonkeyPatch):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    said: list[str] = []
    monkeypatch.setattr(measure, "_as_configured", stop)
    assert measure.measure(load("gpt-tiny").config, device="cpu", vocab_size=64, say=said.append)["interrupted"]
    assert said == []


def test_a_wrong_value_in_a_measured_file_is_a_message_that_names_the_file(terminal):
    base = {"gpu": None, "peak_bytes": 100, "seconds_per_step": 0.1, "micro_batch": 1, "config": {}}
    for key, value in (("micro_batch", None), ("config", None), ("peaks", [1, 2]), ("seconds_per_step", -1)):
        Path("found.json").write_text(json.dumps({**base, key: value}))
        answer = terminal("plan", "gpt-tiny", "--measured", "found.json", code=2)
        assert f"error: found.json: {key}: must be " in " ".join(answer.stderr.split())


def test_a_dry_run_shows_the_plan_or_why_there_is_none(terminal):
    facts = json.loads(terminal.train("--dry-run", "--json").stdout)
    assert facts["plan"]["parameters"] > 0 and facts["plan"]["gpu"] is None
    assert "Peak memory without PyTorch itself" in terminal.train("--dry-run").stdout
    shown = terminal.train("--dry-run", "data.tokenizer=char").stdout
    assert "No plan: plan: the size of the vocabulary must be known" in " ".join(shown.split())
