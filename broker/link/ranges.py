"""The answer to a replica that is damaged: the batches here that hold what it cannot read.

    own log      the first part of the range that is whole, each batch verified
    beside it    else what was moved aside

O1  Leading or not, committed or not: the asking log compares the leader epochs, which name the records (`mending.M1`).
O2  A batch that turns out to be damaged here is noted: this replica asks for it, too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.api.errors import BadBatch, LiftlogError
from broker.node.folders import ASIDE
from broker.replication.messages import AskRange
from broker.storage.aside import read_aside, was_compacted
from broker.storage.log import PartitionLog
from broker.storage.read import verified_messages
from broker.storage.writing.append import messages_of

RANGE_BYTES: Final = 16 << 20
"""Most bytes of one answer; a single batch may be larger. The segment is written anew for each."""
TRIES: Final = 8


class PartHeld(NamedTuple):
    """Batches, the part of the range that they hold, and whether some of the range is damaged here."""

    start: int
    end: int
    data: bytes
    is_damaged: bool


def held(log: PartitionLog, ask: AskRange, *, bytes_max: int = RANGE_BYTES) -> PartHeld:
    """What this replica has of a range. Reads the disk."""
    for _ in range(TRIES):
        try:
            found = _stored(log, ask.start, ask.end, bytes_max)
        except (LiftlogError, OSError):
            found = PartHeld(ask.start, ask.start, b"", False)
        if found is not None:
            break
    else:
        found = PartHeld(ask.start, ask.start, b"", True)
    if found.data or not ask.takes_aside:
        return found
    try:
        if was_compacted(log):
            return found
    except LiftlogError:
        return found
    data = aside(log, ask.start, ask.end, bytes_max=bytes_max)
    return found if data is None else data._replace(is_damaged=found.is_damaged)


def aside(log: PartitionLog, start: int, end: int, *, bytes_max: int = RANGE_BYTES) -> PartHeld | None:
    """What was moved aside from this log's folder."""
    data = read_aside(
        log.state.disk,
        log.state.folder + ASIDE,
        start,
        end,
        log.state.identity,
        bytes_max=bytes_max,
        is_encrypted=log.state.is_encrypted,
        keyring=log.state.settings.keyring,
    )
    return _held(data, start, end, False) if data else None


def _stored(log: PartitionLog, start: int, end: int, bytes_max: int) -> PartHeld | None:
    """None: some of it has turned out to be damaged (O2), so that it is to be looked up again."""
    lost = log.state.lost_ranges
    first = max(start, log.state.log_start_offset)
    for begin, after in lost:
        if begin <= first < after:
            first = after
    is_damaged = any(begin < end and start < after for begin, after in lost)
    if first >= min(end, log.state.log_end_offset):
        return PartHeld(start, start, b"", is_damaged)
    pieces: list[bytes] = []
    with log.reader.read(first, end=end, max_bytes=bytes_max, stored=True) as plan:
        for place, (segment, file) in zip(plan.ranges, plan.sources, strict=True):
            try:
                pieces += [bytes(message) for message, _ in verified_messages(file, place)]
            except BadBatch:
                log.state.repair(segment)
                return None
    return _held(b"".join(pieces), start, end, is_damaged)


def _held(data: bytes, start: int, end: int, is_damaged: bool) -> PartHeld:
    headers = [header for header, _ in messages_of(memoryview(data))]
    if not headers:
        return PartHeld(start, start, b"", is_damaged)
    return PartHeld(max(start, headers[0].first_offset), min(end, headers[-1].next_offset), data, is_damaged)
