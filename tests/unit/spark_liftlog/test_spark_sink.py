"""The sink's decisions: columns, partitions, bad rows, checkpoints. Goal: K1, K2 of rows.py and the broker's hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Semaphore
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType, StructField, StructType

from broker.api.errors import (
    InvalidRecords,
    InvalidRequest,
    InvalidSetting,
    InvalidSubject,
    RecordTooLarge,
    SinkFenced,
    Unavailable,
    UnknownPartition,
    UnknownSink,
    UnknownStream,
)
from broker.api.schema import HEADERS_TYPE
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls
from broker.client.http.interrupt import Interrupt
from broker.client.sinks import BundledPart, Sink, Stage
from spark_liftlog.errors import LiftlogSparkError, ModeRefused
from spark_liftlog.schema import HEADERS
from spark_liftlog.writing import outlets
from spark_liftlog.writing import targets as targets_module
from spark_liftlog.writing.jobs import Job
from spark_liftlog.writing.outlets import (
    APPEND_BYTES,
    BUNDLED_BYTES,
    PENDING_BYTES_MAX,
    STAGE_BYTES,
    Appending,
    Staging,
)
from spark_liftlog.writing.router import Router, partitions_for
from spark_liftlog.writing.rows import Target, bad_rows, columns_of, row_bytes
from spark_liftlog.writing.run import ABORT_S, Run, Written, agreed, checkpoint_name, give_up
from spark_liftlog.writing.sink_options import SinkOptions, checkpoint_place
from spark_liftlog.writing.writer import LiftlogStreamWriter, LiftlogWriter

OPTIONS = SinkOptions(brokers="localhost:1", stream="s")
VALUE = StructType([StructField("value", BinaryType())])


@pytest.mark.parametrize("writer", [LiftlogWriter, LiftlogStreamWriter])
def test_overwriting_a_log_is_refused(writer: type[LiftlogWriter] | type[LiftlogStreamWriter]) -> None:
    with pytest.raises(ModeRefused, match="append") as caught:
        writer(OPTIONS, VALUE, overwrite=True)
    assert caught.value.reason == "mode"


def test_a_task_that_reaches_no_broker_says_so_with_a_code() -> None:
    """Also where it asks before it writes."""
    options = replace(OPTIONS, delivery_timeout_s=0.001, txn_app_id="etl", txn_version=1)
    with pytest.raises(LiftlogSparkError, match=r"^LIFTLOG_UNAVAILABLE: "):
        LiftlogWriter(options, VALUE, overwrite=False).write(iter([]))


@pytest.mark.parametrize("sent, version, is_told", [(True, None, True), (False, None, False), (True, 3, False)])
def test_a_job_of_which_nobody_knows_says_so(
    monkeypatch: pytest.MonkeyPatch, sent: bool, version: int | None, is_told: bool
) -> None:
    """A scheduler that runs it again would write it twice, unless it is a transaction."""

    def unanswered(*_: object, **__: object) -> None:
        raise Unavailable("nobody answers", **({"sent": True} if sent else {}))

    monkeypatch.setattr(Sink, "commit", unanswered)
    stages = (Stage(stream="s", partition=0, stage="0" * 32, parts=1, rows=1),)
    options = replace(OPTIONS, txn_app_id=None if version is None else "etl", txn_version=version)
    job = Job.of(options)
    with pytest.raises(Unavailable) as caught:
        job.commit([Written(task=0, row_count=1, run=job.run, epoch=1, stages=stages)], Brokers("localhost:1"), 0.001)
    assert ("written all the same" in str(caught.value)) == is_told


def test_the_columns_of_a_record_are_taken_in_any_order_and_case() -> None:
    schema = StructType(
        [
            StructField("Partition", IntegerType()),
            StructField("headers", HEADERS),
            StructField("KEY", StringType()),
            StructField("value", StringType(), nullable=False),
            StructField("subject", StringType()),
        ]
    )
    assert columns_of(schema) == {"partition": 0, "headers": 1, "key": 2, "value": 3, "subject": 4}


@pytest.mark.parametrize(
    "fields, says",
    [
        ([StructField("key", BinaryType())], "needs a column value"),
        ([StructField("value", LongType())], "it must be binary or string"),
        ([*VALUE, StructField("offset", LongType())], "'offset' does not belong to a record"),
        ([*VALUE, StructField("partition", LongType())], "is bigint, it must be int"),
        ([*VALUE, StructField("headers", MapType(StringType(), BinaryType()))], "it must be array<struct"),
        ([*VALUE, StructField("VALUE", BinaryType())], "twice"),
    ],
)
def test_a_column_that_would_be_dropped_or_garbled_is_refused(fields: list[StructField], says: str) -> None:
    with pytest.raises(InvalidRecords, match=says):
        columns_of(StructType(fields))


def test_a_key_goes_where_the_brokers_hash_sends_it() -> None:
    keys = [b"", b"a", b"customer-42", b"x" * 1000, "é".encode()]
    found = partitions_for(pa.array(keys, pa.binary()), None, partition_count=7, turn=0)
    assert found.tolist() == [crc32(key) % 7 for key in keys]


def test_a_partition_that_is_named_wins_and_rows_with_neither_take_the_turn() -> None:
    keys = pa.array([b"a", b"a", None, None], pa.binary())
    explicit = pa.array([2, None, 0, None], pa.int32())
    assert partitions_for(keys, explicit, partition_count=3, turn=4).tolist() == [2, crc32(b"a") % 3, 0, 1]


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_partition_that_the_stream_does_not_have_is_refused(wrong: int) -> None:
    with pytest.raises(UnknownPartition, match=f"{wrong} is not a partition of the stream, which has 0 to 2"):
        partitions_for(None, pa.array([0, wrong], pa.int32()), partition_count=3, turn=0)


TARGET = Target(stream="s", partition_count=3, incarnation="i", record_bytes_max=10, subject="sub")


def test_sizes_of_rows_are_the_brokers() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"12345", None, b""], pa.binary()),
            "key": pa.array([None, b"kk", b""], pa.binary()),
            "headers": pa.array([None, [{"key": "h", "value": b"22"}, {"key": "é", "value": None}], []], HEADERS_TYPE),
        }
    )
    assert row_bytes(rows, "sub").tolist() == [8, 10, 3]
    assert row_bytes(rows.slice(1), "sub").tolist() == [10, 3]
    rows = rows.append_column("subject", pa.array([None, "a.b.c", "x"]))
    assert row_bytes(rows, "sub").tolist() == [8, 12, 1]


def test_every_kind_of_bad_row_is_found_where_it_is() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"v", None, b"v", b"v" * 99, b"v", b"v", None], pa.binary()),
            "key": pa.array([None, None, None, None, None, None, b"tombstone"], pa.binary()),
            "subject": pa.array(["a.b", None, "a..b", None, "a.*", "orders-1.é", None]),
            "headers": pa.array([[{"key": None, "value": b"x"}], None, [], None, None, None, None], HEADERS_TYPE),
        }
    )
    partitions = pa.array([0, 2, None, 1, 3, None, -1], pa.int32())
    for at in (0, 1):
        lengths = row_bytes(rows.slice(at), "sub")
        found = {
            (type(bad.error), int(row) + at)
            for bad in bad_rows(rows.slice(at), partitions.slice(at), TARGET, lengths)
            for row in bad.rows
            if "stream 's'" in str(bad.error)  # a batch may have rows of many streams: each error says of which
        }
        assert found == {
            *([(InvalidRecords, 0)] if at == 0 else []),
            (InvalidRecords, 1),
            (InvalidSubject, 2),
            (RecordTooLarge, 3),
            (InvalidSubject, 4),
            (UnknownPartition, 4),
            (RecordTooLarge, 5),
            (RecordTooLarge, 6),
            (UnknownPartition, 6),
        }


class Collecting:
    """An outlet that notes where rows went."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []

    def add(self, target: Target, partition: int, rows: pa.RecordBatch) -> None:
        self.found += [(target.stream, partition)] * rows.num_rows


