"""The metadata plane of one broker, put together. How it is used stands in the package's docstring.

    enter the group ─► Raft node on its thread ─► catalog caught up ─► register ─► session ─► ... ─► hand over ─► stop

P1  Nothing counts before the registration: no session, no role. It is asked for under one request id until it is
    answered, so it is carried out once.
P2  The session is counted from the first time that the registration may have been sent.
P3  A clean stop gives leaderships away first (`stop_broker`). It says that this broker is gone (`fail_broker`) before
    its logs are closed: new leaders would wait for it, in sync as it is, as long as it takes to close them all. Its
    vote counts until the very end. Both are courtesies: a stop does not depend on them, and does not wait for a
    majority of whom too many have said that they stop.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from broker.api.errors import InvalidRequest, LiftlogError, NotReady, PortInUse, Retryable
from broker.control import status
from broker.control.clock import boot_s
from broker.control.duties import Duties
from broker.control.forming import Entered, Entrance, answer_to
from broker.control.heart import Heart
from broker.control.identity import Identity, check_secret
from broker.control.leaderless import Leaderless
from broker.control.others import Addresses
from broker.control.registering import Registration
from broker.control.service import Catalogs
from broker.control.signs import MemberSigns
from broker.control.thread import RaftThread
from broker.metadata.catalog import COMMAND_VERSION
from broker.metadata.cluster import FEATURE_LEVEL
from broker.metadata.partition import Place
from broker.metadata.session import slower
from broker.raft.greeting import listening_ip
from broker.raft.node import Answer, RaftNode, configuration
from broker.raft.wire import Voter, over_tls
from broker.storage.disk import FixedDisk

log = logging.getLogger(__name__)

TAKEN_S: Final = 10.0
"""So long a name may be another living broker's before the start fails: the session of a killed one has lapsed. With
many partitions longer, as sessions are."""
TELL_EVERY_S: Final = 10.0
HAND_OVER_S: Final = 5.0
LOOK_S: Final = 0.25
TRY_S: Final = 0.5
"""So often a broker that stops looks whether there is a majority left to tell."""
STILL_S: Final = 5.0
"""After so long without a tick, /readyz says so."""


class Plane:
    """See the module.

    Args:
        folder: This broker's data folder, locked by it.
        halt: Ends the process, and says why: it may act under its id no more.
        session_changed: Told on the Raft thread when the session has opened or lapsed; must not wait.
        controller_changed: Likewise, when another controller is known than before.
        tell: Told in words, from time to time, for whom the start waits.

    Attributes:
        process: The name of this process in its registration (`Replicas` is told it).
        service: The catalog (`wiring.CatalogService`). Its `execute` may be called once `start` has returned.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        disk: FixedDisk,
        folder: str,
        halt: Callable[[str], None],
        session_changed: Callable[[bool], None] = lambda is_open: None,
        controller_changed: Callable[[], None] = lambda: None,
        tell: Callable[[str], None] = lambda text: None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        check_secret(identity.secret)
        self.identity = identity
        self.process = uuid.uuid4().hex
        self.refusals = 0  # connections to the Raft port that were cut, and brokers that were not taken
        self._disk, self._folder = disk, folder
        self._options = options or {}
        self._thread: RaftThread[RaftNode] = RaftThread(halt=halt)
        self.service = Catalogs(self._thread)
        self._entrance = Entrance(disk, folder, identity, tell=tell)
        self._heart = Heart(
            identity.broker_id,
            self.process,
            halt=halt,
            changed=session_changed,
            controlled=controller_changed,
        )
        self._duties = Duties(identity.broker_id, identity.cluster_id, wake=self._thread.wake)
        self._leaderless = Leaderless()
        self._signs = MemberSigns(identity.broker_id, has_session=self.has_session)
        self._entered: Entered | None = None
        self._node: RaftNode | None = None
        self._starting = threading.Lock()
        self._is_stopping = False
        self._refused_told_s = -TELL_EVERY_S
        self._outlook = status.Outlook()
        self._looked_s: float | None = None

    # -- start and stop ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Enter the group, and return when this broker's catalog has all that was acknowledged before.

        Waits for others as long as that takes: for all first voters to form the group, later for a majority. `stop`,
        from another thread, ends that.

        Raises:
            InvalidRequest: the cluster refuses this broker, and says why. WrongFolder, PortInUse, CorruptLog.
            NotReady: stopped meanwhile. StorageFailed, DiskFull: the disk refuses.
        """
        self._entered = entered = self._entrance.enter()
        with self._starting:
            if self._is_stopping:
                entered.journal.close()
                raise NotReady("stopped before it took part")
            node = self._open(entered)
            self._applied(None)
            self._thread.each_tick(self._heart.tick)
            self._thread.each_tick(self._duties.tick)
            self._thread.each_tick(self._signs.tick)
            self._thread.each_tick(self._look)
            self._thread.start(node)
        self.service.subscribe(lambda: self._heart.applied(self.service.catalog))
        self._until_done("the catalog", lambda: self.service.read())
        log.info("cluster.entered id=%s group=%s", entered.member.node_id, entered.member.group)
        self._name_unknown()

    def _name_unknown(self) -> None:
        """Once the group is formed `cluster.voters` says where others are asked for, and no more. A name in it that the
        cluster does not know is misspelt, or of a broker that was removed."""
        with suppress(LiftlogError):
            known = {*self.service.catalog.brokers, *(each["broker_id"] for each in self.status()["voters"])}
            if unknown := sorted({name for name, _ in self.identity.named} - known):
                log.warning("cluster.voters_unknown voters=%s", ",".join(unknown))

    def _open(self, entered: Entered) -> RaftNode:
        conf = configuration(secret=self.identity.secret, bind=self.identity.bind, **self._options)
        try:
            listening_ip(self.identity.bind)
            self._node = RaftNode(
                entered.journal,
                transport=over_tls(self.identity.tls),
                node=Voter,
                conf=conf,
                clock=boot_s,
                life=self.process,
                seeds=entered.seeds,
                wakeup=self._thread.wakeup,
                on_applied=self._applied,
                on_note=self._noted,
                greeted=self._greeted,
                refused=self._refused,
            )
        except Exception as error:
            entered.journal.close()
            if "BindError" in str(error):  # all that pysyncobj says
                raise PortInUse(f"raft.port: cannot listen at {self.identity.bind}", key="raft.port") from error
            raise
        return self._node

    def register(
        self,
        addresses: Addresses,
        *,
        sound: Mapping[str, list[int]] | None = None,
        behind: Mapping[str, list[int]] | None = None,
        epoch_seen: int = -1,
    ) -> int:
        """Have the catalog take this process (P1); returns the registration. Nothing of this broker counts before.

        Args:
            sound: Folders of replicas that are open, by incarnation of their stream. Any other is lost.
            behind: Those of them that lack committed records at the end.
            epoch_seen: The greatest leader epoch in any log.
        Raises:
            InvalidRequest: it was refused: removed, a feature level that it does not know, its name is taken, or
                another folder was its broker's last.
            NotReady: stopped meanwhile.
        """
        command = {
            "v": COMMAND_VERSION,
            "kind": "register_broker",
            "request_id": f"register/{self.process}",
            "broker_id": self.identity.broker_id,
            "incarnation": self.process,
            "http": addresses.http,
            "grpc": addresses.grpc,
            "rack": addresses.rack,
            "raft": self._node_id(),
            "feature_level_max": FEATURE_LEVEL,
            "sound": dict(sound or {}),
            "behind": dict(behind or {}),
            "epoch_seen": epoch_seen,
        }
        asked = Registration(self.service, self._disk, self._folder, command, has_logs=bool(sound))
        registration = int(self._until_done("its registration", asked.ask))
        self._thread.do(lambda _: self._heart.registered(registration, min(asked.sent_ms, default=0)))  # P2
        self._until_done("the catalog", lambda: self.service.read())
        log.info("broker.registered id=%s registration=%d", self.identity.broker_id, registration)
        return registration

    def hand_over(self, *, timeout_s: float = HAND_OVER_S) -> None:
        """Give leaderships to others that are in sync (P3). Returns when they are gone, or after a while."""
        end_s = time.monotonic() + timeout_s
        me = self.identity.broker_id
        try:
            self._own_command("stop_broker", timeout_s)
            while time.monotonic() < end_s and not self._outlook.is_deserted:
                states = list(self.service.catalog.cluster.partitions.values())
                if not any(state.leader == me and len(state.isr) > 1 for state in states):
                    return
                time.sleep(0.02)
        except LiftlogError as error:
            log.warning("cluster.not_handed_over id=%s error=%s", me, error)

    def leave(self) -> None:
        """No session any more, and no place among those in sync (P3). May be called in any state, and again."""
        had_session = self._heart.has_session()
        self._heart.end()
        if had_session:
            try:
                self._own_command("fail_broker", 2.0)
            except LiftlogError as error:
                log.info("cluster.not_left id=%s error=%s", self.identity.broker_id, error)

    def stop(self) -> None:
        """As `leave`, and no part in the group. May be called in any state, from any thread, and again."""
        with self._starting:
            self._is_stopping = True
        self._entrance.stop()
        self.leave()
        self.service.close()
        self._thread.stop()

    def _own_command(self, kind: str, timeout_s: float) -> None:
        named = {"broker_id": self.identity.broker_id, "registration": self._heart.registration}
        request_id = f"{kind}/{self.process}"
        command = {"v": COMMAND_VERSION, "kind": kind, "request_id": request_id, **named}
        end_s = time.monotonic() + timeout_s
        while not self._outlook.is_deserted:
            left_s = end_s - time.monotonic()
            try:
                self.service.execute(command, timeout_s=min(TRY_S, left_s))
                return
            except LiftlogError as error:
                if left_s <= TRY_S or not isinstance(error, Retryable):
                    raise
        raise NotReady("the others have stopped")

    def _until_done(self, what: str, call: Callable[[], Any]) -> Any:
        """Try until it is answered. Raises what another try does not help against, and NotReady when stopped."""
        began_s = told_s = time.monotonic()
        while not self._is_stopping:
            try:
                return call()
            except LiftlogError as error:
                now_s = time.monotonic()
                if isinstance(error, InvalidRequest):
                    raise
                partitions = len(self.service.catalog.cluster.partitions)
                if "raft" in error.fields and now_s - began_s > TAKEN_S * slower(partitions):
                    raise InvalidRequest(error.message, **error.fields) from error
                if now_s - told_s >= TELL_EVERY_S:
                    told_s = now_s
                    log.warning("cluster.waiting what=%s s=%d error=%s", what, now_s - began_s, error)
                time.sleep(0.1)
        raise NotReady(f"stopped while it waited for {what}")

    # -- what there is ----------------------------------------------------------------------------------------

    def has_session(self) -> bool:
        """Whether this broker may lead, ack and answer ends of logs. From any thread; does not wait."""
        return self._heart.has_session()

    def obstacle(self) -> str:
        """Why the group cannot decide anything now, in words; "": nothing is known to be in the way. Does not wait."""
        looked_s = self._looked_s
        still_s = 0.0 if looked_s is None else time.monotonic() - looked_s
        if still_s > STILL_S:
            return f"this broker's Raft thread has stood still for {still_s:.0f} s: its disk may hang"
        return self._outlook.obstacle

    @property
    def registration(self) -> int:
        """This process's; 0: none yet."""
        return self._heart.registration

    def member_heard(self, group: str, member: str, session: int) -> None:
        """A member of a consumer group lives. From any thread; does not wait."""
        self._signs.heard(group, member, session)

    def report_leader(self, at: Place, leader_epoch: int) -> None:
        """Tell the controller that the leader of a partition cannot be reached, again and again while that is so. From
        any thread; does not wait, and what is lost is not told."""
        note = {
            "type": "report",
            "broker": self.identity.broker_id,
            "registration": self.registration,
            "stream": at[0],
            "partition": at[1],
            "leader_epoch": leader_epoch,
        }

        def tell(node: RaftNode) -> None:
            node.note(note)

        with suppress(LiftlogError):  # it will be said again, if there is anybody left to say it
            self._thread.do(tell)

    def status(self, *, timeout_s: float = 2.0) -> dict[str, Any]:
        """The state for `liftlog cluster status`, as this broker knows it. Waits for the Raft thread, for no other
        broker.

        Raises:
            NotReady: the thread gives no answer.
        """
        future: Future[dict[str, Any]] = Future()

        def look(node: RaftNode) -> None:
            future.set_result(status.of(node, self.identity, has_session=self.has_session(), refused=self.refusals))

        self._thread.do(look, lambda: future.set_exception(NotReady("this broker is stopping")))
        try:
            return future.result(timeout_s)
        except TimeoutError:
            raise NotReady("this broker's Raft thread gives no answer: its disk may hang") from None

    def _node_id(self) -> str:
        assert self._entered is not None, "started"
        return self._entered.member.node_id

    # -- what the Raft thread calls ---------------------------------------------------------------------------

    def _look(self, node: RaftNode) -> None:
        now_s = time.monotonic()
        if self._looked_s is None or now_s - self._looked_s >= LOOK_S:
            self._looked_s, self._outlook = now_s, status.outlook(node)

    def _applied(self, command: Mapping[str, Any] | None) -> None:
        assert self._node is not None
        self._leaderless.applied(self._node.catalog, command, counts=self._node.has_begun)
        self.service.applied(self._node.catalog, command)

    def _noted(self, note: dict[str, Any], answer: Answer) -> None:
        assert self._node is not None
        match note.get("type"):
            case "beat":
                self._duties.beat(self._node, note, answer)
            case "report":
                self._duties.report(self._node, note)
            case "members":
                self._duties.members(self._node, note)
            case "renewed":
                self._node.heed(note.get("stamp"))
                self._heart.renewed(note, self._node.catalog)

    def _greeted(self, hello: dict[str, Any]) -> dict[str, Any]:
        assert self._node is not None
        assert self._entered is not None
        catalog = self._node.catalog
        answer = answer_to(
            hello,
            self.identity,
            self._entered.member,
            voters=self._node.voters(),
            removed=catalog.cluster.removed,
            acted={broker: info.raft for broker, info in catalog.brokers.items()},
            processes={broker: (info.incarnation, info.registration) for broker, info in catalog.brokers.items()},
        )
        if answer["refusal"] is not None:
            self._refused(f"broker {hello.get('broker')}", answer["refusal"])
        return answer

    def _refused(self, peer: str, why: str) -> None:
        self.refusals += 1
        if time.monotonic() - self._refused_told_s >= TELL_EVERY_S:
            self._refused_told_s = time.monotonic()
            log.warning("raft.refused peer=%s count=%d why=%s", peer, self.refusals, why)
