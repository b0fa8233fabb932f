"""The exactly-once sink without Spark, against a real broker: orders of events that Spark shows only by chance.

Method: write as tasks do and commit as the driver does, twice, too late, from two runs at once; then read the stream
with the plain client.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from broker.api.errors import RequestTooLarge
from broker.api.schema import HEADERS_TYPE
from broker.client.client import Client
from broker.client.sinks import Sink
from spark_liftlog.errors import LiftlogSparkError, advised
from spark_liftlog.schema import HEADERS
from spark_liftlog.writing.run import checkpoint_name
from spark_liftlog.writing.sink_options import sink_options
from spark_liftlog.writing.writer import LiftlogStreamWriter, LiftlogWriter
from tests.spark.reading_tasks import latest, reading
from tests.spark.sink_tasks import PLACED, SCHEMA, Query, found, job, task, values
from tests.spark.streams import Stream
from tests.support.processes import eventually


def test_nothing_is_seen_before_the_commit_and_all_after_it(stream: Stream) -> None:
    query = Query(stream)
    messages = [query.write(0, [values("a", "b"), values("c")]), query.write(1, [values("d")])]
    assert found(stream) == []
    query.commit(0, *messages)
    assert found(stream) == ["a", "b", "c", "d"]


def test_a_task_that_ran_twice_counts_once(stream: Stream) -> None:
    """Speculation, or a retry whose first attempt did finish: only the message that Spark accepted is committed."""
    query = Query(stream)
    query.write(0, [values("a", "b")])
    query.batch(0, values("a", "b"))
    query.write(1, [values("late")])
    assert found(stream) == ["a", "b"]


def test_a_replayed_batch_with_its_rows_elsewhere_is_not_written_again(stream: Stream) -> None:
    Query(stream).batch(0, values("a", "b"), values("c"))
    again = Query(stream, run="run-2")
    again.batch(0, values("a"), values("c", "b"))
    assert found(stream) == ["a", "b", "c"]
    again.batch(1, values("d"))
    assert found(stream) == ["a", "b", "c", "d"]


def test_the_driver_is_told_whether_a_repeated_batch_had_the_same_rows(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    Query(stream).batch(0, values("a", "b"), values("c"))
    Query(stream, run="run-2").batch(0, values("c"), values("b", "a"))
    assert "rows=3 decided_rows=3 is_same=True" in caplog.text
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_SINK_ROWS_DIFFER: .* as many, but others .*keepFirst"):
        Query(stream, run="run-3").batch(0, values("a", "b"), values("d"))
    Query(stream, run="run-4", onRepeatWithOtherRows="keepFirst").batch(0, values("a", "b"), values("d"))
    assert "rows=3 decided_rows=3 is_same=False" in caplog.text
    assert found(stream) == ["a", "b", "c"]


def test_a_replay_with_another_number_of_rows_is_refused_or_dropped_if_chosen(stream: Stream) -> None:
    Query(stream).batch(0, values("a", "b"))
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_SINK_ROWS_DIFFER: .*batch 0 with 2 rows, .* has 3"):
        Query(stream, run="run-2").batch(0, values("a", "b", "c"))
    with pytest.raises(LiftlogSparkError, match=r".*batch 0 with 2 rows, .* has 1: records .* gone .* is complete; or"):
        Query(stream, run="run-2").batch(0, values("b"))
    Query(stream, run="run-3", onRepeatWithOtherRows="keepFirst").batch(0, values("a", "b", "c"))
    assert found(stream) == ["a", "b"]


def test_a_commit_that_failed_half_way_is_completed_by_the_next_run(stream: Stream) -> None:
    """Decided, and the answer lost: Spark calls abort, and then the next run comes with other stages."""
    query = Query(stream)
    messages = [query.write(0, [values("a", "b")])]
    query.commit(0, *messages)
    query.abort(0, *messages)
    Query(stream, run="run-2").batch(0, values("b", "a"))
    assert found(stream) == ["a", "b"]


def test_an_aborted_batch_leaves_nothing_and_can_be_written_anew(stream: Stream) -> None:
    query = Query(stream)
    messages = [None, query.write(1, [values("a")])]
    query.abort(0, *messages)
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_STAGE_LOST"):
        query.commit(0, query.write(0, [values("b")]), messages[1])  # type: ignore[arg-type]
    assert found(stream) == []
    query.batch(0, values("a"), values("b"))
    assert found(stream) == ["a", "b"]


def test_a_zombie_of_an_older_run_adds_nothing(stream: Stream) -> None:
    """Its tasks write on after the next run has begun: before and after that run's first commit."""
    old, new = Query(stream, run="old"), Query(stream, run="new")
    old.batch(0, values("a"))
    zombie = old.write(0, [values("z")])
    new.batch(1, values("b"))
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_SINK_FENCED"):
        old.write(1, [values("z")])
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_SINK_FENCED"):
        old.commit(1, zombie)
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_SINK_FENCED"):
        old.commit(2, zombie)
    new.batch(2, values("c"))
    assert found(stream) == ["a", "b", "c"]


