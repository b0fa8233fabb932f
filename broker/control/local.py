"""The metadata plane of a broker that is alone: a cluster of one, whose catalog is a file of this broker's own.

    any thread ─► Catalogs ─► the catalog's thread ─► CatalogStore: judge, write, fsync, apply ─► subscribers

L1  There is no session that could lapse: nobody else could lead meanwhile. It begins with the registration.
L2  What an earlier release kept without places is placed here, on this broker, as the file is read, and before it is
    written anew: commands after that are judged by it, now and at each later start. So it is with what it kept under
    another name (`broker_id`).
L3  Folders of deleted streams that are left go before anything is opened (`orphans.O1`). Where there are folders and no
    catalog nothing starts (`orphans.O3`).
L4  Members of consumer groups that fall silent are ended here, as a controller does it. The time before the
    registration counts for nobody: a start may open logs for longer than members may be silent, and hears none of them.
L5  Nothing is told to be lost: a log that is would be removed, and begin anew. What cannot be opened is kept shut
    (`replicas.G19`), and is sound for the catalog.
L6  A command with an end is carried out before that, or never (`service.V5`), however long the disk takes: where it was
    written by then it is taken back (`catalog_store.K7`). There is one try: nobody else could carry it out.
L7  A fault of ours that leaves a command half done ends the process (`catalog_store.K8`), as one of a Raft node does
    (`thread.T3`). The next start reads what there is.
L8  What a command in doubt has left in the file is undone soon, also where no other follows (`catalog_store.K3`): a
    deletion would take what was acknowledged since with it, at the next start.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from broker.api.errors import CorruptLog, LiftlogError, NotReady, NotSupported
from broker.common.elapsed import elapsed_us
from broker.control.catalog_store import CatalogStore, HalfDone
from broker.control.orphans import remove_orphans, require_catalog
from broker.control.others import CATALOG_FILE, Addresses, Home
from broker.control.service import Catalogs
from broker.control.thread import RaftThread
from broker.metadata.catalog import COMMAND_VERSION, Catalog
from broker.metadata.cluster import FEATURE_LEVEL
from broker.metadata.member_lives import MemberLives
from broker.metadata.partition import PartitionState, Place
from broker.storage.disk import Disk
from broker.storage.folder import STREAMS_FOLDER

log = logging.getLogger(__name__)

LEVEL: Final = 16
"""The feature level of a catalog of one broker, in each release: that with which there were such. A later release asks
`Cluster.knows` whether it may do what is new, and has that stop an earlier one (`catalog_store.K6`). Where nothing new
has come there is a way back."""
MEMBERS_MS: Final = 500
"""Between two looks at the members of groups, and at the file."""
TICK_S: Final = 0.25
"""So long the thread sleeps where nobody wakes it."""
REGISTERED_S: Final = 3_600.0
"""So long a registration may take: it is answered once all roles were given out, on a disk that may stand still."""


class LocalNode:
    """The only voter of a cluster of one. Implements `thread.Node`."""

    def __init__(
        self,
        broker_id: str,
        store: CatalogStore,
        wakeup: int,
        applied: Callable[[Mapping[str, Any]], None],
        halt: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node_id = broker_id
        self.applied_index = 0
        self.store = store
        self._wakeup, self._applied, self._halt, self._clock = wakeup, applied, halt, clock

    def tick(self, wait_s: float = 0.0) -> None:
        """See `thread.Node`."""
        if select.select([self._wakeup], [], [], wait_s)[0]:
            os.eventfd_read(self._wakeup)

    def submit(
        self, command: Mapping[str, Any], done: Callable[[Any], None], *, timeout_s: float = 0.0, timely: bool = False
    ) -> None:
        """Carry a command out. `timely`: not after `timeout_s` (L6)."""
        until_s = self._clock() + timeout_s if timely else math.inf
        try:
            if timely and timeout_s <= 0:
                raise NotReady("the command came too late, and was not carried out")
            result = {"ok": self.store.execute(command, in_time=lambda: self._clock() < until_s)}
        except LiftlogError as error:
            done(error if error.fields.get("sent") else {"error": error.to_problem()})
            return
        except HalfDone as error:  # L7
            self._halt(str(error))
            raise
        self.applied_index += 1
        self._applied(command)
        done(result)

    def read(self, done: Callable[[Any], None], *, timeout_s: float = 0.0) -> None:
        """All that was acknowledged is here."""
        done({"ok": {}})

    def change_voters(self, change: str, node_id: str, done: Callable[[Any], None]) -> None:
        """There is one."""
        done({"error": NotSupported("this broker is alone: it has no voters to change").to_problem()})

    def close(self) -> None:
        """Close the file."""
        self.store.close()


class LocalPlane:
    """See the module. As `plane.Plane`, but for the others.

    Args:
        home: The file of the catalog is in its folder, and need not exist.
        now_ms, clock: Clocks that never go back; the latter, in seconds, is that of `until_s` of commands.

    Raises:
        CorruptLog, StorageFailed, DiskFull: as `CatalogStore`; L3.
    """

    refusals = 0

    def __init__(
        self,
        broker_id: str,
        home: Home,
        *,
        now_ms: Callable[[], int] = lambda: elapsed_us() // 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._me = broker_id
        self.process = uuid.uuid4().hex
        self._thread: RaftThread[LocalNode] = RaftThread(halt=home.halt, tick_s=TICK_S)
        self.service = Catalogs(self._thread, clock=clock, try_s=math.inf)
        self.registration = 0
        self._session_changed = home.session_changed
        self._is_over = False
        disk, path, root = home.disk, f"{home.folder}/{CATALOG_FILE}", f"{home.folder}/{STREAMS_FOLDER}"
        require_catalog(disk, path, root)
        store = CatalogStore(disk, path, partial(adopt, me=broker_id))
        _finish_deletions(disk, root, store, home.cluster_id)
        self._node = LocalNode(
            broker_id,
            store,
            self._thread.wakeup,
            self._applied,
            home.halt,
            clock,
        )
        self.service.applied(store.catalog, None)
        self._now_ms = now_ms
        self._lives, self._looked_ms = MemberLives(), now_ms()
        self._heard: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    # -- start and stop ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take commands."""
        self._looked_ms = self._now_ms()
        self._thread.each_tick(self._look)
        self._thread.start(self._node)

    def register(
        self,
        addresses: Addresses,
        *,
        sound: Mapping[str, list[int]] | None = None,
        behind: Mapping[str, list[int]] | None = None,
        epoch_seen: int = -1,
    ) -> int:
        """As `Plane.register`.

        Raises:
            CorruptLog: L5. StorageFailed, DiskFull: the disk refuses.
        """
        sound = sound or {}
        lost = [
            at
            for at, state in self.service.catalog.cluster.partitions.items()
            if state.knows_log_of(self._me) and at[1] not in sound.get(at[0], ())
        ]
        if lost:
            raise CorruptLog(
                f"{len(lost)} logs were neither opened nor kept shut, the first: {lost[0]}", partitions=lost
            )
        said = self.service.execute(
            {
                "v": COMMAND_VERSION,
                "kind": "register_broker",
                "request_id": f"register/{self.process}",
                "broker_id": self._me,
                "incarnation": self.process,
                "http": addresses.http,
                "grpc": addresses.grpc,
                "rack": addresses.rack,
                "feature_level_max": FEATURE_LEVEL,
                "sound": dict(sound),
                "behind": dict(behind or {}),
                "epoch_seen": epoch_seen,
            },
            timeout_s=REGISTERED_S,
        )
        self._thread.do(lambda _: self._session_changed(True))
        return int(said["registration"])

    def _applied(self, command: Mapping[str, Any]) -> None:
        """L1: who hears of the registration has a session by then."""
        catalog = self._node.store.catalog
        own = catalog.brokers.get(self._me)
        if own is not None and own.incarnation == self.process:
            self.registration = own.registration
        self.service.applied(catalog, command)

    def hand_over(self) -> None:
        """There is nobody."""

    def leave(self) -> None:
        """No session any more."""
        self._is_over = True

    def stop(self) -> None:
        """As `leave`, and take no more commands. From any thread, and again."""
        self.leave()
        self.service.close()
        self._thread.stop()
        self._node.close()  # also where the thread never began

    # -- what there is ----------------------------------------------------------------------------------------

    def has_session(self) -> bool:
        """L1. From any thread; does not wait."""
        return self.registration > 0 and not self._is_over

    def obstacle(self) -> str:
        """Nothing is in the way of a decision that is this broker's."""
        return ""

    def report_leader(self, at: Place, leader_epoch: int) -> None:
        """No other leader is there to be reported."""

    def status(self, *, timeout_s: float = 2.0) -> dict[str, Any]:
        """As `Plane.status`."""
        catalog = self.service.catalog
        led = sum(state.leader == self._me for state in list(catalog.cluster.partitions.values()))
        return {
            "cluster_id": "",
            "feature_level": catalog.cluster.feature_level,
            "controller": self._me,
            "answered_by": {"broker_id": self._me, "has_session": self.has_session(), "connections_refused": 0},
            "voters": [],
            "observers": [],
            "brokers": [
                {
                    "broker_id": broker,
                    "http": info.http,
                    "grpc": info.grpc,
                    "raft": "",
                    "rack": info.rack,
                    "registration": info.registration,
                    "is_live": info.is_live,
                    "is_stopping": info.is_stopping,
                    "feature_level_max": info.feature_level_max,
                    "partitions_led": led,
                }
                for broker, info in sorted(dict(catalog.brokers).items())
            ],
        }

    # -- members of groups (L4) -------------------------------------------------------------------------------

    def member_heard(self, group: str, member: str, session: int) -> None:
        """A member of a consumer group lives. From any thread; does not wait."""
        with self._lock:
            self._heard[group, member] = session

    def _look(self, node: LocalNode) -> None:
        now_ms = self._now_ms()
        if not self.registration:  # nobody is answered yet, and logs may be long to open
            self._looked_ms = now_ms
        if now_ms < self._looked_ms + MEMBERS_MS:
            return
        with self._lock:
            heard, self._heard = self._heard, {}
        if (hung_ms := now_ms - self._looked_ms - 2 * MEMBERS_MS) > 0:
            self._lives.hung(hung_ms, now_ms)
        self._looked_ms = now_ms
        node.store.mend()  # L8
        for (group, member), session in heard.items():
            self._lives.heard(group, member, session, now_ms)
        for group, members in self._lives.lapsed(self.service.catalog.groups, now_ms).items():
            command = {"v": COMMAND_VERSION, "kind": "end_members", "name": group, "members": members, "expired": True}
            node.submit(command, partial(_ended, group, sorted(members)))


