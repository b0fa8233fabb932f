"""Consumer offsets: commits appended to the offset stream, answered when committed, newest in memory.

Commits that arrive while one is on its way to the disk are appended together, as batches of some `AT_ONCE` offsets:
each takes the loop, for which others wait. Pins, which are kept in the same stream, are placed one after the other for
each name: a version is compared with what was committed (`pins.K1`).

The commit of a client that has given up is written all the same. So what waits is bounded: while a disk hangs, or
others are waited for, clients come again and again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from broker.api.batch import decode_batch
from broker.api.errors import Overloaded
from broker.groups.offsets import ConsumerOffset, OffsetTable, offset_rows
from broker.groups.pins import Pin, PinTable
from broker.runtime.partitions.leader import Partition
from broker.storage.rows import RowBatch

Entry = tuple[bytes, bytes | None]
WAITING_BYTES_MAX: Final = 64 << 20
"""Of commits that wait for the one on its way. One more is refused, unless none waits."""
AT_ONCE: Final = 2_000
"""So many offsets take the loop for some 50 ms. A commit of more goes alone."""


class Consumers:
    """The offset stream's one partition and its table. Coroutines run on the data plane's loop.

    Args:
        leader_epoch: In which the table is read, and commits are appended (`leader.P6`); None: in any.
    """

    def __init__(self, partition: Partition, *, leader_epoch: int | None = None) -> None:
        self._partition = partition
        self._leader_epoch = leader_epoch
        self._table = OffsetTable()
        self._pins = PinTable()
        self._placing: dict[str, asyncio.Event] = {}  # by name of pin: set when its change is done
        self._waiting: deque[tuple[list[Entry], int, asyncio.Future[None]]] = deque()  # with how many bytes it has
        self._waiting_bytes = 0
        self._worker: asyncio.Task[None] | None = None
        for message in partition.log.batches(partition.log.log_start_offset):
            self._apply(decode_batch(message))

    @property
    def at(self) -> tuple[Partition, int | None]:
        """The partition that it was read from, and in which leader epoch."""
        return self._partition, self._leader_epoch

    def consumers(self) -> list[str]:
        """All names, sorted."""
        return self._table.consumers()

    def knows(self, consumer: str) -> bool:
        """Whether there are offsets of it."""
        return self._table.knows(consumer)

    def get(self, consumer: str) -> list[ConsumerOffset]:
        """The offsets of one consumer. Raises UnknownConsumer."""
        return self._table.get(consumer)

    async def commit(self, consumer: str, offsets: Sequence[ConsumerOffset]) -> None:
        """Store offsets; returns when they are committed."""
        now_us = self._partition.replica.wall_us()
        stamped = [replace(o, consumer=consumer, timestamp_us=now_us) for o in offsets]
        await self._store([(o.key, o.value()) for o in stamped])

    async def forget(self, consumer: str) -> None:
        """Remove a consumer by tombstones. Raises UnknownConsumer."""
        await self._store([(o.key, None) for o in self.get(consumer)])

    def silent(self, before_us: int) -> list[str]:
        """Consumers that committed nothing at or after a time, sorted."""
        return self._table.silent(before_us)

    async def expire(self, consumers: Sequence[str], before_us: int) -> list[str]:
        """Forget those of `consumers` that are still silent. Returns them; none while a commit is under way."""
        if self._waiting or (self._worker is not None and not self._worker.done()):
            return []
        silent = set(self._table.silent(before_us))
        gone = [consumer for consumer in consumers if consumer in silent]
        await self._store([(o.key, None) for consumer in gone for o in self._table.get(consumer)])
        return gone

    def pin(self, name: str) -> Pin:
        """The newest pin of a name; of version 0 if there is none."""
        return self._pins.get(name)

    async def place_pin(self, name: str, text: str, *, version: int) -> tuple[Pin, bool]:
        """Replace a pin if it has this version; returns what is committed then, and whether this call did it."""
        while (before := self._placing.get(name)) is not None:
            await before.wait()
        found = self._pins.get(name)
        if found.version != version:
            return found, False
        placed = found.next(text, now_us=self._partition.replica.wall_us())
        await self._store_pins([(name, placed.value())])
        return placed, True

    async def expire_pins(self, before_us: int) -> list[str]:
        """Forget pins that were placed before a time. Returns them."""
        gone = [name for name in self._pins.silent(before_us) if name not in self._placing]
        await self._store_pins([(name, None) for name in gone])
        return gone

    async def _store_pins(self, entries: Sequence[tuple[str, bytes | None]]) -> None:
        done = asyncio.Event()
        self._placing |= {name: done for name, _ in entries}
        try:
            await self._store([(Pin(name=name).key, value) for name, value in entries])
        finally:
            for name, _ in entries:
                del self._placing[name]
            done.set()

    async def _store(self, entries: list[Entry]) -> None:
        if not entries:
            return
        byte_count = sum(len(key) + len(value or b"") for key, value in entries)
        if self._waiting and self._waiting_bytes + byte_count > WAITING_BYTES_MAX:
            raise Overloaded(
                f"{self._partition}: {len(self._waiting)} commits wait for one that is on its way",
                limit=WAITING_BYTES_MAX,
            )
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entries, byte_count, future))
        self._waiting_bytes += byte_count
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        await future

    async def _work(self) -> None:
        while self._waiting:
            told, entries = self._next()
            try:
                rows = offset_rows(entries, timestamp_us=self._partition.replica.wall_us())
                await asyncio.wrap_future(self._partition.append([RowBatch(rows)], leader_epoch=self._leader_epoch))
                self._apply(rows)
            except Exception as error:
                for future in told:
                    if not future.done():
                        future.set_exception(error)
                continue
            for future in told:
                if not future.done():
                    future.set_result(None)

    def _next(self) -> tuple[list[asyncio.Future[None]], list[Entry]]:
        """The first that wait, and what they commit: `AT_ONCE`, or one commit."""
        told, found = list[asyncio.Future[None]](), list[Entry]()
        while self._waiting and (not told or len(found) + len(self._waiting[0][0]) <= AT_ONCE):
            entries, byte_count, future = self._waiting.popleft()
            self._waiting_bytes -= byte_count
            told.append(future)
            found += entries
        return told, found

    def _apply(self, rows: pa.RecordBatch) -> None:
        self._table.apply(rows)
        self._pins.apply(rows)
