"""Python's collector of cyclic garbage, told what an engine is like."""

from __future__ import annotations

import gc

OBJECTS = 100_000
"""Objects that are made, and not freed, before the youngest are looked through."""


def collect_seldom() -> None:
    """For a process that steps an engine, once everything is loaded.

    A step makes thousands of objects that are freed by their counts alone. Looking through them again and
    again, and through the model and its libraries now and then, takes as long as half of what a step does.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, 20, 100)
