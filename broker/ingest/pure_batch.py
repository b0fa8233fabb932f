"""Builder and PendingBatch without a compiler: rows in lists, encoded by `broker.api.batch`.

Written to be read: this is what the compiled twin (_batch.pxi) must equal, row for row and byte for byte.

P1  A Builder's rows change only when a message is complete.
P2  A PendingBatch changes once at most, when it is settled; after that any thread may compose it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from broker.api.batch import BatchHeader, encode_batch
from broker.api.schema import SCHEMA
from broker.ingest import envelope as envelopes
from broker.ingest.answers import ack_head, ack_tail, error_body, publish
from broker.ingest.envelope import Envelope, encode_ack
from broker.ingest.rules import (
    ACK_VALUES,
    AWAITS_ALL,
    AWAITS_LEADER,
    AWAITS_NONE,
    BATCH_BYTES_HARD,
    HEADER_WEIGHT_BYTES,
    RECORD_WEIGHT_BYTES,
)
from broker.ingest.settings import check_builder, check_place
from broker.ingest.settling import (
    DUPLICATE,
    FULL,
    UNSURE,
    WRONG,
    Dropped,
    Ids,
    LogFacts,
    Subjects,
    is_told,
    settle,
    verdict_ack_error,
    verdict_body,
    waited_us,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One record.

    Attributes:
        headers: None without a header block.
        awaits: `rules.AWAITS_ALL` or `AWAITS_LEADER`: its publisher gets an ack, and when.
        may_be_told: Its publisher gets an error, if it comes to that.
        inbox: Where, if not at the reply subject: the envelope that it came in, which names the inbox.
        msg_id, expected_id: As its headers say; empty: none.
        expected_sequence: The sequence of the record before it; -1: any.
        expected_subject_sequence: The sequence of the last record on its subject; -1: any.
        fence: That its publisher holds; -1: it names none.
        wire_bytes: Subject, reply, header block and payload as they came.
    """

    timestamp_us: int
    subject: bytes
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes]] | None
    reply: bytes | None
    awaits: int
    may_be_told: bool
    wire_bytes: int
    msg_id: bytes
    expected_id: bytes
    expected_sequence: int
    expected_subject_sequence: int
    fence: int = -1
    inbox: Envelope | None = None

    @property
    def awaited(self) -> bool:
        """Whether its publisher gets an ack."""
        return self.awaits != AWAITS_NONE

    @property
    def is_conditional(self) -> bool:
        """Whether it depends on the log if it is stored."""
        expects = self.expected_sequence >= 0 or self.expected_subject_sequence >= 0 or self.fence >= 0
        return expects or bool(self.msg_id or self.expected_id)

    @property
    def byte_count(self) -> int:
        """Bytes of data in its columns, and of what its ack needs."""
        headers = sum(len(name) + len(value) for name, value in self.headers or ())
        texts = (self.subject, self.key or b"", self.value or b"", self.reply or b"")
        return sum(map(len, texts)) + headers + self.ack_bytes

    @property
    def ack_bytes(self) -> int:
        """Bytes that are in no record: ack inbox and correlation id."""
        if self.inbox is None or not self.may_be_told:
            return 0
        return len(self.inbox.ack_inbox) + len(self.inbox.correlation_id)

    @property
    def weight(self) -> int:
        """Its weight against the hard limit."""
        return weight_of(self.wire_bytes, len(self.headers or ()))


def weight_of(wire_bytes: int, header_count: int) -> int:
    """The weight of a record against `batch_bytes_hard`."""
    return wire_bytes + RECORD_WEIGHT_BYTES + HEADER_WEIGHT_BYTES * header_count


