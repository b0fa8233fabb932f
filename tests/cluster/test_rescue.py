"""Goal: a majority is lost for good, and what the last broker had is there again, and goes on.

Method: four real brokers, three of them voters, and the real command line; two voters' folders are deleted.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import InvalidRequest
from broker.client import Client
from tests.cluster.test_three_operator import liftlog, values
from tests.support.clusters import RealCluster, store, three
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]


def offline(cluster: RealCluster, broker: str, command: str, *, code: int = 0) -> subprocess.CompletedProcess[str]:
    folder = cluster.brokers[broker].folder / "data"
    return liftlog(cluster, "cluster", "rescue", command, "--data", str(folder), "--yes", code=code)


def lose(cluster: RealCluster, broker: str) -> None:
    cluster.brokers[broker].kill9()
    shutil.rmtree(cluster.brokers[broker].folder / "data")


def filled(cluster: RealCluster) -> list[bytes]:
    """Acknowledged by all: `orders` on a, b and c, with a consumer's offset; `elsewhere` on b, c and d."""
    with cluster.client() as client:
        client.create_stream("orders", partitions=3, replication_factor=3)
        client.create_stream("elsewhere", replication_factor=3)
        client.reassign("orders", ["a", "b", "c"])
        client.reassign("elsewhere", ["b", "c", "d"])
        eventually(
            lambda: all(each.health == "ok" and each.target is None for each in client.placements()),
            what="all is in sync",
        )
        store(client, "elsewhere", 0, [{"value": b"d has it"}])
        for partition in range(3):
            store(client, "orders", partition, [{"value": b"%d-%d" % (partition, n)} for n in range(50)])
        client.commit("job", {"orders": {0: 7}})
        return sorted(values(client, "orders"))


def is_well(client: Client) -> bool:
    return all(each.health == "ok" and len(each.isr) == 3 for each in client.placements())


def test_two_of_three_votes_are_lost_and_what_is_left_goes_on(tmp_path: Path) -> None:
    """d has no vote, and half of the records; c never comes back."""
    with three(tmp_path, ids=("a", "b", "c", "d"), later=("d",)) as cluster:
        before = filled(cluster)
        assert "is in use by process" in offline(cluster, "a", "begin", code=1).stderr
        for broker in ("b", "c"):
            lose(cluster, broker)
        for broker in ("a", "d"):
            cluster.brokers[broker].kill9()
        assert "these brokers: a, b, c, d" in offline(cluster, "a", "begin").stderr
        cluster.brokers["a"].start(wait=False)
        cluster.wait_ready("a")
        refused = cluster.brokers["d"].start(wait=False).process
        assert refused is not None
        eventually(lambda: refused.popen.poll() is not None, what="d of the former group to be refused")
        assert "liftlog cluster rescue join --data" in refused.output()
        cluster.brokers["d"].kill9()
        offline(cluster, "d", "join")
        cluster.brokers["d"].start(wait=False)
        cluster.wait_ready("d")
        with cluster.client("a", "d", deadline_s=60.0) as client:
            rescue(cluster, client)
            assert {each.health for each in client.placements("orders")} == {"below_minimum"}
            liftlog(cluster, "cluster", "reassign", "orders", "--replicas", "a", "--min-insync-replicas", "1")
            assert sorted(values(client, "orders")) == before
            store(client, "orders", 1, [{"value": b"alone"}])
            cluster.brokers["b"].start(wait=False)
            cluster.wait_ready("b")
            client.reassign("orders", ["a", "b", "d"], min_insync_replicas=2)
            liftlog(cluster, "cluster", "drain", "c")
            liftlog(cluster, "cluster", "remove-broker", "c", "--yes")
            eventually(lambda: sorted(client.cluster().voters) == ["a", "b", "d"], what="three vote")
            eventually(lambda: is_well(client), what="all is in sync again")
            store(client, "orders", 0, [{"value": b"after"}])
            assert client.consumer("job").offsets("orders") == {0: 7}
        cluster.brokers["a"].kill9()  # what it had is on the others
        with cluster.client("b", "d", deadline_s=60.0) as client:
            assert sorted(values(client, "orders")) == sorted([*before, b"alone", b"after"])
            assert values(client, "elsewhere") == [b"d has it"]


def rescue(cluster: RealCluster, client: Client) -> None:
    """Nobody leads before the end, and nothing ends before b and c are excused."""

    def state() -> Any:
        return json.loads(liftlog(cluster, "cluster", "rescue", "status", "--json").stdout)

    eventually(lambda: client.rescue().reported == ("a", "d"), what="the reports")
    found = state()
    assert (found["missing"], found["missing_replicas"]) == (["b", "c"], [])
    assert not [each for each in client.placements() if each.leader is not None]
    liftlog(cluster, "cluster", "rescue", "excuse", "b", "--yes")
    with pytest.raises(InvalidRequest, match=r"start, or excuse: c$"):
        client.end_rescue(["a", "b", "c", "d"])
    with pytest.raises(InvalidRequest, match="accept_loss"):
        client.excuse("c")
    assert "nobody is missing" in liftlog(cluster, "cluster", "rescue", "excuse", "c", "--yes").stderr
    with pytest.raises(InvalidRequest, match=r"leave out \(the catalog does not know them\): e"):
        client.end_rescue(["a", "b", "c", "d", "e"])
    ended = json.loads(liftlog(cluster, "cluster", "rescue", "end", "a,b,c,d", "--json").stdout)
    led = [each for each in ended["partitions"] if each["stream"] == "orders"]
    assert [(each["leader"], each["log_end_offset"]) for each in led] == [("a", 50)] * 3
    assert [each["leader"] for each in ended["partitions"] if each["stream"] == "elsewhere"] == ["d"]
    assert not [each for each in ended["partitions"] if each["is_whole"] or each["is_lost"]]
    assert ended["unknown"] == []
    assert state()["rescue"] is None
