"""The catalog for other threads, over real connections: what is answered, told to subscribers, tried again."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import DeadlineExceeded, LiftlogError, NotReady, Overloaded, UnknownStream
from broker.control import thread as thread_module
from broker.control.operating import changes as control
from broker.control.operating.changes import in_time, waits
from broker.control.service import Catalogs
from broker.control.thread import RaftThread
from broker.metadata.catalog import Catalog
from broker.serving.contract.deadline import answer_due
from tests.support.planes import Member, members, producer, until

pytestmark = [pytest.mark.slow, pytest.mark.long]  # these wait for real seconds


class Gone:
    """A file on a disk that takes nothing any more."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write_at(self, *_: object) -> None:
        raise OSError(5, "the disk is gone")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def leader_of(group: list[Member]) -> Member:
    until(lambda: any(each.node.is_controller for each in group), "somebody leads")
    return next(each for each in group if each.node.is_controller)


def test_any_broker_has_commands_carried_out_and_refused(tmp_path: Path) -> None:
    with members(tmp_path) as group:
        for i, each in enumerate(group):
            assert each.catalogs.execute(producer(f"p{i}"), timeout_s=30)["epoch"] == 0
            with pytest.raises(UnknownStream) as refusal:
                each.catalogs.execute({"v": 1, "kind": "delete_stream", "name": "nobody"}, timeout_s=30)
            assert refusal.value.sent is False
        for each in group:
            assert set(each.catalogs.read(timeout_s=30).producers) == {"p0", "p1", "p2"}


def test_subscribers_see_each_change_in_order_and_one_that_fails_is_alone(tmp_path: Path) -> None:
    """V3. The counts that a subscriber sees never skip one, whichever thread asks for the commands."""
    with members(tmp_path) as group:
        seen: list[int] = []
        threads: set[str] = set()
        catalogs = group[1].catalogs

        def look() -> None:
            threads.add(threading.current_thread().name)
            seen.append(len(catalogs.catalog.producers))

        catalogs.subscribe(lambda: 1 // 0)
        catalogs.subscribe(look)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: group[i % 3].catalogs.execute(producer(f"p{i}"), timeout_s=30), range(40)))
        until(lambda: seen and seen[-1] == 40, "the last one is seen")
        assert sorted(set(seen)) == list(range(seen[0], 41))
        assert seen == sorted(seen)
        assert threads == {"raft"}


def test_a_command_of_a_group_is_told_as_such() -> None:
    """V9. Of any other command, and of another catalog, all is told."""
    catalogs, catalog = Catalogs(RaftThread(halt=pytest.fail)), Catalog()
    told: list[str | None] = []
    catalogs.subscribe(lambda: told.append(catalogs.of_group))
    of_g, of_h = {"kind": "join_group", "name": "g"}, {"kind": "end_members", "name": "h"}
    for command in (None, of_g, of_h, {"kind": "delete_stream", "name": "g"}):
        catalogs.applied(catalog, command)
    catalogs.applied(Catalog(), of_g)
    assert told == [None, "g", "h", None, None]


def test_a_broker_that_hung_sees_the_catalog_of_the_others(tmp_path: Path) -> None:
    """V4: it hangs while the others go on and shorten their logs. Their messages until then wait in its socket; if
    those are not all, it is sent a snapshot."""
    with members(tmp_path) as group:
        leader = leader_of(group)
        late = next(each for each in group if each is not leader)
        late.catalogs.execute(producer("first"), timeout_s=30)
        late.catalogs.read(timeout_s=30)
        before, seen = late.catalogs.catalog, []
        late.catalogs.subscribe(lambda: seen.append(len(late.catalogs.catalog.producers)))
        hold, entered = threading.Event(), threading.Event()
        late.thread.do(lambda _: entered.set())
        late.thread.do(lambda _: hold.wait(60) and None)
        assert entered.wait(30)
        for i in range(50):
            leader.catalogs.execute(producer(f"p{i}"), timeout_s=30)
        for each in group:
            if each is not late:
                each.thread.do(lambda node: node.core.forceLogCompaction())
        until(lambda: all(e.node.journal.entries[0][1] > 50 for e in group if e is not late), "their logs are short")
        hold.set()
        until(lambda: seen[-1:] == [51], "it has been told")
        was_sent_a_snapshot = late.node.journal.entries[0][1] > 50
        assert (late.catalogs.catalog is not before) == was_sent_a_snapshot


