"""Goal: tasks of one job ask for a stream once, and none of them goes by an answer that does not hold (F1, F2)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from broker.api.errors import UnknownStream
from spark_liftlog.writing import targets as targets_module
from spark_liftlog.writing.router import Router
from spark_liftlog.writing.rows import Target
from spark_liftlog.writing.sink_options import SinkOptions
from spark_liftlog.writing.targets import KNOWN_S, Targets, forget

TARGET = Target(stream="s", partition_count=2, incarnation="i-1", record_bytes_max=1_000, subject="s")


class Cluster:
    """Answers as brokers would, and counts."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked: list[str] = []
        self.streams = {"s": TARGET, "letters": replace(TARGET, stream="letters")}

    def find(self, _: Any, stream: str) -> Target:
        self.asked.append(stream)
        if stream not in self.streams:
            raise UnknownStream(f"no stream {stream!r}")
        return self.streams[stream]

    def task(self, job: str, brokers: str = "b:1") -> Targets:
        calls: Any = SimpleNamespace(brokers=brokers)
        return Targets(calls, job, lambda: False)


class Noting:
    """Where rows go."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int]] = []

    def add(self, target: Target, partition: int, rows: pa.RecordBatch) -> None:
        self.places.append((target.stream, partition))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setattr(targets_module, "find", found.find)
    monkeypatch.setattr(targets_module.time, "monotonic", lambda: found.now_s)
    monkeypatch.setattr(targets_module, "_known", {})
    return found


def test_tasks_of_a_job_ask_once_for_a_while(cluster: Cluster) -> None:
    for _ in range(3):
        assert cluster.task("job").find("s") == TARGET
    assert cluster.asked == ["s"]
    cluster.now_s += KNOWN_S
    cluster.task("job").find("s")
    assert cluster.asked == ["s", "s"]
    assert len(targets_module._known) == 1


def test_another_job_or_cluster_asks_anew_and_so_does_who_knows_no_job(cluster: Cluster) -> None:
    cluster.task("job").find("s")
    cluster.streams["s"] = replace(TARGET, incarnation="i-2")
    assert cluster.task("other").find("s").incarnation == "i-2"
    assert cluster.task("job", "b:2").find("s").incarnation == "i-2"
    for _ in range(2):
        assert cluster.task("").find("s").incarnation == "i-2"
    assert len(cluster.asked) == 5


def test_what_is_not_there_is_asked_for_each_time(cluster: Cluster) -> None:
    for _ in range(2):
        with pytest.raises(UnknownStream):
            cluster.task("job").find("late")
    cluster.streams["late"] = TARGET
    assert cluster.task("job").find("late") == TARGET


def test_a_task_that_failed_is_believed_nothing(cluster: Cluster) -> None:
    brokers: Any = "b:1"
    for job in ("job", "other"):
        cluster.task(job).find("s")
    forget(brokers, "job")
    for job in ("job", "other"):
        cluster.task(job).find("s")
    assert len(cluster.asked) == 3


@pytest.mark.parametrize("job", ["job", ""])
def test_a_partition_that_an_older_answer_lacks_is_asked_for(cluster: Cluster, job: str) -> None:
    """Added a moment ago, at a broker that is alone, which is asked once."""
    cluster.task(job).find("s")
    cluster.streams["s"] = replace(TARGET, partition_count=5)
    targets, found = cluster.task(job), Noting()
    options = SinkOptions(brokers="b", stream="s")
    router = Router({"value": 0, "partition": 1}, options, targets.find, found, 0, again=targets.again)
    router.check()
    router.add(pa.RecordBatch.from_pydict({"value": [b"a"], "partition": pa.array([4], pa.int32())}))
    assert found.places == [("s", 4)]
    assert not targets.again("s"), "once"


def test_each_of_several_streams_that_have_grown_is_asked_for(cluster: Cluster) -> None:
    """Seen before: after the first one the rows of the others were bad, at a broker that is alone."""
    names = ("s", "t")
    for name in names:
        cluster.streams[name] = replace(TARGET, stream=name)
        cluster.task("job").find(name)
        cluster.streams[name] = replace(TARGET, stream=name, partition_count=5)
    targets, found = cluster.task("job"), Noting()
    columns = {"value": 0, "partition": 1, "stream": 2}
    router = Router(columns, SinkOptions(brokers="b", stream=None), targets.find, found, 0, again=targets.again)
    for partition in (1, 4):
        columns_of = {"value": [b"a", b"b"], "partition": pa.array([partition] * 2, pa.int32()), "stream": [*names]}
        router.add(pa.RecordBatch.from_pydict(columns_of))
    assert sorted(found.places) == [("s", 1), ("s", 4), ("t", 1), ("t", 4)]
