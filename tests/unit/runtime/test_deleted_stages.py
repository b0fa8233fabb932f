"""A stream with stages is deleted, or the broker stopped, where the disk refuses or somebody is in the midst of a call.

It is deleted all the same: the catalog says so already. Its logs are closed, its folder goes, and nobody is told of it.
Those who had appended something and not synced it yet hear that the stream is gone, not that the disk has failed.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import UnknownStream
from broker.node.partitions.partition import Partition
from broker.node.sinks import committed
from broker.node.sinks.stage_log import StageLog
from broker.sinks.ledger import CommitRequest, NamedStage
from broker.storage.disk import OsDisk, ReadableBuffer
from tests.support.logs import row_batch
from tests.support.waiting import DEADLINE_S, until
from tests.unit.runtime.test_control import append, files_open, folders, running

STAGE = "0" * 32


async def stage(broker: Any, stream: str) -> int:
    """The epoch of the sink."""
    sinks = broker.sinks
    epoch = (await sinks.open("sink", "owner", is_one_shot=False)).epoch
    batches = [row_batch([b"v"])]
    await sinks.stage(stream, 0, batches, sink="sink", epoch=epoch, stage=STAGE, part=0, is_last=True)
    return epoch


async def commit(broker: Any, stream: str, epoch: int) -> object:
    asked = CommitRequest(owner="owner", epoch=epoch, batch_id=0, rows=1)
    return await broker.sinks.commit("sink", asked, [NamedStage(stream=stream, partition=0, stage=STAGE, parts=1)], {})


def refuse_stages(patch: pytest.MonkeyPatch) -> None:
    def replace_file(disk: OsDisk, path: str, data: ReadableBuffer, *, frees: bool = False) -> None:
        if "/stages/" in path:
            raise OSError(errno.EIO, "Input/output error", path)
        real(disk, path, data, frees=frees)

    real = OsDisk.replace_file
    patch.setattr(OsDisk, "replace_file", replace_file)


async def test_a_delete_goes_on_where_its_stages_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        for name in ("s", "t"):
            await broker.create_stream(name, {"partitions": 2})
            await append(broker, name)
        await stage(broker, "s")
        with monkeypatch.context() as patch:
            refuse_stages(patch)
            await broker.delete_stream("s")
        with pytest.raises(UnknownStream):
            broker.stream("s")
        await until(lambda: folders(tmp_path, "s") == [], "its folder is there")
        assert not [path for path in files_open(tmp_path) if "/streams/s/" in path]
        await broker.create_stream("s", {})
        assert await append(broker, "s") == 0


async def test_a_stop_closes_the_other_stages_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        for name in ("s", "t"):
            await broker.create_stream(name, {})
            await stage(broker, name)
        refuse_stages(monkeypatch)
    assert files_open(tmp_path) == []


class Held:
    """The first call of a function waits before it does anything."""

    def __init__(self, patch: pytest.MonkeyPatch, of: Any, name: str, is_meant: Callable[..., bool]) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        real = getattr(of, name)

        def call(*args: Any, **options: Any) -> Any:
            if is_meant(*args, **options) and not self.reached.is_set():
                self.reached.set()
                assert self.go.wait(DEADLINE_S)
            return real(*args, **options)

        patch.setattr(of, name, call)


async def deleted_meanwhile(
    broker: Any, held: Held, call: asyncio.Task[Any], before: Callable[[], object] = lambda: None
) -> None:
    await until(held.reached.is_set, "nothing is held")
    before()
    partition = broker.partition("s", 0)
    await broker.delete_stream("s")
    await until(lambda: partition.replica.is_closed, "its log is open")
    held.go.set()
    await asyncio.wait([call])


@pytest.mark.parametrize("what", ["stage", "commit"])
async def test_who_has_appended_to_the_stages_of_a_stream_that_is_deleted_before_the_sync_hears_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {})
        epoch = await stage(broker, "s") if what == "commit" else 0
        held = Held(monkeypatch, StageLog, "make_durable", lambda *_: True)
        call = asyncio.ensure_future(stage(broker, "s") if what == "stage" else commit(broker, "s", epoch))
        await deleted_meanwhile(broker, held, call)
        with pytest.raises(UnknownStream):
            call.result()


@pytest.mark.parametrize("is_synced", [False, True])
async def test_a_group_of_a_stream_that_is_deleted_before_its_sync_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_synced: bool
) -> None:
    """`coordinator.C6`. With `fsync = interval` the group is committed first, and synced then, or by a sync that was
    due just before the delete."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {"fsync": "interval", "fsync_interval_ms": 60_000})
        epoch = await stage(broker, "s")
        tells = Held(monkeypatch, committed.Awaited, "outcome", lambda _, what: getattr(what, "stream", "") == "s")
        call = asyncio.ensure_future(commit(broker, "s", epoch))
        await deleted_meanwhile(broker, tells, call, broker.partition("s", 0).commit_all if is_synced else lambda: None)
        call.result()


async def test_a_log_that_a_delete_closes_before_it_is_made_durable_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for a group makes the log durable first, as it has to see all that the log holds. It hears that the
    stream is gone."""
    async with running(tmp_path) as broker:
        await broker.create_stream("s", {})
        await append(broker, "s")
        partition = broker.partition("s", 0)
        held = Held(monkeypatch, Partition, "_synced", lambda of: of is partition)
        call = asyncio.ensure_future(asyncio.to_thread(partition.commit_all))
        await deleted_meanwhile(broker, held, call)
        with pytest.raises(UnknownStream):
            call.result()
