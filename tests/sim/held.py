"""The holdings of one replica: a log on the fake disk, what was written into it (`shadow`), and what happens to both.

An fsync takes time, and its outcome is told later than it happens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.api.batch import VALUE_AT, VALUE_BYTES, message_bytes, read_header
from broker.api.errors import BadBatch, CorruptLog, DiskFull, LiftlogError, OffsetOutOfRange
from broker.replication import events as e
from broker.replication import following as f
from broker.replication.messages import Incarnation
from broker.storage.log import PartitionLog
from broker.storage.read import verified_messages
from broker.storage.segments.checkpoint import CHECKPOINT_FILE, LogIdentity, LogSettings

if TYPE_CHECKING:
    from tests.sim.broker import Broker
    from tests.sim.metadata import Answered

SETTINGS = LogSettings(segment_bytes=7_000, is_sole_replica=False, dedup_window_ms=1_800_000)
"""Ids are known for longer than a run takes, and for less than wall clocks are apart, and jump."""


class Stored(NamedTuple):
    """A stored batch, as the checker knows it."""

    first: int
    next: int
    epoch: int
    crc: int
    ends_group: bool

    def __str__(self) -> str:
        rest = "" if self.ends_group else ", within its group"
        return f"[{self.first}, {self.next}) of epoch {self.epoch} (crc {self.crc:08x}{rest})"


_SEEN: dict[bytes, Stored] = {}
"""By what headers say: replicas, consumers and the checker meet the same ones again and again."""
_SEEN_MAX = 10_000


def stored_of(message: bytes | memoryview) -> Stored:
    value = bytes(message[VALUE_AT : VALUE_AT + VALUE_BYTES])
    found = _SEEN.get(value)
    if found is None:
        header = read_header(message)
        ends_group = header.group_index == header.group_count - 1
        found = Stored(header.first_offset, header.next_offset, header.leader_epoch, header.crc, ends_group)
        if len(_SEEN) >= _SEEN_MAX:
            _SEEN.clear()
        _SEEN[value] = found
    return found


class Held:
    """See the module.

    Attributes:
        log: None: there is none, and none may be made before the catalog says that this replica is another.
        shadow: The batches of the log, by what was written into it and found in it; for those that replicas have
            written anew since, the batches that were appended there.
        is_damaged: A record that was fsynced cannot be read.
        is_sound: There was a log that says for certain what it holds.
        is_behind: Its disk has taken back committed records from the end, as the open has found.
        is_mid_change: The power went in the midst of a change of the log.
        lacks_room: Its disk was full when it was appended to last.
    """

    # those who drive it bring
    damaged: Callable[[str], None]
    step_out: Callable[[str], None]
    incarnation: Incarnation
    _disk_failed: Callable[[LiftlogError], None]
    _follow_step: Callable[[f.Event], None]

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.world = broker.world
        self.checker = broker.cluster.checker
        self.name = name
        self.folder = broker.folder_of(name)
        self.identity = LogIdentity(cluster_id="c", stream=name, incarnation="i", partition=0)
        self.log: PartitionLog | None = None
        self.shadow: list[Stored] = []
        self.is_damaged = self.is_sound = self.is_behind = self.is_mid_change = False
        self.lacks_room = False
        self._data = b""

    def note(self, text: str) -> None:
        self.broker.note(f"{self.name}: {text}")

    def submit(self, command: dict[str, Any], answered: Answered | None = None) -> None:
        """Ask the controller for something."""
        self.broker.submit(command, answered)

    @property
    def durable_end(self) -> int:
        """The durable end of the log; that of a process that is gone is the one that it had."""
        return 0 if self.log is None else self.log.state.durable_end

    # -- the folder

    def open(self) -> bool:
        """Open the log that is there. Returns whether there is a folder."""
        disk = self.broker.disk
        if not disk.exists(self.folder):
            return False
        try:
            log = PartitionLog.open(
                disk,
                self.folder,
                self._log_settings(),
                boot_id="",
                now_us=self.broker.elapsed_us,
                expected=self.identity,
            )
        except LiftlogError as error:
            is_checkpoint = isinstance(error, CorruptLog) and CHECKPOINT_FILE in str(error)
            self.world.saw("damaged checkpoint" if is_checkpoint else "folder that cannot be opened")
            self.note(f"cannot be opened: {error}")
            return True
        if log.state.recovery.cut_offset is not None:
            self.world.saw("torn tail")
        self.log, self.is_sound, self.is_behind = log, True, log.state.is_behind
        if self.is_behind:
            self.world.saw("replica behind")
            self.note(f"ends at {log.state.log_end_offset}, and more was committed")
        if log.state.lost_ranges:
            self.damaged(f"{log.state.lost_ranges} cannot be read")
        self._look()
        self.checker.opened(self)
        return True

    def _log_settings(self) -> LogSettings:
        return replace(self.broker.cluster.log_settings, is_compacted=self.name in self.broker.cluster.compacted)

    def _look(self) -> None:
        """Read all of the log into the shadow."""
        log = self.log
        assert log is not None
        self.shadow = []
        at = log.state.log_start_offset
        while at < log.state.log_end_offset:
            found = self._read(at, log.state.log_end_offset, 1 << 20)
            if not found:
                break
            self.shadow += self._unfolded(found)
            at = self.shadow[-1].next

    def _read(self, offset: int, end: int, max_bytes: int) -> list[memoryview]:
        """Stored messages from `offset` on, as many as fit; none if the first is damaged."""
        log, found = self.log, list[memoryview]()
        assert log is not None
        offset = max(offset, log.state.log_start_offset)  # it may be within the first batch
        try:
            with log.reader.read(offset, end=end, max_bytes=max_bytes, stored=True) as plan:
                for place, (_, file) in zip(plan.ranges, plan.sources, strict=True):
                    for message, after in verified_messages(file, place):
                        if stored_of(message).first > offset:
                            self.damaged(f"{offset} cannot be read")
                            return found
                        found.append(message)
                        offset = after
        except (BadBatch, LiftlogError) as error:
            self.damaged(f"{offset} cannot be read: {type(error).__name__}")
        return found

    def _unfolded(self, messages: Sequence[memoryview]) -> list[Stored]:
        """The batches that were appended where these stand; some may have been written anew since."""
        return [one for message in messages for one in self.checker.unfolded(self.name, self.broker.name, message)]

    def create(self) -> None:
        """A new, empty log in the place of whatever was there."""
        disk = self.broker.disk
        disk.remove_tree(self.folder)
        self.shadow, self.is_damaged = [], False
        try:
            self.log = PartitionLog.create(
                disk, self.folder, self.identity, self._log_settings(), now_us=self.broker.elapsed_us
            )
            self.is_sound = True
            self.checker.created(self)
        except LiftlogError as error:  # a full disk: later
            self.log = None
            self.note(f"cannot be created: {error}")

    def drop(self) -> None:
        """No replica is to be here any more."""
        self.log = None
        self.broker.disk.remove_tree(self.folder)

    def remember(self) -> None:
        """The process is gone: what it knew to be durable must be there when the next one looks."""
        self.checker.gone(self)

    def _group_ends(self) -> list[int]:
        log = self.log
        assert log is not None
        ends = log.state.group_ends
        return ends if ends and ends[-1] == log.state.log_end_offset else []

    def _holds(self, *, is_refused: bool = False) -> f.Holds:
        log = self.log
        assert log is not None
        whole = next((s.next for s in reversed(self.shadow) if s.ends_group), log.state.high_watermark)
        return f.Holds(
            log_start=log.checkpoints.kept_start_offset,
            log_end=log.state.log_end_offset,
            durable_end=log.state.durable_end,
            last_epoch=log.epochs.latest,
            high_watermark=log.state.high_watermark,
            group_end=max(whole, log.state.high_watermark),
            is_refused=is_refused,
            lacks_state=log.handover.lacks,
            compacted_to=log.state.compacted_to,
            waits_to=log.state.waits_to,
            lacks_room=self.lacks_room,
            superseded_to=log.state.superseded[0],
            superseded_epoch=log.state.superseded[1],
        )

    def _is_harmless(self, error: LiftlogError) -> bool:
        log = self.log
        return (
            log is not None and log.state.failure is None and isinstance(error, (DiskFull, BadBatch, OffsetOutOfRange))
        )

    def _append_stored(self, effect: f.Append) -> None:
        data, log = self._data, self.log
        assert log is not None
        if not data:
            return
        try:
            log.append_stored(
                data,
                leader_epoch=effect.epoch,
                now_us=self.broker.elapsed_us,
                is_rewritten=effect.is_rewritten,
                superseded=(effect.superseded_to, effect.superseded_epoch),
            )
        finally:
            view = memoryview(data)
            while view:
                message = view[: message_bytes(view)]
                if stored_of(message).next > log.state.log_end_offset:
                    break
                self.shadow += self._unfolded([message])
                view = view[len(message) :]

    def _cut_shadow(self) -> None:
        log = self.log
        assert log is not None
        before = len(self.shadow)
        while self.shadow and self.shadow[-1].next > log.state.log_end_offset:
            self.shadow.pop()
        if len(self.shadow) < before:
            self.checker.cut(self)

    def _first_stored(self, log: PartitionLog) -> int:
        """Where the batch begins that holds the log start."""
        start = log.state.log_start_offset
        return start if start in (0, log.state.log_end_offset) else self._batch_start(log, start)

    def _batch_start(self, log: PartitionLog, offset: int) -> int:
        try:
            return log.reader.batch_start(offset)
        except LiftlogError as error:
            self.damaged(f"{offset} cannot be found: {type(error).__name__}")
            return offset

    def _begin_sync(self, generation: int, tell: Callable[[Any], None]) -> None:
        rng = self.world.rng
        delay = rng.expovariate(1 / self.broker.sync_ms)
        if rng.random() < 0.5:
            self.broker.after(delay, self._synced, self._sync(generation), tell)
        else:
            self.broker.after(delay, self._sync_and_tell, generation, tell)

    def _sync(self, generation: int) -> e.Synced | e.SyncFailed:
        log = self.log
        if log is None:
            return e.Synced(generation, 0)
        try:
            return e.Synced(generation, log.syncer.sync())
        except LiftlogError as error:
            self.world.saw("fsync failed")
            return e.SyncFailed(generation, error)

    def _sync_and_tell(self, generation: int, tell: Callable[[Any], None]) -> None:
        self._synced(self._sync(generation), tell)

    def _synced(self, event: e.Synced | e.SyncFailed, tell: Callable[[Any], None]) -> None:
        if isinstance(event, e.SyncFailed):
            self.note("a failed fsync")
        tell(event)

    def keep(self) -> bool:
        """Let the checkpoint tell of all that is durable. Returns whether it does."""
        try:
            if self.log is not None and self.log.state.failure is None:
                self.log.checkpoint()
                return True
        except LiftlogError:
            pass
        return False

    def scrub(self) -> None:
        """Read everything once."""
        log = self.log
        if log is None or self.is_damaged:
            return
        at = log.state.log_start_offset
        while at < log.state.log_end_offset and not self.is_damaged:
            found = self._read(at, log.state.log_end_offset, 1 << 20)
            if not found:
                return
            at = stored_of(found[-1]).next


def position_of(shadow: list[Stored], first: int) -> int:
    """Where the batch that begins at `first`, or the next one, stands."""
    return bisect_left(shadow, first, key=lambda one: one.first)
