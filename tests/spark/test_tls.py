"""Goal: with https brokers that want certificates, everything in Spark works by the options alone, and no key leaves
its file.

Method: a broker with TLS of its own CA. Batch read and write, an exactly-once query, its lag, views. Then all that
Spark kept (the checkpoint) is searched for the client's key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_liftlog
from broker.api.errors import Retryable
from broker.client.client import Client, connect
from tests.spark.streams import Stream, places
from tests.support.certificates import Authority, Issued
from tests.support.processes import BrokerProcess, eventually


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def mine(authority: Authority) -> Issued:
    return authority.issue("me", "me.example")


@pytest.fixture(scope="module")
def secured(authority: Authority, mine: Issued, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    files = authority.issue("broker")
    http = {"TLS_CERT": files.cert, "TLS_KEY": files.key, "TLS_CLIENT_CA": authority.ca}
    env = {f"LIFTLOG_HTTP_{name}": path for name, path in http.items()}
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), None, env=env).start(wait=False)
    try:
        with connect(f"https://{process.address}", tls_ca=authority.ca, tls_cert=mine.cert, tls_key=mine.key) as client:

            def answers() -> bool:
                try:
                    return client.cluster().brokers[0].live
                except Retryable:
                    return False

            eventually(answers, timeout_s=120, what="the broker")
            yield client
    finally:
        process.stop()


def test_all_of_it_goes_by_options_alone_and_no_key_leaves_its_file(
    spark: SparkSession, secured: Client, authority: Authority, mine: Issued, tmp_path: Path
) -> None:
    assert not [name for name in os.environ if name.startswith("LIFTLOG_TLS")]
    files = {"tlsCa": authority.ca, "tlsCert": mine.cert, "tlsKey": mine.key}
    source = Stream.create(secured, "source")
    Stream.create(secured, "target")
    source.append(50)
    assert places(source.read(spark, **files)) == source.expected()

    rows = spark.range(30).selectExpr("cast(id AS string) AS value")
    rows.write.format("liftlog").mode("append").options(brokers=source.address, stream="target", **files).save()
    assert secured.read("target").to_table().num_rows == 30

    checkpoint = tmp_path / "checkpoint"
    writer = source.follow(spark, **files).select("value").writeStream.format("liftlog")
    writer = writer.options(brokers=source.address, stream="target", checkpointLocation=str(checkpoint), **files)
    query = writer.start()
    try:
        query.processAllAvailable()
        assert secured.read("target").to_table().num_rows == 30 + 150
        source.append(10)
        query.processAllAvailable()
        assert eventually(lambda: (found := spark_liftlog.lag(query)) is not None and found.total == 0)
    finally:
        query.stop()
    source.append(5)
    found = spark_liftlog.lag(query)
    assert found is not None
    assert found.total == 15, "the stopped query's last progress names the files"
    assert secured.read("target").to_table().num_rows == 30 + 180

    made = spark_liftlog.views(spark, brokers=source.address, tls_ca=authority.ca, tls_cert=mine.cert, tls_key=mine.key)
    assert made == {"source": "source", "target": "target"}
    assert spark.sql("SELECT count(*) FROM target").collect()[0][0] == 30 + 180

    key = Path(mine.key).read_text().splitlines()[1].encode()
    kept = [each.read_bytes() for each in checkpoint.rglob("*") if each.is_file()]
    assert kept
    assert not [each for each in kept if key in each or b"PRIVATE KEY" in each]


def test_without_files_the_error_says_what_is_missing(spark: SparkSession, secured: Client) -> None:
    stream = Stream.create(secured, "refused")
    with pytest.raises(Exception, match=r"its certificate is not believed: .*tls_ca says which CA is"):
        stream.read(spark).collect()
