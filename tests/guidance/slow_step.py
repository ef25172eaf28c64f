"""A step's solution written out: loops over requests, lists of increments, every cut tried."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import numpy as np

from recguide.guidance.view import Head


def rate_and_price(view, cells, menus, weight, mean, slope):
    """The cut with the most Y/T over all requests' hulls, request by request; (ρ, μ).

    Args:
        weight: prefix → what a query token costs; mean: (N, X) → T; slope: N → dT/dN.
    """
    steps = []
    for row, cell in enumerate(cells):
        prefix = float(view.prefix[row])
        for tokens, gain in zip(menus.hulls.tokens[cell], menus.hulls.gain[cell], strict=True):
            if tokens > 0:
                steps.append((gain / (tokens * weight(prefix)), tokens, gain, prefix))
    steps.sort(key=lambda step: -step[0])
    n, x, y = [float(len(view))], [float(view.prefix.sum())], [float(len(view))]
    for _, tokens, gain, prefix in steps:
        n.append(n[-1] + tokens)
        x.append(x[-1] + tokens * prefix)
        y.append(y[-1] + gain)
    places = [*zip(n, x, y, strict=True)]
    places += [(at, np.interp(at, n, x), np.interp(at, n, y)) for at in np.linspace(n[0], n[-1], 64)]
    best = max(places, key=lambda place: place[2] / mean(place[0], place[1]))
    rate = best[2] / mean(best[0], best[1])
    begun, ended = (sum(at < best[0] for at in n), sum(at <= best[0] for at in n) - 1)
    last = steps[begun - 1][0] if begun else float("inf")
    following = steps[ended][0] if ended < len(steps) else 0.0
    return rate, min(max(rate * slope(best[0]), following), last)


class SlowStep:
    """One step at given prices, with the increments of each request in a list."""

    def __init__(self, view, cells, hand, beliefs, market, time):
        self.view, self.hand, self.beliefs, self.market = view, hand, beliefs, market
        self.cells, self._time = cells, time
        self.blocks = beliefs.table.blocks
        self.at_hand = {int(row): number for number, row in enumerate(hand.rows)}

    def right(self, number, slot, rank):
        return self.beliefs.candidates(rank, self.hand.place)[number, slot, rank - 1]

    def draft_worth(self, row, block, left):
        """Of a draft of a size among the table's blocks, or shorter."""
        at = min(bisect_left(self.blocks, block), len(self.blocks) - 1)
        return min(self.market.worth[self.cells[row], at], self.market.token[self.cells[row]] * left)

    def increments(self):
        """(slope, tokens, gain, prefix) of all requests."""
        found = []
        for row in range(len(self.view)):
            prefix = float(self.view.prefix[row])
            mine = self.slots_and_branches(row) if row in self.at_hand else self.beginnings(row)
            weight = float(self.market.weight(np.array([prefix]))[0])
            found += [(gain / (tokens * weight), tokens, gain, prefix) for tokens, gain in mine]
        return found

    def beginnings(self, row):
        left, token = int(self.view.remaining[row]), self.market.token[self.cells[row]]
        head = self.beliefs.menus.head[self.cells[row]]
        items = [(1, token)]
        for block in self.blocks:
            worth = self.draft_worth(row, block, left)
            if left >= 2:
                items.append((block, worth))
            if left >= 3:
                items.append((1 + block, token + head * worth))
        hull = [items[0]]
        while True:
            at = hull[-1]
            ahead = [(n, y) for n, y in items if n > at[0] and y > at[1]]
            if not ahead:
                break
            hull.append(max(ahead, key=lambda one: ((one[1] - at[1]) / (one[0] - at[0]), -one[0])))
        return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(hull)]

    def slots_and_branches(self, row):
        number = self.at_hand[row]
        alive, failing = self.hand.alive[number], self.hand.failing[number]
        draft, token = int(self.view.draft[row]), self.market.token[self.cells[row]]
        last = min(draft, int(self.view.remaining[row]))
        found = [
            (1, alive[slot] * token)
            for slot in range(1, len(alive))
            if alive[slot] * token >= max(self.market.floor, 1e-9)
        ]
        chances = [
            (
                slot,
                alive[slot - 1] * failing[slot] * self.right(number, slot, rank),
            )
            for slot in range(1, last)
            for rank in range(1, self.view.candidates + 1)
        ]
        if last == draft:
            chances.append((draft, alive[last - 1] * self.beliefs.continuation))
        for slot, chance in chances:
            branch = self.branch(row, slot, chance)
            if branch is not None:
                found.append(branch)
        return found

    def branch(self, row, slot, chance):
        """(tokens, gain) of the best size; None if it cannot pay."""
        worth = self.market.worth[self.cells[row]]
        if chance * max(worth / np.array(self.blocks)) < self.market.floor:
            return None
        left = int(self.view.remaining[row]) - slot
        block = max(
            self.blocks,
            key=lambda size: self.draft_worth(row, size, left) * chance - self.market.price * size,
        )
        block = min(block, left)
        if block < 2:
            return None
        return block, max(0.0, chance * self.draft_worth(row, block, block))

    def is_ambiguous(self):
        """Whether increments of different sizes bring the same per token: either may come first."""
        steps = sorted(self.increments(), key=lambda step: -step[0])
        return any(one[0] - then[0] < 1e-9 and one[1] != then[1] for one, then in pairwise(steps))

    def best(self):
        """The most Y − ρ·T over all cuts of the sorted increments, beside the first slots' yield."""
        steps = sorted(self.increments(), key=lambda step: -step[0])
        n, x, y = float(len(self.view)), float(self.view.prefix.sum()), 0.0
        best = y - self.market.rate * self.time(n, x)
        for _, tokens, gain, prefix in steps:
            n, x, y = n + tokens, x + tokens * prefix, y + gain
            best = max(best, y - self.market.rate * self.time(n, x))
        return best

    def profit(self, plan):
        """The same of a plan."""
        y = 0.0
        for row in range(len(self.view)):
            left, token = int(self.view.remaining[row]), self.market.token[self.cells[row]]
            branches = [
                (int(plan.branches.slot[k]), int(plan.branches.head[k]), int(plan.branches.block[k]))
                for k in np.flatnonzero(plan.branches.request == row)
            ]
            if row in self.at_hand:
                y += self.gain_in_hand(row, int(plan.verified[row]), branches)
            elif plan.block[row] > 0:
                y += self.draft_worth(row, int(plan.block[row]), left) - token
            else:
                head = self.beliefs.menus.head[self.cells[row]]
                y += sum(head * self.draft_worth(row, block, left) for _, _, block in branches)
        tokens = plan.query_tokens
        pairs = float((tokens * self.view.prefix).sum())
        return y - self.market.rate * self.time(float(tokens.sum()), pairs)

    def gain_in_hand(self, row, verified, branches):
        number = self.at_hand[row]
        alive, failing = self.hand.alive[number], self.hand.failing[number]
        y = alive[1:verified].sum() * self.market.token[self.cells[row]]
        for slot, head, block in branches:
            if head == Head.CONTINUATION:
                chance = alive[slot - 1] * self.beliefs.continuation
            else:
                right = self.right(number, slot, head)
                chance = alive[slot - 1] * failing[slot] * right
            y += chance * self.draft_worth(row, block, block)
        return y

    def time(self, n, x):
        return float(self._time(np.array([n]), np.array([x]))[0])
