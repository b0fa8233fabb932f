"""A few Raft nodes over a scripted network and disks in memory; nothing happens but what the test does."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from broker.raft.core import Core
from broker.raft.node import RaftNode, configuration, form, open_journal
from broker.raft.wire import Codec, guarded
from tests.support.simdisk import SimDisk

PATH = "/raft/raft.log"
Message = tuple[str, str, dict[str, Any]]


class Taking(RaftNode):
    """Takes all commands that have come. pysyncobj takes them for `appendEntriesPeriod` of real time: none, if its
    thread loses the core meanwhile, and the next message goes out without them."""

    def _build(self, **options: Any) -> Core:
        core = super()._build(**options)
        queue, take = core._SyncObj__commandsQueue._FastQueue__queue, core._checkCommandsToApply

        def take_all() -> None:
            take()
            while queue:
                take()

        core._checkCommandsToApply = take_all
        return core


class Group:
    """Voters by name, their disks, and the messages that are under way, in order.

    Attributes:
        clocks: Each one's, in seconds: they stand still.
        room_bytes: As `Journal.open` takes it.
        is_timed: What is proposed is sent when a time is up, not with the next tick (`core.A13`), as brokers have it.
    """

    def __init__(self, names: str, *, room_bytes: int = 0, is_timed: bool = True) -> None:
        self.room_bytes, self.is_timed = room_bytes, is_timed
        self.net: collections.deque[Message] = collections.deque()
        self.cut: set[tuple[str, str]] = set()
        self.disks = {name: SimDisk() for name in names}
        self.nodes: dict[str, RaftNode] = {}
        self.ids = tuple(f"{name}@{name}" for name in names)
        self.lives = 0
        self.clocks = dict.fromkeys(names, 0.0)
        net, cut = self.net, self.cut

        class Wire(Transport):  # type: ignore[misc]
            def __init__(self, core: Core, me: Node | None, others: Any) -> None:
                super().__init__(core, me, others)
                self.me = core.journal.base.node_id

            def send(self, node: Node, message: dict[str, Any]) -> bool:
                journal = self._core.journal  # type: ignore[attr-defined]
                assert journal._synced == journal._end, "A1: what is sent promises what is not on the disk"
                if (self.me[0], node.id[0]) in cut:
                    return False
                net.append((self.me, node.id, Codec.loads(Codec.dumps(message))))
                return True

        self.transport = guarded(Wire)
        for name, node_id in zip(names, self.ids, strict=True):
            self.disks[name].makedirs("/raft")
            form(self.disks[name], PATH, node_id=node_id, voters=self.ids, cluster_id="x").close()
            self.start(name)

    def start(self, name: str) -> RaftNode:
        self.lives += 1
        new_id = f"{name}{self.lives}@{name}"
        journal, _ = open_journal(
            self.disks[name], PATH, new_id=lambda: new_id, cluster_id="x", room_bytes=self.room_bytes
        )
        conf = configuration(
            raftMinTimeout=1e6,
            raftMaxTimeout=2e6,
            connectionTimeout=3e6,
            appendEntriesPeriod=0.000_001,
            appendEntriesUseBatch=self.is_timed,
            logCompactionMinEntries=10**9,
            logCompactionMinTime=10**9,
            fallback_s=1e6,
        )
        node = Taking(
            journal,
            transport=self.transport,
            node=Node,
            conf=conf,
            clock=lambda: self.clocks[name],
            life=str(self.lives),
            seeds=tuple(each for each in self.ids if each[0] != name),
        )
        for other in node.core.otherNodes:
            node.core._SyncObj__transport._onNodeConnected(other)
        self.nodes[name] = node
        return node

    def elect(self, name: str) -> None:
        self.nodes[name].core._SyncObj__raftElectionDeadline = 0
        for _ in range(4):
            self.turn()
        assert self.nodes[name].is_controller

    def deliver(self, wanted: Callable[[Message], bool] = lambda _: True) -> None:
        """Deliver the messages that are under way now, in order; those that are not wanted stay."""
        for _ in range(len(self.net)):
            message = self.net.popleft()
            if wanted(message):
                self.hand_over(message)
            else:
                self.net.append(message)

    def hand_over(self, message: Message) -> None:
        source, target, text = message
        node = self.nodes.get(target[0])
        if node is not None and node.node_id == target:
            node.core._SyncObj__transport._onMessageReceived(Node(source), text)

    def turn(self) -> None:
        for name in sorted(self.nodes):
            self.nodes[name].tick()
        self.deliver()
        self.deliver()

    def submit(self, name: str, number: int) -> list[Any]:
        results: list[Any] = []
        command = {"v": 1, "kind": "register_producer", "name": f"p{number}", "request_id": f"r{number}"}
        self.nodes[name].submit(command, results.append)
        return results

    def has(self, name: str) -> set[str]:
        return set(self.nodes[name].catalog.producers)
