"""Every error Trainbook raises on purpose.

TrainbookError
├── UserError            the input is wrong: exit code 2, never a traceback
│   ├── ConfigError      a configuration breaks laws; carries every problem found, not the first
│   ├── DataError        a source, tokenizer or sample cannot be used
│   ├── RunFolderError   a run folder is missing, in use, or of another kind
│   │   ├── RunInUse     … another process writes in it
│   │   ├── NewerRun     … or was written by a newer Trainbook
│   │   ├── Untrusted    … or names code that this user has not agreed to import
│   │   └── LeadsOut     … or leads out of the folder, by a link or a path
│   ├── BeyondBounds     a file is larger, deeper or expands further than is read; also a ValueError
│   ├── ResumeError      a run cannot be continued as asked
│   └── MissingExtra     an optional package is needed; the message has the pip line
├── RunError             the run failed: exit code 1
│   ├── CheckpointError  a checkpoint could not be written or read
│   │   └── NoSuchStep   … or was asked for and is not there: the user's mistake, exit code 2
│   ├── OutOfMemory      of a device; one of several ranks is started again, and all go on in smaller parts
│   └── Diverged         updates were rejected until nothing was left to try
└── Interrupted          stopped by the user or the scheduler and saved: exit code 130
"""

from __future__ import annotations

from dataclasses import dataclass


class TrainbookError(Exception):
    exit_code = 1


class UserError(TrainbookError):
    exit_code = 2


@dataclass(frozen=True)
class Problem:
    """One broken law: where, which knob, what the law is and what was given instead."""

    where: str  # "recipe.yaml:3", "override", "default"
    name: str  # the knob's path, or the name as the user wrote it
    message: str  # "must be > 0, but got -1"
    hint: str = ""  # "Did you mean optimizer.learning_rate?"

    def __str__(self) -> str:
        place = self.where if self.where == f"--{self.name}" else f"{self.where}  {self.name}"  # an option names itself
        return f"{place}: {self.message}" + (f" {self.hint}" if self.hint else "")


class ConfigError(UserError):
    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[Problem]]]:
        return type(self), (self.problems,)  # what is handed from process to process is made anew of these


class DataError(UserError):
    pass


class RunFolderError(UserError):
    pass


class RunInUse(RunFolderError):
    pass


class NewerRun(RunFolderError):
    pass


class Untrusted(RunFolderError):
    pass


class LeadsOut(RunFolderError):
    pass


class BeyondBounds(UserError, ValueError):
    pass


class ResumeError(UserError):
    pass


class MissingExtra(UserError):
    def __init__(self, what: str, package: str, extra: str, instead: str = "") -> None:
        """`instead`: a sentence on how to do without the package."""
        install = f"Install it with: pip install 'trainbook[{extra}]'"
        super().__init__(f"{what} needs the package '{package}'. {install}{instead and '. '}{instead}")
        self.needed = what, package, extra, instead

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str, str, str]]:
        return type(self), self.needed


class TooLarge(UserError):
    """For the memory of the device, whatever is done: known before anything is allocated."""


class RunError(TrainbookError):
    pass


class CheckpointError(RunError):
    pass


class NoSuchStep(CheckpointError):
    exit_code = 2


class OutOfMemory(RunError):
    def __init__(self, message: str, *, is_heard: bool = False) -> None:
        """`is_heard`: a launcher will tell it, and start the ranks again."""
        super().__init__(message)
        self.is_heard = is_heard


class Diverged(RunError):
    pass


class Interrupted(TrainbookError, SystemExit):
    """Also a SystemExit: a script that does not catch it ends, with exit code 130 and without a traceback."""

    exit_code = 130

    def __init__(self, message: str, *, is_told: bool = False) -> None:
        """`is_told`: the terminal has shown the message already."""
        super().__init__(message)
        self.code = self.exit_code
        self.is_told = is_told


def without_stop(error: BaseException) -> str:
    """What an error says, to stand inside a sentence."""
    return str(error).rstrip(".")
