"""What has changed is told at once, and only that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from sse_starlette import ServerSentEvent
from tests.board.asking import AtOnce, add_rows, make_run, train_row

from trainbook.board.board import Board
from trainbook.board.findings import Worker
from trainbook.board.live import events
from trainbook.runs import RunFolder

SOON = 20.0  # seconds, in which a busy machine has done anything


def board_on(root: Path) -> Board:
    return Board([root], worker=Worker(AtOnce()))


async def next_of(stream: AsyncIterator[ServerSentEvent]) -> tuple[str, Any]:
    found = await asyncio.wait_for(anext(stream), SOON)
    return str(found.event), json.loads(str(found.data))


def test_a_new_line_is_told_to_whoever_looks_at_the_run_and_to_the_list(tmp_path: Path):
    runs = [make_run(tmp_path, f"run-{number}") for number in range(3)]

    async def look() -> None:
        board = board_on(tmp_path)
        stream = events(board, board.index.look(), "0~run-1", every=0.01, rest=0.0)
        assert (await next_of(stream))[0] == "hello"
        add_rows(runs[1], [train_row(4, 0.5)])
        kind, told = await next_of(stream)
        assert kind == "runs" and [row["id"] for row in told["changed"]] == ["0~run-1"]
        assert told["changed"][0]["loss"] == 0.5 and "metrics" not in told["changed"][0]
        kind, told = await next_of(stream)
        assert (kind, told["id"]) == ("run", "0~run-1")
        add_rows(runs[2], [train_row(4, 0.25)])
        kind, told = await next_of(stream)
        assert kind == "runs" and [row["id"] for row in told["changed"]] == ["0~run-2"]

    asyncio.run(look())


def test_what_changed_between_the_page_and_its_first_event_is_not_missed(tmp_path: Path):
    run = make_run(tmp_path)

    async def look() -> None:
        board = board_on(tmp_path)
        stamp = board.index.look()
        add_rows(run, [train_row(4, 0.5)])
        board.index.look_again()
        stream = events(board, stamp, every=0.01, rest=0.0)
        await next_of(stream)
        kind, told = await next_of(stream)
        assert kind == "runs" and told["stamp"] > stamp and len(told["changed"]) == 1

    asyncio.run(look())


def test_a_run_that_goes_is_told_by_its_id(tmp_path: Path):
    run = make_run(tmp_path)

    async def look() -> None:
        board = board_on(tmp_path)
        stream = events(board, board.index.look(), every=0.01, rest=0.0)
        await next_of(stream)
        remove(run)
        kind, told = await next_of(stream)
        assert (kind, told["removed"], told["changed"]) == ("runs", ["0~run"], [])

    asyncio.run(look())


def remove(run: RunFolder) -> None:
    for path in run.path.iterdir():
        path.unlink()
    run.path.rmdir()


def test_a_verdict_that_is_ready_later_is_told(tmp_path: Path):
    make_run(tmp_path, losses=[3.0] * 20 + [float("nan")])

    async def look() -> None:
        board = board_on(tmp_path)
        stream = events(board, board.index.look(), "0~run", every=0.01, rest=0.0)
        await next_of(stream)
        await asyncio.to_thread(lambda: board.verdict(board.run("0~run")))
        kind, told = await next_of(stream)
        assert kind == "runs" and told["changed"][0]["findings"]["error"] >= 1
        assert (await next_of(stream))[0] == "run"

    asyncio.run(look())
