"""A task of a failed `df.write` that begins to write when the job is over: a loser of speculation, for example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.client import Client
from tests.spark import late_app
from tests.spark.kills import ROOT
from tests.support.processes import BrokerProcess


@pytest.mark.timeout(400)
def test_a_task_that_begins_when_its_job_is_over_leaves_nothing(
    broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_stream(late_app.TARGET, partitions=1)
    before = {known.sink for known in client.sinks()}
    done = subprocess.run(
        [sys.executable, "-m", late_app.__name__, broker.address, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        timeout=360,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    assert "this task fails" in (tmp_path / "failed").read_text()
    assert "LIFTLOG_SINK_FENCED" in (tmp_path / "late").read_text()
    assert not any(known.staged for known in client.sinks(staged=True) if known.sink not in before)
    assert client.read(late_app.TARGET).to_table().num_rows == 0
