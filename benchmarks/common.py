"""A model on random tokens in memory, timed in Trainbook's own loop; hugging_face.py has the other side."""

from __future__ import annotations

import gc
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch

from trainbook import tracking
from trainbook.checkpoints import CheckpointStore
from trainbook.data import DataBundle, Frame, Tokenizer, TokenWindows
from trainbook.data.samples.base import DocumentTable
from trainbook.data.samples.datasets import TokenDocuments
from trainbook.knobs import Config, load
from trainbook.loop.build import ConfiguredJob, assemble
from trainbook.loop.device import prepared_device
from trainbook.loop.run_io import Interrupts, RunIO, StoreEvents
from trainbook.loop.step import StepReport
from trainbook.loop.train import Training
from trainbook.runs import RunFolder
from trainbook.tasks import task_class

LEARNING_RATE, WEIGHT_DECAY, BETA2, MAX_GRAD_NORM = 6e-4, 0.1, 0.95, 1.0


@dataclass(frozen=True)
class Setup:
    """Everything that both trainers share."""

    layers: int
    width: int
    heads: int
    context: int
    vocab: int
    micro_batch: int
    accumulation: int = 1
    kind: str = "gpt"  # GPT-2's; "bert": masked language modelling; "t5": pairs of texts
    target_length: int = 0  # t5 only: tokens that the decoder writes; `context` is what the encoder reads
    bias: bool = True  # GPT-2 has biases; Hugging Face's model always does
    precision: str = "fp32"
    weights: str = "fp32"  # Trainbook only: precision.weights
    products: str = "same"  # Trainbook only: precision.products
    recompute: str = "off"  # "full": only what enters a block is kept for the backward pass
    compile: bool = False
    device: str = "cpu"
    vocab_multiple: int = 1  # Trainbook only: rows of the embedding padded up, never given probability
    workers: int = 0
    steps: int = 100
    warmup: int = 20  # Trainbook writes a row at each of its first 20 steps: after them, both are in their stride
    extra_steps: int = 0  # untimed, after the timed ones
    clock: str = "wall"  # or "cpu": this process's processor time, which other work on the machine hardly moves
    guard: bool = True  # Trainbook only
    deterministic: bool = False  # Trainbook only
    strategy: str = "auto"  # Trainbook only; for others than auto and single, the processes must have met

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.accumulation

    @property
    def tokens_per_step(self) -> int:
        """Positions that the model computes: read and, by a decoder, written."""
        return self.global_batch * (self.context + self.target_length)

    def numbers(self, lowest: int, length: int, extra: int = 0) -> np.ndarray:
        """Random tokens for rows of this length: as many as the timed steps need, but at most 32 million."""
        rows = self.global_batch * (self.warmup + self.steps + self.extra_steps + 1)
        rows = max(self.global_batch, min(rows, 2**25 // length))
        dtype = np.uint16 if self.vocab <= 2**16 else np.uint32
        return np.random.default_rng(0).integers(lowest, self.vocab, size=rows * length + extra, dtype=dtype)


@dataclass(frozen=True)
class Timing:
    seconds: float
    tokens_per_second: float
    parameters: int
    peak_bytes: int | None  # of the GPU, in the timed steps
    loss: float | None = None  # of the last step with a row
    attention: str | None = None  # as transformers calls what its model uses

    @classmethod
    def of(
        cls, setup: Setup, seconds: float, parameters: int, peak_bytes: int | None, loss: float | None = None
    ) -> Timing:
        return cls(seconds, setup.steps * setup.tokens_per_step / seconds, parameters, peak_bytes, loss)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def read_clock(setup: Setup) -> float:
    """Seconds, once the device has done what it was given."""
    synchronize(setup.device)
    return time.perf_counter() if setup.clock == "wall" else time.process_time()


def free_memory(device: str) -> None:
    torch.compiler.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@contextmanager
def torch_switches_restored() -> Iterator[None]:
    """Trainbook sets switches of PyTorch for its run; what is measured next must find them as PyTorch has them."""
    onednn, matmul = torch.backends.mkldnn.enabled, torch.get_float32_matmul_precision()  # pyright: ignore[reportAttributeAccessIssue]
    deterministic, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = onednn  # pyright: ignore[reportAttributeAccessIssue]
        torch.set_float32_matmul_precision(matmul)
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = benchmark


# ------------------------------------------------------------------------------------------------------------ Trainbook


MASK_RATIO = 0.15
PARTS: dict[str, dict[str, Any]] = {  # what makes each kind the published model
    "gpt": {"activation": "gelu_tanh"},
    "bert": {"activation": "gelu", "norm_position": "post", "norm_epsilon": 1e-12, "token_types": 2},
    "t5": {
        "activation": "relu",
        "bias": False,
        "norm": "rmsnorm",
        "norm_epsilon": 1e-6,
        "position": "relative",
        "attention_scale": "none",
    },
}
TASKS = {"gpt": "causal", "bert": "masked", "t5": "seq2seq"}


def trainbook_config(setup: Setup) -> Config:
    total = setup.warmup + setup.steps + setup.extra_steps + 1  # the last step would also save: it is never reached
    return load(
        {
            "model": {
                "type": setup.kind,
                "num_hidden_layers": setup.layers,
                "hidden_size": setup.width,
                "num_attention_heads": setup.heads,
                "intermediate_size": 4 * setup.width,
                "bias": setup.bias,
                "dropout": 0.0,
                "vocab_multiple": setup.vocab_multiple,
                **PARTS[setup.kind],
            },
            "data": {
                "max_seq_length": setup.context,
                "num_workers": setup.workers,
                **({"max_target_length": setup.target_length} if setup.target_length else {}),
            },
            "batch": {
                "global_batch_size": setup.global_batch,
                "per_device_train_batch_size": setup.micro_batch,
                "max_grad_norm": MAX_GRAD_NORM,
            },
            "training": {
                "task": TASKS[setup.kind],
                "mask_ratio": MASK_RATIO,
                "max_steps": total,
                "device": setup.device,
                "deterministic": setup.deterministic,
            },
            "guard": {"enabled": setup.guard},
            "optimizer": {"learning_rate": LEARNING_RATE, "weight_decay": WEIGHT_DECAY, "beta2": BETA2},
            "schedule": {"type": "linear"},
            "evaluation": {"eval_strategy": "no"},
            "checkpoint": {"save_steps": total},
            "precision": {"compute": setup.precision, "weights": setup.weights, "products": setup.products},
            "memory": {
                "compile": "on" if setup.compile else "off",
                "gradient_checkpointing": setup.recompute,
            },
            "distributed": {"strategy": setup.strategy},
        }
    ).config


@dataclass(frozen=True)
class Vocabulary:
    """In place of a tokenizer: the tokens come from memory, not from a text."""

    vocab_size: int
    roles: Mapping[str, int] = field(default_factory=dict)
    end_of_text: int | None = None
    padding: int = 0
    sentinels: tuple[int, ...] = ()

    def special(self, role: str) -> int | None:
        return self.roles.get(role)

    @property
    def special_names(self) -> Mapping[int, str]:
        return {}


SPECIAL = {"bert": ("pad", "begin", "separator", "mask"), "t5": ("pad", "end")}


class EqualPairs(TokenDocuments):
    """Texts of one length, each with a text of another to write: nothing has to be padded."""

    equally_long = True


def random_data(setup: Setup, config: Config) -> DataBundle:
    """Rows of the full length, of ordinary tokens between those that the task puts around them."""
    roles = {role: number for number, role in enumerate(SPECIAL.get(setup.kind, ()))}
    vocabulary = cast(Tokenizer, Vocabulary(setup.vocab, roles, roles.get("end")))
    if setup.kind == "t5":
        samples = _pairs(setup, task_class(config).frame(config, vocabulary), len(roles))
    elif setup.kind == "bert":
        frame = task_class(config).frame(config, vocabulary)
        samples = TokenWindows(setup.numbers(len(roles), frame.room), frame)
    else:
        frame, seed = Frame(setup.context, shift=1), config.training.seed
        stream = setup.numbers(0, setup.context, frame.shift)
        samples = TokenWindows(stream, frame, shuffle=config.data.shuffle, seed=seed)
    return DataBundle(samples, None, vocabulary, fingerprint="", summary={})


def _pairs(setup: Setup, frame: Frame, lowest: int) -> EqualPairs:
    lengths = (setup.context - len(frame.suffix), setup.target_length - len(frame.target_suffix))
    both = setup.numbers(lowest, sum(lengths)).reshape(-1, sum(lengths))
    count = len(both)
    read, written = (
        (np.ascontiguousarray(part).ravel(), np.arange(count) * length, np.full(count, length))
        for part, length in ((both[:, : lengths[0]], lengths[0]), (both[:, lengths[0] :], lengths[1]))
    )
    table = DocumentTable(read[1], read[2], np.zeros(count, dtype=np.int64), ["random"] * count)
    return EqualPairs(read[0], table, frame, targets=written)


def trainbook_job(setup: Setup, config: Config) -> ConfiguredJob:
    return assemble(config, random_data(setup, config), torch.device(setup.device))


class TimedTraining(Training):
    """The product's own loop in a run folder of its own, stopped between two steps to read the clock."""

    def begin(self, setup: Setup, folder: RunFolder) -> None:
        self.setup, self.folder = setup, folder
        self.reports = self.steps()
        self._start_row()

    def step(self) -> StepReport:
        """Batch, seed, update: without what follows a step at times, such as writing a row."""
        return next(self.reports)

    def advance(self, steps: int) -> float:
        """Seconds that so many steps take, with all that a run does between them."""
        started = read_clock(self.setup)
        for _ in range(steps):
            self.after_step(self.step())
        return read_clock(self.setup) - started

    def measure(self) -> Timing:
        self.advance(self.setup.warmup)
        seconds = self.advance(self.setup.steps)
        parameters = sum(parameter.numel() for parameter in self.state.parameters)
        losses = [row["loss"] for row in self.folder.metrics("train")]
        return Timing.of(self.setup, seconds, parameters, self._peak_bytes(), losses[-1] if losses else None)

    def _peak_bytes(self) -> int | None:
        if self.setup.device != "cuda":
            return None
        # Each row starts a new peak, so the highest of the rows and of what came after the last one.
        rows = [row for row in self.folder.metrics("train") if row["step"] > self.setup.warmup]
        return max([torch.cuda.max_memory_allocated(), *(row["memory_bytes"] for row in rows)])


@contextmanager
def trainbook_training(setup: Setup) -> Iterator[TimedTraining]:
    config = trainbook_config(setup)
    switches = prepared_device(config, torch.device(setup.device), config.model.hidden_size)
    with switches, tempfile.TemporaryDirectory() as runs_dir, Interrupts() as interrupts:
        job = trainbook_job(setup, config)
        folder, events = RunFolder.create(runs_dir, "benchmark"), StoreEvents()
        trackers = tracking.build(config.logging, folder, segment=1, total_steps=job.total_updates, quiet=True)
        with trackers, closing(CheckpointStore(folder.checkpoints, on_event=events)) as store:
            training = TimedTraining(job, RunIO(trackers, store, interrupts, events))
            training.begin(setup, folder)
            yield training


def measure_trainbook(setup: Setup) -> Timing:
    with trainbook_training(setup) as training:
        timing = training.measure()
    del training
    free_memory(setup.device)
    return timing


# --------------------------------------------------------------------------------------------------------------- Report


def facts(device: str, setup: Setup | None = None) -> dict[str, Any]:
    """Where, with what and how the figures were made."""
    packages = ("torch", "transformers", "accelerate", "numpy")
    hardware: dict[str, Any] = {
        "cpu": _processor(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        hardware |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return {
        "command": shlex.join(["python", *_without_folders(sys.argv)]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "hardware": hardware,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        **({"setup": asdict(setup)} if setup is not None else {}),
    }


def _without_folders(arguments: list[str]) -> list[str]:
    """The file that `--json` names, wherever it was written."""
    names = [Path(after).name if before == "--json" else after for before, after in pairwise(arguments)]
    return [*arguments[:1], *names]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def print_facts(described: dict[str, Any]) -> None:
    hardware, versions = described["hardware"], described["versions"]
    gpu = f"{hardware['gpu']}, " if "gpu" in hardware else ""
    print(f"{gpu}{hardware['cpu']} ({hardware['machine']}), {hardware['cores']} cores, {hardware['threads']} threads")
    print(", ".join(f"{name} {number}" for name, number in versions.items()))


def write_json(path: str | None, found: dict[str, Any]) -> None:
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def with_options(setup: Setup, **options: Any) -> Setup:
    """The setup with those of the options that were given."""
    return replace(setup, **{name: value for name, value in options.items() if value is not None})
