"""The stream `__audit`, where it is led: what other brokers and this one tell is appended, each record once.

    records ─► not known yet ─► append ─► committed on all in sync ─► told

G1  A record that is told again, as its first answer was lost, is the same one: of the last `KNOWN_MAX` ids each is
    appended once by this process. Another leader does not know them, so a record may stand there twice, under one id.
G3  Who tells again what is still on its way here, and does so no longer under this broker's lead, is sent to whoever
    leads now: on a disk that hangs an append may take for ever.
G2  Nobody appends to it but this: HTTP refuses internal streams, and it has no subject.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.api.errors import NotReady, UnknownStream
from broker.api.schema import rows_of
from broker.api.stream import AUDIT_STREAM
from broker.common.elapsed import wall_us
from broker.node.partitions.partition import Partition
from broker.serving.contract.backend import AuditRecord
from broker.storage.rows import RowBatch

KNOWN_MAX: Final = 10_000


class AuditLog:
    """See the module. Implements `AuditView`; on the data plane's loop.

    Args:
        find: Its partition, if it is led and served here. Raises as `Backend.partition`.
        why_missing: Why there is no such stream.
    """

    def __init__(self, find: Callable[[str, int], Partition], why_missing: Callable[[], str]) -> None:
        self._find, self._why_missing = find, why_missing
        self._known: OrderedDict[str, asyncio.Future[Any]] = OrderedDict()

    async def append(self, records: Sequence[AuditRecord]) -> None:
        """As `AuditView.append`."""
        new = {each.id: each for each in records if each.id not in self._known}
        if new:
            self._begin(list(new.values()))
        elif any(not self._known[each.id].done() for each in records):  # G3
            self._partition()
        appended = {id(found): found for each in records if (found := self._known.get(each.id)) is not None}
        for found in appended.values():
            await asyncio.shield(found)

    def _partition(self) -> Partition:
        try:
            return self._find(AUDIT_STREAM, 0)
        except UnknownStream:
            raise NotReady(self._why_missing(), made=False) from None

    def _begin(self, records: Sequence[AuditRecord]) -> None:
        partition = self._partition()
        rows = rows_of(
            [(each.key.encode(), each.value.encode()) for each in records], subject=AUDIT_STREAM, timestamp_us=wall_us()
        )
        future = asyncio.wrap_future(partition.append([RowBatch(rows)]))
        for each in records:
            self._known[each.id] = future
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        future.add_done_callback(lambda done: self._told(done, records))

    def _told(self, done: asyncio.Future[Any], records: Sequence[AuditRecord]) -> None:
        """What is not known to be there may be tried again."""
        if done.cancelled() or done.exception() is not None:
            for each in records:
                self._known.pop(each.id, None)