def test_a_stream_that_a_broker_does_not_know_yet_is_asked_for_again() -> None:
    """One that an option names, and that was made a moment ago."""
    answers = [False, True, True]

    def find(stream: str) -> Target:
        if not (answers.pop(0) if answers else False):
            raise UnknownStream(f"no stream {stream!r}")
        return TARGET

    Router({"value": 0}, OPTIONS, find, Collecting(), 0, again=lambda _: True).check()
    answers[:] = [True, False]
    options = replace(OPTIONS, dead_letter_stream="letters")
    with pytest.raises(UnknownStream, match=r"^option deadLetterStream: no stream 'letters'$"):
        Router({"value": 0}, options, find, Collecting(), 0).check()


@pytest.mark.parametrize("partitioner", ["key", "roundRobin"])
def test_whole_batches_go_in_turn_where_that_is_chosen_keys_or_not(partitioner: str) -> None:
    """A partition that a row names counts all the same."""
    options = SinkOptions(brokers="b", stream="s", partitioner=partitioner)
    outlet, columns = Collecting(), {"value": 0, "key": 1, "partition": 2}
    router = Router(columns, options, lambda stream: TARGET, outlet, 0)
    keys = [b"a", b"b", b"c", b"d"]
    for named in (None, None, None, 1):
        router.add(
            pa.RecordBatch.from_pydict(
                {"value": [b"v"] * 4, "key": keys, "partition": pa.array([named] * 4, pa.int32())},
            )
        )
    found = [[partition for _, partition in outlet.found[at : at + 4]] for at in range(0, 16, 4)]
    if partitioner == "key":
        assert all(sorted(batch) == sorted(crc32(key) % 3 for key in keys) for batch in found[:3])
    else:
        assert sorted(map(tuple, found[:3])) == [(n,) * 4 for n in range(3)]
    assert found[3] == [1] * 4


