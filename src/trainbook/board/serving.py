"""Starts and ends the server: a free port, the browser, Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainbook.board.app import make_app
from trainbook.board.board import Board
from trainbook.board.guarding import ANY_ADDRESS, LOOPBACK, Access
from trainbook.errors import UserError

PORTS_TRIED = 20
BACKLOG = 128
LOWER_PRIORITY = 5  # of the server, so that training goes first


@dataclass(frozen=True)
class Serving:
    """What `trainbook board` was asked for."""

    sources: Sequence[Path]
    host: str = "127.0.0.1"
    port: int = 8700
    token: str | None = None
    allows_actions: bool = False
    is_demo: bool = False
    opens_browser: bool = True


def serve(asked: Serving, say: Callable[[str], None]) -> None:
    """Until Ctrl-C or SIGTERM."""
    listening = listen(asked.host, asked.port)
    port = listening.getsockname()[1]
    access = access_for(asked, port)
    remembers = not asked.is_demo
    board = Board(asked.sources, allows_actions=asked.allows_actions, is_demo=asked.is_demo, remembers=remembers)
    with suppress(OSError):
        os.nice(LOWER_PRIORITY)
    threading.Thread(target=board.index.look, daemon=True).start()  # while the browser opens
    board.judging.begin()
    try:
        address = address_of(asked.host, port, access.token)
        if asked.port not in (0, port):
            say(f"Port {asked.port} is in use: this board is on port {port}.")
        say(f"board: {address}   (Ctrl-C ends it)")
        if asked.opens_browser:
            threading.Thread(target=_open, args=(address,), daemon=True).start()
        run_until_stopped(board, access, listening)
    finally:
        board.close()
        listening.close()


def access_for(asked: Serving, port: int) -> Access:
    is_near = asked.host in LOOPBACK
    needs_one = asked.allows_actions or not is_near
    token = asked.token or (secrets.token_urlsafe(24) if needs_one else None)
    return Access(
        asked.host, port, token, reading_needs_token=token is not None and (not is_near or asked.token is not None)
    )


def address_of(host: str, port: int, token: str | None) -> str:
    name = "localhost" if host in (*LOOPBACK, *ANY_ADDRESS) else f"[{host}]" if ":" in host else host
    name = "127.0.0.1" if host == "127.0.0.1" else name
    return f"http://{name}:{port}/{f'#token={token}' if token else ''}"


def listen(host: str, port: int) -> socket.socket:
    """On this port, or the next that is free. Port 0: any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for tried in range(port, port + PORTS_TRIED if port else 1):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, tried))
            listening.listen(BACKLOG)
            return listening
        except (OSError, OverflowError) as error:
            listening.close()
            if not isinstance(error, OSError) or error.errno != 98:  # in use
                raise UserError(f"--host {host} --port {tried}: {getattr(error, 'strerror', None) or error}.") from None
    raise UserError(f"--port {port}: this port and the next {PORTS_TRIED - 1} are in use. Name another one.")


def run_until_stopped(board: Board, access: Access, listening: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        make_app(board, access),
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=0,
        limit_concurrency=400,
    )
    server = uvicorn.Server(config)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, _stop, server)
        await server._serve([listening])

    asyncio.run(main())


def _stop(server: object) -> None:
    """Open pages keep their connections for live events: they are not waited for."""
    server.should_exit = server.force_exit = True  # type: ignore[attr-defined]


def _open(address: str) -> None:
    with suppress(Exception):  # a machine without a browser
        webbrowser.open(address)
