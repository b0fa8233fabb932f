"""All replicas of this broker: what the catalog says goes to each of them, and what they want together is asked for.

    start:   folders ─► open_found ─► register ─► start ─► assigned ─► lead, follow, rest
    runs:    catalog's thread: `_changed`; a loop of its own (`step`): ticks, step-outs, deletions

G1  Before the registration everything that has a folder is open, and the registration lists what is sound. Nobody is
    assigned anything before the catalog has this process.
G2  The catalog's thread compares and passes on. It touches no disk, and takes no lock that is held over one.
G3  One disk that fails has many logs fail: those that want to step out within `GATHER_MS` do so by one command.
G4  A step-out after a failed fsync that does not come through within `HALT_MS` ends the process: nobody knows what
    its logs hold, and the catalog may take it for well. With many partitions it may take longer (`session.slower`), as
    an election does, and the command itself, which concerns all that are on the disk.
G5  A deletion is confirmed when the folder is gone, durably.
G6  A folder that the catalog does not know is left alone, and named: it may be somebody's only copy.
G7  While the catalog is rescued, no log that was found is taken, moved aside or deleted: what an older catalog says of
    a replica may be no longer so, and the log may be the one that has every committed record (`rescue.Q3`).
G8  A log is not lost because this process cannot open it for now: on a full disk, or with a release that is too old, or
    where the disk refuses and nobody else could lead. Then the start fails before the catalog is told anything.
G9  A leader of a stream that is about to have more partitions confirms that it knows, once it takes in messages under
    that knowledge and could commit; and, when all know, that it has stopped (`acceptance.P17`). Again until the catalog
    shows it. If not all have stopped within `STOP_MS` it gives up, and tries again after `STOP_AGAIN_MS` (`growth.G5`).
G10  While a broker stops, the end of its session is the end of what it leads: who waits for an ack is told at once that
    it is not known. No other broker may be there whose answer could be waited for.
G11  While the catalog is rescued, this broker reports what was found, until the catalog shows that it has.
G13  A log that ends below what was noted of it was put back from a copy, and lacks what was acknowledged since. It is
    behind, and damaged: it begins anew once another replica has all. If nobody else keeps one, a line tells of it.
G14  Nobody steps out for damage while no other replica could lead, or none of which something was heard of late
    (`heard.D2`). That is judged each time that it is asked for.
G15  A command costs what it changes: only partitions that it has touched are looked at. All are where something has
    changed that any may depend on: which brokers there are and where they answer, this one's registration, a rescue, or
    the catalog as a whole. So it is after a fault of ours: all are looked at again soon, and then more and more rarely,
    also where nothing changes.
G16  Time costs the broker the same however many replicas it has: a round ticks `TICKED_AT_ONCE` of them, in turn. It
    ticks all where something has changed that they do not hear of otherwise (`look`), and while the broker stops. Where
    there are no others, time changes little for a replica: a round ticks those that have something to try again, or are
    damaged, and `RESTING_AT_ONCE` of the rest. It asks for no step-outs.
G17  Who stops hears nothing more of the catalog: a log that is made or taken then is closed by nobody. The catalog's
    thread may be amid a change: it makes and takes nothing more from the moment on that the stop begins to count.
G18  A log whose own keys are lost, or another log's, is kept shut: nothing opens it, moves it aside or makes another in
    its place, whatever the catalog says, until it is to be deleted. The keys may be brought back, and they may be gone
    on all brokers at once: each would begin anew from the next one. The catalog hears of it as of one that is behind,
    so others lead, and an operator may choose it once it opens. So it is with a folder that the catalog places nowhere
    here, if the master key for it is not here: nobody else's start waits for that. While the catalog is rescued the
    start fails instead: another log would be taken for the one that has most (G7).
G19  A broker that is alone keeps each log shut that it cannot open, and that the catalog names, also where its folder
    is missing: a copy that is only half restored must not begin anew. What the disk refused is tried again in each
    round, and so is a fault of ours; all else by a command that concerns the stream (`open_again`), or by the next
    start.
G20  A broker that is alone opens no folder that its catalog does not name: to open one may cut its end off, and the
    catalog may be an older copy than the folder (`orphans.O1` names them).
G21  A log of which the catalog of a broker that is alone cannot be told, as the disk refuses, is not served, and says
    so until it can. So no start waits for that.
G22  Where a broker is alone, logs of new partitions are made before the catalog names these, all or none. A log that is
    there already is left to its partition (`placed.V8`), and so is one of a command of which nobody knows whether it is
    carried out.
G12  Before a broker that stops hands over, it waits for its followers, for a moment (`acceptance.P19`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from broker.api.errors import (
    DiskFull,
    KeyMissing,
    LiftlogError,
    NotReady,
    Retryable,
    StorageFailed,
    UnknownFormatVersion,
    WrongFolder,
    WrongKeys,
)
from broker.api.stream import settings_from
from broker.metadata.catalog import StreamInfo
from broker.metadata.cluster import Touched
from broker.metadata.growth import GrowthStage, stage_of
from broker.metadata.heard import Heard
from broker.metadata.partition import PartitionState, Place
from broker.metadata.session import slower
from broker.node.asks import Asks, BatchedAsks
from broker.node.isr_changes import IsrChanges
from broker.node.mending import Mender
from broker.node.partitions.partition import Partition
from broker.node.placed import AGAIN_MS, SELDOM_MS, Assignment, PlacedReplica, Stepping, tell_shut
from broker.node.wiring import Host
from broker.replication.messages import Incarnation
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity, LogSettings

log = logging.getLogger(__name__)

TICK_MS: Final = 200
TICKED_AT_ONCE: Final = 1_000
"""Each takes some microseconds of the interpreter, which all threads share: the Raft thread, and so the session, waits
while replicas are ticked."""
RESTING_AT_ONCE: Final = 10
"""Of ten thousand, each has its turn within four minutes, for a thousandth of the interpreter."""
OPENED_AT_ONCE: Final = 1_000
"""So many folders that are there are in one command: some 50 KiB."""
GATHER_MS: Final = 30
ASK_AGAIN_MS: Final = 400
HALT_MS: Final = 5_000
STOP_MS: Final = 2_500
"""Longer than it takes until a broker that has died leads no more, where there are few partitions."""
STOP_AGAIN_MS: Final = 15_000
HAND_OVER_S: Final = 0.005
"""After so long one looks again whether the followers have all."""
SETTLE_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all partitions have in common: this process's registration, the brokers' addresses, whether all is well."""

    registration: int
    http: Mapping[str, str]
    is_unrescued: bool


