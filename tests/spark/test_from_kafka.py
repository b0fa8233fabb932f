"""Kafka's documented examples, translated: every block of docs/guides/from-kafka.md runs, and its assertions hold."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from broker.client.client import Client

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "from-kafka.md"


def test_the_examples_of_the_page_run(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    for name in ("topic1", "topic2", "written"):
        client.create_stream(name, partitions=2)
    for name in ("topic1", "topic2"):
        for partition in range(2):
            rows = [{"key": f"k{n}".encode(), "value": b"v", "headers": [("h", b"1")]} for n in range(3)]
            client.append(name, partition, rows)
    numbers = count()
    given = {"spark": spark, "brokers": str(client.brokers), "checkpoint": lambda: str(tmp_path / str(next(numbers)))}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), given)
