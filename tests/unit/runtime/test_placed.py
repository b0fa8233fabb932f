"""Goal: a replica takes the role that the catalog gives it, in every order of states, and steps out as it should.

Method: real logs on a real disk, real threads, the real catalog; other brokers are commands, followers are notes.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from broker.api.batch import decode_batch
from broker.api.errors import (
    CorruptLog,
    DiskFull,
    NotEnoughReplicas,
    NotLeader,
    NotReady,
    StorageFailed,
    StreamPaused,
    UnknownFormatVersion,
)
from broker.common.metrics import REGISTRY
from broker.metadata import heard
from broker.metadata.catalog import StreamInfo
from broker.metadata.partition import Place
from broker.node import replicas as replicas_module
from broker.node.capturing import Capturing
from broker.node.folders import Folders
from broker.node.partitions.partition import Partition
from broker.node.placed import PlacedReplica, Stepping
from broker.replication import leader as leader_module
from broker.runtime.clustered import ClusterBroker
from broker.storage.log import PartitionLog
from broker.storage.recovery import RecoveryReport
from broker.storage.segments.checkpoint import Checkpoint, LogIdentity, LogSettings
from tests.support.placed import Cluster, Node, Recorded, node
from tests.support.processes import eventually
from tests.unit.runtime.test_partition import Waiter, rows

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
        yield made


@pytest.fixture
def led(one: Node, cluster: Cluster) -> tuple[Node, Cluster, Place]:
    """Stream `s`, led here."""
    one.start()
    [at] = cluster.create("s")
    make_leader(cluster, at)
    one.leading(at)
    return one, cluster, at


def make_leader(cluster: Cluster, *places: Place) -> None:
    """Let `a` lead: the others fail, and come back in sync."""
    for at in places:
        eventually(lambda at=at: cluster.state(at).leader, what="a leader")  # type: ignore[misc]
    if all(cluster.state(at).leader == "a" for at in places):
        return
    for broker in ("b", "c"):
        cluster.fail(broker)
    assert all(cluster.state(at).leader == "a" for at in places)
    for broker in ("b", "c"):
        rejoin(cluster, *places, broker=broker)


def rejoin(cluster: Cluster, *places: Place, broker: str) -> None:
    cluster.register(broker)
    for at in places:
        cluster.join(at, broker)


def something_happens(cluster: Cluster) -> None:
    """As it does twice a second."""
    cluster.renew(*(broker for broker in ("b", "c") if cluster.catalog.brokers[broker].is_live))


def asks_to_step_out(cluster: Cluster) -> None:
    def asked() -> bool:
        something_happens(cluster)
        return "step_out" in cluster.kinds()

    eventually(asked, what="the question")


def steps_out(cluster: Cluster, at: Place) -> None:
    def is_out() -> bool:
        something_happens(cluster)
        return cluster.state(at).step_outs_of("a") == 1

    eventually(is_out, what="the step-out")


def append(partition: Partition) -> Waiter:
    waiter = Waiter()
    partition.append_now([rows(b"x")], waiter)
    return waiter


def taken(partition: Partition) -> Waiter:
    """An append, as soon as it is not refused: what the catalog decides is heard of a moment later."""

    def attempt() -> Waiter | None:
        try:
            return append(partition)
        except (NotReady, NotEnoughReplicas):
            return None

    return eventually(attempt, what="an append")


def a_process_that_led(tmp_path: Path, cluster: Cluster) -> Place:
    """It has led stream `s`, with one record that is durable here, and is over."""
    with node(tmp_path, cluster, "p1") as one:
        one.start()
        [at] = cluster.create("s")
        make_leader(cluster, at)
        append(one.leading(at))
        eventually(lambda: one.log(at).state.durable_end == 1, what="the fsync")
    return at


def a_process_that_opened(tmp_path: Path, cluster: Cluster) -> Place:
    """It has opened stream `s`, and is over."""
    with node(tmp_path, cluster, "p1") as one:
        one.start()
        [at] = cluster.create("s")
        eventually(lambda: "a" in cluster.state(at).opened, what="to be open")
    return at


def test_who_has_stopped_makes_no_log_any_more(one: Node, cluster: Cluster) -> None:
    """G17. The catalog goes on: a log that is made then is closed by nobody."""
    one.start()
    one.replicas.stop()
    [at] = cluster.create("s")
    assert "a" in cluster.state(at).replicas
    assert (one.replicas.replicas(), one.replicas.partition(at)) == ([], None)


def test_a_stop_amid_a_change_of_the_catalog_leaves_no_log_open(
    one: Node, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G17. The catalog's thread has begun with the change when the stop begins; its next steps make no log."""
    one.start()
    shared = replicas_module._Shared

    def stopped_meanwhile(*args: Any) -> Any:
        one.replicas.stop()
        return shared(*args)

    monkeypatch.setattr(replicas_module, "_Shared", stopped_meanwhile)
    [at] = cluster.create("s")
    assert "a" in cluster.state(at).replicas
    assert (one.replicas.replicas(), one.replicas.partition(at)) == ([], None)


