"""Changes of streams where a step fails, or comes at the wrong moment: one broker in this process, on a real folder.

Goal: a change is made wholly or not at all; a stream is open, or offline and says why; nothing stays open or on the
disk that nobody knows of. The intake is a stand-in that writes down what it was told.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import os
import random
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from broker.api.certificate_faults import FOREIGN, Tell, Unbelieved
from broker.api.errors import (
    DiskFull,
    InvalidSetting,
    InvalidSubject,
    LiftlogError,
    NotReady,
    NotSupported,
    StorageFailed,
    StreamExists,
    UnknownStream,
    WrongFolder,
)
from broker.common.disk_reserve import Room
from broker.config.configuration import load
from broker.control.catalog_store import CatalogStore
from broker.control.operating import changes as control_module
from broker.intake import jetstream
from broker.intake.driver import IntakeDriver
from broker.metadata.catalog import StreamInfo
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.runtime.clustered import ClusterBroker
from broker.storage.disk import Disk, OsDisk
from broker.storage.disk.osfile import OsFile
from broker.storage.disk.preallocate import AheadFile
from broker.storage.log import PartitionLog
from tests.support.effort import seeded, seeds
from tests.support.logs import row_batch
from tests.support.lone import lone_broker
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _no_jetstream(monkeypatch: pytest.MonkeyPatch) -> None:
    """No NATS server is asked what JetStream captures: there is none, and each stream would wait 2 s for it."""

    async def captures_nothing(*_: object) -> list[str]:
        return []

    monkeypatch.setattr(jetstream, "jetstream_on", captures_nothing)


class Intake:
    """An intake, as the broker knows it. It does everything at once."""

    implementation = "none"

    def __init__(self) -> None:
        self.state = "connected"
        self.told: list[tuple[str, str]] = []
        self.captured: set[tuple[str, int]] = set()
        self.during_stop: Callable[[], None] = lambda: None

    def start(self) -> None:
        self.told.append(("start", ""))

    def stop(self, timeout_s: float) -> None:
        self.during_stop()

    def begin(self, info: StreamInfo, partition: Partition) -> Future[None]:
        if info.settings.subject is not None:
            self.captured.add((info.name, partition.partition))
        return self._done("begin", info.name)

    def end(self, partition: Partition, *, with_sent: bool = False) -> Future[None]:
        self.captured.discard((partition.stream, partition.partition))
        return self._done("end", partition.stream)

    def of(self, stream: str) -> set[int]:
        """The partitions of a stream that are captured."""
        return {number for name, number in self.captured if name == stream}

    def not_captured(self, stream: str) -> list[str]:
        return []

    def uncaptured(self, stream: str) -> list[str]:
        return IntakeDriver.uncaptured(cast(Any, self), stream)

    def _done(self, what: str, *streams: str) -> Future[None]:
        self.told += [(what, stream) for stream in streams]
        future: Future[None] = Future()
        future.set_result(None)
        return future


def make(path: Path, intake: Intake | None = None) -> ClusterBroker:
    """A broker that has not begun."""
    is_enabled = str(intake is not None).lower()
    env = {"LIFTLOG_DATA_DIR": str(path / "data"), "LIFTLOG_HTTP_PORT": "0", "LIFTLOG_INTAKE_ENABLED": is_enabled}
    return lone_broker(load(None, env), cast(IntakeDriver, intake))


@asynccontextmanager
async def running(path: Path, intake: Intake | None = None) -> AsyncIterator[ClusterBroker]:
    broker = make(path, intake)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


async def append(broker: ClusterBroker, stream: str, partition: int = 0) -> int:
    """The offset of one record, once the partition is served: a change is answered a moment before, but over HTTP."""
    rows = [row_batch([b"v"])]
    at = (broker.stream(stream).incarnation, partition)
    await until(lambda: broker._replicas.is_settled(at), "it is not served, and nobody knows why")
    while True:  # as a client does
        try:
            return (await asyncio.wrap_future(broker.partition(stream, partition).append(rows))).first_offset
        except NotReady as error:
            if "it is being added" not in str(error):
                raise
        await asyncio.sleep(0.002)


def folders(path: Path, stream: str) -> list[str]:
    """The partitions that the disk has, with their incarnations."""
    return sorted(
        str(found.relative_to(path / "data" / "streams")) for found in path.glob(f"data/streams/{stream}/*/*")
    )


def files_open(path: Path) -> list[str]:
    """The files that this process holds open below a folder."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if target.startswith(str(path)):
            found.append(target)
    return sorted(found)


def refuse_to_open(patch: pytest.MonkeyPatch, ending: str, error: Exception | None = None) -> Callable[[], None]:
    """Let logs whose folder ends so fail to open, until the function returned is called."""
    real, is_refused = PartitionLog.open, {True}

    def open_(disk: Any, folder: str, *args: Any, **options: Any) -> PartitionLog:
        if is_refused and folder.endswith(ending):
            raise error or OSError(errno.EIO, "Input/output error", folder)
        return real(disk, folder, *args, **options)

    patch.setattr(PartitionLog, "open", open_)
    return is_refused.clear


# -- create and add partitions: all or nothing -----------------------------------------------------------------


