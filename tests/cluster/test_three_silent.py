"""Goal: a dead job does not block others, a living one keeps what it has staged, and a frozen one is told.

Method: three brokers with little room for stages, whose coordinator is killed. One job is killed with kill -9 when it
has filled a partition, one is stopped with SIGSTOP, one lives. Then a healthy one comes to each of the partitions.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from broker.api.errors import StagesFull
from broker.api.stream import COMMITS_STREAM
from broker.client import Client
from tests.support.clusters import RealCluster, three
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOM = 1 << 20
SILENT_MS = 3_000
JOB = """
import sys
import pyarrow as pa
from broker.api.errors import StageLost
from broker.client import connect
address, name, partition = sys.argv[1:]
with connect(address, deadline_s=120.0) as client:
    sink = client.sink(name)
    sink.open()
    rows = pa.record_batch({"value": pa.array([name.encode() * 150_000] * 2, pa.binary())})
    stages = [sink.stage(rows, "s", int(partition))]
    print("staged", flush=True)
    sys.stdin.readline()
    try:
        sink.commit(0, stages)
    except StageLost as error:
        print(error.reason, flush=True)
        sink.commit(0, [sink.stage(rows, "s", int(partition))])
    print("committed", flush=True)
"""


class Job:
    """A process that fills a partition, and commits when it is told to."""

    def __init__(self, address: str, name: str, partition: int) -> None:
        command = [sys.executable, "-c", JOB, address, name, str(partition)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.says() == "staged"

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with three(
        tmp_path_factory.mktemp("three"),
        LIFTLOG_SINKS_STAGE_BYTES_MAX=str(ROOM),
        LIFTLOG_SINKS_OWNER_SILENT_MS=str(SILENT_MS),
    ) as made:
        yield made


def values_of(client: Client, partition: int) -> list[bytes]:
    found = client.read("s", partitions=[partition])
    return [value[:4] for batch in found for value in batch.column("value").to_pylist()]


def test_dead_and_frozen_jobs_make_room_and_a_living_one_does_not(cluster: RealCluster) -> None:
    with cluster.client(deadline_s=180.0) as client:
        client.create_stream("s", partitions=3, replication_factor=3)
        jobs = {name: Job(",".join(cluster.addresses), name, n) for n, name in enumerate(("died", "iced", "live"))}
        try:
            jobs["died"].process.kill()
            jobs["iced"].process.send_signal(signal.SIGSTOP)
            victim = cluster.leader(COMMITS_STREAM)
            cluster.brokers[victim].kill9()
            healthy = client.sink("healthy")
            healthy.open()
            rows = pa.record_batch({"value": pa.array([b"good"], pa.binary())})
            stages = [healthy.stage(rows, "s", partition) for partition in (0, 1)]  # waits until they are silent
            hasty = cluster.client(*cluster.running, deadline_s=1.0).sink("healthy", epoch=healthy.epoch)
            with pytest.raises(StagesFull, match="sink 'live'"):
                hasty.stage(rows, "s", 2)
            told = {sink.sink: sink.staged or () for sink in client.sinks(staged=True)}
            assert [each.is_silent for each in told["live"]] == [False]
            assert not told["died"]
            assert not told["iced"]
            healthy.commit(0, stages)
            jobs["live"].go_on()
            assert jobs["live"].says() == "committed"
            jobs["iced"].process.send_signal(signal.SIGCONT)
            jobs["iced"].go_on()
            assert [jobs["iced"].says(), jobs["iced"].says()] == ["stage_lost", "committed"]
            cluster.brokers[victim].start(wait=False)
            cluster.wait_ready(victim)
            expected = [[b"good"], [b"good", b"iced", b"iced"], [b"live", b"live"]]
            eventually(lambda: [values_of(client, n) for n in range(3)] == expected, timeout_s=60, what="each once")
        finally:
            for job in jobs.values():
                job.end()
