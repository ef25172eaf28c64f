"""The command line: one verb a file, imported only when it is asked for."""

from recguide.cli.verbs import app

__all__ = ["app"]
