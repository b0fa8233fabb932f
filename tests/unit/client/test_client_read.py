"""Reading by the client, against a real server: ranges, order, projection, following."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from broker.api.errors import InvalidRequest, OffsetOutOfRange, StaleIncarnation, UnknownPartition, UnknownStream
from broker.api.schema import SCHEMA
from broker.client import reader as reader_module
from broker.client.client import Client
from broker.client.reader import RecordReader
from tests.support.processes import eventually

NewStream = Callable[..., str]


def values(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"%d" % i for i in range(first, first + count)], pa.binary())})


@pytest.fixture
def three(client: Client, new_stream: NewStream) -> str:
    """Partitions 0, 1, 2 with 30, 0 and 12 records, in batches of 6."""
    name = new_stream(partitions=3)
    for partition, count in ((0, 30), (2, 12)):
        for first in range(0, count, 6):
            client.append(name, partition, values(first, 6))
    return name


@pytest.fixture
def one(client: Client, new_stream: NewStream) -> str:
    """One partition, 30 records in batches of 6."""
    name = new_stream()
    for first in range(0, 30, 6):
        client.append(name, 0, values(first, 6))
    return name


def offsets(reader: RecordReader) -> list[int]:
    found: list[int] = reader.to_table().column("offset").to_pylist()
    return found


def test_a_whole_stream_comes_partition_after_partition_in_offset_order(client: Client, three: str) -> None:
    table = client.read(three).to_table()
    assert table.schema == SCHEMA.append(pa.field("partition", pa.int32(), nullable=False))
    assert table.column("partition").to_pylist() == [0] * 30 + [2] * 12
    assert table.column("offset").to_pylist() == [*range(30), *range(12)]
    assert [int(v) for v in table.column("value").to_pylist()] == [*range(30), *range(12)]


def test_a_stream_of_one_partition_has_the_record_schema_itself(client: Client, one: str) -> None:
    batches = list(client.read(one))
    assert {batch.schema for batch in batches} == {SCHEMA}
    assert sum(batch.num_rows for batch in batches) == 30


def test_ranges_are_cut_to_the_offset(client: Client, one: str) -> None:
    assert offsets(client.read(one, start=7, end=20)) == list(range(7, 20))
    assert offsets(client.read(one, start=29)) == [29]
    assert offsets(client.read(one, start=30)) == []
    assert offsets(client.read(one, start="latest")) == []
    assert offsets(client.read(one, start=4, end=4)) == []
    assert offsets(client.read(one, start=4, end="latest")) == list(range(4, 30))


def test_each_partition_can_have_its_own_range(client: Client, three: str) -> None:
    table = client.read(three, partitions=[2, 0], start={0: 28, 2: "earliest"}, end={2: 3}).to_table()
    assert table.select(["partition", "offset"]).to_pylist() == [
        {"partition": p, "offset": o} for p, o in ((0, 28), (0, 29), (2, 0), (2, 1), (2, 2))
    ]


def test_a_time_begins_at_the_first_record_that_is_not_older(client: Client, new_stream: NewStream) -> None:
    name = new_stream()
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    times = [noon + timedelta(minutes=i) for i in range(10)]
    kind = pa.timestamp("us", tz="UTC")
    client.append(name, 0, pa.record_batch({"value": [b"x"] * 10, "timestamp": pa.array(times, kind)}))
    assert offsets(client.read(name, start=noon + timedelta(minutes=3))) == list(range(3, 10))
    assert offsets(client.read(name, start=noon + timedelta(seconds=90), end=noon + timedelta(minutes=4))) == [2, 3]
    assert offsets(client.read(name, start=noon + timedelta(hours=1))) == []
    assert offsets(client.read(name, end=noon + timedelta(hours=1))) == list(range(10))


def test_columns_are_projected(client: Client, three: str, one: str) -> None:
    assert client.read(three, columns=["value"]).to_table().column_names == ["value"]
    table = client.read(one, columns=["partition", "offset"]).to_table()
    assert table.column_names == ["partition", "offset"]
    assert set(table.column("partition").to_pylist()) == {0}
    for wrong in (["nope"], [], ["value", "value"]):
        with pytest.raises(InvalidRequest):
            client.read(one, columns=wrong)


def test_positions_follow_what_was_handed_out(client: Client, three: str) -> None:
    with client.read(three) as reader:
        assert reader.positions == {0: 0, 1: 0, 2: 0}
        next(reader)
        assert reader.positions == {0: 6, 1: 0, 2: 0}
        rest = reader.to_table().num_rows
        assert rest == 36
        assert reader.positions == {0: 30, 1: 0, 2: 12}


def test_small_answers_add_up_to_the_same_rows(client: Client, one: str) -> None:
    assert offsets(client.read(one, start=3, max_bytes=1)) == list(range(3, 30))


def test_an_empty_stream_gives_a_table_without_rows(client: Client, new_stream: NewStream) -> None:
    assert client.read(new_stream()).to_table() == SCHEMA.empty_table()


def test_pandas_and_polars_get_the_same_rows(client: Client, one: str) -> None:
    assert client.read(one).to_pandas()["offset"].tolist() == list(range(30))
    assert client.read(one).to_polars()["offset"].to_list() == list(range(30))


def test_what_cannot_be_read_is_refused_before_reading(client: Client, one: str) -> None:
    with pytest.raises(UnknownStream):
        client.read("nobody")
    with pytest.raises(UnknownPartition):
        client.read(one, partitions=[1])
    with pytest.raises(InvalidRequest, match="at least one"):
        client.read(one, partitions=[])
    with pytest.raises(OffsetOutOfRange) as caught:
        client.read(one, start=31)
    assert (caught.value.log_start_offset, caught.value.high_watermark) == (0, 30)
    with pytest.raises(OffsetOutOfRange):
        client.read(one, end=31)
    with pytest.raises(InvalidRequest, match="the end, 5, is before the start, 9"):
        client.read(one, start=9, end=5)
    with pytest.raises(InvalidRequest, match="partition 7"):
        client.read(one, start={7: 0})
    with pytest.raises(InvalidRequest, match="never ends"):
        client.read(one, follow=True, end=10)
    with pytest.raises(InvalidRequest, match="never ends"):
        client.read(one, follow=True).to_table()


class Follower:
    """Reads on in a thread."""

    def __init__(self, reader: RecordReader) -> None:
        self.reader = reader
        self.rows: list[tuple[int, int]] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for batch in self.reader:
                has_partition = "partition" in batch.schema.names
                partitions = batch.column("partition").to_pylist() if has_partition else [0] * batch.num_rows
                self.rows += zip(partitions, batch.column("offset").to_pylist(), strict=True)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.reader.close()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def follow(client: Client) -> Iterator[Callable[..., Follower]]:
    followers: list[Follower] = []

    def start(stream: str, **options: object) -> Follower:
        followers.append(Follower(client.read(stream, follow=True, **options)))  # type: ignore[arg-type]
        return followers[-1]

    yield start
    for follower in followers:
        follower.end()


def test_a_following_read_goes_on_with_what_is_appended(
    client: Client, one: str, follow: Callable[..., Follower]
) -> None:
    follower = follow(one, start=25)
    eventually(lambda: len(follower.rows) == 5)
    for first in range(3):
        client.append(one, 0, values(first, 4))
        eventually(lambda first=first: len(follower.rows) == 9 + 4 * first)  # type: ignore[misc]
    follower.end()
    assert follower.error is None
    assert follower.rows == [(0, o) for o in range(25, 42)]


def test_a_following_read_of_several_partitions_keeps_each_in_order(
    client: Client, three: str, follow: Callable[..., Follower]
) -> None:
    follower = follow(three)
    eventually(lambda: len(follower.rows) == 42)
    for round_number in range(4):
        for partition in (1, 2, 0):
            client.append(three, partition, values(0, 3))
        eventually(lambda n=round_number: len(follower.rows) == 42 + 9 * (n + 1))  # type: ignore[misc]
    follower.end()
    assert follower.error is None
    for partition, count in ((0, 42), (1, 12), (2, 24)):
        assert [o for p, o in follower.rows if p == partition] == list(range(count))


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_following_read_of_all_partitions_takes_in_those_that_are_added(
    client: Client,
    new_stream: NewStream,
    follow: Callable[..., Follower],
    partitions: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_module, "LOOK_S", 0.1)
    monkeypatch.setattr(reader_module, "WAIT_MS", 100)
    name = new_stream(partitions=partitions)
    client.append(name, 0, values(0, 5))
    everything = follow(name, start="latest", columns=["partition", "offset"])
    one_only = follow(name, partitions=[0], columns=["partition", "offset"])
    eventually(lambda: len(one_only.rows) == 5)
    eventually(lambda: everything.reader.positions[0] == 5)
    client.add_partitions(name, partitions + 2)
    client.append(name, partitions + 1, values(0, 3))
    client.append(name, 0, values(0, 2))
    eventually(lambda: len(everything.rows) == 5)
    eventually(lambda: len(one_only.rows) == 7)
    assert sorted(everything.rows) == [(0, 5), (0, 6), *((partitions + 1, o) for o in range(3))]
    assert {p for p, _ in one_only.rows} == {0}
    assert everything.reader.positions[partitions + 1] == 3


def test_a_following_read_takes_turns_between_partitions_that_are_behind(client: Client, new_stream: NewStream) -> None:
    name = new_stream(partitions=2, batch_records=10)
    for partition in (0, 1):
        client.append(name, partition, values(0, 100))
    with client.read(name, follow=True, max_bytes=1, columns=["partition", "offset"]) as reader:
        first = [next(reader).column("partition")[0].as_py() for _ in range(8)]
    assert first == [0, 1] * 4


def test_an_idle_following_read_is_closed_from_another_thread(one: str, follow: Callable[..., Follower]) -> None:
    follower = follow(one, start="latest")
    eventually(lambda: follower.thread.is_alive())
    began = time.monotonic()
    follower.end()
    assert time.monotonic() - began < 30
    assert (follower.rows, follower.error) == ([], None)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_following_read_notices_that_its_stream_was_deleted_or_re_created(
    client: Client, new_stream: NewStream, follow: Callable[..., Follower], partitions: int
) -> None:
    name = new_stream(partitions=partitions)
    follower = follow(name)
    client.append(name, 0, values(0, 3))
    eventually(lambda: len(follower.rows) == 3)
    client.delete_stream(name)
    client.create_stream(name, partitions=partitions)
    client.append(name, 0, values(0, 9))
    eventually(lambda: follower.error is not None)
    assert isinstance(follower.error, UnknownStream | StaleIncarnation)
    assert len(follower.rows) == 3


def test_whole_numbers_of_numpy_are_numbers(client: Client, three: str) -> None:
    """Offsets, partitions and times often come out of an array."""
    read = client.read(three, start={0: np.int64(10)}, end={0: np.int32(20)}, partitions=np.array([0]))  # type: ignore[dict-item]
    assert offsets(read) == list(range(10, 20))
    assert client.append(three, np.int64(1), values(0, 1)).partition == 1  # type: ignore[arg-type]
    assert client.commit("numpy", {three: {np.int64(0): np.int64(3)}}) == 1  # type: ignore[dict-item]
    assert client.trim(three, before=np.uint8(6), partitions=[np.int64(0)]) == {0: 6}  # type: ignore[arg-type, list-item]
    assert len(client.add_partitions(three, np.int64(4)).partitions) == 4  # type: ignore[arg-type]
    with client.producer(three, partition=3) as producer:
        sent = producer.send("x", timestamp=np.int64(1_000_000))  # type: ignore[arg-type]
    assert client.read(three, partitions=[3]).to_table().column("timestamp").to_pylist() == [
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    ]
    assert sent.result(60) == (3, 0)


@pytest.mark.parametrize(
    "asked, says",
    [
        ({"partitions": 0}, "partitions=0: must be a list of whole numbers"),
        ({"partitions": "01"}, "partitions='01': must be a list of whole numbers"),
        ({"partitions": [0.0]}, "must be a list of whole numbers"),
        ({"partitions": [True]}, "must be a list of whole numbers"),
        ({"start": np.float64(5)}, "must be 'earliest', 'latest', an offset"),
        ({"start": True}, "must be 'earliest', 'latest', an offset"),
        ({"columns": "value"}, "columns='value': must be a list of names"),
    ],
)
def test_an_argument_of_another_kind_is_refused_by_name(
    client: Client, one: str, asked: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        client.read(one, **asked)  # type: ignore[arg-type]


def test_columns_may_be_any_iterable_of_names(client: Client, one: str) -> None:
    for columns in (("value", "offset"), iter(["value", "offset"]), np.array(["value", "offset"])):
        assert client.read(one, columns=columns).to_table().schema.names == ["value", "offset"]


def test_a_closed_reader_is_at_its_end(client: Client, one: str) -> None:
    reader = client.read(one)
    next(reader)
    reader.close()
    reader.close()
    with pytest.raises(StopIteration):  # whoever is in the middle of it
        next(reader)
    with pytest.raises(InvalidRequest, match="closed"):  # whoever begins
        list(reader)


def test_a_reader_left_in_the_middle_leaves_the_pool_as_it_should_be(client: Client, one: str) -> None:
    with client.read(one) as reader:
        next(reader)
    assert client.read(one).to_table().num_rows == 30
    assert sum(map(len, client.brokers.pool._idle.values())) == 1


def sockets() -> int:
    """Open sockets of this process."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(entry).startswith("socket:")
    return found


