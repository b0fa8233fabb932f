# ruff: noqa: F401, F811 - fixtures of the neighbour
"""Goal: what a repeat or a failed expectation is answered with is true when it is sent, whoever else appends.

Method: the real partition over the fake disk, with an fsync that is held back until the test lets it go, or fails;
batches as they come from NATS, raced by appends as they come over HTTP.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from broker.api.errors import ExpectationFailed, StorageFailed, StreamPaused, WriterFenced
from broker.ingest import PendingBatch
from broker.node.partitions.partition import Outcome, Partition
from broker.storage import tracking
from broker.storage.log import AppendResult
from tests.support.published import batch_from_nats, expecting, with_id
from tests.support.simdisk import SimDisk
from tests.unit.ingest.wire import answers_in
from tests.unit.runtime.test_partition import HeldPool, disk, info, partition, pool, rows


class Waiting:
    """One batch from NATS on its way, and what its publishers were told, once they were."""

    def __init__(self, partition: Partition, batch: PendingBatch) -> None:
        self.batch = batch
        self.outcome: Outcome | None = None
        self.told: list[bytes] = []
        self.is_told = threading.Event()
        self.result = partition.append_now([batch], self.on_durable)

    def on_durable(self, result: AppendResult, outcome: Outcome) -> None:
        self.outcome = outcome
        if isinstance(outcome, int):
            self.told = [body for _, body in answers_in(self.batch.acks(result.first_offset))]
        self.is_told.set()


def test_a_repeat_is_acked_only_when_its_original_is_durable(partition: Partition, pool: HeldPool) -> None:
    first = Waiting(partition, batch_from_nats([(b"x", with_id("a"))], 1))
    again = Waiting(partition, batch_from_nats([(b"x", with_id("a"))], 2))
    assert again.batch.record_count == 0
    assert (again.result.first_offset, again.result.next_offset) == (1, 1)
    assert not first.is_told.is_set()
    assert not again.is_told.is_set()
    pool.go.release(5)
    assert again.is_told.wait(60)
    assert isinstance(again.outcome, int)
    assert again.outcome >= 1
    assert b'"seq":1,"duplicate":true' in again.told[0]


@pytest.fixture
def broken(disk: SimDisk) -> Iterator[None]:
    disk.fail("sync", errno.EIO, path=".arrows")
    yield
    disk.heal()


@pytest.mark.usefixtures("broken")
def test_a_repeat_gets_the_error_of_its_original(partition: Partition, pool: HeldPool, disk: SimDisk) -> None:
    first = Waiting(partition, batch_from_nats([(b"x", with_id("a"))], 1))
    again = Waiting(partition, batch_from_nats([(b"x", with_id("a"))], 2))
    pool.go.release(5)
    assert first.is_told.wait(60)
    assert again.is_told.wait(60)
    assert isinstance(first.outcome, StorageFailed)
    assert isinstance(again.outcome, StorageFailed)
    disk.heal()
    later = Waiting(partition, batch_from_nats([(b"x", with_id("a"))], 3))  # recovers first, and asks the log
    assert later.is_told.wait(60)
    assert later.batch.settled == (int(partition.log.state.log_end_offset == 1), 0, 0, 0)
    assert partition.log.state.log_end_offset == 1


def test_of_those_that_race_for_a_sequence_one_wins(partition: Partition, pool: HeldPool) -> None:
    pool.go.release(10_000)
    stop = threading.Event()

    def append_over_http() -> None:
        while not stop.is_set():
            partition.append([rows(b"http")]).result(60)

    racer = threading.Thread(target=append_over_http)
    racer.start()
    won = 0
    try:
        while won < 20:
            end = partition.log.state.log_end_offset
            expecting = (("Nats-Expected-Last-Sequence", str(end)),)
            batch = batch_from_nats([(b"one", expecting), (b"two", expecting)], 1)
            waiting = Waiting(partition, batch)
            assert waiting.is_told.wait(60)
            if batch.record_count:
                assert (batch.record_count, waiting.result.first_offset) == (1, end)
                won += 1
            assert waiting.told[-1].count(b"wrong last sequence: %d " % waiting.result.next_offset) == 1
    finally:
        stop.set()
        racer.join()


def test_a_failed_expectation_of_an_offset_is_answered_when_what_it_says_is_durable(
    partition: Partition, pool: HeldPool
) -> None:
    first = partition.append([rows(b"a", b"b")], expected_offset=0)
    late = partition.append([rows(b"c")], expected_offset=1)
    none = partition.append([rows(b"c")], acks="none", expected_offset=1)
    assert isinstance(none.exception(60), ExpectationFailed), "nobody who asks for no ack waits"
    assert not first.done()
    assert not late.done()
    pool.go.release(5)
    error = late.exception(60)
    assert isinstance(error, ExpectationFailed)
    assert error.fields == {"expected_offset": 1, "next_offset": 2}
    assert first.result(60)[:2] == (0, 2)
    assert partition.append([rows(b"c")], expected_offset=2).result(60)[:2] == (2, 3)


@pytest.mark.usefixtures("broken")
def test_who_waits_for_a_failed_expectation_hears_of_a_failure_and_has_stored_nothing(
    partition: Partition, pool: HeldPool
) -> None:
    first = partition.append([rows(b"a")])
    late = partition.append([rows(b"b")], expected_offset=0)
    partition.append([rows(b"c")], acks="none", expected_offset=0).exception(60)  # by now both before it are appended
    pool.go.release(5)
    ours, theirs = late.exception(60), first.exception(60)
    assert isinstance(ours, StorageFailed)
    assert isinstance(theirs, StorageFailed)
    assert ("sent" in ours.fields, theirs.sent) == (False, True)


def test_of_those_that_race_for_an_offset_one_wins(partition: Partition, pool: HeldPool) -> None:
    pool.go.release(10_000)
    for _ in range(10):
        end = partition.log.state.log_end_offset
        tries = [partition.append([rows(b"%d" % i)], expected_offset=end) for i in range(8)]
        errors = [each.exception(60) for each in tries]
        assert errors.count(None) == 1
        assert {error.fields["next_offset"] for error in errors if error is not None} == {end + 1}  # type: ignore[attr-defined]
    assert partition.log.state.log_end_offset == 10


def test_an_append_that_waited_is_judged_by_the_fence_of_then(partition: Partition, pool: HeldPool) -> None:
    pool.go.release(100)
    assert partition.append([rows(b"a")], fence=0).result(60)[:2] == (0, 1)
    with partition._lock:
        late = partition.append([rows(b"b")], fence=0)
        free = partition.append([rows(b"c")])
        partition.alter(replace(info(), fences=((0, 1),)))
    assert isinstance(late.exception(60), WriterFenced)
    assert free.result(60)[:2] == (1, 2)
    assert partition.append([rows(b"d")], fence=1).result(60)[:2] == (2, 3)
    partition.alter(info(paused=True, fences=((0, 1),)))
    assert isinstance(partition.append([rows(b"e")], fence=1).exception(60), StreamPaused)


def asked(partition: Partition, subject: str, expected: int) -> tuple[int, bytes]:
    """Compare and set as a publisher does. Returns how many were stored, and what it was told."""
    waiting = Waiting(partition, batch_from_nats([(b"", expecting(expected))], 1, subjects=[subject]))
    assert waiting.is_told.wait(60)
    return waiting.batch.record_count, waiting.told[0]


def test_a_large_log_is_read_for_its_subjects_while_appends_go_on(
    partition: Partition, pool: HeldPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule: callers in between are told to try again, nobody is told anything wrong, and then everybody is told."""
    monkeypatch.setattr(tracking, "BUILT_AT_ONCE_BYTES", 4_000)
    monkeypatch.setattr(tracking, "PIECE_BYTES", 1_500)
    pool.go.release(100_000)
    for _ in range(40):
        partition.append([rows(b"http")]).result(60)
    stop = threading.Event()

    def append_over_http() -> None:
        while not stop.is_set():
            partition.append([rows(b"http")]).result(60)

    racer = threading.Thread(target=append_over_http)
    racer.start()
    answers: list[bytes] = []
    try:
        deadline = time.monotonic() + 60
        while not answers or b"10163" in answers[-1]:
            assert time.monotonic() < deadline
            answers.append(asked(partition, "new", 0)[1])
    finally:
        stop.set()
        racer.join()
    assert b"10163" in answers[0]
    assert b'"seq":' in answers[-1]
    assert not partition.log.tracking.lacks_some
    end = partition.log.state.log_end_offset
    sequence = int(json.loads(answers[-1])["seq"])
    assert asked(partition, "new", end + 7)[1].count(b"wrong last sequence: %d " % sequence) == 1
    assert asked(partition, "new", sequence)[0] == 1


def test_a_log_that_cannot_be_read_for_its_subjects_takes_appends_and_is_tried_again(
    partition: Partition, pool: HeldPool, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "BUILT_AT_ONCE_BYTES", -1)
    monkeypatch.setattr("broker.node.partitions.replica.BUILD_PAUSE_S", 0.0)
    pool.go.release(100_000)
    partition.append([rows(b"http")]).result(60)
    disk.fail("pread", errno.EIO, path=".arrows", times=1 << 30)
    assert b"10163" in asked(partition, "new", 0)[1]
    partition.append([rows(b"http")]).result(60)
    assert partition.log.tracking.lacks_some
    disk.heal()
    monkeypatch.setattr(tracking, "BUILT_AT_ONCE_BYTES", 1 << 20)
    deadline = time.monotonic() + 60
    while b"10163" in (answer := asked(partition, "new", 0)[1]):
        assert time.monotonic() < deadline
    assert b'"seq":3' in answer
