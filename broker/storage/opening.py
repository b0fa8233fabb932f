"""How a log is made, opened, and opened again once it has failed: what its files say becomes its state.

    open          the checkpoint, the joins, the segments ─► clean: their state is taken, no segment is read
                                                         └► else recovered from the segments (`recovery.py`)
    open_again    what is not durable is written anew; then as after a crash

The findings are in `state.recovery`; the caller logs them. The clock is an argument.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from broker.api.errors import CorruptLog, LiftlogError, WrongFolder
from broker.storage.disk import Disk, storage_error
from broker.storage.encrypted.keyfile import has_files
from broker.storage.encrypted.own import check_of, is_end
from broker.storage.encrypted.vault_of import holds_records, no_key, vault_of
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
from broker.storage.segments.segment import Segment
from broker.storage.writing.checkpoints import Checkpoints
from broker.storage.writing.leader_epochs import LeaderEpochs
from broker.storage.writing.state import LogState


class FilledParts(NamedTuple):
    """The parts of a log that its files fill."""

    state: LogState
    epochs: LeaderEpochs
    checkpoints: Checkpoints


def make_folder(disk: Disk, folder: str, identity: LogIdentity, settings: LogSettings) -> None:
    """Make the folder of a new, empty log. Its errors: `PartitionLog.create`."""
    if settings.is_encrypted and settings.keyring is None:
        raise no_key(folder)
    try:
        if disk.exists(f"{folder}/{PARTITION_FILE}"):
            raise WrongFolder(f"{folder} already holds a log", path=folder)
        disk.makedirs(folder)
        write_identity(disk, folder, identity)
    except OSError as error:
        raise storage_error(error, f"create {folder}") from error


def open_folder(
    disk: Disk, folder: str, settings: LogSettings, *, boot_id: str, now_us: int, expected: LogIdentity | None
) -> FilledParts:
    """Open a log. Arguments and errors: `PartitionLog.open`."""
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
        state = LogState(disk, folder, identity, settings, now_us=now_us, kept=kept, vault=vault)
        epochs = LeaderEpochs(state)
        log = FilledParts(state, epochs, Checkpoints(state, epochs, boot_id))
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
            _rest(log, checkpoint, segments)
        else:
            _recover(log, checkpoint, report, now_us)
        state.recovery.notes += joins
        _settle_superseded(log)
        return log
    except OSError as error:
        raise storage_error(error, f"open {folder}") from error


def open_again(log: FilledParts, now_us: int) -> None:
    """Bring a failed log back, under all its locks. Errors: `PartitionLog.recover`."""
    state, checkpoints = log.state, log.checkpoints
    try:
        if state.log_start_offset > checkpoints.kept_start_offset:  # `checkpoint.K3`: it could not be written down
            checkpoints.write(checkpoints.point(flush=False), frees=True)
        state.chain.close()
        state.chain.write_again(state.durable_end, salvage=state.settings.is_sole_replica)
        _recover(log, checkpoints.point(flush=False), RecoveryReport(), now_us)
        state.disk.sync_dir(state.folder)  # or a segment that is gone comes back beside the next records
        if not checkpoints.is_sure:  # a reset that failed
            checkpoints.write(checkpoints.point(), frees=True)
    except OSError as error:
        state.failure = storage_error(error, f"recover {state.folder}")
        raise state.failure from error
    state.failure = None


def _rest(log: FilledParts, checkpoint: Checkpoint, segments: list[Segment]) -> None:
    """Take the state of a clean checkpoint; no segment is read."""
    state = log.state
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
    log.epochs.latest = checkpoint.leader_epoch


def _recover(log: FilledParts, checkpoint: Checkpoint | None, report: RecoveryReport, now_us: int) -> None:
    state = log.state
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
    is_other = log.epochs.take_recovered(found, checkpoint)
    try:
        if is_other:
            log.epochs.save()
        # Where nothing was wrong the old one still holds, and an empty log needs none: thousands of idle
        # logs start without an fsync.
        is_new = checkpoint is None and found.segments
        if is_new or report.lost or report.cut_offset is not None:
            log.checkpoints.write(log.checkpoints.point(), frees=True)
    except OSError as error:  # a full disk: what was found now is found again at the next open
        report.notes.append(f"{state.folder}: no new checkpoint: {error.strerror or error}")


def _settle_superseded(log: FilledParts) -> None:
    """Write down what counts for the mark, if none is known in a log that needs one: it must not rise by itlog."""
    state = log.state
    if not state.settings.is_compacted:
        return
    to, epoch = state.superseded
    if epoch < 0 and load_clean_state(state.disk, state.folder).superseded_to < 0:
        with suppress(OSError, LiftlogError):  # a full disk: it is found again at the next open
            state.write_superseded(to, log.epochs.epoch_of(to - 1) if to else -1)
