"""Goal: `liftlog up --brokers-count 3` is a cluster that goes on when a broker is killed; another `up` makes it whole.

Method: the installed command line, as `test_cli.py` uses it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker.cli.local.processes import ProcessIdentity
from tests.cluster.test_cli import Folder, _foreground
from tests.support.processes import eventually, free_port

pytestmark = [pytest.mark.process, pytest.mark.slow]


@dataclass
class Three(Folder):
    @property
    def env(self) -> dict[str, str]:
        brokers = ",".join(f"127.0.0.1:{self.base + 1 + 10 * number}" for number in range(3))
        return {**super().env, "LIFTLOG_BROKERS": brokers}

    def up_arguments(self, *more: str) -> list[str]:
        return [*super().up_arguments("--brokers-count", "3"), *more]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Three]:
    made = Three(tmp_path / "data", free_port(24))
    yield made
    made.liftlog("down", "--data", str(made.path), "--force")


def test_the_foreground_starts_a_killed_broker_again_and_tells_how_the_cluster_is(
    folder: Three, tmp_path: Path
) -> None:
    log = tmp_path / "up.log"
    child = _foreground(folder, log)
    eventually(lambda: "cluster  | 3 of 3 brokers live" in log.read_text(), what="a line of health")
    folder.liftlog("stream", "create", "orders", "--subject", "orders", "--replication-factor", "3")
    before = folder.pid("broker-1")
    os.kill(before, signal.SIGKILL)
    again = "broker-1 was ended by SIGKILL; the others go on, and it is started again in 1 s"
    eventually(lambda: "broker-1 is started again" in log.read_text(), what="it is started again")
    assert again in log.read_text()
    eventually(lambda: folder.pid("broker-1") != before, what="the record has it")
    eventually(lambda: len(partition(folder)["isr"]) == 3, what="all three in sync")
    eventually(lambda: is_well(log.read_text()), what="the last line of health to be good")
    pids = [folder.pid(f"broker-{number}") for number in range(3)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: all(folder.pid(f"broker-{n}") != pid for n, pid in enumerate(pids)), what="all started again")
    eventually(lambda: len(partition(folder)["isr"]) == 3, what="all three in sync again")
    eventually(lambda: is_well(log.read_text()), what="the last line of health to be good")
    frozen = folder.pid("broker-2")
    os.kill(frozen, signal.SIGSTOP)
    try:  # one that is killed is back before the others miss it, or is not: so this one stands still
        eventually(lambda: "2 of 3 brokers live" in last_health(log.read_text()), what="the line of health to change")
    finally:
        os.kill(frozen, signal.SIGCONT)
    eventually(lambda: is_well(log.read_text()), what="the last line of health to be good again")
    child.send_signal(signal.SIGTERM)
    assert child.wait(90) == 0
    assert folder.json("down", "--data", str(folder.path))["stopped"] == {}, "the one that was started again, too"


@pytest.mark.parametrize("offset, purpose", [(10, "gRPC"), (22, "Raft")])
def test_every_port_of_a_cluster_is_looked_at_before_anything_starts(folder: Three, offset: int, purpose: str) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", folder.base + offset))
        taken.listen()
        error = folder.up(code=1).stderr
    assert error.startswith(f"error[port_in_use]: port {folder.base + offset}"), error
    assert purpose in error
    assert list((folder.path / "logs").iterdir()) == []


def last_health(text: str) -> str:
    return [line for line in text.splitlines() if "brokers live" in line][-1]


def is_well(text: str) -> bool:
    last = last_health(text)
    return "3 of 3 brokers live" in last and last.endswith("all in sync")


def partition(folder: Folder) -> dict[str, Any]:
    found: dict[str, Any] = folder.json("stream", "describe", "orders")["partitions"][0]
    return found


def catalog_check(folder: Folder) -> dict[str, Any]:
    """What `liftlog doctor` says of the catalog."""
    checks = folder.json("doctor", "--data", str(folder.path))["checks"]
    found: dict[str, Any] = next(check for check in checks if check["name"] == "catalog")
    return found


def dead(folder: Folder) -> list[str]:
    """The brokers that are dead, as `liftlog cluster status` says."""
    return [broker["id"] for broker in folder.json("cluster", "status")["brokers"] if not broker["live"]]


def test_up_makes_a_cluster_that_outlives_a_broker(folder: Three) -> None:
    started = folder.json(*folder.up_arguments("--detach"))
    assert [broker["id"] for broker in started["brokers"]] == ["broker-0", "broker-1", "broker-2"]
    folder.liftlog("stream", "create", "orders", "--subject", "orders", "--replication-factor", "2")
    assert "2, min 1" in folder.liftlog("stream", "list").stdout
    folder.liftlog("stream", "alter", "orders", "--replication-factor", "3", "--min-insync-replicas", "2")
    eventually(lambda: len(partition(folder)["isr"]) == 3, what="the third replica in sync")
    assert "3, min 2" in folder.liftlog("stream", "list").stdout
    assert "min_insync_replicas" in folder.liftlog("stream", "describe", "orders").stdout
    before = partition(folder)
    assert (sorted(before["replicas"]), len(before["isr"])) == (["broker-0", "broker-1", "broker-2"], 3)
    assert "acknowledged 1" in folder.liftlog("publish", "orders", "one").stderr
    followers = sorted(set(before["replicas"]) - {before["leader"]["id"]})
    eventually(lambda: partition(folder)["replica_lag"] == dict.fromkeys(followers, 0), what="followers that have all")
    shown = folder.liftlog("stream", "describe", "orders").stdout
    assert ",".join(f"{broker}:0" for broker in followers) in shown
    assert dead(folder) == []
    shown = folder.liftlog("cluster", "status").stdout
    assert all(text in shown for text in ("3 of 3 are there, 2 are needed", *before["replicas"])), shown
    pid = int((folder.path / "run" / f"{before['leader']['id']}.pid").read_text())
    identity = ProcessIdentity.of(pid)
    assert identity is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not identity.is_alive(), what="the broker to be gone")
    eventually(
        lambda: (partition(folder)["leader"] or before["leader"])["id"] != before["leader"]["id"], what="another leader"
    )
    folder.liftlog("publish", "orders", "two", "--timeout-s", "60")  # it may not capture yet
    eventually(lambda: dead(folder) == [before["leader"]["id"]], what="the status to tell who is dead")
    shown = folder.liftlog("cluster", "status").stdout
    assert all(text in shown for text in ("2 of 3 are there, 2 are needed", " dead ")), shown
    assert folder.json(*folder.up_arguments("--detach"))["already_up"] is False
    eventually(lambda: len(partition(folder)["isr"]) == 3, what="all three in sync")
    rows = folder.liftlog("tail", "orders", "--from", "earliest", "--limit", "2", "--json").stdout
    assert ("one" in rows, "two" in rows) == (True, True)
    refused = folder.liftlog(*Folder.up_arguments(folder, "--detach"), code=1)
    assert "--brokers-count 3" in refused.stderr
    eventually(
        lambda: catalog_check(folder)["values"] == {"partitions": 4}, what="orders, and liftlog's own: its audit"
    )
    assert catalog_check(folder)["status"] == "ok"
    stopped = folder.json("down", "--data", str(folder.path))
    assert set(stopped["stopped"]) == {"broker-0", "broker-1", "broker-2", "nats"}
    shutil.rmtree(folder.path / "broker-0")  # its disk is lost
    folder.json(*folder.up_arguments("--detach"))
    eventually(lambda: len(partition(folder)["isr"]) == 3, what="all three in sync, one of them from nothing")
    rows = folder.liftlog("tail", "orders", "--from", "earliest", "--limit", "2", "--json").stdout
    assert ("one" in rows, "two" in rows) == (True, True)
    said = folder.liftlog("down", "--data", str(folder.path)).stderr
    assert all(f"stopping {name} (pid " in said for name in stopped["stopped"]), said
    page = (Path(__file__).parents[2] / "docs" / "reference" / "storage.md").read_text()
    of_brokers = {path.name for pattern in ("*", "streams/*/*/*/*") for path in folder.path.glob(f"broker-?/{pattern}")}
    named = {re.sub(r"^state-\d+$", "state-", re.sub(r"^\d{20}", "0" * 20, name)) for name in of_brokers}
    assert {"raft.log", "raft.log.marks", "lock", "checkpoint"} <= named
    assert [name for name in sorted(named) if name not in page] == []
