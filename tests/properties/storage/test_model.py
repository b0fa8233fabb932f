"""A log against a Python list: whatever is done in whatever order, the log holds what the list holds.

The model is the list of all records ever appended, an end of what is durable, one of what is committed, and
a log start. After a power loss the model forgets what the log has lost, which may only be
what was not durable, and only whole appends.
"""

from __future__ import annotations

import errno

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.api.errors import DiskFull, OffsetOutOfRange, StorageFailed
from broker.storage.segments.checkpoint import LogSettings
from tests.support.lives import life
from tests.support.logs import Record, check_log, create_log, open_log, read_records, row_batch, verified_records
from tests.support.simdisk import MODES, Mode, SimDisk

VALUES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 400)), min_size=1, max_size=4)
"""One batch: (timestamp, length of the value) of each record. Timestamps are in no order."""

LIMITS = st.builds(
    LogSettings,
    segment_bytes=st.sampled_from([1_500, 4_000, 1 << 20]),
    retention_ms=st.one_of(st.none(), st.just(0)),
    retention_bytes=st.one_of(st.none(), st.integers(1, 9_000)),
    retention_records=st.one_of(st.none(), st.integers(1, 40)),
)


class LogMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.settings = LogSettings(segment_bytes=4_000)
        self.records: list[Record] = []
        self.ends = [0]
        self.epochs: list[int] = []  # of each record
        self.epoch = 0
        self.boot = 0

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    @property
    def committed(self) -> list[Record]:
        return self.records[self.log.state.log_start_offset : self.log.state.high_watermark]

    @initialize(runs_ahead=st.booleans())
    def create(self, runs_ahead: bool) -> None:
        self.disk.runs_ahead = runs_ahead
        self.log = create_log(self.disk, settings=self.settings, boot_id=self.boot_id)

    # --- what changes the log -------------------------------------------------------------------------------

    @rule(batches=st.lists(VALUES, min_size=1, max_size=3), new_epoch=st.booleans())
    def append(self, batches: list[list[tuple[int, int]]], new_epoch: bool) -> None:
        self.epoch += new_epoch
        first = offset = len(self.records)
        made = []
        for batch in batches:
            times = [time for time, _ in batch]
            values = [(b"%d:" % (offset + i)).ljust(size, b"x") for i, (_, size) in enumerate(batch)]
            made.append(row_batch(values, times))
            self.records += zip(range(offset, offset + len(batch)), times, values, strict=True)
            offset += len(batch)
        result = self.log.append(made, leader_epoch=self.epoch, now_us=0)
        assert (result.first_offset, result.next_offset) == (first, offset)
        self.epochs += [self.epoch] * (offset - first)
        self.ends.append(offset)

    @rule()
    def commit(self) -> None:
        assert self.log.syncer.sync() == len(self.records)
        self.log.state.advance_high_watermark(self.log.state.durable_end)

    @rule()
    def sync_without_commit(self) -> None:
        assert self.log.syncer.sync() == self.log.state.durable_end == len(self.records)

    @rule()
    def roll(self) -> None:
        is_sealed = self.log.roll_if_due(1 << 62)
        assert not is_sealed or self.log.state.durable_end == len(self.records)

    @rule(limits=LIMITS)
    def retain(self, limits: LogSettings) -> None:
        before, committed = self.log.state.log_start_offset, self.log.state.high_watermark
        self.log.remembered.update_settings(limits)
        start = self.log.apply_retention(now_us=16)
        assert start == self.log.state.log_start_offset
        assert before <= start <= committed
        if limits.retention_records is not None and start > before and not limits.retention_bytes:
            expired = all(time < 16 for _, time, _ in self.records[before:start])
            assert committed - start >= limits.retention_records or (limits.retention_ms == 0 and expired)

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        before, committed = self.log.state.log_start_offset, self.log.state.high_watermark
        offset = data.draw(st.integers(0, len(self.records) + 2))
        assert self.log.trim(offset) == max(before, min(offset, committed))

    @rule()
    def checkpoint(self) -> None:
        self.log.checkpoint()
        before = self.disk.steps
        self.log.checkpoint()
        assert self.disk.steps == before, "nothing new, and yet written"

    @rule()
    def idle(self) -> None:
        durable = self.log.state.durable_end == len(self.records)
        assert self.log.idle() == durable
        assert not durable or self.disk.open_files == 0

    # --- restarts -------------------------------------------------------------------------------------------

    @rule()
    def reopen_cleanly(self) -> None:
        committed = self.log.state.high_watermark
        self.log.close()
        assert self.disk.open_files == 0
        self.disk.calls.clear()
        self.log = open_log(self.disk, settings=self.settings, boot_id=self.boot_id)
        assert self.log.state.recovery.clean
        assert set(self.disk.calls) <= {"exists", "read_file", "listdir", "size"}
        assert self.log.state.high_watermark == committed
        assert self.log.state.log_end_offset == len(self.records)

    @rule()
    def kill_and_reopen(self) -> None:
        self._restart(self.disk.after_kill())
        assert self.log.state.log_end_offset == len(self.records)

    @rule(mode=st.sampled_from(MODES), seed=st.integers(0, 1 << 16))
    def lose_power(self, mode: Mode, seed: int) -> None:
        durable, start = self.log.state.durable_end, self.log.state.log_start_offset
        self.boot += 1
        self._restart(self.disk.after_crash(mode, seed=seed))
        end = self.log.state.log_end_offset
        assert durable <= end
        assert end in self.ends
        assert self.log.state.log_start_offset == start
        del self.records[end:], self.epochs[end:]
        self.ends = [known for known in self.ends if known <= end]

    def _restart(self, disk: SimDisk) -> None:
        committed = self.log.state.high_watermark
        self.disk = disk
        self.log = open_log(disk, settings=self.settings, boot_id=self.boot_id)
        assert self.log.state.durable_end == self.log.state.log_end_offset
        assert self.log.state.lost_ranges == ()
        self.log.state.advance_high_watermark(committed)  # what the cleaner's next checkpoint would have said

    # --- trouble --------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from([errno.ENOSPC, errno.EIO]), short=st.integers(0, 800))
    def fail_to_write(self, kind: int, short: int) -> None:
        self.disk.fail("write", kind, path=".arrows", short=short)
        expected = DiskFull if kind == errno.ENOSPC else StorageFailed
        with pytest.raises(expected):
            self.log.append([row_batch([b"never"])], leader_epoch=self.epoch, now_us=0)
        self.disk.heal()
        self.log.recover(0)
        assert self.log.state.log_end_offset == len(self.records)

    @precondition(lambda self: self.log.state.durable_end < len(self.records))
    @rule(kind=st.sampled_from([errno.ENOSPC, errno.EIO]))
    def fail_to_sync(self, kind: int) -> None:
        self.disk.fail("sync", kind, path=".arrows")
        with pytest.raises((DiskFull, StorageFailed)):
            self.log.syncer.sync()
        self.disk.heal()
        with pytest.raises((DiskFull, StorageFailed)):
            self.log.append([row_batch([b"never"])], leader_epoch=self.epoch, now_us=0)
        self.log.recover(0)
        assert self.log.state.durable_end == self.log.state.log_end_offset == len(self.records)

    # --- what is asked --------------------------------------------------------------------------------------

    @rule(data=st.data(), max_bytes=st.integers(1, 6_000))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        low, high = self.log.state.log_start_offset, self.log.state.high_watermark
        start = data.draw(st.integers(low, high))
        end = data.draw(st.one_of(st.none(), st.integers(start, high + 3)))
        stop = high if end is None else min(end, high)
        assert read_records(self.log, start, end=end, max_bytes=max_bytes) == self.records[start:stop]

    @rule(data=st.data())
    def read_out_of_range(self, data: st.DataObject) -> None:
        low, high = self.log.state.log_start_offset, self.log.state.high_watermark
        offset = data.draw(st.one_of(st.integers(-3, low - 1), st.integers(high + 1, high + 5)))
        with pytest.raises(OffsetOutOfRange) as caught:
            self.log.reader.read(offset)
        assert (caught.value.log_start_offset, caught.value.high_watermark) == (low, high)

    @rule(time=st.integers(-1, 32))
    def look_up_time(self, time: int) -> None:
        expected = next((offset for offset, at, _ in self.committed if at >= time), None)
        assert self.log.reader.offset_for_time(time) == expected

    @rule(data=st.data())
    def look_up_epoch(self, data: st.DataObject) -> None:
        low, end = self.log.state.log_start_offset, len(self.records)
        if low < end:
            offset = data.draw(st.integers(low, end - 1))
            assert self.log.epochs.epoch_of(offset) == self.epochs[offset]
            epoch = self.epochs[offset]
            assert self.log.epochs.end_of(epoch).end_offset == next(
                (i for i, e in enumerate(self.epochs) if e > epoch), end
            )
        assert self.log.epochs.epoch_of(end) == -1

    @rule()
    def count_bytes(self) -> None:
        start, end = self.log.state.log_start_offset, self.log.state.log_end_offset
        total = self.log.reader.bytes_between(start, end)
        assert 0 <= total <= self.log.state.byte_count
        assert (total == 0) == (start == end)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "log"):
            assert self.log.state.log_end_offset == len(self.records)
            assert self.log.epochs.latest <= self.epoch

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.commit()
            assert verified_records(self.log) == self.committed
            check_log(self.log, self.disk)
            self.log.close()
            assert self.disk.open_files == 0


TestLog = LogMachine.TestCase
TestLog.settings = life(25)
