"""Decide whether a record is appended, by producers, message ids, and the last record of each subject.

    judge    before the write: which records of a batch stay, or where its group stands already
    note     after it: what was appended is known
    take back    instead, where the write failed: nothing of it is

A verdict does all three for one append, so that what is noted is taken back whatever happens in between. The tables
tell of the records below `end`, and of no others: whoever finds another log end than that reads them anew.

M1  The answer to an id was decided under the append lock, from what is in the log: nothing is pending.
M2  An append that fails leaves no id, no subject and no stamp behind.
M3  Room is made before anything is noted: a table that grows moves its entries.
M4  A window counts back from when a message was read, and it may have waited since: its timestamp, and the clock of
    timestamps, say how long, and at most `WAITED_US` are believed. So of what is read from the log or kept in a state
    file, ids stay for so much longer; who asks looks at the times.
M5  Times are those at which this replica had a record, by a clock that nobody sets: timestamps decide nothing. So times
    in a state file are not read: they are of another life, or of another broker. `ages.Ages` says how long the
    records have been here, and where it says nothing they are new (`ages.A2`). Producers keep the times between them.

No I/O, no clock, no lock: `PartitionLog` brings what is stored, and holds the append lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from broker.api.batch import read_header
from broker.storage.memory.ids import FoundIds, IdTable, ids_in
from broker.storage.memory.producers import GroupStamp, ProducerTable
from broker.storage.memory.state_files import IDS, PRODUCERS, SUBJECTS
from broker.storage.memory.subjects import Latest, SubjectTable, read_head
from broker.storage.rows import Conditional, RowBatch
from broker.storage.segments.ages import Ages
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.writing.append import AppendResult, Message

WAITED_US: Final = 60_000_000
"""Longer no message waits for a disk: its publisher has given up."""
IDS_READ_BYTES: Final = 256 << 10
"""So many bytes of stored batches are read for their ids at a time."""


@dataclass(slots=True)
class Growing:
    """A table of subjects that is being built: of all records below `next_offset`, around what is damaged below
    `missed_to`. None: it is not read yet."""

    table: SubjectTable | None = None
    next_offset: int = 0
    missed_to: int = 0


class Memory:
    """See the module.

    Attributes:
        producers, ids: The tables; ids are empty while they are not minded.
        subjects: Live: of all records. None: nobody has asked, or it is not built yet.
        carried: The snapshot of subjects that the newest state file has, while they are not live.
        growing: The table that is being built from that.
        end: The tables tell of the records below.
        missed_to: They were read around damaged records, all of which lie below; 0: around none.
    """

    __slots__ = ("carried", "end", "growing", "ids", "missed_to", "producers", "subjects")

    def __init__(self) -> None:
        self.producers = ProducerTable()
        self.ids = IdTable()
        self.subjects: SubjectTable | None = None
        self.carried: bytes | None = None
        self.growing: Growing | None = None
        self.end = self.missed_to = 0

    @property
    def is_of_messages_alone(self) -> bool:
        """Whether `learn` brings all of it further: it does not note subjects."""
        return self.subjects is None and self.growing is None

    @classmethod
    def restore(
        cls, sections: Mapping[str, bytes], settings: LogSettings, log_end_offset: int, *, ages: Ages
    ) -> Memory:
        """Read the tables from a state file, those that the settings mind. None of its records is above the log end."""
        memory = cls()
        if PRODUCERS in sections:
            memory.producers = ProducerTable.restore(sections[PRODUCERS], now_us=ages.now_us)
        if settings.dedup_window_ms and IDS in sections:
            memory.ids = IdTable.restore(sections[IDS], ages.since)
            memory.ids.expire(ages.now_us - settings.dedup_window_ms * 1_000 - WAITED_US)
        carried = sections.get(SUBJECTS) if settings.subjects_max else None
        if carried is not None and (head := read_head(carried)).next_offset > log_end_offset:
            carried = SubjectTable(head.key).snapshot(0)  # `remembered.U3`
        memory.carried = carried
        return memory

    def learn(self, messages: Iterable[memoryview], start: int, end: int, *, ages: Ages, window_us: int) -> None:
        """Note stored batches, in order; of their records those from `start` on. `end`: of the log."""
        old_end = ages.here_for(window_us + WAITED_US)
        young: list[memoryview] = []
        size, is_young = 0, True
        for message in messages:
            header = read_header(message)
            if header.producer_id and header.first_offset >= start:
                stamp = GroupStamp(header.producer_id, header.producer_epoch, header.sequence)
                used_us, continues = ages.now_us, header.group_index > 0
                self.producers.note(stamp, header.first_offset, header.next_offset, now_us=used_us, continues=continues)
            is_young = window_us > 0 and (header.next_offset == end or header.next_offset > old_end)
            if is_young:
                young.append(message)
                size += len(message)
            if size >= IDS_READ_BYTES:
                self._learn_ids(young, start, ages, window_us)
                young, size = [], 0
        if young:
            self._learn_ids(young, start, ages, window_us)
        if not is_young:
            self.ids.last_id = b""

    def _learn_ids(self, messages: Sequence[memoryview], start: int, ages: Ages, window_us: int) -> None:
        ids, found = self.ids, ids_in(*messages)
        skip = int(np.searchsorted(found.offsets, start))  # a batch that was joined may begin before it
        ids.expire(ages.now_us - window_us - WAITED_US)
        ids.note(found.texts[skip:], found.offsets[skip:], ages.since(found.offsets[skip:]))
        ids.last_id = found.last_id

    def snapshot(self, offset: int, settings: LogSettings, *, log_start_offset: int, now_us: int) -> dict[str, bytes]:
        """The sections of a state file of all below `offset`; what is above it the log tells."""
        sections = {PRODUCERS: self.producers.snapshot()}
        window_us = settings.dedup_window_ms * 1_000
        if window_us and (len(self.ids) or self.ids.last_id):
            sections[IDS] = self.ids.snapshot(end=offset, since_us=now_us - window_us - WAITED_US)
        if settings.subjects_max and self.subjects is not None:
            assert offset == self.end, "of a live table only the end is told"
            self.subjects.begin(log_start_offset, settings.subjects_max)
            sections[SUBJECTS] = self.subjects.snapshot(offset)
        elif settings.subjects_max and self.carried is not None:
            sections[SUBJECTS] = self.carried
        return sections


class Verdict:
    """A judgement: what an append may do, and what is noted of it. This class allows anything and notes nothing.

    Attributes:
        repeat: The answer, where nothing is to be appended.
        looks: `look` is to be shown the messages before they are written.
        is_ahead: The table of subjects tells already of what is to be appended.
    """

    __slots__ = ()
    repeat: AppendResult | None = None
    looks = False
    is_ahead = False

    def look(self, messages: Sequence[Message]) -> None:
        """Look at messages that are about to be written. An error raised here refuses the append."""

    def note(self, result: AppendResult) -> None:
        """It was appended."""

    def take_back(self) -> None:
        """It was not."""


NOTHING = Verdict()


class Repeat(Verdict):
    """A group that its producer had appended before."""

    __slots__ = ("repeat",)

    def __init__(self, first_offset: int, next_offset: int) -> None:
        self.repeat = AppendResult(first_offset, next_offset, 0, duplicate=True)


class Noted(Verdict):
    """Batches from NATS without conditions."""

    __slots__ = ("_batches", "_log_start", "_memory", "_settings")

    def __init__(
        self, memory: Memory, batches: Sequence[Conditional], settings: LogSettings, log_start_offset: int
    ) -> None:
        self._memory = memory
        self._batches = batches
        self._settings = settings
        self._log_start = log_start_offset

    def note(self, result: AppendResult) -> None:
        memory, first_offset = self._memory, result.first_offset
        if self._settings.dedup_window_ms:
            memory.ids.last_id = self._batches[-1].last_id
        if memory.subjects is not None:
            memory.subjects.begin(self._log_start, self._settings.subjects_max)
            for batch in self._batches:
                if not batch.minds_subjects:  # else `settle` has noted them
                    batch.note_subjects(memory.subjects, first_offset)
                first_offset += batch.record_count
        memory.end = result.next_offset


class Settled(Verdict):
    """A batch from NATS whose ids and subjects were noted while it was settled.

    Args:
        memory: None: no table is read; the conditions needed none.
        ids, subjects: The tables that it was settled with.
        tail: Where the ids ended before.
    """

    __slots__ = ("_batch", "_ids", "_noted", "_subjects", "_tail", "is_ahead", "repeat")

    def __init__(
        self,
        batch: Conditional,
        noted: Noted | None,
        ids: IdTable | None,
        subjects: SubjectTable | None,
    ) -> None:
        self.repeat = None
        self.is_ahead = subjects is not None
        self._batch = batch
        self._noted = noted
        self._ids = ids
        self._subjects = subjects
        self._tail = int(ids.places[1]) if ids is not None else 0

    def note(self, result: AppendResult) -> None:
        if self._noted is not None:
            self._noted.note(result)

    def take_back(self) -> None:
        if self._ids is not None:
            self._ids.take_back(self._tail)
        if self._subjects is not None:
            self._batch.take_back(self._subjects)


class Rows(Verdict):
    """Batches that are Arrow already: what is to be noted of them is read from the messages, before they are written.

    Args:
        memory: None: no table is read.
        stamp: The producer of the commit group.
        begin: Makes the state file before the first id of a log, and gives its memory; None: there is one.
    """

    __slots__ = ("_begin", "_ids", "_latest", "_log_start", "_memory", "_now_us", "_settings", "_stamp")
    looks = True

    def __init__(
        self,
        memory: Memory | None,
        stamp: GroupStamp | None,
        settings: LogSettings,
        *,
        log_start_offset: int,
        now_us: int,
        begin: Callable[[], Memory] | None,
    ) -> None:
        self._memory = memory
        self._stamp = stamp
        self._settings = settings
        self._log_start = log_start_offset
        self._now_us = now_us
        self._begin = begin
        self._ids: list[FoundIds] = []
        self._latest: list[Latest] = []

    def look(self, messages: Sequence[Message]) -> None:
        if self._settings.dedup_window_ms and (self._memory is not None or self._begin is not None):
            for message in messages:
                found = ids_in(message)
                if found.texts and self._begin is not None:
                    self._memory, self._begin = self._begin(), None
                self._ids.append(found)
            if self._memory is not None:
                self._memory.ids.reserve(sum(len(found.texts) for found in self._ids))  # M3
        if self._memory is not None and self._memory.subjects is not None:
            self._latest += [self._memory.subjects.digest(message) for message in messages]

    def note(self, result: AppendResult) -> None:
        memory = self._memory
        if memory is None:
            return
        if self._stamp is not None:
            memory.producers.note(self._stamp, result.first_offset, result.next_offset, now_us=self._now_us)
        for found in self._ids:
            memory.ids.note(found.texts, found.offsets, np.full(len(found.texts), self._now_us, np.int64))
            memory.ids.last_id = found.last_id
        if memory.subjects is not None:
            memory.subjects.begin(self._log_start, self._settings.subjects_max)
            for latest in self._latest:
                memory.subjects.note(latest)
        memory.end = result.next_offset


def stamp_of(first: RowBatch) -> GroupStamp | None:
    """The producer of the commit group that begins with this batch; None for one without."""
    if first.producer_id == 0:
        return None
    return GroupStamp(first.producer_id, first.producer_epoch, first.sequence)
