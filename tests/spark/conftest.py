"""One Spark session and one broker for all of tests/spark; a fresh stream for each test.

Spark runs `python3` of the PATH for its workers unless PYSPARK_PYTHON names another before the session starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_liftlog
from broker.client.client import Client, connect
from tests.spark.streams import Stream
from tests.support.clusters import RealCluster
from tests.support.processes import BrokerProcess


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("liftlog-tests")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.python.authenticate.socketTimeout", "120s")  # the machine may stand still for seconds
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    session = spark_liftlog.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker without NATS: records come by HTTP. Its cleaner looks often, so that retention can be waited for."""
    folder = tmp_path_factory.mktemp("broker")
    process = BrokerProcess(folder, None, env={"LIFTLOG_CLEANER_INTERVAL_MS": "100"}).start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def client(broker: BrokerProcess) -> Iterator[Client]:
    with connect(broker.address) as client:
        yield client


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Three brokers. A test that takes one away brings it back."""
    made = RealCluster(tmp_path_factory.mktemp("three"), None)
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def stream(request: pytest.FixtureRequest, client: Client) -> Stream:
    """A stream of three partitions, named after the test."""
    return Stream.create(client, request.node.name)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
