"""Goal: a batch of a sink is there once, whichever of three brokers dies between two steps of its commit.

Method: three brokers of one process with real logs and real replication. The steps of a commit are taken one by one; in
between a broker ends without a word. Then the driver does what a driver does: it sends its commit again.
"""

from __future__ import annotations

import copy
import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import DeadlineExceeded, NotLeader, NotReady, SinkFenced, StageLost, StorageFailed, UnknownSink
from broker.api.stream import COMMITS_STREAM, OFFSETS_STREAM
from broker.groups.offsets import ConsumerOffset, offset_rows
from broker.metadata.partition import PartitionState
from broker.node.offsets import PlacedConsumers
from broker.node.partitions.partition import Partition
from broker.node.sinks.beside import wanted
from broker.node.sinks.committed import append_durable
from broker.node.sinks.coordinator import Sinks
from broker.node.sinks.rounds import SinkRounds
from broker.node.sinks.stages import StageStore
from broker.sinks.ledger import CommitRequest, NamedStage
from broker.sinks.state import StageRef
from broker.storage.log import PartitionLog
from broker.storage.log_reader import LogReader
from broker.storage.rows import RowBatch
from tests.support.linked import linked
from tests.support.linked_sinks import COMMITS, SINK, STREAM, LinkedSinks, retried, settled
from tests.support.processes import eventually
from tests.support.sinks import rows_of

pytestmark = [pytest.mark.slow, pytest.mark.long]

STEPS = ("staged", "pinned one", "pinned", "decided", "group without a note", "finished one", "finished", "done")


@pytest.fixture
def sinks(tmp_path: Path) -> Iterator[LinkedSinks]:
    with linked(tmp_path) as cluster:
        made = LinkedSinks(cluster)
        try:
            yield made
        finally:
            made.close()


@dataclass
class Batch:
    """One batch on its way, step by step, to both partitions."""

    sinks: LinkedSinks
    number: int = 0
    stages: list[NamedStage] = field(default_factory=list)
    refs: tuple[StageRef, ...] = ()

    def __post_init__(self) -> None:
        self.epoch = self.sinks.open("run")
        for partition in range(2):
            values = [b"%d/%d/%d" % (self.number, partition, row) for row in range(4)]
            self.stages.append(self.sinks.stage(self.epoch, partition, *values))

    @property
    def asked(self) -> CommitRequest:
        return CommitRequest(owner="run", epoch=self.epoch, batch_id=self.number, rows=8)

    def take(self, step: str) -> None:
        """The step, and all before it."""
        coordinator = self.sinks.coordinator()
        for each in STEPS[1 : STEPS.index(step) + 1]:
            self._take(each, coordinator)

    def _take(self, step: str, coordinator: Sinks) -> None:
        match step:
            case "pinned one":
                coordinator.pin(SINK, CommitRequest(owner="run", epoch=self.epoch, batch_id=0, rows=4), self.stages[:1])
            case "pinned":
                self.refs = coordinator.pin(SINK, self.asked, self.stages)
            case "decided":
                coordinator.decide(SINK, self.asked, self.refs)
            case "group without a note":
                place = self.sinks.places[0]
                store = self.sinks.leader_of(place)._store_of(STREAM, 0)
                group = store._hidden.group_of(self.refs[:1], int(self.decision, 16))
                append_durable(store.main, group, decided=True, leader_epoch=store.main.leader_epoch)
                store._untried.clear()  # as `finish` does before it appends
            case "finished one":
                coordinator.stores.store(STREAM, 0).finish(self.decision, SINK, self.refs[:1])
            case "finished":
                coordinator.stores.store(STREAM, 1).finish(self.decision, SINK, self.refs[1:])
            case "done":
                coordinator.complete(SINK)

    @property
    def decision(self) -> str:
        last = self.sinks.coordinator().describe(SINK).last
        assert last is not None
        return last.decision


def check(sinks: LinkedSinks, batches: int) -> None:
    """Each record is there once, in its partition, and those of a decision stand together."""
    for partition in range(2):
        seen = sinks.values(partition)
        expected = [b"%d/%d/%d" % (number, partition, row) for number in range(batches) for row in range(4)]
        assert [value for _, value in seen] == expected
        assert len({decision for decision, _ in seen}) == batches


