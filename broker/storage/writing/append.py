"""Append: what a leader composes, and what a follower takes over as its leader has stored it.

    refuse      a failed log (`state.L3`), an epoch that is not led in (`leader_epochs.L6`)
    compose     each batch with its offset, epoch, high watermark and place in its commit group
    room        a full tail is sealed, a resting one opened, a new one made; room in the index
    write       one call for a group that is in memory, else batch by batch; cut back if it fails
    note        index entries, the end of the group, the log end

L1  Offsets are dense and strictly increasing; one append is one write, or several that are taken
    back together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from broker.api.batch import BatchHeader, crc_of, is_plain, message_bytes, verify_batch
from broker.api.errors import BadBatch, DiskFull, LiftlogError
from broker.storage.disk import ReadableBuffer
from broker.storage.read import NeedsRepair, greatest_timestamp
from broker.storage.rows import Encodable, StoredGroup
from broker.storage.segments.chain import Untrusted
from broker.storage.segments.index import GrowingIndex
from broker.storage.segments.retention import is_expired, old_end
from broker.storage.segments.scan import MESSAGE_BYTES_MAX
from broker.storage.writing.leader_epochs import LeaderEpochs
from broker.storage.writing.state import LogState

WRITEBACK_BYTES: Final = 4 << 20
"""After so many bytes of a group the disk begins with them, while further ones are made. 1 M records
of 100 bytes were written and fsynced in 47 ms with it, in 75 ms without; by 16 MB it were 53."""
Message = bytes | bytearray | memoryview
Look = Callable[[Sequence[Message]], None]


class AppendResult(NamedTuple):
    """Where an append went: offsets [first_offset, next_offset), and how many bytes were written.

    `duplicate`: nothing was, its producer had appended it before; the offsets are those of then, maybe not yet durable.
    (Or none of its records stays, by their ids and expectations; both offsets are the log end, above the originals. So
    they are where it was expected that it would begin elsewhere.)
    """

    first_offset: int
    next_offset: int
    bytes: int
    duplicate: bool = False

    @property
    def has_records(self) -> bool:
        """Whether some are stored there, by this append or by the one that it repeats."""
        return self.first_offset < self.next_offset


class Appender:
    """See the module."""

    __slots__ = (
        "_epochs",
        "_state",
    )

    def __init__(self, state: LogState, epochs: LeaderEpochs) -> None:
        self._state = state
        self._epochs = epochs

    # --- a leader's -----------------------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[Encodable],
        *,
        leader_epoch: int,
        now_us: int,
        look: Look | None = None,
        rolled: Callable[[], None] | None = None,
    ) -> AppendResult:
        """Append batches as one commit group, with one write. Not durable before a later `sync`.

        Args:
            batches: n >= 1; they get consecutive offsets in this order.
            leader_epoch: That of `lead`. While nobody has called that, any that is not less than the last one's.
            now_us: By a clock that nobody sets (`ages.A1`): the age of the records, and of a new segment.
            look: Is shown the messages before anything is written; what it raises passes through.
            rolled: Is called when a segment was sealed for this append, before anything is written.
        Raises:
            NotLeader: another epoch leads.
            DiskFull: nothing was appended; a later call may succeed.
            StorageFailed: nothing was appended; nothing will be before `recover`.
        """
        with self._state.lock:
            if self._state.failure is not None:
                self._state.check_writable()
            if leader_epoch != self._epochs.led:
                self._epochs.check_leads(leader_epoch)
            first = offset = self._state.log_end_offset
            rows: list[tuple[int, int, Message]] = []
            for batch in batches:
                message = self._compose(batch, offset, leader_epoch, len(rows), len(batches))
                rows.append((offset, batch.max_timestamp_us, message))
                offset += batch.record_count
            if look is not None:
                look([row[2] for row in rows])
            if (vault := self._state.vault) is not None:
                rows = [(at, newest, vault.encrypt(message)) for at, newest, message in rows]
            data = rows[0][2] if len(rows) == 1 else b"".join([row[2] for row in rows])
            try:
                index = self._tail_for(len(data), now_us, rolled)
                if leader_epoch != self._epochs.latest:
                    self._epochs.begin(leader_epoch)
                position = index.end
                index.make_room(len(batches))  # before the write: what is written is in the index
                self._state.chain.write(data, position)
            except (OSError, Untrusted) as error:
                found = self._state.error_of(error, "append")  # first: a log that is to fail has failed
                self._epochs.forget_empty()
                raise found from error
            except LiftlogError:
                self._epochs.forget_empty()
                raise
            for at, max_timestamp_us, message in rows:
                index.append(at, position, max_timestamp_us, len(message), crc_of(message))
                position += len(message)
            self._state.group_ends.append(offset)  # before the end: who sees that finds its group
            self._state.log_end_offset = offset
            self._state.ages.tell(now_us, offset)
            return AppendResult(first, offset, len(data))

    def append_group(
        self,
        group: StoredGroup,
        *,
        leader_epoch: int,
        now_us: int,
        look: Look | None = None,
        rolled: Callable[[], None] | None = None,
    ) -> AppendResult:
        """Append a commit group that need not fit into memory: batch by batch, and all taken back if one fails.

        Args:
            group: Gone through once. Its errors pass through; then nothing was appended.
            leader_epoch, now_us: As `append` takes them.
            look: Is shown each message before it is written.
            rolled: As `append` takes it.
        Raises:
            NotLeader, DiskFull, StorageFailed: as `append`.
        """
        with self._state.lock, self._state.guarded("append"):
            self._state.check_writable()
            if leader_epoch != self._epochs.led:
                self._epochs.check_leads(leader_epoch)
            entries: list[tuple[int, int, int, int, int]] = []
            index = self._tail_for(group.byte_count, now_us, rolled)
            if leader_epoch != self._epochs.latest:
                self._epochs.begin(leader_epoch)
            first = offset = self._state.log_end_offset
            begin = position = begun = index.end
            index.make_room(group.batch_count)
            try:
                for batch in group.batches:
                    message = self._compose(batch, offset, leader_epoch, len(entries), group.batch_count)
                    if look is not None:
                        look([message])
                    if self._state.vault is not None:
                        message = self._state.vault.encrypt(message)
                    self._state.chain.write(message, begin)
                    entries.append((offset, position, batch.max_timestamp_us, len(message), crc_of(message)))
                    offset += batch.record_count
                    position += len(message)
                    if position - begun >= WRITEBACK_BYTES:
                        self._state.chain.start_writeback(begun, position)
                        begun = position
                assert len(entries) == group.batch_count, "a group has as many batches as it says"
            except BaseException:
                self._state.chain.cut(begin)  # first: nothing may stand behind what the index knows
                self._epochs.forget_empty()
                raise
            for entry in entries:
                index.append(*entry)
            self._state.group_ends.append(offset)
            self._state.log_end_offset = offset
            self._state.ages.tell(now_us, offset)
            return AppendResult(first, offset, position - begin)

    def _compose(self, batch: Encodable, offset: int, leader_epoch: int, group_index: int, group_count: int) -> Message:
        message = batch.compose(
            first_offset=offset,
            leader_epoch=leader_epoch,
            high_watermark=self._state.high_watermark,
            group_index=group_index,
            group_count=group_count,
        )
        assert is_plain(message), "a batch is not as long as it says"
        assert len(message) <= MESSAGE_BYTES_MAX, "a batch is too long to be found again"
        return message

    # --- a follower's ---------------------------------------------------------------------------------------

    def append_stored(
        self,
        data: ReadableBuffer,
        *,
        leader_epoch: int,
        now_us: int,
        look: Callable[[BatchHeader, memoryview], None] | None = None,
    ) -> int:
        """Append what the leader has stored, as it is: compressed or compacted, of several epochs and groups.

        Segments are this replica's own: it rolls by its own size, between commit groups. The last group may come in
        several calls; a log that begins to lead cuts one that is incomplete.

        Args:
            data: n >= 0 whole messages, the first of them at the log end.
            leader_epoch: That of `follow`.
            now_us: By a clock that nobody sets (`ages.A1`): the age of the records, and of a new segment.
            look: Is shown each message before any is written.
        Returns:
            The log end.
        Raises:
            NotLeader: another epoch is followed, or this log leads; nothing was appended.
            BadBatch: a message is damaged, or does not continue the log; nothing was appended.
            DiskFull, StorageFailed: as `append`. Messages before the one that failed are appended.
        """
        messages = list(messages_of(view := memoryview(data)))
        with self._state.lock:
            self._state.check_writable()
            self._epochs.check_follows(leader_epoch)
            self._check_continues(messages, leader_epoch)
            if look is not None:
                for message in messages:
                    look(*message)
            if (vault := self._state.vault) is not None:
                stored = [(header, memoryview(vault.encrypt(message))) for header, message in messages]
                messages = [(replace(header, crc=crc_of(message)), message) for header, message in stored]
                view = memoryview(b"".join([message for _, message in messages]))
            begin = 0
            while begin < len(messages):
                with self._state.guarded("append"):
                    end = self._append_run(view, messages, begin, now_us)
                view, begin = view[sum(len(message) for _, message in messages[begin:end]) :], end
            return self._state.log_end_offset

    def _check_continues(self, messages: Sequence[tuple[BatchHeader, memoryview]], leader_epoch: int) -> None:
        expected, epoch = self._state.log_end_offset, self._epochs.latest
        for header, _ in messages:
            if header.first_offset != expected:
                raise BadBatch(
                    f"{self._state.folder}: a stored batch begins at {header.first_offset}, the log ends at {expected}",
                    expected=expected,
                    found=header.first_offset,
                )
            if not epoch <= header.leader_epoch <= leader_epoch:
                raise BadBatch(
                    f"{self._state.folder}: a stored batch at {expected} is of leader epoch {header.leader_epoch},"
                    f" which is not in [{epoch}, {leader_epoch}]",
                    expected=epoch,
                    found=header.leader_epoch,
                )
            expected, epoch = header.next_offset, header.leader_epoch

    def _append_run(
        self, data: memoryview, messages: Sequence[tuple[BatchHeader, memoryview]], begin: int, now_us: int
    ) -> int:
        """Append messages of one epoch that go to one segment, with one write: `data` begins with them, as they came.
        Returns where to go on."""
        first, message = messages[begin]
        goes_on = first.group_index > 0  # a group that began in this segment, however full it is by now
        index = self._tail_for(None if goes_on else len(message), now_us)
        if first.leader_epoch != self._epochs.latest:
            self._epochs.begin(first.leader_epoch)
        end, size = begin + 1, len(message)
        while end < len(messages) and messages[end][0].leader_epoch == first.leader_epoch:
            header, message = messages[end]
            if header.group_index == 0 and index.end + size + len(message) > self._state.settings.segment_bytes:
                break
            end, size = end + 1, size + len(message)
        run = messages[begin:end]
        index.make_room(len(run))
        position = index.end
        try:
            self._state.chain.write(data[:size], position)
        except BaseException:
            self._epochs.forget_empty()
            raise
        if goes_on:
            self._state.continue_group()
        for header, message in run:
            index.append(header.first_offset, position, header.max_timestamp_us, len(message), header.crc)
            position += len(message)
            if header.group_index == header.group_count - 1:
                self._state.group_ends.append(header.next_offset)
        self._state.log_end_offset = run[-1][0].next_offset
        self._state.ages.tell(now_us, self._state.log_end_offset)
        return end

    # --- the tail -------------------------------------------------------------------------------------------

    def _tail_for(self, size: int | None, now_us: int, rolled: Callable[[], None] | None = None) -> GrowingIndex:
        """The index of the tail that has room for `size` bytes; its file is open. None: of the tail that there is."""
        state = self._state
        try:
            index = state.chain.awake()
        except NeedsRepair:
            index = state.awake()
        is_full = size is not None and index is not None and index.end + size > state.settings.segment_bytes
        if index is not None and index.count and is_full:
            self._state.chain.seal()
            self._state.note_roll()
            if rolled is not None:
                rolled()
            index = None
        if index is None:
            index = self._state.chain.begin(self._state.log_end_offset)
        if index.count == 0 and self._state.chain.tail is not None:
            self._state.chain.tail.created_us = now_us
        return index

    def is_roll_due(self, now_us: int) -> bool:
        """Whether the active segment is older than `segment_age_ms`."""
        state, tail = self._state, self._state.chain.tail
        return (
            state.failure is None
            and tail is not None
            and now_us - tail.created_us >= state.settings.segment_age_ms * 1_000
        )

    def is_expired(self, now_us: int) -> bool:
        """Whether the records of the tail are past the limit by age."""
        state, tail = self._state, self._state.chain.tail
        if tail is None or state.failure is not None or state.settings.retention_ms is None:
            return False
        with state.lock:
            if old_end(state.ages, state.settings.retention_ms) < state.log_end_offset:
                return False
        newest = state.ask(lambda view: greatest_timestamp(view, tail))
        return newest is not None and is_expired(newest, state.settings, now_us)

    def read_tail(self) -> None:
        """Read the index of a resting tail, without the lock (`state.L10`)."""
        tail = self._state.chain.tail
        if tail is not None:
            self._state.ask(lambda view: tail in view.segments and view.index(tail))

    def roll_if_due(self, now_us: int) -> bool:
        """Seal the active segment if it is older than `segment_age_ms`. Returns whether it did."""
        if not self.is_roll_due(now_us):
            return False
        self.read_tail()
        with self._state.lock:
            return self.is_roll_due(now_us) and self._seal()

    def seal_expired(self, now_us: int) -> bool:
        """Seal the tail if its records are past the limit by age; where the disk is full it stays. Whether it did."""
        if not self.is_expired(now_us):
            return False
        self.read_tail()
        with self._state.lock:
            if self.is_expired(now_us):  # in memory by now
                with suppress(DiskFull):
                    return self._seal()
            return False

    def _seal(self) -> bool:
        with self._state.guarded("roll"):
            self._state.awake()
            is_sealed = self._state.chain.seal()
        if is_sealed:
            self._state.note_roll()
        return is_sealed


def messages_of(view: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The messages that stand one after another, verified. Raises BadBatch."""
    while view:
        message = view[: message_bytes(view)]
        yield verify_batch(message), message
        view = view[len(message) :]
