"""Spark finds `format("liftlog")` by itself, from any folder, and a broken installation breaks nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import spark_liftlog
from tests.spark.streams import Stream, places

READ = """
import sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.sql.shuffle.partitions", "1").getOrCreate())
frame = spark.read.format("liftlog").option("brokers", sys.argv[1]).option("stream", sys.argv[2]).load()
print("found", frame.count())
"""


def python(code: str, *arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python in another folder, with this interpreter's installation and nothing else on its path."""
    plain = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_HOME")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**plain, "PYSPARK_PYTHON": sys.executable, **env},
        capture_output=True,
        text=True,
        timeout=150,
    )


def test_spark_finds_the_format_without_register_from_another_folder(stream: Stream, tmp_path: Path) -> None:
    stream.append(5)
    done = python(READ, stream.address, stream.name, folder=tmp_path)
    assert "found 15" in done.stdout, done.stderr[-4000:]


@pytest.mark.parametrize("missing", ["pyarrow", "broker", "spark_liftlog", "pyspark", "numpy", "crc32c"])
def test_importing_the_entry_never_raises(tmp_path: Path, missing: str) -> None:
    """A package that cannot be imported at all stands for any that is broken."""
    (tmp_path / missing).mkdir()
    (tmp_path / missing / "__init__.py").write_text("raise RuntimeError('broken on purpose')\n")
    code = (
        "import pyspark_liftlog\n"
        "source = getattr(pyspark_liftlog, 'DefaultSource', None)\n"
        "if source is None: print('nothing to find'); raise SystemExit\n"
        "from pyspark.sql.datasource import DataSource\n"
        "assert issubclass(source, DataSource) and source.name() == 'liftlog'\n"
        "try: source({'stream': 's'}).reader(source({'stream': 's'}).schema())\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = python(code, folder=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    if missing in ("pyspark",):
        assert "nothing to find" in done.stdout
    else:
        assert "ImportError LIFTLOG_BROKEN_INSTALLATION: liftlog cannot be loaded: " in done.stdout
        assert "broken on purpose" in done.stdout


def test_importing_spark_liftlog_loads_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, spark_liftlog\n"
        "assert 'configure' in dir(spark_liftlog)\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'pyspark', 'pyarrow', 'nats', 'aiohttp', 'numpy'}))"
    )
    done = python(code, folder=tmp_path)
    assert done.stdout.strip() == "[]", done.stderr


def test_executors_need_neither_broker_nor_nats_packages(tmp_path: Path) -> None:
    code = (
        "import sys, spark_liftlog.datasource\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'nats', 'pysyncobj', 'aiohttp', 'grpc', 'click'}),"
        "[m for m in sys.modules if m.startswith('broker.') and m.split('.')[1] not in ('api', 'client')])"
    )
    done = python(code, folder=tmp_path)
    assert done.stdout.strip() == "[] []", done.stderr


def test_register_is_the_way_by_hand(spark: SparkSession, stream: Stream) -> None:
    stream.append(3)
    session = spark.newSession()
    spark_liftlog.register(session)
    assert places(stream.read(session)) == stream.expected()


def test_a_thread_that_the_program_started_writes_after_register(spark: SparkSession, stream: Stream) -> None:
    """Spark looks for a sink in the active session alone, and such a thread has none."""

    def write(*, is_registered: bool) -> None:
        if is_registered:
            spark_liftlog.register(spark)
        rows = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("liftlog").mode("append").options(brokers=stream.address, stream=stream.name).save()

    with ThreadPoolExecutor(1) as pool, pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
        pool.submit(write, is_registered=False).result()  # if Spark does better one day, the page can say less
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write, is_registered=True).result()
    assert stream.read(spark).count() == 3


def test_connect_is_the_client(stream: Stream) -> None:
    stream.append(3)
    with spark_liftlog.connect(stream.address) as client:
        assert client.read(stream.name).to_table().num_rows == 9


def test_configure_sets_both_bounds_of_a_batch_together(monkeypatch: pytest.MonkeyPatch) -> None:
    class Builder:
        """Takes what a builder takes; a real one would start the JVM's settings for all tests."""

        def __init__(self) -> None:
            self.settings: dict[str, str] = {}

        def config(self, *, map: dict[str, str]) -> Builder:
            self.settings |= map
            return self

    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for max_value_bytes, rows in ((16_384, "2048"), (100, "10000"), (64 << 20, "16")):
        builder = Builder()
        assert spark_liftlog.configure(builder, max_value_bytes) is builder  # type: ignore[arg-type,comparison-overlap]
        assert builder.settings == {
            "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647b",
            "spark.sql.execution.arrow.maxRecordsPerBatch": rows,
            "spark.python.unix.domain.socket.enabled": "true",
        }
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    with pytest.raises(Exception, match="LIFTLOG_INVALID_SETTING: max_value_bytes=0"):
        spark_liftlog.configure(Builder(), 0)  # type: ignore[arg-type]


def test_the_session_of_these_tests_was_configured(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "2048"


def test_configuring_a_running_session_says_what_it_cannot_do(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    spark_liftlog.configure(SparkSession.builder)
    assert "configure.ignored" in caplog.text