def test_a_catalog_that_is_another_object_is_seen() -> None:
    """V4."""
    seen: list[Catalog] = []
    catalogs = Catalogs(RaftThread(halt=lambda why: None))
    catalogs._callbacks = (lambda: seen.append(catalogs.catalog),)
    other = Catalog()
    catalogs.applied(other, None)
    assert catalogs.catalog is other
    assert seen == [other]


def test_a_command_outlives_the_controller_that_it_was_sent_to(tmp_path: Path) -> None:
    """V2: the controller stops while commands are under way; each is carried out once all the same."""
    with members(tmp_path) as group, ThreadPoolExecutor(8) as pool:
        leader = leader_of(group)
        others = [each for each in group if each is not leader]
        others[0].catalogs.execute(producer("first"), timeout_s=30)
        asked = [pool.submit(others[i % 2].catalogs.execute, producer(f"p{i}"), timeout_s=40) for i in range(200)]
        until(lambda: len(others[0].catalogs.catalog.producers) > 20, "some are carried out")
        leader.stop()
        ids = [each.result()["producer_id"] for each in asked]
        assert len(set(ids)) == 200
        leader.start()
        assert len(leader.catalogs.read(timeout_s=30).producers) == 201


def test_without_a_majority_nothing_is_said_to_be_done(tmp_path: Path) -> None:
    with members(tmp_path) as group:
        leader_of(group).catalogs.execute(producer("first"), timeout_s=30)
        for each in group[1:]:
            each.stop()
        node = group[0].node
        alone = [node.node_id]
        until(lambda: not node.is_controller and [*filter(node.reaches, node.voters())] == alone, "it has noticed")
        with pytest.raises(LiftlogError) as error:
            group[0].catalogs.execute(producer("p"), timeout_s=1)
        assert error.value.sent is False
        with pytest.raises(LiftlogError):
            group[0].catalogs.read(timeout_s=1)
        for each in group[1:]:
            each.start()
        group[0].catalogs.execute(producer("p"), timeout_s=30)


def test_a_failed_journal_ends_the_process_and_answers_who_waits(tmp_path: Path) -> None:
    """T3: it is said, and nothing is taken any more."""
    with members(tmp_path, 1) as [only]:
        only.catalogs.execute(producer("first"), timeout_s=30)
        only.node.journal._files._file = Gone(only.node.journal._files._file)  # type: ignore[assignment]
        with pytest.raises(LiftlogError):
            only.catalogs.execute(producer("second"), timeout_s=2)
        until(lambda: only.halted, "it to halt")
        with pytest.raises(NotReady) as refusal:
            only.catalogs.execute(producer("third"), timeout_s=1)
        assert refusal.value.sent is False


def test_the_queue_is_bounded_and_what_never_ran_was_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with members(tmp_path, 1) as [only]:
        only.catalogs.execute(producer("first"), timeout_s=30)
        hold, entered = threading.Event(), threading.Event()
        only.thread.do(lambda _: entered.set())
        only.thread.do(lambda _: hold.wait(30) and None)
        assert entered.wait(30)
        with pytest.raises(DeadlineExceeded) as late:
            only.catalogs.execute(producer("late"), timeout_s=0.05)
        assert late.value.sent is False
        monkeypatch.setattr(thread_module, "CALLS_MAX", 3)
        for _ in range(2):
            only.thread.do(lambda _: None)
        with pytest.raises(Overloaded, match="3 commands wait"):
            only.thread.do(lambda _: None)
        hold.set()
        only.catalogs.execute(producer("second"), timeout_s=30)
        assert "late" not in only.catalogs.read(timeout_s=30).producers


