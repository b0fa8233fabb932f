"""One replica: the two cores over a real log on the fake disk. Does here what a runtime has to do with threads.

The cores decide; this hands them what happens, does what they want, and brings the bytes. Here: what the catalog says
of the replica, step-outs, and time. `held.py`: its log; `leading.py`, `following.py`: what the cores want;
`rewriting.py`: what it does to its log by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.api.errors import DiskFull, LiftlogError, NotLeader
from broker.metadata.partition import PartitionState
from broker.replication import events as e
from broker.replication import following as f
from broker.replication.messages import NO_INCARNATION, AskEnd, AskState, End, Fetch, Incarnation, Message
from tests.sim.metadata import place_of
from tests.sim.rewriting import Rewriting

if TYPE_CHECKING:
    from tests.sim.broker import Broker

HALT_MS = 5_000
"""A step-out that does not come through for so long: the process exits."""
ASK_AGAIN_MS = 400
GATHER_MS = 30
"""A disk that fails one log soon fails the others: they step out by one command."""


class Replica(Rewriting):
    """See the module.

    Attributes:
        state: The state of the partition, as this broker's catalog has it; None: it was not told yet.
        stepping: Why it is about to step out (`fsync`, `damage`), and under which incarnation; None: it is not.
    """

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(broker, name)
        self.state: PartitionState | None = None
        self.stepping: tuple[str, Incarnation] | None = None
        self._former: tuple[str, Incarnation] | None = None  # one that was asked for, and is not any more
        self._stepping_since_ms = self._stepping_asked_ms = 0.0
        self._opened_ms = -1e9
        self._checkpointed_ms = 0

    # -- the catalog

    @property
    def incarnation(self) -> Incarnation:
        """The incarnation of this replica, as the applied catalog has it; `NO_INCARNATION`: this process has none
        yet."""
        if self.state is None or not self.broker.incarnation:
            return NO_INCARNATION
        return self.broker.incarnation, self.state.step_outs_of(self.broker.name)

    @property
    def has_begun(self) -> bool:
        """Whether it leads in the newest epoch that its broker knows of."""
        return self.state is not None and self.state.leader_epoch == self.leader.epoch

    @property
    def may_commit(self) -> bool:
        """Whether enough are in sync with this leader."""
        in_sync = self.leader.in_sync
        return in_sync is None or len(in_sync.members) >= self.leader.min_insync_replicas

    @property
    def has_committed_all(self) -> bool:
        """Whether all that this leader has taken is committed."""
        return self.log is not None and self.log.state.high_watermark == self.log.state.log_end_offset

    def command(self, kind: str, **values: Any) -> dict[str, Any]:
        """One of the broker's commands on this replica."""
        registration, step_outs = self.incarnation
        return {
            "kind": kind,
            "broker_id": self.broker.name,
            "registration": registration,
            "replicas": [[*place_of(self.name), step_outs]],
            **values,
        }

    def adopt(self, state: PartitionState) -> None:
        """Take on what the applied catalog says of this partition now."""
        me, self.state = self.broker.name, state
        if not self.broker.incarnation:
            return
        asked = self.stepping or self._former
        if asked is not None and self.incarnation > asked[1]:
            self._stepped_out(asked[0])
        if self.log is None:
            self.create()  # the registration did not list it
            if self.log is None:
                return
        if me not in state.opened:
            self._say_opened()
        if self.stepping is not None and self.stepping[0] == "fsync":
            return
        if state.leader == me:
            if state.leader_incarnation == self.incarnation:
                self._lead(state)
        elif state.leader is None:
            self._rest()
        else:
            self._follow(state)

    def _say_opened(self) -> None:
        if self.world.now_ms - self._opened_ms > 300:
            self._opened_ms = self.world.now_ms
            self.submit(self.command("report_opened"))

    def _lead(self, state: PartitionState) -> None:
        log, core = self.log, self.leader
        assert log is not None
        if core.epoch == state.leader_epoch and not self.leads:
            return  # it has asked for a step-out
        if core.epoch == state.leader_epoch:
            self._lead_step(self.isr_of(state))
            return
        self._follow_step(f.Unfollowed())
        self._parked.clear()
        self._told.clear()
        self._trim_to = 0
        before = log.state.log_end_offset
        try:
            log.lead(state.leader_epoch)
        except DiskFull:
            self.note("cannot lead: the disk is full")
            self.broker.after(200, self._lead_again, state)
            return
        except LiftlogError as error:
            self._disk_failed(error)
            return
        if log.state.log_end_offset < before:
            self.world.saw("incomplete group cut by a leader")
            self._cut_shadow()
        self.checker.leads(self, state.leader_epoch)
        self._lead_step(
            e.Led(
                epoch=state.leader_epoch,
                replicas=state.replicas,
                isr=state.isr,
                min_insync_replicas=state.min_insync_replicas,
                partition_epoch=state.partition_epoch,
                high_watermark=log.state.high_watermark,
                durable_end=log.state.durable_end,
                log_end=log.state.log_end_offset,
                group_ends=tuple(self._group_ends()),
                log_start=log.checkpoints.kept_start_offset,
            )
        )
        self.note(
            f"leads epoch {state.leader_epoch} from {core.epoch_start}, high watermark {log.state.high_watermark}"
        )

    def _lead_again(self, state: PartitionState) -> None:
        if self.state is state and self.log is not None:
            self._lead(state)

    def _rest(self) -> None:
        """There is nobody to follow."""
        if self.leads:
            self._lead_step(e.Deposed())
        self._follow_step(f.Unfollowed())

    def _follow(self, state: PartitionState) -> None:
        core, log, incarnation = self.follower, self.log, self.incarnation
        assert log is not None
        assert state.leader is not None
        if self.leads:
            self.world.saw("leader deposed")
            self._lead_step(e.Deposed())
        if self.is_damaged:
            return
        if (core.epoch, core.incarnation) == (state.leader_epoch, incarnation):
            return
        try:
            log.follow(state.leader_epoch)
        except NotLeader:
            raise AssertionError("the catalog's epochs go down") from None
        self._follow_step(
            f.Followed(epoch=state.leader_epoch, leader=state.leader, incarnation=incarnation, log=self._holds())
        )

    # -- others

    def arrived(self, source: str, message: Message, data: bytes) -> None:
        """A message of another replica."""
        log = self.log
        if log is None or self.state is None:
            return
        try:
            match message:
                case Fetch():
                    self._fetched(message, log)
                case AskEnd():
                    self._asked_end(message, log)
                case AskState():
                    self._asked_state(message, log)
                case _:
                    own = log.epochs.end_of(message.found_epoch).end_offset if isinstance(message, End) else 0
                    self._data = data
                    self._follow_step(f.Replied(message, own))
        finally:
            self._data = b""

    # -- step-out

    def damaged(self, why: str) -> None:
        """A record that was fsynced cannot be read."""
        if not self.is_damaged:
            self.is_damaged = True
            self.world.saw("damage found")
            self.note(f"damaged: {why}")
            self.checker.damaged(self)
            if not self.leads:
                self._follow_step(f.Unfollowed())  # its durable end would say what is not so

    def _disk_failed(self, error: LiftlogError) -> None:
        """Something else than an fsync has failed the log: it is as if one had."""
        self.note(f"the log has failed: {type(error).__name__}")
        if self.leads:
            self._lead_step(e.SyncFailed(self.leader.generation, error))
        elif self.follower.phase.value != "idle":
            self._follow_step(e.SyncFailed(self.follower.generation, error))
        self.step_out("fsync")

    def step_out(self, why: str) -> None:
        """Ask for another incarnation of this replica. Damage is told even while a failed fsync is."""
        if self.stepping is not None and (why == "damage" or self.stepping[0] == "fsync"):
            return
        self.stepping = (why, self.incarnation)
        self._stepping_since_ms = self._stepping_asked_ms = self.world.now_ms
        self.broker.after(GATHER_MS, self._ask_first)

    def _ask_first(self) -> None:
        """If no other replica has asked for this one by now."""
        if self.stepping is not None and self._stepping_asked_ms == self._stepping_since_ms:
            self._ask_step_out()

    def _ask_step_out(self) -> None:
        """For all replicas here whose log has failed, in one command."""
        assert self.stepping is not None
        why, _ = self.stepping
        others = [r for r in self.broker.replicas.values() if r.stepping is not None and r.stepping[0] == why]
        for replica in others:
            replica._stepping_asked_ms = self.world.now_ms
        asked = [[*place_of(each.name), each.stepping[1][1]] for each in others if each.stepping is not None]
        if len(asked) > 1:
            self.world.saw("step-out of several replicas")
        command = self.command("step_out", why=why, replicas=asked)
        self.submit(command, lambda result, _: self.broker.after(0, self.broker.step_out_answered, why, result))

    def _may_go(self, state: PartitionState) -> bool:
        """Whether another replica could lead without a loss, of which something was heard of late."""
        broker = self.broker
        return broker.heard.may_go(broker.name, state, broker.catalog.brokers, broker.now_ms)

    def step_out_refused(self, why: str) -> None:
        """Nobody else could lead by now: it stays, and asks again when the catalog shows somebody."""
        if why == "damage" and self.stepping is not None and self.stepping[0] == why:
            self.world.saw("step-out refused")
            self._former, self.stepping = self.stepping, None

    def _stepped_out(self, why: str) -> None:
        """The catalog has it: from now on this replica is another one, that catches up."""
        self.world.saw("step-out for damage" if why == "damage" else "step-out after a failed fsync")
        self.note("has stepped out" + (", its files are moved aside" if why == "damage" else ""))
        self.stepping = self._former = None
        log = self.log
        if why == "damage":
            self._rest()
            self.create()
            return
        try:
            if log is not None:
                log.recover(self.broker.elapsed_us)
                self._cut_shadow()
        except LiftlogError:
            self.broker.exits()

    # -- time

    def tick(self, now_ms: int) -> None:
        """Time passes by this machine's clock."""
        log, world, state = self.log, self.world, self.state
        if state is None or self.broker.name not in state.replicas or not self.broker.incarnation:
            return
        if log is None:
            self.adopt(state)
            return
        if self.stepping is not None:
            if self.stepping[0] == "damage" and not self._may_go(state):
                self.step_out_refused("damage")
            elif world.now_ms - self._stepping_asked_ms > ASK_AGAIN_MS:
                self._ask_step_out()
            if self.stepping and self.stepping[0] == "fsync" and world.now_ms - self._stepping_since_ms > HALT_MS:
                self.note("gives up: the step-out does not come through")
                world.saw("process halted")
                self.broker.exits()
                return
        elif self.is_damaged and self._may_go(state):
            self.step_out("damage")
        if self.broker.name not in state.opened:
            self._say_opened()
        self._lead_step(e.Tick(now_ms=now_ms))
        self.look_for_room()
        self._follow_step(e.Tick(now_ms=now_ms))
        self._unpark(timed_out=True)
        self._trim()
        if self.zeal:
            self.rewrite()
        if self.broker.cluster.alters and world.chance(0.2):
            self.retain()
        if now_ms - self._checkpointed_ms > 700 and log.state.failure is None:
            self._checkpointed_ms = now_ms
            try:
                if not self.leads:
                    log.remembered.keep_up()
                log.checkpoint()
                if world.chance(0.1):
                    log.roll_if_due(self.broker.elapsed_us)
            except LiftlogError as error:
                if not self._is_harmless(error):
                    self._disk_failed(error)
