"""The link of one broker: what replicas are wired with (`wiring.Wiring`), its server and its connections."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from broker.api.errors import PortInUse
from broker.common.stopping import THREAD_S, StillRunning
from broker.common.waiting import ThreadWaits
from broker.config.settings import ReplicationConfig
from broker.link import bulk
from broker.link.answering import Answering
from broker.link.bulk import BulkServer
from broker.link.connection import Connection, TakeRange
from broker.link.directory import Directory
from broker.link.door import Door
from broker.link.following import Following
from broker.link.handshake import key_of
from broker.link.pace import Pace
from broker.link.server import PURPOSE, Server
from broker.link.tls import LinkTls
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.node.partitions.sync import SyncExecutor
from broker.node.wiring import CatalogService
from broker.replication.messages import AskRange
from broker.serving.http.meters import RateLimitedLog

log = logging.getLogger(__name__)

CHECK_S: Final = 0.1


class ReplicaLink:
    """See the package. Thread-safe.

    Args:
        me, process: This broker, and what its registration calls this process (as of `Replicas`).
        secret: The cluster's.
        report: A follower cannot fetch: tells the controller that the leader of this epoch does not answer. Must not
            wait.
        tls: None: it speaks no TLS.

    Attributes:
        counts: Events of connections: `attempts`, `lost`, `refused`, `silent`, `reports`; `bad_batches` that came over
            them; what `BulkReader` counts.
        server: Its `refused` counts who was not let in.
        bulk: Where followers far behind fetch from.
    """

    def __init__(
        self,
        *,
        me: str,
        process: str,
        cluster_id: str,
        secret: bytes,
        service: CatalogService,
        report: Callable[[Place, int], None],
        sync_pool: SyncExecutor,
        settings: ReplicationConfig,
        tls: LinkTls | None = None,
    ) -> None:
        self._tls = tls
        self.counts: Counter[str] = Counter()
        self._me = me
        self._cluster_id = cluster_id
        self._key = key_of(secret)
        self._report = report
        self._pool = sync_pool
        self._settings = settings
        self._waits = ThreadWaits()
        self._pace = Pace(settings.catch_up_bytes_per_s, time.monotonic)
        self._lock = threading.Lock()
        self._answering: dict[Place, Answering] = {}
        self._connections: dict[str, Connection] = {}
        self._silent_log: dict[str, RateLimitedLog] = {}
        self._is_stopping = threading.Event()
        self._directory = Directory(service, me, process)
        self._directory.subscribe(self._look)
        self.server = Server(
            self._directory,
            me=me,
            cluster_id=cluster_id,
            key=self._key,
            find=self._answering.get,
            now_s=time.monotonic,
            tls=tls,
        )
        self.bulk = BulkServer(tls)
        purposes = {PURPOSE: self.server.exchange, bulk.PURPOSE: self.bulk.serve}
        self._door = Door(purposes, self.server.refuse, tls)
        self._thread = threading.Thread(target=self._run, name="link-clock", daemon=True)

    def start(self, host: str, port: int) -> int:
        """Listen. Returns the port, which may be registered then.

        Raises:
            PortInUse: somebody else listens there.
        """
        try:
            bound = self._door.start(host, port)
        except OSError as error:
            shown = f"[{host}]" if ":" in host else host
            raise PortInUse(f"grpc: cannot listen on {shown}:{port}: {error}", port=port) from error
        self._thread.start()
        return bound

    def stop(self) -> None:
        """End all streams. Replicas may be closed before or after. Raises StillRunning."""
        self._is_stopping.set()
        self._door.close()  # first: who calls hears that nobody listens
        self.server.stop()
        self.bulk.stop()
        hung = [f"link-to-{connection.to}" for connection in self.connections() if not connection.close(THREAD_S)]
        if not self._door.stop(THREAD_S):
            hung.append("link-in")
        if self._thread.is_alive():
            self._thread.join(THREAD_S)
            hung += [self._thread.name] * self._thread.is_alive()
        if hung:
            raise StillRunning(", ".join(hung))

    # -- `wiring.Wiring` -------------------------------------------------------------------------------------

    def follower(self, at: Place, partition: Partition, step_out: Callable[[str], None]) -> Following:
        """As `Wiring.follower`."""
        return Following(
            at,
            partition,
            me=self._me,
            connect=self._connection,
            report=self._silent,
            step_out=step_out,
            pool=self._pool,
            counts=self.counts,
            now_s=time.monotonic,
            waits=self._waits,
        )

    def followers(self, at: Place, partition: Partition) -> Answering:
        """As `Wiring.followers`."""

        def closed(made: Answering) -> None:
            with self._lock:
                if self._answering.get(at) is made:
                    del self._answering[at]

        made = Answering(
            at,
            partition,
            bytes_max=self._settings.fetch_bytes_max,
            wait_s=self._settings.wait_ms / 1_000,
            pace=self._pace,
            bulk=self.bulk,
            closed=closed,
            now_s=time.monotonic,
            waits=self._waits,
        )
        with self._lock:
            self._answering[at] = made
        self.server.opened(at)
        return made

    def ask_range(self, to: str, at: Place, question: AskRange, take: TakeRange) -> bool:
        """As `Wiring.ask_range`."""
        return self._connection(to).ask_range(at, question, take)

    def forget_range(self, to: str, at: Place) -> None:
        """As `Wiring.forget_range`."""
        self._connection(to).forget_range(at)

    # -- connections -----------------------------------------------------------------------------------------

    def connections(self) -> list[Connection]:
        """To those whom somebody here follows, or has followed."""
        with self._lock:
            return list(self._connections.values())

    def _connection(self, to: str) -> Connection:
        with self._lock:
            found = self._connections.get(to)
            if found is None:
                found = self._connections[to] = Connection(
                    to,
                    self._directory,
                    cluster_id=self._cluster_id,
                    key=self._key,
                    counts=self.counts,
                    now_s=time.monotonic,
                    tls=self._tls if self._tls is not None and self._tls.dials else None,
                )
                if not self._is_stopping.is_set():  # else a replica that turns amid the stop
                    found.start()
            return found

    def _silent(self, at: Place, epoch: int, leader: str) -> None:
        with self._lock:
            self.counts["reports"] += 1
            count = self._silent_log.setdefault(leader, RateLimitedLog()).due()
        if count:
            says = "replica.leader_silent leader=%s count=%d partition=%s/%d epoch=%d"
            log.warning(says, leader, count, *at, epoch)
        self._report(at, epoch)

    @property
    def refused(self) -> Counter[str]:
        """Brokers and strangers that were not let in, by reason."""
        return self.server.refused

    @property
    def bulk_bytes(self) -> int:
        """How many came here in bulk."""
        return sum(connection.bulk.byte_count for connection in self.connections())

    def hurry(self) -> None:
        """There is another controller: who cannot reach a leader is to tell it so at once. Does not wait."""
        self._look()

    def _look(self) -> None:
        for connection in self.connections():
            connection.look()

    def _run(self) -> None:
        while not self._is_stopping.wait(CHECK_S):
            now_s = time.monotonic()
            try:
                self.bulk.check(now_s)
                for connection in self.connections():
                    connection.check(now_s)
            except Exception:
                log.exception("replica.link_bug at=clock")
