"""Opening a run by its path or name: one of ours, or of another tool."""

from __future__ import annotations

from pathlib import Path

from trainbook.contained import must_stay_inside
from trainbook.errors import RunFolderError
from trainbook.nearest import nearest_run
from trainbook.runs.folder import RunFolder, is_study, list_runs, what_a_study_is
from trainbook.runs.foreign import LOOKED_FOR, read_foreign
from trainbook.runs.run_record import RunRecord, read_run


def open_record(path: Path | str, runs_dir: Path | str | None = None) -> RunRecord:
    """The run at `path`, ours or another tool's, or our own of that name in `runs_dir`."""
    wanted = Path(path).expanduser()
    places = [wanted] if runs_dir is None else [wanted, Path(runs_dir).expanduser() / wanted]
    try:
        for place in places:
            if (folder := _our_folder(place)) is not None:
                return read_run(folder)
        for place in places:
            if place.exists() and (record := read_foreign(place)) is not None:
                return record
    except OSError as error:
        raise RunFolderError(f"{error.filename or wanted} cannot be read: {error.strerror or error}.") from None
    raise RunFolderError(f"{_what_is_there(places)} Looked for {LOOKED_FOR}.{_nearest(places)}")


def _our_folder(place: Path) -> RunFolder | None:
    """Also when one of its files is named, and also before its manifest is written."""
    if place.name in ("manifest.json", "metrics.jsonl", "events.jsonl") and place.is_file():
        place = place.parent
    folder = RunFolder(place)
    has_begun = folder.config.is_file() and folder.metrics_file.is_file()
    if not (folder.manifest.is_file() or folder.has_checkpoints or has_begun):
        return None
    must_stay_inside(place)
    return folder


def _what_is_there(places: list[Path]) -> str:
    for place in places:
        if is_study(place):
            raise RunFolderError(what_a_study_is(place))
        if place.is_dir():
            return f"{place} holds no readable run."
        if place.exists():
            return f"{place} is not a readable run."
    return f"there is no run {' or '.join(str(place) for place in places)}."


def _nearest(places: list[Path]) -> str:
    """By name among the runs beside it. A bare name is one of the folder of runs, a longer path is a place."""
    wanted = places[0] if len(places[0].parts) > 1 else places[-1]
    known = [run.name for run in list_runs(wanted.parent)]
    longer = [name for name in known if name.startswith(wanted.name)]
    near = longer[0] if longer else nearest_run(wanted.name, known)
    return f" Did you mean {wanted.parent / near}?" if near else ""
