"""Goal: a disk that has taken back acknowledged records costs none of them, also where it would have led next.

Method: three real brokers. Power fails, and the log that the catalog would choose has a flipped bit behind its
checkpoint. It comes back first (`support/starting_broker` holds another one that makes the majority).
"""

from __future__ import annotations

import signal
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_three_operator import rot, values
from tests.cluster.test_three_parts import held
from tests.support.clusters import WAIT_S, RealCluster, store
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

RECORDS = [b"record %d" % number for number in range(8)]
DAMAGED = 4


@contextmanager
def holdable(folder: Path, **env: str) -> Iterator[RealCluster]:
    """Three brokers. A file `BROKER.held` holds one at its start. By default they write no checkpoint by themselves."""

    def command(broker: str) -> tuple[str, ...]:
        return "tests.support.starting_broker", str(folder / f"{broker}.held")

    never = {"LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS": "3600000"}
    cluster = RealCluster(folder, None, command=command, **(env or never))
    try:
        yield cluster.start()
    finally:
        for broker in cluster.brokers:
            (folder / f"{broker}.held").unlink(missing_ok=True)
        cluster.stop()


def power_fails(cluster: RealCluster) -> None:
    """All end at once: nobody has time to drop another one."""
    for process in cluster.running.values():
        process.process.popen.send_signal(signal.SIGKILL)  # type: ignore[union-attr]
    for process in cluster.running.values():
        process.kill9()


def seen(cluster: RealCluster, broker: str) -> dict[str, Any] | None:
    """Partition 0 of `s` as a broker describes it; None: it cannot tell now."""
    try:
        found: dict[str, Any] = cluster.describe("s", by=broker)["partitions"][0]
    except (OSError, urllib.error.URLError):
        return None
    return found


def test_who_comes_back_first_with_a_damaged_log_does_not_lead_and_loses_nothing(tmp_path: Path) -> None:
    with holdable(tmp_path) as cluster:
        with cluster.client(deadline_s=60.0) as client:
            client.create_stream("s", replication_factor=3)
            cluster.in_sync("s", 3)
            victim = client.placements("s")[0].replicas[0]
            eventually(lambda: client.elect_preferred("s", 0) and cluster.leader("s") == victim, what="it leads")
            for record in RECORDS:
                store(client, "s", 0, [{"value": record}])
        other, late = sorted(set(cluster.brokers) - {victim})
        power_fails(cluster)
        rot(cluster, victim, "s", RECORDS[DAMAGED])
        (tmp_path / f"{other}.held").touch()
        for broker in (victim, other):
            cluster.brokers[broker].start(wait=False)
        cluster.wait_ready(victim)
        said = f"replica.behind partition=s/0 end={DAMAGED}"
        assert said in cluster.brokers[victim].output()

        def is_led_by_nobody() -> bool:
            state = seen(cluster, victim)
            return state is not None and state["leader"] is None

        eventually(is_led_by_nobody, timeout_s=WAIT_S, what="those who are away to be failed")
        state = seen(cluster, victim)
        assert state is not None
        assert victim not in state["isr"]

        (tmp_path / f"{other}.held").unlink()
        cluster.wait_ready(other)
        assert cluster.leader("s") == other
        cluster.in_sync("s", 2)
        with cluster.client(deadline_s=60.0) as client:
            assert values(client, "s") == RECORDS
            cluster.brokers[late].start(wait=False)
            cluster.wait_ready(late)
            cluster.in_sync("s", 3)
            store(client, "s", 0, [{"value": b"after"}])
            everything = [*RECORDS, b"after"]
            eventually(lambda: client.elect_preferred("s", 0) and cluster.leader("s") == victim, what="it leads again")
            assert values(client, "s") == everything
        for broker in cluster.brokers:

            def copy(broker: str = broker) -> list[bytes | None] | None:
                found = held(cluster, broker, "s")
                return None if found is None else [value for _, (_, value) in sorted(found.items())]

            eventually(lambda copy=copy: copy() == everything, what=f"the whole copy of {broker}")  # type: ignore[misc]
