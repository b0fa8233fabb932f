"""An asyncio loop of one process: each callback of it is run when the schedule of a seed says so.

It never runs by itself. What waits for a thread of an executor waits for a fiber.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from tests.sim.driven.running import BEGIN_MS
from tests.support.simdisk import Crashed

if TYPE_CHECKING:
    from tests.sim.driven.running import Process


Connect = Callable[[asyncio.BaseProtocol], Awaitable[asyncio.Transport]]


class SteppedLoop(asyncio.AbstractEventLoop):
    """See the module. It has what tasks, futures and time-outs ask of a loop.

    Args:
        connect: Makes the connections that are asked for.
    """

    def __init__(self, process: Process, connect: Connect | None = None) -> None:
        self._process = process
        self._connect = connect

    def time(self) -> float:
        return self._process.broker.now_s()

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._at(0.0, handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._at(max(0.0, when - self.time()) * 1_000 / self._process.broker.clock.rate, handle)
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """On a fiber, whatever the executor."""
        future = self.create_future()

        def act() -> None:
            try:
                value = func(*args)
            except Exception as error:
                self.call_soon(_tell, future, error)
            else:
                self.call_soon(_tell, future, None, value)

        self._process.later(BEGIN_MS, self._process.run, act)
        return future

    async def create_connection(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        """Wherever it goes to."""
        assert self._connect is not None, "it has no connections"
        protocol = protocol_factory()
        return await self._connect(protocol), protocol

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not (self._process.is_gone or isinstance(error, Crashed)):
            self._process.broker.cluster.bugs.found.append(error)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It does nothing when its time comes."""

    def _at(self, delay_ms: float, handle: asyncio.Handle) -> None:
        if not self._process.is_gone:  # else the next process would do it
            self._process.broker.after(delay_ms, self._run, handle)

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(before)
        if self._process.broker.disk.is_dead:  # a task keeps that for itself
            raise Crashed


def _tell(future: asyncio.Future[Any], error: Exception | None, value: Any = None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
