"""What every policy is: a value given to the one loop, asked each step and told what came of it."""

from __future__ import annotations

import re
from typing import Protocol

from recguide.core import ParameterError
from recguide.guidance.clock import Clock
from recguide.guidance.fixed import Fixed
from recguide.guidance.paper import Paper
from recguide.guidance.price import Price
from recguide.guidance.value import ValueTable
from recguide.guidance.view import Outcome, Plan, View


class Policy(Protocol):
    """Chooses budgets. It keeps no state of a request: what it may know of one is in the view."""

    @property
    def name(self) -> str: ...

    def decide(self, view: View) -> Plan:
        """What each request does in this step; the view has at least one."""
        ...

    def ahead(self, view: View) -> Plan | None:
        """What each request does in the step behind one that runs, of a view that is blind: that step then
        waits for no host. It verifies whole drafts and has no branches. None where it pays to wait."""
        ...

    def prepare(self, view: View) -> None:
        """Gets ready for the step after that of this view, while its forward runs. It may be left out."""
        ...

    def again(self, requests: int) -> bool:
        """Whether so many requests, all of which took plain steps, take one more unasked; told each time."""
        ...

    def observe(self, view: View, plan: Plan, outcome: Outcome) -> None:
        """What came of a plan; may be told late, in order, and of some of its requests only."""
        ...

    def timed(self, view: View, plan: Plan, ms: float, waited_ms: float, *, late: bool = False) -> None:
        """A step of this plan took so long, from the landing before it to its own; at first the device waited
        for the host, and if that came `late` to its landing, at the end as well. It may be left out, and
        comes before `observe`."""
        ...


POLICIES = ("price", "paper", "fixed", "fixed-B", "ar")
"""`fixed` follows the official recipe by load, `fixed-8` and the like are constant."""


def policy_named(name: str, table: ValueTable, clock: Clock) -> Policy:
    """A fresh policy; ParameterError for a name not among POLICIES."""
    if name == "price":
        return Price(table, clock)
    if name == "paper":
        return Paper(table, clock)
    if name == "fixed":
        return Fixed()
    if name == "ar":
        return Fixed(1)
    return Fixed(_constant(name))


def check_policy(name: str) -> None:
    """Raises ParameterError for a name not among POLICIES."""
    if name not in ("price", "paper", "fixed", "ar"):
        Fixed(_constant(name))


def _constant(name: str) -> int:
    """B of `fixed-B`."""
    constant = re.fullmatch(r"fixed-(\d{1,3})", name)
    if constant is None:
        raise ParameterError("policy", f"{name!r} is not one of {', '.join(POLICIES)}")
    return int(constant[1])
