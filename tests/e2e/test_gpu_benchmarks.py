"""The benchmarks for a GPU assemble their trainings themselves: in small, on a CPU, they train, and both sides compute
the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu
from common import random_data, trainbook_config, trainbook_job, trainbook_training
from hugging_face import first_batches, hugging_face_model, hugging_face_rows
from speed.jobs import JOBS, TINY, Job, job_named
from speed.page import write_pages
from speed.results import OtherSettings, Results

from trainbook.models.formats.exporting import folded_parameters
from trainbook.models.formats.known import FORMATS
from trainbook.models.formats.rules import to_foreign
from trainbook.tasks.losses import IGNORED

BENCHMARKS = Path(gpu.__file__).parent
SMALL = {"small": True, "device": "cpu"}
ONE_OF_EACH_KIND = [job for job in JOBS if job.name in ("gpt-124m", "bert-base", "t5-base")]


def test_a_benchmarks_training_takes_steps():
    with trainbook_training(replace(TINY, device="cpu", steps=2)) as training:
        assert training.advance(2) > 0


# ---------------------------------------------------------------------------------------------------- The same job


@pytest.mark.parametrize("job", ONE_OF_EACH_KIND, ids=lambda job: job.name)
def test_both_sides_have_the_same_parameters_but_for_padded_rows(job: Job):
    setup = job.setup_of(job.candidates[0], **SMALL)
    ours = trainbook_job(setup, trainbook_config(setup)).task
    theirs = hugging_face_model(setup)
    padded = -setup.vocab % setup.vocab_multiple
    each = setup.width + (setup.kind == "bert")  # a row of the embedding, and of BERT's output bias
    assert _count(ours) - _count(theirs) == padded * each


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_both_sides_have_as_many_tokens_in_a_step(job: Job):
    for candidate in job.candidates:
        setup = job.setup_of(candidate, **SMALL)
        step = first_batches(setup, setup.global_batch)
        rows = hugging_face_rows(setup, step)
        assert len(rows) == setup.global_batch and len(step.micro_batches) == setup.accumulation
        positions = sum(batch["input_ids"].numel() for batch in step.micro_batches)
        written = sum(batch["targets"].numel() for batch in step.micro_batches) if setup.kind == "t5" else 0
        assert positions + written == setup.tokens_per_step
        assert sum(len(row["input_ids"]) for row in rows) == positions
        targets = sum(int((row["labels"] != IGNORED).sum()) for row in rows)
        assert targets == step.num_targets  # the Trainer shifts those of GPT-2 itself, and loses one of each row


@pytest.mark.parametrize("job", ONE_OF_EACH_KIND, ids=lambda job: job.name)
def test_both_sides_have_the_same_loss_on_the_first_step(job: Job):
    setup = job.setup_of(job.candidates[0], **SMALL)
    config = trainbook_config(setup)
    ours = trainbook_job(setup, config).task
    theirs = hugging_face_model(setup).train()
    _copy_weights(ours, theirs, setup, config)
    step = first_batches(setup, setup.global_batch)
    rows = hugging_face_rows(setup, step)
    total, count = 0.0, 0
    for batch in step.micro_batches:
        if setup.kind == "gpt":
            batch["targets"][:, -1] = IGNORED  # which the Trainer does not learn
        total += sum(float(loss.detach()) for loss in ours(**batch).values())
        count += int((batch["targets"] != IGNORED).sum())
    stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    assert total / count == pytest.approx(float(theirs(**stacked).loss.detach()), abs=1e-4)


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _copy_weights(ours: Any, theirs: Any, setup: Any, config: Any) -> None:
    form, kind = {
        "gpt": (FORMATS["gpt2"], "causal"),
        "bert": (FORMATS["bert"], "masked"),
        "t5": (FORMATS["t5"], "seq2seq"),
    }[setup.kind]
    shape = ours.body.shape
    parameters = folded_parameters(ours, shape, head_multiplier=shape.hidden_size**-0.5 if setup.kind == "t5" else 1.0)
    tensors = to_foreign(list(form.rules(shape, kind, config.model.tie_embeddings)), parameters, shape.vocab_size)
    missing, unexpected = theirs.load_state_dict(tensors, strict=False)
    assert not unexpected
    # What is tied to another tensor has no numbers of its own.
    tied = ("lm_head.weight", "embed_tokens.weight", "decoder.weight", "decoder.bias")
    assert all(name.endswith(tied) for name in missing)


def test_masks_are_on_the_asked_share_of_tokens():
    setup = job_named("bert-base").setup_of(job_named("bert-base").candidates[0], **SMALL)
    step = first_batches(setup, setup.global_batch)
    ordinary = setup.context - 2  # between the tokens that begin and end a row
    assert step.num_targets == setup.global_batch * round(0.15 * ordinary)
    data = random_data(setup, trainbook_config(setup))
    assert data.train.num_samples >= setup.global_batch * (setup.warmup + setup.steps)


# ------------------------------------------------------------------------------------------------ Results and pages


def described(gpu: str = "NVIDIA H200") -> dict[str, Any]:
    return {
        "command": "python benchmarks/gpu.py",
        "hardware": {"gpu": gpu, "cpu": "a cpu"},
        "versions": {"torch": "2.11.0", "transformers": "5.17.0"},
    }


def made_up(path: Path) -> Results:
    """Trainbook takes one second for 10 steps, everyone else 1.25, and eager BERT does not fit."""
    results = Results.of(str(path), described())
    results.begin_session(described(), {"size": 8192, "flops_per_second": 700e12})
    for job in JOBS:
        for candidate in job.candidates:
            entry = results.entry(job, candidate, job.setup_of(candidate))
            for number in range(3):
                if job.name == "bert-base" and not candidate.changes.get("compile", True):
                    results.add(entry, number, {"failed": "out of memory"})
                    break
                seconds = 1.0 if candidate is job.candidates[0] else 1.25
                found = {"steps": 10, "seconds": seconds, "peak_bytes": 20 * 2**30, "parameters": 124_000_000}
                own = {"host_syncs": "none"} if candidate.is_ours else {"attention": "sdpa"}
                results.add(entry, number, {**found, **own})
    return results


def test_a_file_of_results_says_what_it_lacks(tmp_path: Path):
    path = tmp_path / "speed.json"
    made_up(path)
    again = Results.of(str(path), described())
    job = job_named("gpt-124m")
    entry = again.entry(job, job.candidates[0], job.setup_of(job.candidates[0]))
    assert [again.lacks(entry, number) for number in range(4)] == [False, False, False, True]
    failed = again.entry(bert := job_named("bert-base"), bert.candidates[2], bert.setup_of(bert.candidates[2]))
    assert not again.lacks(failed, 0)
    with pytest.raises(OtherSettings, match="steps"):
        again.entry(job, job.candidates[0], job.setup_of(job.candidates[0], steps=7))
    with pytest.raises(OtherSettings, match="A100"):
        Results.of(str(path), described("NVIDIA A100"))


class Children:
    """In place of the processes: each answers in no time, until someone presses Ctrl-C."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.interrupted_at: int | None = None
        self.failing = ""

    def __call__(self, job: str, candidate: str, *_: Any) -> dict[str, Any]:
        if job == gpu.PRODUCTS:
            return {"size": 256, "flops_per_second": 1e12}
        if len(self.calls) == self.interrupted_at:
            raise KeyboardInterrupt
        self.calls.append((job, candidate))
        if candidate == self.failing:
            return {"failed": "out of memory"}
        return {"steps": 3, "seconds": 1.0, "peak_bytes": None, "parameters": 1, "wall_seconds": 120.0}


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    children = Children()
    monkeypatch.setattr(gpu, "in_a_process", children)
    return children


