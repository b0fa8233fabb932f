"""Whole planes on loopback: forming, joining, sessions, lost folders, and who is refused."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import InvalidRequest, NotReady, WrongFolder
from broker.control import plane as plane_module
from broker.control.others import Addresses
from broker.metadata.member_watch import MemberWatch
from tests.support.planes import DEADLINE_S, Brokers, producer, until

pytestmark = [pytest.mark.slow, pytest.mark.long]  # these wait for real seconds


def test_three_form_register_have_sessions_and_survive_the_controller(tmp_path: Path) -> None:
    with Brokers(tmp_path, "abc") as brokers:
        numbers = brokers.begin_all("abc")
        assert len(set(numbers.values())) == 3
        for plane in brokers.planes.values():
            until(plane.has_session, "it has a session")
            until_s = time.monotonic() + 30
            assert plane.service.execute(producer(plane.identity.broker_id), timeout_s=30, until_s=until_s)
        first = brokers.controller()
        brokers.end(first)
        second, *rest = sorted(brokers.planes)
        catalog = brokers.planes[second].service
        until(lambda: not catalog.catalog.brokers[first].is_live, "the one that is gone is failed")
        assert all(brokers.planes[name].has_session() for name in (second, *rest))
        assert brokers.begin(first) > max(numbers.values())
        until(brokers.planes[first].has_session, "it is back")
        assert set(brokers.planes[first].service.read(timeout_s=30).producers) == set("abc")
        assert catalog.read(timeout_s=30).cluster.cluster_id == "test"
        assert brokers.voters(first) == set("abc")


def test_signs_of_members_of_groups_reach_every_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`member_watch`: whoever is the controller next has counted them."""
    told, take = set[tuple[str, str]](), MemberWatch.told

    def noted(watch: MemberWatch, broker: str, *rest: Any, **more: Any) -> None:
        told.add((watch._me, broker))
        take(watch, broker, *rest, **more)

    monkeypatch.setattr(MemberWatch, "told", noted)
    with Brokers(tmp_path, "abc") as brokers:
        brokers.begin_all("abc")
        planes = list(brokers.planes.values())
        for each in planes:
            until(each.has_session, "it has a session")
            each.member_heard("g", "m", 1)
        until(lambda: told >= {*product("abc", "abc")}, "all were told by all")


