"""Log lines: one form in the code, two on the wire.

Code writes a fixed name and then `key=value`, units in the key:

    log.info("partition.opened stream=%s partition=%d recovery_ms=%d", stream, partition, took)

On a console that is what people read. As JSON the same line carries `event` and `fields`, so that
nobody has to parse text. A value runs to the next ` key=`, so it may hold spaces.

L1  One event is one line: line breaks inside a message are escaped (a traceback follows a console
    line, and is the field `exception` in JSON).
L2  Credentials in URLs are cut out of every line, whoever wrote it.
L3  Lines of libraries show from WARNING on, ours from the configured level.

Every line of the broker: docs/operations.md.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

OURS: Final = ("broker", "spark_liftlog", "pyspark_liftlog")
FORMATS: Final = ("auto", "json", "console")

_EVENT: Final = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+(?=\s|$)")
_FIELD: Final = re.compile(r"(?:^|\s)([a-z][a-z0-9_]*)=(.*?)(?=\s[a-z][a-z0-9_]*=|$)", re.DOTALL)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d{0,17})(\.\d+)?")
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+@")
_BREAKS: Final = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\x1b"): "\\x1b"}


def setup(level: str = "info", format: str = "auto", *, stream: TextIO | None = None) -> None:
    """Send all log lines to `stream` (default stderr), replacing what was set up before.

    Args:
        level: debug, info, warning or error; for our loggers.
        format: console, json, or auto: console when `stream` is a terminal.
    """
    stream = stream or sys.stderr
    if format == "auto":
        format = "console" if stream.isatty() else "json"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else ConsoleFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
    logging.captureWarnings(True)


class ConsoleFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO  partition.opened stream=orders partition=0`, then a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname:<7} {_text(record).translate(_BREAKS)}"
        exception = _exception(self, record)
        return f"{line}\n{exception}" if exception else line


class JsonFormatter(logging.Formatter):
    """One JSON object: time (UTC, ISO 8601), level, logger, event, fields, text and, if any, exception."""

    def format(self, record: logging.LogRecord) -> str:
        text = _text(record)
        event, fields = parse(text)
        line: dict[str, object] = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        if event is not None:
            line |= {"event": event, "fields": fields}
        line["text"] = text
        exception = _exception(self, record)
        if exception:
            line["exception"] = exception
        return json.dumps(line, ensure_ascii=False)


def parse(text: str) -> tuple[str | None, dict[str, object]]:
    """The event name and the fields of a line; (None, {}) when it is not of the house's form."""
    found = _EVENT.match(text)
    if found is None:
        return None, {}
    return found.group(), {key: _value(value) for key, value in _FIELD.findall(text[found.end() :])}


def _value(text: str) -> object:
    text = text.strip()
    number = _NUMBER.fullmatch(text)
    if number is None:
        return {"True": True, "False": False, "None": None}.get(text, text)
    return float(text) if number.group(1) else int(text)


def _text(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except (TypeError, ValueError):  # a line whose arguments do not fit must not be lost
        text = f"{record.msg} {record.args!r}"
    return _CREDENTIALS.sub("", text)


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    if not record.exc_info or record.exc_info[0] is None:
        return None
    return _CREDENTIALS.sub("", formatter.formatException(record.exc_info))


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
