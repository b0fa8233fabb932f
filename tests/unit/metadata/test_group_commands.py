"""Commands of consumer groups: on every broker alike, refused as a whole, within bounds; and who is silent ends.

Goal: that a catalog which was restored, or replays its journal, goes on as the others do; that no number is given out
twice, whatever the catalog has lost. Method: commands of a seed to a catalog and to twins.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from broker.metadata import controller as controller_rules
from broker.metadata import groups as rules
from broker.metadata.assignment import assign
from broker.metadata.catalog import Catalog
from broker.metadata.cluster import ADDED_TO_GROUPS, FEATURE_LEVEL
from broker.metadata.controller import Controller, Submit, SubmitAnswered, TimePassed
from broker.metadata.group_commands import EPOCH_BITS
from broker.metadata.groups import ConsumerGroup, Grant, Groups
from broker.metadata.member_lives import MemberLives
from tests.support.effort import seeds

LEVEL = {"kind": "set_feature_level", "level": FEATURE_LEVEL}


def broker(**named: Any) -> dict[str, Any]:
    return {"kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h:1", "grpc": "h:2", **named}


def stream(name: str, partitions: int = 2) -> dict[str, Any]:
    settings = {"partitions": partitions}
    return {"kind": "create_stream", "name": name, "incarnation": f"i-{name}", "created_us": 1, "settings": settings}


def join(member: str, *streams: str, name: str = "g", timeout_ms: int = 2_000, **named: Any) -> dict[str, Any]:
    of = {"kind": "join_group", "name": name, "member": member, "streams": [*(streams or ("s",))]}
    return {**of, "timeout_ms": timeout_ms, **named}


def applied(catalog: Catalog, *commands: dict[str, Any]) -> Any:
    """The last one's result."""
    for command in commands:
        result = catalog.apply({"v": 1, **command})
        assert "ok" in result, result
    return result["ok"]


def alone() -> Catalog:
    catalog = Catalog()
    applied(catalog, broker(), stream("s"))
    return catalog


def restored(catalog: Catalog) -> Catalog:
    return Catalog.restore(json.loads(json.dumps(catalog.snapshot())))


def drawn(rng: random.Random, catalog: Catalog, made: int) -> dict[str, Any]:
    """A command, which may mean nothing."""
    groups, member = catalog.groups.named, f"m{rng.randrange(5)}"
    name = rng.choice(("g", "h"))
    group = groups.get(name, rules.ConsumerGroup())
    match rng.randrange(9):
        case 0 | 1 | 2:
            instance = {"instance": f"x{rng.randrange(2)}"} if rng.random() < 0.3 else {}
            return join(member, *rng.sample(("s", "t", "u"), rng.randint(1, 3)), name=name, **instance)
        case 3 | 4:
            rows = [[*at, grant.epoch] for at, grant in group.of(member).items() if grant.is_revoked or made % 7 == 0]
            return {"kind": "release_partitions", "name": name, "member": member, "partitions": rows}
        case 5:
            sessions = {each: kept.session for each, kept in group.members.items()}
            return {"kind": "end_members", "name": name, "members": {member: sessions.get(member, 7)}}
        case 6:
            return {"kind": "fence_group", "name": name, "forget": rng.random() < 0.5}
        case 7:
            which = rng.choice(("s", "t", "u"))
            if which in catalog.streams and rng.random() < 0.5:
                return {"kind": "delete_stream", "name": which}
            return {**stream(which, rng.randint(1, 4)), "incarnation": f"i{made}"}
        case _:
            which = rng.choice(sorted(catalog.streams) or ["s"])
            return {"kind": "add_partitions", "name": which, "partitions": rng.randint(1, 6)}


@pytest.mark.parametrize("seed", seeds(4))
def test_every_broker_decides_alike(seed: int) -> None:
    rng = random.Random(seed)
    catalog, journal = alone(), [broker(), stream("s")]
    twin, epochs = restored(catalog), dict[tuple[str, str, int, str], int]()
    for made in range(150):
        command = {"v": 1, **drawn(rng, catalog, made)}
        before = catalog.snapshot()
        result = catalog.apply(command)
        assert restored(twin).apply(command) == twin.apply(command) == result
        journal.append(command)
        if "error" in result:
            assert catalog.snapshot() == before, "M7"
        assert twin.groups == catalog.groups
        twin = restored(twin) if rng.random() < 0.3 else twin
        for name, group in catalog.groups.named.items():
            for (of, number), grant in group.grants.items():
                assert number < catalog.streams[of].settings.partitions, "M13"
                assert grant.member in group.members
                assert epochs.setdefault((name, of, number, grant.member), 0) <= grant.epoch <= catalog.groups.last
    again = Catalog()
    for command in journal:
        again.apply({"v": 1, **command})
    assert again.snapshot() == catalog.snapshot()


