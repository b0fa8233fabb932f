"""A replica against a Python list, while it follows one leader after another and leads itself; and power cut at every
step of what only a follower does.

The model is the stored messages, each with its offsets, epoch and place in its group. Leaders are plain logs on disks
of their own: each begins as a copy of what the replica has up to some commit group, and appends on its own. The replica
takes what the leader has stored, in pieces that may end within a group; when another one leads it gives back what that
one does not have, down to below its recovery point and its high watermark; now and then it is reset, leads, is killed,
loses power, fails. Where it begins anew, or takes what was written anew, it lacks a state file, and takes its leader's.

Must hold: the replica is byte for byte a beginning of what its leaders stored; what was synced since the last cut
stays over a power cut; nothing is lost, nothing that was taken back comes back; a repeat of a producer is known if its
record is there, or was until retention took it; also if it was the leader's retention, and this replica has never had
the record. A leader without a state file knows what its log tells.
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
from broker.storage.memory.state_files import state_name
from broker.storage.read import verified_messages
from broker.storage.segments.checkpoint import LogSettings
from tests.support.effort import EFFORT, first_short
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
    """All that a log has stored, message by message."""
    found: list[Stored] = []
    while start < log.state.log_end_offset:
        with log.reader.read(start, stored=True, max_bytes=2_000) as plan:
            for place, (_, file) in zip(plan.ranges, plan.sources, strict=True):
                for message, after in verified_messages(file, place):
                    found.append((read_header(message).first_offset, after, bytes(message)))
            start = plan.next_offset
    return found


def group_ends(stored: list[Stored]) -> list[int]:
    headers = [read_header(message) for _, _, message in stored]
    return [header.next_offset for header in headers if header.group_index == header.group_count - 1]


class Leader:
    """Another replica, that leads: it had all that was ever stored below some offset, has let go of what lies below
    `start`, and appends on its own."""

    def __init__(self, copied: list[Stored], start: int, epoch: int) -> None:
        self.log = create_log(SimDisk(), settings=OTHER)
        self.log.follow(epoch - 1)
        self.log.append_stored(b"".join(message for _, _, message in copied), leader_epoch=max(0, epoch - 1), now_us=0)
        self.let_go(start)
        self.log.lead(epoch)
        self.epoch = epoch
        self.sequence = -1

    def let_go(self, start: int) -> None:
        self.log.state.advance_high_watermark(self.log.syncer.sync())
        self.log.trim(start)

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
        self.ever: list[Stored] = []  # below the log end, from 0 on
        self.start = 0
        self.known_from = 0  # what was told of what lies below was lost when it led without a state file
        self.durable = 0  # what must survive a power cut

    @property
    def stored(self) -> list[Stored]:
        return [stored for stored in self.ever if stored[0] >= self.start]

    @property
    def end(self) -> int:
        return self.ever[-1][1] if self.ever else 0

    @initialize(runs_ahead=st.booleans())
    def create(self, runs_ahead: bool) -> None:
        self.disk.runs_ahead = runs_ahead
        self.log = create_log(self.disk, settings=SETTINGS, boot_id="boot-0")
        self.leader = Leader([], 0, 1)
        self.log.follow(1)

    # --- following ------------------------------------------------------------------------------------------

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), times=st.integers(1, 3))
    def leader_appends(self, sizes: list[int], times: int) -> None:
        for _ in range(times):
            self.leader.append(sizes)

    @rule(count=st.integers(1, 6), is_rewritten=st.booleans())
    def fetch(self, count: int, is_rewritten: bool) -> None:
        """Some messages, maybe the beginning of a group, maybe not all that were there."""
        new = messages_of(self.leader.log, self.end)[:count]
        data = b"".join(message for _, _, message in new)
        end = self.log.append_stored(data, leader_epoch=self.epoch, now_us=0, is_rewritten=is_rewritten)
        assert end == (new[-1][1] if new else self.end)
        self.ever += new
        assert self.log.handover.lacks or not (is_rewritten and end)

    @rule(pieces=st.integers(1, 4), damage=st.integers(0, 3))
    def take_the_state(self, pieces: int, damage: int) -> None:
        """That of the leader, as soon as it has one that tells of nothing that is not durable here."""
        leader, mine = self.leader.log.handover, self.log.handover
        self.leader.log.syncer.sync()
        offset = leader.offered(self.log.state.log_start_offset, self.log.state.durable_end)
        if offset < 0:
            return
        lacked = mine.lacks
        found = leader.piece(offset, 0, 1 << 30)
        assert found is not None
        whole, size = bytearray(found[0]), found[1]
        assert len(whole) == size
        if damage == 1:
            whole[size // 2] ^= 4
        length = -(-size // pieces)
        for at in range(0, size, length):
            assert mine.take(offset, at, bytes(whole[at : at + length]), size) == (
                not lacked or (damage != 1 and at + length >= size)
            )
        assert mine.lacks == (lacked and damage == 1)
        if lacked and not mine.lacks:
            self.known_from = 0

    @rule()
    def sync(self) -> None:
        assert self.log.syncer.sync() == self.end
        self.durable = self.end

    @rule()
    def learn_the_high_watermark(self) -> None:
        ends = [end for end in self.log.state.group_ends if end <= self.end]
        if ends:
            self.log.state.advance_high_watermark(ends[len(ends) // 2])

    @rule()
    def checkpoint(self) -> None:
        self.log.checkpoint()

    @rule()
    def roll(self) -> None:
        if self.log.roll_if_due(1 << 62):
            self.durable = self.end

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.log.state.high_watermark))
        if start in {first for first, _, _ in self.stored} | {self.end}:
            self.log.trim(start)

    # --- another leads --------------------------------------------------------------------------------------

    @rule(data=st.data(), grows=st.integers(0, 3))
    def another_leads(self, data: st.DataObject, grows: int) -> None:
        """It has a beginning of what this one has; the dialogue of epochs finds which."""
        start = self.log.state.log_start_offset
        ends = [start, *(end for end in group_ends(self.stored) if end > start)]
        kept = data.draw(st.sampled_from(ends))
        copied = [stored for stored in self.ever if stored[1] <= kept]
        self.epoch += 2
        self.leader = Leader(copied, start, self.epoch)
        for _ in range(grows):
            self.leader.append([1, 2])
        self.log.follow(self.epoch)
        self.agree()

    def agree(self) -> None:
        """Truncate to the end of the last epoch as the leader has it, until both have the same (KIP-279)."""
        for _ in range(20):
            last = self.log.epochs.latest
            if last < 0 or self.log.state.log_end_offset == self.log.state.log_start_offset:
                break
            epoch, end = self.leader.log.epochs.end_of(last)
            cut = min(end, self.log.epochs.end_of(epoch).end_offset)
            self.cut(max(cut, self.log.state.log_start_offset))
            if epoch == last:
                break
        mine = [stored for stored in self.stored if stored[0] >= self.log.state.log_start_offset]
        assert mine == messages_of(self.leader.log, self.log.state.log_start_offset)[: len(mine)]

    def cut(self, to: int) -> None:
        start = self.log.state.log_start_offset
        ends = [start, *group_ends(self.stored)]
        expected = max(end for end in ends if end <= to) if to < self.end else self.end
        assert self.log.truncate(to) == expected
        self.forget(expected)

    def forget(self, end: int) -> None:
        self.ever = [stored for stored in self.ever if stored[1] <= end]
        self.durable = min(self.durable, end)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """Below the recovery point and the high watermark, too; what comes then is the same again."""
        self.cut(data.draw(st.integers(self.log.state.log_start_offset, self.end + 1)))

    @rule(grows=st.integers(0, 4))
    def reset(self, grows: int) -> None:
        """The leader's log begins above all that is here."""
        for _ in range(grows):
            self.leader.append([2, 1])
        self.ever += messages_of(self.leader.log, self.end)
        to = self.end
        last_epoch = self.leader.log.epochs.epoch_of(to - 1) if to else -1
        self.log.reset(to, last_epoch=last_epoch)
        self.start = self.durable = to
        self.leader.let_go(to)
        assert self.log.handover.lacks == (to > 0)

    @rule(grows=st.integers(0, 2))
    def lead_for_a_while(self, grows: int) -> None:
        """It cuts a part of a group, appends under its own epoch, and another one, that has all of it, leads on."""
        self.epoch += 1
        ends = [self.log.state.log_start_offset, *group_ends(self.stored)]
        expected, lacks = max(ends), self.log.handover.lacks
        assert self.log.lead(self.epoch) == expected
        self.forget(expected)
        if lacks:
            self.known_from = self.log.state.log_start_offset
        self.repeat_the_last_groups(self.known_from)
        for sequence in range(grows):
            batch = stamped([b"%d" % sequence] * 2, PRODUCER, self.epoch, sequence)
            assert not self.log.append([batch], leader_epoch=self.epoch, now_us=0).duplicate
            assert self.log.append([batch], leader_epoch=self.epoch, now_us=0).duplicate
        with pytest.raises(NotLeader):
            self.log.append([stamped([b"x"], 9, 0, 0)], leader_epoch=self.epoch - 1, now_us=0)
        self.ever += messages_of(self.log, self.end)
        self.another_with_everything()

    def repeat_the_last_groups(self, known_from: int) -> None:
        """Those of all producers: what was copied without a look at who wrote it is known to whoever leads, also where
        retention has taken it, and what was told by a state file that its leader gave it."""
        last: dict[int, tuple[BatchHeader, int, int]] = {}
        begin = 0
        for first, after, message in self.ever:
            header = read_header(message)
            begin = first if header.group_index == 0 else begin
            last[header.producer_id] = header, begin, after
        for header, first, after in last.values():
            if first < known_from:
                continue
            batch = stamped([b"again"] * (after - first), header.producer_id, header.producer_epoch, header.sequence)
            again = self.log.append([batch], leader_epoch=self.epoch, now_us=0)
            assert (again.duplicate, again.first_offset, again.next_offset) == (True, first, after)

    def another_with_everything(self) -> None:
        start = self.log.state.log_start_offset
        self.epoch += 2
        self.leader = Leader(self.ever, start, self.epoch)
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
            assert self.log.state.log_end_offset == self.end
        self.settle()

    @rule(mode=st.sampled_from(MODES), seed=st.integers(0, 1 << 16))
    def lose_power(self, mode: Mode, seed: int) -> None:
        self.boot += 1
        self.disk = self.disk.after_crash(mode, seed=seed)
        self.reopen()
        assert self.log.state.log_end_offset >= self.durable
        self.settle()

    @rule(kind=st.sampled_from([errno.ENOSPC, errno.EIO]), call=st.sampled_from(["write", "sync"]))
    def fail(self, kind: int, call: str) -> None:
        """While it takes what the leader has, or makes it durable."""
        self.disk.fail(call, kind, path=".arrows", short=300)
        new = messages_of(self.leader.log, self.end)
        data = b"".join(message for _, _, message in new)
        try:
            self.log.append_stored(data, leader_epoch=self.epoch, now_us=0)
            self.log.syncer.sync()
        except (DiskFull, StorageFailed):
            self.disk.heal()
            self.log.recover(0)
        self.disk.heal()
        self.ever += new
        assert self.log.state.log_end_offset >= self.durable
        self.settle()

    def reopen(self) -> None:
        self.log = opened(self.disk, self.boot)
        self.log.follow(self.epoch)

    def settle(self) -> None:
        """It may have lost what was not durable: whole messages, from the end."""
        end = self.log.state.log_end_offset
        assert end in {self.log.state.log_start_offset, self.start, *(after for _, after, _ in self.stored)}
        self.forget(end)
        assert self.log.state.lost_ranges == ()

    # --- must hold ------------------------------------------------------------------------------------------

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "log"):
            log = self.log
            assert log.state.log_end_offset == self.end
            assert log.state.log_start_offset <= log.state.high_watermark <= self.end
            assert log.state.durable_end <= self.end
            assert log.epochs.latest <= self.epoch

    @precondition(lambda self: self.stored)
    @rule()
    def read(self) -> None:
        start = self.log.state.log_start_offset
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
    leader = Leader([], 0, 2)
    for number in range(9):
        leader.append([1] if number % 3 else [2, 1])
    return tuple(messages_of(leader.log, 0))


