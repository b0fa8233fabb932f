"""Goal: what a leader acknowledges is on its followers' disks, whatever becomes of streams, brokers and bytes.

Method: real connections on loopback between two or three brokers of one process, over real logs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.api.batch import decode_batch
from broker.link import answering, connection, following
from broker.link.directory import Directory
from broker.metadata.partition import Place
from tests.support.linked import Linked, linked
from tests.support.processes import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Linked]:
    with linked(tmp_path) as cluster:
        cluster.start()
        yield cluster


def led_by(cluster: Linked, name: str, at: Place) -> None:
    """Let this broker lead: all others fail, and come back in sync."""
    eventually(lambda: cluster.service.state(at).leader, what="a leader")
    while cluster.service.state(at).leader != name:
        leader = cluster.service.state(at).leader
        assert leader is not None
        again(cluster, leader)
    cluster.leader(at)


def again(cluster: Linked, *names: str) -> None:
    """These processes end, are taken for dead, and others begin."""
    for name in names:
        cluster.stop(name)
        if cluster.service.catalog.brokers[name].is_live:
            cluster.fail(name)
    cluster.start(*names)


def test_what_is_acknowledged_is_on_all_disks(three: Linked) -> None:
    [at] = three.create()
    for number in range(20):
        end = three.stored(at, b"%d" % number)
        state = three.service.state(at)
        assert min(three.nodes[name].log(at).state.durable_end for name in state.isr) >= end
    three.in_sync(at)
    three.same(at)


def test_no_ack_comes_before_a_follower_in_sync_has_fsynced(three: Linked) -> None:
    [at] = three.create()
    three.stored(at, b"first")
    follower = three.followers(at)[0]
    synced, may_sync = threading.Event(), threading.Event()
    partition = follower.partition(at)
    sync = partition.replica.sync

    def held() -> object:
        synced.set()
        assert may_sync.wait(60)
        return sync()

    partition.replica.sync = held  # type: ignore[method-assign, assignment]
    waiter = three.publish(at, b"second")
    assert synced.wait(60)
    leader = three.leader(at)
    others = [node for node in three.followers(at) if node is not follower]
    eventually(
        lambda: all(n.log(at).state.durable_end == 2 for n in (leader, *others)), what="the others to have fsynced"
    )
    assert (waiter.outcome, leader.log(at).state.high_watermark) == (None, 1)
    may_sync.set()
    eventually(lambda: waiter.outcome == 2, what="an ack")


def test_nothing_that_is_only_carried_is_decoded(three: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the leader's append to the followers' fsyncs, and when one has to fetch it all."""
    [at] = three.create()
    away = three.followers(at)[0].me
    three.stored(at, b"first")
    decoded = []

    def note(read: Any, *given: Any, **options: Any) -> Any:
        decoded.append(threading.current_thread().name)
        return read(*given, **options)

    for name in ("read_record_batch", "read_message", "open_stream", "open_file"):
        monkeypatch.setattr(pa.ipc, name, partial(note, getattr(pa.ipc, name)))
    for number in range(20):
        three.stored(at, b"%d" % number)
    again(three, away)
    three.in_sync(at)
    eventually(lambda: three.nodes[away].log(at).state.durable_end == 21, what="it to have all")
    assert decoded == []
    three.same(at)
    decode_batch(next(iter(three.leader(at).log(at).reader.batches(0))))
    assert decoded == [threading.current_thread().name], "whoever decodes is noticed"


def test_a_follower_that_was_away_catches_up_and_is_in_sync_again(three: Linked) -> None:
    [at] = three.create()
    three.stored(at, b"before")
    away = three.followers(at)[0].me
    three.stop(away)
    three.fail(away)
    for number in range(30):
        three.stored(at, b"%d" % number)
    three.start(away)
    three.in_sync(at)
    three.stored(at, b"after")
    three.same(at)


def test_a_new_leader_goes_on_where_the_old_one_is_gone(three: Linked) -> None:
    [at] = three.create()
    ends = [three.stored(at, b"%d" % number) for number in range(5)]
    gone = three.leader(at).me
    three.stop(gone, kill=True)
    eventually(lambda: any(node.reports for node in three.nodes.values()), what="a report: nobody listens there")
    three.fail(gone)
    ends.append(three.stored(at, b"after"))
    three.start(gone)
    three.in_sync(at)
    three.same(at)
    assert ends == [1, 2, 3, 4, 5, 6]


