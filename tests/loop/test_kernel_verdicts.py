from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainbook.knobs import load
from trainbook.loop import kernel_verdicts
from trainbook.loop.device import prepared_device
from trainbook.loop.kernel_verdicts import Verdict, excluded_backends, machine_of, recall, remember, without_backends

CPU = torch.device("cpu")
CASE = "causal mask, logsumexp below -88.7, 192 positions"
WRONG = Verdict("sdpa_flash", "bf16", False, CASE, "12 numbers are NaN", "flash")
RIGHT = Verdict("sdpa_flash", "bf16", True, backend="flash")


@pytest.fixture(autouse=True)
def verdict_file(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "trainbook" / "kernels.json"


def is_chosen() -> bool:
    """Whether attention on this machine goes to the flash kernel."""
    x = torch.zeros(1, 1, 4, 8)
    return torch._fused_sdp_choice(x, x, x) == torch.nn.attention.SDPBackend.FLASH_ATTENTION.value


def test_a_verdict_is_kept_for_the_machine_that_it_is_about(verdict_file):
    assert recall(machine_of(CPU)) == [] and excluded_backends(CPU) == {}
    assert remember(machine_of(CPU), [WRONG], [CASE]) == verdict_file
    (found,) = recall(machine_of(CPU))
    assert (found.kernel, found.passed, found.case) == ("sdpa_flash", False, CASE) and found.checked
    assert excluded_backends(CPU) == {"flash": "12 numbers are NaN"}
    assert verdict_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("torch.__version__", "9.9.9"),
        ("torch.version.cuda", "99.9"),
        ("trainbook.loop.kernel_verdicts.cpu_model", lambda: "another processor"),
    ],
)
def test_another_version_or_processor_is_another_machine(monkeypatch, where, value):
    remember(machine_of(CPU), [WRONG], [CASE])
    monkeypatch.setattr(where, value)
    assert excluded_backends(CPU) == {}


def test_each_part_of_a_gpus_software_is_in_the_key(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    monkeypatch.setattr(kernel_verdicts, "_driver", lambda: "570.1")
    found = machine_of(torch.device("cuda"))
    assert (found["device"], found["driver"], found["cudnn"]) == ("NVIDIA H200", "570.1", "91900")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92600)
    assert machine_of(torch.device("cuda")) != found


def test_the_driver_is_read_from_its_module(monkeypatch, tmp_path):
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\nGCC version: 13.3.0\n"
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(kernel_verdicts, "DRIVER_FILE", str(tmp_path / "version"))
    assert kernel_verdicts._driver() == "570.124.06"


def test_only_a_run_of_the_same_case_in_the_same_type_withdraws_a_verdict():
    remember(machine_of(CPU), [WRONG], [CASE])
    remember(machine_of(CPU), [Verdict("sdpa_flash", "fp32", True, backend="flash")], [CASE])
    assert excluded_backends(CPU)
    remember(machine_of(CPU), [RIGHT], ["another case"])
    assert excluded_backends(CPU)
    remember(machine_of(CPU), [RIGHT], [CASE])
    assert excluded_backends(CPU) == {}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"verdicts": [{"machine": {}, "kernels": [{"kernel": 1}]}]}'])
def test_a_file_that_cannot_be_read_says_nothing(verdict_file, content):
    verdict_file.parent.mkdir(parents=True)
    verdict_file.write_text(content)
    assert excluded_backends(CPU) == {}


def test_a_file_that_others_can_write_is_not_believed(verdict_file):
    remember(machine_of(CPU), [WRONG], [CASE])
    verdict_file.chmod(0o666)
    assert excluded_backends(CPU) == {}


def test_the_plain_kernel_is_never_excluded(verdict_file):
    remember(machine_of(CPU), [Verdict("sdpa_math", "fp32", False, CASE, "wrong", "math")], [CASE])
    assert excluded_backends(CPU) == {}


def test_without_a_home_nothing_is_kept(monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME")
    assert remember(machine_of(CPU), [WRONG], [CASE]) is None and excluded_backends(CPU) == {}


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
def test_switches_are_off_inside_and_as_before_outside(name):
    is_on, switch = kernel_verdicts.SWITCHES[name]
    before = is_on()
    with without_backends([name]):
        assert not is_on()
    assert is_on() is before
    switch(False)
    try:
        with without_backends([name]):
            assert not is_on()
        assert not is_on()
    finally:
        switch(before)


def test_attention_really_takes_another_kernel():
    assert is_chosen()
    remember(machine_of(CPU), [WRONG], [CASE])
    with prepared_device(load(None).config, CPU, None) as said:
        assert not is_chosen() and said["excluded_attention"] == "flash"
    assert is_chosen()


def test_a_run_does_without_a_kernel_that_failed_and_says_so(lab):
    chosen = []

    def exclusions(name):
        return [each["reason"] for each in lab.events("notice", name) if "attention does without" in each["reason"]]

    def note(number, state, step):
        chosen.append(is_chosen())
        return step()

    with lab.around_step(note):
        lab.train("training.max_steps=2", name="before")
        assert chosen == [True, True]
        assert "excluded_attention" not in lab.open("before").read_manifest().determinism
        assert not exclusions("before")

        remember(machine_of(CPU), [WRONG], [CASE])
        lab.train("training.max_steps=2", name="after")
    assert chosen == [True, True, False, False]
    assert lab.open("after").read_manifest().determinism["excluded_attention"] == "flash"
    (reason,) = exclusions("after")
    assert "the flash kernel" in reason and "12 numbers are NaN" in reason


def test_other_entries_of_the_file_stay(verdict_file):
    other = {**machine_of(CPU), "torch": "1.0"}
    remember(other, [WRONG], [CASE])
    remember(machine_of(CPU), [RIGHT], [CASE])
    assert len(json.loads(verdict_file.read_text())["verdicts"]) == 2 and not recall(other)[0].passed