def feed(log: PartitionLog, end: int) -> None:
    """Take what the leader has stored up to an offset."""
    start = log.state.log_end_offset
    data = b"".join(message for first, after, message in leaders_messages() if first >= start and after <= end)
    log.append_stored(data, leader_epoch=2, now_us=0)


def prepared(*, crash_at: int | None = None) -> tuple[SimDisk, PartitionLog]:
    """A follower of three segments, all of it durable, checkpointed and committed but for the last group."""
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    log.follow(2)
    end = leaders_messages()[-1][1]
    feed(log, end - 4)
    log.state.advance_high_watermark(log.syncer.sync())
    log.checkpoint()
    feed(log, end)
    log.syncer.sync()
    disk.crash_at = disk.steps + crash_at if crash_at is not None else None
    return disk, log


def do_append(log: PartitionLog) -> None:
    end = log.state.log_end_offset
    log.truncate(0)
    for number in range(end):
        feed(log, number + 1)
        if number % 4 == 3:
            log.syncer.sync()


def do_truncate(log: PartitionLog) -> None:
    """Below the recovery point, within a segment and to the border of one; then other records stand there."""
    log.follow(4)
    log.truncate(11)
    log.truncate(7)
    log.lead(5)
    log.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=5, now_us=0)
    log.syncer.sync()


