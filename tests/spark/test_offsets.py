"""Where a query begins, goes on and ends, and every row of the users' table of losses (docs/guides/spark.md).

Method: the reader without Spark, against a real broker; what is lost is lost really: trimmed, deleted, or set back to a
copy of the data folder from before, as a disk that lost its tail would do.
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from broker.client.client import Client, connect
from spark_liftlog.errors import LiftlogSparkError
from spark_liftlog.options import source_options
from spark_liftlog.reading.batch_reader import LiftlogReader
from spark_liftlog.schema import ROW
from tests.spark.reading_tasks import Value, latest, reading, records, rows_of
from tests.spark.streams import Stream, published, wait_published
from tests.support.processes import BrokerProcess, eventually


def test_several_streams_and_new_ones_under_a_pattern(client: Client) -> None:
    first = Stream.create(client, "multi-a", partitions=2)
    Stream.create(client, "other-multi", partitions=1).append(5)
    first.append(3)
    with reading(first.address, streamPattern="multi-.*", startingOffsets="latest") as reader:
        one = latest(reader)
        assert rows_of(reader, None, one) == []
        first.append(2)
        second = Stream.create(client, "multi-b", partitions=1)
        second.append(4)
        two = eventually(lambda: _holds(latest(reader, one), 5 + 5 + 4), what="both are seen")
        assert rows_of(reader, one, two) == records(first, (0, 3, 5), (1, 3, 5)) + records(second, (0, 0, 4))
        assert rows_of(reader, one, two) == rows_of(reader, one, two)


def _holds(end: Value, offsets: int) -> Value | None:
    """The end, once its offsets add up to this."""
    positions = [at[0] for stream in end["streams"].values() for at in stream["partitions"].values()]
    return end if sum(positions) == offsets else None


def test_a_pattern_that_nothing_matches_yet_waits(client: Client) -> None:
    with reading(str(client.brokers), streamPattern="to-come-.*", startingOffsets="latest") as reader:
        start = reader.initialOffset()
        assert latest(reader, start) is start
        stream = Stream.create(client, "to-come-1", partitions=1)
        stream.append(2)
        first = eventually(lambda: (end := latest(reader, start)) is not start and end, what="it is seen")
        stream.append(1)
        second = eventually(lambda: (end := latest(reader, first)) is not first and end, what="and followed")
        assert rows_of(reader, first, second) == records(stream, (0, 2, 3))


def test_streams_are_added_to_a_query_and_left_out_of_it(client: Client) -> None:
    a, b = (Stream.create(client, f"change-{name}", partitions=1) for name in "ab")
    a.append(3)
    b.append(5)
    with reading(a.address, stream=a.name, startingOffsets="earliest") as reader:
        one = latest(reader)
    with reading(a.address, streams=f"{a.name},{b.name}", startingOffsets="earliest") as reader:
        two = latest(reader, one)
        assert rows_of(reader, one, two) == records(b, (0, 0, 5))
    a.append(1)
    b.append(1)
    with reading(a.address, stream=b.name, startingOffsets="earliest") as reader:
        three = latest(reader, two)
        assert rows_of(reader, two, three) == records(b, (0, 5, 6))
        assert three["streams"][a.name] == two["streams"][a.name], "kept"
        assert rows_of(reader, one, two) == records(b, (0, 0, 5)), "a batch of before can be read again"
    with reading(a.address, streams=f"{a.name},{b.name}", startingOffsets="earliest") as reader:
        four = latest(reader, three)
        assert rows_of(reader, three, four) == records(a, (0, 3, 4))
    with (
        reading(a.address, stream="change-c") as reader,
        pytest.raises(LiftlogSparkError, match="LIFTLOG_INVALID_SETTING: the checkpoint belongs to stream 'change-a'"),
    ):
        latest(reader, one)


def test_a_stream_is_added_that_begins_at_a_time_of_its_own(client: Client) -> None:
    a, b = (Stream.create(client, f"timed-{name}", partitions=1) for name in "ab")
    a.append(3)
    b.append(5)
    with reading(a.address, stream=a.name, startingOffsetsByTimestamp=f'{{"{a.name}": {{"0": 0}}}}') as reader:
        one = latest(reader)
    both = f'{{"{a.name}": {{"0": 0}}, "{b.name}": {{"0": 0}}}}'
    with reading(a.address, streams=f"{a.name},{b.name}", startingOffsetsByTimestamp=both) as reader:
        two = latest(reader, one)
        assert rows_of(reader, one, two) == records(b, (0, 0, 5))


def test_partitions_and_subjects_that_are_left_out_are_told(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    """Seen before: a query with a narrower filter over its checkpoint passed records over, and nothing told it."""
    stream.append(4)
    with reading(stream.address, stream=stream.name, consumer=stream.name, startingOffsets="earliest") as reader:
        one = latest(reader)
        latest(reader, one)
    stream.append(1)
    caplog.clear()
    only, options = f'{{"{stream.name}": [0]}}', {"consumer": stream.name}
    with reading(stream.address, partitions=only, subjects="no.>,a.*", **options) as reader:
        two = eventually(lambda: (end := latest(reader, one)) != one and end, what="partition 0 goes on")
        latest(reader, two)
    assert two["streams"][stream.name]["partitions"]["1"] == one["streams"][stream.name]["partitions"]["1"], "kept"
    told = f"source.partitions_left_out partitions={stream.name}/1,{stream.name}/2 note=their positions are kept"
    assert caplog.messages.count(told) == 1
    filtered = "source.subjects_changed from={} to={} note=it counts from the position of the query on"
    assert caplog.messages.count(filtered.format("all", "subjects=a.*,no.>")) == 1
    caplog.clear()
    with reading(stream.address, stream=stream.name, subjects="a.*,no.>", **options) as reader:
        three = eventually(lambda: (end := latest(reader, two)) != two and end, what="the others go on")
        assert rows_of(reader, two, three) == []
        latest(reader, three)
    assert not [line for line in caplog.messages if line.startswith("source.")], "the same filter, and more partitions"
    with reading(stream.address, stream=stream.name, **options) as reader:
        latest(reader, three)
    assert filtered.format("subjects=a.*,no.>", "all") in caplog.messages


def test_a_query_of_one_key_reads_its_rows_and_is_told_when_that_changes(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """As of subjects: other rows are passed over for good, and count for limits. Who sees consumers sees no key."""
    keys, offsets = [b"a", None, b"b", b"a", b"", b"aa"], range(6)

    def append() -> None:
        rows = {"key": pa.array(keys, pa.binary()), "value": [b"v"] * 6, "subject": ["x", "y"] * 3}
        stream.client.append(stream.name, 0, pa.RecordBatch.from_pydict(rows))
        stream.counts[0] += 6

    def wanted(base: int, key: bytes, *subjects: int) -> list[tuple[str, int, int]]:
        return [(stream.name, 0, base + n) for n in offsets if keys[n] == key and (not subjects or n % 2 in subjects)]

    options = {"stream": stream.name, "consumer": stream.name}
    append()
    with reading(stream.address, key="a", startingOffsets="earliest", maxOffsetsPerTrigger="4", **options) as reader:
        one = latest(reader)
        assert rows_of(reader, None, one) == wanted(0, b"a")
        two = latest(reader, one)
        assert rows_of(reader, one, two) == []
        latest(reader, two)
    (kept,) = {p.metadata for p in stream.client.consumer(stream.name).partitions if p.partition == 0}
    assert re.fullmatch("key=sha256:[0-9a-f]{32}", kept)
    append()
    with reading(stream.address, key="", subjects="x", **options) as reader:
        three = eventually(lambda: (end := latest(reader, two)) != two and end, what="it goes on")
        assert rows_of(reader, two, three) == wanted(6, b"", 0)
        latest(reader, three)
    assert (
        f"source.subjects_changed from={kept} to=key=sha256:e3b0c44298fc1c149afbf4c8996fb924 subjects=x" in caplog.text
    )
    caplog.clear()
    append()
    with reading(stream.address, key="", subjects="x", **options) as reader:
        latest(reader, three)
    assert "source.subjects_changed" not in caplog.text, "the same filter"


def test_only_the_partitions_that_are_named_are_read(stream: Stream) -> None:
    stream.append(4)
    only = f'{{"{stream.name}": [0, 2]}}'
    with reading(stream.address, partitions=only, startingOffsets="earliest") as reader:
        end = latest(reader)
        assert rows_of(reader, None, end) == records(stream, (0, 0, 4), (2, 0, 4))
        stream.append(1)
        later = eventually(lambda: _holds(latest(reader, end), 5 + 5), what="it goes on")
        assert {partition for _, partition, _ in rows_of(reader, end, later)} <= {0, 2}
    with (
        reading(stream.address, partitions=f'{{"{stream.name}": [7]}}') as reader,
        pytest.raises(LiftlogSparkError, match="LIFTLOG_UNKNOWN_PARTITION"),
    ):
        latest(reader)


def test_an_option_that_names_an_offset_beyond_the_log_is_an_error_or_the_nearest(stream: Stream) -> None:
    """Row "an offset of an option is not in the log" of the table, for a query."""
    stream.append(2)
    options = {"stream": stream.name, "startingOffsets": json.dumps({stream.name: {"0": 1, "1": 0, "2": 99}})}
    says = r"LIFTLOG_OFFSET_OUT_OF_RANGE: option startingOffsets: .*partition 2 has no offset 99; valid .* are 0 to 2"
    with reading(stream.address, **options) as reader, pytest.raises(LiftlogSparkError, match=says):
        latest(reader)
    with reading(stream.address, **options, failOnDataLoss="false") as reader:
        end = latest(reader)
        assert rows_of(reader, None, end) == records(stream, (0, 1, 2), (1, 0, 2))
    stream.append(1)
    with reading(stream.address, **options) as reader:  # the checkpoint wins
        later = latest(reader, end)
        assert rows_of(reader, end, later) == records(stream, (0, 2, 3), (1, 2, 3), (2, 2, 3))


def test_partitions_that_are_named_later_begin_where_the_options_say(stream: Stream) -> None:
    """As streams that are added. Seen before: at the log's start, whatever `startingOffsets` says."""

    def only(*numbers: int, **options: str) -> dict[str, str]:
        return {"partitions": json.dumps({stream.name: numbers}), **options}

    def offsets(**places: int) -> str:
        return json.dumps({stream.name: {name.removeprefix("p"): at for name, at in places.items()}})

    stream.append(4)
    with reading(stream.address, **only(0, startingOffsets="earliest")) as reader:
        one = latest(reader)
    with reading(stream.address, **only(0, 1)) as reader:
        two = latest(reader, one)
        assert rows_of(reader, one, two) == [], "latest is the default"
        stream.append(2)
        three = eventually(lambda: _holds(latest(reader, two), 6 + 6), what="both go on")
        assert rows_of(reader, two, three) == records(stream, (0, 4, 6), (1, 4, 6))
    for where, begin in (("earliest", 0), (offsets(p0=1, p1=3), 3)):
        with reading(stream.address, **only(0, 1, startingOffsets=where)) as reader:
            two = latest(reader, one)
            assert rows_of(reader, one, two) == records(stream, (0, 4, 6), (1, begin, 6))
    stream.client.trim(stream.name, before=2, partitions=[1])
    gone = only(0, 1, startingOffsets=offsets(p0=0, p1=1))
    says = "LIFTLOG_OFFSET_OUT_OF_RANGE: .*partition 1 has no offset 1; valid offsets are 2 to 6"
    with reading(stream.address, **gone) as reader, pytest.raises(LiftlogSparkError, match=says):
        latest(reader, one)
    with reading(stream.address, **gone, failOnDataLoss="false") as reader:
        assert rows_of(reader, one, latest(reader, one)) == records(stream, (0, 4, 6), (1, 2, 6))
    with reading(stream.address, stream=stream.name) as reader, pytest.raises(LiftlogSparkError, match="_EXPIRED"):
        latest(reader, one)


