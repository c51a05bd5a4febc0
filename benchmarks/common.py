"""One model, one stream of tokens, two trainers: Trainbook's own loop and the Hugging Face Trainer, each timed."""

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
from dataclasses import asdict, dataclass, replace
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
from trainbook.knobs import Config, load
from trainbook.loop.build import assemble
from trainbook.loop.device import prepared_device
from trainbook.loop.job import Job
from trainbook.loop.run_io import Interrupts, RunIO, StoreEvents
from trainbook.loop.step import StepReport
from trainbook.loop.train import Training
from trainbook.runs import RunFolder

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
    bias: bool = True  # GPT-2 has biases; Hugging Face's model always does
    precision: str = "fp32"
    products: str = "same"  # Trainbook only: precision.products
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
        return self.global_batch * self.context

    def stream(self) -> np.ndarray:
        """Random tokens, as many as the timed steps need but at most 32 million."""
        sequences = self.global_batch * (self.warmup + self.steps + self.extra_steps + 1)
        size = min(sequences * self.context, 2**25) + 1
        dtype = np.uint16 if self.vocab <= 2**16 else np.uint32
        return np.random.default_rng(0).integers(self.vocab, size=size, dtype=dtype)


@dataclass(frozen=True)
class Timing:
    seconds: float
    tokens_per_second: float
    parameters: int
    peak_bytes: int | None  # of the GPU, in the timed steps
    loss: float | None = None  # of the last step with a row

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


def trainbook_config(setup: Setup) -> Config:
    total = setup.warmup + setup.steps + setup.extra_steps + 1  # the last step would also save: it is never reached
    return load(
        {
            "model": {
                "type": "gpt",
                "num_hidden_layers": setup.layers,
                "hidden_size": setup.width,
                "num_attention_heads": setup.heads,
                "bias": setup.bias,
                "activation": "gelu_tanh",
                "dropout": 0.0,
                "vocab_multiple": setup.vocab_multiple,
            },
            "data": {"max_seq_length": setup.context, "num_workers": setup.workers},
            "batch": {
                "global_batch_size": setup.global_batch,
                "per_device_train_batch_size": setup.micro_batch,
                "max_grad_norm": MAX_GRAD_NORM,
            },
            "training": {"max_steps": total, "device": setup.device, "deterministic": setup.deterministic},
            "guard": {"enabled": setup.guard},
            "optimizer": {"learning_rate": LEARNING_RATE, "weight_decay": WEIGHT_DECAY, "beta2": BETA2},
            "schedule": {"type": "linear"},
            "evaluation": {"eval_strategy": "no"},
            "checkpoint": {"save_steps": total},
            "precision": {"compute": setup.precision, "products": setup.products},
            "memory": {"compile": "on" if setup.compile else "off"},
            "distributed": {"strategy": setup.strategy},
        }
    ).config


@dataclass(frozen=True)
class Vocabulary:
    """In place of a tokenizer: the tokens come from memory, not from a text."""

    vocab_size: int
    end_of_text: int | None = None
    padding: int = 0

    def special(self, role: str) -> int | None:
        return None

    @property
    def special_names(self) -> Mapping[int, str]:
        return {}


def trainbook_job(setup: Setup, config: Config) -> Job:
    samples = TokenWindows(
        setup.stream(), Frame(setup.context, shift=1), shuffle=config.data.shuffle, seed=config.training.seed
    )
    vocabulary = cast(Tokenizer, Vocabulary(setup.vocab))
    data = DataBundle(samples, None, vocabulary, fingerprint="", summary={})
    return assemble(config, data, torch.device(setup.device))


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


# --------------------------------------------------------------------------------------------------------- Hugging Face


def measure_hugging_face(setup: Setup, *, activation: str = "gelu_new", onednn: bool = True) -> Timing:
    """The Trainer on GPT2LMHeadModel: its defaults, but for what `Setup` fixes; nothing logged, saved or evaluated."""
    with torch_switches_restored(), tempfile.TemporaryDirectory() as folder:
        torch.backends.mkldnn.enabled = onednn  # pyright: ignore[reportAttributeAccessIssue]
        timing = _train_hugging_face(setup, activation, folder)
    free_memory(setup.device)
    return timing


def _train_hugging_face(setup: Setup, activation: str, folder: str) -> Timing:
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    transformers.logging.set_verbosity_error()

    class Stopwatch(TrainerCallback):
        started = stopped = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == setup.warmup:
                if setup.device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                self.started = read_clock(setup)
            elif state.global_step == setup.warmup + setup.steps:
                self.stopped = read_clock(setup)

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=setup.vocab,
            n_positions=setup.context,
            n_embd=setup.width,
            n_layer=setup.layers,
            n_head=setup.heads,
            activation_function=activation,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
        )
    )
    stream = torch.from_numpy(setup.stream()[:-1].astype(np.int64))
    sequences = [{"input_ids": row, "labels": row} for row in stream.view(-1, setup.context)]
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=setup.warmup + setup.steps,
        per_device_train_batch_size=setup.micro_batch,
        gradient_accumulation_steps=setup.accumulation,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        adam_beta2=BETA2,
        max_grad_norm=MAX_GRAD_NORM,
        optim="adamw_torch_fused",
        bf16=setup.precision == "bf16",
        torch_compile=setup.compile,
        use_cpu=setup.device == "cpu",
        dataloader_num_workers=setup.workers,
        dataloader_pin_memory=setup.device == "cuda",
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    stopwatch = Stopwatch()
    trainer = Trainer(model=model, args=arguments, train_dataset=sequences, callbacks=[stopwatch])  # pyright: ignore[reportArgumentType]
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    peak = torch.cuda.max_memory_allocated() if setup.device == "cuda" else None
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trainer.accelerator.free_memory()
    return Timing.of(setup, stopwatch.stopped - stopwatch.started, parameters, peak)


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
