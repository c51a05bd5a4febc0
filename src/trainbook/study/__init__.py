"""Short trainings that answer a question: what a configuration takes here, which batches are worth having, which values
are good. Nothing is loaded with it: most workers of a study never need all of it."""
