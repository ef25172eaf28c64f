"""Forms that an output may have to take."""

from __future__ import annotations

from dataclasses import dataclass

from recguide.core.errors import ParameterError

STRUCTURES = ("json_object", "json_schema", "regex", "grammar")
MAX_STRUCTURE = 65_536
"""Characters of one: compiling and following it takes the time of all requests."""


@dataclass(frozen=True, slots=True)
class Structure:
    """A form that the whole output takes.

    Attributes:
        kind: "json_object" for any JSON object, "json_schema" for a schema, "regex" for a regular expression
            (without look-around), "grammar" for a context-free grammar in the Lark syntax of llguidance.
        text: the schema, expression or grammar; nothing for a "json_object".
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in STRUCTURES:
            raise ParameterError("structure", f"{self.kind!r} is not one of {', '.join(STRUCTURES)}")
        _check_text(self.text)
        if bool(self.text) is (self.kind == "json_object"):
            need = "takes no text" if self.text else "needs a text"
            raise ParameterError("structure", f"a {self.kind} {need}")
        if len(self.text) > MAX_STRUCTURE:
            raise ParameterError(
                "structure", f"has {len(self.text)} characters; at most {MAX_STRUCTURE} may be"
            )


def _check_text(value: object) -> None:
    if not isinstance(value, str):
        raise ParameterError("structure", f"must be text (got {value!r:.60})")
