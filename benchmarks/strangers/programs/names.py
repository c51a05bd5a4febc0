"""The names of the programs, in the order of the tables."""

PROGRAMS = ("builtin", "own", "fit", "huggingface", "loop")