def test_a_zombie_task_that_opens_first_does_not_stop_the_run(stream: Stream) -> None:
    Query(stream, run="old").batch(0, values("a"))
    new = Query(stream, run="new")
    message = new.write(0, [values("b")])
    Query(stream, run="older, never opened").write(0, [values("z")])
    new.commit(1, message)
    assert found(stream) == ["a", "b"]


def test_a_copied_checkpoint_is_refused_and_a_moved_one_can_be_adopted(stream: Stream, client: Client) -> None:
    Query(stream, query="forked").batch(0, values("a"))
    copy = Query(stream, query="forked", run="run-2", checkpoint="/elsewhere/ck")
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_SINK_FORKED: .*/ck query forked.*/elsewhere/ck"):
        copy.batch(1, values("b"))
    assert found(stream) == ["a"]
    client.sink("forked").adopt(checkpoint_name("forked", "/elsewhere/ck"))
    copy.batch(1, values("b"))
    assert found(stream) == ["a", "b"]


def test_a_checkpoint_may_have_any_path(stream: Stream, client: Client) -> None:
    """A no-break space is not printable: brokers do not take it as it is."""
    query = Query(stream, query="odd", checkpoint="/of\u00a0the\tday/100%")
    query.batch(0, values("a"))
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_SINK_FORKED"):
        Query(stream, query="odd", run="run-2", checkpoint="/of%C2%A0the%09day/100%").batch(1, values("b"))
    query.batch(1, values("b"))
    assert client.sink("odd").describe().checkpoint == "/of%C2%A0the%09day/100%25 query odd"
    assert found(stream) == ["a", "b"]


