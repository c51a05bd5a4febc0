from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.plan import GPUS, find_gpu, gpu
from trainbook.plan import gpus as driver
from trainbook.plan.gpus import known_gpus, named_by_driver, read_gpus
from trainbook.plan.types import compute_type

GIB = 2**30


def test_a_name_is_understood_however_it_is_written():
    assert find_gpu("rtx 4090") is find_gpu("RTX-4090") is GPUS["RTX-4090"]
    assert find_gpu("a100_80gb") is GPUS["A100-80GB"]


def test_an_unknown_one_is_asked_for_with_the_nearest_names():
    with pytest.raises(UserError, match=r"but got A100\. Did you mean A100-80GB or A100-40GB"):
        find_gpu("A100")
    with pytest.raises(UserError, match=r"Did you mean RTX-4090\?"):
        find_gpu("RTX-4091")
    with pytest.raises(UserError, match=r"but got abacus\. Describe other GPUs in a file: --gpus FILE"):
        find_gpu("abacus")


@pytest.mark.parametrize("name", GPUS)
def test_every_number_is_stated_with_its_source(name: str):
    found = GPUS[name]
    assert found.source
    assert found.fp32 <= (found.tf32 or found.fp32) <= found.fp16
    assert found.bf16 is None or found.bf16 == found.fp16  # of tensor cores that add up in fp32


@pytest.mark.parametrize("name", GPUS)
def test_memory_is_what_a_program_finds_and_who_found_it_is_said(name: str):
    """Round numbers are sold: HBM and GeForce have up to 7 % more, GDDR with error correction up to 2 % less."""
    found = GPUS[name]
    assert found.memory_source and found.sold_gb is not None
    assert 0.98 < found.memory_gb / found.sold_gb < 1.08
    assert found.memory_gb != found.sold_gb, "a number of a data sheet"


def test_an_h200_has_the_room_that_it_shows():
    assert gpu("H200").memory == pytest.approx(139.8 * GIB, abs=1)
    assert gpu("L4").memory == pytest.approx(22.03 * GIB, abs=1)  # less than the 24 GB that it is sold with


def test_auto_computes_in_what_the_gpu_has():
    config = load("gpt-tiny").config
    assert compute_type(config, gpu("A100-40GB")) == "bf16"
    assert compute_type(config, gpu("V100-16GB")) == compute_type(config, gpu("T4")) == "fp32"  # as the run does
    assert gpu("T4").peak == 65e12
    with pytest.raises(UserError, match="the T4 does not support bf16"):
        GPUS["T4"].peak("bf16")
    assert GPUS["H100"].peak("fp32") == 494e12 and GPUS["H100"].peak("fp32", tf32=False) == 67e12


@pytest.mark.parametrize(
    ("name", "gibibytes", "meant"),
    [
        ("NVIDIA H200", 139.8, "H200"),
        ("NVIDIA H100 80GB HBM3", 79.6, "H100"),
        ("NVIDIA A100-SXM4-40GB", 39.5, "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "A100-80GB"),
        ("NVIDIA GeForce RTX 4090", 24.0, "RTX-4090"),
        ("Tesla T4", 15.0, "T4"),
        ("Tesla V100-SXM2-16GB", 16.0, "V100-16GB"),
        ("NVIDIA L4", 22.5, "L4"),
        ("NVIDIA RTX A6000", 47.5, "A6000"),
        ("NVIDIA A10G", 22.5, "A10G"),
    ],
)
def test_what_a_driver_calls_it_is_found_with_the_memory_that_it_has(name: str, gibibytes: float, meant: str):
    found = named_by_driver(name, round(gibibytes * GIB))
    assert found is not None and found.name == meant
    assert found.memory_gb == pytest.approx(gibibytes * GIB / 1e9)


@pytest.mark.parametrize("name", ["NVIDIA GeForce GTX 1080 Ti", "NVIDIA L40", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"])
def test_one_that_is_not_in_the_table_is_not_taken_for_another(name: str):
    assert named_by_driver(name, 20 * GIB) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A1000-80GB", "A100-80GB or A100-40GB"),
        ("A100-81GB", "A100-80GB or A100-40GB"),
        ("A100-80", "A100-80GB"),
        ("RTX 4900", "RTX-4090"),
        ("Tesla-V100", "V100-32GB or V100-16GB"),
        ("H220", "H200"),
        ("h10", "H100"),
    ],
)
def test_a_mistyped_name_is_told_the_nearest_right_one(name: str, meant: str):
    with pytest.raises(UserError, match=rf"but got {name}\. Did you mean {meant}\?"):
        find_gpu(name)


@pytest.mark.parametrize("name", ["banana", "X", "GTX1080"])
def test_a_name_that_is_like_none_gets_no_suggestion(name: str):
    with pytest.raises(UserError, match=rf"but got {name}\. Describe other GPUs"):
        find_gpu(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("4090", "RTX-4090"), ("NVIDIA H200", "H200"), ("A100-SXM4-80GB", "A100-80GB"), ("RTX A6000", "A6000")],
)
def test_the_makers_words_may_be_there_or_not(name: str, meant: str):
    assert find_gpu(name).name == meant


