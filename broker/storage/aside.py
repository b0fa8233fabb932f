"""Read what was moved aside: the folder of a log that was given up for damage, and whose other batches are whole.

Nothing is known of such a log but its files: neither how far it was committed, nor whether another one took records of
it back. So whoever takes a batch of it compares the leader epochs (`mending.M1`). Of a log that was ever compacted
nothing is taken: its mark holds back no tombstones any more, and a deleted key would come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from broker.api.batch import verify_batch
from broker.api.errors import BadBatch, KeyMissing, LiftlogError
from broker.api.schema import SCHEMA_BYTES
from broker.storage.disk import Disk, File
from broker.storage.disk.overlay import OverlayDisk
from broker.storage.encrypted.keyfile import has_keys
from broker.storage.log import PartitionLog
from broker.storage.recovery import list_segments
from broker.storage.rewrite.clean_state import CLEAN_STATE_FILE, load_clean_state
from broker.storage.segments.checkpoint import LogIdentity, check_identity, read_identity
from broker.storage.segments.index import INDEX_CACHE
from broker.storage.segments.scan import scan
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.encrypted.keys import Keyring
    from broker.storage.encrypted.vault import Vault


def was_compacted(log: PartitionLog) -> bool:
    """Whether a record has ever gone from this log for a newer one, or may have.

    Raises:
        StorageFailed: the disk does not tell.
    """
    return log.state.superseded[0] > 0 or log.state.compacted_to > 0


def _may_be_compacted(disk: Disk, folder: str) -> bool:
    """Likewise, of a folder. OSError passes through."""
    if not disk.exists(f"{folder}/{CLEAN_STATE_FILE}"):
        return False  # nor has the log beside it been compacted
    state = load_clean_state(disk, folder)
    return (state.superseded_to, state.cleaned_to, state.tombstones_to) != (0, 0, 0)


def read_aside(
    disk: Disk,
    folder: str,
    start: int,
    end: int,
    identity: LogIdentity,
    *,
    bytes_max: int,
    is_encrypted: bool,
    keyring: Keyring | None = None,
) -> bytes:
    """Batches that follow one another, from the first whole one on that holds something of [start, end).

    Args:
        identity: Of the log beside it. Nothing comes of the folder of another one, whoever has put it there: it has
            keys of its own, and would open.
        bytes_max: At least one batch comes, if there is any; further ones while they fit.
        is_encrypted: The log beside it is. Then nothing comes of a folder that is not: anybody may have written it.
        keyring: Of the log beside it; without it nothing comes of one that is encrypted.
    Returns:
        None of them: no bytes. What cannot be read is passed over.
    """
    taken: list[bytes | memoryview] = []
    size, expected = 0, -1
    try:
        if not disk.exists(folder) or _may_be_compacted(disk, folder):
            return b""
        check_identity(read_identity(disk, folder), identity, folder=folder)
        vault = _vault_of(disk, folder, identity, keyring) if is_encrypted or has_keys(disk, folder) else None
        segments = list_segments(disk, folder)
        afters = [segment.base_offset for segment in segments[1:]] + [end]
        for segment, after in zip(segments, afters, strict=True):
            if segment.base_offset >= end or after <= start:
                continue
            for first, stop, message in _batches(disk, segment, start, end, vault):
                if taken and (first != expected or size + len(message) > bytes_max):
                    return b"".join(taken)
                taken.append(message)
                size, expected = size + len(message), stop
    except (OSError, LiftlogError):  # it may be removed meanwhile
        pass
    return b"".join(taken)


def _vault_of(disk: Disk, folder: str, identity: LogIdentity, keyring: Keyring | None) -> Vault:
    """Raises LiftlogError, OSError: the key for it is not here."""
    from broker.storage.encrypted.vault import Vault  # most brokers need none of it

    if keyring is None:
        raise KeyMissing(f"{folder}: its records are encrypted", path=folder)
    return Vault.open(OverlayDisk(disk), folder, identity, keyring, is_empty=False)


def _batches(
    disk: Disk, segment: Segment, start: int, end: int, vault: Vault | None
) -> list[tuple[int, int, bytes | memoryview]]:
    """The whole batches of a segment that hold something of [start, end): first offset, offset after it, message."""
    file = disk.open(segment.path, readonly=True)
    try:
        index = segment.index(disk)
        INDEX_CACHE.drop(segment.serial)
        if index is not None:
            entries = index.entries[max(0, index.find(start)) : index.find_from(end)]
            found, is_whole = _verified(file, entries, vault)
            if is_whole:
                return [each for each in found if each[1] > start]
        batches = scan(file, start=len(SCHEMA_BYTES), first_offset=segment.base_offset, where=segment.path).batches
        places = batches[(batches["next_offset"] > start) & (batches["first_offset"] < end)]
        found, _ = _verified(file, places, vault)
        return found
    finally:
        file.close()


def _verified(
    file: File, places: npt.NDArray[np.void], vault: Vault | None
) -> tuple[list[tuple[int, int, bytes | memoryview]], bool]:
    """The batches at these places that are whole, and whether all are."""
    found: list[tuple[int, int, bytes | memoryview]] = []
    for position, length in zip(places["position"].tolist(), places["length"].tolist(), strict=True):
        try:
            message: bytes | memoryview = file.pread(length, position)
            if vault is not None:
                message = vault.open_message(message)
            header = verify_batch(message)
        except (BadBatch, OSError):
            continue
        found.append((header.first_offset, header.next_offset, message))
    return found, len(found) == len(places)
