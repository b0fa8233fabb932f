"""A replica against a Python list, while it follows one leader after another and leads itself; and power cut at every
step of what only a follower does.

The model is the stored messages, each with its offsets, epoch and place in its group. Leaders are plain logs on disks
of their own: each begins as a copy of what the replica has up to some commit group, and appends on its own. The replica
takes what the leader has stored, in pieces that may end within a group; when another one leads it gives back what that
one does not have, down to below its recovery point and its high watermark; now and then it is reset, leads, is killed,
loses power, fails.

Must hold: the replica is byte for byte a beginning of what its leaders stored; what was synced since the last cut
stays over a power cut; nothing is lost, nothing that was taken back comes back; a repeat of a producer is known if its
record is there, or was until retention took it.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.api.batch import BatchHeader, read_header
from broker.api.errors import DiskFull, NotLeader, StorageFailed
from broker.storage.log import PartitionLog
from broker.storage.read import verified_messages
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import EFFORT
from tests.support.lives import life
from tests.support.logs import FOLDER, check_log, create_log, open_log, stamped
from tests.support.simdisk import MODES, Crashed, Mode, SimDisk

SETTINGS = LogSettings(segment_bytes=4_000, is_sole_replica=False)
OTHER = LogSettings(segment_bytes=9_000, is_sole_replica=False)
PRODUCER = 7
Stored = tuple[int, int, bytes]
"""First offset, next offset, message."""


def opened(disk: SimDisk, boot: int) -> PartitionLog:
    return open_log(disk, settings=SETTINGS, boot_id=f"boot-{boot}")


def messages_of(log: PartitionLog, start: int) -> list[Stored]:
    """What a log has stored, message by message."""
    found: list[Stored] = []
    while start < log.log_end_offset:
        with log.read(start, stored=True, max_bytes=2_000) as plan:
            for place, (_, file) in zip(plan.ranges, plan.sources, strict=True):
                for message, after in verified_messages(file, place):
                    found.append((read_header(message).first_offset, after, bytes(message)))
            start = plan.next_offset
    return found


def group_ends(stored: list[Stored]) -> list[int]:
    headers = [read_header(message) for _, _, message in stored]
    return [header.next_offset for header in headers if header.group_index == header.group_count - 1]


class Leader:
    """Another replica, that leads: a copy of what was stored below some offset, and what it appends itself."""

    def __init__(self, copied: list[Stored], start: int, start_epoch: int, epoch: int) -> None:
        self.log = create_log(SimDisk(), settings=OTHER)
        self.log.follow(epoch - 1 if epoch else 0)
        if start:
            self.log.reset(start, last_epoch=start_epoch)
        self.log.append_stored(b"".join(message for _, _, message in copied), leader_epoch=max(0, epoch - 1), now_us=0)
        self.log.lead(epoch)
        self.epoch = epoch
        self.sequence = -1

    def append(self, sizes: list[int]) -> None:
        """One group of so many batches; each is the next of a producer that came with this leader."""
        self.sequence += 1
        producer = PRODUCER + self.epoch
        batches = [stamped([b"%d" % self.sequence] * size, producer, self.epoch, self.sequence) for size in sizes]
        self.log.append(batches, leader_epoch=self.epoch, now_us=0)


class ReplicaMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.boot = 0
        self.epoch = 1
        self.stored: list[Stored] = []
        self.start = 0
        self.durable = 0  # what must survive a power cut

    @property
    def end(self) -> int:
        return self.stored[-1][1] if self.stored else self.start

    @initialize(runs_ahead=st.booleans())
    def create(self, runs_ahead: bool) -> None:
        self.disk.runs_ahead = runs_ahead
        self.log = create_log(self.disk, settings=SETTINGS, boot_id="boot-0")
        self.leader = Leader([], 0, -1, 1)
        self.log.follow(1)

    # --- following ------------------------------------------------------------------------------------------

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), times=st.integers(1, 3))
    def leader_appends(self, sizes: list[int], times: int) -> None:
        for _ in range(times):
            self.leader.append(sizes)

    @rule(count=st.integers(1, 6))
    def fetch(self, count: int) -> None:
        """Some messages, maybe the beginning of a group."""
        new = messages_of(self.leader.log, self.end)[:count]
        data = b"".join(message for _, _, message in new)
        assert self.log.append_stored(data, leader_epoch=self.epoch, now_us=0) == (new[-1][1] if new else self.end)
        self.stored += new

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == self.end
        self.durable = self.end

    @rule()
    def learn_the_high_watermark(self) -> None:
        ends = [end for end in self.log.log.group_ends if end <= self.end]
        if ends:
            self.log.advance_high_watermark(ends[len(ends) // 2])

    @rule()
    def checkpoint(self) -> None:
        self.log.checkpoint()

    @rule()
    def roll(self) -> None:
        if self.log.roll_if_due(1 << 62):
            self.durable = self.end

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.log.high_watermark))
        if start in {first for first, _, _ in self.stored} | {self.end}:
            self.log.trim(start)

    # --- another leads --------------------------------------------------------------------------------------

    @rule(data=st.data(), grows=st.integers(0, 3))
    def another_leads(self, data: st.DataObject, grows: int) -> None:
        """It has a beginning of what this one has; the dialogue of epochs finds which."""
        start = self.log.log_start_offset
        ends = [start, *(end for end in group_ends(self.stored) if end > start)]
        kept = data.draw(st.sampled_from(ends))
        copied = [stored for stored in self.stored if start <= stored[0] and stored[1] <= kept]
        self.epoch += 2
        start_epoch = self.log.epoch_of(start - 1) if start else -1
        self.leader = Leader(copied, start, start_epoch, self.epoch)
        for _ in range(grows):
            self.leader.append([1, 2])
        self.log.follow(self.epoch)
        self.agree()

    def agree(self) -> None:
        """Truncate to the end of the last epoch as the leader has it, until both have the same (KIP-279)."""
        for _ in range(20):
            last = self.log.leader_epoch
            if last < 0 or self.log.log_end_offset == self.log.log_start_offset:
                break
            epoch, end = self.leader.log.end_of_epoch(last)
            cut = min(end, self.log.end_of_epoch(epoch).end_offset)
            self.cut(max(cut, self.log.log_start_offset))
            if epoch == last:
                break
        mine = [stored for stored in self.stored if stored[0] >= self.log.log_start_offset]
        assert mine == messages_of(self.leader.log, self.log.log_start_offset)[: len(mine)]

    def cut(self, to: int) -> None:
        start = self.log.log_start_offset
        ends = [start, *group_ends(self.stored)]
        expected = max(end for end in ends if end <= to) if to < self.end else self.end
        assert self.log.truncate(to) == expected
        self.forget(expected)

    def forget(self, end: int) -> None:
        self.stored = [stored for stored in self.stored if stored[1] <= end]
        self.durable = min(self.durable, end)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """Below the recovery point and the high watermark, too; what comes then is the same again."""
        self.cut(data.draw(st.integers(self.log.log_start_offset, self.end + 1)))

    @rule(distance=st.integers(0, 9))
    def reset(self, distance: int) -> None:
        """The leader's log begins above all that is here."""
        to = self.end + distance
        self.log.reset(to, last_epoch=self.epoch)
        self.stored, self.start, self.durable = [], to, to
        self.epoch += 2
        self.leader = Leader([], to, self.epoch - 2, self.epoch)
        self.log.follow(self.epoch)

    @rule(grows=st.integers(0, 2))
    def lead_for_a_while(self, grows: int) -> None:
        """It cuts a part of a group, appends under its own epoch, and another one, that has all of it, leads on."""
        self.epoch += 1
        ends = [self.log.log_start_offset, *group_ends(self.stored)]
        expected = max(ends)
        assert self.log.lead(self.epoch) == expected
        self.forget(expected)
        self.repeat_the_last_groups()
        for sequence in range(grows):
            batch = stamped([b"%d" % sequence] * 2, PRODUCER, self.epoch, sequence)
            assert not self.log.append([batch], leader_epoch=self.epoch, now_us=0).duplicate
            assert self.log.append([batch], leader_epoch=self.epoch, now_us=0).duplicate
        with pytest.raises(NotLeader):
            self.log.append([stamped([b"x"], 9, 0, 0)], leader_epoch=self.epoch - 1, now_us=0)
        self.stored += messages_of(self.log, self.end)
        self.another_with_everything()

    def repeat_the_last_groups(self) -> None:
        """Those of all producers: what was copied without a look at who wrote it is known to whoever leads, also where
        retention has taken it."""
        last: dict[int, tuple[BatchHeader, int, int]] = {}
        begin = 0
        for first, after, message in self.stored:
            header = read_header(message)
            begin = first if header.group_index == 0 else begin
            last[header.producer_id] = header, begin, after
        for header, first, after in last.values():
            batch = stamped([b"again"] * (after - first), header.producer_id, header.producer_epoch, header.sequence)
            again = self.log.append([batch], leader_epoch=self.epoch, now_us=0)
            assert (again.duplicate, again.first_offset, again.next_offset) == (True, first, after)

    def another_with_everything(self) -> None:
        start = self.log.log_start_offset
        copied = [stored for stored in self.stored if stored[0] >= start]
        self.epoch += 2
        self.leader = Leader(copied, start, self.log.epoch_of(start - 1) if start else -1, self.epoch)
        self.log.follow(self.epoch)

    # --- trouble --------------------------------------------------------------------------------------------

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.log.close()
            self.durable = self.end
        else:
            self.disk = self.disk.after_kill()
        self.reopen()
        if clean:
            assert self.log.log_end_offset == self.end
        self.settle()

    @rule(mode=st.sampled_from(MODES), seed=st.integers(0, 1 << 16))
    def lose_power(self, mode: Mode, seed: int) -> None:
        self.boot += 1
        self.disk = self.disk.after_crash(mode, seed=seed)
        self.reopen()
        assert self.log.log_end_offset >= self.durable
        self.settle()

    @rule(kind=st.sampled_from([errno.ENOSPC, errno.EIO]), call=st.sampled_from(["write", "sync"]))
    def fail(self, kind: int, call: str) -> None:
        """While it takes what the leader has, or makes it durable."""
        self.disk.fail(call, kind, path=".arrows", short=300)
        new = messages_of(self.leader.log, self.end)
        data = b"".join(message for _, _, message in new)
        try:
            self.log.append_stored(data, leader_epoch=self.epoch, now_us=0)
            self.log.sync()
        except (DiskFull, StorageFailed):
            self.disk.heal()
            self.log.recover(0)
        self.disk.heal()
        self.stored += new
        assert self.log.log_end_offset >= self.durable
        self.settle()

    def reopen(self) -> None:
        self.log = opened(self.disk, self.boot)
        self.log.follow(self.epoch)

    def settle(self) -> None:
        """It may have lost what was not durable: whole messages, from the end."""
        end = self.log.log_end_offset
        assert end in {self.log.log_start_offset, self.start, *(after for _, after, _ in self.stored)}
        self.forget(end)
        assert self.log.lost_ranges == ()

    # --- must hold ------------------------------------------------------------------------------------------

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "log"):
            log = self.log
            assert log.log_end_offset == self.end
            assert log.log_start_offset <= log.high_watermark <= self.end
            assert log.durable_end <= self.end
            assert log.leader_epoch <= self.epoch

    @precondition(lambda self: self.stored)
    @rule()
    def read(self) -> None:
        start = self.log.log_start_offset
        assert messages_of(self.log, start) == [stored for stored in self.stored if stored[1] > start]

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.read()
            check_log(self.log, self.disk)
            self.log.close()
            assert self.disk.open_files == 0


