"""A call to the system that fails, whichever it is, costs at most the checkpoint being written, and is explained."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import errno
import os

import pytest

from trainbook.checkpoints import CheckpointStore
from trainbook.errors import CheckpointError

CALLS = ("open", "write", "fsync", "mkdir", "rename", "replace")


class FailingCalls:
    """Lets `point - 1` calls pass; from then on all fail, as on a full disk, or only one does."""

    def __init__(self, monkeypatch, point, code, lasting):
        self.point, self.code, self.lasting, self.count = point, code, lasting, 0
        for name in CALLS:
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))

    def _failing(self, name, real):
        def call(*arguments, **named):
            if name == "open" and not arguments[1] & os.O_CREAT:
                return real(*arguments, **named)  # a full disk can be read
            self.count += 1
            if self.count == self.point or (self.lasting and self.count > self.point and name in ("open", "write")):
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                raise OSError(self.code, os.strerror(self.code))
            return real(*arguments, **named)

        return call


@pytest.mark.parametrize(
    ("code", "words", "lasting", "step"),
    [
        (errno.ENOSPC, "the disk is full", True, 2),
        (errno.ENOSPC, "the disk is full", True, 1),
        (errno.ENOSPC, "the disk is full", False, 2),
        (errno.ENOSPC, "the disk is full", False, 1),
        (errno.EDQUOT, "the disk quota is exceeded", True, 2),
        (errno.EROFS, "the file system is mounted read-only", True, 2),
        (errno.EACCES, "permission denied", True, 2),
        (errno.EIO, "input/output error", False, 1),
    ],
)
def test_an_error_at_any_call_leaves_the_others_whole(
    tmp_path, monkeypatch, state_of, assert_same, events, on_event, code, words, lasting, step
):
    outcomes = set()
    for point in range(1, 200):
        folder = tmp_path / str(point)
        store = CheckpointStore(folder, on_event=on_event)
        store.save(1, state_of(1), is_best=True)
        events.clear()
        error = None
        with monkeypatch.context() as patched:
            calls = FailingCalls(patched, point, code, lasting)
            try:
                store.save(step, state_of(step, 0.5))
            except CheckpointError as raised:
                error = str(raised)
        if calls.count < point:
            break
        hidden = [name for name in os.listdir(folder) if name.startswith(".writing")]
        assert not hidden, f"{hidden} left after call {point}"
        reader = CheckpointStore(folder, read_only=True)
        latest = reader.load()
        assert latest is not None and reader.load("best").step == 1
        if error is None:
            assert_same(latest.state, state_of(step, 0.5))
            assert [kind for kind, _ in events] == ["checkpoint_upkeep_failed", "checkpoint"]
            assert words in events[0][1]["reason"]
            outcomes.add("upkeep failed")
        else:
            assert words in error and f"{folder}/step-0000000{step}" in error
            assert f"The last complete checkpoint is that of step {latest.step}, {latest.path}" in error
            assert ("it needs " in error and " free." in error) == (code in (errno.ENOSPC, errno.EDQUOT))
            assert not events
            assert latest.path.name.startswith("step-"), "what had stepped aside has its name again"
            if latest.state["loop"]["variant"] == 0.0:
                assert_same(latest.state, state_of(1))
                outcomes.add("refused")
        store.save(5, state_of(5))
        assert store.load().step == 5
        assert not [name for name in os.listdir(folder) if name.startswith(".")]
    else:
        pytest.fail("the save never came through")
    assert outcomes == ({"refused", "upkeep failed"} if step == 2 else {"refused"})  # step 1 again: the same index
    assert point > 20
