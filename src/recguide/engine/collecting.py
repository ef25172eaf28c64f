"""Python's collector of cyclic garbage, told what an engine is like."""

from __future__ import annotations

import gc

OBJECTS = 100_000
"""Objects that are made, and not freed, before the youngest are looked through."""


def collect_seldom() -> None:
    """For a process that steps an engine, once everything is loaded.

    A step makes many objects that are freed by their counts alone, and the model and its libraries are there
    to stay: looking through either finds nothing, and the step waits for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, 20, 100)
