"""Positions in a stream as users name them, and as the HTTP API does. Pure.

"earliest"         the first offset that is still there
"latest"           the high watermark
42                 that offset
datetime           the first record that is not older; it must have a time zone
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import index
from typing import Any, Final

from broker.api.errors import InvalidRequest

At = str | int | datetime
"""A position, as above."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a partition, to be resolved.

    Attributes:
        at: As `At`, or an object of the HTTP API (`{"epoch": 3}`: the end of a leader epoch).
        incarnation: The stream's incarnation that is meant; None: whichever there is.
    """

    stream: str
    partition: int
    at: At | Mapping[str, Any]
    incarnation: str | None = None

    def as_json(self) -> dict[str, Any]:
        value = {"stream": self.stream, "partition": self.partition, "at": at_json(self.at)}
        return value if self.incarnation is None else {**value, "incarnation": self.incarnation}


def at_json(at: At | Mapping[str, Any]) -> str | dict[str, Any]:
    """A position as the HTTP API writes it.

    Raises:
        InvalidRequest: it is none.
    """
    if isinstance(at, Mapping):
        return dict(at)
    if isinstance(at, datetime):
        return {"timestamp_us": timestamp_us(at)}
    if isinstance(at, str):
        if at in ("earliest", "latest"):
            return at
    elif (offset := whole(at)) is not None and offset >= 0:
        return {"offset": offset}
    raise InvalidRequest(
        f"position {at!r}: must be 'earliest', 'latest', an offset (0 or more) or a datetime", position=repr(at)
    )


def whole(value: object) -> int | None:
    """A whole number as an int, numpy's and others' with `__index__`, too; None: it is none."""
    try:
        return None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def partition_numbers(partitions: Iterable[int]) -> list[int]:
    """Partitions as ints, each once. Raises InvalidRequest."""
    try:
        found = [whole(number) for number in partitions]
    except TypeError:
        found = [None]
    numbers = sorted({number for number in found if number is not None})
    if None in found:
        raise InvalidRequest(f"partitions={partitions!r}: must be a list of whole numbers, such as [0, 2]")
    return numbers


def timestamp_us(time: datetime) -> int:
    """Microseconds since 1970 UTC.

    Raises:
        InvalidRequest: it has no time zone, so nobody can know which moment is meant.
    """
    if time.tzinfo is None:
        raise InvalidRequest(f"the time {time} has no time zone; use datetime(..., tzinfo=timezone.utc)")
    return (time - _EPOCH) // timedelta(microseconds=1)
