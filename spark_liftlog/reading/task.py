"""The work of an executor: read the ranges of one input partition. HTTP only, nothing of the driver's.

    ranges of the plan -> messages (verified) -> gathered in the declared schema -> joined -> (thread) -> Spark

Sessions and memory are kept per process and set of addresses: workers serve task after task, batch after batch,
and a fork opens its own. The plan names each leader, so nobody is asked where to read.

T1  A closed range gives the same rows in the same order every time, or an error: a task may be retried. Two things
    change them: compaction removes rows for good, and failOnDataLoss=false leaves out what was lost.
T2  A read that broke is taken up again at the next offset (broker.client.reading.fetch), within DEADLINE_S.
T3  No gap of a range is passed on before its leader has said that no disk lost it, whatever the read survived.
T4  That the stream is another one, or gone, is believed as the driver does (asking_again.D1).
T5  In a micro-batch an open range ends where the first task that asked has pinned it (resolving.py). What retention
    took since is left out by the run that pinned it (`refresh.R2`); for a replay it is a loss.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from broker.api.answers import PartitionDescription, StreamDescription
from broker.api.conditions import ALL, SUBJECTS_LENGTH_MAX, Conditions
from broker.api.errors import (
    LiftlogError,
    NotReady,
    OffsetOutOfRange,
    StaleIncarnation,
    UnknownPartition,
    UnknownStream,
)
from broker.api.gathered.reused_memory import ReusedMemory
from broker.client.http.calls import Calls, path, understand
from broker.client.http.interrupt import Interrupt
from broker.client.http.patience import Patience
from broker.client.http.tls import TlsFiles
from broker.client.reading.fetch import PartitionFetch
from broker.client.reading.gathering import Gathering, Shape
from broker.client.reading.session import FetchSession
from spark_liftlog.errors import for_spark
from spark_liftlog.options import SourceOptions
from spark_liftlog.place import brokers_at, files_of
from spark_liftlog.reading.advance import Head, expired, lost, missing, recreated, truncated
from spark_liftlog.reading.asking_again import AskingAgain
from spark_liftlog.reading.cluster import TIMEOUT_S
from spark_liftlog.reading.pinning import batch_here
from spark_liftlog.reading.plan import Range
from spark_liftlog.reading.prefetch import read_ahead
from spark_liftlog.reading.refresh import Opening
from spark_liftlog.reading.resolving import resolved
from spark_liftlog.reading.table import TableTask
from spark_liftlog.schema import GATHERED_BYTES, Projection, joined

DEADLINE_S: Final = 120.0
"""How long a task waits for a broker that does not answer: a restart should not fail a query."""

log = logging.getLogger("spark_liftlog")

RACK: Final = "LIFTLOG_RACK"
"""In the environment of an executor: where it stands, for readFrom=nearest."""

_sessions: dict[tuple[str, TlsFiles, str | None], FetchSession] = {}
_memory: Final = ReusedMemory()
_lock = threading.Lock()


class TaskRanges(InputPartition):
    """The ranges that one task reads. Spark's own `InputPartition(None)` (an empty batch plan) has none.

    Args:
        opening: How the ranges may have grown since they were planned; None: they are what they are.
    """

    def __init__(self, ranges: Sequence[Range], opening: Opening | None = None) -> None:
        super().__init__(tuple(ranges))
        self.opening = opening


def session(brokers: str, *, rack: str | None = None) -> FetchSession:
    """This process's session with a cluster. `rack`: to read from a replica there."""
    with _lock:
        key = brokers, files_of(brokers), rack
        found = _sessions.get(key)
        if found is None:
            found = _sessions[key] = FetchSession(brokers=brokers_at(brokers), rack=rack)
        return found


def rack_here() -> str | None:
    """Where this executor stands; None: nobody has said so, and leaders are read."""
    rack = os.environ.get(RACK)
    if not rack:
        log.warning("source.no_rack variable=%s", RACK)
    return rack or None


