"""From liftlog into a Delta table: each record once, though the driver dies between Delta's commit and Spark's.

Skipped where Delta's jars are not there. LIFTLOG_TEST_DELTA_JARS names a folder with those of this Spark: delta-spark,
delta-storage and the three delta-kernel. The table is read without Delta, Spark and liftlog: its log, and its Parquet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from broker.client.client import Client
from tests.spark import delta_app
from tests.spark.kills import ROOT
from tests.support.processes import BrokerProcess

JARS = "LIFTLOG_TEST_DELTA_JARS"
PARTITIONS, RECORDS = 3, 2000
BATCHES = PARTITIONS * RECORDS // delta_app.ROWS_OF_A_BATCH


@pytest.fixture(scope="module")
def jars() -> str:
    """The folder of the jars; the name of one says for which Spark they were built."""
    spark = ".".join(pyspark.__version__.split(".")[:2])
    folder = Path(os.environ.get(JARS, "/nowhere"))
    if not list(folder.glob(f"delta-spark_{spark}_2.13-*.jar")):
        pytest.skip(f"{JARS} names no folder with the jars of Delta Lake for Spark {spark}")
    return str(folder)


@pytest.fixture(scope="module")
def appended(client: Client) -> Counter[bytes]:
    """The values in the source, each different."""
    client.create_stream(delta_app.SOURCE, partitions=PARTITIONS)
    values = [[f"{partition}:{n}".encode() for n in range(RECORDS)] for partition in range(PARTITIONS)]
    for partition, some in enumerate(values):
        client.append(delta_app.SOURCE, partition, [{"value": value} for value in some])
    return Counter(value for some in values for value in some)


def stored(table: Path) -> Counter[bytes]:
    """The values in the table, as its log and its files tell."""
    files: set[str] = set()
    for log in sorted(table.glob("_delta_log/*.json")):
        for action in map(json.loads, log.read_text().splitlines()):
            files |= {action["add"]["path"]} if "add" in action else set()
            files -= {action["remove"]["path"]} if "remove" in action else set()
    return Counter(value for name in files for value in pq.read_table(table / name).column("value").to_pylist())


def run(broker: BrokerProcess, folder: Path, jars: str, how: str, end: str) -> None:
    """The job, until it is killed or has finished, as it was told."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.delta_app", broker.address, str(folder), jars, how, end],
        cwd=ROOT,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == (-9 if end == "kill" else 0), done.stderr.decode(errors="replace")[-4000:]


def killed(broker: BrokerProcess, folder: Path, jars: str, how: str) -> int:
    """Kill the driver after Delta's commit of a batch and before Spark's. Returns the batch."""
    run(broker, folder, jars, how, "kill")
    batch = delta_app.commits(folder / "table") - 1
    assert 2 <= batch < BATCHES
    assert (folder / "checkpoint" / "offsets" / str(batch)).exists()
    assert not (folder / "checkpoint" / "commits" / str(batch)).exists(), "Spark had recorded the batch"
    return batch


@pytest.mark.timeout(700)
@pytest.mark.parametrize("how", ["stream", "transaction"])
def test_each_record_is_in_the_table_once(
    how: str, broker: BrokerProcess, appended: Counter[bytes], jars: str, tmp_path: Path
) -> None:
    batch = killed(broker, tmp_path, jars, how)
    run(broker, tmp_path, jars, how, "finish")
    assert (tmp_path / "checkpoint" / "commits" / str(batch)).exists(), "the batch came again"
    assert delta_app.batches(tmp_path / "table") == list(range(BATCHES))
    assert stored(tmp_path / "table") == appended


@pytest.mark.timeout(700)
def test_without_a_transaction_a_batch_that_comes_again_is_there_twice(
    broker: BrokerProcess, appended: Counter[bytes], jars: str, tmp_path: Path
) -> None:
    """The kill does come between the two commits: whoever does not name the batch has it twice."""
    killed(broker, tmp_path, jars, "plain")
    run(broker, tmp_path, jars, "plain", "finish")
    found = stored(tmp_path / "table")
    assert found.keys() == appended.keys()
    assert Counter(found.values()) == {1: (BATCHES - 1) * delta_app.ROWS_OF_A_BATCH, 2: delta_app.ROWS_OF_A_BATCH}