def _ended(group: str, members: list[str], result: Any) -> None:
    if isinstance(result, LiftlogError) or "error" in result:
        log.warning("groups.not_ended group=%s error=%s", group, result)
    else:
        log.info("groups.ended group=%s members=%s", group, ",".join(members))


def _finish_deletions(disk: Disk, root: str, store: CatalogStore, cluster_id: str) -> None:
    """L3."""
    catalog = store.catalog
    known = {(info.name, info.incarnation) for info in catalog.streams.values()}
    deleted = {(name, incarnation) for incarnation, name in catalog.deleted.items()}
    gone = remove_orphans(disk, root, cluster_id=cluster_id, known=known, deleted=deleted)
    if gone:
        incarnations = [incarnation for _, incarnation in gone]
        store.execute({"v": COMMAND_VERSION, "kind": "forget_deleted", "incarnations": incarnations})


def adopt(catalog: Catalog, *, me: str) -> None:
    """L2. Each partition without a place is on this broker, in sync, and has a log. What was kept under another name of
    this broker is under its own: nobody else was ever here, and nobody would come."""
    cluster = catalog.cluster
    for broker in [broker for broker in cluster.brokers if broker != me]:
        del cluster.brokers[broker]
    if gone := [broker for broker in cluster.leftovers if broker != me]:
        cluster.leftovers[me] = frozenset().union(*cluster.leftovers.values())
        for broker in gone:
            del cluster.leftovers[broker]
    for at, kept in list(cluster.partitions.items()):
        if kept.replicas != (me,):
            isr, opened = (me,) if kept.electable else (), (me,) if kept.opened else ()
            cluster.partitions[at] = PartitionState(
                replicas=(me,), isr=isr, opened=opened, leader_epoch=kept.leader_epoch
            )
    cluster.feature_level = max(cluster.feature_level, LEVEL)
    state = PartitionState(replicas=(me,), isr=(me,), opened=(me,), leader_epoch=max(1, catalog.epoch_last))
    for info in catalog.streams.values():
        for number in range(info.settings.partitions):
            cluster.partitions.setdefault((info.incarnation, number), state)
