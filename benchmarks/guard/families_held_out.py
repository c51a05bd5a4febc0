"""The healthy programs of the held-out half: other kinds than those of the development half. Nobody who chooses a rule
or a constant of the guard looks at them, or at what it does to them."""

from __future__ import annotations

from guard.family import families_of
from guard.held_out import dynamics, generative, reinforcement, representation, sequences

FAMILIES = families_of(generative, reinforcement, representation, dynamics, sequences)
