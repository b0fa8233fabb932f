"""Appends that come from elsewhere than intake (HTTP, consumers): made by the appenders, awaited as futures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from broker.api.errors import ExpectationFailed, LiftlogError, NotReady, Overloaded
from broker.common.weak_methods import WeakCall
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import Outcome
from broker.replication.events import Acks
from broker.storage.log import AppendResult, Encodable

APPENDS_WAITING_MAX = 256


class QueuedAppends:
    """Those of one partition. Thread-safe.

    Args:
        append_now: `Partition.append_now`: whoever calls `append` has that partition.
        appender: Its threads append.
    """

    __slots__ = ("_append_now", "_appender", "_lock", "_replica", "_waiting")

    def __init__(self, replica: Replica, append_now: WeakCall[Callable[..., AppendResult]], appender: Executor) -> None:
        self._replica = replica
        self._append_now = append_now
        self._appender = appender
        self._lock = threading.Lock()  # never held for long, as the partition's is while the disk is written
        self._waiting = 0

    def append(
        self,
        batches: Sequence[Encodable],
        *,
        acks: str = "all",
        leader_epoch: int | None = None,
        expected_offset: int | None = None,
        fence: int | None = None,
    ) -> Future[AppendResult]:
        """Append away from the calling thread; the future is done when what `acks` asks for is so.

        `all`: committed; `leader`: durable on this broker; `none`: appended.

        Args:
            leader_epoch: As `Partition.append_now` takes it.
            expected_offset: Append them if the first one gets this offset. If not, the future's error is
                `ExpectationFailed`, once all that stands below its `next_offset` is as safe as `acks` asks for.
            fence: As `Partition.append_now` takes it.

        Its error has the field `sent` if the records were appended, and then something failed: they may be stored.

        Raises:
            Overloaded: too many appends wait already.
            NotReady: the broker stops; nothing was appended.
        """
        with self._lock:
            if self._waiting >= APPENDS_WAITING_MAX:
                limit = APPENDS_WAITING_MAX
                raise Overloaded(f"{self._replica}: {limit} appends are waiting", limit=limit)
            self._waiting += 1
        future: Future[AppendResult] = Future()
        future.set_running_or_notify_cancel()  # who waits no longer cannot take it back
        answer = [future]
        append_now = self._append_now()
        assert append_now is not None, "a partition outlives the calls of its methods"
        level = Acks.LEADER if acks == "leader" else Acks.ALL

        def told(result: AppendResult, outcome: Outcome) -> None:
            if acks == "none":
                return
            if isinstance(outcome, LiftlogError):
                self._finish(answer[0], perhaps_done(outcome) if result.has_records else as_own(outcome))
            else:
                self._finish(answer[0], self._judged(result, expected_offset))

        def run() -> None:
            try:
                result = append_now(
                    batches,
                    told,
                    acks=level,
                    leader_epoch=leader_epoch,
                    expected_offset=expected_offset,
                    fence=fence,
                )
            except Exception as error:
                # taken away: the error has this frame and the one of `told`, and the future the error
                self._finish(answer.pop(), error)
                return
            if acks == "none":
                self._finish(answer[0], self._judged(result, expected_offset))

        try:
            self._appender.submit(run)
        except RuntimeError as error:  # the broker stops
            with self._lock:
                self._waiting -= 1
            raise NotReady("the broker is stopping") from error
        return future

    def _judged(self, result: AppendResult, expected_offset: int | None) -> AppendResult | ExpectationFailed:
        if expected_offset is None or result.has_records:
            return result
        return ExpectationFailed(
            f"{self._replica}: expected to append at offset {expected_offset}, the next one is {result.next_offset};"
            " nothing was appended",
            expected_offset=expected_offset,
            next_offset=result.next_offset,
        )

    def _finish(self, future: Future[AppendResult], outcome: AppendResult | Exception) -> None:
        with self._lock:
            self._waiting -= 1
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def perhaps_done(error: LiftlogError) -> LiftlogError:
    """The same error, for one of those who share it, saying that nobody knows whether what he waited for was done."""
    return as_own(error, sent=True)


def as_own(error: LiftlogError, **fields: Any) -> LiftlogError:
    """The same error, for one of those who share it."""
    return type(error)(error.message, **{**error.fields, **fields})
