"""Consumer offsets: commits appended to the offset stream, answered when committed, newest in memory.

Commits that arrive while one is on its way to the disk are appended together, as batches of some `AT_ONCE` offsets:
each takes the loop, for which others wait. Pins, which are kept in the same stream, are placed one after the other for
each name: a version is compared with what was committed (`pins.K1`). So are the steps of a consumer group in each
partition: `fencing.py` judges by what is committed, and what a step that failed has left in the log counts for nobody
before it is read anew.

The commit of a client that has given up is written all the same. So what waits is bounded: while a disk hangs, or
others are waited for, clients come again and again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from broker.api.batch import decode_batch
from broker.api.errors import GroupFenced, NotReady, Overloaded
from broker.groups.fencing import CommitVerdict, GroupProgress, OffsetAndEpoch
from broker.groups.offsets import ConsumerOffset, OffsetTable, offset_rows
from broker.groups.pins import Pin, PinTable
from broker.groups.progress import GroupOffset, GroupTable, Read
from broker.node.partitions.partition import Partition
from broker.storage.rows import RowBatch

Entry = tuple[bytes, bytes | None]
Decided = tuple[CommitVerdict, OffsetAndEpoch]
WAITING_BYTES_MAX: Final = 64 << 20
"""Of commits that wait for the one on its way. One more is refused, unless none waits."""
AT_ONCE: Final = 2_000
"""So many offsets take the loop for some 50 ms. A commit of more goes alone."""


class Consumers:
    """The offset stream's one partition and its table. Coroutines run on the data plane's loop.

    Args:
        leader_epoch: In which the table is read, and commits are appended (`partition.P6`); None: in any.
    """

    def __init__(self, partition: Partition, *, leader_epoch: int | None = None) -> None:
        self._partition = partition
        self._leader_epoch = leader_epoch
        self._table = OffsetTable()
        self._pins = PinTable()
        self._groups = GroupTable()
        self._moving: dict[tuple[str, str, int], asyncio.Event] = {}  # (group, read): set when its change is done
        self._placing: dict[str, asyncio.Event] = {}  # by name of pin: set when its change is done
        self._waiting: deque[tuple[list[Entry], int, asyncio.Future[None]]] = deque()  # with how many bytes it has
        self._waiting_bytes = 0
        self._worker: asyncio.Task[None] | None = None
        for message in partition.log.reader.batches(partition.log.state.log_start_offset):
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

    def group_names(self) -> list[str]:
        """Consumer groups that have offsets, sorted."""
        return self._groups.groups()

    def group_offsets(self, group: str) -> dict[Read, GroupOffset]:
        """The newest record of each partition of a group."""
        return self._groups.of(group)

    def group_rows(self) -> list[GroupOffset]:
        """The newest record of each partition of each group. From any thread."""
        return self._groups.rows()

    async def move_group(
        self, group: str, stream: str, read: Read, epoch: int, decide: Callable[[GroupProgress], Decided]
    ) -> GroupProgress:
        """Store what is decided of a partition of a group; returns where it is then, committed.

        Args:
            decide: Called with what is committed: the verdict, and the place that is to be stored.
        Raises:
            GroupFenced: for good. NotReady: the catalog is behind here.
        """
        at = (group, *read)
        while (before := self._moving.get(at)) is not None:
            await before.wait()
        newest = self._groups.progress(group, read)
        verdict, place = decide(newest)
        where = f"group {group!r}, {stream}/{read[1]}"
        if verdict is CommitVerdict.FENCED:
            raise GroupFenced(
                f"{where}: epoch {epoch} does not count: it is at epoch {newest.epoch}, offset {newest.offset}",
                group=group,
                stream=stream,
                partition=read[1],
                epoch=newest.epoch,
            )
        if verdict is CommitVerdict.NOT_READY:
            raise NotReady(f"{where}: epoch {epoch} is not known here yet")
        if verdict is CommitVerdict.DONE:
            return newest
        self._moving[at] = done = asyncio.Event()
        entry = GroupOffset(
            group=group,
            incarnation=read[0],
            partition=read[1],
            epoch=epoch,
            offset=place.offset,
            leader_epoch=place.leader_epoch,
            stream=stream,
            timestamp_us=self._partition.replica.wall_us(),
        )
        try:
            await self._store([(entry.key, entry.value())])
        finally:
            del self._moving[at]
            done.set()
        return GroupProgress(epoch, *place)

    async def expire_groups(self, before_us: int) -> None:
        """Forget records of groups whose offsets were removed before a time."""
        gone = [row for row in self._groups.removed(before_us) if (row.group, *row.read) not in self._moving]
        done = asyncio.Event()
        self._moving |= {(row.group, *row.read): done for row in gone}
        try:
            await self._store([(row.key, None) for row in gone])
        finally:
            for row in gone:
                del self._moving[row.group, *row.read]
            done.set()

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
        self._groups.apply(rows)
