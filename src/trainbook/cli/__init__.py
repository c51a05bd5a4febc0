"""One file a verb. Imports inside functions: a verb loads only what it needs."""
