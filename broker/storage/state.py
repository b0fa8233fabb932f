"""What decides later appends and is not a record: kept beside the log, so that retention does not take it.

    state-00000000000000004711      named sections, true of all records below 4711

    [ ... segments that may be gone ... | batches whose headers are read ]
                                     4711                                log end

The state of now is the newest such file plus the headers of the batches after it.

T1  No file: no batch of the log has a stamp, no record an id. The first append with either writes one before anything
    else; so a log that no producer and no id ever came to is never scanned, and has no file.
T2  What a file says is durable in the log: it is written when all up to its offset has been fsynced.
T3  No batch is removed, or written anew, that only the scan would tell of: a file at or above its end is there first.
T4  A new file is durable before the older ones are removed. A damaged one is passed over: the scan begins
    at the next older one, or with the log.

File: magic `liftlogS`, uint32 format version, uint32 number of sections, uint64 offset; per section 16 bytes name
(ASCII, filled with zeros) and uint64 length; the sections' bytes in the same order; uint32 CRC-32C of all before it.
Little-endian.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Final

from crc32c import crc32c

from broker.api.errors import UnknownFormatVersion
from broker.storage.disk import Disk

FORMAT_VERSION: Final = 1
PRODUCERS: Final = "producers"
"""Section: a `ProducerTable`."""
IDS: Final = "ids"
"""Section: an `IdTable`. A file without it: no record below it has an id that is still in its window."""
SUBJECTS: Final = "subjects"
"""Section: a `SubjectTable`. A file without it: nobody has asked for the last records of subjects."""

_MAGIC: Final = b"liftlogS"
_HEAD: Final = struct.Struct("<8sIIQ")
_SECTION: Final = struct.Struct("<16sQ")
_CRC: Final = struct.Struct("<I")
_NAME: Final = re.compile(r"state-([0-9]{20})")


def state_name(offset: int) -> str:
    """Name of the file that holds the state as of `offset`."""
    return f"state-{offset:020d}"


def list_states(disk: Disk, folder: str) -> list[int]:
    """Offsets of the state files of a folder, the newest first."""
    return sorted((int(m[1]) for name in disk.listdir(folder) if (m := _NAME.fullmatch(name))), reverse=True)


def encode_state(offset: int, sections: Mapping[str, bytes]) -> bytes:
    """A state file."""
    parts = [_HEAD.pack(_MAGIC, FORMAT_VERSION, len(sections), offset)]
    for name, data in sections.items():
        assert name.isascii(), name
        assert 1 <= len(name) <= 16, name
        parts.append(_SECTION.pack(name.encode(), len(data)))
    body = b"".join([*parts, *sections.values()])
    return body + _CRC.pack(crc32c(body))


def decode_state(data: bytes, offset: int, *, where: str) -> dict[str, bytes] | None:
    """The sections of a state file; None when it is damaged, or not of this offset.

    Raises:
        UnknownFormatVersion: the CRC fits and the version is not ours.
    """
    if len(data) < _HEAD.size + _CRC.size:
        return None
    body = data[: -_CRC.size]
    magic, version, count, of = _HEAD.unpack_from(body)
    if magic != _MAGIC or _CRC.unpack(data[-_CRC.size :]) != (crc32c(body),):
        return None
    if version != FORMAT_VERSION:
        raise UnknownFormatVersion(
            f"{where}: format version {version}, this release reads {FORMAT_VERSION}", path=where, version=version
        )
    at = _HEAD.size + count * _SECTION.size
    if of != offset or at > len(body):
        return None
    sections = {}
    for i in range(count):
        name, length = _SECTION.unpack_from(body, _HEAD.size + i * _SECTION.size)
        sections[name.rstrip(b"\0").decode("ascii", "replace")] = body[at : at + length]
        at += length
    return sections if at == len(body) else None


def load_state(disk: Disk, folder: str, offset: int) -> dict[str, bytes] | None:
    """The sections of the file of `offset`, None when it is damaged. OSError passes through."""
    path = f"{folder}/{state_name(offset)}"
    return decode_state(disk.read_file(path), offset, where=path)


def save_state(disk: Disk, folder: str, offset: int, sections: Mapping[str, bytes], *, frees: bool = False) -> None:
    """Write the state as of `offset`, durably, and remove the other files (T4). OSError passes through."""
    disk.replace_file(f"{folder}/{state_name(offset)}", encode_state(offset, sections), frees=frees)
    for other in list_states(disk, folder):
        if other != offset:
            disk.unlink(f"{folder}/{state_name(other)}")
