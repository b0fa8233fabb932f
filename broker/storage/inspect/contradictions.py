"""Where stored bytes contradict each other: a batch and its rows, a segment and its index, commit groups, a gap.

Each function looks at one thing and says in words what does not fit, or None. No record is touched by itself: rows
are looked at as arrays, and of a batch only the two columns that its header speaks of are read.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.api.batch import BODY_LENGTH_AT, BUFFERS_AT, HEADER_BYTES, ROWS_AT, TEMPLATE, VALUE_AT
from broker.api.errors import LiftlogError
from broker.api.schema import SCHEMA
from broker.storage.disk import Disk, File
from broker.storage.encrypted.message import is_encrypted, verify_stored
from broker.storage.segments.checkpoint import Checkpoint
from broker.storage.segments.index import Entries, counted_entries, sealed_entries
from broker.storage.segments.scan import peek
from broker.storage.segments.segment import Segment

Batches = npt.NDArray[np.void]
Column = npt.NDArray[np.int64]
ENCRYPTED: Final = "it is encrypted, and no file with the key for it is beside it"
LOOKED_AT_BYTES_MAX: Final = 1 << 20
"""So much of a gap is read to say what stands there."""
_PLACES: Final = struct.Struct("<8q")  # of the first four buffers: validity and data of offset, then of timestamp


def wrong_rows(file: File, batch: np.void) -> str | None:
    """Hold a batch's offsets and timestamps against its header. `batch` is a row of `scan.FOUND`."""
    first, after = int(batch["first_offset"]), int(batch["next_offset"])
    return _wrong(_columns(file, int(batch["position"]), int(batch["length"]), after - first), batch)


def wrong_rows_in(message: bytes | memoryview, batch: np.void) -> str | None:
    """As `wrong_rows`, of a message that is in memory."""
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA)
    except pa.ArrowException as error:
        return f"Arrow cannot read its rows: {error}"
    return _wrong((rows.column("offset").to_numpy(), rows.column("timestamp").cast(pa.int64()).to_numpy()), batch)


def _wrong(found: tuple[Column, Column] | str, batch: np.void) -> str | None:
    first, after = int(batch["first_offset"]), int(batch["next_offset"])
    if isinstance(found, str):
        return found
    offsets, timestamps = found
    if len(offsets) > after - first:
        return f"holds {len(offsets)} rows in the offsets [{first}, {after})"
    if not len(offsets):
        return None
    if (np.diff(offsets) <= 0).any():
        return f"the offsets of its rows do not increase, from {int(offsets[int((np.diff(offsets) <= 0).argmax())])} on"
    if offsets[0] < first or offsets[-1] >= after:
        return f"its rows have the offsets {int(offsets[0])} to {int(offsets[-1])}, its header says [{first}, {after})"
    if timestamps.max() > batch["max_timestamp_us"]:
        return f"a timestamp is {timestamps.max()} us, above the greatest that the header names"
    return None


def _columns(file: File, position: int, length: int, rows_max: int) -> tuple[Column, Column] | str:
    head = file.pread(min(length, HEADER_BYTES + 16 * rows_max + 16), position)
    if is_encrypted(head):
        return ENCRYPTED
    if _is_plain(head):
        (count,) = struct.unpack_from("<q", head, ROWS_AT)
        _, _, offsets_at, offsets_bytes, _, _, times_at, times_bytes = _PLACES.unpack_from(head, BUFFERS_AT)
        ends = (offsets_at + offsets_bytes, times_at + times_bytes)
        if 0 <= count <= rows_max and min(offsets_at, times_at) >= 0 and HEADER_BYTES + max(ends) <= len(head):
            if min(offsets_bytes, times_bytes) < 8 * count:
                return f"says that it has {count} rows, its columns are shorter"
            offsets = np.frombuffer(head, "<i8", count, HEADER_BYTES + offsets_at)
            return offsets, np.frombuffer(head, "<i8", count, HEADER_BYTES + times_at)
    try:  # compressed, or otherwise laid out
        rows = pa.ipc.read_record_batch(pa.py_buffer(file.pread(length, position)), SCHEMA)
    except pa.ArrowException as error:
        return f"Arrow cannot read its rows: {error}"
    return rows.column("offset").to_numpy(), rows.column("timestamp").cast(pa.int64()).to_numpy()


