"""Rows of many stored messages as few Arrow batches of a size that suits the taker.

    messages, as received   | 16 | 2,000 | 7 |     6,000     | 40 |        30,000        |
    batches                 |          8,063                      |        30,000        |

`Gathering` is compiled where the installation had a compiler (_gathering.pyx), and this one in Python elsewhere. Both
give the same rows, and batches of about the same size; the compiled one takes them from memory that is received
into again and again, this one from Arrow's buffers.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from broker.api.batch import BatchHeader
from broker.client.frames import Message
from broker.client.memory import Memory


class PureGathering:
    """Gathers wanted columns of messages into batches.

    Args:
        columns: Of `SCHEMA`, in the order wanted.
        rows_max: Rows of a batch at most.
        bytes_enough: A batch is handed out once it has about so many bytes. A message that alone has as many is handed
            out as it is, uncopied.
        memory: Where the gathered rows lie.

    Attributes:
        memory: To receive the messages into; None: they must stay as they are.
    """

    def __init__(self, columns: Sequence[str], *, rows_max: int, bytes_enough: int, memory: Memory) -> None:
        self.memory: Memory | None = None
        self._columns = list(columns)
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
        """What was taken and not handed out yet."""
        if not self._rows:
            return []
        whole = self._waiting[0] if len(self._waiting) == 1 else pa.concat_batches(self._waiting)
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


IMPLEMENTATION = "pure"
if TYPE_CHECKING:
    Gathering = PureGathering
else:
    try:
        Gathering = importlib.import_module("broker.client._gathering").Gathering
        IMPLEMENTATION = "compiled"
    except ModuleNotFoundError:
        Gathering = PureGathering
