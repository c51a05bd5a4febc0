"""One of several processes that the launcher started: the command line, that leaves a note of how it ended."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

# What torch says when another process is gone: the cause of nothing.
GONE = ("gloo", "connection closed by", "connection reset by", "connection refused", "broken pipe")
GONE_TYPES = ("DistBackendError", "DistNetworkError", "DistStoreError")


def run_as_rank() -> None:
    _end_with_launcher()
    try:
        from trainbook.cli.main import run

        run()
    except SystemExit:  # whoever raised it has said why
        leave_note()
        raise
    except KeyboardInterrupt:
        leave_note()
        sys.exit(130)
    except BaseException as error:
        if os.environ["RANK"] == "0":
            # Not on the terminal: it may only follow from another rank's failure, and the launcher tells of one.
            with open(os.environ["TRAINBOOK_LOG"], "w", encoding="utf-8") as log:
                traceback.print_exception(error, file=log)
        else:
            traceback.print_exception(error)
        leave_note(error)
        sys.exit(1)


def leave_note(error: BaseException | None = None) -> None:
    """For the launcher, of a process that ends by itself; `error` if with an exception that nobody caught."""
    last = "".join(traceback.format_exception_only(error)).splitlines()[0] if error is not None else ""
    facts = {"at": time.time(), "is_told": error is None, "error": last, "is_consequence": _is_consequence(error)}
    Path(os.environ["TRAINBOOK_NOTE"]).write_text(json.dumps(facts), encoding="utf-8")


def _is_consequence(error: BaseException | None) -> bool:
    is_gone = isinstance(error, RuntimeError) and any(word in str(error).lower() for word in GONE)
    return is_gone or type(error).__name__ in GONE_TYPES


def _end_with_launcher() -> None:
    """A launcher that is killed leaves no ranks behind: the first is told to save, and the others leave with it.

    The system could tell each of them, but does so again for every thread of the launcher: a second signal, "at once".
    """
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    if os.environ["RANK"] == "0":
        threading.Thread(target=watch, name="launcher watch", daemon=True).start()


if __name__ == "__main__":
    run_as_rank()
