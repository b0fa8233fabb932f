"""Goal: a program that uses the Python client does not notice that leaders die: its producers store each record once
and in order, its reader gets each once, its committed offsets stay.

Method: three real brokers; an idempotent producer, a reader that follows and a consumer that commits, while brokers are
killed one after the other. A client whose first broker stands still, and that would wait for an hour. A reader that is
near to a follower.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlencode

import pytest

from broker.api.errors import ExpectationFailed, Retryable, WriterFenced
from broker.client import Client, connect
from broker.client.reader import RecordReader
from tests.support.clusters import RealCluster, store, three
from tests.support.processes import eventually, frozen

pytestmark = [pytest.mark.process, pytest.mark.slow]

PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with three(tmp_path_factory.mktemp("three")) as made:
        yield made


class Sending:
    """An idempotent producer of one partition in a thread; its records are 0, 1, 2 ..."""

    def __init__(self, client: Client, stream: str, partition: int) -> None:
        self.count = 0
        self._stop = threading.Event()
        self._producer = client.producer(stream, partition=partition, deadline_s=120.0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._producer as producer:
                while not self._stop.is_set():
                    sent = producer.send(b"%d" % self.count)
                    self.count += 1
                    if self.count % 10 == 0:
                        sent.result(120)
        except BaseException as error:
            self._error = error

    def stop(self) -> int:
        self._stop.set()
        self._thread.join(120)
        assert self._error is None, self._error
        assert not self._thread.is_alive(), "the producer hangs"
        return self.count


def test_a_producer_a_reader_and_a_consumer_outlive_leaders(cluster: RealCluster) -> None:
    stream = "clients"
    with cluster.client(deadline_s=120.0) as client, cluster.client(deadline_s=120.0) as reading:
        client.create_stream(stream, partitions=PARTITIONS, replication_factor=3)
        sending = [Sending(client, stream, partition) for partition in range(PARTITIONS)]
        read: list[tuple[int, int, int]] = []
        reader = reading.read(stream, follow=True)

        def follow() -> None:
            for batch in reader:
                rows = zip(*(batch.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True)
                read.extend((partition, offset, int(value)) for partition, offset, value in rows)

        following = threading.Thread(target=follow, daemon=True)
        following.start()
        committed = 0
        for number in range(3):
            goal = len(read) + 200
            eventually(lambda goal=goal: len(read) >= goal, what="records")  # type: ignore[misc]
            eventually(lambda: any(partition == 0 for partition, _, _ in list(read)), what="some of the one to commit")
            victim = cluster.leader(stream, number % PARTITIONS) if number else cluster.leader("__offsets")
            cluster.brokers[victim].kill9()
            committed = max(offset for partition, offset, _ in list(read) if partition == 0)
            client.commit("worker", {stream: {0: committed}})
            [at] = client.consumer("worker").partitions
            assert at.offset == committed
            cluster.brokers[victim].start(wait=False)
            cluster.wait_ready(victim)
            for partition in range(PARTITIONS):
                cluster.in_sync(stream, 3, partition)
        counts = [each.stop() for each in sending]
        count = sum(counts)
        eventually(lambda: len(read) >= count, what="all of them")
        reader.close()
        following.join(60)
        for partition in range(PARTITIONS):
            mine = [(offset, value) for p, offset, value in read if p == partition]
            assert mine == [(i, i) for i in range(counts[partition])], "repeated, lost or out of order"
        assert client.consumer("worker").offsets(stream) == {0: committed}
        assert client.read(stream).to_table().num_rows == count


class Comparing:
    """A writer in a thread that appends one record at a time, at the offset where it believes the end to be."""

    def __init__(self, client: Client, stream: str, name: str) -> None:
        self.stored: dict[bytes, int] = {}
        self.doubted: set[bytes] = set()
        self.refused = 0
        self._client, self._stream, self._name = client, stream, name
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        expected = number = 0
        try:
            while not self._stop.is_set():
                value, number = b"%s-%d" % (self._name.encode(), number), number + 1
                try:
                    appended = self._client.append(
                        self._stream, 0, [{"value": value}], acks="all", expected_offset=expected
                    )
                except ExpectationFailed as error:
                    self.refused += 1
                    expected = error.next_offset
                    if error.fields.get("sent"):
                        self.doubted.add(value)
                except Retryable:
                    self.doubted.add(value)
                else:
                    assert appended.first_offset == expected
                    self.stored[value] = expected
                    expected = appended.next_offset
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(180)
        assert self._error is None, self._error
        assert not self._thread.is_alive(), "the writer hangs"


@pytest.mark.long
def test_writers_that_expect_offsets_store_each_record_where_they_were_told_whoever_dies(cluster: RealCluster) -> None:
    stream = "compared"
    with cluster.client(deadline_s=120.0) as client:
        client.create_stream(stream, replication_factor=3)
        writers = [Comparing(client, stream, name) for name in ("a", "b", "c")]
        for _ in range(3):
            goals = [len(writer.stored) + 20 for writer in writers]
            eventually(
                lambda goals=goals: all(len(w.stored) >= g for w, g in zip(writers, goals, strict=True)),  # type: ignore[misc]
                what="records of each",
            )
            victim = cluster.leader(stream)
            cluster.brokers[victim].kill9()
            cluster.brokers[victim].start(wait=False)
            cluster.wait_ready(victim)
            cluster.in_sync(stream, 3)
        for writer in writers:
            writer.stop()
        rows = client.read(stream, columns=["offset", "value"]).to_table().to_pylist()
    found = {row["value"]: row["offset"] for row in rows}
    assert len(found) == len(rows), "stored twice"
    stored = {value: offset for writer in writers for value, offset in writer.stored.items()}
    assert {value: found.get(value) for value in stored} == stored
    assert found.keys() - stored.keys() <= set().union(*(writer.doubted for writer in writers))
    assert all(writer.refused for writer in writers), "they have raced"


class Holding:
    """A writer in a thread that takes the fence of a partition, appends until it is shut out, and takes it again."""

    def __init__(self, client: Client, stream: str, name: str, pause_s: float) -> None:
        self.ends: dict[int, int] = {}  # of each fence that it held: where what others had stored before ends
        self.stored: dict[bytes, int] = {}
        self._client, self._stream, self._name, self._pause_s = client, stream, name, pause_s
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while not self._stop.is_set():
                try:
                    held = self._client.fence(self._stream, 0)
                except (ExpectationFailed, Retryable):
                    continue
                self.ends[held.fence] = held.next_offset
                try:
                    while not self._stop.is_set():
                        value, number = b"%d %s %d" % (held.fence, self._name.encode(), number), number + 1
                        with suppress(Retryable):
                            appended = self._client.append(self._stream, 0, [{"value": value}], fence=held.fence)
                            self.stored[value] = appended.first_offset
                except WriterFenced:
                    self._stop.wait(self._pause_s)
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(180)
        assert self._error is None, self._error
        assert not self._thread.is_alive(), "the writer hangs"


@pytest.mark.long
def test_behind_a_fence_nothing_is_stored_of_who_held_the_one_before_whoever_dies(cluster: RealCluster) -> None:
    stream = "fenced"
    with cluster.client(deadline_s=120.0) as client:
        client.create_stream(stream, replication_factor=3)
        writers = [Holding(client, stream, name, pause_s) for name, pause_s in (("a", 0.05), ("b", 0.02), ("c", 0.0))]
        for _ in range(3):
            goal = max(max(writer.ends, default=0) for writer in writers) + 20
            eventually(lambda goal=goal: max(max(w.ends, default=0) for w in writers) >= goal, what="fences")  # type: ignore[misc]
            victim = cluster.leader(stream)
            cluster.brokers[victim].kill9()
            cluster.brokers[victim].start(wait=False)
            cluster.wait_ready(victim)
            cluster.in_sync(stream, 3)
        for writer in writers:
            writer.stop()
        rows = client.read(stream, columns=["offset", "value"]).to_table().to_pylist()
    held = [(int(row["value"].split()[0]), row["offset"]) for row in rows]
    assert [fence for fence, _ in held] == sorted(fence for fence, _ in held), "in the order of their fences"
    ends = {fence: end for writer in writers for fence, end in writer.ends.items()}
    assert len(ends) == sum(len(writer.ends) for writer in writers), "each fence is one writer's"
    for fence, end in ends.items():
        assert all(offset < end for of, offset in held if of < fence), "as it was told"
        assert all(offset >= end for of, offset in held if of >= fence)
    found = {row["value"]: row["offset"] for row in rows}
    stored = {value: offset for writer in writers for value, offset in writer.stored.items()}
    assert stored
    assert {value: found.get(value) for value in stored} == stored


def near_to(reader: RecordReader, address: str) -> bool:
    nearest = reader._reading._session.nearest
    return nearest is not None and str(nearest.replica((reader.stream, 0))) == address


def test_a_reader_that_is_near_to_a_follower_has_each_record_once_whatever_becomes_of_it(cluster: RealCluster) -> None:
    """The follower stands still, is killed, comes back with an older high watermark, leads, and follows again."""
    stream = "near"
    with cluster.client(deadline_s=120.0) as client:
        client.create_stream(stream, replication_factor=3)
        leader = cluster.leader(stream)
        preferred = client.placements(stream)[0].replicas[0]  # it may be made the leader at any time
        follower = next(broker for broker in cluster.brokers if broker not in (leader, preferred))
        cluster.in_sync(stream, 3)
        process = cluster.brokers[follower]
        sending = Sending(client, stream, 0)
        read: list[tuple[int, int]] = []
        errors: list[BaseException] = []
        near = connect(cluster.addresses, deadline_s=120.0, rack=f"rack-{follower}")
        reader = near.read(stream, follow=True, read_from="nearest")

        def follow() -> None:
            try:
                for batch in reader:
                    columns = (batch.column(name).to_pylist() for name in ("offset", "value"))
                    read.extend((offset, int(value)) for offset, value in zip(*columns, strict=True))
            except BaseException as error:
                errors.append(error)

        def goes_on(what: str) -> None:
            goal = len(read) + 50
            eventually(lambda: errors or len(read) >= goal, what=f"records, {what}")
            assert not errors

        def lead(broker: str) -> None:
            client.reassign(stream, [broker, *(each for each in cluster.brokers if each != broker)])

            def looks() -> bool:
                client.elect_preferred(stream)
                return cluster.leader(stream) == broker

            eventually(looks, what=f"{broker} leads")

        def is_asked() -> bool:
            if not near_to(reader, process.address) and cluster.leader(stream) == follower:
                lead(leader)  # the leader's session has lapsed, on a slow machine: a leader is near to nobody else
            return near_to(reader, process.address)

        following = threading.Thread(target=follow, daemon=True)
        following.start()
        goes_on("at first")
        eventually(is_asked, what="the follower is asked")
        goes_on("of the follower")
        with frozen(process.pid):
            goes_on("while it stands still")
            process.kill9()
        goes_on("while it is gone")
        process.start(wait=False)
        cluster.wait_ready(follower)
        cluster.in_sync(stream, 3)
        lead(follower)
        goes_on("of the follower that came back, and leads")
        lead(leader)
        eventually(is_asked, what="it is asked again")
        goes_on("of the follower that came back")
        cluster.brokers[leader].kill9()
        goes_on("of another leader, or its follower")
        cluster.brokers[leader].start(wait=False)
        count = sending.stop()
        eventually(lambda: errors or len(read) >= count, what="all of them")
        reader.close()
        following.join(60)
        near.close()
        cluster.wait_ready(leader)
        assert not errors
        assert read == [(i, i) for i in range(count)], "repeated, lost or out of order"


def test_a_follower_says_nothing_that_a_reader_could_take_for_an_end(cluster: RealCluster) -> None:
    stream = "told"
    with cluster.client() as client:
        client.create_stream(stream, replication_factor=3)
        store(client, stream, 0, [{"value": b"x"}] * 10)
        leader = cluster.leader(stream)
        follower = next(broker for broker in cluster.brokers if broker != leader)
        cluster.in_sync(stream, 3)
        epoch = cluster.state(stream)["leader_epoch"]

    def ask(broker: str, **query: object) -> tuple[int, dict[str, str]]:
        address = cluster.brokers[broker].address
        url = f"http://{address}/v1/streams/{stream}/partitions/0/records?{urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                answer.read()
                return answer.status, dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers)

    def has_all() -> bool:
        status, headers = ask(follower, replica="any", offset=0)
        return status == 200 and headers["Liftlog-Next-Offset"] == "10"

    eventually(has_all, what="it knows that all is committed")
    assert "Liftlog-High-Watermark" not in ask(follower, replica="any", offset=0)[1]
    for refused in ({"offset": 11}, {"offset": "latest"}, {"offset": 0, "epoch": epoch + 1}):
        assert ask(follower, replica="any", **refused)[0] == 421
    assert ask(follower, offset=0)[0] == 421
    named = ask(leader, offset=0, rack=f"rack-{follower}")[1]
    assert named["Liftlog-Nearest"] == cluster.brokers[follower].address
    assert "Liftlog-Nearest" not in ask(leader, offset=0, rack=f"rack-{leader}")[1]
    assert "Liftlog-Nearest" not in ask(leader, offset=0, rack="elsewhere")[1]


def test_a_broker_that_stands_still_and_is_named_first_holds_up_nobody(cluster: RealCluster) -> None:
    """Reads, changes, appends that are stamped or not, and a reader that was at the frozen broker; new clients each."""
    stream = "frozen-first"
    with cluster.client() as client:
        client.create_stream(stream, replication_factor=3)
        store(client, stream, 0, [{"value": b"0"}])
        reader = client.read(stream, follow=True)
        assert next(reader).num_rows == 1
    first = cluster.leader(stream)
    others = [address for broker, address in ((b, p.address) for b, p in cluster.brokers.items()) if broker != first]
    addresses = [cluster.brokers[first].address, *others]
    done: list[str] = []

    def use() -> None:
        for name in ("describe", "append", "producer", "create", "read"):
            with connect(addresses, timeout_s=3600.0, deadline_s=120.0) as mine:
                if name == "append":
                    mine.append(stream, 0, [{"value": b"1"}])
                elif name == "producer":
                    with mine.producer(stream, deadline_s=120.0) as producer:
                        producer.send(b"2").result(120)
                elif name == "create":
                    mine.create_stream("meanwhile", replication_factor=2)
                elif name == "read":
                    assert mine.read(stream).to_table()["value"].to_pylist() == [b"0", b"1", b"2"]
                else:
                    mine.describe(stream)
            done.append(name)

    with frozen(cluster.brokers[first].pid):
        using = threading.Thread(target=use, daemon=True)
        using.start()
        using.join(120)
        assert len(done) == 5, f"hangs after {done}"
    rows = [next(reader).column("value").to_pylist() for _ in range(2)]
    reader.close()
    assert [value for batch in rows for value in batch] == [b"1", b"2"]


def test_a_change_whose_client_has_left_a_broker_that_stood_still_is_not_made(cluster: RealCluster) -> None:
    """It would come behind what the client has done since, at another broker."""
    broker = next(each for each in cluster.brokers if each != cluster.controller())
    process = cluster.brokers[broker]
    refused, body = 'liftlog_http_problems_total{reason="not_ready"}', json.dumps({"name": "left"}).encode()
    before, host, port = process.metric(refused), *process.address.split(":")
    with frozen(process.pid):
        began_s = time.monotonic()
        with socket.create_connection((host, int(port)), timeout=30) as asking:
            head = "POST /v1/streams HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json"
            asking.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: time.monotonic() - began_s > 1.0, what="it stands still for so long")
    eventually(lambda: process.metric(refused) > before, what="it has read the request")
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("stayed", replication_factor=3)
        assert "stayed" in (names := [each.name for each in client.streams()])
        assert "left" not in names
