"""The main job of liftlog in one go, on real input: `make quickstart`.

    336,776 flights ──nats-py──► NATS ──► liftlog stream `flights` (2 partitions)
                                                │ spark.readStream.format("liftlog")
                                                ▼
                               windows of an hour per airport, late data by watermark
                                                │ .writeStream.format("liftlog")
                                                ▼
                                  liftlog stream `flight-delays`
                                 │                              │
                      spark.read.format("liftlog")     connect(…).read(…).to_pandas()
                                 └──────────► = ◄───────────────┘
                                              ▲ the same windows by pandas, from the file

It brings its own NATS server and broker, or a cluster of brokers (`--brokers-count 3`), in a folder, and removes all of
them when it ends, however it ends. With `--secure` the brokers speak TLS and refuse what is not granted, and each part
has a token with the grants that it needs (`GRANTS`).
Exit codes: 0 the windows agree, 1 they do not or something failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from nats.errors import Error as NatsError
from pyspark.errors import PySparkException
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import spark_liftlog
from broker.api.errors import LiftlogError, Unauthenticated, Unauthorized
from examples import delays, flights
from examples.local import CommandFailed, Liftlog, terminated_as_interrupted
from examples.publish_flights import NotAcked, Publisher, with_progress
from examples.secured import NOBODY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS: Final = "flights"
DELAYS: Final = "flight-delays"
CONSUMER: Final = "quickstart"
SINK: Final = "quickstart-delays"
JOB: Final = "job"
READER: Final = "reader"
GRANTS: Final = {
    JOB: (
        ("stream:read", FLIGHTS),
        ("consumer:read", CONSUMER),
        ("consumer:write", CONSUMER),
        ("stream:read", DELAYS),
        ("stream:append", DELAYS),
        ("sink:write", SINK),
    ),
    READER: (("stream:read", FLIGHTS), ("stream:read", DELAYS), ("consumer:read", CONSUMER)),
}
"""What each part may do, of those that talk to brokers: the query, and who looks at what came of it."""
PARTITIONS: Final = 2
BATCHES: Final = 6
"""Into about so many micro-batches the query divides what is there, so that windows close one after the other."""
LAG_TIMEOUT_S: Final = 15.0


class Wrong(Exception):
    """The result is not what it has to be."""


class Steps:
    """The printed account: a numbered line for each step, with the seconds since the first."""

    def __init__(self, console: Console, count: int) -> None:
        self._console, self._count = console, count
        self._number, self._began_s = 0, time.monotonic()

    def next(self, text: str, *code: str) -> None:
        """Begin the next step; `code` is what does it, in essence."""
        self._number += 1
        seconds = time.monotonic() - self._began_s
        line = f"\n[bold]{self._number}/{self._count}[/]  {text}  [dim]({seconds:.0f} s)[/]"
        self._console.print(line, highlight=False, soft_wrap=True)
        for text in code:
            self._console.print(f"  > {text}", style="dim", markup=False, highlight=False, soft_wrap=True)


def quickstart(
    folder: Path, frame: pd.DataFrame, console: Console, *, brokers_count: int = 1, is_secure: bool = False
) -> None:
    """Run it all on the flights in `frame`. Several brokers keep each record three times, where there are so many.

    Raises:
        Wrong: windows are missing, differ, or were not all read; or a secured broker refuses too little.
    """
    steps = Steps(console, 7)
    many = "a liftlog broker" if brokers_count == 1 else f"{brokers_count} liftlog brokers"
    secured = ", with certificates of a CA of its own" if is_secure else ""
    steps.next(f"Start a NATS server and {many} in {folder}{secured}")
    with contextlib.ExitStack() as stack:
        liftlog = stack.enter_context(Liftlog.up(folder, console, brokers_count=brokers_count, is_secure=is_secure))

        steps.next("Create a stream that captures a NATS subject, and one for what Spark computes")
        liftlog.run("stream", "create", FLIGHTS, "--subject", flights.SUBJECTS, "--partitions", str(PARTITIONS),
                    "--partition-by", "token:2")  # fmt: skip
        liftlog.run("stream", "create", DELAYS)
        for part, grants in GRANTS.items():
            liftlog.let_in(part, *grants)
        check_closed(liftlog)

        steps.next(f"Publish {len(frame):,} flights by nats-py; each is acked once it is on disk")
        sent = with_progress(liftlog.nats, frame, console)
        check_count(liftlog, sent)

        as_job, (as_reader, of_reader) = liftlog.told(JOB)[0], liftlog.told(READER)
        steps.next(
            "Spark reads the stream and writes delays per airport and hour to the other one",
            f'spark.readStream.format("liftlog"){as_job}.option("stream", "{FLIGHTS}").load()',
            f'windows.writeStream.format("liftlog"){as_job}.option("stream", "{DELAYS}").start()',
        )
        spark = stack.enter_context(session(folder))
        if dropped := run_query(spark, liftlog, sent, console):
            raise Wrong(f"{dropped} flights were dropped as too late, none should be")

        steps.next("One flight far too late, one in the future: the query goes on, closes its last windows")
        closing = delays.closing_messages(frame)
        check_count(liftlog, sent + publish_closing(liftlog, closing))
        dropped = run_query(spark, liftlog, len(closing), console)
        console.print(f"  dropped as too late by the watermark: {dropped}")
        if dropped != 1:
            raise Wrong(f"one flight was too late, Spark dropped {dropped}")

        steps.next(
            "Read the windows back, with Spark and without it",
            f'spark.read.format("liftlog"){as_reader}.load("{DELAYS}")',
            f'spark_liftlog.connect({of_reader}).read("{DELAYS}").to_pandas()',
        )
        by_spark = spark.read.format("liftlog").options(**liftlog.options(READER)).load(DELAYS)
        windows = delays.from_spark(by_spark)
        with liftlog.connect(READER) as client:
            values = client.read(DELAYS, columns=["value"]).to_pandas()["value"]
        console.print(worst(windows))

        steps.next("Compare with what pandas computes from the file, and look at the lag")
        expected = delays.windows_by_pandas(frame)
        check_windows("read by Spark", expected, windows, console)
        check_windows("read by the Python client", expected, delays.from_values(values), console)
        wait_for_lag(liftlog)
        console.print(liftlog.run("consumer", "list"), markup=False, highlight=False)


def session(folder: Path) -> contextlib.AbstractContextManager[SparkSession]:
    """A local Spark whose log goes to a file of the folder; stopped when the block is left."""
    from pyspark.sql import SparkSession

    # configure() also sets PYSPARK_PYTHON to this interpreter. Spark would run the `python3` of the PATH otherwise,
    # which may not have liftlog: the error then is DATA_SOURCE_NOT_FOUND.
    builder = spark_liftlog.configure(SparkSession.builder.appName("liftlog quickstart").master("local[*]"))
    settings: dict[str, Any] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "WARN",
        "spark.python.authenticate.socketTimeout": "120s",  # for its Python processes, on a machine with other work
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",  # the windows are few
        "spark.sql.warehouse.dir": str(folder.absolute() / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return _running(builder.config(map=settings), folder / "spark.log")


@contextlib.contextmanager
def _running(builder: SparkSession.Builder, log: Path) -> Iterator[SparkSession]:
    logging.basicConfig(filename=log)  # py4j says much when a call is interrupted
    on_interrupt = signal.getsignal(signal.SIGINT)
    with _stderr_to(log):
        spark = builder.getOrCreate()  # the JVM keeps the stderr that it is born with
    signal.signal(signal.SIGINT, on_interrupt)  # Spark's own handler calls the JVM in the middle of another call
    try:
        yield spark
    finally:
        spark.stop()


def run_query(spark: SparkSession, liftlog: Liftlog, records: int, console: Console) -> int:
    """Run the streaming query on everything that is there, to its end; return how many flights were too late.

    The second run has the same checkpoint: it goes on where the first one ended, with its watermark and open windows.
    """
    source = (
        spark.readStream.format("liftlog")
        .options(**liftlog.options(JOB))
        .option("stream", FLIGHTS)
        .option("startingOffsets", "earliest")
        .option(
            "maxOffsetsPerTrigger", max(1, -(-records // BATCHES))
        )  # see delays.py: what that means for a watermark
        .option("consumer", CONSUMER)  # under this name its progress is stored, for the lag
        .load()
    )
    query = (
        delays.encoded(delays.windows(delays.decoded(source)))
        .writeStream.format("liftlog")
        .options(**liftlog.options(JOB))
        .option("stream", DELAYS)
        .option("sinkId", SINK)
        .option("checkpointLocation", str(liftlog.folder.absolute() / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("flights through Spark", total=records)
        while not query.awaitTermination(1):
            progress.update(task, completed=sum(p.numInputRows for p in query.recentProgress))
        read = sum(p.numInputRows for p in query.recentProgress)
        progress.update(task, completed=read)
    if read != records:
        raise Wrong(f"{records} records were to be read, Spark read {read}")
    return sum(state.numRowsDroppedByWatermark for p in query.recentProgress for state in p.stateOperators)


def publish_closing(liftlog: Liftlog, messages: list[tuple[str, bytes]]) -> int:
    """Publish single messages; return how many."""

    async def publish() -> int:
        async with Publisher(liftlog.nats) as publisher:
            for subject, payload in messages:
                await publisher.send(subject, payload)
        return publisher.sent

    return asyncio.run(publish())


def check_closed(liftlog: Liftlog) -> None:
    """A secured broker takes nothing from the reader, and tells nothing to who shows no token."""
    if liftlog.secrets is None:
        return
    with liftlog.connect(READER) as reader, liftlog.connect(NOBODY) as nobody:
        for what, call in (
            ("an append by the reader", lambda: reader.append(DELAYS, 0, [{"value": b"x"}])),
            ("a read by nobody", lambda: nobody.describe(FLIGHTS)),
        ):
            try:
                call()
            except (Unauthenticated, Unauthorized) as error:
                liftlog.console.print(f"  refused, as it should be: {error}", markup=False, highlight=False)
            else:
                raise Wrong(f"{what} is not refused")


def check_count(liftlog: Liftlog, sent: int) -> None:
    """As many records in the stream as were published."""
    with liftlog.connect(READER) as client:
        stored = client.describe(FLIGHTS).record_count
    if stored != sent:
        raise Wrong(f"{sent} messages were published, the stream has {stored} records")


def check_windows(what: str, expected: pd.DataFrame, found: pd.DataFrame, console: Console) -> None:
    """Every window there once, counts equal, means within 1e-9; else the differences are printed."""
    differences = delays.differences(expected, found)
    if len(differences):
        console.print(differences.head(20).to_string(), markup=False, highlight=False)
        raise Wrong(f"{len(differences)} of {len(expected)} windows {what} are not those that pandas computes")
    flights_count = int(found["flights"].sum())
    console.print(f"  {len(found):,} windows over {flights_count:,} flights {what}: [green]all equal[/]")


def wait_for_lag(liftlog: Liftlog) -> None:
    """The query publishes its progress in the background: wait until all of it is known."""
    deadline_s = time.monotonic() + LAG_TIMEOUT_S
    with liftlog.connect(READER) as client:
        while (lags := {c.consumer: c.lag for c in client.consumers()}).get(CONSUMER) != 0:
            if time.monotonic() > deadline_s:
                raise Wrong(f"the query has read everything, but the lag of its consumer {CONSUMER!r} is not 0: {lags}")
            time.sleep(0.1)


def worst(windows: pd.DataFrame) -> Table:
    """The ten worst hours, as a table."""
    table = Table(title="the ten worst hours, of those with 10 departures or more")
    for name in ("airport", "hour (UTC)", "flights", "departed", "mean min", "worst min"):
        table.add_column(name, justify="left" if name == "airport" else "right", no_wrap=True)
    often = windows[windows["departed"] >= 10]
    for row in often.nlargest(10, "delay_minutes_mean").itertuples():
        table.add_row(
            row.origin, f"{row.start:%Y-%m-%d %H:00}", str(row.flights), str(row.departed),
            f"{row.delay_minutes_mean:.1f}", str(row.delay_minutes_max),
        )  # fmt: skip
    return table


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m examples.quickstart", description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", metavar="DIR", type=Path, default=Path("quickstart-data"), help="a folder to work in")
    parser.add_argument("--start", metavar="DATE", help="only flights from this day on (UTC)")
    parser.add_argument("--end", metavar="DATE", help="only flights before this day")
    parser.add_argument("--brokers-count", metavar="N", type=int, choices=range(1, 6), default=1, help="1 to 5")
    parser.add_argument("--secure", action="store_true", help="TLS, tokens and grants")
    options = parser.parse_args()
    console = Console()
    began_s = time.monotonic()
    try:
        with terminated_as_interrupted():
            frame = flights.load(options.start, options.end)
            count = options.brokers_count
            quickstart(options.data, frame, console, brokers_count=count, is_secure=options.secure)
    except KeyboardInterrupt:
        console.print("\n[yellow]interrupted[/]")
        return 130
    except (Wrong, CommandFailed, NotAcked, LiftlogError, NatsError, PySparkException, OSError) as error:
        console.print(f"\n[red]failed:[/] {escape(str(error))}")
        return 1
    console.print(f"\n[green]done[/] in {time.monotonic() - began_s:.0f} s; everything it started is stopped and gone")
    return 0


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Send stderr to a file: ours within the block, and that of processes that are born in it for ever."""
    sys.stderr.flush()
    ours = os.dup(2)
    with open(path, "ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    except BaseException:
        os.write(ours, path.read_bytes()[-4_000:])  # why: no Java, for one
        raise
    finally:
        os.dup2(ours, 2)
        os.close(ours)


if __name__ == "__main__":
    sys.exit(main())
