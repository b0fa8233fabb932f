"""Logs with keys: what to append, what is there, and what must hold of a compacted log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from broker.api.batch import decode_batch, read_header
from broker.api.schema import END_OF_STREAM, HEADERS_TYPE, SCHEMA, SCHEMA_BYTES
from broker.storage.log import PartitionLog
from broker.storage.rows import RowBatch
from broker.storage.segments.scan import scan
from tests.support.logs import plain_stream

Keyed = tuple[bytes | None, bytes | None]
"""Key and value; a null value under a key is a tombstone."""


def keyed_batch(
    records: Sequence[Keyed], *, timestamp_us: int = 0, producer_id: int = 0, sequence: int = 0
) -> RowBatch:
    n = len(records)
    columns = [
        pa.array([timestamp_us] * n, pa.timestamp("us", "UTC")),
        pa.array(["orders.1"] * n),
        pa.array([key for key, _ in records], pa.binary()),
        pa.array([value for _, value in records], pa.binary()),
        pa.nulls(n, HEADERS_TYPE),
        pa.nulls(n, pa.string()),
    ]
    rows = pa.RecordBatch.from_arrays(columns, names=SCHEMA.names[1:])
    return RowBatch(rows, producer_id=producer_id, sequence=sequence)


def keyed_records(log: PartitionLog, offset: int | None = None) -> dict[int, Keyed]:
    """All committed records by offset."""
    found: dict[int, Keyed] = {}
    for message in log.reader.batches(log.state.log_start_offset if offset is None else offset):
        rows = decode_batch(message)
        offsets, keys, values = (rows.column(name).to_pylist() for name in ("offset", "key", "value"))
        assert offsets == sorted(set(offsets))
        header = read_header(message)
        assert all(header.first_offset <= at <= header.last_offset for at in offsets)
        assert not found or not offsets or offsets[0] > max(found)
        found.update(zip(offsets, zip(keys, values, strict=True), strict=True))
    return found


def newest_of(records: dict[int, Keyed]) -> dict[bytes, tuple[int, bytes | None]]:
    """Offset and value of the newest record of each key."""
    return {key: (at, value) for at, (key, value) in sorted(records.items()) if key is not None}


def check_compacted(log: PartitionLog) -> None:
    """Check what holds of every log, compacted or not: dense ranges, index = segment, plain readers can read it."""
    view = log.state.view()
    expected: int | None = None
    for segment in view.segments:
        file = log.state.disk.open(segment.path, readonly=True)
        try:
            found = scan(file, start=len(SCHEMA_BYTES), first_offset=segment.base_offset, where=segment.path)
            data = file.pread(found.size, 0)
        finally:
            file.close()
        assert found.gaps == []
        assert found.markers in ([], [found.size - len(END_OF_STREAM)])
        if segment.index(log.state.disk) is None:
            log.state.repair(segment)  # as whoever asks does
        index = view.index(segment)  # S4
        for name in ("first_offset", "position", "length", "crc"):
            assert index.entries[name].tolist() == found.batches[name].tolist()
        if len(found.batches):
            assert index.max_timestamps.tolist() == np.maximum.accumulate(found.batches["max_timestamp_us"]).tolist()
            assert int(found.batches["first_offset"][0]) == segment.base_offset
        for batch in found.batches:  # S1, W1
            # a reset that failed may have left it
            is_old = expected is not None and expected <= log.state.log_start_offset
            assert expected is None or is_old or int(batch["first_offset"]) == expected
            expected = int(batch["next_offset"])
            if int(batch["first_offset"]) >= log.state.log_start_offset:
                assert log.epochs.epoch_of(int(batch["first_offset"])) == int(batch["leader_epoch"])
        with pa.ipc.open_stream(plain_stream(log, data, found)) as stream:
            for rows in stream:
                rows.validate(full=True)
    assert (
        expected is None
        or expected == log.state.log_end_offset
        or log.state.log_start_offset == log.state.log_end_offset
    )
    assert log.state.lost_ranges == ()
