"""Records to a stream, batched: many `send` calls, few requests.

    send ──► open batch of the partition ──► closed batches, at most in_flight ──► one thread: POST ──► futures
             (linger_ms, batch_bytes, batch_records)   a full queue blocks send

Invariants
P1  Records of one partition are appended in the order of the calls that sent them.
P2  Every record's future is done: with its offset, or with an error. `flush` raises the first error
    since the last flush, so that nobody who only flushes misses one.
P3  At most `in_flight` closed batches and one open batch per partition are held in memory.

Each record is stored once: the broker knows the producer by an id, its requests to each partition are numbered, and
one whose answer was lost is sent again, for `deadline_s`. When no try was answered by then, nobody knows whether its
records are stored; the field `sent` of their error is true. A batch that failed does not hold up the next one.

With `idempotent=False` a request whose answer was lost is not sent again, and its futures get such an error at once;
with `at_least_once=True` as well it is sent again and may be stored twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from broker.api.answers import Appended, StreamDescription
from broker.api.errors import (
    InvalidRecords,
    InvalidRequest,
    LiftlogError,
    RecordTooLarge,
    UnknownPartition,
    WriterFenced,
)
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls
from broker.client.http.patience import DEADLINE_S
from broker.client.positions import whole
from broker.client.writing.append import TIMEOUT_S, AppendCalls
from broker.client.writing.deliveries import BatchFuture, Delivery, RecordFuture
from broker.client.writing.outgoing import (
    Headers,
    Outgoing,
    as_bytes,
    as_pairs,
    as_timestamp_us,
    concrete,
    default_subject,
    pieces,
    record_bytes,
)
from broker.client.writing.partitioner import partition_of, partitions_of
from broker.client.writing.records import Records, record_batches
from broker.client.writing.sequences import Sequences

BATCH_BYTES_MAX: Final = 32 << 20
POST_BYTES: Final = 16 << 20

log = logging.getLogger(__name__)


class Producer:
    """Sends records to one stream. Thread-safe; a context manager that flushes. Not for use after a fork.

    Args:
        brokers: The brokers of the cluster.
        stream: As described; its number of partitions and limits hold for the producer's life.
        partition: Send everything to this partition. None: `partitioner` decides.
        partitioner: `round_robin`: each batch to the next partition. `key`: CRC-32 of the key (without one: of the
            subject), modulo the partitions, as the broker's `partition_by = key`.
        linger_ms: A batch waits this long for more records, while nothing else is being sent.
        batch_bytes, batch_records: A batch is sent when it reaches either.
        in_flight: Number of closed batches that may wait or be under way before `send` blocks.
        acks: `all`, `leader` or `none`; None: the stream's setting.
        idempotent: The broker stores a repeated request once.
        name: Name of this producer, the same after a restart. A new producer fences the older one of the same name:
            records of that one get `ProducerFenced` from then on. None: it fences nobody.
        at_least_once: Without `idempotent`: send again if an answer was lost. Records may then be stored twice.
        fence: The number that `Client.fence` gave for the partition; `partition` names it if there are several. Once
            somebody has fenced it anew, all that is sent gets `WriterFenced`.
        timeout_s: Longest silence of a broker.
        deadline_s: A batch is tried for this time.
    Raises:
        UnknownPartition: `partition` does not exist.
        InvalidRequest: an option is out of its limits.
    """

    def __init__(
        self,
        brokers: Brokers,
        stream: StreamDescription,
        *,
        partition: int | None = None,
        partitioner: Literal["round_robin", "key"] = "round_robin",
        linger_ms: float = 5,
        batch_bytes: int = 1 << 20,
        batch_records: int = 1 << 16,
        in_flight: int = 8,
        acks: str | None = None,
        idempotent: bool = True,
        name: str | None = None,
        at_least_once: bool = False,
        fence: int | None = None,
        timeout_s: float = TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.stream = stream.name
        self._partition_count = stream.partition_count
        if partition is not None and whole(partition) is None:
            raise InvalidRequest(f"partition={partition!r}: must be a whole number")
        if partition is not None and not 0 <= partition < self._partition_count:
            raise UnknownPartition(
                f"stream {stream.name!r} has no partition {partition}, only {self._partition_count}",
                partitions=self._partition_count,
            )
        if partitioner not in ("round_robin", "key"):
            raise InvalidRequest(f"partitioner={partitioner!r}: must be round_robin or key")
        if name is not None and not idempotent:
            raise InvalidRequest(f"name={name!r}: only an idempotent producer has one", key="name", value=name)
        if fence is not None and whole(fence) is None:
            raise InvalidRequest(f"fence={fence!r}: must be a whole number")
        if fence is not None and partition is None and self._partition_count > 1:
            raise InvalidRequest(f"fence={fence}: is that of one partition; name it with `partition`")
        _check_limits("linger_ms", linger_ms, 0, 60_000)
        _check_limits("batch_bytes", batch_bytes, 1, BATCH_BYTES_MAX)
        _check_limits("batch_records", batch_records, 1, 1 << 20)
        _check_limits("in_flight", in_flight, 1, 1000)
        self._partition = 0 if self._partition_count == 1 else partition
        self._by_key = partitioner == "key"
        self._linger_s = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._in_flight = in_flight
        self._acks = acks
        self._at_least_once = at_least_once
        self._fence = fence
        self._is_fenced = False
        self._incarnation = stream.incarnation
        self._record_bytes_max = int(stream.settings.get("record_bytes_max", BATCH_BYTES_MAX))
        self._default_subject = default_subject(stream)
        calls = Calls(brokers, timeout_s=timeout_s, deadline_s=deadline_s)
        self._sequences = Sequences(calls, name) if idempotent else None
        self._appender = AppendCalls(brokers, timeout_s=timeout_s, deadline_s=deadline_s)
        self._changed = threading.Condition(threading.Lock())
        self._open: dict[int, Outgoing] = {}  # oldest first
        self._closed: deque[Outgoing] = deque()
        self._posting: Outgoing | None = None
        self._is_flushing = 0
        self._is_closing = False
        self._turn = 0
        self._first_error: BaseException | None = None
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=f"liftlog-producer-{self.stream}", daemon=True)
        self._thread.start()

    def send(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        subject: str | None = None,
        timestamp: datetime | int | None = None,
    ) -> RecordFuture:
        """Hand over one record; blocks while `in_flight` batches wait.

        Args:
            value: Text is UTF-8. None is a tombstone and needs a key.
            headers: In order, names may repeat.
            subject: Concrete; None: the stream's subject, or its name if that has wildcards.
            timestamp: With time zone, or microseconds since 1970 UTC; None: when the broker receives it.
        Returns:
            A future of (partition, offset).
        Raises:
            RecordTooLarge: over the stream's `record_bytes_max`.
            InvalidSubject, InvalidRecords: the record cannot be one.
            InvalidRequest: the producer is closed.
        """
        self._check_process()
        value, key = as_bytes(value), as_bytes(key)
        if value is None and key is None:
            raise InvalidRecords("a record without a value is a tombstone and needs a key")
        pairs = None if headers is None else as_pairs(headers)
        if subject is not None:
            concrete(subject)
        time_us = None if timestamp is None else as_timestamp_us(timestamp)
        size = record_bytes(value, key, subject or self._default_subject, pairs)
        if size > self._record_bytes_max:
            raise RecordTooLarge(
                f"a record of {size} bytes: stream {self.stream!r} takes at most {self._record_bytes_max}",
                size=size,
                limit=self._record_bytes_max,
            )
        with self._changed:
            self._wait_for_room()
            if self._partition is not None:
                partition = self._partition
            elif self._by_key:
                decides = key if key is not None else (subject or self._default_subject).encode()
                partition = partition_of(decides, self._partition_count)
            else:
                partition = self._turn
            batch = self._open.get(partition)
            if batch is None:
                batch = self._open[partition] = Outgoing(partition, time.monotonic())
                self._changed.notify_all()
            future = RecordFuture(batch.delivery, len(batch.values))
            batch.add(value, key, subject, time_us, pairs, size)
            if batch.byte_count >= self._batch_bytes or len(batch.values) >= self._batch_records:
                self._close_batch(partition)
        return future

    def send_batch(self, records: Records) -> BatchFuture:
        """Hand over rows with any of the columns key, value, headers, subject, timestamp, reply, or dicts (records.py).

        Sent in requests of about 16 MiB or less, each stored whole or not at all; with `partitioner="key"` also one per
        partition. Blocks as `send`.

        Raises:
            InvalidRecords: this cannot be records; nothing was sent.
            InvalidRequest: the producer is closed; with the field `sent`: parts of the records are on their way.
        """
        self._check_process()
        deliveries: list[Delivery] = []
        for batch in list(record_batches(records)):
            for piece in pieces(batch, POST_BYTES):
                for partition, rows in self._routed(piece):
                    with self._changed:
                        self._wait_for_room(sent=bool(deliveries))
                        target = self._turn if partition is None else partition
                        if target in self._open:
                            self._close_batch(target)  # P1
                        closed = Outgoing(target, time.monotonic(), rows=rows)
                        deliveries.append(closed.delivery)
                        self._closed.append(closed)
                        self._next_turn(target)
                        self._changed.notify_all()
        return BatchFuture(deliveries)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that was sent before is done.

        Raises:
            TimeoutError: it is not, after `timeout_s`.
            LiftlogError: the first error that a record met since the last flush.
            InvalidRequest: the producer is closed.
        """
        self._check_process()
        if self._is_closing:
            raise InvalidRequest("the producer is closed")
        self._flush(timeout_s)

    def _flush(self, timeout_s: float | None) -> None:
        with self._changed:
            batches = [*self._closed, *self._open.values(), *([self._posting] if self._posting else [])]
            self._is_flushing += 1
            self._changed.notify_all()
            try:
                done = self._changed.wait_for(lambda: all(b.delivery.is_done for b in batches), timeout_s)
            finally:
                self._is_flushing -= 1
            error, self._first_error = self._first_error, None
        if error is not None:
            raise error
        if not done:
            raise TimeoutError(f"records are not acknowledged after {timeout_s:g} s")

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and end. Idempotent. Raises as `flush`."""
        if os.getpid() != self._pid:
            return
        try:
            if self._thread.is_alive():
                self._flush(timeout_s)
        finally:
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            if timeout_s is None:
                self._thread.join()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.close()
        except LiftlogError as late:
            if error is None:
                raise
            log.warning("producer.failed_at_close stream=%s error=%s", self.stream, late)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidRequest("a producer cannot be used after a fork: create one in each process")

    def _wait_for_room(self, *, sent: bool = False) -> None:
        while not self._is_closing and len(self._closed) + (self._posting is not None) >= self._in_flight:
            self._changed.wait()
        if self._is_closing:
            raise InvalidRequest("the producer is closed", sent=sent)

    def _routed(self, rows: pa.RecordBatch) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        """Rows by partition; None: whose turn it is."""
        if self._partition is not None or not self._by_key:
            yield self._partition, rows
            return
        partitions = partitions_of(rows, self._partition_count, default_subject=self._default_subject)
        for partition in np.unique(partitions):
            yield int(partition), rows.take(pa.array(np.flatnonzero(partitions == partition)))

    def _close_batch(self, partition: int) -> None:
        self._closed.append(self._open.pop(partition))
        self._next_turn(partition)
        self._changed.notify_all()

    def _next_turn(self, partition: int) -> None:
        if partition == self._turn:
            self._turn = (self._turn + 1) % self._partition_count

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                appended = self._append(batch)
            except Exception as error:  # the top of this thread: whatever it is, the futures get it
                log.warning(
                    "producer.failed stream=%s partition=%d records=%d error=%s",
                    self.stream,
                    batch.partition,
                    batch.record_count,
                    error,
                )
                self._first_error = self._first_error or error
                batch.delivery.fail(error)
            else:
                batch.delivery.succeed(appended)
            with self._changed:
                self._posting = None
                self._changed.notify_all()

    def _append(self, batch: Outgoing) -> Appended:
        if self._is_fenced:
            raise WriterFenced(f"{self.stream}/{batch.partition}: fence {self._fence} is not the one that it has")
        sequences = self._sequences
        stamp = sequences.stamp(batch.partition) if sequences is not None else None
        try:
            appended = self._appender.append(
                self.stream,
                batch.partition,
                batch.as_rows(),
                acks=self._acks,
                incarnation=self._incarnation,
                at_least_once=self._at_least_once,
                stamp=stamp,
                fence=self._fence,
            )
        except BaseException as error:
            self._is_fenced = isinstance(error, WriterFenced)
            if sequences is not None:
                sequences.failed(error)
            raise
        if sequences is not None:
            sequences.stored(batch.partition)
        return appended

    def _next(self) -> Outgoing | None:
        """Wait for a batch to send; None when closed and empty."""
        with self._changed:
            while not self._closed:
                oldest = next(iter(self._open.values()), None)
                if oldest is None:
                    if self._is_closing:
                        return None
                    self._changed.wait()
                    continue
                left_s = oldest.began_s + self._linger_s - time.monotonic()
                if left_s <= 0 or self._is_flushing or self._is_closing:
                    self._close_batch(oldest.partition)
                else:
                    self._changed.wait(left_s)
            self._posting = self._closed.popleft()
            return self._posting


def _check_limits(name: str, value: float, least: float, greatest: float) -> None:
    if isinstance(value, str) or not least <= value <= greatest:
        raise InvalidRequest(f"{name}={value}: must be from {least} to {greatest}", key=name, value=value)
