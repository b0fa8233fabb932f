"""The rows of the killed job: the flights of 2013, each under a key of its own, and the comparison with them.

    row n of the file, in time order ──► key n, subject flights.<origin>.<carrier>, value its JSON ──► partition n % 3

A reader without Spark holds what a stream has against the rows of the file: the same key, subject and value, no key
twice, and in the end no key missing. A key may be there once more for each lost checkpoint, if progress was not
published beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from examples import flights

SCHEMA = pa.schema([("key", pa.binary()), ("subject", pa.string()), ("value", pa.binary())])


class Flights:
    """The rows of a frame of `flights.load`, handed out in shares.

    Args:
        appends: Into how many shares they are divided.
    """

    def __init__(self, frame: pd.DataFrame, *, appends: int, partitions: int) -> None:
        rows = [(b"%d" % n, *message) for n, message in enumerate(flights.messages(frame))]
        self._rows = pa.Table.from_batches(
            [pa.record_batch([pa.array(column) for column in zip(*rows, strict=True)], schema=SCHEMA)]
        )
        self._partitions = partitions
        self.share = -(-len(rows) // appends)
        self.taken = 0

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def take(self) -> Sequence[pa.RecordBatch]:
        """The next share, partition by partition."""
        first, self.taken = self.taken, min(self.taken + self.share, len(self))
        return [
            self._rows.take(pa.array(range(first + n, self.taken, self._partitions), pa.int64())).to_batches()[0]
            for n in range(min(self._partitions, self.taken - first))
        ]

    def place(self, number: int) -> tuple[int, int]:
        """Partition and offset of a row in the source, if each share was appended once and in turn."""
        shares, at = divmod(number, self.share)
        partition = at % self._partitions
        return partition, shares * len(range(partition, self.share, self._partitions)) + at // self._partitions

    def check(self, found: pa.Table, lost: Sequence[Mapping[int, int]] = ()) -> int:
        """Hold rows against those of the file; returns how many there are, repetitions not counted.

        Args:
            lost: The progress that was published when a checkpoint was lost, by partition: rows from there on may come
        once more. Raises: AssertionError: a row is there too often, or nobody wrote it, or it is not as it was written.
        """
        numbers = found.column("key").cast(pa.string()).cast(pa.int64())
        counts = pc.value_counts(numbers)
        more = counts.filter(pc.greater(counts.field("counts"), 1)).to_pylist()
        repeated = sorted(one["values"] for one in more if one["counts"] > 1 + self._chances(one["values"], lost))
        assert not repeated, f"{len(repeated)} flights are there too often, first {repeated[:5]}; {lost=}"
        strange = pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, self.taken))
        assert not pc.any(strange).as_py(), f"flights that nobody wrote: {numbers.filter(strange).to_pylist()[:5]}"
        written = self._rows.take(numbers)
        for column in SCHEMA:
            there = found.column(column.name).cast(column.type)
            same = pc.fill_null(pc.equal(there, written.column(column.name)), False)
            assert pc.all(same, min_count=0).as_py(), (
                f"{column.name} of flights {numbers.filter(pc.invert(same)).to_pylist()[:5]}"
            )
        return len(counts)

    def _chances(self, number: int, lost: Sequence[Mapping[int, int]]) -> int:
        partition, offset = self.place(number)
        return sum(offset >= published.get(partition, 0) for published in lost)
