"""Reading files: what they contain as bytes, lines and text, and how to say what is wrong with one."""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from trainbook.bounded.files import BROKEN, SUFFIXES, open_bytes, open_inner
from trainbook.errors import DataError
from trainbook.runs.folder import is_study

# What a file is, by its first bytes: whether it can be text at all, and if not, what it is and what to do with it.


HEAD_BYTES = 4096  # that are looked at

_AS_JSONL = "Write the texts as JSONL, or read them with your own Python function."

# First bytes, what such a file is, and what to do. The first that fits counts.
_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image", ""),
    (b"\xff\xd8\xff", "a JPEG image", ""),
    (b"GIF87a", "a GIF image", ""),
    (b"GIF89a", "a GIF image", ""),
    (b"II*\x00", "a TIFF image", ""),
    (b"MM\x00*", "a TIFF image", ""),
    (b"%PDF-", "a PDF document", "Extract its text first, for example with pdftotext."),
    (b"{\\rtf", "an RTF document", "Save it as plain text first."),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Microsoft Office document", "Save it as plain text or CSV first."),
    (b"\x1f\x8b", "compressed with gzip", "Rename it to end in .gz, such as {name}.gz."),
    (b"BZh", "compressed with bzip2", "Rename it to end in .bz2, such as {name}.bz2."),
    (b"\xfd7zXZ\x00", "compressed with xz", "Rename it to end in .xz, such as {name}.xz."),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "Rename it to end in .zst, such as {name}.zst."),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "Unpack it first and pass the files in it."),
    (b"Rar!\x1a\x07", "a RAR archive", "Unpack it first and pass the files in it."),
    (b"PAR1", "a Parquet file", "Rename it to end in .parquet."),
    (b"ARROW1\x00\x00", "an Arrow file", "Save it as Parquet, or as a Hugging Face dataset with save_to_disk."),
    (b"SQLite format 3\x00", "an SQLite database", "Export the table as CSV or JSONL first."),
    (b"\x93NUMPY", "a NumPy array", _AS_JSONL),
    (
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file",
        _AS_JSONL,
    ),
    (b"GGUF", "the weights of a model (GGUF)", ""),
    (b"\x7fELF", "a program (ELF)", ""),
    (b"\xcf\xfa\xed\xfe", "a program (Mach-O)", ""),
    (b"\xca\xfe\xba\xbe", "a program (Java class or Mach-O)", ""),
    (b"\x00asm", "a program (WebAssembly)", ""),
    (b"OggS", "an Ogg audio file", ""),
    (b"fLaC", "a FLAC audio file", ""),
    (b"ID3", "an MP3 audio file", ""),
)
# Inside of a zip archive, the name of its first entries says what it really is.
_ZIPS: tuple[tuple[bytes, str, str], ...] = (
    (b"word/", "a Word document", "Save it as plain text first."),
    (b"xl/", "an Excel workbook", "Save the sheet as CSV first."),
    (b"ppt/", "a PowerPoint presentation", "Save its text as plain text first."),
    (b"mimetypeapplication/epub+zip", "an EPUB book", "Extract its text first, for example with pandoc."),
    (b"mimetypeapplication/vnd.oasis", "an OpenDocument file", "Save it as plain text or CSV first."),
    (b"/data.pkl", "a PyTorch checkpoint", "To start from a model, set model.pretrained."),
    (b".npy", "a NumPy archive", _AS_JSONL),
)
_BOMS: tuple[tuple[bytes, str], ...] = (  # the longer ones first: UTF-32's begins as UTF-16's does
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_TEXT_CONTROL = frozenset(b"\t\n\v\f\r\x1b")


def why_not_text(head: bytes, name: str) -> str | None:
    """What is wrong with a file that begins with these bytes, as the end of a sentence about it; None: it may be UTF-8
    text, or at least text of an 8-bit encoding."""
    head = head[:HEAD_BYTES]
    if found := _binary_kind(head):
        what, remedy = found
        return f"is {what}, not text.{' ' + remedy.format(name=name) if remedy else ''}"
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return _other_unicode(encoding, f"{encoding} text, not UTF-8", name)
    if _is_plausible_utf8(head):
        return None
    if not looks_binary(head):
        return None  # text of an 8-bit encoding: which byte is not UTF-8 is told when it is read
    if encoding := _unmarked_unicode(head):  # its blanks and ends of lines have zero bytes
        return _other_unicode(encoding, f"{encoding} text without a byte order mark, not UTF-8", name)
    return "is a binary file of an unknown kind, not text."


def looks_binary(content: bytes) -> bool:
    """Bytes that stand in no text: zeros, or many control characters."""
    return b"\0" in content or _num_control(content) > len(content) / 50


def _binary_kind(head: bytes) -> tuple[str, str] | None:
    for magic, what, remedy in _MAGIC:
        # A few letters may also be how a text begins.
        if head.startswith(magic) and not (len(magic) <= 4 and magic.isalnum() and _is_plausible_utf8(head)):
            return what, remedy
    if head.startswith(b"PK\x03\x04"):
        entries = (found[1:] for found in _ZIPS if found[0] in head)
        return next(entries, ("a zip archive", "Unpack it first and pass the files in it."))
    if head[:4] == b"RIFF" and head[8:12] in (b"WAVE", b"WEBP", b"AVI "):
        return {b"WAVE": "a WAV audio file", b"WEBP": "a WebP image"}.get(head[8:12], "an AVI video"), ""
    if head[4:8] == b"ftyp" and looks_binary(head):
        return "an MP4 video or audio file", ""
    if head[257:262] == b"ustar":
        return "a tar archive", "Unpack it first and pass the files in it."
    if head[:2] == b"MZ" and looks_binary(head):
        return "a Windows program", ""
    if head[4:10] == b'\0\0\0\0{"':  # the length of the header, in 8 bytes, and the header, in JSON
        return "the weights of a model (safetensors)", "To start from a model, set model.pretrained."
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        remedy = "Trainbook does not unpickle files, because that runs code. Write the records as JSONL or Parquet."
        return "a Python pickle", remedy
    return None


def _is_plausible_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return _num_control(head) <= len(head) / 50  # such as form feeds in a listing, or the codes of a terminal


def _unmarked_unicode(head: bytes) -> str | None:
    """The encoding whose characters are all known ones; of two byte orders, the one with fewer different high bytes."""
    found = []
    for name, codec, width, high in (
        ("UTF-32LE", "utf-32-le", 4, 1),
        ("UTF-32BE", "utf-32-be", 4, 2),
        ("UTF-16LE", "utf-16-le", 2, 1),
        ("UTF-16BE", "utf-16-be", 2, 0),
    ):
        whole = head[: len(head) // width * width]
        try:
            text = codecs.getincrementaldecoder(codec)().decode(whole)  # half of a surrogate pair may be cut off
        except UnicodeDecodeError:
            continue
        if len(text) > 1 and _is_readable(text):
            found.append((-width, len(set(whole[high::width])), name))
    return min(found)[2] if found else None


def _is_readable(text: str) -> bool:
    known = sum(character.isspace() or unicodedata.category(character)[0] != "C" for character in text)
    if known < len(text):
        return False
    return len(text) >= 64 or 2 * sum(character.isascii() for character in text) >= len(text)


def _num_control(content: bytes) -> int:
    return sum(content.count(byte) for byte in range(32) if byte not in _TEXT_CONTROL)


def _other_unicode(encoding: str, what: str, name: str) -> str:
    return f"is {what}. Convert it first: {conversion(encoding, name)}"


def conversion(encoding: str, name: str) -> str:
    """The command that makes a UTF-8 copy of a file, beside it; of a compressed one, a copy that is not."""
    inner = inner_name(name)
    stem, dot, ending = inner.rpartition(".")
    made = f"{stem}-utf8{dot}{ending}" if stem else f"{inner}-utf8"
    given = [name, made] if "'" not in name else []
    one, other = (f"'{each}'" for each in given) if given else map(shlex.quote, (name, made))
    command = f"iconv -f {encoding} -t UTF-8"
    if inner == name:
        return f"{command} {one} > {other}"
    return f"{UNPACKED_BY.get(Path(name).suffix.lower(), 'gzip')} -dc {one} | {command} > {other}"


UNPACKED_BY = {".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}


# Names of files that are compressed as a whole.


def inner_name(name: str) -> str:
    """The name without what says how it is compressed: of a.jsonl.gz, a.jsonl."""
    return name[: -len(suffix)] if (suffix := Path(name).suffix).lower() in SUFFIXES else name


def is_compressed(name: str) -> bool:
    return inner_name(name) != name


LONGEST_LINE_BYTES = 64 << 20
HashOf = Callable[[Path], tuple[int, str]]  # the size of a file and a hash of its contents


def hashed(path: Path) -> tuple[int, str]:
    with open_bytes(path) as stream:
        return os.fstat(stream.fileno()).st_size, hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class File:
    """One file of a source."""

    path: Path
    name: str  # relative to the root of its source, with "/"
    shown: str  # as messages name it
    knob: str  # "data.source" or "data.validation", for messages

    @contextmanager
    def open(self) -> Iterator[BufferedReader]:
        """The text that the file contains, as bytes; of a compressed file, the text inside. A file that cannot be text
        is refused and named for what it is."""
        with self.open_bytes() as stream:
            if problem := why_not_text(stream.peek(HEAD_BYTES), inner_name(self.shown)):
                inside = "its compressed content " if is_compressed(self.name) else ""
                raise DataError(f"{self.knob}: '{self.shown}' cannot be read: {inside or 'it '}{problem}")
            yield stream

    @contextmanager
    def open_bytes(self) -> Iterator[BufferedReader]:
        """The same of any content."""
        try:
            stream = open_bytes(self.path)
        except OSError as error:
            raise self.unreadable(error) from None
        with stream:
            try:
                # An empty file is not even a compressed nothing.
                is_packed = is_compressed(self.name) and os.fstat(stream.fileno()).st_size > 0
                yield open_inner(stream, self.name, self.shown) if is_packed else stream
            except (OSError, *BROKEN) as error:
                raise self.unreadable(error) from None

    def facts(self, hash_of: HashOf = hashed) -> list[Any]:
        """What the file contains, and neither when it was written nor where it lies."""
        try:
            return [self.name, *hash_of(self.path)]
        except OSError as error:
            raise self.unreadable(error) from None

    def unreadable(self, error: Exception) -> DataError:
        reason = getattr(error, "strerror", None) or str(error).rstrip(".") or type(error).__name__
        return DataError(f"{self.knob}: '{self.shown}' cannot be read: {reason}.")


def bounded_lines(stream: BufferedReader, file: File, complain: Callable[[str], None]) -> Iterator[bytes]:
    """Each line. One that is longer than a line may be is complained about, and takes no more memory than others."""
    number = 0
    while line := stream.readline(LONGEST_LINE_BYTES):
        number += 1
        if len(line) < LONGEST_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while (more := stream.readline(LONGEST_LINE_BYTES)) and not more.endswith(b"\n"):
            pass
        complain(
            f"{file.shown}:{number}: a line must be at most {LONGEST_LINE_BYTES >> 20} MB long, because it is held in "
            "memory as a whole. Split the text into several records, or write it to a text file of its own (.txt), "
            "which is read piece by piece."
        )
        yield b"\n"


def decode(content: bytes, shown: str, line: int = 1) -> str:
    """Text from UTF-8. A byte order mark belongs to the file, not to the text; it can only stand at its beginning."""
    try:
        return content.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(content, error.start, shown) from None


def not_utf8(content: bytes, position: int, shown: str, before: int = 0) -> DataError:
    """`content` is what stands around the byte, or more; `before` bytes of the file lie before it."""
    near = content[max(0, position - 256) : position + 256]
    hint = "The bytes around it are not text either: this may be a binary file."
    if not looks_binary(near):
        name = re.sub(r":\d+$", "", shown)  # without the line
        hint = f"Convert the file first, for example from Windows-1252: {conversion('WINDOWS-1252', name)}"
    byte = f"the byte 0x{content[position]:02x} at position {before + position}"
    return DataError(f"{shown}: {NOT_UTF8}, but has {byte}. {hint}")


NOT_UTF8 = "must be UTF-8 text"


def is_not_utf8(message: str) -> bool:
    """Whether this is what `not_utf8` says of a file or a line. To skip such records would leave out those texts of a
    language that have its accents."""
    return NOT_UTF8 in message


def without_byte(reason: str) -> str:
    """The same for all records of a file that cannot be decoded."""
    return re.sub(rf"({NOT_UTF8}), but has the byte 0x\w\w at position \d+", r"\1", reason)


# The files below a folder.


def is_a_record(folder: Path) -> bool:
    """Whether it is the folder of a run or of a study."""
    return ((folder / "manifest.json").is_file() and (folder / "events.jsonl").is_file()) or is_study(folder)


def records_below(folder: Path) -> list[str]:
    """The folders of runs and studies below a folder, relative to it."""
    found: list[str] = []
    for parent, folders, _ in os.walk(folder):
        shown = [name for name in folders if not name.startswith(".")]
        records = {name for name in shown if is_a_record(Path(parent) / name)}
        found += [(Path(parent) / name).relative_to(folder).as_posix() for name in records]
        folders[:] = [name for name in shown if name not in records]
    return sorted(found)


def files_below(folder: Path, suffixes: tuple[str, ...], excluded: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Relative to the folder, with "/", sorted; those with one of the suffixes, and not in an excluded folder. What is
    hidden is left alone, as a glob does, and so are the folders of runs and studies: what they record is no data."""
    found: list[str] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name not in excluded and not name.startswith(".") and not is_a_record(Path(parent) / name)
        ]
        found += [
            (Path(parent) / name).relative_to(folder).as_posix()
            for name in files
            if name.lower().endswith(suffixes) and not name.startswith(".")
        ]
    return tuple(sorted(found))
