"""The life of a log in the state machines: it is committed, rolled, checkpointed, trimmed, restarted, loses power, and
fails to write, to sync and to keep its state. A machine adds what is appended, and the model of it.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from broker.api.batch import decode_batch
from broker.api.errors import DiskFull, StorageFailed
from broker.storage.log import PartitionLog
from broker.storage.rows import Encodable
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import examples
from tests.support.logs import FOLDER, IDENTITY, commit, create_log
from tests.support.simdisk import Mode, SimDisk


class Restarts(RuleBasedStateMachine):
    """One log on the fake disk that is committed, trimmed, stopped, killed and loses power.

    A machine says what its `end` is: the first offset that it has not appended.
    """

    def __init__(self, log_settings: LogSettings) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.settings = log_settings
        self.now_us = 1_000_000
        self.boot = 0

    @property
    def end(self) -> int:
        raise NotImplementedError

    @initialize(runs_ahead=st.booleans())
    def create(self, runs_ahead: bool) -> None:
        self.disk.runs_ahead = runs_ahead
        self.log = create_log(self.disk, settings=self.settings, boot_id="boot-0")

    @rule()
    def commit(self) -> None:
        assert commit(self.log) == self.end

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        self.log.trim(data.draw(st.integers(0, self.end)))

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        high_watermark = self.log.state.high_watermark
        if clean:
            self.log.close()
        else:
            self.disk = self.disk.after_kill()
        self.reopen(high_watermark)
        assert self.log.state.log_end_offset == self.end

    def roll_now(self) -> None:
        self.log.remembered.update_settings(replace(self.settings, segment_age_ms=0))
        self.log.roll_if_due(self.now_us)
        self.log.remembered.update_settings(self.settings)

    def after_power_loss(self, mode: Mode, seed: int) -> int:
        """The log end then: at least what was durable is there."""
        durable, high_watermark = self.log.state.durable_end, self.log.state.high_watermark
        self.boot += 1
        self.disk = self.disk.after_crash(mode, seed=seed)
        self.reopen(high_watermark)
        assert durable <= self.log.state.log_end_offset <= self.end
        return self.log.state.log_end_offset

    def reopen(self, high_watermark: int) -> None:
        self.log = PartitionLog.open(
            self.disk, FOLDER, self.settings, boot_id=f"boot-{self.boot}", now_us=self.now_us, expected=IDENTITY
        )
        self.log.state.advance_high_watermark(high_watermark)


class LifeOfALog(Restarts):
    """The life of a log whose records are known by their offset.

    Attributes:
        records: The stored records, by offset, as the machine notes them.
        LARGE: The constant that decides whether a roll leaves the state file to the next checkpoint, and a value that
            makes any table too large for it.
    """

    LARGE: ClassVar[tuple[str, int]]

    def __init__(self, log_settings: LogSettings) -> None:
        super().__init__(log_settings)
        self.records: list[Any] = []

    @property
    def end(self) -> int:
        return len(self.records)

    @rule(large=st.booleans())
    def roll(self, large: bool) -> None:
        """`large`: as if the table were so large that the roll leaves its file to the next checkpoint."""
        constant, value = self.LARGE
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(constant, value if large else 1 << 14)
            self.roll_now()

    @rule()
    def checkpoint(self) -> None:
        self.log.checkpoint()

    @rule()
    def keep_no_state(self) -> None:
        """A full disk at the roll: the older file stands."""
        self.disk.fail("write", errno.ENOSPC, path="state-", times=1)
        self.roll(large=False)
        self.disk.heal()

    def append_in_vain(self, batches: Sequence[Encodable], kind: int) -> None:
        """The disk fails to write with errno `kind`: nothing is appended."""
        self.disk.fail("write", kind, path=".arrows", short=300)
        with pytest.raises((DiskFull, StorageFailed)):
            self.log.append(batches, leader_epoch=0, now_us=self.now_us)
        self.disk.heal()
        self.log.recover(self.now_us)
        assert self.log.state.log_end_offset == self.end

    def sync_in_vain(self) -> None:
        """The next fsync fails; the recovery keeps every record."""
        self.disk.fail("sync", errno.EIO, path=".arrows")
        if self.log.state.durable_end < self.end:
            with pytest.raises(StorageFailed):
                self.log.syncer.sync()
        self.disk.heal()
        self.log.recover(self.now_us)
        assert self.log.state.log_end_offset == self.end

    def check_stored(self, column: str, expected: Sequence[object]) -> None:
        """All records from the log start on are there, with these values; then it is closed, and no file stays open."""
        commit(self.log)
        found: list[tuple[int, object]] = []
        for message in self.log.reader.batches(self.log.state.log_start_offset):
            rows = decode_batch(message)
            found += zip(rows.column("offset").to_pylist(), rows.column(column).to_pylist(), strict=True)
        start = self.log.state.log_start_offset
        assert [row for row in found if row[0] >= start] == list(enumerate(expected))[start:]
        self.log.close()
        assert self.disk.open_files == 0


def life(example_count: int) -> settings:
    """How many lives, and how long."""
    return settings(
        max_examples=examples(example_count),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
