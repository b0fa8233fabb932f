"""Goal: while there is `__activity`, each change of a stream, and of who is in a group, is one event, and no other
command is one; whatever becomes of catalogs, ids only grow.

Method: commands to a catalog; what waits in it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.metadata import activity
from broker.metadata.activity import Activity
from broker.metadata.catalog import Catalog
from broker.metadata.cluster import ACTIVE

BROKER: dict[str, Any] = {"kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h", "grpc": "g"}


def do(catalog: Catalog, kind: str, **fields: Any) -> dict[str, Any]:
    answer = catalog.apply({"v": 1, "kind": kind, **fields})
    return dict(answer.get("ok", answer))


def create(catalog: Catalog, name: str, *, internal: bool = False, **settings: Any) -> None:
    do(catalog, "create_stream", name=name, incarnation=f"i{name}", created_us=1, settings=settings, internal=internal)


def active(**broker: Any) -> Catalog:
    catalog = Catalog()
    catalog.apply({"v": 1, **BROKER, **broker})
    create(catalog, "before")
    create(catalog, "__activity", internal=True)
    return catalog


def told(catalog: Catalog) -> list[dict[str, Any]]:
    """The events, without their ids, which grow."""
    ids = [each["id"] for each in catalog.activity.pending]
    assert ids == sorted(set(ids))
    assert not ids or ids[-1] == catalog.activity.last
    return [{key: value for key, value in each.items() if key != "id"} for each in catalog.activity.pending]


def test_what_changes_is_an_event_and_nothing_else() -> None:
    catalog = active()
    create(catalog, "s", partitions=3)
    create(catalog, "s", partitions=3)
    create(catalog, "__own", internal=True)
    for paused in (True, True, False):
        do(catalog, "set_state", name="s", paused=paused)
    do(catalog, "set_state", name="s", read_only=True)
    do(catalog, "alter_stream", name="s", settings={"linger_ms": 7})
    do(catalog, "set_state", name="nowhere", paused=True)
    do(catalog, "delete_stream", name="s")
    of = {"name": "s", "partitions": 3}
    assert told(catalog) == [
        {"op": "create_stream", **of},
        {"op": "pause_stream", **of},
        {"op": "resume_stream", **of},
        {"op": "set_stream_read_only", **of, "read_only": True},
        {"op": "delete_stream", "name": "s"},
    ]


def test_members_join_leave_and_expire() -> None:
    catalog = active()
    joins = {"name": "g", "streams": ["before"], "timeout_ms": 5_000}
    one = do(catalog, "join_group", **joins, member="one")["session"]
    do(catalog, "join_group", **joins, member="one")
    two = do(catalog, "join_group", **joins, member="two", instance="x")["session"]
    do(catalog, "join_group", **joins, member="three", instance="x")
    do(catalog, "end_members", name="g", members={"one": one, "two": two})
    three = catalog.groups.get("g").members["three"].session
    do(catalog, "end_members", name="g", members={"three": three}, expired=True)
    do(catalog, "join_group", **joins, member="four")
    do(catalog, **{**BROKER, "incarnation": "j", "epoch_seen": 900})
    join, leave = ({"op": op, "group": "g"} for op in ("join_group", "leave_group"))
    streams = {"streams": ["before"]}
    assert told(catalog) == [
        {**join, "consumer": "one", **streams},
        {**join, "consumer": "two", **streams},
        {**leave, "consumer": "two", "expired": False},
        {**join, "consumer": "three", **streams},
        {**leave, "consumer": "one", "expired": False},
        {**leave, "consumer": "three", "expired": True},
        {**join, "consumer": "four", **streams},
        {**leave, "consumer": "four", "expired": True},
    ]


def test_what_is_written_is_forgotten_and_ids_outlive_that() -> None:
    catalog = active()
    for name in "abc":
        create(catalog, name)
    first, second, third = (each["id"] for each in catalog.activity.pending)
    do(catalog, "forget_activity", through=second)
    do(catalog, "forget_activity", through=first)
    assert [each["id"] for each in catalog.activity.pending] == [third]
    again = Catalog.restore(json.loads(json.dumps(catalog.snapshot())))
    assert again.activity == catalog.activity
    do(again, "forget_activity", through=third)
    assert again.activity == Activity(last=third)
    again = Catalog.restore(json.loads(json.dumps(again.snapshot())))
    create(again, "d")
    assert again.activity.last == third + 1


def test_what_stays_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that forgets a few of ten thousand was 40 ms of the Raft thread, on each broker."""
    catalog, measured = active(), list[Any]()
    for name in "abcd":
        create(catalog, name)
    byte_count, size = catalog.activity.byte_count, activity._size
    first = catalog.activity.pending[0]
    monkeypatch.setattr(activity, "_size", lambda event: (measured.append(event), size(event))[1])
    do(catalog, "forget_activity", through=first["id"])
    assert measured == [first]
    assert catalog.activity.byte_count == byte_count - size(first)


