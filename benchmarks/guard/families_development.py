"""The healthy programs of the development half. Rules and constants of the guard may be chosen on these, and on no
others: the held-out half has other kinds of programs, which only the final figures come from."""

from __future__ import annotations

from guard.development import classification, moving, regression, schedules, text
from guard.family import families_of

FAMILIES = families_of(regression, classification, schedules, moving, text)