def test_a_stream_that_is_read_whole_beside_one_that_is_not_loses_nothing_in_silence(client: Client) -> None:
    """Seen before: `partitions` for one stream, and no other's added partition was looked at."""
    some, whole = (Stream.create(client, f"beside-{name}", partitions=2) for name in ("some", "whole"))
    options = {"streams": f"{some.name},{whole.name}", "partitions": json.dumps({some.name: [0]})}
    with reading(some.address, **options, startingOffsets="earliest") as reader:
        start = latest(reader)
    client.add_partitions(whole.name, 3)
    whole.counts.append(0)
    whole.append(9, partitions=[2])
    client.trim(whole.name, before=6, partitions=[2])
    says = "LIFTLOG_RECORDS_EXPIRED: .*partition 2: records 0 to 5 "
    with reading(some.address, **options) as reader, pytest.raises(LiftlogSparkError, match=says):
        latest(reader, start)


def test_a_time_is_a_place_to_begin(stream: Stream) -> None:
    stream.append(3)
    time.sleep(0.002)  # the next record must be of another millisecond
    at_ms = int(time.time() * 1000)
    stream.append(2, partitions=[0, 1])
    with (
        reading(stream.address, stream=stream.name, startingTimestamp=str(at_ms)) as reader,
        pytest.raises(
            LiftlogSparkError,
            match=r"LIFTLOG_OFFSET_OUT_OF_RANGE: .*partition 2 has no record at or after that time; .* are 0 to 3",
        ),
    ):
        latest(reader)
    options = {"startingTimestamp": str(at_ms), "startingOffsetsByTimestampStrategy": "latest"}
    with reading(stream.address, stream=stream.name, **options) as reader:
        end = latest(reader)
        assert rows_of(reader, None, end) == records(stream, (0, 3, 5), (1, 3, 5))
    each = f'{{"{stream.name}": {{"0": {at_ms}, "1": 0, "2": 0}}}}'
    with reading(stream.address, stream=stream.name, startingOffsetsByTimestamp=each) as reader:
        end = latest(reader)
        assert rows_of(reader, None, end) == records(stream, (0, 3, 5), (1, 0, 5), (2, 0, 3))