def called(monkeypatch: pytest.MonkeyPatch, path: Path, *options: str) -> Any:
    common = ["--device", "cpu", "--tiny", "--jobs", "bert-base", "--rounds", "2", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *common, *options])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    return ended.value.code


def test_an_interrupted_benchmark_goes_on_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children
):
    children.interrupted_at, path = 4, tmp_path / "speed.json"
    assert called(monkeypatch, path) == 130
    children.interrupted_at = None
    assert called(monkeypatch, path, "--minutes", "1") == 0, "each takes two minutes: there is time for none"
    assert len(children.calls) == 4
    assert called(monkeypatch, path) == 0
    assert children.calls == 2 * [("bert-base", candidate.name) for candidate in job_named("bert-base").candidates]
    assert called(monkeypatch, path) == 0
    assert len(children.calls) == 6, "nothing was missing"
    assert len(json.loads(path.read_text("utf-8"))["sessions"]) == 2, "those that measured something"


def test_a_candidate_that_fails_is_a_row_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children, capsys: pytest.CaptureFixture[str]
):
    children.failing, path = "HF Trainer, compiled", tmp_path / "speed.json"
    assert called(monkeypatch, path) == 0
    assert "HF Trainer, compiled      out of memory" in capsys.readouterr().out
    assert len(children.calls) == 5, "what failed is not asked again"
    children.failing = ""
    assert called(monkeypatch, path, "--retry") == 0
    assert len(children.calls) == 7


