"""Where a consumer group begins a partition that it has never read.

earliest   at the first record that is there
latest     behind what was there when `read` was called. A partition that was added since, or is of a stream that was
           deleted and made anew, has nothing but records that came later: it begins at its first record. So does one of
           which that end is gone by now. One whose tail was lost, and perhaps written anew, begins where that was
datetime   at the first record that is not older; where there is none yet, at the next one that comes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from broker.api.answers import Resolved, StreamDescription
from broker.api.errors import InvalidRequest, Retryable, StaleIncarnation, UnknownPartition, UnknownStream
from broker.client.positions import At, Position, at_json

Place = tuple[str, int]
Resolve = Callable[[Iterable[Position]], list[Resolved]]
_PASSES = (Retryable, UnknownStream, UnknownPartition, StaleIncarnation)


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
        self._ends: dict[Place, Resolved] = {}
        if at == "latest":
            counts = {stream: describe(stream).partition_count for stream in streams}
            places = [(stream, number) for stream in streams for number in range(counts[stream])]
            for end in resolve_in_time(Position(*place, at) for place in places):
                if end.error is not None:
                    raise end.error
                if end.leader_epoch >= 0:  # else no record was before it
                    self._ends[end.stream, end.partition] = end

    def offsets(self, places: Sequence[Place]) -> dict[Place, dict[str, Any]]:
        """Where each begins: `first`, and the `incarnation` it was found in. Those that are gone, or that no broker can
        tell at the moment, are left out.

        Raises:
            LiftlogError: why one cannot be read, where that does not pass.
        """
        begins = dict[Place, tuple[int, str]]()
        for at, found in self._found(Position(*at, self._at) for at in places).items():
            first = found.high_watermark if found.offset is None else found.offset
            if first is not None and found.incarnation is not None:
                begins[at] = first, found.incarnation
        ends = {at: end for at, end in self._ends.items() if at in begins and end.incarnation == begins[at][1]}
        kept = self._found(Position(*at, {"epoch": end.leader_epoch}, end.incarnation) for at, end in ends.items())
        for at, end in ends.items():
            first, incarnation = begins.pop(at)
            if (there := kept.get(at)) is not None and there.offset is not None and end.offset is not None:
                begins[at] = max(first, min(end.offset, there.offset)), incarnation
        return {  # brokers of earlier builds do not know the incarnation; no record of any is before 0
            at: {"first": first, "incarnation": incarnation} if first else {"first": 0}
            for at, (first, incarnation) in begins.items()
        }

    def _found(self, positions: Iterable[Position]) -> dict[Place, Resolved]:
        asked = list(positions)
        found = {}
        for at, each in zip(asked, self._resolve(asked) if asked else (), strict=True):
            if each.error is None:
                found[at.stream, at.partition] = each
            elif not isinstance(each.error, _PASSES):
                raise each.error
        return found