def test_a_stop_amid_a_start_calls_no_log_unknown(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """G6. What the stop keeps from being taken was named, although the catalog names it."""
    at = a_process_that_opened(tmp_path, cluster)
    shared = replicas_module._Shared
    with node(tmp_path, cluster, "p2") as two:

        def stopped_meanwhile(*args: Any) -> Any:
            two.replicas.stop()
            return shared(*args)

        monkeypatch.setattr(replicas_module, "_Shared", stopped_meanwhile)
        assert two.start().sound == {at[0]: [at[1]]}
        assert two.replicas.replicas() == []
    assert "replica.unknown" not in caplog.text


def test_a_new_partition_is_made_reported_and_led(led: tuple[Node, Cluster, Place]) -> None:
    one, cluster, at = led
    assert "a" in cluster.state(at).opened
    partition = one.partition(at)
    waiter = append(partition)
    assert not waiter.done.is_set()
    assert partition.leader_epoch == cluster.state(at).leader_epoch
    assert ("capture", "s/0", partition.leader_epoch) in one.story


def test_it_follows_rests_and_leads_again(led: tuple[Node, Cluster, Place]) -> None:
    one, cluster, at = led
    partition = one.partition(at)
    waiter = append(partition)
    cluster.fail("a")
    state = cluster.state(at)
    assert state.leader in ("b", "c")
    eventually(lambda: ("follow", state.leader_epoch, state.leader, one.placed(at)._incarnation) in one.story)
    assert isinstance(waiter.wait(), NotLeader)
    with pytest.raises(NotLeader) as found:
        append(partition)
    assert found.value.fields["leader"] == f"{state.leader}:9293"
    assert ("no capture", "s/0") in one.story
    cluster.apply(kind="renew_sessions", renewals={"a": one.replicas._registration})
    cluster.join(at, "a")
    for broker in ("b", "c"):
        cluster.fail(broker)
    eventually(lambda: one.partition(at).leads, what="to lead again")
    assert one.partition(at) is partition
    assert partition.leader_epoch == cluster.state(at).leader_epoch > state.leader_epoch


def test_a_leadership_of_another_incarnation_of_the_replica_is_not_its_own(led: tuple[Node, Cluster, Place]) -> None:
    """V2. It has seen to the state: it does not report the replica open."""
    one, cluster, at = led
    state, asked = cluster.state(at), cluster.kinds().count("report_opened")
    foreign, own = state.leader_epoch + 1, state.leader_incarnation
    former = replace(state, leader_epoch=foreign, leader_incarnation=(own[0] - 1, own[1]), opened=("b", "c"))
    cluster.put(at, former)
    something_happens(cluster)
    eventually(lambda: cluster.kinds().count("report_opened") > asked, what="it has heard of the former leadership")
    cluster.put(at, replace(state, leader_epoch=foreign + 1))
    something_happens(cluster)
    eventually(lambda: one.partition(at).leader_epoch > foreign and one.partition(at).serves, what="its own")
    assert ("capture", "s/0", foreign) not in one.story


def test_a_leader_answers_nobody_before_it_takes_in_messages(one: Node, cluster: Cluster) -> None:
    one.recorded.may_begin.clear()
    one.start()
    [at] = cluster.create("s")
    make_leader(cluster, at)
    eventually(lambda: one.partition(at).leads and one.recorded.begun, what="to lead")
    with pytest.raises(NotReady, match="take in"):
        append(one.partition(at))
    assert not one.partition(at).serves
    one.recorded.begun[-1].set_result(None)
    eventually(lambda: one.partition(at).serves)
    append(one.partition(at))


def test_each_leadership_that_begins_is_counted_with_its_time(one: Node, cluster: Cluster) -> None:
    """As `/metrics` has it. One that does not serve yet is none."""

    def told(what: str) -> float:
        found = REGISTRY.get_sample_value(f"liftlog_leadership_start_seconds_{what}")
        assert found is not None
        return found

    count, seconds = told("count"), told("sum")
    one.recorded.may_begin.clear()
    one.start()
    [at] = cluster.create("s")
    make_leader(cluster, at)
    eventually(lambda: one.partition(at).leads and one.recorded.begun, what="to lead")
    assert told("count") == count
    one.recorded.begun[-1].set_result(None)
    eventually(lambda: told("count") == count + 1, what="it to be counted")
    assert told("sum") >= seconds
    assert one.partition(at).serves


def test_without_a_session_it_reads_no_messages_and_with_one_again(led: tuple[Node, Cluster, Place]) -> None:
    one, _, at = led
    one.has_session = False
    eventually(lambda: ("no capture", "s/0") in one.story, what="the end of the capture")
    with pytest.raises(NotReady, match="session"):
        append(one.partition(at))
    one.has_session = True
    eventually(lambda: one.story.count(("capture", "s/0", one.partition(at).leader_epoch)) == 2)
    append(one.partition(at))


def test_what_was_sent_before_a_pause_is_taken_in_before_the_partition_refuses(
    led: tuple[Node, Cluster, Place],
) -> None:
    """V13. Seen before: it refused at once, and what NATS had delivered before the pause was lost."""
    one, cluster, at = led
    partition = one.partition(at)
    one.recorded.may_end.clear()
    cluster.apply(kind="set_state", name="s", paused=True)
    [ending] = eventually(lambda: one.recorded.ended, what="the end of the capture")
    something_happens(cluster)  # other turns do not wait for it
    append(partition)
    assert not partition.goes_by.paused
    ending.set_result(None)
    eventually(lambda: partition.goes_by.paused, what="the pause")
    with pytest.raises(StreamPaused):
        append(partition)
    one.recorded.may_begin.clear()
    begun = len(one.recorded.begun)
    cluster.apply(kind="set_state", name="s", paused=False)
    eventually(lambda: one.recorded.begun[begun:], what="the next capture")
    assert partition.goes_by.paused, "the server has not confirmed yet"
    append(partition)
    assert partition.is_changing, "it takes records, and whoever pauses it once more must not take it for paused"
    one.recorded.begun[-1].set_result(None)
    assert not partition.goes_by.paused
    assert not partition.is_changing


def test_a_capture_that_ends_with_its_broker_while_it_begins_leaves_no_traceback(
    led: tuple[Node, Cluster, Place], caplog: pytest.LogCaptureFixture
) -> None:
    one, cluster, at = led
    cluster.apply(kind="set_state", name="s", paused=True)
    eventually(lambda: one.partition(at).goes_by.paused, what="the pause")
    one.recorded.may_begin.clear()
    begun = len(one.recorded.begun)
    cluster.apply(kind="set_state", name="s", paused=False)
    eventually(lambda: one.recorded.begun[begun:], what="the next capture")
    one.recorded.begun[-1].cancel()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert one.partition(at).goes_by.paused, "nothing is taken in"


def test_a_fence_comes_to_the_partition_and_nothing_else_changes(led: tuple[Node, Cluster, Place]) -> None:
    one, cluster, at = led
    partition, epoch = one.partition(at), one.partition(at).leader_epoch
    begun = len(one.recorded.begun)
    cluster.apply(kind="raise_fence", name="s", incarnation=at[0], partition=at[1], after=0)
    eventually(lambda: partition.fence == 1, what="the fence")
    assert not partition.is_changing
    assert len(one.recorded.begun) == begun, "messages are taken in as before"
    assert (partition.leader_epoch, partition.serves) == (epoch, True)
    append(partition)


def test_a_leader_that_has_heard_of_a_change_goes_by_nothing_before_its_turn(led: tuple[Node, Cluster, Place]) -> None:
    """Paused, resumed and paused once more, while a turn is on its way to the second: it was taken for paused, and took
    records behind the answer."""
    one, cluster, at = led
    partition = one.partition(at)
    cluster.apply(kind="set_state", name="s", paused=True)
    eventually(lambda: partition.goes_by.paused and not partition.is_changing, what="the pause")
    is_amid, may_go = threading.Event(), threading.Event()
    alter = partition.alter

    def late(info: StreamInfo) -> None:
        is_amid.set()
        assert may_go.wait(60)
        alter(info)

    with patch.object(partition, "alter", late):
        cluster.apply(kind="set_state", name="s", paused=False)
        assert is_amid.wait(60)
        cluster.apply(kind="set_state", name="s", paused=True)
        assert partition.goes_by.paused
        assert partition.is_changing, "its turn is about to resume it"
        may_go.set()
        eventually(lambda: not partition.is_changing, what="the second pause")
    assert partition.goes_by.paused


def test_a_pause_is_not_told_before_the_partition_refuses(
    led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """V13. The capture ends amid the turn that has found it at work: it is the next turn's to go by the pause."""
    one, cluster, at = led
    partition = one.partition(at)
    one.recorded.may_end.clear()
    may_alter, serve, told = Capturing.may_alter, Partition.serve, list[bool]()

    def ends_behind(of: Capturing, info: StreamInfo) -> bool:
        may = may_alter(of, info)
        if not may:
            one.recorded.ended[-1].set_result(None)
        return may

    def note(of: Partition, epoch: int, info: StreamInfo | None = None) -> None:
        told.append(info is not None and info.paused and not of._acceptance.is_closed)
        serve(of, epoch, info)

    monkeypatch.setattr(Capturing, "may_alter", ends_behind)
    monkeypatch.setattr(Partition, "serve", note)
    cluster.apply(kind="set_state", name="s", paused=True)
    eventually(lambda: partition.goes_by.paused, what="the pause")
    assert told
    assert not any(told), "it took records yet"


def test_a_stop_without_a_session_tells_who_waits_for_an_ack_that_it_is_over(led: tuple[Node, Cluster, Place]) -> None:
    """G10. No follower is left to confirm it: a stop that drains would wait in vain."""
    one, _, at = led
    waiter = append(one.partition(at))
    one.replicas.leave()
    one.replicas.look()
    append(one.partition(at))  # it has its session: it leads on
    assert not waiter.done.is_set()
    one.has_session = False
    one.replicas.look()
    assert isinstance(waiter.wait(), NotLeader)
    assert not one.partition(at).leads


def test_a_failed_fsync_is_a_step_out_and_then_a_follower(
    led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, cluster, at = led
    partition = one.partition(at)
    fails_until_it_recovers(one, monkeypatch)
    waiter = append(partition)
    assert isinstance(waiter.wait(), Exception)
    eventually(lambda: cluster.state(at).step_outs_of("a") == 1, what="the step-out")
    eventually(lambda: partition.log.state.failure is None, what="the log to recover")
    is_following(one)
    state = cluster.state(at)
    assert state.leader != "a"
    eventually(lambda: "a" in cluster.state(at).opened, what="to say that it is open")
    assert "a" not in cluster.state(at).isr
    assert one.partition(at) is partition


def test_a_log_that_has_recovered_does_not_step_out_for_what_was_seen_before(
    led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """V4. A tick, or the pool of fsyncs, may see the failed log until the moment in which it recovers."""
    one, cluster, at = led
    fails_until_it_recovers(one, monkeypatch, lambda: one.placed(at).step_out("fsync"))
    append(one.partition(at))
    is_sound_after_one_step_out(one, cluster, at)


def test_a_tick_that_saw_the_failed_log_and_asks_once_it_has_recovered_asks_in_vain(
    led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """V4. Between its look and its question the tick's thread stands still."""
    one, cluster, at = led
    placed, step_out = one.placed(at), PlacedReplica.step_out
    has_seen, may_ask = threading.Event(), threading.Event()

    def tick() -> None:
        while not has_seen.is_set():
            with suppress(AssertionError):  # the loop's own tick came in between: time runs back
                placed.tick(one.host.now_ms())

    ticking = threading.Thread(target=tick)

    def step_out_late(of: PlacedReplica, why: str, *seen_in: int) -> None:
        if threading.current_thread() is ticking:
            has_seen.set()
            assert may_ask.wait(60)
        step_out(of, why, *seen_in)

    def see_it_fail() -> None:
        ticking.start()
        assert has_seen.wait(60)

    monkeypatch.setattr(PlacedReplica, "step_out", step_out_late)
    fails_until_it_recovers(one, monkeypatch, see_it_fail)
    append(one.partition(at))
    is_following(one)
    may_ask.set()
    ticking.join()
    is_sound_after_one_step_out(one, cluster, at)


def test_a_leader_that_asks_once_its_log_has_recovered_asks_in_vain(
    led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """V4. The pool's thread stands still between the failed fsync and what comes of it; a tick asks meanwhile."""
    one, cluster, at = led
    may_ask, has_asked = threading.Event(), threading.Event()
    effects = one.placed(at)._effects
    step_out = effects._step_out

    def step_out_late(why: str) -> None:
        assert may_ask.wait(60)
        step_out(why)
        has_asked.set()

    monkeypatch.setattr(effects, "_step_out", step_out_late)
    fails_until_it_recovers(one, monkeypatch)
    append(one.partition(at))
    is_following(one)
    may_ask.set()
    assert has_asked.wait(60)
    is_sound_after_one_step_out(one, cluster, at)


def fails_until_it_recovers(
    one: Node, monkeypatch: pytest.MonkeyPatch, amid: Callable[[], object] = lambda: None
) -> None:
    """Let each fsync fail until a log is about to recover: what is on the disk then does not depend on luck."""
    recover = PartitionLog.recover

    def recovers(opened: PartitionLog, now_us: int) -> RecoveryReport:
        one.disk.fails = False
        amid()
        return recover(opened, now_us)

    monkeypatch.setattr(PartitionLog, "recover", recovers)
    one.disk.fails = True


def is_following(one: Node) -> None:
    eventually(
        lambda: any(entry[0] == "follow" and entry[3][1] == 1 for entry in one.story if isinstance(entry, tuple)),
        what="to follow",
    )


def is_sound_after_one_step_out(one: Node, cluster: Cluster, at: Place) -> None:
    is_following(one)
    placed = one.placed(at)
    eventually(lambda: not placed._turns._is_running, what="no more turns")
    assert placed.stepping is None
    assert cluster.kinds().count("step_out") == 1
    assert not one.halted


def test_logs_that_fail_together_step_out_by_one_command(one: Node, cluster: Cluster) -> None:
    one.start()
    places = cluster.create("s", 6)
    make_leader(cluster, *places)
    for at in places:
        one.leading(at)
    one.disk.fails = True
    for at in places:
        append(one.partition(at))
    eventually(lambda: all(cluster.state(at).step_outs_of("a") for at in places), what="all to step out")
    one.disk.fails = False
    asked = [command for command in cluster.sent if command["kind"] == "step_out"]
    assert len(asked) < len(places), "a busy machine may need more than one"
    assert {replica[1] for command in asked for replica in command["replicas"]} == {0, 1, 2, 3, 4, 5}


def test_a_step_out_that_does_not_come_through_ends_the_process(
    led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, cluster, at = led
    monkeypatch.setattr(replicas_module, "HALT_MS", 300)
    cluster.goes.clear()
    one.disk.fails = True
    append(one.partition(at))
    eventually(lambda: one.halted, what="to halt")
    assert "s/0" in one.halted[0]
    time.sleep(0.3)
    assert len(one.halted) == 1


def test_with_many_partitions_a_step_out_may_take_as_much_longer_as_an_election(
    led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G4. With 9,000 another controller is elected after 2.5 to 5 s, and the command concerns thousands."""
    one, cluster, at = led
    placed = one.placed(at)
    monkeypatch.setattr(replicas_module, "slower", lambda partitions: 5.0)
    cluster.goes.clear()
    one.replicas._loop.stop()
    placed.stepping = Stepping("fsync", (1, 0), 10_000)
    for now_ms, is_over in ((15_001, False), (34_999, False), (35_001, True)):
        one.replicas._step_out(now_ms)
        assert bool(one.halted) == is_over, now_ms


def test_a_damaged_replica_begins_anew_and_its_files_stay_until_all_are_in_sync(
    led: tuple[Node, Cluster, Place],
) -> None:
    one, cluster, at = led
    before = one.partition(at)
    append(before)
    one.placed(at).damaged("a bit has flipped")
    steps_out(cluster, at)
    eventually(lambda: one.partition(at) is not before, what="a new log")
    after = one.partition(at)
    assert after.log.state.log_end_offset == 0
    aside = Path(f"{one.root}/s/i-s/0.aside")
    assert aside.exists()
    eventually(lambda: "a" in cluster.state(at).opened, what="to say that it is open")
    cluster.join(at, "a")
    eventually(lambda: not aside.exists(), what="what was damaged to go")


def test_what_a_leader_has_kept_aside_goes_when_all_are_in_sync(led: tuple[Node, Cluster, Place]) -> None:
    """An operator has given up what was damaged, and it leads on."""
    one, cluster, at = led
    for broker in ("b", "c"):
        cluster.fail(broker)
    aside = Path(f"{one.root}/s/i-s/0.aside")
    aside.mkdir()
    (aside / "0-1.lost").write_bytes(b"damaged")
    rejoin(cluster, at, broker="b")
    eventually(lambda: one.placed(at).partition.leadership()[2] == ("a", "b"), what="to hear of it")  # type: ignore
    assert aside.exists(), "one is away"
    rejoin(cluster, at, broker="c")
    eventually(lambda: not aside.exists(), what="what was damaged to go")
    assert cluster.state(at).leader == "a"


def test_a_damaged_replica_that_nobody_can_replace_stays_and_asks_when_somebody_can(
    led: tuple[Node, Cluster, Place],
) -> None:
    one, cluster, at = led
    partition = one.partition(at)
    for broker in ("b", "c"):
        cluster.fail(broker)
    one.placed(at).damaged("a bit has flipped")
    something_happens(cluster)
    time.sleep(0.5)
    assert (cluster.kinds().count("step_out"), one.partition(at), partition.leads) == (0, partition, True)
    rejoin(cluster, at, broker="b")
    steps_out(cluster, at)
    eventually(lambda: one.partition(at) is not partition, what="a new log")


def test_a_refused_step_out_is_asked_for_again(led: tuple[Node, Cluster, Place]) -> None:
    """The others fail while the question is under way."""
    one, cluster, at = led
    cluster.goes.clear()
    placed = one.placed(at)
    placed.damaged("a bit has flipped")
    asks_to_step_out(cluster)
    for broker in ("b", "c"):
        cluster.fail(broker)
    cluster.goes.set()
    eventually(lambda: placed.stepping is None, what="the refusal")
    assert one.partition(at).leads
    rejoin(cluster, at, broker="b")
    steps_out(cluster, at)


def noted_ticks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a replica might have gone, at each tick from now on."""
    seen: list[bool] = []
    real = PlacedReplica.tick

    def tick(placed: PlacedReplica, now_ms: int, *, may_go: bool = False) -> None:
        real(placed, now_ms, may_go=may_go)
        seen.append(may_go)

    monkeypatch.setattr(PlacedReplica, "tick", tick)
    return seen


def time_passes(ticks: list[bool]) -> None:
    begun = len(ticks)
    eventually(lambda: len(ticks) > begun + 4, what="time to pass")


def test_a_damaged_leader_stays_for_who_was_not_heard_of_late(
    led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in sync, and their sessions have not lapsed: they may be dead all the same."""
    one, cluster, at = led
    ticks = noted_ticks(monkeypatch)
    something_happens(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(heard, "HEARD_MS", 0)
        one.placed(at).damaged("a bit has flipped")
        time_passes(ticks)
        assert (cluster.kinds().count("step_out"), one.partition(at).leads) == (0, True)
    steps_out(cluster, at)


class Doubt:
    """Step-outs are asked for, and nobody says what becomes of that."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over = False
        real = cluster.execute

        def execute(command: dict[str, Any], **options: Any) -> Any:
            if command["kind"] != "step_out" or self.is_over:
                return real(command, **options)
            cluster.sent.append(command)
            raise NotReady("no answer")

        monkeypatch.setattr(cluster, "execute", execute)


def test_a_step_out_in_doubt_is_not_asked_for_again_while_nobody_is_heard(
    led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, cluster, at = led
    ticks, doubt, placed = noted_ticks(monkeypatch), Doubt(cluster, monkeypatch), one.placed(at)
    placed.damaged("a bit has flipped")
    asks_to_step_out(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(heard, "HEARD_MS", 0)
        eventually(lambda: placed.stepping is None, what="to let be")
        asked = cluster.kinds().count("step_out")
        time_passes(ticks)
        assert cluster.kinds().count("step_out") == asked
        assert one.partition(at).leads
    doubt.is_over = True
    steps_out(cluster, at)


def test_a_step_out_that_was_let_be_comes_to_pass_all_the_same(
    led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is no part of the partition any more: it begins anew."""
    one, cluster, at = led
    Doubt(cluster, monkeypatch)
    placed, before = one.placed(at), one.partition(at)
    placed.damaged("a bit has flipped")
    asks_to_step_out(cluster)
    monkeypatch.setattr(heard, "HEARD_MS", 0)
    eventually(lambda: placed.stepping is None, what="to let be")
    cluster.apply(**next(command for command in cluster.sent if command["kind"] == "step_out"))
    eventually(lambda: one.partition(at) is not before, what="a new log")
    assert not placed.is_damaged


def test_a_replica_that_is_moved_away_is_deleted_and_that_is_confirmed(led: tuple[Node, Cluster, Place]) -> None:
    one, cluster, at = led
    cluster.apply(kind="delete_stream", name="s")
    eventually(lambda: "a" not in cluster.catalog.cluster.leftovers, what="the confirmation")
    assert not Path(f"{one.root}/s").exists()
    something_happens(cluster)
    assert one.replicas.replica(at) is None


def test_a_replica_that_comes_back_before_its_turn_begins_empty(led: tuple[Node, Cluster, Place]) -> None:
    """V3. The pool is busy while it goes and comes."""
    one, _, at = led
    append(one.partition(at))
    before, assigned = one.partition(at), one.placed(at)._assigned
    busy, go = threading.Barrier(3), threading.Event()
    for _ in range(2):
        one.host.workers.submit(lambda: (busy.wait(60), go.wait(60)))
    busy.wait(60)
    one.placed(at).assign(None)
    one.placed(at).assign(assigned)
    go.set()
    eventually(lambda: one.partition(at) is not before, what="a new log")
    assert one.log(at).state.log_end_offset == 0


def test_after_a_restart_what_is_there_is_sound_and_leads_again(tmp_path: Path, cluster: Cluster) -> None:
    with node(tmp_path, cluster, "p1") as one:
        assert one.start().sound == {}
        [at] = cluster.create("s")
        make_leader(cluster, at)
        waiter = append(one.leading(at))
        eventually(lambda: one.log(at).state.durable_end == 1, what="the fsync")
        assert not waiter.done.is_set()
    with node(tmp_path, cluster, "p2") as two:
        found = two.start()
        assert found.sound == {"i-s": [0]}
        assert two.log(at).state.log_end_offset == 1
        eventually(lambda: two.story, what="to follow")
        assert cluster.state(at).step_outs_of("a") == 0
        assert "a" in cluster.state(at).isr


def test_who_comes_back_without_what_was_committed_does_not_lead(tmp_path: Path, cluster: Cluster) -> None:
    """It is the preferred leader, and the only one that may lead at once: the others are away."""
    at = a_process_that_led(tmp_path, cluster)
    path = tmp_path / "streams/s/i-s/0/checkpoint"
    kept = Checkpoint.decode(path.read_bytes(), where=str(path))
    assert kept is not None
    path.write_bytes(replace(kept, high_watermark=5, clean_boot_id=None).encode())
    for broker in ("b", "c"):
        cluster.fail(broker)
    assert (cluster.state(at).isr, cluster.state(at).last_isr) == (("a",), ("c",))
    with node(tmp_path, cluster, "p2") as two:
        assert two.start().behind == {"i-s": [0]}
        state = cluster.state(at)
        assert (state.leader, state.isr, state.last_isr, state.opened) == (None, (), ("c",), ("a", "b", "c"))
        cluster.register("c")
        eventually(lambda: two.story, what="to follow")
        assert cluster.state(at).leader == "c"
        assert not two.log(at).state.is_behind


@pytest.mark.parametrize("is_in_sync", [True, False])
def test_a_disk_is_accused_only_of_what_was_in_sync(
    tmp_path: Path, cluster: Cluster, caplog: pytest.LogCaptureFixture, is_in_sync: bool
) -> None:
    """Seen before: a follower that caught up was killed amid a write of 70 kB. Its later batches were there, and told
    of a high watermark above the first one, which was not."""
    at = a_process_that_led(tmp_path, cluster)
    path = tmp_path / "streams/s/i-s/0/checkpoint"
    kept = Checkpoint.decode(path.read_bytes(), where=str(path))
    assert kept is not None
    path.write_bytes(replace(kept, high_watermark=5, clean_boot_id=None).encode())
    if not is_in_sync:
        cluster.fail("a")
    assert ("a" in cluster.state(at).isr) is is_in_sync
    with node(tmp_path, cluster, "p2") as two:
        assert two.start().behind == {"i-s": [0]}, "the catalog judges it"
    assert ("replica.behind" in caplog.text) is is_in_sync


def test_a_step_out_that_the_process_did_not_live_to_see_puts_the_damaged_log_aside(
    tmp_path: Path, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The command is committed, the process ends, and the next one finds a folder that opens without complaint."""
    at = a_process_that_led(tmp_path, cluster)
    registration = cluster.catalog.brokers["a"].registration
    cluster.apply(kind="step_out", broker_id="a", registration=registration, why="damage", replicas=[[*at, 0]])
    with node(tmp_path, cluster, "p2") as two:
        assert two.start().sound == {"i-s": [0]}
        assert two.log(at).state.log_end_offset == 0
        assert Path(f"{tmp_path}/streams/s/i-s/0.aside/partition.json").exists()
        eventually(lambda: "a" in cluster.state(at).opened, what="to say that it is open")
    assert f"replica.moved_aside folder={tmp_path}/streams/s/i-s/0.aside" in caplog.text


def test_a_failed_fsync_that_the_process_did_not_live_to_see_costs_no_log_that_may_lead(
    tmp_path: Path, cluster: Cluster
) -> None:
    """It is in the last ISR: nobody else may have what it has."""
    at = a_process_that_led(tmp_path, cluster)
    registration = cluster.catalog.brokers["a"].registration
    for broker in ("b", "c"):
        cluster.fail(broker)
    cluster.apply(kind="step_out", broker_id="a", registration=registration, why="fsync", replicas=[[*at, 0]])
    assert cluster.state(at).leader == "a"
    with node(tmp_path, cluster, "p2") as two:
        two.start()
        assert two.log(at).state.log_end_offset == 1
        eventually(lambda: two.partition(at).leads, what="to lead")


def test_a_broker_that_was_removed_comes_back_without_its_former_replicas(tmp_path: Path, cluster: Cluster) -> None:
    """The defect: records that the others have forgotten would come back with them, as would keys whose tombstones are
    gone."""
    cluster.register("d")
    at = a_process_that_led(tmp_path, cluster)
    moved = {"stream": at[0], "partition": at[1]}
    cluster.fail("a")
    [fourth] = {"b", "c", "d"} - set(cluster.state(at).replicas)
    cluster.apply(kind="reassign", replicas=["b", "c", fourth], **moved)
    cluster.opened(at, fourth)
    cluster.join(at, fourth)
    cluster.apply(kind="remove_broker", broker_id="a")
    with node(tmp_path, cluster, "p2") as two:
        assert two.start().sound == {"i-s": [0]}
        cluster.apply(kind="reassign", replicas=["a", "b", "c"], **moved)
        assert two.log(at).state.log_end_offset == 0
        assert Path(f"{tmp_path}/streams/s/i-s/0.aside/partition.json").exists()


def reported(cluster: Cluster) -> Any:
    rescue = cluster.catalog.cluster.rescue
    return None if rescue is None else rescue.logs.get("a")


def test_a_rescue_deletes_nothing_that_an_older_catalog_had_given_up(tmp_path: Path, cluster: Cluster) -> None:
    """It has lost that the replica came back since, and holds more than all others."""
    cluster.apply(kind="form_cluster", cluster_id="c")
    cluster.register("d")
    at = a_process_that_led(tmp_path, cluster)
    cluster.fail("a")
    [fourth] = {"b", "c", "d"} - set(cluster.state(at).replicas)
    cluster.apply(kind="reassign", stream=at[0], partition=at[1], replicas=["b", "c", fourth])
    cluster.opened(at, fourth)
    cluster.join(at, fourth)
    assert at in cluster.catalog.cluster.leftovers["a"]
    begun = cluster.apply(kind="begin_rescue", cluster_id="c", epoch_last=cluster.catalog.epoch_last)
    with node(tmp_path, cluster, "p2") as two:
        assert two.start().sound == {"i-s": [0]}
        something_happens(cluster)
        time.sleep(0.5)
        assert Path(f"{tmp_path}/streams/s/i-s/0/partition.json").exists()
        for _ in range(2):  # it reports by itself, and again when the catalog has forgotten that
            eventually(lambda: reported(cluster) is not None, what="the report")
            assert reported(cluster) == {at: (5, 1)}
            cluster.catalog.cluster.forget_logs("a")
        eventually(lambda: reported(cluster) is not None, what="the report")
        for broker, end in (("b", 0), ("c", 0), (fourth, 0)):
            cluster.apply(
                kind="report_logs",
                broker_id=broker,
                registration=cluster.catalog.brokers[broker].registration,
                rescue=begun["rescue"],
                epoch_seen=1,
                logs=[[*at, 1 if end else -1, end]],
            )
        cluster.apply(kind="end_rescue", rescue=begun["rescue"], brokers=["a", "b", "c", "d"])
        assert cluster.state(at).leader == "a"
        assert two.leading(at).log.state.log_end_offset == 1


def test_a_log_that_was_found_outlives_a_fault_of_ours_when_it_is_taken(tmp_path: Path, cluster: Cluster) -> None:
    """It would lead with an empty log, and the others would cut all that they have."""
    at = a_process_that_led(tmp_path, cluster)
    with node(tmp_path, cluster, "p2") as two:
        real, calls = two.followers, []

        def followers(*args: Any) -> Any:
            calls.append(args)
            if len(calls) == 1:
                raise RuntimeError("can't start new thread")
            return real(*args)

        two.followers = followers  # type: ignore[method-assign]
        two.start()
        eventually(lambda: calls, what="the fault")
        assert two.log(at).state.log_end_offset == 1
        assert not Path(f"{tmp_path}/streams/s/i-s/0.aside").exists()


def test_a_fault_of_ours_in_a_turn_is_tried_again(
    led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It followed nobody until the catalog had something new to say of it: never, if it was out of sync already."""
    one, cluster, at = led

    def follows() -> bool:
        said = ("follow", cluster.state(at).leader_epoch)
        return any(isinstance(entry, tuple) and entry[:2] == said for entry in one.story)

    cluster.fail("a")
    eventually(follows, what="to follow")
    real, calls = Recorded.follow, []

    def follow(self: Recorded, *args: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("can't start new thread")
        real(self, *args)

    monkeypatch.setattr(Recorded, "follow", follow)
    leader = cluster.state(at).leader
    assert leader is not None
    cluster.fail(leader)
    assert cluster.state(at).leader not in (None, "a", leader)
    eventually(follows, what="to follow the next one")


def test_a_stream_that_is_deleted_meanwhile_is_captured_no_more(
    one: Node, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To begin to lead took long. Another stream of that name may be captured by now: its capture was ended for the
    old one's, which ended in its turn, and this broker captured neither."""
    leads, may = threading.Event(), threading.Event()
    real = Partition.lead

    def lead(self: Partition, *args: Any) -> None:
        real(self, *args)
        leads.set()
        assert may.wait(60)

    monkeypatch.setattr(Partition, "lead", lead)
    one.start()
    [at] = cluster.create("s")
    make_leader(cluster, at)
    assert leads.wait(60)
    cluster.apply(kind="delete_stream", name="s")
    may.set()
    eventually(lambda: one.replicas.replica(at) is None or one.placed(at).is_gone, what="to be gone")
    assert ("capture", "s/0") not in [entry[:2] for entry in one.story if isinstance(entry, tuple)]


def test_a_log_that_was_closed_has_not_failed(led: tuple[Node, Cluster, Place]) -> None:
    """The clock looks at it while a turn closes it, and makes another one: that one stepped out."""
    one, cluster, at = led
    placed, before = one.placed(at), one.partition(at)
    assigned, real = placed._assigned, before.tick
    is_first = threading.Event()

    def tick(now_ms: int) -> None:
        real(now_ms)
        if not is_first.is_set():
            is_first.set()
            placed.assign(None)
            placed.assign(assigned)
            eventually(lambda: one.partition(at) is not before, what="a new log")

    before.tick = tick  # type: ignore[method-assign]
    placed.tick(1 << 40)
    assert before.log.state.failure is not None
    eventually(lambda: one.partition(at).leads, what="to lead again")
    assert placed._cause is None
    assert placed.stepping is None
    assert cluster.state(at).step_outs_of("a") == 0


def test_a_lost_folder_is_not_listed_and_made_anew(tmp_path: Path, cluster: Cluster) -> None:
    at = a_process_that_opened(tmp_path, cluster)
    Path(f"{tmp_path}/streams/s/i-s/0/partition.json").write_text("{")
    with node(tmp_path, cluster, "p2") as two:
        assert two.start().sound == {}
        assert "a" not in cluster.state(at).isr
        assert two.log(at).state.log_end_offset == 0
        eventually(lambda: "a" in cluster.state(at).opened, what="to be open")


@pytest.mark.parametrize("why", ["full", "release", "refused", "damaged"])
@pytest.mark.parametrize("is_alone", [True, False])
def test_what_cannot_be_opened_for_now_is_not_lost(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, why: str, is_alone: bool
) -> None:
    """G8: after an outage of all every broker may have a full disk; each would say that it has lost everything."""
    at = a_process_that_led(tmp_path, cluster)
    if is_alone:
        for broker in ("b", "c"):
            cluster.fail(broker)
    errors = {"full": DiskFull, "release": UnknownFormatVersion, "refused": StorageFailed, "damaged": CorruptLog}
    is_lost = why == "damaged" or (why == "refused" and not is_alone)
    with node(tmp_path, cluster, "p2") as two, monkeypatch.context() as patched:

        def refused(_: Folders, identity: LogIdentity, settings: LogSettings) -> PartitionLog:
            raise errors[why](f"cannot open {identity.stream}")

        patched.setattr(Folders, "open", refused)
        if is_lost:
            assert two.start().sound == {}
            assert "a" not in cluster.state(at).isr
            return
        with pytest.raises(errors[why]):
            two.start()
    assert "a" in {*cluster.state(at).isr, *cluster.state(at).last_isr}
    with node(tmp_path, cluster, "p3") as three:
        assert three.start().sound == {"i-s": [0]}
        assert three.log(at).state.log_end_offset == 1


def test_a_folder_that_a_later_release_has_written_is_not_lost(tmp_path: Path, cluster: Cluster) -> None:
    at = a_process_that_opened(tmp_path, cluster)
    file = Path(f"{tmp_path}/streams/s/i-s/0/partition.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "format_version": 99}))
    with node(tmp_path, cluster, "p2") as two, pytest.raises(UnknownFormatVersion):
        two.start()
    assert "a" in cluster.state(at).opened


def test_a_folder_that_the_catalog_does_not_know_is_kept(tmp_path: Path, cluster: Cluster) -> None:
    at = a_process_that_opened(tmp_path, cluster)
    other = Cluster()
    with node(tmp_path, other, "p2") as two:
        assert two.start().sound == {"i-s": [0]}
        assert two.replicas.replica(at) is None
    assert Path(f"{tmp_path}/streams/s/i-s/0/partition.json").exists()


def test_a_disk_that_takes_no_new_log_is_tried_again(
    one: Node, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = one.disk.makedirs
    refused: list[str] = []

    def full(path: str) -> None:
        if len(refused) < 2:
            refused.append(path)
            raise OSError(28, "no space")
        real(path)

    monkeypatch.setattr(one.disk, "makedirs", full)
    one.start()
    [at] = cluster.create("s")
    eventually(lambda: "a" in cluster.state(at).opened, what="to be open")
    assert len(refused) == 2


def records_aside(path: Path) -> int:
    """So many bytes of records of partition 0 are kept aside."""
    return sum(file.stat().st_size for file in (path / "streams/s/i-s/0.aside").glob("*.arrows"))


def test_what_was_put_aside_outlives_a_disk_that_takes_no_new_log(
    tmp_path: Path, led: tuple[Node, Cluster, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try found the folder that the one before it had begun, and put that in its place."""
    one, cluster, at = led
    append(one.partition(at))
    eventually(lambda: one.log(at).state.durable_end == 1, what="the fsync")
    real, refused = one.disk.replace_file, []

    def full(path: str, data: bytes, *, frees: bool = False) -> None:
        if path.endswith("partition.json") and len(refused) < 2:
            refused.append(path)
            raise OSError(28, "no space")
        real(path, data, frees=frees)

    monkeypatch.setattr(one.disk, "replace_file", full)
    one.placed(at).damaged("a bit has flipped")
    steps_out(cluster, at)
    eventually(lambda: one.log(at).state.log_end_offset == 0, what="a new log")
    assert len(refused) == 2
    assert records_aside(tmp_path)


def test_what_was_put_aside_outlives_a_process_that_ends_before_it_has_told_of_the_new_log(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = a_process_that_led(tmp_path, cluster)
    registration = cluster.catalog.brokers["a"].registration
    cluster.apply(kind="step_out", broker_id="a", registration=registration, why="damage", replicas=[[*at, 0]])

    def nobody_answers(command: dict[str, Any], **_: object) -> None:
        raise NotReady("no controller")

    for process in ("p2", "p3"):
        with monkeypatch.context() as patched, node(tmp_path, cluster, process) as one:
            patched.setattr(cluster, "execute", nobody_answers)  # to the end of the process: it tries again
            assert one.start().sound == {"i-s": [0]}
            assert one.log(at).state.log_end_offset == 0
    assert "a" not in cluster.state(at).opened
    assert records_aside(tmp_path)


def test_a_deposed_leader_answers_nobody_before_its_turn(led: tuple[Node, Cluster, Place]) -> None:
    """V7. Every thread that works for replicas is held up."""
    one, cluster, at = led
    partition = one.partition(at)
    busy, go = threading.Barrier(3), threading.Event()
    for _ in range(2):
        one.host.workers.submit(lambda: (busy.wait(60), go.wait(60)))
    busy.wait(60)
    cluster.fail("a")
    assert (partition.leads, partition.serves) == (True, False)
    with pytest.raises(NotLeader, match="is over"):
        append(partition)
    partition.serve(partition.leader_epoch)  # the server's answer comes late
    assert not partition.serves
    go.set()
    eventually(lambda: not partition.leads, what="the end of the leadership")


def test_the_thread_of_the_catalog_never_waits_for_a_disk(one: Node, cluster: Cluster) -> None:
    """G2. Every thread that works for replicas is held up."""
    one.start()
    busy, go = threading.Barrier(3), threading.Event()
    for _ in range(2):
        one.host.workers.submit(lambda: (busy.wait(60), go.wait(60)))
    busy.wait(60)
    [at] = cluster.create("s")
    for settings in ({"linger_ms": 1}, {"linger_ms": 2}):
        cluster.apply(kind="alter_stream", name="s", settings=settings)
    assert one.replicas.partition(at) is None
    go.set()
    assert one.partition(at).settings.linger_ms == 2


def test_states_that_come_in_a_row_end_with_the_last(one: Node, cluster: Cluster) -> None:
    one.start()
    [at] = cluster.create("s")
    make_leader(cluster, at)
    for _ in range(10):
        cluster.fail("a")
        cluster.apply(kind="renew_sessions", renewals={"a": one.replicas._registration})
        cluster.join(at, "a")
        for broker in ("b", "c"):
            cluster.fail(broker)
        for broker in ("b", "c"):
            rejoin(cluster, at, broker=broker)
    state: Any = cluster.state(at)
    assert state.leader == "a"
    eventually(lambda: one.partition(at).leader_epoch == state.leader_epoch, what="the last epoch")
    eventually(lambda: one.partition(at).serves, what="to serve")
    eventually(lambda: one.partition(at)._core.in_sync.members == state.isr)  # type: ignore[union-attr]


@pytest.mark.parametrize(("level", "kind"), [(1, "alter_isr"), (2, "alter_isrs")])
def test_an_isr_change_is_asked_for_once_and_answered_with_its_state(
    led: tuple[Node, Cluster, Place], level: int, kind: str
) -> None:
    one, cluster, at = led
    cluster.catalog.cluster.feature_level = level
    partition = one.partition(at)
    before = cluster.state(at)
    cluster.goes.clear()
    partition._core._lag_ms_max = 1
    append(partition)
    eventually(lambda: kind in cluster.kinds(), what="the question")
    time.sleep(0.5)
    assert cluster.kinds().count(kind) == 1
    cluster.goes.set()
    eventually(lambda: len(cluster.state(at).isr) < len(before.isr), what="a smaller ISR")
    eventually(lambda: partition._core.in_sync.members == cluster.state(at).isr)  # type: ignore[union-attr]


def test_damage_that_any_reader_has_noted_is_a_step_out(led: tuple[Node, Cluster, Place]) -> None:
    """V5. The scrub, a compaction or a consumer may find it; nobody else has to tell."""
    one, cluster, at = led
    for broker in ("b", "c"):
        cluster.fail(broker)
    cluster.apply(kind="set_min_insync", stream=at[0], min_insync_replicas=1)
    partition = one.partition(at)
    taken(partition)
    eventually(lambda: partition.log.state.high_watermark == 1, what="a commit")
    rejoin(cluster, at, broker="b")
    partition.log.checkpoint()
    segment = next(Path(f"{one.root}/s/i-s/0").glob("*.arrows"))
    stored = bytearray(segment.read_bytes())
    stored[700] ^= 1
    segment.write_bytes(bytes(stored))
    partition.scrub(0)
    assert partition.log.state.lost_ranges
    steps_out(cluster, at)
    eventually(lambda: one.partition(at) is not partition, what="a new log")


def test_compaction_is_told_the_marks_of_all_and_whoever_leads_hears_of_each_pass(
    led: tuple[Node, Cluster, Place],
) -> None:
    """L9, I6: who leads asks its core, and of others it has heard nothing; who follows tells its leader."""
    one, cluster, at = led
    replica = one.placed(at)
    replica.partition.log.state.note_compacted(5)  # type: ignore[union-attr]
    assert replica.marks() == (0, 0)
    replica.compacted()
    assert ("compacted", at) not in one.story
    cluster.fail("a")
    eventually(lambda: not one.partition(at).leads, what="to follow")
    assert replica.marks() == (7, 9)
    replica.compacted()
    assert ("compacted", at) in one.story


def test_the_only_replica_waits_for_its_own_mark_alone(one: Node, cluster: Cluster) -> None:
    """Its tombstones would stay for ever if it waited for others."""
    one.start()
    at = only_here(one, cluster)
    one.leading(at)
    replica = one.placed(at)
    assert replica.marks() == (0, 0)
    one.log(at).state.note_compacted(5)
    assert replica.marks() == (5, 0)


def only_here(one: Node, cluster: Cluster) -> Place:
    """A stream that nobody else keeps."""
    at = ("i-only", 0)
    cluster.apply(
        kind="create_stream",
        name="only",
        incarnation="i-only",
        created_us=1,
        settings={"subject": None, "cleanup": "compact"},
        replication_factor=1,
    )
    if cluster.state(at).replicas != ("a",):
        cluster.opened(at, *cluster.state(at).replicas)
        cluster.apply(kind="reassign", stream="i-only", partition=0, replicas=["a"])
        eventually(lambda: "a" in cluster.state(at).opened, what="to be there")
        cluster.join(at, "a")
    one.leading(at)
    return at


def stored(partition: Partition, count: int) -> None:
    """Records in batches of their own, acknowledged one after the other."""
    for _ in range(count):
        outcome = append(partition).wait()
        assert isinstance(outcome, int)


@pytest.mark.parametrize("kept", [0, 3, 8])
def test_a_flipped_bit_in_the_only_replica_is_lost_and_nothing_behind_it_is(
    tmp_path: Path, cluster: Cluster, kept: int
) -> None:
    """V10: as a broker does that is alone. Beyond the recovery point others would have the rest."""
    with node(tmp_path, cluster, "p1") as one:
        one.start()
        at = only_here(one, cluster)
        stored(one.partition(at), kept)
        one.log(at).checkpoint()
        stored(one.partition(at), 10 - kept)
        index = one.log(at).state.chain.segments[-1]
        shutil.copytree(one.root, tmp_path / "copy")
        positions = [int(entry["position"]) for entry in one.log(at).state.index_of(index).entries]
    shutil.rmtree(one.root)
    (tmp_path / "copy").rename(one.root)  # as after kill -9
    [path] = Path(one.root).glob("only/i-only/0/*.arrows")
    data = bytearray(path.read_bytes())
    data[positions[5] + 900] ^= 1
    path.write_bytes(data)
    with node(tmp_path, cluster, "p2") as two:
        assert two.start().sound == {"i-only": [0]}
        partition = two.leading(at)
        found = [
            row for message in partition.log.reader.batches(0) for row in decode_batch(message)["offset"].to_pylist()
        ]
        assert found == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert (partition.log.state.log_end_offset, partition.log.state.lost_ranges) == (10, ((5, 6),))
        stored(partition, 1)
        assert partition.log.state.log_end_offset == 11
        assert cluster.kinds().count("step_out") == 0


def test_the_only_replica_counts_as_one_of_several_before_it_leads_with_others(one: Node, cluster: Cluster) -> None:
    """V10."""
    one.start()
    at = only_here(one, cluster)
    stored(one.partition(at), 2)
    before = one.partition(at).leader_epoch
    assert one.log(at).state.settings.is_sole_replica
    cluster.apply(kind="raise_replication", name="only", replication_factor=2)
    eventually(lambda: one.partition(at).leads and one.partition(at).leader_epoch > before, what="another epoch")
    assert not one.log(at).state.settings.is_sole_replica
    assert one.log(at).handover.lacks is False
    [other] = [broker for broker in cluster.state(at).replicas if broker != "a"]
    cluster.opened(at, other)
    cluster.join(at, other)
    cluster.apply(kind="reassign", stream="i-only", partition=0, replicas=["a"])
    eventually(lambda: one.log(at).state.settings.is_sole_replica, what="to be alone again")
    one.leading(at)
    stored(one.partition(at), 1)


def test_replicas_that_are_opened_together_are_reported_together(one: Node, cluster: Cluster) -> None:
    """One goes at once, all others while its command is under way go by the next."""
    one.start()
    cluster.goes.clear()
    places = cluster.create("s", partitions=40)
    eventually(lambda: len(one.replicas._reports._waiting) == len(places) - 1, what="all but the first to wait")
    cluster.goes.set()
    eventually(lambda: all("a" in cluster.state(at).opened for at in places), what="all to be reported")
    told = [command["replicas"] for command in cluster.sent if command["kind"] == "report_opened"]
    assert [len(replicas) for replicas in told] == [1, len(places) - 1]


def test_a_log_that_was_found_stays_found_where_its_replica_could_not_be_made(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """V9. It was moved aside, and an in-sync replica had a new, empty log."""
    at = a_process_that_led(tmp_path, cluster)
    real, tries = PlacedReplica.__init__, []

    def init(self: PlacedReplica, *args: Any, **options: Any) -> None:
        tries.append(self)
        if len(tries) == 1:
            raise MemoryError
        real(self, *args, **options)

    monkeypatch.setattr(PlacedReplica, "__init__", init)
    with node(tmp_path, cluster, "p2") as two:
        two.start()
        assert two.log(at).state.log_end_offset == 1
    assert "replica.unknown" not in caplog.text
    assert not list(tmp_path.rglob("*.aside"))


def test_a_leadership_that_met_a_fault_of_ours_half_way_is_begun_anew_with_its_followers(
    one: Node, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V9. It led without any: what it had alone was committed, and acknowledged to who waits for all."""
    real, tries = leader_module.InSync, []

    def in_sync(*args: Any) -> Any:
        tries.append(args)
        if len(tries) == 1:
            raise MemoryError
        return real(*args)

    monkeypatch.setattr(leader_module, "InSync", in_sync)
    one.start()
    [at] = cluster.create("s")
    make_leader(cluster, at)
    waiter = append(one.leading(at))
    eventually(lambda: one.log(at).state.durable_end == 1, what="the fsync")
    assert one.log(at).state.high_watermark == 0
    assert not waiter.done.is_set()
    assert len(tries) > 1


def test_a_fault_of_ours_is_a_warning_while_it_lasts(
    one: Node, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V9, G15. The broker was ready, and said nothing of a partition that nobody else could lead meanwhile."""
    goes, real, real_assign = threading.Event(), Partition.lead, PlacedReplica.assign

    def lead(self: Partition, *args: Any) -> None:
        if not goes.is_set():
            raise IndexError("made to fail")
        real(self, *args)

    def assign(self: PlacedReplica, *args: Any, **options: Any) -> None:
        if not goes.is_set() and self.at[0] == "i-t":
            raise KeyError("made to fail, too")
        real_assign(self, *args, **options)

    monkeypatch.setattr(Partition, "lead", lead)
    monkeypatch.setattr(PlacedReplica, "assign", assign)
    broker = object.__new__(ClusterBroker)
    broker._own, broker._intake, broker._modes = {}, None, SimpleNamespace(weaker=dict)  # type: ignore[assignment]
    broker._replicas, broker.is_alone = one.replicas, False
    one.start()
    [at], [other] = cluster.create("s"), cluster.create("t")
    eventually(lambda: cluster.state(at).leader, what="a leader")
    for broker_id in ("b", "c"):
        cluster.fail(broker_id)
    eventually(lambda: len(one.replicas.faults()) == 2, what="both faults")
    said = broker.warnings()["faults"]
    assert said.startswith("2 replicas here are not as they are to be, the first: s/0: a fault of the broker's own")
    assert "made to fail, too" in one.replicas.faults()[1]
    goes.set()
    one.leading(at)
    one.partition(other)
    eventually(lambda: not broker.warnings(), what="no warning")
