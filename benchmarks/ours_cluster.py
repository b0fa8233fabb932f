"""Our side with three brokers: a nats-server, three broker processes, one stream that all of them keep."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from benchmarks.peers import STREAM, SUBJECT
from benchmarks.proc import fresh
from tests.support.clusters import RealCluster
from tests.support.processes import NatsServer


class LiftlogCluster:
    """A place of messages, as `ours.Liftlog` is: the stream `bench` on `bench.*`, every broker a replica.

    Args:
        settings: Over the stream's defaults.
        env: Over each broker's configuration.
        in_sync: So many replicas are waited for.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        in_sync: int = 3,
    ) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._settings = settings or {}
        self._env = env or {}
        self._in_sync = in_sync

    def __enter__(self) -> Self:
        with self._stack:
            folder = self._stack.enter_context(fresh(self._folder))
            nats = NatsServer(folder / "nats")
            self._stack.callback(nats.stop)
            self.port, self.url = nats.start().port, nats.url
            self.brokers = RealCluster(folder, nats, **self._env)
            self._stack.callback(self.brokers.stop)
            self.brokers.start()
            wanted = {"name": STREAM, "subject": f"{SUBJECT}.*", "replication_factor": 3, **self._settings}
            next(iter(self.brokers.running.values())).request("POST", "/v1/streams", wanted)
            self.brokers.in_sync(STREAM, self._in_sync)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stored(self) -> int:
        """Committed records, as the leader tells."""
        self.brokers.leader(STREAM)
        return int(self.brokers.state(STREAM)["high_watermark"])
