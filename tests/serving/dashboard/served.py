"""A server over the fake model, in this process."""

from __future__ import annotations

from tests.fake import EOS, Script, Slip, encode, engine
from tests.serving.site import fake_app
from tests.toy import ByteTokenizer

QUESTION = "What does the fox do?"
PROMPT = tuple(encode(f"U{QUESTION}\nA"))
"""What the toy's chat template makes of the question."""
TEXT = "The quick brown fox jumps over the lazy dog (é, ü, 語, 🦊) and then it naps in the warm sun."
SLIPS = {len(PROMPT) + at: Slip(second_right=at % 2 == 0) for at in (3, 9, 20, 31, 44, 60)}
SCRIPT = Script(PROMPT, (*encode(TEXT), EOS), SLIPS)


class Bytes(ByteTokenizer):
    """The toy's tokenizer with all that a server asks of one."""

    def encode(self, text, add_special_tokens=True):  # noqa: ARG002 - it has none
        return super().encode(text)

    def decode(self, ids, skip_special_tokens=True):
        return super().decode(ids) if skip_special_tokens else "".join(map(self.text, ids))

    def token(self, token_id):
        return f"<0x{token_id:02X}>" if token_id < 256 else super().token(token_id)

    def text(self, token):
        return bytes([token]).decode(errors="replace") if token < 256 else self.token(token)


def served(*, scripts=(SCRIPT,), machine=None, **settings):
    """The application; it answers the question with the text, by any method."""
    return fake_app(machine or engine(*scripts), Bytes(), **settings)
