"""Which keys an encrypted log opens and seals with, where it is opened; and whether a folder has records to open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.errors import KeyMissing
from broker.storage.disk import Disk
from broker.storage.recovery import list_segments
from broker.storage.segments.checkpoint import LogIdentity, LogSettings, mark_encrypted
from broker.storage.segments.epochs import EPOCHS_FILE

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault


def vault_of(disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings) -> Vault:
    """What an encrypted log seals and opens with. Raises KeyMissing, WrongKeys, UnknownFormatVersion."""
    from broker.storage.encrypted.vault import Vault  # most brokers need none of it

    if settings.keyring is None:
        raise no_key(folder)
    is_empty = not holds_records(disk, folder)
    vault = Vault.open(disk, folder, identity, settings.keyring, is_empty=is_empty)
    mark_encrypted(disk, folder, identity)
    return vault


def no_key(folder: str) -> KeyMissing:
    """The error of who has no master key."""
    return KeyMissing(f"{folder}: its records are encrypted, and this process was given no master key", path=folder)


def holds_records(disk: Disk, folder: str) -> bool:
    """Whether something was appended there: a checkpoint was written before (`checkpoint.K4`)."""
    return bool(list_segments(disk, folder)) or disk.exists(f"{folder}/{EPOCHS_FILE}")
