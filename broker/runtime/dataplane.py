"""The HTTP server's thread: a loop of its own, so that a cold page read by sendfile holds up no intake.

The port is bound first and listened on later: the registration names it, and nothing is answered before the cluster
knows that. A connection in between is refused.

D1  A reader over loopback is not paced: pacing.py.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from broker.api.errors import InvalidSetting, PortInUse
from broker.common.stopping import THREAD_S, StillRunning
from broker.intake.pacing import unpace_loopback
from broker.runtime.no_descriptors import log_few
from broker.serving.http.app import CONNECTIONS, RUNNER_OPTIONS, SERVING
from broker.serving.http.tls import TlsContexts
from broker.serving.threads import Threads

if TYPE_CHECKING:
    from broker.serving.liftbridge.server import LiftbridgePort

T = TypeVar("T")
STOP_TIMEOUT_S = 4 * RUNNER_OPTIONS["shutdown_timeout"]


class DataPlane:
    """Owns the thread and its loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(Threads(None, name="loop-worker"))
        log_few(self.loop)
        self._thread = threading.Thread(target=self._run, name="dataplane", daemon=True)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._place = ("", 0)
        self._liftbridge: LiftbridgePort | None = None
        self._liftbridge_server: asyncio.Server | None = None
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the data plane's loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def bind(self, app: web.Application, host: str, port: int, tls: TlsContexts | None = None) -> int:
        """Take a port for an application of `build_app`; return it. Nobody is answered before `serve`.

        Args:
            tls: What the application was built with.
        Raises:
            PortInUse, InvalidSetting: host and port cannot be listened on.
        """
        self._place = (host, port)
        return self.call(self._bind(app, tls)).result()

    def bind_liftbridge(
        self,
        app: web.Application,
        host: str,
        port: int,
        tls: TlsContexts | None,
        here: Callable[[int], tuple[str, int]],
    ) -> int:
        """Take a port for Liftbridge's API as well; `bind` comes first.

        Args:
            here: Where clients are told to find this broker, by the port that was taken.
        Raises:
            PortInUse, InvalidSetting: host and port cannot be listened on, or a library is missing.
        """
        return self.call(self._bind_liftbridge(app, host, port, tls, here)).result()

    def serve(self) -> None:
        """Begin to answer.

        Raises:
            PortInUse: another process has begun to listen there since `bind`.
        """
        self.call(self._serve()).result()

    async def _bind(self, app: web.Application, tls: TlsContexts | None) -> int:
        self._runner = web.AppRunner(app, **RUNNER_OPTIONS)
        await self._runner.setup()
        assert self._runner.server is not None
        factory = app[CONNECTIONS].protocol_factory(self._runner.server, tls)
        host, port = self._place
        try:
            self._server = await self.loop.create_server(factory, host, port, backlog=512, start_serving=False)
        except OSError as error:
            raise await self._refusal(error) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def _bind_liftbridge(
        self,
        app: web.Application,
        host: str,
        port: int,
        tls: TlsContexts | None,
        here: Callable[[int], tuple[str, int]],
    ) -> int:
        assert self._runner is not None, "bound before"
        assert self._runner.server is not None, "it is set up"
        try:
            from broker.serving.liftbridge.server import LiftbridgePort
        except ModuleNotFoundError as error:
            await self._give_up()
            raise InvalidSetting(
                f"liftbridge.listen needs {error.name}: install spark-liftlog[liftbridge]", key="liftbridge.listen"
            ) from error
        self._liftbridge = LiftbridgePort(app, self._runner.server, tls)
        try:
            self._liftbridge_server = await self.loop.create_server(
                self._liftbridge.protocol_factory(), host, port, backlog=512, start_serving=False
            )
        except OSError as error:
            raise await self._refusal(error, "liftbridge.listen", "liftbridge.listen", (host, port)) from error
        taken = int(self._liftbridge_server.sockets[0].getsockname()[1])
        self._liftbridge.take_place(here(taken))
        return taken

    async def _serve(self) -> None:
        assert self._server is not None, "bound before"
        for listening in self._server.sockets:
            unpace_loopback(listening, listening.getsockname())
        try:
            await self._server.start_serving()
        except OSError as error:
            raise await self._refusal(error) from error
        if self._liftbridge_server is not None:
            place = self._liftbridge_server.sockets[0].getsockname()[:2]
            try:
                await self._liftbridge_server.start_serving()
            except OSError as error:
                raise await self._refusal(error, "liftbridge.listen", "liftbridge.listen", place) from error

    async def _refusal(
        self,
        error: OSError,
        port_key: str = "http.port",
        host_key: str = "http.host",
        place: tuple[str, int] | None = None,
    ) -> PortInUse | InvalidSetting:
        await self._give_up()
        host, port = place or self._place
        if error.errno == errno.EADDRINUSE:
            return PortInUse(f"{port_key}={port}: another process listens on {host}:{port}", port=port)
        return InvalidSetting(f"{host_key}={host!r}: cannot listen there: {error}", key=host_key)

    async def _give_up(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await self._cleanup(runner)

    async def _cleanup(self, runner: web.AppRunner) -> None:
        for server in (self._server, self._liftbridge_server):
            if server is not None:
                server.close()
        if self._liftbridge is not None:
            runner.app[SERVING].drain()
            await self._liftbridge.close()  # its calls are requests to the application
        await runner.cleanup()

    def stop(self) -> None:
        """Finish requests under way (bounded), then stop the loop. Raises StillRunning."""
        hung = []
        if self._runner is not None:
            try:
                self.call(self._cleanup(self._runner)).result(STOP_TIMEOUT_S)
            except TimeoutError:
                hung.append("requests")
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(THREAD_S)
        if self._thread.is_alive():
            hung.append(self._thread.name)
        if hung:
            raise StillRunning(", ".join(hung))
