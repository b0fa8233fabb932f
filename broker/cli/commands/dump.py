"""Stored batches or records as lines, one each. Read from the files as they are, verified.

Bytes that are no batch are shown as well, in their place: a gap with what stands there, the end marker of a segment.
Records of damaged batches are not shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from broker.api.batch import BatchHeader
from broker.api.errors import BadBatch, KeyMissing
from broker.api.legible import iso_time, plain_rows, readable_rows
from broker.api.plain import printable
from broker.api.schema import SCHEMA, SCHEMA_BYTES
from broker.cli.commands.records import Lines
from broker.cli.output import counted, json_text
from broker.storage.disk import File, OsDisk
from broker.storage.disk.overlay import OverlayDisk
from broker.storage.encrypted.keyfile import has_keys
from broker.storage.encrypted.message import is_encrypted, read_stored_header
from broker.storage.inspect.contradictions import what_stands_at
from broker.storage.inspect.places import PartitionFolder, used_by
from broker.storage.recovery import list_segments
from broker.storage.segments.checkpoint import read_identity
from broker.storage.segments.scan import scan
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.encrypted.keys import Keyring
    from broker.storage.encrypted.vault import Vault


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Something in a segment: a batch (`message`, `header`), or else what `text` says.

    `is_closed`: it is encrypted, and the key for it was not given.
    """

    place: PartitionFolder
    path: str
    position: int
    end: int
    message: bytes | memoryview = b""
    header: BatchHeader | None = None
    text: str = ""
    is_closed: bool = False

    def rows(self) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(self.message), SCHEMA)


def batch_lines(
    places: list[PartitionFolder], keyring: Keyring | None = None, *, start: int, end: int | None, as_json: bool
) -> Iterator[str]:
    """A line for each batch that holds offsets of [start, end), and for each gap and marker if all are asked for."""
    show_all = start == 0 and end is None
    for stored in _stored(places, keyring, start, end):
        if stored.header is not None:
            yield _batch_json(stored, stored.header) if as_json else _batch_line(stored, stored.header)
        elif show_all and as_json:
            place = {"path": stored.path, "position": stored.position, "bytes": stored.end - stored.position}
            yield json_text({"partition": stored.place.name, **place, "gap": stored.text})
        elif show_all:
            yield f"{_where(stored)}  {printable(stored.text)}"


def record_lines(
    places: list[PartitionFolder], keyring: Keyring | None = None, *, start: int, end: int | None, as_json: bool
) -> Iterator[str]:
    """A line for each record with an offset of [start, end); a head above them unless they are JSON.

    Raises:
        KeyMissing: they are encrypted, and the key for them was not given.
    """
    several = len({place.folder for place in places}) > 1
    lines = Lines(width=None, with_partition=several)
    if not as_json:
        yield lines.head()
    for stored in _stored(places, keyring, start, end):
        if stored.is_closed:
            raise KeyMissing(f"{stored.place.folder}: records are encrypted: name the master key with --key-file")
        if stored.header is None:
            continue
        batch = stored.rows()
        offsets = batch.column("offset").to_numpy()
        first = int(offsets.searchsorted(start))
        after = len(offsets) if end is None else int(offsets.searchsorted(end))
        batch = batch.slice(first, after - first)
        place = {"partition": stored.place.name} if several else {}
        if as_json:
            yield from (json_text({**place, **row}) for row in readable_rows(batch))
        else:
            yield from (lines.line({**place, **row}) for row in plain_rows(batch))


def _stored(places: list[PartitionFolder], keyring: Keyring | None, start: int, end: int | None) -> Iterator[Stored]:
    disk = OsDisk()
    for place in places:
        vault = _vault_of(place, keyring)
        in_use = used_by(place.root) is not None
        segments = list_segments(disk, place.folder)
        ends = [*(segment.base_offset for segment in segments[1:]), None]
        for segment, segment_end in zip(segments, ends, strict=False):  # no segment, no end
            if place.only not in (None, segment.base_offset) or (segment_end is not None and segment_end <= start):
                continue
            if end is not None and segment.base_offset >= end:
                break
            file = disk.open(segment.path, readonly=True)
            try:
                is_growing = in_use and segment_end is None
                yield from _segment(place, segment, file, start, end, vault, is_growing=is_growing)
            finally:
                file.close()


