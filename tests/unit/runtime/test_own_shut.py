"""Goal: a broker that is alone, and cannot open the folder of its consumer offsets or of its sinks, serves all else.
Who needs them is told to try again, and why; nothing begins anew; and once the folder is back all is as before.

Method: a broker in this process, on a real folder.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import NotReady
from broker.api.stream import COMMITS_STREAM, OFFSETS_STREAM
from broker.config.configuration import load
from broker.groups.offsets import ConsumerOffset
from broker.runtime.clustered import ClusterBroker
from tests.support.logs import row_batch
from tests.support.lone import lone_broker


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[ClusterBroker]:
    env = {"LIFTLOG_DATA_DIR": str(path), "LIFTLOG_HTTP_PORT": "0", "LIFTLOG_INTAKE_ENABLED": "false"}
    broker = lone_broker(load(None, env))
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


async def ask(broker: ClusterBroker, call: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, broker._dataplane.loop))


async def append(broker: ClusterBroker) -> int:
    return (await asyncio.wrap_future(broker.partition("s", 0).append([row_batch([b"v"])]))).first_offset


def offset(at: int) -> ConsumerOffset:
    return ConsumerOffset(
        consumer="c", stream="s", partition=0, offset=at, leader_epoch=1, incarnation="", timestamp_us=1
    )


def damaged(folder: Path) -> None:
    (folder / "partition.json").write_text("{")


def of_a_later_release(folder: Path) -> None:
    (folder / "partition.json").write_text('{"format_version": 99}')


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("stream", [OFFSETS_STREAM, COMMITS_STREAM])
@pytest.mark.parametrize("harm", [damaged, of_a_later_release, shutil.rmtree])
async def test_a_broker_without_a_stream_of_its_own_serves_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: str, harm: Callable[[Path], None]
) -> None:
    async with running(tmp_path) as broker:
        await ask(broker, broker.create_stream("s", {}))
        assert await append(broker) == 0
        await ask(broker, broker.offsets.commit("c", [offset(1)]))
        epoch = (await ask(broker, broker.sinks.open("k", "run", is_one_shot=False))).epoch
    [folder] = tmp_path.glob(f"streams/{stream}/*/0")
    saved = tmp_path / "saved"
    shutil.copytree(folder, saved)
    harm(folder)
    found = files(folder)

    caplog.set_level(logging.INFO)
    async with running(tmp_path) as broker:
        assert await append(broker) == 1
        assert (await ask(broker, broker.create_stream("t", {})))[1]
        asked = {
            OFFSETS_STREAM: (broker.offsets.commit("c", [offset(2)]), broker.offsets.forget("c")),
            COMMITS_STREAM: (broker.sinks.open("k", "run", is_one_shot=False), broker.sinks.states()),
        }
        for name, calls in asked.items():
            for call in calls:
                if name == stream:
                    with pytest.raises(NotReady, match=f"{stream}/0 is kept shut: "):
                        await ask(broker, call)
                else:
                    call.close()
        is_ready, missing = broker.ready()
        assert (is_ready, list(missing), broker.warnings()) == (False, [f"stream {stream}"], {})
        assert b"\nliftlog_streams_offline 1" in broker.metrics()
        for _ in range(3):
            await asyncio.to_thread(broker._compactor._guarded, "offsets", broker._expire_offsets)
            await asyncio.to_thread(broker.sinks._round)
            await asyncio.to_thread(broker._each_round)
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert [line.split(" reason=")[0] for line in told] == [f"stream.offline stream={stream} partition=0"]
    assert files(folder) == found

    shutil.rmtree(folder, ignore_errors=True)
    saved.rename(folder)
    async with running(tmp_path) as broker:
        assert broker.ready() == (True, {})
        assert [each.offset for each in broker.offsets.get("c")] == [1]
        assert (await ask(broker, broker.sinks.open("k", "run", is_one_shot=False))).epoch == epoch
        await ask(broker, broker.offsets.commit("c", [offset(2)]))
        assert [each.offset for each in broker.offsets.get("c")] == [2]
        assert await append(broker) == 2
