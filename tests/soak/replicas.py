"""K9: in the end all replicas have the same records, by pyarrow alone.

Each replica joins small batches, compacts and gives up segments by itself; so what is compared is each record of the
committed range, and of a compacted stream what two replicas both have.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tests.soak.checker import bounds, settled
from tests.soak.cluster import in_sync
from tests.soak.ledger import Ledger, Violation
from tests.soak.world import STREAMS, World


class Range(NamedTuple):
    """The committed records of a partition."""

    stream: str
    incarnation: str
    partition: int
    start: int
    end: int


def committed(world: World) -> list[Range]:
    """The committed ranges of all streams, once all replicas are in sync."""
    in_sync(world)
    found = []
    for stream in STREAMS:
        described = settled(world.client, stream)
        for one in described.partitions:
            start, end = bounds(one)
            found.append(Range(stream, described.incarnation, one.partition, start, end))
    return found


def check_replicas(folder: Path, brokers: list[str], ledger: Ledger, ranges: list[Range]) -> dict[str, int]:
    """K9, of brokers that have ended; figures. Raises Violation."""
    count = 0
    for one in ranges:
        may_compact = ledger.histories[one.stream].may_compact
        first, *others = (_rows(folder / broker / "data", one) for broker in brokers)
        if not may_compact and len(first) != one.end - one.start:
            raise Violation(f"K9: {brokers[0]} has {len(first)} records of {one}")
        for broker, other in zip(brokers[1:], others, strict=True):
            places = first.keys() & other.keys() if may_compact else first.keys() | other.keys()
            differ = sorted(offset for offset in places if first.get(offset) != other.get(offset))
            if differ:
                raise Violation(f"K9: {brokers[0]} and {broker} differ in {one} at {len(differ)} places: {differ[:5]}")
        count += len(first)
    return {"records of replicas": count} if ranges else {}


def _rows(data: Path, one: Range) -> dict[int, tuple[object, ...]]:
    """The committed records of a replica, by offset, whatever its segments and batches are."""
    rows: dict[int, tuple[object, ...]] = {}
    for segment in sorted((data / "streams" / one.stream / one.incarnation / str(one.partition)).glob("*.arrows")):
        with pa.ipc.open_stream(segment.read_bytes()) as stream:
            table = stream.read_all()
        columns = [table.column("timestamp").cast("int64"), *map(table.column, ("offset", "key", "headers", "value"))]
        for time_us, offset, *record in zip(*(column.to_pylist() for column in columns), strict=True):
            if one.start <= offset < one.end:
                rows[offset] = (time_us, *record)
    return rows
