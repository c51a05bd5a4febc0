"""All kinds of fault: importing a file of them registers its own."""

from __future__ import annotations

import data_faults
import model_faults
import optimizer_faults
from kinds import KINDS, Kind

assert data_faults and model_faults and optimizer_faults

__all__ = ["KINDS", "Kind"]
