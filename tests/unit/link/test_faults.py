"""Goal: whatever becomes of a stream, a disk or a process, nothing that was acknowledged is lost, and all agree again.

Method: as test_link.py; relays between the brokers cut, stop and change what they forward, disks fail, files rot.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.common.stopping import StillRunning
from broker.link import connection
from broker.link import link as link_module
from broker.link.answering import Answering
from broker.metadata.partition import Place
from broker.storage.log import PartitionLog
from tests.support.linked import Linked, linked
from tests.support.processes import eventually
from tests.unit.link.test_link import again, three

__all__ = ["three"]
pytestmark = pytest.mark.slow
BIG = random.Random(1).randbytes(20_000)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Linked]:
    with linked(tmp_path, ("a", "b")) as cluster:
        cluster.start()
        yield cluster


def filled(cluster: Linked, at: Place, count: int = 20) -> str:
    """Let a follower be away while this much is stored. Returns its name; it does not run."""
    cluster.in_sync(at)
    away = cluster.followers(at)[0].me
    cluster.stop(away)
    cluster.fail(away)
    for _ in range(count):
        cluster.stored(at, BIG)
    return away


@pytest.mark.long
def test_bytes_that_were_changed_on_their_way_are_not_stored(two: Linked) -> None:
    """TCP lets some through. Whichever part they hit, the stream or the answer is done again. An operator sees it."""
    [at] = two.create(min_insync=1)
    away = filled(two, at)
    leader = two.leader(at).me
    counted = 0
    for place in (60_000, 5_000, 300, 250_000):
        two.relays[leader].flip_at = place
        two.start(away)
        two.in_sync(at)
        two.same(at)
        assert two.relays[leader].flip_at is None, "no byte was changed"
        counted += two.nodes[away].link.counts["bad_batches"]
        two.stop(away)
        two.fail(away)
        two.stored(at, BIG)
        again_empty(two, away)
    assert counted
    two.start(away)
    two.in_sync(at)
    two.same(at)
    assert not two.nodes[away].link.counts["bad_batches"]


def again_empty(cluster: Linked, name: str) -> None:
    """Its disk is another one."""
    shutil.rmtree(cluster.path / name)


def test_a_stream_that_is_cut_amid_an_answer_goes_on_where_it_was(two: Linked) -> None:
    [at] = two.create(min_insync=1)
    away = filled(two, at)
    relay = two.relays[two.leader(at).me]
    relay.cut_after = 150_000
    two.start(away)
    eventually(lambda: two.nodes[away].link.counts["lost"] >= 2, what="the stream to be cut")
    relay.cut_after = None
    two.in_sync(at)
    two.same(at)


@pytest.mark.long
def test_an_answer_that_takes_longer_than_silence_may_last_arrives(
    two: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow line. It was cut, and begun anew, again and again; and its leader was reported."""
    monkeypatch.setattr(connection, "SILENT_S", 0.7)
    monkeypatch.setattr(connection, "CUT_S", 1.0)
    [at] = two.create(min_insync=1)
    away = filled(two, at)
    leader = two.leader(at).me
    two.relays[leader].bytes_per_s = 150_000
    two.start(away)
    two.in_sync(at)
    two.same(at)
    assert two.nodes[away].link.counts["lost"] == 0
    assert two.nodes[away].reports == []


@pytest.mark.parametrize("towards_target", [False, True], ids=["the follower hears it", "the leader hears it"])
def test_a_connection_that_is_half_closed_is_made_anew(two: Linked, towards_target: bool) -> None:
    """The other side may still talk, for as long as it likes."""
    [at] = two.create(min_insync=2)
    two.stored(at, b"0")
    leader, [follower] = two.leader(at), two.followers(at)
    for number in range(1, 4):
        before = follower.link.counts["lost"]
        two.relays[leader.me].half_close(towards_target=towards_target)
        eventually(lambda before=before: follower.link.counts["lost"] > before, what="the stream to be over")  # type: ignore[misc]
        assert two.stored(at, b"%d" % number) == number + 1
    two.in_sync(at)
    two.same(at)


def test_a_process_that_is_stopped_is_reported_and_goes_on_as_a_follower(three: Linked) -> None:
    """The connections stay, and nobody answers."""
    [at] = three.create()
    three.stored(at, b"before")
    old = three.leader(at)
    three.relays[old.me].paused = True
    others = three.followers(at)
    epoch = three.service.state(at).leader_epoch
    eventually(lambda: all((at, epoch) in node.reports for node in others), what="both followers to report it")
    three.fail(old.me)
    three.stored(at, b"meanwhile")
    three.relays[old.me].paused = False
    again(three, old.me)
    three.in_sync(at)
    three.same(at)


