"""Goal: a follower whose disk is at its reserve takes nothing more by any door, says so, and is waited for by nobody;
what makes room reaches it, and it comes back by itself.

Method: as test_link.py; the disk says how much is free as the test wants.
"""

from __future__ import annotations

import random
import shutil

import pytest

from broker.api.errors import DiskFull, NotEnoughReplicas
from broker.api.stream import COMMITS_STREAM, OFFSETS_STREAM
from broker.metadata.partition import Place
from broker.serving.endpoints.changes import first_kept
from tests.support.linked import RESERVE_BYTES, Linked
from tests.support.processes import eventually
from tests.unit.link.test_link import three

__all__ = ["three"]
pytestmark = pytest.mark.slow
BIG = random.Random(2).randbytes(200_000)
FULL, AT_RESERVE, PLENTY = RESERVE_BYTES * 6 // 8, RESERVE_BYTES * 7 // 8, 1 << 40
"""Free bytes: a follower takes nothing; a leader takes nothing, and a follower goes on; both take all."""


def lacking(cluster: Linked, at: Place) -> tuple[str, ...]:
    in_sync = cluster.leader(at).partition(at)._core.in_sync
    assert in_sync is not None
    return in_sync.without_room


def refused_for_room(cluster: Linked, at: Place) -> NotEnoughReplicas:
    """The error of an append, once the leader has heard that there is no room."""

    def refusal() -> NotEnoughReplicas | None:
        try:
            cluster.publish(at, b"?")
        except NotEnoughReplicas as error:
            return error
        return None

    found = eventually(refusal, what="a refusal")
    assert found is not None
    return found


def test_a_follower_without_room_leaves_at_once_and_joins_when_it_has_room(three: Linked) -> None:
    """The lag of 10 s that it may have otherwise is not waited for: the leader's clock stands still."""
    [at] = three.create(min_insync=2)
    three.in_sync(at)
    three.stored(at, b"before")
    full, well = (node.me for node in three.followers(at))
    three.free[full] = FULL
    three.stored(at, b"one")
    three.in_sync(at, three.leader(at).me, well)
    end = three.nodes[full].log(at).state.log_end_offset
    for _ in range(5):
        three.stored(at, BIG)
    assert three.nodes[full].log(at).state.log_end_offset == end, "nothing was appended below the reserve"
    assert lacking(three, at) == (full,)
    three.free[full] = PLENTY
    three.in_sync(at)
    three.same(at)
    assert not lacking(three, at)


def test_a_leader_stops_before_its_followers_where_all_disks_are_alike(three: Linked) -> None:
    [at] = three.create(min_insync=2)
    three.in_sync(at)
    three.free |= dict.fromkeys(three.names, AT_RESERVE)
    with pytest.raises(DiskFull):
        three.publish(at, b"x")
    leader = three.leader(at).me
    three.free[leader] = PLENTY
    eventually(lambda: three.publish(at, b"y") is not None, what="an append")
    three.same(at)
    assert set(three.service.state(at).isr) == {"a", "b", "c"}


def test_with_too_few_that_have_room_appends_say_so_and_a_trim_makes_room(three: Linked) -> None:
    """One of the two stays in sync: else a trim would wait for it, and it for the trim."""
    [at] = three.create(min_insync=2, segment_bytes=1 << 20)
    three.in_sync(at)
    for _ in range(12):
        three.stored(at, BIG)
    leader = three.leader(at)
    others = [node.me for node in three.followers(at)]
    three.free |= dict.fromkeys(others, FULL)
    waits = three.publish(at, b"waits for room")
    eventually(lambda: len(lacking(three, at)) == 2, what="both to say that they have no room")
    error = refused_for_room(three, at)
    assert error.fields["no_room"] == others
    assert "no room on the disks of" in str(error)
    eventually(lambda: len(three.service.state(at).isr) == 2, what="one to stay in sync")
    assert waits.outcome is None
    leader.partition(at).trim(10).result(60)
    assert leader.log(at).checkpoints.kept_start_offset == 10
    for name in others:
        eventually(
            lambda name=name: three.nodes[name].log(at).checkpoints.kept_start_offset == 10, what=f"{name} to follow it"
        )
    three.free |= dict.fromkeys(others, PLENTY)
    assert isinstance(eventually(lambda: waits.outcome, what="the ack"), int)
    three.in_sync(at)
    three.stored(at, b"after")
    three.same(at)