def test_a_machine_that_slept_gives_a_stamp_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`node.N8`: else its clock is behind what others count for it, and commands are carried out late by that much."""
    boot_s = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda which: boot_s(which) + 1000 * (which == time.CLOCK_BOOTTIME))
    with Brokers(tmp_path, "a") as brokers:
        brokers.begin_all("a")
        node = brokers.planes["a"]._node
        assert node is not None
        assert node.stamp()[1] > time.monotonic() + 900


def test_a_clean_stop_is_known_at_once(tmp_path: Path) -> None:
    with Brokers(tmp_path, "abc") as brokers:
        brokers.begin_all("abc")
        leader = brokers.controller()
        until(brokers.planes[leader].has_session, "it has a session to give back")
        brokers.planes[leader].hand_over()
        brokers.end(leader, clean=True)
        other = next(iter(brokers.planes.values()))
        assert not other.service.read(timeout_s=30).brokers[leader].is_live


def test_a_broker_without_a_majority_says_what_is_missing_and_whom_it_does_not_reach(tmp_path: Path) -> None:
    with Brokers(tmp_path, "abc") as brokers:
        brokers.begin_all("abc")
        plane = brokers.planes["a"]
        until(lambda: plane.has_session() and not plane.obstacle(), "nothing is in its way")
        brokers.end("b")
        until(lambda: plane.has_session() and not plane.obstacle(), "one that is away is nobody's obstacle")
        brokers.end("c")
        text = "of 3 votes 2 are needed, and 1 can be reached from here, not: b, c"
        until(lambda: plane.obstacle() == text, text)
        until(lambda: not plane.has_session(), "its session lapses")


def last_to_stop(folder: Path) -> list[object] | None:
    """The calls that the last of three makes when it stops; None: on a busy machine sessions lapsed, and it did not
    hear the others say that they stop."""
    with Brokers(folder, "abc") as brokers:
        brokers.begin_all("abc")
        *others, last = sorted(brokers.planes, key=lambda name: name == brokers.controller())
        plane, asked = brokers.planes[last], list[object]()
        for name in others:
            brokers.planes[name].hand_over()
            brokers.end(name, clean=True)
        until(lambda: plane.obstacle().endswith(f"not: {', '.join(sorted(others))}"), "it has seen that they are gone")
        end_s = time.monotonic() + 3
        while not plane._outlook.is_deserted:
            if time.monotonic() > end_s:
                return None
            time.sleep(0.02)
        plane.service.execute = lambda *args, **options: asked.append(args)  # type: ignore[method-assign]
        plane.hand_over()
        plane.stop()
        return asked


def test_who_stops_last_asks_nobody(tmp_path: Path) -> None:
    """P3: the others have said that they stop, and are gone."""
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        if (asked := last_to_stop(tmp_path / str(number))) is not None:
            break
    assert asked == []


def test_a_lost_folder_comes_back_without_a_vote_and_gets_another(tmp_path: Path) -> None:
    """N3: under another id. The old one goes first, then it has a vote again, and the others lack nothing."""
    with Brokers(tmp_path, "abc") as brokers:
        brokers.begin_all("abc")
        old = brokers.planes["b"].status()["voters"]
        for i in range(20):
            brokers.planes["a"].service.execute(producer(f"p{i}"), timeout_s=30)
        id_before = brokers.planes["b"]._node_id()
        brokers.end("b")
        brokers.lose("b")
        brokers.begin("b")
        assert brokers.planes["b"]._node_id() != id_before
        plane = brokers.planes["b"]
        until(lambda: plane._node and plane._node.is_voter and not plane._node.core.is_passive, "it has a vote")
        assert len(plane.service.read(timeout_s=30).producers) == 20
        assert brokers.voters("a") == {each["broker_id"] for each in old}
        assert id_before not in brokers.planes["a"]._node.voters()  # type: ignore[union-attr]
        brokers.end("c")  # with the new vote a majority is left
        brokers.planes["a"].service.execute(producer("last"), timeout_s=30)


def test_others_join_without_a_vote_and_get_one_when_there_are_five(tmp_path: Path) -> None:
    with Brokers(tmp_path, "abcde", named="abc") as brokers:
        brokers.begin_all("abc")
        brokers.begin("d")
        until(brokers.planes["d"].has_session, "an observer has a session too")
        assert brokers.planes["d"].service.execute(producer("by-an-observer"), timeout_s=30)
        assert brokers.voters("a") == set("abc")
        assert brokers.planes["a"].status()["observers"] == ["d"]
        brokers.begin("e")
        until(lambda: brokers.voters("a") == set("abcde"), "five vote")
        brokers.end("d")
        brokers.begin("d")
        until(brokers.planes["d"].has_session, "it comes back")


def test_all_restart_and_nothing_is_lost(tmp_path: Path) -> None:
    with Brokers(tmp_path, "abc") as brokers:
        brokers.begin_all("abc")
        for i in range(20):
            brokers.planes["abc"[i % 3]].service.execute(producer(f"p{i}"), timeout_s=30)
        for name in "abc":
            brokers.end(name)
        brokers.begin_all("abc")
        for plane in brokers.planes.values():
            assert len(plane.service.read(timeout_s=30).producers) == 20


def test_another_list_of_voters_changes_no_votes_and_names_that_nobody_knows_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the group is formed, the list is where a broker asks for others."""
    with Brokers(tmp_path, "abcx") as brokers:
        brokers.named = brokers.named[:3]
        brokers.begin_all("abc")
        assert "cluster.voters_unknown" not in caplog.text
        brokers.end("c")
        at = {name: f"127.0.0.1:{port}" for name, port in brokers.ports.items()}
        plane = brokers.planes["c"] = brokers.make("c", named=tuple((name, at[name]) for name in "xcb"))
        plane.start()
        plane.register(Addresses(http="c:1", grpc="c:2"))
        until(plane.has_session, "it has a session")
        assert "cluster.voters_unknown voters=x" in caplog.text
        assert brokers.voters("c") == brokers.voters("a") == set("abc")


def test_a_removed_broker_is_refused_and_loses_its_vote(tmp_path: Path) -> None:
    with Brokers(tmp_path, "abcd", named="abc") as brokers:
        brokers.begin_all("abc")
        service = brokers.planes["a"].service
        with pytest.raises(InvalidRequest, match="lives"):
            service.execute({"v": 1, "kind": "remove_broker", "broker_id": "c"}, timeout_s=30)
        brokers.end("c", clean=True)

        def is_removed() -> bool:
            """Asked again: by a heartbeat that was on its way it may live for another two seconds."""
            remove = {"v": 1, "kind": "remove_broker", "broker_id": "c", "request_id": secrets.token_hex(8)}
            try:
                service.execute(remove, timeout_s=30)
            except InvalidRequest:
                return False
            return True

        until(is_removed, "it is removed")
        until(lambda: brokers.voters("a") == {"a", "b"}, "it has no vote")
        with pytest.raises(InvalidRequest, match="broker c was removed"):
            brokers.make("c").start()
        brokers.begin("d")
        until(lambda: brokers.voters("a") == {"a", "b", "d"}, "another one has its vote")
        brokers.lose("c")
        brokers.begin("c")  # with an empty folder it is another broker


