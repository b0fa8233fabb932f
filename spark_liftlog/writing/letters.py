"""Dead letters: rows that cannot be written, as records of another stream, with the reason in their headers.

A letter is its row, as far as it can be a record: key, value (null with a key stays null), subject, headers. Headers of
its own tell the rest. Rows are few here, so they are made one by one.

    Liftlog-Error         LIFTLOG_<REASON>: text
    Liftlog-Stream        where the row was to go
    Liftlog-Row           task/row, from 0
    Liftlog-Subject       the subject, where it is none that a record may have, or has no room
    Liftlog-Null          "value", where value and key were null: a record needs one of them
    Liftlog-Headers       how many headers there were, where some had no name, or no room
    Liftlog-Key-Bytes     how long the key was, where it is cut
    Liftlog-Value-Bytes   how long the value was, where it is cut

L4  A letter is never larger than its stream takes. A quarter of that is for the reason, a quarter for headers, an
    eighth each for key and subject, some 300 bytes for the rest, and the value has what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from broker.api.errors import InvalidSetting, InvalidSubject, LiftlogError
from broker.api.schema import HEADERS_TYPE
from broker.api.stream import NAME_BYTES_MAX, check_subject
from spark_liftlog.writing.rows import Target

LETTER_BYTES_MIN: Final = 1280
"""A stream must take records of so many bytes, so that a letter has room for what is no quarter or eighth (L4)."""
ERROR_LENGTH_MAX: Final = 1000

_SCHEMA: Final = pa.schema(
    [("value", pa.binary()), ("key", pa.binary()), ("subject", pa.string()), ("headers", HEADERS_TYPE)]
)


def letters_of(
    rows: pa.RecordBatch, error: LiftlogError, *, stream: str | None, places: Iterable[str], target: Target
) -> pa.RecordBatch:
    """Letters for rows that have one reason in common.

    Args:
        rows: Record columns.
        stream: Where they were to go.
        places: Where the rows are, as task/row.
        target: The stream of the letters.
    Raises:
        InvalidSetting: that stream takes records that are too small for letters.
    """
    check_room(target)
    reason = _cut(f"LIFTLOG_{error.reason.upper()}: {error}", min(ERROR_LENGTH_MAX, target.record_bytes_max // 4))
    told = {"Liftlog-Error": reason, "Liftlog-Stream": _cut(stream or "", NAME_BYTES_MAX)}
    letters = [
        _letter(row, {**told, "Liftlog-Row": place}, target)
        for row, place in zip(rows.to_pylist(), places, strict=True)
    ]
    return pa.RecordBatch.from_pylist(letters, schema=_SCHEMA)


def check_room(target: Target) -> None:
    """Refuse a stream that takes no letters: InvalidSetting."""
    if target.record_bytes_max < LETTER_BYTES_MIN:
        raise InvalidSetting(
            f"option deadLetterStream={target.stream!r}: it takes records of {target.record_bytes_max} bytes"
            f" (record_bytes_max), a letter may need {LETTER_BYTES_MIN}",
            key="deadLetterStream",
            value=target.stream,
            limit=LETTER_BYTES_MIN,
        )


def _letter(row: Mapping[str, Any], told: dict[str, str], target: Target) -> dict[str, Any]:
    room = target.record_bytes_max
    key, value, subject = row.get("key"), row["value"], row.get("subject")
    if key is None and value is None:
        told["Liftlog-Null"], value = "value", b""
    if subject is not None and (len(subject.encode()) > room // 8 or not _is_subject(subject)):
        told["Liftlog-Subject"], subject = _cut(subject, room // 8), None
    if key is not None and len(key) > room // 8:
        told["Liftlog-Key-Bytes"], key = str(len(key)), key[: room // 8]
    given = row.get("headers") or []
    kept, size = [], 0
    for header in given:
        if header is not None and header["key"] is not None:
            size += len(header["key"].encode()) + len(header["value"] or b"")
            if size > room // 4:
                break
            kept.append(header)
    if len(kept) < len(given):
        told["Liftlog-Headers"] = str(len(given))
    length = 0 if value is None else len(value)
    spent = len((target.subject if subject is None else subject).encode()) + len(key or b"")
    spent += sum(len(header["key"].encode()) + len(header["value"] or b"") for header in kept)
    spent += sum(len(name) + len(text.encode()) for name, text in told.items())
    if value is not None and spent + length > room:
        told["Liftlog-Value-Bytes"] = str(length)
        spent += len("Liftlog-Value-Bytes") + len(str(length))
        value = value[: room - spent]
    kept += [{"key": name, "value": text.encode()} for name, text in told.items()]
    return {"value": value, "key": key, "subject": subject, "headers": kept}


def _cut(text: str, bytes_max: int) -> str:
    return text.encode()[:bytes_max].decode(errors="ignore")


def _is_subject(text: str) -> bool:
    try:
        check_subject(text, wildcards=False)
    except InvalidSubject:
        return False
    return True
