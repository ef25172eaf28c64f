"""Python's collector of cyclic garbage, told what an engine is like."""

from __future__ import annotations

import gc

OBJECTS = 100_000
"""Objects that are made, and not freed, before the youngest are looked through."""


def collect_seldom() -> None:
    """For a process that steps an engine; thresholds that are higher already stay.

    A step makes many objects that are freed by their counts alone, and looking through all that a model and
    its libraries have made takes as long as a hundred steps.
    """
    wanted = (OBJECTS, 20, 100)
    gc.set_threshold(*(at and max(at, least) for at, least in zip(gc.get_threshold(), wanted, strict=True)))


def keep_all() -> None:
    """For a process that does nothing but step an engine, once everything is loaded: that is there to stay,
    and never looked through."""
    gc.collect()
    gc.freeze()
