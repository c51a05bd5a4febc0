"""The names of the programs, and of what the doctor is given of each, in the order of the tables."""

from collections.abc import Mapping

PROGRAMS = ("builtin", "own", "fit", "huggingface", "loop")

# Programs that are not ours leave a log of their own, and with `trainbook.watch` in them a run folder beside it.
WATCHED: Mapping[str, str] = {"huggingface": "huggingface-watched", "loop": "loop-watched"}
WITH_FACTS = tuple(WATCHED.get(program, program) for program in PROGRAMS)
RECORDS = (*WITH_FACTS, *WATCHED)


def program_of(record: str) -> str:
    return record.removesuffix("-watched")