def test_a_time_is_a_place_to_end(stream: Stream) -> None:
    """A batch does; where no record is that late, it ends at the end, as with Kafka's source."""
    stream.append(3)
    time.sleep(0.002)  # the next record must be of another millisecond
    at_ms = int(time.time() * 1000)
    stream.append(2, partitions=[0, 1])
    each = json.dumps({stream.name: {"0": at_ms, "1": at_ms + 1_000_000, "2": 0}})
    later = {"startingTimestamp": str(at_ms), "startingOffsetsByTimestampStrategy": "latest"}
    for options, wanted in (
        ({"endingTimestamp": str(at_ms)}, [(0, 0, 3), (1, 0, 3), (2, 0, 3)]),
        ({"endingOffsetsByTimestamp": each}, [(0, 0, 3), (1, 0, 5)]),
        ({**later, "endingTimestamp": str(at_ms + 1_000_000)}, [(0, 3, 5), (1, 3, 5)]),
    ):
        given = {"brokers": stream.address, "stream": stream.name, **options}
        reader = LiftlogReader(source_options(given, "batch"), ROW)
        rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
        assert sorted((row["stream"], row["partition"], row["offset"]) for row in rows) == records(stream, *wanted)
    given = {"brokers": stream.address, "stream": stream.name, "endingTimestamp": "0", "startingTimestamp": str(at_ms)}
    reader = LiftlogReader(source_options({**given, **later}, "batch"), ROW)
    says = r"LIFTLOG_INVALID_SETTING: option startingTimestamp: .*partition 0 would be read from 3, behind its end 0"
    with pytest.raises(LiftlogSparkError, match=says):
        reader.partitions()