TestReplica = ReplicaMachine.TestCase
TestReplica.settings = life(25)


# --- power cuts -----------------------------------------------------------------------------------------------------


@functools.cache
def leaders_messages() -> tuple[Stored, ...]:
    leader = Leader([], 0, -1, 2)
    for number in range(9):
        leader.append([1] if number % 3 else [2, 1])
    return tuple(messages_of(leader.log, 0))


def feed(log: PartitionLog, end: int) -> None:
    """Take what the leader has stored up to an offset."""
    start = log.log_end_offset
    data = b"".join(message for first, after, message in leaders_messages() if first >= start and after <= end)
    log.append_stored(data, leader_epoch=2, now_us=0)


def prepared(*, crash_at: int | None = None) -> tuple[SimDisk, PartitionLog]:
    """A follower of three segments, all of it durable, checkpointed and committed but for the last group."""
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    log.follow(2)
    end = leaders_messages()[-1][1]
    feed(log, end - 4)
    log.advance_high_watermark(log.sync())
    log.checkpoint()
    feed(log, end)
    log.sync()
    disk.crash_at = disk.steps + crash_at if crash_at is not None else None
    return disk, log


def do_append(log: PartitionLog) -> None:
    end = log.log_end_offset
    log.truncate(0)
    for number in range(end):
        feed(log, number + 1)
        if number % 4 == 3:
            log.sync()


