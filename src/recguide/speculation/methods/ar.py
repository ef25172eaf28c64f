"""Plain autoregressive decoding: one token a forward; every other method's text equals this one's."""

from recguide.speculation.methods.method import Method

AR = Method("ar", drafts=False, refuses=frozenset({"threshold", "block_size", "policy", "max_block_size"}))
