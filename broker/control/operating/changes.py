"""Changes of streams: a command for the controller, then a wait until it is done.

    call ─► judge what this release cannot do ─► execute (controller, majority) ─► applied here ─► opened, led

X1  A change is answered when this broker's own catalog has it: whoever asks it next sees what he has changed. HTTP
    answers once the leaders go by it, too (`serving.endpoints.streams.until_served`).
X2  A new stream is answered when it is led and all its replicas have opened it whose brokers live, or after
    `DONE_S`. It exists in either case; a warning says what is missing. A client hears it before its patience ends.
X3  A setting that would lose messages in silence is refused by name: a queue group gives each broker a share of all
    messages, so a partition that is chosen by key, subject or token would miss those that went to the others.
X4  A trim is answered once no replica that may lead begins below it (`trims.T2`).
X5  Added partitions are answered when they count: every leader has confirmed them (`growth.G1`). Until then the stream
    has as many as before, and says how many there will be. To ask again is to wait again.
X6  A broker without a session changes nothing: one that stood still finds requests that others have carried out since,
    and a stream may have been deleted, and made again, behind them. A deletion is of the stream that this broker knows.
X7  A command that is answered in doubt has been carried out by then, or never will be (`service.V5`).
X8  Where one broker is alone, logs of new partitions are made before the catalog names them (`replicas.G22`): what the
    disk refuses is answered at once, and nothing of it comes later. So nobody has published to what is not made. One
    such change is made at a time, to its end, also where nobody waits for it any more: else what it has made would
    stay, and the next one would open it, too. No partitions are added to a stream that is not served: their folders
    would be made where the others are to be put back.
X9  What comes before the registration is refused, as by X6; what comes after it is carried out, also while the start
    waits for what is to be served. So nobody waits for a start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final, TypeVar

from broker.api.errors import (
    DeadlineExceeded,
    InvalidSetting,
    LiftlogError,
    NotReady,
    StaleIncarnation,
    partly,
)
from broker.api.stream import (
    StreamSettings,
    alone,
    check_name,
    check_new_subject,
    new_values,
    replication_of,
    settings_from,
)
from broker.config.configuration import Config
from broker.config.master_keys import check_encryption
from broker.control.used_producers import registration
from broker.metadata.catalog import COMMAND_VERSION, TAG_SINCE, StreamInfo
from broker.metadata.cluster import FENCES_ABOVE
from broker.metadata.info import info_from
from broker.node.own_streams import replicas_default
from broker.node.replicas import Replicas
from broker.node.streams import PlacedStreams
from broker.node.wiring import CatalogService
from broker.serving.contract.deadline import answer_due
from broker.serving.http.gone import asker
from broker.serving.threads import Threads

log = logging.getLogger(__name__)

T = TypeVar("T")

DONE_S: Final = 8.0
"""A client that hears nothing for 10 s asks again. A broker that dies is failed in 2 s (with many partitions later),
and the first election waits 5 s for a replica that is not opened (`controller.py`)."""
APPLIED_S: Final = 8.0
ASKED_S: Final = 8.0
"""So long after it was asked for a command may begin, whatever it waited for here. As `DONE_S`."""


@cache
def waiting() -> Threads:
    """Threads that wait for the controller. They are no others': metrics and states are told while there is none."""
    return Threads(8, name="command")


def check_may_change(may_change: Callable[[], bool]) -> None:
    """Raise NotReady if this broker may change nothing (X6)."""
    if not may_change():
        raise NotReady("this broker has no session: what it is asked may be done by now")


async def in_time(service: CatalogService, command: Mapping[str, Any]) -> Any:
    """Have a command carried out before its client is told that nobody knows, or never (X7); nor once it is gone
    (`gone.G1`). Raises as `execute`."""
    until_s = min(answer_due.get(), time.monotonic() + ASKED_S)
    return await waits(partial(service.execute, command, until_s=until_s, check=asker()))


async def waits(call: Callable[[], T]) -> T:
    """Make a call that waits for the controller, on a thread that may wait. Raises Overloaded: there is none."""
    return await asyncio.get_running_loop().run_in_executor(waiting(), call)