def test_a_command_that_waits_for_a_thread_is_not_made_after_its_answer_was_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V5: other calls have all threads of this broker. Its client is told by `timeout_ms` that nobody knows."""
    with members(tmp_path, 1) as [only], ThreadPoolExecutor(1) as pool:
        only.catalogs.execute(producer("first"), timeout_s=30)
        release = threading.Event()

        async def ask() -> bool:
            monkeypatch.setattr(control, "waiting", lambda: pool)
            busy = asyncio.ensure_future(waits(lambda: release.wait(30)))
            answer_due.set(due_s := time.monotonic() + 0.05)
            asked = asyncio.ensure_future(in_time(only.catalogs, producer("late")))
            while time.monotonic() < due_s:
                await asyncio.sleep(0.01)
            release.set()
            await busy
            with pytest.raises(NotReady) as refusal:
                await asked
            return refusal.value.sent

        assert asyncio.run(ask()) is False
        assert set(only.catalogs.read(timeout_s=30).producers) == {"first"}


def test_a_command_that_waits_for_the_raft_thread_is_not_made_after_its_answer_was_due(tmp_path: Path) -> None:
    """V5. It is the controller's own."""
    with members(tmp_path, 1) as [only], ThreadPoolExecutor(1) as pool:
        only.catalogs.execute(producer("first"), timeout_s=30)
        release = threading.Event()
        only.thread.do(lambda _: release.wait(30) and None)
        due_s = time.monotonic() + 0.2
        asked = pool.submit(only.catalogs.execute, producer("late"), until_s=due_s)
        until(lambda: only.thread._calls or asked.done(), "it waits")
        until(lambda: time.monotonic() > due_s, "its answer was due")
        release.set()
        with pytest.raises(LiftlogError) as refusal:
            asked.result(30)
        assert refusal.value.sent is False
        assert set(only.catalogs.read(timeout_s=30).producers) == {"first"}


def test_a_command_is_not_tried_again_once_nobody_waits_for_it(tmp_path: Path) -> None:
    """`gone.G2`. There is no controller for a while, and this broker stands still. Then its client is gone."""
    with members(tmp_path) as group:
        group[0].catalogs.execute(producer("first"), timeout_s=30)
        for each in group[1:]:
            each.stop()
        node = group[0].node
        alone = [node.node_id]
        until(lambda: not node.is_controller and [*filter(node.reaches, node.voters())] == alone, "it has noticed")
        tries = iter([None, NotReady("its client is gone")])

        def check() -> None:
            if (gone := next(tries)) is not None:
                raise gone

        with pytest.raises(NotReady, match="its client is gone") as refusal:
            group[0].catalogs.execute(producer("late"), timeout_s=30, until_s=time.monotonic() + 30, check=check)
        assert refusal.value.sent is False
        for each in group[1:]:
            each.start()
        assert set(group[0].catalogs.read(timeout_s=30).producers) == {"first"}


def test_who_waits_while_the_thread_ends_is_told(tmp_path: Path) -> None:
    """T2. The command waits in the queue behind a call that hangs, and is never made."""
    with members(tmp_path, 1) as [only], ThreadPoolExecutor(1) as pool:
        only.catalogs.execute(producer("first"), timeout_s=30)
        hold, entered = threading.Event(), threading.Event()

        def hang(_: object) -> None:
            entered.set()
            hold.wait(30)
            only.thread._is_stopping = True

        only.thread.do(hang)
        assert entered.wait(30)
        for _ in range(64):
            only.thread.do(lambda _: None)
        asked = pool.submit(only.catalogs.execute, producer("second"), timeout_s=5)
        until(lambda: len(only.thread._calls) == 65, "it waits")
        hold.set()
        with pytest.raises(NotReady) as refusal:
            asked.result(30)
        assert refusal.value.sent is False


def test_a_thread_that_never_began_can_be_stopped() -> None:
    thread = RaftThread(halt=lambda why: None)
    lost: list[int] = []
    thread.do(lambda _: None, lambda: lost.append(1))
    thread.stop()
    assert lost == [1]
    with pytest.raises(NotReady):
        thread.do(lambda _: None)
