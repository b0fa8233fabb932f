"""The job of test_canary.py: it works with a token in a file, is refused here and there, and at last everywhere.

    python -m tests.spark.canary_app <brokers> <folder> <master>

    running    written when a query runs and some things were refused; then it waits for `revoked`
    refused    written when the revoked token was refused everywhere; then it waits for `seen`, and ends

Each refusal's traceback is in `tracebacks`, with all locals of this process. What it logs is in `python.log`, and what
its JVM logs in `driver.log`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_liftlog
from broker.client.client import connect
from tests.spark.standalone import SETTINGS
from tests.support.processes import eventually

SOURCE, TARGET, SIBLING = "canary-source", "canary-target", "canary-source2"
TOKEN_FILE = "canary.token"
LOG4J = """
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
logger.sql.name = org.apache.spark.sql
logger.sql.level = debug
logger.python.name = org.apache.spark.api.python
logger.python.level = debug
"""
WAIT_S = 300.0


class Job:
    """See the module."""

    def __init__(self, brokers: str, folder: Path, master: str) -> None:
        self.brokers = brokers
        self.folder = folder
        self.options = {"brokers": brokers, "tokenFile": str(folder / TOKEN_FILE)}
        events = folder / "events"
        events.mkdir()
        logging_of_jvm = folder / "log4j2.properties"
        logging_of_jvm.write_text(LOG4J.format(file=folder / "driver.log"))
        builder = (
            SparkSession.builder.master(master)
            .config(map={**SETTINGS, "spark.speculation": "false"})
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging_of_jvm}")
            .config("spark.executor.memory", "512m")
            .config("spark.ui.enabled", "true")
            .config("spark.ui.port", "0")
            .config("spark.eventLog.enabled", "true")
            .config("spark.eventLog.compress", "false")
            .config("spark.eventLog.dir", events.as_uri())
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.executorEnv.PYTHONPATH", str(Path.cwd()))
        )
        self.spark = spark_liftlog.configure(builder).getOrCreate()

    def read(self, stream: str, **more: str) -> DataFrame:
        return self.spark.read.format("liftlog").options(**self.options, stream=stream, **more).load()

    def follow(self, stream: str) -> DataFrame:
        options = {**self.options, "stream": stream, "startingOffsets": "earliest", "consumer": "job-canary"}
        return self.spark.readStream.format("liftlog").options(**options).load().select("value")

    def write(self, stream: str) -> None:
        rows = self.spark.range(30).selectExpr("cast(id AS string) AS value")
        rows.write.format("liftlog").mode("append").options(**self.options, stream=stream).save()

    def start(self, source: str) -> StreamingQuery:
        writer = self.follow(source).writeStream.format("liftlog").options(**self.options, stream=TARGET)
        return writer.option("checkpointLocation", str(self.folder / "checkpoints" / source)).start()

    def ask(self, stream: str) -> Any:
        with connect(self.brokers.split(","), token_file=self.options["tokenFile"]) as client:
            return client.read(stream).to_table()

    def refused(self, *calls: Callable[[], Any]) -> None:
        """Each of them has to fail. Notes how, as whoever logs it would, and as a debugger would."""
        with (self.folder / "tracebacks").open("a") as told:
            for call in calls:
                try:
                    call()
                except Exception as error:
                    told.write(f"{error!r}\n{traceback.format_exc()}\n")
                    told.writelines(traceback.TracebackException.from_exception(error, capture_locals=True).format())
                else:
                    raise AssertionError("not refused")

    def wait(self, mine: str, said: str, theirs: str) -> None:
        """Write a file, whole at once, and wait for another one."""
        (self.folder / f"{mine}.half").write_text(said)
        (self.folder / f"{mine}.half").rename(self.folder / mine)
        eventually((self.folder / theirs).exists, timeout_s=WAIT_S, what=theirs)


def ended(query: StreamingQuery) -> None:
    """Its error, when it has one."""
    query.awaitTermination(int(WAIT_S))


def main(brokers: str, folder: str, master: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    logging.basicConfig(filename=f"{folder}/python.log", level=logging.DEBUG)
    job = Job(brokers, Path(folder), master)
    frame = job.read(SOURCE)
    frame.explain("extended")
    frame.explain("formatted")
    assert frame.count() > 0
    job.write(TARGET)
    query = job.start(SOURCE)
    query.processAllAvailable()
    query.explain(extended=True)
    job.refused(
        lambda: job.read(SIBLING).collect(),
        lambda: job.write(SIBLING),
        lambda: job.ask(SIBLING),
        lambda: ended(job.start(SIBLING)),
    )
    context = job.spark.sparkContext
    job.wait("running", json.dumps({"ui": context.uiWebUrl, "application": context.applicationId}), "revoked")
    job.refused(
        lambda: ended(query), lambda: job.read(SOURCE).collect(), lambda: job.write(TARGET), lambda: job.ask(SOURCE)
    )
    job.wait("refused", "", "seen")
    job.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