class PlacedControl:
    """See the module. Coroutines run on the data plane's loop.

    Args:
        on_change: Called after each command that was applied here, on the catalog's thread.
        may_change: X6.
        logs: This broker's own.
        has_master_key: This broker has one, and so may make streams that are encrypted.
        new_id: Makes a name that nothing else has.
        wall_us: The time of day.
    """

    def __init__(
        self,
        config: Config,
        service: CatalogService,
        streams: PlacedStreams,
        *,
        loop: asyncio.AbstractEventLoop,
        on_change: Callable[[], None],
        may_change: Callable[[], bool],
        check_disk: Callable[[], None] = lambda: None,
        logs: Replicas | None = None,
        has_master_key: bool = False,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._check_disk = check_disk
        self._logs, self._making = logs, asyncio.Lock()
        self._has_master_key = has_master_key
        self._new_id = new_id
        self._wall_us = wall_us
        self._config = config
        self._service = service
        self._streams = streams
        self._loop = loop
        self._on_change = on_change
        self._may_change = may_change
        self._applied = asyncio.Event()
        self._is_closed = False

    # --- life -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Hear of what is applied, before anything may be changed (X9). From any thread."""
        self._service.subscribe(self._changed)

    async def close(self) -> None:
        """Refuse all further changes."""
        self._is_closed = True

    def _changed(self) -> None:
        """On the catalog's thread."""
        self._on_change()
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the broker stops
            return

    def _wake(self) -> None:
        before, self._applied = self._applied, asyncio.Event()
        before.set()

    async def _until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until it holds after a command was applied here; returns whether it does."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    applied = self._applied  # before looking
                    if done():
                        return True
                    await applied.wait()
        except TimeoutError:
            return done()

    async def execute(self, kind: str, **values: Any) -> Any:
        """Have a command carried out. Raises as `CatalogService.execute`; NotReady: the broker stops, or X6."""
        if self._is_closed:
            raise NotReady("the broker is stopping")
        check_may_change(self._may_change)
        command = {"v": COMMAND_VERSION, "kind": kind, "request_id": self._new_id(), **values}
        return await in_time(self._service, command)

    async def _open_again(self, name: str) -> None:
        """A command is a reason to try once more what is kept shut here (`replicas.G18`)."""
        info = self._service.catalog.streams.get(name)
        if info is not None and self._logs is not None:
            await asyncio.gather(*map(asyncio.wrap_future, self._logs.open_again(info.incarnation)))

    # --- streams --------------------------------------------------------------------------------------------

    async def create_stream(
        self, name: str, values: Mapping[str, Any], *, beside: Sequence[str] | None = None
    ) -> tuple[StreamInfo, bool]:
        """Create a stream, or find that it exists with the same settings (X2).

        Raises:
            StreamExists: with other settings: `differences`.
            NotReady: there are fewer brokers than replicas.
        """
        settings, factor, least = self._replication_of(values)
        catalog = self._service.catalog
        existing = catalog.streams.get(name)
        merged = new_values(
            settings,
            self._config.defaults,
            existing.settings if existing else None,
            level=catalog.cluster.feature_level,
        )
        wanted = check_encryption(check_new_subject(settings_from(merged)), has_key=self._has_master_key)
        self._check(wanted)
        self._check_room(name, wanted.partitions)
        known = len(self._service.catalog.brokers)
        new = StreamInfo(name=check_name(name), incarnation=self._new_id(), created_us=self._wall_us(), settings=wanted)

        def made() -> tuple[StreamInfo, Sequence[int]]:
            self._check_room(name, wanted.partitions)
            return new, range(0 if name in self._service.catalog.streams else wanted.partitions)

        said = await self._with_logs(
            made,
            "create_stream",
            name=name,
            incarnation=new.incarnation,
            created_us=new.created_us,
            settings=merged,
            internal=False,
            replication_factor=factor or replicas_default(len(self._config.cluster.voters), known),
            **({} if least is None else {"min_insync_replicas": least}),
            **({} if beside is None else {"beside": [*beside]}),
        )
        info, is_new = info_from(said["stream"]), bool(said["created"])
        if is_new:
            of = info.settings
            log.info("stream.created stream=%s subject=%s partitions=%d", name, of.subject, of.partitions)
        else:
            await self._open_again(name)
        why = await self._why_unserved(info)
        if why is not None and not is_new:
            raise why
        warning = f"not all of it is served yet: {why}" if why is not None else ""
        if why is None and (missing := await self._wait_opened(info)):
            warning = f"partitions {missing} have no leader yet, or not all of their replicas"
        if warning:
            info = replace(info, warnings=(*info.warnings, warning))
        return info, is_new

    async def _with_logs(self, new: Callable[[], tuple[StreamInfo, Sequence[int]]], kind: str, **values: Any) -> Any:
        """Carry a command out, behind whose back nothing has to be made (X8).

        Args:
            new: The stream and its new partitions, as the catalog is by then.
        """
        logs = self._logs
        if logs is None or not self._service.catalog.cluster.is_of_one:
            return await self.execute(kind, **values)
        await self._making.acquire()
        making = asyncio.ensure_future(self._make_with_logs(logs, new, kind, **values))
        making.add_done_callback(self._made)
        return await asyncio.shield(making)

    def _made(self, making: asyncio.Future[Any]) -> None:
        self._making.release()
        if not making.cancelled():
            making.exception()  # who asked may be gone

    async def _make_with_logs(
        self, logs: Replicas, new: Callable[[], tuple[StreamInfo, Sequence[int]]], kind: str, **values: Any
    ) -> Any:
        check_may_change(self._may_change)
        info, numbers = new()
        made = await asyncio.to_thread(logs.make, info, numbers)
        try:
            said = await self.execute(kind, **values)
        except LiftlogError as error:
            if not error.fields.get("sent"):
                await asyncio.to_thread(logs.unmake, info, made)
            raise
        if said["stream"]["incarnation"] != info.incarnation:  # somebody else was faster
            await asyncio.to_thread(logs.unmake, info, made)
        return said

    def _replication_of(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], int | None, int | None]:
        if self._service.catalog.cluster.is_of_one:
            alone(values)
        return replication_of(values)

    async def _why_unserved(self, info: StreamInfo) -> LiftlogError | None:
        """Why a stream is not wholly served, where this broker is alone; waits until it is, or that is known."""
        if self._logs is None or not self._service.catalog.cluster.is_of_one:
            return None
        places = [(info.incarnation, number) for number in range(info.settings.partitions)]
        return await asyncio.to_thread(self._logs.settle, places, DONE_S)

    async def _wait_opened(self, info: StreamInfo) -> list[int]:
        """Wait for X2. Returns the partitions that are not there yet."""

        def missing(*, of_live: bool = False) -> list[int]:
            now = self._service.catalog
            live = {broker_id for broker_id, broker in now.brokers.items() if broker.is_live}
            found = {n: now.cluster.partitions.get((info.incarnation, n)) for n in range(info.settings.partitions)}
            return [
                n
                for n, s in found.items()
                if s is None or s.leader is None or {*s.replicas} & (live if of_live else {*s.replicas}) - {*s.opened}
            ]

        await self._until(lambda: not missing(of_live=True) or self._is_gone(info), DONE_S)
        return missing()

    def _is_gone(self, info: StreamInfo) -> bool:
        now = self._service.catalog
        return info.incarnation in now.deleted

    async def alter_stream(self, name: str, values: Mapping[str, Any]) -> StreamInfo:
        """Change settings of a live stream; its minimum in sync and the number of its replicas too."""
        settings, factor, least = self._replication_of(values)
        await self._open_again(name)
        info = self._streams.info(name)
        if factor is not None and not self._is_raised(info, factor):
            factor = None
        if settings:
            self._check(settings_from(settings, base=info.settings))
            info = info_from((await self.execute("alter_stream", name=name, settings=settings))["stream"])
        with partly(bool(settings)):
            if factor is not None:
                more = {} if least is None else {"min_insync_replicas": least}
                await self.execute("raise_replication", name=name, replication_factor=factor, **more)
            elif least is not None:
                await self.execute("set_min_insync", stream=info.incarnation, min_insync_replicas=least)
        log.info("stream.altered stream=%s settings=%s", name, json.dumps(dict(values)))
        await self._until(lambda: self._is_replicated(info, factor, least) or self._is_gone(info), APPLIED_S)
        return await self._seen(info)

    async def set_stream_state(
        self, name: str, *, paused: bool | None = None, read_only: bool | None = None
    ) -> StreamInfo:
        """Pause, resume, make read-only or writable; None leaves as it is. Raises UnknownStream."""
        await self._open_again(name)
        values = {key: value for key, value in (("paused", paused), ("read_only", read_only)) if value is not None}
        info = info_from((await self.execute("set_state", name=name, **values))["stream"])
        log.info("stream.state stream=%s paused=%s read_only=%s", name, info.paused, info.read_only)
        return await self._seen(info)

    async def add_partitions(self, name: str, partitions: int) -> StreamInfo:
        """Raise the number of partitions. Answered when all leaders sort by it, or after `DONE_S` with a warning that
        says that it is under way (X5).

        Raises:
            InvalidSetting: there would be fewer, or too many; or X3.
        """
        await self._open_again(name)
        info = self._streams.info(name)
        self._check(settings_from({"partitions": partitions}, base=info.settings))
        self._check_room(name, partitions)
        if (why := await self._why_unserved(info)) is not None:
            raise why

        def added() -> tuple[StreamInfo, Sequence[int]]:
            now = self._streams.info(name)
            self._check_room(name, partitions)
            return now, range(max(now.settings.partitions, now.partitions_next), partitions)

        said = await self._with_logs(added, "add_partitions", name=name, partitions=partitions)
        asked = info_from(said["stream"])

        def is_done() -> bool:
            now = self._streams_info(asked)
            is_other = now is not None and now.incarnation != asked.incarnation
            return is_other or self._is_gone(asked) or (now is not None and now.settings.partitions >= partitions)

        if await self._until(is_done, DONE_S):
            log.info("stream.partitions_added stream=%s partitions=%d", name, partitions)
        else:
            log.warning("stream.partitions_pending stream=%s partitions=%d", name, partitions)
        with partly(True):
            return self._streams.info(name)

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and its records. Its brokers remove the folders by themselves.

        Raises:
            NotReady: the stream has been made anew, and this broker does not know of it yet.
        """
        info = self._streams.info(name)
        try:
            await self.execute("delete_stream", name=name, incarnation=info.incarnation)
        except StaleIncarnation as error:
            raise NotReady(str(error)) from error
        await self._until(lambda: self._incarnation(name) != info.incarnation, APPLIED_S)
        log.info("stream.deleted stream=%s incarnation=%s", name, info.incarnation)

    async def raise_fence(self, name: str, incarnation: str, partition: int, after: int) -> int:
        """As `StreamChanges.raise_fence`. Its leader goes by it a moment later."""
        asked = {"name": name, "incarnation": incarnation, "partition": partition, "after": after}
        if self._service.catalog.cluster.feature_level >= FENCES_ABOVE:
            asked["above"] = True
        fence = int((await self.execute("raise_fence", **asked))["fence"])
        log.info("partition.fenced partition=%s/%d fence=%d", name, partition, fence)
        return fence

    async def trim_stream(self, name: str, incarnation: str, before: Mapping[int, int]) -> dict[int, int]:
        """Let go of the records below an offset of each named partition, which are led here (X4).

        Raises:
            NotLeader, NotReady: of the first partition that is not led here; none of them was trimmed.
            DeadlineExceeded: a replica in sync has not followed yet; it will.
        """
        partitions = {number: self._streams.partition(name, number) for number in sorted(before)}
        self._streams.info(name).check_incarnation(incarnation)
        for partition in partitions.values():
            if partition.log.state.failure is not None:
                await waits(partition.recover_alone)
        asked = dict[int, Future[None]]()
        for number, partition in partitions.items():
            with partly(bool(asked)):
                asked[number] = await waits(partial(partition.trim, before[number]))  # the disk is asked for stages
        try:
            async with asyncio.timeout(DONE_S):
                await asyncio.gather(*map(asyncio.wrap_future, asked.values()))
        except TimeoutError:
            raise DeadlineExceeded(
                f"trim {name}: not every replica in sync has followed yet; each will", sent=True
            ) from None
        starts = {number: partition.log.state.log_start_offset for number, partition in partitions.items()}
        log.info("stream.trimmed stream=%s log_start_offsets=%s", name, starts)
        return starts

    async def register_producer(self, name: str | None, owner: str | None = None) -> tuple[int, int]:
        """An id and an epoch for an idempotent producer; under a name the same id again, and the next epoch."""
        can_tag = self._service.catalog.cluster.feature_level >= TAG_SINCE
        fields = registration(self._config.producers, name, owner, can_tag=can_tag)
        said = await self.execute("register_producer", **fields)
        producer_id, epoch = said["producer_id"], said["epoch"]
        await self._until(lambda: self._service.catalog.producer_names.knows(producer_id, epoch), APPLIED_S)
        if name is not None:
            log.info("producer.registered name=%s epoch=%d", name, epoch)
        return producer_id, epoch

    async def note_producers(self, names: Sequence[str], at_ms: int) -> None:
        """These are used: their names are kept."""
        await self.execute("note_producers", names=list(names), at_ms=at_ms)

    async def forget_producer(self, name: str) -> None:
        """Forget the name of a producer. Raises UnknownProducer."""
        await self.execute("forget_producer", name=name)
        await self._until(lambda: name not in self._service.catalog.producers, APPLIED_S)
        log.info("producer.forgotten name=%s", name)

    async def change_access(self, kind: str, values: Mapping[str, Any]) -> int:
        """Tokens and grants: returns when this broker goes by it. Raises UnknownToken."""
        version = int((await self.execute(kind, **values))["version"])
        await self._until(lambda: self._service.catalog.access.version >= version, APPLIED_S)
        log.info("access.changed kind=%s by=%s version=%d", kind, values["by"], version)
        return version

    async def change_group(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """A command of `group_commands`: returns when this broker goes by it."""
        said: dict[str, Any] = await self.execute(kind, **values)
        await self._until(lambda: self._service.catalog.groups.last >= said["version"], APPLIED_S)
        return said

    # --- helpers --------------------------------------------------------------------------------------------

    def _check_room(self, name: str, partitions: int) -> None:
        """Whether a stream may have so many partitions. Raises InvalidRequest, DiskFull."""
        others = dict(self._service.catalog.streams)
        own = others.pop(name, None)
        exist = sum(not info.internal for info in others.values())
        total = sum(max(info.settings.partitions, info.partitions_next) for info in others.values()) + partitions
        is_more = own is None or partitions > own.settings.partitions
        self._config.limits.check(streams=exist + 1 if own is None else 0, partitions=total if is_more else 0)
        if is_more:
            self._check_disk()

    def _check(self, settings: StreamSettings) -> None:
        """X3."""
        if self._service.catalog.cluster.is_of_one:
            return
        if settings.group is not None and settings.partitions > 1 and settings.partition_by != "subject_suffix":
            raise InvalidSetting(
                f"group={settings.group!r} with partition_by={settings.partition_by} and {settings.partitions}"
                " partitions: in a cluster each leader would get a share of all messages, and pass over those of other"
                " partitions; use partition_by=subject_suffix, one partition, or no group",
                key="group",
                value=settings.group,
            )

    async def _seen(self, info: StreamInfo) -> StreamInfo:
        """X1."""
        await self._until(lambda: self._streams_info(info) == info or self._is_gone(info), APPLIED_S)
        with partly(True):
            return self._streams.info(info.name)

    def _is_replicated(self, info: StreamInfo, factor: int | None, least: int | None) -> bool:
        """Whether this broker's catalog has what was asked of the replicas, done or under way (X1)."""
        states = self._service.catalog.cluster.partitions
        found = [states.get((info.incarnation, number)) for number in range(info.settings.partitions)]
        if factor is not None:
            return all(state is not None and len(state.target or state.replicas) >= factor for state in found)
        return all(state is not None and state.min_insync_replicas == least for state in found) or least is None

    def _is_raised(self, info: StreamInfo, factor: int) -> bool:
        """Whether some partition gets other replicas besides; False: all have as many.

        Raises:
            InvalidSetting: one has more.
        """
        states = self._service.catalog.cluster.partitions
        places = ((info.incarnation, number) for number in range(info.settings.partitions))
        counts = [len(state.target or state.replicas) for at in places if (state := states.get(at)) is not None]
        if max(counts, default=0) > factor:
            raise InvalidSetting(
                f"replication_factor={factor}: a partition has {max(counts)} replicas; to have fewer, name those"
                " that stay with `liftlog cluster reassign`",
                key="replication_factor",
                value=factor,
            )
        return min(counts, default=0) < factor

    def _streams_info(self, info: StreamInfo) -> StreamInfo | None:
        return self._service.catalog.streams.get(info.name)

    def _incarnation(self, name: str) -> str | None:
        info = self._service.catalog.streams.get(name)
        return None if info is None else info.incarnation
