"""What keeps a bad update out of the model, and brings a run back that went astray."""

from trainbook.guard.guard import Guard
from trainbook.guard.judge import Judge, Reading, Rejection
from trainbook.guard.ladder import Ladder, Policy, RollBack, Stop, Trouble
from trainbook.guard.objects import Trainable
from trainbook.guard.snapshots import SnapshotRing, copied, size_of

__all__ = [
    "Guard",
    "Judge",
    "Ladder",
    "Policy",
    "Reading",
    "Rejection",
    "RollBack",
    "SnapshotRing",
    "Stop",
    "Trainable",
    "Trouble",
    "copied",
    "size_of",
]