def do_truncate_all(log: PartitionLog) -> None:
    log.truncate(0)
    log.lead(5)
    log.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=5, now_us=0)
    log.syncer.sync()


def do_reset(log: PartitionLog) -> None:
    log.reset(30, last_epoch=2)
    log.lead(5)
    log.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=5, now_us=0)
    log.syncer.sync()


def do_lead(log: PartitionLog) -> None:
    """With a part of a group at the end."""
    assert log.truncate(6) == 5
    feed(log, 7)
    assert log.state.log_end_offset == 7
    log.syncer.sync()
    log.lead(5)
    log.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=5, now_us=0)
    log.syncer.sync()


@pytest.mark.parametrize("do", first_short([do_truncate, do_lead, do_reset, do_append, do_truncate_all], count=3))
def test_a_power_cut_at_any_step_leaves_the_log_as_it_was_or_shorter_or_with_what_came_after(
    do: Callable[[PartitionLog], None],
) -> None:
    """Never a mixture: a beginning of the leader's records, and behind it nothing or what this log appended itself."""
    disk, log = prepared()
    before = disk.steps
    do(log)
    total = disk.steps - before
    final_end = log.state.log_end_offset
    assert total > 5
    theirs = list(leaders_messages())
    for step in range(1, total + 1):
        disk, log = prepared(crash_at=step)
        with pytest.raises(Crashed):
            do(log)
        for mode in MODES if EFFORT > 1 else (MODES[step % 5], MODES[(step + 2) % 5]):
            where = f"mode {mode}, step {step}"
            found = opened(disk.after_crash(mode, seed=step), 1)
            assert found.state.lost_ranges == (), where
            stored = messages_of(found, found.state.log_start_offset)
            shared = [s for s in stored if s in theirs]
            own = stored[len(shared) :]
            if do is do_reset:
                assert not shared or not own, where
                assert found.state.log_start_offset in (0, 30), where
            else:
                assert shared == theirs[: len(shared)], where
            for _, _, message in own:
                assert (read_header(message).producer_id, read_header(message).leader_epoch) == (8, 5), where
            assert found.state.log_end_offset <= max(final_end, theirs[-1][1]), where
            for first, _, message in stored:
                assert found.epochs.epoch_of(first) == read_header(message).leader_epoch, where
            # else files may be left that lie below the start: retention takes them
            if found.state.log_start_offset == 0:
                check_log(found, found.state.disk)
            found.lead(9)  # and it goes on, with what producers did as the log says it
            whole = group_ends(messages_of(found, found.state.log_start_offset))
            assert found.state.log_end_offset == (whole[-1] if whole else found.state.log_start_offset), where
            if any(
                read_header(message).producer_id == 8
                for _, _, message in messages_of(found, found.state.log_start_offset)
            ):
                assert found.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=9, now_us=0).duplicate, where
            else:
                assert not found.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=9, now_us=0).duplicate, where
            found.state.advance_high_watermark(found.syncer.sync())
            found.trim(found.state.high_watermark)
            found.close()
            left = [name for name in found.state.disk.listdir(FOLDER) if name.endswith(".arrows")]
            assert len(left) == 1, where


