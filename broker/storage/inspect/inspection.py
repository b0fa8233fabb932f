"""Read a partition's folder, say what is wrong in it, change nothing. Takes no lock.

Every byte of every segment is read once and its CRCs checked (`scan`); then what was found is held against the
rest, with arrays, no record of its own:

    segment   batches whole, their offsets increasing and dense, commit groups whole, framing clean
    rows      the offset column within the header's range and increasing, no timestamp above the header's
    index     an entry per batch, the same places, the running maximum of timestamps
    epochs    the epoch of each batch is the one that the file gives for its offset
    others    partition.json names this place; the checkpoint can be read and fits the segments

Recovery decides what damage *means*, so recovery itself is asked: it runs on an `OverlayDisk`, where it changes
nothing, and tells where it would cut. Damage behind the cut is a torn tail. Records damaged before it are lost.

V1  Nothing is written, locked or removed: on a folder in use, all that was fsynced can still be verified. Sealed
    segments never change; of the active one only what lies below the recovery point is read, for
    behind it bytes may be half written.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from broker.api.batch import HEADER_BYTES
from broker.api.errors import BadBatch, CorruptLog, KeyMissing, LiftlogError, UnknownFormatVersion
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.storage.disk import Disk, File
from broker.storage.disk.overlay import OverlayDisk
from broker.storage.encrypted.keyfile import KEYS_FILE, has_keys
from broker.storage.inspect.contradictions import (
    ENCRYPTED,
    what_stands_at,
    wrong_groups,
    wrong_index,
    wrong_rows,
    wrong_rows_in,
)
from broker.storage.inspect.findings import Finding, Inspection
from broker.storage.recovery import RecoveryReport, list_segments, load_checkpoint, merge_ranges, recover
from broker.storage.segments.checkpoint import (
    CHECKPOINT_FILE,
    PARTITION_FILE,
    Checkpoint,
    LogIdentity,
    check_identity,
    read_identity,
)
from broker.storage.segments.epochs import EPOCHS_FILE, Epochs, load_epochs
from broker.storage.segments.index import IndexView, counted_entries
from broker.storage.segments.scan import Scan, peek, scan
from broker.storage.segments.segment import Segment

if TYPE_CHECKING:
    from broker.storage.encrypted.keys import Keyring
    from broker.storage.encrypted.vault import Vault

Batches = npt.NDArray[np.void]
FIRST_POSITION: Final = len(SCHEMA_BYTES)


def inspect_partition(
    disk: Disk,
    folder: str,
    *,
    in_use: bool = False,
    expected: LogIdentity | None = None,
    only: int | None = None,
    keyring: Keyring | None = None,
) -> Inspection:
    """Verify one partition's folder.

    Args:
        in_use: A broker has it open: read only what cannot change any more (V1). Each finding is looked at twice.
        expected: The partition that the folder's place says it holds.
        only: Base offset of the one segment to look at; None: all, and the small files.
        keyring: The master keys, for encrypted records; without it of these no more than CRCs and places is looked at.
    Raises:
        OSError: the folder cannot be listed.
    """
    found = _Inspector(disk, folder, in_use, expected, only, keyring).run()
    if in_use and found.findings:
        # The broker may have replaced, sealed or removed a file between two of our reads.
        again = _Inspector(disk, folder, in_use, expected, only, keyring).run()
        again.findings = [finding for finding in again.findings if finding in found.findings]
        return again
    return found


class Bounded:
    """A file of which only the first `bytes_max` bytes count."""

    def __init__(self, file: File, bytes_max: int) -> None:
        self._file = file
        self._bytes_max = bytes_max
        self.pread = file.pread
        self.write, self.truncate, self.sync = file.write, file.truncate, file.sync
        self.close, self.fileno = file.close, file.fileno
        self.trim = file.trim
        self.pread_cold, self.pread_into = file.pread_cold, file.pread_into
        self.forget, self.start_writeback, self.rewrite = file.forget, file.start_writeback, file.rewrite

    def size(self) -> int:
        return min(self._bytes_max, self._file.size())


class _Inspector:
    def __init__(
        self,
        disk: Disk,
        folder: str,
        in_use: bool,
        expected: LogIdentity | None,
        only: int | None,
        keyring: Keyring | None,
    ) -> None:
        self.keyring = keyring
        self.vault: Vault | None = None
        self.is_encrypted = False
        self.disk = disk
        self.folder = folder
        self.expected = expected
        self.only = only
        self.found = Inspection(folder=folder, in_use=in_use)
        self.checkpoint: Checkpoint | None = None
        self.epochs: Epochs | None = None
        self.log_start = 0
        self.cut: int | None = None  # where recovery would cut the last segment
        self.refused: BadBatch | None = None  # recovery would not (`recovery.R9`)
        self.epoch_before = -1

    def run(self) -> Inspection:
        found = self.found
        self.identity()
        self.keys()
        notes = self.checkpoint_file()  # before the listing: a segment made in between is then no contradiction
        segments = list_segments(self.disk, self.folder)
        self.small_files(segments, notes)
        self.bounds(segments)
        ends = [*(segment.base_offset for segment in segments[1:]), found.log_end_offset]
        if segments and self.only is None:
            self.lost(segments[0].path, self.log_start, segments[0].base_offset, "its segment is missing")
        for segment, end in zip(segments, ends, strict=False):  # no segment, no end
            if self.only not in (None, segment.base_offset):
                continue
            try:
                self.segment(segment, end, is_last=segment is segments[-1])
            except UnknownFormatVersion as error:
                self.add("unknown_version", segment.path, str(error))
            except FileNotFoundError:
                found.notes.append(f"{segment.path} was removed while it was to be read")
            except OSError as error:
                self.add("not_readable", segment.path, error.strerror or str(error))
        self.known_losses()
        self.not_recovered()
        return found

    def add(
        self,
        kind: str,
        path: str,
        text: str,
        *,
        place: tuple[int, int] | None = None,
        offsets: tuple[int, int] | None = None,
        is_known: bool = False,
    ) -> None:
        position, end = place or (None, None)
        first, after = offsets or (None, None)
        self.found.findings.append(
            Finding(
                kind=kind,
                path=path,
                text=text,
                position=position,
                end=end,
                first_offset=first,
                next_offset=after,
                is_known=is_known,
            )
        )

    def lost(self, path: str, start: int, end: int, text: str, place: tuple[int, int] | None = None) -> None:
        start = max(start, self.log_start)
        if start < end:
            noted = self.checkpoint.lost_ranges if self.checkpoint else ()
            is_known = any(first <= start and end <= after for first, after in noted)
            self.add("lost_range", path, text, place=place, offsets=(start, end), is_known=is_known)

    # --- the small files ------------------------------------------------------------------------------------

    def identity(self) -> None:
        path = f"{self.folder}/{PARTITION_FILE}"
        if self.only is not None and not self.disk.exists(path):
            self.found.notes.append("a segment outside of a partition's folder: only the file itself is looked at")
            return
        try:
            self.found.identity = read_identity(self.disk, self.folder)
            if self.expected is not None:
                check_identity(self.found.identity, self.expected, folder=self.folder)
        except UnknownFormatVersion as error:
            self.add("unknown_version", path, str(error))
        except CorruptLog as error:
            self.add("wrong_identity", path, str(error))
        except OSError as error:
            self.add("not_readable", path, error.strerror or str(error))

    def keys(self) -> None:
        """Whether records are encrypted, and what opens them."""
        try:
            self.is_encrypted = has_keys(self.disk, self.folder)
            if not self.is_encrypted or self.found.identity is None:
                return
            if self.keyring is None:
                self.found.notes.append(
                    f"{self.folder}: records are encrypted; without the master key only CRCs and places are looked at"
                )
                return
            from broker.storage.encrypted.vault import Vault  # most folders need none of it

            disk = OverlayDisk(self.disk)
            self.vault = Vault.open(disk, self.folder, self.found.identity, self.keyring, is_empty=False)
        except KeyMissing as error:
            self.add("wrong_keys", f"{self.folder}/{KEYS_FILE}", str(error))
        except UnknownFormatVersion as error:
            self.add("unknown_version", f"{self.folder}/{KEYS_FILE}", str(error))
        except CorruptLog as error:
            self.add("wrong_keys", f"{self.folder}/{KEYS_FILE}", str(error))
        except OSError as error:
            self.add("not_readable", f"{self.folder}/{KEYS_FILE}", error.strerror or str(error))

    def checkpoint_file(self) -> list[str]:
        """Read checkpoint and epochs. Returns what was wrong with the former."""
        path, report = f"{self.folder}/{CHECKPOINT_FILE}", RecoveryReport()
        try:
            self.checkpoint = load_checkpoint(self.disk, self.folder, report)
            self.epochs = load_epochs(self.disk, self.folder)
        except UnknownFormatVersion as error:
            self.add("unknown_version", path, str(error))
        except OSError as error:
            self.add("not_readable", error.filename or path, error.strerror or str(error))
        return report.notes

    def small_files(self, segments: list[Segment], notes: list[str]) -> None:
        path, found = f"{self.folder}/{CHECKPOINT_FILE}", self.checkpoint
        if self.found.identity is None or self.found.of_kind("unknown_version", "not_readable"):
            return
        if found is None:
            if notes:
                self.add("wrong_checkpoint", path, "its CRC does not fit")
            elif segments and not self.disk.exists(path):  # it is written before the first of them is made
                self.add("wrong_checkpoint", path, "there is none")
        elif not 0 <= found.log_start_offset <= found.high_watermark or found.recovery_point < found.log_start_offset:
            text = f"log start {found.log_start_offset}, high watermark {found.high_watermark}, recovery point"
            self.add("wrong_checkpoint", path, f"contradicts itself: {text} {found.recovery_point}")
        if self.epochs is None and self.disk.exists(f"{self.folder}/{EPOCHS_FILE}"):
            self.add("wrong_epochs", f"{self.folder}/{EPOCHS_FILE}", "its CRC does not fit")

    def bounds(self, segments: list[Segment]) -> None:
        """Where the log starts and ends: by the checkpoint while it is in use, else as recovery would have it."""
        found, known = self.found, self.checkpoint
        self.log_start = known.log_start_offset if known else segments[0].base_offset if segments else 0
        found.log_start_offset = self.log_start
        if known is not None:
            found.high_watermark, found.log_end_offset = known.high_watermark, known.recovery_point
        if found.in_use or found.of_kind("unknown_version", "not_readable"):
            return
        overlay, report = OverlayDisk(self.disk), RecoveryReport()
        try:
            would = recover(overlay, self.folder, known, report, now_us=0, vault=self.vault)
        except BadBatch as error:
            self.refused = error
            return
        except (LiftlogError, OSError):  # met again, and told, when the segment is read
            return
        found.log_start_offset, found.log_end_offset = would.log_start_offset, would.log_end_offset
        found.high_watermark = max(found.high_watermark, would.high_watermark)
        if segments:
            self.cut = overlay.cut_of(segments[-1].path)
        kept = {segment.base_offset for segment in would.segments}
        for segment in segments:
            if segment.base_offset not in kept:
                self.add("leftover", segment.path, "below the log start, or joined into the one before it")
        orphans = set(self.disk.listdir(self.folder)) - set(overlay.listdir(self.folder))
        gone = {path.rpartition("/")[2] for segment in segments for path in (segment.path, segment.index_path)}
        for name in sorted(orphans - gone):
            self.add("leftover", f"{self.folder}/{name}", "left by an interrupted write or removal")

    def known_losses(self) -> None:
        """Ranges that the checkpoint calls lost and that no file has a trace of."""
        if self.checkpoint is None or self.only is not None:
            return
        told = merge_ranges((f.first_offset or 0, f.next_offset or 0) for f in self.found.of_kind("lost_range"))
        for start, end in merge_ranges(self.checkpoint.lost_ranges, log_start_offset=self.log_start):
            if not any(first <= start and end <= after for first, after in told):
                path = f"{self.folder}/{CHECKPOINT_FILE}"
                self.lost(path, start, end, "the checkpoint says so")

    def not_recovered(self) -> None:
        """The batch by which recovery would not go on, if it is not told of yet: its header may fit nowhere."""
        if self.refused is None:
            return
        path, position = self.refused.fields["path"], self.refused.fields["position"]
        if self.only is None and not any(
            (each.path, each.position) == (path, position) for each in self.found.of_kind("tampered")
        ):
            self.add("tampered", path, self.refused.message, place=(position, position))

    # --- one segment ----------------------------------------------------------------------------------------

    def segment(self, segment: Segment, end_offset: int, *, is_last: bool) -> None:
        if not is_last and end_offset <= self.log_start:
            return  # a leftover
        file = self.disk.open(segment.path, readonly=True)
        try:
            if is_last and self.found.in_use:
                bound = self.synced_bytes(segment, file)
                if bound <= FIRST_POSITION:
                    return
                file = Bounded(file, bound)
            known = partial(segment.index, self.disk) if segment.partial is None else lambda: None
            found = scan(file, start=FIRST_POSITION, first_offset=segment.base_offset, where=segment.path, known=known)
            self.found.segments += 1
            self.found.batches += len(found.batches)
            self.found.bytes += found.size
            kept = found.batches
            if is_last and self.cut is not None and self.cut < found.size:
                kept = self.torn_tail(segment, found, self.cut)
            self.gaps(segment, file, found, kept, end_offset)
            self.markers(segment, found, kept)
            self.groups(segment, kept, end_offset)
            self.rows(segment, file, kept)
            self.epochs_of(segment, kept)
            self.index(segment, found, kept, is_last=is_last)
        finally:
            file.close()
        if len(found.batches) and not self.found.in_use:
            self.found.high_watermark = max(self.found.high_watermark, int(kept["high_watermark"].max(initial=0)))

    def synced_bytes(self, segment: Segment, file: File) -> int:
        """How much of the active segment lies below the recovery point: by its index, else along its batch headers."""
        known, size = self.checkpoint, file.size()
        limit = known.recovery_point if known else 0
        entries = None
        if known and known.tail and known.tail.base_offset == segment.base_offset:
            data = self.disk.read_file(segment.index_path) if self.disk.exists(segment.index_path) else b""
            entries = counted_entries(data, known.tail.entry_count, known.tail.entry_crc)
        if entries is not None:
            index = IndexView(entries, contiguous=True)
            at = min(index.end_of(index.find_from(limit) - 1), size)
        else:
            at = FIRST_POSITION
            while (head := peek(file.pread(HEADER_BYTES, at))) and head.next_offset <= limit:
                at += head.length
            at = min(at, size)
        if at < size:
            text = f"{segment.path} is in use: read up to the recovery point {limit}; {size - at} bytes behind it not"
            self.found.notes.append(text)
        return at

    def torn_tail(self, segment: Segment, found: Scan, cut: int) -> Batches:
        """Tell of the bytes that recovery would cut; what stays is returned."""
        behind = found.batches["position"] >= cut
        offsets = None
        if behind.any():
            first = int(found.batches["first_offset"][behind][0])
            offsets = (min(first, self.found.log_end_offset), int(found.batches["next_offset"][-1]))
        text = f"{found.size - cut} bytes behind what was committed"
        self.add("torn_tail", segment.path, text, place=(cut, found.size), offsets=offsets)
        found.gaps = [(start, min(end, cut)) for start, end in found.gaps if start < cut]
        found.markers = [at for at in found.markers if at < cut]
        found.size = cut
        found.schema_is_whole = found.schema_is_whole or cut == 0
        return found.batches[~behind]

    def gaps(self, segment: Segment, file: File, found: Scan, kept: Batches, end_offset: int) -> None:
        """Offsets that should be there and are not, and bytes that should not be there."""
        if not found.schema_is_whole:
            text = "the schema message is damaged"
            self.add("wrong_framing", segment.path, text, place=(0, FIRST_POSITION))
        after = [segment.base_offset, *kept["next_offset"].tolist()]
        begins = [*kept["first_offset"].tolist(), max(end_offset, after[-1])]
        positions = [*kept["position"].tolist(), found.size]
        told: set[int] = set()
        for start, end in found.gaps:
            at = int(np.searchsorted(kept["position"], start))
            text = what_stands_at(file, start, end)
            if after[at] < begins[at] and at not in told:
                told.add(at)
                self.lost(segment.path, after[at], begins[at], text, (start, end))
            elif after[at] == begins[at]:
                self.add("wrong_framing", segment.path, text, place=(start, end))
        for at in np.flatnonzero(np.array(after) < np.array(begins)).tolist():
            if at not in told:
                place = (positions[at], positions[at])
                self.lost(segment.path, after[at], begins[at], "nothing is stored for these offsets", place)

    def markers(self, segment: Segment, found: Scan, kept: Batches) -> None:
        for at in found.markers:
            if at + len(END_OF_STREAM) < found.size:
                behind = int((kept["position"] > at).sum())
                text = f"{behind} batches behind an end-of-stream marker"
                self.add("wrong_framing", segment.path, text, place=(at, at + len(END_OF_STREAM)))

    def groups(self, segment: Segment, kept: Batches, end_offset: int) -> None:
        """Each commit group is whole, and in one piece, unless part of it is lost."""
        wrong = wrong_groups(kept, segment.base_offset, end_offset).tolist()
        for i in wrong[:1]:
            place, count = int(kept["group_index"][i]), int(kept["group_count"][i])
            text = f"batch {place} of a commit group of {count} stands here; {len(wrong)} such places in this segment"
            self.add("wrong_group", segment.path, text, place=_place(kept[i]), offsets=_offsets(kept[i]))

    def rows(self, segment: Segment, file: File, kept: Batches) -> None:
        for batch in kept:
            if self.is_encrypted:
                self.encrypted_rows(segment, file, batch)
                continue
            text = wrong_rows(file, batch)
            if text == ENCRYPTED:
                self.lacks_keys(text)
                break
            if text is not None:
                self.add("wrong_rows", segment.path, text, place=_place(batch), offsets=_offsets(batch))

    def lacks_keys(self, text: str) -> None:
        if self.only is not None:
            self.found.notes.append(f"{self.folder}: {text}: its rows are not looked at")
        elif not self.found.of_kind("wrong_keys"):
            self.add("wrong_keys", f"{self.folder}/{KEYS_FILE}", text)

    def encrypted_rows(self, segment: Segment, file: File, batch: np.void) -> None:
        if self.vault is None:
            return
        try:
            plain = self.vault.open_message(file.pread(int(batch["length"]), int(batch["position"])))
        except BadBatch as error:
            self.add("tampered", segment.path, str(error), place=_place(batch), offsets=_offsets(batch))
            return
        text = wrong_rows_in(plain, batch)
        if text is not None:
            self.add("wrong_rows", segment.path, text, place=_place(batch), offsets=_offsets(batch))

    def epochs_of(self, segment: Segment, kept: Batches) -> None:
        kept = kept[kept["first_offset"] >= self.log_start]
        if not len(kept):
            return
        path = f"{self.folder}/{EPOCHS_FILE}"
        epochs = kept["leader_epoch"].astype(np.int64)
        if int(epochs[0]) < self.epoch_before or (np.diff(epochs) < 0).any():
            self.add("wrong_rows", segment.path, "the leader epoch goes back")
        self.epoch_before = int(epochs[-1])
        if self.found.identity is None or self.found.of_kind("wrong_epochs"):
            return
        if self.epochs is None:
            self.add("wrong_epochs", path, "there is none")
            return
        begins = np.array([first for _, first in self.epochs.items], np.int64)
        known = np.array([-1, *(epoch for epoch, _ in self.epochs.items)], np.int64)
        wrong = known[np.searchsorted(begins, kept["first_offset"], side="right")] != epochs
        if wrong.any():
            at = int(wrong.argmax())
            offset = int(kept["first_offset"][at])
            text = f"offset {offset} is of epoch {self.epochs.epoch_of(offset)} here and of {epochs[at]} in its batch"
            self.add("wrong_epochs", path, text, offsets=(offset, int(kept["next_offset"][at])))

    def index(self, segment: Segment, found: Scan, kept: Batches, *, is_last: bool) -> None:
        is_sealed = not is_last or bool(found.markers)
        text = wrong_index(self.disk, segment, kept, self.checkpoint, is_sealed=is_sealed)
        if text is not None:
            offsets = (int(kept["first_offset"][0]), int(kept["next_offset"][-1])) if len(kept) else None
            self.add("wrong_index", segment.index_path, text, offsets=offsets)


def _place(batch: np.void) -> tuple[int, int]:
    return int(batch["position"]), int(batch["position"] + batch["length"])


def _offsets(batch: np.void) -> tuple[int, int]:
    return int(batch["first_offset"]), int(batch["next_offset"])
