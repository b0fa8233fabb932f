"""Sinks over HTTP: what is staged is invisible, what is committed is there once, every refusal says what to do.

The calls are made by our client, and by hand where a client would not make them; each answer is held against the
contract.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
    SinkRowsDiffer,
    StageLost,
    StaleIncarnation,
    StreamPaused,
    UnknownPartition,
    UnknownSink,
    UnknownStream,
)
from broker.api.http import ARROW_STREAM
from broker.api.schema import HEADERS_TYPE
from broker.client import Client, Stage, connect
from broker.client.sinks import BundledPart, Sink
from broker.serving.endpoints.bundles import SMALL_BYTES, SMALL_ROWS
from tests.support.processes import eventually
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
    assert last.complete
    assert list(last.stages) == sorted(stages, key=lambda s: s.partition) or set(last.stages) == set(stages)
    assert [found.sink for found in client.sinks()] == ["query-1"]


def test_a_repeated_commit_is_already_done_and_its_new_stages_are_dropped(client: Client, sink: Sink) -> None:
    stages = [sink.stage(rows(b"a"), "orders", 0)]
    sink.commit(0, stages)
    assert sink.commit(0, stages).outcome == "already_done"
    other = sink.stage(rows(b"b"), "orders", 1)
    assert sink.commit(0, [other]).outcome == "already_done"
    with pytest.raises(StageLost):
        sink.commit(1, [other])
    assert stored(client, 0) == [b"a"]
    assert stored(client, 1) == []


def test_a_repetition_with_another_number_of_rows_is_refused_unless_it_says_keep_first(
    client: Client, sink: Sink
) -> None:
    """Silence would lose the rows: the checkpoint was rolled back by one batch, and this one planned anew."""
    sink.commit(0, [sink.stage(rows(b"a"), "orders", 0)])
    more = [sink.stage(rows(b"a", b"b"), "orders", 1)]
    with pytest.raises(SinkRowsDiffer, match="keep_first") as error:
        sink.commit(0, more)
    assert (error.value.rows, error.value.decided_rows) == (2, 1)
    assert sink.commit(0, more, on_repeat_with_other_rows="keep_first").outcome == "already_done"
    assert (stored(client, 0), stored(client, 1)) == ([b"a"], [])
    sink.reset(0)
    sink.open()
    assert sink.commit(0, [sink.stage(rows(b"a", b"b"), "orders", 1)]).outcome == "committed"


def test_a_repetition_with_as_many_other_rows_is_refused_by_its_digest(client: Client, sink: Sink) -> None:
    """Each partition has another share of the batch: what was decided lacks rows that the checkpoint counts as done."""
    sink.commit(0, [sink.stage(rows(b"a"), "orders", 0)], digest="sum:a")
    with pytest.raises(SinkRowsDiffer, match="as many, but others") as error:
        sink.commit(0, [sink.stage(rows(b"b"), "orders", 0)], digest="sum:b")
    assert (error.value.digest, error.value.decided_digest) == ("sum:b", "sum:a")
    again = [sink.stage(rows(b"a"), "orders", 1)]
    assert sink.commit(0, again, digest="sum:a").outcome == "already_done"
    kept = sink.commit(0, [sink.stage(rows(b"b"), "orders", 0)], digest="sum:b", on_repeat_with_other_rows="keep_first")
    assert kept.outcome == "already_done"
    assert (stored(client, 0), stored(client, 1)) == ([b"a"], [])


def test_a_moved_checkpoint_is_adopted(client: Client, sink: Sink) -> None:
    sink.commit(5, [], attributes={"checkpoint": "/c"})
    assert sink.describe().checkpoint == "/c"
    assert sink.adopt("/moved").checkpoint == "/moved"
    with pytest.raises(SinkForked):
        sink.commit(6, [], attributes={"checkpoint": "/c"})
    assert sink.commit(5, [], attributes={"checkpoint": "/moved"}).outcome == "already_done"
    assert sink.commit(6, [], attributes={"checkpoint": "/moved"}).outcome == "committed"
    for wrong in ({}, {"checkpoint": ""}, {"checkpoint": 5}, {"checkpoint": "/c", "more": 1}):
        with pytest.raises(InvalidRequest):
            client._calls.json("POST", "/v1/sinks/query-1/adopt", wrong)


def test_a_deleted_sink_is_unknown_and_what_it_committed_stays(client: Client, sink: Sink) -> None:
    sink.commit(5, [sink.stage(rows(b"a"), "orders", 0)], attributes={"checkpoint": "/c"})
    left = sink.stage(rows(b"left"), "orders", 0)
    assert sink.delete()
    assert client.sinks() == []
    with pytest.raises(UnknownSink):
        sink.describe()
    with pytest.raises(UnknownSink):
        sink.commit(6, [left])
    with pytest.raises(UnknownSink):
        sink.stage(rows(b"b"), "orders", 0)
    with pytest.raises(UnknownSink):
        sink.delete()
    assert not sink.delete(missing_ok=True)
    again = client.sink("query-1")
    again.open()
    with pytest.raises(SinkFenced):
        sink.commit(0, [])
    with pytest.raises(StageLost):
        again.commit(0, [left])
    assert again.commit(0, [], attributes={"checkpoint": "/other"}).outcome == "committed"
    assert stored(client) == [b"a"]


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


def test_an_older_run_is_fenced_by_the_commit_of_a_newer_one_and_not_before(
    server: Server, client: Client, sink: Sink
) -> None:
    sink.commit(0, [sink.stage(rows(b"a"), "orders", 0)])
    newer = client.sink("query-1")
    newer.open()
    late, left = sink.stage(rows(b"late"), "orders", 0), sink.stage(rows(b"left"), "orders", 1)
    sink.commit(1, [late])
    newer.commit(2, [newer.stage(rows(b"b"), "orders", 0)])
    for act in (
        lambda: sink.commit(3, []),
        lambda: sink.stage(rows(b"c"), "orders", 0),
        sink.open,
    ):
        with pytest.raises(SinkFenced) as error:
            act()
        assert error.value.epoch == newer.epoch
    assert stored(client) == [b"a", b"late", b"b"]
    store = server.backend.sinks._store_of("orders", left.partition)
    eventually(lambda: not store.staged().stages, what="what the older run had staged went")
    with pytest.raises(StageLost):
        newer.commit(3, [left])


def test_what_a_run_staged_may_be_committed_by_the_next_one(client: Client, sink: Sink) -> None:
    stage = sink.stage(rows(b"a"), "orders", 0)
    newer = client.sink("query-1")
    newer.open()
    assert newer.commit(0, [stage]).outcome == "committed"
    assert stored(client) == [b"a"]


def test_tasks_of_one_run_share_its_epoch(client: Client, sink: Sink) -> None:
    """Each of them may open; so may a driver whose answer was lost."""
    tasks = [client.sink("query-1", owner="run-7") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Sink.open, tasks))
    assert len({task.epoch for task in tasks}) == 1
    stages = [task.stage(rows(b"%d" % n), "orders", n % 2) for n, task in enumerate(tasks)]
    assert tasks[3].commit(0, stages).outcome == "committed"
    assert len(stored(client, 0) + stored(client, 1)) == 8


def test_a_run_ends_its_sink_for_one_batch_and_no_other(client: Client, sink: Sink) -> None:
    """Also after a commit that was refused: what it has named goes, too. What was committed stays."""
    job, other, done = client.sink("job", owner="me"), client.sink("job", owner="another"), client.sink("done")
    job.open(one_shot=True)
    left = [job.stage(rows(b"left"), "orders", partition) for partition in (0, 1)]
    with pytest.raises(StageLost):
        job.commit(0, [*left, replace(left[0], stage=A)])
    for stranger in (other, sink):
        with pytest.raises(InvalidRequest if stranger is sink else SinkFenced):
            stranger.end()
    assert {each.sink for each in client.sinks()} == {"job", "query-1"}
    for _ in range(2):
        job.end()
    assert not any(held.stages for each in client.sinks(staged=True) for held in each.staged or ())
    done.open(one_shot=True)
    done.commit(0, [done.stage(rows(b"a"), "orders", 0)])
    done.end()
    assert stored(client) == [b"a"]
    other.open(one_shot=True)
    job.end()
    with pytest.raises(SinkFenced):
        other.end()
    other.commit(0, [other.stage(rows(b"b"), "orders", 0)])
    assert stored(client) == [b"a", b"b"]
    for wrong in ({}, {"owner": ""}, {"owner": 5}, {"owner": "me", "more": 1}):
        with pytest.raises(InvalidRequest):
            client._calls.json("POST", "/v1/sinks/job/end", wrong)


@pytest.mark.parametrize("has_opened", [False, True])
def test_nothing_of_a_run_that_has_ended_its_sink_is_taken_any_more(client: Client, has_opened: bool) -> None:
    """Whatever comes late: a task that opens, stages in a part or in a bundle, renews or commits. An abort may come."""
    job, late = client.sink("job", owner="me"), client.sink("job", owner="me")
    stages = []
    if has_opened:
        job.open(one_shot=True)
        stages = [job.stage(rows(b"left"), "orders", 0)]
    late.epoch = job.epoch or 0
    job.end()
    part = BundledPart(partition=0, stage=A, part=0, is_last=True, rows=1)
    calls: list[Callable[[], Any]] = [
        lambda: late.open(one_shot=True),
        lambda: late.open(),
        late.renew,
        lambda: late.stage(rows(b"late"), "orders", 0),
        lambda: late.send_bundle([part], [rows(b"late")], "orders", incarnation=None),
        lambda: late.commit(0, stages),
        lambda: late.commit(1, []),
    ]
    for call in calls:
        with pytest.raises(SinkFenced):
            call()
    assert late.abort(stages) == 0
    assert late.adopt("/elsewhere").one_shot
    assert late.reset(0).one_shot
    for call in calls:
        with pytest.raises(SinkFenced):
            call()
    assert stored(client) == []
    assert not any(held.stages for each in client.sinks(staged=True) for held in each.staged or ())


def test_an_epoch_is_given_to_one_owner_also_after_a_delete(client: Client) -> None:
    given = []
    for n in range(3):
        for owner in ("a", "b"):
            sink = client.sink("again", owner=f"{owner}{n}")
            sink.open()
            given.append(sink.epoch)
        sink.delete()
    assert len(set(given)) == 6
    assert given == sorted(given)  # type: ignore[type-var]


def test_a_sink_is_taken_over_more_often_than_its_broker_has_started(client: Client, sink: Sink) -> None:
    """The epoch of a sink is not that of the partition's leader, which counts starts."""
    leader_epoch = client.describe("orders").partitions[0].leader_epoch
    while sink.epoch is None or sink.epoch <= leader_epoch + 3:
        sink = client.sink("query-1")
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
    with pytest.raises(InvalidRequest, match="not open"):
        sink.commit(4, [])
    sink.open()
    assert sink.commit(4, [], attributes={"checkpoint": "/copy"}).outcome == "committed"
    named = client.sink("query-1", owner="run-1")
    named.open()
    named.reset(4)
    for act in (lambda: named.commit(4, []), named.open):
        with pytest.raises(SinkFenced):
            act()