def test_a_catalog_from_a_backup_gives_out_later_ids() -> None:
    """Its logs know of later epochs, and `__activity` of later ids."""
    catalog = active()
    backup = json.loads(json.dumps(catalog.snapshot()))
    for name in "abc":
        create(catalog, name)
    restored = Catalog.restore(backup)
    do(restored, **{**BROKER, "incarnation": "j", "epoch_seen": 7})
    create(restored, "d")
    assert restored.activity.last > catalog.activity.last


def test_what_nobody_writes_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "PENDING_MAX", 3)
    catalog = active()
    for name in "abcde":
        create(catalog, name)
    assert [each["name"] for each in told(catalog)] == ["c", "d", "e"]
    assert catalog.activity.lost == 2


def test_what_waits_takes_no_more_room_in_each_snapshot_than_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand joins of members that read 64 streams each were 80 MB, which the Raft thread writes as one text."""
    monkeypatch.setattr(activity, "PENDING_BYTES_MAX", 1_000)
    catalog = active()
    for number in range(40):
        create(catalog, f"s{number:030}")
        assert len(json.dumps(catalog.snapshot()["activity"]["pending"])) <= 1_000
    count = len(catalog.activity.pending)
    assert (count > 3, catalog.activity.lost) == (True, 40 - count)
    again = Catalog.restore(json.loads(json.dumps(catalog.snapshot())))
    do(again, "forget_activity", through=again.activity.pending[1]["id"])
    do(catalog, "forget_activity", through=catalog.activity.pending[1]["id"])
    assert again.activity == catalog.activity
    for each in (catalog, again):
        create(each, "a" * 31)
        create(each, "b" * 31)
        assert each.activity.lost == 40 - count, "there is room for what has been forgotten"


def test_without_the_stream_there_are_no_events_and_the_snapshot_says_nothing() -> None:
    catalog = Catalog()
    catalog.apply({"v": 1, **BROKER})
    create(catalog, "s")
    assert catalog.activity == Activity()
    assert "activity" not in catalog.snapshot()


def test_below_its_level_a_cluster_forgets_nothing_by_it() -> None:
    catalog = active(raft="b.1@h:3", feature_level_max=ACTIVE)
    answer = catalog.apply({"v": 1, "kind": "forget_activity", "through": 1})
    assert answer["error"]["reason"] == "invalid_request"
    do(catalog, "set_feature_level", level=ACTIVE)
    assert do(catalog, "forget_activity", through=1) == {}


@pytest.mark.parametrize(
    "kept",
    [{"last": 1}, {"last": None, "lost": 0, "pending": []}, {"last": 1, "lost": 0, "pending": [{"id": "1"}]}, []],
)
def test_a_snapshot_that_is_none_is_an_error(kept: Any) -> None:
    with pytest.raises((TypeError, KeyError, ValueError)):
        Activity.restore({"activity": kept})
