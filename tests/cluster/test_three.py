"""Goal: three real brokers under load of acknowledged publishes lose nothing, whoever of them dies or stands still.

Method: a real nats-server, three broker processes, publishers over NATS that wait for acks, readers over HTTP. A
checker that knows nothing of liftlog judges what they saw (tests/history).
"""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nats
import pytest

from broker.api.errors import NotEnoughReplicas, Retryable
from tests.history.judge import faults, judge
from tests.history.ops import read
from tests.history.record import Recorder
from tests.history.users import Pollers, Senders, read_to_the_end
from tests.support.clusters import RealCluster, store, three
from tests.support.processes import eventually, frozen

pytestmark = [pytest.mark.process, pytest.mark.slow]

PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with three(tmp_path_factory.mktemp("three")) as made:
        yield made


@pytest.fixture
def whole(cluster: RealCluster) -> RealCluster:
    """All three are there again."""
    for broker, process in cluster.brokers.items():
        if process.process is None:
            process.start(wait=False)
            cluster.wait_ready(broker)
    return cluster


@contextmanager
def history(cluster: RealCluster, path: Path, stream: str) -> Iterator[Senders]:
    """Users of a new stream, as long as the block runs; then all is read once more and judged."""
    with cluster.client() as client:
        client.create_stream(stream, subject=stream, partitions=PARTITIONS, replication_factor=3)
    for partition in range(PARTITIONS):
        cluster.leader(stream, partition)
    assert cluster.nats is not None
    with Recorder(path) as recorder:
        subjects = [stream, *(f"{stream}.{number}" for number in range(1, PARTITIONS))]
        senders = Senders(recorder, cluster.nats.url, subject_of=lambda p: subjects[p], partitions=PARTITIONS)
        pollers = Pollers(recorder, cluster.addresses, stream, PARTITIONS, 2)
        try:
            goes_on(senders)
            yield senders
        finally:
            senders.stop()
            pollers.stop()
        for partition in range(PARTITIONS):
            cluster.leader(stream, partition)
        read_to_the_end(recorder, [process.address for process in cluster.running.values()], stream, PARTITIONS)
    with path.open() as lines:
        found = judge(read(lines))
    assert not faults(found), (faults(found), {name: found[name][:3] for name in faults(found)})


def goes_on(senders: Senders, count: int = 100) -> None:
    """So many further messages are acknowledged."""
    goal = senders.acked + count
    eventually(lambda: senders.acked >= goal, what="acks")


def all_in_sync(cluster: RealCluster, stream: str) -> None:
    for partition in range(PARTITIONS):
        cluster.in_sync(stream, 3, partition)


def back(cluster: RealCluster, broker: str, stream: str, in_sync: int | None = 3) -> None:
    """A broker is started again; so many are in sync of the stream's first partition then."""
    cluster.brokers[broker].start(wait=False)
    if in_sync is not None:
        cluster.wait_ready(broker)
        cluster.in_sync(stream, in_sync)


def follower_of(cluster: RealCluster, stream: str) -> str:
    leaders = {cluster.leader(stream, partition) for partition in range(PARTITIONS)}
    return next((broker for broker in cluster.running if broker not in leaders), cluster.controller())


VICTIMS: dict[str, Callable[[RealCluster, str], str]] = {
    "leader": lambda cluster, stream: cluster.leader(stream),
    "follower": follower_of,
    "controller": lambda cluster, stream: cluster.controller(),
}


@pytest.mark.parametrize("who", VICTIMS)
def test_a_killed_broker_loses_nothing_and_catches_up(whole: RealCluster, tmp_path: Path, who: str) -> None:
    stream = f"killed-{who}"
    with history(whole, tmp_path / "history.jsonl", stream) as senders:
        victim = VICTIMS[who](whole, stream)
        whole.brokers[victim].kill9()
        goes_on(senders)
        back(whole, victim, stream)
        all_in_sync(whole, stream)
        goes_on(senders)