def test_two_brokers_with_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one, with another folder, is refused while the first lives. The first notices nothing."""
    monkeypatch.setattr(plane_module, "TAKEN_S", 1.0)
    with Brokers(tmp_path, "abcx", named="abc") as brokers:
        brokers.begin_all("abc")
        folder = tmp_path / "second"
        folder.mkdir()
        at = f"127.0.0.1:{brokers.ports['x']}"
        second = brokers.make("a", folder=folder, address=at, bind=at)
        try:
            second.start()
            with pytest.raises(InvalidRequest, match="lives at a:1"):
                second.register(Addresses(http="elsewhere:1", grpc="elsewhere:2"))
        finally:
            second.stop()
        assert brokers.planes["a"].has_session()
        assert not brokers.halted["a"]


def test_a_name_that_was_taken_over_ends_the_process_that_had_it(tmp_path: Path) -> None:
    """B2: the first one was cut off for longer than its session, and comes back to find another in its place."""
    with Brokers(tmp_path, "abc") as brokers:
        brokers.begin_all("abc")
        info = brokers.planes["b"].service.catalog.brokers["a"]
        command = {"v": 1, "kind": "register_broker", "broker_id": "a", "incarnation": "another", "http": "else:1"}
        brokers.planes["b"].service.execute({**command, "grpc": "else:2", "raft": info.raft}, timeout_s=30)
        until(lambda: brokers.halted["a"], "it to halt")
        assert "another process has registered as broker a, at else:1" in brokers.halted["a"][0]
        assert not brokers.planes["a"].has_session()


def test_who_does_not_belong_is_told_so(tmp_path: Path) -> None:
    """Another cluster's id, another cluster's folder, another list, another secret, another address."""
    with Brokers(tmp_path, "abcd", named="abc") as brokers:
        brokers.begin_all("abc")
        with pytest.raises(InvalidRequest, match=r"this is cluster test, not other \(cluster.id\)"):
            brokers.make("d", cluster_id="other").start()
        brokers.end("c")
        with pytest.raises(WrongFolder, match=r"is of cluster test, not other \(cluster.id\)"):
            brokers.make("c", cluster_id="other").start()
        at = f"127.0.0.1:{brokers.ports['d']}"
        with pytest.raises(InvalidRequest, match="To move it, stop it and delete"):
            brokers.make("c", address=at, bind=at).start()
        brokers.begin("c")
        stranger = brokers.make("d", secret="another one, as long as that")
        stranger._entrance._told_s = -1e9
        told: list[str] = []

        def tell(text: str) -> None:
            told.append(text)
            stranger._entrance.stop()

        stranger._entrance._tell = tell
        with pytest.raises(Exception, match="stopped before the cluster was there"):
            stranger.start()
        assert "is its raft.secret another one?" in told[0]
        until(lambda: all(plane.refusals for plane in brokers.planes.values()), "they have counted it")
        lone = brokers.data("d")
        (lone / "catalog.log").write_text("x")
        with pytest.raises(WrongFolder, match="is that of a single broker"):
            brokers.make("d").start()
        shutil.rmtree(lone)
        with pytest.raises(InvalidRequest, match=r"raft\.secret"):
            brokers.make("d", secret=None)


def test_lists_of_voters_that_differ_are_refused_by_name_while_the_group_is_formed(tmp_path: Path) -> None:
    with Brokers(tmp_path, "ab") as brokers:
        made = [brokers.make("a"), brokers.make("b", named=brokers.named[::-1])]
        with ThreadPoolExecutor(2) as pool:
            starting = [pool.submit(plane.start) for plane in made]
            done, _ = wait(starting, DEADLINE_S, FIRST_COMPLETED)
            for plane in made:
                plane.stop()
        errors = [str(each.exception()) for each in done]
        assert errors
        assert "refuses this broker: cluster.voters is [[" in errors[0]
        assert "it has to be the same everywhere" in errors[0]
        assert not any((brokers.data(name) / "raft.log").exists() for name in "ab"), "a group was formed"


def test_who_is_refused_is_counted_and_named_by_those_who_refuse(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen before: only the one that was refused said so, and nobody who looked at the cluster heard of it."""
    monkeypatch.setattr(plane_module, "TAKEN_S", 0.0)
    monkeypatch.setattr(plane_module, "TELL_EVERY_S", 0.0)
    with Brokers(tmp_path, "abcx", named="abc") as brokers:
        brokers.begin_all("abc")
        planes = brokers.planes.values()
        before = {plane: plane.refusals for plane in planes}
        with pytest.raises(InvalidRequest):
            brokers.make("x", cluster_id="other").start()
        assert any(plane.refusals > before[plane] for plane in planes)
        assert "raft.refused peer=broker x" in caplog.text
        assert "why=this is cluster test, not other (cluster.id)" in caplog.text
        at = f"127.0.0.1:{brokers.ports['x']}"
        second = brokers.make("b", address=at, bind=at, folder=brokers.data("x"))
        count = sum(plane.refusals for plane in planes)
        try:
            second.start()
            with pytest.raises(InvalidRequest, match="lives at b:1"):
                second.register(Addresses(http="elsewhere:1", grpc="elsewhere:2"))
        finally:
            second.stop()
        assert "raft.refused peer=broker b" in caplog.text
        assert "why=broker b lives at b:1" in caplog.text
        assert sum(plane.refusals for plane in planes) > count


