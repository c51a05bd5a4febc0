"""From samples to batches: which samples make which batch, how it is filled, and how it is made ahead of time."""
