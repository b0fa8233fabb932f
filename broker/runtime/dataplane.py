"""The HTTP server's thread: a loop of its own, so that a cold page read by sendfile holds up no intake.

D1  Who reads over loopback is not paced: pacing.py.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from aiohttp import web

from broker.api.errors import InvalidSetting, PortInUse
from broker.runtime.pacing import unpace_loopback
from broker.serving.app import CONNECTIONS, RUNNER_OPTIONS

T = TypeVar("T")
STOP_TIMEOUT_S = 4 * RUNNER_OPTIONS["shutdown_timeout"]


class DataPlane:
    """Owns the thread and its loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dataplane", daemon=True)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the data plane's loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def serve(self, app: web.Application, host: str, port: int) -> int:
        """Begin to serve an application of `build_app`; return the port.

        Raises:
            PortInUse, InvalidSetting: host and port cannot be listened on.
        """
        return self.call(self._serve(app, host, port)).result()

    async def _serve(self, app: web.Application, host: str, port: int) -> int:
        self._runner = web.AppRunner(app, **RUNNER_OPTIONS)
        await self._runner.setup()
        assert self._runner.server is not None
        factory = app[CONNECTIONS].protocol_factory(self._runner.server)
        try:
            self._server = await self.loop.create_server(factory, host, port, backlog=512)
        except OSError as error:
            await self._runner.cleanup()
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"http.port={port}: another process listens on {host}:{port}", port=port) from error
            raise InvalidSetting(f"http.host={host!r}: cannot listen there: {error}", key="http.host") from error
        for listening in self._server.sockets:
            unpace_loopback(listening, listening.getsockname())
        return int(self._server.sockets[0].getsockname()[1])

    async def _cleanup(self, runner: web.AppRunner) -> None:
        if self._server is not None:
            self._server.close()
        await runner.cleanup()

    def stop(self) -> None:
        """Finish requests under way (bounded), then stop the loop."""
        if self._runner is not None:
            self.call(self._cleanup(self._runner)).result(STOP_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
