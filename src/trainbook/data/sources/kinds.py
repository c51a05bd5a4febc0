"""What a file is, by its first bytes: whether it can be text at all, and if not, what it is and what to do with it."""

from __future__ import annotations

import codecs
import unicodedata

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
    stem, dot, ending = name.rpartition(".")
    made = f"{stem}-utf8{dot}{ending}" if stem else f"{name}-utf8"
    return f"is {what}. Convert it first: iconv -f {encoding} -t UTF-8 '{name}' > '{made}'"
