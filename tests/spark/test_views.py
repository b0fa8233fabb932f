"""Temporary views of streams, and SQL that reads and writes them. A broker of its own: all of its streams are known."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

import spark_liftlog
from broker.client.client import Client, connect
from spark_liftlog.errors import LiftlogSparkError
from tests.support.processes import BrokerProcess

BINARY = pa.binary()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    process = BrokerProcess(tmp_path_factory.mktemp("alone"), None).start()
    with connect(process.address) as client:
        for name, settings in (
            ("plain", {}),
            ("prices.eu-1", {"cleanup": "compact", "partition_by": "key"}),
            ("select", {"partition_by": "key"}),
        ):
            client.create_stream(name, subject=None, **settings)
            rows = {"key": pa.array([b"k", b"k"], BINARY), "value": pa.array([b"old", b"new"], BINARY)}
            client.append(name, 0, pa.record_batch(rows))
        yield client
    process.stop()


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Temporary views are of a session."""
    return spark.newSession()


def views(session: SparkSession, client: Client, **more: object) -> dict[str, str]:
    return spark_liftlog.views(session, brokers=str(client.brokers), **more)  # type: ignore[arg-type]


def test_each_stream_has_a_view_and_a_keyed_one_its_table(session: SparkSession, alone: Client) -> None:
    assert views(session, alone) == {
        "plain": "plain",
        "prices.eu-1": "prices.eu-1",
        "prices.eu-1_table": "prices.eu-1",
        "select": "select",
        "select_table": "select",
    }
    assert session.sql("SELECT string(value) AS v FROM plain ORDER BY offset").collect() == [Row(v="old"), Row(v="new")]
    for name in ("`prices.eu-1_table`", "select_table"):
        assert session.sql(f"SELECT string(key) AS k, string(value) AS v FROM {name}").collect() == [
            Row(k="k", v="new")
        ]
    assert session.sql("SELECT count(*) AS n FROM `select` JOIN `prices.eu-1` USING (key)").first() == Row(n=4)
    alone.append("plain", 0, [{"value": b"later"}])
    assert session.sql("SELECT count(*) AS n FROM plain").first() == Row(n=3), "a view sees what was appended since"


def test_a_stream_that_keeps_a_schema_has_views_with_its_columns(session: SparkSession, alone: Client) -> None:
    name = alone.create_stream("json", partition_by="key", payload_schema="item INT, price DOUBLE").name
    try:
        rows = [(b"a", b'{"item": 1}'), (b"b", b'{"item": 2, "price": 0.5}'), (b"a", b'{"item": 3}'), (b"c", b"?")]
        alone.append(name, 0, [{"key": key, "value": value} for key, value in rows])
        assert views(session, alone, streams=name) == {"json": name, "json_table": name}
        assert session.table("json").columns[:4] == ["item", "price", "value", "_corrupt"]
        found = session.sql("SELECT item, price, string(value) AS v, string(_corrupt) AS c FROM json ORDER BY offset")
        assert found.collect()[1] == Row(item=2, price=0.5, v='{"item": 2, "price": 0.5}', c=None)
        assert found.collect()[3] == Row(item=None, price=None, v="?", c="?")
        newest = session.sql("SELECT string(key) AS k, item FROM json_table WHERE _corrupt IS NULL ORDER BY k")
        assert newest.collect() == [Row(k="a", item=3), Row(k="b", item=2)]
        assert views(session, alone, streams=name), "again: they are known as ours"
    finally:
        alone.delete_stream(name)


def test_a_second_call_makes_them_anew_and_leaves_what_is_of_others(session: SparkSession, alone: Client) -> None:
    views(session, alone, streams="plain")
    assert views(session, alone, streams=["plain"]) == {"plain": "plain"}
    session.range(3).createTempView("`SELECT`")
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_INVALID_SETTING: the view 'select' would replace or hide"):
        views(session, alone)
    assert session.sql("SELECT * FROM `select`").count() == 3
    assert not session.catalog.tableExists("`prices.eu-1`"), "none is made if one cannot be"
    views(session, alone, replace=True)
    assert session.sql("SELECT * FROM `select`").count() == 2


def test_a_table_is_not_hidden(session: SparkSession, alone: Client) -> None:
    session.sql("CREATE TABLE plain (id INT) USING parquet")
    try:
        with pytest.raises(LiftlogSparkError, match="the view 'plain' would replace or hide"):
            views(session, alone)
    finally:
        session.sql("DROP TABLE plain")


def test_what_cannot_be_a_view_is_named(session: SparkSession, alone: Client) -> None:
    with pytest.raises(LiftlogSparkError, match="LIFTLOG_UNKNOWN_STREAM"):
        views(session, alone, streams=["nothing"])
    alone.create_stream("Select_Table", subject=None)
    try:
        with pytest.raises(LiftlogSparkError, match=r"'select_table' of stream 'select' .* the same name in SQL"):
            views(session, alone)
        assert views(session, alone, streams=["Select_Table"]) == {"Select_Table": "Select_Table"}
    finally:
        alone.delete_stream("Select_Table")


def test_sql_writes_through_a_view_that_names_its_columns(session: SparkSession, alone: Client) -> None:
    alone.create_stream("written", subject="written", partitions=1)
    options = f"stream 'written', brokers '{alone.brokers}'"
    session.sql(f"CREATE TEMPORARY VIEW sink (key BINARY, value BINARY) USING liftlog OPTIONS ({options})")
    session.sql("INSERT INTO sink VALUES (X'61', X'62'), (null, X'63')")
    session.sql("INSERT INTO sink SELECT null, value FROM sink WHERE key IS NOT NULL")
    session.sql("INSERT INTO sink (value) VALUES (X'64')")
    found = alone.read("written").to_table().select(["key", "value"]).to_pylist()
    assert [(row["key"], row["value"]) for row in found[:2]] == [(b"a", b"b"), (None, b"c")]
    assert [(row["key"], row["value"]) for row in found[2:]] == [(None, b"b"), (None, b"d")]
    with pytest.raises(PySparkException, match="LIFTLOG_MODE"):
        session.sql("INSERT OVERWRITE sink VALUES (X'61', X'62')")
    for statement in ("DELETE FROM sink WHERE key IS NULL", "UPDATE sink SET value = key"):
        with pytest.raises(PySparkException):
            session.sql(statement)
    views(session, alone, streams="written")
    with pytest.raises(
        PySparkException,
        match=r"LIFTLOG_UNKNOWN_SETTING: the liftlog sink has no option 'mode': .*CREATE TEMPORARY VIEW v \(key BINARY",
    ):
        session.sql("INSERT INTO written (key, value) VALUES (X'61', X'62')")
    assert alone.describe("written").record_count == 4


def test_sql_writes_to_a_table_whose_options_are_said_each_time(session: SparkSession, alone: Client) -> None:
    alone.create_stream("written-2", subject="written-2", partitions=1)
    options = f"stream = 'written-2', brokers = '{alone.brokers}'"
    session.sql("CREATE TABLE sink_table (key BINARY, value BINARY) USING liftlog")
    try:
        session.sql(f"INSERT INTO sink_table WITH ({options}) VALUES (X'61', X'62')")
        assert session.sql(f"SELECT string(value) AS v FROM sink_table WITH ({options})").collect() == [Row(v="b")]
    finally:
        session.sql("DROP TABLE sink_table")