def test_an_old_leader_takes_back_what_nobody_else_has(three: Linked) -> None:
    """Its followers are cut off, so nothing of it is acknowledged; another leads meanwhile."""
    [at] = three.create()
    three.stored(at, b"everybody's")
    old = three.leader(at)
    three.relays[old.me].paused = True
    waiter = three.publish(at, b"its own")
    eventually(lambda: old.log(at).state.durable_end == 2, what="it to be on its disk")
    three.fail(old.me)
    eventually(lambda: waiter.outcome is not None, what="the publisher to hear of it")
    assert not isinstance(waiter.outcome, int)
    three.stored(at, b"another")
    three.relays[old.me].paused = False
    again(three, old.me)
    three.in_sync(at)
    three.same(at)
    assert three.nodes[old.me].log(at).state.log_end_offset == 2


def test_an_idle_follower_hears_of_another_log_start_at_once(three: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trim is answered when all have it, and nobody polls for it: here not for an hour."""
    monkeypatch.setattr(answering, "CALM_S", 3_600.0)
    monkeypatch.setattr(following, "CALM_SLOWER", 50_000)
    [at] = three.create()
    for number in range(4):
        three.stored(at, b"%d" % number)
    three.in_sync(at)
    three.same(at)
    leader = three.leader(at).partition(at)
    slots = leader.replica.on_news.__self__._slots  # type: ignore[union-attr]
    eventually(lambda: all(slot.calm and slot.records for slot in slots.values()), what="both followers to be idle")
    leader.replica.trim(2)
    eventually(
        lambda: all(n.log(at).state.log_start_offset == 2 for n in three.nodes.values()), what="all to start there"
    )


def test_many_partitions_share_one_stream(three: Linked) -> None:
    places = three.create(partitions=40)
    waiters = [three.publish(at, b"x") for at in places]
    for waiter in waiters:
        eventually(lambda waiter=waiter: waiter.outcome == 1, what="an ack")  # type: ignore[misc]
    assert all(len(node.link.server.streams()) <= 2 for node in three.nodes.values())
    for at in places:
        three.same(at)


@pytest.mark.parametrize("where", ["arrived", "begun", "unreachable"])
def test_a_fault_in_one_follower_ends_no_stream(three: Linked, where: str) -> None:
    faulty, well = three.create("faulty"), three.create("well")
    for at in (*faulty, *well):
        three.in_sync(at)
    follower = next(node for node in three.followers(faulty[0]) if node in three.followers(well[0]))
    replica = follower.replicas.replica(faulty[0])
    assert replica is not None
    following: Any = replica._follower
    act, met = getattr(following, where), []

    def fails_once(*args: Any) -> Any:
        if not met:
            met.append(where)
            raise RuntimeError("a fault of ours")
        return act(*args)

    setattr(following, where, fails_once)
    leader = str(three.service.state(faulty[0]).leader)

    def stream() -> object:
        """Of the follower's questions, at its leader; None: there is none now."""
        found = [each for each in three.nodes[leader].link.server.streams() if each.broker == follower.me]
        return found[0] if found else None

    before = eventually(stream, what="the stream of the follower")
    if where == "begun":
        three.relays[leader].cut()
    elif where == "unreachable":
        follower.link._connection(leader).tell_unreachable()
    else:
        three.publish(faulty[0], b"x")
    eventually(lambda: met, what="the fault")
    for at in (*faulty, *well):
        three.stored(at, b"y")
        three.same(at)
    assert where == "begun" or stream() is before, "the stream goes on"


def test_who_begins_to_follow_amid_the_stop_connects_to_nobody(three: Linked) -> None:
    """Seen before: its connection went on after the stop, and nobody ended it."""
    [at] = three.create()
    three.stored(at, b"x")
    node, leader = three.followers(at)[0], three.leader(at)
    node.link.stop()
    node.link._connections.clear()  # as if it had followed nobody until now
    assert node.link._connection(leader.me)._thread.ident is None


@pytest.mark.parametrize("late_s", [connection.LATE_S, 0.0])
def test_a_catalog_that_is_late_is_no_error_until_it_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, late_s: float
) -> None:
    """Seen before: a broker that registers and connects at once was `replica.not_let_in`, an ERROR that passes."""
    monkeypatch.setattr(connection, "LATE_S", late_s)
    with linked(tmp_path, ("a", "b")) as cluster:
        knows = threading.Event()
        known = Directory.registration_of
        monkeypatch.setattr(
            Directory, "registration_of", lambda one, name: known(one, name) if knows.is_set() else None
        )
        cluster.start()
        [at] = cluster.create()
        refused = [node.link.server.refused for node in cluster.nodes.values()]
        eventually(lambda: any(each["unknown_broker"] > 1 for each in refused), what="refusals")
        knows.set()
        cluster.in_sync(at)
        cluster.stored(at, b"x")
        cluster.same(at)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert bool(errors) == (late_s == 0)
    assert all("unknown_broker" in record.getMessage() for record in errors)
