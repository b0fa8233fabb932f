"""State that the parts of a log share: where it begins and ends, its files, its locks, and whether it
has failed.

    log start          high watermark   durable end   log end
        | seg | seg | seg      |             |           |
        [---- committed -------)             |           |
        [---- fsynced -----------------------)           |
        [---- appended ----------------------------------)

The parts (`append.py`, `sync.py`, ...) change it; none of them is known here. Readers hold no lock:
they work on a `LogView`, whose parts are replaced, never changed.

L2  log start <= high watermark <= log end, durable end <= log end. None of them moves back but in
    `truncate` and `reset`, and the log end in `recover`, down to the high watermark at the least.
L3  After a failed fsync, or a write that could not be taken back, the log is failed: it appends and
    syncs nothing until `recover`. Reads go on.
L4  Locks are taken in this order: checkpoint, sync, append. A thread that holds one may take it again.
L8  A log that is closed writes nothing into its folder and removes nothing there: another log may have that name by
    now. All writes beside appends hold the checkpoint lock, which a close takes, and look whether the log is failed.
L10  Nothing but an append reads a disk under the append lock: intake waits for it. Who has to read reads before, and
    looks under the lock whether what was read still holds. (So do who takes records back and who begins to lead, while
    nobody appends.)
L11  What is lost is known before any index lacks it, and until a segment has it again. A view has what was lost while
    its segments were looked up, and its answer counts if that is so at the end: else an index that was scanned anew
    meanwhile may have hidden a damaged batch from it, or one of before may have hidden what was mended.

Trouble with files:

- one that can be derived is missing or wrong, or a batch that was fsynced is damaged: scanned anew,
  lost ranges noted (`repair`); the question that met it is asked again (`ask`). Lost ranges are for a
  sole replica: with more, whoever finds one has the records fetched anew.
- the disk refuses and nothing has changed: an error of the tree (`guarded`);
- what a file holds is not known any more: the log is failed until it is recovered.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from broker.api.errors import CorruptLog, DiskFull, LiftlogError, StorageFailed
from broker.storage.disk import Disk, storage_error
from broker.storage.encrypted.vault_of import vault_of
from broker.storage.read import LogView, NeedsRepair, ReadPlan
from broker.storage.recovery import Ranges, RecoveredLog, RecoveryReport, Rescan, merge_ranges, rescan
from broker.storage.rewrite.clean_state import CLEAN_STATE_FILE, load_clean_state, save_clean_state
from broker.storage.segments.ages import Ages
from broker.storage.segments.chain import Chain, Untrusted
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from broker.storage.segments.index import GrowingIndex, IndexView
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault

REPAIRS_PER_CALL_MAX: Final = 8
TAMPERED_RANGES_MAX: Final = 1_000
"""Beyond so many the last ones count as one range, with what lies between."""
T = TypeVar("T")


class _Scannable(NamedTuple):
    """A segment that can be scanned, up to `end`."""

    chain: Chain
    cuts: int
    is_tail: bool
    is_awake: bool
    end: int


class LogState:
    """See the module.

    Attributes:
        identity: Which partition this is.
        vault: What its messages are encrypted and opened with; None: they are not encrypted.
        settings: When it rolls and what it keeps.
        log_start_offset: First offset that can be read.
        log_end_offset: The next offset that will be given out.
        durable_end: First offset that is not known to be on disk; the recovery point.
        high_watermark: First offset that is not committed.
        group_ends: Where commit groups above the high watermark end, ascending. Records that an open found
            above it count as one group.
        lost_ranges: Half-open ranges of offsets, at or above the log start, that were fsynced and
            cannot be read any more.
        tampered: Likewise, where an encrypted log has batches that somebody has changed (`encrypted/own.O3`): of the
            only replica, found since the open, and not written down. tampered_count: So many such ranges were found
            since the open, those too that other replicas mend.
        committed_to: So far records were committed that the log does not have (`recovery.R8`); 0: none that it knows
            of, or it was told since whom it follows.
        recovery: The findings and acts of the last open or `recover`.
        failure: Why appends are refused; None while the log is well.
        cuts: So often records were taken back. A long read compares it before anything is done by it.
        waits_to: Tombstones below it have had their time, and wait for the marks of other replicas; 0: none, or no
            pass of compaction has looked yet.
        ages: How long the records have been here.
        before_cut: Called with the new end, and with `cuts`, before records are taken back, under all locks. It may
            refuse.
        checkpoint_lock, sync_lock, lock: L4. A caller that does something in several calls holds them meanwhile.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        identity: LogIdentity,
        settings: LogSettings,
        *,
        now_us: int,
        kept: Iterable[tuple[int, int]] = (),
        vault: Vault | None = None,
    ) -> None:
        self.identity = identity
        self.vault = vault
        self.settings = settings
        self.folder = folder
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.durable_end = 0
        self.high_watermark = 0
        self.group_ends: list[int] = []
        self.lost_ranges: Ranges = ()
        self.tampered: Ranges = ()
        self.tampered_count = 0
        self.committed_to = 0
        self.recovery = RecoveryReport()
        self.failure: LiftlogError | None = None
        self.cuts = 0
        self.before_cut: Callable[[int, int], object] = _nothing
        self.waits_to = 0
        self.ages = Ages(now_us, kept)
        self.is_closed = False
        self.disk = disk
        self.chain = Chain(disk, folder, [], None)
        self.checkpoint_lock = threading.RLock()
        self.sync_lock = threading.RLock()
        self.lock = threading.RLock()
        self._high_watermark_lock = threading.Lock()
        self._compacted_to = -1  # not read yet
        self._superseded: tuple[int, int] | None = None

    # --- where it begins and ends ---------------------------------------------------------------------

    def begin_from(self, found: RecoveredLog) -> None:
        """Take what recovery found."""
        self.recovery = found.report
        self.chain = Chain(self.disk, self.folder, found.segments, found.tail)
        self.log_start_offset = found.log_start_offset
        self.log_end_offset = self.durable_end = found.log_end_offset
        with self._high_watermark_lock:  # who was told of a sync may have moved it meanwhile
            self.high_watermark = min(max(self.high_watermark, found.high_watermark), found.log_end_offset)
        self.lost_ranges, self.committed_to = found.lost_ranges, found.committed_to
        self.tampered = ()
        self._compacted_to, self.waits_to = -1, 0
        self.group_as_one()
        self.begin_ages()

    def begin_ages(self) -> None:
        """Records without a mark are new (`ages.A2`), and marks above the log end are of records that are gone."""
        self.ages.cut(self.log_end_offset)
        self.ages.tell(self.ages.now_us, self.log_end_offset)

    def group_as_one(self) -> None:
        """Count all above the high watermark as one commit group."""
        self.group_ends = [self.log_end_offset] if self.log_end_offset > self.high_watermark else []

    def continue_group(self) -> None:
        """The last commit group goes on: where an open found the log to end, none ended."""
        with self._high_watermark_lock:
            if self.group_ends and self.group_ends[-1] == self.log_end_offset:
                self.group_ends.pop()

    def advance_high_watermark(self, offset: int) -> None:
        """Commit what is below `offset`; one that is not greater changes nothing."""
        assert offset <= self.log_end_offset, f"high watermark {offset} beyond the log end {self.log_end_offset}"
        with self._high_watermark_lock:
            if offset > self.high_watermark:
                self.high_watermark = offset
                ends = self.group_ends
                del ends[: bisect_right(ends, offset)]

    def open_groups(self) -> tuple[int, tuple[int, ...]]:
        """The high watermark, and where the commit groups above it end, ascending."""
        with self.lock, self._high_watermark_lock:
            return self.high_watermark, tuple(self.group_ends)

    def lower(self, to: int) -> None:
        """Take back what is above, in memory and before the files: who reads finds nothing there any more."""
        self.cuts += 1
        with self._high_watermark_lock:
            self.high_watermark = min(self.high_watermark, to)
        self.group_ends = [end for end in self.group_ends if end <= to]
        self.lost_ranges, self.tampered = below(self.lost_ranges, to), below(self.tampered, to)
        self.log_end_offset = self.durable_end = to
        self.ages.cut(to)
        self._compacted_to, self.waits_to = min(self._compacted_to, to), 0  # -1 stays

    @property
    def compacted_to(self) -> int:
        """The mark of compaction that replicas tell each other: below it no key has two records (`compaction.Q2`)."""
        while (mark := self._compacted_to) < 0:
            as_of = self.chain, self.cuts
            with self.guarded("read compaction"):
                found = load_clean_state(self.disk, self.folder).cleaned_to
            with self.lock:
                if self._compacted_to < 0 and as_of == (self.chain, self.cuts):  # L10
                    self._compacted_to = found
        return mark

    def note_compacted(self, to: int) -> None:
        """This mark is on disk."""
        with self.lock:
            self._compacted_to = to

    @property
    def superseded(self) -> tuple[int, int]:
        """Below this offset are newer records for which others may be gone; and the leader epoch of the record before
        it, -1: not known (`clean_state`)."""
        found = self._superseded
        if found is None:
            with self.lock, self.guarded("read compaction"):
                state = load_clean_state(self.disk, self.folder)
                found = state.superseded_to, state.superseded_epoch
                if found[0] < 0:
                    is_known = not self.settings.is_compacted and not self.disk.exists(
                        f"{self.folder}/{CLEAN_STATE_FILE}"
                    )
                    found = (0 if is_known else max(self.high_watermark, self.committed_to)), -1
                self._superseded = found
        return found

    def note_superseded(self, to: int, epoch: int) -> None:
        """This mark counts from now on."""
        self._superseded = to, epoch

    def write_superseded(self, to: int, epoch: int) -> None:
        """Write the mark down before what it tells of happens. Under the checkpoint lock. OSError passes through."""
        state = load_clean_state(self.disk, self.folder)
        save_clean_state(self.disk, self.folder, replace(state, superseded_to=to, superseded_epoch=epoch))
        self.note_superseded(to, epoch)

    def raise_superseded(self, to: int, epoch: int, *, cuts: int | None = None) -> bool:
        """Before records go for newer ones, all of them below `to`: that is on disk then. An empty log forgets what was
        said before of others.

        Args:
            epoch: The leader epoch of the record before `to`.
            cuts: From before the read that found the newer ones.
        Returns:
            False: records were taken back since.
        Raises:
            StorageFailed, DiskFull: the log is failed, or the disk refuses; the old mark stands.
        """
        if cuts is None and self._superseded_with(to, epoch) == self.superseded:
            return True  # as nearly always; the lock may be held for long
        with self.checkpoint_lock:
            self.check_writable()  # L8
            if cuts is not None and cuts != self.cuts:
                return False
            wanted = self._superseded_with(to, epoch)
            if wanted != self.superseded:
                with self.guarded("write compaction"):
                    self.write_superseded(*wanted)
            return True

    def _superseded_with(self, to: int, epoch: int) -> tuple[int, int]:
        is_empty = self.log_start_offset == self.log_end_offset
        return (to, epoch) if is_empty else max((to, epoch), self.superseded)

    @property
    def is_behind(self) -> bool:
        """Whether committed records are known to be missing at its end, of which there may be other replicas."""
        ends_lost = bool(self.lost_ranges) and self.lost_ranges[-1][1] == self.log_end_offset
        return not self.settings.is_sole_replica and (ends_lost or self.committed_to > 0)

    def note_roll(self) -> None:
        """A sealed segment was fsynced whole, with all before it (`chain.C2`, `chain.C4`)."""
        self.durable_end = self.log_end_offset

    @property
    def is_encrypted(self) -> bool:
        return self.vault is not None

    def take_settings(self, settings: LogSettings) -> None:
        """Go by these from now on. Raises as an open does, if keys are needed by now."""
        if settings.is_encrypted and self.vault is None:  # it was opened before the catalog told of its stream
            with self.guarded("read keys"):
                self.vault = vault_of(self.disk, self.folder, self.identity, settings)
        self.settings = settings
        if not settings.is_sole_replica:
            self.has_others()

    @property
    def may_end_in_part(self) -> bool:
        """Whether the last commit group may lack its rest. A sole replica may have been a follower before; then no part
        of that group is committed."""
        return not self.settings.is_sole_replica or self.high_watermark < self.log_end_offset

    @property
    def segment_count(self) -> int:
        return len(self.chain.segments)

    @property
    def is_awake(self) -> bool:
        """Whether it holds a descriptor; `PartitionLog.idle` gives it back."""
        return self.chain.file is not None

    @property
    def byte_count(self) -> int:
        """Bytes of all segment files."""
        return self.ask(lambda view: sum(segment.size(view.disk) for segment in view.segments))

    # --- questions ------------------------------------------------------------------------------------------

    def view(self) -> LogView:
        """The log at this moment (L11)."""
        while True:
            # In this order: what a later attribute holds covers what an earlier one says.
            lost, tampered = self.lost_ranges, self.tampered
            high_watermark, end, segments = self.high_watermark, self.log_end_offset, self.chain.segments
            start = self.log_start_offset
            if lost is self.lost_ranges and tampered is self.tampered:
                vault = self.vault
                return LogView(self.identity, self.disk, segments, start, high_watermark, end, lost, vault, tampered)

    def ask(self, question: Callable[[LogView], T]) -> T:
        """Ask again after each repair, or when a segment went away after the view was taken, or others have found or
        mended damage meanwhile (L11)."""
        for _ in range(REPAIRS_PER_CALL_MAX + len(self.chain.segments)):  # a power cut may take every index file
            view = self.view()
            try:
                found = question(view)
                if self.lost_ranges == view.lost_ranges and self.tampered == view.tampered:
                    return found
                if isinstance(found, ReadPlan):
                    found.close()
            except NeedsRepair as damage:
                self.repair(damage.segment, around_errors=damage.around_errors)
            except FileNotFoundError as error:
                for segment in view.segments:
                    if segment.path == error.filename:
                        self.repair(segment)
            except OSError as error:
                raise storage_error(error, f"read in {self.folder}") from error
        raise CorruptLog(f"{self.folder}: damaged, and a second scan did not help", path=self.folder)

    def index_of(self, segment: Segment) -> IndexView:
        """The index of a sealed segment, with an entry for each batch: what is written anew without one is gone.

        Raises:
            NeedsRepair: there is none, or it lacks entries.
        """
        return self.view().index(segment)

    def repair(self, segment: Segment, *, around_errors: bool = False) -> None:
        """Scan a segment anew: its index is written, what is lost is noted. Appends go on during the scan (L10).

        One that is not ours any more is left alone. `around_errors`: what the disk cannot read is damaged; else that
        is an error.
        """
        while (as_of := self._scannable(segment)) is not None:
            found: Rescan | None = None
            with self.guarded("scan"), suppress(FileNotFoundError):
                found = rescan(
                    self.disk,
                    segment,
                    as_of.end,
                    around_errors=around_errors,
                    vault=self.vault,
                    is_growing=as_of.is_tail,
                )
            with self.lock:
                if self._scannable(segment, as_of.end) == as_of:
                    return self._take_anew(segment, found, as_of.end)

    def _scannable(self, segment: Segment, tail_end: int | None = None) -> _Scannable | None:
        """Up to where a segment can be scanned, and what must not change meanwhile; None: it is not ours any more.

        Args:
            tail_end: Up to where a tail was scanned: that it has grown since is no change.
        """
        with self.lock:
            chain = self.chain
            if segment not in chain.segments:
                return None
            is_tail = segment is chain.tail
            if is_tail:
                self.check_writable()  # `recover` is about to write it again
            is_awake = segment.live is not None
            end = tail_end if is_awake and tail_end is not None else chain.end_of(segment, self.log_end_offset)
            return _Scannable(chain, self.cuts, is_tail, is_awake, end)

    def _take_anew(self, segment: Segment, found: Rescan | None, end: int) -> None:
        """With the lock held. `found`: None: there is no such file any more."""
        lost = found.lost if found is not None else [(segment.base_offset, end)]
        was_tail = segment is self.chain.tail
        self.lost_ranges = merge_ranges([*self.lost_ranges, *lost], log_start_offset=self.log_start_offset)  # L11
        if found is not None and found.tampered:
            self._note_tampered(found.tampered)
        with self.guarded("scan"):
            if found is not None:
                self.chain.take_anew(segment, found, end)
            else:
                self.chain.remove(segment)
        if was_tail and self.chain.tail is None:
            self.note_roll()

    def _note_tampered(self, found: Sequence[tuple[int, int]]) -> None:
        """`encrypted/own.O3`."""
        is_sole = self.settings.is_sole_replica
        known = self.tampered if is_sole else self.lost_ranges
        for start, end in found:
            at = bisect_right(known, start, key=itemgetter(0))
            self.tampered_count += at == 0 or known[at - 1][1] < end
        ranges = merge_ranges([*known, *found], log_start_offset=self.log_start_offset)
        if is_sole:
            few, rest = ranges[: TAMPERED_RANGES_MAX - 1], ranges[TAMPERED_RANGES_MAX - 1 :]
            self.tampered = (*few, (rest[0][0], rest[-1][1])) if rest else few
        else:
            self.lost_ranges = ranges

    def has_others(self) -> None:
        """It is not the only replica any more: what is tampered is lost, and they mend it."""
        if self.tampered:
            with self.lock:
                self.lost_ranges, self.tampered = merge_ranges([*self.lost_ranges, *self.tampered]), ()

    def awake(self) -> GrowingIndex | None:
        """The tail's index, its file open; None: there is no tail."""
        try:
            return self.chain.awake()
        except NeedsRepair as damage:
            self.repair(damage.segment)
            return self.chain.awake()

    # --- trouble --------------------------------------------------------------------------------------------

    def guarded(self, doing: str) -> _Guard:
        """Turn errors of the disk within into what `error_of` says of them."""
        return _Guard(self, doing)

    def failing(self, doing: str) -> _Guard:
        """As `guarded`, where what the disk holds is not known after any error of it: then the log is failed."""
        return _Guard(self, doing, fails=True)

    def fail(self, error: LiftlogError) -> LiftlogError:
        """Accept nothing until `recover` (L3). Returns the error."""
        if self.failure is None:
            self.failure = error
        return error

    def check_writable(self) -> None:
        """Raise why nothing is accepted, if so."""
        failure = self.failure
        if failure is not None:
            cls = DiskFull if isinstance(failure, DiskFull) else StorageFailed
            raise cls(f"{failure.message} (nothing is accepted until the log has recovered)", **failure.fields)

    def error_of(self, error: OSError | Untrusted, doing: str, *, fails: bool = False) -> LiftlogError:
        """Trouble of the disk as an error of the tree; the log is failed when a file is not to be trusted."""
        if isinstance(error, Untrusted):
            return self.fail(error.error)
        found = storage_error(error, f"{doing} in {self.folder}")
        return self.fail(found) if fails else found


class _Guard:
    """The context that `guarded` returns. (A class: a generator would take four times as long to enter.)"""

    __slots__ = ("_doing", "_fails", "_log")

    def __init__(self, log: LogState, doing: str, *, fails: bool = False) -> None:
        self._log = log
        self._doing = doing
        self._fails = fails

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (OSError, Untrusted)):
            raise self._log.error_of(error, self._doing, fails=self._fails) from error


def below(ranges: Ranges, end: int) -> Ranges:
    """The parts of ranges that lie below an offset."""
    return tuple((start, min(stop, end)) for start, stop in ranges if start < end)


def _nothing(to: int, cuts: int) -> None:
    pass
