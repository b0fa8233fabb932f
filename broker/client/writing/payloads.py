"""Payloads to publish, as an event loop takes them."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

READ_AHEAD: Final = 1_024


async def as_async(payloads: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Without a thread: for payloads that are there."""
    for payload in payloads:
        yield payload


async def read_ahead(payloads: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Read payloads in a thread, as they come, however long that takes."""
    loop = asyncio.get_running_loop()
    ahead: queue.Queue[tuple[bytes | None, BaseException | None]] = queue.Queue(READ_AHEAD)
    arrived = asyncio.Event()

    def read(items: Iterator[bytes]) -> None:
        error = None
        try:
            for item in items:
                ahead.put((item, None))
                loop.call_soon_threadsafe(arrived.set)
        except BaseException as caught:
            error = caught
        ahead.put((None, error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            loop.call_soon_threadsafe(arrived.set)

    threading.Thread(target=read, args=(iter(payloads),), name="liftlog-publish-reader", daemon=True).start()
    while True:
        arrived.clear()
        while not ahead.empty():
            item, error = ahead.get_nowait()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
        await arrived.wait()
