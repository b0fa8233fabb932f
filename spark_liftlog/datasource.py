"""The data source: it takes options and gives the reader or writer for them.

Spark makes one for each `load()` and each write, in a process of its own, pickles it, and asks it again
in others. It holds the options and nothing else. Each of those processes imports what it is asked for, and no more: a
query waits for some of them, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from broker.api.errors import InvalidSetting
from spark_liftlog.errors import shown_to_spark
from spark_liftlog.options import check_names, columns_in, source_options, streams_in
from spark_liftlog.payload import declared_schema, kept_schema, payload_in
from spark_liftlog.place import client_at
from spark_liftlog.schema import row_of

if TYPE_CHECKING:
    from spark_liftlog.reading.batch_reader import LiftlogReader
    from spark_liftlog.reading.stream_reader import LiftlogStreamReader
    from spark_liftlog.writing.writer import LiftlogStreamWriter, LiftlogWriter


class LiftlogDataSource(DataSource):
    """Streams of a liftlog cluster as Spark tables.

    Register:  Spark finds it (module pyspark_liftlog); else `spark_liftlog.register(spark)`.
    Read:      `spark.read.format("liftlog").load("orders")`
    Stream:    `spark.readStream.format("liftlog").option("startingOffsets", "earliest").load("orders")`
    Write:     `df.write.format("liftlog").mode("append").save("enriched")`
    Options:   spark_liftlog/options.py, spark_liftlog/writing/sink_options.py
    """

    @classmethod
    def name(cls) -> str:
        return "liftlog"

    @shown_to_spark
    def schema(self) -> StructType | str:
        check_names(self.options)
        payload = payload_in(self.options)
        if payload is not None:
            return self._kept_schema() if payload.ddl is None else declared_schema(payload.ddl)
        return row_of(columns_in(self.options))

    def _kept_schema(self) -> StructType:
        """As the streams keep it now. Raises InvalidSetting: it is not known."""
        brokers, selection = streams_in(self.options)
        with client_at(brokers) as client:
            if selection.pattern is None:
                return kept_schema(client.describe(name) for name in selection.names)
            return kept_schema(stream for stream in client.streams() if selection.has(stream.name))

    @shown_to_spark
    def reader(self, schema: StructType) -> LiftlogReader:
        from spark_liftlog.reading.pushing_reader import reader_of

        self._check_columns(schema)
        return reader_of(source_options(self.options, "batch"), schema)

    @shown_to_spark
    def streamReader(self, schema: StructType) -> LiftlogStreamReader:
        from spark_liftlog.reading.stream_reader import LiftlogStreamReader

        self._check_columns(schema)
        return LiftlogStreamReader(source_options(self.options, "stream"), schema)

    def _check_columns(self, schema: StructType) -> None:
        """Refuse a schema beside the option `columns`, unless both name the same columns."""
        names = columns_in(self.options)
        if names and schema != row_of(names):
            raise InvalidSetting(
                f"option columns={','.join(names)!r}: .schema(…) names columns, too: one of them is enough",
                key="columns",
                value=",".join(names),
            )

    @shown_to_spark
    def writer(self, schema: StructType, overwrite: bool) -> LiftlogWriter:
        from spark_liftlog.writing.sink_options import sink_options
        from spark_liftlog.writing.writer import LiftlogWriter

        return LiftlogWriter(sink_options(self.options, "batch"), schema, overwrite=overwrite)

    @shown_to_spark
    def streamWriter(self, schema: StructType, overwrite: bool) -> LiftlogStreamWriter:
        from spark_liftlog.writing.sink_options import sink_options
        from spark_liftlog.writing.writer import LiftlogStreamWriter

        return LiftlogStreamWriter(sink_options(self.options, "stream"), schema, overwrite=overwrite)