def test_a_leader_that_stands_still_acks_nothing_that_is_lost(whole: RealCluster, tmp_path: Path) -> None:
    stream = "frozen"
    with history(whole, tmp_path / "history.jsonl", stream) as senders:
        victim = whole.leader(stream)
        with frozen(whole.brokers[victim].pid):
            eventually(lambda: moved(whole, stream, victim), what="another leader")
            goes_on(senders)
        all_in_sync(whole, stream)
        goes_on(senders)


def moved(cluster: RealCluster, stream: str, victim: str) -> bool:
    """Whether somebody else leads all partitions, as the others say."""
    other = next(broker for broker in cluster.running if broker != victim)
    found = cluster.describe(stream, by=other)["partitions"]
    return all(state["leader"] is not None and state["leader"]["id"] != victim for state in found)


def test_one_that_stops_hands_over_first(whole: RealCluster, tmp_path: Path) -> None:
    stream = "stopped"
    with history(whole, tmp_path / "history.jsonl", stream) as senders:
        victim = whole.leader(stream)
        assert whole.brokers[victim].stop() == 0
        goes_on(senders)
        back(whole, victim, stream)


def test_with_too_few_in_sync_appends_are_refused_at_once_and_reads_served(whole: RealCluster) -> None:
    stream = "few"
    with whole.client(deadline_s=0.0) as client:
        made = client.create_stream(stream, subject=stream, replication_factor=2, min_insync_replicas=2)
        store(client, stream, 0, [{"value": b"before"}])
        left = whole.leader(stream)
        [other] = set(made.partitions[0].replicas) - {left}
        whole.brokers[other].kill9()
        whole.in_sync(stream, 1)
        with pytest.raises(NotEnoughReplicas, match="min_insync_replicas=2"):
            client.append(stream, 0, [{"value": b"alone"}])
        assert whole.nats is not None
        assert "not_enough_replicas" in published(whole.nats.url, stream)
        assert client.read(stream).to_table().column("value").to_pylist() == [b"before"]
        back(whole, other, stream, 2)
        store(client, stream, 0, [{"value": b"after"}])
        assert client.read(stream).to_table().column("value").to_pylist() == [b"before", b"after"]


def test_without_a_majority_nothing_is_acked_and_then_it_goes_on(whole: RealCluster) -> None:
    stream = "minority"
    with whole.client(deadline_s=0.0) as client:
        client.create_stream(stream, subject=stream, replication_factor=3)
        store(client, stream, 0, [{"value": b"before"}])
        left = whole.leader(stream)
        others = sorted(set(whole.brokers) - {left})
        for broker in others:
            whole.brokers[broker].kill9()
        eventually(lambda: not ready(whole, left), what="its session to lapse")
        with pytest.raises(urllib.error.HTTPError) as unready:
            whole.brokers[left].get("/readyz")
        assert (
            f"2 are needed, and 1 can be reached from here, not: {', '.join(others)}" in unready.value.read().decode()
        )
        with pytest.raises(Retryable):
            client.append(stream, 0, [{"value": b"alone"}])
        with pytest.raises(Retryable):
            client.read(stream)
        for broker in others:
            back(whole, broker, stream, None)
        whole.in_sync(stream, 3)
        store(client, stream, 0, [{"value": b"after"}])
        assert client.read(stream).to_table().column("value").to_pylist() == [b"before", b"after"]


def published(url: str, subject: str) -> str:
    """Publish one message, and return the answer."""

    async def publish() -> bytes:
        client = await nats.connect(url)
        try:
            answer = await client.request(subject, b"x", timeout=5.0)
        finally:
            await client.close()
        return bytes(answer.data)

    return asyncio.run(publish()).decode()


def ready(cluster: RealCluster, broker: str) -> bool:
    try:
        return cluster.brokers[broker].is_ready()
    except urllib.error.HTTPError:
        return False
