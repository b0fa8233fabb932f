"""The Python client: sync, over HTTP; what the command line, Spark, notebooks and tests use.

    client.py         `connect`, `Client`: records, positions, the cluster, and what the next two add
    streams.py        its calls about streams: make, describe, change, delete
    consumers.py      its calls about consumers: how far each is, how far behind
    ranges.py         what a read covers: its start and end resolved to offsets
    reader.py         `RecordReader`: records of a stream as Arrow batches
    producer.py       `Producer`: records to a stream, batched (outgoing.py, partitioner.py, deliveries.py), each once
                      (sequences.py)
    nats_publish.py   messages to a NATS subject, acks counted (loads nats-py when called; nats_connection.py)
    answers.py        what brokers answer, as frozen dataclasses
    positions.py      positions in a stream, as users name them
    fetch.py          one partition's records, the low level (Spark's executors use only this)
    sinks.py          `Sink`: records committed batch by batch, each once
    append.py         records to one partition, one request (Spark's sink uses only this)
    calls.py          calls of the JSON API, repeated while that is safe
    gathering.py      wanted columns out of many messages, for Spark (compiled: _gathering.pyx; memory.py)
    checking.py       the check of a message, compiled where that was built
    frames.py         an answer's body as verified batches
    brokers.py        whom to ask, and what the answer means
    pool.py           HTTP exchanges over kept connections
    patience.py       pauses and deadlines after failures
    outages.py        says once that it waits, and once that it goes on
    records.py        records as users have them, as Arrow
    interrupt.py      ending another thread's wait
    forks.py          what starts afresh in a forked child
    address.py        where brokers are

Names are loaded when they are asked for, so that `broker.client.fetch` costs only what it needs. Nothing
here loads nats-py, aiohttp, grpc, pandas or pyspark by being imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.client.address import Address, parse_addresses
    from broker.client.answers import (
        Appended,
        BrokerDescription,
        ClusterDescription,
        ConsumerLag,
        PartitionDescription,
        PartitionLag,
        Readiness,
        Resolved,
        StreamDescription,
        Watch,
        WatchedPartition,
        WatchedStream,
    )
    from broker.client.client import Client, connect
    from broker.client.deliveries import BatchFuture, RecordFuture
    from broker.client.nats_publish import PublishInterrupted, PublishReport, publish
    from broker.client.positions import Position
    from broker.client.producer import Producer
    from broker.client.reader import RecordReader
    from broker.client.sinks import Sink, SinkDescription, Stage

_HOME: Final = {
    **dict.fromkeys(("Address", "parse_addresses"), "address"),
    **dict.fromkeys(
        (
            "Appended",
            "BrokerDescription",
            "ClusterDescription",
            "ConsumerLag",
            "PartitionDescription",
            "PartitionLag",
            "Readiness",
            "Resolved",
            "StreamDescription",
            "Watch",
            "WatchedPartition",
            "WatchedStream",
        ),
        "answers",
    ),
    **dict.fromkeys(("Client", "connect"), "client"),
    **dict.fromkeys(("BatchFuture", "RecordFuture"), "deliveries"),
    **dict.fromkeys(("PublishInterrupted", "PublishReport", "publish"), "nats_publish"),
    "Position": "positions",
    "Producer": "producer",
    "RecordReader": "reader",
    **dict.fromkeys(("Sink", "SinkDescription", "Stage"), "sinks"),
}
__all__ = [
    "Address",
    "Appended",
    "BatchFuture",
    "BrokerDescription",
    "Client",
    "ClusterDescription",
    "ConsumerLag",
    "PartitionDescription",
    "PartitionLag",
    "Position",
    "Producer",
    "PublishInterrupted",
    "PublishReport",
    "Readiness",
    "RecordFuture",
    "RecordReader",
    "Resolved",
    "Sink",
    "SinkDescription",
    "Stage",
    "StreamDescription",
    "Watch",
    "WatchedPartition",
    "WatchedStream",
    "connect",
    "parse_addresses",
    "publish",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
