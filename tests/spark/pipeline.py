"""The pipeline of test_pipelines.py: a stream into another. `spark-pipelines` imports it."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

BROKERS = os.environ["LIFTLOG_BROKERS"]

dp.create_sink("out", "liftlog", {"brokers": BROKERS, "stream": "pipeline-sink"})


@dp.append_flow(target="out")
def copied() -> DataFrame:
    options = {"brokers": BROKERS, "stream": "pipeline-source", "startingOffsets": "earliest"}
    return SparkSession.active().readStream.format("liftlog").options(**options).load().select("key", "value")
