"""A real cluster: a master and two workers on two hosts, where Spark runs a slow task twice at once.

The short form. Rounds of SIGKILL on it: `python -m tests.spark --rounds 20 --master standalone`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.client import Client
from tests.spark import twice_app
from tests.spark.kills import ROOT
from tests.spark.standalone import Standalone
from tests.support.processes import BrokerProcess


@pytest.mark.timeout(600)
def test_a_task_that_runs_twice_at_once_writes_once(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    """Both attempts stage their rows, on two hosts; the commit names one of them."""
    for name in (twice_app.SOURCE, twice_app.SINK):
        client.create_stream(name, partitions=2)
    for partition in range(2):
        client.append(twice_app.SOURCE, partition, [{"value": b"%d" % n} for n in range(partition, 2000, 2)])
    with Standalone(tmp_path / "cluster") as cluster:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.twice_app", broker.address, str(tmp_path), cluster.url],
            cwd=ROOT,
            capture_output=True,
            timeout=540,
        )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    assert len(list(tmp_path.glob("attempt-*"))) == 2, "there was a second attempt, and no third"
    values = client.read(twice_app.SINK).to_table().column("value").to_pylist()
    assert sorted(map(int, values)) == list(range(2000))
