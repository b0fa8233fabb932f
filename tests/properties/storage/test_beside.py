"""Goal: whatever else is done to a log while it is compacted, joined or scrubbed, nothing is lost or comes back.

    which call     [ compact .. X .. ]    [ join .. X .. ]    [ scrub .. X .. ]
    at each X      trim, retention, delete, repair of every segment, truncate, reset, recovery after a failed fsync,
                   appends with rolls, a checkpoint; X is each call to the disk at which no lock of the log is held,
                   since there another thread may come in
    which fails    a call to the disk of the one, then the other is done, with a failure of its own or without

Then the process is killed or the power goes, the log is opened, and it is all done once more without a failure.
Method: one thread; the fake disk runs the other operation, or fails, at the step that the test says.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from broker.api.errors import LiftlogError
from broker.storage.inspect.repair import repair
from broker.storage.inspect.scrub import scrub
from broker.storage.log import PartitionLog
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.rewriting import BatchShape
from broker.storage.segments.checkpoint import LogSettings
from tests.properties.storage.test_power_cuts import RECORDS, SETTINGS, append, prepared, record
from tests.support.compacting import check_compacted, keyed_records, newest_of
from tests.support.effort import EFFORT, first_short
from tests.support.logs import FOLDER, IDENTITY, commit, open_log
from tests.support.simdisk import Fault, SimDisk

pytestmark = [pytest.mark.slow, pytest.mark.long]

REPLICA = replace(SETTINGS, is_sole_replica=False)
PIECE = 2_000


class HookedDisk(SimDisk):
    """A disk at whose n-th call something else is done."""

    def __init__(self) -> None:
        super().__init__()
        self.has_descriptors = False
        found = prepared(False)
        self.names, self.folders = found.names, found.folders
        self._durable_names = dict(found.names)
        self.at = 0
        self.hook: Callable[[], bool] = lambda: True  # whether it was done

    def meet_fault(self, call: str, path: str) -> Fault | None:
        found = super().meet_fault(call, path)
        if call not in ("create", "unlink", "rename", "sync_dir"):
            self.come_in()
        return found

    def come_in(self) -> None:
        if self.at and self.count >= self.at and self.hook():
            self.at = 0

    # The kernel does these in one piece, so others come in before.

    def unlink(self, path: str) -> None:
        self.come_in()
        super().unlink(path)

    def rename(self, source: str, target: str) -> None:
        self.come_in()
        super().rename(source, target)

    def sync_dir(self, path: str) -> None:
        self.come_in()
        super().sync_dir(path)


@dataclass
class Subject:
    """The log that all is done to, and what must hold of it afterwards."""

    disk: HookedDisk
    log: PartitionLog
    settings: LogSettings
    end: int = RECORDS
    start_max: int = 0
    compacts: bool = False
    is_deleted: bool = False
    may_end_lower: bool = False  # an operation that takes records back may have failed half-way

    def is_unlocked(self) -> bool:
        """Whether another thread could get all locks of the log now."""
        log = self.log
        return not any(lock._is_owned() for lock in (log.state.checkpoint_lock, log.state.sync_lock, log.state.lock))  # type: ignore[attr-defined]


def subject(settings: LogSettings = SETTINGS) -> Subject:
    disk = HookedDisk()
    log = open_log(disk, settings=settings, boot_id="boot-2")
    log.state.advance_high_watermark(log.state.durable_end)
    disk.count = 0
    return Subject(disk, log, settings)


# --- what is done, and beside what ----------------------------------------------------------------------------------


def compacting(found: Subject) -> None:
    found.compacts = True
    settings = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=0)
    for _ in range(10):  # the first ones make the indexes that a power cut has taken
        if compact(found.log, settings, map_bytes=1 << 12, now_us=1 << 50) is None:
            break


def joining(found: Subject) -> None:
    shape = BatchShape(batch_records=7)
    wanted = CoalescingSettings(min_age_ms=0, segment_bytes=30_000, shape=shape)
    for _ in range(10):
        if coalesce(found.log, wanted, {}, now_us=1 << 50) is None:
            break


def scrubbing(found: Subject) -> None:
    offset, log = 0, found.log
    while (piece := scrub(log, offset, bytes_max=PIECE)) is not None:
        assert piece.lost == () or found.is_deleted, "nothing is damaged"
        offset = piece.next_offset


def trim(found: Subject) -> None:
    found.start_max = max(found.start_max, 12)
    found.log.trim(12)


def trim_all(found: Subject) -> None:
    found.start_max = RECORDS
    found.log.trim(RECORDS)


def retain(found: Subject) -> None:
    found.start_max = max(found.start_max, RECORDS - 8 + 4)
    found.log.remembered.update_settings(replace(found.settings, retention_records=8))
    found.log.apply_retention(now_us=0)
    found.log.remembered.update_settings(found.settings)


def delete(found: Subject) -> None:
    """As `partitions.control` does: closed first, then all of its files."""
    found.is_deleted = True
    found.log.close(clean=False)
    found.disk.remove_tree(FOLDER)


def repair_all(found: Subject) -> None:
    """As the scrub does when it finds damage; there is none."""
    for segment in found.log.state.view().segments:
        found.log.state.repair(segment)


def go_on(found: Subject) -> None:
    for _ in range(4):
        append(found.log, 1, epoch=9)
        found.end = found.log.state.log_end_offset
        commit(found.log)
    found.log.roll_if_due(1 << 60)


def checkpoint(found: Subject) -> None:
    found.log.checkpoint()
    found.log.idle()


def fail_and_recover(found: Subject) -> None:
    append(found.log, 1, epoch=9)
    found.end = found.log.state.log_end_offset
    found.disk.fail("sync", errno.EIO, path=".arrows")
    with suppress(LiftlogError):
        found.log.syncer.sync()
    found.disk.heal()
    found.log.recover(0)
    assert found.log.state.log_end_offset == found.end
    commit(found.log)


def truncate(found: Subject) -> None:
    found.log.follow(99)
    found.may_end_lower = True
    found.end = found.log.truncate(8)
    found.may_end_lower = False


def reset(found: Subject) -> None:
    found.log.follow(99)
    found.may_end_lower = True
    found.end = found.start_max = 10  # the name of a segment that there was
    found.log.reset(10)
    found.may_end_lower = False


Operation = Callable[[Subject], None]
REWRITES: dict[str, Operation] = {"compact": compacting, "join": joining, "scrub": scrubbing}
BESIDE: dict[str, Operation] = {
    "trim": trim,
    "trim all": trim_all,
    "retention": retain,
    "delete": delete,
    "repair": repair_all,
    "append": go_on,
    "checkpoint": checkpoint,
    "recover": fail_and_recover,
    "truncate": truncate,
    "reset": reset,
}
TAKES_BACK = (truncate, reset)


# --- what must hold -------------------------------------------------------------------------------------------------


def check(found: Subject, log: PartitionLog) -> None:
    assert log.state.lost_ranges == ()
    check_compacted(log)
    records = keyed_records(log)
    assert log.state.log_start_offset <= found.start_max
    assert log.state.log_end_offset == found.end
    assert all(records[at] == record(at) for at in records)
    everything = {at: record(at) for at in range(log.state.log_start_offset, max(found.end, RECORDS))}
    if found.compacts:  # what was taken back may have been the newer one of a key
        kept = {at: value for at, value in everything.items() if value[0] is None}
        kept |= {at: (key, value) for key, (at, value) in newest_of(everything).items()}
        assert {at for at in kept if at < found.end} <= records.keys()
    else:
        assert [at for at in records if at >= log.state.log_start_offset] == list(
            range(log.state.log_start_offset, found.end)
        )


def check_after(found: Subject, how: str, again: Operation) -> None:
    """In this process, after it was killed or the power went, and after all was done once more."""
    disk, log = found.disk, found.log
    disk.heal()
    disk.at = 0
    if found.is_deleted:
        left = [name for name in disk.names if name.startswith(FOLDER)]
        assert left == [] or FOLDER in disk.folders, "something was made in a folder that is gone"
        return
    if log.state.failure is not None:
        log.recover(0)
    if found.may_end_lower:
        if how == "killed":
            return
        found.end = log.state.log_end_offset
    log.state.advance_high_watermark(log.state.durable_end)
    if log.state.durable_end == log.state.log_end_offset:
        check(found, log)
    after: SimDisk = disk.after_kill() if how == "killed" else disk.after_crash("lost", seed=1)
    found.log = log = open_log(after, settings=found.settings, boot_id="boot-3")
    log.state.advance_high_watermark(log.state.durable_end)
    check(found, log)
    again(found)
    append(log, 2, epoch=100)
    found.end = log.state.log_end_offset
    commit(log)
    check(found, log)
    log.close()
    assert after.open_files == 0
    if found.settings.is_sole_replica:
        repair(after, FOLDER, now_us=0, expected=IDENTITY)
        log = open_log(after, settings=found.settings, boot_id="boot-4")
        commit(log)
        check(found, log)


def settings_for(other: Operation) -> LogSettings:
    return REPLICA if other in TAKES_BACK else SETTINGS


def places(count: int, most: int, other: Operation) -> Iterator[int]:
    """So many of [1, count] as there is time for, spread over all; `make prop` tries all. A reset tries all in each
    run: what it leaves half done was found at few places."""
    step = 1 if EFFORT > 1 or other is BESIDE["reset"] else max(1, count // most)
    yield from range(1, count + 1, step)


@pytest.mark.parametrize("other", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
def test_what_comes_in_between_loses_nothing(rewrite: Operation, other: Operation) -> None:
    whole = subject(settings_for(other))
    rewrite(whole)
    total = whole.disk.count
    done = 0
    for at in places(total, 20, other):
        found = subject(settings_for(other))

        def come_in(found: Subject = found) -> bool:
            nonlocal done
            if not found.is_unlocked():
                return False
            found.disk.at = 0  # not once more within
            done += 1
            other(found)
            return True

        found.disk.hook, found.disk.at = come_in, at
        try:
            with suppress(LiftlogError):
                rewrite(found)
            check_after(found, "killed" if at % 2 else "power", rewrite)
        except Exception as error:
            raise AssertionError(f"at call {at} of {total}") from error
    assert done > 3


@pytest.mark.parametrize("other", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
@pytest.mark.parametrize("is_first", first_short([True, False]), ids=["rewrite fails first", "other fails first"])
def test_a_failure_of_the_one_and_then_of_the_other_loses_nothing(
    rewrite: Operation, other: Operation, is_first: bool
) -> None:
    first, second = (rewrite, other) if is_first else (other, rewrite)
    whole = subject(settings_for(other))
    first(whole)
    total = whole.disk.count
    for at in places(total, 12, other):
        for later in (0, 1 + at % 23):  # of the second; 0: it does not fail
            found = subject(settings_for(other))
            found.disk.fails_at = {at}
            try:
                with suppress(LiftlogError, OSError):
                    first(found)
                found.disk.fails_at = {found.disk.count + later} if later else set()
                with suppress(LiftlogError, OSError):
                    second(found)
                check_after(found, "killed" if at % 2 else "power", rewrite)
            except Exception as error:
                raise AssertionError(f"at call {at} of {total}, then at {later}") from error
