"""A broker that comes back to many partitions costs nobody a session (issue of the Raft thread and of searches for
cycles: records 135, 156, 159 to 161, 169).

Method: three brokers, each with a replica of every partition; one is killed and comes back. Lapses are counted in the
logs, from when it is started until all replicas are in sync.

Run by hand on a quiet machine: `LIFTLOG_TEST_PARTITIONS=1500`, or 10000; `TMPDIR` says on which disk, `-s` shows each
step with its time and its lapses. Beside other tests on two cores a broker that opens as many logs loses its session
now and then. A machine that gives this test no core for a while gives brokers none either; a thread that only sleeps
tells how long that was. Looks are rare: a description of all partitions is work for the broker that gives it. Sessions
are longer with many partitions, from the feature level on that has that: it comes some ten seconds after the brokers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from broker.metadata.cluster import FEATURE_LEVEL
from tests.support.clusters import RealCluster
from tests.support.processes import eventually

PARTITIONS: Final = int(os.environ.get("LIFTLOG_TEST_PARTITIONS", "0"))
STREAMS: Final = 10
LONG_S: Final = 300.0 + 0.06 * PARTITIONS
"""For each step."""
LOOK_S: Final = 1.0 + PARTITIONS / 2_000
STALL_S: Final = 0.5
"""A quarter of a session: brokers, which have more to do than a thread that sleeps, may then miss theirs."""


@contextmanager
def longest_stall() -> Iterator[list[float]]:
    """The longest time by which this process woke late, in seconds."""
    found, is_over = [0.0], threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            began = time.monotonic()
            time.sleep(0.02)
            found[0] = max(found[0], time.monotonic() - began - 0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def lapses(cluster: RealCluster) -> dict[str, int]:
    return {broker: process.output().count(" session.lapsed ") for broker, process in cluster.brokers.items()}


def in_sync(cluster: RealCluster, count: int, *, by: str) -> bool:
    """Whether each partition has so many in sync, and a leader that runs."""
    found = [p for n in range(STREAMS) for p in cluster.describe(f"s{n}", by=by)["partitions"]]
    assert len(found) == PARTITIONS
    return all(len(p["isr"]) == count and p["leader"] and p["leader"]["id"] in cluster.running for p in found)


def wait(cluster: RealCluster, count: int, what: str) -> None:
    """Until so many are in sync of each partition. Broker `a` may be too busy to answer."""
    end_s = time.monotonic() + LONG_S
    while True:
        with suppress(OSError):
            if in_sync(cluster, count, by="a"):
                return
        assert time.monotonic() < end_s, what
        time.sleep(LOOK_S)


@contextmanager
def step(cluster: RealCluster, what: str) -> Iterator[dict[str, int]]:
    """How many sessions each broker has lost in it. A broker that starts anew goes on in the log of the former."""
    began, before, lapsed = time.monotonic(), lapses(cluster), dict[str, int]()
    yield lapsed
    lapsed |= {broker: count - before[broker] for broker, count in lapses(cluster).items()}
    print(f"{what}: {time.monotonic() - began:.0f} s, lapses {lapsed}", flush=True)


@pytest.mark.process
@pytest.mark.skipif(not PARTITIONS, reason="needs a quiet machine: LIFTLOG_TEST_PARTITIONS says how many partitions")
@pytest.mark.timeout(5 * LONG_S)
def test_a_broker_that_rejoins_with_many_partitions_lapses_no_session(tmp_path: Path) -> None:
    cluster = RealCluster(tmp_path, None, LIFTLOG_INTAKE_ENABLED="false")
    try:
        cluster.start()
        with cluster.client() as client:
            eventually(lambda: client.cluster().feature_level == FEATURE_LEVEL, what="the feature level")
        with step(cluster, f"{PARTITIONS} partitions are made"), cluster.client(deadline_s=LONG_S) as client:
            for number in range(STREAMS):
                client.create_stream(f"s{number}", partitions=PARTITIONS // STREAMS, replication_factor=3)
        with step(cluster, "all are in sync"):
            wait(cluster, 3, "all are in sync")
        killed = next(broker for broker in ("b", "c") if broker != cluster.controller())
        with step(cluster, f"{killed} is killed, and the others lead"):
            cluster.brokers[killed].kill9()
            wait(cluster, 2, "the others lead")
        with longest_stall() as stall, step(cluster, "it is back, and all are in sync") as lapsed:
            cluster.brokers[killed].start(wait=False)
            wait(cluster, 3, "it is back")
    finally:
        for process in cluster.running.values():  # a stop closes each log, which takes a minute
            process.kill9()
    if any(lapsed.values()) and stall[0] > STALL_S:
        pytest.skip(f"the machine stood still for {stall[0]:.1f} s; lapses: {lapsed}")
    assert not any(lapsed.values()), f"{lapsed}, and the machine stood still for {stall[0]:.2f} s at most"
