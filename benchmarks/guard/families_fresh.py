"""The fresh healthy programs: a third set, written by somebody who had read neither the guard's rules nor its results.
Nobody who chooses a rule or a constant of the guard looks at them, or at what it does to them."""

from __future__ import annotations

from guard.family import families_of
from guard.fresh import agents, images, language, schemes, science, tables

FAMILIES = families_of(tables, images, language, science, agents, schemes)
