"""Goal: the data folder that a lone broker of an earlier commit left after `kill -9` opens, and nothing is lost.

Method: the broker in this process. `tests/cluster/test_kept_folders.py` does the same, and more, with processes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from broker.client import connect
from broker.config.configuration import load
from tests.folders import checks
from tests.folders.keep import KEPT, unpack
from tests.support.lone import lone_broker


async def test_an_earlier_folder_opens_and_goes_on(tmp_path: Path) -> None:
    was = checks.kept("lone")
    unpack(KEPT / "lone.tar.zst", tmp_path)
    env = {"LIFTLOG_DATA_DIR": str(tmp_path / "broker" / "data"), "LIFTLOG_HTTP_PORT": "0", **checks.FOREVER}
    broker = lone_broker(load(None, {**env, "LIFTLOG_INTAKE_ENABLED": "false"}))
    try:
        await broker.start()
        await asyncio.to_thread(look, broker.http_address, was)
    finally:
        await broker.stop()


def look(address: str, was: dict[str, Any]) -> None:
    with connect(address) as client, connect(address, deadline_s=0) as hasty:
        checks.same(client, was)
        checks.producers_go_on(client, was)
        checks.sinks_go_on(client, was)
        checks.takes_appends(client, was, hasty)
