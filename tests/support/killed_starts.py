"""A broker that is killed at each step of its start, one life after the other on one folder; run as a program.

    python -m tests.support.killed_starts DATA

A step is a call that changes the disk. In each life a record is appended over HTTP the moment that the broker answers,
while its start goes on, and another one staged and committed; their values are the number of the life, and that with
`SINK` behind it. Prints how many lives were killed; the one after them got through. `APPENDS` in DATA has a line for
each append, before it is made: life, folder of the log, leader epoch. Lives are forked, so that none of them costs
imports.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.client import connect
from broker.config.configuration import Config, load
from broker.runtime.assembled import Assembled
from broker.runtime.dataplane import DataPlane
from broker.storage.disk import OsDisk
from broker.storage.disk.osfile import OsFile
from broker.storage.disk.preallocate import AheadFile
from broker.storage.log import PartitionLog
from tests.support.lone import lone_broker

CHANGES = (
    *((OsFile, name) for name in ("write", "truncate", "sync")),
    *((AheadFile, name) for name in ("write", "truncate", "sync")),
    *((OsDisk, name) for name in ("makedirs", "rename", "unlink", "sync_dir", "replace_file", "remove_tree")),
)
STREAM = "s"
SINK = b" sink"
APPENDS = "appends"


def main(data: str) -> None:
    assert forked(partial(_live, data, 0)) == 0, "the stream is made"
    life = 1
    while status := forked(partial(_live, data, life)):
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, (life, status)
        life += 1
    print(life - 1)


def forked(live: Callable[[], object]) -> int:
    """The status with which a life ended."""
    pid = os.fork()
    if pid == 0:
        try:
            live()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def _live(data: str, life: int) -> None:
    config = load(None, {"LIFTLOG_DATA_DIR": data, "LIFTLOG_HTTP_PORT": "0", "LIFTLOG_INTAKE_ENABLED": "false"})
    asyncio.run(_start(config, life))


async def _start(config: Config, life: int) -> None:
    broker = lone_broker(config)
    if life == 0:
        await broker.start()
        await broker.create_stream(STREAM, {})
        assert _append(broker, life)
        await broker.stop()
        return
    count_down(life)
    note_appends(life, Path(config.data_dir) / APPENDS)
    serve = DataPlane.serve
    appending: list[asyncio.Future[None]] = []
    loop = asyncio.get_running_loop()

    def append_and_commit(port: int) -> None:
        while not _append(broker, life, port=port):
            time.sleep(0.002)
        _commit(life, port=port)

    def serve_and_append(self: DataPlane, *where: Any) -> Any:
        served = serve(self, *where)
        port = self._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        appending.append(loop.run_in_executor(None, append_and_commit, port))
        return served

    DataPlane.serve = serve_and_append  # type: ignore[method-assign]
    await broker.start()
    await appending[0]


def count_down(steps_left: int) -> None:
    """Kill this process before the step of that number, counted from 1."""
    left = [steps_left]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    for cls, name in CHANGES:
        if name in vars(cls):
            setattr(cls, name, counted(vars(cls)[name]))


def note_appends(life: int, path: Path) -> None:
    def noting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: PartitionLog, *args: Any, leader_epoch: int, **options: Any) -> Any:
            with path.open("a") as file:
                print(life, self.state.folder, leader_epoch, file=file)
            return real(self, *args, leader_epoch=leader_epoch, **options)

        return call

    for name in ("append", "append_group"):
        setattr(PartitionLog, name, noting(getattr(PartitionLog, name)))


def _append(broker: Assembled, life: int, *, port: int | None = None) -> bool:
    """False: it is not ready yet."""
    batch = pa.record_batch({"value": pa.array([b"%d" % life], pa.binary())})
    body = io.BytesIO()
    with pa.ipc.new_stream(body, batch.schema) as writer:
        writer.write_batch(batch)
    connection = http.client.HTTPConnection(
        "127.0.0.1", port or int(broker.http_address.rpartition(":")[2]), timeout=60
    )
    connection.request(
        "POST",
        f"/v1/streams/{STREAM}/partitions/0/records",
        body.getvalue(),
        {"Content-Type": "application/vnd.apache.arrow.stream"},
    )
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    assert answer.status == 200 or (answer.status == 503 and b"not_ready" in said), said
    return answer.status == 200


def _commit(life: int, *, port: int) -> None:
    with connect(f"127.0.0.1:{port}") as client:
        sink = client.sink(f"life-{life}")
        sink.open()
        sink.commit(0, [sink.stage([{"value": b"%d" % life + SINK}], STREAM, 0)])


if __name__ == "__main__":
    main(*sys.argv[1:])
