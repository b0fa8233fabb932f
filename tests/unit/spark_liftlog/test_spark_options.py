"""Options: every one is honoured or refused by name. Goal: P1 of options.py, every limit, every wrong form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader

from broker.api.errors import (
    InvalidName,
    InvalidSetting,
    InvalidSubject,
    LiftlogError,
    NotSupported,
    Unavailable,
    UnknownSetting,
)
from broker.client import connect, publish
from broker.client.http.address import parse_addresses
from broker.serving.endpoints.watch import PATTERNS_MAX
from spark_liftlog.options import SOURCE_OPTIONS, STREAMS_MAX, SourceOptions, check_names, cores, source_options
from spark_liftlog.reading.where import ByTime
from spark_liftlog.writing.sink_options import SINK_OPTIONS, sink_options
from tests.unit.client.test_client_address import MALFORMED

MANY = ",".join(f"s{n}" for n in range(STREAMS_MAX + 1))


def test_as_many_streams_may_be_named_as_brokers_take() -> None:
    assert STREAMS_MAX == PATTERNS_MAX
    names = MANY.rpartition(",")[0]
    assert len(source_options({"streams": names}, "batch").selection.names) == STREAMS_MAX


def test_defaults_are_those_of_the_table() -> None:
    batch = source_options({"stream": "orders"}, "batch")
    stream = source_options({"stream": "orders"}, "stream")
    assert (batch.brokers, batch.selection.names) == ("localhost:9293", ("orders",))
    assert (batch.starting, batch.ending) == ("earliest", "latest")
    assert stream.starting == "latest"
    assert (stream.max_offsets_per_trigger, stream.min_partitions, stream.max_partitions) == (None, 1, 2 * cores())
    assert (stream.fail_on_data_loss, stream.consumer, stream.commit_offsets, stream.batch_rows) == (
        True,
        None,
        True,
        65536,
    )


def test_brokers_that_no_option_names_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the command line and the Python client."""
    monkeypatch.setenv("LIFTLOG_BROKERS", "a:1, b")
    assert source_options({"stream": "s"}, "stream").brokers == "a:1,b:9293"
    assert sink_options({"stream": "s"}, "batch").brokers == "a:1,b:9293"
    assert source_options({"stream": "s", "brokers": "c"}, "batch").brokers == "c:9293"
    assert str(connect().brokers) == "a:1,b:9293"
    assert str(connect("c").brokers) == "c:9293"
    monkeypatch.setenv("LIFTLOG_BROKERS", "a:0")
    with pytest.raises(InvalidSetting, match=r"^environment variable LIFTLOG_BROKERS: .*'a:0'"):
        source_options({"stream": "s"}, "stream")
    monkeypatch.setenv("LIFTLOG_BROKERS", "")
    assert source_options({"stream": "s"}, "batch").brokers == str(connect().brokers) == "localhost:9293"
    monkeypatch.setenv("LIFTLOG_NATS_URL", "nats://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"nats://127\.0\.0\.1:1: "):
        publish(None, "a", [b"x"])


def test_names_are_case_insensitive_and_spark_lowers_them() -> None:
    for name in ("maxOffsetsPerTrigger", "maxoffsetspertrigger", "MAXOFFSETSPERTRIGGER"):
        assert source_options({"stream": "s", name: "7"}, "stream").max_offsets_per_trigger == 7


def test_the_path_of_load_is_the_stream() -> None:
    assert source_options({"path": "orders"}, "batch").selection.names == ("orders",)
    assert source_options({"path": "orders", "stream": "orders"}, "batch").selection.names == ("orders",)
    with pytest.raises(InvalidSetting, match="names another stream, 'returns'"):
        source_options({"path": "returns", "stream": "orders"}, "batch")


def test_what_spark_passes_by_itself_is_let_by() -> None:
    sink = sink_options({"path": "s", "checkpointLocation": "/c", "queryName": "q"}, "stream")
    assert (sink.stream, sink.checkpoint) == ("s", "/c")
    assert source_options({"stream": "s", "checkpointlocation": "/c", "queryname": "q"}, "stream").selection.names == (
        "s",
    )


def test_of_a_table_only_what_stands_under_options_is_an_option() -> None:
    """As CREATE TABLE hands it over: the table's properties, and each option with a second name."""
    table = {"provider": "liftlog", "owner": "me", "comment": "c", "location": "l", "foo": "a property of the user's"}
    check_names({**table, "stream": "s", "option.stream": "s"})
    with pytest.raises(UnknownSetting, match="no option 'topic'"):
        check_names({**table, "topic": "s", "option.topic": "s"})
    with pytest.raises(UnknownSetting, match="no option 'foo'"):
        check_names({"foo": "x", "stream": "s"})


@pytest.mark.parametrize(
    "key, nearest",
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("broker", "brokers"),
        ("failOnDataLos", "failOnDataLoss"),
        ("subscribe", None),
        ("kafka.bootstrap.servers", None),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(key: str, nearest: str | None) -> None:
    with pytest.raises(UnknownSetting) as caught:
        source_options({"stream": "s", key: "x"}, "stream")
    assert caught.value.nearest == nearest
    assert repr(key) in str(caught.value)
    assert (nearest or "in its place: ") in str(caught.value)


@pytest.mark.parametrize(
    "given, says",
    [
        ({"readFrom": "local"}, "option readFrom='local': files of a broker are not read"),
        ({"via": "nats"}, r"option 'via': rows are written to the log"),
        ({"token": "t"}, "option 'token': a token is named by its file"),
        ({"TLS.ca": "f"}, r"option 'TLS\.ca': a token is named by its file"),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(given: dict[str, str], says: str) -> None:
    with pytest.raises(NotSupported, match=says):
        source_options({"stream": "s", **given}, "batch")


def test_spark_has_no_hooks_that_this_package_does_not_use() -> None:
    """If this fails, Spark offers more to a Python source than it did: see decision record 213."""
    hooks = {name for name in dir(DataSourceReader) if not name.startswith("_")}
    assert hooks == {"partitions", "pushFilters", "read"}
    assert not [name for name in dir(datasource) if "metric" in name.lower()]


def test_subjects_and_the_time_for_a_log_to_catch_up_are_read() -> None:
    found = source_options(
        {"stream": "s", "subjects": "a.*, b.>", "truncationTimeoutMs": "0", "readFrom": "Leader"}, "stream"
    )
    assert (found.subjects, found.truncation_timeout_s, found.from_nearest) == (("a.*", "b.>"), 0, False)
    assert source_options({"stream": "s", "readFrom": "Nearest"}, "batch").from_nearest
    assert source_options({"stream": "s"}, "stream").truncation_timeout_s == 5
    with pytest.raises(InvalidSubject, match="has an empty token"):
        source_options({"stream": "s", "subjects": "ok,a..b"}, "batch")


def test_a_key_is_text() -> None:
    assert source_options({"stream": "s", "key": "é"}, "batch").key == "é".encode()
    assert source_options({"stream": "s", "key": ""}, "batch").key == b""
    assert source_options({"stream": "s", "key": "k" * 1536}, "batch").key == b"k" * 1536
    assert source_options({"stream": "s", "key": "k"}, "stream").key == b"k"
    assert source_options({"stream": "s"}, "batch").key is None
    with pytest.raises(InvalidSetting, match=r"option key='k.*: must have no more than 2048 characters in base64"):
        source_options({"stream": "s", "key": "k" * 1537}, "batch")
    with pytest.raises(InvalidSetting, match="option key='k': it means nothing with mode=table: choose in"):
        source_options({"stream": "s", "key": "k", "mode": "table"}, "batch")


@pytest.mark.parametrize("name", ["endingOffsets", "resolve"])
def test_an_option_of_batch_reads_is_refused_in_a_stream(name: str) -> None:
    with pytest.raises(UnknownSetting, match=r"spark\.read only"):
        source_options({"stream": "s", name: "latest"}, "stream")


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "consumer", "commitOffsets"])
def test_an_option_of_streams_is_refused_in_a_batch_read(name: str) -> None:
    with pytest.raises(UnknownSetting, match=r"spark\.readStream only"):
        source_options({"stream": "s", name: "1"}, "batch")


@pytest.mark.parametrize("name", sorted({*SOURCE_OPTIONS} - {*SINK_OPTIONS}))
def test_the_sink_refuses_what_only_the_source_has(name: str) -> None:
    with pytest.raises(UnknownSetting, match="liftlog sink has no option"):
        sink_options({"stream": "s", name: "1"}, "stream")


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("maxOffsetsPerTrigger", "0", "from 1 to"),
        ("maxOffsetsPerTrigger", "-5", "from 1 to"),
        ("maxOffsetsPerTrigger", "1e6", "whole number"),
        ("maxOffsetsPerTrigger", "9" * 30, "whole number"),
        ("maxOffsetsPerTrigger", "٣", "whole number"),
        ("minPartitions", "0", "from 1 to 100000"),
        ("maxPartitions", "100001", "from 1 to 100000"),
        ("batchRows", "1048577", "from 1 to 1048576"),
        ("failOnDataLoss", "yes", "true or false"),
        ("commitOffsets", "", "true or false"),
        ("brokers", " , ", "no broker address given; expected host:port, or several separated by commas"),
        ("startingOffsets", "newest", "earliest or latest or committed or JSON"),
        ("startingOffsets", "{", "no JSON"),
        ("startingOffsets", '{"s": {"0": 1}', "no JSON"),
        ("startingOffsets", '{"s": {"0": 1, "0": 2}}', "occurs twice"),
        ("startingOffsets", '{"s": {"2": 1, "02": 2}}', "partition 2 is named twice"),
        ("startingOffsets", '{"other": {"0": 1}}', "the streams that are read are ['s']"),
        ("startingOffsets", '{"s": {}}', "object of partitions"),
        ("startingOffsets", '{"s": [1]}', "object of partitions"),
        ("startingOffsets", '{"s": {"zero": 1}}', "'zero' is no partition"),
        ("startingOffsets", '{"s": {"0": "1"}}', "is no offset"),
        ("startingOffsets", '{"s": {"0": 1.5}}', "is no offset"),
        ("startingOffsets", '{"s": {"0": true}}', "is no offset"),
        ("startingOffsets", '{"s": {"0": -3}}', "is no offset"),
        ("startingOffsets", '{"s": {"0": 9223372036854775808}}', "is no offset"),
    ],
)
def test_a_bad_value_is_an_error_that_names_key_value_and_limit(name: str, value: str, says: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        source_options({"stream": "s", name: value}, "stream")
    assert caught.value.key == name
    assert name in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", MALFORMED)
def test_an_address_that_the_client_refuses_is_refused_as_an_option(text: str) -> None:
    for given in (text, f"a:1,{text}"):
        for options in (source_options, sink_options):
            with pytest.raises(InvalidSetting, match=r"^option brokers: broker address ") as caught:
                options({"stream": "s", "brokers": given}, "stream")
            assert repr(text) in str(caught.value)


def test_addresses_are_those_of_the_client() -> None:
    for options in (source_options, sink_options):
        found = options({"stream": "s", "brokers": "http://A:1/, b,a:1,"}, "stream")
        assert found.brokers == ",".join(map(str, parse_addresses("http://A:1/, b,a:1,"))) == "a:1,b:9293"
        assert options({"stream": "s", "brokers": "https://a,https://b:1"}, "stream").brokers == (
            "https://a:9293,https://b:1"
        )
        with pytest.raises(InvalidSetting, match=r"^option brokers: .*some are https"):
            options({"stream": "s", "brokers": "https://a,b"}, "stream")
        with pytest.raises(InvalidSetting) as caught:
            options({"stream": "s", "brokers": "http://me:secret@a"}, "stream")
        assert "secret" not in f"{caught.value}{caught.value.fields}"


def test_a_huge_value_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidSetting) as caught:
        source_options({"stream": "s", "startingOffsets": "{" + "x" * 100_000}, "stream")
    assert len(str(caught.value)) < 1_000


