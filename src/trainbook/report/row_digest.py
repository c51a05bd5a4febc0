"""What the row of a run needs of its metrics file beside the digest: each segment's first row, and damaged lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainbook.runs import jsonl
from trainbook.runs.digest import MetricsDigest, Row
from trainbook.runs.schema import bounded_row

FILLING = b"\0 \t\r"  # zeros, which a power cut can leave, are no damaged line


class RowDigest(MetricsDigest):
    def _begin(self) -> None:
        super()._begin()
        self.exists = False
        self.num_damaged = 0  # lines that do not begin or end as an object does
        self.firsts: dict[int, Row] = {}  # the first training row of each segment
        self._next_segment = 0

    def _read(self, file: Any) -> bool:
        is_changed = super()._read(file)
        self.exists = True
        return is_changed

    def _take(self, content: bytes) -> None:
        super()._take(content)
        self._take_firsts(content)
        self.num_damaged += _num_damaged(content)

    def _take_firsts(self, content: bytes) -> None:
        """Segments are written one after the other: the newest row has the last that is to be looked for."""
        newest = self.newest[-1].get("segment", 0) if self.newest else -1
        for segment in range(self._next_segment, newest + 1):
            found = re.search(rb'"segment": ?%d, ?"split": ?"train"' % segment, content)
            if found is not None:
                start, end = content.rfind(b"\n", 0, found.start()) + 1, content.find(b"\n", found.end())
                row, _ = jsonl.row_of(content[start:end], _broken_law)
                self.firsts |= {} if row is None else {segment: bounded_row(row)}
            self._next_segment = segment + 1


def _broken_law(row: Mapping[str, Any]) -> str:
    return "" if type(row.get("step")) is int else "must have a step"


def _num_damaged(content: bytes) -> int:
    """Those that are broken inside are found by who parses all lines, which takes many times as long."""
    is_whole = content.startswith(b"{") and content.endswith(b"}\n")
    if not content or (is_whole and content.count(b"}\n{") == content.count(b"\n") - 1):
        return 0
    told = (line.strip(FILLING) for line in content.split(b"\n")[:-1])
    return sum(bool(line) and not (line.startswith(b"{") and line.endswith(b"}")) for line in told)
