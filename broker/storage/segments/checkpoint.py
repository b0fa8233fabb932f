"""The small files beside a partition's segments: `partition.json` and `checkpoint`.

JSON, replaced atomically. `checkpoint` carries a CRC-32C of itself, since recovery stands on what it
says; a damaged one is treated as missing and reported.

K1  A checkpoint never promises what is not on disk: its recovery point was fsynced before.
K2  The clean mark is withdrawn, durably, before the first append after it.
K3  The log start offset is checkpointed before a segment below it is removed.
K4  A checkpoint is on disk before the first record is. So one that is missing beside records is damage: it knew the log
    start and the high watermark.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from broker.api.errors import CorruptLog, UnknownFormatVersion, WrongFolder
from broker.api.plain import is_offset, pairs_of_offsets, parse_json
from broker.api.stream import StreamSettings
from broker.api.validation import build
from broker.storage.disk import Disk

if TYPE_CHECKING:
    from broker.storage.encrypted.keys import Keyring

FORMAT_VERSION: Final = 1
PARTITION_FILE: Final = "partition.json"
CHECKPOINT_FILE: Final = "checkpoint"
OFFSET_MAX: Final = 1 << 62
"""No log gets there. Behind a greater one there would be no room for what is appended next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """Which partition of which stream of which cluster a folder holds."""

    cluster_id: str
    stream: str
    incarnation: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """When a log rolls and what it keeps. The meaning and units are those of `StreamSettings`.

    `producer_id_expiry_ms`: a producer that has not appended for so long is forgotten; `producer_ids_max`: so many are
    kept. Both are the broker's.
    `dedup_window_ms` 0: ids are not minded, and those that were are forgotten. `subjects_max` 0: likewise the last
    records of subjects.
    `is_sole_replica`: The log is the only one of its partition. Then high watermarks on disk, in checkpoints and in the
    headers of batches, prove what was committed; what is damaged is lost; and what a failed fsync left in memory is
    written again. With more replicas the others prove, and have, all that.
    `is_compacted`: Records may have gone for newer ones although no file says so (`clean_state`).
    `is_encrypted`: Records are encrypted on disk. `keyring`: the broker's master keys; None: it has none.
    """

    segment_bytes: int = 256 << 20
    segment_age_ms: int = 7 * 24 * 3_600_000
    retention_ms: int | None = None
    retention_bytes: int | None = None
    retention_records: int | None = None
    producer_id_expiry_ms: int = 7 * 24 * 3_600_000
    producer_ids_max: int = 1 << 16
    dedup_window_ms: int = 0
    dedup_ids_max: int = 1 << 22
    subjects_max: int = 1 << 20
    is_sole_replica: bool = True
    is_compacted: bool = False
    is_encrypted: bool = False
    keyring: Keyring | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, settings: StreamSettings, broker: LogSettings | None = None) -> LogSettings:
        """The part of a stream's settings that storage acts on; what is not a stream's is taken from `broker`."""
        broker = broker or cls()
        by_retention = settings.cleanup != "compact"
        return cls(
            segment_bytes=settings.segment_bytes,
            segment_age_ms=settings.segment_age_ms,
            retention_ms=settings.retention_ms if by_retention else None,
            retention_bytes=settings.retention_bytes if by_retention else None,
            retention_records=settings.retention_records if by_retention else None,
            producer_id_expiry_ms=broker.producer_id_expiry_ms,
            producer_ids_max=broker.producer_ids_max,
            dedup_window_ms=settings.dedup_window_ms,
            dedup_ids_max=settings.dedup_ids_max,
            subjects_max=settings.subjects_max,
            is_sole_replica=broker.is_sole_replica,
            is_compacted=settings.cleanup != "delete",
            is_encrypted=settings.encryption is not None,
            keyring=broker.keyring,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TailPoint:
    """The segment that is appended to, as far as its index file was written.

    Attributes:
        base_offset: Names the segment.
        created_us: When its first batch was appended; decides its age.
        entry_count, entry_crc: So many entries of the index file are good, and this is their CRC-32C.
        bytes: Length of the segment file. Says something only beside a clean mark.
    """

    base_offset: int
    created_us: int
    entry_count: int
    entry_crc: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All that a log knows of itself without reading its segments.

    Attributes:
        recovery_point: Everything below is on disk (K1); also the log end offset beside a clean mark.
        leader_epoch: The last record's, -1 when there was none.
        tail: None when the last segment is sealed, or there is none.
        lost_ranges: Half-open ranges of offsets that were fsynced and are damaged on disk.
        clean_boot_id: The machine's boot id when the log was closed cleanly; None: it is open, or was killed.
        ages: (microseconds, end): all below `end` had been here for so long (`ages.A3`). Other ages are nothing new.
        key: The check value of the key that encrypts the log (`Vault.check`); empty: it is not encrypted.
    """

    high_watermark: int = 0
    log_start_offset: int = 0
    recovery_point: int = 0
    leader_epoch: int = -1
    tail: TailPoint | None = None
    lost_ranges: tuple[tuple[int, int], ...] = ()
    clean_boot_id: str | None = None
    ages: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    key: str = field(default="", compare=False)

    def encode(self) -> bytes:
        values = {name: getattr(self, name) for name in _NAMES if name not in _LEFT_OUT or getattr(self, name)}
        return seal_json({**values, "tail": None if self.tail is None else asdict(self.tail)})

    @classmethod
    def decode(cls, data: bytes, *, where: str) -> Checkpoint | None:
        """The checkpoint, or None when the file is damaged, or says what cannot be.

        Raises:
            UnknownFormatVersion: a later release wrote it.
        """
        values = open_json(data, where=where)
        if values is None:
            return None
        try:
            if (tail := values.pop("tail", None)) is not None:
                tail = build(TailPoint, tail)
            lost = pairs_of_offsets(values.pop("lost_ranges", []))
            ages = pairs_of_offsets(values.pop("ages", []))
            found = build(cls, {**values, "lost_ranges": lost, "tail": tail, "ages": ages})
        except ValueError:
            return None
        return found if found._can_be() else None

    def _can_be(self) -> bool:
        offsets = [self.high_watermark, self.log_start_offset, self.recovery_point]
        if self.tail is not None:
            offsets += [self.tail.base_offset, self.tail.entry_count, self.tail.bytes]
        return (
            all(map(is_offset, offsets))
            and max(self.high_watermark, self.recovery_point) <= OFFSET_MAX
            and self.log_start_offset <= self.high_watermark
            and (self.clean_boot_id is None or self.high_watermark <= self.recovery_point)
            and -1 <= self.leader_epoch < 1 << 32
            and all(start < end for start, end in self.lost_ranges)
            and all(a >= b and c <= d for (a, c), (b, d) in pairwise(self.ages))
        )


_NAMES: Final = tuple(each.name for each in fields(Checkpoint))
_LEFT_OUT: Final = {"ages", "key"}
"""Where they say nothing."""


ENCRYPTED_VERSION: Final = 2
"""Of `partition.json` beside encrypted records. A release that knows nothing of them takes each for damage, cuts the
log and says that its records are lost. So it has to find a version that it does not read."""


def write_identity(disk: Disk, folder: str, identity: LogIdentity, *, version: int = FORMAT_VERSION) -> None:
    """Write `partition.json`: for the next open, and for an operator who finds the folder."""
    values = {"format_version": version, **asdict(identity)}
    disk.replace_file(f"{folder}/{PARTITION_FILE}", json.dumps(values, indent=1).encode() + b"\n")


def read_identity(disk: Disk, folder: str) -> LogIdentity:
    """Read `partition.json`.

    Raises:
        WrongFolder: there is none.
        UnknownFormatVersion: a later release wrote the folder.
        CorruptLog: it cannot be read.
    """
    return read_marked(disk, folder)[0]


def read_marked(disk: Disk, folder: str) -> tuple[LogIdentity, bool]:
    """As `read_identity`, and whether `mark_encrypted` was there."""
    identity, version = _identity_and_version(disk, folder)
    return identity, version == ENCRYPTED_VERSION


def mark_encrypted(disk: Disk, folder: str, identity: LogIdentity) -> None:
    """Have earlier releases refuse a folder (`ENCRYPTED_VERSION`). Raises as `read_identity`, and OSError."""
    if not read_marked(disk, folder)[1]:
        write_identity(disk, folder, identity, version=ENCRYPTED_VERSION)


def is_marked_encrypted(disk: Disk, folder: str) -> bool:
    """Whether `mark_encrypted` was there. A folder that does not tell is not. OSError passes through."""
    try:
        return read_marked(disk, folder)[1]
    except CorruptLog:
        return False


def names_a_key(disk: Disk, folder: str) -> bool:
    """Whether the checkpoint is of an encrypted log. One that does not tell is not. OSError passes through."""
    path = f"{folder}/{CHECKPOINT_FILE}"
    try:
        found = Checkpoint.decode(disk.read_file(path), where=path)
    except (FileNotFoundError, CorruptLog):
        return False
    return found is not None and bool(found.key)


def _identity_and_version(disk: Disk, folder: str) -> tuple[LogIdentity, int]:
    path = f"{folder}/{PARTITION_FILE}"
    try:
        data = disk.read_file(path)
    except FileNotFoundError as error:
        raise WrongFolder(f"{folder}: no {PARTITION_FILE}, so this is not a partition's folder", path=folder) from error
    try:
        values = parse_json(data)
        version = values.pop("format_version")
        if version in (FORMAT_VERSION, ENCRYPTED_VERSION):
            return build(LogIdentity, values), version
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise CorruptLog(f"{path} is damaged: {error}", path=path) from error
    raise UnknownFormatVersion(
        f"{path}: format version {version}, this release reads {FORMAT_VERSION} and {ENCRYPTED_VERSION}",
        path=path,
        version=version,
    )


def check_identity(found: LogIdentity, expected: LogIdentity, *, folder: str) -> None:
    """Raise WrongFolder, naming the first field that differs."""
    if found == expected:
        return
    for name, value in asdict(expected).items():
        if (there := getattr(found, name)) != value:
            raise WrongFolder(
                f"{folder} belongs to {name} {there!r}, not {value!r}",
                path=folder,
                field=name,
                found=there,
                expected=value,
            )


def seal_json(values: dict[str, Any]) -> bytes:
    """One line of JSON, a space, the CRC-32C of what stands before it."""
    body = json.dumps({"format_version": FORMAT_VERSION, **values}, separators=(",", ":")).encode()
    return b"%s %08x\n" % (body, crc32c(body))


def open_json(data: bytes, *, where: str) -> dict[str, Any] | None:
    """The values of `seal_json`, or None when the CRC does not fit, or does and it is no such object.

    Raises:
        UnknownFormatVersion: the CRC fits and the format version is not ours.
    """
    body, _, digits = data.rstrip(b"\n").rpartition(b" ")
    if b"%08x" % crc32c(body) != digits:
        return None
    try:
        values = parse_json(body)
    except ValueError:
        return None
    if not isinstance(values, dict):
        return None
    version = values.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise UnknownFormatVersion(
            f"{where}: format version {version}, this release reads {FORMAT_VERSION}", path=where, version=version
        )
    return values
