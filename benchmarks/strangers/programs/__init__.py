"""The five programs that a job can be trained with: each takes a job and leaves what it logged in a folder."""

from strangers.programs.names import PROGRAMS

__all__ = ["PROGRAMS"]
