"""Log-probabilities in the two forms that OpenAI's endpoints have for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recguide.core import TokenLogprobs
from recguide.serving.replies import ChatLogprobs, TextLogprobs, TokenLogprob, TopLogprob
from recguide.serving.tokens import Named

LEAST = -9999.0
"""Stands for minus infinity, which JSON has not."""

NameOf = Callable[[int], Named]


def chat_logprobs(ids: Sequence[int], entries: Sequence[TokenLogprobs], named: NameOf) -> ChatLogprobs:
    """One entry for each token; its likeliest alternatives in order."""
    return ChatLogprobs(
        [_entry(token, entry, named) for token, entry in zip(ids, entries, strict=True)],
    )


def _entry(token: int, entry: TokenLogprobs, named: NameOf) -> TokenLogprob:
    name = named(token)
    top = [TopLogprob(named(other).text, _finite(value), named(other).bytes) for other, value in _best(entry)]
    return TokenLogprob(name.text, _finite(entry.logprob), name.bytes, top)


def text_logprobs(
    ids: Sequence[int], entries: Sequence[TokenLogprobs | None], named: NameOf, offset: int = 0
) -> TextLogprobs:
    """Parallel lists; the token itself is always among its alternatives, unless none were asked for.

    Args:
        entries: None for a token that nothing stands before.
        offset: characters before the first token.
    """
    names = [named(token).text for token in ids]
    offsets: list[int] = []
    for name in names:
        offsets.append(offset)
        offset += len(name)
    return TextLogprobs(
        names,
        [None if entry is None else _finite(entry.logprob) for entry in entries],
        [_alternatives(token, entry, named) for token, entry in zip(ids, entries, strict=True)],
        offsets,
    )


def _alternatives(token: int, entry: TokenLogprobs | None, named: NameOf) -> dict[str, float] | None:
    if entry is None:
        return None
    found = {named(token).text: _finite(entry.logprob)}
    for other, value in _best(entry):
        found.setdefault(named(other).text, _finite(value))
    return found


def _best(entry: TokenLogprobs) -> list[tuple[int, float]]:
    return sorted(entry.top.items(), key=lambda pair: -pair[1])


def _finite(value: float) -> float:
    return max(value, LEAST)
