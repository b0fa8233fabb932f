"""The memory of a log beside its records: the tables of `Memory`, read when they are needed, kept in
state files.

    roll     the tables as of the roll    so that the next open reads one segment at most; large ones
                                          soon after it
    close    the tables as of the end     so that it reads none

The tables are read when the first append with a stamp or an id, or the first roll, needs them. A log
without a state file has neither and does none of this (`state_files.T1`).

U1  A live table tells of all records below the log end. An append that fails leaves it as it was.
U2  All that was ever told of subjects holds after a restart: the state file has it, or the log above
    `next_offset` of the file's table; so nothing above that is written anew with fewer records
    (`rewritable_end`). Retention may take it: then there is none. So may damage of the only replica:
    what is lost counts as removed.
U3  A table that is not certain is dropped, and read anew: it may have missed an append, or its log has
    lost its tail.
U4  A log that follows brings its tables up to date in the background (`keep_up`), so that there is
    little to read when it begins to lead. They are read without the append lock, and count if nothing
    was dropped meanwhile.
U5  Where there are other replicas, tables that were read around a damaged range decide nothing that the
    range may have told (`whole`), and no state file is made of them. The range is copied from others,
    trimmed or given up, and then they are read anew.

The log's append lock covers all of it, where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from broker.api.batch import BatchHeader, read_header
from broker.api.errors import LiftlogError, NotReady
from broker.storage.disk import NO_SPACE, storage_error
from broker.storage.log_reader import LogReader
from broker.storage.memory.ids import has_headers
from broker.storage.memory.memory import WAITED_US, Memory
from broker.storage.memory.producers import GroupStamp
from broker.storage.memory.state_files import PRODUCERS, SUBJECTS, StateFiles, state_name
from broker.storage.memory.subjects import read_head
from broker.storage.read import group_start
from broker.storage.recovery import Ranges
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.writing.let_go import goes_to
from broker.storage.writing.state import LogState
from broker.storage.writing.sync import Syncer

IDS_KEPT_AT_ONCE: Final = 1 << 14
"""A roll writes a table of so many ids itself, half a megabyte; a larger one is left to the next
checkpoint."""
LEARNED_BYTES: Final = 512 << 10
"""So much of the log is noted at a time while appends wait."""
SUBJECTS_KEPT_AT_ONCE: Final = 1 << 14
"""A roll writes a table of so many subjects itself, as with ids."""


class Remembered:
    """See the module.

    Attributes:
        memory: The tables; None: not read yet.
        is_due: A state file is to be written by the next checkpoint (`keep_due`).
        is_ahead: The table of subjects tells of what is being appended.
        is_wanted: Somebody asks for subjects for the first time, and all must be durable before.
        has_news: A leader has sent records that tell more than the tables do.
    """

    def __init__(self, state: LogState, reader: LogReader, syncer: Syncer) -> None:
        self.state, self.reader, self.syncer = state, reader, syncer
        self.states = StateFiles(state.disk, state.folder, lambda: state.vault)
        self.memory: Memory | None = None
        self.is_due = False
        self.is_ahead = False
        self.is_wanted = False
        self.has_news = False
        self._drops = 0  # how often the tables were dropped
        self._told: tuple[int, int | None] | None = None  # a state file, and up to where it tells of subjects

    # --- the tables -----------------------------------------------------------------------------------------

    def known(self) -> Memory:
        """The tables as of the log end; without ids that came while ids were not minded."""
        memory, end = self.memory, self.state.log_end_offset
        if memory is None or memory.end != end:
            with self.state.guarded("read state"):
                self.memory = None  # U3: what is read by half is no table
                memory = self.memory = self._further(memory, end, self.states.offsets)
                self.has_news = False
        return memory

    def whole(self, *, window_us: int | None = None) -> Memory:
        """As `known`, to decide by (U5).

        Args:
            window_us: Ids are asked for: what is older tells of none.
        Raises:
            NotReady: a record that cannot be read may decide it.
        """
        memory = self.known()
        told_below = self.state.log_start_offset
        if memory.missed_to > told_below and window_us is not None:
            told_below = max(told_below, self.state.ages.here_for(window_us + WAITED_US))
        self.check_whole(memory, told_below)
        return memory

    def check_whole(self, memory: Memory, told_below: int) -> None:
        """Raise NotReady if what these tables were read around is not below this offset (U5)."""
        if memory.missed_to > told_below:
            raise NotReady(
                f"{self.state.folder}: records below {memory.missed_to} are damaged here, so it is not known what they"
                " told of producers, ids and subjects; they are being copied from other replicas"
            )

    def forget(self) -> None:
        """They are read again when they are needed."""
        self.has_news |= self.memory is not None
        self.memory = None
        self.is_wanted = False
        self._drops += 1

    def reads_again(self) -> None:
        """What was damaged can be read, or was given up: what was read around it does not count (U5)."""
        if self.memory is None or self.memory.missed_to or self.memory.growing is not None:
            self.forget()
        else:
            self._drops += 1

    def hear(self, header: BatchHeader, message: memoryview) -> None:
        """A batch that a leader has sent is about to be written."""
        self.has_news = self.has_news or bool(header.producer_id) or has_headers(message)

    def keep_up(self) -> None:
        """U4. For one thread, which does not hold the append lock. An error here is met again by whoever needs them."""
        memory = self.memory
        is_wanted = self.has_news or self.is_due if memory is None else memory.end != self.state.log_end_offset
        if is_wanted:
            with self.state.guarded("read state"):
                self.states.look()
            if self.states.offsets:
                self.read_ahead()

    def read_ahead(self) -> None:
        """Read what `known` lacks, without the append lock (`state.L10`). An error here is met again by `known`.

        What is appended meanwhile is learnt under the lock: it was written a moment ago, and no disk is asked for it.
        """
        with suppress(OSError, LiftlogError):
            self.states.look()
            with self.state.lock:
                memory, drops, end, offsets = self.memory, self._drops, self.state.log_end_offset, self.states.offsets
                if self.state.failure is not None or (memory is not None and memory.end == end):
                    return
                is_base = memory is not None and self._is_base(memory, end, offsets)
                if is_base and not self.has_news:
                    self.known()
                    return
            if memory is not None and is_base:
                self._follow(memory, end)
            else:
                found = self.read(end, offsets)
                self._learn_further(found, self.state.log_end_offset)
                with self.state.lock:
                    if self.memory is not memory or self._drops != drops or self.state.failure is not None:
                        return
                    self._learn_further(found, self.state.log_end_offset)
                    self.memory = memory = found
            with self.state.lock:
                if memory is not None and self.memory is memory and memory.end == self.state.log_end_offset:
                    self.has_news = False

    def _learn_further(self, memory: Memory, end: int) -> None:
        """Note all that has come since these tables were read, which nobody else has yet."""
        if memory.end < end:
            self._learn(memory, self.reader.messages(memory.end, end, whole=True), memory.end, end)
            memory.end = end

    def complete(self) -> None:
        """The log is about to lead: what has come since the last `keep_up` is read, if there was one."""
        if self.memory is not None:
            try:
                self.known()
            except LiftlogError:
                self.forget()

    def _follow(self, memory: Memory, end: int) -> None:
        """Note what has come since, a little at a time: in between the tables are whole, up to their end."""
        at, drops = memory.end, self._drops
        messages: list[memoryview] = []
        size = 0
        for message in self.reader.messages(at, end, whole=True):
            messages.append(message)
            size += len(message)
            if size >= LEARNED_BYTES:
                at = self._note(memory, messages, at, drops)
                messages, size = [], 0
        if messages:
            self._note(memory, messages, at, drops)

    def _note(self, memory: Memory, messages: Sequence[memoryview], at: int, drops: int) -> int:
        """Messages, the first of which has the record at `at`. Returns their end. NotReady: others were here."""
        with self.state.lock:
            if self.memory is not memory or memory.end != at or self._drops != drops:
                raise NotReady(f"{self.state.folder}: the tables are others by now")
            end = read_header(messages[-1]).next_offset
            self.memory = None  # U3
            self._learn(memory, messages, at, end)
            memory.end = end
            self.memory = memory
            return end

    def _is_base(self, memory: Memory, end: int, offsets: Sequence[int]) -> bool:
        """Whether what has come since is all that these tables lack: they are whole, and the log tells of the rest."""
        return memory.is_of_messages_alone and bool(offsets) and offsets[0] <= memory.end <= end

    def _further(self, memory: Memory | None, end: int, offsets: Sequence[int]) -> Memory:
        """The tables as of `end`: those of before and what has come since, or read anew. OSError passes through."""
        if memory is None or not self._is_base(memory, end, offsets):
            return self.read(end, offsets)
        if self.has_news:
            self._learn(memory, self.reader.messages(memory.end, end, whole=True), memory.end, end)
        else:
            memory.ids.last_id = b""
        memory.end = end
        return memory

    def read(self, end: int, offsets: Sequence[int]) -> Memory:
        """The tables of all below `end`: what a state file says, the first of `offsets` that is whole, and the log from
        there on; all of it where a file is lacking. OSError passes through.
        """
        start = -1
        sections: Mapping[str, bytes] = {}
        if not offsets and self.lacks_state:
            offsets = (-1,)  # it leads all the same, and its disk is full (`begin_to_lead`)
        for offset in offsets:
            found = self.states.load(offset) if offset >= 0 else None
            if found is not None and PRODUCERS in found:
                sections, start = found, offset
                break
            if offset >= 0:
                self.state.recovery.notes.append(f"{self.state.folder}/{state_name(offset)} is damaged: passed over")
            start = 0
        with self.state.lock:
            ages = self.state.ages.copy()
        memory = Memory.restore(sections, self.state.settings, end, ages=ages)
        with self.state.lock:
            segments = self.state.chain.segments
            start = max(start, segments[0].base_offset) if segments and start >= 0 else end
        if start < end:
            self._learn(memory, self.reader.messages(start, end, whole=True), start, end)
        memory.end = end
        return memory

    def _learn(self, memory: Memory, messages: Iterable[memoryview], start: int, end: int) -> None:
        """Note what these tell of the records from `start` on; the log ends, or was read to, at `end`."""
        with self.state.lock:
            ages, lost = self.state.ages.copy(), self.state.lost_ranges
        memory.learn(messages, start, end, ages=ages, window_us=self.state.settings.dedup_window_ms * 1_000)
        memory.missed_to = max(memory.missed_to, self.missed(lost, start, end))

    def missed(self, lost: Ranges, start: int, end: int) -> int:
        """U5. Below it [start, end) was read around damage; 0: around none. `lost`: what was known before it was."""
        if self.state.settings.is_sole_replica:
            return 0
        ranges = *lost, *self.state.lost_ranges
        return max([0, *(min(after, end) for first, after in ranges if first < end and start < after)])

    def sections_of(self, memory: Memory, offset: int) -> dict[str, bytes]:
        now_us = self.state.ages.now_us
        return memory.snapshot(offset, self.state.settings, log_start_offset=self.state.log_start_offset, now_us=now_us)

    def needs_stamp(self, header: BatchHeader) -> bool:
        """Whether the producer stamp of a stored batch may still decide an append, also if the state files are lost."""
        self.read_ahead()
        stamp = GroupStamp(header.producer_id, header.producer_epoch, header.sequence)
        with self.state.lock:
            return self.lacks_state or self.known().producers.needs(stamp, self.state.high_watermark)

    def update_settings(self, settings: LogSettings) -> None:
        """Take other limits from now on. What is the same costs nothing: a start says it of each log."""
        if settings == self.state.settings:
            return
        with suppress(OSError):
            self.states.look()
        with self.state.lock:
            before = self.state.settings
            if (settings.dedup_window_ms == 0, settings.subjects_max == 0) != (
                before.dedup_window_ms == 0,
                before.subjects_max == 0,
            ):
                self.forget()  # what is known is another matter now: read it anew
            if before.is_sole_replica and not settings.is_sole_replica and not self.has_states():
                self.begin()  # `state_files.T1` held until now; from now on no file says that one is lacking
            self.state.take_settings(settings)

    # --- taken back -----------------------------------------------------------------------------------------

    def after_recovery(self) -> None:
        """Drop what tells of records that recovery has lost: tables and state files."""
        self.states.forget()
        self.forget()
        try:
            self.cut(self.state.log_end_offset)
        except OSError as error:
            raise storage_error(error, f"open {self.state.folder}") from error

    def cut(self, end: int) -> None:
        """Before records at or above `end` go, or after: no state file tells of them. A sole replica keeps one, so that
        it is known that there is something to tell (`state_files.T1`): if need be one of what the log below tells.
        """
        self.forget()  # the log may be as long again, with others in their places
        with self.state.guarded("write state"):
            there = self.states.offsets
            if not there or there[0] <= end:
                return
            if there[-1] > end and self.state.settings.is_sole_replica:
                self.states.put(end, self.sections_of(self.read(end, (-1,)), end), frees=True)
            self.states.drop_above(end)
            # before the next append: a file may come back after a power cut
            self.state.disk.sync_dir(self.state.folder)

    def drop(self) -> None:
        """Before the log begins anew, or takes what its leader has written anew: what is told here is not enough, so a
        state file is lacking from now on (`state_files.T6`). OSError passes through.
        """
        self.states.drop_all()
        self.forget()

    # --- state files ----------------------------------------------------------------------------------------

    def has_states(self) -> bool:
        with self.state.guarded("read state"):
            return bool(self.states.offsets)

    @property
    def lacks_state(self) -> bool:
        """`state_files.T6`. OSError passes through."""
        is_empty = self.state.log_end_offset == 0
        return not (is_empty or self.state.settings.is_sole_replica or self.states.offsets)

    def begin_to_lead(self) -> None:
        """See to it that a leader with followers has a state file. If it lacks one, write what its log tells below the
        high watermark, so that others may be given the file at once. On a full disk it leads without one, as nobody
        could make room else, and writes it when somebody asks for one (`Handover.offered`).
        """
        with self.state.guarded("write state"):
            if not self.states.offsets:
                committed = min(self.state.high_watermark, self.state.durable_end)
                end = self.state.ask(lambda view: group_start(view, committed))
                sections = self.sections_of(self.read(end, (-1,)), end)
                try:
                    self.states.put(end, sections, high_watermark=end, frees=True)
                except OSError as error:
                    if error.errno not in NO_SPACE:
                        raise

    def begin(self) -> None:
        """`state_files.T1`: there is nothing to tell yet, so any durable offset does."""
        self.known()
        with self.state.guarded("write state"):
            self.save(self.state.durable_end)

    def begin_ids(self) -> Memory:
        """Before the first id of a log is written (`state_files.T1`)."""
        self.begin()
        return self.known()

    def save(self, offset: int, *, anew: bool = False, frees: bool = False) -> None:
        memory = self.known()
        self.check_whole(memory, self.state.log_start_offset)
        self._write(self.sections_of(memory, offset), offset, anew=anew, frees=frees)
        self.is_due = False

    def _write(self, sections: Mapping[str, bytes], offset: int, *, anew: bool = False, frees: bool = False) -> None:
        high_watermark = self.state.high_watermark
        if self.states.save(offset, sections, high_watermark=high_watermark, anew=anew, frees=frees):
            self._told = (offset, _told_to(sections))

    def keep(self, *, at_close: bool = False) -> None:
        """At a roll or a close, if there is anything to keep. Where it fails the older file stands
        (`state_files.T3`)."""
        with self.state.lock:
            if self.state.failure is not None or self.state.durable_end < self.state.log_end_offset:
                return
            if at_close and self.memory is None:
                return
            try:
                states = self.states.offsets
                if states and states[0] != self.state.log_end_offset:
                    memory = self.memory
                    is_missing = memory is not None and memory.missed_to > self.state.log_start_offset  # U5
                    if is_missing or (not at_close and self._is_large()):
                        self.is_due = True
                    else:
                        self.save(self.state.log_end_offset)
            except (OSError, LiftlogError) as error:
                self.state.recovery.notes.append(f"{self.state.folder}: no new state file: {error}")

    def _is_large(self) -> bool:
        """Whether a state file is too much work for a roll, or comes too early."""
        if self.is_ahead:
            return True
        memory = self.known()
        return len(memory.ids) > IDS_KEPT_AT_ONCE or (
            memory.subjects is not None and len(memory.subjects) > SUBJECTS_KEPT_AT_ONCE
        )

    def keep_due(self) -> None:
        """Do what a roll has left to do. The caller holds the checkpoint lock; appends go on meanwhile.

        Raises:
            OSError, StorageFailed, DiskFull: the older file stands.
        """
        if not self.is_due:
            return
        self.states.look()
        if self.state.failure is None and not self.lacks_state:
            with suppress(NotReady):  # U5: it stays due
                self.keep_end(anew=True)  # it may tell more than one that a roll has written

    def keep_end(self, *, anew: bool = False, frees: bool = False, gone_below: int = 0) -> int:
        """Write the tables as of the log end, and return that. Appends go on meanwhile. Under the checkpoint lock or
        the sync lock, so that nothing is taken back. OSError passes through.

        Args:
            gone_below: What is damaged below it is about to go, or to be given up.
        Raises:
            NotReady: U5.
        """
        self.read_ahead()
        with self.state.lock:
            end, was_due = self.state.log_end_offset, self.is_due
            memory = self.known()
            self.check_whole(memory, max(gone_below, self.state.log_start_offset))
            sections = self.sections_of(memory, end)
            self.is_due = False
        try:
            self.syncer.sync()  # `state_files.T2`
            self._write(sections, end, anew=anew, frees=frees)
        except BaseException:
            self.is_due = self.is_due or was_due
            raise
        return end

    def keep_what_goes(self, start: int) -> None:
        """Before the segments below `start` go, write what only they would tell (`state_files.T3`), in
        a file that no truncation takes: with more replicas one of what is committed.

        Raises:
            StorageFailed, DiskFull, NotReady: nothing may go.
        """
        with self.state.sync_lock, self.state.guarded("write state"):
            self.states.look()
            states = self.states.offsets
            if not states or self.state.failure is not None or self.kept_offset() >= goes_to(self.state, start):
                return
            self.keep_committed(gone_below=start)

    def keep_committed(self, *, gone_below: int = 0) -> None:
        """Write the newest file that no truncation takes. Under the sync lock, without the append lock. OSError passes
        through; arguments and NotReady as with `keep_end`."""
        high_watermark = self.state.high_watermark
        if self.state.settings.is_sole_replica or high_watermark == self.state.log_end_offset:
            self.keep_end(frees=True, gone_below=gone_below)
            return
        self.syncer.sync()
        cuts = self.state.cuts
        end = self.state.ask(lambda view: group_start(view, high_watermark))
        memory = self.read(end, [offset for offset in self.states.offsets if offset <= end] or (-1,))
        self.check_whole(memory, max(gone_below, self.state.log_start_offset))
        if self.state.cuts != cuts:  # U5: the damage that it was read around may not be there any more
            raise NotReady(f"{self.state.folder}: records were taken back or mended meanwhile; to be tried again")
        self.states.put(end, self.sections_of(memory, end), high_watermark=high_watermark, frees=True)

    def kept_offset(self) -> int:
        """Offset of the newest state file that stays whatever is taken back; -1: there is none. OSError passes
        through."""
        limit = self.state.log_end_offset if self.state.settings.is_sole_replica else self.state.high_watermark
        return next((offset for offset in self.states.offsets if offset <= limit), -1)

    def told_by_state(self) -> int:
        """Below it, segments may go without another state file (`state_files.T3`)."""
        with self.state.guarded("read state"):
            self.states.look()
            return self.kept_offset() if self.states.offsets else self.state.log_end_offset

    def rewritable_end(self) -> int:
        """Below it, sealed segments may be written anew with fewer records: no scan has to tell of them
        (`state_files.T3`, U2)."""
        with self.state.guarded("read state"):
            self.states.look()
            if not self.states.offsets:
                return 0 if self.lacks_state else self.state.log_end_offset
            kept, told = self.kept_offset(), self._told
            if told is None or told[0] != kept:
                sections = self.states.load(kept) if kept >= 0 else None
                told = self._told = (kept, _told_to(sections) if sections is not None else 0)
            end = kept if self.state.settings.dedup_window_ms else self.state.log_end_offset
            told_to = told[1]
            return max(0, end if told_to is None else min(end, told_to))


def _told_to(sections: Mapping[str, bytes]) -> int | None:
    """Up to where a state file tells of subjects; None: they are not tracked."""
    return read_head(sections[SUBJECTS]).next_offset if SUBJECTS in sections else None
