"""Good values, found cheaply: which knobs to search for a budget, how, on how many workers, and what it tells."""
