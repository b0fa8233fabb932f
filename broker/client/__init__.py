"""The Python client: sync, over HTTP; what the command line, Spark, notebooks and tests use.

    client.py           `connect`, `Client`: records, positions, and what the next three add
    streams.py          its calls about streams: make, describe, change, delete
    consumers.py        its calls about consumers: how far each is, how far behind
    groups.py           its calls about consumer groups
    group.py            `ReadingGroup`, `GroupReader`: streams read as a member of a group
    group_start.py      where a group begins what it has never read
    operating.py        its calls about the cluster: who keeps what, moved by hand
    access.py           its calls about who may do what: tokens, grants
    positions.py        positions in a stream, as users name them
    reader.py           `RecordReader`: records of a stream as Arrow batches
    tables.py, table.py `KeyedTable`: the newest value of each key
    producer.py         `Producer`: records to a stream, batched
    sinks.py            `Sink`: records committed batch by batch, each once
    renewing.py         says for open sinks that their runs live
    nats_publish.py     messages to a NATS subject, acks counted (loads nats-py when called)
    nats_connection.py  a connection to NATS that says soon why there is none
    nats_tls.py         `tls://` means TLS

    http/               calls to brokers: addresses, pooled connections, retries, answers
    payload/            values of records as columns
    reading/            one partition's records, the low level (Spark's executors use only this)
    writing/            records on their way to a broker

Names are loaded when they are asked for, so that `broker.client.reading.fetch` costs only what it needs. Nothing
here loads nats-py, aiohttp, grpc, pandas or pyspark by being imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.api.answers import (
        Appended,
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
    from broker.api.placements import BrokerDescription, ClusterDescription, Drained, Elected, GivenUp, Placement
    from broker.api.sink_answers import SinkDescription, Stage
    from broker.client.client import Client, connect
    from broker.client.http.address import Address, parse_addresses
    from broker.client.nats_publish import PublishInterrupted, PublishReport, publish
    from broker.client.positions import Position
    from broker.client.producer import Producer
    from broker.client.reader import RecordReader
    from broker.client.sinks import Sink
    from broker.client.table import KeyedTable
    from broker.client.writing.deliveries import BatchFuture, RecordFuture

_PLACES: Final = {
    "broker.api.placements": "BrokerDescription ClusterDescription Drained Elected GivenUp Placement",
    "broker.api.sink_answers": "SinkDescription Stage",
    ".client": "Client connect",
    ".http.address": "Address parse_addresses",
    ".nats_publish": "PublishInterrupted PublishReport publish",
    ".positions": "Position",
    ".producer": "Producer",
    ".reader": "RecordReader",
    ".sinks": "Sink",
    ".table": "KeyedTable",
    ".writing.deliveries": "BatchFuture RecordFuture",
}
_HOME: Final = {name: place for place, names in _PLACES.items() for name in names.split()}
"""Where each name of `__all__` is; what is not here is in `broker.api.answers`."""
__all__ = [
    "Address",
    "Appended",
    "BatchFuture",
    "BrokerDescription",
    "Client",
    "ClusterDescription",
    "ConsumerLag",
    "Drained",
    "Elected",
    "GivenUp",
    "KeyedTable",
    "PartitionDescription",
    "PartitionLag",
    "Placement",
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
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME.get(name, "broker.api.answers"), __name__), name)


def __dir__() -> list[str]:
    return __all__
