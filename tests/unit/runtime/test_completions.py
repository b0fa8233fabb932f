"""Goal: each ticket is told once, whatever becomes of others, and by the leadership in which it was appended.

Method: as `test_replicated`.
"""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from broker.api.errors import DiskFull, NotLeader
from broker.node.partitions.acceptance import Acceptance
from broker.replication.events import Acks
from broker.storage.log import AppendResult
from tests.support.replicated import Led
from tests.support.simdisk import SimDisk
from tests.unit.runtime.test_partition import Waiter, disk, pool, rows
from tests.unit.runtime.test_replicated import append, gated, led

__all__ = ["disk", "led", "pool"]  # fixtures


def faulty(result: AppendResult, outcome: object) -> None:
    raise MemoryError("a fault of ours")


def test_one_who_was_held_and_fails_keeps_nobody_behind_him_from_being_told(led: Led) -> None:
    led.partition.append_now([rows(b"x")], faulty)
    waiter = append(led)
    led.has_session = False
    led.follow(2)
    assert waiter.outcome is None
    led.has_session = True
    led.partition.tick(1)
    assert waiter.outcome == 2


def test_those_who_were_held_are_told_in_order(led: Led) -> None:
    told = list[int]()
    for _ in range(3):
        led.partition.append_now([rows(b"x")], lambda result, outcome: told.append(result.first_offset))
    led.has_session = False
    led.partition.run_sync()
    led.follow(3)
    assert told == []
    led.has_session = True
    led.partition.tick(1)
    assert told == [0, 1, 2]


def test_an_append_belongs_to_the_leadership_that_has_appended_it(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came under the one before, and waited for the lock."""
    there, may_go = gated(monkeypatch, Acceptance, "check_ready", at_end=True)
    with ThreadPoolExecutor(1) as thread:
        appending = thread.submit(append, led)
        try:
            assert there.wait(60)
            led.state = replace(led.state, leader_epoch=3)
            led.partition.lead(3, led.state)
            led.partition.serve(3)
        finally:
            may_go.set()
        waiter = appending.result(60)
    led.has_session = False
    led.follow(1)
    assert waiter.outcome is None
    led.has_session = True
    led.partition.tick(1)
    assert waiter.outcome == 1


def test_what_a_broker_counts_for_itself_is_told_in_any_leadership(led: Led) -> None:
    own, waiter = Waiter(), Waiter()
    led.partition.append_now([rows(b"x")], waiter, also=[(own, Acks.OWN)])
    led.partition.retire(3)
    led.partition.run_sync()
    led.follow(1)
    assert (own.outcome, waiter.outcome) == (0, None)
    led.partition.depose()
    assert isinstance(waiter.outcome, NotLeader)


# -- a stop waits for those who are sorted (acceptance.P17)


def has_stopped(led: Led) -> bool:
    led.partition.stop_taking(7, lambda: None)
    return led.partition.has_stopped(7, 2)


def test_an_append_that_fails_is_not_waited_for(led: Led, disk: SimDisk) -> None:
    disk.fail("write", errno.ENOSPC, path=".arrows")
    with pytest.raises(DiskFull):
        append(led, sorted_by=1)
    assert has_stopped(led)


def test_one_who_was_told_and_fails_is_waited_for_no_more(led: Led) -> None:
    led.partition.append_now([rows(b"x")], faulty, sorted_by=1)
    led.partition.run_sync()
    led.follow(1)
    assert has_stopped(led)


def test_one_who_is_told_amid_the_stop_is_waited_for(led: Led) -> None:
    """The stop's own ticket may be told by another thread, before him."""
    told = list[bool]()
    led.partition.append_now([rows(b"x")], lambda *_: told.append(has_stopped(led)), sorted_by=1)
    led.partition.run_sync()
    led.follow(1)
    assert (told, has_stopped(led)) == ([False], True)


def test_one_who_waits_for_the_leader_alone_and_is_held_is_waited_for(led: Led) -> None:
    """The session is there again before he is told, and the others of his batch are told before him."""
    leader, others = Waiter(), Waiter()
    led.partition.append_now([rows(b"x")], others, also=[(leader, Acks.LEADER)], sorted_by=1)
    led.has_session = False
    led.partition.run_sync()
    led.has_session = True
    led.follow(1)
    assert (leader.outcome, others.outcome, has_stopped(led)) == (None, 1, False)
    led.partition.tick(1)
    assert (leader.outcome, has_stopped(led)) == (0, True), "the high watermark of when it was durable here"
