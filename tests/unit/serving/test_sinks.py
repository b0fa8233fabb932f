"""Sinks over HTTP: what is staged is invisible, what is committed is there once, every refusal says what to do.

The calls are made by our client, and by hand where a client would not make them; each answer is held against the
contract.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from broker.api.errors import (
    InvalidName,
    InvalidRecords,
    InvalidRequest,
    ReadOnly,
    SinkBatchRegressed,
    SinkFenced,
    SinkForked,
    StageLost,
    StreamPaused,
    UnknownPartition,
    UnknownSink,
    UnknownStream,
)
from broker.api.http import ARROW_STREAM
from broker.client import Client, Stage, connect
from broker.client.sinks import Sink
from tests.unit.serving.arrow import stream_of
from tests.unit.serving.server import Api, Server

STAGES = "/v1/streams/orders/partitions/0/stages"
A = "a" * 32


@pytest.fixture
def client(server: Server, api: Api) -> Iterator[Client]:
    api.create("orders", partitions=2)
    with connect(f"127.0.0.1:{server.port}", deadline_s=0) as client:
        yield client


@pytest.fixture
def sink(client: Client) -> Sink:
    sink = client.sink("query-1")
    sink.open()
    return sink


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def stored(client: Client, partition: int = 0) -> list[bytes]:
    found: list[bytes] = client.read("orders", partitions=[partition]).to_table().column("value").to_pylist()
    return found


def test_a_batch_is_invisible_until_it_is_committed_and_then_whole(client: Client, sink: Sink) -> None:
    stages = [
        sink.stage([rows(b"a", b"b"), rows(b"c")], "orders", 0),
        sink.stage(rows(b"d"), "orders", 1),
        sink.stage(rows(b"e"), "orders", 0),
        sink.stage([], "orders", 1),
    ]
    assert [stage.rows for stage in stages] == [3, 1, 1, 0]
    assert stored(client, 0) == stored(client, 1) == []
    answer = sink.commit(0, stages, digest="d", attributes={"checkpoint": "/c"})
    assert answer.outcome == "committed"
    assert (stored(client, 0), stored(client, 1)) == ([b"a", b"b", b"c", b"e"], [b"d"])
    last = sink.describe().last
    assert last is not None
    assert (last.batch_id, last.rows, last.digest, dict(last.attributes)) == (0, 5, "d", {"checkpoint": "/c"})
    assert last.is_complete
    assert list(last.stages) == sorted(stages, key=lambda s: s.partition) or set(last.stages) == set(stages)
    assert [found.sink for found in client.sinks()] == ["query-1"]


def test_a_repeated_commit_is_already_done_and_its_new_stages_are_dropped(client: Client, sink: Sink) -> None:
    stages = [sink.stage(rows(b"a"), "orders", 0)]
    sink.commit(0, stages)
    assert sink.commit(0, stages).outcome == "already_done"
    other = sink.stage(rows(b"other", b"rows"), "orders", 1)
    assert sink.commit(0, [other]).outcome == "already_done"
    with pytest.raises(StageLost):
        sink.commit(1, [other])
    assert stored(client, 0) == [b"a"]
    assert stored(client, 1) == []


def test_a_big_stage_goes_in_parts_in_order(client: Client, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.sinks.PART_BYTES", 2_000)
    values = [b"%05d" % n * 20 for n in range(300)]
    stage = sink.stage([rows(*values[:7]), rows(*values[7:])], "orders", 0)
    assert stage.parts > 10
    sink.commit(0, [stage])
    assert stored(client) == values


@pytest.mark.parametrize("wrong", [0, 150, 299])
def test_a_part_that_is_refused_ends_its_stage(
    client: Client, sink: Sink, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    """Whichever of those that are on their way at the same time it is."""
    monkeypatch.setattr("broker.client.sinks.PART_BYTES", 2_000)
    values: list[bytes | None] = [b"%05d" % n * 20 for n in range(300)]
    values[wrong] = None
    with pytest.raises(InvalidRecords, match="tombstone"):
        sink.stage(pa.record_batch({"value": pa.array(values, pa.binary())}), "orders", 0)
    sink.commit(0, [sink.stage(rows(b"a"), "orders", 0)])
    assert stored(client) == [b"a"]


def test_an_older_driver_is_fenced(client: Client, sink: Sink) -> None:
    stage = sink.stage(rows(b"a"), "orders", 0)
    newer = client.sink("query-1")
    newer.open()
    with pytest.raises(SinkFenced) as error:
        sink.commit(0, [stage])
    assert error.value.epoch == newer.epoch
    assert newer.commit(0, [stage]).outcome == "committed"


def test_a_sink_is_taken_over_more_often_than_its_broker_has_started(client: Client, sink: Sink) -> None:
    """The epoch of a sink is not that of the partition's leader, which counts starts."""
    leader_epoch = client.describe("orders").partitions[0].leader_epoch
    while sink.epoch is None or sink.epoch <= leader_epoch + 3:
        sink.open()
    assert sink.commit(0, [sink.stage(rows(b"a"), "orders", 0)]).outcome == "committed"
    assert stored(client) == [b"a"]


