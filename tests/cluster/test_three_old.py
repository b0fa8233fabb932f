"""Goal: a part of a data folder that is put back from a copy costs no acknowledged record, whoever would have led.

Method: three real brokers. While some are down, a partition's folder, or `streams/`, is replaced by what it was before
half of the records. `support/starting_broker` holds another broker where the old one is to be first.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cluster.test_three_behind import holdable, power_fails, seen
from tests.cluster.test_three_operator import values
from tests.cluster.test_three_parts import held
from tests.support.clusters import WAIT_S, RealCluster, store
from tests.support.effort import EFFORT
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

PARTS = ("", "s/*/0") if EFFORT > 1 else ("",)
WAYS = (False, True) if EFFORT > 1 else (False,)
"""CI leaves out that a folder of one partition is old, and a follower that was stopped cleanly."""
RECORDS = [b"record %d" % number for number in range(8)]
OLD = 4
OFTEN = {"LIFTLOG_CLEANER_INTERVAL_MS": "200", "LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS": "100"}
"""They look at their logs often."""


def data(cluster: RealCluster, broker: str) -> Path:
    return cluster.brokers[broker].folder / "data"


def leads(cluster: RealCluster, broker: str) -> None:
    """Wait until the preferred replica leads."""
    with cluster.client(deadline_s=60.0) as client:
        eventually(lambda: client.elect_preferred("s", 0) and cluster.leader("s") == broker, what="it leads")


def noted(cluster: RealCluster, broker: str) -> int:
    """So far the broker knows that its log of `s` goes."""
    [folder] = (data(cluster, broker) / "streams/s").iterdir()
    text, _, _ = (data(cluster, broker) / "ends").read_text().rpartition(" ")
    return max((end for name, _, end in json.loads(text)["ends"] if name == folder.name), default=0)


def half_and_a_copy(cluster: RealCluster, folder: Path) -> tuple[str, ...]:
    """Store half of the records, and copy `streams/` of each broker aside. Returns the replicas, as preferred."""
    with cluster.client(deadline_s=60.0) as client:
        client.create_stream("s", replication_factor=3)
        cluster.in_sync("s", 3)
        replicas = client.placements("s")[0].replicas
        for record in RECORDS[:OLD]:
            store(client, "s", 0, [{"value": record}])
        for broker in replicas:
            process = cluster.brokers[broker]
            process.stop()
            shutil.copytree(data(cluster, broker) / "streams", folder / f"old-{broker}")
            process.start(wait=False)
            cluster.wait_ready(broker)
            cluster.in_sync("s", 3)
    return tuple(replicas)


def put_back(cluster: RealCluster, folder: Path, broker: str, part: str) -> None:
    """`part`: below `streams`, with one star."""
    [there] = (data(cluster, broker) / "streams").glob(part) if part else [data(cluster, broker) / "streams"]
    [copy] = (folder / f"old-{broker}").glob(part) if part else [folder / f"old-{broker}"]
    shutil.rmtree(there)
    shutil.copytree(copy, there)


def has_all(cluster: RealCluster, broker: str, records: list[bytes]) -> None:
    def copy() -> list[bytes | None] | None:
        found = held(cluster, broker, "s")
        return None if found is None else [value for _, (_, value) in sorted(found.items())]

    eventually(lambda: copy() == records, what=f"the whole copy of {broker}")


@pytest.mark.parametrize("part", PARTS)
def test_who_comes_back_first_with_an_old_log_does_not_lead_and_loses_nothing(tmp_path: Path, part: str) -> None:
    with holdable(tmp_path, **OFTEN) as cluster:
        victim, other, late = half_and_a_copy(cluster, tmp_path)
        leads(cluster, victim)
        with cluster.client(deadline_s=60.0) as client:
            for record in RECORDS[OLD:]:
                store(client, "s", 0, [{"value": record}])
        eventually(lambda: noted(cluster, victim) == len(RECORDS), timeout_s=WAIT_S, what="the end to be noted")
        power_fails(cluster)
        put_back(cluster, tmp_path, victim, part)
        (tmp_path / f"{other}.held").touch()
        for broker in (victim, other):
            cluster.brokers[broker].start(wait=False)
        cluster.wait_ready(victim)
        assert f"end={OLD} known={len(RECORDS)} is_only_one=False" in cluster.brokers[victim].output()

        def is_led_by_nobody() -> bool:
            state = seen(cluster, victim)
            return state is not None and state["leader"] is None and victim not in state["isr"]

        eventually(is_led_by_nobody, timeout_s=WAIT_S, what="those who are away to be failed")
        assert "replica.steps_out" not in cluster.brokers[victim].output(), "its log may be all that is left"
        cluster.brokers[victim].kill9()  # and it is told again
        cluster.brokers[victim].start(wait=False)
        (tmp_path / f"{other}.held").unlink()
        cluster.wait_ready(other)
        assert cluster.leader("s") == other
        cluster.brokers[late].start(wait=False)
        cluster.wait_ready(late)
        cluster.in_sync("s", 3)
        leads(cluster, victim)
        with cluster.client(deadline_s=60.0) as client:
            assert values(client, "s") == RECORDS
            store(client, "s", 0, [{"value": b"after"}])
        for broker in cluster.brokers:
            has_all(cluster, broker, [*RECORDS, b"after"])


@pytest.mark.parametrize("is_stopped", WAYS)
def test_a_follower_with_an_old_log_begins_anew(tmp_path: Path, is_stopped: bool) -> None:
    with holdable(tmp_path, **OFTEN) as cluster:
        leader, victim, other = half_and_a_copy(cluster, tmp_path)
        leads(cluster, leader)
        with cluster.client(deadline_s=60.0) as client:
            for record in RECORDS[OLD:]:
                store(client, "s", 0, [{"value": record}])
            process = cluster.brokers[victim]
            if is_stopped:
                process.stop()
            else:
                eventually(lambda: noted(cluster, victim) == len(RECORDS), timeout_s=WAIT_S, what="the end")
                process.kill9()
            put_back(cluster, tmp_path, victim, "s/*/0")
            process.start(wait=False)
            cluster.wait_ready(victim)
            cluster.in_sync("s", 3)
            output = process.output()
            assert f"end={OLD} known={len(RECORDS)} is_only_one=False" in output
            assert "replica.stepped_out partition=s/0 why=damage" in output
            cluster.brokers[leader].kill9()
            cluster.in_sync("s", 2)
            assert values(client, "s") == RECORDS
            store(client, "s", 0, [{"value": b"after"}])
            for broker in (victim, other):
                has_all(cluster, broker, [*RECORDS, b"after"])
            seen_before = process.output().count("replica.old")
            process.stop()
            process.start(wait=False)
            cluster.wait_ready(victim)
            cluster.in_sync("s", 2)
            assert process.output().count("replica.old") == seen_before, "it has begun anew"