@pytest.mark.parametrize("where", ["make", "open", "record"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "io"), OSError(errno.ENOSPC, "full"), StorageFailed("refused")])
async def test_a_create_that_fails_leaves_nothing_and_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    """The third of three partitions fails, or the catalog's file."""
    intake = Intake()
    async with running(tmp_path, intake) as broker:
        held = files_open(tmp_path)
        with monkeypatch.context() as patch:
            _let_fail(patch, where, "/2", error)
            with pytest.raises((StorageFailed, DiskFull)):
                await broker.create_stream("s", {"subject": "s", "partitions": 3})
        assert broker.streams() == []
        await until(lambda: not (tmp_path / "data" / "streams" / "s").exists(), "its folder is there")
        await until(lambda: files_open(tmp_path) == held, "a file is open")
        await until(lambda: not intake.of("s"), "it is captured")
        assert broker.ready() == (True, {})
        _, created = await broker.create_stream("s", {"subject": "s", "partitions": 3})
        assert created
        assert await append(broker, "s", 2) == 0
        await until(partial(_is_captured, intake, "s", {0, 1, 2}), "it is not captured")
    async with running(tmp_path) as broker:
        assert await append(broker, "s", 2) == 1


@pytest.mark.parametrize("where", ["make", "record"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "io"), OSError(errno.ENOSPC, "full"), StorageFailed("refused")])
async def test_a_broker_makes_no_stream_that_its_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    """`changes.X8`. Nothing is recorded that would have to be taken back: nobody can have published to it."""
    async with running(tmp_path) as broker:
        held, recorded = files_open(tmp_path), list[Any]()
        with monkeypatch.context() as patch:
            _let_fail(patch, where, "/2", error)
            execute = CatalogStore.execute

            def noted(store: CatalogStore, command: Any, **options: Any) -> Any:
                said = execute(store, command, **options)
                recorded.append(command)
                return said

            patch.setattr(CatalogStore, "execute", noted)
            with pytest.raises((StorageFailed, DiskFull)):
                await broker.create_stream("s", {"partitions": 3})
        assert not recorded
        assert broker.streams() == []
        assert not (tmp_path / "data" / "streams" / "s").exists()
        assert files_open(tmp_path) == held
        assert broker.ready() == (True, {})
        info, created = await broker.create_stream("s", {"partitions": 3})
        assert (created, info.warnings) == (True, ())
        assert await append(broker, "s", 2) == 0
        for key in ("replication_factor", "min_insync_replicas"):
            with pytest.raises(InvalidSetting, match=f"{key}=2: this broker is alone"):
                await broker.alter_stream("s", {key: 2})
    async with running(tmp_path) as broker:
        assert await append(broker, "s", 2) == 1


async def test_a_broker_makes_a_stream_with_folders_at_once_or_none(tmp_path: Path) -> None:
    """Of two who ask for the same one makes it, and what the other has made goes."""
    async with running(tmp_path) as broker:
        made = await asyncio.gather(*(broker.create_stream("s", {"partitions": 2}) for _ in range(4)))
        assert sorted(is_new for _, is_new in made) == [False, False, False, True]
        assert len(folders(tmp_path, "s")) == 2
        grown = await asyncio.gather(*(broker.add_partitions("s", n) for n in (3, 4, 5)), return_exceptions=True)
        assert all(isinstance(each, StreamInfo | InvalidSetting) for each in grown)
        assert broker.stream("s").settings.partitions == 5
        assert [await append(broker, "s", number) for number in range(5)] == [0] * 5


@pytest.mark.parametrize("where", ["make", "record"])
async def test_a_broker_adds_no_partitions_that_its_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """`changes.X8`. They came later, once there was room, for who had been told of the old number."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {})
        with monkeypatch.context() as patch:
            _let_fail(patch, where, "/2", OSError(errno.ENOSPC, "No space left on device"))
            with pytest.raises(DiskFull if where == "make" else StorageFailed):
                await broker.add_partitions("s", 3)
        assert (broker.stream("s").settings.partitions, broker.stream("s").partitions_next) == (1, 0)
        assert len(folders(tmp_path, "s")) == 1
        assert await append(broker, "s") == 0
        assert (await broker.add_partitions("s", 3)).settings.partitions == 3
        assert [await append(broker, "s", number) for number in range(3)] == [1, 0, 0]
    async with running(tmp_path) as broker:
        assert [await append(broker, "s", number) for number in range(3)] == [2, 1, 1]


async def test_a_broker_keeps_the_folders_of_what_may_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is, the next start finds them: without them the stream would be kept shut for good."""
    async with running(tmp_path) as broker:
        await broker.create_stream("t", {})

        def unsure(self: CatalogStore, command: object, **options: object) -> object:
            raise StorageFailed("not known", sent=True)

        with monkeypatch.context() as patch:
            patch.setattr(CatalogStore, "execute", unsure)
            patch.setattr(control_module, "ASKED_S", 0.3)  # it is tried again until then
            for change in (broker.create_stream("s", {}), broker.add_partitions("t", 2)):
                with pytest.raises(StorageFailed, match="not known"):
                    await change
        assert (len(folders(tmp_path, "s")), len(folders(tmp_path, "t"))) == (1, 2)
        assert (await broker.add_partitions("t", 2)).settings.partitions == 2
        assert await append(broker, "t", 1) == 0
    async with running(tmp_path) as broker:
        assert not folders(tmp_path, "s"), "it was not recorded, and has no record"
        assert await append(broker, "t", 1) == 1


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_change_that_nobody_waits_for_any_more_comes_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """`changes.X8`. The time of its request was over while the disk made the log. The next one opened that log
    once more, and the former one wrote its checkpoint, of an empty log, over it at the stop."""
    real, making, may_go = PartitionLog.create, list[str](), threading.Event()

    def create(disk: Any, folder: str, *args: Any, **options: Any) -> PartitionLog:
        made = real(disk, folder, *args, **options)
        making.append(folder)
        assert may_go.wait(60)
        return made

    async with running(tmp_path) as broker:
        await broker.create_stream("s", {})
        held = files_open(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "create", create)
            if is_refused:
                _let_fail(patch, "record", "/1", OSError(errno.ENOSPC, "full"))
            first = asyncio.ensure_future(broker.add_partitions("s", 2))
            await until(lambda: bool(making), "no log is made")
            first.cancel()
            await asyncio.wait({first})
            second = asyncio.ensure_future(broker.add_partitions("s", 2))
            await asyncio.sleep(0.05)
            may_go.set()
            await asyncio.wait({second})
        if is_refused:
            assert isinstance(second.exception(), LiftlogError)
            assert len(folders(tmp_path, "s")) == 1
            assert files_open(tmp_path) == held
        else:
            assert second.result().settings.partitions == 2
            assert await append(broker, "s", 1) == 0
        assert not broker._replicas._found, "a log is open twice, or for nobody"


