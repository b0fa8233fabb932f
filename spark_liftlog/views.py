"""Temporary views of a cluster's streams, for SQL.

    spark_liftlog.views(spark, brokers="localhost:9293")
    spark.sql("SELECT subject, count(*) FROM orders GROUP BY subject")
    spark.sql("SELECT string(key), string(value) FROM `prices.eu_table`")

A view is named after its stream; that of a keyed stream's table has `_table` behind the name. A name that is no SQL
identifier is written in backticks. Views look at the end of their stream when they are read (resolve=read). If a stream
keeps a schema, its views have the columns of the JSON objects (payload=json), then those of the row.

The comment of a column says that a view is one of these. So a second call makes them anew, and nothing of others is
replaced or hidden unless that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

from broker.api.answers import StreamDescription
from broker.api.errors import InvalidSetting
from broker.api.payload_schema import KEY
from broker.client.client import connect
from spark_liftlog.errors import shown_to_spark
from spark_liftlog.payload import kept_schema
from spark_liftlog.schema import ROW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUFFIX: Final = "_table"
MARK: Final = "offset in its partition of a liftlog stream (spark_liftlog.views)"
_MARKED: Final = "offset"


@shown_to_spark
def views(
    spark: SparkSession,
    *,
    brokers: str | None = None,
    streams: str | Iterable[str] | None = None,
    replace: bool = False,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    token_file: str | None = None,
    profile: str | None = None,
) -> dict[str, str]:
    """Make a temporary view of each stream, and one of the table of each keyed stream.

    A stream is keyed if it has `partition_by=key`, or is compacted. Streams that are made later, and schemas that are
    altered, need another call.

    Args:
        brokers: As the option of the source; None: as there, the environment's.
        streams: Names; None: all but the broker's own.
        replace: Also where a view or table has such a name that was not made by this function: a view is replaced, a
            table hidden.
        tls_ca, tls_cert, tls_key, token_file, profile: As the options `tlsCa`, `tlsCert`, `tlsKey`, `tokenFile`,
            `profile` of the source.
    Returns:
        The stream of each view.
    Raises:
        InvalidSetting: a name is taken (and `replace` is False), or two views would have one name.
        UnknownStream: `streams` names one that is not there.
    """
    with connect(
        brokers, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, token_file=token_file, profile=profile
    ) as client:
        names = [streams] if isinstance(streams, str) else streams
        found = client.streams() if names is None else [client.describe(name) for name in names]
        files = {"tlsCa": tls_ca, "tlsCert": tls_cert, "tlsKey": tls_key, "tokenFile": token_file, "profile": profile}
        options = {name: path for name, path in files.items() if path is not None}
        options |= {"brokers": str(client.brokers), "resolve": "read"}
    planned = _planned(found)
    taken = [view for view, _, _ in planned if not replace and _is_others(spark, view)]
    if taken:
        raise InvalidSetting(
            f"the view {taken[0]!r} would replace or hide a view or table that is there and was not made by"
            " spark_liftlog.views; drop it, choose streams=[…], or call views(…, replace=True)",
            key="streams",
            value=taken[0],
        )
    for view, stream, mode in planned:
        is_json = stream.settings.get(KEY) is not None
        row = kept_schema([stream], with_value=True) if is_json else ROW
        more = {"payload": "json"} if is_json else {}
        reader = spark.read.format("liftlog").schema(_marked_row(row))
        frame = reader.options(**options, **more, stream=stream.name, mode=mode).load()
        frame.createOrReplaceTempView(quoted(view))
    return {view: stream.name for view, stream, _ in planned}


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever its characters are."""
    return "`" + name.replace("`", "``") + "`"


def is_keyed(stream: StreamDescription) -> bool:
    """Whether the newest value of each key is what a stream is about."""
    return stream.settings.get("partition_by") == "key" or stream.settings.get("cleanup") in ("compact", "both")


def _planned(streams: Iterable[StreamDescription]) -> list[tuple[str, StreamDescription, str]]:
    """View, stream and mode. Raises InvalidSetting: two have one name, as SQL compares them."""
    planned = []
    for stream in streams:
        planned.append((stream.name, stream, "log"))
        if is_keyed(stream):
            planned.append((stream.name + SUFFIX, stream, "table"))
    seen: dict[str, tuple[str, str]] = {}
    for view, stream, _ in planned:
        other = seen.setdefault(view.lower(), (view, stream.name))
        if other != (view, stream.name):
            raise InvalidSetting(
                f"the view {view!r} of stream {stream.name!r} and the view {other[0]!r} of stream {other[1]!r} have the"
                " same name in SQL; choose streams=[…]",
                key="streams",
                value=view,
            )
    return planned


def _is_others(spark: SparkSession, view: str) -> bool:
    if not spark.catalog.tableExists(quoted(view)):
        return False
    found = next((field for field in spark.table(quoted(view)).schema if field.name == _MARKED), None)
    return found is None or found.metadata.get("comment") != MARK


def _marked_row(row: StructType) -> StructType:
    return StructType(
        [StructField(f.name, f.dataType, f.nullable, {"comment": MARK} if f.name == _MARKED else None) for f in row]
    )
