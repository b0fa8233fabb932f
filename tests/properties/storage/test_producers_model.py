"""Idempotent producers against a list: every group that was answered is stored exactly once, in its producer's order.

The producers do what real ones do: send, lose answers, send again, give up and begin anew under another epoch, come
back as zombies, go idle until they are forgotten. The log is killed, loses power, rolls, retains, recovers. The model
is the list of the groups that are in the log; after a power loss it forgets what the log has lost, which may only be
what was not durable.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from broker.api.batch import decode_batch
from broker.api.errors import DiskFull, OutOfSequence, ProducerFenced, StorageFailed, UnknownProducer
from broker.storage.memory.producers import WINDOW_GROUPS, GroupStamp
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import first_short
from tests.support.lives import Restarts, life
from tests.support.logs import commit, row_batch, stamped
from tests.support.simdisk import MODES, Mode

EXPIRY_MS = 50
IDS = st.integers(1, 3)


@dataclass
class Known:
    """A producer as the log should know it: offsets of its groups in its newest epoch, by sequence."""

    epoch: int
    groups: dict[int, tuple[int, int]] = field(default_factory=dict)
    used_us: int = 0

    @property
    def next(self) -> int:
        return max(self.groups) + 1


class ProducersMachine(Restarts):
    """See the module."""

    def __init__(self) -> None:
        super().__init__(LogSettings(segment_bytes=6_000, producer_id_expiry_ms=EXPIRY_MS))
        self.groups: list[tuple[GroupStamp | None, int, int]] = []  # all of the log
        self.known: dict[int, Known] = {}
        self.expired: set[int] = set()

    @property
    def end(self) -> int:
        return self.groups[-1][2] if self.groups else 0

    def send(self, stamp: GroupStamp, records: int, batches: int) -> tuple[int, int, bool]:
        value = b"%d/%d/%d" % (stamp.producer_id, stamp.epoch, stamp.sequence)
        made = [stamped([value] * records, stamp.producer_id, stamp.epoch, stamp.sequence) for _ in range(batches)]
        result = self.log.append(made, leader_epoch=0, now_us=self.now_us)
        return result.first_offset, result.next_offset, result.duplicate

    def expected(self, stamp: GroupStamp, count: int) -> tuple[int, int, bool] | type[Exception]:
        known = self.known.get(stamp.producer_id)
        if known is not None and known.used_us + EXPIRY_MS * 1_000 <= self.now_us:
            known = None
        if known is None:
            return UnknownProducer if stamp.sequence else (self.end, self.end + count, False)
        if stamp.epoch < known.epoch:
            return ProducerFenced
        following = known.next if stamp.epoch == known.epoch else 0
        if stamp.sequence == following:
            return self.end, self.end + count, False
        kept = sorted(known.groups)[-WINDOW_GROUPS:] if stamp.epoch == known.epoch else []
        if stamp.sequence in kept:
            first, after = known.groups[stamp.sequence]
            return (first, after, True) if after - first == count else OutOfSequence
        return OutOfSequence

    @rule(
        producer_id=IDS,
        epoch=st.sampled_from([0, 0, 0, -1, 1]),
        step=st.sampled_from([0, 0, 0, -1, -2, -4, -5, -6, 1]),
        records=st.sampled_from([1, 1, 1, 2]),
        batches=st.sampled_from([1, 1, 2]),
    )
    def append(self, producer_id: int, epoch: int, step: int, records: int, batches: int) -> None:
        known = self.known.get(producer_id)
        newest = known.epoch if known else 0
        following = known.next if known and epoch == 0 else 0
        stamp = GroupStamp(producer_id, max(0, newest + epoch), max(0, following + step))
        count = records * batches
        expected = self.expected(stamp, count)
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.send(stamp, records, batches)
            return
        assert self.send(stamp, records, batches) == expected
        first, after, is_repeat = expected
        if not is_repeat:
            self.take(stamp, first, after)
        self.known[producer_id].used_us = self.now_us

    def take(self, stamp: GroupStamp, first: int, after: int) -> None:
        self.groups.append((stamp, first, after))
        known = self.known.get(stamp.producer_id)
        gone = known is not None and known.used_us + EXPIRY_MS * 1_000 <= self.now_us
        self.expired |= {stamp.producer_id} if gone else set()
        if known is None or gone or stamp.epoch > known.epoch:
            known = self.known[stamp.producer_id] = Known(stamp.epoch)
        known.groups[stamp.sequence] = (first, after)

    @rule(producer_id=IDS, times=st.integers(2, 9))
    def go_on(self, producer_id: int, times: int) -> None:
        """A producer that does everything right, for a while."""
        for _ in range(times):
            self.append(producer_id, 0, 0, 1, 1)

    @rule(size=st.integers(0, 2_000), expects=st.sampled_from([None, None, 0, 0, -1, 1]))
    def append_without_producer(self, size: int, expects: int | None) -> None:
        offset = None if expects is None else max(0, self.end + expects)
        batches = [row_batch([b"x" * size])]
        result = self.log.append(batches, leader_epoch=0, now_us=self.now_us, expected_offset=offset)
        if offset not in (None, self.end):
            assert (result.has_records, result.next_offset) == (False, self.end)
            return
        assert result.first_offset == self.end
        self.groups.append((None, result.first_offset, result.next_offset))

    @rule()
    def roll(self) -> None:
        self.roll_now()

    @rule(ms=st.sampled_from([1, 20, EXPIRY_MS - 1, EXPIRY_MS]))
    def time_passes(self, ms: int) -> None:
        self.now_us += ms * 1_000

    @rule(mode=st.sampled_from(MODES), seed=st.integers(0, 1 << 16))
    def lose_power(self, mode: Mode, seed: int) -> None:
        end = self.after_power_loss(mode, seed)
        assert end in [0, *(after for _, _, after in self.groups)]
        self.groups = [group for group in self.groups if group[2] <= end]
        for producer_id in list(self.known):
            self.forget_lost(producer_id)

    def forget_lost(self, producer_id: int) -> None:
        """Forget the groups that the log has lost: a producer is known by what the log still tells."""
        used_us = self.known.pop(producer_id).used_us
        mine = [group for group in self.groups if group[0] is not None and group[0].producer_id == producer_id]
        for stamp, first, after in mine:
            assert stamp is not None
            known = self.known.get(producer_id)
            if known is None or stamp.epoch > known.epoch or (stamp.sequence == 0 and stamp.epoch == known.epoch):
                known = self.known[producer_id] = Known(stamp.epoch, {}, used_us)
            known.groups[stamp.sequence] = (first, after)
        if producer_id in self.expired and producer_id not in self.log.remembered.known().producers._producers:
            self.known.pop(producer_id, None)  # what is left of it is from before it was forgotten, and may stay so

    def reopen(self, high_watermark: int) -> None:
        super().reopen(high_watermark)
        # A producer that the scan finds in the log counts as used now: make that true for all.
        for producer_id in sorted(self.known):
            self.use(producer_id)

    def use(self, producer_id: int) -> None:
        """After a restart an id may be kept for longer than it should; never for less."""
        table = self.log.remembered.known().producers
        found = table._producers.get(producer_id)
        if found is not None:
            assert found.last_used_us <= self.now_us
            self.known[producer_id].used_us = found.last_used_us

    @rule(kind=st.sampled_from([errno.ENOSPC, errno.EIO]), producer_id=IDS)
    def fail_to_write(self, kind: int, producer_id: int) -> None:
        known = self.known.get(producer_id)
        stamp = GroupStamp(producer_id, known.epoch if known else 0, known.next if known else 0)
        if isinstance(self.expected(stamp, 1), type):
            return
        self.disk.fail("write", kind, path=".arrows", short=300)
        with pytest.raises((DiskFull, StorageFailed)):
            self.send(stamp, 1, 1)
        self.disk.heal()
        self.log.recover(self.now_us)
        assert self.log.state.log_end_offset == self.end
        for other in sorted(self.known):
            self.use(other)

    @rule()
    def keep_no_state(self) -> None:
        """A full disk at the roll: the older file stands."""
        self.disk.fail("write", errno.ENOSPC, path="state-", times=1)
        self.roll()
        self.disk.heal()

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        commit(self.log)
        found: dict[int, bytes] = {}
        for message in self.log.reader.batches(self.log.state.log_start_offset):
            rows = decode_batch(message)
            found |= zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True)
        for stamp, first, after in self.groups:
            for offset in range(max(first, self.log.state.log_start_offset), after):
                value = found.pop(offset)
                if stamp is not None:
                    assert value == b"%d/%d/%d" % (stamp.producer_id, stamp.epoch, stamp.sequence)
        assert all(offset < self.log.state.log_start_offset for offset in found)
        self.log.close()
        assert self.disk.open_files == 0


@pytest.mark.parametrize("lives", first_short([14, 40]))
def test_producers(lives: int) -> None:
    run_state_machine_as_test(ProducersMachine, settings=life(lives))