def test_batch_reads_refuse_the_sides_that_read_nothing() -> None:
    for name, value in (("startingOffsets", "latest"), ("endingOffsets", "earliest")):
        with pytest.raises(InvalidSetting, match=name):
            source_options({"stream": "s", name: value}, "batch")
    with pytest.raises(InvalidSetting, match="-1 is no offset"):
        source_options({"stream": "s", "startingOffsets": '{"s": {"0": -1}}'}, "batch")
    with pytest.raises(InvalidSetting, match="-2 is no offset"):
        source_options({"stream": "s", "endingOffsets": '{"s": {"0": -2}}'}, "batch")


def test_json_offsets_come_in_partition_order() -> None:
    where = source_options({"stream": "s", "startingOffsets": '{"s": {"10": 1, "2": -2, "0": -1}}'}, "stream")
    assert list(where.starting["s"].items()) == [(0, -1), (2, -2), (10, 1)]  # type: ignore[index]


def test_min_partitions_beyond_max_is_refused_and_beyond_the_default_raises_it() -> None:
    with pytest.raises(InvalidSetting, match="maxPartitions=2"):
        source_options({"stream": "s", "minPartitions": "3", "maxPartitions": "2"}, "batch")
    assert source_options({"stream": "s", "minPartitions": "99"}, "batch").max_partitions == 99


