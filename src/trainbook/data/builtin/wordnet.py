"""WordNet: the definition of each meaning, labelled with its lexicographers' file, such as noun.animal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainbook.data.builtin.builtin import Builtin, files_reader
from trainbook.data.records import Complain, DataRecord
from trainbook.data.sources.files import File, decode
from trainbook.data.sources.reader import Reader
from trainbook.errors import DataError

FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
FOLDER = "/usr/share/wordnet"
VARIABLE = "WNSEARCHDIR"  # WordNet's own

# In WordNet's order: the files give numbers.
CLASSES = (
    *("adj.all", "adj.pert", "adv.all", "noun.Tops", "noun.act", "noun.animal", "noun.artifact", "noun.attribute"),
    *("noun.body", "noun.cognition", "noun.communication", "noun.event", "noun.feeling", "noun.food", "noun.group"),
    *("noun.location", "noun.motive", "noun.object", "noun.person", "noun.phenomenon", "noun.plant"),
    *("noun.possession", "noun.process", "noun.quantity", "noun.relation", "noun.shape", "noun.state"),
    *("noun.substance", "noun.time", "verb.body", "verb.change", "verb.cognition", "verb.communication"),
    *("verb.competition", "verb.consumption", "verb.contact", "verb.creation", "verb.emotion", "verb.motion"),
    *("verb.perception", "verb.possession", "verb.social", "verb.stative", "verb.weather", "adj.ppl"),
)


def open_wordnet(options: dict[str, str], knob: str, name: str) -> Reader:
    folder = Path(os.environ.get(VARIABLE) or FOLDER).expanduser()
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"{knob}: {name} needs WordNet's files {', '.join(FILES)}, but '{folder}' has no {missing[0]}. Install "
            f"them with: apt-get install wordnet-base. Or set the environment variable {VARIABLE} to the folder that "
            "has them."
        )
    return files_reader(name, folder, FILES, knob, read_wordnet)


def read_wordnet(file: File, complain: Complain) -> Iterator[DataRecord]:
    """A line is a meaning: its place, the number of its class, its words and relations; behind a bar its definition."""
    with file.open() as stream:
        for number, line in enumerate(stream, start=1):
            if line.startswith(b"  "):  # the licence
                continue
            shown = f"{file.shown}:{number}"
            facts, bar, gloss = decode(line, shown, number).partition(" | ")
            cells = facts.split()
            if not bar or len(cells) < 5 or not cells[1].isdecimal() or int(cells[1]) >= len(CLASSES):
                complain(f"{shown}: is not a line of a WordNet data file.")
                continue
            fields = {"text": gloss.strip(), "label": CLASSES[int(cells[1])], "word": cells[4].replace("_", " ")}
            yield DataRecord(fields, f"{file.name}:{number}")


BUILTIN = Builtin("wordnet", "117,659 definitions in 45 classes", ("text", "labelled"), open_wordnet, labels="class")
