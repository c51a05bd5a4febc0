"""Damaged and hostile files of every kind, fed to the readers: each is read, or refused with a message.

python reliability/fuzz.py [--cases 20000] [--kinds config,csv] [--seed 0] [--json FILE] [--keep DIR] [--only KIND:CASE]

Of each kind a few good files are changed at random: bits, bytes, spans, and values inside of their structure, by others
of the wrong type, too deep, too long or too large. The reader must end with what it read or with one of Trainbook's own
errors; a traceback, ten seconds of computing, a gigabyte of memory or a byte written outside of the file's folder is a
failure. A case is a function of seed, kind and number: --only makes one again. A stopped program goes on where it was,
with the same --json. Kinds and their readers are in fuzz_kinds.py, changes in fuzz_changes.py.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

RESULTS = Path(__file__).parent / "results" / "fuzz.json"
CPU_SECONDS, WALL_SECONDS = 10.0, 120.0  # of one case
MOST_MEMORY = 10**9  # resident, of the whole process
ROUND = 100  # cases of one kind, before the next kind's; results are written after all of them


class Hang(BaseException):
    pass


@dataclass
class Tally:
    """What came of the cases of one kind."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    slowest_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "outcomes": dict(sorted(self.outcomes.items()))}


def main() -> int:
    options = arguments()
    from fuzz_kinds import KINDS

    names = options.kinds.split(",") if options.kinds else list(KINDS)
    only = options.only.partition(":") if options.only else None
    with sandbox() as folder:
        if only:
            names = [only[0]]
        tallies = {} if only else read_tallies(options.json, options.seed)
        kinds = {name: KINDS[name](folder / "case" / name) for name in names}
        for end in [1] if only else range(ROUND, options.cases + ROUND, ROUND):  # all kinds get on together
            for name, kind in kinds.items():
                tally = tallies.setdefault(name, Tally())
                numbers = [int(only[2])] if only else range(tally.cases, min(end, options.cases))
                fuzz(kind, name, numbers, options, tally)
            if not only:
                write_results(options, tallies)
    failures = sum(len(tally.failures) for tally in tallies.values())
    for name, tally in tallies.items():
        print(f"{name:<16} {tally.cases:>7,} {dict(tally.outcomes)} slowest {tally.slowest_seconds:.2f} s")
    for name, tally in tallies.items():
        for failure in tally.failures[:20]:
            print(f"{name}:{failure['case']}: {failure['what']}")
    print(f"largest memory {peak_memory() / 1e6:.0f} MB; {failures} failures")
    return 1 if failures else 0


def fuzz(kind: Any, name: str, numbers: Sequence[int], options: Any, tally: Tally) -> None:
    began = time.process_time()
    with Watch(kind.folder) as watch:
        for number in numbers:
            content = kind.changed(Random(f"{options.seed}-{name}-{number}"))
            seconds, outcome, told = one(kind, content, watch)
            tally.cases += 1
            tally.outcomes[outcome] += 1
            tally.slowest_seconds = max(tally.slowest_seconds, round(seconds, 3))
            if outcome not in ("read", "refused"):
                tally.failures.append({"case": number, "what": f"{outcome}: {told}"})
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{name}-{number}").write_bytes(content)
            if options.verbose:
                print(f"{name}:{number}: {outcome} {told}")
    tally.cpu_seconds = round(tally.cpu_seconds + time.process_time() - began, 2)


