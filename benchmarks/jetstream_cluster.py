"""Three nats-servers with JetStream, clustered on loopback, and one stream with three replicas. Defaults otherwise.

A publisher connects to the server that leads the stream, as a client of ours sends to the partition's leader: JetStream
is measured without a hop between servers.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from benchmarks.peers import STREAM, SUBJECT
from benchmarks.proc import fresh
from benchmarks.wire import Wire
from tests.support.processes import NatsServer, eventually, free_port

SERVERS = 3
STARTS = 3


class JetStreamCluster:
    """A place of messages, as `peers.JetStream` is.

    Args:
        sync_always: `sync_interval: always`: fsync before every ack. Default: every two minutes.
    """

    def __init__(self, folder: Path, *, sync_always: bool = False) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._sync = ", sync_interval: always" if sync_always else ""

    def __enter__(self) -> Self:
        for _ in range(STARTS - 1):  # on a busy machine they now and then find no leader within minutes
            with suppress(AssertionError):
                return self._start()
        return self._start()

    def _start(self) -> Self:
        with self._stack:
            folder = self._stack.enter_context(fresh(self._folder))
            routes = [free_port() for _ in range(SERVERS)]
            servers = {f"n{at}": self._server(folder / f"n{at}", at, routes) for at in range(SERVERS)}
            for server in servers.values():
                self._stack.callback(server.stop)
                server.start()
            self._api = self._stack.enter_context(Wire(servers["n0"].port))
            eventually(self._has_leader, timeout_s=30, what="JetStream has a leader")
            wanted = {"name": STREAM, "subjects": [f"{SUBJECT}.>"], "storage": "file", "num_replicas": SERVERS}
            self._ask(f"STREAM.CREATE.{STREAM}", wanted)
            eventually(lambda: self._described()["cluster"].get("leader") in servers, what="the stream has a leader")
            leader = servers[self._described()["cluster"]["leader"]]
            self.port, self.url = leader.port, leader.url
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stored(self) -> int:
        return int(self._described()["state"]["messages"])

    def _server(self, folder: Path, at: int, routes: list[int]) -> NatsServer:
        others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        return NatsServer(
            folder,
            config=f'server_name: "n{at}"\n'
            f'jetstream {{ store_dir: "{folder / "jetstream"}"{self._sync} }}\n'
            f'cluster {{ name: bench, listen: "127.0.0.1:{routes[at]}", routes: [{others}] }}',
        )

    def _has_leader(self) -> bool:
        """The API answers once the servers have elected one that leads."""
        try:
            return "error" not in self._api.request("$JS.API.INFO", timeout_s=1.0)
        except TimeoutError:
            return False

    def _described(self) -> Any:
        return self._ask(f"STREAM.INFO.{STREAM}")

    def _ask(self, what: str, body: Any = None) -> Any:
        answer = self._api.request(f"$JS.API.{what}", body, timeout_s=60.0)
        if "error" in answer:
            raise RuntimeError(f"JetStream: {what}: {answer['error']}")
        return answer
