"""`spark.python.worker.reuse=false`: each task has a new Python process, which knows nothing of the ones before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.client import Client
from tests.spark import fresh_app
from tests.spark.kills import ROOT
from tests.support.processes import BrokerProcess


@pytest.mark.timeout(400)
def test_each_row_is_there_once_when_no_worker_is_used_again(
    broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    for name in (fresh_app.SOURCE, fresh_app.STREAMED, fresh_app.EACH, fresh_app.WRITTEN):
        client.create_stream(name, partitions=2)
    for partition in range(2):
        client.append(fresh_app.SOURCE, partition, [{"value": b"%d" % n} for n in range(partition, fresh_app.ROWS, 2)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.fresh_app", broker.address, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        timeout=360,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    tasks = [note.read_text() for note in tmp_path.glob("task-*")]
    assert len(tasks) == len(set(tasks)) >= 4, "each task had a new worker"
    for name in (fresh_app.STREAMED, fresh_app.EACH, fresh_app.WRITTEN):
        values = client.read(name).to_table().column("value").to_pylist()
        assert sorted(map(int, values)) == list(range(fresh_app.ROWS)), name
