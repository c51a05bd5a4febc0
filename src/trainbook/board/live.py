"""Server-sent events: what has changed since the page was loaded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from trainbook.board.answers import json_text
from trainbook.board.board import Board
from trainbook.board.listing import shown

EVERY = 0.4  # seconds between two looks at the files
REST = 1.0  # seconds between two events of a run, which makes the page ask for its curves
HEARTBEAT = 15  # seconds
MOST_AT_ONCE = 500  # runs in an event: of more, the page asks for the whole list


def endpoint(board: Board) -> Callable[[Request], Any]:
    async def live(request: Request) -> EventSourceResponse:
        run, since = request.query_params.get("run"), request.query_params.get("since", "")
        newest = board.index.look()
        known = int(since) if since.isdecimal() and len(since) < 16 else None
        if known is not None and known > newest:  # of a server before this one
            known = 0
        told = events(board, newest if known is None else known, run, seen=known or 0)
        return EventSourceResponse(told, ping=HEARTBEAT, headers={"Cache-Control": "no-store"})

    return live


async def events(
    board: Board, stamp: int, run: str | None = None, every: float = EVERY, rest: float = REST, seen: int | None = None
) -> AsyncIterator[ServerSentEvent]:
    """`runs` with the summaries that changed since the stamp, and `run` when the files of the one that is looked at
    did, or the doctor has judged it. `seen`: the version of that run which the page shows; by default the stamp."""
    seen, told_at = stamp if seen is None else seen, 0.0
    yield ServerSentEvent(event="hello", data=json_text({"stamp": stamp}))
    while True:
        is_fresh = board.index.is_fresh(0.8 * every)  # with many pages, one of them looks
        now = board.index.newest if is_fresh else await run_in_threadpool(board.index.look)
        if now > stamp:
            found = board.index.since(stamp)
            stamp = found.stamp
            if found.changed or found.removed:
                changed = [shown(row) for id in found.changed[:MOST_AT_ONCE] if (row := board.index.summary(id))]
                told = {"changed": changed, "removed": found.removed, "stamp": stamp}
                if len(found.changed) > MOST_AT_ONCE:
                    told["reload"] = True
                yield ServerSentEvent(event="runs", data=await run_in_threadpool(json_text, told))
        if run and (version := board.index.version(run)) > seen and time.monotonic() - told_at >= rest:
            seen, told_at = version, time.monotonic()
            yield ServerSentEvent(event="run", data=json_text({"id": run, "stamp": version}))
        await asyncio.sleep(every)
