"""Goal: what waits in the catalog is appended in order by whoever leads `__activity`, and forgotten once it is there.

Method: a catalog and a partition that says what was appended, and fails as it is told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from broker.api.errors import NotLeader, NotReady, Unavailable
from broker.metadata.catalog import Catalog
from broker.runtime import activity_log
from broker.runtime.activity_log import ActivityLog
from tests.support.processes import eventually
from tests.unit.metadata.test_activity import active, create


class World:
    """See the module."""

    def __init__(self) -> None:
        self.catalog: Catalog = active()
        self.rows: list[dict[str, Any]] = []
        self.fails: list[Exception | None] = []
        self.writer = ActivityLog(lambda: self.catalog, self.find, self.execute, wall_us=lambda: 5)

    def find(self, stream: str, partition: int) -> Any:
        assert (stream, partition) == ("__activity", 0)
        if self.fails and isinstance(self.fails[0], NotLeader):
            raise self.fails.pop(0)  # type: ignore[misc]
        return self

    def append(self, batches: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.fails and (error := self.fails.pop(0)) is not None:
            if not isinstance(error, TimeoutError):
                future.set_exception(error)
            return future
        self.rows += batches[0]._rows.to_pylist()
        future.set_result(None)
        return future

    def execute(self, command: Mapping[str, Any]) -> Any:
        if self.fails and (error := self.fails.pop(0)) is not None:
            raise error
        return self.catalog.apply(command)["ok"]

    @property
    def told(self) -> list[str]:
        return [json.loads(row["value"])["name"] for row in self.rows]


@pytest.fixture
def world() -> World:
    return World()


def test_what_waits_is_written_in_order_and_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_log, "AT_ONCE", 2)
    for name in "abc":
        create(world.catalog, name, partitions=2)
    assert world.writer.write()
    assert not world.writer.write()
    assert (world.told, world.catalog.activity.pending) == (["a", "b", "c"], ())
    row = world.rows[0]
    assert (row["key"], row["subject"]) == (b"a", "__activity")
    assert json.loads(row["value"]) == {
        "id": world.catalog.activity.last - 2,
        "op": "create_stream",
        "name": "a",
        "partitions": [0, 1],
    }


def test_another_leader_or_too_few_in_sync_leave_all_of_it_waiting(world: World) -> None:
    create(world.catalog, "a")
    for error in (NotLeader("elsewhere"), NotReady("soon")):
        world.fails = [error]
        with pytest.raises(type(error)):
            world.writer.write()
    assert len(world.catalog.activity.pending) == 1
    world.writer.write()
    assert world.told == ["a"]


def test_what_is_there_and_could_not_be_forgotten_is_not_written_again_here(world: World) -> None:
    create(world.catalog, "a")
    world.fails = [None, NotReady("no controller")]
    with pytest.raises(NotReady):
        world.writer.write()
    create(world.catalog, "b")
    world.writer.write()
    assert (world.told, world.catalog.activity.pending) == (["a", "b"], ())


def test_an_append_in_doubt_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_log, "APPEND_S", 0.01)
    create(world.catalog, "a")
    world.fails = [TimeoutError()]
    with pytest.raises(Unavailable):
        world.writer.write()
    world.writer.write()
    assert world.told == ["a"]


def test_its_thread_begins_with_the_stream_and_tries_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_log, "AGAIN_S", 0.01)
    world.fails = [NotLeader("elsewhere"), NotReady("soon"), ValueError("a fault of ours")]
    none = ActivityLog(Catalog, world.find, world.execute)
    none.look()
    assert none._thread is None
    none.stop()
    create(world.catalog, "a")
    world.writer.look()
    eventually(lambda: world.told == ["a"] and not world.catalog.activity.pending, what="it is written")
    create(world.catalog, "b")
    world.writer.look()
    eventually(lambda: world.told == ["a", "b"], what="the next one")
    world.writer.stop()
    assert world.writer._thread is not None
    assert not world.writer._thread.is_alive()
