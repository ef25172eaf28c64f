"""How long steps report that they move."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""(what, done, total): called now and then during a long step; total 0 means that it is not known."""


def ignore_progress(_what: str, _done: int, _total: int) -> None:
    """The default: nobody watches."""
