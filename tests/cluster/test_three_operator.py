"""Goal: an operator moves replicas, removes a broker, gives up records; who dies in between loses nothing else.

Method: four real brokers, of which `c` has no vote at first, and the real command line; brokers are killed half-way.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import CorruptLog, InvalidRequest, UnknownPartition, UnknownStream
from broker.client import Client
from tests.cluster.test_three import goes_on, history
from tests.support.clusters import RealCluster, store, three
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

IDS = ("a", "b", "c", "d")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("LIFTLOG_")}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with three(tmp_path_factory.mktemp("four"), ids=IDS, later=("c",)) as made:
        yield made


@pytest.fixture
def client(cluster: RealCluster) -> Iterator[Client]:
    for broker in cluster.brokers:
        back(cluster, broker)
    with cluster.client(deadline_s=60.0) as made:
        yield made


def back(cluster: RealCluster, broker: str) -> None:
    if cluster.brokers[broker].process is None:
        cluster.brokers[broker].start(wait=False)
    cluster.wait_ready(broker)


def liftlog(cluster: RealCluster, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command line, pointed at the cluster."""
    addresses = ",".join(process.address for process in cluster.running.values())
    done = subprocess.run(
        [sys.executable, "-P", "-m", "broker.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**CLEAN, "LIFTLOG_BROKERS": addresses, "LIFTLOG_RETRY_S": "60"},
        timeout=150,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def replicas(client: Client, stream: str, partition: int = 0) -> tuple[str, ...]:
    return client.placements(stream)[partition].replicas


def values(client: Client, stream: str) -> list[Any]:
    return client.read(stream).to_table().column("value").to_pylist()


def moved(client: Client, stream: str) -> bool:
    return all(each.target is None and each.health == "ok" for each in client.placements(stream))


def test_replicas_are_moved_under_load_and_the_old_leader_dies_half_way(
    cluster: RealCluster, client: Client, tmp_path: Path
) -> None:
    with history(cluster, tmp_path / "history.jsonl", "moved") as senders:
        client.reassign("moved", ["a", "b", "c"])
        eventually(lambda: moved(client, "moved"), what="it is on a, b and c")
        cluster.brokers["c"].kill9()
        eventually(lambda: all("c" not in each.isr for each in client.placements("moved")), what="c to be failed")
        for partition in (0, 1):
            asked = client.reassign("moved", ["c", "d"], partition=partition)
            assert asked[0].target == ("c", "d")
        goes_on(senders)
        assert not moved(client, "moved"), "c is away"
        old = cluster.leader("moved", 0)
        others = {"a", "b", "d"} - {old}
        eventually(lambda: len(set(client.placements("moved")[0].isr) & others) == 2, what="two others in sync")
        cluster.brokers[old].kill9()
        goes_on(senders)
        back(cluster, "c")
        eventually(lambda: moved(client, "moved"), what="it is on c and d")
        assert {replicas(client, "moved", partition) for partition in (0, 1)} == {("c", "d")}
        goes_on(senders)
        back(cluster, old)
        goes_on(senders)
    folder = cluster.brokers[old].folder / "data" / "streams" / "moved"
    eventually(lambda: not any(folder.glob("*/*/*")), what="the folder of its former replica to go")


def test_what_cannot_be_moved_is_refused_by_name(cluster: RealCluster, client: Client) -> None:
    client.create_stream("kept", partitions=2, replication_factor=1)
    with pytest.raises(InvalidRequest, match="no broker 'z' is registered; these are: a, b, c, d"):
        client.reassign("kept", ["a", "z"])
    with pytest.raises(InvalidRequest, match="named twice"):
        client.reassign("kept", ["a", "a"])
    with pytest.raises(InvalidRequest, match="min_insync_replicas=3: only 2"):
        client.reassign("kept", ["a", "b"], min_insync_replicas=3)
    with pytest.raises(UnknownPartition, match="no partition 7"):
        client.reassign("kept", ["a"], partition=7)
    with pytest.raises(UnknownStream):
        client.reassign("nothing", ["a"])
    with pytest.raises(InvalidRequest, match="lives: stop it"):
        client.remove_broker("a")
    with pytest.raises(InvalidRequest, match="no broker 'z'"):
        client.remove_broker("z")
    with pytest.raises(InvalidRequest, match="is led by"):
        client.elect_unclean("kept", 0, accept_loss=True)
    shown = json.loads(liftlog(cluster, "cluster", "reassign", "kept", "--replicas", "b,c", "--json").stdout)
    assert [(each["replicas"], each["health"]) for each in shown] == [(["b", "c"], "ok"), (["c", "b"], "ok")]


def test_the_preferred_replicas_lead_when_asked(cluster: RealCluster, client: Client) -> None:
    client.create_stream("preferred", replication_factor=3)
    client.reassign("preferred", ["a", "b", "c"])
    eventually(lambda: moved(client, "preferred"), what="it is on a, b and c")
    client.elect_preferred("preferred")
    assert client.placements("preferred")[0].leader == "a"
    client.reassign("preferred", ["b", "a", "c"])
    liftlog(cluster, "cluster", "elect", "preferred/0")
    assert client.placements("preferred")[0].leader == "b"
    assert not client.elect_preferred("preferred", 0).moved


def test_records_are_given_up_only_by_somebody_who_says_so(cluster: RealCluster, client: Client) -> None:
    client.create_stream("given", replication_factor=2, min_insync_replicas=1)
    client.reassign("given", ["c", "d"])
    eventually(lambda: moved(client, "given"), what="it is on c and d")
    eventually(lambda: client.elect_preferred("given", 0) and cluster.leader("given") == "c", what="c leads")
    store(client, "given", 0, [{"value": b"both"}])
    cluster.in_sync("given", 2)
    cluster.brokers["d"].kill9()
    cluster.in_sync("given", 1)
    store(client, "given", 0, [{"value": b"only c"}])
    cluster.brokers["c"].kill9()
    back(cluster, "d")
    eventually(lambda: client.placements("given")[0].leader is None, what="nobody leads")
    refused = liftlog(cluster, "cluster", "elect", "given/0", "--unclean", code=1)
    assert "is on c, which cannot lead now" in refused.stderr
    assert "d would lead from offset 1" in refused.stderr
    assert "--yes" in refused.stderr
    assert client.placements("given")[0].leader is None
    with pytest.raises(InvalidRequest, match="broker a is not there with a copy; these are: d"):
        client.elect_unclean("given", 0, broker="a", accept_loss=True)
    said = liftlog(cluster, "cluster", "elect", "given/0", "--unclean", "--yes")
    assert "unclean" in said.stdout
    store(client, "given", 0, [{"value": b"after"}])
    back(cluster, "c")
    cluster.in_sync("given", 2)
    eventually(lambda: client.elect_preferred("given", 0) and cluster.leader("given") == "c", what="c leads again")
    assert values(client, "given") == [b"both", b"after"]


def rot(cluster: RealCluster, broker: str, stream: str, value: bytes) -> None:
    """Flip a bit of a stored record on the disk of a broker."""
    for path in sorted((cluster.brokers[broker].folder / "data" / "streams" / stream).glob("*/0/*.arrows")):
        at = path.read_bytes().find(value)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([value[0] ^ 4]))
                file.flush()
                os.fsync(file.fileno())
            return
    pytest.fail(f"{value!r} is not stored on {broker}")


def test_a_damaged_record_that_nobody_else_has_is_given_up_alone(cluster: RealCluster, client: Client) -> None:
    client.create_stream("rotten", replication_factor=2, min_insync_replicas=1)
    client.reassign("rotten", ["c", "d"])
    eventually(lambda: moved(client, "rotten"), what="it is on c and d")
    eventually(lambda: client.elect_preferred("rotten", 0) and cluster.leader("rotten") == "c", what="c leads")
    store(client, "rotten", 0, [{"value": b"both"}])
    cluster.in_sync("rotten", 2)
    with pytest.raises(InvalidRequest, match="nothing is damaged"):
        client.accept_loss("rotten", 0, accept_loss=True)
    cluster.brokers["d"].kill9()
    cluster.in_sync("rotten", 1)
    eventually(lambda: len([broker for broker in client.cluster().brokers if broker.live]) == 3, what="d to be failed")
    for number in range(1, 8):
        store(client, "rotten", 0, [{"value": b"only c has %d" % number}])
    rot(cluster, "c", "rotten", b"only c has 4")
    with pytest.raises(CorruptLog):
        values(client, "rotten")
    eventually(lambda: cluster.describe("rotten", by="c")["partitions"][0]["lost_ranges"] == [[4, 5]])
    refused = liftlog(cluster, "cluster", "accept-loss", "rotten/0", code=1)
    assert "the offsets [4, 5) cannot be read on broker c" in refused.stderr
    assert "d, which may have it, is away" in refused.stderr
    back(cluster, "d")
    eventually(lambda: copy_end(cluster, "d", "rotten") == 4, what="d stops before the damage")
    store(client, "rotten", 0, [{"value": b"amid"}])
    refused = liftlog(cluster, "cluster", "accept-loss", "rotten/0", code=1)
    assert "--yes" in refused.stderr
    assert "is away" not in refused.stderr
    assert cluster.describe("rotten", by="c")["partitions"][0]["lost_ranges"] == [[4, 5]]

    done = json.loads(liftlog(cluster, "cluster", "accept-loss", "rotten/0", "--yes", "--json").stdout)
    assert (done["leader"], done["ranges"]) == ("c", [[4, 5]])
    again = client.accept_loss("rotten", 0, accept_loss=True)
    assert again.ranges == ((4, 5),), "an answer that was lost is given again"
    expected = [b"both", *(b"only c has %d" % n for n in (1, 2, 3, 5, 6, 7)), b"amid"]
    assert values(client, "rotten") == expected
    assert cluster.brokers["c"].metric('liftlog_partition_given_up_offsets{stream="rotten",partition="0"}') == 1
    assert "replica.loss_accepted partition=rotten/0 ranges=((4, 5),)" in cluster.brokers["c"].output()
    cluster.in_sync("rotten", 2)
    cluster.brokers["c"].kill9()
    eventually(lambda: cluster.leader("rotten") == "d", what="d leads")
    assert values(client, "rotten") == expected
    store(client, "rotten", 0, [{"value": b"after"}])
    back(cluster, "c")
    cluster.in_sync("rotten", 2)
    assert cluster.describe("rotten", by="c")["partitions"][0]["lost_ranges"] == []
    assert not Path(done["aside"]).exists(), "all have what there is"
    eventually(lambda: client.elect_preferred("rotten", 0) and cluster.leader("rotten") == "c", what="c leads again")
    assert values(client, "rotten") == [*expected, b"after"]


def copy_end(cluster: RealCluster, broker: str, stream: str) -> int | None:
    """Where the copy of partition 0 ends on a broker."""
    found = cluster.brokers[broker].get("/v1/cluster/replicas")["replicas"]
    return next((each["log_end_offset"] for each in found if (each["stream"], each["partition"]) == (stream, 0)), None)


def test_a_broker_is_drained_and_removed_and_its_folder_is_refused(cluster: RealCluster, client: Client) -> None:
    client.create_stream("drained", partitions=3, replication_factor=3)
    for partition in range(3):
        store(client, "drained", partition, [{"value": b"%d" % partition}])
    victim = next(broker for broker in "abd" if broker != cluster.controller())
    cluster.brokers[victim].kill9()
    eventually(lambda: not broker_of(client, victim).live, what="it to be failed")
    with pytest.raises(InvalidRequest, match="is assigned") as refused:
        client.remove_broker(victim)
    assert any(each.startswith(("drained/", "__offsets/")) for each in refused.value.keeps)
    client.drain(victim)
    controller = cluster.controller()
    cluster.brokers[controller].kill9()  # in the midst: two of three votes are away, and nothing is decided
    back(cluster, controller)
    liftlog(cluster, "cluster", "drain", victim)
    assert not [each for each in client.placements() if victim in each.replicas]
    liftlog(cluster, "cluster", "remove-broker", victim, "--yes")
    assert victim not in [each.id for each in client.cluster().brokers]
    left = sorted({"a", "b", "c", "d"} - {victim})
    eventually(lambda: sorted(client.cluster().voters) == left, what="its vote goes, and c has one")

    cluster.brokers[victim].start(wait=False)
    process = cluster.brokers[victim].process
    assert process is not None
    eventually(lambda: process.popen.poll() is not None, what="it to be refused")
    assert "was removed" in process.output()
    cluster.brokers[victim].kill9()
    shutil.rmtree(cluster.brokers[victim].folder / "data")
    back(cluster, victim)
    eventually(lambda: broker_of(client, victim).live, what="it to be another one")
    client.reassign("drained", [victim, "c"])
    eventually(lambda: moved(client, "drained"), what="it has copies again")
    assert sorted(values(client, "drained")) == [b"0", b"1", b"2"]


def broker_of(client: Client, broker: str) -> Any:
    return next(each for each in client.cluster().brokers if each.id == broker)
