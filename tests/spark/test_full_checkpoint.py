"""A checkpoint on a disk that fills up amid a query: the query ends with an error, and goes on once there is room.

Method: the checkpoint lies on a small file system of its own. A task of the batch fills it, so that Spark cannot write
what it has committed; or it is full before the query starts, so that Spark cannot write what it is about to read.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from broker.client.client import Client
from tests.cluster.test_full_disk import fill
from tests.spark.sink_tasks import found
from tests.spark.streams import Stream
from tests.spark.test_exactly_once import expected, run_into

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: needs root")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no mount here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("full", ["before the batch", "amid the batch"])
def test_a_query_whose_checkpoint_has_no_room_ends_and_goes_on(
    spark: SparkSession, stream: Stream, client: Client, disk: Path, tmp_path: Path, full: str
) -> None:
    target, checkpoint, due = Stream.create(client, f"written-{full[:4]}"), str(disk / "checkpoint"), tmp_path / "due"

    def filling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if due.exists():
            fill(disk)
        yield from batches

    def run() -> None:
        frame = stream.follow(spark, maxOffsetsPerTrigger=30).select("value")
        run_into(target, frame.mapInArrow(filling, frame.schema), checkpoint)

    stream.append(10)
    run()
    for _ in range(2):
        stream.append(10)
        if full == "before the batch":
            fill(disk)
        else:
            due.touch()
        for _ in range(2):  # also as long as there is no room
            with pytest.raises(StreamingQueryException, match="No space left on device"):
                run()
        due.unlink(missing_ok=True)
        (disk / "filler").unlink()
        run()
        assert Counter(found(target)) == Counter(expected(stream))
