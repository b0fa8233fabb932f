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
    when the broker ends, is lost: the log has it, whole (`logs.L6`).
L5  No record keeps those behind it out. A leader takes a body of JSON up to a limit, and so many records go at once as
    fit in whatever they say. If it refuses some for what they are, each goes alone, and the one is lost that is refused
    again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from broker.api.errors import (
    InvalidRecords,
    InvalidRequest,
    LiftlogError,
    NotLeader,
    NotReady,
    Overloaded,
    RecordTooLarge,
    RequestTooLarge,
    Unavailable,
)
from broker.serving.contract.backend import AuditRecord, Backend
from broker.serving.contract.schemas import AUDIT_RECORDS_MAX
from broker.serving.http.body import JSON_BYTES_MAX
from broker.serving.http.meters import Meters
from broker.serving.http.peers import Peers

log = logging.getLogger(__name__)

PATH: Final = "/v1/audit"
WHOLE: Final = {"is_whole": True}
"""`extra` of a line that has a record: it is neither cut nor left out (`logs.L6`)."""
PENDING_MAX: Final = 1_000
TOLD_BYTES: Final = 1_024
"""A record in a body takes so much at most, beside its value: that is JSON, so as text it takes twice its length."""
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
        pause_s, at_once = PAUSES_S[0], AUDIT_RECORDS_MAX
        while True:
            await self._news.wait()
            self._news.clear()
            while self._queue:
                batch = self._next(at_once)
                at_once = AUDIT_RECORDS_MAX
                try:
                    await self._write([queued.record for queued in batch])
                except Exception as error:
                    if is_of_records(error):  # L5
                        at_once = 1
                        if len(batch) == 1:
                            self._refused(error)
                        continue
                    self._failed(error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSES_S[1])
                    continue
                pause_s = PAUSES_S[0]
                self._written(batch)

    def _next(self, at_once: int) -> list[_Queued]:
        """So many go next, or as many as have room in one body (L5)."""
        batch, byte_count = list[_Queued](), 0
        for queued in self._queue:
            byte_count += 2 * len(queued.record.value) + TOLD_BYTES
            if batch and (len(batch) == at_once or byte_count > JSON_BYTES_MAX - TOLD_BYTES):
                break
            batch.append(queued)
        return batch

    async def _write(self, records: list[AuditRecord]) -> None:
        """L1. Raises why not."""
        try:
            async with asyncio.timeout(ASK_S):
                await self._backend.audit.append(records)
        except TimeoutError:
            raise Unavailable("this broker leads the audit, and its append is not done", sent=True) from None
        except NotLeader as error:
            leader: Any = error.fields.get("leader")
            address = leader.get("http") if isinstance(leader, Mapping) else leader  # of one that has just lost it
            if not address:
                raise
            body = {"records": [record.as_json() for record in records]}
            await self._peers.ask(str(address), "POST", PATH, body=body, timeout_s=ASK_S)

    def _written(self, batch: list[_Queued]) -> None:
        for queued in batch:
            self._queue.popleft()
            if not queued.done.done():
                queued.done.set_result(None)
        self._meters.audit_records.labels("written").inc(len(batch))
        if self._is_behind and not self._queue:
            self._is_behind = False
            log.info("audit.caught_up")

    def _refused(self, error: Exception) -> None:
        """The first one is, for what it is (L5)."""
        queued = self._queue.popleft()
        if not queued.done.done():
            queued.done.set_exception(error)
        self._lose(queued.record)

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
        log.error("audit.lost record=%s", record.value, extra=WHOLE)


def is_of_records(error: Exception) -> bool:
    """Whether who refuses records does so for what they are: tried again they would be refused again."""
    is_misfit = type(error) is InvalidRequest and "field" in error.fields
    return is_misfit or isinstance(error, RequestTooLarge | RecordTooLarge | InvalidRecords)
