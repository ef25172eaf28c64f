"""What a policy does of what it is told if it knows all that it needs from the start."""

from __future__ import annotations

from recguide.guidance.view import Outcome, Plan, View


class Unlearning:
    """Part of a `policy.Policy`: nothing has to be ready, and nothing is learned."""

    __slots__ = ()

    def prepare(self, view: View) -> None:
        """Nothing has to be ready."""

    def ahead(self, view: View) -> Plan | None:
        """It wants to know what came of every step."""
        del view

    def again(self, requests: int) -> bool:
        """Every step is planned anew."""
        del requests
        return False

    def observe(self, view: View, plan: Plan, outcome: Outcome) -> None:
        """Nothing is learned of drafts."""

    def timed(self, view: View, plan: Plan, ms: float, waited_ms: float, *, late: bool = False) -> None:
        """Nor is anything of times."""
