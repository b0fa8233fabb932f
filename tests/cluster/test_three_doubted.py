"""Goal: a command that nobody has answered does not come late, whatever the frozen controller has done with it.

Method: three real brokers, whose controller freezes amid a command of an operator (`support/freezing_broker`). More
commands come behind it, at the controller and at another broker. Their clients give up; then it is thawed, at once or
after the others have another controller. The catalog is as it is when the next command has been answered, and stays so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.clusters import RealCluster
from tests.support.processes import BrokerProcess, eventually, frozen, is_stopped

pytestmark = [pytest.mark.process, pytest.mark.slow]

HTTP_OK = 300
State = dict[str, tuple[str, int]]
"""Incarnation and retention of each stream that the test has asked about."""


@dataclass
class Freezable:
    """A cluster, and the file that freezes each broker."""

    cluster: RealCluster
    files: dict[str, Path]
    rounds: int = 0

    def controller(self) -> str:
        """The one that all brokers take for it."""

        def agreed() -> str | None:
            found = {self.cluster.brokers[broker].get("/v1/cluster")["controller"] for broker in self.cluster.brokers}
            return str(found.pop()) if len(found) == 1 and None not in found else None

        found = eventually(agreed, what="one controller")
        assert found is not None
        return found

    def answered(self, *brokers: str) -> State:
        """The streams as each of these brokers lists them, once a command that was asked for now has been answered."""
        self.rounds += 1
        number = 2 * 10**9 + self.rounds
        with self.cluster.client(*brokers, deadline_s=60.0) as client:
            client.alter("marker", retention_ms=number)

        def told(broker: str) -> State | None:
            state = seen(self.cluster.brokers[broker])
            return state if state.pop("marker", ("", 0))[1] == number else None

        found = [eventually(partial(told, broker), what=f"{broker} to have heard of that") for broker in brokers]
        assert found[0] is not None
        assert all(state == found[0] for state in found)
        return found[0]


def seen(process: BrokerProcess) -> State:
    """All streams, as a broker lists them; none, while it has no session."""
    try:
        streams = process.get("/v1/streams")["streams"]
    except OSError:
        return {}
    return {each["name"]: (each["incarnation"], each["settings"]["retention_ms"]) for each in streams}


def has_answered(process: BrokerProcess) -> bool:
    """Whether it works on no request but this one."""
    return process.metric("liftlog_http_requests_in_flight") == 1


@dataclass(frozen=True)
class Command:
    """One that a client asks a broker for."""

    kind: str
    name: str
    number: int

    def ask(self, process: BrokerProcess, timeout_ms: int, patience_s: float) -> str:
        """Returns how it ended: `done`, `refused`, or `in doubt`: the broker says so, or nothing for `patience_s`."""
        host, port = process.address.split(":")
        asked: dict[str, tuple[str, str, dict[str, object] | None]] = {
            "create": ("POST", "/v1/streams", {"name": self.name, "replication_factor": 3}),
            "alter": ("PATCH", f"/v1/streams/{self.name}", {"retention_ms": self.number}),
            "delete": ("DELETE", f"/v1/streams/{self.name}", None),
        }
        method, path, body = asked[self.kind]
        connection = HTTPConnection(host, int(port), timeout=patience_s)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, f"{path}?timeout_ms={timeout_ms}", json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except OSError:
            return "in doubt"
        finally:
            connection.close()
        if status < HTTP_OK:
            return "done"
        problem = json.loads(text)
        return "in doubt" if problem["reason"] == "deadline_exceeded" or problem.get("sent") else "refused"

    def is_done(self, state: State, before: State) -> bool:
        """Whether it was carried out. AssertionError: something else was."""
        then, now = before.get(self.name), state.get(self.name)
        if now == then:
            return False
        if self.kind == "create":
            assert then is None
            assert now is not None
        elif self.kind == "alter":
            assert then is not None
            assert now == (then[0], self.number)
        else:
            assert now is None
        return True


@pytest.fixture(scope="module")
def freezable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Freezable]:
    folder = tmp_path_factory.mktemp("doubted")

    def command(broker: str) -> tuple[str, ...]:
        return "tests.support.freezing_broker", str(folder / f"{broker}.freeze")

    cluster = RealCluster(folder, None, command=command)
    try:
        with cluster.start().client() as client:
            client.create_stream("marker", replication_factor=3)
        yield Freezable(cluster, {broker: folder / f"{broker}.freeze" for broker in cluster.brokers})
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    "point,kind,asked,thaws",
    [
        ("judged", "create", "another", "at once"),
        ("logged", "delete", "another", "at once"),
        ("sent", "alter", "another", "at once"),
        ("judged", "alter", "controller", "at once"),
        ("judged", "delete", "another", "late"),
        ("logged", "create", "another", "late"),
        ("sent", "create", "controller", "late"),
    ],
)
def test_a_command_whose_controller_froze_amid_it_does_not_come_late(
    freezable: Freezable, point: str, kind: str, asked: str, thaws: str
) -> None:
    cluster, is_late = freezable.cluster, thaws == "late"
    controller = freezable.controller()
    others = [broker for broker in cluster.brokers if broker != controller]
    askers = {"another": others[0], "controller": controller}
    round_number = freezable.rounds
    commands = {
        (by, what): Command(what, f"{what}-{by}-{round_number}", number)
        for number, (by, what) in enumerate(
            ((by, what) for by in askers for what in ("create", "delete", "alter")), 10**9 + 10 * round_number
        )
    }
    with cluster.client(deadline_s=60.0) as client:
        for command in commands.values():
            if command.kind != "create":
                client.create_stream(command.name, replication_factor=3)
    freezable.answered(others[0])  # it knows the controller's clock
    before = freezable.answered(*cluster.brokers)
    first = asked, kind
    # A controller that is thawed at once does not notice that it stood still, nor who has left it (docs/adr/0124).
    asking = {at: command for at, command in commands.items() if is_late or at[0] == "another" or at == first}
    timeout_ms = 1000 if is_late else 300
    patience_s = {"another": 60.0, "controller": timeout_ms / 1000}
    ended: dict[tuple[str, str], Future[str]] = {}
    with ThreadPoolExecutor(len(asking)) as clients:

        def ask(at: tuple[str, str]) -> None:
            ended[at] = clients.submit(asking[at].ask, cluster.brokers[askers[at[0]]], timeout_ms, patience_s[at[0]])

        def freezes() -> bool:
            if freezable.files[controller].exists() and ended[first].done():
                ask(first)  # on a slow machine its client had given up before it came there
            return not freezable.files[controller].exists() and is_stopped(cluster.brokers[controller].pid)

        freezable.files[controller].write_text(f"{point} {asking[first].name}")
        ask(first)
        eventually(freezes, what="it freezes")
        with frozen(cluster.brokers[controller].pid):
            for at in asking:
                if at != first:
                    ask(at)
            outcomes = {at: future.result(60) for at, future in ended.items()}
            if is_late:
                after = freezable.answered(*others)
        if not is_late:
            after = freezable.answered(*cluster.brokers)
    assert outcomes[first] == "in doubt"
    for at, command in asking.items():
        is_done = command.is_done(after, before)
        assert outcomes[at] == "in doubt" or is_done == (outcomes[at] == "done"), (at, outcomes[at])
        behind = at != first and not is_late and freezable.controller() == controller
        assert not (behind and is_done), f"{command} has lain in a socket, and was carried out when its client was told"
    freezable.answered(controller)  # it takes part again
    for process in cluster.brokers.values():
        eventually(partial(has_answered, process), what="all requests to be over")
    assert freezable.answered(*cluster.brokers) == after, f"{asking[first]} came late: {outcomes}"
