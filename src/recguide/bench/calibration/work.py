"""What a calibration has found so far, on disk: an interrupted one goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recguide.core import RecGuideError
from recguide.guidance.records import RoundRecord
from recguide.guidance.trace_file import record_of

FORMAT = "recguide-calibration-1"


class MalformedWork(RecGuideError):  # noqa: N818 - it names what was found
    """A work file that is none, or of another calibration; names the file."""


class Work:
    """Finished prompts with their rounds: a header, then a prompt a line.

    Args:
        file: made if it does not exist.
        header: what is calibrated and how; a file of anything else is refused.

    Attributes:
        found: prompt's number → its rounds.

    Raises MalformedWork. A last line that was cut off is dropped.
    """

    def __init__(self, file: Path, header: Mapping[str, Any]) -> None:
        self.found: dict[int, list[RoundRecord]] = {}
        self._file = file
        wanted = {"format": FORMAT, **json.loads(json.dumps(header))}
        if file.exists():
            self._read(wanted)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(wanted) + "\n", encoding="utf-8")

    def add(self, prompt: int, records: Sequence[RoundRecord]) -> None:
        """A prompt is finished."""
        line = json.dumps({"prompt": prompt, "rounds": [asdict(record) for record in records]})
        with self._file.open("a", encoding="utf-8") as end:
            end.write(line + "\n")
        self.found[prompt] = list(records)

    def remove(self) -> None:
        """Everything has been made of it."""
        self._file.unlink(missing_ok=True)

    def _read(self, wanted: Mapping[str, Any]) -> None:
        content = self._file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        try:
            header, *lines = [json.loads(line) for line in whole.splitlines()]
            found = {int(line["prompt"]): [record_of(one) for one in line["rounds"]] for line in lines}
        except (ValueError, KeyError, TypeError) as error:
            raise MalformedWork(f"{self._file} is no work file ({error}); remove it") from error
        if header != wanted:
            raise MalformedWork(f"{self._file} is of another calibration; remove it or move it away")
        if len(whole) < len(content):
            with self._file.open("r+b") as file:
                file.truncate(len(whole))
        self.found = found
