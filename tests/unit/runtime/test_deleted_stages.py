"""A stream is deleted, or the broker stopped, while the disk refuses the last checkpoint of what is staged.

It is deleted all the same: the catalog says so already. Its logs are closed, its folder goes, and nobody is told of it.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from broker.api.errors import UnknownStream
from broker.runtime.broker import Broker
from broker.storage.disk import OsDisk, ReadableBuffer
from tests.support.logs import row_batch
from tests.unit.runtime.test_control import append, files_open, folders, running


async def stage(broker: Broker, stream: str) -> None:
    sinks = broker.sinks
    epoch = (await sinks.open("sink", "owner", is_one_shot=False)).epoch
    batches = [row_batch([b"v"])]
    await sinks.stage(stream, 0, batches, sink="sink", epoch=epoch, stage="0" * 32, part=0, is_last=True)


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
        assert folders(tmp_path, "s") == []
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
