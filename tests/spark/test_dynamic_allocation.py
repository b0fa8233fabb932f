"""Dynamic allocation: executors go away in the midst of a batch and between batches, others come; each record is once.

A cluster of two workers, shuffle tracking, and executors that go when they had nothing to do for a second.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.client import Client
from tests.spark import dynamic_app
from tests.spark.kills import ROOT
from tests.spark.standalone import Standalone
from tests.support.processes import BrokerProcess


@pytest.mark.timeout(900)
def test_executors_that_go_and_come_write_each_record_once(
    broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    for name in (dynamic_app.SOURCE, dynamic_app.SINK):
        client.create_stream(name, partitions=2)
    with Standalone(tmp_path / "cluster") as cluster:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.dynamic_app", broker.address, str(tmp_path), cluster.url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=840,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert tmp_path.joinpath("gone").exists(), "an executor went in the midst of a batch"
    assert len(list(tmp_path.glob("executor-*"))) >= dynamic_app.TURNS, "each turn had executors of its own"
    values = client.read(dynamic_app.SINK).to_table().column("value").to_pylist()
    assert sorted(map(int, values)) == list(range(dynamic_app.TURNS * dynamic_app.ROWS))
