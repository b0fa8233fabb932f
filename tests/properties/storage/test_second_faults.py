"""Goal: an append of several steps fails at one of them, and then its undoing or its repetition at another: each record
that was answered as stored, or as a duplicate, is there once and in order, and what was refused is not.

    append of one batch, of a group in one write, of a group batch by batch (sinks), of a producer, of ids from NATS;
    each rolls the segment first, so that marker, fsync, index, state file and the next file are among its steps;
    then the fsync, a checkpoint with the state file, and the close

Method: a log on the fake disk; call i of the operation fails, and call i + j of what follows, which is what the broker
does: a log that has failed is recovered, and the publisher repeats what was refused. With an I/O error or a full disk.
Then the disk is well and it goes on, or the process is killed, or the power goes, between any of this.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from broker.api.errors import LiftlogError
from broker.storage.log import AppendResult, PartitionLog, StoredGroup
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import EFFORT
from tests.support.logs import check_log, commit, create_log, open_log, row_batch, stamped, verified_records
from tests.support.published import batch_from_nats, with_id
from tests.support.simdisk import SimDisk

pytestmark = [pytest.mark.slow, pytest.mark.long]

SETTINGS = LogSettings(segment_bytes=2_600, dedup_window_ms=120_000)
BEFORE = [b"b%d" % number for number in range(6)]
EPOCH = 2  # of what is tried: its first record begins it
PRODUCER = 7


def one(log: PartitionLog) -> AppendResult:
    return log.append([row_batch([b"x"])], leader_epoch=EPOCH, now_us=0)


def group(log: PartitionLog) -> AppendResult:
    return log.append([row_batch([b"x"]), row_batch([b"y"]), row_batch([b"z"])], leader_epoch=EPOCH, now_us=0)


def streamed(log: PartitionLog) -> AppendResult:
    batches = [row_batch([b"x"]), row_batch([b"y"]), row_batch([b"z"])]
    return log.append_group(
        StoredGroup(batches=iter(batches), batch_count=3, byte_count=4_000), leader_epoch=EPOCH, now_us=0
    )


def produced(log: PartitionLog) -> AppendResult:
    return log.append([stamped([b"x", b"y"], PRODUCER, 0, 3)], leader_epoch=EPOCH, now_us=0)


def published(log: PartitionLog) -> AppendResult:
    batch = batch_from_nats([(b"x", with_id("i-x")), (b"y", with_id("i-y"))], 0)
    result = log.append([batch], leader_epoch=EPOCH, now_us=0)
    assert batch.record_count in (0, 2), "both or none are known"
    return result


@dataclass(frozen=True)
class Kind:
    append: Callable[[PartitionLog], AppendResult]
    values: list[bytes]
    is_known_again: bool = False  # a repetition is no second record


KINDS = {
    "one batch": Kind(one, [b"x"]),
    "a group": Kind(group, [b"x", b"y", b"z"]),
    "a sink's group": Kind(streamed, [b"x", b"y", b"z"]),
    "a producer": Kind(produced, [b"x", b"y"], is_known_again=True),
    "ids": Kind(published, [b"x", b"y"], is_known_again=True),
}
ENDS = ("goes on", "killed", "power")


@dataclass
class Life:
    """Calls to one log, and their answers."""

    disk: SimDisk
    log: PartitionLog
    kind: Kind
    is_appended: bool = False
    is_acked: bool = False
    refused: list[str] = field(default_factory=list)

    def attempt(self) -> None:
        """As a partition and a publisher: recover if need be, append unless it is appended, sync, checkpoint."""
        log = self.log
        try:
            if log.state.failure is not None:
                log.recover(0)
                if log.state.log_end_offset == len(BEFORE):
                    self.is_appended = False  # it was told that it may be lost
            if not self.is_appended:
                result = self.kind.append(log)
                assert self.kind.is_known_again or not result.duplicate
                self.is_appended = True
            commit(log)
            self.is_acked = True
            log.checkpoint()
        except LiftlogError as error:
            self.refused.append(str(error))


def new_life(kind: Kind) -> Life:
    """Six records are acked, in a full tail; a producer and ids are known already where the kind needs them."""
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    for number, value in enumerate(BEFORE):
        if kind.append is produced and number < 3:
            log.append([stamped([value], PRODUCER, 0, number)], leader_epoch=1, now_us=0)
        elif kind.append is published and number == 1:
            log.append([batch_from_nats([(value, with_id("i-b"))], 0)], leader_epoch=1, now_us=0)
        else:
            log.append([row_batch([value])], leader_epoch=1, now_us=0)
    commit(log)
    log.checkpoint()
    disk.count = 0
    return Life(disk, log, kind)


def values(log: PartitionLog) -> list[bytes]:
    return [value for _, _, value in verified_records(log)]


def check(life: Life, log: PartitionLog, *, may_be_less: bool) -> None:
    found = values(log)
    assert log.state.lost_ranges == ()
    assert found[:6] == BEFORE
    allowed = [life.kind.values]
    if not life.is_acked and (may_be_less or not life.is_appended):
        allowed.append([])
    assert found[6:] in allowed, found


def end_of(life: Life, how: str) -> None:
    """It ends so; then it is all done to its end, and every record is there once."""
    disk = life.disk
    disk.heal()
    if how == "goes on":
        log, after = life.log, disk
    else:
        log_end = life.log.state.log_end_offset
        after = disk.after_kill() if how == "killed" else disk.after_crash("lost", seed=1)
        life.log = log = open_log(after, settings=SETTINGS, boot_id="next" if how == "power" else "boot-1")
        if log.state.log_end_offset > 6 and not life.is_acked:
            assert life.is_appended or log_end > 6 or life.refused, "nobody has appended it"
        if log.state.log_end_offset > 6:
            life.is_appended = True
        elif not life.is_acked:
            life.is_appended = False
        commit(log)
        check(life, log, may_be_less=True)
    for _ in range(2):
        life.attempt()
    assert life.is_acked, life.refused
    check(life, log, may_be_less=False)
    if life.kind.is_known_again:
        assert life.kind.append(log).next_offset <= log.state.log_end_offset
    log.append([row_batch([b"end"])], leader_epoch=EPOCH, now_us=0)
    commit(log)
    assert values(log) == [*BEFORE, *life.kind.values, b"end"]
    check_log(log, after)
    log.close()
    assert after.open_files == 0
    log = open_log(after.after_crash("lost"), settings=SETTINGS, boot_id="last")
    commit(log)
    assert values(log) == [*BEFORE, *life.kind.values, b"end"]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_answered_holds_after_a_failure_and_a_second_one(kind: Kind, error: int) -> None:
    whole = new_life(kind)
    segment_count = whole.log.state.segment_count
    whole.attempt()
    total = whole.disk.count
    assert whole.is_acked
    assert whole.log.state.segment_count == segment_count + 1, "it has rolled"
    assert total > 10
    tried = error  # else both errors would end in the same way
    for first in range(1, total + 1):
        for beyond in range(0, 40, 1 if EFFORT > 1 else 13):
            second = first + 1 + (beyond + first) % 40
            how = ENDS[tried % 3]
            tried += 1
            life = new_life(kind)
            life.disk.fails_at = {first, second} if beyond else {first}
            life.disk.fails_with = error
            try:
                for _ in range(1 + tried % 4):
                    life.attempt()
                end_of(life, how)
            except Exception as found:
                raise AssertionError(f"call {first}, then {second if beyond else 'none'}; {how}") from found