def test_a_folder_that_its_broker_has_replaced_is_refused_without_its_journal_too(tmp_path: Path) -> None:
    """It lacks what was stored since, and is in sync by its broker's name."""
    with Brokers(tmp_path, "abc") as brokers:
        brokers.begin_all("abc")
        brokers.end("b")
        brokers.data("b").rename(former := tmp_path / "former")
        brokers.begin("b")
        brokers.end("b")
        shutil.rmtree(brokers.data("b"))
        former.rename(brokers.data("b"))
        for name in ("raft.log", "raft.log.marks", "raft.json"):
            (brokers.data("b") / name).unlink()
        plane = brokers.planes["b"] = brokers.make("b")
        plane.start()
        with pytest.raises(InvalidRequest, match="another data folder"):
            plane.register(Addresses(http="b:1", grpc="b:2"), sound={"i": [0]})
        assert plane.registration == 0


def test_a_registration_that_comes_behind_that_of_a_later_process_is_refused(tmp_path: Path) -> None:
    """It would end the later process, and have what that has made since taken for lost."""
    with Brokers(tmp_path, "abc") as brokers:
        brokers.begin_all("abc")
        brokers.end("b")
        killed, late = brokers.make("b"), list[Mapping[str, Any]]()
        killed.start()

        def hold_back(command: Mapping[str, Any], **_: Any) -> Any:
            late.append(dict(command))
            killed._is_stopping = True
            raise NotReady("the message is on its way")

        killed.service.execute = hold_back  # type: ignore[method-assign]
        with pytest.raises(NotReady, match="stopped while"):
            killed.register(Addresses(http="b:1", grpc="b:2"), sound={})
        killed.stop()
        number = brokers.begin("b")
        with pytest.raises(InvalidRequest, match=f"now has registration {number}"):
            brokers.planes["a"].service.execute(late[0], timeout_s=30)
        assert not brokers.halted["b"]


def test_an_older_copy_of_a_folder_is_refused_before_it_votes(tmp_path: Path) -> None:
    """F8: with its journal it would deny what it has acknowledged since."""
    with Brokers(tmp_path, "abc") as brokers:
        brokers.begin_all("abc")
        brokers.end("b")
        (brokers.data("b") / "streams").mkdir()
        shutil.copytree(brokers.data("b"), copy := tmp_path / "copy")
        brokers.begin("b")
        brokers.end("b")
        shutil.rmtree(brokers.data("b"))
        copy.rename(brokers.data("b"))
        with pytest.raises(InvalidRequest, match="older copy"):
            brokers.make("b").start()


def test_a_broker_that_knows_of_the_former_folder_alone_refuses_nobody(tmp_path: Path) -> None:
    """It has just started: its catalog is that of its last snapshot."""
    with Brokers(tmp_path, "abc") as brokers:
        brokers.begin_all("abc")
        plane = brokers.planes["a"]
        former = plane.service.catalog.brokers["b"]
        brokers.end("b")
        brokers.lose("b")
        brokers.begin("b")
        brokers.end("b")
        (brokers.data("b") / "streams").mkdir()
        assert plane._node is not None
        until(lambda: plane.service.catalog.brokers["b"].registration > former.registration, "it hears of the next one")
        greet = plane._node.core.greeted

        def of_before(hello: dict[str, Any]) -> dict[str, Any]:
            return {**greet(hello), "process": former.incarnation, "registration": former.registration}

        plane._node.core.greeted = of_before
        brokers.begin("b")