def test_a_commit_may_name_more_stages_than_other_lists_have_items(client: Client, api: Api, sink: Sink) -> None:
    """200 tasks that write to 64 partitions name 12,800. (That many are committed in unit/sinks/test_drivers.py.)"""
    known = sink.stage(rows(b"a"), "orders", 0).as_json()
    stages = [known, *({"stream": "orders", "partition": n % 2, "stage": f"{n:032x}"} for n in range(12_800))]
    body = {"owner": sink.owner, "epoch": sink.epoch, "batch_id": 0, "rows": 1}
    assert api.post("/v1/sinks/query-1/commit", {**body, "stages": stages}).reason == "stage_lost"
    assert api.post("/v1/sinks/query-1/abort", {"stages": stages}).json() == {"dropped": 1}
    too_many = api.post("/v1/sinks/query-1/commit", {**body, "stages": stages * 4})
    assert (too_many.status, too_many.reason) == (400, "invalid_request")


def test_a_one_shot_sink_says_so(client: Client) -> None:
    """When it vanishes: unit/sinks/test_rounds.py."""
    sink = client.sink("job")
    assert sink.open(one_shot=True).one_shot
    assert sink.commit(0, [sink.stage(rows(b"a"), "orders", 0)]).sink.one_shot
    assert sink.commit(0, [sink.stage(rows(b"a"), "orders", 0)]).outcome == "already_done"
    assert not client.sink("query-1").open().one_shot
    with pytest.raises(InvalidRequest):
        client._calls.json("POST", "/v1/sinks/job/open", {"owner": "o", "one_shot": 1})


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
        {"owner": None},
        {"owner": ""},
        {"rows": None},
        {"rows": -1},
        {"stages": None},
        {"batch_id": -1},
        {"stages": [{"stream": "orders", "partition": 0}]},
        {"stages": [{"stream": "orders", "partition": 0, "stage": "z" * 32}]},
        {"stages": [{"stream": "orders", "partition": 0, "stage": A}] * 2},
        {"attributes": {"checkpoint": 5}},
        {"attributes": []},
        {"attributes": {"\ud800": "half a character, which the ledger could not be read with again"}},
        {"on_repeat_with_other_rows": "maybe"},
        {"on_repeat_with_other_rows": 1},
        {"on_new_destination": "ask"},
        {"extra": 1},
    ],
)
def test_a_commit_that_cannot_be_is_refused(sink: Sink, api: Api, body: dict[str, Any]) -> None:
    whole = {"owner": sink.owner, "epoch": sink.epoch, "batch_id": 0, "stages": [], "rows": 0, **body}
    given = {key: value for key, value in whole.items() if value is not None} if body else {}
    answer = api.post("/v1/sinks/query-1/commit", given)
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


