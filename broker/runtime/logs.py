"""Log lines: one form in the code, two on the wire.

Code writes a fixed name and then `key=value`, units in the key:

    log.info("partition.opened stream=%s partition=%d recovery_ms=%d", stream, partition, took)

On a console that is what people read. As JSON the same line carries `event` and `fields`, so that
nobody has to parse text. A value runs to the next ` key=`, so it may hold spaces.

L1  One event is one line: what others said is escaped where it is a control character, and cut, so that it forges no
    line. A traceback follows a console line, indented, and is the field `exception` in JSON.
L2  Credentials in URLs, tokens and JWTs are cut out of every line, whoever wrote it.
L3  Lines of libraries show from WARNING on, ours from the configured level.
L5  The fields of a JSON line are those of its format string: a value that holds ` key=` forges none.
L4  A fault that comes with every batch fills no disk: of one kind of WARNING or ERROR come `BURST` lines, then one in
    `REFILL_S`, and how many were left out. INFO is a change of state, and a broker may open 10,000 partitions: of those
    come `INFO_BURST`, then one in `INFO_REFILL_S`. So whoever registers a name again and again fills no disk either.
L6  A line that is what is left of a record of the audit (`is_whole`, by `extra`) is neither cut nor left out.

Every line of the broker: docs/reference/log-lines.md.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TextIO

from broker.api.nats_url import without_credentials
from broker.api.plain import printable
from broker.api.principals import shown

OURS: Final = ("broker", "spark_liftlog", "pyspark_liftlog")
BURST: Final = 50
REFILL_S: Final = 10.0
INFO_BURST: Final = 20_000
INFO_REFILL_S: Final = 1.0
KINDS_MAX: Final = 1_000
"""So many kinds of lines are told apart; those beyond are one kind."""

_EVENT: Final = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+(?=\s|$)")
_FIELD: Final = re.compile(r"(?:^|\s)([a-z][a-z0-9_]*)=(.*?)(?=\s[a-z][a-z0-9_]*=|$)", re.DOTALL)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d{0,17})(\.\d+)?")
_SPEC: Final = re.compile(r"%[-#0 +]*[0-9.]*[a-zA-Z]")
FIELD_CHARS_MAX: Final = 8_000
LINE_CHARS_MAX: Final = 16_000
TRACEBACK_CHARS_MAX: Final = 64_000


def setup(level: str = "info", format: str = "auto", *, stream: TextIO | None = None) -> None:
    """Send all log lines to `stream` (default stderr), replacing what was set up before.

    Args:
        level: debug, info, warning or error; for our loggers.
        format: console, json, or auto: console when `stream` is a terminal.
    """
    stream = stream or sys.stderr
    if format == "auto":
        format = "console" if stream.isatty() else "json"
    handler = LimitedHandler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else ConsoleFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
    logging.captureWarnings(True)


@dataclass(slots=True)
class _Kind:
    """One kind of line: those of one format string.

    Attributes:
        burst, refill_s: So many at most at once, and a further one each so many seconds.
        left: So many may be written at once.
        refilled_s: When `left` was last brought up to date.
        left_out: So many were left out since the last one that was written.
        name: The name of the kind.
    """

    burst: int
    refill_s: float
    left: float
    refilled_s: float
    left_out: int = 0
    name: str = ""


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes lines, of each kind no more than L4 says. How many it left out is told with the next line of any kind
    that comes after `REFILL_S`, or at the end.

    Args:
        clock: Seconds.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}
        self._told_s = clock()
        self._is_short = False  # something was left out and is not told yet

    def emit(self, record: logging.LogRecord) -> None:
        """Under the handler's lock, as `handle` calls it."""
        now = self._clock()
        if self._is_short and now - self._told_s >= REFILL_S:
            self._tell()
        if record.levelno < logging.INFO or _is_whole(record) or self._admits(record, now):
            super().emit(record)

    def close(self) -> None:
        """Tell what was left out."""
        if self._is_short:
            self._tell()
        super().close()

    def _admits(self, record: logging.LogRecord, now: float) -> bool:
        key = str(record.msg)
        kind = self._kinds.get(key)
        if kind is None:
            burst, refill_s = (BURST, REFILL_S) if record.levelno > logging.INFO else (INFO_BURST, INFO_REFILL_S)
            shared = "" if record.levelno > logging.INFO else "info"
            found = key if len(self._kinds) < KINDS_MAX else shared
            kind = self._kinds.setdefault(found, _Kind(burst, refill_s, burst, now))
        kind.left = min(kind.burst, kind.left + (now - kind.refilled_s) / kind.refill_s)
        kind.refilled_s = now
        if kind.left < 1:
            kind.left_out += 1
            kind.name = _name_of(record)
            self._is_short = True
            return False
        kind.left -= 1
        return True

    def _tell(self) -> None:
        self._is_short, self._told_s = False, self._clock()
        for kind in self._kinds.values():
            if kind.left_out:
                text = f"log.left_out event={kind.name} lines={kind.left_out}"
                kind.left_out = 0
                super().emit(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))


