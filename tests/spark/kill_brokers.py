"""The brokers of the killed job: one, which comes back at once; or three, of which one dies that leads something."""

from __future__ import annotations

import random
from pathlib import Path

from broker.api.stream import COMMITS_STREAM
from broker.client.client import Client, connect
from tests.spark.kill_app import SINK, SOURCE
from tests.support.clusters import IDS, RealCluster
from tests.support.processes import BrokerProcess

PARTITIONS = 3
SINK_PARTITIONS = 16
"""So many that a task has several for each of three brokers."""
_STREAMS = ((SOURCE, PARTITIONS), (SINK, SINK_PARTITIONS))


class Brokers:
    """One broker or three, and who of them is dead.

    Attributes:
        is_alone: There is one.
    """

    def __init__(self, folder: Path, count: int, luck: random.Random) -> None:
        assert count in (1, len(IDS))
        self.is_alone = count == 1
        self._luck = luck
        self._cluster = None if self.is_alone else RealCluster(folder, None)
        self._processes = (
            {"": BrokerProcess(folder / "broker", None)} if self._cluster is None else self._cluster.brokers
        )
        self._victim = ""

    @property
    def addresses(self) -> str:
        return ",".join(process.address for process in self._processes.values())

    @property
    def pids(self) -> list[int]:
        """The process ids of the brokers that run."""
        return [process.pid for process in self._processes.values() if process.process is not None]

    def __enter__(self) -> Brokers:
        if self._cluster is not None:
            self._cluster.start()
        else:
            self._processes[""].start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._cluster is not None:
            self._cluster.stop()
        else:
            self._processes[""].stop()

    def client(self) -> Client:
        return connect(self.addresses, deadline_s=60)

    def create_streams(self, client: Client) -> None:
        """Create the streams of the job; returns when each partition has all of its replicas."""
        for stream, partitions in _STREAMS:
            client.create_stream(stream, partitions=partitions, replication_factor=len(self._processes))
        self._wait_for_replicas()

    def victim(self) -> int:
        """The pid of who is to be killed next."""
        if self._cluster is not None:
            stream, number = self._luck.choice([(COMMITS_STREAM, 0), (SOURCE, 0), (SINK, 0), (SINK, 1)])
            self._victim = self._cluster.leader(stream, number)
        return self._processes[self._victim].pid

    def revive(self) -> None:
        """Start the brokers that were killed; returns when they have all that they missed."""
        process = self._processes[self._victim]
        process.kill9()  # a process that is dead is waited for
        process.start(wait=self.is_alone)
        if self._cluster is not None:
            self._cluster.wait_ready(self._victim)
            self._wait_for_replicas()

    def _wait_for_replicas(self) -> None:
        if self._cluster is not None:
            for stream, partitions in _STREAMS:
                for number in range(partitions):
                    self._cluster.in_sync(stream, len(IDS), number)
