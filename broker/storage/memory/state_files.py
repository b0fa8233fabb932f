"""Files beside the log with all that decides later appends and is not a record, so that retention spares it.

    state-00000000000000004711      named sections, true of all records below 4711

    [ ... segments that may be gone ... | batches whose headers are read ]
                                     4711                                log end

The state of now is the newest such file plus the headers of the batches after it.

T1  No file in a log that is the only one: no batch has a stamp, no record an id. The first append with either writes
    one before anything else; so a log that no producer and no id ever came to is never scanned, and has no file.
T2  A file tells only of records that are durable in the log: it is written when all up to its offset has been fsynced.
T3  No batch is removed, or written anew, that only the scan would tell of: a file at or above its end is there first,
    and with more than one replica that file is committed: a truncation may take others.
T4  A new file is durable before older ones are removed. A damaged one is passed over: the scan begins
    at the next older one, or with the log.
T5  The newest file at or below the high watermark stays. Those above a truncation go with the records that they tell
    of, and the tables are built from that one and the log: nothing is cut out of a table.
T6  Where there are other replicas a log that is not empty and has no file *lacks* one: records that were copied, or
    that it begins above, may have told what no record tells any more. It lets nothing go, has nothing written anew, and
    is not taken for in sync before it has one of its leader (`handover`). If it has to lead all the same, it tells
    what its log tells.

File: magic `liftlogS`, uint32 format version, uint32 number of sections, uint64 offset; per section 16 bytes name
(ASCII, filled with zeros) and uint64 length; the sections' bytes in the same order; uint32 CRC-32C of all before it.
Little-endian.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from broker.api.errors import UnknownFormatVersion
from broker.storage.disk import Disk

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault

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


def load_state(disk: Disk, folder: str, offset: int, vault: Vault | None = None) -> dict[str, bytes] | None:
    """The sections of the file of `offset`, None when it is damaged. OSError passes through."""
    path = f"{folder}/{state_name(offset)}"
    data = _opened(disk.read_file(path), offset, vault)
    return None if data is None else decode_state(data, offset, where=path)


def _opened(data: bytes, offset: int, vault: Vault | None) -> bytes | None:
    return data if vault is None else vault.open_file(data, state_name(offset))


class StateFiles:
    """The state files of one log. Not thread-safe, but for `save`: the log's append lock covers it.

    Args:
        vault: Gives what they are encrypted with.
    """

    __slots__ = ("_disk", "_folder", "_lock", "_offsets", "_vault")

    def __init__(self, disk: Disk, folder: str, vault: Callable[[], Vault | None] = lambda: None) -> None:
        self._vault = vault
        self._disk = disk
        self._folder = folder
        self._offsets: list[int] | None = None  # None: not listed yet
        self._lock = threading.Lock()  # innermost: one file is written at a time

    def look(self) -> None:
        """List them, if nobody has: without the append lock (`state.L10`). OSError passes through."""
        if self._offsets is None:
            with self._lock:
                _ = self.offsets

    @property
    def offsets(self) -> list[int]:
        """The offsets of all state files, the newest first. OSError passes through."""
        if self._offsets is None:
            self._offsets = list_states(self._disk, self._folder)
        return self._offsets

    def load(self, offset: int) -> dict[str, bytes] | None:
        """The sections of the file of `offset`, None when it is damaged. OSError passes through."""
        return load_state(self._disk, self._folder, offset, self._vault())

    def save(
        self,
        offset: int,
        sections: Mapping[str, bytes],
        *,
        high_watermark: int,
        anew: bool = False,
        frees: bool = False,
    ) -> bool:
        """Write the state as of `offset`, durably, and remove older files that nothing needs any more (T4, T5).

        Args:
            high_watermark: The log's.
            anew: Also over one of the same offset.
            frees: As `Disk.replace_file` takes it.
        Returns:
            False: a newer one came first; nothing was written.
        """
        with self._lock:
            there = self.offsets
            if there and offset + anew <= there[0]:
                return False
            self._put(offset, sections, high_watermark, frees=frees)
            return True

    def put(self, offset: int, sections: Mapping[str, bytes], *, high_watermark: int = 0, frees: bool = False) -> None:
        """As `save`, where newer ones may be there."""
        with self._lock:
            self._put(offset, sections, high_watermark, frees=frees)

    def piece(self, offset: int, at: int, length: int) -> tuple[bytes, int]:
        """At most `length` bytes of the file of `offset` from `at` on, and its size; of what an encrypted one is made
        of, and 0 if that is damaged. OSError passes through."""
        if (vault := self._vault()) is not None:
            data = _opened(self._disk.read_file(f"{self._folder}/{state_name(offset)}"), offset, vault) or b""
            return data[at : at + max(0, length)], len(data)
        file = self._disk.open(f"{self._folder}/{state_name(offset)}", readonly=True)
        try:
            size = file.size()
            return bytes(file.pread(max(0, min(length, size - at)), at)), size
        finally:
            file.close()

    def install(self, offset: int, data: bytes) -> None:
        """Write a whole file that another log has made, durably. OSError passes through."""
        with self._lock:
            self._disk.replace_file(f"{self._folder}/{state_name(offset)}", self._stored(data, offset))
            self._offsets = sorted({offset, *self.offsets}, reverse=True)

    def drop(self, offset: int) -> None:
        """Remove one, if it is there."""
        with self._lock:
            self._drop([known for known in self.offsets if known == offset])

    def drop_all(self) -> None:
        """Remove all, before anything else is done."""
        with self._lock:
            self._drop(self.offsets)
            self._disk.sync_dir(self._folder)

    def drop_above(self, end: int) -> None:
        """Remove the files that tell of records at or above `end`: others may take their offsets."""
        with self._lock:
            self._drop([offset for offset in self.offsets if offset > end])

    def forget(self) -> None:
        """List them anew when they are needed."""
        with self._lock:
            self._offsets = None

    def _put(self, offset: int, sections: Mapping[str, bytes], high_watermark: int, *, frees: bool) -> None:
        path, there = f"{self._folder}/{state_name(offset)}", self.offsets
        self._disk.replace_file(path, self._stored(encode_state(offset, sections), offset), frees=frees)
        there = self._offsets = sorted({offset, *there}, reverse=True)
        committed = next((number for number, other in enumerate(there) if other <= high_watermark), len(there))
        self._drop(there[committed + 1 :])

    def _stored(self, data: bytes, offset: int) -> bytes:
        vault = self._vault()
        return data if vault is None else vault.encrypt_file(data, state_name(offset))

    def _drop(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self._disk.unlink(f"{self._folder}/{state_name(offset)}")
            self._offsets = [known for known in self.offsets if known != offset]
