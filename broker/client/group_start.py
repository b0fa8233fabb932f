"""Where a consumer group begins a partition that it has never read.

earliest   at the first record that is there
latest     behind what was there when `read` was called. A partition that was added since, or is of a stream that was
           deleted and made anew, has nothing but records that came later: it begins at its first record. So does one of
           which that end is gone by now
datetime   at the first record that is not older; where there is none yet, at the next one that comes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from broker.api.answers import Resolved, StreamDescription
from broker.api.errors import InvalidRequest, Retryable, UnknownPartition, UnknownStream
from broker.client.positions import At, Position, at_json

Place = tuple[str, int]
Resolve = Callable[[Iterable[Position]], list[Resolved]]


class GroupStart:
    """What one member chose.

    Args:
        describe, resolve: As `Client` has them.
        resolve_in_time: As `resolve`; what no broker can tell at the moment is asked for again.
        at: As above.
        streams: Those of the member.
    Raises:
        InvalidRequest: `at` is none of these. With `latest`: whatever keeps an end from being known.
    """

    def __init__(
        self,
        describe: Callable[[str], StreamDescription],
        resolve: Resolve,
        resolve_in_time: Resolve,
        at: At,
        streams: Sequence[str],
    ) -> None:
        if not isinstance(at, str | datetime):
            raise InvalidRequest(f"start={at!r}: must be 'earliest', 'latest' or a datetime; reset_group takes offsets")
        at_json(at)
        self._resolve = resolve
        self._at: At = "earliest" if at == "latest" else at
        self._ends: dict[tuple[Place, str | None], int] = {}
        if at == "latest":
            counts = {stream: describe(stream).partition_count for stream in streams}
            places = [(stream, number) for stream in streams for number in range(counts[stream])]
            for end in resolve_in_time(Position(*place, at) for place in places):
                if end.error is not None:
                    raise end.error
                if end.offset is not None:
                    self._ends[(end.stream, end.partition), end.incarnation] = end.offset

    def offsets(self, places: Sequence[Place]) -> dict[Place, int]:
        """Where each begins. Those that are gone, or that no broker can tell at the moment, are left out.

        Raises:
            LiftlogError: why one cannot be read, where that does not pass.
        """
        found = self._resolve(Position(stream, number, self._at) for stream, number in places)
        firsts = {}
        for at, each in zip(places, found, strict=True):
            if each.error is not None and not isinstance(each.error, (Retryable, UnknownStream, UnknownPartition)):
                raise each.error
            first = each.high_watermark if each.offset is None else each.offset
            if each.error is None and first is not None:
                firsts[at] = max(first, self._ends.get((at, each.incarnation), first))
        return firsts
