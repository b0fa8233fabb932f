"""What changes the set of streams, their settings and state: one change at a time, on the control loop.

Callers are on the data plane's loop; each change hops to the control loop, where a lock orders them. A change first
asks the catalog whether it may be, then makes what it needs on the disk, then has the catalog record it (durable from
here on: it happened), and then tells the partitions, the intake and who waits for news. Threads wait for the disk.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from broker.api.errors import StorageFailed
from broker.metadata.catalog import COMMAND_VERSION, StreamInfo
from broker.metadata.overlap import subjects_of
from broker.runtime.config import Config
from broker.runtime.intake import IntakeDriver
from broker.runtime.jetstream import jetstream_on
from broker.runtime.partition import Partition
from broker.runtime.streams import Streams
from broker.runtime.watch import ChangeHub

log = logging.getLogger(__name__)
T = TypeVar("T")


class Control:
    """Changes of the catalog. Made on the control loop, called from any other.

    Args:
        intake: None: nothing is captured.
        on_removed: Called with the partitions of a deleted stream before their logs are closed; may block.
    """

    def __init__(
        self,
        config: Config,
        streams: Streams,
        intake: IntakeDriver | None,
        hub: ChangeHub,
        *,
        on_removed: Callable[[Sequence[Partition]], None],
    ) -> None:
        self._config = config
        self._streams = streams
        self._intake = intake
        self._hub = hub
        self._on_removed = on_removed
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()

    async def create_stream(self, name: str, values: Mapping[str, Any]) -> tuple[StreamInfo, bool]:
        """Create a stream, or find that it exists with the same settings.

        Raises:
            StreamExists: with other settings: `differences`.
        """
        return await self._on_control(self._create(name, values))

    async def alter_stream(self, name: str, values: Mapping[str, Any]) -> StreamInfo:
        """Change settings of a live stream."""
        return await self._on_control(self._alter(name, values))

    async def set_stream_state(
        self, name: str, *, paused: bool | None = None, read_only: bool | None = None
    ) -> StreamInfo:
        """Pause, resume, make read-only or writable; None leaves as it is. Raises UnknownStream."""
        return await self._on_control(self._set_state(name, paused, read_only))

    async def add_partitions(self, name: str, partitions: int) -> StreamInfo:
        """Raise the number of partitions. Raises InvalidSetting if there would be fewer."""
        return await self._on_control(self._add_partitions(name, partitions))

    async def trim_stream(self, name: str, incarnation: str, before: Mapping[int, int]) -> dict[int, int]:
        """Let go of the records below an offset of each named partition. Returns the new log starts.

        Whole segments go; records below the offset that share a segment with later ones are hidden.

        Raises:
            UnknownStream, UnknownPartition: not there.
            StaleIncarnation: the stream was deleted and re-created since the offsets were found.
            StorageFailed, DiskFull: the disk refused; some partitions may have been trimmed.
        """
        return await self._on_control(self._trim(name, incarnation, before))

    async def register_producer(self, name: str | None) -> tuple[int, int]:
        """An id and an epoch for an idempotent producer; under a name the same id again, and the next epoch."""
        return await self._on_control(self._register_producer(name))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and its records."""
        await self._on_control(self._delete(name))

    # --- on the control loop ----------------------------------------------------------------------------------

    async def _on_control(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def _create(self, name: str, values: Mapping[str, Any]) -> tuple[StreamInfo, bool]:
        async with self._changing:
            command = self._streams.create_command(name, values, internal=False)
            if name not in self._streams.store.catalog.streams:
                self._streams.store.catalog.check(command)
                self._streams.check_room(streams=1, partitions=command["settings"]["partitions"])
                await asyncio.to_thread(
                    self._streams.make_folders,
                    name,
                    command["incarnation"],
                    range(command["settings"]["partitions"]),
                )
            result = await asyncio.to_thread(self._streams.store.execute, command)
            info = self._streams.info(name)
            if result["created"]:
                partitions = await asyncio.to_thread(self._streams.open_stream, info)
                self._streams.by_name[name] = partitions
                if self._intake is not None:
                    await asyncio.wrap_future(self._intake.attach([(info, partitions)]))
                    info = await self._warned_of_jetstream(info)
                self._hub.note(name)
                log.info(
                    "stream.created stream=%s subject=%s partitions=%d", name, info.settings.subject, len(partitions)
                )
            return info, bool(result["created"])

    async def _warned_of_jetstream(self, info: StreamInfo) -> StreamInfo:
        subjects = subjects_of(info.settings)
        if not subjects or not info.reply_acks_effective:
            return info
        others = await jetstream_on(self._config, subjects[0])
        if not others:
            return info
        text = f"JetStream captures {subjects[0]!r} too ({', '.join(others)}): publishers get two answers and see one"
        log.warning("stream.jetstream_overlap stream=%s jetstream=%s", info.name, ",".join(others))
        return replace(info, warnings=(*info.warnings, text))

    async def _alter(self, name: str, values: Mapping[str, Any]) -> StreamInfo:
        async with self._changing:
            command = {"v": COMMAND_VERSION, "kind": "alter_stream", "name": name, "settings": dict(values)}
            await asyncio.to_thread(self._streams.store.execute, command)
            info = self._streams.info(name)
            for partition in self._streams.by_name.get(name, ()):
                partition.alter(info)
            if self._intake is not None and name in self._streams.by_name and info.settings.subject is not None:
                await asyncio.wrap_future(self._intake.alter(info))
            log.info("stream.altered stream=%s settings=%s", name, json.dumps(dict(values)))
            return info

    async def _set_state(self, name: str, paused: bool | None, read_only: bool | None) -> StreamInfo:
        async with self._changing:
            was = self._streams.info(name)
            command: dict[str, Any] = {"v": COMMAND_VERSION, "kind": "set_state", "name": name}
            command |= {} if paused is None else {"paused": paused}
            command |= {} if read_only is None else {"read_only": read_only}
            await asyncio.to_thread(self._streams.store.execute, command)
            info = self._streams.info(name)
            partitions = self._streams.by_name.get(name, [])
            if self._intake is not None and info.paused and not was.paused:
                await asyncio.wrap_future(self._intake.detach(name))  # what NATS has sent by now is still taken in
            for partition in partitions:
                partition.alter(info)
            if self._intake is not None and was.paused and not info.paused and partitions:
                await asyncio.wrap_future(self._intake.attach([(info, partitions)]))
            self._hub.note(name)
            log.info("stream.state stream=%s paused=%s read_only=%s", name, info.paused, info.read_only)
            return info

    async def _add_partitions(self, name: str, partitions: int) -> StreamInfo:
        async with self._changing:
            before = self._streams.info(name)
            had = self._streams.partitions(name)
            command = {"v": COMMAND_VERSION, "kind": "add_partitions", "name": name, "partitions": partitions}
            self._streams.store.catalog.check(command)
            self._streams.check_room(partitions=partitions - len(had))
            numbers = range(len(had), partitions)
            await asyncio.to_thread(self._streams.make_folders, name, before.incarnation, numbers)
            await asyncio.to_thread(self._streams.store.execute, command)
            info = self._streams.info(name)
            if not numbers:
                return info
            added = await asyncio.to_thread(lambda: [self._streams.open_partition(info, i) for i in numbers])
            self._streams.by_name[name] = [*had, *added]
            if self._intake is not None and not info.paused:
                await asyncio.wrap_future(self._intake.extend(info, added))
            self._hub.note(name)
            log.info("stream.partitions_added stream=%s partitions=%d", name, partitions)
            return info

    async def _trim(self, name: str, incarnation: str, before: Mapping[int, int]) -> dict[int, int]:
        async with self._changing:  # so it is not deleted meanwhile
            partitions = {number: self._streams.partition(name, number) for number in sorted(before)}
            self._streams.info(name).check_incarnation(incarnation)
            return {n: await asyncio.to_thread(self._trim_one, p, before[n]) for n, p in partitions.items()}

    def _trim_one(self, partition: Partition, before: int) -> int:
        was = partition.log.log_start_offset
        start = partition.trim(before)
        if start < before and partition.log.failure is not None:
            raise StorageFailed(f"{partition}: nothing is trimmed until the log has recovered")
        if start > was:
            partition.note_change()
            log.info("stream.trimmed partition=%s log_start_offset=%d records=%d", partition, start, start - was)
        return start

    async def _register_producer(self, name: str | None) -> tuple[int, int]:
        async with self._changing:
            command = {"v": COMMAND_VERSION, "kind": "register_producer", "name": name}
            registered = await asyncio.to_thread(self._streams.store.execute, command)
        if name is not None:
            log.info("producer.registered name=%s epoch=%d", name, registered["epoch"])
        return registered["producer_id"], registered["epoch"]

    async def _delete(self, name: str) -> None:
        async with self._changing:
            info = self._streams.info(name)
            await asyncio.to_thread(
                self._streams.store.execute, {"v": COMMAND_VERSION, "kind": "delete_stream", "name": name}
            )
            partitions = self._streams.by_name.pop(name, [])
            self._streams.offline.pop(name, None)
            if self._intake is not None:
                await asyncio.wrap_future(self._intake.detach(name))
            self._hub.note(name)
            await asyncio.to_thread(self._remove, info, partitions)
            log.info("stream.deleted stream=%s incarnation=%s", name, info.incarnation)

    def _remove(self, info: StreamInfo, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            partition.note_removed()
        self._on_removed(partitions)
        self._streams.remove(info, partitions)
