"""Goal: at the moment in which added partitions begin to count each message is stored once, also if it is sent again.

Method: three real brokers; publishers with ids, many in flight, who send again what is refused, under its id. By
another number of partitions it may go to another one, which knows no ids of the former.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import nats
import nats.errors
import pytest

from broker.client import Client
from tests.support.acks import place_of
from tests.support.clusters import RealCluster, three
from tests.support.processes import eventually, frozen

pytestmark = [pytest.mark.process, pytest.mark.slow]
IN_FLIGHT = 32
MOST = 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with three(tmp_path_factory.mktemp("three")) as made:
        yield made


@pytest.fixture
def client(cluster: RealCluster) -> Iterator[Client]:
    with cluster.client(deadline_s=60.0) as made:
        yield made


class Impatient:
    """Keeps so many in flight. It sends a refused message again at once, and one without an answer after some seconds.

    Attributes:
        acked: id -> its ack.
        doubted: The ids that were not answered in time, or that nobody knows, once or more.
        refusals: Reason -> how many.
    """

    def __init__(self, url: str, subject: str) -> None:
        self.url, self.subject = url, subject
        self.acked: dict[str, dict[str, Any]] = {}
        self.doubted: set[str] = set()
        self.refusals: Counter[str] = Counter()
        self.is_ending = False

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        connections = await asyncio.gather(*(nats.connect(self.url) for _ in range(4)))
        await asyncio.gather(*(self._publish(connections[n % 4], n) for n in range(IN_FLIGHT)))
        for each in connections:
            await each.close()

    async def _publish(self, connection: Any, worker: int) -> None:
        number = 0
        while not self.is_ending:
            name = f"{worker}-{number}"
            await self._until_acked(connection, name)
            number += 1

    async def _until_acked(self, connection: Any, name: str) -> None:
        headers = {"Nats-Msg-Id": name, "Liftlog-Key": name}
        while True:
            try:
                reply = await connection.request(self.subject, name.encode(), timeout=10, headers=headers)
            except nats.errors.NoRespondersError:  # nobody has it
                self.refusals["no responders"] += 1
                await asyncio.sleep(0.002)
                continue
            except (TimeoutError, nats.errors.Error):
                self.refusals["silence"] += 1
                self.doubted.add(name)
                continue
            answer = json.loads(reply.data)
            if "error" not in answer:
                self.acked[name] = answer
                return
            reason = answer["error"]["description"]
            is_doubt = "not known" in reason
            self.refusals["doubt" if is_doubt else reason.rsplit("[", 1)[-1].rstrip("]")] += 1
            if is_doubt:
                self.doubted.add(name)
            await asyncio.sleep(0.002)

    def until_more(self, count: int = 200) -> None:
        goal = len(self.acked) + count
        eventually(lambda: len(self.acked) >= goal, timeout_s=60, what=f"{goal} acks")


def judge(client: Client, stream: str, publishers: Impatient) -> list[str]:
    """Each ack is true, and what was acked is stored. Returns what is stored twice."""
    table = client.read(stream).to_table()
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
    stored = {(partition, offset): value.decode() for partition, offset, value in zip(*columns, strict=True)}
    for name, ack in publishers.acked.items():
        assert stored[place_of(ack)] == name
    assert set(stored.values()) == publishers.acked.keys()
    twice = [name for name, count in Counter(stored.values()).items() if count > 1]
    print(f"{stream}: {len(stored)} stored, {len(twice)} twice, {dict(publishers.refusals)}")
    return twice


def test_nothing_is_stored_twice_when_added_partitions_begin_to_count(cluster: RealCluster, client: Client) -> None:
    """Eleven changes. Without a stop of all leaders, some hundred: their acks said that nobody knows."""
    client.create_stream("grown", subject="grown", partition_by="key", replication_factor=3)
    assert cluster.nats is not None
    publishers = Impatient(cluster.nats.url, "grown")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(publishers.run)
        try:
            publishers.until_more()
            for count in range(2, MOST + 1):
                assert len(client.add_partitions("grown", count).partitions) == count
                publishers.until_more()
        finally:
            publishers.is_ending = True
        running.result(60)
    twice = judge(client, "grown", publishers)
    assert publishers.refusals["not_ready"], "a stop refuses something"
    assert publishers.refusals["doubt"] == 0, "what was taken was answered"
    assert set(twice) <= publishers.doubted


def test_a_leader_that_stands_still_amid_a_change_costs_no_message(cluster: RealCluster, client: Client) -> None:
    """It has confirmed, or not: another one leads then, and all confirm anew. Twice may be stored what is in doubt."""
    client.create_stream("halted", subject="halted", partition_by="key", replication_factor=3)
    assert cluster.nats is not None
    publishers = Impatient(cluster.nats.url, "halted")
    with ThreadPoolExecutor(2) as thread:
        running = thread.submit(publishers.run)
        try:
            for count in (2, 3):
                publishers.until_more()
                victim = cluster.leader("halted", count - 2)
                others = [broker for broker in cluster.brokers if broker != victim]
                with cluster.client(*others, deadline_s=60.0) as there:
                    adding = thread.submit(there.add_partitions, "halted", count)
                    with frozen(cluster.brokers[victim].pid):
                        adding.result(90)
                        eventually(
                            lambda there=there, count=count: len(there.describe("halted").partitions) == count,  # type: ignore[misc]
                            timeout_s=60,
                            what=f"{count} partitions",
                        )
                cluster.wait_ready(victim)
                for partition in range(count):
                    cluster.in_sync("halted", 3, partition)
            publishers.until_more()
        finally:
            publishers.is_ending = True
        running.result(90)
    assert set(judge(client, "halted", publishers)) <= publishers.doubted
