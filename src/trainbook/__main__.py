"""`python -m trainbook` is `trainbook`."""

from trainbook.cli.main import run

run()