async def test_no_partitions_are_added_to_what_cannot_be_opened(tmp_path: Path) -> None:
    """`changes.X8`."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {"partitions": 2})
    folder, away = tmp_path / "data" / "streams" / "s", tmp_path / "away"
    folder.rename(away)
    async with running(tmp_path) as broker:
        with pytest.raises(WrongFolder):
            await broker.add_partitions("s", 3)
        assert not folder.exists()
        away.rename(folder)
        assert (await broker.add_partitions("s", 3)).settings.partitions == 3
        assert [await append(broker, "s", number) for number in range(3)] == [0, 0, 0]


async def test_a_broker_starts_and_says_so_where_its_catalog_does_not_hear_of_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes no `report_opened`: the start waited until it did, and named nothing."""
    execute = CatalogStore.execute

    def refused(store: CatalogStore, command: Mapping[str, Any], **more: Any) -> Any:
        if command["kind"] == "report_opened":
            raise StorageFailed("made to fail")
        return execute(store, command, **more)

    broker = make(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(CatalogStore, "execute", refused)
        await broker.start()
        is_ready, missing = broker.ready()
        assert (is_ready, missing["stream __offsets"]) == (False, "made to fail")
        info, created = await broker.create_stream("s", {})
        assert (created, info.warnings) == (True, ("not all of it is served yet: made to fail",))
    try:
        await until(lambda: broker.ready() == (True, {}), "all is well")
        assert await append(broker, "s") == 0
    finally:
        await broker.stop()


async def test_a_broker_that_is_alone_tells_its_position_while_a_command_waits_for_the_disk(tmp_path: Path) -> None:
    """It asks nobody. A change was answered late, with a warning, where the disk held up that of somebody else."""
    broker = make(tmp_path)
    await broker.start()
    goes_on = threading.Event()
    try:
        broker._plane._thread.do(lambda _: goes_on.wait(60) and None)
        assert await broker.position() == 0
        assert not goes_on.is_set()
    finally:
        goes_on.set()
        await broker.stop()


async def test_an_operator_of_a_broker_that_is_alone_hears_so(tmp_path: Path) -> None:
    """What he asks would need another broker; and what is damaged is read past, so nothing has to be given up."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {"partitions": 2})
        admin = broker.admin
        for call in (
            admin.reassign("s", 0, ["liftlog"], None),
            admin.drain(broker.broker_id, fewer_replicas=False),
            admin.remove_broker(broker.broker_id),
            admin.elect_unclean("s", 0, broker.broker_id, -1),
            admin.excuse(broker.broker_id, None, None),
            admin.end_rescue([broker.broker_id]),
        ):
            with pytest.raises(NotSupported, match="this broker is alone: there is no other one"):
                await call
        with pytest.raises(NotSupported, match="reads past what is lost: nothing has to be given up"):
            await admin.accept_loss("s", 0, is_accepted=True)
        assert (await admin.elect_preferred("s", None)).moved == ()
        assert (await admin.rescue()).rescue is None
        assert admin.ends() == []
        placed = [each for each in admin.placements() if each.stream == "s"]
        assert [(each.partition, each.leader, each.isr) for each in placed] == [
            (number, broker.broker_id, (broker.broker_id,)) for number in range(2)
        ]
        assert all(each.leader_epoch == broker.partition("s", each.partition).leader_epoch for each in placed)


async def test_a_nats_server_that_the_look_for_jetstream_does_not_believe_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, found = list[object](), Unbelieved(FOREIGN, "why", is_called=True)

    async def looks(config: object, subject: str, tell: Tell) -> list[str]:
        tell("nats.example", found)
        return []

    monkeypatch.setattr(jetstream, "jetstream_on", looks)
    monkeypatch.setattr(ClusterBroker, "_kept_out", lambda _, *said: told.append(said))
    async with running(tmp_path, Intake()) as broker:
        await broker.create_stream("s", {"subject": "s"})
    assert told == [("nats", "nats.example", found)]


async def test_no_stream_is_created_over_the_servers_own_subjects(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        with pytest.raises(InvalidSubject, match="never captured"):
            await broker.create_stream("s", {"subject": "$KV.>", "reply_acks": False})
        assert broker.streams() == []


@pytest.mark.parametrize("key", ["replication_factor", "min_insync_replicas"])
async def test_a_broker_that_is_alone_refuses_more_replicas_by_name(tmp_path: Path, key: str) -> None:
    async with running(tmp_path) as broker:
        with pytest.raises(InvalidSetting, match=f"{key}=2: this broker is alone") as refused:
            await broker.create_stream("s", {key: 2})
        assert (refused.value.fields["key"], refused.value.fields["limit"]) == (key, 1)
        assert broker.streams() == []
        info, created = await broker.create_stream("s", {key: 1})
        assert created
        with pytest.raises(InvalidSetting, match=f"{key}=3: this broker is alone"):
            await broker.alter_stream("s", {key: 3})
        assert broker.streams() == [info]


async def test_a_stream_joins_no_group_that_another_has_joined_since(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.create_stream("theirs", {"group": "g"}, beside=[])
        with pytest.raises(NotReady):
            await broker.create_stream("s", {"group": "g"}, beside=[])
        assert not folders(tmp_path, "s")
        assert (await broker.create_stream("s", {"group": "g"}, beside=["theirs"]))[1]


@pytest.mark.parametrize("where", ["make", "open", "record"])
async def test_partitions_that_cannot_be_added_leave_those_that_are_there_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    intake = Intake()
    async with running(tmp_path, intake) as broker:
        await broker.create_stream("s", {"subject": "s", "partition_by": "key"})
        held = files_open(tmp_path)
        with monkeypatch.context() as patch:
            _let_fail(patch, where, "/2", OSError(errno.EIO, "io"))
            with pytest.raises(StorageFailed):
                await broker.add_partitions("s", 3)
        assert broker.stream("s").settings.partitions == len(broker.partitions("s")) == 1
        await until(lambda: files_open(tmp_path) == held, "a file is open")
        await until(partial(_is_captured, intake, "s", {0}), "another one is captured")
        assert await append(broker, "s") == 0
        assert (await broker.add_partitions("s", 3)).settings.partitions == 3
        assert [await append(broker, "s", number) for number in range(3)] == [1, 0, 0]
    async with running(tmp_path) as broker:
        assert [await append(broker, "s", number) for number in range(3)] == [2, 1, 1]


@pytest.mark.parametrize("level", [0, 1], ids=["partition", "incarnation"])  # those above were synced with the first
async def test_what_a_failed_attempt_has_made_is_fsynced_before_the_catalog_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    """The name is there after a failed fsync of its folder, and a power cut may take it."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {"subject": "s", "partition_by": "key"})
        streams = tmp_path / "data" / "streams"
        incarnation = streams / "s" / broker.stream("s").incarnation
        target = [incarnation / "1", incarnation][level]
        real, synced, is_failing = OsDisk.sync_dir, [], {True}

        def sync_dir(disk: OsDisk, path: str) -> None:
            if is_failing and path == str(target):
                raise OSError(errno.EIO, "Input/output error", path)
            real(disk, path)
            synced.append(path)

        monkeypatch.setattr(OsDisk, "sync_dir", sync_dir)
        with pytest.raises(StorageFailed):
            await broker.add_partitions("s", 2)
        assert broker.stream("s").settings.partitions == 1
        is_failing.clear()
        synced.clear()
        await broker.add_partitions("s", 2)
        assert str(target) in synced
        assert await append(broker, "s", 1) == 0


def _let_fail(patch: pytest.MonkeyPatch, where: str, ending: str, error: Exception) -> None:
    if where == "open":
        refuse_to_open(patch, ending, error)
        return
    if where == "record":

        def refused(self: CatalogStore, *command: object) -> None:
            raise StorageFailed(str(error))

        patch.setattr(CatalogStore, "_write", refused)
        return
    real = PartitionLog.create

    def create(disk: Any, folder: str, *args: Any, **options: Any) -> PartitionLog:
        if folder.endswith(ending):
            raise error
        return real(disk, folder, *args, **options)

    patch.setattr(PartitionLog, "create", create)


async def test_a_stream_with_a_wildcard_at_its_end_can_have_more_partitions_later(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        info, is_new = await broker.create_stream("orders", {"subject": "orders.>"})
        assert (info.settings.partition_by, is_new) == ("subject", True)
        assert not info.warnings
        assert not (await broker.create_stream("orders", {"subject": "orders.>"}))[1]
        grown = await broker.add_partitions("orders", 3)
        assert grown.settings.partitions == 3
        await broker.create_stream("old", {"subject": "old.>", "partition_by": "subject_suffix"})
        assert not (await broker.create_stream("old", {"subject": "old.>"}))[1], "made by an earlier release"


async def test_a_broker_that_refuses_every_record_for_room_is_not_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        assert broker.ready() == (True, {})
        free = 0
        broker._room = Room(str(tmp_path), 64 << 20, look=lambda path: (free, 1 << 40), clock=lambda: float(free))
        is_ready, missing = broker.ready()
        assert not is_ready
        assert missing["disk"].startswith("0 bytes are free")
        free = 1 << 30
        assert broker.ready() == (True, {}), "the question itself looks again"


# -- offline, and online again -----------------------------------------------------------------------------------


async def test_a_stream_that_the_disk_refuses_is_offline_listed_and_tried_again_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        for name in ("s", "t"):
            await broker.create_stream(name, {"subject": name, "partitions": 2})
            assert await append(broker, name, 1) == 0
    intake = Intake()
    with monkeypatch.context() as patch:
        (refused,) = (name for name in folders(tmp_path, "s") if name.endswith("/1"))
        heal = refuse_to_open(patch, refused)
        async with running(tmp_path, intake) as broker:
            assert await append(broker, "t", 1) == 1
            with pytest.raises(StorageFailed, match="Input/output error") as offline:
                broker.partitions("s")
            assert offline.value.fields["offline"] is True
            assert [info.name for info in broker.streams()] == ["s", "t"]
            assert list(broker.ready()[1]) == ["stream s"]
            await _round(broker)
            assert list(broker.ready()[1]) == ["stream s"]
            assert not intake.of("s") - {0}
            heal()
            await _round(broker)
            await until(lambda: broker.ready() == (True, {}), "it is offline")
            await until(partial(_is_served, broker, "s", 1), "it is not served")
            assert await append(broker, "s", 1) == 1
            await until(partial(_is_captured, intake, "s", {0, 1}), "it is not captured")
            assert broker.partition("s", 1).leader_epoch == broker.partition("t", 1).leader_epoch


async def test_nothing_is_let_go_where_stages_cannot_be_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention would take what an unfinished decision needs."""

    def refuse(disk: Disk, main: Partition) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    async with running(tmp_path) as broker:
        await broker.create_stream("s", {})
        for _ in range(2):
            await append(broker, "s")
        with monkeypatch.context() as patch:
            patch.setattr("broker.node.sinks.here.is_staged", refuse)
            with pytest.raises(StorageFailed, match="Input/output error"):
                await broker.trim_stream("s", broker.stream("s").incarnation, {0: 1})
        assert broker.partition("s", 0).log.state.log_start_offset == 0
        assert await broker.trim_stream("s", broker.stream("s").incarnation, {0: 1}) == {0: 1}


async def test_a_folder_that_is_missing_waits_for_a_command(tmp_path: Path) -> None:
    """A copy that is only half restored must not be opened, and cut, by itself."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {"subject": "s"})
        assert await append(broker, "s") == 0
    changes: list[Callable[[ClusterBroker], Awaitable[object]]] = [
        lambda broker: broker.alter_stream("s", {"retention_ms": 3_600_000}),
        lambda broker: broker.create_stream("s", {"subject": "s", "retention_ms": 3_600_000}),
        lambda broker: broker.set_stream_state("s", paused=True),
        lambda broker: broker.set_stream_state("s", paused=False),
        lambda broker: broker.add_partitions("s", 2),
    ]
    for number, change in enumerate(changes):
        shutil.move(tmp_path / "data" / "streams" / "s", tmp_path / "away")
        intake = Intake()
        async with running(tmp_path, intake) as broker:
            with pytest.raises(WrongFolder):
                broker.partitions("s")
            if number in (1, 4):
                with pytest.raises(WrongFolder):
                    await change(broker)
            shutil.move(tmp_path / "away", tmp_path / "data" / "streams" / "s")
            await _round(broker)
            with pytest.raises(WrongFolder):
                broker.partitions("s")
            await change(broker)
            if number == 2:
                await until(partial(_is_captured, intake, "s", set()), "it is captured")
            else:
                await until(partial(_is_captured, intake, "s", {0, 1} if number == 4 else {0}), "it is offline")
                await until(partial(_is_served, broker, "s", 0), "it is not served")
                assert await append(broker, "s") == [1, 2, 0, 3, 4][number]


async def test_an_offline_stream_can_be_deleted_and_made_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {"partitions": 2})
    (lost,) = (tmp_path / "data" / "streams").glob("s/*/1")
    shutil.rmtree(lost)
    async with running(tmp_path) as broker:
        with pytest.raises(StreamExists):
            await broker.create_stream("s", {"partitions": 3})
        await broker.delete_stream("s")
        await until(lambda: broker.ready() == (True, {}), "it is offline")
        await until(lambda: not (tmp_path / "data" / "streams" / "s").exists(), "its folder is there")
        await broker.create_stream("s", {"partitions": 2})
        assert await append(broker, "s", 1) == 0


async def test_a_log_that_was_restored_while_its_stream_was_offline_does_not_lead_under_an_old_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has records of a later epoch than the broker's: offline, until a start has registered above it."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {})
    backup = (tmp_path / "data" / "catalog.log").read_bytes()
    for _ in range(3):
        async with running(tmp_path) as broker:
            await append(broker, "s")
    (tmp_path / "data" / "catalog.log").write_bytes(backup)
    with monkeypatch.context() as patch:
        heal = refuse_to_open(patch, folders(tmp_path, "s")[0])
        async with running(tmp_path) as broker:
            heal()
            await _round(broker)
            await until(lambda: "restart the broker" in str(broker.ready()[1]), "it is not offline for that")
            with pytest.raises(LiftlogError, match="restart"):
                broker.partitions("s")
    async with running(tmp_path) as broker:
        assert await append(broker, "s") == 3


@pytest.mark.parametrize("damage", ["", "epochs"])
async def test_a_catalog_from_a_backup_gives_out_no_epoch_that_is_in_a_log_of_stages(
    tmp_path: Path, damage: str
) -> None:
    def stage(broker: ClusterBroker, name: str) -> None:
        rows = [row_batch([b"v"])]
        broker.sinks._store_of("s", 0).store(rows, sink="k", epoch=1, stage=name, part=0, is_last=True)

    async with running(tmp_path) as broker:
        await broker.create_stream("s", {})
    backup = (tmp_path / "data" / "catalog.log").read_bytes()
    for life in range(3):
        async with running(tmp_path) as broker:
            await asyncio.to_thread(stage, broker, f"{life:032x}")
            last = broker.partition("s", 0).leader_epoch
    (tmp_path / "data" / "catalog.log").write_bytes(backup)
    if damage:
        (found,) = (tmp_path / "data" / "streams" / "s").glob(f"*/0/stages/{damage}")
        found.write_bytes(b"?")
    async with running(tmp_path) as broker:
        assert broker.partition("s", 0).leader_epoch > last
        await asyncio.to_thread(stage, broker, f"{3:032x}")


async def _round(broker: ClusterBroker) -> None:
    """A round of the cleaner."""
    await asyncio.to_thread(broker._each_round)


# -- start and stop ------------------------------------------------------------------------------------------------


async def test_a_create_in_the_middle_of_the_start_is_captured_once(tmp_path: Path) -> None:
    """It comes as soon as the port is open."""
    intake = Intake()
    broker = make(tmp_path, intake)
    loop = asyncio.get_running_loop()
    serve = broker._dataplane.serve
    asked: list[Future[object]] = []

    async def ask() -> object:
        while True:  # as a client does
            with suppress(NotReady):
                return await broker.create_stream("s", {"subject": "s"})
            await asyncio.sleep(0.002)

    def serve_and_ask(*where: Any) -> Any:
        served = serve(*where)
        asked.append(asyncio.run_coroutine_threadsafe(ask(), loop))
        concurrent.futures.wait(asked, timeout=1)  # as far as it comes by now
        return served

    broker._dataplane.serve = serve_and_ask  # type: ignore[method-assign]
    try:
        await broker.start()
        await asyncio.wrap_future(asked[0])
        assert intake.told.count(("begin", "s")) == 1
        assert intake.told.index(("start", "")) < intake.told.index(("begin", "s"))
        assert await append(broker, "s") == 0
    finally:
        await broker.stop()


async def test_no_change_waits_for_the_start_of_a_cluster_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`changes.X9`. It was carried out, and its client heard of it after eight seconds."""
    for name in ("DONE_S", "APPLIED_S"):
        monkeypatch.setattr(control_module, name, 3_600.0)
    broker = make(tmp_path)
    refused, may_end = list[object](), threading.Event()
    register = broker._plane.register

    def ask_and_register(*args: Any, **options: Any) -> int:
        asked = asyncio.run_coroutine_threadsafe(broker.create_stream("s", {}), broker._dataplane.loop)
        refused.append(asked.exception())
        return int(register(*args, **options))

    broker._plane.register = ask_and_register
    broker._wait_served = may_end.wait
    start = asyncio.ensure_future(broker.start())
    try:
        await until(broker._plane.has_session, "it is not registered")
        assert [type(error) for error in refused] == [NotReady]
        assert (await broker.create_stream("s", {"partitions": 2}))[1]
        assert (await broker.add_partitions("s", 3)).settings.partitions == 3
        assert (await broker.alter_stream("s", {"retention_ms": 5_000})).settings.retention_ms == 5_000
        assert (await broker.set_stream_state("s", paused=True)).paused
        await broker.delete_stream("s")
        assert await broker.register_producer(None)
        assert not start.done()
    finally:
        may_end.set()
        await start
        await broker.stop()


async def test_what_was_taken_in_amid_a_start_is_appended_by_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for one stream, and others are captured already: a stop took their messages in, and refused them."""
    async with running(tmp_path, Intake()) as broker:
        await broker.create_stream("s", {"subject": "s"})
    intake, ends = Intake(), list[int]()
    broker = make(tmp_path, intake)
    monkeypatch.setattr(broker._replicas, "is_settled", lambda at: False)
    start = asyncio.ensure_future(broker.start())
    await until(lambda: intake.of("s") == {0}, "it is not captured")
    partition = broker.partition("s", 0)
    intake.during_stop = lambda: ends.append(partition.append([row_batch([b"v"])]).result(60).first_offset)
    await asyncio.to_thread(broker.interrupt)
    with pytest.raises(NotReady):
        await start
    await broker.stop()
    assert partition.log.state.log_end_offset == 1
    assert ends == [0]


async def test_a_change_in_the_middle_of_the_stop_is_refused(tmp_path: Path) -> None:
    """The intake has ended: who waits for it waits for ever, and holds up the stop."""
    intake = Intake()
    loop = asyncio.get_running_loop()
    broker = make(tmp_path, intake)
    await broker.start()
    refused: list[BaseException | None] = []

    def ask() -> None:
        for change in (
            broker.create_stream("s", {"subject": "s"}),
            broker.register_producer(None),
            broker.delete_stream("s"),
        ):
            refused.append(asyncio.run_coroutine_threadsafe(change, loop).exception(timeout=60))

    intake.during_stop = ask
    await broker.stop()
    assert [type(error) for error in refused] == [NotReady, NotReady, UnknownStream]


async def test_a_step_of_the_stop_that_fails_keeps_no_other_from_being_taken(tmp_path: Path) -> None:
    """The logs are marked clean, and the folder is free."""
    broker = make(tmp_path)
    await broker.start()
    await broker.create_stream("s", {})
    await append(broker, "s")
    stop = broker._dataplane.stop

    def fails() -> None:
        stop()
        raise TimeoutError

    broker._dataplane.stop = fails  # type: ignore[method-assign]
    await broker.stop()
    async with running(tmp_path) as broker:
        assert broker.partition("s", 0).log.state.recovery.clean
        assert await append(broker, "s") == 1


@pytest.mark.parametrize("step", ["_bind", "_plane.start", "_replicas.open_found", "_plane.register"])
async def test_a_start_that_fails_gives_everything_back(tmp_path: Path, step: str) -> None:
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {})
        await append(broker, "s")
    held = files_open(tmp_path)
    broker = make(tmp_path)

    def fails(*_: object, **__: object) -> None:
        raise StorageFailed("no")

    of, _, name = step.rpartition(".")
    setattr(getattr(broker, of) if of else broker, name, fails)
    with pytest.raises(StorageFailed):
        await broker.start()
    await broker.stop()
    assert files_open(tmp_path) == held
    async with running(tmp_path) as broker:
        assert await append(broker, "s") == 1