def test_tasks_of_several_releases_are_held_to_the_number_of_rows(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """Sums of different hashes say nothing together: a right replay must not read as other rows."""
    query = Query(stream)
    rows = [query.write(number, [values(text)]) for number, text in enumerate("ab")]
    other = replace(rows[1], digest="rows2:" + "0" * 32)
    query.commit(0, rows[0], other)
    again = Query(stream, run="run-2")
    again.batch(0, values("a"), values("b"))
    assert "sink.no_digest algorithms=['rows1', 'rows2']" in caplog.text
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_SINK_ROWS_DIFFER"):
        again.batch(0, values("a"))
    assert found(stream) == ["a", "b"]


def test_a_restored_checkpoint_is_refused_until_the_sink_is_reset(stream: Stream, client: Client) -> None:
    """A backup from before: batch ids begin again below what was decided."""
    query = Query(stream, query="restored")
    for batch_id in range(3):
        query.batch(batch_id, values(f"{batch_id}"))
    back = Query(stream, query="restored", run="run-2")
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_SINK_BATCH_REGRESSED: .*decided batch 2, this is 1"):
        back.batch(1, values("other"))
    assert found(stream) == ["0", "1", "2"]
    client.sink("restored").reset(1)
    Query(stream, query="restored", run="run-3").batch(1, values("other"))
    assert found(stream) == ["0", "1", "2", "other"]


def test_a_relative_checkpoint_is_the_drivers_wherever_tasks_run(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors have folders of their own, and must not make several sinks of one."""
    query = Query(stream, checkpoint="relative/ck")
    writer = pickle.dumps(query.writer())
    messages = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        with task(number, query=query.query, run=query.run):
            messages.append(pickle.loads(writer).write(iter([values(f"{number}")])))
    query.commit(0, *messages)
    assert found(stream) == ["0", "1"]


def test_two_queries_that_share_a_sink_id_are_told_apart(stream: Stream) -> None:
    Query(stream, query="one", sinkId="shared").batch(0, values("a"))
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_SINK_FORKED: sink 'shared' belongs to .*query one"):
        Query(stream, query="two", sinkId="shared", checkpoint="/other").batch(1, values("b"))


def test_an_empty_batch_is_decided_too(stream: Stream) -> None:
    """As after a repartitioning of the checkpoint: batch N + 1 without rows. Its replay with rows is a difference."""
    query = Query(stream)
    query.batch(0, values("a"))
    query.batch(1, values())
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_SINK_ROWS_DIFFER"):
        Query(stream, run="run-2").batch(1, values("b"))


def test_a_stream_made_anew_in_mid_batch_is_refused(stream: Stream, client: Client) -> None:
    query = Query(stream)
    messages = [query.write(0, [values("a")])]
    client.delete_stream(stream.name)
    client.create_stream(stream.name, partitions=3)
    messages.append(query.write(1, [values("b")]))
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_STALE_INCARNATION"):
        query.commit(0, *messages)
    assert found(stream) == []


def test_a_stream_made_anew_in_mid_batch_is_refused_at_least_once_too(stream: Stream, client: Client) -> None:
    """What the first task appended is gone, and the batch counted as written."""
    query = Query(stream, deliveryGuarantee="at-least-once")
    messages = [query.write(0, [values("a")])]
    client.delete_stream(stream.name)
    client.create_stream(stream.name, partitions=3)
    messages.append(query.write(1, [values("b")]))
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_STALE_INCARNATION"):
        query.commit(0, *messages)
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_STALE_INCARNATION"):
        job(stream, deliveryGuarantee="at-least-once").commit(messages)


def test_a_stream_made_anew_between_two_runs_is_refused_until_it_is_accepted(stream: Stream, client: Client) -> None:
    for batch in range(2):
        Query(stream).batch(batch, values("a"))
    client.delete_stream(stream.name)
    client.create_stream(stream.name, partitions=3)
    for batch in (2, 1):
        with pytest.raises(
            LiftlogSparkError, match=rf"SINK_DESTINATION_NEW: .*'{stream.name}'.*last batch 1 .*onNewDestination=accept"
        ):
            Query(stream, run=f"run-2-{batch}").batch(batch, values("a"))
    assert found(stream) == []
    accepting = Query(stream, run="run-3", onNewDestination="accept")
    accepting.batch(1, values("a"))
    accepting.batch(2, values("b"))
    Query(stream, run="run-4").batch(3, values("c"))
    assert found(stream) == ["b", "c"]


def test_a_dead_letter_stream_is_a_destination_too(stream: Stream, client: Client) -> None:
    letters = Stream.create(client, f"{stream.name}-dead", partitions=1)
    bad = values("b").append_column("partition", pa.array([99], pa.int32()))
    query = Query(stream, schema=PLACED, deadLetterStream=letters.name)
    query.batch(0, bad)
    client.delete_stream(letters.name)
    client.create_stream(letters.name)
    with pytest.raises(LiftlogSparkError, match=f"LIFTLOG_SINK_DESTINATION_NEW: .*'{letters.name}'"):
        query.batch(1, bad)


def test_a_transaction_is_not_skipped_or_continued_where_its_stream_was_made_anew(
    stream: Stream, client: Client
) -> None:
    def transaction(version: int, **options: str) -> None:
        run_job(job(stream, txnAppId="anew", txnVersion=str(version), **options), values(f"{version}"))

    transaction(1)
    client.delete_stream(stream.name)
    client.create_stream(stream.name, partitions=3)
    for version in (0, 1, 2):
        with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_SINK_DESTINATION_NEW: .*onNewDestination=accept"):
            transaction(version)
    assert found(stream) == []
    transaction(1, onNewDestination="accept")
    transaction(2, onNewDestination="accept")
    transaction(3)
    transaction(2)
    assert found(stream) == ["2", "3"]


def test_a_sink_that_was_deleted_under_the_batch_is_refused(stream: Stream, client: Client) -> None:
    """The worker that knows the old epoch, and the one that opens anew, cannot make one batch."""
    query = Query(stream, query="deleted")
    message = query.write(0, [values("a")])
    client.sink("deleted").delete()
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_(UNKNOWN_SINK|SINK_FENCED|STAGE_LOST)"):
        query.commit(0, message)
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_UNKNOWN_SINK"):
        query.write(1, [values("b")])
    fresh = query.write(1, [values("b")])
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_SINK_FENCED: .*deleted or reset while the batch"):
        query.commit(0, message, fresh)
    assert found(stream) == []


def test_many_rows_of_many_tasks_and_parts_arrive_whole_and_in_order(stream: Stream) -> None:
    """More than one part per stage; each partition's rows in the order of the task."""
    query = Query(stream)
    big = [
        values(*(f"{number:05d}".ljust(4000, ".") for number in range(at, at + 1000))) for at in range(0, 12_000, 1000)
    ]
    query.commit(0, query.write(0, big))
    table = stream.client.read(stream.name).to_table()
    assert table.num_rows == 12_000
    for partition in range(3):
        rows = table.filter(pa.compute.equal(table.column("partition"), partition)).column("value").to_pylist()
        assert rows == sorted(rows)


def test_a_paused_stream_is_waited_for_and_then_named(stream: Stream, client: Client) -> None:
    client.pause(stream.name)
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_STREAM_PAUSED: .*gave up after"):
        Query(stream, deliveryTimeoutMs="500").batch(0, values("a"))
    client.resume(stream.name)
    Query(stream, run="run-2").batch(0, values("a"))
    assert found(stream) == ["a"]


# --- rows that cannot be written, and rows of several streams ---------------------------------------------------


def written(stream: Stream, rows: pa.RecordBatch, **options: str) -> None:
    given = {"brokers": stream.address, **options}
    schema = StructType([*SCHEMA, StructField("partition", IntegerType())])
    writer = LiftlogStreamWriter(sink_options(given, "stream"), schema, overwrite=False)
    with task(7, query=f"{stream.name}-rows", run="run"):
        message = writer.write(iter([rows.slice(0, 1), rows.slice(1)]))
    writer.commit([message], 0)


def small(client: Client) -> Stream:
    """A stream that takes small records only."""
    return Stream.create(client, f"small-{uuid.uuid4().hex}", partitions=1, record_bytes_max=2000)


def mixed(stream: Stream, other: Stream) -> pa.RecordBatch:
    """Six rows, of which two can be written."""
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"good", b"nowhere", b"no stream", b"x" * 3000, b"no partition", b"fine"], pa.binary()),
            "stream": pa.array([stream.name, "no-such-stream", None, other.name, stream.name, other.name]),
            "partition": pa.array([2, 0, 0, 0, 9, None], pa.int32()),
        }
    )


