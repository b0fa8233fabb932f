"""Spark Connect: the format is found on the server, source and sink run there.

Skipped where Connect's own dependencies are not installed: pip install "pyspark[connect]".
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.client import Client
from tests.spark import connect_app
from tests.spark.kills import ROOT
from tests.support.processes import BrokerProcess


@pytest.mark.timeout(400)
def test_a_connect_session_reads_and_writes(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status")
    for name in (connect_app.SOURCE, connect_app.SINK):
        client.create_stream(name, partitions=2)
    for partition in range(2):
        client.append(connect_app.SOURCE, partition, [{"value": b"%d" % n} for n in range(100)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_app", broker.address, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        timeout=360,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    values = client.read(connect_app.SINK).to_table().column("value").to_pylist()
    assert sorted(map(int, values)) == sorted([*range(100)] * 4)