class Builder:
    """The growing batch of one partition. Touched only by the thread that feeds its Intake.

    Args:
        stream: Its name; goes into acks.
        partition, partition_count: This one, and how many the stream has.
        subject: What the partition listens on; goes into acks of envelopes.
        reply_acks: Answer reply subjects.
        default_ack: `all`, `leader` or `none`: what a message awaits that does not say.
        record_bytes_max: A larger record is refused (`rules.R2`).
        batch_bytes, batch_records: At either the batch is full. Feeding goes on beyond.
        batch_bytes_hard: Over this, records are refused until `take`.
        expects_offsets: The `offset` of an envelope counts (`rules.R11`).

    Attributes:
        tag: The driver's own, who finds by it where the records go; nothing here looks at it.
    """

    def __init__(
        self,
        *,
        stream: str,
        partition: int,
        partition_count: int,
        reply_acks: bool,
        default_ack: str,
        record_bytes_max: int,
        batch_bytes: int,
        batch_records: int,
        batch_bytes_hard: int = BATCH_BYTES_HARD,
        subject: str = "",
        expects_offsets: bool = False,
    ) -> None:
        check_builder(partition, partition_count, default_ack, batch_bytes_hard)
        self.stream = stream
        self.subject = subject
        self.partition = partition
        self.partition_count = partition_count
        self._reply_acks = reply_acks
        self._awaits_by_default = ACK_VALUES[default_ack.encode()]
        self._record_bytes_max = record_bytes_max
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._batch_bytes_hard = batch_bytes_hard
        self._expects_offsets = expects_offsets
        self._clear()
        self.tag: Any = None
        # For the Intake that it is routed from:
        self._owner: object | None = None
        self._on_first_record: Callable[[Builder], None] | None = None
        self._touched = 0

    def __repr__(self) -> str:
        return f"<Builder {self.stream}/{self.partition} record_count={self.record_count}>"

    @property
    def record_count(self) -> int:
        return len(self._rows)

    @property
    def byte_count(self) -> int:
        """Bytes of subject, key, value, headers and reply, and of the ack inbox and correlation id of an envelope."""
        return self._byte_count

    @property
    def awaited_count(self) -> int:
        """Records whose publisher awaits an ack."""
        return self._awaited_count

    def alter(
        self,
        *,
        partition_count: int,
        reply_acks: bool,
        default_ack: str,
        record_bytes_max: int,
        batch_bytes: int,
        batch_records: int,
    ) -> None:
        """New settings for the messages whose fate is still to be decided. Routes know another count once made anew."""
        check_builder(self.partition, partition_count, default_ack, self._batch_bytes_hard)
        self.partition_count = partition_count
        self._reply_acks = reply_acks
        self._awaits_by_default = ACK_VALUES[default_ack.encode()]
        self._record_bytes_max = record_bytes_max
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records

    def take(self) -> PendingBatch:
        """Hand out the records that are there, and start empty."""
        batch = PendingBatch(
            self.stream, self.partition, self.subject, self._rows, self._byte_count, self._awaited_count
        )
        self._clear()
        return batch

    def _clear(self) -> None:
        self._rows: list[Row] = []
        self._byte_count = 0
        self._awaited_count = 0
        self._weight = 0

    def _add(self, row: Row) -> None:
        if not self._rows and self._on_first_record is not None:
            self._on_first_record(self)
        self._rows.append(row)
        self._byte_count += row.byte_count
        self._awaited_count += row.awaited
        self._weight += row.weight

    def _is_full(self) -> bool:
        return bool(self._rows) and (self._byte_count >= self._batch_bytes or len(self._rows) >= self._batch_records)


