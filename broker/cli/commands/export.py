"""Records as Parquet files, in bounded memory, from a running broker or from the files of a log.

    sources   one per partition: record batches in offset order
    files     one for all of them, or one for each; a row group at 1 Mi rows or 64 MiB

Files on disk are read through an overlay: the log is recovered in memory, just as the broker would recover it, and
nothing is changed. Damaged records are left out and told of.

P1  A file has its name only once it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from broker.api.errors import InvalidRequest
from broker.api.schema import SCHEMA
from broker.client.positions import Position, timestamp_us
from broker.client.reader import PARTITION_FIELD, reader_schema
from broker.storage.disk import OsDisk
from broker.storage.disk.overlay import OverlayDisk
from broker.storage.encrypted.keyfile import has_keys
from broker.storage.inspect.places import PartitionFolder, used_by
from broker.storage.log import PartitionLog
from broker.storage.read import out_of_range
from broker.storage.segments.checkpoint import LogSettings, read_identity

if TYPE_CHECKING:
    from broker.client.client import Client
    from broker.client.payload.decoding import JsonPayload
    from broker.storage.encrypted.keys import Keyring

ROW_GROUP_BYTES: Final = 64 << 20
ROW_GROUP_ROWS: Final = 1 << 20
Lost = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The records to export: from `start` to before `end` in each partition, these columns (None: all). With a payload
    the columns of the JSON objects are in the place of the value."""

    start: str | int | datetime = "earliest"
    end: str | int | datetime = "latest"
    columns: list[str] | None = None
    payload: JsonPayload | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One partition. `read` yields batches of a schema; then `lost` says which ranges it had to pass over."""

    stream: str
    incarnation: str
    partition: int
    read: Callable[[pa.Schema], Iterator[pa.RecordBatch]]
    lost: Callable[[], Lost]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One file: n records, in row groups, of so many bytes."""

    path: str
    records: int
    row_groups: int
    bytes: int


@dataclass(slots=True, kw_only=True)
class ExportReport:
    """The result of an export. `lost`: {stream, partition, start, end} of what is damaged in the range."""

    records: int = 0
    files: list[Exported] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)


def export_parquet(sources: list[Source], target: str, wanted: Wanted, *, overwrite: bool) -> ExportReport:
    """Write all sources to one file, or where `target` is a folder (or ends with `/`) to a file for each.

    Raises:
        InvalidRequest: a file is there already, several streams are to go into one file, a column does not exist.
    """
    is_folder = target.endswith("/") or os.path.isdir(target)
    schema = reader_schema(wanted.columns, not is_folder and len(sources) > 1, wanted.payload)
    if not is_folder and len({(source.stream, source.incarnation) for source in sources}) > 1:
        names = ", ".join(sorted({source.stream for source in sources}))
        raise InvalidRequest(f"{target}: one file can hold one stream, and these are several: {names}; name a folder")
    groups = {target: sources}
    if is_folder:
        groups = {os.path.join(target, _file_name(source, sources)): [source] for source in sources}
    for path in groups:
        if os.path.exists(path) and not overwrite:
            raise InvalidRequest(f"{path} exists already: use --overwrite to replace it", path=path)
    report = ExportReport()
    for path, group in groups.items():
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        file = ParquetFile(path, schema)
        try:
            for source in group:
                for batch in source.read(schema):
                    file.add(batch)
                for start, end in source.lost():
                    report.lost.append(
                        {"stream": source.stream, "partition": source.partition, "start": start, "end": end}
                    )
            report.files.append(file.finish())
        finally:
            file.drop()
    report.records = sum(file.records for file in report.files)
    return report


class ParquetFile:
    """A Parquet file that grows by row groups (P1)."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.path = path
        self._temporary = f"{path}.tmp"
        self._schema = schema
        self._writer: Any = pq.ParquetWriter(self._temporary, schema, compression="zstd")
        self._pending: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._records = self._row_groups = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take n >= 0 rows."""
        fitting = ROW_GROUP_BYTES * batch.num_rows // max(1, batch.nbytes)
        step = max(1, min(ROW_GROUP_ROWS, fitting))
        for at in range(0, batch.num_rows, step):
            part = batch.slice(at, step)
            if self._rows + part.num_rows > ROW_GROUP_ROWS or self._bytes + part.nbytes > ROW_GROUP_BYTES:
                self._flush()
            self._pending.append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes

    def finish(self) -> Exported:
        """Write what is left; the file has its name now."""
        self._flush()
        self._writer.close()
        os.replace(self._temporary, self.path)
        size = os.path.getsize(self.path)
        return Exported(path=self.path, records=self._records, row_groups=self._row_groups, bytes=size)

    def drop(self) -> None:
        """Remove what was not finished."""
        self._writer.close()
        with suppress(FileNotFoundError):
            os.unlink(self._temporary)

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.Table.from_batches(self._pending, self._schema), row_group_size=self._rows)
            self._records += self._rows
            self._row_groups += 1
        self._pending, self._rows, self._bytes = [], 0, 0


