"""Reading committed records of one partition: the low level, which Spark's executors use.

    session = FetchSession("localhost:9293")
    for batch in PartitionFetch(session, "orders", 0, 100).until(5_000, decoded):
        ...                                            # pyarrow.RecordBatch, all columns of SCHEMA

One answer is one long HTTP body (schema, whole batches, end marker) which the broker hands out by
sendfile; it may begin before the asked offset and end behind it, so first and last batch are sliced
here. A connection that breaks, a broker that is gone and a moved leader cost a new request from the
next offset, nothing else.

Invariants
R1  Rows come in offset order, each offset of [start, end) at most once, whatever breaks in between.
R2  Nothing is yielded that was not verified (frames.py); damaged bytes are asked for once more, and then an error:
    never skipped, never served. The broker is told to check its disk then; what it finds damaged it reports as a
    lost range, which is a gap for every reader.
R3  All answers of one read come from one incarnation of the stream.
R4  A read never goes back to an older leader: each request names the newest leader epoch of its answers. A broker that
    does not know yet that it was deposed would tell an older end.
R5  A range that a disk has lost is told of (`fetch.gap`, `lost`), whatever else was left out around it.
R6  A read never goes on behind records that were given up after it had read them (an operator's unclean election), as
    if those that stand there now were the same: others were written below its position, and it would not see them.
    Each answer tells the leader epoch of the record before its first offset. Who was elected so writes under a higher
    epoch than any before, so a higher one than the reader has had there tells of it. (A lower one does not: brokers
    that copied a compacted log may know of an epoch only from where its first record is left.)

Importing this loads neither pandas nor anything of asyncio: executors fork, and start fast.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from broker.api.columns import columns_in
from broker.api.conditions import ALL, Conditions
from broker.api.errors import BadBatch, NotReady, OffsetOutOfRange, Retryable
from broker.api.gathered.reused_memory import ReusedMemory
from broker.api.schema import SCHEMA
from broker.client.http.interrupt import Interrupt
from broker.client.http.patience import DEADLINE_S, Patience
from broker.client.reading.frames import Message
from broker.client.reading.gathering import rows_between
from broker.client.reading.session import ANSWER_BYTES, BATCH_TIMEOUT_S, TIMEOUT_S, FetchAnswer, FetchSession

MAX_WAIT_MS: Final = 2_000

log = logging.getLogger(__name__)

Take = Callable[[Message, int, int], Sequence[pa.RecordBatch]]
"""Makes batches of the rows of a message that have offsets in [start, end)."""


class PartitionFetch:
    """A read of one partition that goes on where it got to. For one thread.

    Args:
        start: First offset wanted.
        incarnation: The stream's incarnation that is meant; None: the one that answers first.
        epoch: Leader epoch that the answering broker must have reached; later on, the newest that has answered (R4).
        max_bytes: Approximate size of one answer.
        timeout_s: Longest silence of the socket.
        batch_timeout_s: Longest time until one batch has come.
        deadline_s: The read gives up if failures follow each other for this time without a batch in between.
        interrupt: Ends the read from another thread, without an error.
        wanted: Only these records; offsets of others are gaps.
        columns: Those that are wanted: messages may have them and `offset` only. None: all.

    Attributes:
        position: First offset that was not handed out yet.
        high_watermark: As the last answer told, -1 before the first.
        has_gaps: Offsets were passed over, because compaction removed records, a disk lost them, or others are wanted.
        lost: Those that a disk lost, as ranges [start, end), in their order, as far as it has been read.
        epoch_before: The leader epoch of the record before `position`, as it was read; -1: not known.
    """

    def __init__(
        self,
        session: FetchSession,
        stream: str,
        partition: int,
        start: int,
        *,
        incarnation: str | None = None,
        epoch: int | None = None,
        max_bytes: int | None = ANSWER_BYTES,
        timeout_s: float = TIMEOUT_S,
        batch_timeout_s: float = BATCH_TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        interrupt: Interrupt | None = None,
        wanted: Conditions = ALL,
        columns: Iterable[str] | None = None,
    ) -> None:
        self.position = start
        self.high_watermark = -1
        self.has_gaps = False
        self.lost: list[tuple[int, int]] = []
        self.epoch_before = -1
        self._session = session
        self._stream = stream
        self._partition = partition
        self._incarnation = incarnation
        self._epoch = epoch
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._batch_timeout_s = batch_timeout_s
        self._interrupt = interrupt
        self._wanted = wanted
        chosen = None if columns is None else columns_in(columns)
        self._columns = None if chosen is None or len(chosen) == len(SCHEMA) else chosen
        self._wait_ms = min(MAX_WAIT_MS, int(deadline_s * 1000))
        self._patience = Patience(
            deadline_s, interrupt=interrupt, what=f"reading {stream}/{partition}", outages=session.brokers.outages
        )
        self._damaged_at: int | None = None

    @property
    def leader_epoch(self) -> int | None:
        """The newest that was asked for or has answered."""
        return self._epoch

    @property
    def is_interrupted(self) -> bool:
        return self._interrupt is not None and self._interrupt.is_set

    def answer(self, end: int | None, *, max_wait_ms: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one answer, each batch as n >= 1 rows of [position, end).

        An answer that breaks is not repeated but taken up by the next call; an answer that does not
        come at all is waited for. No rows and no progress: nothing is committed there yet.

        Raises:
            As `until`.
        """
        return self._answer(end, max_wait_ms, decoded, None)

    def until(self, end: int, take: Take, memory: ReusedMemory | None = None) -> Iterator[pa.RecordBatch]:
        """Yield what `take` makes of all messages up to `end`; offsets that are not committed yet are waited for.

        Args:
            memory: Messages are received into it and pass: `take` has to copy what it wants of them.
        Raises:
            Retryable: no batch came for `deadline_s`: the last failure.
            OffsetOutOfRange: retention deleted the position, or the log ends before it; or, with the field
                `parted_epoch`, what was read was given up (R6): it is the last epoch of what had been read.
            StaleIncarnation: the stream was deleted and re-created.
            BadBatch: damaged bytes came twice for the same offset.
        """
        while self.position < end and not self.is_interrupted:
            before = self.position
            yield from self._answer(end, self._wait_ms, take, memory)
            if self.position == before and not self.is_interrupted:
                self.nothing_yet()

    def _answer(
        self, end: int | None, max_wait_ms: int, take: Take, memory: ReusedMemory | None
    ) -> Iterator[pa.RecordBatch]:
        while not self.is_interrupted:
            before, is_near = self.position, False
            try:
                with self._open(end, max_wait_ms) as answer:
                    is_near = answer.is_near
                    self._incarnation = self._incarnation or answer.incarnation
                    self._note_epoch(answer.leader_epoch)
                    self._check_before(answer)
                    if answer.high_watermark >= 0:
                        self.high_watermark = answer.high_watermark
                    for message in answer.messages(memory):
                        header = message.header
                        if header.first_offset > self.position:
                            self._note_gap(header.first_offset, end, answer.lost)
                        behind = header.last_offset + 1
                        stop = behind if end is None else end
                        batches = take(message, self.position, stop)
                        self.position = max(self.position, min(behind, stop))
                        self.epoch_before = -1 if self._wanted else header.leader_epoch  # selected ones may be joined
                        self._patience.progress()
                        yield from batches
                    self._note_gap(answer.next_offset, end, answer.lost)
                    if self.position == answer.next_offset and answer.epoch_behind >= 0:
                        self.epoch_before = answer.epoch_behind
                    if is_near and end is not None and self.position == before:
                        self._avoid()
                    if end is None:  # nothing was promised, so an answer without rows is as good as any
                        self._patience.progress()
                    return
            except OffsetOutOfRange as error:
                if self.epoch_before >= 0 and error.fields.get("high_watermark", before) < before:
                    error.fields.setdefault("parted_epoch", self.epoch_before)  # R6: there is nothing yet behind it
                raise
            except Retryable as error:
                if self.is_interrupted or (end is not None and self.position >= end):
                    return  # at the end: only the connection is lost
                log.info("fetch.retry at=%s error=%s", self, error)
                if is_near:
                    self._avoid()
                self._patience.pause(error)
                max_wait_ms = 0  # that somebody answers again is told at once
            except BadBatch as error:
                if self._damaged_at == self.position:
                    raise
                if is_near:
                    self._avoid()
                self._damaged_at = self.position  # damaged on its way, perhaps: R2
                log.warning("fetch.damaged at=%s error=%s", self, error)
            if self.position > before:
                return

    def _avoid(self) -> None:
        """Go on at the leader (`nearest.V1`)."""
        if self._session.nearest is not None:
            self._session.nearest.avoid((self._stream, self._partition))

    def nothing_yet(self) -> None:
        """Wait after an answer without progress to offsets that were promised, within the deadline."""
        at, head = self.position, self.high_watermark
        self._patience.pause(NotReady(f"{at} is not committed yet, the high watermark is {head}"))

    def __str__(self) -> str:
        return f"{self._stream}/{self._partition}/{self.position}"

    def _open(self, end: int | None, max_wait_ms: int) -> FetchAnswer:
        return self._session.open(
            self._stream,
            self._partition,
            self.position,
            end=end,
            incarnation=self._incarnation,
            epoch=self._epoch,
            max_bytes=self._max_bytes,
            max_wait_ms=max_wait_ms,
            verify=self._damaged_at == self.position,  # R2
            timeout_s=self._timeout_s,
            batch_timeout_s=self._batch_timeout_s,
            interrupt=self._interrupt,
            wanted=self._wanted,
            columns=self._columns,
        )

    def _note_epoch(self, epoch: int) -> None:
        """R4, also where somebody in between dropped what was asked."""
        if self._epoch is not None and epoch < self._epoch:
            raise NotReady(f"{self}: a leader of epoch {epoch} answers, {self._epoch} has answered before")
        if epoch >= 0:
            self._epoch = epoch

    def _check_before(self, answer: FetchAnswer) -> None:
        """R6. Raises OffsetOutOfRange."""
        known, now = self.epoch_before, answer.epoch_before
        if known >= 0 and now > known:
            raise OffsetOutOfRange(
                f"{self}: records before this offset were given up after they had been read, and others written in"
                f" their place: the one before it was of leader epoch {known}, now it is of {now}",
                stream=self._stream,
                partition=self._partition,
                offset=self.position,
                log_start_offset=answer.log_start_offset,
                high_watermark=answer.high_watermark,
                parted_epoch=known,
            )
        self.epoch_before = max(known, now)

    def _note_gap(self, next_offset: int, end: int | None, lost: Sequence[tuple[int, int]]) -> None:
        """Go on at `next_offset`; say so if offsets are passed over that nobody has left out (R5)."""
        there = next_offset if end is None else min(next_offset, end)
        if there > self.position:
            within = [(max(a, self.position), min(b, there)) for a, b in lost if a < there and b > self.position]
            self.lost += within
            if within or not self._wanted:
                first, last = (within[0][0], within[-1][1]) if self._wanted else (self.position, there)
                at = f"{self._stream}/{self._partition}/{first}"
                log.warning("fetch.gap at=%s next_offset=%d lost=%s", at, last, _shown(within))
            self.position = there
            self.epoch_before = -1
            self.has_gaps = True


def _shown(ranges: Sequence[tuple[int, int]]) -> str:
    return ",".join(f"[{start},{end})" for start, end in ranges) or "-"


def decoded(message: Message, start: int, end: int) -> Sequence[pa.RecordBatch]:
    """The rows of a message in [start, end), zero-copy: one batch or none."""
    rows = rows_between(message.rows(), message.header, start, end)
    return [rows] if rows.num_rows else []
