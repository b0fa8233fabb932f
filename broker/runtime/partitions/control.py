"""Change the set of streams, their settings and state: one change at a time, on the control loop.

Callers are on the data plane's loop; each change hops to the control loop, where a lock orders them. A change first
asks the catalog whether it may be, then makes and opens what it needs on the disk, then has the catalog record it
(durable from here on: it happened), and then tells the partitions, the intake and who waits for news. Threads wait for
the disk.

C1  A change waits until the start is over, and is refused once the stop has begun: the first would be captured twice,
    the second hang on an intake that has ended.
C2  A change that fails before the catalog has recorded it leaves nothing open, and no folder behind.
C3  Every change of a stream that is offline first tries to open it.
C4  What fails once the catalog has recorded a change, or one of several partitions is trimmed, says so: `sent`. Without
    it a client, and the audit, take the change for one that was not made.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from broker.api.errors import LiftlogError, NotReady, StorageFailed, partly
from broker.api.stream import alone, check_new_subject
from broker.metadata.catalog import COMMAND_VERSION, StreamInfo, info_from
from broker.runtime.config.configuration import Config
from broker.runtime.intake.driver import IntakeDriver
from broker.runtime.partitions.leader import Partition
from broker.runtime.partitions.streams import Streams
from broker.runtime.partitions.watch import ChangeHub
from broker.runtime.used_producers import registration

log = logging.getLogger(__name__)
T = TypeVar("T")

FORGET_AT: Final = 256
"""So many deletions that are wholly done are forgotten with one command."""


def forget_command(incarnations: Sequence[str]) -> dict[str, Any]:
    """The catalog's command that forgets deleted streams whose folders are gone."""
    return {"v": COMMAND_VERSION, "kind": "forget_deleted", "incarnations": list(incarnations)}


