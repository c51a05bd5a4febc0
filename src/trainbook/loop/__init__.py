"""One run: its state, its step, and everything from its start to its end."""
