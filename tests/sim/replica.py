"""One replica: the two cores over a real log on the fake disk. Does here what a runtime has to do with threads.

The cores decide; this hands them what happens, does what they want, and brings the bytes. An fsync takes time, and its
outcome is told later than it happens. An answer that would tell nothing is held back for a while (long poll).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.api.batch import message_bytes, read_header
from broker.api.errors import BadBatch, DiskFull, LiftlogError, NotLeader, OffsetOutOfRange
from broker.replication import events as e
from broker.replication import following as f
from broker.replication.messages import AskEnd, End, Fetch, Incarnation, Message, Records
from broker.storage.log import PartitionLog
from broker.storage.read import verified_messages
from broker.storage.segments.checkpoint import CHECKPOINT_FILE, LogIdentity, LogSettings
from tests.sim.batches import Batch
from tests.sim.catalog import UNREGISTERED, ChangeIsr, Opened, Partition, Report, StepOut

if TYPE_CHECKING:
    from tests.sim.broker import Broker

SETTINGS = LogSettings(segment_bytes=7_000, is_sole_replica=False)
POLL_MS = 200
LAG_MS_MAX = 1_500
GIVE_UP_MS = 5_000
"""A step-out that does not come through for so long: the process exits."""


class Stored(NamedTuple):
    """A stored batch, as the checker knows it."""

    first: int
    next: int
    epoch: int
    crc: int
    ends_group: bool


def stored_of(message: bytes | memoryview) -> Stored:
    header = read_header(message)
    ends_group = header.group_index == header.group_count - 1
    return Stored(header.first_offset, header.next_offset, header.leader_epoch, header.crc, ends_group)


class Replica:
    """See the module.

    Attributes:
        log: None: there is none, and none may be made before the catalog says that this replica is another.
        shadow: What the log holds, by what was written into it and found in it.
        is_damaged: A record that was fsynced cannot be read.
        is_sound: There was a log that says for certain what it holds.
    """

    def __init__(self, broker: Broker, name: str, number: int) -> None:
        self.broker = broker
        self.world = broker.world
        self.checker = broker.cluster.checker
        self.name = name
        self.folder = f"/data/{name}"
        self.identity = LogIdentity(cluster_id="c", stream="s", incarnation="i", partition=number)
        self.log: PartitionLog | None = None
        self.shadow: list[Stored] = []
        self.is_damaged = self.is_sound = self.is_mid_change = False
        self.partition: Partition | None = None
        cores = broker.cluster.cores
        self.leader = cores.leader.Leader(broker.name, replica_lag_ms_max=LAG_MS_MAX)
        self.follower = cores.follower.Follower(broker.name)
        self._stepping: StepOut | None = None
        self._stepping_since_ms = self._stepping_asked_ms = 0.0
        self._is_refused = False
        self._opened_ms = -1e9
        self._checkpointed_ms = 0
        self._parked: dict[str, tuple[Records, float]] = {}
        self._told: dict[str, tuple[int, int]] = {}
        self._data = b""
        self._trim_to = 0
        self._aligned = (0, 0)

    def note(self, text: str) -> None:
        self.broker.note(f"{self.name}: {text}")

    @property
    def durable_end(self) -> int:
        """Of the log; of a process that is gone, what it had."""
        return 0 if self.log is None else self.log.durable_end

    @property
    def incarnation(self) -> Incarnation:
        """Of this replica, as the applied catalog has it."""
        assert self.partition is not None
        return self.partition.incarnations[self.broker.name]

    @property
    def leads(self) -> bool:
        return bool(self.leader.role.value == "leading")

    # -- the folder

    def open(self) -> bool:
        """Open the log that is there. Returns whether there is a folder."""
        disk = self.broker.disk
        if not disk.exists(self.folder):
            return False
        try:
            log = PartitionLog.open(
                disk, self.folder, SETTINGS, boot_id="", now_us=self.broker.now_us, expected=self.identity
            )
        except LiftlogError as error:
            self.world.saw("folder that cannot be opened")
            self.note(f"cannot be opened: {error}")
            return True
        if any(CHECKPOINT_FILE in note for note in log.recovery.notes):
            self.world.saw("damaged checkpoint")
            self.note("its checkpoint is damaged: what it held is not known")
            return True
        if log.recovery.cut_offset is not None:
            self.world.saw("torn tail")
        self.log, self.is_sound = log, True
        if log.lost_ranges:
            self.damaged(f"{log.lost_ranges} cannot be read")
        self._look()
        self.checker.opened(self)
        return True

    def _look(self) -> None:
        """Read all of the log into the shadow."""
        log = self.log
        assert log is not None
        self.shadow = []
        at = log.log_start_offset
        while at < log.log_end_offset:
            found = self._read(at, log.log_end_offset, 1 << 20)
            if not found:
                break
            self.shadow += [stored_of(message) for message in found]
            at = self.shadow[-1].next

    def _read(self, offset: int, end: int, max_bytes: int) -> list[memoryview]:
        """Stored messages from `offset` on, as many as fit; none if the first is damaged."""
        log, found = self.log, list[memoryview]()
        assert log is not None
        offset = max(offset, log.log_start_offset)  # it may be within the first batch
        try:
            with log.read(offset, end=end, max_bytes=max_bytes, stored=True) as plan:
                for place, (_, file) in zip(plan.ranges, plan.sources, strict=True):
                    for message, _ in verified_messages(file, place):
                        if read_header(message).first_offset > offset:
                            self.damaged(f"{offset} cannot be read")
                            return found
                        found.append(message)
                        offset = read_header(message).next_offset
        except (BadBatch, LiftlogError) as error:
            self.damaged(f"{offset} cannot be read: {type(error).__name__}")
        return found

    def create(self) -> None:
        """A new, empty log in the place of whatever was there."""
        disk = self.broker.disk
        disk.remove_tree(self.folder)
        self.shadow, self.is_damaged = [], False
        try:
            self.log = PartitionLog.create(disk, self.folder, self.identity, SETTINGS, now_us=self.broker.now_us)
            self.is_sound = True
            self.checker.created(self)
        except LiftlogError as error:  # a full disk: later
            self.log = None
            self.note(f"cannot be created: {error}")

    def drop(self) -> None:
        self.log = None
        self.broker.disk.remove_tree(self.folder)

    def remember(self) -> None:
        """The process is gone: what it knew to be durable must be there when the next one looks."""
        self.checker.gone(self)

    def damaged(self, why: str) -> None:
        if not self.is_damaged:
            self.is_damaged = True
            self.world.saw("damage found")
            self.note(f"damaged: {why}")
            self.checker.damaged(self)
            if not self.leads:
                self._follow_step(f.Unfollowed())  # its durable end would say what is not so

    # -- the catalog

    def adopt(self, partition: Partition) -> None:
        """What the applied catalog says of this partition now."""
        me, self.partition = self.broker.name, partition
        incarnation = partition.incarnations.get(me)
        if incarnation is None or incarnation[0] != self.broker.incarnation or not self.broker.incarnation:
            return  # of an earlier life, or of none yet
        if self._stepping is not None and incarnation > self._stepping.incarnation:
            self._stepped_out(self._stepping)
        if self.log is None:
            self.create()  # the registration did not list it
            if self.log is None:
                return
        if me not in partition.opened:
            self._say_opened()
        if self._stepping is not None and not self._stepping.is_damaged:
            return
        if partition.leader == me:
            self._lead(partition)
        elif partition.leader is None or not partition.is_begun:
            self._rest(partition)
        else:
            self._follow(partition, incarnation)

    def _say_opened(self) -> None:
        if self.world.now_ms - self._opened_ms > 300 and self.partition is not None:
            self._opened_ms = self.world.now_ms
            command = Opened(broker=self.broker.name, partition=self.name, incarnation=self.incarnation)
            self.broker.cluster.metadata.submit(self.broker.name, command)

    def _lead(self, partition: Partition) -> None:
        log, core = self.log, self.leader
        assert log is not None
        if core.epoch == partition.epoch and not self.leads:
            return  # it has asked for a step-out
        if core.epoch == partition.epoch:
            self._lead_step(
                e.IsrAnswered(epoch=core.epoch, partition_epoch=partition.partition_epoch, isr=partition.isr)
            )
            return
        self._follow_step(f.Unfollowed())
        self._parked.clear()
        self._told.clear()
        before = log.log_end_offset
        try:
            log.lead(partition.epoch)
        except DiskFull:
            self.note("cannot lead: the disk is full")
            self.broker.after(200, self._lead_again, partition)
            return
        except LiftlogError as error:
            self._disk_failed(error)
            return
        if log.log_end_offset < before:
            self.world.saw("incomplete group cut by a leader")
            self._cut_shadow()
        self.checker.leads(self, partition.epoch)
        self._lead_step(
            e.Altered(min_insync_replicas=partition.min_insync_replicas, fsync_each_batch=True, fsync_interval_ms=0)
        )
        self._lead_step(
            e.Led(
                epoch=partition.epoch,
                replicas=partition.replicas,
                isr=partition.isr,
                partition_epoch=partition.partition_epoch,
                high_watermark=log.high_watermark,
                durable_end=log.durable_end,
                log_end=log.log_end_offset,
                group_ends=tuple(self._group_ends()),
                log_start=log.log_start_offset,
            )
        )
        self.note(f"leads epoch {partition.epoch} from {core.epoch_start}, high watermark {log.high_watermark}")

    def _lead_again(self, partition: Partition) -> None:
        if self.partition is partition and self.log is not None:
            self._lead(partition)

    def _group_ends(self) -> list[int]:
        log = self.log
        assert log is not None
        ends = log.log.group_ends
        return ends if ends and ends[-1] == log.log_end_offset else []

    def _rest(self, partition: Partition) -> None:
        if self.leads:
            self._lead_step(e.Deposed())
        self._follow_step(f.Unfollowed())

    def _follow(self, partition: Partition, incarnation: Incarnation) -> None:
        core, log = self.follower, self.log
        assert log is not None
        if self.leads:
            self.world.saw("leader deposed")
            self._lead_step(e.Deposed())
        if self.is_damaged:
            return
        is_same = (core.epoch, core.incarnation) == (partition.epoch, incarnation)
        if is_same and core.phase.value != "idle":
            return
        if is_same or partition.leader is None:
            return
        try:
            log.follow(partition.epoch)
        except NotLeader:
            raise AssertionError("the catalog's epochs go down") from None
        self._follow_step(
            f.Followed(epoch=partition.epoch, leader=partition.leader, incarnation=incarnation, log=self._holds())
        )

    # -- leading

    def _lead_step(self, event: e.Event) -> None:
        for effect in self.leader.step(event):
            self._lead_do(effect)

    def _lead_do(self, effect: e.Effect) -> None:
        log = self.log
        match effect:
            case e.Sync(generation):
                self._begin_sync(generation, self._leader_synced)
            case e.Commit(high_watermark):
                assert log is not None
                self.checker.commits(self, high_watermark)
                log.advance_high_watermark(high_watermark)
                self._unpark()
            case e.Answer(ticket, outcome, _):
                ticket(outcome)
            case e.Send(to, message):
                self._send(to, message)
            case e.AskIsr():
                self._ask_isr(effect)
            case e.StepOut():
                self.step_out(is_damaged=False)
            case e.Trim(start):
                self._trim_to = max(self._trim_to, start)
                self._trim()
            case e.Wake():
                self._unpark()

    def _leader_synced(self, event: e.Event) -> None:
        self._lead_step(event)

    def _ask_isr(self, ask: e.AskIsr) -> None:
        change = ChangeIsr(
            partition=self.name,
            leader=self.broker.name,
            incarnation=self.incarnation,
            epoch=ask.epoch,
            partition_epoch=ask.partition_epoch,
            add=ask.add,
            remove=ask.remove,
            added_incarnation=ask.incarnation,
        )
        self.world.saw("ISR asked to grow" if ask.add else "ISR asked to shrink")
        self.broker.cluster.metadata.submit(
            self.broker.name, change, lambda _, state: self.broker.after(0, self._isr_answered, ask, state[self.name])
        )

    def _isr_answered(self, ask: e.AskIsr, partition: Partition) -> None:
        """With the state that it was judged by: a second try is refused because the first was accepted."""
        answer = e.IsrAnswered(
            epoch=partition.epoch,
            partition_epoch=partition.partition_epoch,
            isr=partition.isr,
            request=ask.request,
        )
        self._lead_step(answer)

    def _send(self, to: str, message: Message) -> None:
        data = b""
        if isinstance(message, Records):
            log = self.log
            assert log is not None
            is_news = (message.high_watermark, message.log_start) != self._told.get(to)
            if message.offset >= log.log_end_offset and not is_news:
                self._parked[to] = (message, self.world.now_ms)
                return
            self._parked.pop(to, None)
            self._told[to] = (message.high_watermark, message.log_start)
            if message.offset < log.log_end_offset:
                size = self.world.rng.choice((900, 2_000, 6_000))
                data = b"".join(self._read(message.offset, log.log_end_offset, size))
                if not data:  # it cannot be read
                    self._parked[to] = (message, self.world.now_ms)
                    return
        self._post(to, message, data)

    def _unpark(self, *, timed_out: bool = False) -> None:
        """Answer who waits for news: there is some, or it has waited long enough."""
        for to, (message, since) in list(self._parked.items()):
            log = self.log
            if not self.leads or log is None or message.epoch != self.leader.epoch:
                del self._parked[to]
                continue
            news = Records(
                epoch=message.epoch,
                incarnation=message.incarnation,
                offset=message.offset,
                high_watermark=self.leader.high_watermark,
                log_start=log.log_start_offset,
            )
            if self.is_damaged and not timed_out:
                continue
            if timed_out and self.world.now_ms - since >= POLL_MS:
                self._told.pop(to, None)
            if news.offset < log.log_end_offset or (news.high_watermark, news.log_start) != self._told.get(to):
                del self._parked[to]
                self._send(to, news)

    def _trim(self) -> None:
        log = self.log
        if log is None or not self.leads or self._trim_to <= log.log_start_offset:
            return
        try:
            log.trim(self._trim_to)
        except LiftlogError as error:
            self._refused_or_failed(error)
            return
        self.world.saw("trim")
        self.checker.starts(self)
        self._lead_step(e.StartMoved(log.log_start_offset))
        self._unpark()

    # -- following

    def _follow_step(self, event: f.Event) -> None:
        for effect in self.follower.step(event):
            self._follow_do(effect)

    def _holds(self, *, is_refused: bool = False) -> f.Holds:
        log = self.log
        assert log is not None
        whole = next((s.next for s in reversed(self.shadow) if s.ends_group), log.high_watermark)
        return f.Holds(
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            durable_end=log.durable_end,
            last_epoch=log.leader_epoch,
            high_watermark=log.high_watermark,
            group_end=max(whole, log.high_watermark),
            is_refused=is_refused,
        )

    def _follow_do(self, effect: f.Effect) -> None:
        log, world = self.log, self.world
        assert log is not None
        match effect:
            case f.Ask(to, message):
                self._post(to, message, b"")
            case f.Append(epoch):
                self._on_disk(lambda: self._append_stored(epoch))
            case f.Truncate(to):
                world.saw("truncation")
                self.note(f"truncates from {log.log_end_offset} to {to}")
                self._on_disk(lambda: log.truncate(to))
            case f.Reset(to, last_epoch):
                world.saw("reset")
                self.note(f"begins anew at {to}")
                self._on_disk(lambda: log.reset(to, last_epoch=last_epoch))
            case f.StartAt(start):
                self._on_disk(lambda: log.trim(start))
                self.checker.starts(self)
            case f.Report():
                report = Report(
                    partition=self.name,
                    reporter=self.broker.name,
                    incarnation=self.incarnation,
                    epoch=effect.epoch,
                    now_ms=world.now_ms,
                )
                world.saw("leader reported")
                self.broker.cluster.metadata.submit(self.broker.name, report)
            case e.Commit(high_watermark):
                self.checker.commits(self, high_watermark)
                log.advance_high_watermark(high_watermark)
            case e.Sync(generation):
                self._begin_sync(generation, self._follow_step)
            case e.StepOut():
                self.step_out(is_damaged=False)

    def _on_disk(self, act: Callable[[], object]) -> None:
        """Do something to the log that is followed by what it holds."""
        try:
            act()
        except LiftlogError as error:
            self._cut_shadow()
            if self._is_harmless(error):
                self._follow_step(self._holds(is_refused=True))
            else:
                self._disk_failed(error)
            return
        self._cut_shadow()
        self._follow_step(self._holds())

    def _is_harmless(self, error: LiftlogError) -> bool:
        log = self.log
        return log is not None and log.failure is None and isinstance(error, (DiskFull, BadBatch))

    def _append_stored(self, epoch: int) -> None:
        data, log = self._data, self.log
        assert log is not None
        if not data:
            return
        try:
            log.append_stored(data, leader_epoch=epoch, now_us=self.broker.now_us)
        finally:
            view = memoryview(data)
            while view:
                one = stored_of(view)
                if one.next > log.log_end_offset:
                    break
                self.shadow.append(one)
                view = view[message_bytes(view) :]

    def _cut_shadow(self) -> None:
        log = self.log
        assert log is not None
        before = len(self.shadow)
        while self.shadow and self.shadow[-1].next > log.log_end_offset:
            self.shadow.pop()
        if len(self.shadow) < before:
            self.checker.cut(self)

    # -- both

    def arrived(self, source: str, message: Message, data: bytes) -> None:
        """A message of another replica."""
        log = self.log
        if log is None or self.partition is None:
            return
        try:
            match message:
                case Fetch():
                    self._fetched(message, log)
                case AskEnd():
                    start = self._first_stored(log)
                    found = log.end_of_epoch(message.last_epoch)
                    before = log.epoch_of(start - 1) if start else -1
                    self._lead_step(
                        e.EndAsked(
                            ask=message,
                            found_epoch=found.epoch,
                            end=found.end_offset,
                            log_start=start,
                            start_epoch=before,
                        )
                    )
                case _:
                    own = log.epoch_end(message.found_epoch) if isinstance(message, End) else 0
                    self._data = data
                    self._follow_step(f.Answered(message, own))
        finally:
            self._data = b""

    def _first_stored(self, log: PartitionLog) -> int:
        """Where the batch begins that holds the log start."""
        start = log.log_start_offset
        if start == 0 or start == log.log_end_offset:
            return start
        if self._aligned[0] != start:
            found = self._read(start, start + 1, 1)
            self._aligned = (start, stored_of(found[0]).first if found else start)
        return self._aligned[1]

    def _fetched(self, fetch: Fetch, log: PartitionLog) -> None:
        start = self._first_stored(log)
        self._lead_step(
            e.FetchArrived(
                fetch=fetch,
                epoch_before=log.epoch_of(fetch.offset - 1) if fetch.offset else -1,
                log_start=start,
                start_epoch=log.epoch_of(start - 1) if start else -1,
            )
        )

    def _post(self, to: str, message: Message, data: bytes) -> None:
        cluster = self.broker.cluster
        cluster.network.send(
            self.broker.name, to, cluster.brokers[to].arrive, self.name, self.broker.name, message, data
        )

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
            return e.Synced(generation, log.sync())
        except LiftlogError as error:
            self.world.saw("fsync failed")
            return e.SyncFailed(generation, error)

    def _sync_and_tell(self, generation: int, tell: Callable[[Any], None]) -> None:
        self._synced(self._sync(generation), tell)

    def _synced(self, event: e.Synced | e.SyncFailed, tell: Callable[[Any], None]) -> None:
        if isinstance(event, e.SyncFailed) and self._stepping is None:
            self.note("a failed fsync")
        tell(event)

    def _refused_or_failed(self, error: LiftlogError) -> None:
        if not self._is_harmless(error):
            self._disk_failed(error)

    def _disk_failed(self, error: LiftlogError) -> None:
        """Something else than an fsync has failed the log: it is as if one had."""
        self.note(f"the log has failed: {type(error).__name__}")
        if self.leads:
            self._lead_step(e.SyncFailed(self.leader.generation, error))
        elif self.follower.phase.value != "idle":
            self._follow_step(e.SyncFailed(self.follower.generation, error))
        self.step_out(is_damaged=False)

    # -- step-out

    def step_out(self, *, is_damaged: bool) -> None:
        if self._stepping is not None and (is_damaged or not self._stepping.is_damaged):
            return
        self._stepping = StepOut(
            partition=self.name, broker=self.broker.name, incarnation=self.incarnation, is_damaged=is_damaged
        )
        self._stepping_since_ms = self.world.now_ms
        self._ask_step_out()

    def _ask_step_out(self) -> None:
        command = self._stepping
        if command is not None:
            self._stepping_asked_ms = self.world.now_ms
            self.broker.cluster.metadata.submit(
                self.broker.name, command, lambda ok, _: self.broker.after(0, self._step_answered, command, ok)
            )

    def _step_answered(self, command: StepOut, is_accepted: bool) -> None:
        if not is_accepted and command is self._stepping and command.is_damaged:
            self.world.saw("step-out refused")
            self._stepping = None  # it stays; asked again at a tick

    def _stepped_out(self, command: StepOut) -> None:
        """The catalog has it: from now on this replica is another one, that catches up."""
        self.world.saw("step-out for damage" if command.is_damaged else "step-out after a failed fsync")
        self.note("has stepped out" + (", its files are moved aside" if command.is_damaged else ""))
        self._stepping = None
        log = self.log
        if command.is_damaged:
            self._rest_cores()
            self.create()
            return
        try:
            if log is not None:
                log.recover(self.broker.now_us)
                self._cut_shadow()
        except LiftlogError:
            self.broker.crash("kill")

    def _rest_cores(self) -> None:
        if self.leads:
            self._lead_step(e.Deposed())
        self._follow_step(f.Unfollowed())

    # -- time

    def tick(self, now_ms: int) -> None:
        log, world = self.log, self.world
        if self.partition is None or self.broker.name not in self.partition.replicas:
            return
        if self.partition.incarnations.get(self.broker.name, UNREGISTERED)[0] != self.broker.incarnation:
            return
        if log is None:
            self.adopt(self.partition)
            return
        if self._stepping is not None:
            if world.now_ms - self._stepping_asked_ms > 400:
                self._ask_step_out()
            if not self._stepping.is_damaged and world.now_ms - self._stepping_since_ms > GIVE_UP_MS:
                self.note("gives up: the step-out does not come through")
                world.saw("process gave up")
                self.broker.crash("kill")
                return
        elif self.is_damaged:
            self.step_out(is_damaged=True)
        if self.broker.name not in self.partition.opened:
            self._say_opened()
        self._lead_step(e.Tick(now_ms=now_ms))
        self._follow_step(e.Tick(now_ms=now_ms))
        self._unpark(timed_out=True)
        if self._trim_to > log.log_start_offset:
            self._trim()
        if now_ms - self._checkpointed_ms > 700 and log.failure is None:
            self._checkpointed_ms = now_ms
            try:
                log.checkpoint()
                if world.chance(0.1):
                    log.roll_if_due(self.broker.now_us)
            except LiftlogError as error:
                self._refused_or_failed(error)

    def keep(self) -> bool:
        """Let the checkpoint tell of all that is durable. Returns whether it does."""
        try:
            if self.log is not None and self.log.failure is None:
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
        at = log.log_start_offset
        while at < log.log_end_offset and not self.is_damaged:
            found = self._read(at, log.log_end_offset, 1 << 20)
            if not found:
                return
            at = stored_of(found[-1]).next

    # -- clients

    def publish(self, answer: Callable[..., None], batches: Sequence[Batch], acks: e.Acks) -> None:
        """Append one commit group. Answers ("stored", first, next) or why not."""
        log, core = self.log, self.leader
        if log is None or not self.leads or not self.broker.has_session or self._stepping is not None:
            answer("not the leader")
            return
        if core.in_sync is not None and len(core.in_sync.members) < core.min_insync_replicas:
            answer("too few in sync")
            return
        try:
            result = log.append(batches, leader_epoch=core.epoch, now_us=self.broker.now_us)
        except DiskFull:
            self.world.saw("disk full at an append")
            self._refused_or_failed_leading()
            answer("full")
            return
        except LiftlogError as error:
            if log.failure is not None:
                self._disk_failed(error)
            answer(type(error).__name__)
            return
        first, end = result.first_offset, result.next_offset
        ends = () if result.duplicate else (end,)
        if result.duplicate:
            self.world.saw("repeat known by its sequence")
        else:
            self.shadow += [stored_of(batch.message) for batch in batches]

        def told(outcome: e.Outcome) -> None:
            if outcome is e.Outcome.STORED:
                self.checker.acked(self, first, end, acks, batches)
                answer("stored", first, end)
            else:
                answer(outcome.name)

        self._lead_step(e.Appended(first, end, ends, ((told, acks),)))
        self._unpark()

    def _refused_or_failed_leading(self) -> None:
        log = self.log
        if log is not None and log.failure is not None:
            self._disk_failed(log.failure)

    def read(self, answer: Callable[..., None], offset: int, epoch: int) -> None:
        """Committed records for a consumer who has seen `epoch`. Answers (epoch, start, end or -1, batches)."""
        log, core = self.log, self.leader
        if log is None or not self.leads or core.epoch < epoch or not self.broker.has_session:
            answer("not known")
            return
        end = core.high_watermark if core.knows_end else -1
        try:
            with log.read(max(offset, log.log_start_offset), max_bytes=3_000) as plan:
                found = []
                for place, (_, file) in zip(plan.ranges, plan.sources, strict=True):
                    found += [stored_of(message) for message, _ in verified_messages(file, place)]
        except OffsetOutOfRange:
            found = []
        except (BadBatch, LiftlogError) as error:
            self.damaged(f"a consumer's read: {type(error).__name__}")
            answer("damaged")
            return
        answer("records", core.epoch, log.log_start_offset, end, found)

    def trim(self, answer: Callable[..., None], start: int) -> None:
        """Let records go. Answers ("stored", epoch) once nobody can undo it."""
        log, core = self.log, self.leader
        if (
            log is None
            or not self.leads
            or not self.broker.has_session
            or not log.log_start_offset < start <= log.high_watermark
        ):
            answer("no")
            return
        epoch = core.epoch

        def told(outcome: e.Outcome) -> None:
            if outcome is e.Outcome.STORED:
                self.world.saw("trim answered")
                self.checker.trimmed(self, start)
            answer(outcome.name.lower(), epoch)

        self.checker.trim_asked(self, start)
        self._lead_step(e.TrimAsked(start, told))


def position_of(shadow: list[Stored], first: int) -> int:
    """Where the batch that begins at `first`, or the next one, stands."""
    return bisect_left(shadow, first, key=lambda one: one.first)