def test_a_lower_batch_id_and_another_checkpoint_are_refused_until_the_sink_is_reset(
    client: Client, sink: Sink
) -> None:
    sink.commit(5, [], attributes={"checkpoint": "/c"})
    with pytest.raises(SinkBatchRegressed) as regressed:
        sink.commit(4, [], attributes={"checkpoint": "/c"})
    assert regressed.value.last_batch_id == 5
    with pytest.raises(SinkForked):
        sink.commit(6, [], attributes={"checkpoint": "/copy"})
    assert sink.reset(4).least_batch_id == 4
    with pytest.raises(SinkFenced):
        sink.commit(4, [])
    sink.open()
    assert sink.commit(4, [], attributes={"checkpoint": "/copy"}).outcome == "committed"


def test_an_aborted_stage_is_lost_and_a_committed_one_is_not_aborted(client: Client, sink: Sink) -> None:
    gone, kept = sink.stage(rows(b"gone"), "orders", 0), sink.stage(rows(b"kept"), "orders", 0)
    assert sink.abort([gone]) == 1
    with pytest.raises(StageLost):
        sink.commit(0, [gone, kept])
    assert sink.abort([gone, kept]) == 1, "nothing was pinned: the lost one came first"
    kept = sink.stage(rows(b"kept"), "orders", 0)
    sink.commit(0, [kept])
    assert sink.abort([kept]) == 0
    assert stored(client) == [b"kept"]


def test_what_is_missing_of_a_stage_is_noticed_before_anything_is_decided(client: Client, sink: Sink, api: Api) -> None:
    post(api, part=1, last="true")
    with pytest.raises(StageLost, match="incomplete"):
        sink.commit(0, [Stage(stream="orders", partition=0, stage=A, parts=2, rows=2)])
    assert post(api, part=0).json()["stored"]
    assert not post(api, part=0).json()["stored"], "the same again is stored once"
    with pytest.raises(InvalidRequest, match="2 rows, the commit says 3"):
        sink.commit(0, [Stage(stream="orders", partition=0, stage=A, parts=2, rows=3)])
    sink.commit(0, [Stage(stream="orders", partition=0, stage=A, parts=2, rows=2)])
    assert stored(client) == [b"part 0", b"part 1"]


def post(api: Api, *, part: int, body: bytes | None = None, path: str = STAGES, **query: Any) -> Any:
    values = {"sink": "query-1", "epoch": 1, "stage": A, "part": part, **query}
    given = {key: value for key, value in values.items() if value is not None}
    return api.request(
        "POST",
        path,
        body=stream_of(rows(b"part %d" % part)) if body is None else body,
        headers={"Content-Type": ARROW_STREAM},
        **given,
    )