# -- what a creator is told ----------------------------------------------------------------------------------------


async def test_who_creates_a_captured_stream_without_nats_is_warned(tmp_path: Path) -> None:
    """Also who finds that it exists; not who feeds it by appends, nor who reads of it later."""
    intake = Intake()
    async with running(tmp_path, intake) as broker:

        async def warned(name: str, **values: str) -> tuple[int, list[str]]:
            """Ask to create a stream. The status: 201 if it was made now."""
            async with client.post(f"http://{broker.http_address}/v1/streams", json={"name": name, **values}) as answer:
                return answer.status, (await answer.json())["warnings"]

        async with aiohttp.ClientSession() as client:
            intake.state = "connecting"
            says = "not connected to NATS (connecting): this broker captures nothing until it is"
            assert await warned("s", subject="s") == (201, [says])
            assert await warned("s", subject="s") == (200, [says])
            assert await warned("t") == (201, [])
            async with client.get(f"http://{broker.http_address}/v1/streams/s") as described:
                assert (await described.json())["warnings"] == []
            await broker.set_stream_state("s", paused=True)
            assert await warned("s", subject="s") == (200, [])
            await broker.set_stream_state("s", paused=False)
            intake.state = "connected"
            assert await warned("s", subject="s") == (200, [])


# -- all of it together --------------------------------------------------------------------------------------------