def test_a_frame_under_a_pattern_sees_streams_that_were_made_since(client: Client) -> None:
    """Spark plans it once. Seen before: added partitions were read, and a new stream never was."""
    options = {"brokers": str(client.brokers), "streamPattern": "frame-.*", "resolve": "read"}
    reader = LiftlogReader(source_options(options, "batch"), ROW)

    def rows(planned: list[InputPartition]) -> list[tuple[str, int, int]]:
        tasks = pickle.loads(pickle.dumps(planned))
        found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
        return sorted((row["stream"], row["partition"], row["offset"]) for row in found)

    empty = reader.partitions()
    assert rows(empty) == []
    first = Stream.create(client, "frame-a", partitions=2)
    first.append(3)
    Stream.create(client, "other-frame-a", partitions=1).append(1)
    planned = reader.partitions()
    assert planned[0].opening.watched == ["frame-*"], "not the names: brokers take 256"
    assert rows(empty) == rows(planned) == records(first, (0, 0, 3), (1, 0, 3))
    second = Stream.create(client, "frame-b", partitions=1)
    second.append(4)
    first.append(1)
    now = records(first, (0, 0, 4), (1, 0, 4)) + records(second, (0, 0, 4))
    assert rows(empty) == rows(planned) == now


def test_a_batch_waits_until_it_is_worth_it_or_for_long_enough(stream: Stream) -> None:
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    with reading(stream.address, stream=stream.name, **options) as reader:
        first = latest(reader)
        assert rows_of(reader, None, first) == [], "it says where it begins"
        stream.append(3)
        assert latest(reader, first) is first
        stream.append(1)
        second = eventually(lambda: (end := latest(reader, first)) is not first and end, what="10 records are there")
        assert len(rows_of(reader, first, second)) >= 10
    options["maxTriggerDelay"] = "1ms"
    with reading(stream.address, stream=stream.name, **options) as reader:
        end = eventually(lambda: len(rows_of(reader, None, latest(reader))) == 12, what="the delay is over")
        assert end
    with reading(stream.address, stream=stream.name, **options | {"maxTriggerDelay": "1h"}) as reader:
        reader.prepareForTriggerAvailableNow()
        assert len(rows_of(reader, None, latest(reader))) == 12, "AvailableNow leaves nothing behind"