def test_a_row_goes_to_the_stream_and_partition_that_it_names(stream: Stream, client: Client) -> None:
    other = small(client)
    written(stream, mixed(stream, other).take(pa.array([0, 5])))
    assert found(stream) == ["good"]
    assert found(other) == ["fine"]
    assert client.read(stream.name, partitions=[2]).to_table().num_rows == 1


@pytest.mark.parametrize(
    "row, says",
    [
        (1, "LIFTLOG_UNKNOWN_STREAM: row 1 of task 7: .*no-such-stream"),
        (2, "LIFTLOG_INVALID_RECORDS: row 1 of task 7: column stream is null"),
        (3, "LIFTLOG_RECORD_TOO_LARGE: row 1 of task 7: 30[0-9]+ bytes: .*at most 2000"),
        (4, "LIFTLOG_UNKNOWN_PARTITION: row 1 of task 7: column partition: 9 is no partition"),
    ],
)
def test_a_bad_row_fails_with_its_place_and_reason(stream: Stream, client: Client, row: int, says: str) -> None:
    other = small(client)
    rows = mixed(stream, other)
    with pytest.raises(LiftlogSparkError, match=says):
        written(stream, rows.take(pa.array([0, row, 4])))
    assert found(stream) == found(other) == []


def test_bad_rows_go_to_the_dead_letter_stream_if_chosen(stream: Stream, client: Client) -> None:
    other = small(client)
    letters = Stream.create(client, f"{stream.name}-letters", partitions=1, record_bytes_max=1600)
    written(stream, mixed(stream, other), deadLetterStream=letters.name)
    assert (found(stream), found(other)) == (["good"], ["fine"])
    rows = client.read(letters.name).to_table().to_pylist()
    told = {dict(row["headers"])["Liftlog-Row"]: dict(row["headers"]) for row in map(_pairs, rows)}
    assert set(told) == {b"7/1", b"7/2", b"7/3", b"7/4"}
    assert told[b"7/1"]["Liftlog-Error"].startswith(b"LIFTLOG_UNKNOWN_STREAM")
    assert told[b"7/3"]["Liftlog-Value-Bytes"] == b"3000"
    assert told[b"7/4"]["Liftlog-Stream"] == stream.name.encode()
    assert sorted(len(row["value"]) for row in rows)[:3] == [7, 9, 12]
    assert 1000 < max(len(row["value"]) for row in rows) < 1600


