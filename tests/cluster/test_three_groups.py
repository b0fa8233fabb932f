"""A consumer group while its members and its brokers are killed.

Goal: each record is done, and committed once: what a member has committed nobody reads again, and nothing is passed
over. Method: three real brokers and four member processes, `kill -9` of either, in turns, while records come. Members
say to files of their own what they have done and committed; the checker looks at those, and at what was appended.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import LiftlogError
from broker.client import Client
from tests.support.clusters import RealCluster
from tests.support.effort import seeded
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[2]
PARTITIONS = 8
ROUNDS = 8
Record = tuple[int, int]


class Members:
    """Four places, in each of which one process after the other is a member."""

    def __init__(self, folder: Path, addresses: str) -> None:
        self.folder, self.addresses, self.made = folder, addresses, 0
        self.running = [self._start() for _ in range(4)]

    def _start(self) -> subprocess.Popen[bytes]:
        self.made += 1
        command = [sys.executable, "-m", "tests.support.group_member", self.addresses]
        log = (self.folder / f"member{self.made}.log").open("wb")
        return subprocess.Popen(
            [*command, str(self.folder / f"member{self.made}.json")], cwd=ROOT, stdout=log, stderr=log
        )

    def kill(self, place: int) -> None:
        """And start another one."""
        self.running[place].kill()
        self.running[place].wait(30)
        self.running[place] = self._start()

    def stop(self) -> None:
        for each in self.running:
            each.kill()
            each.wait(30)

    def wait_for_more(self, before: int) -> None:
        """More has been said than so many lines."""
        eventually(lambda: len(self.lines()) > before, timeout_s=90, what="progress")

    def lines(self) -> list[list[Any]]:
        """What all have said, by time. The last line of one that was killed may be torn."""
        found = []
        for file in self.folder.glob("member*.json"):
            whole = file.read_text().rpartition("\n")[0]
            found += [json.loads(line) for line in whole.splitlines()]
        return sorted(found)


def check(lines: list[list[Any]], appended: dict[int, int], *, is_over: bool) -> None:
    """Each record is committed at most once, and is not done again after that; in the end all are done."""
    committed: Counter[Record] = Counter()
    done: set[Record] = set()
    for _, word, partition, offsets in lines:
        records = [(partition, offset) for offset in offsets]
        if word == "done":
            again = [record for record in records if record in committed]
            assert not again, f"done again after it was committed: {again[:5]}"
            done.update(records)
        elif word == "committed":
            committed.update(records)
    assert not committed or max(committed.values()) == 1
    if is_over:
        assert done == {(partition, offset) for partition, count in appended.items() for offset in range(count)}


def append(client: Client, appended: dict[int, int], count: int) -> None:
    for partition in range(PARTITIONS):
        rows = [{"value": b"%d" % number} for number in range(count)]
        appended[partition] = client.append("orders", partition, rows, at_least_once=True).next_offset


def test_each_record_is_committed_once_whoever_is_killed(tmp_path: Path) -> None:
    rng = random.Random(seeded(7))
    cluster = RealCluster(tmp_path, None)
    appended: dict[int, int] = {}
    members: Members | None = None
    try:
        cluster.start()
        with cluster.client(deadline_s=60.0) as client:
            client.create_stream("orders", partitions=PARTITIONS, replication_factor=3)
            eventually(lambda: joinable(client), timeout_s=90, what="the feature level of groups")
            append(client, appended, 100)
            members = Members(tmp_path, ",".join(cluster.addresses))
            for turn in range(ROUNDS):
                said = len(members.lines())
                append(client, appended, 50)
                members.wait_for_more(said)
                if turn % 2:
                    victim = rng.choice(sorted(cluster.brokers))
                    cluster.brokers[victim].kill9()
                    append(client, appended, 50)
                    cluster.brokers[victim].start(wait=False)
                    cluster.wait_ready(victim)
                else:
                    members.kill(rng.randrange(4))
                    append(client, appended, 50)
                check(members.lines(), appended, is_over=False)
            eventually(lambda: is_done(client), timeout_s=120, what="the end of all partitions")
            loads = Counter(each.member for each in client.describe_group("billing").partitions)
            assert sorted(loads.values()) == [2, 2, 2, 2]
        members.stop()
        check(members.lines(), appended, is_over=True)
        with cluster.client(deadline_s=60.0) as client:
            append(client, appended, 5)
        for _ in range(2):  # members are gone; then the broker is that tells of the group
            teller = cluster.leader("__offsets")
            eventually(
                lambda by=teller: lags(cluster, by) == [5] * PARTITIONS, timeout_s=60, what="the lag of the group"
            )
            cluster.brokers[teller].kill9()
    finally:
        if members is not None:
            members.stop()
        cluster.stop()


def lags(cluster: RealCluster, broker: str) -> list[float]:
    """Of the group, by partition, as one broker's /metrics has them."""
    lines = cluster.brokers[broker].get("/metrics").decode().splitlines()
    of_group = 'liftlog_group_lag_records{group="billing",stream="orders",partition='
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(of_group)]


def joinable(client: Client) -> bool:
    try:
        client.group("other").read("orders").close()
        client.delete_group("other")
    except LiftlogError:
        return False
    return True


def is_done(client: Client) -> bool:
    said = client.describe_group("billing")
    live = {each.member for each in said.members}
    held = {each.member for each in said.partitions if not each.is_revoked}
    return len(live) == 4 and held == live and all(each.lag == 0 for each in said.partitions)
