"""The joint process that stands for a trained drafter where weights are random, and where it is kept.

Acceptance, the draft's own doubts and the verifier's certainty all come from one hidden state along the text,
so what a policy can learn from one about another is there to be learned, and nothing else is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from recguide.core import MAX_BLOCK, ParameterError

LABEL = "replayed acceptance"
"""Stands beside every figure that came about this way."""

THIRD_HIT = "not published; the demo model's, greedy at B = 16 (demo_adapter_statistics.json)"
"""Where `third_hit` comes from: 2,333 of 8,147 mismatches that the first candidate did not correct."""

FOLDER = Path(__file__).parent
WINDOW = 512
"""Positions that are searched backwards for where the state of a position was drawn."""
ENTROPY_LINKS: Mapping[str, float] = {"weak": 0.2, "medium": 0.4, "strong": 0.8}
"""Strengths at which results show how much the verifier's entropy tells of the hidden state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceReplay:
    """A text is easy or hard, by turns: drafts fail more or less, and draft and verifier show their doubts.

    The state of a position is a Markov chain along the text. The draft that starts at position t drafts slot
    i ≥ 1 wrongly with hazard h·(1 + slope·i), h by the state at t + i, independently given the states; slots
    behind the first wrong one follow the same law, and nothing that is emitted depends on them.

    Attributes:
        dwell_easy, dwell_hard: mean tokens in a state.
        hazard_easy, hazard_hard: h; `hazard_slope` its growth per slot.
        alarm: probability that a rightly drafted slot is risky (δ = 0.5).
        recall: probability that a wrongly drafted slot is risky.
        second_hit: probability that a wrongly drafted slot's first candidate is the verifier's token.
        third_hit: that the second one is where the first is not (see THIRD_HIT).
        continuation_hazard: a continuation predicts its slot 0 wrongly with this times h.
        blind_hazard: factor on h for drafts that do not see the correcting token (TiDAR; see `blind`).
        sure_right, sure_wrong: shape of the margin, 1 − u^shape / 2, of slots that are not risky.
        shared: p1 + p2 of what the margin leaves: p2 = shared · (1 − margin) / 2.
        entropy_median: nats; `entropy_spread` is the deviation of its logarithm.
        entropy_link: correlation of that logarithm with the state, in [0, 1].
    """

    name: str
    dwell_easy: float
    dwell_hard: float
    hazard_easy: float
    hazard_hard: float
    hazard_slope: float
    alarm: float
    recall: float
    second_hit: float
    continuation_hazard: float
    blind_hazard: float
    sure_right: float
    sure_wrong: float
    third_hit: float = 0.286
    shared: float = 0.6
    entropy_median: float = 0.3
    entropy_spread: float = 1.0
    entropy_link: float = ENTROPY_LINKS["medium"]

    def __post_init__(self) -> None:
        for name in ("alarm", "recall", "second_hit", "third_hit", "shared", "entropy_link"):
            _check(name, getattr(self, name), 0.0, 1.0)
        for name in ("dwell_easy", "dwell_hard"):
            _check(name, getattr(self, name), 2.0, 1e4)
        for name in ("hazard_easy", "hazard_hard", "hazard_slope", "continuation_hazard", "blind_hazard"):
            _check(name, getattr(self, name), 0.0, 1e3)
        # Beyond the window a position would draw a state of its own: one in 30,000 does at the most.
        _check("dwell_easy and dwell_hard, as 1 / (1/easy + 1/hard)", 1 / self.renewal, 1.0, WINDOW / 10.4)

    @property
    def renewal(self) -> float:
        """Probability that a position draws its state anew: a Markov chain of two states is such a chain."""
        return 1 / self.dwell_easy + 1 / self.dwell_hard

    @property
    def either_hit(self) -> float:
        """Probability that one of a wrongly drafted slot's two candidates is the verifier's token."""
        return self.second_hit + (1 - self.second_hit) * self.third_hit

    @property
    def hard_share(self) -> float:
        """Share of hard positions, and the probability that a new state is hard."""
        return self.dwell_hard / (self.dwell_easy + self.dwell_hard)

    @property
    def base_hazards(self) -> tuple[float, float]:
        """h of an easy and of a hard position."""
        return self.hazard_easy, self.hazard_hard

    def hazards(self, slots: int = MAX_BLOCK) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Probability that slot 0, 1, … is drafted wrongly at an easy and at a hard position.

        Slot 0 is drafted by continuations alone.
        """
        easy, hard = (
            (
                min(1.0, self.continuation_hazard * h),
                *(min(1.0, h * (1 + self.hazard_slope * slot)) for slot in range(1, slots)),
            )
            for h in self.base_hazards
        )
        return easy, hard

    def blind(self) -> AcceptanceReplay:
        """The process for a method whose drafts do not see the token that corrects the block before them."""
        return replace(
            self,
            name=f"{self.name}, blind drafts",
            hazard_easy=self.hazard_easy * self.blind_hazard,
            hazard_hard=self.hazard_hard * self.blind_hazard,
        )

    def linked(self, strength: str | float) -> AcceptanceReplay:
        """The same process at another strength of `entropy_link`, by name or value."""
        link = ENTROPY_LINKS[strength] if isinstance(strength, str) else strength
        return replace(self, entropy_link=link)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A process, the published figures that it was fitted to, and what it makes of them.

    Attributes:
        figures: name → {"published", "process", "residual"}; in the unit of the name.
        sources: where each published figure stands.
        entropy: strength → its `entropy_link`, and how well the entropy of the two rounds before tells
            acceptance above 8 and above 16 at B = 32 (area under the curve).
    """

    process: AcceptanceReplay
    figures: Mapping[str, Mapping[str, float]]
    sources: Mapping[str, str]
    entropy: Mapping[str, Mapping[str, float]]

    def as_object(self) -> dict[str, Any]:
        """For result files: every figure made by this process is printed with its residuals."""
        return {
            "acceptance": LABEL,
            "process": asdict(self.process),
            "figures": {name: dict(row) for name, row in self.figures.items()},
            "sources": dict(self.sources),
            "entropy": {name: dict(row) for name, row in self.entropy.items()},
        }

    def save(self, folder: Path = FOLDER) -> Path:
        file = folder / f"{self.process.name}.json"
        file.write_text(json.dumps(self.as_object(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return file


def fitted(name: str) -> Fitted:
    """A process that comes with the package, by the model it imitates (nld-8b, nld-14b)."""
    known = sorted(file.stem for file in FOLDER.glob("*.json"))
    if name not in known:
        raise ParameterError("acceptance", f"{name!r} is not one of {', '.join(known)}")
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    wanted = {field.name for field in fields(AcceptanceReplay)}
    process = AcceptanceReplay(**{key: value for key, value in content["process"].items() if key in wanted})
    return Fitted(process, content["figures"], content["sources"], content["entropy"])


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ParameterError(name, f"must lie in [{low:g}, {high:g}] (got {value!r})")
