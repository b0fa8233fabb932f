"""The streams of this broker: what the catalog says of them, opened on this disk.

    catalog.log                               streams, producers, brokers (`CatalogStore`)
    streams/<name>/<incarnation>/<number>/    one partition's log each

S1  A folder is made before the catalog names its partition, and removed after the catalog has
    forgotten it: what the catalog names and the disk does not have was lost, not never made.
S2  A stream that cannot be opened is offline: it answers why. Only without the broker's own there
    is no start. Where the disk refused, it is tried again; a folder that is missing or damaged
    waits for somebody who puts it right, and for a command: a copy that is only half restored must
    not be opened.
S3  A partition is open before the catalog names it; so what a command has made is there as soon as
    it is answered.
S4  A log that cannot be taken in is closed: no folder is open twice.

Opening, making and removing touch the disk, and block; the rest answers from memory. Only the control loop changes
anything (`broker.runtime.partitions.control`).
"""

from __future__ import annotations

import copy
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from broker.api.answers import LeaderAddress
from broker.api.errors import CorruptLog, LiftlogError, Retryable, UnknownPartition, UnknownStream
from broker.api.stream import ACTIVITY_STREAM, AUDIT_STREAM, COMMITS_STREAM, OFFSETS_STREAM, StreamSettings, new_values
from broker.metadata.catalog import COMMAND_VERSION, StreamInfo
from broker.runtime.background.compactor import Chores
from broker.runtime.background.disk_reserve import Room
from broker.runtime.config.configuration import Config
from broker.runtime.config.master_keys import check_encryption, load_keyring
from broker.runtime.config.settings import ActivityConfig, AuditConfig
from broker.runtime.elapsed import MACHINE, elapsed_us, wall_us
from broker.runtime.partitions.catalog_store import CatalogStore
from broker.runtime.partitions.leader import Partition
from broker.runtime.partitions.open_logs import OpenLogs
from broker.runtime.partitions.orphans import remove_folder
from broker.runtime.partitions.replica import Replica
from broker.runtime.partitions.sync import SyncPool
from broker.runtime.partitions.watch import ChangeHub
from broker.serving.contract.backend import Whereabouts
from broker.storage.disk import Disk, storage_error
from broker.storage.folder import DataFolder, partition_folder
from broker.storage.log import PartitionLog
from broker.storage.rewrite.coalescing import CoalescingSettings
from broker.storage.rewrite.compaction import CompactionSettings
from broker.storage.segments.checkpoint import PARTITION_FILE, LogIdentity, LogSettings

log = logging.getLogger(__name__)

REMOVE_TRIES: Final = 3
COMMITS_SETTINGS: Final[dict[str, Any]] = {
    "subject": None,
    "retention_ms": None,
    "retention_bytes": None,
    "retention_records": None,
    "segment_bytes": 16 << 20,
    "fsync": "batch",
}
OFFSETS_SETTINGS: Final[dict[str, Any]] = {
    "subject": None,
    "cleanup": "compact",
    "retention_ms": None,
    "segment_bytes": 16 << 20,
}

AUDIT_RETENTION: Final = ("retention_ms", "retention_bytes", "segment_bytes", "segment_age_ms")
"""Settings that follow the configuration, of the stream `__audit` that is there already, too."""
AUDIT_SCHEMA: Final = (
    "id STRING, at TIMESTAMP, kind STRING, principal STRING, how STRING, token STRING, address STRING, broker STRING,"
    " operation STRING, resource MAP<STRING, STRING>, asked MAP<STRING, STRING>, result STRING, reason STRING,"
    " status INT, count BIGINT"
)
"""Of the values, for readers that ask for columns."""


ACTIVITY_SCHEMA: Final = (
    "id BIGINT, op STRING, name STRING, partitions ARRAY<INT>, read_only BOOLEAN, `group` STRING, consumer STRING,"
    " streams ARRAY<STRING>, expired BOOLEAN"
)


def activity_settings(config: ActivityConfig) -> dict[str, Any]:
    """As `audit_settings`."""
    return {**_kept_for_a_time(config), "payload_schema": ACTIVITY_SCHEMA}


