"""Records on their way into `__audit`: queued here, written by whoever leads it.

    put ─► queue ─► worker ─┬─► this broker leads `__audit`: append
                            └─► its leader, over HTTP (`endpoints/audit.py`)
                      ▲            │
                      └── again ◄──┴── nobody leads, the disk is full, …

L1  A record is done when it is committed: on all replicas that are in sync, as anything that is acknowledged.
L2  What cannot be written stays queued, in order, and is tried again. Who waits is told at once why, unless another
    leader is about to come, which takes some seconds.
L3  A record has an id. The leader takes an id once; only a change of leaders amid a try may leave one twice.
L4  The queue is bounded, and refusals have half of it: they keep no act out. What finds no room, and what is left in it
    when the broker ends, is lost: the log has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any, Final, NamedTuple

from aiohttp import web

from broker.api.errors import LiftlogError, NotLeader, NotReady, Overloaded, Unavailable
from broker.serving.contract.backend import AuditRecord, Backend
from broker.serving.contract.schemas import AUDIT_RECORDS_MAX
from broker.serving.http.meters import Meters
from broker.serving.http.peers import Peers

log = logging.getLogger(__name__)

PATH: Final = "/v1/audit"
PENDING_MAX: Final = 1_000
ASK_S: Final = 3.0
PAUSES_S: Final = (0.05, 2.0)
"""Between two tries, the first and the longest."""
LAST_TRY_S: Final = 2.0
"""So long the end of a broker waits for what is queued."""


class _Queued(NamedTuple):
    record: AuditRecord
    done: asyncio.Future[None]


class Trail:
    """See the module. On the data plane's loop."""

    def __init__(self, backend: Backend, peers: Peers, meters: Meters) -> None:
        self._backend, self._peers, self._meters = backend, peers, meters
        self._queue: deque[_Queued] = deque()
        self._news = asyncio.Event()
        self._is_behind = False

    def put(self, record: AuditRecord, *, is_act: bool = True) -> asyncio.Future[None]:
        """Queue a record. Done when it is written (L1); or with the reason why it is not yet, or never (L2, L4)."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda told: told.cancelled() or told.exception())  # nobody may wait
        if len(self._queue) >= (PENDING_MAX if is_act else PENDING_MAX // 2):
            self._lose(record)
            done.set_exception(Overloaded(f"{PENDING_MAX} records wait for the audit", limit=PENDING_MAX))
            return done
        self._queue.append(_Queued(record, done))
        self._news.set()
        return done

    async def works(self, _: web.Application) -> AsyncIterator[None]:
        """A cleanup context: it writes as long as the application runs, and a moment longer."""
        task = asyncio.get_running_loop().create_task(self._work())
        yield
        if self._queue:
            await asyncio.wait([queued.done for queued in self._queue], timeout=LAST_TRY_S)
        task.cancel()
        for queued in self._queue:
            self._lose(queued.record)

    async def _work(self) -> None:
        pause_s = PAUSES_S[0]
        while True:
            await self._news.wait()
            self._news.clear()
            while self._queue:
                batch = list(islice(self._queue, AUDIT_RECORDS_MAX))
                try:
                    await self._write([queued.record for queued in batch])
                except Exception as error:
                    self._failed(error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSES_S[1])
                    continue
                pause_s = PAUSES_S[0]
                self._written(batch)

    async def _write(self, records: list[AuditRecord]) -> None:
        """L1. Raises why not."""
        try:
            await self._backend.audit.append(records)
        except NotLeader as error:
            leader: Any = error.fields.get("leader")
            if not leader:
                raise
            body = {"records": [record.as_json() for record in records]}
            await self._peers.ask(str(leader["http"]), "POST", PATH, body=body, timeout_s=ASK_S)

    def _written(self, batch: list[_Queued]) -> None:
        for queued in batch:
            self._queue.popleft()
            if not queued.done.done():
                queued.done.set_result(None)
        self._meters.audit_records.labels("written").inc(len(batch))
        if self._is_behind and not self._queue:
            self._is_behind = False
            log.info("audit.caught_up")

    def _failed(self, error: Exception) -> None:
        """L2."""
        if not isinstance(error, LiftlogError):
            log.exception("audit.bug")
            error = LiftlogError(f"a fault of liftlog: {error}")
        is_soon = isinstance(error, NotLeader | Unavailable) or (
            isinstance(error, NotReady) and error.fields.get("made", True)
        )
        if not self._is_behind:
            self._is_behind = True
            log.warning("audit.not_written waiting=%d error=%s", len(self._queue), error)
        if not is_soon:
            for queued in self._queue:
                if not queued.done.done():
                    queued.done.set_exception(error)

    def _lose(self, record: AuditRecord) -> None:
        """L4."""
        self._meters.audit_records.labels("lost").inc()
        log.error("audit.lost record=%s", record.value)