def test_without_a_stream_the_error_shows_how_to_name_one() -> None:
    with pytest.raises(InvalidSetting, match='option\\("stream", "orders"\\)'):
        source_options({}, "batch")
    assert sink_options({}, "batch").stream is None, "the column stream may name it"


@pytest.mark.parametrize(
    "given, says",
    [
        ({"stream": "a,b"}, "option stream: stream name 'a,b': 1 to 128 .*, there is the option \"streams\""),
        ({"path": "a b"}, "option stream: stream name 'a b': 1 to 128 characters"),
        ({"streams": "a,b c"}, "option streams: stream name 'b c'"),
        ({"partitions": '{"b c": [0]}'}, "option partitions: stream name 'b c'"),
        ({"stream": "s", "consumer": "a/b"}, "option consumer: consumer name 'a/b'"),
        ({"stream": "s", "subjects": "ok,a..b"}, r"option subjects: subject 'a\.\.b' has an empty token"),
        ({"stream": "s", "readFrom": "near"}, "option readFrom='near': must be leader or nearest$"),
        ({"stream": "s", "startingTimestamp": "2013-01-01"}, "whole number of milliseconds since 1970 UTC, from 0"),
        ({"streams": MANY}, "option streams='s0,s1.*: 257 streams, at most 256 may be named: use streamPattern"),
        ({"streamPattern": " "}, "option streamPattern=' ': must be a regular expression"),
    ],
)
def test_an_error_names_the_option_whatever_is_wrong_with_it(given: dict[str, str], says: str) -> None:
    """Seen before: names and subjects were named, the option that had them was not; `local` was said to be allowed."""
    with pytest.raises(LiftlogError, match=says):
        source_options(given, "stream")


