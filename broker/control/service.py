"""The catalog, for the other threads of this broker: carried out by the controller, applied here.

    execute ─► Raft thread ─► controller: judge, log, replicate ─► answer ─► back to who waits
    applied here, by the Raft thread ─► every subscriber, in order, before the next command is applied

V1  `execute` returns a result, or raises an error whose field `sent` says whether it may have been carried out. A
    refusal has `sent` false.
V2  A command that certainly was not carried out is tried again, until the time is up: nobody leads for a second or two
    when the controller dies. One that may have been carried out is tried again only under a request id (`catalog.M4`).
V3  Subscribers are called on the Raft thread, one after the other: nothing is applied meanwhile. They must not wait. An
    error of one is logged, and is none of the others' business.
V4  A catalog that was replaced by a snapshot is seen as such: `catalog` is another object, and everybody is called. One
    that is put together anew from the journal is shown when it has all that the former one had (`node.N6`).
V5  A command with an end (`until_s`) is carried out before that, or never (`node.N8`, `local.L6`); if it is answered in
    doubt before, it has been, or never will be. So it is not in the way of what its caller, or another broker, does
    next.
V6  Renewals of sessions that change nothing else are told to nobody: several come each second.
V7  A subscriber is told what has changed since the last call (`touched`), so that it need not look at all there is. One
    that has just subscribed, or meets another catalog, is told that it is all.
V8  A `position` covers what the catalog has shown until it was asked for: all subscribers have been told of it.
V9  A command of a consumer group changes that group alone: `of_group` names it, so that who waits for something else is
    not woken.
V10  A fault of ours in a command, before anything came of it, is its answer at once: who asked gets the error itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from broker.api.errors import DeadlineExceeded, LiftlogError, NotReady, from_problem
from broker.control.thread import Node, RaftThread
from broker.metadata import group_commands
from broker.metadata.catalog import Catalog
from broker.metadata.cluster import Touched

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
TRY_S: Final = 2.0
PAUSE_S: Final = 0.1


class Catalogs:
    """See the module. Implements `wiring.CatalogService`.

    Args:
        try_s: So long one try waits for its answer, if another may follow.
    """

    def __init__(
        self, thread: RaftThread[Any], *, clock: Callable[[], float] = time.monotonic, try_s: float = TRY_S
    ) -> None:
        self._thread = thread
        self._clock = clock
        self._try_s = try_s
        self._catalog = Catalog()
        self._callbacks: tuple[Callable[[], None], ...] = ()
        self._live: list[str] = []
        self._touched: Touched | None = None
        self._of_group: str | None = None
        self._closing = threading.Event()

    # -- what other threads call ------------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        """As applied here. To be read in a callback of `subscribe`, where it stands still; or a value at a time."""
        return self._catalog

    @property
    def touched(self) -> Touched | None:
        """V7. For a callback of `subscribe`; None: all of it."""
        return self._touched

    @property
    def of_group(self) -> str | None:
        """V9. For a callback of `subscribe`; None: more than a group has changed."""
        return self._of_group

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back after each change that was applied here, in order, on the Raft thread; and once soon, for what is
        there. It must not wait (V3)."""
        self._callbacks = (*self._callbacks, callback)
        self.call_again(callback)

    def call_again(self, callback: Callable[[], None]) -> None:
        """Call one of `subscribe` once more soon, and tell it that all may have changed (V7).

        Raises:
            NotReady, Overloaded: it is not called.
        """
        self._thread.do(lambda _: self._call_first(callback))

    def execute(
        self,
        command: Mapping[str, Any],
        *,
        timeout_s: float = TIMEOUT_S,
        until_s: float | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Any:
        """Have a command carried out by whoever is the controller. Waits. Not for the Raft thread.

        Args:
            until_s: V5, by the clock. It needs a session.
            check: As `wiring.CatalogService.execute`.
        Returns:
            The catalog's answer. It may have been given by a catalog that is ahead of this broker's: `read` waits.
        Raises:
            LiftlogError: it was refused, or it is not known whether it was carried out (V1).
        """
        may_repeat, is_timely = "request_id" in command, until_s is not None
        if until_s is not None:
            timeout_s = min(timeout_s, until_s - self._clock())
            if timeout_s <= 0:
                raise NotReady("the command has waited here for too long, and was not carried out", sent=False)

        def submit(node: Node, done: Callable[[Any], None], left_s: float) -> None:
            try:
                check()
            except LiftlogError as error:
                done({"error": error.to_problem()})
            else:
                node.submit(
                    command, done, timeout_s=min(left_s, self._try_s) if may_repeat else left_s, timely=is_timely
                )

        return self._until(timeout_s, submit, may_repeat=may_repeat)["ok"]

    def read(self, *, timeout_s: float = TIMEOUT_S) -> Catalog:
        """The catalog, once it has all that was acknowledged before this call.

        Raises:
            LiftlogError: no controller has answered in time.
        """
        self._until(
            timeout_s, lambda node, done, left_s: node.read(done, timeout_s=min(left_s, self._try_s)), may_repeat=True
        )
        return self._catalog

    def position(self) -> Future[int]:
        """The Raft index up to which the catalog is applied here (V8). NotReady: the broker stops."""
        future: Future[int] = Future()

        def call(node: Node) -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(node.applied_index)

        def lost() -> None:
            if future.set_running_or_notify_cancel():
                future.set_exception(NotReady("this broker is stopping"))

        self._thread.do(call, lost)
        return future

    def change_voters(self, change: str, node_id: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Have a voter added (`add`) or removed (`rem`); one that is there, or gone, already is answered at once."""
        self._until(timeout_s, lambda node, done, _: node.change_voters(change, node_id, done), may_repeat=True)

    def close(self) -> None:
        """Try nothing again."""
        self._closing.set()

    def _until(
        self,
        timeout_s: float,
        submit: Callable[[Node, Callable[[Any], None], float], None],
        *,
        may_repeat: bool,
    ) -> dict[str, Any]:
        assert not self._thread.is_current(), "the Raft thread would wait for itself"
        deadline_s = self._clock() + timeout_s
        may_have_been = False
        while True:
            try:
                return self._once(submit, deadline_s)
            except _Refused as refused:
                error = refused.error
                error.fields["sent"] = may_have_been  # an earlier try may still be carried out, late
                if refused.is_final:
                    raise error from None
            except LiftlogError as error_now:
                error = error_now
                may_have_been = may_have_been or bool(error.fields.get("sent"))
                error.fields["sent"] = may_have_been
                if error.fields["sent"] and not may_repeat:
                    raise
            if self._clock() + PAUSE_S >= deadline_s or self._closing.wait(PAUSE_S):
                raise error

    def _once(self, submit: Callable[[Node, Callable[[Any], None], float], None], deadline_s: float) -> dict[str, Any]:
        future: Future[Any] = Future()

        def done(result: Any) -> None:
            if not future.done():  # V10
                future.set_result(result)

        def call(node: Node) -> None:
            if future.set_running_or_notify_cancel():
                try:
                    submit(node, done, max(0.0, deadline_s - self._clock()))
                except Exception as error:  # V10
                    future.set_exception(error)
                    raise

        def lost() -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(NotReady("this broker is stopping", sent=False))

        self._thread.do(call, lost)
        try:
            result = future.result(max(0.0, deadline_s - self._clock()) + 0.5)
        except TimeoutError:
            was_made = not future.cancel()
            raise DeadlineExceeded("this broker's Raft thread gives no answer in time", sent=was_made) from None
        if isinstance(result, LiftlogError):
            raise result
        if "error" in result:
            problem = from_problem(result["error"])
            raise _Refused(problem, is_final=not problem.fields.pop("again", False))
        return dict(result)

    # -- what the Raft thread calls ---------------------------------------------------------------------------

    def applied(self, catalog: Catalog, command: Mapping[str, Any] | None) -> None:
        """A command was applied, or the catalog is another one (None)."""
        touched = catalog.take_touched()
        if command is None or catalog is not self._catalog:
            self._touched = None
        elif self._touched is not None:
            self._touched.add(touched)
        is_of_group = command is not None and catalog is self._catalog and command.get("kind") in group_commands.KINDS
        self._of_group = command.get("name") if is_of_group and command is not None else None
        self._catalog = catalog
        live = [broker for broker, info in catalog.brokers.items() if info.is_live]
        before, self._live = self._live, live
        if command is not None and command.get("kind") == "renew_sessions" and live == before:
            return  # V6
        for callback in self._callbacks:
            self._call(callback)
        self._touched = Touched()

    def _call_first(self, callback: Callable[[], None]) -> None:
        before, self._touched, self._of_group = self._touched, None, None
        self._call(callback)
        self._touched = before

    @staticmethod
    def _call(callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # V3
            log.exception("catalog.subscriber_bug callback=%s", callback)


class _Refused(Exception):
    """An answer of the catalog, or of a broker that was taken for the controller. `is_final`: the catalog's."""

    def __init__(self, error: LiftlogError, *, is_final: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_final = is_final