def read_task(partition: InputPartition, projection: Projection, *, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, n >= 1 per batch, of exactly the projection's schema.

    Raises:
        LiftlogSparkError: a range cannot be read (any more).
    """

    interrupt = Interrupt()
    brokers, batch_rows, subjects = options.brokers, options.batch_rows, options.subjects
    rack = rack_here() if options.from_nearest else None
    is_short = len(",".join(subjects)) <= SUBJECTS_LENGTH_MAX  # else brokers send all, and the rest is left out here
    narrowing = options.narrowing
    selection = Conditions(
        subjects=subjects if is_short else (),
        key=options.key,
        since_us=narrowing.since_us,
        until_us=narrowing.until_us,
    )

    def table_rows() -> Iterator[pa.RecordBatch]:
        assert options.table is not None, "asked for"

        def read(wanted: Range, shape: Shape, epoch: int, epochs: list[int | None]) -> Iterator[pa.RecordBatch]:
            gathering = Gathering(shape, rows_max=batch_rows, bytes_enough=GATHERED_BYTES, memory=_memory)
            return records_of(
                wanted,
                gathering,
                brokers,
                None,
                options.fail_on_data_loss,
                interrupt,
                selection=Conditions(key=options.key),  # others would take away the newest row of a key
                may_begin_later=may_begin_later,
                epoch=epoch,
                epochs=epochs,
                columns=shape.stored_columns,
            )

        table = TableTask(
            options.table,
            read,
            lambda wanted: described(wanted, brokers, interrupt, what="asking for the compaction point"),
            may_move=opening is not None and opening.always and batch_here() is None,
            fail_on_data_loss=options.fail_on_data_loss,
            deadline_s=DEADLINE_S,
            interrupt=interrupt,
        )
        for wanted in ranges:
            shape = projection.shape(wanted.stream, wanted.partition, with_subject=bool(subjects))
            found = projection.without_empty_headers(table.rows(wanted, shape))
            yield from projection.of_subjects(found, subjects) if subjects else found

    def batches() -> Iterator[pa.RecordBatch]:
        for wanted in ranges:
            shape = projection.shape(wanted.stream, wanted.partition, with_subject=bool(subjects))
            gathering = Gathering(shape, rows_max=batch_rows, bytes_enough=GATHERED_BYTES, memory=_memory)
            found = records_of(
                wanted,
                gathering,
                brokers,
                rack,
                options.fail_on_data_loss,
                interrupt,
                selection=selection,
                may_begin_later=may_begin_later,
                columns=shape.stored_columns,
            )
            found = projection.without_empty_headers(found)
            yield from projection.of_subjects(found, subjects) if subjects else found

    try:
        opening: Opening | None = getattr(partition, "opening", None)
        found, may_begin_later = resolved(partition.value or (), opening, session(brokers).brokers, options)
        ranges = [left for left in narrowing.of_all(found) if left.record_count]
        rows = batches() if options.table is None else table_rows()
        yield from read_ahead(projection.finished(joined(rows, rows_max=batch_rows)), interrupt)
    except LiftlogError as error:
        raise for_spark(error)  # noqa: B904 -- for_spark decides about the cause


def records_of(
    wanted: Range,
    gathering: Gathering,
    brokers: str,
    rack: str | None,
    fail_on_data_loss: bool,
    interrupt: Interrupt,
    *,
    selection: Conditions = ALL,
    may_begin_later: bool = False,
    epoch: int | None = None,
    epochs: list[int | None] | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a range; what the log lost of it since it was planned is an error or, if chosen, left out.

    Args:
        selection: What brokers leave out of the answers.
        may_begin_later: What retention took of its beginning is left out, and is no loss (T5).
        epoch: Leaders of an earlier one answer nothing.
        epochs: Takes the newest leader epoch that has answered.
        columns: Those that are gathered; None: any.
    """
    reader = session(brokers, rack=rack)
    key = (wanted.stream, wanted.partition)
    if wanted.address:
        reader.brokers.note_leader(key, wanted.address)
    asking = AskingAgain(reader.brokers, interrupt)
    fetch = PartitionFetch(
        reader,
        wanted.stream,
        wanted.partition,
        wanted.start,
        incarnation=wanted.incarnation,
        epoch=epoch,
        deadline_s=DEADLINE_S,
        interrupt=interrupt,
        wanted=selection,
        columns=columns,
    )
    while True:
        try:
            yield from fetch.until(wanted.end, gathering.add, gathering.memory)
            if fetch.has_gaps:
                _check_lost(wanted, brokers, fail_on_data_loss, interrupt)
            break
        except OffsetOutOfRange as error:
            at, head = fetch.position, Head(int(error.log_start_offset), int(error.high_watermark), -1)
            is_expired = at < head.log_start_offset
            if is_expired and may_begin_later and at == wanted.start:
                fetch.position = min(head.log_start_offset, wanted.end)
                continue
            resume = wanted.start if at <= head.high_watermark else head.high_watermark  # given up, and written anew
            loss = expired(key, at, head) if is_expired else truncated(key, at, resume, head)
            if fail_on_data_loss:
                raise loss from error
            log.warning("source.data_loss error=%s", loss)
            fetch.position = head.log_start_offset if is_expired else wanted.end
        except (StaleIncarnation, UnknownStream, UnknownPartition) as error:
            if asking.again():
                continue
            if fail_on_data_loss:
                raise
            log.warning("source.data_loss error=%s", error)
            break
    if epochs is not None:
        epochs.append(fetch.leader_epoch)
    yield from gathering.rest()


def described(
    wanted: Range, brokers: str, interrupt: Interrupt, *, what: str
) -> tuple[StreamDescription, PartitionDescription]:
    """The stream and the partition of a range. Its leader alone knows, and is waited for while it is away.

    Raises:
        StaleIncarnation, UnknownStream, UnknownPartition: its log is another one by now, or gone: nobody knows.
        NotReady: nobody knew in time.
    """
    calls = Calls(session(brokers).brokers, timeout_s=TIMEOUT_S, deadline_s=DEADLINE_S)
    patience = Patience(DEADLINE_S, interrupt=interrupt, what=f"{what} of {wanted.stream!r}")
    key = (wanted.stream, wanted.partition)
    while True:
        found = understand(StreamDescription, calls.json("GET", path("streams", wanted.stream)), where=brokers)
        partition = next((each for each in found.partitions if each.partition == wanted.partition), None)
        if wanted.partition >= found.partition_count:
            raise missing(key)
        if found.incarnation != wanted.incarnation:
            begin = 0 if partition is None else partition.log_start_offset or 0
            raise recreated(wanted.stream, wanted.incarnation, found.incarnation, begin)
        if partition is not None and partition.high_watermark is not None:
            return found, partition
        patience.pause(NotReady(f"nobody can tell of partition {wanted.partition} now"))


def _check_lost(wanted: Range, brokers: str, fail_on_data_loss: bool, interrupt: Interrupt) -> None:
    """Tell what a disk lost from what compaction removed: both are gaps, and only the first is a loss.

    Raises:
        RecordsLost: unless failOnDataLoss is false.
        LiftlogError: as `described`.
    """
    _, partition = described(wanted, brokers, interrupt, what="asking what a disk lost")
    for start, end in partition.lost_ranges:
        if start < wanted.end and end > wanted.start:
            error = lost((wanted.stream, wanted.partition), start, end, partition)
            if fail_on_data_loss:
                raise error
            log.warning("source.data_loss error=%s", error)