@pytest.mark.parametrize("victim", ["coordinator", "leader"])
@pytest.mark.parametrize("step", STEPS)
def test_a_batch_is_there_once_whoever_dies_behind_a_step(sinks: LinkedSinks, step: str, victim: str) -> None:
    batch = Batch(sinks)
    batch.take(step)
    was_decided = STEPS.index(step) >= STEPS.index("decided")
    sinks.kill(sinks.leader_of(COMMITS if victim == "coordinator" else sinks.places[0]).node.me)
    if was_decided:  # K2: nobody has to ask
        settled(sinks)
        check(sinks, 1)
    answer = sinks.commit(batch.asked, batch.stages)
    assert answer.is_new is not was_decided
    check(sinks, 1)
    following = Batch(sinks, 1)
    assert sinks.commit(following.asked, following.stages).is_new
    check(sinks, 2)


def test_a_coordinator_that_was_deposed_appends_nothing_late(sinks: LinkedSinks) -> None:
    """It was about to finish when another one did, and the stages are let go of: its question comes last."""
    batch = Batch(sinks)
    batch.take("decided")
    decision = batch.decision
    late = sinks.coordinator().stores.store(STREAM, 0)
    settled(sinks)
    retried(lambda: SinkRounds(sinks.coordinator()).sweep())
    store = sinks.leader_of(sinks.places[0])._store_of(STREAM, 0)
    eventually(lambda: not store.finished(), what="the group forgotten")
    found = late.finish(decision, SINK, batch.refs[:1])  # it is looked for, and found
    assert (found.first_offset, found.next_offset) == (0, 4)
    check(sinks, 1)


def test_a_late_completion_is_no_error_and_changes_nothing(sinks: LinkedSinks) -> None:
    """Another coordinator has completed the batch, and decided the next one."""
    first = Batch(sinks)
    sinks.commit(first.asked, first.stages)
    decision = first.decision
    second = Batch(sinks, 1)
    sinks.commit(second.asked, second.stages)
    commits = sinks.coordinator().commits
    state = commits.state(lambda ledger, _: ledger.completed(SINK, decision, now_us=0))
    assert state.last is not None
    assert state.last.batch_id == 1
    assert sum(each.counts["committed"] for each in sinks.of.values()) == 2, "told by /metrics, whoever led"
    assert commits.ledger().get(SINK) is state


def test_what_nobody_commits_goes_and_frees_what_was_kept(sinks: LinkedSinks) -> None:
    """Sweeps over three brokers: stages expire, pins of an idle run are fenced, and retention may go on (K3)."""
    batch = Batch(sinks)
    batch.take("pinned one")
    at = sinks.places[0]
    leader = sinks.leader_of(at)
    assert leader.floor(*at) == 0

    def is_empty() -> bool:
        sinks.now_us += 48 * 3_600_000_000  # a broker that has just begun to coordinate waits as well
        SinkRounds(sinks.coordinator()).sweep()
        return all(not sinks.leader_of(place)._store_of(STREAM, place[1]).staged().stages for place in sinks.places)

    eventually(is_empty, timeout_s=60, what="nothing staged")
    assert leader.floor(*at) is None
    with pytest.raises(SinkFenced):
        sinks.commit(batch.asked, batch.stages)
    with pytest.raises(StageLost):
        sinks.coordinator().stores.store(STREAM, 1).pin([(batch.stages[1].stage, 2)], sink=SINK, epoch=9, batch_id=0)


