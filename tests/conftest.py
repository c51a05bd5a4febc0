from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Folders whose tests take longest come first, so that no worker is left with one of them at the end.
LONGEST_FIRST = ("parallel", "e2e", "study", "loop", "cli", "guard", "plan")

WORDS = ("alpha", "beta", "gamma", "delta", "and", "the", "of", "run", "x", "seven")


def pytest_configure() -> None:
    """A shell in the background ignores interruptions, and so would all processes that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=place)


def slow(*values: Any, **named: Any) -> Any:
    """A case for `make test-all`, among others that stay in the quick suite."""
    return pytest.param(*values, marks=pytest.mark.slow, **named)


def quick(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """All of the cases, of which these alone are in the quick suite."""
    cases = list(cases)
    assert all(each in cases for each in chosen), "what is chosen is one of them"
    return [case if case in chosen else slow(*case) if isinstance(case, tuple) else slow(case) for case in cases]


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skips tests where a package is missing, without importing it: every worker collects every test."""
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"could not import {', '.join(missing)}")


class later:
    """A module that is imported when something of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


@pytest.fixture(scope="session", autouse=True)
def _state_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests train is remembered for them, and not for whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("TRAINBOOK_TRUST", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """No test cuts the power, so none needs the disk's word; that fsync is called, and when, has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _what_is_imported_is_no_garbage() -> None:
    """Measuring memory collects garbage, and went through all of torch's and the tests' own objects each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _plain_cpu_kernels() -> None:
    """oneDNN's ARM kernels have a fixed cost that makes tiny models several times slower."""
    torch = sys.modules.get("torch")  # not imported for the many tests that do without it
    if torch is not None:
        torch.backends.mkldnn.enabled = False


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks and workers that this process starts have torch and Trainbook imported from the beginning."""
    from tests import forked

    monkeypatch.setattr("trainbook.supervisor.subprocess.Popen", forked.Popen)


def numbers(seed: int) -> Iterator[int]:
    """The same on every machine and Python: a linear congruential generator's upper bits."""
    state = seed
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33


def text_of(num_words: int, seed: int = 1) -> str:
    draw = numbers(seed)
    return "".join(WORDS[next(draw) % len(WORDS)] + (" " if next(draw) % 7 else "\n") for _ in range(num_words))


@pytest.fixture(scope="session")
def make_text() -> Callable[..., str]:
    return text_of


class PowerCut(BaseException):
    """No Exception, so that nothing in the program gets to clean up or save."""


