"""A read plan without the records that a reader does not want.

    stored     [ batch ][ batch ][ batch ][ batch ]
    wanted       all      none      some     all
    plan       [ batch ]         [ some  ][ batch ]     the one between is made anew, the others are the log's

V1  A batch of which all rows are wanted stays where it is, and goes by sendfile. Of others the wanted rows are encoded
    anew, as compaction and coalescing would leave them: under the stored header, or several as one batch.
V2  Each batch is verified before it is judged.
V3  The plan goes on behind all that was judged (`next_offset`), so a reader that finds nothing comes further.
V4  Batches that are known to hold nothing that is wanted are not in the plan before (`blooms.py`).
V5  One plan judges `JUDGED_BYTES_MAX` of stored bytes at most, or one batch, and holds about as much. If only some
    columns are wanted, it reads those and the ones of the conditions, of batches whose columns are known
    (`column_crcs.py`), and only what it reads counts.
V6  What cannot be read ends the plan before it. So a reader comes to stand where the damage is, however far it was
    taken at once, and says so there (`verify`); only there the answer is the error.
V7  If only some columns are wanted, the others are blank in what is made anew. So they are never sent
    (`project.selected_from`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from broker.api.batch import BatchHeader, encode_batch, is_plain, message_bytes
from broker.api.checked import verified, verified_projected
from broker.api.columns import Columns, columns_in, head_bytes, schema_of
from broker.api.compression import PACKED_HEADER_BYTES, decoded_bytes
from broker.api.conditions import Conditions
from broker.api.errors import BadBatch, StorageFailed
from broker.api.schema import SCHEMA
from broker.storage.blooms import BLOOMS, Hashes, Kind, entries_of, questions_of
from broker.storage.column_crcs import CRCS_OF_COLUMNS, Known
from broker.storage.made import COPIES, Block, MadeFile, joined
from broker.storage.project import BatchAt, chosen_columns
from broker.storage.read import FileRange, ReadPlan
from broker.storage.rewrite.rewriting import BatchRun, BatchShape, is_joinable
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.log import PartitionLog

JUDGED_BYTES_MAX: Final = 8 << 20
"""So many stored bytes are read for one answer: bounds its memory and the time until it begins."""
PLANNED_BYTES: Final = 128 << 20
"""So many are in the plan at first where only some columns of them are read."""
FEW_ROWS: Final = 4096
"""To make blank values for so many costs more than to filter them out: they are kept."""
SHAPE: Final = BatchShape(batch_bytes=256 << 10)
"""The most that becomes one batch."""


def after_older(log: PartitionLog, offset: int, end: int | None, wanted: Conditions) -> int:
    """Where a read may begin: `offset`, or behind records that are all too old, by the index.

    What is lost here is not passed over: another replica may have it, and it may be wanted.
    """
    stop = log.high_watermark
    if wanted.since_us is None or not log.log_start_offset <= offset < stop:
        return offset
    found = log.offset_for_time(wanted.since_us)
    stop = min(each for each in (stop, found, end) if each is not None)
    is_lost = any(first < stop and offset < last for first, last in (*log.lost_ranges, *log.tampered))
    return offset if is_lost else max(offset, stop)


def select(
    plan: ReadPlan,
    wanted: Conditions,
    reserve: Callable[[int], None],
    *,
    asked: int,
    columns: Columns | None = None,
) -> None:
    """Leave in the plan what is wanted.

    Args:
        reserve: Takes so many bytes of memory in all.
        columns: Those that will be sent (V7). None: all.
        asked: The offset that the reader asked for. The plan may begin behind it.
    Raises:
        BadBatch: stored bytes are damaged, at the offset that was asked for (V6).
        StorageFailed: they cannot be read, there; or there is no room for what is made anew.
        Overloaded: as `reserve`.
    """
    made, batches = _Made(plan), _Batches(wanted, columns)
    kinds = () if plan.is_opened else questions_of(wanted)  # `blooms.F5`
    ranges: list[FileRange] = []
    first: int | None = None
    for part, (segment, _), begin in zip(plan.ranges, plan.sources, plan.begins, strict=True):
        looked_at = _LookedAt(segment, kinds)
        at, stop = part.position, part.position + part.length
        while at < stop:
            if batches.byte_count >= JUDGED_BYTES_MAX:
                plan.next_offset = begin
                break
            try:
                header, rows, length = batches.batch(part, at, stop, lambda size: reserve(made.held + size))
            except (BadBatch, StorageFailed):
                if begin <= asked:
                    raise
                plan.next_offset = begin
                break
            looked_at.add(header, rows)
            mask = wanted.mask(rows)
            count = mask.true_count
            if count and first is None:
                first = header.first_offset
            if count == rows.num_rows:
                ranges += made.take()
                ranges.append(FileRange(part.fd, at, length, part.path))
            elif count:
                ranges += made.add(header, with_blanks(rows.filter(mask), columns))
            at += length
            begin = header.last_offset + 1
        looked_at.learn()
        ranges += made.take()  # what is not in the plan may be lost: no batch is to span it
        if at < stop:
            break
    plan.first_offset = plan.next_offset if first is None else first
    plan.ranges[:] = joined(ranges)
    plan.bytes = sum(part.length for part in ranges)
    plan.batch_count = len(ranges)
    reserve(made.held)


class _LookedAt:
    """Batches of a segment that were looked at, for filters that the next one who asks this can use (`blooms.F3`)."""

    def __init__(self, segment: Segment, kinds: Iterable[Kind]) -> None:
        self._segment = segment
        self._found: dict[Kind, list[tuple[int, int, Hashes]]] = {kind: [] for kind in kinds}
        self._known = {kind: BLOOMS.of(segment, kind) for kind in self._found}

    def add(self, header: BatchHeader, rows: pa.RecordBatch) -> None:
        for kind, found in self._found.items():
            known = self._known[kind]
            if known is None or not known.knows(header.first_offset, header.crc):
                found.append((header.first_offset, header.crc, entries_of(rows, kind)))

    def learn(self) -> None:
        for kind, found in self._found.items():
            BLOOMS.learn(self._segment, kind, found)


class _Made:
    """Batches that are made anew. Neighbours of which few rows are wanted become one batch, as coalescing would make
    them."""

    def __init__(self, plan: ReadPlan) -> None:
        self._file = MadeFile(plan)
        self._run: BatchRun | None = None
        self._rows: list[pa.RecordBatch] = []

    @property
    def held(self) -> int:
        """Bytes of memory: the file, and what is to be encoded next."""
        return self._file.size + (0 if self._run is None else COPIES * self._run.body_bytes)

    def add(self, header: BatchHeader, rows: pa.RecordBatch) -> list[FileRange]:
        """Take the wanted rows of one more batch. Returns those before it, if they are whole."""
        run, joins = self._run, is_joinable(header, lambda _: False)
        if run is not None and joins and run.takes(header, rows.num_rows, rows.nbytes, SHAPE):
            run.add(header, rows.num_rows, rows.nbytes)
            self._rows.append(rows)
            return []
        before = self.take()
        self._run, self._rows = BatchRun(header, rows.num_rows, rows.nbytes), [rows]
        return before if joins else before + self.take()

    def take(self) -> list[FileRange]:
        """Encode what was added since."""
        run, rows, self._run, self._rows = self._run, self._rows, None, []
        if run is None:
            return []
        whole = rows[0] if len(rows) == 1 else pa.concat_batches(rows)
        return [self._file.write(encode_batch(whole, run.header))]


def with_blanks(rows: pa.RecordBatch, columns: Columns | None) -> pa.RecordBatch:
    """Rows of the record schema with these columns of theirs, the others blank (V7). None: all columns."""
    if columns is None:
        return rows
    blanks = _few_blanks() if rows.num_rows <= FEW_ROWS else _blanks(rows.num_rows)
    arrays = [rows.column(name) if name in columns else blank.slice(0, rows.num_rows) for name, blank in blanks.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _blanks(count: int) -> dict[str, pa.Array]:
    """So many blank values of each column."""
    blanks = {"timestamp": 0, "subject": ""}
    return {field.name: pa.repeat(pa.scalar(blanks.get(field.name), field.type), count) for field in SCHEMA}


@cache
def _few_blanks() -> dict[str, pa.Array]:
    return _blanks(FEW_ROWS)


class _Batches:
    """The batches of a plan, one in the memory of the other.

    Args:
        columns: Those that will be sent; None: all.

    Attributes:
        byte_count: Read so far.
    """

    def __init__(self, wanted: Conditions, columns: Columns | None) -> None:
        self.byte_count = 0
        self._block = Block()
        self._needed = None if columns is None else columns_in([*columns, *wanted.columns])

    def batch(
        self, part: FileRange, at: int, stop: int, reserve: Callable[[int], None]
    ) -> tuple[BatchHeader, pa.RecordBatch, int]:
        """The batch at a place, with the columns that are needed, and its length. The rows are others after the next
        call.

        Args:
            stop: Where the range ends.
            reserve: Takes so many bytes of memory, for this batch.
        Raises:
            BadBatch: it is damaged.
            StorageFailed: it cannot be read.
        """
        where = f"{part.path} at {at}: "
        head = self._block.read(part, PACKED_HEADER_BYTES, at)
        length = message_bytes(head, where=where)
        if at + length > stop:
            raise BadBatch(f"{where}a batch of {length} bytes, {stop - at} are there")
        reserve(COPIES * length)
        if self._needed is not None:
            batch = BatchAt(part, at, length, bytes(head[: head_bytes(head)]))
            known = CRCS_OF_COLUMNS.of(batch.head)
            if known is not None:
                return *self._some(batch, known, self._needed, reserve), length
        message = self._block.read(part, length, at)
        self.byte_count += length
        if self._needed is None:
            header = verified(message, where=where)
        else:
            header, _ = CRCS_OF_COLUMNS.verify(message, where=where)
        return header, _rows(message, SCHEMA, length, where, reserve), length

    def _some(
        self, batch: BatchAt, known: Known, needed: Columns, reserve: Callable[[int], None]
    ) -> tuple[BatchHeader, pa.RecordBatch]:
        """The needed columns, checked as a client does (`columns.J1`). Raises BadBatch."""
        message = chosen_columns(batch, known, needed, self._block.room)
        self.byte_count += len(message)
        header = verified_projected(message, needed, where=batch.where)
        return header, _rows(message, schema_of(needed), batch.length, batch.where, reserve)


def _rows(
    message: memoryview, schema: pa.Schema, stored_bytes: int, where: str, reserve: Callable[[int], None]
) -> pa.RecordBatch:
    """The rows of a message that was checked. Raises BadBatch."""
    if not is_plain(message):
        reserve(COPIES * stored_bytes + (decoded_bytes(message) or 0))
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(message), schema)
    except (pa.ArrowException, OSError) as error:  # the CRC is right, so whoever wrote it was wrong
        raise BadBatch(f"{where}{error}") from error
