"""What a data folder holds, as a client sees it: written beside a kept folder, and compared after it was opened.

Uses only what the clients of commit fcd1e96 and of this one have. A record is a hash of its offset, timestamp,
subject, key, value and headers. Records in lost ranges are left out.
"""

from __future__ import annotations

import hashlib
from typing import Any

from broker.client import Client, Position

COLUMNS = ("offset", "timestamp", "subject", "key", "value", "headers")


def records(client: Client, stream: str, partition: Any) -> list[tuple[int, str]]:
    """Offset and hash of each record of a partition, as it is described."""
    at, found = partition.log_start_offset, []
    for lost_start, lost_end in [*partition.lost_ranges, (partition.high_watermark, None)]:
        if at < lost_start:
            span = {"start": {partition.partition: at}, "end": {partition.partition: lost_start}}
            for batch in client.read(stream, partitions=[partition.partition], **span):
                found += hashes(batch)
        at = lost_end
    return found


def hashes(batch: Any) -> list[tuple[int, str]]:
    columns = [batch.column(name) for name in COLUMNS]
    columns[1] = columns[1].cast("int64")
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [(row[0], hashlib.sha256(repr(row).encode()).hexdigest()[:12]) for row in rows]


def streams(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for stream in client.streams():
        found[stream.name] = {
            "incarnation": stream.incarnation,
            "settings": dict(stream.settings),
            "paused": stream.paused,
            "read_only": stream.read_only,
            "replication_factor": stream.replication_factor,
            "min_insync_replicas": stream.min_insync_replicas,
            "partitions": [_partition(client, stream.name, each) for each in stream.partitions],
        }
    return found


def _partition(client: Client, stream: str, partition: Any) -> dict[str, Any]:
    found = records(client, stream, partition)
    number = partition.partition
    return {
        "log_start_offset": partition.log_start_offset,
        "high_watermark": partition.high_watermark,
        "leader_epoch": partition.leader_epoch,
        "lost_ranges": [list(each) for each in partition.lost_ranges],
        "epochs": epochs(client, stream, number, [offset + 1 for offset, _ in found[::5]]),
        "records": [list(each) for each in found],
    }


def epochs(client: Client, stream: str, partition: int, offsets: list[int]) -> list[list[int]]:
    """Offsets, each with the leader epoch of the record before it."""
    asked = client.resolve([Position(stream, partition, offset) for offset in offsets])
    return [[offset, one.leader_epoch] for offset, one in zip(offsets, asked, strict=True)]


def consumers(client: Client) -> dict[str, Any]:
    return {
        each.consumer: [
            [one.stream, one.partition, one.offset, one.leader_epoch, one.incarnation, one.committed_ms, one.metadata]
            for one in each.partitions
        ]
        for each in client.consumers()
    }


def sinks(client: Client) -> dict[str, Any]:
    return {each.sink: _sink(each) for each in client.sinks()}


def _sink(sink: Any) -> dict[str, Any]:
    last = sink.last
    decided = None
    if last is not None:
        names = ("batch_id", "decision", "owner", "epoch", "rows", "digest", "decided_ms", "complete")
        decided = {name: getattr(last, name) for name in names}
        decided |= {"attributes": dict(last.attributes), "stages": [stage.as_json() for stage in last.stages]}
    return {"current_epoch": sink.current_epoch, "checkpoint": sink.checkpoint, "last": decided}


def of(client: Client) -> dict[str, Any]:
    """Everything that is the same for whoever asks, now."""
    return {"streams": streams(client), "consumers": consumers(client), "sinks": sinks(client)}