def test_what_is_there_at_a_start_is_not_put_off(stream: Stream) -> None:
    """Else a query that is started again more often than its delay lasts would never have a batch."""
    stream.append(1)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    with reading(stream.address, stream=stream.name, **options) as reader:
        first = latest(reader)
        assert len(rows_of(reader, None, first)) == 3
        stream.append(1)
        assert latest(reader, first) is first, "the delay is counted from the first batch"
    with reading(stream.address, stream=stream.name, **options) as reader:
        second = latest(reader, first)
        assert len(rows_of(reader, first, second)) == 3
        stream.append(1)
        assert latest(reader, second) is second


def test_a_batch_has_about_as_many_bytes_as_it_may(client: Client) -> None:
    stream = Stream.create(client, "bytes-bound", partitions=2, segment_bytes=65536)
    for _ in range(20):
        stream.append(50, size=1000, partitions=[0])
    stream.append(1, partitions=[1])
    seen, sizes = [], []
    with reading(stream.address, stream=stream.name, startingOffsets="earliest", maxBytesPerTrigger="200k") as reader:
        start: Value | None = None
        while True:
            end = latest(reader, start)
            if end is start:
                break
            seen += (rows := rows_of(reader, start, end))
            sizes.append(len(rows))
            start = end
    assert sorted(seen) == [(stream.name, *place) for place in stream.expected()]
    assert max(sizes) < 400, "1,001 records of 1 kB"


def test_one_large_batch_of_the_log_is_cut_into_equal_parts(client: Client) -> None:
    """What a trigger left of a stored batch has the bytes of its records, not of the whole batch."""
    stream = Stream.create(client, "bytes-one-batch", partitions=1)
    stream.append(1000, size=1000)
    sizes: list[int] = []
    with reading(stream.address, stream=stream.name, startingOffsets="earliest", maxBytesPerTrigger="200k") as reader:
        start: Value | None = None
        while (end := latest(reader, start)) is not start:
            sizes.append(len(rows_of(reader, start, end)))
            start = end
    assert sum(sizes) == 1000
    assert len(sizes) <= 6, sizes
    assert min(sizes[:-1]) > 150, sizes


def test_the_last_trigger_of_available_now_has_published_when_it_answers(stream: Stream) -> None:
    """The query ends right after it, and its process with it: nobody waits for a thread then."""
    stream.append(3)
    with reading(stream.address, stream=stream.name, startingOffsets="earliest", consumer=stream.name) as reader:
        reader.prepareForTriggerAvailableNow()
        end = latest(reader)
        assert latest(reader, end) is end
        assert published(stream.client, stream.name, stream.name) == {0: 3, 1: 3, 2: 3}


