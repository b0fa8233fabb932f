"""The fate of records that were handed to a producer: one `Delivery` per request, and light futures into it.

send()        -> RecordFuture   (partition, offset) of one record
send_batch()  -> BatchFuture    where each part of it went
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from broker.api.answers import Appended


class Delivery:
    """Records on their way together. Done once, by the producer's thread."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._appended: Appended | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], Any]] = []

    def succeed(self, appended: Appended) -> None:
        self._appended = appended
        self._finish()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._finish()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def error(self, timeout_s: float | None) -> BaseException | None:
        """Wait. Raises TimeoutError if it is still on its way then."""
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"the records are not acknowledged after {timeout_s:g} s")
        return self._error

    def appended(self, timeout_s: float | None) -> Appended:
        """Wait. Raises TimeoutError, or the error that the records met."""
        error = self.error(timeout_s)
        if error is not None:
            raise error
        assert self._appended is not None
        return self._appended

    def then(self, callback: Callable[[], Any]) -> None:
        """Call when done, in the producer's thread; at once if it is. Errors that it raises are dropped."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        _call(callback)

    def _finish(self) -> None:
        with self._lock:
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _call(callback)


class RecordFuture:
    """The place of one record. It is used like a `concurrent.futures.Future`, at a tenth of its cost."""

    __slots__ = ("_delivery", "_row")

    def __init__(self, delivery: Delivery, row: int) -> None:
        self._delivery = delivery
        self._row = row

    def done(self) -> bool:
        return self._delivery.is_done

    def result(self, timeout: float | None = None) -> tuple[int, int]:
        """Wait for (partition, offset).

        Raises:
            TimeoutError: not known after `timeout` seconds.
            LiftlogError: the record was not stored; or, if the field `sent` is true, nobody knows.
        """
        appended = self._delivery.appended(timeout)
        return appended.partition, appended.first_offset + self._row

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the error that `result` would raise, None if it would not. Raises TimeoutError."""
        return self._delivery.error(timeout)

    def add_done_callback(self, callback: Callable[[RecordFuture], Any]) -> None:
        """Call with this future when it is done, in the producer's thread: keep it short."""
        self._delivery.then(lambda: callback(self))


class BatchFuture:
    """The places of the parts of a batch: one part per request, several if it was split or hashed by key."""

    __slots__ = ("_deliveries",)

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = deliveries

    def done(self) -> bool:
        return all(delivery.is_done for delivery in self._deliveries)

    def result(self, timeout: float | None = None) -> list[Appended]:
        """Wait for all parts. Raises as `RecordFuture.result`, for the first part that failed; others may be stored."""
        until = None if timeout is None else time.monotonic() + timeout
        return [
            delivery.appended(None if until is None else max(0.0, until - time.monotonic()))
            for delivery in self._deliveries
        ]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the error that `result` would raise, None if it would not. Raises TimeoutError."""
        until = None if timeout is None else time.monotonic() + timeout
        errors = [
            delivery.error(None if until is None else max(0.0, until - time.monotonic()))
            for delivery in self._deliveries
        ]
        return next((error for error in errors if error is not None), None)


def _call(callback: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):  # a user's callback must not end the producer's thread
        callback()
