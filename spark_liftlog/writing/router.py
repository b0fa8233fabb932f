"""Which rows of a task go to which partition of which stream, and what becomes of rows that cannot be written.

    batch ── column stream ──► rows of one stream ── bad rows ──► rows of one partition ──► outlet
             (or the option)                          └──► error, or the dead letter stream

    partition of a row: its column `partition`; else CRC-32 of its key, as the broker's `partition_by = key`; else the
    task's turn: rows without a key share one for each batch, so that each batch is one append

K3  Rows of one task and one partition keep their order.
K4  Without a dead letter stream the first bad row of a task is the error, whichever stream it names.
K5  Each row that came in goes out once: to its stream, or to the dead letter stream.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.api.errors import InvalidName, InvalidRecords, LiftlogError, UnknownPartition, UnknownStream
from broker.api.stream import check_name
from broker.client.writing.partitioner import partitions_of
from spark_liftlog.writing.digest import digest_of, together
from spark_liftlog.writing.letters import check_room, letters_of
from spark_liftlog.writing.rows import ARROW, Bad, Target, bad_rows, row_bytes
from spark_liftlog.writing.sink_options import SinkOptions


class Outlet(Protocol):
    """Takes rows of one partition."""

    def add(self, target: Target, partition: int, rows: pa.RecordBatch) -> None:
        """Take them, in order."""


class Router:
    """Splits the batches of one task.

    Args:
        columns: Where in a batch each record column is.
        find: A stream as it is now. Raises UnknownStream.
        task: Number of the Spark partition, for errors.
        again: Whether to look once more for a partition that is not there: it may have been added a moment ago.
    """

    def __init__(
        self,
        columns: Mapping[str, int],
        options: SinkOptions,
        find: Callable[[str], Target],
        outlet: Outlet,
        task: int,
        *,
        again: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._again = again
        self._columns = columns
        self._options = options
        self._find = find
        self._outlet = outlet
        self._task = task
        self._targets: dict[str, Target] = {}
        self._turn = random.randrange(1 << 16)
        self._letters = 0
        self._refused: list[tuple[int, LiftlogError]] = []
        self.row_count = 0
        self.bad_count = 0
        self.digest = 0

    @property
    def incarnations(self) -> dict[str, str]:
        """The incarnations of the streams that were written to."""
        return {name: target.incarnation for name, target in self._targets.items()}

    def check(self) -> None:
        """Look for the streams that options name, before any row does: of a typing error nobody must hear late.

        Raises:
            UnknownStream: there is no such stream. Its rows are no dead letters: that is for what a column names.
            InvalidSetting: the dead letter stream takes too small records.
        """
        options = self._options
        if options.stream is not None:
            self._named("stream", options.stream)
        if options.dead_letter_stream is not None:
            check_room(self._named("deadLetterStream", options.dead_letter_stream))

    def _named(self, option: str, stream: str) -> Target:
        while True:
            try:
                return self._target(stream)
            except UnknownStream as error:
                if not self._again(stream):  # it may have been made a moment ago
                    raise UnknownStream(f"option {option}: {error}", **error.fields) from error

    def add(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch on their way.

        Raises:
            LiftlogError: a row that cannot be written, and no dead letter stream; its text says which row.
        """
        if batch.num_rows == 0:
            return
        arrays = {name: batch.column(index).cast(ARROW[name]) for name, index in self._columns.items()}
        options = self._options
        if options.is_exactly_once:
            of_these = digest_of(arrays, rows=batch.num_rows, stream=options.stream, subject=options.subject)
            self.digest = together((self.digest, of_these))
        streams, partitions = arrays.pop("stream", None), arrays.pop("partition", None)
        if self._options.subject is not None:
            arrays["subject"] = pa.repeat(self._options.subject, batch.num_rows)
        rows = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        if streams is None:
            assert self._options.stream is not None, "a frame without a column stream needs the option"
            good = [self._good(self._options.stream, rows, partitions, np.arange(batch.num_rows))]
        else:
            good = []
            for stream, places in _by_value(streams):
                chosen = None if partitions is None else partitions.take(pa.array(places))
                good.append(self._good(stream, _taken(rows, places), chosen, places))
        if self._refused:
            row, error = min(self._refused, key=lambda one: one[0])
            raise type(error)(f"row {row} of task {self._task}: {error}", **{**error.fields, "row": row})
        for one in good:
            if one is not None:
                self._send(*one)
        self.row_count += batch.num_rows
        self._turn += 1

    def _good(
        self, stream: str | None, rows: pa.RecordBatch, partitions: Any, places: Any
    ) -> tuple[Target, pa.RecordBatch, Any] | None:
        """Pick the rows of one stream that can be written; `places` says where in the batch they are."""
        try:
            target = self._target(stream)
        except (UnknownStream, InvalidName, InvalidRecords) as error:
            self._refuse(stream, rows, [Bad(np.arange(rows.num_rows), error)], places)
            return None
        highest = None if partitions is None else pc.max(partitions).as_py()
        while highest is not None and highest >= target.partition_count and self._again(target.stream):
            now = self._find(target.stream)
            if now.incarnation != target.incarnation:
                break
            target = self._targets[target.stream] = now
        lengths = row_bytes(rows, target.subject)
        bad = list(bad_rows(rows, partitions, target, lengths))
        if bad:
            is_good = self._refuse(stream, rows, bad, places)
            good = np.flatnonzero(is_good)
            rows = rows.take(pa.array(good))
            partitions = None if partitions is None else partitions.take(pa.array(good))
        return (target, rows, partitions) if rows.num_rows else None

    def _send(self, target: Target, rows: pa.RecordBatch, partitions: Any) -> None:
        """Rows of one stream to their partitions."""
        by_key = self._options.partitioner == "key" and "key" in rows.schema.names
        if partitions is None and not by_key:
            self._outlet.add(target, self._turn % target.partition_count, rows)
            return
        keys = rows.column("key") if by_key else None
        numbers = partitions_for(keys, partitions, partition_count=target.partition_count, turn=self._turn)
        order = np.argsort(numbers, kind="stable")  # K3
        found, begins = np.unique(numbers[order], return_index=True)
        rows = rows if len(found) == 1 else rows.take(pa.array(order))
        for partition, begin, end in zip(found, begins, [*begins[1:], rows.num_rows], strict=True):
            self._outlet.add(target, int(partition), rows.slice(begin, end - begin))

    def _target(self, stream: str | None) -> Target:
        if stream is None:
            raise InvalidRecords("column stream is null: every row must name its stream", column="stream")
        found = self._targets.get(stream)
        if found is None:
            found = self._targets[stream] = self._find(check_name(stream))
        return found

    def _refuse(self, stream: str | None, rows: pa.RecordBatch, bad: Iterable[Bad], places: Any) -> Any:
        """Note bad rows, or write them as dead letters; returns which rows are good."""
        if self._options.dead_letter_stream is None:
            self._refused += [(self.row_count + int(places[one.rows[0]]), one.error) for one in bad]
        is_good = np.ones(rows.num_rows, np.bool_)
        for one in bad:
            fresh = one.rows[is_good[one.rows]]
            is_good[one.rows] = False
            if len(fresh) and self._options.dead_letter_stream is not None:
                self._write_letters(stream, rows.take(pa.array(fresh)), one.error, self.row_count + places[fresh])
        return is_good

    def _write_letters(self, stream: str | None, rows: pa.RecordBatch, error: LiftlogError, numbers: Any) -> None:
        name = self._options.dead_letter_stream
        target = self._target(name)
        places = [f"{self._task}/{number}" for number in numbers]
        letters = letters_of(rows, error, stream=stream, places=places, target=target)
        self._outlet.add(target, self._letters % target.partition_count, letters)
        self._letters += 1
        self.bad_count += letters.num_rows


