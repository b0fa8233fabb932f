"""Goal: a partition whose followers are silent holds up nobody else, and is bounded itself.

Method: the real parser, flusher, partitions and logs; two streams kept by three brokers, whose fetches the test makes
up. Followers of stream `a` say nothing unless told to; those of `b` follow at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.api.errors import Overloaded
from broker.intake.flush import FlushSlot
from broker.intake.uncommitted import Uncommitted
from tests.unit.ingest.wire import answers_in, msg
from tests.unit.runtime.test_acks_apart import Replicated, ReplicatedIntake
from tests.unit.runtime.test_partition import HeldPool, pool

__all__ = ["pool"]  # a fixture

VALUE = b"x" * 10_000
BYTES_MAX = 1 << 20
"""The limit of the intake of `test_flush`."""


@pytest.fixture
def silent(pool: HeldPool) -> Iterator[Replicated]:
    with ThreadPoolExecutor(1) as appender:
        intake = ReplicatedIntake(pool, appender)
        yield Replicated(intake)
        pool.go.release(1000)
        pool.close()
        intake.loop.close()


def slot_of(replicated: Replicated, number: int) -> FlushSlot:
    slot: FlushSlot = replicated.intake.builders[number].tag
    return slot


def refused(replicated: Replicated) -> list[bytes]:
    return [reply for reply, body in answers_in(b"".join(replicated.intake.sent)) if b"[overloaded]" in body]


def test_one_partition_without_followers_holds_up_nobody_and_refuses_what_is_too_much(silent: Replicated) -> None:
    flusher = silent.intake.flusher
    for number in range(3 * BYTES_MAX // len(VALUE)):
        silent.receive(msg("s", VALUE, reply=f"a{number}"))
        silent.sync()
        assert not flusher.is_held_up()
    kept = slot_of(silent, 0).uncommitted_bytes
    assert BYTES_MAX // 2 <= kept < BYTES_MAX // 2 + 2 * len(VALUE)
    assert refused(silent)
    assert len(refused(silent)) == flusher.counts["append_failed_records"]
    silent.told()
    silent.receive(msg("s", b"b", sid=2, reply="b"))
    silent.sync()
    silent.intake.led[1].follow(1)
    flusher._take_heard()
    assert silent.told() == ["b"]
    silent.follow(silent.partition.log.state.log_end_offset)
    assert (slot_of(silent, 0).uncommitted_bytes, flusher.uncommitted.byte_count) == (0, 0)
    assert flusher.uncommitted.none.is_set()
    assert len(silent.told()) == silent.partition.log.state.log_end_offset
    silent.receive(msg("s", VALUE, reply="again"))
    silent.sync()
    silent.follow(silent.partition.log.state.log_end_offset)
    assert silent.told() == ["again"]


def test_what_nobody_awaits_is_kept_nowhere_and_never_refused(silent: Replicated) -> None:
    for _ in range(2 * BYTES_MAX // len(VALUE)):
        silent.receive(msg("s", VALUE), msg("s", b"asks", sid=2))
        silent.sync()
    flusher = silent.intake.flusher
    assert (flusher.uncommitted.byte_count, flusher._pending_bytes) == (0, 0)
    assert flusher.counts["append_failed_records"] == 0
    assert silent.partition.log.state.log_end_offset == 2 * BYTES_MAX // len(VALUE)
    assert silent.partition.log.state.high_watermark == 0


def test_two_that_wait_leave_a_third_for_others() -> None:
    class Place:
        uncommitted_bytes = 0

    uncommitted, places = Uncommitted(900), [Place(), Place(), Place()]
    for _ in range(1000):
        for place in places[:2]:
            try:
                uncommitted.check(place)
            except Overloaded:
                continue
            uncommitted.add(place, 10)
    assert [place.uncommitted_bytes for place in places] == [300, 300, 0]
    uncommitted.check(places[2])


def test_a_partition_may_have_one_batch_though_others_have_all() -> None:
    class Place:
        uncommitted_bytes = 0

    uncommitted = Uncommitted(1)
    for place in (Place(), Place()):
        uncommitted.check(place)
        uncommitted.add(place, 10)
        with pytest.raises(Overloaded, match="try again"):
            uncommitted.check(place)


def test_capturing_ends_without_the_followers(silent: Replicated) -> None:
    """A pause, or a deletion: what waits is told by the partition's core."""
    silent.receive(msg("s", b"x", reply="r"))
    silent.partition.run_sync()
    loop = silent.intake.loop
    loop.run_until_complete(asyncio.wait_for(silent.intake.flusher.remove(slot_of(silent, 0)), 60))
    assert (silent.told(), silent.intake.flusher.uncommitted.none.is_set()) == ([], False)
    silent.partition.depose()
    silent.intake.flusher._take_heard()
    assert (silent.told(), silent.intake.flusher.uncommitted.none.is_set()) == (["r!"], True)


def test_a_flush_follows_the_fsync_and_not_the_commit(silent: Replicated) -> None:
    """Two at once are the pool's."""
    slot = slot_of(silent, 0)
    silent.receive(msg("s", b"0", reply="a0"), msg("s", b"0", sid=2, reply="b0"))
    silent.receive(msg("s", b"1", reply="a1"))
    assert (slot.in_flight, silent.partition.log.state.log_end_offset) == (1, 1)
    silent.partition.run_sync()
    silent.intake.flusher._take_heard()
    assert (silent.partition.log.state.log_end_offset, silent.told()) == (2, [])


def test_a_commit_that_is_heard_of_before_the_fsync_of_this_broker_is_counted_once(silent: Replicated) -> None:
    """Threads of the pool and of followers may hand over in any order."""
    flusher = silent.intake.flusher
    silent.receive(msg("s", b"0", reply="a0"), msg("s", b"0", sid=2, reply="b0"))
    silent.partition.run_sync()
    silent.led.follow(1)
    assert len(flusher._heard) == 2
    flusher._heard.reverse()
    flusher._take_heard()
    assert silent.told() == ["a0"]
    assert (flusher.uncommitted.byte_count, slot_of(silent, 0).uncommitted_bytes) == (0, 0)
    assert flusher.uncommitted.none.is_set()


def test_without_a_session_nothing_counts_as_under_way_for_good(silent: Replicated) -> None:
    """The rule: a message whose publisher was not told yet still counts. One that nobody awaits is done."""
    flusher = silent.intake.flusher
    silent.receive(msg("s", b"0", reply="a0"), msg("s", b"0", sid=2))
    silent.led.has_session = silent.intake.led[1].has_session = False
    for partition in silent.intake.partitions:
        partition.run_sync()
    silent.follow(1)
    assert (silent.told(), flusher._pending_bytes) == ([], 0)
    assert [slot_of(silent, n).idle.is_set() for n in (0, 1)] == [True, True]
    silent.led.has_session = True
    silent.partition.tick(1)
    flusher._take_heard()
    assert silent.told() == ["a0"]