class PendingBatch:
    """Records that left their Builder, usable in any thread. Implements storage's Encodable and Conditional.

    Attributes:
        stream, partition: Where they belong.
        record_count, byte_count: Records, and bytes of their data.
        ack_bytes: Of these, bytes that are in no record: ack inboxes and correlation ids of envelopes.
        awaited_count: Answers that `acks` will give.
        leader_count: So many of them go to publishers who are content with what is durable on the leader.
        max_timestamp_us: Latest timestamp among them.
        condition_count, id_count, minds_ids, minds_subjects, last_id: See `Conditional`.
        settled: The reasons for which `settle` dropped records: duplicates, wrong expectations, no room for the id,
            last record of the subject not known.
    """

    def __init__(
        self, stream: str, partition: int, subject: str, rows: list[Row], byte_count: int, awaited_count: int
    ) -> None:
        self.stream = stream
        self.partition = partition
        self._subject = subject
        self.record_count = len(rows)
        self.byte_count = byte_count
        self.awaited_count = awaited_count
        self.max_timestamp_us = max((row.timestamp_us for row in rows), default=0)
        self.settled = (0, 0, 0, 0)
        self._rows = rows
        self._puts: list[tuple[bytes, int]] = []
        self._missed_end = 0
        self._dropped: list[tuple[Row, Dropped]] = []

    def __repr__(self) -> str:
        return f"<PendingBatch {self.stream}/{self.partition} record_count={self.record_count}>"

    @property
    def ack_bytes(self) -> int:
        return sum(row.ack_bytes for row in self._rows)

    @property
    def leader_count(self) -> int:
        return sum(row.awaits == AWAITS_LEADER for row in self._rows)

    @property
    def condition_count(self) -> int:
        return sum(row.is_conditional for row in self._rows)

    @property
    def id_count(self) -> int:
        return sum(bool(row.msg_id) for row in self._rows)

    @property
    def minds_ids(self) -> bool:
        return any(row.msg_id or row.expected_id for row in self._rows)

    @property
    def last_id(self) -> bytes:
        return self._rows[-1].msg_id if self._rows else b""

    @property
    def minds_subjects(self) -> bool:
        return any(row.expected_subject_sequence >= 0 for row in self._rows)

    def make_room(self, ids: Ids, *, now_us: int, wall_us: int, window_us: int, ids_max: int) -> None:
        """Make room for the ids of this batch: see `Conditional`."""
        waited = waited_us(wall_us, min(row.timestamp_us for row in self._rows))
        ids.expire(now_us - waited - window_us)
        ids.reserve(min(self.id_count, max(0, ids_max - len(ids))))

    def settle(
        self,
        ids: Ids | None,
        subjects: Subjects | None,
        *,
        next_offset: int,
        now_us: int,
        wall_us: int,
        window_us: int,
        ids_max: int,
        subjects_max: int,
        fence: int = 0,
    ) -> None:
        """Drop the records that are not to be stored: see `Conditional`."""
        self._missed_end = subjects.missed_end if subjects is not None else 0
        log = LogFacts(ids, subjects, next_offset, now_us, wall_us, window_us, ids_max, subjects_max, fence)
        kept, self._dropped = settle(self._rows, log, self._puts)
        if not self._dropped:
            return
        counts = Counter(verdict.kind for _, verdict in self._dropped)
        self.settled = (counts[DUPLICATE], counts[WRONG], counts[FULL], counts[UNSURE])
        told = sum(is_told(row, verdict) for row, verdict in self._dropped)
        self.awaited_count = sum(row.awaited for row in kept) + told
        self.record_count = len(kept)
        self.byte_count = sum(row.byte_count for row in kept)
        self.max_timestamp_us = max((row.timestamp_us for row in kept), default=0)
        self._rows = kept

    def take_back(self, subjects: Subjects) -> None:
        """Undo what `settle` did to `subjects`: see `Conditional`."""
        for subject, before in reversed(self._puts):
            subjects.put_back(subject, before)
        subjects.end_take_back(self._missed_end)

    def note_subjects(self, subjects: Subjects, first_offset: int) -> None:
        """Note the subjects of a batch that was appended: see `Conditional`."""
        for sequence, row in enumerate(self._rows, first_offset + 1):
            subjects.put(row.subject, sequence)

    def compose(
        self,
        *,
        first_offset: int,
        leader_epoch: int,
        high_watermark: int,
        group_index: int = 0,
        group_count: int = 1,
        decision: int = 0,
    ) -> bytes:
        """The batch as one sealed message.

        Args:
            first_offset: The offset of the first record; the others follow without a gap. Below 2**62.
            decision: Below 2**128.
        Raises:
            ValueError: no records, or a number out of its range.
        """
        if not self._rows:
            raise ValueError("a batch holds at least one record")
        check_place(first_offset, leader_epoch, high_watermark, group_index, group_count, decision)
        header = BatchHeader(
            first_offset=first_offset,
            last_offset=first_offset + self.record_count - 1,
            leader_epoch=leader_epoch,
            high_watermark=high_watermark,
            max_timestamp_us=self.max_timestamp_us,
            group_index=group_index,
            group_count=group_count,
            decision=decision,
        )
        return bytes(encode_batch(_to_arrow(self._rows, first_offset), header))

    def acks(self, first_offset: int, leader: bool | None = None, *, duplicate: bool = False, now_us: int = 0) -> bytes:
        """Acks of the awaited records, as one blob of PUBs for the connection: at reply subjects, then at inboxes of
        envelopes; then the answers to the dropped ones.

        Args:
            first_offset: The batch's, as it was appended.
            leader: Only to those who are content with the leader, or only to all others; None: to everybody.
            duplicate: Say that the records were there already.
            now_us: The time, which acks of envelopes give.
        """
        head, tail = ack_head(self.stream), ack_tail(self.partition, duplicate=duplicate)
        acks = [
            publish(row.reply or b"", b"%b%d%b" % (head, offset + 1, tail))
            for offset, row in self._awaited(first_offset, leader)
            if row.inbox is None
        ]
        acks += [
            self._publish_ack(row, now_us, offset=offset)
            for offset, row in self._awaited(first_offset, leader)
            if row.inbox is not None
        ]
        acks += [
            publish(row.reply or b"", verdict_body(self.stream, self.partition, verdict))
            if row.inbox is None
            else self._publish_verdict(row, verdict, now_us)
            for row, verdict in self._told(leader)
        ]
        return b"".join(acks)

    def errors(
        self,
        code: int,
        err_code: int,
        description: str,
        leader: bool | None = None,
        *,
        ack_error: int = envelopes.UNKNOWN,
    ) -> bytes:
        """The same blob with an error for each awaited record: nothing was stored.

        Args:
            code, err_code, description: JetStream's.
            ack_error: That of acks of envelopes; UNKNOWN: they get none.
        """
        body = error_body(self.stream, code, err_code, description)
        awaited = [row for _, row in self._awaited(0, leader)]
        rows = [row for row in awaited if row.inbox is None] + [row for row in awaited if row.inbox is not None]
        rows += [row for row, _ in self._told(leader)]
        return b"".join(
            publish(row.reply or b"", body) if row.inbox is None else self._publish_ack(row, 0, error=ack_error)
            for row in rows
            if row.inbox is None or ack_error != envelopes.UNKNOWN
        )

    def _publish_verdict(self, row: Row, verdict: Dropped, now_us: int) -> bytes:
        if verdict.kind == DUPLICATE:
            return self._publish_ack(row, now_us, offset=verdict.offset)
        return self._publish_ack(row, 0, error=verdict_ack_error(verdict))

    def _publish_ack(self, row: Row, now_us: int, *, offset: int = 0, error: int = envelopes.OK) -> bytes:
        assert row.inbox is not None
        return publish_ack(self.stream, self._subject, row.subject, row.inbox, row.timestamp_us, now_us, offset, error)

    def _awaited(self, first_offset: int, leader: bool | None) -> list[tuple[int, Row]]:
        """Those who are content with the leader come behind the others."""
        kinds = [AWAITS_ALL] * (leader is not True) + [AWAITS_LEADER] * (leader is not False)
        return [(at, row) for kind in kinds for at, row in enumerate(self._rows, first_offset) if row.awaits == kind]

    def _told(self, leader: bool | None) -> list[tuple[Row, Dropped]]:
        return [told for told in self._dropped if is_told(*told)] if leader is not True else []


