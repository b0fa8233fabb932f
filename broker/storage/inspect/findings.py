"""The findings of an inspection of a partition's folder, and what each kind of finding means.

A finding names a file, the bytes [position, end) in it and the offsets [first_offset, next_offset) that it
concerns, each where it can be said. Its kind says how bad it is and what becomes of it:

    torn_tail         harmless    written and never synced; the next start cuts it off, and so does repair
    leftover          harmless    what an interrupted removal left; the next start removes it
    lost_range        loss        records that were fsynced are damaged or missing; the others are served
    wrong_index       rebuildable from the segment
    wrong_epochs      rebuildable from the batches
    wrong_checkpoint  rebuildable from the segments
    wrong_framing     harmless    foreign bytes between batches: liftlog passes over them, other Arrow readers do not
    wrong_rows        a fault     the CRC fits, so these bytes were written: header and rows contradict each other
    wrong_group       a fault     a committed commit group is not whole
    wrong_keys        a person    records are encrypted, and the file with the keys for them cannot be used
    tampered        a person    the CRC fits, and it is not what the broker encrypted there: somebody changed it
    wrong_identity    a person    the folder belongs to something else, or does not say
    unknown_version   a person    a later release wrote it; this one changes nothing in it
    not_readable      a person    the operating system refuses
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from broker.storage.segments.checkpoint import LogIdentity

CONSEQUENCES: Final = {
    "torn_tail": "harmless: never committed; cut off at the next start or by repair",
    "leftover": "harmless: removed at the next start or by repair",
    "lost_range": "records are lost here; what is intact around them is served; restore them from their source",
    "wrong_index": "rebuildable: by repair, or by the broker when it is next read",
    "wrong_epochs": "rebuildable by repair",
    "wrong_checkpoint": "rebuildable by repair, or by the next start; one of several replicas is copied anew there",
    "wrong_framing": "no record is missing; liftlog reads past it, other readers of Arrow may stop here",
    "wrong_rows": "was written like this: report it as a fault of liftlog",
    "wrong_group": "was written like this: report it as a fault of liftlog",
    "wrong_keys": "bring back the file `keys` of this folder from a copy; without it nothing here can be read",
    "tampered": "somebody has written here who is not the broker: restore it from its source, or from other replicas",
    "wrong_identity": "put the folder back where it belongs; nothing here is changed before that",
    "unknown_version": "use the release that wrote it, or a later one",
    "not_readable": "make it readable for this user, or look after the disk",
}
REPAIRABLE: Final = frozenset(
    {"torn_tail", "leftover", "lost_range", "wrong_index", "wrong_epochs", "wrong_checkpoint"}
)
BLOCKING: Final = frozenset({"wrong_identity", "wrong_keys", "tampered", "unknown_version", "not_readable"})
"""With one of these nothing in the folder may be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be. See the module.

    Attributes:
        kind: One of `CONSEQUENCES`.
        path: The file, or the folder.
        text: The finding in words.
        position, end: Bytes [position, end) of the file.
        first_offset, next_offset: Offsets [first_offset, next_offset) that it concerns.
        is_known: A lost range that the checkpoint already lists: the broker reports it and passes over it.
    """

    kind: str
    path: str
    text: str
    position: int | None = None
    end: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None
    is_known: bool = False

    @property
    def consequence(self) -> str:
        """The meaning of this kind, and what becomes of it."""
        return CONSEQUENCES[self.kind]

    @property
    def is_repairable(self) -> bool:
        """Whether `repair` has something to do about it: for a lost range, note it and build the index around it."""
        return self.kind in REPAIRABLE and not self.is_known

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "consequence": self.consequence, "is_repairable": self.is_repairable}


@dataclass(slots=True, kw_only=True)
class Inspection:
    """The contents of one folder, as they were read and verified.

    Attributes:
        folder: Its path.
        identity: By `partition.json`; None: it cannot be read.
        in_use: A broker had it open: the active segment was read up to the recovery point only.
        log_start_offset, log_end_offset: As the next open would have them; while in use, as the checkpoint has them.
        high_watermark: The greatest that checkpoint and batches know of.
        segments, batches, bytes: So many were read and verified.
        findings: n >= 0, in the order of the log.
        notes: Remarks that are worth knowing; nothing is wrong.
    """

    folder: str
    identity: LogIdentity | None = None
    in_use: bool = False
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    segments: int = 0
    batches: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        return not self.findings

    def of_kind(self, *kinds: str) -> list[Finding]:
        """The findings of these kinds."""
        return [finding for finding in self.findings if finding.kind in kinds]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "findings": [finding.as_json() for finding in self.findings]}
