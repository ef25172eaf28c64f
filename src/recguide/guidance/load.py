"""How requests come to a simulation."""

from __future__ import annotations

from dataclasses import dataclass

from recguide.core import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests come.

    Attributes:
        seats: requests that decode together at most; closed loop: always.
        texts: requests in all.
        arrivals_per_s: of a Poisson process; None is a closed loop.
        prefix: cached tokens of every request when it starts to decode.
        warm_up: share of the texts that end before anything is counted.
        seed: of the arrivals.
    """

    seats: int
    texts: int
    arrivals_per_s: float | None = None
    prefix: int = 1000
    warm_up: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.seats <= self.texts:
            raise ParameterError("texts", f"must be at least the {self.seats} that decode together")
        if not 0 <= self.warm_up < 1:
            raise ParameterError("warm_up", f"must lie in [0, 1) (got {self.warm_up!r})")
        if self.arrivals_per_s is not None and self.arrivals_per_s <= 0:
            raise ParameterError("arrivals_per_s", f"must be positive (got {self.arrivals_per_s!r})")