class Control:
    """Changes of the catalog. Made on the control loop, called from any other.

    Args:
        intake: None: nothing is captured.
        take_in: Called with the partitions of a stream that came online, before anybody else sees them; may block.
        on_removed: Called with the partitions of a deleted stream before their logs are closed; may block.
    """

    def __init__(
        self,
        config: Config,
        streams: Streams,
        intake: IntakeDriver | None,
        hub: ChangeHub,
        *,
        take_in: Callable[[Sequence[Partition]], None],
        on_removed: Callable[[Sequence[Partition]], None],
    ) -> None:
        self._config = config
        self._streams = streams
        self._intake = intake
        self._hub = hub
        self._take_in = take_in
        self._on_removed = on_removed
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()
        self._is_closed = False
        self._changing = asyncio.Lock()
        self._forgettable: list[str] = []

    def begin(self) -> None:
        """The start is over: carry out changes, those that wait first (C1). On the control loop."""
        self._begun.set()

    async def close(self) -> None:
        """Finish the change under way, and refuse all others. On the control loop."""
        self._begun.set()
        async with self._changing:
            self._is_closed = True

    def retry_offline(self) -> None:
        """Have the streams tried again that are offline because the disk refused. From any thread; does not wait."""
        if self._streams.refused_by_disk():
            asyncio.run_coroutine_threadsafe(self._retry_offline(), self._loop).add_done_callback(_log_failed_retry)

    async def create_stream(
        self, name: str, values: Mapping[str, Any], *, beside: Sequence[str] | None = None
    ) -> tuple[StreamInfo, bool]:
        """Create a stream, or find that it exists with the same settings.

        Raises:
            StreamExists: with other settings: `differences`.
        """
        return await self._on_control(self._create(name, values, beside))

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

    async def raise_fence(self, name: str, incarnation: str, partition: int, after: int) -> int:
        """As `StreamChanges.raise_fence`; the partition goes by it then."""
        return await self._on_control(self._raise_fence(name, incarnation, partition, after))

    async def trim_stream(self, name: str, incarnation: str, before: Mapping[int, int]) -> dict[int, int]:
        """Let go of the records below an offset of each named partition. Returns the new log starts.

        Whole segments go; records below the offset that share a segment with later ones are hidden.

        Raises:
            UnknownStream, UnknownPartition: not there.
            StaleIncarnation: the stream was deleted and re-created since the offsets were found.
            StorageFailed, DiskFull: the disk refused; some partitions may have been trimmed.
        """
        return await self._on_control(self._trim(name, incarnation, before))

    async def register_producer(self, name: str | None, owner: str | None = None) -> tuple[int, int]:
        """An id and an epoch for an idempotent producer; under a name the same id again, and the next epoch."""
        return await self._on_control(self._register_producer(name, owner))

    async def note_producers(self, names: Sequence[str], at_ms: int) -> None:
        """These are used: their names are kept."""
        await self._on_control(self._of_producers({"kind": "note_producers", "names": list(names), "at_ms": at_ms}))

    async def forget_producer(self, name: str) -> None:
        """Forget the name of a producer. Raises UnknownProducer."""
        await self._on_control(self._of_producers({"kind": "forget_producer", "name": name}))
        log.info("producer.forgotten name=%s", name)

    async def change_access(self, kind: str, values: Mapping[str, Any]) -> int:
        """Tokens and grants: returns when this broker goes by it. Raises UnknownToken."""
        return await self._on_control(self._change_access(kind, values))

    async def change_group(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """A command of `group_commands`: returns when this broker goes by it."""
        return await self._on_control(self._change_group(kind, values))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and its records."""
        await self._on_control(self._delete(name))

    # --- on the control loop ----------------------------------------------------------------------------------

    async def _on_control(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        await self._begun.wait()
        async with self._changing:
            if self._is_closed:
                raise NotReady("the broker is stopping")
            yield

    async def _execute(self, command: Mapping[str, Any]) -> Any:
        return await asyncio.to_thread(self._streams.store.execute, command)

    async def _create(
        self, name: str, values: Mapping[str, Any], beside: Sequence[str] | None
    ) -> tuple[StreamInfo, bool]:
        values = alone(values)
        async with self._turn():
            command = self._streams.create_command(name, values, internal=False)
            command |= {} if beside is None else {"beside": [*beside]}
            judged = self._streams.store.catalog.judge(command)
            info = info_from(judged["stream"])
            if judged["created"]:
                check_new_subject(info.settings)
                self._streams.check_encryption(info.settings)
            else:
                await self._open_again(info)
                self._streams.partitions(name)  # or why it is offline
                return info, False
            self._streams.check_room(streams=1, partitions=info.settings.partitions)
            partitions = await self._record(command, info, range(info.settings.partitions), remove=True)
            self._streams.by_name[name] = partitions
            with partly(True):  # C4
                if self._intake is not None:
                    await asyncio.wrap_future(self._intake.attach([(info, partitions)]))
            self._hub.note(ChangeHub.ALL)
            log.info("stream.created stream=%s subject=%s partitions=%d", name, info.settings.subject, len(partitions))
            return info, True

    async def _record(
        self, command: Mapping[str, Any], info: StreamInfo, numbers: Sequence[int], *, remove: bool
    ) -> list[Partition]:
        """Make and open partitions, and have the catalog record them; or nothing of it (C2).

        Args:
            remove: All of the incarnation is new: its folder goes if it is not recorded.
        """
        try:
            opened = await asyncio.to_thread(self._streams.prepare, info, numbers)
        except BaseException:
            await asyncio.to_thread(self._streams.discard, info, (), remove=remove)
            raise
        try:
            await self._execute(command)
        except BaseException as error:
            # Not known whether it is recorded: then a stream without folders would be worse than folders of no stream.
            is_known = isinstance(error, LiftlogError) and not error.fields.get("sent")
            await asyncio.to_thread(self._streams.discard, info, opened, remove=remove and is_known)
            raise
        return opened

    async def _open_again(self, info: StreamInfo) -> None:
        """Try to open a stream that is offline (C3)."""
        name = info.name
        if name not in self._streams.offline:
            return
        if not await asyncio.to_thread(self._streams.bring_up, info, self._take_in):
            return
        if self._intake is not None and not info.paused:
            await asyncio.wrap_future(self._intake.attach([(info, self._streams.by_name[name])]))
        self._hub.note(ChangeHub.ALL)

    async def _retry_offline(self) -> None:
        async with self._turn():
            for info in self._streams.refused_by_disk():
                await self._open_again(info)

    async def _alter(self, name: str, values: Mapping[str, Any]) -> StreamInfo:
        values = alone(values)
        async with self._turn():
            await self._execute({"v": COMMAND_VERSION, "kind": "alter_stream", "name": name, "settings": dict(values)})
            info = self._streams.info(name)
            with partly(True):  # C4
                await self._open_again(info)
                await self._tell(info, self._streams.by_name.get(name, ()))
                if self._intake is not None and name in self._streams.by_name and info.settings.subject is not None:
                    await asyncio.wrap_future(self._intake.alter(info))
            log.info("stream.altered stream=%s settings=%s", name, json.dumps(dict(values)))
            return info

    async def _tell(self, info: StreamInfo, partitions: Sequence[Partition]) -> None:
        """Have partitions take over altered settings; a log that is at a write of its own has to be waited for."""

        def tell() -> None:
            for partition in partitions:
                partition.alter(info)

        await asyncio.to_thread(tell)

    async def _set_state(self, name: str, paused: bool | None, read_only: bool | None) -> StreamInfo:
        async with self._turn():
            was = self._streams.info(name)
            await self._open_again(was)
            command: dict[str, Any] = {"v": COMMAND_VERSION, "kind": "set_state", "name": name}
            command |= {} if paused is None else {"paused": paused}
            command |= {} if read_only is None else {"read_only": read_only}
            await self._execute(command)
            info = self._streams.info(name)
            partitions = self._streams.by_name.get(name, [])
            with partly(True):  # C4
                if self._intake is not None and info.paused and not was.paused:
                    await asyncio.wrap_future(self._intake.detach(name))  # what NATS has sent by now is still taken in
                await self._tell(info, partitions)
                if self._intake is not None and was.paused and not info.paused and partitions:
                    await asyncio.wrap_future(self._intake.attach([(info, partitions)]))
            self._hub.note(ChangeHub.ALL)
            log.info("stream.state stream=%s paused=%s read_only=%s", name, info.paused, info.read_only)
            return info

    async def _raise_fence(self, name: str, incarnation: str, partition: int, after: int) -> int:
        async with self._turn():
            await self._open_again(self._streams.info(name))
            command: dict[str, Any] = {"v": COMMAND_VERSION, "kind": "raise_fence", "name": name}
            command |= {"incarnation": incarnation, "partition": partition, "after": after, "above": True}
            fence = int((await self._execute(command))["fence"])
            with partly(True):  # C4
                await self._tell(self._streams.info(name), [self._streams.partition(name, partition)])
            log.info("partition.fenced partition=%s/%d fence=%d", name, partition, fence)
            return fence

    async def _add_partitions(self, name: str, partitions: int) -> StreamInfo:
        async with self._turn():
            await self._open_again(self._streams.info(name))
            had = self._streams.partitions(name)
            command = {"v": COMMAND_VERSION, "kind": "add_partitions", "name": name, "partitions": partitions}
            info = info_from(self._streams.store.catalog.judge(command)["stream"])
            numbers = range(len(had), partitions)
            if not numbers:
                return info
            self._streams.check_room(partitions=len(numbers))
            added = await self._record(command, info, numbers, remove=False)
            self._streams.by_name[name] = [*had, *added]
            with partly(True):  # C4
                if self._intake is not None and not info.paused:
                    await asyncio.wrap_future(self._intake.extend(info, added))
            self._hub.note(ChangeHub.ALL)
            log.info("stream.partitions_added stream=%s partitions=%d", name, partitions)
            return info

    async def _trim(self, name: str, incarnation: str, before: Mapping[int, int]) -> dict[int, int]:
        async with self._turn():  # so it is not deleted meanwhile
            partitions = {number: self._streams.partition(name, number) for number in sorted(before)}
            self._streams.info(name).check_incarnation(incarnation)
            starts: dict[int, int] = {}
            for number, partition in partitions.items():
                with partly(bool(starts)):  # C4
                    starts[number] = await asyncio.to_thread(self._trim_one, partition, before[number])
            return starts

    def _trim_one(self, partition: Partition, before: int) -> int:
        if partition.log.state.failure is not None:
            partition.commit_all()  # or why nothing can be trimmed
        was = partition.log.state.log_start_offset
        start = partition.replica.trim(before)
        if start < before and partition.log.state.failure is not None:
            raise StorageFailed(f"{partition}: nothing is trimmed until the log has recovered")
        if start > was:
            partition.replica.note_change()
            log.info("stream.trimmed partition=%s log_start_offset=%d records=%d", partition, start, start - was)
        return start

    async def _of_producers(self, command: Mapping[str, Any]) -> None:
        async with self._turn():
            await self._execute({"v": COMMAND_VERSION, **command})

    async def _change_access(self, kind: str, values: Mapping[str, Any]) -> int:
        async with self._turn():
            version = int((await self._execute({"v": COMMAND_VERSION, "kind": kind, **values}))["version"])
        log.info("access.changed kind=%s by=%s version=%d", kind, values["by"], version)
        return version

    async def _change_group(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        async with self._turn():
            result: dict[str, Any] = await self._execute({"v": COMMAND_VERSION, "kind": kind, **values})
            self._hub.note(*self._streams.store.catalog.groups.told(values["name"]))
        return result

    async def _register_producer(self, name: str | None, owner: str | None) -> tuple[int, int]:
        command = {"kind": "register_producer", **registration(self._config.producers, name, owner, can_tag=True)}
        async with self._turn():
            registered = await self._execute({"v": COMMAND_VERSION, **command})
        if name is not None:
            log.info("producer.registered name=%s epoch=%d", name, registered["epoch"])
        return registered["producer_id"], registered["epoch"]

    async def _delete(self, name: str) -> None:
        async with self._turn():
            info = self._streams.info(name)
            await self._execute({"v": COMMAND_VERSION, "kind": "delete_stream", "name": name})
            partitions = self._streams.by_name.pop(name, [])
            self._streams.offline.pop(name, None)
            with partly(True):  # C4
                if self._intake is not None:
                    await asyncio.wrap_future(self._intake.detach(name))
                self._hub.note(ChangeHub.ALL)
                if await asyncio.to_thread(self._remove, info, partitions):
                    await self._forget(info.incarnation)
            log.info("stream.deleted stream=%s incarnation=%s", name, info.incarnation)

    def _remove(self, info: StreamInfo, partitions: Sequence[Partition]) -> bool:
        for partition in partitions:
            partition.note_removed()
        self._on_removed(partitions)
        return self._streams.remove(info, partitions)

    async def _forget(self, incarnation: str) -> None:
        self._forgettable.append(incarnation)
        if len(self._forgettable) < FORGET_AT:
            return  # the next start forgets what is left
        try:
            await self._execute(forget_command(self._forgettable))
        except LiftlogError as error:  # the stream is deleted all the same
            log.warning("catalog.not_forgotten count=%d error=%s", len(self._forgettable), error)
        else:
            self._forgettable.clear()


def _log_failed_retry(retry: Future[None]) -> None:
    """Nobody awaits it: a failure would be seen nowhere."""
    error = None if retry.cancelled() else retry.exception()
    if error is not None and not isinstance(error, NotReady):
        log.error("stream.retry_bug error=%r", error, exc_info=error)