def test_a_dead_letter_is_its_row_as_far_as_that_can_be_a_record(stream: Stream, client: Client) -> None:
    """A tombstone stays one, subject and headers stay; and no letter is too large, whatever its row is like."""
    letters = Stream.create(client, f"{stream.name}-letters", partitions=1, record_bytes_max=1300)
    more = [StructField("key", BinaryType()), StructField("subject", StringType()), StructField("headers", HEADERS)]
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([None, None, b"v" * 5000, b"x"], pa.binary()),
            "stream": pa.array(["nowhere", "nowhere", "nowhere", stream.name]),
            "key": pa.array([b"gone", None, b"k" * 5000, b"k"], pa.binary()),
            "subject": pa.array(["orders.eu", None, "s." + "é" * 200, "not a subject"]),
            "headers": pa.array(
                [
                    [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
                    None,
                    [{"key": "big", "value": b"h" * 5000}],
                    [{"key": None, "value": b"2"}, {"key": "b", "value": b"3"}],
                ],
                HEADERS_TYPE,
            ),
        }
    )
    query = Query(stream, deadLetterStream=letters.name)
    query._options.pop("stream")
    query._schema = StructType([*SCHEMA, *more])
    query.commit(0, query.write(7, [rows]))
    gone, empty, large, wrong = (_pairs(row) for row in client.read(letters.name).to_table().to_pylist())
    assert (gone["key"], gone["value"], gone["subject"]) == (b"gone", None, "orders.eu")
    assert gone["headers"][:2] == [("a", b"1"), ("a", None)]
    assert (empty["value"], dict(empty["headers"])["Liftlog-Null"]) == (b"", b"value")
    told = dict(large["headers"])
    assert (told["Liftlog-Value-Bytes"], told["Liftlog-Key-Bytes"], told["Liftlog-Headers"]) == (b"5000", b"5000", b"1")
    assert told["Liftlog-Subject"].startswith("s.éé".encode())
    assert (wrong["value"], wrong["subject"] != "not a subject") == (b"x", True)
    assert dict(wrong["headers"])["Liftlog-Subject"] == b"not a subject"
    assert (dict(wrong["headers"])["b"], dict(wrong["headers"])["Liftlog-Headers"]) == (b"3", b"2")


def test_a_stream_that_is_too_narrow_for_letters_is_refused(stream: Stream, client: Client) -> None:
    letters = Stream.create(client, f"{stream.name}-letters", partitions=1, record_bytes_max=600)
    with pytest.raises(LiftlogSparkError, match=r"deadLetterStream=.*takes records of 600 bytes"):
        written(stream, mixed(stream, small(client)), deadLetterStream=letters.name)


def test_an_option_names_the_subject_of_every_row(stream: Stream) -> None:
    Query(stream, subject="orders.eu").batch(0, values("a"), values("b"))
    assert stream.client.read(stream.name).to_table().column("subject").to_pylist() == ["orders.eu"] * 2


