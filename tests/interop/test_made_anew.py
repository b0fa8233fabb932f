"""Goal: amid publishers and groups a stream is deleted and made anew, and nothing of the one before counts in it.

Method: a real nats-server and a broker process. A publisher on NATS names the fence that it took of the first stream,
for ever; another one names the newest. A consumer does what go-liftbridge's does, and reads to the end.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import nats
import nats.errors
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.proto import liftbridge_pb2 as pb
from broker.client import connect
from tests.support.liftbridge import Client
from tests.support.processes import eventually, free_port, running

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

TIMES = 4
GROUP = {"group_id": "g", "consumer_id": "a"}


class Worker:
    """A function in a thread, again and again until the end."""

    def __init__(self, once: Callable[[], None]) -> None:
        self._once, self._stop = once, threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._once()
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self.error is None, self.error
        assert not self._thread.is_alive()


def publisher(url: str, fence: Callable[[], int], refused: list[int]) -> Callable[[], None]:
    """Messages of which each is the fence that it names."""

    async def some() -> None:
        connection = await nats.connect(url)
        for _ in range(20):
            named = fence()
            with suppress(TimeoutError, nats.errors.Error):
                answer = await connection.request("s", b"%d" % named, 1, headers={"Liftlog-Fence": str(named)})
                if b"writer_fenced" in answer.data:
                    refused.append(named)
        await connection.close()

    return lambda: asyncio.run(some())


class Consumer:
    """One of go-liftbridge's, as far as its calls go."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.joined = client.call("JoinConsumerGroup", **GROUP, streams=["s"])
        self.epoch, self.seen = -1, list[int]()

    def once(self) -> None:
        """Ask, and read what there is, if the share is another one."""
        with suppress(grpc.RpcError):
            share = self._client.call("FetchConsumerGroupAssignments", **GROUP, epoch=self.joined.epoch)
            if share.epoch != self.epoch:
                self.epoch, self.seen = share.epoch, []
            at = {"stream": "s", "partition": 0, "cursor_id": "__group:g"}
            place = self._client.call("FetchCursor", **at).offset
            start = {"start": pb.EARLIEST} if place < 0 else {"start": pb.OFFSET, "start_offset": place + 1}
            consumer = pb.Member(**GROUP, group_epoch=self.epoch)
            for record in self._client.subscribe(stream="s", consumer=consumer, stop=pb.AT_LATEST, **start):
                if record != pb.Record():
                    self.seen.append(record.offset)
                    if record.offset % 7 == 0:
                        self._client.call("SetCursor", **at, offset=record.offset)


def test_nothing_of_a_stream_that_is_gone_counts_in_the_one_that_is_made_anew(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with (
        running(tmp_path, LIFTLOG_LIFTBRIDGE_LISTEN=address) as (server, broker),
        grpc.insecure_channel(address) as channel,
        connect(broker.address) as client,
    ):
        client.create_stream("s", subject="s")
        held = [client.fence("s", 0).fence]
        late: list[int] = []
        consumer = Consumer(Client(channel))
        workers = [
            Worker(publisher(server.url, lambda: held[0], late)),
            Worker(publisher(server.url, lambda: held[-1], [])),
            Worker(consumer.once),
        ]
        for _ in range(TIMES):
            eventually(lambda: client.describe("s").partitions[0].high_watermark >= 20, timeout_s=60)
            client.delete_stream("s")
            client.create_stream("s", subject="s")
            held.append(client.fence("s", 0).fence)
            late.clear()
            eventually(lambda: held[0] in late, timeout_s=60)
        eventually(lambda: client.describe("s").partitions[0].high_watermark >= 20, timeout_s=60)
        for worker in workers[:2]:
            worker.end()
        count = client.describe("s").partitions[0].high_watermark
        eventually(lambda: count - 1 in consumer.seen, timeout_s=60)
        workers[2].end()
        rows = list(itertools.chain(*(batch["value"].to_pylist() for batch in client.read("s"))))
        assert held == sorted(set(held)), "each number once"
        assert {int(row) for row in rows} == {held[-1]}, "of who holds the newest fence alone"
        assert set(consumer.seen) == set(range(count)), "from the first record on"
