"""Rows of many stored messages as few Arrow batches of a size that suits the taker.

    messages, as received   | 16 | 2,000 | 7 |     6,000     | 40 |        30,000        |
    batches                 |          8,063                      |        30,000        |

`Gathering` is compiled where the installation had a compiler (_gathering.pyx), and this one in Python elsewhere. Both
give the same rows, and batches of about the same size; the compiled one takes them from memory that is received
into again and again, this one from Arrow's buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from broker.api.batch import BatchHeader
from broker.api.compiled import load_compiled
from broker.api.gathered.reused_memory import ReusedMemory
from broker.api.schema import SCHEMA
from broker.client.reading.frames import Message


class Shape:
    """The form of gathered batches.

    Args:
        columns: Names, in the order wanted: of `SCHEMA`, or of `constants`.
        schema: Schema of the batches, with a field for each column. Its name is free; its type is that of the column,
            except for names within it. None: as in `SCHEMA`, and without constants.
        constants: Columns that have one value in every row.
    """

    def __init__(
        self,
        columns: Sequence[str],
        schema: pa.Schema | None = None,
        constants: Mapping[str, pa.Scalar] | None = None,
    ) -> None:
        self.columns = list(columns)
        self.constants = dict(constants or {})
        self.schema = schema or pa.schema([SCHEMA.field(name) for name in columns])
        types = [self.constants[name].type if name in self.constants else SCHEMA.field(name).type for name in columns]
        assert len(types) == len(self.schema), f"{len(types)} columns, {len(self.schema)} fields"
        assert all(map(pa.DataType.equals, types, self.schema.types)), f"{types} are no {self.schema}"

    @property
    def stored_columns(self) -> list[str]:
        """The columns that are taken from each message."""
        return [name for name in self.columns if name not in self.constants]

    def rows(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Records with at least the stored columns, in this shape; nothing stored is copied."""
        arrays = [
            pa.repeat(self.constants[name], records.num_rows) if name in self.constants else records.column(name)
            for name in self.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class PureGathering:
    """Gathers wanted columns of messages into batches.

    Args:
        shape: Form of the batches.
        rows_max: Rows of a batch at most.
        bytes_enough: A batch is handed out once it has about so many bytes. A message that alone has as many is handed
            out as it is, uncopied.
        memory: The memory for the gathered rows.

    Attributes:
        memory: To receive the messages into; None: they must stay as they are.
    """

    def __init__(self, shape: Shape, *, rows_max: int, bytes_enough: int, memory: ReusedMemory) -> None:
        self.memory: ReusedMemory | None = None
        self._shape = shape
        self._columns = shape.stored_columns or SCHEMA.names[:1]  # a batch without columns has no rows
        self._rows_max = rows_max
        self._bytes_enough = bytes_enough
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, message: Message, start: int, end: int) -> list[pa.RecordBatch]:
        """Take the rows of a message whose offsets are in [start, end).

        Returns:
            Batches that became ready, each of 1 to `rows_max` rows, in order with those of calls before and after.
        Raises:
            BadBatch: the message says of itself what cannot be; nothing of it was taken.
        """
        rows = rows_between(message.rows(), message.header, start, end).select(self._columns)
        if not rows.num_rows:
            return []
        size = rows.get_total_buffer_size()  # of a slice: what it keeps; `nbytes` takes 30 times as long
        ready: list[pa.RecordBatch] = []
        if self._rows + rows.num_rows > self._rows_max or size >= self._bytes_enough:
            ready += self.rest()
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += size
        if self._rows >= self._rows_max or self._bytes >= self._bytes_enough:
            ready += self.rest()
        return ready

    def rest(self) -> list[pa.RecordBatch]:
        """Batches of the rows that were taken and not handed out yet."""
        if not self._rows:
            return []
        whole = self._shape.rows(self._waiting[0] if len(self._waiting) == 1 else pa.concat_batches(self._waiting))
        self._waiting, self._rows, self._bytes = [], 0, 0
        return [whole.slice(at, self._rows_max) for at in range(0, whole.num_rows, self._rows_max)]


def rows_between(batch: pa.RecordBatch, header: BatchHeader, start: int, end: int) -> pa.RecordBatch:
    """The rows of a batch with offsets in [start, end), zero-copy; may be none."""
    if start <= header.first_offset and header.next_offset <= end:
        return batch
    if batch.num_rows == header.next_offset - header.first_offset:  # dense: nothing was compacted away
        first, stop = start - header.first_offset, end - header.first_offset
    else:
        offsets = batch.column(0).to_numpy()
        first, stop = (int(i) for i in offsets.searchsorted((start, end)))
    first = min(max(first, 0), batch.num_rows)
    return batch.slice(first, max(min(stop, batch.num_rows) - first, 0))


_compiled = load_compiled("broker.api.gathered._gathering")
IMPLEMENTATION = "pure" if _compiled is None else "compiled"
if TYPE_CHECKING:
    Gathering = PureGathering
else:
    Gathering = getattr(_compiled, "Gathering", PureGathering)
