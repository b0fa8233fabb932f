"""Waiting for others: long polls that end when the server drains, and changes that nobody breaks off.

A handler is cancelled when its client goes away, its deadline passes or the server stops. A long poll
may end there; a change of the catalog or an append may not: half of it could be done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from broker.api.errors import LiftlogError, forget_frames
from broker.serving.contract.done import change_now
from broker.serving.contract.endpoint import Serving
from broker.serving.http.body import CHANGE_BYTES, Loan, reservation_now
from broker.serving.http.gone import check_asker

log = logging.getLogger(__name__)

T = TypeVar("T")

_unfinished: set[asyncio.Future[Any]] = set()  # the loop itself keeps only weak references


async def until_draining(serving: Serving, waiting: Coroutine[Any, Any, T]) -> T | None:
    """Await `waiting`; None when the server began to drain first."""
    task = asyncio.ensure_future(waiting)
    drain = asyncio.ensure_future(serving.draining.wait())
    try:
        await asyncio.wait((task, drain), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        drain.cancel()


async def either(first: Coroutine[Any, Any, Any], second: Coroutine[Any, Any, Any]) -> None:
    """Await one of two, whichever ends first; the other is cancelled."""
    tasks = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


async def unbroken(change: Coroutine[Any, Any, T] | Future[T], lent: Sequence[Loan] = ()) -> T:
    """Await a change; it goes on, and its failure is logged, when the caller is cancelled. What ends this request once
    it has begun says so (`done`).

    Args:
        lent: Memory of the request that is given back when it is done, or before. None: all of it, then (`body.B6`).
    Raises:
        NotReady: its client is gone, and it has not begun (`gone.G1`).
        Overloaded, LimitReached: too many go on, and it has not begun (`body.B6`).
    """
    reservation, asked = reservation_now.get(None), change_now.get()
    if not isinstance(change, Future):
        try:
            check_asker()
            if reservation is not None and not lent:
                reservation.grow_to(CHANGE_BYTES)
        except LiftlogError:
            change.close()
            raise
    ends = [loan.ending() for loan in lent]
    if reservation is not None and not lent:
        ends = [reservation.lend().end]
    if asked is not None:
        asked.has_begun = True
    future = asyncio.wrap_future(change) if isinstance(change, Future) else asyncio.ensure_future(change)
    future.add_done_callback(lambda _: _call(ends))
    try:
        result = await asyncio.shield(future)
        if asked is not None:
            asked.is_done = True
        return result
    except asyncio.CancelledError:
        _unfinished.add(future)
        future.add_done_callback(_finished)
        raise
    finally:
        del change, future  # an error has this frame, and they have the error: what was asked for would stay in memory


def _call(acts: Sequence[Callable[[], None]]) -> None:
    for act in acts:
        act()


def _finished(future: asyncio.Future[Any]) -> None:
    _unfinished.discard(future)
    if future.cancelled():
        return
    error = future.exception()
    if error is not None:
        known = isinstance(error, LiftlogError)
        log.log(
            logging.WARNING if known else logging.ERROR,
            "http.change_failed_unanswered error=%s",
            error,
            exc_info=None if known else error,
        )
        forget_frames(error)
