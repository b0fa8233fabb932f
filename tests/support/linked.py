"""Several brokers in one process: real logs, real connections on loopback, one real catalog. There is no controller:
a test fails brokers.

Each broker is reached by two relays of its own, one of them for bulk, which can stop forwarding, or cut what is
connected.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.api.errors import StorageFailed
from broker.common.disk_reserve import Room
from broker.config.certificates import Certificates
from broker.config.settings import ReplicationConfig
from broker.link.link import ReplicaLink
from broker.link.tls import LinkTls
from broker.metadata.catalog import StreamInfo
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.replicas import FoundReplicas, Replicas
from broker.node.wiring import Host
from broker.storage.log import PartitionLog
from tests.support.placed import Node, ScriptedCatalog
from tests.support.processes import eventually
from tests.unit.runtime.test_partition import Waiter, rows

SECRET = b"sixteen bytes or more"
RESERVE_BYTES = 8 << 20


class Relay:
    """Forwards TCP to a port. `paused`: nothing is read any more, as if the other process were stopped.

    Attributes:
        cut_after: A connection ends once so many bytes have come back from the target; None: none does.
        pause_after: It is paused then, once.
        pause_before: It is paused, once, before it forwards this to the target.
        flip_at: The byte at this place of what comes back is changed, once.
        bytes_per_s: So much comes back at most; 0: no limit.
    """

    def __init__(self) -> None:
        self.target = 0
        self.paused = False
        self.cut_after: int | None = None
        self.pause_after: int | None = None
        self.pause_before: bytes | None = None
        self.flip_at: int | None = None
        self.bytes_per_s = 0
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._deaf: set[socket.socket] = set()  # what is for these is thrown away
        self._is_closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._forward, args=(inner,), daemon=True).start()

    def _forward(self, inner: socket.socket) -> None:
        while self.paused and not self._is_closed:
            time.sleep(0.01)
        try:
            outer = socket.create_connection(("127.0.0.1", self.target), 5)
        except OSError:
            inner.close()
            return
        pair = inner, outer
        self._pairs.add(pair)
        back = 0
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            for one, other in (pair, pair[::-1]):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(one, selectors.EVENT_READ, other)
            while not self._is_closed:
                if self.paused:
                    time.sleep(0.01)
                    continue
                for key, _ in selector.select(0.1):
                    if self.paused:
                        break
                    one, other = key.fileobj, key.data
                    assert isinstance(one, socket.socket)
                    data = one.recv(self.bytes_per_s // 20 or 1 << 16)
                    if not data:  # the other way goes on, as without a relay
                        selector.unregister(one)
                        if not selector.get_map():
                            raise OSError
                        if other not in self._deaf:
                            other.shutdown(socket.SHUT_WR)
                        continue
                    if one is inner and data == self.pause_before:
                        self.paused, self.pause_before = True, None
                        while self.paused and not self._is_closed:
                            time.sleep(0.01)
                    if one is outer:
                        data = self._changed(data, back)
                        back += len(data)
                        if self.bytes_per_s:
                            time.sleep(len(data) / self.bytes_per_s)
                    if other not in self._deaf:
                        other.sendall(data)
                    if self.pause_after is not None and back >= self.pause_after:
                        self.paused, self.pause_after = True, None
                    if self.cut_after is not None and back >= self.cut_after:
                        raise OSError
        self._pairs.discard(pair)
        for each in pair:
            each.close()

    def _changed(self, data: bytes, at: int) -> bytes:
        place = self.flip_at
        if place is None or not at <= place < at + len(data):
            return data
        self.flip_at = None
        changed = bytearray(data)
        changed[place - at] ^= 0x40
        return bytes(changed)

    def half_close(self, *, towards_target: bool) -> None:
        """One side hears that the other will say nothing more. Its own words still arrive."""
        for pair in list(self._pairs):
            self._deaf.add(pair[towards_target])
            with contextlib.suppress(OSError):
                pair[towards_target].shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """All connections that there are."""
        for pair in list(self._pairs):
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_closed = True
        self._listener.close()
        self.cut()


class LinkedNode(Node):
    """A process of any broker of `Linked`.

    Attributes:
        link: Its own.
        reports: Which leaderships were reported as silent.
    """

    def __init__(self, cluster: Linked, name: str, process: str) -> None:
        super().__init__(cluster.path / name, cluster.service, process)
        self.me, self.cluster = name, cluster
        self.reports: list[tuple[Place, int]] = []
        self.link = ReplicaLink(
            me=name,
            process=process,
            cluster_id="c",
            secret=cluster.secrets.get(name, SECRET),
            service=cluster.service,
            report=self.report,
            sync_pool=self.host.sync_pool,
            settings=cluster.settings,
            tls=LinkTls.of(cluster.certificates.get(name)),
        )
        free, clock = (lambda _: (cluster.free.get(name, 1 << 40), 1 << 50)), itertools.count().__next__
        self.room = Room(name, RESERVE_BYTES, look=free, clock=clock)  # it is looked each time
        self.host = replace(self.host, me=name, wiring=self.link, make_replica=self._make_replica(self.host))
        self.replicas = Replicas(self.host, process)

    def _make_replica(self, host: Host) -> Callable[[StreamInfo, int, PartitionLog], Replica]:
        def make(info: StreamInfo, number: int, log: PartitionLog) -> Replica:
            replica = host.make_replica(info, number, log)
            replica.room = self.room.own if info.internal else self.room.users
            return replica

        return make

    def report(self, at: Place, epoch: int) -> None:
        self.reports.append((at, epoch))

    def start(self) -> FoundReplicas:
        cluster, service = self.cluster, self.cluster.service
        relay = cluster.relays[self.me]
        relay.target = self.link.start("127.0.0.1", 0)
        bulk = cluster.bulk_relays[self.me]
        bulk.target, self.link.bulk.told_port = relay.target, bulk.port
        found = self.replicas.open_found()
        known = service.catalog.brokers.get(self.me)
        self.replicas.start()
        service.apply(
            kind="register_broker",
            broker_id=self.me,
            incarnation=self.process,
            http=f"{self.me}:9293",
            grpc=f"127.0.0.1:{relay.port}",
            after=known.registration if known else 0,
            sound=found.sound,
            behind=found.behind,
            epoch_seen=found.epoch_seen,
        )
        return found

    def stop(self) -> None:
        self.link.stop()
        super().stop()

    def kill(self) -> None:
        """As if the process had ended: it answers nobody any more, and marks nothing clean."""
        self.link.stop()
        for replica in list(self.replicas._replicas.values()):
            opened = replica.partition
            if opened is not None:
                opened.log.state.fail(StorageFailed("the process was killed"))
        super().stop()


class Linked:
    """Brokers `a`, `b`, `c` (or fewer), and the catalog that all of them apply.

    Attributes:
        nodes: Those that run.
        certificates: Of brokers that speak TLS to each other.
        free: Bytes that are free on the disk of a broker, of which `RESERVE_BYTES` are the reserve; else plenty.
    """

    def __init__(self, path: Path, names: Sequence[str] = ("a", "b", "c")) -> None:
        self.path = path
        self.names = tuple(names)
        self.service = ScriptedCatalog()
        self.settings = ReplicationConfig()
        self.secrets: dict[str, bytes] = {}
        self.certificates: dict[str, Certificates] = {}
        self.free: dict[str, int] = {}
        self.relays = {name: Relay() for name in names}
        self.bulk_relays = {name: Relay() for name in names}
        self.nodes: dict[str, LinkedNode] = {}
        self._processes = 0

    def start(self, *names: str) -> None:
        for name in names or self.names:
            self._processes += 1
            (self.path / name).mkdir(exist_ok=True)
            node = self.nodes[name] = LinkedNode(self, name, f"{name}{self._processes}")
            node.start()

    def stop(self, name: str, *, kill: bool = False) -> None:
        node = self.nodes.pop(name)
        self.service.callbacks = [c for c in self.service.callbacks if not _is_of(c, node)]
        (node.kill if kill else node.stop)()

    def close(self) -> None:
        for name in list(self.nodes):
            self.stop(name)
        for relay in (*self.relays.values(), *self.bulk_relays.values()):
            relay.close()

    # -- the catalog

    def create(
        self, name: str = "s", partitions: int = 1, min_insync: int = 2, *, internal: bool = False, **settings: Any
    ) -> list[Place]:
        self.service.apply(
            kind="create_stream",
            name=name,
            incarnation=f"i-{name}",
            created_us=1,
            settings={"subject": None, "partitions": partitions, **settings},
            internal=internal,
            replication_factor=len(self.names),
            min_insync_replicas=min(min_insync, len(self.names)),
        )
        return [(f"i-{name}", number) for number in range(partitions)]

    def fail(self, broker: str) -> None:
        registration = self.service.catalog.brokers[broker].registration
        self.service.apply(kind="fail_broker", broker_id=broker, registration=registration)

    def leader(self, at: Place) -> LinkedNode:
        """The node that leads and serves."""
        name = eventually(lambda: self.service.state(at).leader, what=f"a leader of {at}")
        assert name is not None
        self.nodes[name].leading(at)
        return self.nodes[name]

    def followers(self, at: Place) -> list[LinkedNode]:
        leader = self.service.state(at).leader
        return [node for name, node in self.nodes.items() if name != leader]

    def in_sync(self, at: Place, *names: str) -> None:
        wanted = set(names or self.nodes)
        eventually(
            lambda: set(self.service.state(at).isr) == wanted, what=f"{wanted} in sync, {self.service.state(at)}"
        )

    # -- records

    def publish(self, at: Place, *values: bytes) -> Waiter:
        waiter = Waiter()
        self.leader(at).partition(at).append_now([rows(*values)], waiter)
        return waiter

    def stored(self, at: Place, *values: bytes) -> int:
        """Publish, and wait for the ack. Returns the high watermark."""
        waiter = self.publish(at, *values)
        outcome = eventually(lambda: waiter.outcome, what="an ack")
        assert isinstance(outcome, int), outcome
        return outcome

    def same(self, at: Place, *names: str) -> None:
        """Wait until these replicas hold the same bytes, committed."""
        nodes = [self.nodes[name] for name in names or self.nodes]
        end = max(node.log(at).state.log_end_offset for node in nodes)
        eventually(
            lambda: all(
                node.log(at).state.log_end_offset == node.log(at).state.high_watermark == end for node in nodes
            ),
            what=f"{at} to be {end} long everywhere: {[(n.me, n.log(at).state.log_end_offset) for n in nodes]}",
        )
        assert len({content(node.partition(at)) for node in nodes}) == 1


def content(partition: Partition) -> bytes:
    opened = partition.log
    return b"".join(bytes(message) for message in opened.reader.batches(opened.state.log_start_offset))


def _is_of(callback: Any, node: LinkedNode) -> bool:
    owner = getattr(callback, "__self__", None)
    return owner is node.replicas or owner is node.link._directory


@contextlib.contextmanager
def linked(path: Path, names: Sequence[str] = ("a", "b", "c")) -> Iterator[Linked]:
    cluster = Linked(path, names)
    try:
        yield cluster
    finally:
        cluster.close()
