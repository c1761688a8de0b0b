"""Log lines: one JSON object each on standard error, an event with keys. Never content, never a secret."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from services.kit import tracing


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line: dict[str, Any] = {"time": moment, "level": record.levelname.lower(), "logger": record.name}
        line["event"] = record.getMessage()
        # Where the work at hand belongs; what the line itself says counts more.
        for key, value in (("session_id", tracing.session_id()), ("trace_id", tracing.trace_id())):
            if value:
                line[key] = value
        line.update(getattr(record, "keys", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Log:
    """Says what happened, with keys: `log.info("tool finished", execution_id=..., seconds=...)`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **keys: object) -> None:
        self._logger.debug(event, extra={"keys": keys})

    def info(self, event: str, **keys: object) -> None:
        self._logger.info(event, extra={"keys": keys})

    def warning(self, event: str, **keys: object) -> None:
        self._logger.warning(event, extra={"keys": keys})

    def error(self, event: str, *, exc_info: bool = False, **keys: object) -> None:
        self._logger.error(event, extra={"keys": keys}, exc_info=exc_info)


def set_up(level: str) -> None:
    """Sends all log lines from `level` up to standard error. Libraries speak from `warning` up only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("services").setLevel(level.upper())
