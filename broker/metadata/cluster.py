"""The cluster's part of the catalog: the brokers, and who leads and who is in sync per partition.

Deterministic, like the catalog that it belongs to (`catalog.py`): no clock, no luck; times are in the commands. Here is
the state, and what several commands do with it. The commands are in `broker_commands.py` and `partition_commands.py`.

One counter numbers registrations and leader epochs. A command that changes leaders takes the next number once, for
every partition that it moves; a registration takes it always, and has it for its own number.

Invariants
C1  The registrations of a broker only grow, and so do leader epochs, over the whole cluster.
C2  A registration, the end of the former leaderships and the loss of folders are one command. So is a broker's failure.
C3  Nobody is taken out of an ISR for a report alone if it is the last live member.
C4  A refusal of `alter_isr` is final (`partition.P4`), unless it is `not_ready`: then it
    named what this catalog has not seen yet.
C5  A replica that a broker has to delete stays on its list until it has confirmed that, or is removed.

Design: docs/explain/metadata.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from broker.api.errors import InvalidRequest, LiftlogError, NotReady, UnknownPartition
from broker.api.principals import MODES
from broker.metadata import fields
from broker.metadata.info import BrokerInfo, Rescue, StreamInfo, broker_from, rescue_from
from broker.metadata.partition import PartitionState, Place, Who, state_from
from broker.metadata.placement import candidates, place
from broker.metadata.session import SESSION_MS, session_ms

FEATURE_LEVEL: Final = 16
"""The level of this release."""
LONG_SESSIONS: Final = 4
"""From this level on sessions are longer with many partitions (`session.S5`)."""
AUDITED: Final = 7
"""From this level on there is `__audit`: each broker knows how to tell its leader what belongs there."""
ACTIVE: Final = 13
"""From this level on there may be `__activity`, and `expired` in `end_members`."""
FENCES_ABOVE: Final = 14
"""From this level on fences are above those of streams that are gone (`catalog.M12`)."""
EPOCHS_OF_GROUPS: Final = 15
"""From this level on a group's offsets may have the leader epoch of the record before (`groups.progress.A3`)."""
ADDED_TO_GROUPS: Final = 16
"""From this level on groups know which partitions were added to what they read (`groups.G13`)."""
FEATURE_LEVEL_FIRST: Final = 1
"""The level at which a catalog begins, in every release: one that began with its own would replay the journal of
another release to another end. `form_cluster` may say more."""

REMOVED_REMEMBERED: Final = 1_000


@dataclass(slots=True)
class Touched:
    """What commands have changed since somebody took this: so a command costs what it changes, never a walk over all
    partitions. It is no part of the state.

    Attributes:
        streams: By incarnation; None: deleted.
        places: Partitions whose state, leftovers or confirmations are others.
    """

    streams: dict[str, StreamInfo | None] = field(default_factory=dict)
    places: set[Place] = field(default_factory=set)

    def add(self, later: Touched) -> None:
        """And what this has."""
        self.streams |= later.streams
        self.places |= later.places