async def test_a_trim_recovers_a_log_that_has_failed_instead_of_doing_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk no append comes through that would recover it."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {})
        for _ in range(3):
            await append(broker, "s")
        incarnation = broker.stream("s").incarnation

        def refused(*_: object) -> None:
            raise OSError(errno.EIO, "io")

        with monkeypatch.context() as patch:
            patch.setattr(OsFile, "sync", refused)
            patch.setattr(AheadFile, "sync", refused)
            with pytest.raises(StorageFailed):
                await append(broker, "s")
            with pytest.raises(StorageFailed):
                await broker.trim_stream("s", incarnation, {0: 2})
        assert await broker.trim_stream("s", incarnation, {0: 2}) == {0: 2}
        assert broker.partition("s", 0).log.state.failure is None


async def test_no_more_streams_and_partitions_are_made_at_once_than_there_may_be(tmp_path: Path) -> None:
    """Each of those who asked had looked before the other was made."""
    env = {"LIFTLOG_DATA_DIR": str(tmp_path / "data"), "LIFTLOG_HTTP_PORT": "0", "LIFTLOG_INTAKE_ENABLED": "false"}
    broker = lone_broker(load(None, {**env, "LIFTLOG_LIMITS_STREAMS_MAX": "2"}))
    await broker.start()
    try:
        made = await asyncio.gather(*(broker.create_stream(name, {}) for name in "abcd"), return_exceptions=True)
        assert sorted(type(each).__name__ for each in made) == ["InvalidRequest", "InvalidRequest", "tuple", "tuple"]
        assert len(broker.streams()) == 2
        assert len(list((tmp_path / "data" / "streams").glob("[abcd]"))) == 2
    finally:
        await broker.stop()