def sources_of(client: Client, stream: str, wanted: Wanted) -> list[Source]:
    """The partitions of a stream, read from its broker."""
    description = client.describe(stream)

    def source(partition: int, damaged: Lost) -> Source:
        lost: list[tuple[int, int]] = []

        def read(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
            start, end = _resolved(client, stream, partition, wanted)
            lost.extend((max(a, start), min(b, end)) for a, b in damaged if a < end and b > start)
            with client.read(
                stream,
                partitions=[partition],
                start="earliest" if wanted.start == "earliest" else start,  # retention may move it meanwhile
                end=end,
                columns=schema.names,
                payload=None if wanted.payload is None else "json",
                schema=None if wanted.payload is None else pa.schema(wanted.payload.fields),
            ) as reader:
                yield from reader

        return Source(
            stream=stream, incarnation=description.incarnation, partition=partition, read=read, lost=lambda: lost
        )

    damaged = {p.partition: p.lost_ranges for p in description.partitions}
    return [source(number, damaged.get(number, ())) for number in range(description.partition_count)]


def _resolved(client: Client, stream: str, partition: int, wanted: Wanted) -> tuple[int, int]:
    offsets = []
    for found in client.resolve(Position(stream, partition, at) for at in (wanted.start, wanted.end)):
        if found.error is not None:
            raise found.error
        offset = found.high_watermark if found.offset is None else found.offset
        assert offset is not None, "an answer has an offset or an error"
        offsets.append(offset)
    return offsets[0], offsets[1]


def sources_at(places: list[PartitionFolder], wanted: Wanted, keyring: Keyring | None = None) -> list[Source]:
    """The partitions of folders, read from their files. The broker's own streams only if nothing else is there."""
    for place in places:
        if place.only is not None:
            raise InvalidRequest(
                f"{place.folder}: export takes a partition, a stream or a data folder", path=place.folder
            )
    found = [_Stored(place, wanted, keyring) for place in places]
    if any(not stored.identity.stream.startswith("__") for stored in found):
        found = [stored for stored in found if not stored.identity.stream.startswith("__")]
    return [stored.source() for stored in found]


class _Stored:
    """A partition's folder as a source. The log is opened when it is read."""

    def __init__(self, place: PartitionFolder, wanted: Wanted, keyring: Keyring | None) -> None:
        self.place = place
        self.keyring = keyring
        self.wanted = wanted
        self.identity = read_identity(OsDisk(), place.folder)
        self.lost: list[tuple[int, int]] = []

    def source(self) -> Source:
        of = self.identity
        return Source(
            stream=of.stream,
            incarnation=of.incarnation,
            partition=of.partition,
            read=self.read,
            lost=lambda: self.lost,
        )

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        in_use = used_by(self.place.root) is not None
        log = PartitionLog.open(
            OverlayDisk(OsDisk()),
            self.place.folder,
            LogSettings(is_encrypted=has_keys(OsDisk(), self.place.folder), keyring=self.keyring),
            boot_id="",
            now_us=0,
            expected=self.place.expected,
        )
        try:
            if not in_use:
                log.state.advance_high_watermark(log.state.log_end_offset)  # as the broker does when it starts
            start, end = (self._offset(log, where) for where in (self.wanted.start, self.wanted.end))
            if start > end:
                raise InvalidRequest(f"{self.place.name}: the end, {end}, is before the start, {start}")
            for message in log.reader.batches(start, end):
                yield self._shaped(pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA), start, end, schema)
            self.lost = [(max(a, start), min(b, end)) for a, b in log.state.lost_ranges if a < end and b > start]
        finally:
            log.close(clean=False)

    def _offset(self, log: PartitionLog, where: str | int | datetime) -> int:
        if isinstance(where, datetime):
            found = log.reader.offset_for_time(timestamp_us(where))
            return log.state.high_watermark if found is None else found
        if isinstance(where, str):
            return log.state.log_start_offset if where == "earliest" else log.state.high_watermark
        if not log.state.log_start_offset <= where <= log.state.high_watermark:
            raise out_of_range(self.identity, where, log.state.log_start_offset, log.state.high_watermark)
        return where

    def _shaped(self, batch: pa.RecordBatch, start: int, end: int, schema: pa.Schema) -> pa.RecordBatch:
        offsets = batch.column("offset").to_numpy()
        first, after = int(offsets.searchsorted(start)), int(offsets.searchsorted(end))
        batch = batch.slice(first, after - first)
        columns = []
        for column in schema:
            if column.name == PARTITION_FIELD.name:
                columns.append(pa.repeat(pa.scalar(self.identity.partition, column.type), batch.num_rows))
            else:
                columns.append(batch.column(column.name))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _file_name(source: Source, sources: list[Source]) -> str:
    incarnations = {other.incarnation for other in sources if other.stream == source.stream}
    middle = f"-{source.incarnation}" if len(incarnations) > 1 else ""
    return f"{source.stream}{middle}-{source.partition}.parquet"
