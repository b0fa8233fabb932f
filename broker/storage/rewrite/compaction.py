"""Key compaction: of the records of one key only the newest stays, and every record without a key.

    | seg | seg | seg | seg | seg | tail |
    [-- clean --)[------ dirty -----)
                 [ one pass -- )             as far as the map takes keys; the next pass goes on there
      rewritten if older than what the map says

A pass reads the keys of the dirty part into a map (`keymap.py`) and writes each segment below its end anew, without
the records whose key has a newer one in the map (`rewriting.py`). Memory: the map and some megabytes.

Q1  Only sealed segments below the high watermark, with no record newer than `min_compaction_lag_ms`.
Q2  Below `cleaned_to` no key has two records; in [cleaned_to, ...) nothing was taken away by a key that is only there.
    The newest committed record of a key is therefore always there; offsets and order never change.
Q3  A tombstone goes when it has been below `cleaned_to` for `delete_retention_ms`. All earlier records of its key
    were gone, durably, before that time began: none comes back.
    Where there are other replicas it goes only below `tombstones_below`: what the caller knows all of them to have
    compacted. (One that lags has the older record, and would not copy the tombstone any more: the key would be back.)
    Those that have not are told that one waits (`waits_to`), and do a pass then, whatever is dirty (`compact_to`).
Q4  A pass is stopped or killed anywhere: each segment is the old one or the new one, whole. Its end is on disk as
    `superseded_to` before the first segment is replaced that loses a record, and as `cleaned_to` after the last one.
    Done again it gives the same.
Q5  Where records are taken back under a pass, nothing more is written anew by what was read of them, and the state that
    the truncation lowered stays.
Q6  A log in which something is lost, or was changed by somebody, is left alone: what cannot be read cannot be shown to
    be older (Q2, Q3).

The file `compaction` holds these marks, and when the offsets below `cleaned_to` became clean (`clean_state.py`).

Guarantees: docs/explain/guarantees.md. Source: the log cleaner of Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.api.stream import StreamSettings
from broker.storage.disk import Disk, storage_error
from broker.storage.log import PartitionLog
from broker.storage.read import NeedsRepair
from broker.storage.rewrite.clean_state import CleanState, load_clean_state, save_clean_state
from broker.storage.rewrite.keymap import Hashes, KeyMap, Offsets, hash_keys
from broker.storage.rewrite.rewriting import BatchShape, Mask, StoredBatch, stage, windows
from broker.storage.segments.retention import old_end
from broker.storage.segments.segment import Segment
from broker.storage.writing.replace import replace_segments, sealed_segments


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When a log is compacted. Meaning and units are those of `StreamSettings`."""

    min_compaction_lag_ms: int = 0
    min_cleanable_dirty_percent: int = 50
    delete_retention_ms: int = 24 * 3_600_000

    @classmethod
    def of(cls, settings: StreamSettings) -> CompactionSettings | None:
        """The part of a stream's settings that compaction acts on; None: it is not compacted."""
        if settings.cleanup == "delete":
            return None
        return cls(
            min_compaction_lag_ms=settings.min_compaction_lag_ms,
            min_cleanable_dirty_percent=settings.min_cleanable_dirty_percent,
            delete_retention_ms=settings.delete_retention_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """The result of one pass.

    Attributes:
        cleaned_to: Where the next one goes on.
        is_done: It covered all that was to be cleaned; False: the map was full, another pass is due at once.
        uncleanable: Why nothing was done (Q6); else empty.
        read_bytes: Bytes of messages; one that both the map and the rewrite read counts twice.
        bytes_before, bytes_after: Sizes of the files that were written anew.
    """

    cleaned_to: int
    is_done: bool = True
    uncleanable: str = ""
    segments_rewritten: int = 0
    records_gone: int = 0
    key_count: int = 0
    read_bytes: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


def cleanable(
    disk: Disk, sealed: Sequence[tuple[Segment, int]], *, below: int, before_us: int | None
) -> list[tuple[Segment, int]]:
    """The segments that a pass may touch, each with the offset after it (Q1).

    Args:
        below: All their records are below this offset.
        before_us: None of their records is newer; None: however new they are.
    Raises:
        NeedsRepair: the index of one is gone.
    """
    found = []
    for segment, end in sealed:
        newest_us = segment.max_timestamp_us(disk)
        if newest_us is None:
            raise NeedsRepair(segment)
        if end > below or (before_us is not None and newest_us > before_us):
            break
        found.append((segment, end))
    return found


def is_due(
    sizes: Sequence[tuple[int, int]],
    state: CleanState,
    settings: CompactionSettings,
    *,
    tombstone_end: int,
    is_awaited: bool = False,
) -> bool:
    """Whether a pass is worth its work: enough is dirty, or tombstones have had their time, here or elsewhere.

    Args:
        sizes: (end, bytes) of the segments that it may touch.
        tombstone_end: Tombstones below it may go.
        is_awaited: Another replica's wait for what is dirty here.
    """
    if not sizes:
        return False
    if is_awaited and sizes[-1][0] > state.cleaned_to:
        return True
    dirty = sum(size for end, size in sizes if end > state.cleaned_to)
    if dirty and dirty * 100 >= settings.min_cleanable_dirty_percent * sum(size for _, size in sizes):
        return True
    return state.tombstone_count > 0 and tombstone_end > state.tombstones_to


def compact(
    log: PartitionLog,
    settings: CompactionSettings,
    *,
    map_bytes: int,
    now_us: int,
    throttle: Callable[[int], None] = lambda _: None,
    shape: BatchShape | None = None,
    tombstones_below: int = 0,
    compact_to: int = 0,
) -> CompactionReport | None:
    """Do one pass, if one is due. One at a time per log.

    Args:
        map_bytes: The map of keys may take so many.
        throttle: Called with the bytes of each piece that was read or written; may sleep, and may raise to stop
            the pass (Q4).
        shape: Join the batches of what is written anew, up to this.
        tombstones_below: Where there are other replicas: the least `cleaned_to` of all that are assigned, 0 for one
            that has not told; minded nowhere else (Q3).
        compact_to: Somebody's tombstones wait until this log is compacted so far.
    Returns:
        None: the log is clean enough.
    Raises:
        StorageFailed, DiskFull: the disk refuses; as Q4.
        CorruptLog: a file cannot be read, and scanning it anew did not help.
    """
    try:
        return _Pass(log, settings, map_bytes, now_us, throttle, shape, tombstones_below, compact_to).run()
    except NeedsRepair as damage:
        log.state.repair(damage.segment)  # notes what is lost: the next pass sees that, or a whole index
        return CompactionReport(cleaned_to=0, uncleanable=f"{damage.segment.path} was scanned anew")
    except FileNotFoundError as error:  # let go of by retention meanwhile: the next pass does without it
        return CompactionReport(cleaned_to=0, uncleanable=f"{error.filename} is gone")
    except OSError as error:
        raise storage_error(error, f"compact {log.state.folder}") from error


class _Pass:
    def __init__(
        self,
        log: PartitionLog,
        settings: CompactionSettings,
        map_bytes: int,
        now_us: int,
        throttle: Callable[[int], None],
        shape: BatchShape | None,
        tombstones_below: int,
        compact_to: int,
    ) -> None:
        self.log = log
        self.disk = log.state.disk
        self.settings = settings
        self.map_bytes = map_bytes
        self.now_us = now_us
        self._throttle = throttle
        self.shape = shape
        self.tombstones_below = tombstones_below
        self.compact_to = compact_to
        self.read_bytes = 0
        self.tombstone_end = 0
        self.tombstone_count = 0
        self.end = 0
        self.map = KeyMap(0)

    def run(self) -> CompactionReport | None:
        cuts = self.log.state.cuts  # before anything is read
        state = load_clean_state(self.disk, self.log.state.folder)
        segments = cleanable(
            self.disk,
            sealed_segments(self.log.state),
            below=min(self.log.state.high_watermark, self.log.remembered.rewritable_end(), self._old_end()),
            before_us=self._before_us(),
        )
        sizes = [(end, segment.size(self.disk)) for segment, end in segments]
        self.tombstone_end = wanted = state.tombstone_end(self.now_us, self.settings.delete_retention_ms)
        if not self.log.state.settings.is_sole_replica:
            self.tombstone_end = max(state.tombstones_to, min(wanted, self.tombstones_below))
        is_awaited = bool(segments) and max(state.cleaned_to, segments[0][0].base_offset) < self.compact_to
        self._let_wait(state, wanted)
        if not is_due(sizes, state, self.settings, tombstone_end=self.tombstone_end, is_awaited=is_awaited):
            return None
        if why := self._uncleanable():
            return CompactionReport(cleaned_to=state.cleaned_to, uncleanable=why)
        if not self.log.state.settings.is_sole_replica:
            self.log.checkpoints.keep()  # `handover.H4`
        limit = segments[-1][1]
        self.end = self._fill(segments, min(state.cleaned_to, limit), limit)
        rewritten = gone = before = after = 0
        for (segment, _), (_, size) in zip(segments, sizes, strict=True):
            if segment.base_offset >= max(self.end, self.tombstone_end):
                break
            index = self.log.state.index_of(segment)
            staged = stage(
                self.disk,
                [(segment, index)],
                self._throttle,
                keep=self._keep,
                shape=self.shape,
                needs_stamp=self.log.remembered.needs_stamp,
                vault=self.log.state.vault,
            )
            if staged is None:
                continue
            if staged.records_gone and not self._note_superseded(staged.path, cuts):
                break
            if replace_segments(
                self.log.state, [segment], staged.path, staged.entries, staged.bytes, cuts=cuts, is_whole=True
            ):
                rewritten += 1
                gone += staged.records_gone
                before += size
                after += staged.bytes
        if why := self._uncleanable():
            return CompactionReport(cleaned_to=state.cleaned_to, uncleanable=why)
        with self.log.state.checkpoint_lock:  # a truncation lowers the state under it
            if self.log.state.cuts != cuts:
                return CompactionReport(cleaned_to=0, uncleanable="records were taken back meanwhile")
            self.log.state.check_writable()  # `state.L8`
            to, epoch = self.log.state.superseded
            state = replace(state, superseded_to=to, superseded_epoch=epoch).after(
                self.end, now_us=self.now_us, tombstones_to=self.tombstone_end, tombstone_count=self.tombstone_count
            )
            save_clean_state(self.disk, self.log.state.folder, state)
            self.log.state.note_compacted(state.cleaned_to)
            self._let_wait(state, wanted)
        return CompactionReport(
            cleaned_to=state.cleaned_to,
            is_done=self.end >= limit,
            segments_rewritten=rewritten,
            records_gone=gone,
            key_count=self.map.count,
            read_bytes=self.read_bytes,
            bytes_before=before,
            bytes_after=after,
        )

    def _uncleanable(self) -> str:
        """Q6."""
        if self.log.state.lost_ranges:
            return "some of its records are lost"
        return "somebody has changed some of its records" if self.log.state.tampered else ""

    def _note_superseded(self, staged: str, cuts: int) -> bool:
        """Q4. False: records were taken back meanwhile."""
        log, is_noted = self.log, False
        try:
            is_noted = log.state.raise_superseded(self.end, log.epochs.epoch_of(self.end - 1), cuts=cuts)
        finally:
            if not is_noted:
                with suppress(OSError):
                    self.disk.unlink(staged)
        return is_noted

    def _before_us(self) -> int | None:
        """The least that has to be older by timestamp. Without a lag a time in the future holds up nothing."""
        lag_ms = self.settings.min_compaction_lag_ms
        return self.now_us - lag_ms * 1_000 if lag_ms else None

    def _old_end(self) -> int:
        """Below it, records are old enough by the age that they have here, too (`retention.old_end`)."""
        if not self.settings.min_compaction_lag_ms:
            return self.log.state.log_end_offset
        with self.log.state.lock:
            return old_end(self.log.state.ages, self.settings.min_compaction_lag_ms)

    def _let_wait(self, state: CleanState, wanted: int) -> None:
        """Note for the other replicas whether tombstones below `wanted` would go if it were not for their marks."""
        is_waiting = state.tombstone_count > 0 and wanted > self.tombstone_end
        self.log.state.waits_to = wanted if is_waiting else 0

    def _fill(self, segments: Sequence[tuple[Segment, int]], start: int, limit: int) -> int:
        """Put the keys of [start, limit) into the map. Returns the end of those that it took."""
        if start >= limit:
            return start
        self.map = KeyMap(min(self.map_bytes, _map_bytes_for(limit - start)))
        vault = self.log.state.vault
        for segment, end in segments:
            if end <= start:
                continue
            index = self.log.state.index_of(segment)
            for batches in windows(self.disk, segment, index, self._reading, start=start, vault=vault):
                keys, offsets, _ = _columns(batches)
                rows = np.flatnonzero(~_nulls(keys) & (offsets >= start))
                taken = self.map.put(hash_keys(keys)[rows], offsets[rows])
                if taken < len(rows):
                    return int(offsets[rows[taken]])
        return limit

    def _keep(self, batches: Sequence[StoredBatch]) -> Mask:
        """Which rows stay."""
        self.read_bytes += sum(len(batch.message) for batch in batches)
        keys, offsets, is_null = _columns(batches)
        keyed = ~_nulls(keys)
        hashes: Hashes = hash_keys(keys)
        newest: Offsets = np.full(len(offsets), -1, np.int64)
        if self.map.count:
            newest[keyed] = self.map.newest(hashes[keyed])
        tombstones = keyed & is_null
        keep = (newest <= offsets) & ~(tombstones & (offsets < self.tombstone_end))
        self.tombstone_count += int(np.count_nonzero(keep & tombstones & (offsets < self.end)))
        return keep

    def _reading(self, size: int) -> None:
        self.read_bytes += size
        self._throttle(size)


def _map_bytes_for(record_count: int) -> int:
    """A map in which so many keys fit: short logs need no large one."""
    return 64 * record_count + 1_000


def _columns(batches: Sequence[StoredBatch]) -> tuple[pa.Array, Offsets, Mask]:
    """Keys, offsets and whether the value is null, of all rows."""
    keys = pa.concat_arrays([batch.rows.column("key") for batch in batches])
    offsets = np.concatenate([batch.rows.column("offset").to_numpy() for batch in batches])
    return keys, offsets, np.concatenate([_nulls(batch.rows.column("value")) for batch in batches])


def _nulls(column: pa.Array) -> Mask:
    found: Mask = pc.is_null(column).to_numpy(zero_copy_only=False)
    return found
