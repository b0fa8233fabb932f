"""Goal: nothing of a former role, epoch or life of the log is done, said or believed, in whichever order things happen.

Method: the real log on the fake disk; the leader is another log, whose stored bytes are handed over; fsyncs are held.
"""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.api.stream import settings_from
from broker.common.elapsed import MACHINE
from broker.common.waiting import ThreadWaits
from broker.link.following import CALM_SLOWER, FRESH_SLOWER, Following
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.watch import ChangeHub
from broker.replication.follower import Phase
from broker.replication.messages import AskEnd, End, Fetch, Incarnation, Inside, Records, StartsAbove
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.processes import eventually
from tests.support.simdisk import SimDisk
from tests.unit.runtime.test_partition import IDENTITY, HeldPool, disk, info, pool, rows

__all__ = ["disk", "pool"]  # fixtures
AT = ("i", 0)
SETTINGS = LogSettings.of(settings_from({}), LogSettings(is_sole_replica=False))


class Connection:
    """Notes what is asked. `now_s`: its clock."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.askers: set[object] = set()
        self.is_live = True
        self.slower = 1.0
        self.rested_s = 0.0
        self.now_s = 100.0

    def add(self, at: object, asker: object) -> None:
        self.askers.add(asker)

    def remove(self, at: object, asker: object) -> None:
        self.askers.discard(asker)

    def ask(self, at: object, question: Any) -> None:
        self.asked.append(question)

    def heard_to(self, now_s: float) -> float:
        return self.now_s


class Follower:
    """One over a log, and a leader's log to take records from."""

    def __init__(self, disk: SimDisk, pool: HeldPool, appender: ThreadPoolExecutor, hub: ChangeHub) -> None:
        self.disk, self.pool = disk, pool
        self.log = PartitionLog.create(disk, "/p", IDENTITY, SETTINGS, now_us=0)
        self.replica = Replica(info(), 0, self.log, appender=appender, hub=hub, clocks=MACHINE)
        self.partition = Partition(
            info(),
            self.replica,
            me="b",
            has_session=lambda: True,
            to_others=lambda effect: None,
            pool=pool,
            appender=appender,
        )
        self.connections: dict[str, Connection] = {}
        self.reports: list[int] = []
        self.steps_out: list[str] = []
        self.following = Following(
            AT,
            self.partition,
            me="b",
            connect=lambda to: self.connections.setdefault(to, Connection()),  # type: ignore[arg-type, return-value]
            report=lambda at, epoch, leader: self.reports.append(epoch),
            step_out=self.steps_out.append,
            pool=pool,
            counts=Counter(),
            now_s=time.monotonic,
            waits=ThreadWaits(),
        )
        self.leader = PartitionLog.create(SimDisk(), "/l", IDENTITY, SETTINGS, now_us=0)

    def follow(self, epoch: int, leader: str = "a", incarnation: Incarnation = (1, 0)) -> None:
        self.log.follow(epoch)
        self.following.follow(epoch, leader, incarnation)

    @property
    def asked(self) -> list[Any]:
        return self.connections["a"].asked

    def wrote(self, epoch: int, *values: bytes) -> None:
        """The leader has this."""
        self.leader.lead(epoch)
        for value in values:
            self.leader.append([rows(value)], leader_epoch=epoch, now_us=1)

    def records(self, fetch: Fetch, high_watermark: int = 0, **values: Any) -> None:
        """The leader answers that fetch with all that it has."""
        data = b""
        if fetch.offset < self.leader.state.log_end_offset:
            with self.leader.reader.read(fetch.offset, stored=True) as plan:
                for place, (_, file) in zip(plan.ranges, plan.sources, strict=True):
                    data += file.pread(place.length, place.position)
        answer = Records(
            **{
                "epoch": fetch.epoch,
                "incarnation": fetch.incarnation,
                "offset": fetch.offset,
                "number": fetch.number,
                "high_watermark": high_watermark,
                "log_start": 0,
                **values,
            }
        )
        self.following.arrived(answer, data)

    def synced(self) -> None:
        self.pool.go.release()
        eventually(lambda: not self.following._is_queued, what="an fsync")


@pytest.fixture
def one(disk: SimDisk, pool: HeldPool) -> Iterator[Follower]:
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as appender:
        yield Follower(disk, pool, appender, ChangeHub(loop))
    loop.close()


