"""How many replicas a deployment has, and what each of them gets."""

from __future__ import annotations

from dataclasses import dataclass

from recguide.core import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many replicas there are, and what each of them gets.

    Attributes:
        replicas: at least, and always where `max_replicas` is None.
        max_replicas: as many under load.
        target_requests: requests of a replica that autoscaling aims at.
        cpus, gpus: of a replica; parts of one are allowed. None of gpus takes one where the cluster has any.
    """

    replicas: int = 1
    max_replicas: int | None = None
    target_requests: float = 16.0
    cpus: float = 1.0
    gpus: float | None = None

    def __post_init__(self) -> None:
        checks = (
            ("replicas", self.replicas >= 1, "must be at least 1"),
            (
                "max_replicas",
                self.max_replicas is None or self.max_replicas >= self.replicas,
                "must be at least --replicas",
            ),
            ("target_requests", self.target_requests > 0, "must be above 0"),
            ("cpus", self.cpus >= 0, "must be at least 0"),
            ("gpus", self.gpus is None or self.gpus >= 0, "must be at least 0"),
        )
        for name, ok, message in checks:
            if not ok:
                raise ParameterError(name, message)
