"""The routes: pages from a fixed list of files, answers as JSON."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from trainbook.board import curves, live, run_view, series
from trainbook.board.actions import act
from trainbook.board.answers import Refused, error_answer, json_answer
from trainbook.board.board import Board
from trainbook.board.compare_view import MOST_RUNS, compare_view
from trainbook.board.explain_view import explain_view
from trainbook.board.guarding import Access, Guarding
from trainbook.board.listing import list_runs
from trainbook.board.plan_view import base_of_recipe, base_of_run, plan_choices, plan_view
from trainbook.board.study_view import study_view
from trainbook.board.uploads import receive
from trainbook.bounded import json_text
from trainbook.errors import TrainbookError
from trainbook.runs.manifest import installed_versions

MOST_METRICS = 400  # of one question
PAGES = ("/", "/run/{id:path}", "/compare", "/study/{id:path}", "/plan", "/data", "/open")
KINDS = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".LICENSE": "text/plain",
    ".txt": "text/plain",
}
WAIT_FOR_DOCTOR = 0.5  # seconds since the page was asked for: a run of usual size has its verdict by then

Answer = Callable[[Board, Request], Any]


def make_app(board: Board, access: Access) -> Starlette:
    def answering(answer: Answer) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            found = await run_in_threadpool(answer, board, request)
            return found if isinstance(found, Response) else await run_in_threadpool(json_answer, found)

        return endpoint

    gets = {
        "/api/board": _board,
        "/api/runs": list_runs,
        "/api/runs/{id:path}/curves.csv": _csv,
        "/api/runs/{id:path}/curves": _curves,
        "/api/runs/{id:path}": _run,
        "/api/compare/curves.csv": _compare_csv,
        "/api/compare": _compare,
        "/api/studies/{id:path}": _study,
        "/api/explain/{knob}": lambda board, request: explain_view(request.path_params["knob"]),
        "/api/plan": _plan,
        "/api/plan/choices": lambda board, request: plan_choices(),
        "/api/data": _data,
    }

    async def login(request: Request) -> Response:
        asked = await _body(request)
        if access.token is not None and not access.is_token(asked.get("token")):
            raise Refused(403, "this is not the token of this board.", token=True)
        response = json_answer({"ok": True})
        response.set_cookie(access.cookie, access.session, httponly=True, samesite="strict")
        return response

    async def open_file(request: Request) -> Response:
        file = await receive(request, board.uploads)
        given = request.query_params.get("name", "")
        return json_answer({"id": await run_in_threadpool(board.uploads.id_of, file, given)})

    async def change(request: Request) -> Response:
        if not board.allows_actions:
            raise Refused(403, "this board only shows. To allow actions, start it with --allow-actions.")
        access.must_have_token(request.headers, "POST")
        asked = await _body(request)
        place = board.place(request.path_params["id"], "run")
        return json_answer(await run_in_threadpool(act, board, place, request.path_params["action"], asked))

    async def told(request: Request, error: Exception) -> Response:
        """Who opens an address in a browser gets the page that says that there is none."""
        is_opened = "text/html" in request.headers.get("accept", "")
        is_missing = isinstance(error, HTTPException) and error.status_code == 404
        if is_missing and is_opened and not request.url.path.startswith(("/api/", "/static/")):
            return Response(statics["index.html"], 404, {"Cache-Control": "no-cache"}, media_type="text/html")
        return _told(request, error)

    statics = _static_files()
    pages = [Route(path, _file(statics["index.html"], ".html")) for path in PAGES]
    pages += [Route(f"/static/{name}", _file(content, name)) for name, content in statics.items()]
    app = Starlette(
        routes=[
            *pages,
            Route("/api/live", live.endpoint(board)),
            *(Route(path, answering(answer), methods=["GET"]) for path, answer in gets.items()),
            Route("/api/login", login, methods=["POST"]),
            Route("/api/open", open_file, methods=["POST"]),
            Route("/api/runs/{id:path}/{action}", change, methods=["POST"]),
        ],
        middleware=[
            Middleware(Guarding, access=access),
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=1),
        ],
        exception_handlers={
            Refused: _told,
            TrainbookError: _told,
            HTTPException: told,
            Exception: _told,
        },
    )
    app.state.board = board
    return app


def _told(request: Request, error: Exception) -> Response:
    if isinstance(error, Refused):
        return error_answer(error.status, error.message, **error.more)
    if isinstance(error, TrainbookError):
        return error_answer(400, str(error))
    if isinstance(error, HTTPException):
        missing = f"there is nothing at {request.url.path[:200]}."
        return error_answer(error.status_code, missing if error.status_code == 404 else str(error.detail))
    return error_answer(500, f"the board failed: {type(error).__name__}: {error}")


def _static_files() -> dict[str, bytes]:
    """Read once: nothing that is asked for becomes a path."""
    found: dict[str, bytes] = {
        "index.html": b"<!DOCTYPE html><title>Trainbook</title><p>The pages are not installed.</p>"
    }
    root = files("trainbook.board") / "static"
    waiting = [(root, "")] if root.is_dir() else []
    while waiting:
        folder, name = waiting.pop()
        for item in folder.iterdir():
            if item.is_dir():
                waiting.append((item, f"{name}{item.name}/"))
            elif _kind(item.name):
                found[f"{name}{item.name}"] = item.read_bytes()
    return found


def _kind(name: str) -> str | None:
    return next((kind for suffix, kind in KINDS.items() if name.endswith(suffix)), None)


def _file(content: bytes, name: str) -> Callable[[Request], Any]:
    headers = {"Cache-Control": "no-cache"}

    async def endpoint(request: Request) -> Response:
        return Response(content, headers=headers, media_type=_kind(name))

    return endpoint


def _board(board: Board, request: Request) -> Any:
    board.index.look()
    return {
        "sources": [{"name": source.name, "path": str(source.path)} for source in board.index.sources],
        "actions": board.allows_actions,
        "demo": board.is_demo,
        "version": installed_versions().get("trainbook", ""),
    }


def _run(board: Board, request: Request) -> Any:
    board.index.look()
    began, version = time.monotonic(), board.index.version(_id(request))  # before what is told, so nothing is missed
    board.ask_doctor(_id(request))  # who works while the run is read here
    run = board.run(_id(request))
    verdict, is_current = board.verdict(run, max(0.0, began + WAIT_FOR_DOCTOR - time.monotonic()))
    view = run_view.run_view(run, board.summary(run.place.id), verdict, is_current)
    return {**view, "version": version}  # from which the page's live events go on


def _curves(board: Board, request: Request) -> Any:
    run, metrics = board.run(_id(request)), _metrics(request)
    by, view = series.by_of(request.query_params.get("by", "step")), view_of(request)
    return curves.answer(run, metrics, by, view)


def _csv(board: Board, request: Request) -> Response:
    run, metrics = board.run(_id(request)), _metrics(request)
    return _as_csv(curves.csv_lines(run, metrics, *_seen(request)))


def _compare_csv(board: Board, request: Request) -> Response:
    ids, metric = _compared(request), series.MetricName.of(request.query_params.get("metric", "loss"))
    by, view = _seen(request)
    names = [board.summary(id)["name"] for id in ids]
    runs = board.lights.open([board.place(id, "run") for id in ids], metric, by)
    return _as_csv(curves.csv_lines_of_runs(list(zip(names, runs, strict=True)), metric, by, view))


def _as_csv(lines: Iterator[str]) -> Response:
    headers = {"Content-Disposition": "attachment", "Cache-Control": "no-store"}
    return StreamingResponse(lines, headers=headers, media_type="text/csv")


def _seen(request: Request) -> tuple[series.By, curves.View]:
    return series.by_of(request.query_params.get("by", "step")), view_of(request)


def _compared(request: Request) -> list[str]:
    ids = list(dict.fromkeys(request.query_params.getlist("run")))
    if not 1 <= len(ids) <= MOST_RUNS:
        raise Refused(400, f"run: must be given 1 to {MOST_RUNS} times, but got {len(ids)}.")
    return ids


def _compare(board: Board, request: Request) -> Any:
    asked, ids = request.query_params, _compared(request)
    board.index.look()
    by, wanted = series.by_of(asked.get("by", "step")), asked.get("statistics", "1")
    told: dict[str, Any] = {}
    if wanted != "only":
        told = compare_view(
            board, ids, asked.get("metric"), by, view_of(request), with_groups=asked.get("group", "1") != "0"
        )
    if wanted != "0":
        metric = series.MetricName.of(asked.get("metric") or told.get("metric", "eval:loss"))
        told["statistics"] = board.lights.statistics([board.place(id, "run") for id in ids], metric, by)
    return told


def _study(board: Board, request: Request) -> Any:
    board.index.look()
    place = board.place(_id(request), "study")
    runs = board.index.of_study(place.id)
    return study_view(place, board.study(place, place.stamp(), runs), runs)


def _plan(board: Board, request: Request) -> Any:
    asked = request.query_params
    run = asked.get("run")
    return plan_view(
        base_of_run(board.run(run)) if run else base_of_recipe(asked.get("recipe", "gpt-tiny")),
        asked.getlist("set"),
        asked.get("gpu"),
        asked.get("gpus"),
        asked.get("price"),
        asked.get("vocab"),
    )


def _data(board: Board, request: Request) -> Any:
    return {"reports": board.data.all([(source.name, source.path) for source in board.index.sources])}


async def _body(request: Request) -> dict[str, Any]:
    """A JSON object. Another kind of content could come from a form of another site."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused(415, "the body must be JSON, with Content-Type: application/json.")
    try:
        found = json_text.loads(await request.body() or b"{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Refused(400, "the body must be a JSON object.")
    return found


def _id(request: Request) -> str:
    return request.path_params["id"]


def _metrics(request: Request) -> list[series.MetricName]:
    asked = request.query_params.getlist("metric") or ["loss"]
    if len(asked) > MOST_METRICS:
        raise Refused(400, f"at most {MOST_METRICS} metrics can be asked for at once, but got {len(asked)}.")
    return [series.MetricName.of(text) for text in asked]


def view_of(request: Request) -> curves.View:
    low, high = _ends(request, "from", "to")
    first, last = _ends(request, "from_step", "to_step")
    steps = None if first is None or last is None else (first, last)
    width = _number(request, "width")
    least, most = curves.WIDTHS
    return curves.View(int(min(max(width or curves.View.width, least), most)), low, high, steps)


def _ends(request: Request, *names: str) -> tuple[float | None, float | None]:
    low, high = (_number(request, name) for name in names)
    if low is not None and high is not None and not low < high:
        raise Refused(400, f"{names[0]} must be below {names[1]}, but got {low:g} and {high:g}.")
    return low, high


def _number(request: Request, name: str) -> float | None:
    given = request.query_params.get(name)
    if given in (None, ""):
        return None
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Refused(400, f"{name}: must be a number, but got {given[:40]!r}.")
    return value