@dataclass(slots=True)
class FoundReplicas:
    """Replicas on the disks: their numbers, by incarnation of the stream. `sound`: those that are open; `behind`: those
    of them whose disk has taken back committed records from the end (`recovery.R8`)."""

    sound: dict[str, list[int]] = field(default_factory=dict)
    behind: dict[str, list[int]] = field(default_factory=dict)
    epoch_seen: int = -1


class Replicas:
    """See the module.

    Args:
        process: The name of this process in its registration (`incarnation` of `register_broker`).
    """

    def __init__(self, host: Host, process: str) -> None:
        self._host = host
        self._process = process
        self._now_ms = host.now_ms
        self._changes = IsrChanges(host.me, host.service, host.commands)
        self._replicas: dict[Place, PlacedReplica] = {}
        self._found: dict[Place, tuple[str, PartitionLog]] = {}
        self._old: set[Place] = set()  # of those (G13)
        self._shut: dict[Place, tuple[str, LiftlogError]] = {}  # found, and not open: the stream, and why (G18)
        self._seen: dict[Place, Assignment | None] = {}  # what each was assigned last
        self._ending: set[Place] = set()  # assigned nothing any more, and not gone yet
        self._leftovers: frozenset[Place] = frozenset()
        self._shared: _Shared | None = None  # as of the last look; None: all are to be looked at
        self._faults: dict[Place, LiftlogError] = {}  # of ours, in what was assigned last
        self._is_well = True  # the last look met no fault of ours (G15)
        self._looks_again_ms, self._look_ms = 0, AGAIN_MS  # after one: when, and after how long then
        self._infos: dict[str, StreamInfo] = {}  # of all streams, by incarnation
        self._growing: set[str] = set()  # incarnations of those that are about to have more partitions
        self._registration = 0
        self._heard = Heard()
        self._asked_ms: dict[tuple[Place, Stepping], int] = {}  # step-outs, and when they were asked for last
        self._step_outs = Asks(host.service, host.step_outs)  # by why
        self._asks = Asks(host.service, host.commands)  # by what, or of which stream
        self._reports: BatchedAsks[Incarnation] = BatchedAsks(
            self._asks, "report_opened", self._as_opened, at_once=OPENED_AT_ONCE, failed=self._not_reported
        )
        self._stops: dict[str, tuple[int, int]] = {}  # of streams that are to stop: as of when, and since when (ms)
        self._knows_again_ms: dict[str, int] = {}  # streams whose stop was given up: not before that
        self._has_halted = self._is_due = self._has_named_unknown = self._has_opened = False
        self._to_tick: list[PlacedReplica] = []  # the rest of this turn (G16)
        self._restless: dict[Place, None] = {}  # of a broker that is alone: not at rest, as far as is known
        self._mender = Mender(host.mending)
        self._is_leaving = self._has_stopped = False
        self._taking = threading.Lock()  # over who has which log (G17)
        self._ticked_ms = self._now_ms()
        self._loop = host.make_loop(self.step, "replicas")

    # -- start and stop --------------------------------------------------------------------------------------

    def open_found(self) -> FoundReplicas:
        """Open what has a folder (G1). Touches the disk.

        Raises:
            OSError: the folders cannot be listed.
            DiskFull, KeyMissing, UnknownFormatVersion, StorageFailed: a log cannot be opened for now (G8).
        """
        found, folders = FoundReplicas(), self._host.folders
        folders.ends.load()
        catalog = self._host.service.catalog
        infos = {info.incarnation: info for info in list(catalog.streams.values())}
        placed = {incarnation for incarnation, _ in list(catalog.cluster.partitions)}
        for identity in list(folders.found()) if self._host.has_others else self._named():
            at = identity.incarnation, identity.partition
            info = infos.get(identity.incarnation)
            if info is not None and identity.incarnation not in placed:
                continue  # of a stream that is not placed
            state = catalog.cluster.partitions.get(at)
            settings = folders.log_settings(
                info.settings if info is not None else settings_from({}),
                is_sole=state is not None and state.replicas == (self._host.me,),
            )
            try:
                opened = self._open_found(identity, settings)
            except LiftlogError as error:
                if self._stays_shut(error, state):
                    self._keep_shut(at, identity.stream, error, found, state)
                elif not isinstance(error, WrongFolder):  # else its creation was cut off before there was one
                    log.error("replica.cannot_open partition=%s/%d error=%s", identity.stream, at[1], error)
                continue
            self._found[at] = identity.stream, opened
            found.sound.setdefault(identity.incarnation, []).append(identity.partition)
            is_old = self._is_old(at, opened)
            if is_old or opened.state.is_behind:
                found.behind.setdefault(identity.incarnation, []).append(identity.partition)
            is_member = state is None or self._host.me in {*state.isr, *state.last_isr}
            if (
                opened.state.is_behind and is_member
            ):  # who was not in sync may be torn amid what was committed without it
                end = opened.state.log_end_offset
                log.error("replica.behind partition=%s/%d end=%d", identity.stream, identity.partition, end)
            found.epoch_seen = max(found.epoch_seen, folders.epoch_seen(opened))
        self._has_opened = True
        return found

    def _open_found(self, identity: LogIdentity, settings: LogSettings) -> PartitionLog:
        """As `Folders.open`. A broker that is alone takes a fault of ours for one of the log (G19): other streams are
        served. In a cluster it ends the start: a log that is told to be lost begins anew."""
        try:
            return self._host.folders.open(identity, settings)
        except LiftlogError:
            raise
        except Exception as fault:
            if self._host.has_others:
                raise
            log.exception("replica.turn_bug work=open %s/%d", identity.stream, identity.partition)
            why = f"{identity.stream}/{identity.partition}: its opening met a fault of the broker's own: {fault!r}"
            raise NotReady(why) from fault

    def _stays_shut(self, error: LiftlogError, state: PartitionState | None) -> bool:
        """Whether a log that cannot be opened is kept shut (G18, G19). False: the catalog takes it for lost, and it
        begins anew. Raises the error where this broker must not start without (G8)."""
        cluster = self._host.service.catalog.cluster
        if isinstance(error, KeyMissing):
            is_placed = state is not None and self._host.me in state.replicas
            is_lost = isinstance(error, WrongKeys)  # else this process lacks the master key
            if self._host.has_others and ((is_placed and not is_lost) or cluster.rescue is not None):
                raise error
            return True
        is_whole = isinstance(error, DiskFull | UnknownFormatVersion)  # nothing of it is lost
        if not self._host.has_others and state is not None:
            return is_whole or state.knows_log_of(self._host.me)
        if is_whole or (
            isinstance(error, StorageFailed) and state is not None and state.needs(self._host.me, cluster.who())
        ):
            raise error
        return False

    def _keep_shut(
        self, at: Place, stream: str, why: LiftlogError, found: FoundReplicas, state: PartitionState | None
    ) -> None:
        """G18. The only member of both sets stays one: to go on without it an operator has to say so."""
        tell_shut(stream, at[1], why, is_alone=not self._host.has_others)
        self._shut[at] = stream, why
        found.sound.setdefault(at[0], []).append(at[1])
        if state is None or {*state.isr, *state.last_isr} != {self._host.me}:
            found.behind.setdefault(at[0], []).append(at[1])

    def _is_old(self, at: Place, opened: PartitionLog) -> bool:
        """G13."""
        end, known = opened.state.log_end_offset, self._host.folders.ends.known(at)
        if end >= known:
            return False
        is_sole = opened.state.settings.is_sole_replica
        log.error("replica.old partition=%s end=%d known=%d is_only_one=%s", opened.state.folder, end, known, is_sole)
        if not is_sole:
            self._old.add(at)
        return not is_sole

    def note_ends(self) -> None:
        """Write down how far the logs are (`log_ends.E1`). Touches the disk."""
        if not self._has_opened:
            return  # what is known of the others is still to be looked at
        for at in list(self._old):
            replica = self._replicas.get(at)
            partition = None if replica is None else replica.partition
            if replica is not None and partition is not None and (partition.leads or not replica.is_old):
                self._old.discard(at)
        self._host.folders.ends.note(kept=self._old | self.shut().keys())

    def start(self) -> None:
        """Take roles as the catalog says, now and from now on. The registration was sent before, or will be."""
        self._host.service.subscribe(self._changed)
        self._loop.start()

    def stop(self) -> None:
        """No more roles: close all logs, marked clean (G17)."""
        with self._taking:
            self._has_stopped = True
        self._loop.stop()
        self._host.step_outs.shutdown(wait=False, cancel_futures=True)
        self._mender.close()
        for replica in list(self._replicas.values()):
            try:
                replica.close()
            except Exception:  # the others are to be marked clean all the same
                log.exception("replica.close_bug partition=%s", replica)
        self._host.roles.write()
        with self._taking:  # one that is taken back meanwhile is closed by who does that
            found, self._found = self._found, {}
        for _, opened in found.values():
            try:
                opened.close(clean=True)
            except (LiftlogError, OSError) as error:
                log.info("partition.close_failed partition=%s error=%s", opened.state.folder, error)
        self.note_ends()

    def hand_over(self, timeout_s: float) -> None:
        """The broker is about to give its leaderships away (G12). Returns when all are in sync, or after a while."""
        end_ms = self._now_ms() + timeout_s * 1_000
        while sum(not partition.hands_over() for partition in self.partitions()) and self._now_ms() < end_ms:
            self._host.waits.pause(HAND_OVER_S)

    def leave(self) -> None:
        """The broker is about to stop: see G10."""
        self._is_leaving = True
        self.look()

    def look(self) -> None:
        """Something else has changed, such as the session: look at all replicas soon."""
        self._is_due = True
        self._loop.wake()

    # -- what there is ---------------------------------------------------------------------------------------

    def partition(self, at: Place) -> Partition | None:
        """The replica of a partition that is open here; led or not."""
        replica = self._replicas.get(at)
        return None if replica is None else replica.partition

    def partitions(self) -> list[Partition]:
        """All that are open here."""
        return [partition for replica in self.replicas() if (partition := replica.partition) is not None]

    def replicas(self) -> list[PlacedReplica]:
        """All, with a log or without."""
        return list(self._replicas.values())

    def replica(self, at: Place) -> PlacedReplica | None:
        """Likewise, and what it is about."""
        return self._replicas.get(at)

    # -- the catalog's thread (G2) ---------------------------------------------------------------------------

    def _changed(self) -> None:
        """G2."""
        is_well = False
        try:
            is_well = self._take_in_change()
        finally:
            self._is_well = is_well

    def _take_in_change(self) -> bool:
        """G15. Returns whether there was no fault of ours."""
        catalog, touched = self._host.service.catalog, self._host.service.touched
        own = catalog.brokers.get(self._host.me)
        if self._has_stopped:
            return True
        if own is None or own.incarnation != self._process:
            self._shared = None
            return True  # G1
        cluster = catalog.cluster
        shared = _Shared(
            own.registration, {b: info.http for b, info in catalog.brokers.items()}, cluster.rescue is None
        )
        is_of_all = touched is None or shared != self._shared
        self._shared, self._registration = None, own.registration
        self._heard.look(catalog.brokers, self._now_ms())
        self._leftovers = cluster.leftovers.get(self._host.me, frozenset())
        if touched is None or is_of_all:
            self._infos = {info.incarnation: info for info in catalog.streams.values()}
            places = list(dict.fromkeys([*cluster.partitions, *self._leftovers, *self._replicas]))
        else:
            places = sorted(self._places_of(touched))
        growing = {i for i, info in self._infos.items() if info.partitions_next} if is_of_all else self._growing
        self._growing = growing
        stages: dict[str, GrowthStage | None] = {}
        faults: dict[Place, LiftlogError] = {}
        for at in places:
            try:
                self._look_at(at, shared, stages)
            except Exception as error:
                log.exception("replica.assignment_bug partition=%s", at)
                faults[at] = LiftlogError(f"a fault of the broker's own: {error!r}")
        self._faults = faults
        if growing:
            self._loop.wake()
        self._drop_gone()
        are_taken = cluster.rescue is None and not faults and not self._has_stopped
        if are_taken and not self._has_named_unknown:
            self._has_named_unknown = True
            self._name_unknown()
        self._shared = None if faults else shared
        return not faults

    def _places_of(self, touched: Touched) -> set[Place]:
        """The partitions of which something may be new, by what has changed in the catalog."""
        places = set(touched.places)
        for incarnation, info in touched.streams.items():
            before = self._infos.pop(incarnation, None)
            if info is not None:
                self._infos[incarnation] = info
                if before == info and (fenced := info.fenced_since(before)):
                    places |= {(incarnation, number) for number in fenced}
                    continue
            for each in (before, info):
                count = 0 if each is None else max(each.settings.partitions, each.partitions_next)
                places |= {(incarnation, number) for number in range(count)}
            self._growing = self._growing - {incarnation}
            if info is not None and info.partitions_next:
                self._growing = self._growing | {incarnation}
        for incarnation in self._growing & {at[0] for at in touched.places}:  # the stage is of all of them
            info = self._infos[incarnation]
            places |= {(incarnation, n) for n in range(max(info.settings.partitions, info.partitions_next))}
        return places

    def _look_at(self, at: Place, shared: _Shared, stages: dict[str, GrowthStage | None]) -> None:
        """Assign to one replica of this broker what is new."""
        catalog = self._host.service.catalog
        cluster = catalog.cluster
        state, info = cluster.partitions.get(at), self._infos.get(at[0])
        if cluster.rescue is not None and at not in self._replicas:  # G7
            return
        if state is not None and self._host.me in state.replicas:
            assert info is not None, "a placed partition is of a stream"
            if info.partitions_next and at[0] not in stages:
                stages[at[0]] = stage_of(cluster, info)
            assigned = Assignment(
                info=info,
                state=state,
                registration=shared.registration,
                leader_at=shared.http.get(state.leader) if state.leader is not None else None,
                was_left=at in self._leftovers,
                stage=stages.get(at[0]),
            )
            if not _is_same(self._seen.get(at), assigned):
                self._assign(at, info.name, assigned)
            return
        if at not in self._leftovers and at not in self._replicas:
            return
        known = info.name if info is not None else catalog.deleted.get(at[0])
        is_over = at in self._seen and self._seen[at] is None
        if not is_over and (at in self._replicas or known is not None):
            self._assign(at, known or "", None, is_deleted=at[0] in catalog.deleted)

    def _name_unknown(self) -> None:
        """G6."""
        if self._found or self._shut:
            unknown = {at: name for at, (name, _) in (*self._found.items(), *self._shut.items())}
            names = [f"{name}/{number}" for (_, number), name in unknown.items()]
            log.warning("replica.unknown count=%d partitions=%s", len(names), names)

    def _assign(self, at: Place, name: str, assigned: Assignment | None, *, is_deleted: bool = False) -> None:
        with self._taking:  # G17
            if self._has_stopped:
                return
            replica = self._replicas.get(at) or self._add(at, name)
        if assigned is None:
            self._ending.add(at)
        replica.assign(assigned, is_deleted=is_deleted)
        self._seen[at] = assigned  # now: after a fault of ours it is assigned again (G15)

    def _add(self, at: Place, name: str) -> PlacedReplica:
        shut_name, shut = self._shut.get(at, (name, None))
        found_name, found = self._found.get(at, (shut_name, None))
        replica = PlacedReplica(
            self._host,
            at,
            found_name,
            found,
            self._loop.wake,
            self._reports.ask,
            self._changes,
            self._mender,
            self._restless,
            is_old=at in self._old,
            shut=shut,
        )
        self._replicas[at] = replica
        self._shut.pop(at, None)
        self._found.pop(at, None)  # now: after a fault of ours it is found again (`placed.V9`)
        return replica

    def open_again(self, incarnation: str | None = None) -> list[Future[None]]:
        """Try once more to open sole logs that are kept shut: those of a stream, or what the disk had refused (G19)."""
        return [
            replica.open_again()
            for replica in self.replicas()
            if replica.shut is not None
            and (replica.at[0] == incarnation if incarnation is not None else isinstance(replica.shut, Retryable))
        ]

    def _named(self) -> list[LogIdentity]:
        """The logs of a broker that is alone, by its catalog alone (G19, G20)."""
        catalog, me = self._host.service.catalog, self._host.me
        names = {info.incarnation: info.name for info in catalog.streams.values()}
        return [
            LogIdentity(
                cluster_id=self._host.folders.cluster_id, stream=names[at[0]], incarnation=at[0], partition=at[1]
            )
            for at, state in catalog.cluster.partitions.items()
            if me in state.replicas
        ]

    def make(self, info: StreamInfo, numbers: Iterable[int]) -> list[int]:
        """Make logs of partitions that the catalog does not name yet (G22). Returns which were made. Touches the disk.

        Raises:
            DiskFull, StorageFailed, KeyMissing: there are none of them. NotReady: the broker stops.
        """
        folders, places = self._host.folders, [(info.incarnation, number) for number in numbers]
        places = [at for at in places if at not in self._found and at not in self._replicas]
        new = [at[1] for at in places if not folders.holds(info.name, *at)]
        tries: list[Future[None]] = [Future() for _ in new]
        try:
            for number, done in zip(new, tries, strict=True):
                self._host.workers.submit(partial(self._make, info, number, done))
        except RuntimeError:  # those that were submitted keep nothing (G17)
            raise NotReady("the broker is stopping") from None
        why = [error for error in [each.exception() for each in tries] if error is not None]
        if why:
            self.unmake(info, new)
            raise why[0]
        return new

    def _make(self, info: StreamInfo, number: int, done: Future[None]) -> None:
        try:
            self._keep_found((info.incarnation, number), info.name, self._host.folders.create(info, number))
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    def _keep_found(self, at: Place, stream: str, opened: PartitionLog) -> None:
        with self._taking:  # G17
            if not self._has_stopped:
                self._found[at] = stream, opened
                return
        opened.close(clean=False)
        raise NotReady("the broker is stopping")

    def unmake(self, info: StreamInfo, numbers: Iterable[int]) -> None:
        """Remove logs that `make` has made: the catalog will not name them. Touches the disk."""
        for number in numbers:
            with self._taking:
                _, opened = self._found.pop((info.incarnation, number), (info.name, None))
            try:
                if opened is not None:
                    opened.close(clean=False)
                self._host.folders.take_back(info.name, info.incarnation, number)
            except (LiftlogError, OSError) as error:  # the next start removes it
                log.warning("replica.folder_left partition=%s/%d error=%s", info.name, number, error)

    def is_settled(self, at: Place) -> bool:
        """Whether a partition that is led here is read and appended to, or it is known why it is not; or is deleted."""
        if at not in self._host.service.catalog.cluster.partitions:
            return True
        partition = self.partition(at)
        is_served = partition is not None and partition.end is not None
        return is_served or self.obstacle(at) is not None

    def settle(self, places: Iterable[Place], timeout_s: float) -> LiftlogError | None:
        """Wait until partitions that are led here are settled, or the time is up. Returns why the first one that is not
        served is not, if that is known. Blocks."""
        until_ms = self._now_ms() + timeout_s * 1_000
        for at in places:
            while not self.is_settled(at) and not self._has_stopped and self._now_ms() < until_ms:
                self._host.waits.pause(SETTLE_S)
        return next((why for at in places if (why := self.obstacle(at)) is not None), None)

    def obstacle(self, at: Place) -> LiftlogError | None:
        """Why a partition that is led here is not served."""
        replica = self._replicas.get(at)
        return self._faults.get(at) or (None if replica is None else _why_not_served(replica))

    def unserved(self) -> dict[str, str]:
        """The streams of which a log cannot be served here, and why."""
        infos, placed = self._infos, self._host.service.catalog.cluster.partitions
        there = [each for each in self.replicas() if each.at in placed]  # else it is deleted, and its folder stays
        found = [(str(each).partition("/")[0], _why_not_served(each)) for each in there]
        found += [(infos[at[0]].name, why) for at, why in list(self._faults.items()) if at[0] in infos]
        return {f"stream {name}": str(why) for name, why in found if why is not None}

    def faults(self) -> list[str]:
        """Of ours, in what was assigned last, in the last turn of a replica, or as its capture was to begin."""
        infos = self._infos
        found = [f"{infos[at[0]].name}/{at[1]}: {why}" for at, why in list(self._faults.items()) if at[0] in infos]
        return sorted([*found, *(said for each in self.replicas() for said in each.faults)])

    def shut(self) -> dict[Place, LiftlogError]:
        """The logs that are kept shut, and why (G18)."""
        placed = {replica.at: replica.shut for replica in self.replicas() if replica.shut is not None}
        return {at: why for at, (_, why) in list(self._shut.items())} | placed

    def _drop_gone(self) -> None:
        for at in [at for at in self._ending if at not in self._leftovers]:
            if self._seen.get(at) is not None:  # it is wanted again
                self._ending.discard(at)
            elif (replica := self._replicas.get(at)) is None or replica.is_gone:
                self._ending.discard(at)
                self._replicas.pop(at, None)
                self._seen.pop(at, None)

    # -- a loop of its own -----------------------------------------------------------------------------------

    def step(self) -> float:
        """A tick, if it is due, and what is to be asked of the catalog. Returns when the next step is due, in seconds.
        For the loop alone."""
        now_ms = self._now_ms()
        if now_ms - self._ticked_ms >= TICK_MS or self._is_due:
            is_of_all, self._is_due = self._is_due or self._is_leaving, False
            self._ticked_ms = now_ms
            self._tick(now_ms, is_of_all=is_of_all)
        try:
            self._look_again(now_ms)  # first: a fault of ours in the rest may pass with it
            is_gathering = self._step_out(now_ms)
            self._confirm_deleted()
            self._confirm_partitions(now_ms)
            self._report_logs()
        except Exception:
            log.exception("replica.round_bug")
            is_gathering = False
        return (GATHER_MS if is_gathering else max(0, TICK_MS - (now_ms - self._ticked_ms))) / 1000

    def _look_again(self, now_ms: int) -> None:
        """G15."""
        if self._is_well:
            self._look_ms = AGAIN_MS
        elif now_ms >= self._looks_again_ms:
            self._looks_again_ms, self._look_ms = now_ms + self._look_ms, min(2 * self._look_ms, SELDOM_MS)
            with suppress(LiftlogError):  # too many wait for the catalog's thread, or the broker stops
                self._host.service.call_again(self._changed)

    def _tick(self, now_ms: int, *, is_of_all: bool) -> None:
        """G16."""
        self._host.roles.write()
        is_over = self._is_leaving and not self._host.has_session()
        if self._registration:  # who only renews is told to nobody (`service.V6`)
            self._heard.look(self._host.service.catalog.brokers, now_ms)
        if is_of_all or not self._to_tick:
            self._to_tick = self.replicas()[::-1]
        at_once = TICKED_AT_ONCE if self._host.has_others else RESTING_AT_ONCE
        count = len(self._to_tick) if is_of_all else at_once
        due = self._to_tick[: -count - 1 : -1]  # from the end: the rest, which may be long, stays where it is
        del self._to_tick[len(self._to_tick) - len(due) :]
        for replica in dict.fromkeys([*self._those_at_work(), *due]):
            try:
                partition = replica.partition
                if is_over and partition is not None and partition.leads:  # G10
                    partition.depose()
                replica.tick(now_ms, may_go=replica.is_damaged and self._may_go(replica.at, now_ms))
            except Exception:
                log.exception("replica.tick_bug partition=%s", replica)

    def _those_at_work(self) -> list[PlacedReplica]:
        """Those of a broker that is alone that are not at rest, so many at once, in turn."""
        at_work: list[PlacedReplica] = []
        for at in list(self._restless)[:TICKED_AT_ONCE]:
            self._restless.pop(at, None)  # first: a turn may say it anew meanwhile
            replica = self._replicas.get(at)
            if replica is not None and not replica.is_at_rest:
                self._restless[at] = None
                at_work.append(replica)
        return at_work

    def _may_go(self, at: Place, now_ms: int) -> bool:
        """G14."""
        catalog = self._host.service.catalog
        state = catalog.cluster.partitions.get(at)
        return state is not None and self._heard.may_go(self._host.me, state, catalog.brokers, now_ms)

    def _step_out(self, now_ms: int) -> bool:
        """Ask for the step-outs that are due (G3). Returns whether some are being gathered."""
        if not self._host.has_others:
            return False
        waiting = {(r.at, r.stepping): str(r) for r in list(self._replicas.values()) if r.stepping is not None}
        self._asked_ms = {key: ms for key, ms in self._asked_ms.items() if key in waiting}
        most_ms = HALT_MS * slower(len(self._host.service.catalog.cluster.partitions))
        late = [name for (_, s), name in waiting.items() if s.why == "fsync" and now_ms - s.since_ms > most_ms]
        if late and not self._has_halted:  # G4
            self._has_halted = True
            self._host.halt(f"the step-out of {', '.join(late)} does not come through")
        for why in ("fsync", "damage"):
            keys = [key for key in waiting if key[1].why == why]
            new_ms = [step.since_ms for at, step in keys if (at, step) not in self._asked_ms]
            asked_ms = [self._asked_ms[key] for key in keys if key in self._asked_ms]
            is_due = (new_ms and now_ms - min(new_ms) >= GATHER_MS) or (
                asked_ms and now_ms - min(asked_ms) >= ASK_AGAIN_MS
            )
            if is_due and why not in self._step_outs:
                if why == "damage":  # G14
                    going = {at for at, _ in keys if self._may_go(at, now_ms)}
                    self._refused(why, (at for at, _ in keys if at not in going))
                    keys = [(at, step) for at, step in keys if at in going]
                if not keys:
                    continue
                self._asked_ms.update(dict.fromkeys(keys, now_ms))
                self._ask_step_out(why, [[*at, step.incarnation[1]] for at, step in keys])
        return len(self._asked_ms) < len(waiting)

    def _ask_step_out(self, why: str, asked: list[list[Any]]) -> None:
        self._step_outs.ask(
            why,
            "step_out",
            lambda: {**self._as_me(), "why": why, "replicas": asked},
            failed=lambda error: log.error(
                "replica.step_out_failed why=%s replicas=%d error=%s", why, len(asked), error
            ),
            answered=lambda said: self._refused(why, ((stream, at) for stream, at in said.get("refused", ()))),
        )

    def _as_me(self) -> dict[str, Any]:
        return {"broker_id": self._host.me, "registration": self._registration}

    def _as_opened(self, opened: Mapping[Place, Incarnation]) -> dict[str, Any]:
        """A command is of one registration. What was asked under an earlier one does not count any more."""
        newest = max(registration for registration, _ in opened.values())
        replicas = [[*at, step_outs] for at, (registration, step_outs) in opened.items() if registration == newest]
        return {"broker_id": self._host.me, "registration": newest, "replicas": replicas}

    def _not_reported(self, opened: Mapping[Place, Incarnation], error: LiftlogError) -> None:
        """Each says it again when its replica has its next turn. Where this broker is alone, what its own disk refuses
        is why they are not served."""
        log.info("replica.not_reported partitions=%d error=%s", len(opened), error)
        if not self._host.has_others and isinstance(error, DiskFull | StorageFailed):
            for replica in filter(None, map(self._replicas.get, opened)):
                replica.obstacle = error

    def _refused(self, why: str, places: Iterable[Place]) -> None:
        for at in places:
            if (replica := self._replicas.get(at)) is not None:
                replica.step_out_refused(why)

    def _confirm_deleted(self) -> None:
        """G5."""
        if "deleted" in self._asks:
            return
        gone: dict[str, list[int]] = {}
        for at in self._leftovers:
            replica = self._replicas.get(at)
            if replica is not None and (replica.is_gone or replica.is_fresh):
                gone.setdefault(at[0], []).append(at[1])
        if gone:
            partitions = {incarnation: sorted(numbers) for incarnation, numbers in gone.items()}
            self._asks.ask(
                "deleted",
                "confirm_deleted",
                lambda: {"broker_id": self._host.me, "partitions": partitions},
                failed=lambda error: log.info("replica.not_confirmed partitions=%s error=%s", partitions, error),
            )

    def _confirm_partitions(self, now_ms: int) -> None:
        """G9."""
        catalog = self._host.service.catalog
        if not any(info.partitions_next for info in list(catalog.streams.values())):
            self._stops.clear()
            self._knows_again_ms.clear()
            return
        due: dict[tuple[str, GrowthStage], tuple[Assignment, list[list[int]], bool]] = {}
        for at, assigned in list(self._seen.items()):
            replica = self._replicas.get(at)
            if assigned is None or assigned.stage is None or replica is None or assigned.state.leader != self._host.me:
                continue
            as_of, is_stopping = assigned.stage
            if is_stopping:
                since_ms = self._stopping_since_ms(at[0], as_of, now_ms)
                gives_up = now_ms - since_ms > STOP_MS
            else:
                gives_up = False
                if now_ms < self._knows_again_ms.get(at[0], now_ms):
                    continue
            is_new = catalog.cluster.confirmed.get(at, (-1, False)) < assigned.stage
            if gives_up or (is_new and replica.may_confirm(assigned)):
                _, leaders, _ = due.setdefault((at[0], assigned.stage), (assigned, [], gives_up))
                leaders.append([at[1], assigned.state.leader_epoch])
        for (incarnation, stage), (assigned, leaders, gives_up) in due.items():
            if incarnation not in self._asks:
                if gives_up:
                    log.warning("replica.stop_given_up stream=%s leaders=%s", assigned.info.name, leaders)
                    self._knows_again_ms[incarnation] = now_ms + STOP_AGAIN_MS
                self._confirm_stage(assigned.info, stage, leaders, gives_up)

    def _stopping_since_ms(self, incarnation: str, as_of: int, now_ms: int) -> int:
        known, since_ms = self._stops.get(incarnation, (as_of, now_ms))
        if known != as_of:
            since_ms = now_ms
        self._stops[incarnation] = as_of, since_ms
        return since_ms

    def _confirm_stage(self, info: StreamInfo, stage: GrowthStage, leaders: list[list[int]], gives_up: bool) -> None:
        values = {
            **self._as_me(),
            "name": info.name,
            "incarnation": info.incarnation,
            "partitions": info.partitions_next,
            "leaders": leaders,
            "as_of": stage.as_of,
            "is_stopped": stage.is_stopping and not gives_up,
            "gives_up": gives_up,
        }
        self._asks.ask(
            info.incarnation,
            "confirm_partitions",
            lambda: values,
            failed=lambda error: log.info(  # it may be done by now
                "replica.partitions_not_confirmed stream=%s leaders=%s error=%s", info.name, leaders, error
            ),
        )

    def _report_logs(self) -> None:
        """G11."""
        rescue, me = self._host.service.catalog.cluster.rescue, self._host.me
        if rescue is not None and self._registration and me not in rescue.logs:
            number, count = rescue.number, len(self._found)
            self._asks.ask(
                "logs",
                "report_logs",
                lambda: {**self._as_me(), "rescue": number, **self._logs()},
                failed=lambda error: log.info("replica.logs_not_reported rescue=%d error=%s", number, error),
                answered=lambda _: log.info("replica.logs_reported rescue=%d partitions=%d", number, count),
            )

    def _logs(self) -> dict[str, Any]:
        logs = [(at, opened, opened.state.log_end_offset) for at, (_, opened) in list(self._found.items())]
        return {
            "epoch_seen": max((opened.epochs.latest for _, opened, _ in logs), default=-1),
            "logs": [[*at, opened.epochs.epoch_of(end - 1) if end else -1, end] for at, opened, end in logs],
        }


def _is_same(before: Assignment | None, assigned: Assignment) -> bool:
    """Whether nothing is new: the catalog makes another object of what changes."""
    return before is not None and (
        before.info is assigned.info
        and before.state is assigned.state
        and (before.registration, before.leader_at, before.was_left, before.stage)
        == (assigned.registration, assigned.leader_at, assigned.was_left, assigned.stage)
    )


def _why_not_served(replica: PlacedReplica) -> LiftlogError | None:
    """Why a replica that is led here is not served, as far as it is known."""
    return replica.shut or replica.obstacle or replica.fault
