"""Goal: who publishes Liftbridge's envelopes on NATS finds records with key, headers and value.

Method: a real nats-server, a broker process and stock nats-py. The message is written by protobuf's own library.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import pytest

pytest.importorskip("google.protobuf", reason="Liftbridge's API needs protobuf: the extra `liftbridge`")

from broker.api.proto import liftbridge_pb2 as pb
from broker.client import connect
from tests.support.processes import BrokerProcess, NatsServer, running
from tests.unit.ingest.envelopes import checked, envelope

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

WAIT_S = 60


def published(value: bytes, **fields: Any) -> bytes:
    record = pb.Record(value=value, **fields)
    inner: bytes = record.SerializeToString()
    return inner


def request(server: NatsServer, subject: str, *payloads: bytes) -> None:
    """Publish, each message when the one before it is stored."""

    async def run() -> None:
        connection = await nats.connect(server.url)
        for payload in payloads:
            await connection.request(subject, payload, timeout=WAIT_S)
        await connection.close()

    asyncio.run(run())


def rows_of(broker: BrokerProcess, stream: str) -> list[Any]:
    """Key, value and headers of each record."""
    with connect(broker.address) as client:
        found = [row for batch in client.read(stream) for row in batch.to_pylist()]
    headers = [[(each["key"], each["value"]) for each in row["headers"] or ()] for row in found]
    return [(row["key"], row["value"], pairs) for row, pairs in zip(found, headers, strict=True)]


def test_an_envelope_is_a_record_with_key_and_headers(tmp_path: Path) -> None:
    inner = published(b"v", key=b"k", headers={"h": b"1"}, ack_policy=pb.ALL)
    damaged = checked(inner, crc=7)
    with running(tmp_path) as (server, broker):
        with connect(broker.address) as client:
            client.create_stream("orders", subject="orders")
        request(server, "orders", envelope(inner), checked(inner), damaged, b"plain")
        stored = [(b"k", b"v", [("h", b"1")])] * 2 + [(None, damaged, []), (None, b"plain", [])]
        assert rows_of(broker, "orders") == stored
        broker.stop()
        broker.env["LIFTLOG_NATS_ENVELOPES"] = "false"
        broker.start()
        request(server, "orders", envelope(inner))
        assert rows_of(broker, "orders") == [*stored, (None, envelope(inner), [])]
