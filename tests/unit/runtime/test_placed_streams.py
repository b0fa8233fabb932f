"""Goal: a broker of several serves what it leads and says of the rest who does; changes are answered when they are so.

Method: real logs and the real catalog of `tests.support.placed`; other brokers are commands.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from broker.api.errors import (
    DiskFull,
    InvalidRequest,
    InvalidSetting,
    LiftlogError,
    NotLeader,
    NotReady,
    ProducerFenced,
    StaleIncarnation,
    UnknownPartition,
    UnknownProducer,
    UnknownStream,
)
from broker.api.stream import OFFSETS_STREAM
from broker.client.client import TIMEOUT_S
from broker.config.configuration import load
from broker.control.operating import changes as control_module
from broker.control.operating.changes import PlacedControl
from broker.groups.offsets import ConsumerOffset
from broker.metadata.catalog import Catalog, StreamInfo
from broker.metadata.growth import GrowthStage, stage_of
from broker.metadata.partition import Place
from broker.node import capturing
from broker.node import replicas as replicas_module
from broker.node.offsets import PlacedConsumers
from broker.node.partitions.partition import Partition
from broker.node.streams import PlacedStreams
from broker.runtime.cluster_samples import cluster_samples
from broker.runtime.clustered import ClusterBroker
from broker.storage.log import PartitionLog
from tests.support.placed import Cluster, Node, Recorded, ScriptedCatalog, node
from tests.support.processes import eventually
from tests.unit.runtime.test_partition import Waiter, rows
from tests.unit.runtime.test_placed import append, make_leader, taken

T = TypeVar("T")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.register("b")
    made.register("c")
    return made


@pytest.fixture
def one(tmp_path: Path, cluster: Cluster) -> Iterator[Node]:
    with node(tmp_path, cluster, "p1") as made:
        made.start()
        yield made


@pytest.fixture
def streams(one: Node, cluster: Cluster) -> PlacedStreams:
    return PlacedStreams("a", lambda: cluster.catalog, one.replicas, has_session=lambda: one.has_session)


Run = Callable[[Coroutine[Any, Any, T]], T]


@pytest.fixture
def run() -> Iterator[Run[Any]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    (run_in := lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)).loop = loop
    yield run_in
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def control(run: Any, one: Node, cluster: Cluster, streams: PlacedStreams) -> PlacedControl:
    made = PlacedControl(
        load(None, {}),
        cluster,
        streams,
        loop=run.loop,
        on_change=lambda: None,
        may_change=lambda: one.has_session,
    )
    made.begin()
    return made


@pytest.fixture
def led(one: Node, cluster: Cluster) -> Place:
    """Stream `s`, led here."""
    [at] = cluster.create("s")
    make_leader(cluster, at)
    one.leading(at)
    return at


def refusal(act: Callable[[], object]) -> LiftlogError:
    with pytest.raises(LiftlogError) as found:
        act()
    return found.value


def test_what_is_led_here_is_served_and_the_rest_names_its_leader(
    one: Node, cluster: Cluster, streams: PlacedStreams, led: Place
) -> None:
    """U1."""
    assert streams.partition("s", 0) is one.partition(led)
    assert [str(p) for p in streams.partitions("s")] == ["s/0"]
    assert isinstance(refusal(lambda: streams.partition("s", 1)), UnknownPartition)
    assert isinstance(refusal(lambda: streams.partition("t", 0)), UnknownStream)
    cluster.apply(kind="stop_broker", broker_id="a", registration=cluster.catalog.brokers["a"].registration)
    leader = cluster.state(led).leader
    assert leader in ("b", "c")
    error = refusal(lambda: streams.partition("s", 0))
    assert isinstance(error, NotLeader)
    assert error.fields["leader"] == {"id": leader, "http": f"{leader}:9293"}
    assert streams.partitions("s") == []
    [where] = streams.whereabouts("s")
    assert where.leader is not None
    assert (where.leader.id, where.replicas, where.leader_epoch) == (
        leader,
        cluster.state(led).replicas,
        cluster.state(led).leader_epoch,
    )
    for broker in ("b", "c"):
        cluster.fail(broker)
    cluster.fail("a")
    error = refusal(lambda: streams.partition("s", 0))
    assert (type(error), error.fields.get("leader")) == (NotLeader, None)


def test_metrics_of_a_broker_that_is_alone_tell_of_no_votes(
    one: Node, cluster: Cluster, streams: PlacedStreams
) -> None:
    """It has none to spare, and an alert on that would be there for good."""
    names = {
        name
        for name, *_ in cluster_samples(
            "a",
            cluster.catalog,
            streams,
            None,
            started=True,
            has_session=True,
            connections={},
            refused={},
            bulk_bytes=0,
            raft_refused=0,
            group={"voters": [], "controller": "a"},
            weaker=0,
            shut=(),
        )
    }
    assert "liftlog_partitions_led" in names
    assert not [name for name in names if name.startswith("liftlog_votes")]


def test_metrics_tell_who_is_in_sync_and_how_far_behind_a_follower_is(
    one: Node, cluster: Cluster, streams: PlacedStreams, led: Place
) -> None:
    """Each number moves when that happens which it is there for."""

    def shown(name: str, **labels: str) -> float | None:
        samples = cluster_samples(
            "a",
            cluster.catalog,
            streams,
            None,
            started=True,
            has_session=one.has_session,
            connections={},
            refused={},
            bulk_bytes=0,
            raft_refused=0,
            group=None,
            weaker=0,
            shut={("i", 0), ("i", 1), ("j", 0)},
        )
        wanted = f"liftlog_{name}"
        found = [v for n, _, keys, of, v in samples if n == wanted and labels == dict(zip(keys, of, strict=True))]
        return found[0] if found else None

    assert (shown("replicas_shut"), shown("streams_offline")) == (3, 2)

    def counts() -> tuple[float | None, ...]:
        names = ("led", "under_replicated", "below_minimum", "without_leader")
        at = {"stream": "s", "partition": "0"}
        return (*(shown(f"partitions_{name}") for name in names), shown("partition_in_sync_replicas", **at))

    def lag(broker: str) -> float | None:
        return shown("replica_lag", stream="s", partition="0", broker=broker)

    assert (counts(), lag("b"), lag("c")) == ((1, 0, 0, 0, 3), 0, 0)
    taken(one.partition(led))
    assert (lag("b"), lag("c"), lag("a")) == (1, 1, None)
    cluster.fail("b")
    assert counts() == (1, 1, 0, 0, 2)
    cluster.fail("c")
    assert counts() == (1, 1, 1, 0, 1)
    cluster.fail("a")
    eventually(lambda: counts() == (0, 0, 0, 1, None), what="nobody to lead")
    assert lag("b") is None


def test_without_a_session_it_is_not_ready_and_nobody_elses(one: Node, streams: PlacedStreams, led: Place) -> None:
    """U1."""
    one.has_session = False
    assert isinstance(refusal(lambda: streams.partition("s", 0)), NotReady)
    assert isinstance(refusal(lambda: streams.info("t")), NotReady)  # U2
    assert isinstance(refusal(lambda: streams.partition("s", 1)), NotReady), "U2: it may have been added since"
    assert isinstance(refusal(streams.infos), NotReady)
    one.has_session = True
    assert streams.partition("s", 0).end == 0


def test_a_new_stream_is_answered_when_it_is_led(one: Node, cluster: Cluster, control: PlacedControl, run: Any) -> None:
    """X2."""
    others = threading.Thread(target=lambda: open_elsewhere(cluster, "t"))
    others.start()
    info, created = run(control.create_stream("t", {"partitions": 2, "replication_factor": 3}))
    others.join()
    states = [cluster.state((info.incarnation, n)) for n in range(2)]
    assert (created, [s.min_insync_replicas for s in states]) == (True, [2, 2])
    assert all(s.leader is not None and set(s.opened) == {"a", "b", "c"} for s in states)
    assert not info.warnings or "no leader" not in str(info.warnings)
    again, created = run(control.create_stream("t", {"partitions": 2, "replication_factor": 3}))
    assert (again.incarnation, created) == (info.incarnation, False)


def test_a_new_stream_joins_no_group_that_others_have_joined_since(
    cluster: Cluster, control: PlacedControl, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker's stream, which whoever asks here was not judged by."""
    monkeypatch.setattr(control_module, "DONE_S", 0.1)
    cluster.create("theirs", group="g")
    settings = {"group": "g", "partitions": 1}
    assert isinstance(refusal(lambda: run(control.create_stream("t", settings, beside=[]))), NotReady)
    assert "t" not in cluster.catalog.streams
    assert run(control.create_stream("t", settings, beside=["theirs"]))[1]


