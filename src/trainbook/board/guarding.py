"""Who may ask: Host, Origin, token and size of each request; and what a browser may do with the answer.

A page of another site can make a browser ask a server on this machine. Its requests carry its own name as Origin, or
the name under which it rebound its address as Host: both are refused. On loopback, reading needs no token, because
whoever can connect can read the files, too; elsewhere, and for every action, it does.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainbook.board.answers import Refused, error_answer

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY_ADDRESS = ("0.0.0.0", "::")
TOKEN_HEADER = "x-trainbook-token"
MOST_BODY = 1 << 16  # bytes of a request other than an upload
METHODS = ("GET", "HEAD", "POST")
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Who may ask what. `token` is None where nothing needs one."""

    host: str = "127.0.0.1"
    port: int = 8700
    token: str | None = None
    reading_needs_token: bool = False
    salt: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def cookie(self) -> str:
        return f"trainbook-{self.port}"

    def is_token(self, given: str | None) -> bool:
        return self.token is not None and given is not None and _same(given, self.token)

    @property
    def session(self) -> str:
        """What the cookie holds: it proves that the token was known, and is not the token."""
        return hashlib.sha256(f"{self.salt} {self.token}".encode()).hexdigest()

    def must_have_right_host(self, headers: Mapping[str, str]) -> None:
        given = headers.get("host", "")
        name, port = split_host(given)
        if port != self.port or not self._is_ours(name):
            raise Refused(
                403,
                f"this board answers to {self._names()} on port {self.port}, but was asked as {given[:100]!r}. "
                "Through a tunnel, use the same port on both sides.",
            )

    def must_be_of_this_site(self, headers: Mapping[str, str], method: str, path: str) -> None:
        site = headers.get("sec-fetch-site", "none")
        is_opened = method == "GET" and headers.get("sec-fetch-mode") == "navigate" and not path.startswith("/api/")
        if site not in ("same-origin", "none") and not is_opened:
            raise Refused(403, "a page of another site asked for this.")
        origin = headers.get("origin")
        if origin is not None and (method == "POST" or path.startswith("/api/")):
            parts = urlsplit(origin)
            if parts.scheme not in ("http", "https") or parts.netloc != headers.get("host"):
                raise Refused(403, f"a page of {origin[:100]!r} asked for this.")

    def must_have_token(self, headers: Mapping[str, str], method: str) -> None:
        """A cookie is enough for reading. Browsers send it unasked, so nothing is changed for its sake."""
        if self.token is None or self.is_token(headers.get(TOKEN_HEADER)):
            return
        if method in ("GET", "HEAD") and _same(self._cookie_in(headers), self.session):
            return
        raise Refused(
            401, "the token of this board is needed. It is in the address that the board printed.", token=True
        )

    def _cookie_in(self, headers: Mapping[str, str]) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value

    def _is_ours(self, name: str) -> bool:
        if name in LOOPBACK or name == self.host.lower():
            return True
        if self.host not in ANY_ADDRESS:
            return False
        return _is_address(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower())

    def _names(self) -> str:
        return "localhost" if self.host in LOOPBACK else f"{self.host} and localhost"


def split_host(given: str) -> tuple[str, int | None]:
    """Name and port of a Host header; port 80 where it has none, None where it is no number."""
    name, colon, port = given.strip().lower().rpartition(":")
    if not colon or name.endswith(":") or (given.startswith("[") and given.endswith("]")):
        name, port = given.strip().lower(), "80"
    return name.strip("[]"), int(port) if port.isdecimal() and len(port) < 6 else None


class Guarding:
    """Refuses before anything is read."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            self._check(scope)
        except Refused as refused:
            answer = error_answer(refused.status, refused.message, **refused.more)
            return await answer(scope, receive, send_guarded)
        await self.app(scope, receive, send_guarded)

    def _check(self, scope: Scope) -> None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        if method not in METHODS:
            raise Refused(405, f"the method must be one of {', '.join(METHODS)}.")
        if len(headers.getlist("host")) != 1:
            raise Refused(400, "a request must have one Host.")
        self.access.must_have_right_host(headers)
        self.access.must_be_of_this_site(headers, method, path)
        is_upload = path == "/api/open"
        if method == "POST" and not is_upload and _length(headers) > MOST_BODY:
            raise Refused(413, f"a request must have at most {MOST_BODY:,} bytes.")
        if path.startswith("/api/") and path != "/api/login" and self.access.reading_needs_token:
            self.access.must_have_token(headers, method)


def _length(headers: Headers) -> int:
    """Of the body; one that does not say its length is too long."""
    given = headers.get("content-length", "0" if "transfer-encoding" not in headers else "")
    return int(given) if given.isdecimal() and len(given) < 16 else MOST_BODY + 1


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
