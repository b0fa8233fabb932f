"""Goal: a broker that ends is started again, ever more slowly while that does not help; the line of health is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.api.placements import Placement, Placements
from broker.cli.local import reviving
from broker.cli.local.processes import Process, ProcessIdentity
from broker.cli.local.reviving import CALM_S, Health, Revival, line_of
from broker.cli.local.supervise import _ended


class Fake(Process):
    """A process that ends when it is told."""

    def __init__(self, number: int) -> None:
        identity = ProcessIdentity(pid=number, started_ticks=0, boot_id="", command=())
        super().__init__(name="broker-1", identity=identity, log=Path("broker-1.log"))
        self.is_over = False

    def has_ended(self) -> bool:
        return self.is_over

    def ending(self) -> str:
        return "ended with code 70"


class Scene:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.told: list[str] = []
        self.started = 0
        self.error: OSError | None = None
        self.revival = Revival(self.restart, self.told.append, clock=lambda: self.now_s)
        self.process: Process = Fake(0)

    def restart(self, name: str) -> Process:
        if self.error is not None:
            raise self.error
        self.started += 1
        return Fake(self.started)

    def end(self) -> None:
        assert isinstance(self.process, Fake)
        self.process.is_over = True

    def seconds_until_started(self) -> float:
        """It has ended; how long until there is another one."""
        began_s, count = self.now_s, self.started
        while self.started == count:
            self.process = self.revival.look(self.process)
            self.now_s += 0.25
        return self.now_s - 0.25 - began_s


def test_the_pause_grows_while_it_ends_soon_and_begins_anew_after_a_calm_time() -> None:
    scene = Scene()
    pauses = []
    for _ in range(8):
        scene.process = scene.revival.look(scene.process)
        scene.end()
        pauses.append(scene.seconds_until_started())
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    scene.now_s += CALM_S
    assert scene.revival.look(scene.process) is scene.process
    scene.end()
    assert scene.seconds_until_started() == 1
    assert scene.told[:2] == [
        "broker-1 ended with code 70; the others go on, and it is started again in 1 s. Its log: broker-1.log",
        "broker-1 is started again",
    ]


def test_all_of_several_brokers_may_end_at_once() -> None:
    """S2: killed together they are started again, each after its pause. One alone, and NATS, end the command."""
    scene = Scene()
    brokers: list[Process] = [Fake(number) for number in range(3)]
    for broker in brokers:
        assert isinstance(broker, Fake)
        scene.revival.look(broker)
        broker.is_over = True
    assert _ended(brokers, revives=True) is None
    assert _ended(brokers, revives=False) is brokers[0]
    nats = Fake(9)
    nats.name, nats.is_over = "nats", True
    assert _ended([nats, *brokers], revives=True) is nats
    assert scene.revival.look(brokers[0], others_left=False) is brokers[0]
    assert scene.told == [
        "broker-1 ended with code 70; no broker runs now. It is started again in 1 s. Its log: broker-1.log"
    ]
    scene.now_s += 1
    assert scene.revival.look(brokers[0], others_left=False) is not brokers[0]


def test_one_that_cannot_be_started_is_tried_again() -> None:
    scene = Scene()
    scene.error = OSError(12, "Cannot allocate memory")
    scene.revival.look(scene.process)
    scene.end()
    for _ in range(20):
        assert scene.revival.look(scene.process) is scene.process
        scene.now_s += 0.5
    assert sum("cannot be started" in line for line in scene.told) == 3
    scene.error = None
    scene.seconds_until_started()
    assert scene.started == 1


CLUSTER: dict[str, Any] = {"controller": "a", "brokers": [{"live": True}, {"live": True}, {"live": False}]}


def placement(leader: str | None, isr: str, *, least: int = 2) -> Placement:
    return Placement(
        stream="s",
        partition=0,
        leader=leader,
        leader_epoch=1,
        replicas=("a", "b", "c"),
        isr=tuple(isr),
        min_insync_replicas=least,
    )


@pytest.mark.parametrize(
    "partitions,text",
    [
        ((), "0 partitions: all in sync"),
        ((placement("a", "abc"),), "1 partition: all in sync"),
        ((placement("a", "abc"), placement("a", "ab")), "2 partitions: 1 under replicated"),
        (
            (placement(None, "c"), placement("a", "a"), placement("a", "a", least=1)),
            "3 partitions: 1 offline, 1 below minimum, 1 under replicated",
        ),
    ],
)
def test_a_line_of_health_names_the_worst_first(partitions: tuple[Placement, ...], text: str) -> None:
    placed = Placements(partitions=partitions, answered_by="a")
    assert line_of(CLUSTER, placed) == f"2 of 3 brokers live, controller a, {text}"


def test_nobody_answers_is_a_line_too_and_each_line_is_told_once() -> None:
    health = Health(["127.0.0.1:1"])
    assert health.news() is None
    health._line = health.ask()
    assert health.news() == "nobody answers"
    assert health.news() is None


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}", b"no JSON", b'{"brokers": 7}', b"[", b"\xff", b"[" * 100_000),
        b'{"brokers": [{}], "controller": 1, "partitions": []}',
        b'{"brokers": [], "controller": null, "partitions": [{}], "answered_by": "a"}',
    ],
)
def test_what_is_no_answer_of_a_broker_is_none(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    class Said:
        status = 200

    monkeypatch.setattr(reviving, "get", lambda address, path, **_: (Said(), body))
    assert Health(["a", "b"]).ask() == "nobody answers"
