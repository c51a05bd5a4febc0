"""A PostgreSQL server of Debian's package, on loopback, by a user without rights, for as long as a test needs it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CannotStart(Exception):
    pass


class Server:
    def __init__(self, binaries: Path, folder: Path, user: str | None) -> None:
        self.binaries, self.folder, self.user = binaries, folder, user
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://owner:secret@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        (self.folder / "password").write_text("secret")
        options = ["-D", str(self.folder / "data"), "-U", "owner", "-A", "scram-sha-256", "--no-sync"]
        options += ["--pwfile", str(self.folder / "password"), "--encoding", "UTF8", "--locale", "C"]
        done = subprocess.run(
            [self.binaries / "initdb", *options], user=self.user, cwd=self.folder, capture_output=True, env={}
        )
        if done.returncode:
            raise CannotStart(done.stderr.decode(errors="replace").strip().splitlines()[-1])

    def start(self) -> None:
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
        log = open(self.folder / "log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(
            [self.binaries / "postgres", "-D", str(self.folder / "data"), "-p", str(self.port), *settings],
            user=self.user,
            cwd=self.folder,
            env={},
            stdout=log,
            stderr=log,
        )
        log.close()
        while True:
            if self.process.poll() is not None:
                raise CannotStart((self.folder / "log").read_text(errors="replace").strip().splitlines()[-1])
            asked = [self.binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
            if subprocess.run(asked, env={}).returncode == 0:
                return
            time.sleep(0.05)

    def kill(self) -> None:
        """As by `kill -9`."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @contextmanager
    def killed_after(self, notes: Path, ended: int) -> Iterator[None]:
        """And started again, when so many trials have ended in what is done meanwhile."""

        def kill_and_restart() -> None:
            while not notes.is_file() or notes.read_text().count("ended") < ended:
                time.sleep(0.02)
            self.kill()
            time.sleep(0.5)
            self.start()

        thread = threading.Thread(target=kill_and_restart)
        thread.start()
        yield
        thread.join()


@contextmanager
def running() -> Iterator[Server]:
    """CannotStart says why there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise CannotStart("PostgreSQL is not installed")
    user = None
    if os.getuid() == 0:  # the server refuses to be started by root
        known = [each.pw_name for each in pwd.getpwall()]
        user = "postgres" if "postgres" in known else "nobody"
    folder = Path(tempfile.mkdtemp(prefix="trainbook-postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    server = Server(found[-1].parent, folder, user)
    try:
        server.create()
        server.start()
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)
