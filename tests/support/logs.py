"""Logs for tests: small batches to append, everything that can be read back, all that must hold of a log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from broker.api.batch import decode_batch
from broker.api.schema import END_OF_STREAM, HEADERS_TYPE, SCHEMA, SCHEMA_BYTES
from broker.storage.disk import Disk
from broker.storage.encrypted.message import read_stored_header
from broker.storage.log import PartitionLog
from broker.storage.read import ReadPlan
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from broker.storage.segments.scan import Scan, scan

IDENTITY = LogIdentity(cluster_id="c1", stream="orders", incarnation="i1", partition=0)
SETTINGS = LogSettings(segment_bytes=8_000)
FOLDER = "/data/streams/orders/i1/0"
BOOT_ID = "boot-1"
Record = tuple[int, int, bytes]
"""Offset, timestamp in microseconds, value."""


def row_batch(values: Sequence[bytes], timestamps_us: Sequence[int] | None = None, **stamp: int) -> RowBatch:
    """A batch with these values; timestamps count from 0 unless given. `stamp`: as for `RowBatch`."""
    n = len(values)
    times = range(n) if timestamps_us is None else timestamps_us
    columns = [
        pa.array(times, pa.timestamp("us", "UTC")),
        pa.array(["orders.1"] * n),
        pa.nulls(n, pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(n, HEADERS_TYPE),
        pa.nulls(n, pa.string()),
    ]
    return RowBatch(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names[1:]), **stamp)


def stamped(values: Sequence[bytes], producer_id: int, epoch: int, sequence: int) -> RowBatch:
    """A batch of an idempotent producer."""
    return row_batch(values, producer_id=producer_id, producer_epoch=epoch, sequence=sequence)


def create_log(
    disk: Disk, *, settings: LogSettings = SETTINGS, folder: str = FOLDER, boot_id: str = BOOT_ID, now_us: int = 0
) -> PartitionLog:
    return PartitionLog.create(disk, folder, IDENTITY, settings, now_us=now_us, boot_id=boot_id)


def open_log(
    disk: Disk, *, settings: LogSettings = SETTINGS, folder: str = FOLDER, boot_id: str = BOOT_ID, now_us: int = 0
) -> PartitionLog:
    return PartitionLog.open(disk, folder, settings, boot_id=boot_id, now_us=now_us, expected=IDENTITY)


def commit(log: PartitionLog) -> int:
    """Make everything durable and visible, as the runtime does with replication factor 1."""
    durable_end = log.syncer.sync()
    log.state.advance_high_watermark(durable_end)
    return durable_end


def records_of(table: pa.Table | pa.RecordBatch) -> list[Record]:
    columns = (table.column("offset"), table.column("timestamp").cast(pa.int64()), table.column("value"))
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def verified_records(log: PartitionLog, offset: int | None = None) -> list[Record]:
    """All committed records, by `batches`."""
    found: list[Record] = []
    for message in log.reader.batches(log.state.log_start_offset if offset is None else offset):
        found += records_of(decode_batch(message))
    return [record for record in found if record[0] >= log.state.log_start_offset]


def plan_bytes(plan: ReadPlan) -> bytes:
    """The bytes that a server would send between the schema and the end marker."""
    places = zip(plan.ranges, plan.sources, strict=True)
    return b"".join(file.pread(place.length, place.position) for place, (_, file) in places)


def sent_records(plan: ReadPlan) -> list[Record]:
    """The records that a client would see of a plan, by pyarrow alone."""
    stream = pa.ipc.open_stream(SCHEMA_BYTES + plan_bytes(plan) + END_OF_STREAM)
    return records_of(stream.read_all())


def read_records(log: PartitionLog, offset: int, *, end: int | None = None, max_bytes: int = 3_000) -> list[Record]:
    """All committed records from `offset` on, by reads of `max_bytes`, sliced as a client slices them."""
    found: list[Record] = []
    while True:
        with log.reader.read(offset, end=end, max_bytes=max_bytes) as plan:
            if not plan.ranges:
                return found
            assert plan.bytes == sum(place.length for place in plan.ranges)
            assert plan.next_offset > offset
            rows = sent_records(plan)
            assert rows[0][0] == plan.first_offset
            assert rows[-1][0] < plan.next_offset
            found += [row for row in rows if row[0] >= offset and (end is None or row[0] < end)]
            offset = plan.next_offset


def plain_stream(log: PartitionLog, data: bytes, found: Scan) -> bytes:
    """The bytes of a segment as an Arrow stream: those of an encrypted log are opened."""
    vault = log.state.vault
    if vault is None:
        return data
    places = zip(found.batches["position"].tolist(), found.batches["length"].tolist(), strict=True)
    return b"".join(
        [SCHEMA_BYTES, *(vault.open_message(data[at : at + length]) for at, length in places), END_OF_STREAM]
    )


def check_log(log: PartitionLog, disk: Disk) -> None:
    """Check what holds of every log that nobody damaged: order of offsets, index = segment, plain readers can read."""
    assert 0 <= log.state.log_start_offset <= log.state.high_watermark <= log.state.log_end_offset
    assert log.state.durable_end <= log.state.log_end_offset
    view = log.state.view()
    expected: int | None = None
    for segment in view.segments:
        file = disk.open(segment.path, readonly=True)
        try:
            found = scan(file, start=len(SCHEMA_BYTES), first_offset=segment.base_offset, where=segment.path)
            data = file.pread(found.size, 0)
        finally:
            file.close()
        assert found.gaps == []
        assert found.markers in ([], [found.size - len(END_OF_STREAM)])
        index = view.index(segment)  # S4
        for name in ("first_offset", "position", "length", "crc"):
            assert index.entries[name].tolist() == found.batches[name].tolist()
        if len(found.batches):
            running = np.maximum.accumulate(found.batches["max_timestamp_us"])
            assert index.max_timestamps.tolist() == running.tolist()
        for batch in found.batches:  # S1
            assert expected is None or int(batch["first_offset"]) == expected
            expected = int(batch["next_offset"])
            position = int(batch["position"])
            epoch = read_stored_header(data[position : position + 1_000]).leader_epoch
            if int(batch["first_offset"]) >= log.state.log_start_offset:
                assert log.epochs.epoch_of(int(batch["first_offset"])) == epoch
        with pa.ipc.open_stream(plain_stream(log, data, found)) as stream:
            assert sum(rows.num_rows for rows in stream) == int(
                (found.batches["next_offset"] - found.batches["first_offset"]).sum()
            )
    assert expected is None or expected == log.state.log_end_offset
