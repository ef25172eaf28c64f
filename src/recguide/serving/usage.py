"""How many tokens a request took, and which of them were not computed or not part of the answer."""

from __future__ import annotations

from collections.abc import Sequence

from recguide.core import Completion, opens_thinking
from recguide.serving.replies import CompletionTokensDetails, PromptTokensDetails, Usage


def usage_of(
    prompts: Sequence[Sequence[int]], done: Sequence[Completion], think: tuple[int, int] | None
) -> Usage:
    """Prompts count once, whatever the number of their choices.

    Args:
        done: completions by prompt and choice; fewer if a request ended early.
        think: ids of <think> and </think>, if the model has them.
    """
    n = len(done) // len(prompts)
    asked, made = sum(map(len, prompts)), sum(len(each.token_ids) for each in done)
    firsts = [each for each in done if each.index == 0]
    thought = sum(reasoning_tokens(prompts[at // n], each.token_ids, think) for at, each in enumerate(done))
    return Usage(
        asked,
        made,
        asked + made,
        PromptTokensDetails(sum(each.stats.prefix_hit_tokens for each in firsts)),
        CompletionTokensDetails(thought),
    )


def reasoning_tokens(prompt: Sequence[int], output: Sequence[int], think: tuple[int, int] | None) -> int:
    """Output tokens up to the end of what stands inside <think> … </think>, its marks included."""
    if think is None or not output:
        return 0
    opening, closing = think
    if not opens_thinking(prompt, think) and output[0] != opening:
        return 0
    return output.index(closing) + 1 if closing in output else len(output)
