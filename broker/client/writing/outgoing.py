"""Records on their way out: what a user hands over, checked, and as Arrow. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from broker.api.answers import StreamDescription
from broker.api.errors import InvalidRecords, InvalidSubject
from broker.api.schema import HEADERS_TYPE
from broker.api.stream import check_subject
from broker.client.positions import timestamp_us, whole
from broker.client.writing.deliveries import Delivery

RECORD_OVERHEAD_BYTES: Final = 32
"""Approximate cost of a record beside its own bytes: offset, timestamp, an entry in each column."""

Headers = Mapping[str, bytes | str] | Sequence[tuple[str, bytes | str]]
Pairs = list[tuple[str, bytes]]


@dataclass(slots=True)
class Outgoing:
    """Records of one partition that will be sent together: single ones, or `rows`.

    Attributes:
        began_s: When the first record came, by the monotonic clock.
        byte_count: Approximate size of the records.
    """

    partition: int
    began_s: float
    rows: pa.RecordBatch | None = None
    delivery: Delivery = field(default_factory=Delivery)
    byte_count: int = 0
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    subjects: list[str | None] = field(default_factory=list)
    timestamps_us: list[int | None] = field(default_factory=list)
    headers: list[Pairs | None] = field(default_factory=list)

    @property
    def record_count(self) -> int:
        return len(self.values) if self.rows is None else int(self.rows.num_rows)

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        subject: str | None,
        time_us: int | None,
        headers: Pairs | None,
        size: int,
    ) -> None:
        """One more record, of `size` bytes."""
        self.values.append(value)
        self.keys.append(key)
        self.subjects.append(subject)
        self.timestamps_us.append(time_us)
        self.headers.append(headers)
        self.byte_count += size + RECORD_OVERHEAD_BYTES

    def as_rows(self) -> pa.RecordBatch:
        """As Arrow, without the columns that no record has."""
        if self.rows is not None:
            return self.rows
        columns = {"value": pa.array(self.values, pa.binary())}
        for name, values, kind in (
            ("key", self.keys, pa.binary()),
            ("subject", self.subjects, pa.string()),
            ("timestamp", self.timestamps_us, pa.timestamp("us", tz="UTC")),
            ("headers", self.headers, HEADERS_TYPE),
        ):
            if any(value is not None for value in values):
                columns[name] = pa.array(values, kind)
        return pa.record_batch(columns)


def record_bytes(value: bytes | None, key: bytes | None, subject: str, headers: Pairs | None) -> int:
    """The size that the broker compares with `record_bytes_max`."""
    size = len(value or b"") + len(key or b"") + len(subject)
    return size if headers is None else size + sum(len(name.encode()) + len(text) for name, text in headers)


def default_subject(stream: StreamDescription) -> str:
    """The subject of a record without one: that of the stream if it is concrete, else the name of the stream."""
    subject = stream.settings.get("subject")
    is_concrete = isinstance(subject, str) and not {"*", ">"} & set(subject.split("."))
    return str(subject) if is_concrete else stream.name


def pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch in parts of at most `bytes_max` bytes, or of one row; none if it has no rows."""
    if batch.num_rows > 1 and batch.nbytes > bytes_max:
        half = batch.num_rows // 2
        yield from pieces(batch.slice(0, half), bytes_max)
        yield from pieces(batch.slice(half), bytes_max)
    elif batch.num_rows:
        yield batch


def as_bytes(data: Any) -> bytes | None:
    """Bytes as they are, text as UTF-8. Raises InvalidRecords for anything else."""
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise InvalidRecords(f"a value or key must be bytes, text or None, not {type(data).__name__}")


def as_pairs(headers: Headers) -> Pairs:
    """Headers in order. Raises InvalidRecords."""
    pairs = []
    try:
        given = list(headers.items() if isinstance(headers, Mapping) else headers)
        named = [(name, text) for name, text in given]
    except (TypeError, ValueError) as error:
        raise InvalidRecords(
            f"headers must be a dict or pairs of name and text, not {type(headers).__name__} ({error})"
        ) from error
    for name, text in named:
        if not isinstance(name, str):
            raise InvalidRecords(f"a header's name must be text, not {type(name).__name__}")
        pairs.append((name, as_bytes(text) or b""))
    return pairs


def as_timestamp_us(time: datetime | int) -> int:
    """Microseconds since 1970 UTC. Raises InvalidRecords, InvalidRequest (no time zone)."""
    if isinstance(time, datetime):
        return timestamp_us(time)
    time_us = whole(time)
    if time_us is None or not -(1 << 63) <= time_us < 1 << 63:
        raise InvalidRecords(f"timestamp {time!r}: must be a datetime or microseconds since 1970, a whole number")
    return time_us


@lru_cache(maxsize=10_000)
def concrete(subject: str) -> str:
    """A subject that a record may have. Raises InvalidSubject."""
    if not isinstance(subject, str):
        raise InvalidSubject(f"subject {subject!r}: must be text, not {type(subject).__name__}")
    return check_subject(subject, wildcards=False)
