"""One run: its state, its step, its life."""
