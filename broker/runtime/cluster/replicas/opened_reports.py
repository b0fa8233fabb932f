"""Tells the catalog that folders of replicas are there: in one command all that have come while the last was under way.

    replica a ─ say ─► under way: [a]                       a thread that may wait for the controller
    replica b ─ say ─► waiting: b, c, ... ─► under way: [b, c, ...]

O1  One command is under way at a time, so that a broker that begins with ten thousand partitions sends some tens of
    commands. One that is alone goes at once.
O2  A replica that is under way, or waits, is not asked for again. One whose command has failed says so again.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Executor
from typing import Any, Final

from broker.api.errors import LiftlogError
from broker.metadata.catalog import COMMAND_VERSION
from broker.metadata.partition import Place
from broker.replication.messages import Incarnation
from broker.runtime.cluster.wiring import CatalogService

log = logging.getLogger(__name__)

AT_ONCE: Final = 1_000
"""So many are in one command: some 50 KiB."""


class OpenedReports:
    """See the module. Thread-safe.

    Args:
        commands: For what is asked of the catalog.
    """

    def __init__(self, me: str, service: CatalogService, commands: Executor) -> None:
        self._me = me
        self._service = service
        self._commands = commands
        self._lock = threading.Lock()
        self._waiting: dict[Place, Incarnation] = {}
        self._under_way: dict[Place, Incarnation] = {}

    def say(self, at: Place, incarnation: Incarnation) -> None:
        """The folder of this replica is there. Does not wait."""
        with self._lock:
            if self._under_way.get(at) == incarnation:  # O2
                return
            self._waiting[at] = incarnation
            is_first = not self._under_way
            if is_first:
                self._take()
        if is_first:
            self._submit()

    def _take(self) -> None:
        """Under the lock: those of one registration go next, as many as may."""
        registration = max((number for number, _ in self._waiting.values()), default=0)
        due = [at for at, (number, _) in self._waiting.items() if number == registration][:AT_ONCE]
        self._under_way = {at: self._waiting.pop(at) for at in due}
        self._waiting = {at: one for at, one in self._waiting.items() if one[0] == registration}

    def _submit(self) -> None:
        try:
            self._commands.submit(self._run)
        except RuntimeError:  # the broker stops
            with self._lock:
                self._under_way = {}

    def _run(self) -> None:
        try:
            self._say_now(dict(self._under_way))
        except Exception:
            log.exception("replica.want_bug partition=%s", self._me)
        with self._lock:
            self._take()
            is_more = bool(self._under_way)
        if is_more:
            self._submit()

    def _say_now(self, opened: dict[Place, Incarnation]) -> None:
        [registration] = {number for number, _ in opened.values()}
        command: dict[str, Any] = {
            "v": COMMAND_VERSION,
            "kind": "report_opened",
            "broker_id": self._me,
            "registration": registration,
            "replicas": [[*at, step_outs] for at, (_, step_outs) in opened.items()],
        }
        try:
            self._service.execute(command)
        except LiftlogError as error:
            log.info("replica.not_reported partitions=%d error=%s", len(opened), error)
