"""Rows of stored messages that are wanted: found, and gathered into one batch.

    stored messages   | . . x . | . . . | x . . x |       x: wanted
    picked            | x x x |

`Picking` and the search for one subject or one key are compiled where the installation had a compiler
(broker/api/gathered/_picking.pxi): then no object of Arrow is made for a message. What is here finds and gathers the
same with Arrow, and does the rest: patterns, times, several conditions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.api.batch import ROWS_AT, BatchHeader
from broker.api.columns import Columns, schema_of
from broker.api.compiled import load_compiled
from broker.api.conditions import Conditions
from broker.api.errors import BadBatch
from broker.api.gathered.reused_memory import ReusedMemory
from broker.api.schema import SCHEMA

Rows = npt.NDArray[np.int32]
"""Numbers of rows in their message, ascending."""


@dataclass(slots=True)
class StoredMessage:
    """A stored batch, or some columns of it, verified.

    Attributes:
        data: The whole message. Others lie there once the next one is asked for.
        columns: Those that it has; None: all.
        where: Begins the text of errors.
    """

    header: BatchHeader
    data: memoryview
    columns: Columns | None
    where: str
    _rows: pa.RecordBatch | None = None

    @property
    def row_count(self) -> int:
        """As the message says."""
        return int(struct.unpack_from("<q", self.data, ROWS_AT)[0])

    def rows(self) -> pa.RecordBatch:
        """All that it has, zero-copy unless compressed. Raises BadBatch: it is no Arrow."""
        if self._rows is None:
            schema = SCHEMA if self.columns is None else schema_of(self.columns)
            try:
                self._rows = pa.ipc.read_record_batch(pa.py_buffer(self.data), schema)
            except (pa.ArrowException, OSError) as error:  # the CRC is right, so whoever wrote it was wrong
                raise BadBatch(f"{self.where}{error}") from error
        return self._rows


class Search:
    """Finds the rows of messages that are wanted.

    Args:
        wanted: The conditions, at least one.
    """

    def __init__(self, wanted: Conditions) -> None:
        self._wanted = wanted
        self._equal = None if _rows_equal is None else only_equal(wanted)

    def rows(self, message: StoredMessage) -> Rows:
        """Which rows are wanted.

        Args:
            message: With the columns of the conditions.
        Raises:
            BadBatch: it says of itself what cannot be.
        """
        if self._equal is not None and _rows_equal is not None:
            found = _rows_equal(message, *self._equal)
            if found is not None:
                return found
        return np.flatnonzero(self._wanted.mask(message.rows()).to_numpy(zero_copy_only=False)).astype(np.int32)


def only_equal(wanted: Conditions) -> tuple[str, bytes] | None:
    """The column and the text, if one column has to be one text, and nothing else is asked."""
    if wanted == Conditions(key=wanted.key) and wanted.key is not None:
        return "key", wanted.key
    if wanted == Conditions(subjects=wanted.subjects) and len(wanted.subjects) == 1:
        (subject,) = wanted.subjects
        if not {"*", ">"} & set(subject.split(".")):
            return "subject", subject.encode()
    return None


class PurePicking:
    """Gathers rows of messages that are picked by number.

    Args:
        columns: Which columns of them, as `columns_in` makes them.
        memory: For the rows, until the batch is dropped.

    Attributes:
        rows: So many were taken.
        byte_count: They have about so many bytes.
    """

    def __init__(self, columns: Columns, memory: ReusedMemory) -> None:
        self.rows = self.byte_count = 0
        self._columns = columns
        self._taken: list[pa.RecordBatch] = []

    def add(self, message: StoredMessage, numbers: Rows) -> None:
        """Take rows of a message by their numbers, ascending.

        Raises:
            BadBatch: the message says of itself what cannot be; what was taken before stays.
        """
        rows = message.rows().select(self._columns).take(pa.array(numbers))
        self._taken.append(rows)
        self.rows += rows.num_rows
        self.byte_count += rows.get_total_buffer_size()

    def take(self) -> pa.RecordBatch:
        """All rows that were added, as one batch of the columns; then there are none."""
        taken: Sequence[pa.RecordBatch] = self._taken
        self.rows = self.byte_count = 0
        self._taken = []
        return taken[0] if len(taken) == 1 else pa.concat_batches(taken)


_compiled = load_compiled("broker.api.gathered._gathering")
_rows_equal: Callable[[StoredMessage, str, bytes], Rows | None] | None = getattr(_compiled, "rows_equal", None)
if TYPE_CHECKING:
    Picking = PurePicking
else:
    Picking = getattr(_compiled, "Picking", PurePicking)
