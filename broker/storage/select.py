"""A read plan without the records that a reader does not want.

    stored     [ batch ][ batch ][ batch ][ batch ]
    wanted       all      none      some     all
    plan       [ batch ]         [ some  ][ batch ]     the one between is made anew, the others are the log's

V1  A batch of which all rows are wanted stays where it is, and goes by sendfile. Of others the wanted rows are encoded
    anew, under the stored header; those of neighbours of one leader epoch become one batch, of no commit group.
V2  Each batch is verified before it is judged.
V3  The plan goes on behind all that was judged (`next_offset`), so a reader that finds nothing comes further.
V4  Batches that are known to hold nothing that is wanted are not in the plan before (`blooms.py`).
V5  One plan judges `JUDGED_BYTES_MAX`, or makes `MADE_BYTES_MAX`, and one batch more at most. If only some columns are
    wanted, it reads those and the ones of the conditions, of batches whose columns are known (`column_crcs.py`), and
    only what it reads counts. A batch counts as it is without compression, and for `BATCH_COST_BYTES` more: tiny ones,
    and those that were compressed well, take time by their number and by what they hold.
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
from broker.api.columns import Columns, columns_in, head_bytes
from broker.api.compression import PACKED_HEADER_BYTES, decoded_bytes
from broker.api.conditions import Conditions
from broker.api.errors import BadBatch, StorageFailed
from broker.api.gathered.reused_memory import ReusedMemory
from broker.api.schema import SCHEMA
from broker.storage.blooms import BLOOMS, Hashes, Kind, entries_of, questions_of
from broker.storage.column_crcs import CRCS_OF_COLUMNS
from broker.storage.made import COPIES, Block, MadeFile, Window, joined
from broker.storage.picking import Picking, Rows, Search, StoredMessage
from broker.storage.project import BatchAt, chosen_columns
from broker.storage.read import FileRange, ReadPlan
from broker.storage.rewrite.rewriting import BATCH_COST_BYTES, BatchRun, BatchShape
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.log import PartitionLog

JUDGED_BYTES_MAX: Final = 64 << 20
"""So much is looked at for one answer (V5): bounds the time until it begins."""
MADE_BYTES_MAX: Final = 8 << 20
"""An answer that holds so much of what is made anew ends."""
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
    stop = log.state.high_watermark
    if wanted.since_us is None or not log.state.log_start_offset <= offset < stop:
        return offset
    found = log.reader.offset_for_time(wanted.since_us)
    stop = min(each for each in (stop, found, end) if each is not None)
    is_lost = any(first < stop and offset < last for first, last in (*log.state.lost_ranges, *log.state.tampered))
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
    reserved = 0

    def take_room(size: int) -> None:
        nonlocal reserved
        if size > reserved:
            reserve(size)
            reserved = size

    made, batches = _Made(plan, columns), _Batches(wanted, columns, plan.bytes)
    search = Search(wanted)
    kinds = () if plan.is_opened else questions_of(wanted)  # `blooms.F5`
    ranges: list[FileRange] = []
    first: int | None = None
    for part, (segment, _), begin in zip(plan.ranges, plan.sources, plan.begins, strict=True):
        looked_at = _LookedAt(segment, kinds)
        at, stop = part.position, part.position + part.length
        while at < stop:
            if batches.judged_bytes >= JUDGED_BYTES_MAX or made.byte_count >= MADE_BYTES_MAX:
                plan.next_offset = begin
                break
            try:
                message, length = batches.message(part, at, lambda size: take_room(made.held + size))
                found = search.rows(message)
                looked_at.add(message)
                is_whole = len(found) == message.row_count
                if len(found) and not is_whole:
                    made.pick(message, found)
            except (BadBatch, StorageFailed):
                if begin <= asked:
                    raise
                plan.next_offset = begin
                break
            ranges += made.take() if is_whole else made.closed()
            if is_whole:
                ranges.append(FileRange(part.fd, at, length, part.path))
            if len(found) and first is None:
                first = message.header.first_offset
            at += length
            begin = message.header.next_offset
        looked_at.learn()
        ranges += made.take()  # what is not in the plan may be lost: no batch is to span it
        if at < stop:
            break
    plan.first_offset = plan.next_offset if first is None else first
    plan.ranges[:] = joined(ranges)
    plan.bytes = sum(part.length for part in ranges)
    plan.batch_count = len(ranges)
    take_room(made.held)


class _LookedAt:
    """Batches of a segment that were looked at, for filters that the next one who asks this can use (`blooms.F3`)."""

    def __init__(self, segment: Segment, kinds: Iterable[Kind]) -> None:
        self._segment = segment
        self._found: dict[Kind, list[tuple[int, int, Hashes]]] = {kind: [] for kind in kinds}
        self._known = {kind: BLOOMS.of(segment, kind) for kind in self._found}

    def add(self, message: StoredMessage) -> None:
        header = message.header
        for kind, found in self._found.items():
            known = self._known[kind]
            if known is None or not known.knows(header.first_offset, header.crc):
                found.append((header.first_offset, header.crc, entries_of(message.rows(), kind)))

    def learn(self) -> None:
        for kind, found in self._found.items():
            BLOOMS.learn(self._segment, kind, found)


class _Made:
    """Batches that are made anew. Neighbours of which few rows are wanted become one batch, as coalescing would make
    them.

    Attributes:
        byte_count: Of all that were written.
    """

    def __init__(self, plan: ReadPlan, columns: Columns | None) -> None:
        self._file = MadeFile(plan)
        self._columns = columns
        memory, picked = ReusedMemory(), columns_in(SCHEMA.names if columns is None else columns)
        self._run: BatchRun | None = None
        self._picking = Picking(picked, memory)
        self._next_run: BatchRun | None = None
        self._next = Picking(picked, memory)

    @property
    def byte_count(self) -> int:
        return self._file.size

    @property
    def held(self) -> int:
        """Bytes of memory: the file, and what is to be encoded next."""
        return self._file.size + COPIES * (self._picking.byte_count + self._next.byte_count)

    def pick(self, message: StoredMessage, found: Rows) -> None:
        """Take the wanted rows of one more batch; `closed` has to follow.

        Raises:
            BadBatch: the message says of itself what cannot be; nothing of it was taken.
        """
        header, count = message.header, len(found)
        run, about = self._run, len(message.data) * count // message.row_count
        if run is not None and run.takes(header, count, about, SHAPE):
            held = self._picking.byte_count
            self._picking.add(message, found)
            run.add(header, count, self._picking.byte_count - held)
        else:
            self._next.add(message, found)
            self._next_run = BatchRun(header, count, self._next.byte_count)

    def closed(self) -> list[FileRange]:
        """What the last batch that was taken did not fit in with. Raises StorageFailed: there is no room."""
        run, self._next_run = self._next_run, None
        if run is None:
            return []
        before = self.take()
        self._run = run
        self._picking, self._next = self._next, self._picking
        return before

    def take(self) -> list[FileRange]:
        """Encode what was taken since. Raises StorageFailed: there is no room."""
        run, self._run = self._run, None
        if run is None:
            return []
        return [self._file.write(encode_batch(with_blanks(self._picking.take(), self._columns), run.header))]


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
        most: Bytes of the plan.

    Attributes:
        judged_bytes: Of all so far (V5).
    """

    def __init__(self, wanted: Conditions, columns: Columns | None, most: int) -> None:
        self.judged_bytes = 0
        self._block = Block()
        self._window = Window(self._block, most)
        self._needed = None if columns is None else columns_in([*columns, *wanted.columns])

    def message(self, part: FileRange, at: int, reserve: Callable[[int], None]) -> tuple[StoredMessage, int]:
        """The batch at a place of a range, with the columns that are needed, and its length. It is another one after
        the next call.

        Args:
            reserve: Takes so many bytes of memory, for this batch.
        Raises:
            BadBatch: it is damaged.
            StorageFailed: it cannot be read.
        """
        where = f"{part.path} at {at}: "
        read = self._window.read if self._needed is None else self._block.read
        head = read(part, PACKED_HEADER_BYTES, at)
        length = message_bytes(head, where=where)
        left = part.position + part.length - at
        if length > left:
            raise BadBatch(f"{where}a batch of {length} bytes, {left} are there")
        held = COPIES * length + self._window.ahead
        reserve(held)
        data, header, columns = self._checked(part, at, length, head, where)
        byte_count = len(data)
        if not is_plain(data):
            decoded = decoded_bytes(data) or 0
            reserve(held + decoded)
            byte_count = max(byte_count, decoded)
        self.judged_bytes += byte_count + BATCH_COST_BYTES
        return StoredMessage(header, data, columns, where), length

    def _checked(
        self, part: FileRange, at: int, length: int, head: memoryview, where: str
    ) -> tuple[memoryview, BatchHeader, Columns | None]:
        """The whole batch, or the needed columns of one whose columns are known; its header, and which columns it has
        (None: all). Raises BadBatch, StorageFailed."""
        needed = self._needed
        if needed is None:
            data = self._window.read(part, length, at)
            return data, verified(data, where=where), None
        batch = BatchAt(part, at, length, bytes(head[: head_bytes(head)]))
        known = CRCS_OF_COLUMNS.of(batch.head)
        if known is not None:  # checked as a client does (`columns.J1`)
            data = chosen_columns(batch, known, needed, self._block.room)
            return data, verified_projected(data, needed, where=where), needed
        data = self._block.read(part, length, at)
        header, _ = CRCS_OF_COLUMNS.verify(data, where=where)
        return data, header, None
