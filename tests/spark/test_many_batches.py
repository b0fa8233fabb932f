"""A query of 500 micro-batches holds after the last one what it held after 100: handles, threads, memory.

Method: a query with source, pinned frame and exactly-once sink; all of its processes and the broker are measured at two
moments in which it waits for records (many_app.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.client.client import connect
from tests.spark import many_app
from tests.spark.kills import ROOT
from tests.spark.memory import MIB
from tests.support.processes import BrokerProcess

MORE = {"handles": 20, "threads": 20, "bytes": 48 * MIB}
"""How much more a process may hold 400 batches later: less than one for each batch, and than 128 KiB."""
JAVA_BYTES = 160 * MIB
"""As much for Java: its collector has run, and what Spark cleans up behind it may not be gone yet."""


@pytest.mark.timeout(1_800)
def test_after_500_batches_no_process_holds_more_than_after_100(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", None).start()
    try:
        with connect(broker.address) as client:
            for name in (many_app.SOURCE, many_app.NAMES, many_app.SINK):
                client.create_stream(name, partitions=2)
            client.append(many_app.NAMES, 0, [{"key": b"%d" % n, "value": b"name-"} for n in range(4)])
            done = subprocess.run(
                [sys.executable, "-m", "tests.spark.many_app", broker.address, str(broker.pid), str(tmp_path)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=1_700,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            values = client.read(many_app.SINK).to_table().column("value").to_pylist()
            rows = many_app.BATCHES[-1] * many_app.BATCH_ROWS
            assert sorted(values) == sorted(b"name-%d" % n for n in range(rows))
    finally:
        broker.stop()
    first, last = (told(tmp_path, count) for count in many_app.BATCHES)
    assert len(last["processes"]) <= len(first["processes"]) + 2, (list(first["processes"]), list(last["processes"]))
    for name, now in last["processes"].items():
        was = first["processes"].get(name, {})
        for unit in MORE:
            more = now[unit] - was.get(unit, now[unit])
            most = JAVA_BYTES if (name, unit) == ("java", "bytes") else MORE[unit]
            assert more <= most, f"{name}: {more} more {unit}: {first['threads']}, {last['threads']}"


def told(folder: Path, count: int) -> Any:
    return json.loads((folder / f"after-{count}.json").read_text())
