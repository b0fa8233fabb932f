"""One replica of a driven broker, as clients call it and as the checker sees it: from outside, after each event."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from broker.api.errors import BadBatch, LiftlogError, OffsetOutOfRange
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import Outcome
from broker.node.placed import PlacedReplica, Stepping
from broker.replication.events import Acks
from broker.replication.leader import Leader
from broker.replication.messages import AskRange, Incarnation
from broker.storage.log import AppendResult, PartitionLog
from broker.storage.read import verified_messages
from broker.storage.recovery import Ranges, merge_ranges
from broker.storage.rewrite.gaps import without
from tests.sim.batches import Batch
from tests.sim.driven.changing import whereabouts
from tests.sim.driven.givers import Givers
from tests.sim.driven.rewriting import Rewriting
from tests.sim.metadata import name_of
from tests.sim.stored import Stored, stored_of
from tests.support.published import batch_from_nats, with_id
from tests.unit.ingest.wire import answers_in

if TYPE_CHECKING:
    from tests.sim.driven.node import Broker


SORTED_NOW = 0.5
"""So likely a message was sorted by the number of partitions that holds now where it is appended."""
PIECE_BYTES = 1_500
"""So much is scrubbed at once."""


class Seen:
    """See the module.

    Attributes:
        shadow: The batches of the log. What cannot be read any more stays in it, if it was seen before.
        is_damaged: Something cannot be read. `has_rot`: and the replica has not found that yet.
        givers: Others that could give what lacks.
    """

    is_mid_change = False

    def __init__(self, broker: Broker, at: Place) -> None:
        self.broker = broker
        self.world = broker.world
        self.checker: Any = broker.cluster.checker
        self.at, self.name = at, name_of(at)
        self.shadow: list[Stored] = []
        self.is_damaged = self.has_rot = False
        self.givers = Givers(self)
        self.rewriting = Rewriting(broker, self) if broker.cluster.rewrites else None
        self._log: PartitionLog | None = None  # as it was seen last
        self._cuts = -1
        self._lost: Ranges = ()
        self._read_to = 0
        self._was_damaged = self._is_scrubbing = False
        self._committed = self._led = -1
        self._is_frozen = self._has_failed = False
        self._stepping: Stepping | None = None
        self._idle = Leader(broker.name)
        self._slot_count = 0

    # -- what there is

    @property
    def placed(self) -> PlacedReplica | None:
        return self.broker.driver.replica(self.at)

    @property
    def partition(self) -> Partition | None:
        return self.broker.driver.partition(self.at)

    @property
    def incarnation(self) -> Incarnation | None:
        """As the catalog has it that its driver goes by."""
        return None if self.placed is None else self.placed._incarnation

    @property
    def stepping(self) -> Stepping | None:
        """Why it is about to step out."""
        return None if self.placed is None else self.placed.stepping

    @property
    def log(self) -> PartitionLog | None:
        if self._is_frozen:
            return self._log
        if (partition := self.partition) is not None:
            return partition.log
        if (found := self.broker.driver._found.get(self.at)) is not None:
            return found[1]
        placed = self.placed
        found = None if placed is None else placed._found
        return self._log if found is None and self.broker.is_stopping else found

    @property
    def is_of_before(self) -> bool:
        """The stream was deleted."""
        return self.name not in self.checker.partitions

    @property
    def leads(self) -> bool:
        partition = None if self._is_frozen else self.partition
        return partition is not None and partition.leads

    @property
    def leader(self) -> Leader:
        partition = None if self._is_frozen else self.partition
        return self._idle if partition is None else partition._core

    @property
    def state(self) -> Any:
        """As its leader's core has it."""
        in_sync = self.leader.in_sync
        least, epoch = self.leader.min_insync_replicas, -1 if in_sync is None else in_sync.partition_epoch
        return SimpleNamespace(min_insync_replicas=least, partition_epoch=epoch)

    @property
    def folder(self) -> str:
        return self.broker.folder_of(self.name)

    @property
    def durable_end(self) -> int:
        log = self.log
        return 0 if log is None else min(log.state.durable_end, log.state.log_end_offset)

    @property
    def is_behind(self) -> bool:
        return self.log is not None and self.log.state.is_behind

    def freeze(self) -> None:
        """The process is about to be gone: what it has seen last stays."""
        self._log, self._is_frozen = self.log, True

    def remember(self) -> None:
        self.checker.gone(self)

    # -- what has come of an event

    def look(self) -> None:
        """Tell the checker what is new."""
        log = self.log
        if log is None or self.is_of_before:
            self._log = log
            return
        if log is not self._log:
            is_found = log.state.recovery is not None and self._log is None and self.at in self.broker.driver._found
            self._log, self._cuts, self._committed = log, log.state.cuts, 0
            self.shadow = []
            self._read_all(log)
            self._lost, self._was_damaged = log.state.lost_ranges, False
            if is_found:
                if log.state.recovery.cut_offset is not None:
                    self.world.saw("torn tail")
                if log.state.is_behind:
                    self.world.saw("replica behind")
                self.checker.opened(self)
            else:
                self._is_new(log)
            self._committed = log.state.high_watermark
            self._look_whether_whole(log)
        if log.state.lost_ranges != self._lost:
            self._look_at_damage(log)
        had_failed, self._has_failed = self._has_failed, log.state.failure is not None
        is_shorter = bool(self.shadow) and log.state.log_end_offset < self.shadow[-1].next
        if log.state.cuts != self._cuts or is_shorter or (had_failed and not self._has_failed):
            self._cuts = log.state.cuts
            self._committed = min(self._committed, log.state.high_watermark)  # an operator may have given up what was
            before = self.shadow
            self._read_all(log)
            if not self.shadow and log.state.log_start_offset:
                self.world.saw("reset")
            if len(self.shadow) < len(before):
                self.world.saw("truncation")
                self._note(f"has cut its log to {log.state.log_end_offset}")
            self.checker.cut(self)
            self._look_whether_whole(log)
        self._read_on(log, {})
        placed, partition = self.placed, self.partition
        was_damaged, self._was_damaged = self._was_damaged, placed is not None and placed.is_damaged
        if self._was_damaged and not was_damaged:
            self.world.saw("damage found")
            self._note(f"is damaged: {log.state.lost_ranges}")
            self.checker.damaged(self)
        self.is_damaged = self._was_damaged or self.has_rot or bool(log.state.lost_ranges)
        if placed is not None and placed.stepping is not self._stepping:
            self._stepping = placed.stepping
            if self._stepping is not None:
                self._note(f"is to step out: {self._stepping.why}")
                if self._stepping.why == "fsync" and not self._has_failed:
                    self.checker.fail(f"WELL: {self.name}: {self.broker.name} steps out, and its log has not failed")
                if self._stepping.why == "damage":
                    self._gives_up(log, is_old=placed.is_old)
        if partition is not None and partition.leads and partition.leader_epoch != self._led:
            self._led = partition.leader_epoch
            self.checker.leads(self, self._led)
            if placed is not None:
                self.checker.leads_in_its_life(self, self._led, placed._incarnation)
            self._note(
                f"leads epoch {self._led} from {self.leader.epoch_start}, high watermark {log.state.high_watermark}"
            )
        if log.state.high_watermark > self._committed:
            before, self._committed = self._committed, log.state.high_watermark
            text = f"{self.name}: commits up to {{end}} in epoch {log.epochs.latest}"
            self.world.detail(self.broker.name, text, log.state.high_watermark, log.state.high_watermark)
            self.checker.commits(self, log.state.high_watermark, since=before)
            if self.broker.cluster.published is not None:
                self.broker.cluster.published.committed(self, log)

    def _is_new(self, log: PartitionLog) -> None:
        if log.state.log_end_offset == 0:
            self.checker.created(self)

    def _note(self, text: str) -> None:
        self.world.note(self.broker.name, f"{self.name}: {text}")

    def _read_all(self, log: PartitionLog, *, again: Ranges = ()) -> None:
        """Anew. `again`: what can be read since."""
        is_there = lambda one: any(start < one.next and one.first < end for start, end in again)  # noqa: E731
        before, self.shadow = {one.first: one for one in self.shadow if not is_there(one)}, []
        self.has_rot, self._read_to = False, 0
        self._read_on(log, before)
        self.is_damaged = self.has_rot or bool(log.state.lost_ranges)

    def _read_on(self, log: PartitionLog, before: Mapping[int, Stored]) -> None:
        """What was appended since is in the shadow, too. `before`: what was there, if it cannot be read."""
        at = max(self._read_to, log.state.log_start_offset)
        if at >= log.state.log_end_offset:
            return
        first = at
        while at < log.state.log_end_offset:
            after = next((end for start, end in log.state.lost_ranges if start <= at < end), at)
            found = self._messages(log, at, log.state.log_end_offset) if after == at else []
            if found:
                end = self.shadow[-1].next if self.shadow else 0
                self.shadow += [one for one in self._unfolded(found) if one.first >= end]
                at = stored_of(found[-1]).next
                continue
            self.has_rot |= after == at
            if (one := before.get(at)) is not None and one.next <= log.state.log_end_offset:
                self.shadow.append(one)
                at = one.next
            else:
                at = max(after, at + 1)
        self._read_to = at
        if self.leads and at > first:
            self.world.detail(
                self.broker.name, f"{self.name}: appends {{span}} in epoch {log.epochs.latest}", first, at
            )

    def _unfolded(self, messages: Sequence[memoryview]) -> list[Stored]:
        """As `Held._unfolded`. What is not committed has been appended so, whoever shows it first."""
        known = self.checker.known[self.name]
        if known.rewritten is None:
            return [stored_of(message) for message in messages]
        self.checker.wrote(self.name, [message for message in messages if stored_of(message).first >= known.end])
        return [one for message in messages for one in self.checker.unfolded(self.name, self.broker.name, message)]

    def _read(self, offset: int, end: int, max_bytes: int) -> list[memoryview]:
        """As `Held._read`."""
        log = self.log
        return [] if log is None else self._messages(log, max(offset, log.state.log_start_offset), end, max_bytes)

    @staticmethod
    def _messages(log: PartitionLog, start: int, end: int, max_bytes: int = 1 << 20) -> list[memoryview]:
        found: list[memoryview] = []
        with (
            suppress(BadBatch, LiftlogError),
            log.reader.read(start, end=end, max_bytes=max_bytes, stored=True) as plan,
        ):
            for place, (_, file) in zip(plan.ranges, plan.sources, strict=True):
                found += [message for message, _ in verified_messages(file, place)]
        return found

    # -- damage

    def _look_at_damage(self, log: PartitionLog) -> None:
        """Something was found to be damaged, or can be read again."""
        had, self._lost = self._lost, log.state.lost_ranges
        before, start, end = self.shadow, log.state.log_start_offset, log.state.log_end_offset
        again = merge_ranges([(a, min(b, end)) for a, b in without(had, self._lost)], log_start_offset=start)
        self._read_all(log, again=again)
        if again:
            self.checker.mended(self, again)
            self.checker.stays(self, before, self._lost)
        self._look_whether_whole(log)

    def has_given_up(self, start: int, end: int) -> None:
        """An operator has given up what could not be read there: it is empty now."""
        log = self.log
        assert log is not None
        self._lost = log.state.lost_ranges
        self._read_all(log, again=[(start, end)])
        self.checker.emptied(self, [one for one in self.shadow if start <= one.first < end])

    def _look_whether_whole(self, log: PartitionLog) -> None:
        """Just when all has been read."""
        at = log.state.log_start_offset
        for one in self.shadow:
            if one.first > at:
                break
            at = one.next
        if at == log.state.log_end_offset and not (self.is_damaged or log.state.is_behind):
            self.checker.whole_again(self)

    def _gives_up(self, log: PartitionLog, *, is_old: bool) -> None:
        """It wants to step out for damage."""
        self.world.saw("wants to begin anew")
        for lost in log.state.lost_ranges if not is_old else ():
            if lost[1] <= log.state.high_watermark and (giver := self.givers.of(lost)):
                self.checker.gives_up(self, lost, giver)

    def asks(self, question: AskRange) -> None:
        """It is about to ask others for what it cannot read."""
        self.world.saw("range asked for")
        if self.log is not None:
            self.checker.asks_range(self, question.start)

    def scrub(self) -> None:
        """As the scrubber of a broker does, and what it has found is looked at."""
        partition = self.partition
        if partition is not None and not self._is_scrubbing:
            self._is_scrubbing = True
            self.broker.work.run(lambda: self._scrub(partition.replica))

    def _scrub(self, replica: Replica) -> None:
        try:
            offset = 0
            while not replica.is_over and (piece := replica.scrub(offset, bytes_max=PIECE_BYTES)) is not None:
                offset = piece.next_offset
                self.broker.work.preempt()
        except LiftlogError:
            return
        finally:
            self._is_scrubbing = False
        if (log := self.log) is replica.log and not self._is_frozen:
            self.look()
            if self.broker.name in self.checker.known[self.name].bad and not log.state.lost_ranges:
                self._read_all(log)
                self._look_whether_whole(log)

    # -- clients

    def publish(self, answer: Callable[..., None], batches: Sequence[Batch], acks: Acks) -> None:
        """Append one commit group. Answers ("stored", first, next) or why not."""
        partition = self._for_client(answer)
        if partition is None:
            return

        def told(result: AppendResult, outcome: Outcome) -> None:
            if isinstance(outcome, LiftlogError):
                answer(type(outcome).__name__)
                return
            self.is_acked(0)
            if not self.is_of_before:
                self.look()
                self.checker.acked(self, result.first_offset, result.next_offset, acks, batches)
            answer("stored", result.first_offset, result.next_offset)

        result = self._append(answer, partition, batches, told, acks=acks, here=self.world.chance(0.5))
        if result is not None and result.duplicate:
            self.world.saw("repeat known by its sequence")

    def _for_client(self, answer: Callable[..., None]) -> Partition | None:
        """The partition as a client finds it, or it is told why there is none."""
        found: Partition | str | None = self.partition
        if self.broker.cluster.changes is not None and self.broker.http is not None and self.world.chance(0.5):
            found = whereabouts(self.broker, self.name)
        if isinstance(found, Partition):
            return found
        answer(found or "not here")
        return None

    def _append(
        self,
        answer: Callable[..., None],
        partition: Partition,
        batches: Sequence[Any],
        tell: Callable[[AppendResult, Outcome], None],
        *,
        sorted_by: int = 0,
        **options: Any,
    ) -> AppendResult | None:
        """Append. None: it is refused, and the client has heard why."""
        changes, waiting, key = self.broker.cluster.changes, self.broker.work.waiting, object()

        def told(result: AppendResult, outcome: Outcome) -> None:
            if waiting.pop(key, None) is None:
                self.checker.fail(f"TOLD: {self.name}: {self.broker.name} tells somebody twice: {outcome}")
            tell(result, outcome)

        waiting[key] = self.name
        try:
            result = Partition.append_now(partition, batches, told, sorted_by=sorted_by, **options)
        except LiftlogError as error:
            if waiting.pop(key, None) is None:
                self.checker.fail(f"TOLD: {self.name}: {self.broker.name} tells somebody, and raises {error}")
            if changes is not None:
                changes.refused(self, error)
            answer(type(error).__name__)
            return None
        if changes is not None:
            changes.took(self, partition, sorted_by)
        return result

    def is_acked(self, sorted_by: int) -> None:
        """Somebody is about to be told that his records are stored."""
        changes = self.broker.cluster.changes
        if changes is not None:
            changes.serves(self, "a publish")
            changes.acked(self, sorted_by)
        if self.is_of_before:
            self.checker.serves(self, "a publish")

    def publish_ids(self, answer: Callable[..., None], values: Sequence[bytes], key: str = "") -> None:
        """Append messages from NATS, each with its value for an id, and that key. Answers ("stored", those that are) or
        why not.
        """
        partition = self._for_client(answer)
        if partition is None:
            return
        keys = (("Liftlog-Key", key),) if key else ()
        batch = batch_from_nats([(value, with_id(value.decode()) + keys) for value in values], self.broker.wall_us)

        def told(result: AppendResult, outcome: Outcome) -> None:
            if isinstance(outcome, LiftlogError):
                answer(type(outcome).__name__)
                return
            by = {b"r%d" % at: value for at, value in enumerate(values)}
            offsets = self.offsets_of(batch.acks(result.first_offset), by)
            self.is_acked(sorted_by)
            if not self.is_of_before:
                self.look()
                self.checker.acked_each(self, offsets)
            answer("stored", list(offsets))

        sorted_by = self._sorted_by(partition)
        self._append(answer, partition, [batch], told, sorted_by=sorted_by)

    def offsets_of(self, blob: bytes, values: Mapping[bytes, bytes]) -> dict[bytes, int]:
        """Where answers say that each message is, by its value. `values`: by the subjects of their replies."""
        found = {}
        for reply, text in answers_in(blob):
            if "error" not in (body := json.loads(text)):
                found[values[reply]] = body["seq"] - 1
                self.world.saw("repeat known by its id" if body.get("duplicate") else "stored with an id")
        return found

    def _sorted_by(self, partition: Partition) -> int:
        """As intake sorts: by the number that it was told, now or a while ago. 0: there is no intake."""
        if self.broker.cluster.changes is None:
            return 0
        if not self._slot_count or self.world.chance(SORTED_NOW):
            self._slot_count = partition.goes_by.settings.partitions
        return self._slot_count

    def read(self, answer: Callable[..., None], offset: int, epoch: int) -> None:
        """Committed records for a consumer who has seen `epoch`. Answers (epoch, start, end or -1, batches)."""
        partition = self._for_client(answer)
        if partition is None:
            return
        if not partition.serves or partition.leader_epoch < epoch:
            answer("not known")
            return
        log, end = partition.log, partition.end
        self.checker.serves(self, "a read")
        if self.broker.cluster.changes is not None:
            self.broker.cluster.changes.serves(self, "a read")
        try:
            with log.reader.read(max(offset, log.state.log_start_offset), max_bytes=3_000) as plan:
                found = []
                for place, (_, file) in zip(plan.ranges, plan.sources, strict=True):
                    found += self._unfolded([message for message, _ in verified_messages(file, place)])
        except OffsetOutOfRange:
            found = []
        except (BadBatch, LiftlogError):
            self.scrub()
            answer("damaged")
            return
        answer("records", partition.leader_epoch, log.state.log_start_offset, -1 if end is None else end, found)

    def trim(self, answer: Callable[..., None], start: int) -> None:
        """Let records go. Answers ("stored", epoch) once nobody can undo it."""
        partition = self.partition
        log = None if partition is None or not partition.serves else partition.log
        if partition is None or log is None or not log.state.log_start_offset < start <= log.state.high_watermark:
            answer("no")  # beyond that less is trimmed than was asked for
            return
        floor = partition.replica.floor()
        if floor is not None and floor < start:  # so it is where sinks have staged
            answer("no")
            return
        epoch = partition.leader_epoch
        self._note(f"is asked to let go of all below {start}, and is committed up to {log.state.high_watermark}")
        self.checker.trim_asked(self, start)

        def told(done: Any) -> None:
            if done.exception() is not None:
                answer("no")
            elif self.broker.has_session:
                self.world.saw("trim answered")
                self._note(f"has let go of all below {start}")
                self.checker.trimmed(self, start)
                answer("stored", epoch)

        partition.trim(start).add_done_callback(told)

    # -- faults

    def keep(self) -> bool:
        """Let the checkpoint tell of all that is durable. Returns whether it does."""
        log = self.log
        try:
            if log is not None and log.state.failure is None:
                log.checkpoint()
                return True
        except LiftlogError:
            pass
        return False
