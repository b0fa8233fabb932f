"""One replica under the catalog: leader, follower or resting, as the applied state of its partition says.

    catalog's thread ──assign─► newest one ──┐
    leader's core ─────AskIsr, Trim, StepOut─┼─► a turn on a thread of the pool ──► log, Partition, Follower, Capturing
    follower ──────────step_out──────────────┤
    clock ─────────────tick──────────────────┘

The cores decide and the catalog decides. This opens and makes the log, and moves the replica from one role to the next.

V1  Nobody who assigns or asks something waits for a disk or for another broker. It is done in turns (serial_work.py):
    one at a time, in order, and of several assignments the newest.
V2  A state counts only if this process is registered. A leadership counts only under the replica's own incarnation.
V3  A replica that was removed gives up its log, also if it is wanted again by the time that it has a turn: the others
    have forgotten it. Its folder is gone before the catalog is told so.
V4  After a failed fsync it does nothing but ask for a step-out. Another incarnation in the applied catalog is the
    answer: then the log recovers, and the replica follows. What was seen of the log before does not count any more. A
    log that cannot be recovered ends the process.
V5  A damaged replica leads on, or rests: it follows nobody, as it would report a durable end that is not so. It copies
    what it cannot read from others (`mending`), and goes on then as before. If that is in vain (`mending.H5`) it steps
    out. Then its files are moved aside, and it begins anew. They go when all replicas are in sync, as do those of a
    leader whose damage was given up. Where there is one replica alone they stay.
V7  A leader that is assigned another leadership, or none, answers nobody from then on, also before its turn.
V8  A log that a process finds at its start is the replica's only if the catalog knows one there. Else it is moved
    aside: the replica has stepped out of it for damage, and the former process did not live to see that; or it was
    moved away, its broker was removed, and the others have let go since of what would come back with it. Where there
    are no others it is the stream's all the same, whenever it is found: the catalog was restored from before it had
    heard of the log, or of the partition.
V9  A fault of ours in a turn is followed by another turn, and is why nothing is served meanwhile; a removal is done
    again. A log that was found stays found until it is taken: with a new log in its place an in-sync replica would lead
    with nothing, and the others would cut all that they have.
V10  A replica that the catalog knows no other of does with its log what a broker does that is alone: what is damaged is
    lost, and told; acknowledged records behind it stay, with their offsets; and they are read. It stops doing so before
    it leads, or follows, in the epoch in which there are others.
V11  What is kept shut (`replicas.G18`) has no role, and nothing is made in its place. It goes when it is to be deleted.
V12  It stops taking messages, and goes on, in turns, as its assignment says: a stop is confirmed as of the moment of
    its turn.

Design: docs/explain/replication.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from broker.api.errors import CorruptLog, DiskFull, LiftlogError, NotLeader
from broker.metadata.catalog import StreamInfo
from broker.metadata.growth import GrowthStage
from broker.metadata.partition import PartitionState, Place
from broker.node.capturing import Capturing
from broker.node.isr_changes import IsrChanges
from broker.node.leader_effects import LeaderEffects
from broker.node.mending import Mender, Mending
from broker.node.partitions.partition import Partition
from broker.node.serial_work import SerialWork
from broker.node.wiring import FollowerDriver, Host
from broker.replication.messages import NO_INCARNATION, Incarnation
from broker.storage.disk import NO_DESCRIPTORS
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity

log = logging.getLogger(__name__)

AGAIN_MS: Final = 300
"""After so long one tries again what a disk or the catalog has refused."""
SELDOM_MS: Final = 30_000
"""A log that cannot be made, taken or removed is tried again after twice as long each time, and this at most; so is a
turn with a fault of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What the applied catalog has one replica of this broker be.

    Attributes:
        registration: This process's.
        leader_at: Where the leader answers HTTP.
        was_left: This broker has not confirmed yet that a former replica of the partition is deleted.
        stage: How far its stream is, if it is about to have more partitions.
    """

    info: StreamInfo
    state: PartitionState
    registration: int
    leader_at: str | None = None
    was_left: bool = False
    stage: GrowthStage | None = None


@dataclass(frozen=True, slots=True)
class Stepping:
    """A step-out that is asked for. `why`: `fsync` or `damage`; of this incarnation; since when."""

    why: str
    incarnation: Incarnation
    since_ms: int


def tell_shut(stream: str, number: int, error: LiftlogError, *, is_alone: bool, again: bool = False) -> None:
    """Say that a log is kept shut. Whoever asks for it gets this error, and it is not said again then."""
    error.fields |= {"stream": stream, "partition": number, "offline": True}
    if not again:
        event = "stream.offline stream=%s partition=%d" if is_alone else "replica.shut partition=%s/%d"
        log.error(f"{event} reason=%s error=%s", stream, number, error.reason, error)


class PlacedReplica:
    """See the module. Thread-safe.

    Args:
        name: The stream's.
        found: Its log, if the start of this process has found one. is_old: That was put back.
        shut: Why that is kept shut; None: it is not.
        woken: Called when it wants to step out, or is to be looked at.
        report_opened: Has the catalog know that its folder is there. Does not wait.
        mender: The broker's.
        restless: Where there are no others, it is in here while it is not at rest.

    Attributes:
        partition: None: there is no log at the moment.
        stepping: None: it is not about to step out.
        is_damaged: Something that was fsynced cannot be read, or is not there (`is_old`).
        is_old: Its log was put back from a copy (`replicas.G13`).
        shut: Why its log is not opened; None: nothing is wrong with its keys (V11).
        mending: None: nothing has been damaged here since the log was opened.
        is_fresh: Its log was made while the catalog still waited for a former one to be deleted.
        is_gone: It was removed, and so was its folder.
        obstacle: Why it is not served yet; it is tried again.
        fault: What has gone wrong in its last turn by a fault of ours; None: nothing.
    """

    __slots__ = (
        "_again_ms",
        "_assigned",
        "_capturing",
        "_cause",
        "_effects",
        "_follower",
        "_following",
        "_former",
        "_found",
        "_host",
        "_incarnation",
        "_info",
        "_is_unfinished",
        "_led_in",
        "_life",
        "_lock",
        "_mender",
        "_name",
        "_reopening",
        "_report_opened",
        "_restless",
        "_tried_ms",
        "_turns",
        "_was_removed",
        "_woken",
        "at",
        "fault",
        "is_damaged",
        "is_fresh",
        "is_gone",
        "is_old",
        "mending",
        "obstacle",
        "partition",
        "shut",
        "stepping",
    )

    def __init__(
        self,
        host: Host,
        at: Place,
        name: str,
        found: PartitionLog | None,
        woken: Callable[[], None],
        report_opened: Callable[[Place, Incarnation], None],
        changes: IsrChanges,
        mender: Mender,
        restless: dict[Place, None],
        *,
        is_old: bool = False,
        shut: LiftlogError | None = None,
    ) -> None:
        self.at = at
        self.partition: Partition | None = None
        self.stepping: Stepping | None = None
        self._former: Stepping | None = None  # one that was asked for, and is not any more
        self.is_damaged = self.is_fresh = self.is_gone = False
        self.is_old = is_old
        self.shut = shut
        self.obstacle: LiftlogError | None = None
        self.fault: LiftlogError | None = None
        self._reopening: Future[None] | None = None
        self._host = host
        self._name = name
        self._found = found
        self._woken = woken
        self._report_opened = report_opened
        self._mender, self._restless = mender, restless
        self.mending: Mending | None = None
        self._turns = SerialWork(host.workers, self._work, host.waits)
        ask_turn = self._turns.ask
        self._effects = LeaderEffects(host, at, changes, ask_turn=ask_turn, step_out=self._leader_steps_out)
        self._lock = threading.Lock()  # over what others leave for the next turn
        self._capturing = Capturing(host, self._lock, self._is_removed, woken, ask_turn)
        self._assigned: Assignment | None = None
        self._was_removed = False
        self._cause: str | None = None  # why it is to step out
        self._life = 0  # how often the log was recovered or closed
        self._led_in = 0  # the life in which this replica began to lead
        # of turns alone
        self._follower: FollowerDriver | None = None
        self._info: StreamInfo | None = None
        self._incarnation: Incarnation = NO_INCARNATION
        self._following: tuple[int, Incarnation] | None = None
        self._is_unfinished = False
        self._tried_ms = 0
        self._again_ms = AGAIN_MS

    def __str__(self) -> str:
        return f"{self._name}/{self.at[1]}"

    # -- from other threads ----------------------------------------------------------------------------------

    @property
    def agreed_epoch(self) -> int:
        """As `FollowerDriver.agreed_epoch`, of a log that may be read."""
        follower = self._follower
        is_well = follower is not None and self.stepping is None and not self.is_damaged
        return follower.agreed_epoch if follower is not None and is_well else -1

    @property
    def is_at_rest(self) -> bool:
        """Whether it has nothing to try again, and nothing is damaged: where there are no others, whatever else is to
        be done to it is done when it is asked for."""
        is_whole = not self.is_damaged and self.mending is None
        return is_whole and not self._is_unfinished and self._capturing.failure is None

    @property
    def faults(self) -> list[str]:
        """What is not as it is to be, for a fault of ours."""
        fault, failure = self.fault, self._capturing.failure
        said = [] if fault is None else [str(fault)]
        return said if failure is None else [*said, f"{self}: captures nothing: {failure!r}"]

    def assign(self, assigned: Assignment | None, *, is_deleted: bool = False) -> None:
        """Take this role, in turns; None: this broker has no such replica any more. `is_deleted`: nor has any."""
        if is_deleted and self.partition is not None:
            self.partition.replica.note_removed()
        with self._lock:
            before, self._assigned = self._assigned, assigned
            self._was_removed |= assigned is None
        is_new = before is None or assigned is None or before.state.leader_epoch != assigned.state.leader_epoch
        if assigned is not None and is_new and assigned.state.leader == self._host.me:
            self._capturing.take_over(assigned.state.leader_epoch)
        partition = self.partition
        if partition is not None:  # V7
            epoch = assigned.state.leader_epoch if assigned is not None else partition.leader_epoch + 1
            is_ours = assigned is not None and assigned.state.leader == self._host.me
            partition.retire(epoch if is_ours else epoch + 1)
            if assigned is not None:
                partition.hear(assigned.info)
        self._turns.ask()

    def step_out(self, why: str, seen_in: int | None = None) -> None:
        """Ask for another incarnation of this replica. Damage is told even while a failed fsync is.

        Args:
            seen_in: The life of the log in which the cause was seen; None: the caller shuts recoveries out.
        """
        if not self._host.has_others:  # nobody could lead in its place: it recovers before it leads
            return
        with self._lock:
            if seen_in is not None and seen_in != self._life:
                return
            if self._cause != "fsync":
                self._cause = why
        self._turns.ask()

    def _leader_steps_out(self, why: str) -> None:
        self.step_out(why, self._led_in)

    def step_out_refused(self, why: str) -> None:
        """Nobody else could lead by now: it stays, and asks again when the catalog shows somebody. What was asked may
        come to pass all the same: this was the answer to a second question, or there was none."""
        stepping = self.stepping
        if why == "damage" and stepping is not None and stepping.why == why:
            self._former, self.stepping = stepping, None

    def damaged(self, why: str) -> None:
        """A record that was fsynced cannot be read (V5)."""
        if not self.is_damaged:
            self.is_damaged = True
            log.error("replica.damaged partition=%s why=%s", self, why)
            self._turns.ask()

    def tick(self, now_ms: int, *, may_go: bool = False) -> None:
        """Time passes. `may_go`: another replica could lead without a loss."""
        life = self._life  # before anything is seen
        partition, follower, assigned = self.partition, self._follower, self._assigned
        if partition is not None and follower is not None and assigned is not None:
            lost = partition.log.state.lost_ranges
            if not lost and self.is_damaged and self.stepping is None and (partition.damage.was_mended or self.mending):
                partition.damage.was_mended, self.is_damaged = False, self.is_old  # or it was given up, or let go
                self._turns.ask()
            if lost:  # whoever has found it: a read, the scrub, compaction
                self.damaged(f"lost {lost}")
            if lost or self.mending is not None:
                self._mend(partition, assigned, now_ms)
            partition.tick(now_ms)
            follower.tick(now_ms)
            if partition.log.state.lost_ranges and not self.is_damaged:
                self.damaged(f"{partition.log.state.lost_ranges} cannot be read")
            if self.stepping is None and not partition.replica.is_closed:  # a log that is closed looks failed
                if partition.log.state.failure is not None and (partition.has_followers or not partition.leads):
                    self.step_out("fsync", life)
                elif self.is_damaged and may_go and self._is_beyond_mending(partition):
                    self.step_out("damage", life)
            if self._capturing.is_due(partition, assigned.info):
                self._turns.ask()
        if self._is_unfinished and now_ms - self._tried_ms >= self._again_ms:
            self._tried_ms = now_ms
            self._turns.ask()

    def _mend(self, partition: Partition, assigned: Assignment, now_ms: int) -> None:
        """V5."""
        mending = self.mending
        if mending is None or mending.of is not partition:
            assert self._follower is not None
            mending = self.mending = Mending(
                self._host, self._mender, self.at, str(self), partition, self._follower.compacted, self._woken
            )
        if self.stepping is None and partition.log.state.failure is None:
            mending.tick(now_ms, assigned.state, self._incarnation)
        else:
            mending.rest()

    def _is_beyond_mending(self, partition: Partition) -> bool:
        """V5. What is damaged without a range, as a log that was put back from a copy, cannot be mended."""
        mending = self.mending
        if self.is_old or mending is None:
            return self.is_old or not partition.log.state.lost_ranges
        return mending.is_in_vain()

    def marks(self) -> tuple[int, int]:
        """For a pass of compaction: tombstones may go below the former, all is to be compacted up to the latter."""
        partition, follower = self.partition, self._follower
        if partition is not None and partition.leads:
            return partition.marks()
        return (0, 0) if follower is None else follower.marks()

    def compacted(self) -> None:
        """A pass has ended, or has found that tombstones wait. A leader's core asks for that by itself."""
        partition, follower = self.partition, self._follower
        if partition is not None and follower is not None and not partition.leads:
            follower.compacted()

    def close(self) -> None:
        """The broker stops. The log is marked clean."""
        self._turns.end()
        with self._lock:
            reopening, self._reopening = self._reopening, None
        if reopening is not None:  # no turn comes
            reopening.set_result(None)
        self._close(clean=True)

    # -- a turn ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        with self._lock:
            reopening, self._reopening = self._reopening, None
        try:
            self._turn(is_asked=reopening is not None)
            self.fault = None
            if not self._is_unfinished:
                self._again_ms = AGAIN_MS
        except Exception as error:  # V9
            self._is_unfinished = True
            self.fault = LiftlogError(f"{self}: a fault of the broker's own, which tries again: {error!r}")
            self._wait_longer()
            raise
        finally:
            if not self._host.has_others and not self.is_at_rest:
                self._restless[self.at] = None
            if reopening is not None:
                reopening.set_result(None)

    def _turn(self, *, is_asked: bool) -> None:
        with self._lock:
            assigned, was_removed, self._was_removed = self._assigned, self._was_removed, False
            self._is_unfinished = False
        if was_removed or (assigned is not None and assigned.was_left and not self.is_fresh):  # V3
            try:
                self._leave()
            except Exception as error:
                with self._lock:
                    self._was_removed = self._is_unfinished = True
                if not isinstance(error, OSError):  # V9
                    raise
                log.warning("replica.folder_left partition=%s error=%s", self, error)
                self._wait_longer()
                return
        if assigned is None:
            return
        self.is_gone = False
        self.is_fresh &= assigned.was_left
        if not self._adopt(assigned, is_asked=is_asked):
            self._is_unfinished = True
        if (why := self._take_cause()) is not None:
            self._begin_step_out(why)
        if not self._effects.trim():
            self._is_unfinished = True
        self._see_to_stage(assigned)
        if (partition := self.partition) is not None and self._info is assigned.info:  # else it is about to be paused
            self._capturing.see_to(partition, assigned.info)

    def _is_removed(self) -> bool:
        return self._was_removed

    def _take_cause(self) -> str | None:
        """Why a step-out is to be asked for, if one is."""
        with self._lock:
            why, self._cause = self._cause, None
        return why

    def _begin_life(self) -> None:
        """The log was recovered, or is about to be closed: what was seen of it before does not count any more."""
        with self._lock:
            self._life += 1
            self._cause = None

    def _adopt(self, assigned: Assignment, *, is_asked: bool) -> bool:
        """Take the role that the state gives. Returns whether nothing has to be tried again. `is_asked`: to open what
        is kept shut."""
        state, me = assigned.state, self._host.me
        self._incarnation = assigned.registration, state.step_outs_of(me)
        stepping = self.stepping or self._former
        if stepping is not None and self._incarnation > stepping.incarnation:
            self._stepped_out(stepping.why)
        if self.shut is not None and not (is_asked and self._open_shut(assigned)):  # V11
            return True
        partition = self.partition or self._open(assigned)
        if partition is None:
            return False
        if assigned.info is not self._info and self._capturing.may_alter(assigned.info):
            partition.alter(assigned.info)
            self._info = assigned.info
        if not self._note_others(partition, state):
            return False
        is_opened = me in state.opened
        if not is_opened:
            self._report_opened(self.at, self._incarnation)
        partition.is_led_at(None if state.leader == me else assigned.leader_at)
        if self.stepping is not None and self.stepping.why == "fsync":  # V4
            return is_opened
        is_done = is_opened
        if state.leader == me:
            is_done &= state.leader_incarnation != self._incarnation or self._lead(partition, state)  # V2
        elif state.leader is None:
            self._rest(partition)
        else:
            self._follow(partition, state, state.leader)
        if len(state.replicas) > 1 and set(state.replicas) == set(state.isr):
            self._forget_aside()
        return is_done

    def open_again(self) -> Future[None]:
        """Try, in a turn, to open a log that is kept shut, and that nobody else keeps. Done when it was tried."""
        with self._lock:
            done = self._reopening
            if done is None:
                done = self._reopening = Future()
                done.set_running_or_notify_cancel()  # of several who wait, one that goes ends it for nobody
        self._turns.ask()
        return done

    def _open_shut(self, assigned: Assignment) -> bool:
        try:
            if assigned.state.replicas != (self._host.me,):
                return False
            folders = self._host.folders
            opened = folders.open(self._identity(), folders.log_settings(assigned.info.settings, is_sole=True))
            if (seen := folders.epoch_seen(opened)) >= assigned.state.leader_epoch:
                opened.close(clean=False)
                raise CorruptLog(
                    f"{self} has records of leader epoch {seen}, the broker leads under"
                    f" {assigned.state.leader_epoch}: the folder or the catalog was restored; restart the broker"
                )
            self._found, self.shut = opened, None
            log.info("stream.online stream=%s partition=%d", self._name, self.at[1])
            return True
        except LiftlogError as error:
            is_known = self.shut is not None and self.shut.reason == error.reason
            tell_shut(self._name, self.at[1], error, is_alone=not self._host.has_others, again=is_known)
            self.shut = error
            return False

    def _note_others(self, partition: Partition, state: PartitionState) -> bool:
        """V10. Returns whether it is done."""
        settings, is_sole = partition.log.state.settings, state.replicas == (self._host.me,)
        if settings.is_sole_replica != is_sole:
            try:
                partition.log.remembered.update_settings(replace(settings, is_sole_replica=is_sole))
            except LiftlogError as error:
                log.warning("replica.not_told_of_others partition=%s error=%s", self, error)
                return False
        return True

    def _lead(self, partition: Partition, state: PartitionState) -> bool:
        epoch = state.leader_epoch
        if partition.leader_epoch == epoch:
            if partition.leads:  # else it has asked for a step-out
                partition.isr_answered(state)
            return True
        self._rest_follower()
        self._led_in = self._life
        try:
            if not self._host.has_others and partition.log.state.failure is not None:
                partition.log.recover(partition.replica.elapsed_us())
            partition.lead(epoch, state)
        except LiftlogError as error:
            is_tried_again = isinstance(error, DiskFull) or not self._host.has_others  # nobody else could lead
            level = logging.WARNING if is_tried_again else logging.ERROR
            if self.obstacle is None or str(self.obstacle) != str(error):  # else it is said already
                log.log(level, "replica.cannot_lead partition=%s epoch=%d error=%s", self, epoch, error)
            self.obstacle = error
            if is_tried_again:
                return False
            self._begin_step_out("fsync")
            return True
        self.obstacle = None
        self._host.roles.note("leads", self, epoch, ",".join(state.isr))
        return True

    def _rest(self, partition: Partition) -> None:
        if partition.leads:
            partition.depose()
            self._host.roles.note("rests", self)
        self._rest_follower()

    def _rest_follower(self) -> None:
        self._following = None
        if self._host.has_others:  # else it is not served until it leads
            self.obstacle = None
        if self._follower is not None:
            self._follower.rest()

    def _follow(self, partition: Partition, state: PartitionState, leader: str) -> None:
        if partition.leads:
            partition.depose()
        if self.is_damaged:  # V5
            self._rest_follower()
            return
        following = state.leader_epoch, self._incarnation
        if self._following == following or self._follower is None:
            return
        try:
            partition.log.follow(state.leader_epoch)
        except NotLeader as error:  # an epoch of the log is not the catalog's: a folder was restored
            log.error("replica.cannot_follow partition=%s error=%s", self, error)
            return
        self._follower.follow(state.leader_epoch, leader, self._incarnation)
        self._following = following
        self._host.roles.note("follows", self, state.leader_epoch, leader)

    # -- the log ---------------------------------------------------------------------------------------------

    def _open(self, assigned: Assignment) -> Partition | None:
        """The log that was found, or a new one: the registration did not list any other."""
        host, number = self._host, self.at[1]
        found, self._found = self._found, None
        try:
            if found is not None and host.has_others and not assigned.state.knows_log_of(host.me):  # V8
                log.warning("replica.disowned partition=%s end=%d", self, found.state.log_end_offset)
                found.close(clean=False)
                found = None
            if found is None and not host.has_others:
                found = self._kept(assigned)
            if found is not None and not assigned.state.knows_log_of(host.me):
                self._found = found  # until it is taken
                host.folders.sync_names(self._name, *self.at)
                self._found = None
            opened = found or host.folders.create(assigned.info, number)
        except LiftlogError as error:
            self._cannot_open(error)
            return None
        try:
            partition = self._take(assigned, opened, is_new=found is None)
        except LiftlogError as error:  # as it was opened before the catalog told that it is encrypted
            self._cannot_open(error)
            self._found = opened
            return None
        except Exception:  # V9
            self._found = opened
            raise
        self.partition, self._again_ms, self.obstacle = partition, AGAIN_MS, None
        return partition

    def _kept(self, assigned: Assignment) -> PartitionLog | None:
        """V8, where there are no others: the log in the folder of a partition that was just placed; None: there is no
        such log. Raises LiftlogError: it cannot be opened, or was there and is not."""
        folders = self._host.folders
        if folders.holds(self._name, *self.at):
            return folders.open(self._identity(), folders.log_settings(assigned.info.settings, is_sole=True))
        if assigned.state.knows_log_of(self._host.me):
            raise CorruptLog(f"{self}: the log that the catalog knows is not there; put it back, and restart")
        return None

    def _identity(self) -> LogIdentity:
        cluster_id = self._host.folders.cluster_id
        return LogIdentity(cluster_id=cluster_id, stream=self._name, incarnation=self.at[0], partition=self.at[1])

    def _cannot_open(self, error: LiftlogError) -> None:
        log.warning("replica.not_made partition=%s error=%s", self, error)
        self.obstacle = error
        self._wait_longer()

    def _wait_longer(self) -> None:
        self._again_ms = min(2 * self._again_ms, SELDOM_MS)

    def _take(self, assigned: Assignment, opened: PartitionLog, *, is_new: bool) -> Partition:
        host = self._host
        self.is_fresh = is_new and assigned.was_left
        self.is_old &= not is_new
        self.is_damaged = self.is_old or bool(opened.state.lost_ranges)
        is_sole = assigned.state.replicas == (host.me,)
        opened.remembered.update_settings(host.folders.log_settings(assigned.info.settings, is_sole=is_sole))
        partition = Partition(
            assigned.info,
            host.make_replica(assigned.info, self.at[1], opened),
            me=host.me,
            has_session=host.has_session,
            to_others=self._effects.do,
            pool=host.sync_pool,
            appender=host.appender,
            has_others=host.has_others,
        )
        self._info = assigned.info
        self._follower = host.wiring.follower(self.at, partition, self.step_out)
        self._effects.begin(partition, host.wiring.followers(self.at, partition))
        return partition

    def _close(self, *, clean: bool) -> None:
        partition, self.partition = self.partition, None
        opened = self._found if partition is None else partition.log
        self._found = None
        try:
            self._let_go_of(partition)
        finally:  # V9
            if opened is not None:
                try:
                    opened.close(clean=clean)
                except (LiftlogError, OSError) as error:
                    log.info("partition.close_failed partition=%s error=%s", self, error)

    def _let_go_of(self, partition: Partition | None) -> None:
        """Whoever is at its log."""
        mending, self.mending = self.mending, None
        if mending is not None:
            mending.close()
        self._capturing.end()
        if partition is not None:
            if partition.removed:
                partition.note_removed()
            partition.depose()
            partition.replica.note_closed()
            self._host.closing(partition)
        if self._follower is not None:
            self._follower.close()
        self._follower = self._following = None
        self._effects.end()
        self._begin_life()

    def _leave(self) -> None:
        """No replica is to be here any more (V3). OSError passes through."""
        self._close(clean=False)
        self.stepping = self._former = None
        self.is_damaged = self.is_fresh = False
        self._host.folders.remove(self._name, *self.at)
        self.is_gone = True
        self.shut = self.obstacle = None
        self._host.roles.note("left", self)

    def _forget_aside(self) -> None:
        try:
            self._host.folders.remove_aside(self._name, *self.at)
        except OSError as error:
            log.warning("replica.aside_left partition=%s error=%s", self, error)

    # -- step-out --------------------------------------------------------------------------------------------

    def _begin_step_out(self, why: str) -> None:
        stepping, partition = self.stepping, self.partition
        if partition is None or (stepping is not None and (why == "damage" or stepping.why == "fsync")):
            return
        if why == "fsync":
            partition.look_at_failure()
            self._rest_follower()
        self.stepping = Stepping(why, self._incarnation, self._host.now_ms())
        log.error("replica.steps_out partition=%s why=%s incarnation=%s", self, why, self._incarnation)
        self._woken()

    def _stepped_out(self, why: str) -> None:
        """The catalog has it: from now on this replica is another one, that catches up."""
        self.stepping = self._former = None
        log.warning("replica.stepped_out partition=%s why=%s incarnation=%s", self, why, self._incarnation)
        if why == "damage":
            self._close(clean=False)  # `_open` moves its files aside
            self.is_damaged = False
            return
        partition = self.partition
        try:
            if partition is not None:
                partition.depose()
                partition.log.recover(partition.replica.elapsed_us())
                self._begin_life()
        except LiftlogError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_DESCRIPTORS:
                log.error("replica.not_recovered partition=%s error=%s", self, error)  # another step-out follows
            else:
                self._host.halt(f"{self}: the log cannot be recovered: {error}")

    # -- more partitions (V12) -------------------------------------------------------------------------------

    def may_confirm(self, assigned: Assignment) -> bool:
        """Whether what the stage asks for is done, under this assignment (`replicas.G9`)."""
        partition, stage, epoch = self.partition, assigned.stage, assigned.state.leader_epoch
        if partition is None or stage is None:
            return False
        if stage.is_stopping:
            return partition.has_stopped(stage.as_of, epoch)
        return self._capturing.knows == (epoch, assigned.info.partitions_next) and partition.may_commit

    def _see_to_stage(self, assigned: Assignment) -> None:
        partition = self.partition
        if partition is None:
            return
        if assigned.stage is not None and assigned.stage.is_stopping:
            partition.stop_taking(assigned.stage.as_of, self._woken)
        else:
            partition.go_on_taking()
