"""Goal: docs/guides/from-kafka.md is true line by line: what it says takes an option's place, the error says, too.

Method: each option in the left column of its tables is given to the source and to the sink. Its examples are run in
tests/spark/test_from_kafka.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from broker.api.errors import InvalidRecords, InvalidSetting, NotSupported, UnknownSetting
from spark_liftlog.options import SOURCE_OPTIONS, source_options
from spark_liftlog.schema import columns_of as columns_that_are_read
from spark_liftlog.schema import row_of
from spark_liftlog.writing.rows import columns_of
from spark_liftlog.writing.sink_options import SINK_OPTIONS, sink_options

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "from-kafka.md").read_text()
OURS = {*SOURCE_OPTIONS, *SINK_OPTIONS}
DOTLESS = {"subscribe", "subscribePattern", "assign", "includeHeaders", "groupIdPrefix", "topic"}
"""Options of Kafka's source and sink that are not ours."""


def lines() -> Iterator[tuple[str, str]]:
    """(option there, cell of what takes its place here)."""
    for left, right in re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE):
        for text in re.findall(r"`([^`]+)`", left):
            name = text.split(" = ")[0].replace("*", "anything")
            is_dotted = re.fullmatch(r"(kafka|nats|kafkaConsumer|fetchOffset)\.[A-Za-z.-]+", name)
            if is_dotted or name in DOTLESS or (name in OURS and "rows" not in left):
                yield name, right


def test_the_page_has_the_options_that_people_have() -> None:
    named = {name for name, _ in lines()}
    assert named > {*DOTLESS, "startingOffsets", "kafka.group.id", "kafka.partitioner.class", "nats.pull.batch.size"}
    assert len(named) > 36


@pytest.mark.parametrize("name, here", list(lines()))
def test_each_line_is_what_the_error_says(name: str, here: str) -> None:
    """Seen before: options of NATS that are limits here, and more of them, were said to have nothing in their place."""
    if name in OURS:
        assert here.startswith("the same")
        return
    for options in (source_options, sink_options):
        with pytest.raises((UnknownSetting, NotSupported)) as caught:
            options({"stream": "s", name: "x"}, "stream")
        in_place = [word for word in re.findall(r"`(\w+)", here) if word in OURS]
        if "not yet" in here:
            says = "a token is named by its file, tokenFile, and TLS is https:// in brokers, with tlsCa"
        else:
            says = rf"in its place: .*\b({'|'.join(in_place) or 'nothing'})\b"
        assert re.search(says, str(caught.value)), str(caught.value)


def test_columns_of_kafka_are_refused_with_what_takes_their_place() -> None:
    value = StructField("value", BinaryType())
    topic, kind = StructField("topic", StringType()), StructField("timestampType", IntegerType())
    with pytest.raises(InvalidRecords, match=r"column 'topic' does not belong to a record.*in its place: stream"):
        columns_of(StructType([value, topic]))
    for read in (columns_that_are_read, lambda schema: row_of(schema.names)):
        with pytest.raises(InvalidSetting, match="in its place: stream"):
            read(StructType([value, topic]))
        with pytest.raises(InvalidSetting, match="a timestamp is when the broker received the record"):
            read(StructType([value, kind]))