def open_elsewhere(cluster: Cluster, name: str) -> None:
    eventually(lambda: name in cluster.catalog.streams, what="the stream")
    info = cluster.catalog.streams[name]
    for number in range(info.settings.partitions):
        cluster.opened((info.incarnation, number), "b", "c")


def test_a_new_stream_that_nobody_opens_is_answered_with_what_is_missing(
    control: PlacedControl, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2."""
    monkeypatch.setattr(control_module, "DONE_S", 0.3)
    info, created = run(control.create_stream("t", {}))
    assert created
    assert "partitions [0] have no leader yet" in str(info.warnings)


def test_a_new_stream_does_not_wait_for_a_replica_whose_broker_has_died(
    one: Node, cluster: Cluster, control: PlacedControl, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: it died after it was chosen. The caller that creates the stream would wait for it as long as it is away."""
    monkeypatch.setattr(control_module, "DONE_S", 60.0)

    def die() -> None:
        eventually(lambda: "t" in cluster.catalog.streams, what="the stream")
        at = (cluster.catalog.streams["t"].incarnation, 0)
        cluster.opened(at, "b")
        eventually(lambda: {"a", "b"} <= {*cluster.state(at).opened}, what="a has opened it too")
        dead = cluster.catalog.brokers["c"]
        cluster.apply(kind="fail_broker", broker_id="c", registration=dead.registration, renewal=dead.renewal)
        cluster.apply(kind="elect_first", partitions={at[0]: [0]})

    others = threading.Thread(target=die)
    others.start()
    info, created = asyncio.run_coroutine_threadsafe(
        control.create_stream("t", {"replication_factor": 3}), run.loop
    ).result(30)
    others.join()
    assert created
    assert "not all of their replicas" in str(info.warnings)


def test_what_takes_long_is_answered_before_a_client_gives_up_on_the_broker() -> None:
    """X2, X4, X5. Else each try ends in silence, and the command never."""
    assert max(control_module.DONE_S, control_module.APPLIED_S) < TIMEOUT_S


@pytest.mark.parametrize(
    "values, error, why",
    [
        ({"replication_factor": 4}, NotReady, "4 replicas need as many brokers"),
        ({"replication_factor": 0}, InvalidSetting, "from 1 to 9"),
        ({"replication_factor": "3"}, InvalidSetting, "whole number"),
        ({"min_insync_replicas": True}, InvalidSetting, "whole number"),
        ({"replication_factor": 2, "min_insync_replicas": 3}, InvalidSetting, "only 2 replicas"),
        ({"fsync": "interval"}, InvalidSetting, "interval"),
        ({"subject": "a.>", "partitions": 2, "partition_by": "key", "group": "g"}, InvalidSetting, "share of all"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    one: Node, control: PlacedControl, run: Any, values: dict[str, Any], error: type, why: str
) -> None:
    """X3."""
    eventually(lambda: "a" in one.service.catalog.brokers, what="us")
    found = refusal(lambda: run(control.create_stream("t", values)))
    assert isinstance(found, error)
    assert why in str(found)


def test_changes_are_seen_by_who_made_them(
    one: Node, cluster: Cluster, control: PlacedControl, streams: PlacedStreams, led: Place, run: Any
) -> None:
    """X1."""
    assert run(control.alter_stream("s", {"retention_ms": 5_000})).settings.retention_ms == 5_000
    assert run(control.set_stream_state("s", paused=True)).paused
    run(control.alter_stream("s", {"min_insync_replicas": 1}))
    for settings, is_begun in (({}, False), ({"retention_ms": 6_000}, True)):
        said = refusal(lambda settings=settings: run(control.alter_stream("s", {"min_insync_replicas": 9, **settings})))
        assert said.fields.get("sent", False) == is_begun, f"{said}: the settings are altered"
        assert (streams.info("s").settings.retention_ms == 6_000) == is_begun
    assert cluster.state(led).min_insync_replicas == 1
    assert run(control.add_partitions("s", 1)).settings.partitions == 1
    assert isinstance(refusal(lambda: run(control.add_partitions("s", 0))), InvalidSetting)
    assert run(control.register_producer("p")) == run_twice(run, control)
    run(control.delete_stream("s"))
    assert isinstance(refusal(lambda: streams.info("s")), UnknownStream)
    eventually(lambda: one.replicas.partition(led) is None, what="it is closed")
    run(control.close())
    assert isinstance(refusal(lambda: run(control.delete_stream("s"))), LiftlogError)


def test_a_request_that_waited_while_the_broker_stood_still_deletes_no_younger_stream(
    one: Node,
    cluster: Cluster,
    control: PlacedControl,
    led: Place,
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """X6: another broker has deleted the stream meanwhile, for the same client, and somebody has made it anew."""
    one.has_session = False
    assert isinstance(refusal(lambda: run(control.delete_stream("s"))), NotReady)
    assert isinstance(refusal(lambda: run(control.alter_stream("s", {"retention_ms": 1}))), NotReady)
    one.has_session = True

    known = cluster.catalog.streams["s"]
    behind = SimpleNamespace(info=lambda name: replace(known, incarnation="former"))
    with monkeypatch.context() as patch:
        patch.setattr(control, "_streams", behind)
        assert isinstance(refusal(lambda: run(control.delete_stream("s"))), NotReady)
    assert cluster.catalog.streams["s"] is known
    run(control.delete_stream("s"))


def confirm_elsewhere(cluster: Cluster, name: str, count: int, *brokers: str) -> None:
    """Play the leaders at other brokers until nobody waits for them: they open what is new, and know of it."""
    for number in range(count):
        at = (cluster.catalog.streams[name].incarnation, number)
        if at in cluster.catalog.cluster.partitions and not cluster.state(at).has_led:
            cluster.opened(at, *brokers)
    for broker in brokers:
        info = cluster.catalog.streams[name]
        if info.partitions_next != count:
            return
        states = {n: cluster.state((info.incarnation, n)) for n in range(count)}
        stage = stage_of(cluster.catalog.cluster, info)
        assert stage is not None
        with suppress(InvalidRequest):  # this broker confirms at the same time: it is another stage by now
            cluster.apply(
                kind="confirm_partitions",
                name=name,
                incarnation=info.incarnation,
                partitions=count,
                broker_id=broker,
                registration=cluster.catalog.brokers[broker].registration,
                leaders=[[n, state.leader_epoch] for n, state in states.items() if state.leader == broker],
                as_of=stage.as_of,
                is_stopped=stage.is_stopping,
            )


def grow(
    cluster: Cluster, control: PlacedControl, run: Any, count: int, between: Callable[[], None] = lambda: None
) -> StreamInfo:
    """Add partitions to `s`, with the leaders elsewhere; `between` the command and their confirmations."""

    def others() -> None:
        eventually(lambda: cluster.catalog.streams["s"].partitions_next == count, what="the command")
        between()

        def are_done() -> bool:
            confirm_elsewhere(cluster, "s", count, "b", "c")
            return cluster.catalog.streams["s"].settings.partitions == count

        eventually(are_done, what="all confirmations")

    thread = threading.Thread(target=others)
    thread.start()
    info: StreamInfo = run(control.add_partitions("s", count))
    thread.join()
    return info


def test_added_partitions_are_answered_when_every_leader_sorts_by_them(
    one: Node, cluster: Cluster, control: PlacedControl, streams: PlacedStreams, led: Place, run: Any
) -> None:
    """X5, G9."""
    before = cluster.state(led).leader_epoch
    assert grow(cluster, control, run, 4).settings.partitions == 4
    assert cluster.catalog.streams["s"].partitions_next == 0
    after = cluster.state(led).leader_epoch
    assert after > before
    eventually(lambda: one.leading(led).leader_epoch == after, what="the next epoch")
    assert [where.partition for where in streams.whereabouts("s")] == [0, 1, 2, 3]
    assert streams.where("s", 3) == streams.whereabouts("s")[3]
    for number in (-1, 4):
        with pytest.raises(UnknownPartition, match="has 4 partitions"):
            streams.where("s", number)
    epochs = {cluster.state((led[0], number)).leader_epoch for number in range(4)}
    assert epochs == {after}, "one epoch for all"


def test_a_confirmation_ends_with_the_leadership_and_is_given_again(
    one: Node, cluster: Cluster, control: PlacedControl, led: Place, run: Any
) -> None:
    """G1: whoever leads from then on confirms by himself; here this broker, in its next epoch."""

    def another_leadership() -> None:
        eventually(lambda: led in cluster.catalog.cluster.confirmed, what="our confirmation")
        cluster.apply(kind="reassign", stream=led[0], partition=0, replicas=["a", "b"])
        assert led not in cluster.catalog.cluster.confirmed

    assert grow(cluster, control, run, 3, another_leadership).settings.partitions == 3
    confirmed = [command for command in cluster.sent if command["kind"] == "confirm_partitions"]
    assert len({tuple(map(tuple, command["leaders"])) for command in confirmed}) > 1


def test_a_leader_without_a_session_confirms_nothing(
    one: Node, cluster: Cluster, control: PlacedControl, led: Place, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X5: the answer says what is under way; to ask again is to wait again."""
    monkeypatch.setattr(control_module, "DONE_S", 0.3)
    one.has_session = False
    monkeypatch.setattr(control, "_may_change", lambda: True)  # another broker was asked (X6)
    info = run(control.add_partitions("s", 2))
    assert (info.settings.partitions, info.partitions_next) == (1, 2)
    assert "2 partitions are being made" in str(info.warnings)
    confirm_elsewhere(cluster, "s", 2, "b", "c")
    assert led not in cluster.catalog.cluster.confirmed
    one.has_session = True
    monkeypatch.setattr(control_module, "DONE_S", 60.0)
    assert grow(cluster, control, run, 2).settings.partitions == 2


def stage(cluster: Cluster) -> GrowthStage | None:
    return stage_of(cluster.catalog.cluster, cluster.catalog.streams["s"])


def test_a_leader_stops_when_all_know_and_goes_on_when_another_leadership_ends(
    one: Node, cluster: Cluster, control: PlacedControl, led: Place, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G9, `growth.G4`: what it confirmed before is of no worth then."""
    monkeypatch.setattr(control_module, "DONE_S", 0.3)
    partition = one.leading(led)
    run(control.add_partitions("s", 2))
    assert partition.append_now([rows(b"x")], Waiter(), sorted_by=1).first_offset == 0
    cluster.opened((led[0], 1), "b", "c")
    eventually(lambda: cluster.catalog.cluster.confirmed.get(led), what="that we know")
    if (other := cluster.state((led[0], 1)).leader) != "a":
        assert other is not None
        confirm_elsewhere(cluster, "s", 2, other)
    eventually(lambda: (now := stage(cluster)) is not None and now.is_stopping, what="all to know")
    before = stage(cluster)
    assert before is not None

    def is_refused() -> bool:
        try:
            partition.append_now([rows(b"x")], Waiter(), sorted_by=1)
        except NotReady as error:
            return "gets more partitions" in str(error)
        return False

    eventually(is_refused, what="a stop")
    assert not partition.has_stopped(before.as_of, partition.leader_epoch), "nobody has what it took"
    cluster.apply(kind="reassign", stream=led[0], partition=1, replicas=["a", "b"])
    eventually(lambda: not is_refused(), what="to take messages again")
    sent = [command for command in cluster.sent if command["kind"] == "confirm_partitions"]
    assert not any(command["is_stopped"] for command in sent if [0, partition.leader_epoch] in command["leaders"])


def test_a_stop_that_takes_too_long_is_given_up_and_tried_again_later(
    one: Node, cluster: Cluster, control: PlacedControl, led: Place, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`growth.G5`: some leader hangs, and lives: the stream is not to wait for it for ever."""
    monkeypatch.setattr(control_module, "DONE_S", 0.3)
    monkeypatch.setattr(replicas_module, "STOP_MS", 300)
    monkeypatch.setattr(replicas_module, "STOP_AGAIN_MS", 1_500)
    partition = one.leading(led)
    epoch = partition.leader_epoch
    run(control.add_partitions("s", 2))
    partition.append_now([rows(b"x")], Waiter(), sorted_by=1)  # nobody follows
    cluster.opened((led[0], 1), "b", "c")
    eventually(lambda: cluster.catalog.cluster.confirmed.get(led), what="that we know")
    if (other := cluster.state((led[0], 1)).leader) != "a":
        assert other is not None
        confirm_elsewhere(cluster, "s", 2, other)

    def given_up() -> bool:
        return any(command.get("gives_up") for command in cluster.sent)

    eventually(given_up, what="to give up")
    eventually(lambda: cluster.state(led).leader_epoch > epoch, what="another leader epoch")
    eventually(lambda: one.leading(led).leader_epoch > epoch, what="to lead in it")
    sent = len(cluster.sent)
    assert one.partition(led).append_now([rows(b"x")], Waiter(), sorted_by=1).first_offset == 1
    eventually(
        lambda: any(command["kind"] == "confirm_partitions" for command in cluster.sent[sent:]), what="another try"
    )


def test_a_group_with_one_partition_gets_no_others(
    one: Node, cluster: Cluster, control: PlacedControl, run: Any
) -> None:
    """X3."""
    cluster.create("g", subject="g", partition_by="key", group="g")
    assert "share of all" in str(refusal(lambda: run(control.add_partitions("g", 2))))


def test_a_broker_that_is_alone_gets_all_of_a_group(tmp_path: Path, run: Any) -> None:
    """X3 is of several: there is nobody else who would get a share."""
    catalog = ScriptedCatalog()
    with node(tmp_path, catalog, "p1", has_others=False) as one:
        one.start()
        streams = PlacedStreams("a", lambda: catalog.catalog, one.replicas, has_session=lambda: True)
        control = PlacedControl(
            load(None, {}), catalog, streams, loop=run.loop, on_change=lambda: None, may_change=lambda: True
        )
        control.begin()
        values = {"subject": "g", "partitions": 2, "partition_by": "key", "group": "g"}
        assert run(control.create_stream("g", values))[1]
        assert run(control.alter_stream("g", {"retention_ms": 5_000})).settings.retention_ms == 5_000
        assert run(control.add_partitions("g", 3)).settings.partitions == 3


def test_a_stream_that_cannot_be_led_when_it_is_made_says_so_and_gets_no_partitions(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X8. Its logs were made, so it is there; who asks for it once more hears why it is not served."""
    lead = PartitionLog.lead

    def refuses(log: PartitionLog, epoch: int) -> None:
        if log.state.folder.endswith("/1") and not has_room.is_set():
            raise DiskFull("made to fail")
        lead(log, epoch)

    has_room = threading.Event()
    monkeypatch.setattr(PartitionLog, "lead", refuses)
    catalog = ScriptedCatalog()
    with node(tmp_path, catalog, "p1", has_others=False) as one:
        one.start()
        control = PlacedControl(
            load(None, {}),
            catalog,
            PlacedStreams("a", lambda: catalog.catalog, one.replicas, has_session=lambda: True),
            loop=run.loop,
            on_change=lambda: None,
            may_change=lambda: True,
            logs=one.replicas,
        )
        control.begin()
        values = {"subject": None, "partitions": 2}
        info, is_new = run(control.create_stream("s", values))
        assert is_new
        assert info.warnings == ("not all of it is served yet: made to fail",)
        assert append(one.leading((info.incarnation, 0))) is not None
        for refused in (lambda: control.add_partitions("s", 3), lambda: control.create_stream("s", values)):
            assert isinstance(refusal(lambda refused=refused: run(refused())), DiskFull)  # type: ignore[misc]
        assert not catalog.catalog.streams["s"].partitions_next
        has_room.set()
        one.leading((info.incarnation, 1))
        assert run(control.add_partitions("s", 3)).settings.partitions == 3


def run_twice(run: Any, control: PlacedControl) -> tuple[int, int]:
    """The same id, an epoch that is one less than the next one."""
    producer_id, epoch = run(control.register_producer("p"))
    return producer_id, epoch - 1


def test_commands_that_wait_for_a_controller_hold_up_nobody_else(
    cluster: Cluster, control: PlacedControl, led: Place, run: Any
) -> None:
    """Metrics, which are told on the loop's own threads, and states."""

    async def ask() -> str:
        changes = [asyncio.ensure_future(control.set_stream_state("s", paused=True)) for _ in range(40)]
        try:
            return await asyncio.wait_for(asyncio.to_thread(lambda: "told"), 30)
        finally:
            cluster.goes.set()
            assert all(info.paused for info in await asyncio.gather(*changes))

    cluster.goes.clear()
    assert run(ask()) == "told"


def test_a_trim_is_answered_when_all_in_sync_have_followed(
    one: Node, cluster: Cluster, control: PlacedControl, led: Place, run: Any
) -> None:
    """X4."""
    for broker in ("b", "c"):
        cluster.fail(broker)
    cluster.apply(kind="set_min_insync", stream=led[0], min_insync_replicas=1)
    partition = one.leading(led)
    waiter = taken(partition)
    eventually(lambda: waiter.outcome == 1, what="an ack")
    incarnation = led[0]
    assert isinstance(refusal(lambda: run(control.trim_stream("s", "other", {0: 1}))), StaleIncarnation)
    assert run(control.trim_stream("s", incarnation, {0: 1})) == {0: 1}
    one.has_session = False
    assert isinstance(refusal(lambda: run(control.trim_stream("s", incarnation, {0: 1}))), NotReady)


def test_offsets_are_read_anew_by_each_leadership(
    one: Node, cluster: Cluster, streams: PlacedStreams, run: Any
) -> None:
    """O1, O2."""
    consumers = PlacedConsumers(streams.partition, one.host.commands, lambda: "it waits for others")
    assert isinstance(refusal(consumers.consumers), NotReady)
    cluster.apply(
        kind="create_stream",
        name=OFFSETS_STREAM,
        incarnation="i-o",
        created_us=1,
        settings={"subject": None},
        internal=True,
        replication_factor=3,
        min_insync_replicas=1,
    )
    at = ("i-o", 0)
    cluster.opened(at, "b", "c")
    make_leader(cluster, at)
    for broker in ("b", "c"):
        cluster.fail(broker)
    one.leading(at)

    def answers() -> list[str] | None:
        try:
            return consumers.consumers()
        except NotReady:
            return None

    eventually(lambda: answers() is not None, what="the table")
    assert answers() == []
    offset = ConsumerOffset(
        consumer="c", stream="s", partition=0, offset=7, leader_epoch=1, incarnation="i", timestamp_us=1
    )
    run(consumers.commit("c", [offset]))
    before = consumers.here()
    assert [o.offset for o in consumers.get("c")] == [7]
    state = cluster.state(at)
    cluster.apply(kind="reassign", stream="i-o", partition=0, replicas=["a"])
    eventually(lambda: one.leading(at).leader_epoch > state.leader_epoch, what="another epoch")
    eventually(lambda: answers() == ["c"], what="the table of the next leadership")
    assert consumers.here() is not before
    assert isinstance(refusal(lambda: run(before.commit("c", [offset]))), NotLeader)


def test_partitions_have_a_limit(run: Any, one: Node, cluster: Cluster, streams: PlacedStreams, led: Place) -> None:
    control = PlacedControl(
        load(None, {}, {"limits.partitions_max": 3}),
        cluster,
        streams,
        loop=run.loop,
        on_change=lambda: None,
        may_change=lambda: True,
    )
    for refused in (
        lambda: run(control.create_stream("t", {"partitions": 3})),
        lambda: run(control.add_partitions("s", 4)),
    ):
        assert "limits.partitions_max=3: there would be 4" in str(refusal(refused))
    assert run(control.add_partitions("s", 1)).settings.partitions == 1


def test_what_a_consumer_reads_is_looked_into_where_there_is_a_replica(
    one: Node, cluster: Cluster, streams: PlacedStreams, led: Place
) -> None:
    def look(stream: str, partition: int = 0, incarnation: str = "") -> object:
        return streams.look(
            ConsumerOffset(
                consumer="c",
                stream=stream,
                partition=partition,
                offset=0,
                leader_epoch=1,
                incarnation=incarnation,
                timestamp_us=1,
            )
        )

    assert look("s") is look("s", incarnation=led[0]) is one.log(led)
    assert (look("s", incarnation="another"), look("s", 1), look("t")) == (False, False, False)
    one.replicas.replica(led).close()  # type: ignore[union-attr]
    assert look("s") is True, "it is there, and nobody here can tell"


def test_a_producer_that_has_just_registered_again_is_not_known_here_yet() -> None:
    """By its name, with another broker. It was told that its producer had never been registered, and gave up."""
    catalog = Catalog()
    told: list[int] = []
    used = SimpleNamespace(used=lambda of, producer_id: told.append(producer_id))
    behind = cast(Any, SimpleNamespace(_catalog=catalog, _used_producers=used, is_alone=False))

    def register() -> None:
        catalog.apply({"v": 1, "kind": "register_producer", "name": "p"})

    register()
    ClusterBroker.check_producer(behind, 1, 0)
    for unknown in ((1, 1), (2, 0)):
        with pytest.raises(NotReady, match="not known here yet"):
            ClusterBroker.check_producer(behind, *unknown)
    register()
    ClusterBroker.check_producer(behind, 1, 1)
    with pytest.raises(ProducerFenced):
        ClusterBroker.check_producer(behind, 1, 0)
    with pytest.raises(UnknownProducer):
        ClusterBroker.check_producer(behind, 0, 0)
    assert told == [1, 1], "each append that is let in"
    catalog.apply({"v": 1, "kind": "forget_producer", "name": "p"})
    with pytest.raises(UnknownProducer, match="deleted"):
        ClusterBroker.check_producer(behind, 1, 1)


def test_a_leader_whose_capture_could_not_begin_does_not_know_of_more_partitions(
    one: Node, cluster: Cluster, control: PlacedControl, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`growth.G1`. It said that it takes in messages under the new number, and took them in under the former one: each
    was refused once the new one counted, and a publisher who awaits no ack heard nothing of it."""
    monkeypatch.setattr(control_module, "DONE_S", 0.3)
    monkeypatch.setattr(capturing, "AGAIN_MS", 20)
    [led] = cluster.create("s")
    make_leader(cluster, led)
    one.leading(led)
    real, fails, tries = Recorded.begin, threading.Event(), []
    fails.set()

    def begin(self: Recorded, info: StreamInfo, partition: Partition) -> Future[None]:
        if not fails.is_set():
            return real(self, info, partition)
        tries.append(partition)
        failed: Future[None] = Future()
        failed.set_exception(RuntimeError("made to fail"))
        return failed

    monkeypatch.setattr(Recorded, "begin", begin)
    run(control.add_partitions("s", 2))
    cluster.opened((led[0], 1), "b", "c")
    eventually(lambda: tries.count(one.partition(led)) == 3, what="the third try")
    assert led not in cluster.catalog.cluster.confirmed
    assert one.partition(led).serves, "clients are answered all the same"
    fails.clear()

    def are_two() -> bool:
        confirm_elsewhere(cluster, "s", 2, "b", "c")
        return cluster.catalog.streams["s"].settings.partitions == 2

    eventually(are_two, what="all confirmations")


def test_a_capture_that_has_begun_serves_also_where_its_word_meets_a_fault_of_ours(
    one: Node, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`capturing.V14`. It was lost in a callback: a leader that took in messages served nobody, for good."""
    monkeypatch.setattr(capturing, "AGAIN_MS", 20)
    real, fails = Partition.serve, [True]

    def serve(self: Partition, *args: Any) -> None:
        if fails and fails.pop():
            raise MemoryError
        real(self, *args)

    monkeypatch.setattr(Partition, "serve", serve)
    [at] = cluster.create("s")
    make_leader(cluster, at)
    one.leading(at)
    assert not fails