def test_an_open_sink_renews_by_itself_and_what_it_has_staged_is_told(client: Client, sink: Sink) -> None:
    assert sink.renew_ms == 10_000
    assert sink.renew() == 10_000
    assert client.sinks()[0].staged is None
    sink.stage(rows(b"a"), "orders", 1)
    assert sink.epoch is not None
    other = client.sink("query-1", owner="other", epoch=sink.epoch)
    other.stage(rows(b"b", b"c"), "orders", 0)
    ((held,),) = [found.staged for found in client.sinks(staged=True)]
    assert (held.owner, held.epoch, held.stages, held.pinned, held.is_silent) == (sink.owner, sink.epoch, 2, 0, False)
    assert held.byte_count > 0
    with pytest.raises(SinkFenced):
        other.renew()
    with pytest.raises(UnknownSink):
        client.sink("nobody").renew()


# --- bundles


def part(partition: int, stage: str, count: int, *, number: int = 0, last: bool = True) -> BundledPart:
    return BundledPart(partition=partition, stage=stage, part=number, is_last=last, rows=count)


def test_parts_of_many_partitions_in_one_request_are_stages_as_any_other(client: Client, sink: Sink) -> None:
    b, c = "b" * 32, "c" * 32
    parts = [part(1, A, 2), part(0, b, 1, last=False), part(0, c, 0)]
    for _ in range(2):  # the same again is stored once
        assert sink.send_bundle(parts, [rows(b"1", b"2"), rows(b"3")], "orders", incarnation=None) == ()
    sink.send_part([rows(b"4")], "orders", 0, b, 1, is_last=True, incarnation=None)
    assert client.read("orders").to_table().num_rows == 0
    stages = [
        Stage(stream="orders", partition=1, stage=A, parts=1, rows=2),
        Stage(stream="orders", partition=0, stage=b, parts=2, rows=2),
        Stage(stream="orders", partition=0, stage=c, parts=1, rows=0),
    ]
    sink.commit(0, stages)
    found = [client.read("orders", partitions=[n]).to_table().column("value").to_pylist() for n in (0, 1)]
    assert found == [[b"3", b"4"], [b"1", b"2"]]


