"""The guard: rejects bad updates, and rolls a run back that has diverged."""

from trainbook.guard.decisions import Adopt, Observe, Policy, RollBack, Stop, Suspicion, Trouble
from trainbook.guard.guard import Guard
from trainbook.guard.judge import Judge, JudgeReading, Rejection
from trainbook.guard.ladder import Ladder
from trainbook.guard.snapshots import SnapshotRing, Trainable, copied, size_of

__all__ = [
    "Adopt",
    "Guard",
    "Judge",
    "JudgeReading",
    "Ladder",
    "Observe",
    "Policy",
    "Rejection",
    "RollBack",
    "SnapshotRing",
    "Stop",
    "Suspicion",
    "Trainable",
    "Trouble",
    "copied",
    "size_of",
]
