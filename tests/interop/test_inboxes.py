"""Goal: who publishes over gRPC with an ack inbox is acked on NATS too, where `nats.reply_prefixes` lets it.

Method: a real nats-server, a broker process, grpcio and stock nats-py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import nats
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.proto import liftbridge_pb2 as pb
from tests.support.liftbridge import Client
from tests.support.processes import NatsServer, free_port, running

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

WAIT_S = 60
ACK = bytes.fromhex("b90e43b4 00 08 00 01")


def told(server: NatsServer, client: Client) -> list[bytes]:
    """What comes to two inboxes."""

    async def run() -> list[bytes]:
        connection = await nats.connect(server.url)
        told = await connection.subscribe("_INBOX.mine")
        other = await connection.subscribe("other.>")
        await connection.flush()
        for inbox in ("other.inbox", "_INBOX.mine"):
            asked = {"value": b"v", "ack_inbox": inbox, "correlation_id": inbox}
            await asyncio.to_thread(lambda: client.call("Publish", stream="a", **asked))  # noqa: B023
            await asyncio.to_thread(lambda: client.call("PublishToSubject", subject="s", **asked))  # noqa: B023
        found = [(await told.next_msg(WAIT_S)).data for _ in range(3)]
        assert other.pending_msgs == 0, "it came before these"
        await connection.close()
        return found

    return asyncio.run(run())


def test_acks_go_to_the_inbox_of_a_publisher_over_grpc(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with (
        running(tmp_path, LIFTLOG_LIFTBRIDGE_LISTEN=address) as (server, _),
        grpc.insecure_channel(address) as channel,
    ):
        client = Client(channel)
        for name in ("a", "b"):
            client.call("CreateStream", name=name, subject="s")
        acks = [pb.Ack.FromString(each.removeprefix(ACK)) for each in told(server, client)]
        assert sorted((ack.stream, ack.offset) for ack in acks) == [("a", 2), ("a", 3), ("b", 1)]
        assert {(ack.ack_inbox, ack.correlation_id, ack.subject) for ack in acks} == {
            ("_INBOX.mine", "_INBOX.mine", "s")
        }