def test_this_machines_gpu_is_asked_of_its_driver(monkeypatch: pytest.MonkeyPatch):
    def answers(**texts: str) -> None:
        """By what is asked for; nothing to other questions, as of an older driver."""

        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            asked = command[-1].removeprefix("--query-gpu=")
            name = "reserved" if "reserved" in asked else "total"
            if name not in texts:
                raise subprocess.CalledProcessError(2, command)
            return subprocess.CompletedProcess(command, 0, stdout=texts[name])

        monkeypatch.setattr(subprocess, "run", run)

    # What PyTorch finds on such a GPU: 79.11 GiB.
    answers(reserved="NVIDIA H100 80GB HBM3, 81559, 551\nNVIDIA H100 80GB HBM3, 81559, 551\n")
    found = driver.gpu_here()
    assert found is not None and found.gpu is not None
    assert (found.name, found.gpu.name) == ("NVIDIA H100 80GB HBM3", "H100")
    assert found.memory == 81008 * 2**20 == pytest.approx(GPUS["H100"].memory_gb * 1e9, rel=1e-4)
    answers(total="NVIDIA H200, 143771\n")
    found = driver.gpu_here()
    assert found is not None and found.memory == 143771 * 2**20
    answers(reserved="NVIDIA H200, 143771, [N/A]\n", total="NVIDIA H200, 143771\n")
    assert driver.gpu_here() == found
    answers(total="")
    assert driver.gpu_here() is None


def test_without_a_driver_there_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver, "ASKED", ["no-such-program"])
    assert driver.gpu_here() is None


def test_fp8_is_twice_as_fast_as_16_bits_where_there_is_any():
    """NVIDIA's from Ada on; e4m3fn and e5m2 are not the types of an MI300."""
    having = {name for name, each in GPUS.items() if each.has_fp8}
    assert having == {name for name in GPUS if name.startswith(("B200", "H100", "H200", "L4", "RTX-6000-Ada"))} | {
        "RTX-4090",
        "RTX-5090",
    }
    for name in having:
        cluster = GPUS[name].cluster("bf16")
        assert cluster.fp8_peak == pytest.approx(2 * cluster.peak)
    assert GPUS["A100-80GB"].cluster("bf16").fp8_peak is None


OWN = "X1:\n  memory_gb: 96\n  bandwidth_gb: 3000\n  watts: 500\n  fp16: 400\n  fp32: 50\n  bf16: 400\n"


def test_a_user_adds_gpus_and_may_replace_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "gpus.yaml"
    file.write_text(OWN + OWN.replace("X1", "H100"), encoding="utf-8")
    known = known_gpus(file)
    assert find_gpu("x1", known).cluster("bf16").memory == 96 * 10**9
    assert known["H100"].memory_gb == 96 and GPUS["H100"].memory_gb == pytest.approx(79.11 * GIB / 1e9)
    assert find_gpu("x1", known).source == str(file)
    monkeypatch.setattr("trainbook.plan.gpus.OWN_FILE", file)
    assert "X1" in known_gpus()
    monkeypatch.setattr("trainbook.plan.gpus.OWN_FILE", tmp_path / "none.yaml")
    assert known_gpus() == GPUS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OWN.replace("watts", "wats"), r"X1: unknown key wats; it must be one of .*Did you mean 'watts'\?"),
        (OWN.replace("  watts: 500\n", ""), "X1 lacks watts"),
        (OWN.replace("500", "-5"), "X1: watts must be a number between 1e-6 and 1000000, but got -5"),
        (OWN.replace("500", "many"), "X1: watts must be a number between 1e-6 and 1000000, but got 'many'"),
        (OWN.replace("500", "1e300"), "X1: watts must be a number between 1e-6 and 1000000, but got 1e300"),
        (OWN.replace("500", "1e-300"), "X1: watts must be a number between 1e-6 and 1000000, but got 1e-300"),
        ("X1: 5\n", "X1 must be a mapping of memory_gb"),
        ("- X1\n", "must be a mapping"),
        (OWN + OWN, "is set twice"),
    ],
)
def test_a_file_that_breaks_a_law_is_told(tmp_path: Path, text: str, message: str):
    file = tmp_path / "gpus.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_gpus(file)
    with pytest.raises(UserError, match="no such file"):
        read_gpus(tmp_path / "none.yaml")
