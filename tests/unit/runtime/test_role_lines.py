"""Goal: a failover of thousands of partitions is a few lines in the log, and each can be looked up at DEBUG."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from broker.node.role_lines import SHOWN, RoleLines
from tests.support.placed import Cluster, node
from tests.support.processes import eventually
from tests.unit.runtime.test_placed import make_leader


def lines(caplog: pytest.LogCaptureFixture, event: str, level: int = logging.INFO) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.levelno == level]
    return [each for each in found if each.startswith(f"{event} ")]


def test_many_are_one_line_and_each_is_told_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told = RoleLines()
    for number in range(1_000):
        told.note("leads", f"s/{number}", 3, "a,b")
    told.note("left", "t/0")
    assert lines(caplog, "replica.leads") == []
    told.write()
    first = ",".join(f"s/{number}@3" for number in range(SHOWN))
    assert lines(caplog, "replica.leads") == [f"replica.leads count=1000 partitions={first},..."]
    assert lines(caplog, "replica.left") == ["replica.left count=1 partitions=t/0"]
    each = lines(caplog, "replica.role", logging.DEBUG)
    assert len(each) == 1_001
    assert each[999] == "replica.role partition=s/999@3 role=leads more=a,b"
    told.write()
    assert len(lines(caplog, "replica.leads")) == 1, "it is told once"


def test_partitions_that_are_led_at_once_are_told_by_a_tick(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster, count = Cluster(), 20
    for broker in "bc":
        cluster.register(broker)
    with node(tmp_path, cluster, "p1") as one:
        one.start()
        places = cluster.create("s", partitions=count)
        make_leader(cluster, *places)
        for at in places:
            one.leading(at)

        def told() -> int:
            return sum(int(each.split()[1].removeprefix("count=")) for each in lines(caplog, "replica.leads"))

        eventually(lambda: told() >= count, what="all are told")
        assert len(lines(caplog, "replica.leads")) < count
    assert "Traceback" not in caplog.text
