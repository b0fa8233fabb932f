"""A broker that is killed at each step of changes of its streams, one life after the other; run as a program.

    python -m tests.support.killed_changes DATA ANSWERED

A step is a call that changes the disk. Each life makes the same changes; what was answered is a line in the file
ANSWERED. The next life first says in it what it found: its streams with their partitions, and the folders that are
there. A life that makes all changes is the last one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from broker.config.configuration import load
from tests.support.killed_starts import count_down, forked
from tests.support.lone import lone_broker


def main(data: str, answered: str) -> None:
    life = 1
    while status := forked(partial(_run, data, Path(answered), life)):
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, (life, status)
        life += 1
    print(life - 1)


def _run(data: str, answered: Path, life: int) -> None:
    asyncio.run(_live(data, answered, life))


async def _live(data: str, answered: Path, life: int) -> None:
    env = {"LIFTLOG_DATA_DIR": data, "LIFTLOG_HTTP_PORT": "0", "LIFTLOG_INTAKE_ENABLED": "false"}
    broker = lone_broker(load(None, env))
    await broker.start()

    def say(**values: Any) -> None:
        with answered.open("a") as file:
            file.write(json.dumps({"life": life, **values}) + "\n")

    ready, missing = broker.ready()
    say(
        found={info.name: len(broker.partitions(info.name)) for info in broker.streams()},
        settings={info.name: info.settings.retention_ms for info in broker.streams()},
        folders=sorted(str(found.relative_to(data)) for found in Path(data).glob("streams/[!_]*/*")),
        known=sorted(f"streams/{info.name}/{info.incarnation}" for info in broker.streams()),
        missing=missing,
    )
    assert ready or missing
    for info in broker.streams():  # what a life before has left
        await broker.delete_stream(info.name)
    say(done="nothing is there")
    count_down(life)
    await broker.create_stream("kept", {"partitions": 2})
    say(done="kept is made")
    await broker.create_stream("gone", {})
    say(done="gone is made")
    await broker.add_partitions("kept", 3)
    say(done="kept has three")
    await broker.alter_stream("kept", {"retention_ms": 86_400_000})
    say(done="kept is altered")
    await broker.delete_stream("gone")
    say(done="gone is deleted")
    os._exit(0)  # not what is tested here


if __name__ == "__main__":
    main(*sys.argv[1:])
