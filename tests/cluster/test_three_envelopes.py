"""Goal: while brokers are renewed, and the feature level rises, a message with an envelope is stored once, by whoever
leads its partition, in streams that are sorted by keys too.

Method: three real brokers, one of which opens no envelopes and knows no setting of it. A publisher asks for acks,
and repeats what has none. Amid that the broker is renewed, a stream that opens envelopes is made, and one is altered.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import nats
import nats.errors
import pytest

from broker.api.errors import InvalidSetting
from broker.api.stream import SINCE
from broker.client import Client
from broker.metadata.cluster import FEATURE_LEVEL
from tests.support.clusters import RealCluster
from tests.support.processes import NatsServer, eventually
from tests.unit.ingest.envelopes import envelope, message

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

KEYS = 40
PARTITIONS = 6
BEFORE = SINCE["envelopes"] - 1


def payload(number: int) -> bytes:
    return envelope(message(b"%d" % number, key=b"k%d" % (number * 7 % KEYS)))


class Publishing:
    """A publisher in a thread; message n is `payload(n)`, and comes again until it is acked. `acked`: so many."""

    def __init__(self, url: str) -> None:
        self.acked = 0
        self._url = url
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._publish())
        except BaseException as error:
            self._error = error

    async def _publish(self) -> None:
        connection = await nats.connect(self._url)
        while not self._stop.is_set():
            subject, headers = f"orders.{self.acked % KEYS}", {"Nats-Msg-Id": str(self.acked)}
            try:
                answer = await connection.request(subject, payload(self.acked), timeout=1.0, headers=headers)
            except (TimeoutError, nats.errors.Error):
                continue
            self.acked += b'"error"' not in answer.data
        await connection.close()

    def more(self, count: int) -> int:
        """Wait for so many more; how many there are."""
        goal = self.acked + count
        eventually(lambda: self._error is not None or self.acked >= goal, timeout_s=120.0, what="acks")
        assert self._error is None, self._error
        return self.acked

    def stop(self) -> int:
        self._stop.set()
        self._thread.join(60)
        assert self._error is None, self._error
        return self.acked


def values(client: Client, stream: str) -> Counter[bytes]:
    return Counter(client.read(stream).to_table()["value"].to_pylist())


def test_each_message_is_stored_once_while_the_level_rises(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats").start()

    def command(broker: str) -> tuple[str, ...]:
        earlier = ("tests.support.earlier_broker", str(BEFORE))
        return earlier if broker == "c" else ("broker.cli.main", "broker")

    cluster = RealCluster(tmp_path, server, command=command)
    try:
        cluster.start()
        with cluster.client(deadline_s=60.0) as client:
            eventually(lambda: client.cluster().feature_level == BEFORE, timeout_s=60.0, what="the level of all three")
            keyed = {"partition_by": "key", "partitions": PARTITIONS, "replication_factor": 3}
            client.create_stream("keyed", subject="orders.*", **keyed)
            tokens = {"partition_by": "token:2", "partitions": PARTITIONS, "replication_factor": 3}
            client.create_stream("tokens", subject="orders.*", reply_acks=False, **tokens)
            assert client.describe("keyed").settings["envelopes"] is None
            publishing = Publishing(server.url)
            publishing.more(100)
            cluster.brokers["c"].stop()
            cluster.brokers["c"]._command = cluster.brokers["a"]._command
            cluster.brokers["c"].start(wait=False)
            cluster.wait_ready("c")
            publishing.more(100)
            eventually(
                lambda: client.cluster().feature_level == FEATURE_LEVEL, timeout_s=60.0, what="the level to rise"
            )
            publishing.more(100)
            with pytest.raises(InvalidSetting, match="keys decide its partitions"):
                client.alter("keyed", envelopes="open")
            client.alter("tokens", envelopes="open")
            publishing.more(100)
            opened = client.create_stream("opened", subject="orders.*", reply_acks=False, **keyed)
            assert opened.settings["envelopes"] == "open"
            first = publishing.more(2) - 1
            publishing.more(200)
            count = publishing.stop()
            assert values(client, "keyed") == Counter(payload(number) for number in range(count))
            found = values(client, "opened")
            assert {number: found[b"%d" % number] for number in range(first, count)} == dict.fromkeys(
                range(first, count), 1
            )
            found = values(client, "tokens")  # what a leader that stopped had not told cannot be repeated to this one
            either = {number: found[b"%d" % number] + found[payload(number)] for number in range(count)}
            assert max(either.values()) == 1
            assert found[b"%d" % (count - 1)] == 1, "it is opened by now"
            assert found[payload(0)] == 1
    finally:
        cluster.stop()
        server.stop()
