"""Declarative Pipelines: a flow from liftlog into a sink of liftlog goes on from where the last run ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.client import Client
from tests.spark.kills import ROOT
from tests.support.processes import BrokerProcess
from tests.support.spark_home import unpacked

SOURCE, SINK = "pipeline-source", "pipeline-sink"
SPEC = """name: copies
storage: file://{folder}/storage
libraries:
  - glob:
      include: pipeline.py
"""


@pytest.mark.timeout(600)
def test_two_runs_of_a_pipeline_write_each_record_once(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    for name in (SOURCE, SINK):
        client.create_stream(name, partitions=2)
    shutil.copy(ROOT / "tests" / "spark" / "pipeline.py", tmp_path)
    tmp_path.joinpath("spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    for run in range(2):
        for partition in range(2):
            rows = [{"value": b"%d" % n} for n in range(100 * run + partition, 100 * run + 100, 2)]
            client.append(SOURCE, partition, rows)
        done = subprocess.run(
            [unpacked() / "bin" / "spark-pipelines", "run"],
            cwd=tmp_path,
            env={
                **os.environ,
                "LIFTLOG_BROKERS": broker.address,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(ROOT),
                "SPARK_HOME": str(unpacked()),
            },
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        values = client.read(SINK).to_table().column("value").to_pylist()
        assert sorted(map(int, values)) == list(range(100 * run + 100)), f"run {run}"