def _vault_of(place: PartitionFolder, keyring: Keyring | None) -> Vault | None:
    """What opens the records of a folder; None: they are not encrypted, or the key was not given.

    Raises:
        KeyMissing, CorruptLog: they are, and the key is another.
    """
    if keyring is None or not has_keys(OsDisk(), place.folder):
        return None
    from broker.storage.encrypted.vault import Vault

    identity = read_identity(OsDisk(), place.folder)
    return Vault.open(OverlayDisk(OsDisk()), place.folder, identity, keyring, is_empty=False)


def _segment(
    place: PartitionFolder,
    segment: Segment,
    file: File,
    start: int,
    end: int | None,
    vault: Vault | None,
    *,
    is_growing: bool,
) -> Iterator[Stored]:
    found = scan(file, start=len(SCHEMA_BYTES), first_offset=segment.base_offset, where=segment.path)
    batches = found.batches
    wanted = batches["next_offset"] > start
    if end is not None:
        wanted &= batches["first_offset"] < end
    others = [(at, at + 8, "end-of-stream marker") for at in found.markers]
    if not found.schema_is_whole:
        others.append((0, len(SCHEMA_BYTES), "the schema message is damaged"))
    for begin, after in found.gaps:
        if not (is_growing and after == found.size):  # perhaps it was being written
            others.append((begin, after, what_stands_at(file, begin, after)))
    others.sort(reverse=True)
    for batch in batches[wanted]:
        position, length = int(batch["position"]), int(batch["length"])
        while others and others[-1][0] < position:
            yield _other(place, segment, *others.pop())
        message: bytes | memoryview = file.pread(length, position)
        is_closed = is_encrypted(message)
        header = read_stored_header(message, where=f"{segment.path}: ")
        if vault is not None:
            try:
                message, is_closed = vault.open_message(message), False
            except BadBatch as error:  # its CRC fits: it was changed on purpose
                yield _other(place, segment, position, position + length, str(error))
                continue
        yield Stored(
            place=place,
            path=segment.path,
            position=position,
            end=position + length,
            message=message,
            header=header,
            is_closed=is_closed,
        )
    while others:
        yield _other(place, segment, *others.pop())


def _other(place: PartitionFolder, segment: Segment, position: int, end: int, text: str) -> Stored:
    return Stored(place=place, path=segment.path, position=position, end=end, text=text)


def _where(stored: Stored) -> str:
    return f"{stored.path.rpartition('/')[2]} {stored.position:>11} {stored.end - stored.position:>9} B"


def _batch_line(stored: Stored, header: BatchHeader) -> str:
    words = [
        _where(stored),
        f"offsets [{header.first_offset}, {header.next_offset})",
        "encrypted" if stored.is_closed else counted(stored.rows().num_rows, "record"),
        f"epoch {header.leader_epoch}",
        f"hw {header.high_watermark}",
        f"newest {iso_time(header.max_timestamp_us)}",
        f"crc {header.crc:08x}",
    ]
    if header.group_count > 1:
        words.append(f"group {header.group_index + 1}/{header.group_count}")
    if header.producer_id:
        words.append(f"producer {header.producer_id}:{header.producer_epoch}:{header.sequence}")
    if header.decision:
        words.append(f"decision {header.decision:x}")
    return "  ".join(words)


def _batch_json(stored: Stored, header: BatchHeader) -> str:
    values: dict[str, Any] = {
        "partition": stored.place.name,
        "path": stored.path,
        "position": stored.position,
        "bytes": stored.end - stored.position,
        "records": None if stored.is_closed else stored.rows().num_rows,
        **asdict(header),
    }
    return json_text({**values, "decision": f"{header.decision:032x}", "crc": f"{header.crc:08x}"})