@pytest.mark.parametrize(
    "given, says",
    [
        ({"stream": "a,b"}, "^option stream: stream name 'a,b': [^;]*$"),
        ({"deadLetterStream": "a b"}, "option deadLetterStream: stream name 'a b'"),
        ({"sinkId": "a b"}, "option sinkId: sink name 'a b'"),
        ({"subject": "orders.>"}, "option subject: subject 'orders.>' has a wildcard"),
    ],
)
def test_an_error_of_the_sink_names_the_option_too(given: dict[str, str], says: str) -> None:
    with pytest.raises(LiftlogError, match=says):
        sink_options({"stream": "s", **given}, "stream")


@pytest.mark.parametrize("name", ["", "a b", "../etc", "x" * 129])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        source_options({"stream": name}, "stream")
    with pytest.raises(InvalidName):
        source_options({"stream": "s", "consumer": name}, "stream")


def test_the_users_page_has_every_sink_option_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "spark.md").read_text()
    table = page.split("### Options of the sink")[1].split("\n\n**")[0]
    documented = re.findall(r"^\| `(\w+)` \| (x?) ?\| (x?) ?\|", table, re.MULTILINE)
    found = [
        (name, {kind for kind, is_there in (("batch", b), ("stream", s)) if is_there}) for name, b, s in documented
    ]
    assert found == [(name, set(kinds)) for name, kinds in SINK_OPTIONS.items()]