@pytest.mark.parametrize(
    "query,status",
    [
        ({"stage": "x"}, 400),
        ({"stage": A.upper()}, 400),
        ({"stage": None}, 400),
        ({"sink": None}, 400),
        ({"epoch": -1}, 400),
        ({"part": 1 << 20}, 400),
        ({"last": "yes"}, 400),
        ({"sink": "a/b"}, 400),
        ({"incarnation": "another"}, 409),
        ({"body": b"junk"}, 400),
        ({"path": "/v1/streams/nothing/partitions/0/stages"}, 404),
        ({"path": "/v1/streams/orders/partitions/9/stages"}, 404),
        ({"path": "/v1/streams/__commits/partitions/0/stages"}, 403),
    ],
)
def test_a_stage_that_cannot_be_is_refused(client: Client, api: Api, query: dict[str, Any], status: int) -> None:
    assert post(api, **{"part": 0, **query}).status == status


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"epoch": 1, "batch_id": 0},
        {"epoch": 1, "batch_id": -1, "stages": []},
        {"epoch": 1, "batch_id": 0, "stages": [{"stream": "orders", "partition": 0}]},
        {"epoch": 1, "batch_id": 0, "stages": [{"stream": "orders", "partition": 0, "stage": "z" * 32}]},
        {"epoch": 1, "batch_id": 0, "stages": [{"stream": "orders", "partition": 0, "stage": A}] * 2},
        {"epoch": 1, "batch_id": 0, "stages": [], "attributes": {"checkpoint": 5}},
        {"epoch": 1, "batch_id": 0, "stages": [], "attributes": []},
        {"epoch": 1, "batch_id": 0, "stages": [], "extra": 1},
    ],
)
def test_a_commit_that_cannot_be_is_refused(sink: Sink, api: Api, body: dict[str, Any]) -> None:
    answer = api.post("/v1/sinks/query-1/commit", body)
    assert (answer.status, answer.reason) == (400, "invalid_request")
    assert sink.describe().last is None


def test_who_is_not_there_is_named(client: Client, sink: Sink) -> None:
    with pytest.raises(UnknownSink):
        client.sink("nobody").describe()
    with pytest.raises(UnknownSink):
        client.sink("nobody", epoch=1).commit(0, [])
    with pytest.raises(InvalidRequest, match="not open"):
        client.sink("nobody").commit(0, [])
    with pytest.raises(InvalidName):
        client.sink("a b").open()
    with pytest.raises(UnknownStream):
        sink.stage(rows(b"a"), "nothing", 0)
    with pytest.raises(UnknownPartition):
        sink.stage(rows(b"a"), "orders", 7)
    with pytest.raises(InvalidRecords):
        sink.stage(pa.record_batch({"subject": ["a"]}), "orders", 0)
    nowhere = Stage(stream="nothing", partition=0, stage=A, parts=1, rows=0)
    with pytest.raises(UnknownStream):
        sink.commit(0, [nowhere])
    assert sink.describe().last is None


def test_a_paused_or_read_only_stream_takes_no_stages_and_no_commits(
    server: Server, client: Client, sink: Sink
) -> None:
    stage = sink.stage(rows(b"a"), "orders", 0)
    server.call(server.backend.set_stream_state("orders", paused=True))
    for act in (lambda: sink.stage(rows(b"b"), "orders", 0), lambda: sink.commit(0, [stage])):
        with pytest.raises(StreamPaused):
            act()
    server.call(server.backend.set_stream_state("orders", paused=False, read_only=True))
    for act in (lambda: sink.stage(rows(b"b"), "orders", 0), lambda: sink.commit(0, [stage])):
        with pytest.raises(ReadOnly):
            act()
    server.call(server.backend.set_stream_state("orders", read_only=False))
    assert sink.commit(0, [stage]).outcome == "committed"
    assert stored(client) == [b"a"]


def test_a_stream_that_is_made_anew_knows_no_stages(client: Client, sink: Sink, api: Api) -> None:
    stage = sink.stage(rows(b"a"), "orders", 0)
    client.delete_stream("orders")
    api.create("orders", partitions=2)
    with pytest.raises(StageLost):
        sink.commit(0, [stage])
    sink.commit(0, [sink.stage(rows(b"b"), "orders", 0)])
    assert stored(client) == [b"b"]


def test_of_two_racing_commits_one_decides(client: Client, sink: Sink) -> None:
    stages = [[sink.stage(rows(b"%d" % n), "orders", n % 2)] for n in range(8)]
    start = threading.Barrier(8)

    def commit(mine: list[Stage]) -> str:
        start.wait()
        return sink.commit(0, mine).outcome

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(commit, stages))
    assert sorted(outcomes) == ["already_done"] * 7 + ["committed"]
    assert len(stored(client, 0) + stored(client, 1)) == 1
