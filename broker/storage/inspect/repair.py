"""Repair a partition's folder: what the next start of the broker does, done now, and a report.

    verify      what is wrong, and what becomes of it
    open        recovery cuts a torn tail, notes what is lost, derives epochs and checkpoint
    rebuild     sealed segments whose index is wrong, or that lack something, are scanned anew
    verify      what is left

A dry run ends after the first line: findings say what recovery would do, as recovery itself was
asked (`OverlayDisk`).

M1  Nothing goes that holds a record of the log: what is cut is a torn tail, which was never
    committed; what is removed can be derived, or is what an interrupted removal left.
M2  A log in which nothing is wrong is not touched; nor is one that belongs elsewhere or is of a
    later release.
M3  Every step may be repeated: a repair that was killed is done again from the start.
M4  Where other brokers may keep the log, its own one notices as much afterwards as before: that the log has lost its
    checkpoint (`wrong_checkpoint` is refused), or committed records at its end (`recovery.R8`). Else it would lead with
    less than the others have.

The caller holds the lock of the data folder: a broker must not have the log open.
Design: docs/adr/0053-repair-is-open-and-a-report.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.storage.disk import Disk
from broker.storage.encrypted.keyfile import has_keys
from broker.storage.inspect.findings import BLOCKING, Finding, Inspection
from broker.storage.inspect.inspection import inspect_partition
from broker.storage.log import PartitionLog
from broker.storage.recovery import list_segments
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from broker.storage.writing.replace import sealed_segments

if TYPE_CHECKING:
    from broker.storage.encrypted.keys import Keyring

KEEP_MS: Final = 1 << 50
"""The window of ids of a log that is repaired: none is forgotten."""
_DONE: Final = {
    "torn_tail": "cut",
    "leftover": "removed",
    "lost_range": "noted",
    "wrong_index": "rebuilt",
    "wrong_epochs": "rebuilt",
    "wrong_checkpoint": "rebuilt",
}
_BROKERS_OWN: Final = (
    "start the broker instead; it copies the log from other replicas, or recovers it from its segments if it has the "
    "only one"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairAction:
    """One thing that repair does about a finding.

    Attributes:
        what: `cut` (the bytes of the file from `position` on), `removed`, `rebuilt`, or `noted`:
            the offsets as lost, so that readers pass over them.
        position, bytes: Where a cut begins and how long it is.
        first_offset, next_offset: A range that is lost.
    """

    what: str
    path: str
    position: int | None = None
    bytes: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None


@dataclass(slots=True, kw_only=True)
class RepairReport:
    """The findings of a repair, and its actions.

    Attributes:
        before: The folder as it was.
        actions: The actions that were taken, or with a dry run would be. A file that is rebuilt stands there once.
        after: The folder as it is now; None: nothing was done.
        refused: Why nothing may be done here; None: something could.
    """

    before: Inspection
    actions: list[RepairAction]
    after: Inspection | None = None
    refused: str | None = None


def repair(
    disk: Disk,
    folder: str,
    *,
    now_us: int,
    expected: LogIdentity | None = None,
    has_others: bool = False,
    dry_run: bool = False,
    keyring: Keyring | None = None,
) -> RepairReport:
    """Repair one partition's folder.

    Args:
        now_us: Becomes the creation time of a segment that begins anew.
        expected: The partition that the folder's place says it holds.
        has_others: Other brokers may keep the log, too (M4).
        dry_run: Only tell; nothing on the disk is changed.
        keyring: The master keys, without which nothing is repaired where records are encrypted.
    Raises:
        DiskFull, StorageFailed: the disk refuses; it may be tried again (M3).
        OSError: the same, from a plain call.
    """
    before = inspect_partition(disk, folder, expected=expected, keyring=keyring)
    refusing = before.of_kind(*BLOCKING)
    if refusing:
        return RepairReport(before=before, actions=[], refused=f"{refusing[0].text}: {refusing[0].consequence}")
    if has_others and (lost := before.of_kind("wrong_checkpoint")):
        return RepairReport(before=before, actions=[], refused=f"{lost[0].path}: {lost[0].text}: {_BROKERS_OWN}")
    is_encrypted = has_keys(disk, folder)
    if is_encrypted and keyring is None:
        refused = "its records are encrypted: say which master key opens them"
        return RepairReport(before=before, actions=[], refused=refused)
    findings = [finding for finding in before.findings if finding.is_repairable]
    report = RepairReport(before=before, actions=list(dict.fromkeys(map(_action, findings))))
    if not findings or dry_run:
        return report
    wrong = {finding.path for finding in findings}
    _remove_derived(disk, folder, findings, wrong)
    settings = LogSettings(
        dedup_window_ms=KEEP_MS, is_sole_replica=not has_others, is_encrypted=is_encrypted, keyring=keyring
    )
    log = PartitionLog.open(disk, folder, settings, boot_id="", now_us=now_us)
    try:
        for segment, _ in sealed_segments(log.state):
            if wrong & {segment.path, segment.index_path}:
                log.state.repair(segment)
        log.checkpoint()
    finally:
        log.close(clean=False)
    report.after = inspect_partition(disk, folder, expected=expected, keyring=keyring)
    return report


def _action(finding: Finding) -> RepairAction:
    what, path = _DONE[finding.kind], finding.path
    if what == "cut" and finding.position is not None and finding.end is not None:
        return RepairAction(what=what, path=path, position=finding.position, bytes=finding.end - finding.position)
    if what == "noted":
        first, after = finding.first_offset, finding.next_offset
        return RepairAction(what=what, path=path, first_offset=first, next_offset=after)
    return RepairAction(what=what, path=path)


def _remove_derived(disk: Disk, folder: str, findings: Sequence[Finding], wrong: set[str]) -> None:
    """Take away what the open that follows derives only where it is missing."""
    gone = {finding.path for finding in findings if finding.kind == "wrong_epochs"}
    segments = list_segments(disk, folder)
    if segments and wrong & {segments[-1].path, segments[-1].index_path}:
        gone.add(segments[-1].index_path)  # then the last segment is scanned from its start
    for path in sorted(gone):
        if disk.exists(path):
            disk.unlink(path)
