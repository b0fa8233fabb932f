"""Three metadata planes as processes: kill -9 and SIGSTOP of the controller under load, a lost folder, all at once.

An outside view: what a process has answered to a command is noted here, and has to be in the catalog of every broker
afterwards, once. A command that was answered with `sent` false must not be there.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.api.errors import LiftlogError
from tests.support.plane_process import PlaneProcess
from tests.support.planes import SECRET, free_ports, producer, until

pytestmark = pytest.mark.process


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.at = {name: f"127.0.0.1:{port}" for name, port in zip("abc", free_ports(3), strict=True)}
        self.processes: dict[str, PlaneProcess] = {}
        self.acked: dict[str, int] = {}
        self.refused: set[str] = set()
        self.unknown: set[str] = set()
        self._stop = threading.Event()
        self._load: list[threading.Thread] = []

    def start(self, names: str) -> None:
        for name in names:
            identity = {
                "broker_id": name,
                "cluster_id": "test",
                "address": self.at[name],
                "bind": self.at[name],
                "named": list(self.at.items()),
                "secret": SECRET,
            }
            self.processes[name] = PlaneProcess(identity, self.folder / name)
        for name in names:
            self.processes[name].ready()

    def controller(self) -> str:
        """The leader, as the brokers that answer name it."""
        found: set[str] = set()

        def is_known() -> bool:
            found.clear()
            for process in self.processes.values():
                try:
                    found.add(process.ask("status", timeout_s=0.5).result(1)["controller"])
                except (LiftlogError, ConnectionError, TimeoutError):
                    continue
            return len(found) == 1 and None not in found

        until(is_known, "all agree who leads")
        return found.pop()

    def load(self) -> None:
        """Commands to all brokers, from now on."""
        self._load = [threading.Thread(target=self._publish, args=(f"{name}{i}",)) for name in "abc" for i in range(3)]
        for thread in self._load:
            thread.start()

    def _publish(self, who: str) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            name = f"{who}-{number}"
            try:
                answer = self.processes[who[0]].ask("execute", producer(name), timeout_s=8).result(30)
                self.acked[name] = answer["producer_id"]
            except LiftlogError as error:
                (self.unknown if error.fields.get("sent", True) else self.refused).add(name)
            except (ConnectionError, TimeoutError):
                self.unknown.add(name)
                time.sleep(0.05)

    def quiet(self) -> None:
        self._stop.set()
        for thread in self._load:
            thread.join()
        self._stop.clear()

    def progress(self, count: int = 30) -> None:
        """Commands go on being carried out."""
        before = len(self.acked)
        until(lambda: len(self.acked) >= before + count, f"{count} more commands, after {before}")

    def check(self) -> None:
        """Every broker has each command that was acknowledged; none has a command that was not carried out."""
        assert len(set(self.acked.values())) == len(self.acked), "an id was given out twice"
        for name, process in self.processes.items():
            there = set(process.ask("read").result(60))
            missing = self.acked.keys() - there
            assert not missing, f"{name} lacks {sorted(missing)[:5]} and {len(missing)} in all"
            assert not (self.refused & there), f"{name} has what was refused: {sorted(self.refused & there)[:5]}"
        assert len(self.acked) > 100


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        made.start("abc")
        yield made
    finally:
        made._stop.set()
        for process in made.processes.values():
            process.kill()
        made.quiet()


def test_kill_of_the_controller_while_commands_are_under_way(cluster: Cluster) -> None:
    cluster.load()
    cluster.progress()
    for _ in range(3):
        leader = cluster.controller()
        cluster.processes[leader].kill()
        cluster.progress()
        cluster.start(leader)
        cluster.progress()
    cluster.quiet()
    cluster.check()


def test_a_stopped_controller_says_nothing_that_is_not_so(cluster: Cluster) -> None:
    """SIGSTOP for longer than its session: another one leads. When it runs again it is not the controller, and its
    session is over before it says anything."""
    cluster.load()
    cluster.progress()
    leader = cluster.controller()
    stopped = cluster.processes[leader]
    stopped.signal(signal.SIGSTOP)
    others = [process for name, process in cluster.processes.items() if name != leader]

    def has_failed_it() -> bool:
        brokers = others[0].ask("status").result(30)["brokers"]
        return any(each["broker_id"] == leader and not each["is_live"] for each in brokers)

    until(has_failed_it, "another controller has failed it")
    assert "session.lapsed" not in (cluster.folder / f"{leader}.err").read_text()
    stopped.signal(signal.SIGCONT)
    until(lambda: stopped.ask("has_session").result(30), "it is back")
    assert "session.lapsed" in (cluster.folder / f"{leader}.err").read_text()
    cluster.progress()
    cluster.quiet()
    cluster.check()


def test_a_lost_folder_under_load(cluster: Cluster) -> None:
    cluster.load()
    cluster.progress()
    for name in "ab":  # one after the other: each has its vote again before the next one goes
        cluster.processes[name].kill()
        shutil.rmtree(cluster.folder / name)
        cluster.start(name)

        def has_vote(asked: str) -> bool:
            voters = cluster.processes[asked].ask("status").result(30)["voters"]
            return len(voters) == 3 and all(each["is_registered"] for each in voters)

        until(lambda name=name: has_vote("c") and has_vote(name), f"{name} has a vote again, and knows it")
        cluster.progress()
    cluster.quiet()
    cluster.check()


def test_all_are_killed_at_once_and_come_back(cluster: Cluster) -> None:
    cluster.load()
    for _ in range(3):
        cluster.progress()
        for process in cluster.processes.values():
            process.signal(signal.SIGKILL)
        for process in cluster.processes.values():
            process.kill()
        cluster.start("abc")
    cluster.progress()
    cluster.quiet()
    cluster.check()