def test_below_its_feature_level_no_command_of_groups_has_effect() -> None:
    """M8. Whoever asks is told to wait; a broker of a release before would have refused the command."""
    catalog = Catalog()
    applied(catalog, broker(raft="b.1@h:3", feature_level_max=FEATURE_LEVEL), stream("s"))
    applied(catalog, {**LEVEL, "level": 10})
    before = catalog.snapshot()
    error = catalog.apply({"v": 1, **join("m")})["error"]
    assert (error["reason"], "feature level 11" in error["detail"]) == ("not_ready", True)
    assert catalog.snapshot() == before
    applied(catalog, {**LEVEL, "level": 11}, join("m"))
    assert restored(catalog).groups == catalog.groups


@pytest.mark.parametrize("level", [0, ADDED_TO_GROUPS - 1, ADDED_TO_GROUPS])
def test_what_is_added_is_noted_where_every_broker_does(level: int) -> None:
    """M8, G13. 0: a broker alone."""
    catalog = Catalog()
    applied(catalog, broker(**({"raft": "b.1@h:3", "feature_level_max": FEATURE_LEVEL} if level else {})))
    if level:
        applied(catalog, {**LEVEL, "level": level})
    applied(catalog, stream("s"), join("m"), {"kind": "add_partitions", "name": "s", "partitions": 3})
    added = catalog.groups.get("g").added
    assert added == (frozenset() if level == ADDED_TO_GROUPS - 1 else {("s", 2)})
    applied(catalog, {"kind": "delete_stream", "name": "s"}, {**stream("s"), "incarnation": "i2"})
    assert len(catalog.groups.get("g").added) == (0 if level == ADDED_TO_GROUPS - 1 else 2)


def test_a_catalog_that_has_lost_commands_gives_no_number_a_second_time() -> None:
    """G9. The broker that registers has logs of later epochs than the catalog knows."""
    catalog = alone()
    old = restored(catalog)
    applied(catalog, broker(), join("m"))
    used = catalog.groups.last
    applied(old, broker(epoch_seen=catalog.epoch_last), join("m"))
    assert min(grant.epoch for grant in old.groups.get("g").grants.values()) > used
    assert old.groups.last >> EPOCH_BITS == old.epoch_last


def test_members_of_a_catalog_that_has_lost_commands_join_again() -> None:
    """G9. The log may have later epochs than their grants, which it would fence for good."""
    catalog = alone()
    applied(catalog, join("m"), broker(epoch_seen=catalog.epoch_last))
    assert set(catalog.groups.get("g").members) == {"m"}, "a restart"
    version = catalog.groups.get("g").version
    applied(catalog, broker(epoch_seen=catalog.epoch_last + 1))
    assert catalog.groups.get("g") == rules.ConsumerGroup(version=catalog.groups.last)
    assert catalog.groups.last > version
    placed = Catalog()
    applied(
        placed, {"kind": "form_cluster", "cluster_id": "c"}, broker(raft="b.1@h:3", feature_level_max=FEATURE_LEVEL)
    )
    applied(placed, LEVEL, stream("s"), join("m"))
    applied(placed, {"kind": "begin_rescue", "cluster_id": "c", "epoch_last": placed.epoch_last})
    assert not placed.groups.get("g").members
    assert restored(placed).groups == placed.groups


def test_who_reads_meanwhile_sees_no_number_whose_group_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """G11. While the partitions are assigned the numbers are given out already."""
    groups, seen = Groups(), list[tuple[int, bool]]()
    monkeypatch.setattr(rules, "assign", lambda *_: seen.append((groups.last, "g" in groups.named)) or {})
    groups.join("g", "a", ("s",), timeout_ms=2_000, counts={"s": 1})
    assert (seen, groups.last) == ([(0, False)], groups.get("g").version)


def test_a_stream_that_is_made_anew_is_granted_anew() -> None:
    catalog = alone()
    applied(catalog, join("m"))
    before = catalog.groups.get("g").grants
    applied(catalog, {"kind": "delete_stream", "name": "s"})
    assert not catalog.groups.get("g").grants
    applied(catalog, {**stream("s"), "incarnation": "i2"})
    after = catalog.groups.get("g").grants
    assert min(grant.epoch for grant in after.values()) > max(grant.epoch for grant in before.values())


