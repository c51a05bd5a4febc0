"""Where text comes from: built-in sets, files of many kinds, a user's function; as records first, then as documents."""

from __future__ import annotations

from trainbook.data.sources.opening import open_source
from trainbook.data.sources.source import Source

__all__ = ["Source", "open_source"]
