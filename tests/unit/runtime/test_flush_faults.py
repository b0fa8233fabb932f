"""Goal: a fault of ours amid the answers to a batch leaves nothing under way: others are taken, capturing ends.

Method: the real parser, flusher, partition and log; the fault is put in the place of one call (`flush.N6`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.api.errors import DiskFull
from broker.intake import flush
from tests.unit.ingest.wire import hmsg, msg
from tests.unit.runtime.test_acks_apart import Replicated, ReplicatedIntake, replicated
from tests.unit.runtime.test_flush import Intake, intake
from tests.unit.runtime.test_partition import HeldPool, pool
from tests.unit.runtime.test_uncommitted import slot_of

__all__ = ["intake", "pool", "replicated"]  # fixtures


def faulty_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    plain: Callable[..., Any] = getattr(owner, name)

    def faulty(*of: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, plain)
        raise MemoryError("a fault of ours")

    monkeypatch.setattr(owner, name, faulty)


@pytest.mark.parametrize("receive", [{}, {"unawaited": 1}], ids=["synced by this thread", "by the pool"])
def test_a_batch_whose_answers_cannot_be_made_is_not_under_way_for_ever(
    intake: Intake, pool: HeldPool, monkeypatch: pytest.MonkeyPatch, receive: dict[str, int]
) -> None:
    flusher, slot = intake.flusher, intake.builders[0].tag
    if receive:
        monkeypatch.setattr(flush, "CROWD_RECORDS", 1)
    faulty_once(monkeypatch, flush, "blob_of")
    intake.receive(1, **receive)
    pool.go.release(1000)
    intake.loop.run_until_complete(asyncio.wait_for(flusher.remove(slot), 20))
    assert (slot.in_flight, slot.ticked, flusher._pending_bytes) == (0, 0, 0)
    assert (flusher.counts["acks_sent"], flusher.counts["append_failed_records"]) == (0, 1 + len(receive))
    intake.receive(1)
    intake.loop.run_until_complete(asyncio.wait_for(flusher.remove(slot), 20))
    assert (intake.acked(), flusher.counts["acks_sent"]) == (1, 1)


@pytest.mark.parametrize("which", ["of the leader", "of all"])
def test_what_waits_for_followers_is_counted_no_more_if_its_answers_cannot_be_made(
    replicated: Replicated, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    flusher, slot = replicated.intake.flusher, slot_of(replicated, 0)
    replicated.receive(msg("s", b"0", reply="all"), hmsg("s", b"1", ("Liftlog-Ack", "leader"), reply="leader"))
    if which == "of the leader":
        faulty_once(monkeypatch, flush, "blob_of")
    replicated.sync()
    if which == "of all":
        faulty_once(monkeypatch, flush, "blob_of")
    replicated.follow(2)
    assert len(replicated.told()) == 1
    assert (slot.in_flight, flusher._pending_bytes, flusher.uncommitted.byte_count) == (0, 0, 0)
    assert flusher.uncommitted.none.is_set()


def test_a_flush_of_what_has_gathered_that_fails_does_not_end_reading(
    pool: HeldPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is durable, and the next one, which has gathered meanwhile, is refused: that is what fails."""
    with ThreadPoolExecutor(1) as appender:
        silent = Replicated(ReplicatedIntake(pool, appender))
        flusher, slot = silent.intake.flusher, slot_of(silent, 0)
        silent.receive(msg("s", b"0", reply="a0"))
        silent.receive(msg("s", b"1", reply="a1"))
        assert (slot.in_flight, slot.builder.record_count) == (1, 1)
        monkeypatch.setattr(flusher, "_pending_bytes_max", flusher._pending_bytes)
        reading = silent.intake.loop.create_task(flusher.may_read())
        silent.intake.loop.run_until_complete(asyncio.sleep(0))
        assert not reading.done()
        silent.partition.log.state.failure = DiskFull("full")
        faulty_once(monkeypatch, flusher.answers, "refuse")
        silent.sync()
        silent.intake.loop.run_until_complete(asyncio.wait_for(reading, 20))
        assert slot.idle.is_set()
        assert flusher.counts["flush_bugs"] == 1
        pool.go.release(1000)
        pool.close()
        silent.intake.loop.close()
