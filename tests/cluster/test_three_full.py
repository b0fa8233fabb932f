"""Goal: three brokers on full disks live, start, and are told to make room; and take records again by themselves.

Method: real brokers, each on a small file system of its own. Somebody else takes what the reserve keeps, to the last
byte. Each door by itself, without processes: `tests/unit/link/test_room.py`, `tests/unit/raft/test_room.py`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.api.errors import DiskFull, LiftlogError, NotEnoughReplicas
from broker.client import Client
from tests.cluster.test_full_disk import fill, free
from tests.support.clusters import IDS, RealCluster
from tests.support.processes import NatsServer, eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts small file systems: needs root"),
]
SEGMENT_BYTES = 1 << 20
BODY = os.urandom(100_000)


@pytest.fixture
def disks(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, Path]]:
    """The file system of each broker's folder; their sizes in MiB are the parameter."""
    with ExitStack() as stack:
        found = {}
        for broker, size in zip(IDS, request.param, strict=True):
            found[broker] = path = tmp_path / broker
            path.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(path)]
            mounted = subprocess.run(mount, capture_output=True, text=True)
            if mounted.returncode:
                pytest.skip(f"no mount here: {mounted.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", "-l", str(path)], check=True)
        yield found


@pytest.fixture
def cluster(tmp_path: Path, disks: dict[str, Path]) -> Iterator[RealCluster]:
    server = NatsServer(tmp_path / "nats").start()
    env = {"LIFTLOG_CLEANER_INTERVAL_MS": "500", "LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS": "200"}
    made = RealCluster(tmp_path, server, **env)
    try:
        yield made.start()
    finally:
        for broker in made.brokers.values():
            print(broker.output()[-900:])  # shown where the test fails: its log lies on the disk that goes
        made.stop()
        server.stop()


def fill_by_appending(client: Client, stream: str, refusal: type[LiftlogError]) -> LiftlogError:
    """Until what is refused stays refused. Returns why."""
    refused = 0
    for _ in range(20_000):
        try:
            client.append(stream, 0, [{"value": BODY}])
        except refusal as error:
            refused += 1
            if refused == 20:
                return error
        except LiftlogError:
            continue  # a session has lapsed, on a busy machine
    raise AssertionError("the disks do not fill")


def all_live(cluster: RealCluster) -> bool:
    return all(one.process is not None and one.process.popen.poll() is None for one in cluster.brokers.values())


def takes(client: Client, stream: str) -> bool:
    try:
        client.append(stream, 0, [{"value": b"after"}])
    except LiftlogError:
        return False
    return True


@pytest.mark.timeout(600)  # each of a hundred acts waits for its record, for which there is no room
@pytest.mark.parametrize("disks", [(64, 64, 64)], ids=["alike"], indirect=True)
def test_three_full_disks_are_told_to_make_room_also_after_a_start(
    cluster: RealCluster, disks: dict[str, Path]
) -> None:
    with cluster.client(deadline_s=60) as api, cluster.client(deadline_s=0) as impatient:
        for name in ("s", "t", "u"):
            api.create_stream(name, segment_bytes=SEGMENT_BYTES)
            cluster.in_sync(name, 3)
            api.append(name, 0, [{"value": name}])
        cluster.in_sync("__audit", 3)  # while nobody leads it each act waits for 5 s, and it is made a moment after
        fill_by_appending(impatient, "s", DiskFull)
        assert len(cluster.state("s")["isr"]) == 3, "nobody leaves where all disks are alike"
        for disk in disks.values():
            fill(disk)
        for number in range(100):  # each is an entry of the Raft journal
            api.alter("t", retention_bytes=(1 << 30) + number)
        assert all_live(cluster)
        for broker in cluster.brokers.values():
            broker.kill9()
        assert [free(disk) for disk in disks.values()] == [0, 0, 0]
        cluster.start()
        end = cluster.state("s")["high_watermark"]
        assert api.trim("s", before=end - 20) == {0: end - 20}
        for broker, disk in disks.items():
            eventually(lambda disk=disk: free(disk) > 4 << 20, timeout_s=180, what=f"room on the disk of {broker}")
        eventually(lambda: takes(impatient, "s") and takes(impatient, "t"), timeout_s=90, what="records to be taken")
        for name in ("s", "t"):
            cluster.in_sync(name, 3)
        for disk in disks.values():
            fill(disk)
        api.delete_stream("u")
        assert sorted(stream.name for stream in api.streams()) == ["s", "t"]
        assert all_live(cluster)
        assert not any("Traceback" in broker.output() for broker in cluster.brokers.values())


@pytest.mark.parametrize("disks", [(512, 64, 64)], ids=["two small"], indirect=True)
def test_two_small_disks_of_three_say_so_and_come_back(cluster: RealCluster, disks: dict[str, Path]) -> None:
    """The broker with room leads: it is told whose disks are full, and its trim reaches them."""
    with cluster.client(deadline_s=60) as api, cluster.client(deadline_s=0) as impatient:
        api.create_stream("s", segment_bytes=SEGMENT_BYTES)
        cluster.in_sync("s", 3)
        api.reassign("s", ["a", "b", "c"])
        api.elect_preferred("s", 0)
        eventually(lambda: cluster.leader("s") == "a", what="a to lead")
        error = fill_by_appending(impatient, "s", NotEnoughReplicas)
        assert set(error.fields["no_room"]) == {"b", "c"}
        assert all_live(cluster)
        for broker in "bc":
            assert free(disks[broker]) > 1 << 20, "what is kept for the broker itself"
        cluster.brokers["b"].kill9()
        cluster.brokers["b"].start(wait=False)
        cluster.wait_ready("b")
        end = cluster.state("s")["high_watermark"]
        api.trim("s", before=end - 20)
        eventually(lambda: takes(impatient, "s"), timeout_s=90, what="records to be taken")
        cluster.in_sync("s", 3)
        assert not any("Traceback" in broker.output() for broker in cluster.brokers.values())
