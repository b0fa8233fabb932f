"""Goal: with three brokers that judge each call, Spark does by a token in a file what is granted, and nothing else.

Method: `auth.mode = enforce`. A job with exactly the grants that the guide names reads, writes, runs an exactly-once
query, its lag and views. A sibling stream stays closed. Then the token is sought in all that Spark shows and keeps, and
revoked under the running query.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

import spark_liftlog
from broker.api.principals import new_token
from broker.client.client import Client
from broker.metadata.cluster import AUDITED
from spark_liftlog.errors import LiftlogSparkError
from spark_liftlog.writing.sink_options import sink_options
from spark_liftlog.writing.writer import LiftlogWriter
from tests.spark.streams import Stream, places
from tests.support.clusters import RealCluster
from tests.support.processes import eventually

GRANTS = (
    ("stream:read", "source"),
    ("stream:read", "target"),
    ("stream:append", "target"),
    ("sink:write", "*"),
    ("consumer:read", "job*"),
    ("consumer:write", "job*"),
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "admin.token"
    file.write_text(new_token().text)
    file.chmod(0o600)
    made = RealCluster(folder, None, LIFTLOG_AUTH_MODE="enforce", LIFTLOG_AUTH_ADMIN_TOKEN_FILE=str(file))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def admin(guarded: RealCluster) -> Iterator[Client]:
    with guarded.client(deadline_s=60.0) as client:
        eventually(lambda: client.cluster().feature_level >= AUDITED, what="the feature level")
        yield client


def _is_fenced(writer: LiftlogWriter) -> bool:
    """Whether a task that comes late is refused. A broker that has asked the coordinator of late asks again soon."""
    try:
        late = writer.write(iter([pa.RecordBatch.from_pydict({"value": [b"of a task that comes late"]})]))
    except LiftlogSparkError as error:
        return "LIFTLOG_SINK_FENCED" in str(error)
    writer.abort([late])
    return False


@pytest.mark.timeout(600)
def test_a_job_does_what_is_granted_by_a_token_in_a_file_and_nothing_else(
    spark: SparkSession, admin: Client, tmp_path: Path
) -> None:
    assert not [name for name in os.environ if name.startswith("LIFTLOG_TOKEN")]
    made = admin.create_token("svc:job", ttl_s=3600)
    for action, name in GRANTS:
        admin.grant("svc:job", action, name)
    file = tmp_path / "job.token"
    file.write_text(made.text)
    file.chmod(0o600)
    shown = {"tokenFile": str(file)}
    source, target = (Stream.create(admin, name, replication_factor=3) for name in ("source", "target"))
    sibling = Stream.create(admin, "source2", replication_factor=3)
    source.append(50)
    sibling.append(5)

    frame = source.read(spark, **shown)
    assert places(frame) == source.expected()
    rows = spark.range(30).selectExpr("cast(id AS string) AS value")
    rows.write.format("liftlog").mode("append").options(brokers=source.address, stream="target", **shown).save()
    assert admin.read("target").to_table().num_rows == 30

    job = {"brokers": source.address, "stream": "target", **shown}
    writer = LiftlogWriter(
        sink_options(job, "batch"), StructType([StructField("value", BinaryType())]), overwrite=False
    )
    written = writer.write(iter([pa.RecordBatch.from_pydict({"value": [b"of a job that fails"]})]))
    assert written.run is not None
    assert written.run.sink in {each.sink for each in admin.sinks()}
    writer.abort([written])
    eventually(lambda: _is_fenced(writer), what="that no broker lets the run stage (`node.sinks.service.K6`)")
    assert not any(each.staged for each in admin.sinks(staged=True) if each.sink == written.run.sink)

    checkpoint = tmp_path / "checkpoint"
    followed = source.follow(spark, consumer="job", **shown).select("value")
    query = (
        followed.writeStream.format("liftlog")
        .options(brokers=source.address, stream="target", checkpointLocation=str(checkpoint), **shown)
        .start()
    )
    try:
        query.processAllAvailable()
        assert admin.read("target").to_table().num_rows == 30 + 150
        source.append(10)
        query.processAllAvailable()
        eventually(lambda: (found := spark_liftlog.lag(query)) is not None and found.total == 0)
        assert admin.read("target").to_table().num_rows == 30 + 180

        refusals = []
        for refused in (
            lambda: sibling.read(spark, **shown).collect(),
            lambda: source.read(spark).collect(),
            lambda: (
                rows.write.format("liftlog")
                .mode("append")
                .options(brokers=source.address, stream="source2", **shown)
                .save()
            ),
        ):
            with pytest.raises(PySparkException) as error:
                refused()
            refusals.append(str(error.value))
        assert all("unauthorized" in each.lower() or "is needed" in each for each in refusals), refusals
        views = spark_liftlog.views(spark, brokers=source.address, token_file=str(file))
        assert set(views) == {"source", "target"}
        assert spark.sql("SELECT count(*) FROM target").collect()[0][0] == 30 + 180

        secret = made.text.rpartition("_")[2]
        explained = frame._jdf.queryExecution().toString() + followed._jdf.queryExecution().toString()
        said = [explained, str(query.lastProgress), str(query.status), *refusals]
        assert "tokenFile" in explained or str(file) in str(query.lastProgress), "the path may be shown"
        assert not [each for each in said if secret in each]
        kept = [each.read_bytes() for each in checkpoint.rglob("*") if each.is_file()]
        assert kept
        assert not [each for each in kept if secret.encode() in each]

        admin.grant("user:auditor", "stream:read", "__audit")
        auditor = tmp_path / "auditor.token"
        auditor.write_text(admin.create_token("user:auditor", ttl_s=3600).text)
        auditor.chmod(0o600)
        said = {"brokers": source.address, "stream": "__audit", "payload": "json", "tokenFile": str(auditor)}
        trail = spark.read.format("liftlog").options(**said).load().select("kind", "principal", "operation", "asked")
        acts = {(row.kind, row.principal, row.operation) for row in trail.collect()}
        assert {("act", "admin", each) for each in ("put_token", "change_grants", "create_stream")} <= acts
        assert ("refusal", "svc:job") in {each[:2] for each in acts}
        assert not [row for row in trail.collect() if secret in str(row)]

        admin.revoke_token(made.id)
        source.append(10)
        eventually(lambda: query.exception() is not None, timeout_s=120, what="the query ends")
        assert "unauthenticated" in str(query.exception()).lower()
        assert secret not in str(query.exception())
    finally:
        query.stop()
    assert admin.read("target").to_table().num_rows == 30 + 180
    assert target.client is admin