def _is_plain(head: bytes) -> bool:
    """Whether a message has the layout of the template, in which the places of the buffers are fixed."""
    after = BODY_LENGTH_AT + 8
    return head[:BODY_LENGTH_AT] == TEMPLATE[:BODY_LENGTH_AT] and head[after:VALUE_AT] == TEMPLATE[after:VALUE_AT]


def wrong_index(
    disk: Disk, segment: Segment, batches: Batches, checkpoint: Checkpoint | None, *, is_sealed: bool
) -> str | None:
    """Hold a segment's index file against its batches (those that stay, as `scan.FOUND`).

    Args:
        is_sealed: Another segment follows, or an end marker: there must be an index, with its footer. Else it is
            the tail: as many entries count as the checkpoint says, and without its word none.
    """
    try:
        data = disk.read_file(segment.index_path)
    except FileNotFoundError:
        data = b""
    tail = checkpoint.tail if checkpoint else None
    if not is_sealed and tail is not None and tail.base_offset == segment.base_offset:
        entries = counted_entries(data, tail.entry_count, tail.entry_crc)
        if entries is None:  # sealed since, and perhaps written anew: its end marker may lie behind what was read
            entries = sealed_entries(data)
        if entries is not None:
            both = min(len(entries), len(batches))
            return _differing(entries[:both], batches[:both])
    else:
        entries = sealed_entries(data)
        if entries is not None:
            return _differing(entries, batches)
        if not is_sealed:
            return None
    return "its CRC does not fit" if data else "there is none"


def _differing(entries: Entries, batches: Batches) -> str | None:
    if len(entries) != len(batches):
        return f"lists {len(entries)} batches, the segment holds {len(batches)}"
    running = np.maximum.accumulate(batches["max_timestamp_us"])
    wrong = entries["max_timestamp_us"] != running
    for name in ("first_offset", "position", "length", "crc"):
        wrong |= entries[name] != batches[name]
    if not wrong.any():
        return None
    return f"{int(wrong.sum())} entries differ, the first at offset {int(batches['first_offset'][int(wrong.argmax())])}"


def wrong_groups(batches: Batches, base_offset: int, end_offset: int) -> npt.NDArray[np.intp]:
    """Which batches of a segment of [base, end) stand where their commit group does not allow it.

    A group with lost records beside it is excused.
    """
    if not len(batches):
        return np.zeros(0, np.intp)
    place, count = batches["group_index"].astype(np.int64), batches["group_count"].astype(np.int64)
    wrong = place >= count
    follows = batches["first_offset"][1:] == batches["next_offset"][:-1]
    is_next = (place[1:] == place[:-1] + 1) & (count[1:] == count[:-1])
    begins_new = (place[1:] == 0) & (place[:-1] == count[:-1] - 1)
    wrong[1:] |= follows & ~is_next & ~begins_new
    wrong[0] |= place[0] > 0 and int(batches["first_offset"][0]) == base_offset
    wrong[-1] |= place[-1] != count[-1] - 1 and int(batches["next_offset"][-1]) == end_offset
    return np.flatnonzero(wrong)


def what_stands_at(file: File, start: int, end: int) -> str:
    """Describe the bytes [start, end) of a segment, where no batch stands in its place."""
    data = file.pread(min(end - start, LOOKED_AT_BYTES_MAX), start)
    if not data.strip(b"\0"):
        return f"{end - start} bytes of zeros"
    head = peek(data[:HEADER_BYTES])
    if head is None:
        return f"{end - start} bytes that do not begin a batch"
    what = f"a batch of the offsets [{head.first_offset}, {head.next_offset})"
    if head.length > file.size() - start:
        return f"{what} that breaks off after {file.size() - start} of {head.length} bytes"
    try:
        verify_stored(file.pread(head.length, start))
    except LiftlogError:
        return f"{what} whose CRC-32C does not fit"
    return f"{what}, intact, where offsets must be greater"