@pytest.mark.parametrize("rows", [(), ("a",)])
def test_streams_that_options_name_are_looked_for_before_any_row(
    stream: Stream, client: Client, rows: tuple[str]
) -> None:
    """Seen before: a dead letter stream was missed at the first bad row, perhaps after months; and rows of a stream
    whose name was mistyped in the option were all dead letters."""
    letters = Stream.create(client, f"{stream.name}-letters", partitions=1)
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_UNKNOWN_STREAM: option deadLetterStream: no stream 'nowhere'"):
        Query(stream, deadLetterStream="nowhere").batch(0, values(*rows))
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_UNKNOWN_STREAM: option stream: no stream 'nowhere'"):
        Query(stream, stream="nowhere", deadLetterStream=letters.name).batch(0, values(*rows))
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_UNKNOWN_STREAM: option stream: no stream 'nowhere'"):
        job(stream, stream="nowhere").write(iter([values(*rows)]))
    assert found(letters) == found(stream) == []


def test_batches_that_the_sink_lacks_are_named_until_it_is_reset_or_they_are_accepted(stream: Stream) -> None:
    """The broker's data was restored from an older copy; here: the sink was deleted, which looks the same."""
    query = Query(stream)
    query.batch(0, values("a"))
    query.batch(1, values("b"))
    stream.client.sink(query.query).delete()
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_SINK_BATCHES_MISSING: .*has no batch.*onMissingBatches"):
        Query(stream, run="run-2").batch(2, values("c"))
    Query(stream, run="run-3", onMissingBatches="accept").batch(2, values("c"))
    Query(stream, run="run-4").batch(3, values("d"))
    with pytest.raises(LiftlogSparkError, match=r"has batch 3 as its last, and this commit of batch 9 follows batch 8"):
        Query(stream, run="run-5").batch(9, values("e"))
    stream.client.sink(query.query).reset(9)
    Query(stream, run="run-6").batch(9, values("e"))
    assert found(stream) == ["a", "b", "c", "d", "e"]


def test_a_query_that_wrote_at_least_once_before_is_told_that_its_sink_is_new(stream: Stream) -> None:
    """Whether its last batch is in the stream is not known to anybody."""
    Query(stream, deliveryGuarantee="at-least-once").batch(0, values("a"))
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_SINK_BATCHES_MISSING: .*onMissingBatches=accept"):
        Query(stream, run="run-2").batch(1, values("b"))
    Query(stream, run="run-3", onMissingBatches="accept").batch(1, values("b"))
    assert found(stream) == ["a", "b"]


def test_a_share_over_the_brokers_limit_says_what_to_set_and_where(stream: Stream) -> None:
    error = RequestTooLarge("too much", key="sinks.group_bytes_max", limit=1, value=2)
    assert "maxBytesPerTrigger" in str(advised(error))
    assert "until it is through" in str(advised(error))
    other = RequestTooLarge("too much", key="http.body_bytes_max", limit=1, value=2)
    assert advised(other) is other


def _pairs(row: dict[str, object]) -> dict[str, object]:
    return {**row, "headers": [(entry["key"], entry["value"]) for entry in row["headers"]]}  # type: ignore[attr-defined]


def test_headers_that_are_empty_are_null_whoever_wrote_them(stream: Stream) -> None:
    """By HTTP, by the client, and by the sink; one row has headers, so that the column is not null as a whole."""
    given = pa.array([[], None, [{"key": "h", "value": b"1"}]], HEADERS_TYPE)
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b", b"c"], "headers": given})
    stream.client.append(stream.name, 0, rows)
    stream.client.append(stream.name, 1, [{"value": b"a", "headers": []}, {"value": b"c", "headers": [("h", b"1")]}])
    query = Query(stream)
    query._schema = StructType(
        [*SCHEMA.fields[:1], StructField("headers", HEADERS), StructField("partition", IntegerType())]
    )
    query.commit(0, query.write(0, [rows.append_column("partition", pa.array([2, 2, 2], pa.int32()))]))
    none, one = None, [{"key": "h", "value": b"1"}]
    with reading(stream.address, stream=stream.name, startingOffsets="earliest") as reader:
        tasks = reader.partitions(reader.initialOffset(), latest(reader))
        batches = [batch for each in tasks for batch in reader.read(each)]
    found = [(row["partition"], row["headers"]) for batch in batches for row in batch.to_pylist()]
    assert sorted(found, key=lambda row: row[0]) == [
        *((0, headers) for headers in (none, none, one)),
        *((1, headers) for headers in (none, one)),
        *((2, headers) for headers in (none, none, one)),
    ]