def test_a_bundle_that_is_none_is_refused_and_stores_nothing(client: Client, sink: Sink, api: Api) -> None:
    def send(*parts: BundledPart, values: tuple[bytes, ...] = (b"1",), incarnation: str | None = None) -> None:
        sink.send_bundle(parts, [rows(*values)], "orders", incarnation=incarnation)

    with pytest.raises(InvalidRecords, match="2 records by their head, the body has 1"):
        send(part(0, A, 2))
    with pytest.raises(UnknownPartition):
        send(part(0, A, 1), part(2, "b" * 32, 0))
    with pytest.raises(StaleIncarnation):
        send(part(0, A, 1), incarnation="0" * 32)
    with pytest.raises(InvalidRequest, match="stage"):
        send(part(0, "short", 1))
    sink.epoch, epoch = 10**6, sink.epoch
    with pytest.raises(SinkFenced):
        send(part(0, A, 1))
    sink.epoch = epoch
    target = f"/v1/streams/orders/stages?sink=query-1&epoch={epoch}"
    headers = {"Content-Type": "application/octet-stream"}
    assert "'head' is missing" in api.request("POST", target, body=b"{}", headers=headers).problem["detail"]
    for body in (b"[]", b'{"parts": []}', b"{"):
        assert api.request("POST", f"{target}&head={len(body)}", body=body, headers=headers).reason == "invalid_request"
    assert client.sinks(staged=True)[0].staged == ()
    with pytest.raises(StageLost):
        sink.commit(0, [Stage(stream="orders", partition=0, stage=A, parts=1, rows=1)])


def test_parts_of_a_bundle_may_be_large_and_have_headers(client: Client, sink: Sink) -> None:
    """Small ones without are composed otherwise."""
    large = rows(*(b"%d" % n for n in range(2 * SMALL_ROWS)), bytes(SMALL_BYTES))
    count = large.num_rows
    parts = [part(0, A, count), part(1, "b" * 32, 1)]
    assert sink.send_bundle(parts, [large, rows(b"x")], "orders", incarnation=None) == ()
    headed = pa.RecordBatch.from_pydict(
        {"value": [b"y"], "headers": pa.array([[{"key": "k", "value": b"v"}]], HEADERS_TYPE)}
    )
    assert sink.send_bundle([part(1, "c" * 32, 1)], [headed], "orders", incarnation=None) == ()
    named = [(0, A, count), (1, "b" * 32, 1), (1, "c" * 32, 1)]
    sink.commit(0, [Stage(stream="orders", partition=n, stage=stage, parts=1, rows=many) for n, stage, many in named])
    found = [client.read("orders", partitions=[n]).to_table() for n in (0, 1)]
    assert found[0].column("value").to_pylist() == large.column(0).to_pylist()
    assert found[1].column("value").to_pylist() == [b"x", b"y"]
    assert found[1].column("headers").to_pylist() == [None, [{"key": "k", "value": b"v"}]]
