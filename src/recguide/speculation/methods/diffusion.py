"""The model's own block diffusion: a block is denoised by confidence and emitted without a verdict.

Each block is [seed, MASK × (B−1)]. Every draft forward fixes the most confident masked slot and all whose
confidence reaches the threshold; when none is left, one causal forward caches the block and picks the next
seed. The text differs from AR's, so there is nothing to compare it with but this rule itself. Confidence is
p1 of the draft statistics, so at a temperature above 0 it includes the noise that picked the token.
"""

from dataclasses import replace

from recguide.speculation.methods.method import Method
from recguide.speculation.rows import Draft


def refine(draft: Draft, confidences: tuple[float, ...], threshold: float) -> Draft:
    """Keeps the masked slots that are confident enough, and always the best (ties: the earliest).

    `draft.tokens` holds the picks; `confidences` has p1 for each masked slot, in their order.
    """
    best = max(range(len(confidences)), key=lambda index: confidences[index])
    left = tuple(
        slot for index, slot in enumerate(draft.masked) if index != best and confidences[index] < threshold
    )
    return replace(draft, masked=left)


DIFFUSION = Method(
    "diffusion",
    verifies=False,
    refines=refine,
    threshold=0.9,
    refuses=frozenset(
        {
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
            "logit_bias",
            "min_tokens",
            "logprobs",
            "thinking_budget",
            "structure",
        }
    ),
)
