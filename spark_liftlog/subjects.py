"""Rows of some subjects only: NATS patterns, judged once for each distinct subject of a batch.

orders.*      one token more        orders.>      one or more        orders.eu      this one
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc


def with_subjects(
    batches: Iterable[pa.RecordBatch], patterns: Sequence[str], *, at: int, width: int
) -> Iterator[pa.RecordBatch]:
    """The rows whose subject matches one of the patterns.

    Args:
        patterns: Checked NATS subjects, wildcards allowed.
        at: Column of the subject.
        width: Columns to hand out; those behind are left out.
    """
    wanted = re.compile("|".join(map(_regex, patterns)))
    for batch in batches:
        column = batch.column(at).dictionary_encode()
        fits = [wanted.fullmatch(subject) is not None for subject in column.dictionary.to_pylist()]
        schema = pa.schema([batch.schema.field(i) for i in range(width)])
        rest = pa.RecordBatch.from_arrays(batch.columns[:width], schema=schema)
        if all(fits):
            yield rest
        elif any(fits):
            yield rest.filter(pc.take(pa.array(fits), column.indices))


def _regex(pattern: str) -> str:
    tokens = [{"*": r"[^.]+", ">": r".+"}.get(token, re.escape(token)) for token in pattern.split(".")]
    return r"\.".join(tokens)