async def test_a_trim_hears_at_once_what_was_staged_since_it_was_asked_for(tmp_path: Path) -> None:
    """It waited for eight seconds, and was told of replicas that would follow."""
    async with running(tmp_path) as broker:
        info, _ = await broker.create_stream("s", {})
        for _ in range(3):
            await append(broker, "s")
        partition, floors = broker.partition("s", 0), [None, 1]
        partition.replica.floor = lambda: floors.pop(0) if floors else None
        with pytest.raises(NotReady, match="staged records from offset 1 on") as caught:
            await broker.trim_stream("s", info.incarnation, {0: 3})
        assert caught.value.fields["sent"]
        assert partition.log.state.log_start_offset == 1
        assert await broker.trim_stream("s", info.incarnation, {0: 3}) == {0: 3}


async def test_a_trim_asks_the_disk_for_stages_on_no_loop(tmp_path: Path) -> None:
    """A disk that hangs held up all that the data plane's loop serves."""
    async with running(tmp_path) as broker:
        info, _ = await broker.create_stream("s", {})
        await append(broker, "s")
        asked = list[str]()

        def floor() -> None:
            asked.append(threading.current_thread().name)

        broker.partition("s", 0).replica.floor = floor
        assert await broker.trim_stream("s", info.incarnation, {0: 1}) == {0: 1}
        assert asked
        assert "dataplane" not in asked


