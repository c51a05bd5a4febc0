"""Twenty healthy programs as users write them; see run.py."""
