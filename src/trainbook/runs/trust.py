"""Code that a run folder names is imported unasked only if this user made the run on this machine.

A run folder is input: a stranger may have written it, or changed it. What this user has trained here, or agreed to with
--trust, is recorded in a file of the user's own, outside of every run folder, where no copied run can bring it along:

    $XDG_STATE_HOME/trainbook/trusted-code.jsonl      (~/.local/state where XDG_STATE_HOME is not set)

One line for each run, knob, Python path and file. Another run, another path, or the same path found in another file is
asked for again. Delete a line to forget it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainbook.errors import Untrusted
from trainbook.python_path import file_of, is_python_path
from trainbook.terminal import echo

if TYPE_CHECKING:
    from trainbook.knobs.config import Config
    from trainbook.knobs.loading import Loaded
    from trainbook.runs.folder import RunFolder

VARIABLE = "TRAINBOOK_TRUST"
STATE_FILE = "trusted-code.jsonl"
OF_THE_MODEL = ("model.type", "training.task")
OF_ALL = (*OF_THE_MODEL, "data.source", "data.validation")
ONLY_THE_USER_WRITES = 0o022  # bits that must not be set

_trusts: ContextVar[bool] = ContextVar("trusts", default=False)


@dataclass(frozen=True)
class Code:
    knob: str
    path: str  # package.module:Name
    file: str

    def __str__(self) -> str:
        return f"{self.knob}: {self.path}, from {self.file}"


@contextmanager
def trusting(is_asked: bool = True) -> Iterator[None]:
    """What is opened inside is trusted, as by --trust."""
    token = _trusts.set(is_asked or _trusts.get())
    try:
        yield
    finally:
        _trusts.reset(token)


def code_of(config: Config, knobs: Sequence[str] = OF_ALL) -> list[Code]:
    """The code that a configuration names and that is there. What is not there cannot be imported, and is told then."""
    named = [(knob, config.get(knob)) for knob in knobs]
    found = [(knob, path, file_of(path)) for knob, path in named if path is not None and _is_code(knob, path)]
    return [Code(knob, path, file) for knob, path, file in found if file is not None]


def require_trust(run: RunFolder, config: Config, knobs: Sequence[str] = OF_ALL) -> None:
    """Before a run's code is imported: say what it is. Untrusted: the user has to agree first."""
    code = code_of(config, knobs)
    if not code:
        return
    unknown = [each for each in code if _line(run, each) not in _remembered()]
    if unknown and not (_trusts.get() or is_set()):
        raise Untrusted(
            f"{run.path} names Python code, and there is no record that you trained this run on this machine:\n"
            + "".join(f"  {each}\n" for each in unknown)
            + f"Importing it runs it. Read it first, then add --trust or set {VARIABLE}=1 (from Python: trust=True)."
        )
    if unknown and _trusts.get():
        _remember(run, unknown)
    if os.environ.get("RANK", "0") == "0":
        for each in code:
            echo(f"importing {each.path} ({each.knob}) from {each.file}", err=True)


def require_trust_of_file(source: str | Path | None, loaded: Loaded) -> None:
    """The same for a configuration file inside a run folder. What an override names, the user has named."""
    from trainbook.runs.folder import RunFolder

    if source is not None and is_in_run_folder(source):
        knobs = [knob for knob in OF_ALL if loaded.origins[knob].kind != "override"]
        require_trust(RunFolder(Path(source).parent), loaded.config, knobs)


def is_in_run_folder(file: str | Path) -> bool:
    path = Path(file)
    return path.is_file() and (path.parent / "manifest.json").is_file()


def require_trust_of_pickle(folder: Path) -> None:
    """A pickle runs whatever whoever wrote it wants; nothing in it says who that was."""
    if not (_trusts.get() or is_set()):
        raise Untrusted(
            f"{folder} holds pickles of DeepSpeed's, and loading a pickle runs the code in it. If you trust whoever "
            f"wrote them, add --trust or set {VARIABLE}=1."
        )


def remember_training(run: RunFolder, config: Config) -> None:
    """This user trains the run here and now."""
    _remember(run, code_of(config))


def is_set() -> bool:
    return os.environ.get(VARIABLE, "") not in ("", "0")


def state_file(name: str = STATE_FILE) -> Path | None:
    """None: without a home there is no place that is known to be the user's own."""
    named = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(named):
        return Path(named) / "trainbook" / name
    home = os.environ.get("HOME", "")
    return Path(home) / ".local" / "state" / "trainbook" / name if os.path.isabs(home) else None


def read_own(path: Path, most: int = -1) -> str:
    """Empty where there is no such file. Nothing is believed from a file that somebody else can write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & ONLY_THE_USER_WRITES:
            return ""
        return file.read(most)


def _is_code(knob: str, path: str) -> bool:
    if knob in OF_THE_MODEL:
        return ":" in path
    return is_python_path(path) and not path.startswith("builtin:") and not Path(path).exists()


def _line(run: RunFolder, code: Code) -> str:
    identity = run.read_manifest().id or f"folder {os.path.realpath(run.path)}"
    return json.dumps({"run": identity, "knob": code.knob, "code": code.path, "file": code.file})


def _remembered() -> set[str]:
    path = state_file()
    return set() if path is None else set(read_own(path).splitlines())


def _remember(run: RunFolder, code: Sequence[Code]) -> None:
    """A place that cannot be written costs a question later, and no run."""
    path = state_file()
    if path is None or not code:
        return
    known = _remembered()
    lines = [line for line in (_line(run, each) for each in code) if line not in known]
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())  # at once: others append as well
        finally:
            os.close(descriptor)
