"""Fault injection: faults put into a run on purpose, to see that it survives them."""