def test_pages_are_written_from_results(tmp_path: Path):
    made_up(path := tmp_path / "speed-h200.json")
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks").mkdir()
    for name in ("README.md", "benchmarks/README.md"):
        (tmp_path / name).write_text((BENCHMARKS.parent / name).read_text("utf-8"), "utf-8")
    write_pages(path, tmp_path)
    readme, benchmarks = (
        (tmp_path / name).read_text("utf-8").splitlines() for name in ("README.md", "benchmarks/README.md")
    )
    rows = [line for line in readme if line.endswith("| `python benchmarks/gpu.py` |")]
    assert len(rows) == len(JOBS)
    assert rows[0].startswith("| GPT-2 124M, 1,024 tokens, 32 x 2 rows, bf16, one H200: tokens/s, ")
    assert "| 655,360 (1.25 ×, 75 %, 20.0 GiB); bf16 weights: 524,288 (1.00 ×, 60 %, 20.0 GiB) |" in rows[0]
    assert "| HF Trainer, compiled: 524,288 (60 %, 20.0 GiB);" in rows[0]
    assert "HF Trainer, eager: out of memory" in rows[3]
    assert readme[readme.index(rows[0]) - 1].startswith("|---")
    row = next(line for line in benchmarks if line.startswith("| `speed-h200.json` |"))
    assert "gpt-124m 1.25 × the HF Trainer, compiled" in row and "medians of 3 rounds" in row
    page = (tmp_path / "docs" / "speed.md").read_text("utf-8")
    assert "| HF Trainer, eager | out of memory |" in page and "20.0" in page

    written = [(tmp_path / name).read_text("utf-8") for name in ("README.md", "benchmarks/README.md", "docs/speed.md")]
    write_pages(path, tmp_path)
    again = [(tmp_path / name).read_text("utf-8") for name in ("README.md", "benchmarks/README.md", "docs/speed.md")]
    assert again == written


@pytest.mark.slow
def test_gpu_benchmark_goes_through_every_candidate_on_a_cpu(tmp_path: Path):
    path = tmp_path / "speed.json"
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", "cpu", "--tiny", "--json", str(path)]
    command += ["--jobs", "gpt-1.3b-recomputed", "t5-base"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    jobs = json.loads(path.read_text("utf-8"))["jobs"]
    for name in ("gpt-1.3b-recomputed", "t5-base"):
        candidates = jobs[name]["candidates"]
        assert list(candidates) == [candidate.name for candidate in job_named(name).candidates]
        assert {found: entry.get("failed") for found, entry in candidates.items()} == dict.fromkeys(candidates)
        assert all(len(entry["rounds"]) == 1 for entry in candidates.values())
