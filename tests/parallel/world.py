"""Worlds of several processes on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parent / "worker.py"
ROOT = WORKER.parents[2]
SECONDS = 900  # a world that does not end is a failure, not a wait


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    found = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # the tests are its modules too
    given = {**place, **meeting, "PYTHONPATH": found}
    return {**os.environ, **{name: str(value) for name, value in given.items()}}


def run_world(world: int, cases: list[dict[str, Any]], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Every case in one world; what each rank saw, by the case's name."""
    folder.mkdir(parents=True, exist_ok=True)
    given = folder / "cases.json"
    given.write_text(json.dumps(cases), encoding="utf-8")
    port = free_port()
    ranks: list[subprocess.Popen[str]] = []
    logs = [folder / f"rank-{rank}.log" for rank in range(world)]
    try:
        for rank, log in enumerate(logs):
            with log.open("w", encoding="utf-8") as out:
                command = [sys.executable, str(WORKER), str(given), str(folder)]
                ranks.append(
                    subprocess.Popen(
                        command, env=environment(rank, world, port), stdout=out, stderr=subprocess.STDOUT, text=True
                    )
                )
        codes = [process.wait(SECONDS) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    said = "\n".join(f"rank {rank}:\n{log.read_text(encoding='utf-8')[-3000:]}" for rank, log in enumerate(logs))
    assert codes == [0] * world, said
    return {
        case["name"]: [json.loads((folder / f"{case['name']}-{rank}.json").read_text()) for rank in range(world)]
        for case in cases
    }
