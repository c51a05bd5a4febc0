"""A dataset that Hugging Face's `save_to_disk` wrote: a folder of Arrow files, or of several splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.contained import is_plain_name
from trainbook.errors import DataError
from trainbook.nearest import did_you_mean

DICT_FILE = "dataset_dict.json"
STATE_FILE = "state.json"
DEFAULT_SPLIT = "train"


def is_dataset(folder: Path) -> bool:
    return (folder / DICT_FILE).is_file() or (
        (folder / STATE_FILE).is_file() and (folder / "dataset_info.json").is_file()
    )


def files_of(folder: Path, split: str | None, name: str, knob: str) -> tuple[str, ...]:
    """The Arrow files in their order, relative to the folder. Of several splits, training is taken unless one is named:
    a split that was put aside for a last judgement is never read by accident."""
    below = ""
    if (folder / DICT_FILE).is_file():
        splits = _json(folder / DICT_FILE, knob)["splits"]
        chosen = split or DEFAULT_SPLIT
        if chosen not in splits or not is_plain_name(chosen):
            known = ", ".join(f"'{name}#{other}'" for other in splits)
            raise DataError(
                f"{knob}: the dataset '{name}' has no split '{chosen}'; it has {known}.{did_you_mean(chosen, splits)}"
            )
        below = f"{chosen}/"
    elif split is not None:
        raise DataError(f"{knob}: the dataset '{name}' has no splits, so '#{split}' cannot select one.")
    state = _json(folder / below / STATE_FILE, knob)
    if state.get("_indices_data_files"):
        raise DataError(
            f"{knob}: the dataset '{name}' was saved with a selection of rows. Call flatten_indices() and save it "
            "again."
        )
    names = [entry["filename"] for entry in state["_data_files"]]
    for each in names:
        if not is_plain_name(each):
            raise DataError(
                f"{knob}: '{folder / below / STATE_FILE}' names {each!r}, which is not a file of the dataset."
            )
    return tuple(f"{below}{each}" for each in names)


def _json(path: Path, knob: str) -> dict[str, Any]:
    try:
        return json_text.read(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{knob}: '{path}' cannot be read: {error}.") from None
