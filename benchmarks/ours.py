"""Our side: a nats-server, a broker process and one stream, with the settings a user gets."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from benchmarks.peers import STREAM, SUBJECT
from benchmarks.proc import fresh
from tests.support.processes import BrokerProcess, NatsServer


class Liftlog:
    """A broker with the stream `bench` on `bench.*`.

    Args:
        settings: Over the stream's defaults.
        env: Over the broker's configuration.
    """

    def __init__(
        self, folder: Path, *, settings: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._settings = dict(settings or {})
        self._env = dict(env or {})

    def __enter__(self) -> Self:
        with self._stack:
            folder = self._stack.enter_context(fresh(self._folder))
            nats = NatsServer(folder / "nats")
            self._stack.callback(nats.stop)
            nats.start()
            self.broker = BrokerProcess(folder / "broker", nats, env=self._env)
            self._stack.callback(self.broker.stop)
            self.broker.start()
            self.create_stream(STREAM, subject=f"{SUBJECT}.*", **self._settings)
            self._connection = http.client.HTTPConnection("127.0.0.1", self.broker.port, timeout=60)
            self._stack.callback(self._connection.close)
            self.port = nats.port
            self.url = nats.url
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        """The address of the HTTP API."""
        return self.broker.address

    @property
    def pid(self) -> int:
        return self.broker.pid

    def create_stream(self, name: str, **settings: Any) -> None:
        self.broker.request("POST", "/v1/streams", {"name": name, **settings})

    def stored(self) -> int:
        """Records that consumers may read, by the HTTP API, on one connection as JetStream's are asked for."""
        try:
            described = self._described()
        except (http.client.HTTPException, OSError):  # it was idle for too long, or the broker was restarted
            self._connection.close()
            described = self._described()
        return sum(int(partition["high_watermark"]) for partition in described["partitions"])

    def _described(self) -> Any:
        self._connection.request("GET", f"/v1/streams/{STREAM}")
        answer = self._connection.getresponse()
        described = json.load(answer)
        if answer.status != 200:
            raise RuntimeError(f"{STREAM}: {described}")
        return described
