"""The source itself, or a stand-in that tells why it cannot be loaded."""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource

DefaultSource: type[DataSource]

try:
    from spark_liftlog.datasource import LiftlogDataSource

    DefaultSource = LiftlogDataSource
except Exception as error:
    WHY = f"LIFTLOG_BROKEN_INSTALLATION: liftlog cannot be loaded: {type(error).__name__}: {error}"

    class BrokenInstallation(DataSource):
        """Takes the name `liftlog` and answers every use with what is wrong."""

        @classmethod
        def name(cls) -> str:
            return "liftlog"

        def schema(self) -> NoReturn:
            raise ImportError(WHY)

        def reader(self, schema: object) -> NoReturn:
            raise ImportError(WHY)

        def streamReader(self, schema: object) -> NoReturn:
            raise ImportError(WHY)

        def writer(self, schema: object, overwrite: bool) -> NoReturn:
            raise ImportError(WHY)

        def streamWriter(self, schema: object, overwrite: bool) -> NoReturn:
            raise ImportError(WHY)

    DefaultSource = BrokenInstallation