def _by_value(column: Any) -> Iterable[tuple[str | None, Any]]:
    """Each distinct value of a column, and where it is."""
    encoded = column.dictionary_encode()
    indices = pc.fill_null(encoded.indices, -1).to_numpy()
    for code in np.unique(indices):
        value = None if code < 0 else encoded.dictionary[int(code)].as_py()
        yield value, np.flatnonzero(indices == code)


def _taken(rows: pa.RecordBatch, places: Any) -> pa.RecordBatch:
    return rows if len(places) == rows.num_rows else rows.take(pa.array(places))


def partitions_for(keys: Any, explicit: Any, *, partition_count: int, turn: int) -> npt.NDArray[np.int32]:
    """The partition of each row.

    Args:
        keys: Binary `pyarrow.Array`, or None where the frame has no such column.
        explicit: int32 `pyarrow.Array`, or None; wins over the key where it is not null. One of the two is given.
        partition_count: >= 1.
        turn: Where rows with neither go, modulo the partitions.
    Raises:
        UnknownPartition: an explicit partition that the stream does not have.
    """
    rows = len(keys if keys is not None else explicit)
    found = np.full(rows, turn % partition_count, np.int32)
    if keys is not None and partition_count > 1:
        hashed = partitions_of(pa.RecordBatch.from_arrays([keys], names=["key"]), partition_count, default_subject="")
        np.copyto(found, hashed, where=_is_valid(keys))
    if explicit is not None:
        chosen, is_chosen = explicit.fill_null(0).to_numpy(zero_copy_only=False), _is_valid(explicit)
        wrong = np.flatnonzero(is_chosen & ((chosen < 0) | (chosen >= partition_count)))
        if len(wrong):
            raise UnknownPartition(
                f"column partition: {int(chosen[wrong[0]])} is not a partition of the stream, which has 0 to"
                f" {partition_count - 1}",
                partitions=partition_count,
            )
        np.copyto(found, chosen, where=is_chosen)
    return found


def _is_valid(array: Any) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid
