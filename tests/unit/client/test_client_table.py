"""The newest value of each key by the client, against a dictionary over the whole log, and a real server.

Method: appends, compactions, rolls and trims in any order. A log that was compacted gives the same table as one that
was not, or an error that names its compaction point.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.api.errors import InvalidRequest, NotSupported, OffsetOutOfRange, StaleIncarnation, UnknownStream
from broker.api.schema import SCHEMA
from broker.client.client import Client
from broker.client.reading import newest
from broker.client.reading.newest import Newest
from broker.client.table import KeyedTable, TableReading
from broker.storage.log import PartitionLog
from broker.storage.rewrite.compaction import CompactionSettings, compact
from tests.support.compacting import Keyed
from tests.support.effort import examples
from tests.unit.serving.server import Server

NewStream = Callable[..., str]
COMPACTION = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=0)
KEYED = {"cleanup": "both", "retention_ms": None, "partition_by": "key", "subject": None}

BINARY = pa.binary()

Log = dict[int, Keyed]
"""What was appended to a partition, by offset."""


def append(client: Client, stream: str, partition: int, *records: Keyed) -> None:
    keys, values = zip(*records, strict=True)
    client.append(
        stream, partition, pa.record_batch({"key": pa.array(keys, BINARY), "value": pa.array(values, BINARY)})
    )


def log_of(server: Server, stream: str, partition: int = 0) -> PartitionLog:
    return server.backend.partition(stream, partition).log


def compacted(log: PartitionLog) -> None:
    """Seal what there is, and compact it; a second pass removes the tombstones."""
    for _ in range(2):
        log.roll_if_due(1 << 60)
        compact(log, COMPACTION, map_bytes=1 << 14, now_us=time.time_ns() // 1000 + 1_000_000)


def newest_below(log: Log, start: int, end: int) -> dict[bytes, tuple[int, bytes]]:
    """The table by a dictionary."""
    found: dict[bytes, tuple[int, bytes | None]] = {}
    for at, (key, value) in sorted(log.items()):
        if start <= at < end and key is not None:
            found[key] = (at, value)
    return {key: (at, value) for key, (at, value) in found.items() if value is not None}


def by_key(table: KeyedTable) -> dict[bytes, tuple[int, bytes]]:
    rows = table.to_table().select(["key", "offset", "value"]).to_pylist()
    found = {row["key"]: (row["offset"], row["value"]) for row in rows}
    assert len(found) == len(rows) == len(table), "each key once"
    return found


STEP = st.one_of(
    st.tuples(
        st.just("append"),
        st.integers(0, 1),
        st.lists(st.tuples(st.sampled_from([None, "", "a", "b", "c"]), st.one_of(st.none(), st.binary(max_size=9)))),
    ),
    st.tuples(st.just("compact"), st.integers(0, 1), st.just([])),
    st.tuples(st.just("trim"), st.integers(0, 1), st.integers(0, 9)),
)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=20), tenths=st.tuples(st.integers(0, 10), st.integers(0, 10)))
def test_it_is_a_dictionary_over_the_whole_log(
    server: Server,
    client: Client,
    new_stream: NewStream,
    steps: list[tuple[str, int, Any]],
    tenths: tuple[int, int],
) -> None:
    stream = new_stream(partitions=2, **KEYED)
    logs: list[Log] = [{}, {}]
    starts = [0, 0]
    for kind, partition, what in steps:
        log = logs[partition]
        if kind == "append" and what:
            records = [
                (None, value or b"") if key is None else (f"{partition}{key}".encode(), value) for key, value in what
            ]
            log.update(enumerate(records, len(log)))
            append(client, stream, partition, *records)
        elif kind == "compact":
            compacted(log_of(server, stream, partition))
        elif kind == "trim":
            starts[partition] = max(starts[partition], len(log) * what // 10)
            client.trim(stream, before=starts[partition], partitions=[partition])

    def expected(ends: list[int]) -> dict[bytes, tuple[int, bytes]]:
        return newest_below(logs[0], starts[0], ends[0]) | newest_below(logs[1], starts[1], ends[1])

    ends = [len(log) for log in logs]
    table = client.table(stream)
    assert by_key(table) == expected(ends)
    assert table.positions == dict(enumerate(ends))
    points = [part.superseded_to for part in client.describe(stream).partitions]
    as_of = [max(starts[number], ends[number] * tenths[number] // 10) for number in range(2)]
    if any(at < (point or 0) for at, point in zip(as_of, points, strict=True)):
        with pytest.raises(OffsetOutOfRange, match="compaction has removed"):
            client.table(stream, dict(enumerate(as_of)))
    else:
        assert by_key(client.table(stream, dict(enumerate(as_of)))) == expected(as_of)


def test_the_rows_are_those_of_a_read(client: Client, new_stream: NewStream) -> None:
    stream = new_stream(**KEYED)
    append(client, stream, 0, (b"a", b"1"), (b"b", b"2"), (None, b"x"), (b"a", b"3"), (b"c", b"4"), (b"b", None))
    table = client.table(stream)
    whole = client.read(stream).to_table()
    assert table.schema == SCHEMA
    assert table.to_arrow().equals(whole.take([3, 4]))
    assert (table.without_key, table.positions, len(table)) == (1, {0: 6}, 2)
    assert table.to_pandas()["value"].tolist() == [b"3", b"4"]
    assert table.to_polars()["key"].to_list() == [b"a", b"c"]
    chosen = client.table(stream, columns=["value", "partition", "key"]).to_table()
    assert chosen.to_pydict() == {"value": [b"3", b"4"], "partition": [0, 0], "key": [b"a", b"c"]}


def test_a_stream_without_records_is_an_empty_table(client: Client, new_stream: NewStream) -> None:
    table = client.table(new_stream(partitions=2, **KEYED))
    assert (len(table), table.positions) == (0, {0: 0, 1: 0})
    assert table.to_table().schema == SCHEMA.append(pa.field("partition", pa.int32(), nullable=False))


def test_as_of_is_an_offset_or_a_time_and_exclusive(client: Client, new_stream: NewStream) -> None:
    stream = new_stream(**KEYED)
    append(client, stream, 0, (b"a", b"1"))
    append(client, stream, 0, (b"a", b"2"))
    second = client.read(stream, start=1).to_table()["timestamp"][0].as_py()
    for as_of in (1, {0: 1}):
        assert by_key(client.table(stream, as_of)) == {b"a": (0, b"1")}
    first = client.read(stream).to_table()["timestamp"][0].as_py()
    if first < second:
        assert by_key(client.table(stream, second)) == {b"a": (0, b"1")}
    assert by_key(client.table(stream, as_of=second + timedelta(seconds=1))) == {b"a": (1, b"2")}
    assert by_key(client.table(stream, datetime(2000, 1, 1, tzinfo=UTC))) == {}
    with pytest.raises(InvalidRequest, match="has no time zone"):
        client.table(stream, datetime(2000, 1, 1))
    with pytest.raises(OffsetOutOfRange, match="offset 3 is outside"):
        client.table(stream, 3)


def test_below_the_compaction_point_is_an_error_that_names_it(
    server: Server, client: Client, new_stream: NewStream
) -> None:
    stream = new_stream(**KEYED)
    append(client, stream, 0, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    compacted(log_of(server, stream))
    append(client, stream, 0, (b"a", b"4"))
    assert client.describe(stream).partitions[0].superseded_to == 3
    with pytest.raises(
        OffsetOutOfRange, match=f"{stream!r} partition 0: .* below 3 .* as of offset 2 .* as of 3"
    ) as found:
        client.table(stream, 2)
    assert (found.value.offset, found.value.superseded_to, found.value.high_watermark) == (2, 3, 4)
    with pytest.raises(OffsetOutOfRange, match="as of offset 1"):  # the first record that is still there
        client.table(stream, datetime(2000, 1, 1, tzinfo=UTC))
    assert by_key(client.table(stream, 3)) == {b"a": (2, b"3"), b"b": (1, b"2")}
    assert by_key(client.table(stream)) == {b"a": (3, b"4"), b"b": (1, b"2")}


def test_an_open_end_moves_up_with_a_compaction_and_one_that_was_asked_for_is_refused(
    server: Server, client: Client, new_stream: NewStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the plan and the read the only value of a key goes for a newer one behind the planned end."""
    read = TableReading._read
    once = count()

    def late(self: TableReading, *args: Any) -> None:
        if next(once) == 0:
            append(client, stream, 0, (b"a", b"newer"))
            compacted(log_of(server, stream))
        read(self, *args)

    stream = new_stream(**KEYED)
    append(client, stream, 0, (b"a", b"old"), (b"b", b"2"))
    monkeypatch.setattr(TableReading, "_read", late)
    table = client.table(stream)
    assert by_key(table) == {b"a": (2, b"newer"), b"b": (1, b"2")}
    assert table.positions == {0: 3}
    once = count()
    with pytest.raises(OffsetOutOfRange, match="as of offset 3 is not whole"):
        client.table(stream, as_of=3)


@pytest.mark.parametrize("before", [1, 3, 4])
def test_what_a_trim_takes_before_it_is_read_is_left_out(
    client: Client, new_stream: NewStream, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    read = TableReading._read

    def late(self: TableReading, *args: Any) -> None:
        client.trim(stream, before=before)
        read(self, *args)

    stream = new_stream(**KEYED)
    log = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    append(client, stream, 0, *log)
    monkeypatch.setattr(TableReading, "_read", late)
    if before == 4:
        append(client, stream, 0, (b"d", b"4"))
    found = client.table(stream)
    assert by_key(found) == newest_below(dict(enumerate(log)), before, 3)
    assert found.positions == {0: max(before, 3)}


def test_a_partition_is_read_again_if_its_leader_changes(
    client: Client, new_stream: NewStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, once, reads = TableReading._known, count(), []
    read = TableReading._read

    def elected(self: TableReading, numbers: Any) -> Any:
        found = known(self, numbers)
        if next(once) == 1:
            return {n: replace(part, leader_epoch=part.leader_epoch + n) for n, part in found.items()}
        return found

    def noted(self: TableReading, number: int, part: Any, epoch: int) -> None:
        reads.append((number, part.position))
        part.newest = part.newest if part.position == 0 else Newest()
        read(self, number, part, part.epoch or 0)

    stream = new_stream(partitions=2, **KEYED)
    append(client, stream, 0, (b"a", b"1"))
    append(client, stream, 1, (b"b", b"1"), (b"b", b"2"))
    monkeypatch.setattr(TableReading, "_known", elected)
    monkeypatch.setattr(TableReading, "_read", noted)
    assert by_key(client.table(stream)) == {b"a": (0, b"1"), b"b": (1, b"2")}
    assert [number for number, _ in reads] == [0, 1, 1, 1], "twice more: the first new plan has the epoch of nobody"


def test_a_key_in_several_partitions_is_refused_or_goes_by_time(client: Client, new_stream: NewStream) -> None:
    stream = new_stream(partitions=3, **KEYED)
    append(client, stream, 1, (b"k", b"first"), (b"gone", b"1"), (b"only", b"1"), (b"never", None))
    time.sleep(0.001)  # brokers stamp records in microseconds
    append(client, stream, 0, (b"k", b"second"), (b"gone", None), (b"never", None))
    with pytest.raises(
        InvalidRequest, match=r"key b'k' is in partition 0 \(offset 0\) and partition 1 \(offset 0\)"
    ) as found:
        client.table(stream)
    assert found.value.offsets == {"0": 0, "1": 0}
    assert by_key(client.table(stream, shared_keys="newest")) == {b"k": (0, b"second"), b"only": (2, b"1")}
    with pytest.raises(InvalidRequest, match="shared_keys='last': must be"):
        client.table(stream, shared_keys="last")  # type: ignore[arg-type]


def test_tombstones_alone_are_no_shared_key(client: Client, new_stream: NewStream) -> None:
    stream = new_stream(partitions=2, **KEYED)
    append(client, stream, 0, (b"k", None), (b"a", b"1"))
    append(client, stream, 1, (b"k", None))
    assert by_key(client.table(stream)) == {b"a": (1, b"1")}


def test_what_cannot_be_read_is_named(client: Client, new_stream: NewStream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = new_stream(**KEYED)
    with pytest.raises(UnknownStream):
        client.table("nothing-there")
    with pytest.raises(InvalidRequest, match="no column 'val'"):
        client.table(stream, columns=["val"])
    with pytest.raises(InvalidRequest, match="must be a list of names"):
        client.table(stream, columns="value")
    with pytest.raises(InvalidRequest, match="partition 1, which is not read"):
        client.table(stream, {1: 0})
    describe = Client.describe
    monkeypatch.setattr(Client, "describe", lambda self, name: _without_point(describe(self, name)))
    with pytest.raises(NotSupported, match="without compaction points"):
        client.table(stream)


def test_a_stream_that_is_made_anew_meanwhile_is_an_error(
    client: Client, new_stream: NewStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, read = new_stream(**KEYED), TableReading._read
    append(client, stream, 0, (b"a", b"1"))

    def late(self: TableReading, *args: Any) -> None:
        read(self, *args)
        client.delete_stream(stream)
        client.create_stream(stream, **KEYED)

    monkeypatch.setattr(TableReading, "_read", late)
    with pytest.raises(StaleIncarnation):
        client.table(stream)


def _without_point(description: Any) -> Any:
    return replace(description, partitions=tuple(replace(part, superseded_to=None) for part in description.partitions))


@pytest.mark.parametrize("waiting_bytes", [1, 1 << 30])
def test_newest_rows_do_not_depend_on_when_they_are_joined(waiting_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "PART_BYTES", 200)
    found, expected = Newest(waiting_bytes=waiting_bytes), {}
    for first in range(0, 3_000, 7):
        offsets = list(range(first, first + 7))
        keys = [None if at % 11 == 0 else b"%d" % (at * at % 97) for at in offsets]
        found.add(pa.record_batch({"offset": pa.array(offsets), "key": pa.array(keys, BINARY)}))
        expected.update({key: at for at, key in zip(offsets, keys, strict=True) if key is not None})
    rows = pa.Table.from_batches(found.rows()).to_pydict()
    assert rows["offset"] == sorted(expected.values())
    assert dict(zip(rows["key"], rows["offset"], strict=True)) == expected
    assert found.without_key == len(range(0, 3_003, 11))