def test_records_are_appended_at_once_and_told_to_be_durable_after_the_fsync(one: Follower) -> None:
    one.wrote(2, b"x", b"y")
    one.follow(2)
    one.records(one.asked[-1])
    assert (one.log.state.log_end_offset, one.asked[-1].offset, one.asked[-1].durable_end) == (2, 2, 0)
    one.synced()
    assert (one.asked[-1].offset, one.asked[-1].durable_end) == (2, 2)
    one.records(one.asked[-1], high_watermark=2)
    assert one.log.state.high_watermark == 2


def test_the_log_agrees_with_its_leaders_from_when_that_was_found_until_a_cut_begins(one: Follower) -> None:
    """U6: who reads records here asks before and after. A cut, and a new leadership, say no before they begin."""
    seen: list[tuple[str, int]] = []

    class Noting:
        def __getattr__(self, name: str) -> Any:
            if name in ("truncate", "reset"):
                seen.append((name, one.following.agreed_epoch))
            return getattr(one.log, name)

    one.following._log = Noting()  # type: ignore[assignment]
    assert one.following.agreed_epoch == -1
    one.wrote(2, b"x", b"y", b"z")
    one.follow(2)
    assert one.following.agreed_epoch == 2, "an empty log agrees with any"
    one.records(one.asked[-1])
    assert one.following.agreed_epoch == 2
    one.follow(3)
    assert one.following.agreed_epoch == -1, "nobody has said where epoch 2 ends"
    ask = one.asked[-1]
    one.following.arrived(
        End(epoch=3, incarnation=(1, 0), request=ask.request, found_epoch=2, end=2, log_start=0, start_epoch=-1), b""
    )
    assert seen == [("truncate", -1)]
    assert one.following.agreed_epoch == 3
    assert one.log.state.log_end_offset == 2
    one.following.arrived(
        Inside(epoch=3, incarnation=(1, 0), offset=2, number=one.asked[-1].number, batch_start=0, start_epoch=-1), b""
    )
    assert seen[1:] == [("truncate", -1)], "a joined batch is fetched whole"
    one.following.arrived(StartsAbove(epoch=3, incarnation=(1, 0), log_start=9, start_epoch=3), b"")
    assert seen[2:] == [("reset", -1)]
    one.following.rest()
    assert one.following.agreed_epoch == -1


def test_a_disk_that_refuses_records_is_told_of_until_it_takes_them(one: Follower) -> None:
    """U8: also where the reserve said that there is room, as somebody else has filled the disk since."""
    one.wrote(2, b"x" * 5_000)
    one.follow(2)
    one.disk.bytes_max = one.disk.used_bytes + 100
    one.records(one.asked[-1])
    count = len(one.asked)
    assert (one.asked[-1].lacks_room, one.asked[-1].offset, one.log.state.failure) == (True, 0, None)
    one.records(one.asked[-1])
    assert len(one.asked) == count, "it does not ask in haste for what it cannot take"
    one.disk.heal()
    one.following.tick(1)
    assert one.asked[-1].lacks_room, "the disk is not asked at each tick"
    one.following._room_asked_s = float("-inf")
    one.following.tick(2)
    assert not one.asked[-1].lacks_room
    one.records(one.asked[-1])
    assert one.log.state.log_end_offset == 1


def test_one_fsync_serves_all_that_came_before_it(one: Follower) -> None:
    one.follow(2)
    for value in (b"x", b"y", b"z"):
        one.wrote(2, value)
        one.records(one.asked[-1])
    one.synced()
    assert one.asked[-1].durable_end == 3


def test_what_comes_alone_is_synced_where_it_came_and_told_by_one_question(one: Follower) -> None:
    """U7: the ack of a lone message waits for it."""
    one.follow(2)
    one.connections["a"].rested_s = 1.0
    for count in (1, 2):
        one.wrote(2, b"x")
        one.records(one.asked[-1])
        assert (len(one.asked), one.asked[-1].offset, one.asked[-1].durable_end) == (1 + count, count, count)
    assert not one.following._is_queued