def test_a_follower_that_begins_with_nothing_takes_nothing_without_room(three: Linked) -> None:
    """A whole log in bulk, a log that begins anew: they come by the same door."""
    [at] = three.create(min_insync=2)
    three.in_sync(at)
    away = three.followers(at)[0].me
    three.stop(away)
    three.fail(away)
    for _ in range(60):
        three.stored(at, BIG)
    shutil.rmtree(three.path / away)
    three.free[away] = FULL
    three.start(away)
    eventually(lambda: lacking(three, at) == (away,), what="it to say that it has no room")
    three.stored(at, BIG)
    assert three.nodes[away].log(at).state.log_end_offset == 0
    assert away not in three.service.state(at).isr
    three.free[away] = PLENTY
    three.in_sync(at)
    three.same(at)


@pytest.mark.parametrize("name", [OFFSETS_STREAM, COMMITS_STREAM])
def test_followers_of_the_brokers_own_streams_go_on_below_the_users_and_stop_at_three_eighths(
    three: Linked, name: str
) -> None:
    [own] = three.create(name, min_insync=2, internal=True)
    [at] = three.create("s", min_insync=2)
    for each in (own, at):
        three.in_sync(each)
    full = next(node.me for node in three.nodes.values() if node not in (three.leader(own), three.leader(at)))
    three.free[full] = RESERVE_BYTES * 3 // 8 + len(BIG) * 2
    three.stored(at, BIG)
    eventually(lambda: lacking(three, at) == (full,), what="no room for a user's")
    three.stored(own, b"small")
    three.same(own)
    assert not lacking(three, own)
    three.free[full] = RESERVE_BYTES * 3 // 8
    end = three.nodes[full].log(own).state.log_end_offset
    three.stored(own, b"more")
    eventually(lambda: lacking(three, own) == (full,), what="no room for the broker's own either")
    assert three.nodes[full].log(own).state.log_end_offset == end
    three.free[full] = PLENTY
    for each in (own, at):
        three.in_sync(each)
        three.same(each)


def test_a_follower_takes_what_fits_of_an_answer(three: Linked) -> None:
    """An answer has many batches, in bulk 16 MiB: those that there is room for are taken, and no more."""
    [at] = three.create(min_insync=2)
    three.in_sync(at)
    away = three.followers(at)[0].me
    three.stop(away)
    three.fail(away)
    for _ in range(60):
        three.stored(at, BIG)
    room = 5 * len(BIG)
    three.free[away] = FULL + room
    three.start(away)
    eventually(lambda: lacking(three, at) == (away,), what="it to say that it has no room")
    log = three.nodes[away].log(at)
    assert 0 < log.state.log_end_offset <= 5
    three.free[away] = PLENTY
    three.in_sync(at)
    three.same(at)


def test_after_an_outage_of_all_on_full_disks_a_lower_minimum_lets_a_trim_make_room(three: Linked) -> None:
    """The leader has a record that nobody has room for: it does not know its end, nobody can join, a trim waits."""
    [at] = three.create(min_insync=2, segment_bytes=1 << 20)
    three.in_sync(at)
    for _ in range(12):
        three.stored(at, BIG)
    leader, others = three.leader(at).me, [node.me for node in three.followers(at)]
    three.leader(at).log(at).checkpoint()
    three.free |= dict.fromkeys(others, FULL)
    three.publish(at, b"nobody has room")
    eventually(lambda: len(three.service.state(at).isr) == 2, what="one to stay in sync")
    for name in (*others, leader):
        three.stop(name, kill=True)
        three.fail(name)
    three.start(leader)
    partition = three.leader(at).partition(at)
    three.start(*others)
    eventually(lambda: set(lacking(three, at)) == set(others), what="them to say that they have no room")
    assert partition.end is None
    assert first_kept(partition, "latest") == 12, "what is known to be committed may be let go"
    trimmed = partition.trim(10)
    assert not trimmed.done()
    three.service.apply(kind="set_min_insync", stream=at[0], min_insync_replicas=1)
    trimmed.result(60)
    eventually(lambda: partition.end == 13, what="its end")
    for name in others:
        eventually(
            lambda name=name: three.nodes[name].log(at).checkpoints.kept_start_offset == 10, what=f"{name} to follow it"
        )
    three.free |= dict.fromkeys(others, PLENTY)
    three.in_sync(at)
    three.same(at)