def _is_whole(record: logging.LogRecord) -> bool:
    return getattr(record, "is_whole", False)


def _name_of(record: logging.LogRecord) -> str:
    found = _EVENT.match(str(record.msg))
    return found.group() if found else record.name


class ConsoleFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO  partition.opened stream=orders partition=0`, then a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname:<7} {_line(record)[0]}"
        exception = _exception(self, record)
        return f"{line}\n{exception}" if exception else line


class JsonFormatter(logging.Formatter):
    """One JSON object: time (UTC, ISO 8601), level, logger, event, fields, text and, if any, exception."""

    def format(self, record: logging.LogRecord) -> str:
        text, event, fields = _line(record)
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


def _line(record: logging.LogRecord) -> tuple[str, str | None, dict[str, object]]:
    """The text of a line, its event and its fields (L1, L5)."""
    form, given = str(record.msg), record.args
    found = _EVENT.match(form)
    if found is not None and given and isinstance(given, tuple):
        try:
            values = _values(form[found.end() :], given, None if _is_whole(record) else FIELD_CHARS_MAX)
        except (TypeError, ValueError):
            pass
        else:
            text = " ".join((found.group(), *(f"{key}={value}" for key, value in values)))
            if not _is_whole(record):
                text = text[:LINE_CHARS_MAX]
            return text, found.group(), {key: _value(value) for key, value in values}
    try:
        text = record.getMessage()
    except (TypeError, ValueError):  # a line whose arguments do not fit must not be lost
        text = f"{form} {given!r}"
    text = printable(_harmless(text), LINE_CHARS_MAX)
    return text, *parse(text)


def _values(form: str, given: tuple[object, ...], chars_max: int | None) -> list[tuple[str, str]]:
    """The fields of a format string, each filled in for itself. Raises ValueError where that is not all there is."""
    pairs, at = _FIELD.findall(form), 0
    if re.sub(r"\s+", "", form) != "".join(f"{key}={value}" for key, value in pairs).replace(" ", ""):
        raise ValueError("text beside the fields")
    values = []
    for key, part in pairs:
        count = len(_SPEC.findall(part.replace("%%", "")))
        text = part % given[at : at + count]
        values.append((key, printable(_harmless(text), chars_max)))
        at += count
    if at != len(given):
        raise ValueError("arguments beside the fields")
    return values


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    """The traceback: each line for itself, indented, so that none of them is taken for an event."""
    if not record.exc_info or record.exc_info[0] is None:
        return None
    text = _harmless(formatter.formatException(record.exc_info))[-TRACEBACK_CHARS_MAX:]
    return "\n".join(f"    {printable(line)}" for line in text.split("\n"))


def _harmless(text: str) -> str:
    """L2."""
    return shown(without_credentials(text))


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