def one(kind: Any, content: bytes, watch: Watch) -> tuple[float, str, str]:
    """Seconds, "read", "refused" or a kind of failure, and what was said."""
    from trainbook.errors import TrainbookError

    kind.put(content)
    watch.begin()
    before = time.process_time()
    outcome, told = "read", ""
    try:
        with timed(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            kind.read()
    except TrainbookError as error:
        outcome, told = "refused", str(error)
        if not told.strip():
            outcome, told = "without a message", type(error).__name__
    except Hang:
        outcome, told = "hang", f"more than {CPU_SECONDS:g} s"
    except MemoryError as error:
        outcome, told = "memory", repr(error)[:200]
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "trainbook" in frame.filename]
        where = ours[-1] if ours else last
        place = f"{Path(where.filename).parent.name}/{Path(where.filename).name}:{where.lineno}"
        outcome, told = "traceback", f"{type(error).__name__} at {place}: {str(error)[:160]}"
    seconds = time.process_time() - before
    if wrote := watch.end():
        outcome, told = "wrote outside", wrote[0]
    if peak_memory() > MOST_MEMORY and outcome in ("read", "refused") and not Watch.is_over:
        Watch.is_over = True  # the peak does not fall again: only the first case is to blame
        outcome, told = "memory", f"{peak_memory() / 1e6:.0f} MB"
    return seconds, outcome, told


@contextmanager
def timed() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGPROF, ring)
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "socket.connect")


class Watch:
    """Hears of every file that Python opens for writing, of every change of a folder and of every new process."""

    current: Watch | None = None
    is_hooked = is_over = False

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        self.heard: list[str] = []
        self.is_on = False

    def __enter__(self) -> Watch:
        Watch.current = self
        if not Watch.is_hooked:
            Watch.is_hooked = True
            sys.addaudithook(lambda event, given: Watch.current.hear(event, given) if Watch.current else None)
        return self

    def __exit__(self, *_: object) -> None:
        Watch.current = None

    def begin(self) -> None:
        self.heard, self.is_on = [], True

    def end(self) -> list[str]:
        self.is_on = False
        return self.heard

    def hear(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        is_written = event == "open" and isinstance(given[2], int) and given[2] & WRITES
        if (is_written and not isinstance(given[0], int)) or event in CHANGES:
            self._must_be_inside(event, given[0])
        elif event in STARTS:
            self.heard.append(f"{event} {given[0]!r}")

    def _must_be_inside(self, event: str, path: Any) -> None:
        place = os.path.realpath(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if place not in ("", "/dev/null") and not place.startswith(self.folder + os.sep):
            self.heard.append(f"{event} {place}")


@contextmanager
def sandbox() -> Iterator[Path]:
    """A working folder, with no home but in it, and a limit for what a broken reader may take."""
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    os.environ.update(HOME=str(folder / "home"), XDG_STATE_HOME=str(folder / "state"), HF_HUB_OFFLINE="1")
    before = os.getcwd()
    (folder / "case").mkdir()
    os.chdir(folder / "case")
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        yield folder
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def peak_memory() -> int:
    """Of this program: `ru_maxrss` begins with that of whoever started it."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read_tallies(path: Path, seed: int) -> dict[str, Tally]:
    if not path.is_file():
        return {}
    found = json.loads(path.read_text())
    if found["seed"] != seed:
        return {}
    return {name: Tally(**{**tally, "outcomes": Counter(tally["outcomes"])}) for name, tally in found["kinds"].items()}


def write_results(options: Any, tallies: dict[str, Tally]) -> None:
    from harness import machine, write_json

    kinds = {name: tally.as_json() for name, tally in tallies.items()}
    before = json.loads(options.json.read_text())["peak_memory"] if options.json.is_file() else 0
    peak = max(peak_memory(), before)  # of this process, and of the one that it goes on from
    write_json(options.json, {**machine(), "seed": options.seed, "peak_memory": peak, "kinds": kinds})


def arguments() -> Any:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", type=int, default=20_000, help="of each kind")
    options.add_argument("--kinds", default="", help="with commas between them; all without it")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", type=lambda text: Path(text).resolve(), default=RESULTS)
    options.add_argument("--keep", type=lambda text: Path(text).resolve(), help="a folder for files that failed")
    options.add_argument("--only", help="one case, as KIND:NUMBER")
    options.add_argument("--verbose", action="store_true")
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(main())