def do_truncate(log: PartitionLog) -> None:
    """Below the recovery point, within a segment and to the border of one; then other records stand there."""
    log.follow(4)
    log.truncate(11)
    log.truncate(7)
    log.lead(5)
    log.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=5, now_us=0)
    log.sync()


def do_truncate_all(log: PartitionLog) -> None:
    log.truncate(0)
    log.lead(5)
    log.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=5, now_us=0)
    log.sync()


def do_reset(log: PartitionLog) -> None:
    log.reset(30, last_epoch=2)
    log.lead(5)
    log.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=5, now_us=0)
    log.sync()


def do_lead(log: PartitionLog) -> None:
    """With a part of a group at the end."""
    assert log.truncate(6) == 5
    feed(log, 7)
    assert log.log_end_offset == 7
    log.sync()
    log.lead(5)
    log.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=5, now_us=0)
    log.sync()


@pytest.mark.parametrize("do", [do_append, do_truncate, do_truncate_all, do_reset, do_lead])
def test_a_power_cut_at_any_step_leaves_the_log_as_it_was_or_shorter_or_with_what_came_after(
    do: Callable[[PartitionLog], None],
) -> None:
    """Never a mixture: a beginning of the leader's records, and behind it nothing or what this log appended itself."""
    disk, log = prepared()
    before = disk.steps
    do(log)
    total = disk.steps - before
    final_end = log.log_end_offset
    assert total > 5
    theirs = list(leaders_messages())
    for step in range(1, total + 1):
        disk, log = prepared(crash_at=step)
        with pytest.raises(Crashed):
            do(log)
        for mode in MODES if EFFORT > 1 else (MODES[step % 5], MODES[(step + 2) % 5]):
            where = f"mode {mode}, step {step}"
            found = opened(disk.after_crash(mode, seed=step), 1)
            assert found.lost_ranges == (), where
            stored = messages_of(found, found.log_start_offset)
            shared = [s for s in stored if s in theirs]
            own = stored[len(shared) :]
            if do is do_reset:
                assert not shared or not own, where
                assert found.log_start_offset in (0, 30), where
            else:
                assert shared == theirs[: len(shared)], where
            for _, _, message in own:
                assert (read_header(message).producer_id, read_header(message).leader_epoch) == (8, 5), where
            assert found.log_end_offset <= max(final_end, theirs[-1][1]), where
            for first, _, message in stored:
                assert found.epoch_of(first) == read_header(message).leader_epoch, where
            if found.log_start_offset == 0:  # else files may be left that lie below the start: retention takes them
                check_log(found, found.disk)
            found.lead(9)  # and it goes on, with what producers did as the log says it
            whole = group_ends(messages_of(found, found.log_start_offset))
            assert found.log_end_offset == (whole[-1] if whole else found.log_start_offset), where
            if any(
                read_header(message).producer_id == 8 for _, _, message in messages_of(found, found.log_start_offset)
            ):
                assert found.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=9, now_us=0).duplicate, where
            else:
                assert not found.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=9, now_us=0).duplicate, where
            found.advance_high_watermark(found.sync())
            found.trim(found.high_watermark)
            found.close()
            left = [name for name in found.disk.listdir(FOLDER) if name.endswith(".arrows")]
            assert len(left) == 1, where