def audit_settings(config: AuditConfig) -> dict[str, Any]:
    """The settings of the stream: its records go by time and by bytes, so that no disk is filled by them."""
    return {**_kept_for_a_time(config), "payload_schema": AUDIT_SCHEMA}


def _kept_for_a_time(config: AuditConfig | ActivityConfig) -> dict[str, Any]:
    return {
        "subject": None,
        "cleanup": "delete",
        "retention_ms": config.retention_ms,
        "retention_bytes": config.retention_bytes,
        "retention_records": None,
        "segment_bytes": min(16 << 20, max(1 << 16, config.retention_bytes // 8)),
        "segment_age_ms": min(24 * 3_600_000, max(1_000, config.retention_ms // 8)),
        "fsync": "batch",
    }


class Streams:
    """The catalog's streams and their open partitions.

    Args:
        folder: The data folder, locked.
        store: The catalog.
        pool, appender, hub: For the partitions.
        room: For those of users.
        open_logs: Bounds their descriptors.
    """

    def __init__(
        self,
        config: Config,
        disk: Disk,
        folder: DataFolder,
        store: CatalogStore,
        *,
        pool: SyncPool,
        appender: Executor,
        hub: ChangeHub,
        room: Room,
        open_logs: OpenLogs,
    ) -> None:
        self.store = store
        self.by_name: dict[str, list[Partition]] = {}  # the open ones
        self.offline: dict[str, LiftlogError] = {}  # the others, and why
        self._leader_epoch: int | None = None  # none before `lead`
        self._config = config
        self.keyring = load_keyring(config.encryption)
        self._disk = disk
        self._folder = folder
        self._root = Path(config.data_dir) / "streams"
        self._pool = pool
        self._appender = appender
        self._hub = hub
        self._room = room
        self._open_logs = open_logs

    # --- what there is --------------------------------------------------------------------------------------

    def infos(self, *, internal: bool = False) -> list[StreamInfo]:
        """All streams by name; internal ones only if asked for."""
        live = self.store.catalog.streams
        return [live[name] for name in sorted(live) if internal or not live[name].internal]

    def info(self, name: str) -> StreamInfo:
        """One stream. Raises UnknownStream."""
        info = self.store.catalog.streams.get(name)
        if info is None:
            raise UnknownStream(f"no stream {name!r}", stream=name)
        return info

    def incarnation_of(self, name: str) -> str | None:
        """The stream's incarnation by the catalog, whether it is open or not; None: there is no such stream."""
        info = self.store.catalog.streams.get(name)
        return None if info is None else info.incarnation

    def partitions(self, stream: str) -> list[Partition]:
        """The partitions of a stream. Raises UnknownStream, or why the stream is offline."""
        found = self.by_name.get(stream)
        if found is None:
            self.info(stream)
            # A copy: raised again and again, one and the same error would keep the frames of all who met it.
            raise copy.copy(self.offline.get(stream, UnknownStream(f"stream {stream!r} is not open", stream=stream)))
        return found

    def partition(self, stream: str, partition: int) -> Partition:
        """One partition. Raises UnknownStream, UnknownPartition."""
        found = self.partitions(stream)
        if not 0 <= partition < len(found):
            raise UnknownPartition(
                f"stream {stream!r} has no partition {partition}, it has {len(found)}",
                stream=stream,
                partition=partition,
                partitions=len(found),
            )
        return found[partition]

    def reader(self, stream: str, partition: int) -> Partition:
        """As `partition`: this broker leads all."""
        return self.partition(stream, partition)

    def nearest(self, stream: str, partition: int, rack: str) -> str | None:
        """There is no other replica."""
        return None

    def whereabouts(self, stream: str) -> list[Whereabouts]:
        """The brokers that keep the partitions of a stream: this one, as it is alone. Raises UnknownStream."""
        return [self.where(stream, number) for number in range(self.info(stream).settings.partitions)]

    def where(self, stream: str, partition: int) -> Whereabouts:
        """As `whereabouts`, of one. Raises UnknownStream, UnknownPartition."""
        self.info(stream).check_partition(partition)
        me = self._config.broker_id
        known = self.store.catalog.brokers.get(me)
        leader = None if known is None else LeaderAddress(id=me, http=known.http)
        epoch = -1 if known is None else known.registration
        return Whereabouts(partition=partition, leader=leader, replicas=(me,), isr=(me,), leader_epoch=epoch)

    def all_partitions(self) -> list[Partition]:
        """The partitions of all streams that are open."""
        return [p for partitions in list(self.by_name.values()) for p in partitions]

    def chores(self) -> Iterator[Chores]:
        """The partitions whose sealed segments are written anew, and how."""
        for info in list(self.store.catalog.streams.values()):
            compaction, coalescing = CompactionSettings.of(info.settings), CoalescingSettings.of(info.settings)
            if compaction is not None or coalescing is not None:
                yield from (Chores(partition, compaction, coalescing) for partition in self.by_name.get(info.name, ()))

    def check_room(self, *, streams: int = 0, partitions: int = 0) -> None:
        """Whether so many may be added: folders take space too. Raises InvalidRequest, DiskFull."""
        exist = sum(not info.internal for info in list(self.store.catalog.streams.values()))
        total = sum(map(len, list(self.by_name.values()))) + partitions
        self._config.limits.check(streams=exist + streams if streams else 0, partitions=total)
        self._room.check()

    # --- open, make, remove: on the disk ----------------------------------------------------------------------

    def open_all(self) -> None:
        """Open what the catalog names; make the broker's own streams if need be.

        Raises:
            LiftlogError: one of the broker's own cannot be opened.
        """
        for name, settings in ((OFFSETS_STREAM, OFFSETS_SETTINGS), (COMMITS_STREAM, COMMITS_SETTINGS)):
            if name not in self.store.catalog.streams:
                command = self.create_command(name, settings, internal=True)
                self.make_folders(name, command["incarnation"], [0])
                self.store.execute(command)
        if self.store.catalog.streams[OFFSETS_STREAM].settings.cleanup != "compact":  # an earlier release made it
            values = {"cleanup": "compact"}
            self.store.execute(
                {"v": COMMAND_VERSION, "kind": "alter_stream", "name": OFFSETS_STREAM, "settings": values}
            )
        for info in list(self.store.catalog.streams.values()):
            self.bring_up(info, lambda partitions: None)
        for name in (OFFSETS_STREAM, COMMITS_STREAM):
            if name in self.offline:
                raise self.offline[name]

    def epoch_seen(self) -> int:
        """The greatest leader epoch of any record in the open logs; -1: there is none."""
        return max((partition.log.epochs.latest for partition in self.all_partitions()), default=-1)

    def lead(self, leader_epoch: int) -> None:
        """Lead all partitions, those that are opened later too, under an epoch that the catalog gave out."""
        self._leader_epoch = leader_epoch
        for partition in self.all_partitions():
            partition.lead(leader_epoch)

    def bring_up_audit(self) -> None:
        """`__audit`: see `_bring_up_own`."""
        self._bring_up_own(AUDIT_STREAM, audit_settings(self._config.audit))

    def bring_up_activity(self) -> None:
        """`__activity`, likewise."""
        self._bring_up_own(ACTIVITY_STREAM, activity_settings(self._config.activity))

    def _bring_up_own(self, name: str, settings: Mapping[str, Any]) -> None:
        """Make a stream, or have it go by the configuration; once this broker leads. It starts without it where that
        cannot be done: on a disk that is full somebody has to make room."""
        known = self.store.catalog.streams.get(name)
        try:
            if known is None:
                command = self.create_command(name, settings, internal=True)
                self.make_folders(name, command["incarnation"], [0])
                self.store.execute(command)
                self.bring_up(self.info(name), lambda partitions: None)
            elif changed := {
                key: settings[key] for key in AUDIT_RETENTION if settings[key] != known.settings.as_dict()[key]
            }:
                self.store.execute({"v": COMMAND_VERSION, "kind": "alter_stream", "name": name, "settings": changed})
                for partition in self.by_name.get(name, ()):
                    partition.alter(self.info(name))
        except (LiftlogError, OSError) as error:
            log.error("stream.own_not_made stream=%s error=%s", name, error)

    def bring_up(self, info: StreamInfo, take_in: Callable[[Sequence[Partition]], None]) -> bool:
        """Open a stream, or note why it is offline (S2).

        Args:
            take_in: Called with the partitions before anybody else sees them.
        Returns:
            Whether it is open.
        """
        try:
            partitions = self.open_partitions(info, range(info.settings.partitions))
            try:
                take_in(partitions)
            except BaseException:
                self._close(partitions)  # S4
                raise
        except LiftlogError as error:
            before = self.offline.get(info.name)
            error.fields |= {"stream": info.name, "offline": True}  # told here, not again at each request
            self.offline[info.name] = error
            if before is None or before.reason != error.reason:
                log.error("stream.offline stream=%s reason=%s error=%s", info.name, error.reason, error)
            return False
        self.by_name[info.name] = partitions
        if self.offline.pop(info.name, None) is not None:
            log.info("stream.online stream=%s", info.name)
        return True

    def refused_by_disk(self) -> list[StreamInfo]:
        """The offline streams that may be tried again unasked (S2)."""
        return [self.info(name) for name, error in list(self.offline.items()) if isinstance(error, Retryable)]

    def prepare(self, info: StreamInfo, numbers: Sequence[int]) -> list[Partition]:
        """Make and open partitions that the catalog does not name yet (S1, S3).

        Raises:
            LiftlogError: none is open; folders may be left.
        """
        try:
            self.make_folders(info.name, info.incarnation, numbers)
        except OSError as error:
            raise storage_error(error, f"make stream {info.name!r}") from error
        return self.open_partitions(info, numbers)

    def open_partitions(self, info: StreamInfo, numbers: Iterable[int]) -> list[Partition]:
        """Open some partitions of a stream, all or none (S4). Raises LiftlogError."""
        opened: list[Partition] = []
        settings = self._log_settings(info.settings)
        try:
            for number in numbers:
                opened.append(self._open_partition(info, number, settings))
        except BaseException as error:
            self._close(opened)
            if isinstance(error, OSError):
                raise storage_error(error, f"open stream {info.name!r}") from error
            raise
        return opened

    def _open_partition(self, info: StreamInfo, number: int, settings: LogSettings) -> Partition:
        opened = PartitionLog.open(
            self._disk,
            self._folder_of(info.name, info.incarnation, number),
            settings,
            boot_id=self._folder.boot_id(),
            now_us=elapsed_us(),
            expected=self._identity(info.name, info.incarnation, number),
        )
        report = opened.state.recovery
        if not report.clean:
            log.log(
                logging.ERROR if report.lost else logging.INFO,
                "partition.recovered partition=%s/%d scanned_bytes=%d cut_bytes=%d lost=%s rebuilt_indexes=%d notes=%s",
                info.name,
                number,
                report.scanned_bytes,
                report.cut_bytes,
                report.lost,
                len(report.rebuilt_indexes),
                report.notes,
            )
        try:
            if self._leader_epoch is not None and opened.epochs.latest >= self._leader_epoch:
                raise CorruptLog(
                    f"{info.name}/{number} has records of leader epoch {opened.epochs.latest}, the broker leads under"
                    f" {self._leader_epoch}: the folder or the catalog was restored; restart the broker"
                )
            if opened.state.high_watermark < opened.state.log_end_offset:
                # Acked before a crash, or about to be: with one replica it is committed once it is synced.
                opened.state.advance_high_watermark(opened.syncer.sync())
            replica = Replica(
                info,
                number,
                opened,
                appender=self._appender,
                hub=self._hub,
                clocks=MACHINE,
                room=self._room.own if info.internal else self._room.users,
                open_logs=self._open_logs,
            )
            epoch = -1 if self._leader_epoch is None else self._leader_epoch
            return Partition(info, replica, leader_epoch=epoch, pool=self._pool, appender=self._appender)
        except BaseException:
            with suppress(LiftlogError, OSError):
                opened.close(clean=False)
            raise

    def make_folders(self, name: str, incarnation: str, numbers: Iterable[int]) -> None:
        """Make the folders of new partitions (S1).

        One that is there already was made by an attempt that got no further; it is empty, and taken or finished. The
        fsync of its name may be what failed, so all names are fsynced anew: a power cut must not take a folder that the
        catalog names.
        """
        settings = self._log_settings(self._config.defaults)
        for number in numbers:
            if self._disk.exists(f"{self._folder_of(name, incarnation, number)}/{PARTITION_FILE}"):
                self._disk.sync_dir(self._folder_of(name, incarnation, number))
                continue
            created = PartitionLog.create(
                self._disk,
                self._folder_of(name, incarnation, number),
                self._identity(name, incarnation, number),
                settings,
                boot_id=self._folder.boot_id(),
                now_us=elapsed_us(),
            )
            created.close(clean=True)
        own = self._folder_of(name, incarnation)
        if self._disk.exists(own):  # else no partition is new
            for folder in (own, str(self._root / name), str(self._root)):
                self._disk.sync_dir(folder)

    def discard(self, info: StreamInfo, partitions: Sequence[Partition], *, remove: bool) -> None:
        """Close what `prepare` made, and remove the folder of the incarnation if nobody knows of it."""
        self._close(partitions)
        if remove:
            try:
                remove_folder(self._disk, str(self._root), info.name, info.incarnation)
            except OSError as error:
                log.warning("stream.folder_left path=%s/%s error=%s", info.name, info.incarnation, error)

    def remove(self, info: StreamInfo, partitions: Sequence[Partition]) -> bool:
        """Close the partitions of a deleted stream, and remove its folder. Returns whether that is gone, durably."""
        self._close(partitions)  # nobody opens it again
        for left in range(REMOVE_TRIES - 1, -1, -1):  # a checkpoint under way may put a file into it once more
            try:
                remove_folder(self._disk, str(self._root), info.name, info.incarnation)
                return True
            except OSError as error:
                if not left:
                    log.warning("stream.folder_left path=%s/%s error=%s", info.name, info.incarnation, error)
        return False

    def _close(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            try:
                partition.log.close(clean=False)
            except (LiftlogError, OSError) as error:  # it goes anyway, or is opened anew
                log.info("partition.close_failed partition=%s error=%s", partition, error)

    def create_command(self, name: str, values: Mapping[str, Any], *, internal: bool) -> dict[str, Any]:
        """The catalog's command that makes a stream, with the defaults of the configuration filled in."""
        existing = self.store.catalog.streams.get(name)
        return {
            "v": COMMAND_VERSION,
            "kind": "create_stream",
            "name": name,
            "incarnation": uuid.uuid4().hex,
            "created_us": wall_us(),
            "settings": new_values(values, self._config.defaults, existing.settings if existing else None),
            "internal": internal,
        }

    def close(self) -> None:
        """Mark all logs clean and close them, and the catalog."""
        for partition in self.all_partitions():
            try:
                partition.log.close(clean=True)
            except (LiftlogError, OSError) as error:
                log.error("partition.close_failed partition=%s error=%s", partition, error)
        self.store.close()

    # --- helpers --------------------------------------------------------------------------------------------

    def check_encryption(self, settings: StreamSettings) -> None:
        """As `master_keys.check_encryption`."""
        check_encryption(settings, has_key=self.keyring is not None)

    def _log_settings(self, settings: StreamSettings) -> LogSettings:
        ours = self._config.producers
        return LogSettings.of(
            settings,
            LogSettings(producer_id_expiry_ms=ours.id_expiry_ms, producer_ids_max=ours.ids_max, keyring=self.keyring),
        )

    def _folder_of(self, stream: str, incarnation: str, partition: int | None = None) -> str:
        return partition_folder(str(self._root), stream, incarnation, partition)

    def _identity(self, stream: str, incarnation: str, partition: int) -> LogIdentity:
        return LogIdentity(
            cluster_id=self._folder.cluster_id, stream=stream, incarnation=incarnation, partition=partition
        )