async def test_a_trim_that_the_disk_refuses_says_that_it_may_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another partition the records are gone for good, and the audit would call that `failed`."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {"partitions": 2})
        incarnation = broker.stream("s").incarnation
        for number in (0, 1):
            await append(broker, "s", number)

        def refused(*_: object) -> int:
            raise DiskFull("no room")

        with monkeypatch.context() as patch:
            patch.setattr(broker.partition("s", 1).replica, "trim", refused)
            with pytest.raises(DiskFull) as error:
                await broker.trim_stream("s", incarnation, {0: 1, 1: 1})
        assert error.value.fields.get("sent") is True
        await until(lambda: broker.partition("s", 0).log.state.log_start_offset == 1, "it is not trimmed")
        assert await broker.trim_stream("s", incarnation, {0: 1, 1: 1}) == {0: 1, 1: 1}


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(3))
async def test_whatever_fails_beside_whatever_else_streams_are_what_the_catalog_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Changes by four at a time, any step of which may fail, and new starts in between.

    Each stream is open with all its partitions, or offline; captured once if it should be; the disk has its folders,
    and no others but those of which an error said that it is not known; after the faults all of it takes records.
    """
    rng = random.Random(seeded(seed))
    unsure = [0]
    failing = [0.0]
    _fail_at_random(monkeypatch, rng, failing, unsure)

    def any_change(broker: ClusterBroker) -> Coroutine[Any, Any, object]:
        name = rng.choice("abc")
        return rng.choice(
            [
                lambda: broker.create_stream(name, {"subject": name, "partition_by": "key"}),
                lambda: broker.create_stream(name, {"subject": name, "partition_by": "key", "partitions": 2}),
                lambda: broker.delete_stream(name),
                lambda: broker.add_partitions(name, rng.randint(2, 4)),
                lambda: broker.alter_stream(name, {"retention_ms": rng.randint(1, 1_000) * 1_000_000}),
                lambda: broker.set_stream_state(name, paused=rng.random() < 0.5),
                lambda: broker.register_producer(None),
                lambda: _round(broker),
            ]
        )()

    for _ in range(2):
        intake = Intake()
        async with running(tmp_path, intake) as broker:
            failing[0] = 0.15
            for _ in range(12):
                done = await asyncio.gather(*(any_change(broker) for _ in range(4)), return_exceptions=True)
                for outcome in done:
                    assert not isinstance(outcome, BaseException) or isinstance(outcome, LiftlogError), outcome
                await _check(broker, intake, tmp_path)
            failing[0] = 0.0
            await _round(broker)
            for name in "abc":  # what is open takes records; what was not is made
                with suppress(LiftlogError):
                    await broker.create_stream(name, {"subject": name, "partition_by": "key"})
                with suppress(LiftlogError):
                    await broker.set_stream_state(name, paused=False)
            await _check(broker, intake, tmp_path)
            assert [info.name for info in broker.streams()] == ["a", "b", "c"]
            for info in broker.streams():
                for number in range(info.settings.partitions):
                    await append(broker, info.name, number)
            before = broker._catalog.snapshot()["streams"]
        async with running(tmp_path) as broker:
            assert broker._catalog.snapshot()["streams"] == before
            assert broker.ready() == (True, {})


def _fail_at_random(patch: pytest.MonkeyPatch, rng: random.Random, failing: list[float], unsure: list[int]) -> None:
    """Let what changes of streams do with the disk fail now and then; `unsure` counts what is not known then."""

    def at_random(real: Callable[..., Any], *, is_line: bool = False) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if rng.random() >= failing[0]:
                return real(*args, **options)
            if is_line and rng.random() < 0.3:
                unsure[0] += 1
                raise StorageFailed("not known", sent=True)
            raise StorageFailed("refused") if is_line else OSError(errno.EIO, "refused")

        return call

    patch.setattr(CatalogStore, "_write", at_random(CatalogStore._write, is_line=True))
    patch.setattr(PartitionLog, "create", at_random(PartitionLog.create))
    patch.setattr(PartitionLog, "open", at_random(PartitionLog.open))


def _is_served(broker: ClusterBroker, stream: str, number: int) -> bool:
    found = broker._replicas.partition((broker.stream(stream).incarnation, number))
    return found is not None and found.serves


def _is_served_or_shut(broker: ClusterBroker, at: Place) -> bool:
    found, obstacle = broker._replicas.partition(at), broker._replicas.obstacle(at)
    return (found is not None and found.serves) != (obstacle is not None)


def _is_captured(intake: Intake, stream: str, wanted: set[int]) -> bool:
    return intake.of(stream) == wanted


def _is_as_served(broker: ClusterBroker, intake: Intake, info: StreamInfo) -> bool:
    """What is shut is not captured; it may be opened meanwhile."""
    numbers = range(info.settings.partitions)
    served = {number for number in numbers if broker._replicas.obstacle((info.incarnation, number)) is None}
    return intake.of(info.name) == (set() if info.paused else served)


async def _check(broker: ClusterBroker, intake: Intake, path: Path) -> None:
    """Once all is as the catalog says: what it deletes goes a moment later."""
    replicas = broker._replicas
    infos = broker.streams(internal=True)
    known = {(info.incarnation, number): info for info in infos for number in range(info.settings.partitions)}
    for at, info in known.items():
        # a change that was answered in doubt may be under way: its role comes a moment later
        is_one = partial(_is_served_or_shut, broker, at)
        await until(is_one, f"{info.name}/{at[1]} is neither served nor shut")
        found = replicas.partition(at)
        assert found is None or ((found.partition, found.incarnation) == (at[1], at[0]) and not found.removed)

    def there() -> set[tuple[str, str]]:
        try:
            return {(each.parent.name, each.name) for each in (path / "data" / "streams").glob("*/*")}
        except FileNotFoundError:  # it goes right now
            return {("", "")}

    await until(lambda: there() <= {(info.name, info.incarnation) for info in infos}, "a folder is left")
    for info in broker.streams():
        await until(partial(_is_as_served, broker, intake, info), info.name)


async def test_what_is_staged_is_found_at_the_next_start_and_nothing_is_made_for_the_others(tmp_path: Path) -> None:
    """Retention would take what a decision may still name."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {"partitions": 3})
        assert not list(tmp_path.rglob("stages"))
        store = broker.sinks._store_of("s", 1)
        store.store([row_batch([b"v"])], sink="k", epoch=1, stage="1" * 32, part=0, is_last=True)
    async with running(tmp_path) as broker:
        assert broker.sinks._companions.numbers(broker.stream("s")) == [1]
        assert len(list(tmp_path.rglob("stages"))) == 1