@pytest.mark.parametrize(
    "given, says",
    [
        ({"stream": "NAMEX"}, "LIFTLOG_UNKNOWN_STREAM: option stream: no stream 'NAMEX'; did you mean 'NAME'"),
        ({"streams": "NAME,NAMEX"}, "LIFTLOG_UNKNOWN_STREAM: option streams: no stream 'NAMEX'; did you mean 'NAME'"),
        ({"partitions": '{"NAMEX": [0]}'}, "LIFTLOG_UNKNOWN_STREAM: option partitions: no stream 'NAMEX'"),
        ({"partitions": '{"NAME": [7]}'}, "LIFTLOG_UNKNOWN_PARTITION: option partitions: .*has no partition 7"),
        ({"stream": "NAME", "startingTimestamp": "99999999999999"}, "_OUT_OF_RANGE: option startingTimestamp: "),
        (
            {"stream": "NAME", "startingOffsetsByTimestamp": '{"NAME": {"0": 99999999999999, "1": 0, "2": 0}}'},
            "LIFTLOG_OFFSET_OUT_OF_RANGE: option startingOffsetsByTimestamp: .*partition 0 has no record",
        ),
        (
            {"stream": "NAME", "startingOffsetsByTimestamp": '{"NAME": {"0": 0}}'},
            "LIFTLOG_INVALID_SETTING: option startingOffsetsByTimestamp: partition 1 is not named",
        ),
    ],
)
def test_what_an_option_names_and_is_not_there_is_an_error_that_names_the_option(
    stream: Stream, given: dict[str, str], says: str
) -> None:
    """Seen before: no option and no nearest name; and `startingOffsets`, where another option had said it."""
    stream.append(1)
    options = {name: text.replace("NAME", stream.name) for name, text in given.items()}
    with (
        reading(stream.address, **options) as reader,
        pytest.raises(LiftlogSparkError, match=says.replace("NAME", stream.name)),
    ):
        latest(reader)
    batch = LiftlogReader(source_options({"brokers": stream.address, **options}, "batch"), ROW)
    with pytest.raises(LiftlogSparkError, match=says.replace("NAME", stream.name)):
        batch.partitions()


# --- committed ------------------------------------------------------------------------------------------------


ACCEPT = {"onNewCheckpoint": "accept"}


@pytest.mark.parametrize("starting", ["committed", "earliest", "latest", '{"NAME": {"0": 1, "1": 1, "2": 1}}'])
def test_a_new_checkpoint_beside_the_progress_of_another_is_refused(stream: Stream, starting: str) -> None:
    """Whatever it starts at, its batches count from 0, and Spark's file sink skips those that it has."""
    stream.append(10)
    options = {"stream": stream.name, "consumer": stream.name, "startingOffsets": "earliest"}
    with reading(stream.address, **options, maxOffsetsPerTrigger="9") as reader:
        first = latest(reader)
        second = latest(reader, first)
        wait_published_at(stream, {0: 3, 1: 3, 2: 3})
    options["startingOffsets"] = starting.replace("NAME", stream.name)
    with reading(stream.address, **options) as reader:
        with pytest.raises(LiftlogSparkError, match=rf"LIFTLOG_NEW_CHECKPOINT: consumer '{stream.name}' .*=accept"):
            latest(reader)
        assert rows_of(reader, first, second), "a checkpoint that is there is none of this"
        assert latest(reader, second) is not second
    with reading(stream.address, **options | {"consumer": f"{stream.name}-other"}) as reader:
        if starting == "committed":
            with pytest.raises(LiftlogSparkError, match="LIFTLOG_UNKNOWN_CONSUMER"):
                latest(reader)
        else:
            assert latest(reader)
    with reading(stream.address, **options, **ACCEPT) as reader:
        assert latest(reader)


def wait_published_at(stream: Stream, offsets: dict[int, int]) -> None:
    eventually(lambda: published(stream.client, stream.name, stream.name) == offsets, what=f"{offsets} are published")


