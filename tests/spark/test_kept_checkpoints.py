"""Checkpoints of an earlier commit go on exactly once, with the source and the sink of today.

Method: four queries of fcd1e96, made by its own code (tests/folders/make_checkpoints.py). One has ended. Of three the
driver was killed at a batch: after the sink's commit, before it, and in `foreachBatch` after the write. Their broker
was killed, too. Today's broker opens its folder, and today's code runs the queries from their checkpoints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.client import Client, connect
from tests.folders import queries
from tests.folders.checks import FOREVER
from tests.folders.keep import KEPT, unpack
from tests.spark.kills import ROOT
from tests.support.processes import BrokerProcess

MORE = 25
"""Records that each source gets today."""
HALF_DONE = "decided", "staged", "each"
"""Queries with a batch that was planned and is not complete."""


def decided(client: Client) -> dict[str, int]:
    """The last batch that was decided for each query, by the stream that it writes."""
    return {
        stream.removeprefix("sink-"): sink.last.batch_id
        for sink in client.sinks()
        if sink.last is not None
        for stream in sink.destinations
    }


def last(folder: Path) -> int:
    """The last batch that a checkpoint's folder has."""
    return max(int(path.name) for path in folder.glob("[0-9]*"))


@pytest.mark.timeout(400)
def test_checkpoints_of_an_earlier_commit_go_on_exactly_once(tmp_path: Path) -> None:
    was = json.loads((KEPT / "checkpoints.json").read_text())
    unpack(KEPT / "checkpoints.tar.zst", tmp_path)
    planned = {name: last(tmp_path / name / "offsets") for name in queries.QUERIES}
    for name in queries.QUERIES:
        assert last(tmp_path / name / "commits") == planned[name] - (name in HALF_DONE), name
    records = was["records"] + MORE
    broker = BrokerProcess(tmp_path / "broker", None, env=FOREVER).start()
    try:
        with connect(broker.address) as client:
            assert decided(client) == {name: planned[name] - (name == "staged") for name in queries.QUERIES}
            for name in queries.SOURCES:
                rows = [{"value": f"{name} {n}".encode()} for n in range(was["records"], records)]
                client.append(name, 0, rows)
            done = subprocess.run(
                [sys.executable, ROOT / "tests" / "folders" / "queries.py", broker.address, "all"],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=360,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            said = f"batch_id={planned['decided']} rows={queries.BATCH_ROWS} decided_rows={queries.BATCH_ROWS}"
            assert f"{said} is_same=True" in done.stderr, "the batch that was decided came again, and was recognised"
            assert f"txn_version={planned['each']} note=written before" in done.stderr
            for name in queries.QUERIES:
                values = client.read(f"sink-{name}").to_table().column("value").to_pylist()
                expected = [f"{source} {n}".encode() for source in queries.SOURCES for n in range(records)]
                assert sorted(values) == sorted(expected), name
                assert decided(client)[name] > planned[name], name
    finally:
        broker.stop()