@pytest.mark.parametrize("given_up", [False, True])
def test_a_partition_that_a_broker_does_not_know_yet_is_asked_for_again(given_up: bool) -> None:
    """It was added a moment ago. Seen before: the row was a dead letter."""
    counts = {"s": [3, 3, 5], "letters": [1]}

    def find(stream: str) -> Target:
        left = counts[stream]
        count = left.pop(0) if len(left) > 1 else left[0]
        return replace(TARGET, stream=stream, partition_count=count, record_bytes_max=2_000)

    options = SinkOptions(brokers="b", stream="s", dead_letter_stream="letters")
    outlet, columns = Collecting(), {"value": 0, "partition": 1}
    router = Router(columns, options, find, outlet, 0, again=lambda _: not given_up)
    router.add(pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "partition": pa.array([1, 4], pa.int32())}))
    assert sorted(outlet.found) == [("letters", 0), ("s", 1)] if given_up else [("s", 1), ("s", 4)]


@pytest.mark.parametrize(
    "location, name",
    [
        (None, "query q"),
        ("/a/b/", "/a/b query q"),
        ("//a//b", "/a/b query q"),
        ("file:///a/b", "file:/a/b query q"),
        ("file:/a//c/../b", "file:/a/b query q"),
        ("hdfs://nn:9000/a/b/", "hdfs://nn:9000/a/b query q"),
        ("s3a://bucket/a", "s3a://bucket/a query q"),
        ("a/b", "a/b query q"),
        ("a/./b:c/", "a/b:c query q"),
        ("/a\u00a0b\n/é c", "/a%C2%A0b%0A/é c query q"),
        ("/a%C2%A0b", "/a%25C2%25A0b query q"),
        ("file:/a\ud800", "file:/a%ED%A0%80 query q"),
    ],
)
def test_one_checkpoint_has_one_name(location: str | None, name: str) -> None:
    assert checkpoint_name("q", checkpoint_place(location)) == name


