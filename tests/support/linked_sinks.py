"""Sinks of several brokers in one process: real logs, real replication, the real service of each; what brokers ask each
other goes through JSON, not through HTTP.

A driver stands outside: it asks whoever leads, and asks again what was refused for now, as a client does.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from broker.api.batch import decode_batch, read_header
from broker.api.errors import LiftlogError, NotLeader, NotReady, Retryable, Unavailable
from broker.api.stream import COMMITS_STREAM
from broker.metadata.catalog import Catalog
from broker.metadata.partition import Place
from broker.node.sinks.beside import Companions
from broker.node.sinks.coordinator import Sinks
from broker.node.sinks.rounds import SinkRounds
from broker.node.sinks.service import PlacedSinks, Runners
from broker.node.sinks.stages import StageLimits
from broker.node.streams import PlacedStreams
from broker.sinks.ledger import CommitRequest, CommitResult, NamedStage
from tests.support.linked import Linked, LinkedNode
from tests.support.placed import ScriptedCatalog
from tests.support.processes import eventually
from tests.support.sinks import rows_of

T = TypeVar("T")

STREAM, SINK = "orders", "query"
COMMITS: Place = ("i-commits", 0)
WAIT_S = 60.0


class ReadCatalog(ScriptedCatalog):
    """One that may be read anew."""

    def read(self, *, timeout_s: float = 0) -> Catalog:
        return self.catalog


class NodeSinks(PlacedSinks):
    """Those of one node; others are asked in this process."""

    def __init__(self, all_: LinkedSinks, node: LinkedNode) -> None:
        self.node, self._all = node, all_
        service = all_.cluster.service
        streams = PlacedStreams(node.me, lambda: service.catalog, node.replicas, has_session=lambda: node.has_session)
        super().__init__(
            node.me,
            streams,
            service,  # type: ignore[arg-type]
            Companions(node.me, service, node.replicas.partition),
            loop=all_.loop,
            limits=StageLimits(),
            clock=lambda: all_.now_us,
            elapsed=lambda: all_.now_us,
            sweep_s=0.0,
            why_missing=lambda: "not made yet",
            runners=Runners.of_threads(),
        )

    def _ask_leading(
        self, leader: Callable[[], str | None], what: str, target: str, body: Any, timeout_s: float
    ) -> Any:
        broker = leader()
        found = self._all.of.get(broker or "")
        if found is None:
            raise Unavailable(f"{broker} does not answer", sent=True)
        try:
            return json.loads(json.dumps(found.asked(target, json.loads(json.dumps(body)))))
        except NotLeader as error:
            raise NotReady(str(error)) from error

    def asked(self, target: str, body: Any) -> Any:
        words = target.split("/")
        if target == "/v1/sinks/silences":
            owners = [(sink, epoch) for sink, epoch in body["owners"]]
            return {"silences": [asdict(each) for each in self.coordinator().silences(owners)]}
        if words[2] == "sinks":
            return self._check(words[3], body["epoch"])
        return self._answer(words[3], int(words[5]), body["incarnation"], body["act"], body["what"])


class LinkedSinks:
    """Brokers `a`, `b`, `c`, or fewer, `__commits`, and stream `orders` with so many partitions."""

    def __init__(self, cluster: Linked, partitions: int = 2) -> None:
        self.cluster = cluster
        cluster.service = ReadCatalog()
        self.loop = asyncio.new_event_loop()
        self.now_us = 1_000_000
        self.of: dict[str, NodeSinks] = {}
        self.partitions = partitions
        self.start(*cluster.names)
        self._create(COMMITS_STREAM, "i-commits", 1, internal=True)
        self._create(STREAM, f"i-{STREAM}", partitions, internal=False)
        for at in (COMMITS, *self.places):
            cluster.leader(at)

    @property
    def places(self) -> list[Place]:
        return [(f"i-{STREAM}", number) for number in range(self.partitions)]

    def _create(self, name: str, incarnation: str, partitions: int, *, internal: bool) -> None:
        self.cluster.service.apply(
            kind="create_stream",
            name=name,
            incarnation=incarnation,
            created_us=1,
            settings={"subject": None, "partitions": partitions},
            internal=internal,
            replication_factor=len(self.cluster.names),
            min_insync_replicas=min(2, len(self.cluster.names)),
        )

    def start(self, *names: str) -> None:
        self.cluster.start(*names)
        for name in names:
            self.of[name] = NodeSinks(self, self.cluster.nodes[name])

    def kill(self, name: str) -> None:
        """It ends without a word, and is taken for dead."""
        gone = self.of.pop(name)
        self.cluster.stop(name, kill=True)
        self.cluster.fail(name)
        gone.close()

    def close(self) -> None:
        for each in self.of.values():
            each.close()
        self.loop.close()

    # -- who is there ------------------------------------------------------------------------------------------

    def leader_of(self, at: Place) -> NodeSinks:
        return self.of[self.cluster.leader(at).me]

    def coordinator(self) -> Sinks:
        return retried(lambda: self.leader_of(COMMITS).coordinator())

    # -- a driver ----------------------------------------------------------------------------------------------

    def open(self, owner: str) -> int:
        return retried(lambda: self.coordinator().open(SINK, owner).epoch)

    def stage(self, epoch: int, partition: int, *values: bytes) -> NamedStage:
        """One stage of two parts."""
        stage, half = uuid.uuid4().hex, len(values) // 2
        for part, some in enumerate((values[:half], values[half:])):
            retried(
                lambda part=part, some=some: self.leader_of(self.places[partition])._stage(  # type: ignore[misc]
                    STREAM,
                    partition,
                    [rows_of(list(some))],
                    sink=SINK,
                    epoch=epoch,
                    stage=stage,
                    part=part,
                    is_last=part == 1,
                )
            )
        return NamedStage(stream=STREAM, partition=partition, stage=stage, parts=2)

    def commit(self, asked: CommitRequest, stages: list[NamedStage]) -> CommitResult:
        return retried(lambda: self.coordinator().commit(SINK, asked, stages, {}))

    def values(self, partition: int) -> list[tuple[int, bytes]]:
        """The records that readers see: decision and value of each."""
        log = self.cluster.leader(self.places[partition]).log(self.places[partition])
        return [
            (read_header(message).decision, value)
            for message in log.reader.batches(log.state.log_start_offset)
            for value in decode_batch(message).column("value").to_pylist()
        ]


def retried(act: Callable[[], T]) -> T:
    """As a client does it: again, as long as it is refused for now."""
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            return act()
        except LiftlogError as error:
            if not isinstance(error, Retryable | NotLeader) or time.monotonic() > until_s:
                raise
            time.sleep(0.02)


def settled(sinks: LinkedSinks) -> None:
    """Have the last batch finished, as the rounds of its coordinator do."""

    def look() -> bool:
        SinkRounds(sinks.coordinator()).recover()
        return sinks.coordinator().describe(SINK).is_done

    eventually(lambda: retried(look), timeout_s=WAIT_S, what="the last batch in place")
