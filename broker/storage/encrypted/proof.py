"""Whether keys are those of a log, before anything is written with them.

Those of another replica, or of before this one began anew, are of the same log by name, and unwrap. With them all that
is stored would be taken for changed, and what comes would be encrypted with a key that is not this log's.

    checkpoint    has the check value of the key that encrypts the log
    batches       if one opens the keys are the log's

F1  Keys that the checkpoint does not name are refused.
F2  A batch has to open, too: small files may have been put back together, from before the log began anew, a clean
    checkpoint among them. If the first batch of the newest segment does not, others are tried. Keys that open none of
    them are refused.
F3  A damaged batch says nothing, and neither does one that was written in clear.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from broker.api.batch import HEADER_BYTES
from broker.api.errors import BadBatch, UnknownFormatVersion, WrongKeys
from broker.api.schema import SCHEMA_BYTES
from broker.storage.disk import Disk
from broker.storage.encrypted.message import is_encrypted, stored_bytes, verify_stored
from broker.storage.recovery import RecoveryReport, list_segments, load_checkpoint
from broker.storage.segments.checkpoint import CHECKPOINT_FILE
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault

TRIED_COUNT: Final = 64
"""Batches of each segment, from its beginning."""


def check_keys(vault: Vault, disk: Disk, folder: str) -> None:
    """Refuse keys that are not those of the log in a folder.

    Raises:
        WrongKeys: they are another log's.
        UnknownFormatVersion: a later release wrote the checkpoint.
        OSError: the disk refuses, and nothing else tells.
    """
    checkpoint = load_checkpoint(disk, folder, RecoveryReport())
    named = "" if checkpoint is None else checkpoint.key
    if named and not vault.is_of(named):
        raise _wrong(folder, f"{CHECKPOINT_FILE} names another key")
    try:
        opens = _opens(vault, disk, folder)
    except OSError:
        if not named:
            raise
        return  # F1 alone: what cannot be read is for recovery
    if not opens:
        raise _wrong(folder, "no batch here opens with it")


def _wrong(folder: str, why: str) -> WrongKeys:
    return WrongKeys(
        f"{folder}: the files of keys are those of another replica, or of before this one began anew ({why}): bring"
        " back its own ones",
        path=folder,
    )


def _opens(vault: Vault, disk: Disk, folder: str) -> bool:
    """Whether a batch opens, or none says anything (F2, F3). OSError: none does, and the disk has refused some."""
    segments, is_refuted = list_segments(disk, folder), False
    refused: OSError | None = None
    for segment in segments[-1:] + segments[:-1]:
        try:
            for message in _whole(disk, segment):
                try:
                    vault.open_message(message)
                    return True
                except (BadBatch, UnknownFormatVersion):
                    is_refuted = True
        except OSError as error:
            refused = error
    if refused is not None and not is_refuted:
        raise refused
    return not is_refuted


def _whole(disk: Disk, segment: Segment) -> Iterator[bytes]:
    """The first encrypted batches of a segment that are not damaged. OSError passes through."""
    file = disk.open(segment.path, readonly=True)
    try:
        at, end = len(SCHEMA_BYTES), file.size()
        for _ in range(TRIED_COUNT):
            try:
                length = stored_bytes(file.pread(HEADER_BYTES, at))
                if at + length > end:
                    return
                message = file.pread(length, at)
            except BadBatch:
                return
            at += length
            with suppress(BadBatch, UnknownFormatVersion):
                verify_stored(message)
                if is_encrypted(message):
                    yield message
    finally:
        file.close()
