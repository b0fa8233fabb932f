"""Raft nodes on threads of their own, over real connections on loopback, with real journals."""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from broker.control.identity import Identity
from broker.control.plane import Addresses, Plane
from broker.control.service import Catalogs
from broker.control.thread import RaftThread
from broker.raft.node import RaftNode, configuration, form, open_journal
from broker.raft.wire import GuardedTcp, Voter
from broker.storage.disk import OsDisk

SECRET = "of at least sixteen bytes"
DEADLINE_S = 60


def until(condition: Callable[[], Any], what: str) -> None:
    """Return once it holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.01)


def free_ports(count: int) -> list[int]:
    """Ports of loopback on which nobody listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Member:
    """One broker: a folder, and a thread that can be stopped and started again."""

    def __init__(self, folder: Path, node_id: str, voters: tuple[str, ...]) -> None:
        self.path = str(folder / "raft.log")
        self.node_id, self.voters = node_id, voters
        self.lives = 0
        self.halted: list[str] = []
        folder.mkdir(exist_ok=True)
        form(OsDisk(), self.path, node_id=node_id, voters=voters, cluster_id="x").close()
        self.start()

    def start(self) -> None:
        self.lives += 1
        journal, _ = open_journal(OsDisk(), self.path, new_id=lambda: "never", cluster_id="x")
        self.thread = thread = RaftThread(halt=self.halted.append)
        self.catalogs = catalogs = Catalogs(thread)
        self.node = RaftNode(
            journal,
            transport=GuardedTcp,
            node=Voter,
            conf=configuration(secret=SECRET, bind=self.node_id.partition("@")[2]),
            clock=time.monotonic,
            life=f"{self.node_id}/{self.lives}",
            wakeup=thread.wakeup,
            on_applied=lambda command: catalogs.applied(self.node.catalog, command),
        )
        thread.start(self.node)

    def stop(self) -> None:
        self.catalogs.close()
        self.thread.stop()


@contextlib.contextmanager
def members(folder: Path, count: int = 3) -> Iterator[list[Member]]:
    """A group that has just been formed."""
    ids = tuple(f"n{i}@127.0.0.1:{port}" for i, port in enumerate(free_ports(count)))
    found = [Member(folder / f"n{i}", node_id, ids) for i, node_id in enumerate(ids)]
    try:
        yield found
    finally:
        for each in found:
            each.stop()


def producer(name: str) -> dict[str, Any]:
    """A command that shows that it was carried out, once."""
    return {"v": 1, "kind": "register_producer", "name": name, "request_id": f"request of {name}"}


class Brokers:
    """Whole planes by name, each with a folder; their processes are threads of this one."""

    def __init__(self, folder: Path, names: str, *, named: str | None = None, cluster_id: str = "test") -> None:
        self.folder = folder
        self.cluster_id = cluster_id
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.named = tuple((name, f"127.0.0.1:{self.ports[name]}") for name in named or names)
        self.planes: dict[str, Plane] = {}
        self.halted: dict[str, list[str]] = {name: [] for name in names}

    def identity(self, name: str, **changes: Any) -> Identity:
        at = f"127.0.0.1:{self.ports[name]}"
        values = {"broker_id": name, "cluster_id": self.cluster_id, "address": at, "bind": at, "named": self.named}
        return Identity(**{**values, "secret": SECRET, **changes})

    def data(self, name: str) -> Path:
        """Its data folder, made if need be."""
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    def make(self, name: str, *, folder: Path | None = None, **changes: Any) -> Plane:
        """Not started."""
        return Plane(
            self.identity(name, **changes),
            disk=OsDisk(),
            folder=str(folder or self.data(name)),
            halt=self.halted[name].append,
        )

    def begin(self, name: str) -> int:
        """Start one, and register it."""
        plane = self.planes[name] = self.make(name)
        plane.start()
        return plane.register(Addresses(http=f"{name}:1", grpc=f"{name}:2"))

    def begin_all(self, names: str) -> dict[str, int]:
        """Several at once: the first ones wait for each other."""
        with ThreadPoolExecutor(len(names)) as pool:
            return dict(zip(names, pool.map(self.begin, names), strict=True))

    def end(self, name: str, *, clean: bool = False) -> None:
        """Stop one; unclean: its session is not given back, as if it was killed."""
        plane = self.planes.pop(name)
        if not clean:
            plane._heart.end()
        plane.stop()

    def lose(self, name: str) -> None:
        """Its folder is gone."""
        shutil.rmtree(self.data(name))

    def controller(self) -> str:
        """The name of who believes to be the controller, once there is one with a catalog."""
        until(lambda: any(p._node and p._node.has_begun for p in self.planes.values()), "somebody leads")
        return next(name for name, p in self.planes.items() if p._node and p._node.has_begun)

    def voters(self, name: str) -> set[str]:
        """Names of those who have a vote, as one sees it."""
        return {each["broker_id"] for each in self.planes[name].status(timeout_s=30)["voters"]}

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.planes):
            self.end(name)