# --- batch writes ----------------------------------------------------------------------------------------------


def run_job(writer: LiftlogWriter, *tasks: pa.RecordBatch) -> None:
    """As Spark does: the same writer, pickled, in each task; its own for the commit."""
    messages = [pickle.loads(pickle.dumps(writer)).write(iter([rows])) for rows in tasks]
    writer.commit(messages)


def test_a_job_is_written_once_whatever_its_tasks_repeat(stream: Stream) -> None:
    writer = job(stream)
    pickle.loads(pickle.dumps(writer)).write(iter([values("a")]))
    run_job(writer, values("a"), values("b"))
    assert found(stream) == ["a", "b"]
    run_job(job(stream), values("a"))
    assert found(stream) == ["a", "a", "b"], "another job is another one"


def test_a_commit_whose_answer_was_lost_may_be_repeated(stream: Stream) -> None:
    writer = job(stream)
    messages = [writer.write(iter([values("a")]))]
    writer.commit(messages)
    writer.commit(messages)
    assert found(stream) == ["a"]


def test_a_transaction_is_written_once_and_lower_ones_are_skipped(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    run_job(job(stream, txnAppId="etl", txnVersion="5"), values("a"), values("b"))
    run_job(job(stream, txnAppId="etl", txnVersion="5"), values("a"), values("b"))
    run_job(job(stream, txnAppId="etl", txnVersion="4"), values("c"))
    assert "sink.skipped" in caplog.text
    run_job(job(stream, txnAppId="other", txnVersion="4"), values("d"))
    run_job(job(stream, txnAppId="etl", txnVersion="7"), values("e"))
    assert found(stream) == ["a", "b", "d", "e"]


def test_a_version_that_nobody_wrote_is_not_skipped_because_the_sink_was_reset(stream: Stream, client: Client) -> None:
    first = job(stream, txnAppId="reset", txnVersion="7")
    run_job(first, values("a"))
    assert first._job is not None
    client.sink(first._job.run.sink).reset(10)
    with pytest.raises(LiftlogSparkError, match=r"LIFTLOG_SINK_BATCH_REGRESSED: .* reset to begin with batch 10"):
        run_job(job(stream, txnAppId="reset", txnVersion="8"), values("b"))
    run_job(job(stream, txnAppId="reset", txnVersion="10"), values("c"))
    assert found(stream) == ["a", "c"]


def test_two_jobs_of_one_transaction_at_once_write_it_once(stream: Stream) -> None:
    """Both have staged before either commits; either may be the first."""
    for version, first in (("1", 0), ("2", 1)):
        jobs = [job(stream, txnAppId="race", txnVersion=version) for _ in range(2)]
        messages = [[one.write(iter([values(f"v{version}")]))] for one in jobs]
        jobs[first].commit(messages[first])
        jobs[1 - first].commit(messages[1 - first])
    assert found(stream) == ["v1", "v2"]


def test_a_job_without_rows_is_committed_so_that_its_sink_goes_with_the_others(stream: Stream, client: Client) -> None:
    """A one-shot sink that never commits stays for a day: an empty frame in each micro-batch would fill the brokers."""
    one = job(stream)
    run_job(one, values(), values())
    assert found(stream) == []
    assert one._job is not None
    sink = client.sink(one._job.run.sink).describe()
    assert sink.one_shot
    assert sink.last is not None
    assert (sink.last.rows, sink.last.complete) == (0, True)


def test_tasks_without_rows_are_no_reason_to_refuse_a_job(stream: Stream) -> None:
    for tasks in ((values(), values("a")), (values("b"), values()), (values(), values("c"), values(), values("d"))):
        run_job(job(stream), *tasks)
    assert found(stream) == ["a", "b", "c", "d"]


def test_a_transaction_without_rows_is_written_too(stream: Stream, client: Client) -> None:
    """Its version counts as done."""
    one = job(stream, txnAppId="none", txnVersion="3")
    run_job(one, values(), values())
    assert one._job is not None
    last = client.sink(one._job.run.sink).describe().last
    assert last is not None
    assert (last.batch_id, last.rows) == (3, 0)


def test_at_least_once_appends_at_once(stream: Stream) -> None:
    writer = job(stream, deliveryGuarantee="at-least-once")
    message = writer.write(iter([values("a")]))
    assert found(stream) == ["a"]
    writer.abort([message])
    writer.commit([message])
    assert found(stream) == ["a"]


def test_a_task_says_that_its_run_lives_while_it_writes(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    signs: list[str] = []

    def renew(sink: Sink) -> int:
        signs.append(sink.owner)
        return 1

    monkeypatch.setattr(Sink, "renew", renew)
    writer = job(stream)

    def slow() -> Iterator[pa.RecordBatch]:
        yield values("a")
        eventually(lambda: len(signs) > 3, timeout_s=60, what="signs of life")
        yield values("b")

    writer.commit([writer.write(slow())])
    assert set(signs) == {writer._job.run.owner}  # type: ignore[union-attr]
    assert found(stream) == ["a", "b"]


def test_a_job_that_fails_leaves_nothing_also_of_what_its_commit_had_pinned(stream: Stream, client: Client) -> None:
    """Its commit met a stage that had gone, when it had pinned others: those would stay for a day."""
    writer = job(stream, schema=PLACED)
    rows = [values("a"), values("b")]
    placed = [one.append_column("partition", pa.array([number], pa.int32())) for number, one in enumerate(rows)]
    messages = [writer.write(iter([one])) for one in placed]
    run, epoch = messages[0].run, messages[0].epoch
    assert run is not None
    client.sink(run.sink, owner=run.owner, epoch=epoch).abort(messages[1].stages)
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_STAGE_LOST"):
        writer.commit(messages)
    ((held,),) = [known.staged for known in client.sinks(staged=True) if known.sink == run.sink]
    assert (held.stages, held.pinned) == (1, 1)
    writer.abort(messages)
    assert staged_for(client, run.sink) == 0
    assert found(stream) == []


@pytest.mark.parametrize("has_opened", [False, True])
def test_a_task_that_comes_after_the_end_of_its_job_is_refused_for_good(
    stream: Stream, client: Client, has_opened: bool
) -> None:
    """It opened the sink anew, and what it staged stayed for a day. `has_opened`: another task of its job had."""
    writer = job(stream)
    messages = [writer.write(iter([values("a")]))] if has_opened else []
    writer.abort([*messages, None])
    assert writer._job is not None
    sink = writer._job.run.sink
    for _ in range(2):
        with pytest.raises(LiftlogSparkError, match=f"LIFTLOG_SINK_FENCED: sink '{sink}'"):
            pickle.loads(pickle.dumps(writer)).write(iter([values("late")]))
    if has_opened:
        with pytest.raises(LiftlogSparkError, match="LIFTLOG_SINK_FENCED"):
            writer.commit(messages)
    assert staged_for(client, sink) == 0
    assert found(stream) == []


def test_a_task_that_writes_while_its_job_ends_leaves_nothing(stream: Stream, client: Client) -> None:
    writer = job(stream)
    assert writer._job is not None
    sink = writer._job.run.sink

    def slow() -> Iterator[pa.RecordBatch]:
        for _ in range(2):
            yield values(*["x" * 1_000_000] * 20)  # worth a request
        eventually(lambda: staged_for(client, sink) > 0)
        writer.abort([None])
        yield values("late")

    with pytest.raises(LiftlogSparkError, match="LIFTLOG_SINK_FENCED"):
        writer.write(slow())
    eventually(lambda: staged_for(client, sink) == 0)
    assert found(stream) == []


def staged_for(client: Client, sink: str) -> int:
    """Stages of a sink that are there."""
    return sum(held.stages for known in client.sinks(staged=True) if known.sink == sink for held in known.staged or ())