def publish_ack(
    stream: str,
    partition_subject: str,
    subject: bytes,
    asked: Envelope,
    received_us: int,
    committed_us: int,
    offset: int,
    error: int,
) -> bytes:
    """The ack of an envelope, as the server takes it."""
    body = encode_ack(
        stream=stream.encode(),
        partition_subject=partition_subject.encode(),
        subject=subject,
        inbox=asked.ack_inbox,
        correlation_id=asked.correlation_id,
        policy=asked.ack_policy,
        offset=offset,
        received_us=received_us,
        committed_us=committed_us,
        error=error,
    )
    return publish(asked.ack_inbox, body)


def _to_arrow(rows: list[Row], first_offset: int) -> pa.RecordBatch:
    """The rows as columns of `SCHEMA`. Everything that must be UTF-8 was checked before it became a row."""
    headers = [
        None if row.headers is None else [{"key": name.decode(), "value": value} for name, value in row.headers]
        for row in rows
    ]
    columns: list[list[object]] = [
        list(range(first_offset, first_offset + len(rows))),
        [row.timestamp_us for row in rows],
        [row.subject.decode() for row in rows],
        [row.key for row in rows],
        [row.value for row in rows],
        list(headers),
        [None if row.reply is None else row.reply.decode() for row in rows],
    ]
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
