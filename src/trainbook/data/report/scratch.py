"""Files for what does not fit into memory: without a name, and gone with whoever owns them."""

from __future__ import annotations

import tempfile
import weakref
from typing import IO


def scratch_file(owner: object, memory_bytes: int = 0) -> IO[bytes]:
    """Up to `memory_bytes` stay in memory."""
    file = tempfile.SpooledTemporaryFile(memory_bytes, prefix="trainbook-data-")  # noqa: SIM115
    if memory_bytes == 0:
        file.rollover()
    weakref.finalize(owner, file.close)
    return file
