"""The guard's bench: healthy runs that it must leave alone, bad data that it must keep out, and its rivals."""