def test_what_a_member_reads_no_more_is_asked_back_before_it_is_granted() -> None:
    """G2, also where nobody else reads that stream at the time."""
    catalog = alone()
    applied(catalog, stream("t"), join("a", "s"), join("a", "t"))
    of_s = {at: grant for at, grant in catalog.groups.get("g").grants.items() if at[0] == "s"}
    assert all(grant.member == "a" and grant.is_revoked for grant in of_s.values())
    applied(catalog, join("b", "s"))
    assert {at: grant for at, grant in catalog.groups.get("g").grants.items() if at[0] == "s"} == of_s


def test_members_that_end_together_are_one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rack that is gone has the partitions assigned once, not once for each member of it: brokers wait for that."""
    catalog = alone()
    applied(catalog, stream("t", 9), *(join(each, "s", "t") for each in "abcd"))
    sessions = {name: member(catalog.groups, name) for name in "abcd"}
    calls = list[int]()
    monkeypatch.setattr(rules, "assign", lambda *given: calls.append(1) or assign(*given))
    gone = {"b": sessions["b"], "c": sessions["c"], "d": sessions["a"], "x": 1}
    result = catalog.apply({"v": 1, "kind": "end_members", "name": "g", "members": gone})
    assert (result["ok"]["ended"], len(calls)) == (["b", "c"], 1)
    group = catalog.groups.get("g")
    assert set(group.members) == {*group.target.values()} == {"a", "d"}
    assert (len(group.target), len(group.grants)) == (11, 11)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("GROUPS", 2), ("MEMBERS", 3), ("MEMBERS_ALL", 4), ("MEMBER_STREAMS", 2)):
        monkeypatch.setattr(rules, f"{name}_MAX", limit)
    monkeypatch.setattr(rules, "GROUP_PARTITIONS_MAX", 4)
    catalog = alone()
    applied(catalog, stream("t"), stream("u", 5))
    applied(catalog, *(join(f"m{number}") for number in range(3)), join("m0", name="h"))
    for command, limit in (
        (join("m3"), 3),
        (join("m1", name="h"), 4),
        (join("m0", name="i"), 2),
        (join("m0", "s", "t", "u"), 2),
        (join("m0", "u"), 4),
    ):
        error = catalog.apply({"v": 1, **command})["error"]
        assert (error["reason"], error["limit"]) == ("invalid_request", limit), command
        assert ("delete" in error["detail"]) is (command["name"] == "i")
    applied(catalog, join("m0", "s", "t"), join("m0"))
    monkeypatch.setattr(rules, "GROUP_PARTITIONS_ALL_MAX", 5)
    assert catalog.apply({"v": 1, **join("m0", "s", "t", name="h")})["error"]["limit"] == 5, "with those of g"
    assert catalog.apply({"v": 1, **join("m0", "missing")})["error"]["reason"] == "unknown_stream"
    assert catalog.apply({"v": 1, "kind": "fence_group", "name": "g"})["error"]["reason"] == "group_in_use"
    ended = {"kind": "end_members", "name": "h", "members": {"m0": catalog.groups.get("h").members["m0"].session}}
    applied(catalog, ended, {"kind": "fence_group", "name": "h", "forget": True}, join("m0", name="j"))
    assert restored(catalog).groups._totals == catalog.groups._totals == (4, 4)


# -- lives ---------------------------------------------------------------------------------------------------------


def member(groups: Groups, name: str, of: str = "g") -> int:
    return groups.get(of).members[name].session


def test_who_is_silent_for_its_timeout_ends_and_nobody_sooner() -> None:
    """J1, J2."""
    groups, lives = Groups(), MemberLives()
    first = groups.join("g", "a", ("s",), timeout_ms=1_000, counts={"s": 1})
    assert lives.lapsed(groups, 50_000) == {}, "a whole timeout from when it was seen first"
    assert lives.lapsed(groups, 51_000) == {}
    lives.heard("g", "a", first, 51_000)
    assert lives.lapsed(groups, 52_000) == {}
    lives.hung(400, 52_000)
    assert lives.lapsed(groups, 52_400) == {}
    assert lives.lapsed(groups, 52_401) == {"g": {"a": first}}
    groups.end("g", {"a": first}, {"s": 1})
    second = groups.join("g", "a", ("s",), timeout_ms=1_000, counts={"s": 1})
    assert lives.lapsed(groups, 53_000) == {}
    for now_ms in (53_900, 54_001):
        lives.heard("g", "a", first, now_ms)
    assert lives.lapsed(groups, 54_001) == {"g": {"a": second}}
    lives.heard("nobody", "a", 3, 54_002)
    assert lives.lapsed(Groups(), 54_003) == {}
    assert lives._heard == {}, "nothing is kept of who is no member"


def test_a_group_is_looked_at_when_it_has_changed_or_may_have_lost_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """J3."""
    groups, lives, looked = Groups(), MemberLives(), list[tuple[str, int]]()
    look = MemberLives._look

    def counted(self: MemberLives, name: str, group: ConsumerGroup, now_ms: int) -> dict[str, int]:
        looked.append((name, now_ms))
        return look(self, name, group, now_ms)

    monkeypatch.setattr(MemberLives, "_look", counted)
    for name in ("g", "h"):
        groups.join(name, "a", ("s",), timeout_ms=1_000, counts={"s": 2})
    session = groups.join("h", "b", ("s",), timeout_ms=5_000, counts={"s": 2})
    for now_ms in range(0, 3_000, 250):
        lives.heard("g", "a", member(groups, "a"), now_ms)
        if now_ms == 750:
            lives.heard("h", "a", member(groups, "a", "h"), now_ms)
        if now_ms == 1_000:
            groups.end("h", {"b": session}, {"s": 2})
        if lives.lapsed(groups, now_ms):
            groups.end("h", {"a": member(groups, "a", "h")}, {"s": 2})
    assert looked == [("g", 0), ("h", 0), ("h", 1_000), ("g", 1_250), ("h", 2_000), ("h", 2_250), ("g", 2_500)]


def test_news_are_those_of_the_member() -> None:
    """G12. A restored catalog tells each once more; that is all it knows otherwise."""
    catalog = alone()
    applied(catalog, join("a"), join("b"))
    before = catalog.groups.get("g")
    assert (before.told, before.has_news("a", before.version - 1)) == ({"a", "b"}, True)
    applied(catalog, join("c"), join("c", timeout_ms=9_000))
    group = catalog.groups.get("g")
    assert [group.has_news(each, before.version) for each in "abc"] == [False, False, True]
    assert (group.told, catalog.groups.told("g")) == ({"c"}, [("group", "g", "c")])
    restored = Catalog.restore(json.loads(json.dumps(catalog.snapshot())))
    assert restored.groups == catalog.groups
    assert [restored.groups.get("g").has_news(each, before.version) for each in "abc"] == [True] * 3
    assert not any(restored.groups.get("g").has_news(each, group.version) for each in "abc")
    for some in (catalog, restored):
        applied(some, {"kind": "end_members", "name": "g", "members": {"a": member(some.groups, "a")}})
        group = some.groups.get("g")
        assert "a" in group.told, "who ends is told, too"
        assert [group.has_news(each, group.version - 1) for each in "bc"] == [each in group.told for each in "bc"]


def ended(controller: Controller, catalog: Catalog, now_ms: int) -> list[Submit]:
    effects = controller.step(TimePassed(), catalog, now_ms)
    return [each for each in effects if isinstance(each, Submit) and each.command["kind"] == "end_members"]


def test_a_look_ends_the_members_of_many_small_groups_or_of_few_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a host is gone that had a member of each of 1,000 groups, no group waits for half a minute."""
    monkeypatch.setattr(controller_rules, "END_PARTITIONS", 3)
    catalog = alone()
    applied(catalog, stream("large", 9), *(join("a", name=f"g{number}") for number in range(5)))
    applied(catalog, join("a", "large", name="f"), join("a", "large", name="h"))
    controller = Controller(0)
    asked = [ended(controller, catalog, now_ms) for now_ms in range(0, 8_000, 100)]
    names = [[each.command["name"] for each in some] for some in asked if some]
    assert names == [["f"], ["g0", "g1"], ["g2", "g3"], ["g4", "h"]]


