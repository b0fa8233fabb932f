"""Goal: the stream of consumer offsets has all its replicas from the beginning, or waits, and says for what.

Method: the real catalog with brokers that register one by one; a clock that the test moves; the command that makes the
stream fails between any two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api.errors import DiskFull, LiftlogError, NotReady
from broker.api.stream import AUDIT_STREAM, OFFSETS_STREAM
from broker.common.disk_reserve import Room
from broker.config.settings import AuditConfig
from broker.metadata.cluster import AUDITED
from broker.node.own_settings import OFFSETS_SETTINGS, audit_settings
from broker.node.own_streams import PATIENCE_S, PAUSE_S, OwnStream, replicas_default
from broker.runtime.clustered import ClusterBroker
from tests.support.placed import Cluster, node
from tests.support.processes import eventually
from tests.unit.runtime.test_placed import make_leader


class Refusing(Cluster):
    refusals = 0
    error: LiftlogError = NotReady("no controller")

    def execute(self, command: Mapping[str, Any]) -> Any:
        if self.refusals:
            self.refusals -= 1
            self.sent.append(dict(command))
            raise self.error
        return super().execute(command)


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def own(cluster: Cluster, executor: ThreadPoolExecutor, clock: Clock, voters: int = 3) -> OwnStream:
    made = OwnStream(cluster, OFFSETS_STREAM, OFFSETS_SETTINGS, voters=voters, executor=executor, clock_s=clock)
    made.begin()
    return made


def done(executor: ThreadPoolExecutor) -> None:
    """Wait for all that was submitted before."""
    executor.submit(int).result(60)


def replicas(cluster: Cluster) -> int:
    info = cluster.catalog.streams.get(OFFSETS_STREAM)
    return 0 if info is None else len(cluster.state((info.incarnation, 0)).replicas)


def test_it_is_made_with_the_last_of_the_first_voters(executor: ThreadPoolExecutor) -> None:
    """W1, W3."""
    cluster = Cluster()
    cluster.register("a")
    stream = own(cluster, executor, Clock())
    cluster.register("b")
    done(executor)
    assert (replicas(cluster), cluster.sent) == (0, [])
    assert "waits for 3 brokers" in stream.why_missing()
    assert "2 are there" in stream.why_missing()
    cluster.register("c")
    done(executor)
    info = cluster.catalog.streams[OFFSETS_STREAM]
    state = cluster.state((info.incarnation, 0))
    assert (sorted(state.replicas), state.min_insync_replicas, info.internal) == (["a", "b", "c"], 2, True)


@pytest.mark.parametrize("voters, live, factor", [(1, 1, 1), (2, 2, 2), (5, 3, 3)])
def test_it_has_as_many_replicas_as_there_are_first_voters_up_to_three(
    executor: ThreadPoolExecutor, voters: int, live: int, factor: int
) -> None:
    """W1."""
    cluster = Cluster()
    own(cluster, executor, Clock(), voters)
    for number in range(live):
        done(executor)
        assert replicas(cluster) == 0
        cluster.register(f"b{number}")
    done(executor)
    assert replicas(cluster) == factor


def test_who_does_not_come_is_waited_for_and_not_for_ever(executor: ThreadPoolExecutor) -> None:
    """W2: and a broker alone is never enough."""
    cluster, clock = Cluster(), Clock()
    cluster.register("a")
    own(cluster, executor, clock)
    clock.now_s += 2 * PATIENCE_S
    cluster.register("a")
    done(executor)
    assert replicas(cluster) == 0
    cluster.register("b")
    done(executor)
    assert replicas(cluster) == 2


def test_nothing_need_change_for_what_was_waited_for_or_has_failed(executor: ThreadPoolExecutor) -> None:
    """W2: where nobody changes anything the catalog tells nobody of anything."""
    cluster, clock = Refusing(), Clock()
    stream = own(cluster, executor, clock)
    for broker in "ab":
        cluster.register(broker)
    stream.look()
    done(executor)
    assert (replicas(cluster), cluster.sent) == (0, [])
    cluster.refusals = 1
    clock.now_s += PATIENCE_S
    stream.look()
    done(executor)
    assert (replicas(cluster), len(cluster.sent)) == (0, 1)
    clock.now_s += PAUSE_S
    stream.look()
    done(executor)
    assert replicas(cluster) == 2


def test_a_look_before_it_begins_asks_nothing(executor: ThreadPoolExecutor) -> None:
    """A broker that is not registered yet makes nothing."""
    cluster = Cluster()
    for broker in "abc":
        cluster.register(broker)
    settings = OFFSETS_SETTINGS
    OwnStream(cluster, OFFSETS_STREAM, settings, voters=3, executor=executor, clock_s=Clock()).look()
    done(executor)
    assert cluster.sent == []


def test_each_round_of_a_broker_looks() -> None:
    looks: list[str] = []

    def named(name: str) -> Any:
        return SimpleNamespace(look=lambda: looks.append(name), note_ends=lambda: None, open_again=lambda: [])

    parts = SimpleNamespace(_replicas=named(""), _modes=named("modes"), _own={each: named(each) for each in "xy"})
    ClusterBroker._each_round(cast("Any", parts))
    assert looks == ["modes", "x", "y"]


def test_who_has_failed_is_not_there(executor: ThreadPoolExecutor) -> None:
    """W1."""
    cluster = Cluster()
    own(cluster, executor, Clock())
    cluster.register("a")
    cluster.register("b")
    cluster.fail("b")
    cluster.register("c")
    done(executor)
    assert replicas(cluster) == 0
    cluster.register("b")
    done(executor)
    assert replicas(cluster) == 3


def test_what_was_refused_is_tried_again_a_little_later(executor: ThreadPoolExecutor) -> None:
    cluster, clock = Refusing(), Clock()
    cluster.refusals = 1
    own(cluster, executor, clock)
    for broker in "abc":
        cluster.register(broker)
    done(executor)
    assert (replicas(cluster), len(cluster.sent)) == (0, 1)
    cluster.register("a")
    done(executor)
    assert len(cluster.sent) == 1, "not at once"
    clock.now_s += PAUSE_S
    cluster.register("a")
    eventually(lambda: replicas(cluster) == 3, what="the stream")


def test_what_a_full_disk_refuses_is_told_and_made_once_there_is_room(
    executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """W6. Who asked for the stream was told that it waits for brokers, all of which were there."""
    cluster, clock = Refusing(), Clock()
    cluster.refusals, cluster.error = 2, DiskFull("no room in the journal")
    stream = own(cluster, executor, clock, voters=1)
    broker = object.__new__(ClusterBroker)
    nothing = SimpleNamespace(weaker=dict, shut=dict, faults=list)
    broker._own, broker._intake, broker._modes, broker._replicas = {"x": stream}, None, nothing, nothing  # type: ignore[assignment]
    cluster.register("a")
    done(executor)
    assert "stream.own_not_made stream=__offsets error=no room in the journal" in caplog.text
    for _ in range(2):
        says = "stream __offsets is not made, or not as configured: no room in the journal"
        assert (stream.why_missing(), broker.warnings()) == (says, {"streams": says})
        clock.now_s += PAUSE_S
        stream.look()
        done(executor)
    assert (replicas(cluster), broker.warnings()) == (1, {})


def test_a_broker_starts_without_room_for_a_replica_of_it_and_makes_that_once_there_is_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """W6. The catalog has the stream: its replica is tried again, as any other."""
    cluster, free = Cluster(), [0]
    room = Room(str(tmp_path), 1 << 20, look=lambda path: (free[0], 1 << 40))
    for broker in "bc":
        cluster.register(broker)
    with node(tmp_path, cluster, "p1") as one:
        object.__setattr__(one.host.folders, "may_make", lambda info: room.own.check_followed(again=True))
        one.start()
        made = {"name": AUDIT_STREAM, "incarnation": "i-o", "created_us": 1, "internal": True}
        settings, at = audit_settings(AuditConfig()), ("i-o", 0)
        cluster.apply(kind="create_stream", settings=settings, replication_factor=3, min_insync_replicas=2, **made)
        cluster.opened(at, "b", "c")
        eventually(lambda: f"replica.not_made partition={AUDIT_STREAM}/0" in caplog.text, what="the first try")
        assert one.replicas.partition(at) is None
        assert not (tmp_path / "streams" / AUDIT_STREAM).exists()
        free[0] = 1 << 30
        eventually(lambda: "a" in cluster.state(at).opened, what="the replica")
        make_leader(cluster, at)
        one.leading(at)


def test_of_brokers_that_try_at_the_same_time_one_makes_it(executor: ThreadPoolExecutor) -> None:
    cluster = Cluster()
    for _ in range(3):
        own(cluster, executor, Clock())
    for broker in "abc":
        cluster.register(broker)
    done(executor)
    assert replicas(cluster) == 3
    assert len([command for command in cluster.sent if command["kind"] == "create_stream"]) == 3


def test_a_stream_is_made_for_the_brokers_that_the_cluster_will_have() -> None:
    assert [replicas_default(v, k) for v, k in ((3, 1), (1, 1), (1, 3), (5, 5), (0, 0), (2, 1))] == [3, 1, 3, 3, 1, 2]


def test_one_that_came_with_a_feature_level_is_made_when_the_cluster_has_it(executor: ThreadPoolExecutor) -> None:
    """W4."""
    cluster = Cluster()
    settings = audit_settings(AuditConfig())
    stream = OwnStream(cluster, AUDIT_STREAM, settings, voters=3, executor=executor, clock_s=Clock(), since=AUDITED)
    stream.begin()
    for broker in "abc":
        cluster.register(broker, feature_level_max=AUDITED)
    done(executor)
    assert AUDIT_STREAM not in cluster.catalog.streams
    assert f"needs feature level {AUDITED}" in stream.why_missing()
    cluster.execute({"v": 1, "kind": "set_feature_level", "level": AUDITED})
    eventually(lambda: AUDIT_STREAM in cluster.catalog.streams, what="the stream")


def test_what_follows_the_configuration_is_altered_once_by_each_broker(executor: ThreadPoolExecutor) -> None:
    """W5: two that differ do not alter it in turns for ever."""
    cluster = Cluster()

    def begin(retention_ms: int) -> None:
        settings = {**OFFSETS_SETTINGS, "cleanup": "delete", "retention_ms": retention_ms}
        OwnStream(
            cluster,
            OFFSETS_STREAM,
            settings,
            voters=3,
            executor=executor,
            clock_s=Clock(),
            kept=("retention_ms", "segment_bytes"),
        ).begin()

    begin(1_000_000)
    for broker in "abc":
        cluster.register(broker)
    done(executor)
    assert cluster.catalog.streams[OFFSETS_STREAM].settings.retention_ms == 1_000_000
    begin(2_000_000)
    for _ in range(3):
        cluster.register("a")
        done(executor)
    assert cluster.catalog.streams[OFFSETS_STREAM].settings.retention_ms == 2_000_000
    altered = [command for command in cluster.sent if command["kind"] == "alter_stream"]
    assert [command["settings"]["retention_ms"] for command in altered] == [2_000_000]
