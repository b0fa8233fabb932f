"""Goal: a sink does not go on in silence where a stream that it wrote was deleted and made anew.

Method: write, delete, create, commit, through the client and by hand; each answer is held against the contract.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from broker.api.errors import SinkDestinationNew, StageLost
from broker.client import Client, connect
from broker.client.sinks import Sink
from tests.unit.serving.server import Api, Server


@pytest.fixture
def client(server: Server, api: Api) -> Iterator[Client]:
    for name in ("orders", "other"):
        api.create(name, partitions=2)
    with connect(f"127.0.0.1:{server.port}", deadline_s=0) as client:
        yield client


def run_of(client: Client) -> Sink:
    sink = client.sink("query-1")
    sink.open()
    return sink


def write(sink: Sink, batch_id: int, value: bytes, *streams: str, accept: bool = False) -> str:
    rows = pa.record_batch({"value": pa.array([value], pa.binary())})
    stages = [sink.stage(rows, stream, 0) for stream in streams or ("orders",)]
    return sink.commit(batch_id, stages, on_new_destination="accept" if accept else "refuse").outcome


def anew(client: Client, stream: str = "orders") -> None:
    client.delete_stream(stream)
    client.create_stream(stream, partitions=2)


def stored(client: Client, stream: str = "orders") -> list[bytes]:
    found: list[bytes] = client.read(stream).to_table().column("value").to_pylist()
    return found


def test_a_stream_made_anew_between_two_runs_is_refused_until_it_is_accepted(client: Client) -> None:
    for batch in range(3):
        write(run_of(client), batch, b"old")
    anew(client)
    with pytest.raises(
        SinkDestinationNew, match=r"'query-1'.*batch 3.*'orders'.*last batch 2.*on_new_destination"
    ) as error:
        write(run_of(client), 3, b"new")
    assert (error.value.sink, error.value.stream) == ("query-1", "orders")
    assert (error.value.batch_id, error.value.last_batch_id) == (3, 2)
    assert stored(client) == []
    accepting = run_of(client)
    assert write(accepting, 3, b"new", accept=True) == "committed"
    assert write(accepting, 4, b"new") == "committed", "it is the destination from now on"
    assert stored(client) == [b"new", b"new"]


def test_a_reset_sink_writes_to_the_stream_made_anew(client: Client) -> None:
    write(run_of(client), 0, b"old")
    anew(client)
    client.sink("query-1").reset(0)
    assert write(run_of(client), 0, b"again") == "committed"
    assert stored(client) == [b"again"]


def test_the_last_batch_again_is_not_answered_as_written(client: Client) -> None:
    """Spark repeats it after a crash: its rows went with the stream."""
    write(run_of(client), 0, b"a")
    anew(client)
    again = run_of(client)
    with pytest.raises(SinkDestinationNew, match="batch 0"):
        write(again, 0, b"a")
    assert write(again, 0, b"a", accept=True) == "already_done"
    assert stored(client) == []


def test_the_same_commit_again_is_answered_as_before(client: Client) -> None:
    """Its answer was lost, and the stream deleted since: as if that had come after the answer."""
    sink = run_of(client)
    stages = [sink.stage(pa.record_batch({"value": pa.array([b"a"], pa.binary())}), "orders", 0)]
    sink.commit(0, stages)
    anew(client)
    assert sink.commit(0, stages).outcome == "already_done"


def test_batches_without_rows_and_to_other_streams_do_not_hide_it(client: Client) -> None:
    sink = run_of(client)
    write(sink, 0, b"a", "orders", "other")
    sink.commit(1, [])
    write(sink, 2, b"b", "other")
    assert client.sink("query-1").describe().destinations == {
        name: client.describe(name).incarnation for name in ("orders", "other")
    }
    anew(client)
    write(sink, 3, b"c", "other")
    with pytest.raises(SinkDestinationNew, match="'orders'"):
        write(run_of(client), 4, b"d", "other", "orders")
    assert stored(client, "other") == [b"a", b"b", b"c"]


def test_a_stream_made_anew_between_stage_and_commit_is_refused(client: Client) -> None:
    """And not only as a stage that is lost: the next run would stage anew, and go on."""
    sink = run_of(client)
    write(sink, 0, b"a")
    rows = pa.record_batch({"value": pa.array([b"b"], pa.binary())})
    stages = [sink.stage(rows, "orders", 0)]
    anew(client)
    with pytest.raises(SinkDestinationNew):
        sink.commit(1, stages)
    with pytest.raises(SinkDestinationNew):
        write(run_of(client), 1, b"b")
    with pytest.raises(StageLost):
        sink.commit(1, stages, on_new_destination="accept")
    assert stored(client) == []


def test_a_stream_that_the_sink_has_not_written_is_no_new_destination(client: Client) -> None:
    anew(client)
    sink = run_of(client)
    write(sink, 0, b"a")
    anew(client, "other")
    assert write(sink, 1, b"b", "other") == "committed"