def test_the_controller_ends_members_that_no_broker_has_heard() -> None:
    """A lost answer is asked for again."""
    catalog = alone()
    applied(catalog, join("a"), join("b"))
    sessions = {name: member(catalog.groups, name) for name in ("a", "b")}
    controller = Controller(0)
    asked: list[Submit] = []
    for now_ms in range(0, 3_000, 100):
        controller.lives.heard("g", "a", sessions["a"], now_ms)
        asked += ended(controller, catalog, now_ms)
    assert [each.command["members"] for each in asked] == [{"b": sessions["b"]}], "one is out"
    controller.step(SubmitAnswered(number=asked[0].number, result=None), catalog, 3_000)
    controller.lives.heard("g", "a", sessions["a"], 3_000)
    later = [each for now_ms in range(3_000, 4_500, 100) for each in ended(controller, catalog, now_ms)]
    assert later[0].command["members"] == {"b": sessions["b"]}
    result = catalog.apply(later[0].command)
    assert result["ok"]["ended"] == ["b"]
    assert set(catalog.groups.get("g").members) == {"a"}
    assert {grant.member for grant in catalog.groups.get("g").grants.values()} == {"a"}
    assert isinstance(next(iter(catalog.groups.get("g").grants.values())), Grant)
    assert catalog.apply(later[0].command)["ok"]["ended"] == [], "H4: late, and once more"