BEGINS = 10
"""Where group 6 of the nine begins."""


def do_begin_anew(log: PartitionLog) -> None:
    """The leader has let go of what is below; its state file comes in three pieces, once what is above is durable."""
    leader = Leader(list(leaders_messages()), BEGINS, 4)
    log.follow(4)
    log.reset(BEGINS, last_epoch=2)
    log.append_stored(b"".join(m for _, _, m in messages_of(leader.log, BEGINS)), leader_epoch=4, now_us=0)
    offset = leader.log.handover.offered(BEGINS, log.syncer.sync())
    size = len(leader.log.state.disk.read_file(f"{FOLDER}/{state_name(offset)}"))
    for at in range(0, size, size // 3 + 1):
        piece = leader.log.handover.piece(offset, at, size // 3 + 1)
        assert piece is not None
        log.handover.take(offset, at, *piece)
    assert not log.handover.lacks
    log.lead(5)
    log.append([stamped([b"other"] * 3, 8, 0, 0)], leader_epoch=5, now_us=0)
    log.syncer.sync()


def test_a_power_cut_at_any_step_of_beginning_anew_leaves_a_log_that_knows_or_lacks() -> None:
    """Half a state file is never taken for a whole one, and an old one never for that of the new log."""
    disk, log = prepared()
    before = disk.steps
    do_begin_anew(log)
    total = disk.steps - before
    theirs = list(leaders_messages())
    seen = set()
    for step in range(1, total + 1):
        disk, log = prepared(crash_at=step)
        with pytest.raises(Crashed):
            do_begin_anew(log)
        for mode in MODES if EFFORT > 1 else (MODES[step % 5], MODES[(step + 2) % 5]):
            where = f"mode {mode}, step {step}"
            found = opened(disk.after_crash(mode, seed=step), 1)
            assert found.state.lost_ranges == (), where
            start, end = found.state.log_start_offset, found.state.log_end_offset
            assert start in (0, BEGINS), where
            stored = [one for one in messages_of(found, start) if one in theirs]
            assert stored == [one for one in theirs if start <= one[0] and one[1] <= end], where
            seen.add((start, found.handover.lacks))
            lacks = found.handover.lacks
            found.lead(9)
            for sequence, first in ((5, 9), (6, 10)):  # below the new start, and above it
                if end < first + 3 or (lacks and first < start):
                    continue
                group = stamped([b"again"] * (1 if sequence == 5 else 3), PRODUCER + 2, 2, sequence)
                again = found.append([group], leader_epoch=9, now_us=0)
                assert (again.duplicate, again.first_offset) == (True, first), where
            found.close()
    assert seen == {(0, False), (0, True), (BEGINS, False), (BEGINS, True)}
