"""The exactly-once sink while what it needs is away: it waits for as long as its option says, and then names it.

Method: without Spark, as in test_sink_protocol.py, which has the pause. The disk is a small file system that is really
full, and the leader is a broker that is dead.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.client import connect
from spark_liftlog.errors import LiftlogSparkError
from tests.spark.sink_tasks import PLACED, Query, found, one_each, values
from tests.spark.streams import Stream
from tests.spark.test_three_moves import DEADLINE_S, away, placed, wait_for_whole
from tests.support.clusters import RealCluster
from tests.support.processes import BrokerProcess

DISK_BYTES = 24 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_is_waited_for_and_then_named(disk: Path, tmp_path: Path) -> None:
    """Somebody else takes what is left of it down to the reserve. Nothing of the batch is seen until there is room."""
    broker = BrokerProcess(tmp_path / "broker", None, env={"LIFTLOG_DATA_DIR": str(disk / "data")}).start()
    try:
        with connect(broker.address) as client:
            stream = Stream.create(client, "crowded", partitions=1)
            Query(stream).batch(0, values("a"))
            room = os.statvfs(disk)
            (disk / "filler").write_bytes(bytes(room.f_bavail * room.f_frsize - (1 << 20)))
            with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_DISK_FULL: .*gave up after .* in 0\.5 s"):
                Query(stream, deliveryTimeoutMs="500").batch(1, values("b" * (2 << 20)))
            assert found(stream) == ["a"]
            (disk / "filler").unlink()
            Query(stream, run="run-2").batch(1, values("b"))
            assert found(stream) == ["a", "b"]
    finally:
        broker.stop()


def test_a_partition_without_a_leader_is_waited_for_and_then_named(cluster: RealCluster) -> None:
    with cluster.client(deadline_s=DEADLINE_S) as client:
        stream = placed(client, "sink-headless", replicas=1)
        wait_for_whole(cluster, stream, 1)
        Query(stream, schema=PLACED).batch(0, one_each("a", "b", "c"))
        query = Query(stream, schema=PLACED, deliveryTimeoutMs="500")
        with (
            away(cluster, stream.name),
            pytest.raises(
                LiftlogSparkError, match=r"LIFTLOG_(UNAVAILABLE|NOT_LEADER|NOT_READY): .*gave up after .* in 0\.5 s"
            ),
        ):
            query.batch(1, one_each("d", "e", "f"))
        Query(stream, run="run-2", schema=PLACED).batch(1, one_each("d", "e", "f"))
        assert found(stream) == ["a", "b", "c", "d", "e", "f"]