@pytest.mark.parametrize("why", ["more is coming", "a slow disk", "the pool is at it", "it is large"])
def test_what_does_not_come_alone_is_the_pools_to_sync(
    one: Follower, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.follow(2)
    connection = one.connections["a"]
    if why == "the pool is at it":
        one.wrote(2, b"w")
        one.records(one.asked[-1])
        assert one.following._is_queued
    if why == "it is large":
        monkeypatch.setattr("broker.link.following.HERE_BYTES_MAX", 10)
    connection.rested_s = 0.0 if why == "more is coming" else 1.0
    one.replica.sync_took_s = 0.003 if why == "a slow disk" else 0.0
    one.wrote(2, b"x")
    one.records(one.asked[-1])
    assert one.asked[-1].durable_end == 0
    one.synced()
    assert one.asked[-1].durable_end == one.log.state.log_end_offset > 0


def test_an_fsync_that_fails_where_it_came_says_nothing_more_and_steps_out(one: Follower) -> None:
    one.wrote(2, b"x")
    one.follow(2)
    one.connections["a"].rested_s = 1.0
    one.disk.fail("sync", errno.EIO, path=".arrows")
    one.records(one.asked[-1])
    assert (one.steps_out, one.following._core.phase) == (["fsync"], Phase.IDLE)
    assert [question.durable_end for question in one.asked] == [0]


def test_after_a_rest_what_arrives_is_for_nobody(one: Follower) -> None:
    one.wrote(2, b"x")
    one.follow(2)
    fetch = one.asked[-1]
    one.following.rest()
    one.records(fetch)
    assert (one.log.state.log_end_offset, one.connections["a"].askers) == (0, set())
    one.log.follow(3)
    one.following.follow(3, "c", (1, 0))
    one.records(fetch)
    assert one.log.state.log_end_offset == 0
    assert one.asked == [fetch], "the former leader is asked no more"


def test_a_log_that_follows_another_epoch_already_takes_nothing(one: Follower) -> None:
    """A turn tells the log first, and the follower then: an answer may come in between."""
    one.wrote(2, b"x")
    one.follow(2)
    fetch = one.asked[-1]
    one.log.follow(3)
    one.records(fetch)
    assert (one.log.state.log_end_offset, one.log.state.failure) == (0, None)
    one.following.follow(3, "a", (1, 0))
    assert one.asked[-1].epoch == 3


def test_an_fsync_of_an_earlier_leadership_tells_the_later_one_nothing_false(one: Follower) -> None:
    one.wrote(2, b"x")
    one.follow(2)
    one.records(one.asked[-1])
    one.follow(3)
    assert isinstance(one.asked[-1], AskEnd)
    end = End(
        epoch=3, incarnation=(1, 0), request=one.asked[-1].request, found_epoch=-1, end=0, log_start=0, start_epoch=-1
    )
    one.following.arrived(end, b"")  # the new leader has none of it
    assert (one.log.state.log_end_offset, one.asked[-1].durable_end) == (0, 0)
    one.synced()
    assert all(question.durable_end == 0 for question in one.asked if isinstance(question, Fetch))


def test_to_close_waits_for_the_fsync_that_runs(one: Follower) -> None:
    one.wrote(2, b"x")
    one.follow(2)
    begun, may_end = threading.Event(), threading.Event()
    sync = one.replica.sync

    def held() -> Any:
        begun.set()
        assert may_end.wait(60)
        return sync()

    one.replica.sync = held  # type: ignore[method-assign]
    one.records(one.asked[-1])
    one.pool.go.release()
    assert begun.wait(60)
    closing = threading.Thread(target=one.following.close)
    closing.start()
    eventually(lambda: one.following._is_closed, what="it to be about to close")
    assert closing.is_alive()
    count = len(one.asked)
    may_end.set()
    closing.join(60)
    assert not closing.is_alive()
    assert len(one.asked) == count, "nobody is asked any more"


def test_what_is_queued_for_an_fsync_at_the_end_touches_nothing(one: Follower) -> None:
    one.wrote(2, b"x")
    one.follow(2)
    one.records(one.asked[-1])
    one.following.close()
    one.log.close(clean=False)
    one.synced()
    assert one.steps_out == []


def test_bytes_that_do_not_fit_are_refused_and_asked_for_again(one: Follower) -> None:
    one.wrote(2, b"x", b"y")
    one.follow(2)
    fetch = one.asked[-1]
    with one.leader.reader.read(0, stored=True) as plan:
        [(_, file)], [place] = plan.sources, plan.ranges
        data = bytearray(file.pread(place.length, place.position))
    data[-20] ^= 1
    answer = Records(epoch=2, incarnation=(1, 0), offset=0, number=fetch.number, high_watermark=0, log_start=0)
    one.following.tick(0)
    one.following.arrived(answer, bytes(data))
    assert (one.log.state.log_end_offset, len(one.asked), one.steps_out) == (0, 1, [])
    one.connections["a"].now_s += 0.31
    one.following.tick(0)
    assert (len(one.asked), one.asked[-1].offset) == (2, 0)
    one.records(one.asked[-1])
    assert one.log.state.log_end_offset == 2


def test_a_full_disk_is_tried_again_and_a_broken_one_steps_out(one: Follower) -> None:
    one.wrote(2, b"x")
    one.follow(2)
    one.following.tick(0)
    one.disk.fail("write", errno.ENOSPC, path=".arrows")
    one.records(one.asked[-1])
    assert (one.log.state.log_end_offset, one.log.state.failure, one.steps_out) == (0, None, [])
    one.connections["a"].now_s += 0.31
    one.following.tick(0)
    one.records(one.asked[-1])
    assert one.log.state.log_end_offset == 1
    one.disk.fail("sync", errno.EIO, path=".arrows")
    one.synced()
    assert (one.steps_out, one.following._core.phase) == (["fsync"], Phase.IDLE)


def test_time_runs_slowly_where_the_leader_has_time_and_fast_where_it_owes_an_answer(one: Follower) -> None:
    one.follow(2)
    connection = one.connections["a"]

    def pass_s(seconds: float) -> float:
        before = one.following._time_ms
        for _ in range(10):
            connection.now_s += seconds / 10
            one.following.tick(0)
        return one.following._time_ms - before

    one.following.tick(0)
    assert pass_s(1) == pytest.approx(1_000 / FRESH_SLOWER)
    one.records(one.asked[-1])  # nothing
    assert pass_s(1) == pytest.approx(1_000 / CALM_SLOWER)
    one.following.begun()
    assert pass_s(0.1) == pytest.approx(100 / FRESH_SLOWER)
    one.wrote(2, b"x")
    one.records([each for each in one.asked if isinstance(each, Fetch)][-1])
    assert pass_s(0.1) == pytest.approx(100)
    assert one.reports == []
    one.records(one.asked[-1])
    connection.slower = 4.0
    assert pass_s(1) == pytest.approx(1_000 / (4 * CALM_SLOWER)), "there are many partitions (N8)"
    connection.is_live = False
    assert pass_s(1.1) == pytest.approx(1_100), "nobody works on anything there"
    assert one.reports == [2]


def test_a_leader_that_is_gone_is_no_report_of_the_next_one(one: Follower) -> None:
    """Seen with 10,000 partitions: all are told, one after the other, and the catalog names another leader meanwhile.
    To report that one ends all of its leaderships, too."""
    one.follow(2)
    one.following.unreachable("c")
    assert one.reports == []
    one.following.unreachable("a")
    assert one.reports == [2]


def test_time_stands_still_while_the_connection_does_not_listen(one: Follower) -> None:
    one.follow(2)
    one.connections["a"].is_live = False
    for _ in range(100):
        one.following.tick(0)
    assert one.following._time_ms == 0


def test_who_ticks_does_not_wait_for_a_disk(one: Follower) -> None:
    one.follow(2)
    held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with one.following._lock:
            held.set()
            assert may_go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    one.following.tick(0)
    one.following.unreachable("a")
    may_go.set()
    holder.join(60)
    assert one.reports == []


def test_an_incomplete_group_is_not_taken_for_a_whole_one(one: Follower) -> None:
    """A log that was opened takes what it found for one group. Its leader's high watermark may be beyond."""
    one.wrote(2, b"x")
    one.leader.append([rows(b"1"), rows(b"2"), rows(b"3")], leader_epoch=2, now_us=1)
    one.follow(2)
    fetch = one.asked[-1]
    with one.leader.reader.read(0, end=2, stored=True) as plan:
        [(_, file)], [place] = plan.sources, plan.ranges
        data = file.pread(place.length, place.position)
    answer = Records(epoch=2, incarnation=(1, 0), offset=0, number=fetch.number, high_watermark=4, log_start=0)
    one.following.arrived(answer, data)
    assert (one.log.state.log_end_offset, one.log.state.high_watermark) == (2, 1)
    one.log.syncer.sync()
    one.log.state.group_as_one()  # as an open does it
    one.follow(3)
    assert one.following._core.log.group_end == 1
