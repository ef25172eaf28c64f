"""The step behind one that still runs, solved: drafts in hand are verified whole, and whoever is without one
begins with what is best in the mean over what the verification that runs may say of it.
"""

from __future__ import annotations

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.beliefs import Beliefs
from recguide.guidance.hull import Hulls, spots
from recguide.guidance.market import Market
from recguide.guidance.options import ROOM
from recguide.guidance.sweep import Base, Increments, Time, best_profit
from recguide.guidance.view import Plan, View


def solve_ahead(view: View, beliefs: Beliefs, market: Market, time: Time) -> Plan:
    """Of a view that is blind. `time`: T(N, X) of this step."""
    verified = np.minimum(view.draft, view.remaining)
    block = np.zeros_like(verified)
    free = (verified == 0).nonzero()[0]
    if len(free):
        remaining = view.remaining.take(free)
        hulls = _beginnings(view, free, remaining, beliefs, market)
        spot, at = spots(hulls.tokens > 0)
        prefix = view.prefix.take(free).take(at).astype(np.float64)
        steps = Increments(hulls.tokens.take(spot), hulls.gain.take(spot), prefix, market.weight(prefix))
        chosen = best_profit(_base(view, verified), steps, time, market.rate)
        taken = np.bincount(at[chosen], minlength=len(free))
        item = hulls.item[np.arange(len(free)), taken]
        block[free] = np.minimum(beliefs.options.block.take(item), remaining)
        verified[free] = beliefs.options.verified.take(item)
    return market.plan(block, verified)


def solve_in_a_hurry(view: View, beliefs: Beliefs, market: Market) -> Plan:
    """The same for a host that a device waits for, in a fraction of its time. Everyone begins with what pays
    most at the market's price, whatever all of that is and however long prefixes are; a block that is
    verified is taken to fail, and who is near its cap drafts nothing. In simulation that makes 0 to 3 % less,
    beside the host's time. It may be more than a forward holds."""
    verified = np.minimum(view.draft, view.remaining)
    still = view.verifying == 0
    previous, full = np.maximum(view.previous * still, view.verifying), view.full & still
    block = market.block.take(beliefs.cells(beliefs.bins(view.signals), previous, full))
    block = np.minimum(block, view.remaining)
    block[(verified > 0) | (view.remaining <= ROOM)] = 0
    verified[(verified == 0) & (block == 0)] = 1
    return market.plan(block, verified)


def solve_evenly(view: View, market: Market) -> Plan:
    """Of a view that may be blind: everyone begins the market's one block, and verifies all of it. Of those
    that begin the last ones take a plain step where a forward does not hold them all. It may be more than it
    holds even so."""
    verified = np.minimum(view.draft, view.remaining)
    block = np.where(verified > 0, 0, np.minimum(market.even, view.remaining))
    room = view.most - int(_base(view, verified).tokens)
    block[(block < 2) | (np.cumsum(np.maximum(0, block - 1)) > room)] = 0
    verified[(verified == 0) & (block == 0)] = 1
    return market.plan(block, verified)


def _beginnings(view: View, free: Ints, remaining: Ints, beliefs: Beliefs, market: Market) -> Hulls:
    """Of those requests `free` [F], which will have no draft."""
    bins, verifying = beliefs.bins(view.signals.take(free, axis=0)), view.verifying.take(free)
    cell = beliefs.cells(bins, view.previous.take(free), view.full.take(free))
    token, worth = _values(market, cell)
    running = verifying.nonzero()[0]
    if len(running):
        blocks, bins, margins = verifying.take(running), bins.take(running), view.margins.take(free, axis=0)
        passing = beliefs.passing(blocks, cell.take(running), margins.take(running, axis=0))
        whole, part = (_values(market, beliefs.cells(bins, blocks, full)) for full in (True, False))
        token[running] = passing * whole[0] + (1 - passing) * part[0]
        worth[running] = passing[:, None] * whole[1] + (1 - passing)[:, None] * part[1]
    capped = np.minimum(worth, (token * remaining)[:, None])
    return beliefs.options.hulls(token, np.zeros_like(token), capped, remaining)


def _values(market: Market, cell: Ints) -> tuple[Floats, Floats]:
    return market.token.take(cell), market.worth.take(cell, axis=0)


def _base(view: View, verified: Ints) -> Base:
    """Every request's first slot, and all of the drafts in hand."""
    given = np.maximum(1, verified)
    read = float(view.pairs + (given * view.prefix).sum())
    return Base(float(view.tokens + given.sum()), read, float(len(view)))