def test_a_lost_checkpoint_is_replaced_by_what_was_published(stream: Stream) -> None:
    stream.append(10)
    options = {"stream": stream.name, "consumer": stream.name, "startingOffsets": "committed"} | ACCEPT
    with (
        reading(stream.address, **options) as reader,
        pytest.raises(LiftlogSparkError, match=r"LIFTLOG_UNKNOWN_CONSUMER: .*start once with startingOffsets=earliest"),
    ):
        latest(reader)
    with reading(stream.address, **options | {"startingOffsets": "earliest"}) as reader:
        reader.latestOffset(latest(reader), reader.getDefaultReadLimit())
        wait_published(stream, stream.name)
    stream.append(5)
    stream.client.add_partitions(stream.name, 4)
    stream.counts.append(0)
    stream.append(2, partitions=[3])
    with reading(stream.address, **options) as reader:
        end = latest(reader)
        assert rows_of(reader, None, end) == records(stream, (0, 10, 15), (1, 10, 15), (2, 10, 15), (3, 0, 2))
    with reading(stream.address, **options) as again:
        assert rows_of(again, None, end) == records(stream, (0, 10, 15), (1, 10, 15), (2, 10, 15), (3, 0, 2))
    stream.client.trim(stream.name, before=12, partitions=[1])
    with (
        reading(stream.address, **options) as reader,
        pytest.raises(LiftlogSparkError, match=r"LIFTLOG_RECORDS_EXPIRED: .*partition 1: records 10 to 11 .* 12 to 15"),
    ):
        latest(reader)
    with reading(stream.address, **options | {"failOnDataLoss": "false"}) as reader:
        end = latest(reader)
        assert rows_of(reader, None, end) == records(stream, (0, 10, 15), (1, 12, 15), (2, 10, 15), (3, 0, 2))
    assert published(stream.client, stream.name, stream.name) == {0: 10, 1: 10, 2: 10}


def test_committed_positions_of_another_stream_of_the_name_are_no_beginning(client: Client) -> None:
    stream = Stream.create(client, "committed-again", partitions=1)
    stream.append(10)
    client.commit("committed-again", {stream.name: {0: 4}})
    client.delete_stream(stream.name)
    Stream.create(client, stream.name, partitions=1).append(10)
    options = {"stream": stream.name, "consumer": "committed-again", "startingOffsets": "committed"} | ACCEPT
    with (
        reading(stream.address, **options) as reader,
        pytest.raises(LiftlogSparkError, match="LIFTLOG_STALE_INCARNATION"),
    ):
        latest(reader)


# --- the table of losses -----------------------------------------------------------------------------------------


def lost(stream: Stream, start: Value, says: str) -> Value:
    """The query fails with this; the same with failOnDataLoss=false goes on: where its next batch ends."""
    options = {"stream": stream.name, "startingOffsets": "earliest"}
    with reading(stream.address, **options) as reader, pytest.raises(LiftlogSparkError, match=says):
        latest(reader, start)
    with reading(stream.address, **options, failOnDataLoss="false") as reader:
        return latest(reader, start)


def begun(stream: Stream) -> Value:
    with reading(stream.address, stream=stream.name, startingOffsets="earliest") as reader:
        return latest(reader)


def survived(stream: Stream, start: Value, end: Value) -> list[tuple[str, int, int]]:
    with reading(stream.address, stream=stream.name, failOnDataLoss="false") as reader:
        return rows_of(reader, start, end)


def test_retention_past_the_start(stream: Stream) -> None:
    stream.append(5)
    start = begun(stream)
    stream.append(5)
    stream.client.trim(stream.name, before=8, partitions=[1])
    end = lost(stream, start, r"LIFTLOG_RECORDS_EXPIRED: .*partition 1: records 5 to 7 .* valid offsets are 8 to 10")
    assert survived(stream, start, end) == records(stream, (0, 5, 10), (1, 8, 10), (2, 5, 10))


def test_the_beginning_of_an_added_partition(stream: Stream) -> None:
    stream.append(1)
    start = begun(stream)
    stream.client.add_partitions(stream.name, 4)
    stream.counts.append(0)
    stream.append(9, partitions=[3])
    stream.client.trim(stream.name, before=6, partitions=[3])
    end = lost(stream, start, r"LIFTLOG_RECORDS_EXPIRED: .*partition 3: records 0 to 5 .* valid offsets are 6 to 9")
    assert survived(stream, start, end) == records(stream, (3, 6, 9))


