"""Goal: a log that follows knows what its leader was told as it copies it, and never anything else (`remembered.U4`).

Method: a leader with stamped, identified and plain batches; a follower that copies it in pieces, keeps up, is cut,
rolls and writes checkpoints in an order of a seed. In the end its memory is that of a log that is read anew.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.storage.disk import OsDisk
from broker.storage.log import PartitionLog
from broker.storage.log_reader import LogReader
from broker.storage.memory.ids import FoundIds, ids_in
from broker.storage.memory.memory import Memory
from broker.storage.read import group_start
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import first_short
from tests.support.logs import create_log, open_log, plan_bytes, row_batch, stamped
from tests.support.published import batch_from_nats, with_id
from tests.support.simdisk import SimDisk

SETTINGS = LogSettings(segment_bytes=6_000, is_sole_replica=False, dedup_window_ms=10_000)
NOW_US = 1_000_000
GROUPS = 60


def append(log: PartitionLog, number: int, kind: str, *, epoch: int = 1) -> bool:
    """One group; whether it was there already. Producer 7's are those that were stamped before it, in order."""
    match kind:
        case "stamp":
            group = [stamped([b"%d" % number], 7, 0, number)]
        case "ids":
            rows = [(b"%d" % i, with_id(f"id-{number}-{i}")) for i in range(3)]
            group = [batch_from_nats(rows, NOW_US)]  # type: ignore[list-item]
        case _:
            group = [row_batch([b"plain"])]
    return log.append(group, leader_epoch=epoch, now_us=NOW_US).duplicate


def made(kinds: list[str]) -> PartitionLog:
    log = create_log(SimDisk(), settings=SETTINGS)
    log.lead(1)
    for number, kind in numbered(kinds):
        assert not append(log, number, kind)
    log.syncer.sync()
    return log


def numbered(kinds: list[str]) -> list[tuple[int, str]]:
    """Each counts among its like."""
    return [(kinds[:at].count(kind), kind) for at, kind in enumerate(kinds)]


def follows() -> tuple[SimDisk, PartitionLog]:
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    log.follow(1)
    return disk, log


def copy(leader: PartitionLog, log: PartitionLog, most_bytes: int = 1 << 30) -> None:
    if log.state.log_end_offset < leader.state.log_end_offset:
        with leader.reader.read(log.state.log_end_offset, stored=True, max_bytes=most_bytes) as plan:
            log.append_stored(plan_bytes(plan), leader_epoch=1, now_us=NOW_US)
        log.syncer.sync()


def check(log: PartitionLog) -> None:
    """The tables, if there are some, tell what the log tells up to their end."""
    remembered = log.remembered
    if remembered.memory is None:
        return
    end = remembered.memory.end
    assert told_by(log, remembered.memory) == told_by(log, remembered.read(end, (-1,)))


def told_by(log: PartitionLog, memory: Memory) -> tuple[bytes, bytes, list[bytes]]:
    """Producers, the last id, and where ids were met and when; their hashes have a key of the table's own."""
    sections = log.remembered.sections_of(memory, memory.end)
    entries = sections.get("ids", b"")[-32 * len(memory.ids) :] if len(memory.ids) else b""
    return (
        sections["producers"],
        memory.ids.last_id,
        [entries[at + 16 : at + 32] for at in range(0, len(entries), 32)],
    )


