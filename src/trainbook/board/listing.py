"""The answer of the page of all runs: those that a query asks for."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from trainbook.board.board import Board
from trainbook.runs.query import select, sort_rows
from trainbook.runs.query_hints import why_none

NOT_SHOWN = ("metrics", "path")  # of a row: the query reads them


def list_runs(board: Board, request: Request) -> dict[str, Any]:
    stamp = board.index.look()
    asked = request.query_params
    rows = board.index.summaries()
    total, hint = len(rows), ""
    if asked.get("archived") not in ("1", "true", "yes", "all"):
        rows = [row for row in rows if not row["archived"]]
    if tag := asked.get("tag"):
        rows = [row for row in rows if tag in row["tags"]]
    if query := asked.get("query"):
        listed, rows = rows, select(rows, query)
        hint = why_none(listed, query) if not rows else ""
    if by := asked.get("sort"):
        rows = sort_rows(rows, by)
    return {
        "runs": [shown(row) for row in rows],
        "studies": board.studies(),
        "total": total,
        "stamp": stamp,
        "hint": hint,
    }


def shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in NOT_SHOWN}