def test_a_follower_that_does_not_read_holds_up_nobody_else(three: Linked) -> None:
    """One follower's thread stands still amid an append; the other one gets all that there is."""
    [at] = three.create()
    three.stored(at, b"before")
    stuck, other = three.followers(at)
    entered, may_go = threading.Event(), threading.Event()
    follower = stuck.placed(at)._follower
    assert follower is not None
    append = follower._append  # type: ignore[attr-defined]

    def held(*args: object) -> None:
        entered.set()
        assert may_go.wait(60)
        append(*args)

    follower._append = held  # type: ignore[attr-defined]
    waiters = [three.publish(at, BIG) for _ in range(200)]
    assert entered.wait(60)
    eventually(lambda: other.log(at).state.durable_end == 201, what="the other follower to have all")
    assert waiters[-1].outcome is None
    may_go.set()
    eventually(lambda: waiters[-1].outcome == 201, what="an ack")
    three.same(at)


def test_streams_that_break_again_and_again_lose_nothing(three: Linked) -> None:
    places = three.create(partitions=5)
    for at in places:
        three.stored(at, b"first")
    attempts = sum(sum(node.link.counts.values()) for node in three.nodes.values())
    waiters = []
    begun = time.monotonic()
    for round_number in range(40):
        for relay in three.relays.values():
            relay.cut()
        waiters += [(at, three.publish(at, b"%d" % round_number)) for at in places]
        time.sleep(0.02)
    for _, waiter in waiters:
        eventually(lambda waiter=waiter: waiter.outcome is not None, what="an ack")  # type: ignore[misc]
        assert isinstance(waiter.outcome, int), waiter.outcome
    took = time.monotonic() - begun
    made = sum(node.link.counts["attempts"] for node in three.nodes.values()) - attempts
    assert made < 6 * (took / 0.04 + 10), "a pause is kept between attempts"
    for at in places:
        three.same(at)


def test_a_follower_whose_fsync_fails_steps_out_and_comes_back(three: Linked) -> None:
    [at] = three.create()
    three.stored(at, b"before")
    three.in_sync(at)
    failing = three.followers(at)[0]
    replica = failing.partition(at).replica
    sync = replica.sync

    def fails_once() -> object:
        failing.disk.fails = True
        replica.sync = sync  # type: ignore[method-assign]
        try:
            return sync()
        finally:
            failing.disk.fails = False

    replica.sync = fails_once  # type: ignore[method-assign, assignment]
    waiter = three.publish(at, b"while it fails")
    eventually(lambda: three.service.state(at).step_outs_of(failing.me) == 1, what="a step-out")
    eventually(lambda: waiter.outcome == 2, what="an ack by the others")
    three.in_sync(at)
    three.same(at)
    assert not failing.halted


def test_a_leader_finds_its_own_damage_when_a_follower_refuses_it(three: Linked) -> None:
    """It copies the batch from one who has it, and leads on."""
    [at] = three.create(segment_bytes=1 << 20)
    away = filled(three, at, 70)
    leader = three.leader(at)
    [first, *_] = sorted(Path(leader.log(at).state.folder).glob("*.arrows"))
    with first.open("r+b") as file:
        file.seek(300_000)
        byte = file.read(1)
        file.seek(300_000)
        file.write(bytes([byte[0] ^ 1]))
    again_empty(three, away)
    three.start(away)
    three.in_sync(at)
    three.same(at)
    assert leader.partition(at).damage.mended_count == 1
    assert three.service.state(at).step_outs_of(leader.me) == 0


def test_who_begins_anew_gets_the_state_file_too(three: Linked) -> None:
    """The leader's log begins above 0: what ids the records told, and which are gone, is in its state file."""
    [at] = three.create(segment_bytes=1 << 20)
    away = filled(three, at, 120)
    leader = three.leader(at).partition(at)
    leader.replica.trim(60)
    again_empty(three, away)
    three.start(away)
    three.in_sync(at)
    three.same(at)
    opened = three.nodes[away].log(at)
    assert (opened.state.log_start_offset, opened.handover.lacks) == (60, False)


@pytest.mark.parametrize("side", ["the leader's stream", "the follower's stream"])
def test_a_stop_does_not_wait_for_a_thread_that_hangs_at_its_disk(
    two: Linked, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """All else of the link is ended, and what hangs is named."""
    [at] = two.create(min_insync=1)
    two.in_sync(at)
    leader, [follower] = two.leader(at), two.followers(at)
    hung, goes_on = threading.Event(), threading.Event()

    def hangs(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            hung.set()
            goes_on.wait(60)
            return real(*args, **options)

        return call

    if side == "the leader's stream":
        node, what = leader, "link-in"
        monkeypatch.setattr(Answering, "compose", hangs(Answering.compose))
    else:
        node, what = follower, f"link-to-{leader.me}"
        monkeypatch.setattr(PartitionLog, "append_stored", hangs(PartitionLog.append_stored))
    monkeypatch.setattr(link_module, "THREAD_S", 0.3)
    two.publish(at, b"x")
    assert hung.wait(60)
    try:
        with pytest.raises(StillRunning, match=f"^{what}$"):
            node.link.stop()
    finally:
        goes_on.set()