@pytest.mark.parametrize("seed", first_short(range(6)))
def test_whatever_happens_the_tables_tell_what_the_log_tells(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [rng.choice(["stamp", "ids", "plain", "plain"]) for _ in range(GROUPS)]
    leader, (_, log) = made(kinds), follows()
    kept = 0
    while log.state.log_end_offset < leader.state.log_end_offset:
        match rng.choice(["copy", "copy", "copy", "keep", "keep", "cut", "checkpoint"]):
            case "copy":
                copy(leader, log, rng.choice([1, 3_000]))
            case "keep":
                log.remembered.keep_up()
                memory = log.remembered.memory
                kept += memory is not None and memory.end == log.state.log_end_offset
            case "cut" if rng.random() < 0.4:
                to = rng.randint(0, log.state.log_end_offset)
                log.truncate(log.state.ask(lambda view, to=to: group_start(view, to)))  # type: ignore[misc]
            case "checkpoint":
                log.checkpoint()
        check(log)
    assert kept
    log.lead(2)
    check(log)
    for number, kind in numbered(kinds):
        if kind == "ids":
            assert append(log, number, kind, epoch=2), f"ids of group {number}"
    assert append(log, kinds.count("stamp") - 1, "stamp", epoch=2)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where reads for the tables began."""
    began: list[int] = []
    real = LogReader.messages

    def messages(self: LogReader, offset: int, end: int | None, *, whole: bool = False) -> Iterator[memoryview]:
        began.append(offset)
        return real(self, offset, end, whole=whole)

    monkeypatch.setattr(LogReader, "messages", messages)
    return began


def test_who_begins_to_lead_reads_what_came_last_and_no_more(reads: list[int]) -> None:
    leader, (_, log) = made(["ids"] * 20), follows()
    while log.state.log_end_offset < 30:
        copy(leader, log, 1)
    log.remembered.keep_up()
    end = log.state.log_end_offset
    copy(leader, log)
    reads.clear()
    log.lead(2)
    assert append(log, 19, "ids", epoch=2)
    assert reads == [end]


def test_what_tells_nothing_is_not_read(reads: list[int]) -> None:
    leader, (_, log) = made(["ids", *["plain"] * 20]), follows()
    copy(leader, log, 1)
    log.remembered.keep_up()
    reads.clear()
    while log.state.log_end_offset < leader.state.log_end_offset:
        copy(leader, log, 1)
        log.remembered.keep_up()
    log.lead(2)
    assert append(log, 0, "ids", epoch=2)
    assert reads == []
    check(log)


def test_a_log_that_tells_nothing_is_not_read(reads: list[int]) -> None:
    leader, (disk, log) = made(["plain"] * 5), follows()
    copy(leader, log, 1)
    log.close()
    log = open_log(disk, settings=SETTINGS)
    log.follow(1)
    copy(leader, log)
    log.remembered.keep_up()
    assert (reads, log.remembered.memory) == ([], None)


def cut(log: PartitionLog) -> None:
    log.truncate(6)


def cut_and_copied(log: PartitionLog) -> None:
    log.truncate(6)
    copy(made(["ids", "ids", "stamp", *["plain"] * 60]), log)


@pytest.mark.parametrize("meanwhile", [cut, cut_and_copied, lambda log: log.reset(0), lambda log: log.lead(2)])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_what_was_read_while_the_log_changed_does_not_count(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[PartitionLog], None], *, is_reopened: bool
) -> None:
    """U3: between any two messages that are read without the lock."""
    monkeypatch.setattr("broker.storage.remembered.LEARNED_BYTES", 1)
    leader, (disk, log) = made(["ids"] * 20), follows()
    copy(leader, log, 1)
    if is_reopened:
        log.close()
        log = open_log(disk, settings=SETTINGS)
        log.follow(1)
    else:
        log.remembered.keep_up()
    copy(leader, log)
    real, times = LogReader.messages, list[int]()

    def messages(self: LogReader, offset: int, end: int | None, *, whole: bool = False) -> Iterator[memoryview]:
        for message in real(self, offset, end, whole=whole):
            times.append(1)
            if len(times) == 4:
                meanwhile(log)
            yield message

    monkeypatch.setattr(LogReader, "messages", messages)
    log.remembered.keep_up()
    assert len(times) >= 4
    check(log)
    log.remembered.keep_up()
    memory = log.remembered.memory
    assert log.state.log_end_offset == 0 or (memory is not None and memory.end == log.state.log_end_offset)
    check(log)


def test_a_disk_that_cannot_be_read_costs_the_head_start_and_nothing_else() -> None:
    leader, (disk, log) = made(["ids"] * 20), follows()
    copy(leader, log, 1)
    log.remembered.keep_up()
    copy(leader, log)
    disk.fail("pread", errno.EIO, path=".arrows")
    log.remembered.keep_up()
    check(log)
    log.lead(2)
    assert append(log, 19, "ids", epoch=2)
    assert append(log, 0, "ids", epoch=2)


def test_who_cannot_read_what_came_last_leads_all_the_same_and_reads_it_when_it_is_asked() -> None:
    leader, (disk, log) = made(["ids"] * 20), follows()
    copy(leader, log, 1)
    log.remembered.keep_up()
    copy(leader, log)
    disk.fail("pread", errno.EIO, path="24.arrows")
    log.lead(2)
    assert log.remembered.memory is None
    assert append(log, 19, "ids", epoch=2)
    assert append(log, 0, "ids", epoch=2)


def test_two_that_keep_up_and_append_at_once_leave_tables_of_what_is_stored(tmp_path: Path) -> None:
    """The cleaner reads while the link writes, and an operator's reassignment cuts."""
    leader = made([*["ids", "stamp", "plain"] * 40])
    log = create_log(OsDisk(), settings=SETTINGS, folder=str(tmp_path / "log"))
    log.follow(1)
    done = threading.Event()

    def keep_up() -> None:
        while not done.is_set():
            log.remembered.keep_up()

    with ThreadPoolExecutor(1) as pool:
        kept = pool.submit(keep_up)
        try:
            for number in range(60):
                copy(leader, log, 1)
                if number % 7 == 6:
                    log.truncate(log.state.ask(lambda view: group_start(view, log.state.log_end_offset - 2)))
        finally:
            done.set()
        kept.result()
    copy(leader, log)
    log.remembered.keep_up()
    check(log)
    log.lead(2)
    assert append(log, 39, "stamp", epoch=2)
    assert append(log, 39, "ids", epoch=2)


def test_small_batches_are_read_for_their_ids_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time each costs a third of a millisecond. Publishers that wait for each ack make thousands of them, and
    whoever leads next would be silent for seconds."""
    log = create_log(SimDisk(), settings=SETTINGS)
    log.lead(1)
    for number in range(200):
        log.append([batch_from_nats([(b"v", with_id(f"id-{number}"))], NOW_US)], leader_epoch=1, now_us=NOW_US)
    log.remembered.forget()
    reads = 0

    def counted(*messages: memoryview) -> FoundIds:
        nonlocal reads
        reads += 1
        return ids_in(*messages)

    monkeypatch.setattr("broker.storage.memory.memory.ids_in", counted)
    assert len(log.remembered.known().ids) == 200
    assert 1 <= reads <= 4