@dataclass(slots=True)
class Cluster:
    """The state. Read it freely; only the commands change it, each as a whole or not at all.

    Attributes:
        leftovers: Replicas that a broker still has to delete (C5).
        reports: Reports that a leader cannot be reached: its epoch, and when which broker said so (ms).
        confirmed: Words of leaders whose stream is about to have more partitions: as of when the present leader knows
            that, and whether it has stopped for it (`growth.G4`).
        removed: Ids in the Raft group that are over, as their broker was removed or has another folder, the newest
            REMOVED_REMEMBERED: id -> broker.
        touched: See there.
    """

    brokers: dict[str, BrokerInfo] = field(default_factory=dict)
    partitions: dict[Place, PartitionState] = field(default_factory=dict)
    leftovers: dict[str, frozenset[Place]] = field(default_factory=dict)
    reports: dict[Place, tuple[int, dict[str, int]]] = field(default_factory=dict)
    rescue: Rescue | None = None
    confirmed: dict[Place, tuple[int, bool]] = field(default_factory=dict)
    epoch_last: int = 0
    feature_level: int = FEATURE_LEVEL_FIRST
    cluster_id: str | None = None
    removed: dict[str, str] = field(default_factory=dict)
    touched: Touched = field(default_factory=Touched, compare=False, repr=False)

    @property
    def is_alone(self) -> bool:
        """It is of a broker without a Raft group, which has no feature level that others have to know."""
        return bool(self.brokers) and not any(broker.raft for broker in self.brokers.values())

    @property
    def is_of_one(self) -> bool:
        """It is of one broker, that no other can join."""
        return self.is_alone and len(self.brokers) == 1

    def knows(self, level: int) -> bool:
        """Whether all of its brokers know what came with a feature level."""
        return self.is_alone or self.feature_level >= level

    def copy(self) -> Cluster:
        """One that may be changed without changing this one."""
        return Cluster(
            dict(self.brokers),
            dict(self.partitions),
            dict(self.leftovers),
            dict(self.reports),
            self.rescue,
            dict(self.confirmed),
            self.epoch_last,
            self.feature_level,
            self.cluster_id,
            dict(self.removed),
        )

    def session_ms(self) -> int:
        """How long a session is that begins or is renewed now (`session.S5`)."""
        return session_ms(len(self.partitions)) if self.feature_level >= LONG_SESSIONS else SESSION_MS

    def who(self, *, without: str | None = None) -> Who:
        """The brokers as an election sees them."""
        live = {b.broker_id: b.registration for b in self.brokers.values() if b.is_live and b.broker_id != without}
        return Who(registrations=live, stopping={b for b in live if self.brokers[b].is_stopping})

    # -- streams ----------------------------------------------------------------------------------------------

    def place_replicas(self, partitions: int, replication_factor: int) -> list[tuple[str, ...]]:
        """Where new partitions go. Raises NotReady if there are too few brokers."""
        who = self.who()
        racks = {b: self.brokers[b].rack for b in who.registrations if b not in who.stopping}
        if len(racks) < replication_factor:
            raise NotReady(f"{replication_factor} replicas need as many brokers, {len(racks)} are there")
        return place(candidates(racks, (s.replicas for s in self.partitions.values())), partitions, replication_factor)

    def add_stream(self, incarnation: str, places: Iterable[tuple[str, ...]], *, first: int, min_insync: int) -> None:
        """New partitions of a stream, the first of them numbered `first`; nobody has opened them."""
        for number, replicas in enumerate(places, first):
            self.partitions[incarnation, number] = PartitionState(replicas=replicas, min_insync_replicas=min_insync)
            self.touched.places.add((incarnation, number))

    def drop_stream(self, incarnation: str) -> None:
        """Forget a stream's partitions; its brokers have to delete them (C5)."""
        for at in self.places_of(incarnation):
            self.leave_behind(at, self.partitions.pop(at).replicas)
            self.touched.places.add(at)
            self.reports.pop(at, None)
            self.confirmed.pop(at, None)

    def places_of(self, incarnation: str) -> list[Place]:
        """The partitions of a stream, in order."""
        return sorted(at for at in self.partitions if at[0] == incarnation)

    def leave_behind(self, at: Place, brokers: Iterable[str]) -> None:
        """These brokers have a replica to delete (C5)."""
        for broker in brokers:
            self.leftovers[broker] = self.leftovers.get(broker, frozenset()) | {at}
            self.touched.places.add(at)

    # -- leaderships ------------------------------------------------------------------------------------------

    def take_out(self, broker: str, places: Iterable[Place]) -> list[Any]:
        """End the leaderships of a broker, and its membership in ISRs."""
        epoch, who = self.epoch_last + 1, self.who(without=broker)
        changed = {}
        for at in places:
            after = self.partitions[at].failed(broker)
            changed[at] = (after.deposed(epoch) if after.leader == broker else after).completed(epoch, who)
        return self.commit(changed, epoch)

    def hand_over(self, places: Iterable[Place], who: Who, *, to_preferred: bool = False) -> list[Any]:
        """Give leaderships to members of the ISR that are live and do not stop."""
        epoch = self.epoch_last + 1
        changed = {}
        for at in places:
            state = self.partitions[at]
            fit = [b for b in state.replicas if b in state.isr and b in who.registrations and b not in who.stopping]
            if to_preferred:
                fit = [broker for broker in fit if broker == state.replicas[0]]
            if state.leader is not None and fit and state.leader != fit[0]:
                changed[at] = state.led_by(fit[0], epoch, who)
        return self.commit(changed, epoch)

    def begin_epoch(self, places: Iterable[Place]) -> list[Any]:
        """Let each leader of these go on in another epoch, in which nobody has confirmed anything (`growth.G2`)."""
        epoch, who = self.epoch_last + 1, self.who()
        states = {at: self.partitions[at] for at in places}
        return self.commit({at: s.led_by(s.leader, epoch, who) for at, s in states.items() if s.leader}, epoch)

    def present(self, command: Mapping[str, Any]) -> BrokerInfo:
        """The broker that a command names, by its present registration, and live."""
        broker, number = fields.text(command, "broker_id"), fields.whole(command, "registration")
        info = self.brokers.get(broker)
        if info is None or info.registration < number:
            raise NotReady(f"broker {broker} has no registration {number} here yet")
        if info.registration > number or not info.is_live:
            state = (
                f"has registration {info.registration} by now" if info.registration > number else "is taken for dead"
            )
            raise InvalidRequest(f"broker {broker} {state}", registration=info.registration)
        return info

    def check_enforcing(self) -> None:
        """Raise InvalidRequest while a broker may let callers do what others refuse. One that is alone says nothing
        here: it has its own mode before it."""
        others = {} if self.is_alone else {b: i.auth_mode for b, i in self.brokers.items() if not i.has_left}
        weaker = sorted(f"{broker} ({mode or 'not known yet'})" for broker, mode in others.items() if mode != MODES[-1])
        if weaker:
            raise InvalidRequest(
                f"not every broker has auth.mode = {MODES[-1]}: {', '.join(weaker)}. Restart these with it, or remove"
                " those that are gone",
                brokers=weaker,
            )

    # -- partitions -------------------------------------------------------------------------------------------

    def state_at(self, at: Place) -> PartitionState:
        """One partition. Raises UnknownPartition."""
        state = self.partitions.get(at)
        if state is None:
            raise UnknownPartition(f"no partition {at[1]} of a stream of incarnation {at[0]}", partition=at[1])
        return state

    def replica_incarnation(self, broker: str, state: PartitionState) -> tuple[int, int] | None:
        """The present incarnation of a replica (`partition.P5`); None: the broker is not registered."""
        info = self.brokers.get(broker)
        return None if info is None else (info.registration, state.step_outs_of(broker))

    def confirm(self, broker: str, gone: frozenset[Place]) -> list[str]:
        """A broker has deleted these, or is no more.

        Returns:
            The incarnations of streams of which nobody has anything left to delete now.
        """
        had = self.leftovers.get(broker, frozenset())
        self.touched.places |= had & gone
        left = {**self.leftovers, broker: had - gone}
        self.leftovers = {each: places for each, places in left.items() if places}
        still = {incarnation for places in self.leftovers.values() for incarnation, _ in places}
        return sorted({incarnation for incarnation, _ in had & gone} - still)

    def forget_logs(self, broker: str) -> None:
        """Drop a broker's reports for a rescue: they may be true no more (`rescue.Q2`)."""
        self.rescue = self.rescue and self.rescue.without(broker)

    def forget_folder(self, broker: str, raft: str) -> None:
        """A broker was removed, or has another folder: whoever has this one is not taken again."""
        if raft:
            self.removed[raft] = broker
            for old in list(self.removed)[:-REMOVED_REMEMBERED]:
                del self.removed[old]

    # -- the change itself ------------------------------------------------------------------------------------

    def commit(self, changed: Mapping[Place, PartitionState], epoch: int, fresh: Iterable[Place] = ()) -> list[Any]:
        """Put new states in the place of the old ones. Returns [stream, partition, leader] of each that has another.

        Args:
            epoch: The epoch of those that moved.
            fresh: Partitions that take a partition epoch although nothing else may have changed (`partition.P4`).
        """
        bumped = set(fresh)
        for state in changed.values():
            _check(state)
        moved = []
        for at in sorted(changed):
            before, after = self.partitions[at], changed[at]
            if after == before and at not in bumped:
                continue
            self.partitions[at] = replace(after, partition_epoch=before.partition_epoch + 1)
            self.touched.places.add(at)
            self.leave_behind(at, (broker for broker in before.replicas if broker not in after.replicas))
            if after.leader_epoch != before.leader_epoch:
                self.epoch_last = epoch
                self.reports.pop(at, None)
                self.confirmed.pop(at, None)
                moved.append([*at, after.leader])
        return moved

    # -- as JSON ----------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "cluster_id": self.cluster_id,
            "feature_level": self.feature_level,
            "brokers": [self.brokers[broker].as_dict() for broker in sorted(self.brokers)],
            "partitions": [[*at, state.as_dict()] for at, state in sorted(self.partitions.items())],
            "leftovers": [[broker, sorted(map(list, self.leftovers[broker]))] for broker in sorted(self.leftovers)],
            "reports": [[*at, epoch, said] for at, (epoch, said) in sorted(self.reports.items())],
            **({"rescue": self.rescue.as_dict()} if self.rescue else {}),
            "confirmed": [[*at, *said] for at, said in sorted(self.confirmed.items())],
            **({"removed": [[raft, broker] for raft, broker in self.removed.items()]} if self.removed else {}),
        }

    @classmethod
    def restore(cls, value: Mapping[str, Any], *, epoch_last: int) -> Cluster:
        """Make the cluster that `snapshot` described."""
        return cls(
            brokers={each["broker_id"]: broker_from(each) for each in value["brokers"]},
            partitions={(stream, number): state_from(state) for stream, number, state in value["partitions"]},
            leftovers={broker: frozenset((s, n) for s, n in places) for broker, places in value["leftovers"]},
            reports={(stream, number): (epoch, dict(said)) for stream, number, epoch, said in value["reports"]},
            rescue=rescue_from(value["rescue"]) if "rescue" in value else None,
            confirmed={(s, number): (said[0], said[1]) for s, number, *said in value["confirmed"] if len(said) == 2},
            epoch_last=epoch_last,
            feature_level=value["feature_level"],
            cluster_id=value["cluster_id"],
            removed=dict(value.get("removed", ())),
        )


def _check(state: PartitionState) -> None:
    """`partition.P1` and `partition.P2`, as far as a state shows them. A command that breaks them has no effect."""
    is_sound = (
        (state.leader is None or state.leader in state.isr)
        and {*state.isr, *state.last_isr, *state.opened} <= set(state.replicas)
        and not set(state.isr) & set(state.last_isr)
        and (not state.last_isr or len(state.isr) < state.min_insync_replicas)
        and (state.has_led or not state.last_isr)
    )
    if not is_sound:
        raise LiftlogError(f"the command would break a partition: {state}")