@pytest.mark.parametrize("max_bytes", [None, 1])
def test_a_reader_dropped_half_read_closes_its_connection_at_once(
    client: Client, one: str, max_bytes: int | None
) -> None:
    """Whether or not its answer was received to the end; without a collection of cycles."""
    gc.disable()
    try:
        before = sockets()
        for _ in range(50):
            reader = client.read(one, max_bytes=max_bytes)
            assert next(reader).num_rows == 6
            del reader
        idle = sum(map(len, client.brokers.pool._idle.values()))
        assert idle <= 2
        eventually(lambda: sockets() <= before + 2 * idle, what="both ends are closed: the server is in this process")
    finally:
        gc.enable()
    assert client.read(one).to_table().num_rows == 30


def test_a_reader_that_the_collector_of_cycles_ends_harms_no_other(client: Client, one: str) -> None:
    """It ends the sockets of a cycle, too, in any order: none of them may come back into the pool."""
    gc.freeze()  # the collections below look only at what is made from here on
    for _ in range(50):
        cycle: list[object] = [client.read(one)]
        cycle.append(cycle)
        assert next(cycle[0]).num_rows == 6  # type: ignore[call-overload]
        del cycle
        gc.collect()
        assert client.describe(one).name == one
    assert all(c.sock.fileno() >= 0 for idle in client.brokers.pool._idle.values() for c, _ in idle)
