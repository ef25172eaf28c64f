"""`python -m recguide`."""

from recguide.cli import app

app()
