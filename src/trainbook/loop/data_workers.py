"""How the ranks of a run prepare its data: ranks that share a cache divide the work."""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainbook.data import DataBundle
from trainbook.data.prepare.cache import cache_root
from trainbook.data.prepare.workers import SINGLE_WORKER, DataWorkers
from trainbook.errors import RunError, UserError
from trainbook.knobs import Config
from trainbook.parallel import Ranks

BETWEEN_BEATS = 1.0  # seconds: to say more often that one is alive helps nobody
LONGEST_PAUSE = 0.5
PIECE_BYTES = 1 << 20  # a store takes no value of more than some megabytes


class StoreWorkers:
    """Ranks that coordinate through a torch.distributed store. The work may take any time; a rank is given up only if
    no rank makes progress for `timeout` seconds."""

    def __init__(self, store: Any, run: str, ranks: list[int], rank: int, timeout: float) -> None:
        self.store, self.ranks, self.timeout = store, ranks, timeout
        self.rank, self.world = ranks.index(rank), len(ranks)
        self._beats, self._name = f"{run}/beats", f"{run}/{ranks}"
        self._round = 0
        self._told_at = 0.0

    def advance(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= BETWEEN_BEATS:
            self._told_at = now
            self.store.add(self._beats, 1)

    def give_up(self) -> None:
        self.store.add(f"{self._name}/given up", 1)

    @property
    def has_given_up(self) -> bool:
        return self.store.check([f"{self._name}/given up"])

    def meet(self, told: Any) -> list[Any]:
        self._round += 1
        keys = [f"{self._name}/{self._round}/{rank}" for rank in self.ranks]
        self._set(keys[self.rank], pickle.dumps(told))
        self._wait_for(keys)
        return [pickle.loads(self._get(key)) for key in keys]

    def _wait_for(self, keys: list[str]) -> None:
        missing, heard, since, pause = set(range(self.world)), None, time.monotonic(), 0.005
        while missing := {number for number in missing if not self.store.check([keys[number]])}:
            state = (self.store.add(self._beats, 0), len(missing))
            if state != heard:
                heard, since = state, time.monotonic()
            elif time.monotonic() - since > self.timeout:
                who = ", ".join(str(self.ranks[number]) for number in sorted(missing))
                raise RunError(
                    f"the data could not be prepared: rank {who} did not respond for {self.timeout:g} seconds "
                    "(distributed.timeout)."
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _set(self, key: str, value: bytes) -> None:
        """The key itself is written last: if it is there, the whole value is."""
        starts = range(0, len(value), PIECE_BYTES)
        for number, start in enumerate(starts):
            self.store.set(f"{key}/{number}", value[start : start + PIECE_BYTES])
        self.store.set(key, str(len(starts)).encode())

    def _get(self, key: str) -> bytes:
        return b"".join(self.store.get(f"{key}/{number}") for number in range(int(self.store.get(key))))


def prepared(ranks: Ranks, config: Config, build: Callable[[DataWorkers], DataBundle]) -> DataBundle:
    """The data, prepared by all ranks together if they share a cache; otherwise by the ranks of each machine for
    themselves."""
    if not ranks.are_several:
        return build(SINGLE_WORKER)
    from torch.distributed.distributed_c10d import _get_default_store

    run = f"trainbook/data/{ranks.broadcast(uuid.uuid4().hex)}"
    store, everybody = _get_default_store(), list(range(ranks.world))
    meeting = StoreWorkers(store, run, everybody, ranks.rank, config.distributed.timeout)
    together = _that_share(meeting, cache_root(config.data.cache_dir) / "hashes")
    workers = (
        meeting if together == everybody else StoreWorkers(store, run, together, ranks.rank, config.distributed.timeout)
    )
    bundle = build(workers)
    found = meeting.meet(bundle.fingerprint)
    for rank, fingerprint in enumerate(found):
        if fingerprint != found[0]:
            raise UserError(
                f"data.source: all ranks must have the same data, but rank {rank} has the fingerprint "
                f"{fingerprint[:12]} and rank 0 has {found[0][:12]}. Are the files the same on every machine?"
            )
    return bundle


def _that_share(meeting: StoreWorkers, folder: Path) -> list[int]:
    """The ranks, including this one, that see the same files in a folder: each writes a marker file there."""
    mark = folder / f"{uuid.uuid4().hex}.mark"
    with suppress(OSError):  # what cannot be written is said when there is something to write
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    marks = meeting.meet(mark.name)
    views = meeting.meet([(folder / name).exists() for name in marks])
    with suppress(OSError):
        mark.unlink()
    mine = views[meeting.rank]
    together = [rank for rank, view in enumerate(views) if view == mine and mine[rank]]
    # Where not all that are seen see the same, each is on its own: that costs work and no more.
    is_agreed = together and [rank for rank, is_seen in enumerate(mine) if is_seen] == together
    return together if is_agreed else [meeting.rank]