@pytest.mark.parametrize("failing", [3, 4])
def test_appends_are_under_way_one_at_a_time_while_rows_are_collected(failing: int) -> None:
    """The broker's fsync and Spark's next rows need not wait for each other; an error does not get lost."""
    allowed, calls, met = Semaphore(0), [], []

    class Slow:
        def asked_first(self, *_: object) -> None:
            pass

        def append(self, stream: str, partition: int, batches: list[pa.RecordBatch], **_: object) -> None:
            calls.append(sum(batch.num_rows for batch in batches))
            allowed.acquire()
            met.append(len(calls))
            if len(calls) == failing:
                raise Unavailable("nobody answers")

    def piece(rows: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": [bytes(APPEND_BYTES * 3 // 4 // rows)] * rows})

    target = Target(stream="s", partition_count=1, incarnation="i", record_bytes_max=1 << 20, subject="s")
    outlet = Appending(Slow())  # type: ignore[arg-type]
    for rows in (10, 11):
        outlet.add(target, 0, piece(rows))  # the first one is sent when the second one comes, and nobody waits
    allowed.release(2)
    for rows in (12, 13):
        outlet.add(target, 0, piece(rows))
    allowed.release(2)
    with pytest.raises(Unavailable):
        outlet.finish()
    outlet.discard()
    assert calls == [10, 11, 12, 13][:failing]
    assert met == list(range(1, failing + 1)), "never two at once"


def test_a_column_and_an_option_that_say_the_same_are_refused() -> None:
    schema = StructType([*VALUE, StructField("stream", StringType())])
    with pytest.raises(InvalidSetting, match="option stream='s': the frame has a column 'stream', too"):
        LiftlogWriter(OPTIONS, schema, overwrite=False)
    of_a_transaction = SinkOptions(brokers="b", stream=None, txn_app_id="a", txn_version=0)
    with pytest.raises(InvalidSetting, match=r"option txnAppId='a': .* here a column names the streams"):
        LiftlogWriter(of_a_transaction, schema, overwrite=False)
    with pytest.raises(InvalidSetting, match="no stream is named"):
        LiftlogWriter(SinkOptions(brokers="b", stream=None), VALUE, overwrite=False)


def piece_of_a_stage() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [bytes(STAGE_BYTES * 3 // 4)]})


def test_a_task_that_fails_does_not_wait_long_for_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker dies while a task stages: parts that are under way are given up, and the abort is short, too."""
    aborted: list[tuple[float, int]] = []

    def hang(_: Sink, batches: list[pa.RecordBatch], *args: object, interrupt: Interrupt, **options: object) -> int:
        if args[3] == 0:  # the first part
            raise Unavailable("nobody answers")
        interrupt.pause(600)
        assert interrupt.is_set
        raise Unavailable("interrupted")

    def dropping(sink: Sink, stages: Sequence[Stage]) -> int:
        aborted.append((sink._calls.deadline_s, len(stages)))
        raise Unavailable("nobody answers")

    monkeypatch.setattr(outlets, "ABORT_S", 0.05)
    monkeypatch.setattr(Sink, "open", lambda sink, **_: setattr(sink, "epoch", 1))
    monkeypatch.setattr(Sink, "send_part", hang)
    monkeypatch.setattr(Sink, "abort", dropping)
    monkeypatch.setattr(targets_module, "find", lambda calls, stream: replace(TARGET, record_bytes_max=1 << 30))
    writer = LiftlogWriter(OPTIONS, VALUE, overwrite=False)
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_UNAVAILABLE: nobody answers"):
        writer.write(iter([piece_of_a_stage() for _ in range(12)]))
    ((deadline_s, stages),) = aborted
    assert deadline_s == ABORT_S < OPTIONS.delivery_timeout_s
    assert stages


@pytest.mark.parametrize("is_known", [True, False])
def test_a_job_that_fails_ends_its_sink_at_an_earlier_broker_by_deleting_it(
    monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    asked: list[tuple[str, str, Any]] = []

    def json(_: Calls, method: str, target: str, body: Any = None, **options: Any) -> None:
        asked.append((method, target, body))
        if method == "POST":
            if not is_known:
                raise InvalidRequest(f"there is nothing at {target}", path=target)
            return
        raise UnknownSink("no task had opened it")

    monkeypatch.setattr(Calls, "json", json)
    give_up(Brokers("localhost:1"), Run(sink="job", owner="me", one_shot=True))
    end, *rest = asked
    assert end == ("POST", "/v1/sinks/job/end", {"owner": "me"})
    assert rest == ([] if is_known else [("DELETE", "/v1/sinks/job", None)])


def test_an_end_that_is_refused_is_not_made_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def json(_: Calls, method: str, target: str, body: Any = None, **options: Any) -> None:
        asked.append(method)
        raise InvalidRequest("it is not for one batch", sink="job")

    monkeypatch.setattr(Calls, "json", json)
    with pytest.raises(InvalidRequest):
        give_up(Brokers("localhost:1"), Run(sink="job", owner="me", one_shot=True))
    assert asked == ["POST"]


def test_parts_that_are_soon_through_are_waited_for_before_the_abort() -> None:
    """One that arrives after it would make a stage that nobody drops."""
    events: list[str] = []

    class Slow:
        def send_part(self, *_: object, interrupt: Interrupt, **__: object) -> int:
            interrupt.pause(0.2)
            events.append("interrupted" if interrupt.is_set else "stored")
            return 1

    outlet = Staging(Slow(), lambda stages: events.append("aborted"))  # type: ignore[arg-type]
    for _ in range(4):
        outlet.add(replace(TARGET, partition_count=1), 0, piece_of_a_stage())
    outlet.discard()
    assert events == ["stored"] * 3 + ["aborted"]


class Bundling:
    """A sink that takes bundles, and notes what came in which request.

    Args:
        elsewhere: Partitions that other brokers turn out to lead; None: brokers know of no bundles.
    """

    def __init__(self, elsewhere: tuple[int, ...] | None = ()) -> None:
        self.elsewhere = elsewhere
        self.bundles: list[list[tuple[int, list[str]]]] = []
        self.parts: list[tuple[int, int, bool, list[str]]] = []

    def asked_first(self, _: str, partition: int) -> int:
        return partition % 2

    def send_bundle(
        self, parts: Sequence[BundledPart], batches: list[pa.RecordBatch], _: str, **__: object
    ) -> tuple[int, ...] | None:
        values = [value.decode() for batch in batches for value in batch.column("value").to_pylist()]
        found = []
        for part in parts:
            found.append((part.partition, values[: part.rows]))
            values = values[part.rows :]
        assert not values
        if self.elsewhere is not None:
            self.bundles.append([each for each in found if each[0] not in self.elsewhere])
        return self.elsewhere

    def send_part(
        self, batches: list[pa.RecordBatch], _: str, partition: int, __: str, part: int, *, is_last: bool, **___: object
    ) -> int:
        values = [value.decode()[:9] for batch in batches for value in batch.column("value").to_pylist()]
        self.parts.append((partition, part, is_last, values))
        return len(values)


def staged_by(sink: Bundling, large: int | None = None) -> tuple[Stage, ...]:
    outlet = Staging(sink, lambda _: None)  # type: ignore[arg-type]
    for partition in (3, 0, 4, 2, 1, 0):
        outlet.add(TARGET, partition, pa.RecordBatch.from_pydict({"value": [f"{partition}a".encode(), b"b"]}))
    if large is not None:
        for _ in range(2):
            outlet.add(TARGET, large, piece_of_a_stage())
    return outlet.finish()


def test_what_is_left_in_the_end_goes_to_each_broker_in_one_request() -> None:
    sink = Bundling()
    stages = staged_by(sink)
    assert [(stage.partition, stage.parts, stage.rows) for stage in stages] == [
        (n, 1, 4 if n == 0 else 2) for n in range(5)
    ]
    by_leader = [[(n, [f"{n}a", "b"] * (1 + (n == 0))) for n in each] for each in ((0, 2, 4), (1, 3))]
    assert sorted(sink.bundles) == by_leader
    assert not sink.parts


@pytest.mark.parametrize("is_large", [False, True])
def test_a_small_part_that_is_alone_is_a_bundle_too(is_large: bool) -> None:
    """It costs no fsync then; a large one goes as it is."""
    sink = Bundling()
    outlet = Staging(sink, lambda _: None)  # type: ignore[arg-type]
    value = b"a" * (BUNDLED_BYTES if is_large else 1)
    outlet.add(TARGET, 2, pa.RecordBatch.from_pydict({"value": [value]}))
    (stage,) = outlet.finish()
    assert (stage.partition, stage.parts, stage.rows) == (2, 1, 1)
    assert (len(sink.bundles), len(sink.parts)) == ((0, 1) if is_large else (1, 0))


def test_parts_that_turn_out_to_be_led_elsewhere_go_one_by_one() -> None:
    sink = Bundling(elsewhere=(2, 3))
    staged_by(sink)
    assert sorted(part[0] for part in sink.parts) == [2, 3]
    assert sorted(partition for bundle in sink.bundles for partition, _ in bundle) == [0, 1, 4]


def test_brokers_of_an_older_release_get_each_part_by_itself() -> None:
    sink = Bundling(elsewhere=None)
    staged_by(sink)
    assert sorted(sink.parts) == [(n, 0, True, [f"{n}a", "b"] * (1 + (n == 0))) for n in range(5)]


def test_a_stage_of_many_parts_ends_in_a_bundle() -> None:
    sink = Bundling()
    stages = staged_by(sink, large=4)
    assert [stage.parts for stage in stages] == [1, 1, 1, 1, 2]
    assert [part[:3] for part in sink.parts] == [(4, 0, False)]


class AppendingBundles:
    """Appends that take bundles. Arguments as `Bundling`."""

    def __init__(self, failed: tuple[int, ...] | None = ()) -> None:
        self.failed = failed
        self.bundles: list[list[tuple[int, int]]] = []
        self.single: list[tuple[int, int]] = []

    def asked_first(self, _: str, partition: int) -> int:
        return partition % 2

    def append_bundle(
        self, _: str, parts: list[tuple[int, int]], rows: pa.RecordBatch, **__: object
    ) -> tuple[int, ...] | None:
        assert rows.num_rows == sum(count for _, count in parts)
        self.bundles.append(parts)
        return self.failed

    def append(self, _: str, partition: int, batches: list[pa.RecordBatch], **__: object) -> None:
        self.single.append((partition, sum(batch.num_rows for batch in batches)))


@pytest.mark.parametrize(
    "failed, single", [((), []), ((2, 3), [(2, 1), (3, 1)]), (None, [(0, 2), (2, 1), (1, 1), (3, 1)])]
)
def test_appends_of_a_task_end_in_bundles_too(failed: tuple[int, ...] | None, single: list[tuple[int, int]]) -> None:
    appender = AppendingBundles(failed)
    outlet = Appending(appender)  # type: ignore[arg-type]
    for partition in (3, 0, 2, 1, 0):
        outlet.add(TARGET, partition, pa.RecordBatch.from_pydict({"value": [b"a"]}))
    outlet.finish()
    assert appender.bundles == [[(0, 2), (2, 1)], [(1, 1), (3, 1)]]
    assert appender.single == single


def test_rows_that_wait_keep_no_others_in_memory() -> None:
    """One row of each batch waits, the others are sent: slices of the batches would keep all of them."""
    outlet = Staging(Bundling(), lambda _: None)  # type: ignore[arg-type]
    kept = []
    for _ in range(8):
        batch = pa.RecordBatch.from_pydict({"value": [bytes(STAGE_BYTES * 3 // 4), b"small"]})
        outlet.add(TARGET, 0, batch.slice(0, 1))
        outlet.add(TARGET, 1, batch.slice(1, 1))
        kept.append(sum(each.get_total_buffer_size() for each in outlet._pending[TARGET.stream, 1]))
    outlet.finish()
    assert max(kept) <= 2 * PENDING_BYTES_MAX


@pytest.mark.parametrize("options", [OPTIONS, replace(OPTIONS, is_exactly_once=False)])
@pytest.mark.parametrize("nothing", [None, "what another source says"])
def test_a_commit_that_lacks_what_a_task_wrote_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: SinkOptions, nothing: object
) -> None:
    """It would decide the batch without that task's rows, and its repetition would then be dropped."""
    decided: list[object] = []
    monkeypatch.setattr(Sink, "commit", lambda *args, **_: decided.append(args))
    run = Run(sink="s", owner="o") if options.is_exactly_once else None
    stages = (Stage(stream="s", partition=0, stage="0" * 32, parts=1, rows=1),) if run else ()
    messages: list[Any] = [Written(task=0, row_count=1, run=run, epoch=1, stages=stages), nothing]
    for each in (messages, messages[::-1]):
        with pytest.raises(LiftlogSparkError, match="LIFTLOG_STAGE_LOST: Spark commits 2 tasks"):
            LiftlogStreamWriter(options, VALUE, overwrite=False).commit(each, 0)
        with pytest.raises(LiftlogSparkError, match="LIFTLOG_STAGE_LOST: Spark commits 2 tasks"):
            LiftlogWriter(options, VALUE, overwrite=False).commit(each)
    with pytest.raises(SinkFenced, match="task 0 was given epoch 1, task 1 epoch 0"):
        agreed([Written(task=0, row_count=1, run=Run(sink="s", owner="o"), epoch=1), Written(task=1, row_count=1)])
    assert not decided