def test_internal_streams_can_be_read_but_not_written() -> None:
    assert source_options({"stream": "__offsets"}, "batch").selection.names == ("__offsets",)
    with pytest.raises(LiftlogError):
        sink_options({"stream": "__offsets"}, "batch")


def test_the_users_page_has_every_option_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "spark.md").read_text()
    table = page.split("## Options of the source")[1].split("\n\n**")[0]
    documented = re.findall(r"^\| `(\w+)` \| (x?) ?\| (x?) ?\|", table, re.MULTILINE)
    assert [name for name, _, _ in documented] == list(SOURCE_OPTIONS)
    for name, read, follow in documented:
        for kind, is_there in (("batch", read), ("stream", follow)):
            accepted = True
            try:
                source_options({"stream": "s", name: VALID[name]}, kind)  # type: ignore[arg-type]
            except UnknownSetting:
                accepted = False
            except InvalidSetting:
                pass  # it wants company
            assert accepted == bool(is_there), f"{name} in a {kind} read"


@pytest.mark.parametrize(
    "given, says",
    [
        ({"partitioner": "hash"}, "option partitioner='hash': must be key or roundRobin"),
        ({"deliveryGuarantee": "once"}, "must be exactly-once or at-least-once"),
        ({"txnAppId": "etl"}, "option txnVersion is missing"),
        ({"txnVersion": "1"}, "option txnAppId is missing"),
        ({"txnAppId": "", "txnVersion": "1"}, "must be text of 1 to 1024 characters"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "option txnVersion='-1': must be a whole number from 0"),
        ({"txnAppId": "a", "txnVersion": "1", "deliveryGuarantee": "at-least-once"}, "means nothing with"),
        ({"onNewDestination": "accept"}, "with txnAppId only"),
        ({"onNewDestination": "ask", "txnAppId": "a", "txnVersion": "1"}, "must be refuse or accept"),
        ({"onNewDestination": "accept", "deliveryGuarantee": "at-least-once"}, "means nothing with"),
        ({"deadLetterStream": "s"}, "must be another stream than the one that is written"),
        ({"deadLetterStream": "a b"}, "stream name 'a b'"),
        ({"subject": "orders.>"}, "a record needs a concrete subject"),
        ({"deliveryTimeoutMs": "0"}, "must be a whole number from 1 to 86400000"),
        ({"sinkId": "s"}, "option 'sinkId' means something for writeStream only, and this is write"),
        ({"subscribe": "s"}, "has no option 'subscribe'; in its place: stream"),
        ({"kafka.acks": "all"}, "has no option 'kafka.acks'; it belongs to another connector"),
        ({"deadLeterStream": "d"}, "did you mean 'deadLetterStream'"),
        ({"token": "secret"}, "option 'token': a token is named by its file"),
        ({"tls.ca": "f"}, "option 'tls.ca': a token is named by its file"),
    ],
)
def test_a_bad_sink_option_is_an_error_that_says_what_is_allowed(given: dict[str, str], says: str) -> None:
    with pytest.raises(LiftlogError) as caught:
        sink_options({"stream": "s", **given}, "batch")
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_sink_takes_all_of_its_options() -> None:
    found = sink_options({"stream": "s", "sinkId": "i", "onRepeatWithOtherRows": "KEEPFIRST"}, "stream")
    assert (found.sink_id, found.on_repeat, found.is_exactly_once) == ("i", "keep_first", True)
    found = sink_options({"path": "s", "txnappid": "a", "txnversion": "7", "partitioner": "roundRobin"}, "batch")
    assert (found.txn_app_id, found.txn_version, found.partitioner) == ("a", 7, "roundRobin")


