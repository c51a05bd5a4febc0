"""The board: a local server that shows runs and studies, live, from their files alone. Imports no torch."""