class Lab:
    """A folder with a small text, small documents, a cache and runs; and short ways to train there and to compare."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / "runs"
        self.text = root / "text.txt"
        self.text.write_text(text_of(1200))
        self.documents = root / "documents.jsonl"
        draw = numbers(7)
        lines = [json.dumps({"text": text_of(1 + next(draw) % 8, seed=next(draw))}) for _ in range(80)]
        self.documents.write_text("\n".join(lines) + "\n")

    def config(self, samples: str = "windows") -> dict[str, Any]:
        source = self.text if samples == "windows" else self.documents
        return {
            "model": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2},
            "data": {
                "source": str(source),
                "samples": samples,
                "max_seq_length": 16,
                "validation_ratio": 0.2,
                "cache_dir": str(self.root / "cache"),
            },
            "batch": {"global_batch_size": 4},
            "training": {"max_steps": 12},
            "optimizer": {"learning_rate": 1e-2},
            "schedule": {"type": "cosine", "warmup_steps": 3},
            "evaluation": {"eval_max_samples": 6, "eval_steps": 6},
        }

    def load(self, *overrides: str, samples: str = "windows") -> Any:
        from trainbook.knobs import load

        return load(self.config(samples), overrides)

    def train(self, *overrides: str, name: str = "run", samples: str = "windows", **options: Any) -> Any:
        from trainbook import api

        options.setdefault("quiet", True)
        return api.train(self.config(samples), overrides, name=name, runs_dir=self.runs, **options)

    def build(self, *overrides: str, samples: str = "windows") -> Any:
        import torch

        from trainbook.loop.build import build

        return build(self.load(*overrides, samples=samples).config, torch.device("cpu"))

    def open(self, name: str = "run") -> Any:
        from trainbook.runs import RunFolder

        return RunFolder(self.runs / name)

    def rows(self, name: str = "run", split: str = "train") -> list[dict[str, Any]]:
        """What must be equal bit for bit in two runs that are the same: all but times and places."""
        around = (
            "segment",
            "time",
            "tokens_per_second",
            "step_seconds",
            "data_wait_seconds",
            "memory_bytes",
            "gpu_utilisation",
            "rank_memory",
            "rank_seconds",
            "seconds",
            "future_leak",  # looked for once a process
            "repeated_batches",
        )
        rows = self.open(name).metrics(split)
        return [{key: value for key, value in row.items() if key not in around} for row in rows]

    def events(self, kind: str, name: str = "run") -> list[dict[str, Any]]:
        return [event for event in self.open(name).events(raw=True) if event["kind"] == kind]

    def state(self, name: str = "run", which: Any = "latest") -> dict[str, Any]:
        from trainbook.checkpoints import CheckpointStore

        found = CheckpointStore(self.open(name).checkpoints, read_only=True).load(which)
        assert found is not None
        return found.state

    def steps_saved(self, name: str = "run") -> list[int]:
        from trainbook.checkpoints import CheckpointStore

        return CheckpointStore(self.open(name).checkpoints, read_only=True).steps()

    def must_be_equal(self, one: str, other: str) -> None:
        import torch

        assert self.rows(one) == self.rows(other)
        assert self.rows(one, "eval") == self.rows(other, "eval")
        states = [self.state(name) for name in (one, other)]
        for state in states:
            del state["segment"], state["run"]
        for part in ("progress", "healing"):
            assert states[0].pop(part) == states[1].pop(part)
        torch.testing.assert_close(*states, rtol=0, atol=0, equal_nan=True)

    @contextmanager
    def around_step(self, change: Callable[[int, Any, Callable[[], Any]], Any]) -> Iterator[None]:
        """`change(number, state, step)` in place of each training step; `step()` is the real one, numbered from 1."""
        from trainbook.loop import train

        real = train.train_step

        def changed(state: Any, batch: Any, **how: Any) -> Any:
            return change(state.step + 1, state, lambda: real(state, batch, **how))

        train.train_step = changed
        try:
            yield
        finally:
            train.train_step = real

    @contextmanager
    def crashing_at(self, step: int) -> Iterator[None]:
        def crash(number: int, state: Any, step_of: Callable[[], Any]) -> Any:
            if number == step:
                raise PowerCut("the power went out")
            return step_of()

        with self.around_step(crash), pytest.raises(PowerCut):
            yield

    @contextmanager
    def interrupted_at(self, step: int) -> Iterator[None]:
        """As if Ctrl-C came during this step."""
        from trainbook.errors import Interrupted
        from trainbook.loop import session

        real, made = session.Interrupts, []

        class Watched(real):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                made.append(self)

        def interrupt(number: int, state: Any, step_of: Callable[[], Any]) -> Any:
            if number == step:
                made[-1].requested = "Ctrl-C"
            return step_of()

        session.Interrupts = Watched
        try:
            with self.around_step(interrupt), pytest.raises(Interrupted):
                yield
        finally:
            session.Interrupts = real

    @contextmanager
    def poisoned_at(self, *steps: int) -> Iterator[None]:
        """The loss of these attempted updates, and so every gradient of theirs, is NaN."""

        def poison(number: int, state: Any, step_of: Callable[[], Any]) -> Any:
            if number not in steps:
                return step_of()
            healthy = state.losses
            state.losses = lambda batch: {name: total * float("nan") for name, total in healthy(batch).items()}
            try:
                return step_of()
            finally:
                state.losses = healthy

        with self.around_step(poison):
            yield


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """For tests of one file that only read what a first one trained."""
    return Lab(tmp_path_factory.mktemp("lab"))
