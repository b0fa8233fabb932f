"""One partition's records on one disk: bytes, offsets and leader epochs. Has never heard of ids,
producers or subjects.

A leader appends batches (`append`), a follower what the leader has stored, byte for byte
(`append_stored`). A follower may have to take records back that its new leader does not have
(`truncate`, `reset`). Any thread may call anything.

`Log` opens, recovers and closes; the rest is done by its parts, each in a file of `writing/`:

    state           where it begins and ends, files, locks, trouble: what all others are given
    leader_epochs   who led when, who leads now
    append          a leader's batches, a follower's messages, the roll of a segment
    sync            fsync
    checkpoints     the file that says where the next open starts
    truncate        take back
    let_go          remove what is old
    replace         a segment that was written anew

A part knows those above it in this list, and nothing of `Log`. The clock is an argument. The findings
of an open are in `recovery`; the caller logs them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar

from broker.api.errors import CorruptLog, LiftlogError, StorageFailed, WrongFolder
from broker.storage.disk import Disk, storage_error
from broker.storage.encrypted.keyfile import has_files
from broker.storage.encrypted.own import check_of, is_end
from broker.storage.encrypted.vault_of import holds_records, no_key, vault_of
from broker.storage.log_reader import LogReader
from broker.storage.read import group_start
from broker.storage.recovery import RecoveryReport, is_clean, list_segments, load_checkpoint, recover
from broker.storage.rewrite.clean_state import load_clean_state, lower_clean_state
from broker.storage.rewrite.joining import finish_joins
from broker.storage.segments.chain import Chain
from broker.storage.segments.checkpoint import (
    PARTITION_FILE,
    Checkpoint,
    LogIdentity,
    LogSettings,
    check_identity,
    read_marked,
    write_identity,
)
from broker.storage.segments.index import INDEX_CACHE
from broker.storage.segments.retention import log_start_for, old_end
from broker.storage.segments.segment import Segment
from broker.storage.writing.append import WRITEBACK_BYTES, Appender, AppendResult, Message
from broker.storage.writing.checkpoints import Checkpoints
from broker.storage.writing.leader_epochs import EpochEnd, LeaderEpochs
from broker.storage.writing.let_go import let_go
from broker.storage.writing.state import LogState
from broker.storage.writing.sync import Syncer
from broker.storage.writing.truncate import check_takes_back, reset, truncate

if TYPE_CHECKING:
    pass

__all__ = ["WRITEBACK_BYTES", "AppendResult", "EpochEnd", "Log", "Message"]

BATCHES_READ_BYTES: Final = 4 << 20
T = TypeVar("T")


class Log:
    """See the module.

    Attributes:
        state, epochs, checkpoints, appender, syncer: The parts of that list.
        reader: Answers who reads.
    """

    __slots__ = ("appender", "checkpoints", "epochs", "reader", "state", "syncer")

    # --- open, recover, close -------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings, *, now_us: int, boot_id: str = ""
    ) -> Self:
        """Make a folder for a new, empty log, and open it.

        Raises:
            KeyMissing: it is to be encrypted, and the key for it is not here; nothing was made.
            WrongFolder: the folder already holds a log.
            StorageFailed, DiskFull: the disk refuses.
        """
        if settings.is_encrypted and settings.keyring is None:
            raise no_key(folder)
        try:
            if disk.exists(f"{folder}/{PARTITION_FILE}"):
                raise WrongFolder(f"{folder} already holds a log", path=folder)
            disk.makedirs(folder)
            write_identity(disk, folder, identity)
        except OSError as error:
            raise storage_error(error, f"create {folder}") from error
        return cls.open(disk, folder, settings, boot_id=boot_id, now_us=now_us, expected=identity)

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        settings: LogSettings,
        *,
        boot_id: str,
        now_us: int,
        expected: LogIdentity | None = None,
    ) -> Self:
        """Open a log; recover it unless it was closed cleanly since this machine booted.

        Args:
            boot_id: Identifies this run of the machine; empty: not known, a clean mark is not trusted.
            now_us: Microseconds of a clock that nobody sets (`ages.A1`).
            expected: Refuse a folder of another partition.
        Raises:
            WrongFolder: no log is there, or that of another partition.
            UnknownFormatVersion: a later release wrote it; nothing was changed.
            KeyMissing: it is encrypted, and the key for it is not here; nothing was changed.
            WrongKeys: its own files of keys are lost, or another log's; nothing was changed.
            CorruptLog: a file that cannot be rebuilt from others is damaged; nothing was changed. With other replicas
                the checkpoint is one: log start and high watermark are not proven by segments.
            BadBatch: somebody has changed an encrypted batch that the recovery meets (`recovery.R9`).
            StorageFailed, DiskFull: the disk refuses.
        """
        try:
            identity, is_marked = read_marked(disk, folder)
            if expected is not None:
                check_identity(identity, expected, folder=folder)
                identity = expected  # its texts are shared with the other partitions of the stream
            report = RecoveryReport()
            joins: list[str] = []
            checkpoint = load_checkpoint(disk, folder, report)
            kept = () if checkpoint is None else checkpoint.ages
            # what its folder says counts, too: else a log whose catalog has forgotten of it went on in clear
            is_encrypted = settings.is_encrypted or is_marked or has_files(disk, folder)
            is_encrypted |= checkpoint is not None and bool(checkpoint.key)
            vault = vault_of(disk, folder, identity, settings) if is_encrypted else None
            log = cls(LogState(disk, folder, identity, settings, now_us=now_us, kept=kept, vault=vault), boot_id)
            is_missing = checkpoint is None and not report.notes and holds_records(disk, folder)
            if (report.notes or is_missing) and not settings.is_sole_replica:  # at each open, until it is made anew
                what = "missing" if is_missing else "damaged"
                raise CorruptLog(
                    f"{folder}: the checkpoint is {what}, so this replica begins anew from the others", path=folder
                )
            if is_missing:
                report.notes.append(f"{folder}: there is no checkpoint; recovered from the segments alone")
            finish_joins(disk, folder, joins, check_of(vault))
            segments = list_segments(disk, folder)
            if not segments and report.notes and not is_missing:
                raise CorruptLog(
                    f"{folder}: the checkpoint is damaged and no segment is left, so the next offset is not known",
                    path=folder,
                )
            log.checkpoints.note(checkpoint)
            if (
                checkpoint is not None
                and is_clean(disk, checkpoint, segments, boot_id)
                and (vault is None or is_end(disk, folder, checkpoint, segments, vault))
            ):
                log._rest(checkpoint, segments)
            else:
                log._recover(checkpoint, report, now_us)
            log.state.recovery.notes += joins
            log._settle_superseded()
            return log
        except OSError as error:
            raise storage_error(error, f"open {folder}") from error

    def __init__(self, state: LogState, boot_id: str) -> None:
        self.state = state
        self.epochs = LeaderEpochs(state)
        self.checkpoints = Checkpoints(state, self.epochs, boot_id)
        self.appender, self.syncer, self.reader = Appender(state, self.epochs), Syncer(state), LogReader(state)

    # --- helpers of open and recover ----------------------------------------------------------------------

    def _rest(self, checkpoint: Checkpoint, segments: list[Segment]) -> None:
        """Take the state of a clean checkpoint; no segment is read."""
        state = self.state
        state.recovery = RecoveryReport(clean=True)
        tail, point = None, checkpoint.tail
        if point is not None:
            tail = segments[-1]
            tail.created_us = point.created_us
            tail.rest(None, size=point.bytes, partial=(point.entry_count, point.entry_crc))
        state.chain = Chain(state.disk, state.folder, segments, tail)
        state.log_start_offset = checkpoint.log_start_offset
        state.log_end_offset = state.durable_end = checkpoint.recovery_point
        state.high_watermark = checkpoint.high_watermark
        state.lost_ranges = checkpoint.lost_ranges
        state.group_as_one()
        state.begin_ages()
        self.epochs.latest = checkpoint.leader_epoch

    def _recover(self, checkpoint: Checkpoint | None, report: RecoveryReport, now_us: int) -> None:
        state = self.state
        found = recover(
            state.disk,
            state.folder,
            checkpoint,
            report,
            now_us=now_us,
            is_sole=state.settings.is_sole_replica,
            vault=state.vault,
        )
        lower_clean_state(state.disk, state.folder, found.log_end_offset)  # a log that is shorter than it was
        state.begin_from(found)
        is_other = self.epochs.take_recovered(found, checkpoint)
        try:
            if is_other:
                self.epochs.save()
            # Where nothing was wrong the old one still holds, and an empty log needs none: thousands of idle
            # logs start without an fsync.
            is_new = checkpoint is None and found.segments
            if is_new or report.lost or report.cut_offset is not None:
                self.checkpoints.write(self.checkpoints.point(), frees=True)
        except OSError as error:  # a full disk: what was found now is found again at the next open
            report.notes.append(f"{state.folder}: no new checkpoint: {error.strerror or error}")

    def _settle_superseded(self) -> None:
        """Write down what counts for the mark, if none is known in a log that needs one: it must not rise by itself."""
        state = self.state
        if not state.settings.is_compacted:
            return
        to, epoch = state.superseded
        if epoch < 0 and load_clean_state(state.disk, state.folder).superseded_to < 0:
            with suppress(OSError, LiftlogError):  # a full disk: it is found again at the next open
                state.write_superseded(to, self.epochs.epoch_of(to - 1) if to else -1)

    def recover(self, now_us: int) -> RecoveryReport:
        """Bring a failed log back: write what is not durable anew, fsync it, open everything as after a crash.

        Every offset keeps its record as far as the page cache still has it, so an append whose `sync` failed may turn
        out to be stored after all. Damage above the high watermark is cut off; records damaged below it are lost. With
        more than one replica nothing is salvaged: what is not durable is cut off, and fetched anew. A log that is
        well, or closed, is left alone.

        Raises:
            StorageFailed, DiskFull: the disk still refuses; the log stays failed, and this may be tried again.
            BadBatch: as `open`; likewise.
        """
        state = self.state
        with self.state.checkpoint_lock, self.state.sync_lock, self.state.lock:
            if state.failure is None or state.is_closed:
                return state.recovery
            try:
                # `checkpoint.K3`: it could not be written down
                if state.log_start_offset > self.checkpoints.kept_start_offset:
                    self.checkpoints.write(self.checkpoints.point(flush=False), frees=True)
                state.chain.close()
                state.chain.write_again(state.durable_end, salvage=state.settings.is_sole_replica)
                self._recover(self.checkpoints.point(flush=False), RecoveryReport(), now_us)
                state.disk.sync_dir(state.folder)  # or a segment that is gone comes back beside the next records
                if not self.checkpoints.is_sure:  # a reset that failed
                    self.checkpoints.write(self.checkpoints.point(), frees=True)
            except OSError as error:
                state.failure = storage_error(error, f"recover {state.folder}")
                raise state.failure from error
            state.failure = None
            return state.recovery

    def idle(self) -> bool:
        """Close the tail's file and forget its index, if all is durable. Returns whether no descriptor is held."""
        state = self.state
        with self.state.sync_lock, self.state.lock:
            if state.is_closed:
                return True
            if state.failure is not None or state.durable_end < state.log_end_offset:
                return False
            with state.guarded("idle"):
                state.chain.rest()
            return True

    def close(self, *, clean: bool = True) -> None:
        """Give everything back. Cleanly: fsync, and set the clean mark, so that the next open reads no segment.

        A failed log is closed without the mark. Behind it nothing is written into the folder, whoever is still at it
        (`state.L8`).
        """
        try:
            if clean and self.state.failure is None:
                self.syncer.sync()
                self.checkpoints.keep(clean=True)
        finally:
            with self.state.checkpoint_lock, self.state.sync_lock, self.state.lock:
                self.state.is_closed = True
                self.state.fail(StorageFailed(f"{self.state.folder} is closed", path=self.state.folder))
                self.state.chain.close()
                for segment in self.state.chain.segments:
                    INDEX_CACHE.drop(segment.serial)

    # --- leader epochs --------------------------------------------------------------------------------------

    def lead(self, leader_epoch: int) -> int:
        """From now on append in this epoch alone. Returns its start: the log end.

        A commit group that is not whole is cut off first, fsynced or not: nobody else has the rest of it.

        Raises:
            NotLeader: a later epoch is known.
            DiskFull, StorageFailed: the cut failed; it does not lead.
        """
        with self.state.checkpoint_lock, self.state.sync_lock, self.state.lock:
            self.epochs.check_not_stale(leader_epoch, "lead")
            self.state.committed_to = 0
            if self.state.may_end_in_part:
                self.state.check_writable()
                truncate(self.state, self.epochs, self.checkpoints, self.state.ask(group_start))
            self.epochs.lead(leader_epoch)
            if self.state.superseded[0] > self.state.log_end_offset:
                self._lead_by_what_is_there()
            return self.state.log_end_offset

    def _lead_by_what_is_there(self) -> None:
        """An operator chose it although newer records are missing above its end: now there are none."""
        to, epoch = self.state.log_end_offset, self.epochs.latest
        self.state.note_superseded(to, epoch)
        with suppress(OSError):  # a full disk: after the next open it begins anew if it follows
            self.state.write_superseded(to, epoch)

    def follow(self, leader_epoch: int) -> None:
        """From now on take only what this epoch's leader has stored. A thread that still appends is refused.

        Raises:
            NotLeader: a later epoch is known.
        """
        with self.state.lock:
            self.epochs.follow(leader_epoch)
            self.state.committed_to = 0

    # --- take back, let go, write anew ----------------------------------------------------------------------

    def truncate(self, to: int) -> int:
        """Take back the records from `to` on, and those before it whose commit group it would cut.

        It may go below the recovery point and the high watermark; both are lowered on disk first
        (`truncate.L5`).

        Returns:
            The log end.
        Raises:
            OffsetOutOfRange: `to` is below the log start: `reset` is what is wanted.
            NotLeader: it leads.
            DiskFull, StorageFailed: nothing was changed, or the log is failed and `recover` finds it as
                it was, or shorter.
        """
        with self.state.checkpoint_lock, self.state.sync_lock, self.state.lock:
            self.check_takes_back("truncate")
            if to < self.state.log_end_offset:
                end = self.state.ask(lambda view: group_start(view, to))
                truncate(self.state, self.epochs, self.checkpoints, end)
            return self.state.log_end_offset

    def note_superseded(self, to: int, epoch: int, *, cuts: int | None = None) -> bool:
        """Before records go for newer ones, all of them below `to`: that is on disk then. An empty log forgets what was
        said before of others.

        Args:
            epoch: The leader epoch of the record before `to`.
            cuts: The log's `cuts` from before the read that found the newer ones.
        Returns:
            False: records were taken back since.
        Raises:
            StorageFailed, DiskFull: the log is failed, or the disk refuses; the old mark stands.
        """
        state = self.state
        if cuts is None and self._superseded_with(to, epoch) == state.superseded:
            return True  # as nearly always; the lock may be held for long
        with self.state.checkpoint_lock:
            state.check_writable()  # `state.L8`
            if cuts is not None and cuts != state.cuts:
                return False
            wanted = self._superseded_with(to, epoch)
            if wanted != state.superseded:
                with state.guarded("write compaction"):
                    state.write_superseded(*wanted)
            return True

    def _superseded_with(self, to: int, epoch: int) -> tuple[int, int]:
        is_empty = self.state.log_start_offset == self.state.log_end_offset
        return (to, epoch) if is_empty else max((to, epoch), self.state.superseded)

    def reset(self, to: int, *, last_epoch: int = -1) -> None:
        """Begin anew and empty at `to`: the leader has nothing below that follows on what is here.

        All that was stored is gone, and so is what was told of it.

        Args:
            to: Log start and log end.
            last_epoch: The leader epoch of the record before `to`; -1: not known.
        Raises:
            NotLeader, DiskFull, StorageFailed: as `truncate`.
        """
        with self.state.checkpoint_lock, self.state.sync_lock, self.state.lock:
            self.check_takes_back("reset")
            reset(self.state, self.epochs, self.checkpoints, to, last_epoch=last_epoch)

    def check_takes_back(self, doing: str) -> None:
        """As `truncate.check_takes_back`."""
        check_takes_back(self.state, self.epochs, doing)

    def let_go(self, start: int) -> int:
        """As `let_go.let_go`."""
        return let_go(self.state, self.checkpoints, start)

    def retained_start(self, now_us: int) -> int:
        """Where the log should start by its settings."""
        with self.state.lock:
            old = old_end(self.state.ages, self.state.settings.retention_ms)
        return self.state.ask(
            lambda view: log_start_for(view, settings=self.state.settings, now_us=now_us, old_end=old)
        )
