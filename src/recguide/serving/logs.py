"""Logs for people or for machines: one line a record, as text or as a JSON object."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]

LOGGERS = ("recguide", "uvicorn", "uvicorn.error")
"""Uvicorn's own access log stays off: ours says more, once a request is done."""


class JsonFormatter(logging.Formatter):
    """One JSON object a record; what was logged as extra={"fields": {…}} stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


def configure_logs(form: LogFormat, level: str = "INFO") -> None:
    """Sends the server's logs to standard error in one format, and nothing twice."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("{asctime} {levelname:<7} {name}: {message}", style="{")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    logging.getLogger("uvicorn.error").propagate = False
    logging.getLogger("uvicorn.access").disabled = True