@pytest.mark.parametrize(
    "given, says",
    [
        ({"stream": "a", "streams": "b"}, "stream is given, too: one of stream, streams, streamPattern"),
        ({"streams": "a", "streamPattern": "b"}, "streams is given, too"),
        ({"streams": " , "}, "must be names, separated by commas"),
        ({"streams": "a,a"}, "a name occurs twice"),
        ({"streams": "a,b c"}, "stream name 'b c'"),
        ({"streamPattern": "a("}, "is no regular expression"),
        ({"streamPattern": "a.*", "partitions": '{"a": [0]}'}, "name the streams"),
        ({"partitions": '{"a": []}'}, 'must be JSON such as {"orders": [0, 1]}'),
        ({"partitions": '{"a": [true]}'}, 'must be JSON such as {"orders": [0, 1]}'),
        ({"stream": "a", "partitions": '{"b": [0]}'}, "'b' is none of those that are read"),
        ({"stream": "a", "startingOffsets": "earliest", "startingTimestamp": "1"}, "startingOffsets is given, too"),
        ({"stream": "a", "startingOffsetsByTimestampStrategy": "latest"}, "with a starting timestamp only"),
        ({"stream": "a", "startingTimestamp": "yesterday"}, "must be a whole number"),
        ({"stream": "a", "startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "milliseconds since 1970"),
        ({"stream": "a", "startingOffsets": "committed"}, "the option consumer must name whose progress"),
        ({"stream": "a", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "must not exceed"),
        ({"stream": "a", "maxTriggerDelay": "1m"}, "means something with minOffsetsPerTrigger only"),
        ({"stream": "a", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "such as 500ms, 30s"),
        ({"stream": "a", "maxBytesPerTrigger": "1.5g"}, "must be bytes"),
        ({"stream": "a", "maxBytesPerTrigger": "0"}, "must be bytes"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(LiftlogError) as caught:
        source_options(given, "stream")
    assert says in str(caught.value)


def test_streams_partitions_and_times_are_understood() -> None:
    def of(**given: str) -> SourceOptions:
        return source_options(given, "stream")

    assert of(streams="b, a").selection.names == ("a", "b")
    assert of(partitions='{"b": [1], "a": [0, 2]}').selection.names == ("a", "b")
    assert of(stream="a", startingTimestamp="7").starting == ByTime(at_ms=7, strategy="error")
    by_time = of(
        stream="a", startingOffsetsByTimestamp='{"a": {"0": 7}}', startingOffsetsByTimestampStrategy="LATEST"
    ).starting
    assert by_time == ByTime(at_ms={"a": {0: 7}}, strategy="latest")
    found = of(stream="a", maxBytesPerTrigger="10m", minOffsetsPerTrigger="3", maxTriggerDelay="2 m")
    assert (found.max_bytes_per_trigger, found.max_trigger_delay_s) == (10 << 20, 120.0)
    for text, seconds in (("15min", 900), ("1h", 3600), ("250ms", 0.25), ("1500", 1.5)):  # as Kafka's source reads them
        assert of(stream="a", minOffsetsPerTrigger="3", maxTriggerDelay=text).max_trigger_delay_s == seconds


VALID = {
    "tlsCa": "/tls/ca.pem",
    "tlsCert": "/tls/me.pem",
    "tlsKey": "/tls/me.key",
    "tokenFile": "/tls/me.token",
    "profile": "prod",
    "mode": "log",
    "asOf": "1",
    "sharedKeys": "keep",
    "truncationTimeoutMs": "100",
    "subjects": "orders.>",
    "key": "k",
    "columns": "value",
    "pushFilters": "true",
    "readFrom": "leader",
    "brokers": "h:1",
    "stream": "s",
    "streams": "s",
    "streamPattern": "s",
    "partitions": '{"s": [0]}',
    "startingOffsets": "earliest",
    "startingTimestamp": "1",
    "startingOffsetsByTimestamp": '{"s": {"0": 1}}',
    "startingOffsetsByTimestampStrategy": "error",
    "endingOffsets": "latest",
    "endingTimestamp": "1",
    "endingOffsetsByTimestamp": '{"s": {"0": 1}}',
    "maxOffsetsPerTrigger": "1",
    "maxBytesPerTrigger": "1",
    "minOffsetsPerTrigger": "1",
    "maxTriggerDelay": "1s",
    "maxRecordsPerPartition": "1",
    "minPartitions": "1",
    "maxPartitions": "1",
    "resolve": "read",
    "failOnDataLoss": "true",
    "consumer": "c",
    "commitOffsets": "true",
    "onNewCheckpoint": "accept",
    "batchRows": "1",
    "payload": "json",
    "payloadSchema": "item BIGINT",
    "payloadMode": "FAILFAST",
}
