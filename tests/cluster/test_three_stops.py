"""Goal: a broker that stops keeps nobody waiting, however long its own end takes, and takes nothing along.

Method: three real brokers whose stop can be held at a point, whose followers are slow, or whose catalog fails them
(`support/stopping_broker`).
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from broker.storage.segments.checkpoint import CHECKPOINT_FILE, Checkpoint
from tests.support.clusters import WAIT_S, RealCluster, store
from tests.support.processes import BrokerProcess, eventually, frozen

pytestmark = [pytest.mark.process, pytest.mark.slow]

PARTITIONS = 24


@contextmanager
def stoppable(folder: Path, *options: str) -> Iterator[RealCluster]:
    command = ("tests.support.stopping_broker", *options)
    cluster = RealCluster(folder, None, command=lambda broker: command)
    try:
        yield cluster.start()
    finally:
        (folder / "gate").touch()
        cluster.stop()


def stop(cluster: RealCluster, broker: str) -> list[str]:
    """Ask it to stop; returns the others, once one of them leads each partition of stream `s`."""
    process = cluster.brokers[broker].process
    assert process is not None
    process.popen.send_signal(signal.SIGTERM)
    others = [each for each in cluster.brokers if each != broker]

    def are_led() -> bool:
        states = cluster.describe("s", by=others[0])["partitions"]
        return all(state["leader"] is not None and state["leader"]["id"] != broker for state in states)

    eventually(are_led, timeout_s=WAIT_S, what="other leaders")
    return others


def test_new_leaders_acknowledge_while_the_former_one_closes_its_logs(tmp_path: Path) -> None:
    with stoppable(tmp_path, "--gate", str(tmp_path / "gate")) as cluster:
        with cluster.client() as client:
            client.create_stream("s", partitions=PARTITIONS, replication_factor=3)
            for partition in range(PARTITIONS):
                cluster.in_sync("s", 3, partition)
                store(client, "s", partition, [{"value": b"before"}])
        leader = cluster.leader("s")
        stopping = cluster.brokers[leader].process
        assert stopping is not None
        others = stop(cluster, leader)
        with cluster.client(*others, deadline_s=60.0) as client:
            for partition in range(PARTITIONS):
                store(client, "s", partition, [{"value": b"meanwhile"}])
        assert stopping.popen.poll() is None, "it still closes its logs"
        (tmp_path / "gate").touch()
        assert stopping.popen.wait(WAIT_S) == 0


def test_what_is_acknowledged_by_the_leader_alone_outlives_its_stop(tmp_path: Path) -> None:
    """Its followers lag when it is asked to stop."""
    with stoppable(tmp_path, "--slow-s", "0.3") as cluster:
        with cluster.client(deadline_s=60.0) as client:
            client.create_stream("s", partitions=PARTITIONS, replication_factor=3, acks="leader")
            for partition in range(PARTITIONS):
                cluster.in_sync("s", 3, partition)
            for partition in range(PARTITIONS):
                store(client, "s", partition, [{"value": b"x"}])
        others = stop(cluster, cluster.leader("s"))

        def found() -> list[int]:
            return sorted(client.read("s").to_table().column("partition").to_pylist())

        with cluster.client(*others, deadline_s=60.0) as client:  # those led by the others are committed by and by
            eventually(lambda: found() == [*range(PARTITIONS)], what="all records")


@pytest.mark.parametrize("fails", ["refused", "silent", "bug", "frozen"])
def test_who_cannot_say_that_it_stops_closes_its_logs_and_ends(tmp_path: Path, fails: str) -> None:
    """Frozen: no majority answers, and it ends without one. It leads, so others have to be told."""
    options = () if fails == "frozen" else ("--fails", fails)
    with stoppable(tmp_path, *options) as cluster:
        with cluster.client(deadline_s=60.0) as client:
            client.create_stream("s", partitions=3, replication_factor=3)
            for partition in range(3):
                cluster.in_sync("s", 3, partition)
                store(client, "s", partition, [{"value": b"before"}])
        leader = cluster.leader("s")
        stopping = cluster.brokers[leader]
        others = [each for each in cluster.brokers if each != leader]
        with ExitStack() as stack:
            for broker in others if fails == "frozen" else ():
                stack.enter_context(frozen(cluster.brokers[broker].pid))
            assert stopping.stop() == 0
        said = stopping.output()
        assert ("made to fail: stop_broker" in said and "made to fail: fail_broker" in said) == (fails != "frozen")
        assert f"broker.stopped id={leader}" in said
        assert closed_cleanly(stopping, "s") == 3
        with cluster.client(*others, deadline_s=60.0) as client:  # once its session has lapsed
            for partition in range(3):
                store(client, "s", partition, [{"value": b"after"}])
        stopping.start(wait=False)
        cluster.wait_ready(leader)
        for partition in range(3):
            cluster.in_sync("s", 3, partition)
        with cluster.client(deadline_s=60.0) as client:
            found = Counter(client.read("s").to_table().column("value").to_pylist())
        assert found == {b"before": 3, b"after": 3}


def watch(broker: BrokerProcess, since: int) -> HTTPConnection:
    """A watch of stream `s` that has reached a broker, and is not answered before something is new."""
    connection = HTTPConnection(broker.address, timeout=WAIT_S + 30)
    connection.request("GET", f"/v1/watch?streams=s&since={since}&max_wait_ms={int(WAIT_S * 1000)}")
    broker.get("/livez")  # it has read what came before
    return connection


def answered(connection: HTTPConnection) -> tuple[int, Any]:
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body


def test_who_watches_is_answered_when_a_broker_stops_and_when_a_stream_goes(tmp_path: Path) -> None:
    """Asked of the broker that stops, and of those that have no copy and do not lead it."""
    with stoppable(tmp_path) as cluster:
        with cluster.client() as client:
            client.create_stream("s", replication_factor=1)
            store(client, "s", 0, [{"value": b"x"}])
        leader = cluster.leader("s")
        others = [broker for broker in cluster.brokers if broker != leader]

        def is_known(broker: str) -> bool:
            return bool(cluster.brokers[broker].get("/v1/watch?streams=s")["streams"]["s"]["partitions"])

        for broker in cluster.brokers:
            eventually(lambda broker=broker: is_known(broker), what="all to know it")  # type: ignore[misc]
        seen = {each: process.get("/v1/watch?streams=s")["version"] for each, process in cluster.brokers.items()}
        watches = {each: watch(process, seen[each]) for each, process in cluster.brokers.items()}
        assert cluster.brokers[leader].stop() == 0
        status, _ = answered(watches.pop(leader))
        assert status in (200, 503)

        def waited_for(broker: str, is_so: Callable[[dict[str, Any]], bool]) -> None:
            """One watch after the other is answered because something is new, until that is so."""
            while True:
                status, body = answered(watches[broker])
                assert (status, body["version"] != seen[broker]) == (200, True), body
                seen[broker] = body["version"]
                watches[broker] = watch(cluster.brokers[broker], seen[broker])
                if is_so(body["streams"]):
                    return

        for broker in others:
            waited_for(broker, lambda streams: streams["s"]["unknown"] == [0])
        with cluster.client(*others, deadline_s=60.0) as client:
            client.delete_stream("s")
        for broker in others:
            waited_for(broker, lambda streams: "s" not in streams)
            watches[broker].close()


def closed_cleanly(broker: BrokerProcess, stream: str) -> int:
    """How many logs of a stream a broker that has ended has marked clean."""
    found = (broker.folder / "data" / "streams" / stream).glob(f"*/*/{CHECKPOINT_FILE}")
    checkpoints = [Checkpoint.decode(path.read_bytes(), where=str(path)) for path in found]
    return sum(each is not None and each.clean_boot_id is not None for each in checkpoints)