def test_what_comes_for_a_sink_that_was_ended_goes_and_another_coordinator_knows(
    sinks: LinkedSinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader of a partition believes for a moment that an epoch may stage, unasked."""
    monkeypatch.setattr("broker.node.sinks.service.CHECKED_S", 3_600.0)
    epoch = retried(lambda: sinks.coordinator().open(SINK, "run", is_one_shot=True).epoch)
    sinks.stage(epoch, 0, b"a", b"b")
    retried(lambda: sinks.coordinator().end(SINK, "run"))

    def staged() -> bool:
        return any(store.staged(SINK).stages for store in sinks.coordinator().stores.stores())

    assert not retried(staged)
    sinks.stage(epoch, 0, b"c", b"d")
    assert retried(staged)
    retried(lambda: SinkRounds(sinks.coordinator()).sweep())
    assert not retried(staged)
    sinks.kill(sinks.leader_of(COMMITS).node.me)
    with pytest.raises(SinkFenced):
        retried(lambda: sinks.coordinator().open(SINK, "run", is_one_shot=True))
    retried(lambda: sinks.coordinator().end(SINK, "run"))


def test_nothing_is_let_go_before_the_stages_are_known(sinks: LinkedSinks) -> None:
    """K3: the next leader keeps all of its log until it has looked."""
    at = sinks.places[0]
    assert sinks.leader_of(at).floor(*at) is None
    batch = Batch(sinks)
    batch.take("pinned")
    sinks.kill(sinks.leader_of(at).node.me)
    leader = sinks.leader_of(at)
    assert leader.floor(*at) == 0
    retried(lambda: leader._store_of(STREAM, 0).staged())
    assert leader.floor(*at) == 0, "a pin from offset 0 on"


def test_what_may_be_let_go_is_answered_while_a_part_waits_for_other_replicas(sinks: LinkedSinks) -> None:
    """Q4: a large part is made durable under the lock. The cleaner and the scrub do not wait with it."""
    batch = Batch(sinks)
    at = sinks.places[0]
    leader = sinks.leader_of(at)
    store = leader._store_of(STREAM, 0)
    sinks.commit(batch.asked, batch.stages)
    assert leader.floor(*at) is None
    waits, is_over = threading.Event(), threading.Event()

    def make_durable() -> None:
        with store._lock:
            waits.set()
            is_over.wait(60)

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(make_durable)
        assert waits.wait(60)
        assert leader.floor(*at) == 0, "nothing, for now"
        assert not made.done()
        is_over.set()
    assert leader.floor(*at) is None


def test_a_group_is_kept_until_its_note_is_committed(sinks: LinkedSinks, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stages.G6`: the next leader has the pin again, and looks for the group."""
    batch = Batch(sinks)
    batch.take("decided")
    at = sinks.places[0]
    leader = sinks.leader_of(at)
    store = leader._store_of(STREAM, 0)
    decision = batch.decision
    with monkeypatch.context() as patch:
        patch.setattr(store._hidden, "make_durable", refuse)
        with pytest.raises(DeadlineExceeded):
            store.finish(decision, SINK, batch.refs[:1])
    assert not store.staged().pins, "the note is there"
    assert leader.floor(*at) == 0
    store.finish(decision, SINK, batch.refs[:1])
    assert leader.floor(*at) is None
    settled(sinks)
    check(sinks, 1)


def reopened(partition: Any) -> Any:
    """The same replica as another object, as when it was closed and opened again."""
    return copy.copy(partition)


def test_two_threads_have_one_table_of_stages_whoever_looked_first(
    sinks: LinkedSinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K7: one of them found the companion before it was opened again, and comes late."""
    batch = Batch(sinks)
    leader = sinks.leader_of(sinks.places[0])
    before = leader._store_of(STREAM, 0)._hidden.companion  # type: ignore[attr-defined]
    found, has_found, may_go_on = [reopened(before)], threading.Event(), threading.Event()

    def of(main: object, *, wait_s: float = 0.0) -> object:
        seen = found[0]
        if threading.current_thread() is late:
            has_found.set()
            assert may_go_on.wait(60)
        return seen

    late = threading.Thread(target=lambda: leader._store_of(STREAM, 0), daemon=True)
    monkeypatch.setattr(leader._companions, "of", of)
    late.start()
    assert has_found.wait(60)
    found[0] = reopened(before)
    store = leader._store_of(STREAM, 0)
    may_go_on.set()
    late.join(60)
    assert leader._store_of(STREAM, 0) is store
    coordinator = sinks.leader_of(COMMITS)
    present, streams = coordinator.coordinator(), coordinator._streams
    with monkeypatch.context() as patch:
        stale = reopened(streams.partition(COMMITS_STREAM, 0))
        patch.setattr(streams, "partition", lambda *at: stale)
        coordinator.coordinator()
    assert coordinator.coordinator() is present, "one ledger, too"
    assert sinks.commit(batch.asked, batch.stages).is_new
    check(sinks, 1)


def test_a_group_is_appended_once_by_two_threads_with_two_tables(
    sinks: LinkedSinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K7: the companion was opened again while a thread that had the one before is about to append the group."""
    batch = Batch(sinks)
    batch.take("decided")
    decision = batch.decision
    leader = sinks.leader_of(sinks.places[0])
    first = leader._store_of(STREAM, 0)
    companion = reopened(first._hidden.companion)  # type: ignore[attr-defined]
    monkeypatch.setattr(leader._companions, "of", lambda main, wait_s=0.0: companion)
    second = leader._store_of(STREAM, 0)
    assert second is not first
    both = threading.Barrier(2)
    append = StageStore._append_group

    def append_late(self: StageStore, *args: Any) -> tuple[int, int]:
        with suppress(threading.BrokenBarrierError):
            both.wait(1.0)  # for one that has looked, too, and found nothing
        return append(self, *args)

    monkeypatch.setattr(StageStore, "_append_group", append_late)
    with ThreadPoolExecutor(2) as pool:
        answers = pool.map(lambda store: store.finish(decision, SINK, batch.refs[:1]), (first, second))
        assert {(found.first_offset, found.next_offset) for found in answers} == {(0, 4)}
    settled(sinks)
    check(sinks, 1)


@pytest.fixture(params=["mended at some time", "mended while it is read"])
def mended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the log is mended. A long read that meets damage may end after that, and then the log is whole."""
    if request.param == "mended at some time":
        return
    messages = LogReader.messages

    def read_slowly(reader: LogReader, offset: int, end: int | None, *, whole: bool = False) -> Iterator[memoryview]:
        if whole:
            yield from messages(reader, offset, end, whole=True)
            return
        found = list(messages(reader, offset, end))
        if reader._state.lost_ranges:
            eventually(lambda: not reader._state.lost_ranges, what="it to be mended")
        yield from found

    monkeypatch.setattr(LogReader, "messages", read_slowly)


@pytest.mark.parametrize("damaged", ["__commits", "the partition", "its stages"])
@pytest.mark.usefixtures("mended")
def test_nothing_is_concluded_from_a_damaged_log(sinks: LinkedSinks, damaged: str) -> None:
    """`committed.W3`: a decision, a group or a note that this replica has lost, and the others have."""
    batch = Batch(sinks)
    batch.take("group without a note" if damaged == "the partition" else "finished")
    if damaged == "__commits":
        commits = sinks.coordinator().commits
        spoil(commits._partition.log)
        commits._ledger = None
    else:
        store = sinks.leader_of(sinks.places[0])._store_of(STREAM, 0)
        if damaged == "the partition":
            spoil(store.main.log, 2)
        else:
            spoil(store._hidden.open())
        store._hidden._table = None
    answer = sinks.commit(batch.asked, batch.stages)
    assert not answer.is_new
    eventually(lambda: len(sinks.values(0)) == 4, timeout_s=60, what="a leader that is whole")
    check(sinks, 1)


@pytest.mark.usefixtures("mended")
def test_a_committed_offset_does_not_go_back_where_a_log_is_damaged(sinks: LinkedSinks) -> None:
    """`offsets.O3`: the consumer's newest offset is lost here, and the others have it."""
    sinks._create(OFFSETS_STREAM, "i-offsets", 1, internal=True)
    at = "i-offsets", 0
    sinks.cluster.leader(at)

    def partition() -> Partition:
        return sinks.leader_of(at)._streams.partition(OFFSETS_STREAM, 0)

    for offset in (1, 2):
        one = ConsumerOffset(consumer="c", stream=STREAM, partition=0, offset=offset)
        led = retried(partition)
        rows = [RowBatch(offset_rows([(one.key, one.value())], timestamp_us=1))]
        append_durable(led, rows, leader_epoch=led.leader_epoch)
    spoil(retried(partition).log)
    with ThreadPoolExecutor(1) as executor:
        consumers = PlacedConsumers(lambda *_: partition(), executor, lambda: "not made yet")
        assert [each.offset for each in retried(lambda: consumers.get("c"))] == [2]


def spoil(log: PartitionLog, count: int = 1) -> None:
    """In so many of the last batches that it has stored a byte is another one from now on."""
    last = max(Path(log.state.folder).glob("*.arrows"))
    with last.open("r+b") as file:
        for message in [bytes(each) for each in log.reader.batches(log.state.log_start_offset)][-count:]:
            file.seek(last.read_bytes().rindex(message) + len(message) - 20)
            file.write(bytes([message[-20] ^ 0xFF]))


def refuse(generation: int) -> None:
    raise DeadlineExceeded("the others are away", timeout_ms=1)


def test_stages_follow_the_leader_of_their_partition(sinks: LinkedSinks) -> None:
    """Also when nobody dies: the partition is led elsewhere, and the stages are asked for."""
    batch = Batch(sinks)
    at = sinks.places[0]
    before = sinks.leader_of(at).node.me
    state = sinks.cluster.service.state(at)
    other = next(broker for broker in state.replicas if broker != before)
    order = [other, *(broker for broker in state.replicas if broker != other)]
    sinks.cluster.in_sync(at)
    sinks.cluster.service.apply(kind="reassign", stream=at[0], partition=0, replicas=order)
    sinks.cluster.service.apply(kind="elect_preferred", partitions={at[0]: [0]})
    assert sinks.leader_of(at).node.me == other
    assert sinks.commit(batch.asked, batch.stages).is_new
    check(sinks, 1)
    info = sinks.of[other]._companions.known(at[0])
    assert info is not None
    assert sinks.cluster.service.state((info.incarnation, 0)).leader == other


def test_who_does_not_coordinate_names_who_does_and_asks_him_whether_an_epoch_may_stage(sinks: LinkedSinks) -> None:
    epoch = sinks.open("run")
    coordinator = sinks.leader_of(COMMITS)
    for each in sinks.of.values():
        if each is not coordinator:
            with pytest.raises(NotLeader) as refused:
                each.coordinator()
            assert refused.value.fields["leader"]["id"] == coordinator.node.me
        each._may_stage(SINK, epoch)
        with pytest.raises(SinkFenced):
            each._may_stage(SINK, epoch + 1)
        with pytest.raises(UnknownSink):
            each._may_stage("other", epoch)


def test_a_broker_without_a_session_answers_nothing_about_sinks(sinks: LinkedSinks) -> None:
    """C7, Q3: another one may lead by now."""
    batch = Batch(sinks)
    coordinator = sinks.leader_of(COMMITS)
    present = coordinator.coordinator()
    coordinator.node.has_session = False
    for ask in (coordinator.coordinator, lambda: present.describe(SINK), present.commits.ledger):
        with pytest.raises(NotReady):
            ask()
    coordinator.node.has_session = True
    leader = sinks.leader_of(sinks.places[0])
    store = leader._store_of(STREAM, 0)
    leader.node.has_session = False
    with pytest.raises(NotReady):
        store.pin([(batch.stages[0].stage, 2)], sink=SINK, epoch=batch.epoch, batch_id=0)
    assert store.floor() == 0
    leader.node.has_session = True
    assert sinks.commit(batch.asked, batch.stages).is_new
    check(sinks, 1)


@pytest.mark.parametrize(
    ("main", "isr", "replicas", "order"),
    [
        ("abc", "abc", "cab", "abc"),
        ("abc", "bc", "bca", "abc"),  # this broker is not in sync yet: it will be elected when it is
        ("abc", "cd", "bcd", "acd"),  # it comes in the place of who is not in sync
        ("ab", "bcd", "bcd", "abc"),
        ("a", "b", "b", "ab"),
    ],
)
def test_a_companion_keeps_its_members(main: str, isr: str, replicas: str, order: str) -> None:
    """B2."""
    companion = PartitionState(replicas=tuple(replicas), isr=tuple(isr))
    assert "".join(wanted("a", PartitionState(replicas=tuple(main)), companion, "abcd")) == order


@pytest.mark.parametrize(
    ("isr", "replicas", "target", "live", "order"),
    [
        ("bcd", "bcda", "abc", "abcd", "abc"),  # it goes on
        ("bcd", "bcda", "abc", "acd", "abc"),  # b is in sync still
        ("cd", "bcda", "abc", "abcd", "abc"),  # b is behind, and lives
        ("cd", "bcda", "abc", "acd", "acd"),  # b is dead
        ("abc", "abcx", "xbc", "abc", "abc"),  # who asked for it died before it had caught up
        ("bc", "bcd", "dbc", "abcd", "adb"),  # this broker is none of them
    ],
)
def test_a_move_of_a_companion_does_not_wait_for_the_dead(
    isr: str, replicas: str, target: str, live: str, order: str
) -> None:
    """B2: else a partition would take no stages until somebody comes back who may never do."""
    companion = PartitionState(replicas=tuple(replicas), isr=tuple(isr), target=tuple(target))
    assert "".join(wanted("a", PartitionState(replicas=("a", "c")), companion, live)) == order


@pytest.mark.parametrize("target", [None, ("a", "b")])
def test_a_companion_of_which_nobody_lives_keeps_who_may_lead_it(target: tuple[str, ...] | None) -> None:
    """B2: it would have one replica, a new one, and the others would delete what they had staged."""
    replicas = ("b", "c", "d") if target is None else ("b", "c", "d", "a")
    companion = PartitionState(
        replicas=replicas, last_isr=("b",), leader_epoch=5, min_insync_replicas=2, target=target, target_min=2
    )
    assert wanted("a", PartitionState(replicas=("a",)), companion, "a") == ("a", "b")


def test_a_part_whose_only_replica_lost_it_is_stored_again(tmp_path: Path) -> None:
    """Q1: its log recovers in place, under the same leadership."""
    with linked(tmp_path, ("a",)) as cluster:
        sinks = LinkedSinks(cluster, 1)
        try:
            epoch = sinks.open("run")
            first = sinks.stage(epoch, 0, b"0/0/0", b"0/0/1")
            store = sinks.leader_of(sinks.places[0])._store_of(STREAM, 0)
            store.staged()
            disk, stage = cluster.nodes["a"].disk, uuid.uuid4().hex
            [file] = Path(store._hidden.open().state.folder).glob("*.arrows")
            size = file.stat().st_size

            def store_part() -> bool:
                return store.store([rows_of([b"0/0/2"])], sink=SINK, epoch=epoch, stage=stage, part=0, is_last=True)

            disk.fails = True
            with pytest.raises(StorageFailed):
                store_part()
            os.truncate(file, size)  # as a kernel does that has dropped what it could not write
            disk.fails = False
            other = sinks.stage(epoch, 0, b"nobody", b"commits it")
            retried(store_part)
            stages = [first, NamedStage(stream=STREAM, partition=0, stage=stage, parts=1)]
            asked = CommitRequest(owner="run", epoch=epoch, batch_id=0, rows=3)
            assert sinks.commit(asked, stages).is_new
            assert [value for _, value in sinks.values(0)] == [b"0/0/0", b"0/0/1", b"0/0/2"]
            assert sinks.coordinator().abort(SINK, [other]) == 1
        finally:
            sinks.close()


def test_a_bundle_is_stored_as_far_as_its_partitions_are_led_where_it_came(sinks: LinkedSinks) -> None:
    """One broker leads some of its partitions: the others are named, and go there by themselves."""
    batch = Batch(sinks)
    broker = sinks.leader_of(sinks.places[0])
    led = [n for n, at in enumerate(sinks.places) if sinks.leader_of(at) is broker]
    part = {"sink": SINK, "epoch": batch.epoch, "part": 0, "is_last": True}
    stages = [uuid.uuid4().hex for _ in sinks.places]

    def bundle() -> Any:
        given = [(n, [rows_of([b"%d" % n])], {**part, "stage": stage}) for n, stage in enumerate(stages)]
        return broker._stage_bundle(STREAM, given)  # type: ignore[arg-type]

    assert retried(bundle) == [n for n in range(len(stages)) if n not in led]
    assert retried(bundle) == [n for n in range(len(stages)) if n not in led], "once"
    named = [NamedStage(stream=STREAM, partition=n, stage=stages[n], parts=1) for n in led]
    asked = CommitRequest(owner="run", epoch=batch.epoch, batch_id=0, rows=len(led))
    sinks.commit(asked, named)
    assert [[value for _, value in sinks.values(n)] for n in led] == [[b"%d" % n] for n in led]
