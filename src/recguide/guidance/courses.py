"""What steps really make of what markets say that they will, by what is chosen in them.

A market compares steps that are planned ahead with steps that wait to know more by what it believes of
drafts and of branches. What it believes wrongly of drafts hits both alike and is learned anyway (see
`beliefs`); what it believes wrongly of branches, or of the time that either takes, would choose the worse of
them for ever. So each is held to what it has made.
"""

from __future__ import annotations

from enum import IntEnum

GRANTED = 2048.0
"""Tokens for which a market's word counts beside what was made: many rounds' of one request, whose luck they
level out. That of many requests levels itself out."""
STALE = 0.04
"""Share by which steps make less than is said, until it is known, whose blocks are chosen before the last
verification has said anything: in simulation 3 to 5 % at 8 to 64 requests."""
LEFT_BEHIND = 0.05
"""Share by which the same block for all may make more than is said while it does not run: that is said of
stretches as other courses leave them. In simulation it is up to 4 %."""
MEMORY = 8192.0
"""Tokens that were said after which old ones have faded."""
RETRIED = 2 * MEMORY
"""The same of what was not chosen meanwhile, so that it is tried again."""
LEVEL, LUCKY = 16, 64
"""Requests up to which MEMORY and RETRIED hold, and up to which GRANTED does. More take as many steps: one in
which all draft makes nothing."""
MOVED = 0.03
"""Share by which what was found must have moved for markets that are kept to be made anew."""


class Course(IntEnum):
    """What is chosen in a step."""

    PLAIN = 0
    """No draft pays."""
    AHEAD = 1
    """Blocks to draft, before it is known what came of the last ones."""
    FREE = 2
    """Whatever pays."""
    EVEN = 3
    """The same block for all, before it is known what came of the last ones."""


_COURSES = tuple(Course)
"""An enumeration answers slowly."""
_FIRST = {
    Course.PLAIN: 1.0,
    Course.AHEAD: 1.0,
    Course.FREE: 1 + STALE,
    Course.EVEN: 1 + STALE + LEFT_BEHIND,
}
"""What is thought of each at first. Drafts that are as good as plain steps are tried."""


class Courses:
    """Numbers of requests are told apart by powers of two, and even courses by their `block`.

    Attributes:
        moved: times that some share became quite another one.
    """

    def __init__(self) -> None:
        self.moved = 0
        self._kept: dict[int, dict[tuple[Course, int], _Kept]] = {}

    def share(self, requests: int, course: Course, block: int = 0) -> float:
        """What steps made, or are thought to make, as a share of what was said."""
        kept = self._kept.get(bucket_of(requests), {}).get((course, block))
        return _FIRST[course] if kept is None else kept.share

    def passed(self, requests: int, course: Course, said: float, block: int = 0) -> None:
        """A step's time is over, in which a market said that so many tokens would be made."""
        bucket, mine = bucket_of(requests), self._of(requests, course, block)
        for kept in self._kept[bucket].values():
            self.moved += kept.fade(said / ((MEMORY if kept is mine else RETRIED) * _times(bucket)))
        mine.said += said

    def made(self, requests: int, course: Course, tokens: float, block: int = 0) -> None:
        """Tokens of such a step."""
        kept = self._of(requests, course, block)
        kept.made += tokens
        self.moved += kept.look()

    def _of(self, requests: int, course: Course, block: int) -> _Kept:
        bucket = bucket_of(requests)
        of_bucket = self._kept.setdefault(bucket, {})
        if (course, block) not in of_bucket:
            of_bucket[course, block] = _Kept(GRANTED * _times(bucket, LUCKY), _FIRST[course])
        return of_bucket[course, block]


class Stretches:
    """Steps of each course since it was left for so many `others`."""

    def __init__(self, others: int) -> None:
        self._others, self._number = others, 0
        self._last, self._steps = [0] * len(_COURSES), [0] * len(_COURSES)

    def step(self, course: Course) -> int:
        """Another one; returns how many those are."""
        self._number += 1
        left = self._number - self._last[course] > self._others
        self._last[course] = self._number
        self._steps[course] = 1 if left else self._steps[course] + 1
        return self._steps[course]


class _Kept:
    def __init__(self, granted: float, share: float) -> None:
        self.said = self.made = 0.0
        self.share = share
        self._granted, self._made, self._noted = granted, share * granted, share

    def fade(self, share: float) -> bool:
        kept = max(0.0, 1 - share)
        self.said *= kept
        self.made *= kept
        return self.look()

    def look(self) -> bool:
        """Whether the share is quite another one by now."""
        self.share = (self.made + self._made) / (self.said + self._granted)
        moved = abs(self.share - self._noted) > MOVED * self._noted
        if moved:
            self._noted = self.share
        return moved


def _times(bucket: int, level: int = LEVEL) -> float:
    return max(1.0, (1 << bucket) / level)


def bucket_of(requests: int) -> int:
    """Exponent of the power of two that holds so many."""
    return (requests - 1).bit_length()
