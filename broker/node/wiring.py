"""Things that a replica needs of others: the catalog, a session, followers, the capture of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.common.looping import MakeLoop
from broker.common.waiting import Waits
from broker.metadata.catalog import Catalog, StreamInfo
from broker.metadata.cluster import Touched
from broker.metadata.partition import Place
from broker.node.folders import Folders
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncExecutor
from broker.node.role_lines import RoleLines
from broker.node.serial_work import Workers
from broker.replication.events import Send
from broker.replication.messages import AskRange, HeldRange, Incarnation
from broker.storage.log import PartitionLog


class CatalogService(Protocol):
    """The catalog of the cluster, as this broker has applied it."""

    @property
    def catalog(self) -> Catalog:
        """To be read in a callback of `subscribe`: nobody applies anything meanwhile."""
        ...

    @property
    def touched(self) -> Touched | None:
        """What has changed since this callback of `subscribe` was called last; None: all may have. To be read there."""
        ...

    def execute(
        self, command: Mapping[str, Any], *, until_s: float | None = None, check: Callable[[], None] = lambda: None
    ) -> Any:
        """Have a command carried out by whoever is the controller. Waits.

        Args:
            until_s: By the monotonic clock: it is not carried out later, and once it is answered in doubt not at all.
            check: Called before each try, on another thread; must not wait. Raises why there is to be none.
        Raises:
            LiftlogError: it was refused, or it is not known whether it was carried out.
        """
        ...

    def read(self, *, timeout_s: float = ...) -> Catalog:
        """The catalog, once it has all that was acknowledged before this call. Waits.

        Raises:
            LiftlogError: no controller has answered in time.
        """
        ...

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back after each command that was applied, in order, on a thread that must not wait for a disk."""
        ...

    def call_again(self, callback: Callable[[], None]) -> None:
        """Call one of `subscribe` once more soon, and tell it that all may have changed. Raises LiftlogError: never."""
        ...


class FollowerDriver(Protocol):
    """Drives the core of a follower over one log. Each call but `tick` comes from one turn at a time.

    Attributes:
        agreed_epoch: Epoch of the leader with whose log this one agrees, as far as this one goes; -1: that is not
            known, or the log is being cut. From any thread.
    """

    agreed_epoch: int

    def follow(self, epoch: int, leader: str, incarnation: Incarnation) -> None:
        """Follow this leader from now on. The log takes this epoch's records alone already."""
        ...

    def rest(self) -> None:
        """There is nobody to follow. Nobody minds what still arrives."""
        ...

    def tick(self, now_ms: int) -> None:
        """Time passes."""
        ...

    def marks(self) -> tuple[int, int]:
        """The leader's last word to compaction; zeros: none in this leadership. From any thread."""
        ...

    def compacted(self) -> int:
        """The log's mark of compaction has moved, or tombstones wait: the next fetch says so. From any thread. Returns
        the number of the last fetch, which may have said otherwise; 0: there was none in this process."""
        ...

    def close(self) -> None:
        """For good. Returns when nothing of it touches the log any more."""
        ...


class Followers(Protocol):
    """Answers those who fetch from a partition that is led here."""

    def send(self, effect: Send) -> None:
        """Tell one of them; does not wait."""
        ...

    def close(self) -> None:
        """For good. Returns when nothing of it reads the log any more."""
        ...


class Capture(Protocol):
    """Takes in messages for the partitions that are led here."""

    def begin(self, info: StreamInfo, partition: Partition) -> Future[None]:
        """Done when the server has confirmed the subscription."""
        ...

    def end(self, partition: Partition, *, with_sent: bool = False) -> Future[None]:
        """Take no more for it. Done when what was taken in was given to the partition. `with_sent`: and, before, what
        the server had sent."""
        ...


class Wiring(Protocol):
    """Makes what a replica needs beside its log."""

    def follower(self, at: Place, partition: Partition, step_out: Callable[[str], None]) -> FollowerDriver:
        """Make the follower of a log that has just been opened. `step_out`: as `PlacedReplica.step_out`."""
        ...

    def followers(self, at: Place, partition: Partition) -> Followers:
        """Likewise."""
        ...

    def ask_range(self, to: str, at: Place, question: AskRange, take: Callable[[HeldRange, bytes], None]) -> bool:
        """Ask another broker for batches that cannot be read here. Does not wait.

        Args:
            take: Is given the answer, if one comes, on a thread that must not wait for a disk.
        Returns:
            False: that broker is known not to answer such a question.
        """
        ...

    def forget_range(self, to: str, at: Place) -> None:
        """Its answer is not awaited any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Things that the replicas of one broker share.

    Attributes:
        make_replica: Makes the replica of a log that was just opened: stream, number, log.
        workers: For turns.
        commands: For what is asked of the catalog: each call may take as long as the controller does.
        step_outs: For step-outs, that do not wait for other commands.
        mending: Of one thread: writes what comes from other replicas.
        make_loop: Makes what steps the driver of all replicas.
        waits: For others who are at a replica.
        halt: Ends the process, and says why.
        now_ms: A clock that never goes back.
        roles: What is to be said of their roles.
        has_others: Whether other brokers may keep the same; False: this one is alone.
        closing: Called with a partition whose log is about to be closed; must not fail.
    """

    me: str
    folders: Folders
    service: CatalogService
    has_session: Callable[[], bool]
    wiring: Wiring
    capture: Capture | None
    make_replica: Callable[[StreamInfo, int, PartitionLog], Replica]
    sync_pool: SyncExecutor
    appender: Executor
    workers: Workers
    commands: Executor
    step_outs: Executor
    mending: Executor
    make_loop: MakeLoop
    waits: Waits
    halt: Callable[[str], None]
    now_ms: Callable[[], int]
    roles: RoleLines = field(default_factory=RoleLines)
    has_others: bool = True
    closing: Callable[[Partition], None] = lambda partition: None
