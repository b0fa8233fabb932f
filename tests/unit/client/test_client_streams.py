"""Streams, positions, consumers and the cluster by the client, against a real server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from broker.api.answers import StreamDescription
from broker.api.errors import (
    InvalidName,
    InvalidRequest,
    InvalidSetting,
    OffsetOutOfRange,
    StaleIncarnation,
    StreamExists,
    Unavailable,
    UnknownConsumer,
    UnknownSetting,
    UnknownStream,
)
from broker.client.client import Client, connect
from broker.client.http.calls import understand
from broker.client.positions import Position, at_json
from tests.support.processes import free_port
from tests.unit.serving.server import Server

NewStream = Callable[..., str]


def values(count: int, prefix: str = "") -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([f"{prefix}{i}".encode() for i in range(count)], pa.binary())})


def test_a_stream_is_created_described_altered_listed_and_deleted(client: Client) -> None:
    created = client.create_stream("life", subject="life.>", partitions=3, partition_by="subject", retention_ms=60_000)
    assert created.settings["retention_ms"] == 60_000
    assert [p.partition for p in created.partitions] == [0, 1, 2]
    assert created.record_count == 0
    assert client.describe("life") == created
    assert client.alter("life", retention_ms=None).settings["retention_ms"] is None
    assert "life" in [stream.name for stream in client.streams()]
    assert "__offsets" in [stream.name for stream in client.streams(internal=True)]
    client.delete_stream("life")
    with pytest.raises(UnknownStream):
        client.describe("life")


def test_creating_twice_succeeds_with_the_same_settings_and_says_what_differs_otherwise(client: Client) -> None:
    first = client.create_stream("twice", subject="twice")
    assert client.create_stream("twice", subject="twice").incarnation == first.incarnation
    with pytest.raises(StreamExists) as caught:
        client.create_stream("twice", subject="thrice", partitions=2)
    assert caught.value.differences == {"subject": ["twice", "thrice"], "partitions": [1, 2]}


def test_a_stream_is_paused_sealed_trimmed_and_given_partitions(client: Client, new_stream: NewStream) -> None:
    name = new_stream()
    client.append(name, 0, values(10))
    assert client.describe(name).state == "open"
    assert client.pause(name).state == "paused"
    assert client.set_read_only(name).state == "paused, read-only"
    assert client.resume(name).state == "read-only"
    assert client.set_read_only(name, False).state == "open"
    assert len(client.add_partitions(name, 2).partitions) == 2
    assert client.trim(name, before=4, partitions=[0]) == {0: 4}
    assert client.trim(name, before=datetime(2001, 1, 1, tzinfo=UTC)) == {0: 4, 1: 0}
    with pytest.raises(OffsetOutOfRange) as caught:
        client.trim(name, before=11)
    assert (caught.value.log_start_offset, caught.value.high_watermark) == (4, 10)
    with pytest.raises(InvalidRequest, match="no record is before"):
        client.trim(name, before="earliest")
    assert client.trim(name, before="latest") == {0: 10, 1: 0}
    assert client.read(name).to_table().num_rows == 0


def test_appends_to_a_paused_stream_are_tried_again_until_it_is_resumed(client: Client, new_stream: NewStream) -> None:
    name = new_stream()
    client.pause(name)
    with ThreadPoolExecutor(1) as pool:
        appended = pool.submit(client.append, name, 0, values(3))
        assert not wait([appended], timeout=0.3).done
        client.resume(name)
        assert appended.result(60).first_offset == 0
    assert client.describe(name).record_count == 3


def test_what_is_wrong_with_a_stream_comes_out_as_its_own_error(client: Client) -> None:
    with pytest.raises(InvalidName):
        client.create_stream("a b")
    with pytest.raises(UnknownSetting) as caught:
        client.create_stream("wrong", partition=3)
    assert caught.value.nearest == "partitions"
    with pytest.raises(InvalidSetting):
        client.create_stream("wrong", partitions=0)
    with pytest.raises(UnknownStream):
        client.alter("nobody", retention_ms=1)


def test_whether_it_was_made_or_was_there_is_told(client: Client, new_stream: Callable[..., str]) -> None:
    name = new_stream()
    assert client.create_stream(name).created is False
    assert client.describe(name).created is None
    assert client.delete_stream(name) is True
    assert client.create_stream(name).created is True


def test_a_missing_stream_may_be_deleted_if_so_asked(client: Client) -> None:
    assert client.delete_stream("nobody", missing_ok=True) is False
    with pytest.raises(UnknownStream):
        client.delete_stream("nobody")


def test_a_name_that_needs_quoting_reaches_the_broker_as_it_is(client: Client) -> None:
    for name in ("a/b", "a?b=c", "ä", "..", "a%2Fb"):
        with pytest.raises(InvalidRequest):
            client.describe(name)
    for name in ("\udcff", "a\ud800"):  # of an argument that is no UTF-8
        with pytest.raises(InvalidName):
            client.describe(name)
        with pytest.raises(InvalidName):
            client.read(name)


def test_positions_are_resolved_together_and_fail_alone(client: Client, new_stream: NewStream) -> None:
    name = new_stream()
    client.append(name, 0, values(10))
    soon = datetime.now(UTC) + timedelta(hours=1)
    found = client.resolve(
        [
            Position(name, 0, "earliest"),
            Position(name, 0, "latest"),
            Position(name, 0, 4),
            Position(name, 0, soon),
            Position(name, 0, datetime(2001, 1, 1, tzinfo=UTC)),
            Position(name, 0, 11),
            Position("nobody", 0, "latest"),
            Position(name, 0, "latest", incarnation="other"),
        ]
    )
    assert [r.offset for r in found] == [0, 10, 4, None, 0, None, None, None]
    assert [type(r.error) for r in found[5:]] == [OffsetOutOfRange, UnknownStream, StaleIncarnation]
    assert found[0].bytes_ahead
    assert found[1].bytes_ahead == 0
    assert (found[0].leader_epoch, found[0].high_watermark) == (-1, 10)


@pytest.mark.parametrize("wrong", ["yesterday", -1, True, 1.5, None, datetime(2024, 1, 1)])
def test_what_is_no_position_is_refused_before_anything_is_sent(wrong: Any) -> None:
    with pytest.raises(InvalidRequest):
        at_json(wrong)


def test_a_watch_tells_the_heads_and_waits_for_a_change(client: Client, new_stream: NewStream) -> None:
    name = new_stream(partitions=2)
    first = client.watch(streams=[name])
    assert {p: head.high_watermark for p, head in first.streams[name].partitions.items()} == {0: 0, 1: 0}
    assert client.watch(first.version, name, max_wait_s=0.05).streams[name] == first.streams[name]
    client.append(name, 1, values(5))
    second = client.watch(first.version, [name], max_wait_s=60)
    assert second.streams[name].partitions[1].high_watermark == 5
    assert second.version != first.version


def test_a_consumer_commits_lags_resets_and_is_forgotten(client: Client, new_stream: NewStream) -> None:
    name = new_stream(partitions=2)
    client.append(name, 0, values(10))
    client.append(name, 1, values(4))
    consumer = f"reads-{name}"
    assert client.commit(consumer, {name: {0: 3, 1: 4}}, metadata="half way") == 2
    found = client.consumer(consumer)
    assert found.offsets(name) == {0: 3, 1: 4}
    assert (found.lag, client.lag(consumer)) == (7, 7)
    assert {p.metadata for p in found.partitions} == {"half way"}
    assert consumer in [c.consumer for c in client.consumers()]
    assert client.commit(consumer, [{"stream": name, "partition": 0, "offset": 10, "leader_epoch": 1}]) == 1
    assert client.lag(consumer) == 0
    assert client.reset(consumer, name, "earliest", partitions=[1]).lag == 4
    assert client.reset(consumer, name, 2).lag == 8 + 2
    assert client.reset(consumer, name, "latest").lag == 0
    assert client.delete_consumer(consumer)
    with pytest.raises(UnknownConsumer):
        client.consumer(consumer)
    with pytest.raises(UnknownConsumer):
        client.delete_consumer(consumer)
    assert not client.delete_consumer(consumer, missing_ok=True)


def test_what_a_reader_read_is_what_a_consumer_commits(client: Client, new_stream: NewStream) -> None:
    name = new_stream(partitions=3)
    for partition in range(3):
        client.append(name, partition, values(partition))
    with client.read(name) as reader:
        assert reader.to_table().num_rows == 3
        client.commit("reader", {name: reader.positions})
    assert client.consumer("reader").offsets(name) == {0: 0, 1: 1, 2: 2}
    assert client.lag("reader") == 0
    client.append(name, 2, values(5))
    assert client.read(name, start=client.consumer("reader").offsets(name)).to_table().num_rows == 5


def test_the_cluster_and_its_readiness(client: Client, server: Server) -> None:
    cluster = client.cluster()
    assert [b.id for b in cluster.brokers] == ["broker-0"]
    assert cluster.cluster_id == "cluster-of-the-tests"
    assert client.ready()
    server.backend.missing["nats"] = "not connected"
    try:
        readiness = client.ready()
        assert not readiness
        assert readiness.missing == {"nats": "not connected"}
    finally:
        server.backend.missing.clear()


def test_a_broker_that_is_not_there_is_passed_over(server: Server) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with connect([nobody, f"127.0.0.1:{server.port}"], deadline_s=0) as client:
        assert client.cluster().brokers
        assert client.ready()
        client.delete_stream("nobody", missing_ok=True)


def test_nobody_at_all_is_an_error_that_names_every_address() -> None:
    a, b = f"127.0.0.1:{free_port()}", f"localhost:{free_port()}"
    with connect([a, b], deadline_s=0) as client:
        with pytest.raises(Unavailable) as caught:
            client.ready()
        with pytest.raises(Exception, match="Connection refused") as gave_up:
            client.streams()
    for text in (str(caught.value), str(gave_up.value)):
        assert a in text
        assert b in text


def test_descriptions_show_as_tables_in_notebooks(client: Client, new_stream: NewStream) -> None:
    name = new_stream(subject="<b>")
    client.commit("shown", {name: {0: 0}})
    for shown in (client.describe(name), client.consumer("shown")):
        html = shown._repr_html_()
        assert html.startswith("<table>")
        assert "<b>" not in html


def test_an_answer_of_another_shape_is_an_error_that_names_what_is_missing() -> None:
    with pytest.raises(Exception, match=r"does not understand .*incarnation") as caught:
        understand(StreamDescription, {"name": "a"}, where="broker:1")
    assert "broker:1" in str(caught.value)
