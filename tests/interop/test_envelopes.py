"""Goal: who publishes Liftbridge's envelopes on NATS finds records with key, headers and value, and acks at the inbox.

Method: a real nats-server, a broker process and stock nats-py. The message is written, and the ack read, by protobuf's
own library and by go-liftbridge, which `go` fetches itself and is skipped by its name where that is not there.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
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
ACK = bytes.fromhex("b90e43b4 00 08 00 01")
PROGRAM = Path(__file__).parent / "go"


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
        with connect(broker.address) as client:
            assert client.describe("orders").settings["envelopes"] == "open"
            client.alter("orders", envelopes="keep")
        request(server, "orders", envelope(inner))
        assert rows_of(broker, "orders") == [*stored, (None, envelope(inner), [])]


def told(server: NatsServer, inbox: str, *sent: tuple[str, bytes], count: int) -> list[bytes]:
    """Publish; the first messages that come to an inbox then, and whether there is another behind them."""

    async def run() -> list[bytes]:
        connection = await nats.connect(server.url)
        subscription = await connection.subscribe(inbox)
        await connection.flush()
        for subject, payload in sent:
            await connection.publish(subject, payload, reply="_INBOX.elsewhere")
        return [(await subscription.next_msg(WAIT_S)).data for _ in range(count)]

    return asyncio.run(run())


def test_acks_come_to_the_inbox_and_nowhere_else(tmp_path: Path) -> None:
    with running(tmp_path) as (server, broker):
        with connect(broker.address) as client:
            client.create_stream("orders", subject="orders.*", record_bytes_max=2_000)
        inbox = {"ack_inbox": "_INBOX.me.1"}
        sent = [
            published(b"1", **inbox, correlation_id="a"),
            published(b"2", **inbox, correlation_id="b", ack_policy=pb.NONE),
            published(b"3", **inbox, correlation_id="c", ack_policy=pb.ALL),
            published(bytes(3_000), **inbox, correlation_id="d"),
            published(b"5", **inbox, correlation_id="e", headers={"Nats-Expected-Last-Sequence": b"1"}),
            published(b"6", **inbox, correlation_id="f", headers={"Nats-Msg-Id": b"1"}),
            published(b"7", **inbox, correlation_id="g", headers={"Nats-Msg-Id": b"1"}),
            published(b"8", ack_inbox="orders.new", correlation_id="h"),
            published(b"9", ack_inbox="_INBOX.me.1\r\nPUB orders.x 1\r\nx", correlation_id="i"),
            published(b"10", **inbox, correlation_id="j"),
        ]
        answers = told(server, "_INBOX.me.*", *(("orders.a", envelope(each)) for each in sent), count=7)
        acks = {ack.correlation_id: ack for ack in (pb.Ack.FromString(each.removeprefix(ACK)) for each in answers)}
        assert all(each.startswith(ACK) for each in answers)
        found = {name: (ack.offset, ack.error) for name, ack in acks.items()}
        assert found == {
            "a": (0, pb.Ack.OK),
            "c": (2, pb.Ack.OK),
            "d": (0, pb.Ack.TOO_LARGE),
            "e": (0, pb.Ack.INCORRECT_OFFSET),
            "f": (3, pb.Ack.OK),
            "g": (3, pb.Ack.OK),
            "j": (6, pb.Ack.OK),
        }
        ack = acks["c"]
        assert (ack.stream, ack.partition_subject, ack.subject) == ("orders", "orders.*", "orders.a")
        assert (ack.ack_inbox, ack.ack_policy) == ("_INBOX.me.1", pb.ALL)
        assert 0 < ack.received <= ack.committed
        assert [value for _, value, _ in rows_of(broker, "orders")] == [b"1", b"2", b"3", b"6", b"8", b"9", b"10"]


def test_go_liftbridge_makes_envelopes_and_reads_acks(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    shutil.copytree(PROGRAM, tmp_path / "go")
    built = subprocess.run(
        [go, "build", "-o", "program", "./envelope"], cwd=tmp_path / "go", capture_output=True, text=True, check=False
    )
    if built.returncode:
        pytest.skip(f"go-liftbridge cannot be built: {built.stderr[-300:]}")

    def program(*arguments: str) -> str:
        return subprocess.run(
            [tmp_path / "go" / "program", *arguments], capture_output=True, text=True, check=True
        ).stdout

    with running(tmp_path) as (server, broker):
        with connect(broker.address) as client:
            client.create_stream("orders", subject="orders", partitions=2)
        policies = {"leader": "0", "all": "1"}
        for offset, (policy, number) in enumerate(policies.items()):
            made = bytes.fromhex(program("make", policy, "_INBOX.go"))
            [answer] = told(server, "_INBOX.go", ("orders.1", made), count=1)
            assert program("read", answer.hex()) == f"orders orders.1 orders.1 {offset} _INBOX.go c-1 {number} true"
        assert rows_of(broker, "orders") == [(b"key", b"value", [("h", b"1")])] * 2