def test_a_stream_deleted_and_made_anew(client: Client) -> None:
    stream = Stream.create(client, "remade", partitions=2)
    stream.append(5)
    start = begun(stream)
    client.delete_stream(stream.name)
    assert lost(stream, start, "LIFTLOG_UNKNOWN_STREAM: stream 'remade' was deleted") is start
    again = Stream.create(client, "remade", partitions=1)
    again.append(7)
    end = lost(again, start, r"LIFTLOG_STALE_INCARNATION: .*deleted and re-created.*first record, 0")
    assert survived(again, start, end) == records(again, (0, 0, 7))


def test_a_deleted_stream_holds_up_no_other(client: Client) -> None:
    a, b = (Stream.create(client, f"held-{name}", partitions=1) for name in "ab")
    a.append(2)
    b.append(2)
    with reading(a.address, streams="held-a,held-b", startingOffsets="earliest", failOnDataLoss="false") as reader:
        start = latest(reader)
        client.delete_stream("held-a")
        b.append(3)
        end = eventually(lambda: (now := latest(reader, start)) is not start and now, what="b goes on")
        assert rows_of(reader, start, end) == records(b, (0, 2, 5))
        assert end["streams"]["held-a"] == start["streams"]["held-a"]


def test_a_partition_that_is_not_there(stream: Stream) -> None:
    stream.append(2)
    start = begun(stream)
    start["streams"][stream.name]["partitions"]["7"] = [1, 1]
    stream.append(1)
    end = lost(stream, start, rf"LIFTLOG_UNKNOWN_PARTITION: stream '{stream.name}' has no partition 7")
    assert survived(stream, start, end) == records(stream, (0, 2, 3), (1, 2, 3), (2, 2, 3))


@dataclass
class SetBack:
    """A broker whose disk lost the tail of its log after a query had read it."""

    broker: BrokerProcess
    stream: Stream
    start: Value
    end: Value


@pytest.fixture(scope="module")
def set_back(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SetBack]:
    """100 records, read up to `start`; 50 more, read up to `end`; then the disk is as it was at 100."""
    folder = tmp_path_factory.mktemp("set-back")
    data, copy = folder / "broker" / "data", Path(folder, "copy")
    broker = BrokerProcess(folder / "broker", None).start()
    try:
        with connect(broker.address) as client:
            stream = Stream.create(client, "truncated", partitions=1)
            stream.append(100)
            start = begun(stream)
            broker.stop()
            shutil.copytree(data, copy)
            broker.start()
            stream.append(50)
            with reading(stream.address, stream=stream.name) as reader:
                end = latest(reader, start)
            broker.stop()
            shutil.rmtree(data)
            shutil.copytree(copy, data)
            for _ in range(2):  # another start, another leader epoch than the one that wrote what is lost
                broker.start()
                broker.stop()
            broker.start()
            stream.counts = [100]
            yield SetBack(broker, stream, start, end)
    finally:
        broker.stop()


def test_a_broker_that_went_backwards_and_a_tail_that_was_written_anew(set_back: SetBack) -> None:
    stream, start, end = set_back.stream, set_back.start, set_back.end
    behind = r"LIFTLOG_LOG_TRUNCATED: .*the log ends at 100, the query has read up to 150; valid offsets are 0 to 100"
    after = lost(stream, end, behind)
    assert survived(stream, end, after) == []
    stream.append(80)
    rewritten = r"LIFTLOG_LOG_TRUNCATED: .*from 100 on were lost and written anew, .* up to 150; valid .* 0 to 180"
    after = lost(stream, end, rewritten)
    assert survived(stream, end, after) == records(stream, (0, 100, 180))
    stream.append(1)
    with reading(stream.address, stream=stream.name) as reader:
        later = latest(reader, after)
        assert rows_of(reader, after, later) == records(stream, (0, 180, 181))

    # The batch that was planned before the loss, again: its offsets are there, its records are not.
    with (
        reading(stream.address, stream=stream.name) as reader,
        pytest.raises(LiftlogSparkError, match=r"LIFTLOG_LOG_TRUNCATED: .*from 100 on were lost and written anew"),
    ):
        rows_of(reader, start, end)
    assert survived(stream, start, end) == []
