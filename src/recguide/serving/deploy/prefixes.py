"""Which replica has seen the beginning of a prompt: its KV is probably still there."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, cast

BLOCK = 256
"""Bytes of a prompt that are told apart together."""
BLOCKS = 128
"""Blocks of a prompt that count, from its beginning."""
REMEMBERED = 100_000
"""Beginnings that are remembered, the ones used last."""
SLACK = 4
"""Requests by which a replica may be ahead of the least loaded one for the sake of a prefix."""


class PrefixMap:
    """Remembers which replicas were sent which beginnings.

    Args:
        remembered: beginnings at most; those not used for longest are forgotten.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._limit = remembered
        self._sent: OrderedDict[int, set[str]] = OrderedDict()

    def sent(self, blocks: Sequence[int], replica: str) -> None:
        """A prompt with these blocks went to that replica."""
        for block in blocks:
            self._sent.setdefault(block, set()).add(replica)
            self._sent.move_to_end(block)
        while len(self._sent) > self._limit:
            self._sent.popitem(last=False)

    def known(self, blocks: Sequence[int], replica: str) -> int:
        """Blocks from the beginning on that were sent to that replica."""
        for place, block in enumerate(blocks):
            if replica not in self._sent.get(block, ()):
                return place
        return len(blocks)

    def keep(self, replicas: set[str]) -> None:
        """Forgets all replicas but these; what comes in another's place has an empty cache."""
        for block in list(self._sent):
            self._sent[block] &= replicas
            if not self._sent[block]:
                del self._sent[block]


def ranked(seen: PrefixMap, blocks: Sequence[int], loads: Mapping[str, int]) -> list[list[str]]:
    """Replicas by preference, equals together.

    First those that know most of the prompt, as long as they have no more than SLACK requests above the least
    loaded one, or half as many again; then the others, the least loaded first.
    """
    if not loads:
        return []
    least = min(loads.values())
    limit = max(least + SLACK, 1.5 * least)
    known = {name: seen.known(blocks, name) for name, load in loads.items() if load <= limit}
    most = max(known.values())
    first = [name for name, count in known.items() if count == most] if most else []
    others = sorted((load, name) for name, load in loads.items() if name not in first)
    groups = [first] if first else []
    for load in dict.fromkeys(load for load, _ in others):
        groups.append([name for count, name in others if count == load])
    return groups


def prompt_blocks(body: bytes) -> tuple[int, ...]:
    """A name for each beginning of a request's prompt, block by block; none where there is no prompt.

    Names are chained: a block is named by all before it. Prompts that begin alike share names, whatever else
    their requests say.
    """
    text = _prompt(body)
    names: list[int] = []
    for start in range(0, min(len(text), BLOCK * BLOCKS) - BLOCK + 1, BLOCK):
        before = names[-1] if names else 0
        digest = blake2b(text[start : start + BLOCK], digest_size=8, salt=before.to_bytes(8, "big"))
        names.append(int.from_bytes(digest.digest(), "big"))
    return tuple(names)


def _prompt(body: bytes) -> bytes:
    """What a request's prompt begins with, as bytes; empty where it is no request for text."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return b""  # the replica will say what is wrong with it
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    prompt = fields.get("messages", fields.get("prompt"))
    if prompt is None:
        return b""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, separators=(",", ":"))
    return text.encode(errors="replace")
