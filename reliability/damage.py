"""What disks, copies and careless hands do to files."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path

# float32, little-endian: bits 0 to 22 of a number are its mantissa, 23 to 30 its exponent.
PLACES = {"mantissa": range(23), "exponent": range(23, 31)}


@dataclass(frozen=True)
class Flip:
    """One bit of a file; done twice, it is undone."""

    path: Path
    byte: int
    bit: int

    def do(self) -> None:
        content = bytearray(self.path.read_bytes())
        content[self.byte] ^= 1 << self.bit
        self.path.write_bytes(content)


def any_bit(path: Path, draw: random.Random) -> Flip:
    return Flip(path, draw.randrange(path.stat().st_size), draw.randrange(8))


def bit_of_number(path: Path, place: str, draw: random.Random) -> Flip:
    """A bit in the mantissa or the exponent of one of the numbers in a safetensors file."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    begin, end = draw.choice([t["data_offsets"] for t in header.values() if t.get("dtype") == "F32"])
    number = draw.randrange((end - begin) // 4)
    byte, bit = divmod(draw.choice(PLACES[place]), 8)
    return Flip(path, 8 + length + begin + 4 * number + byte, bit)


def bits_of_every_file(folder: Path, draw: random.Random) -> list[tuple[str, Flip]]:
    """For each file of a checkpoint: a mantissa, an exponent and a header bit of tensors, two bits of anything else."""
    flips = []
    for path in contents(folder):
        if path.name in ("model.safetensors", "optimizer.safetensors"):
            flips += [(place, bit_of_number(path, place, draw)) for place in PLACES]
            flips.append(("header", Flip(path, 8 + draw.randrange(64), draw.randrange(8))))
        else:
            flips += [("any", any_bit(path, draw)) for _ in range(2)]
    return flips


def contents(folder: Path) -> list[Path]:
    """The files that hold something; marks are empty."""
    return [path for path in sorted(folder.iterdir()) if path.stat().st_size]


def truncate(path: Path, draw: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(draw.randrange(path.stat().st_size))


def tear(path: Path) -> None:
    """A line that was begun: what a power cut leaves of a row."""
    with path.open("ab") as file:
        file.write(b'{"step": 7, "segm')
