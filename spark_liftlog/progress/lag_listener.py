"""How far behind the queries of a session are, for Prometheus and for notebooks.

    listener = spark_liftlog.LagListener()
    spark.streams.addListener(listener)
    listener.serve(9464)                        # or hand out listener.prometheus() yourself

    spark_liftlog.show_progress(query)          # in a notebook: a line that changes until the query ends

Both ask the brokers what there is behind the last batch that is complete (query_lag.py). So a query whose batch hangs,
or that waits for more records, is seen to fall behind. The brokers' own view is `liftlog consumer list`.
"""

from __future__ import annotations

import html
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from broker.api.errors import LiftlogError, Retryable
from broker.api.plain import parse_json
from spark_liftlog.progress.query_lag import Lag, brokers_of, lag, lag_now

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("spark_liftlog")

METRIC: Final = "spark_liftlog_lag_records"
PROGRESS_METRIC: Final = "spark_liftlog_progress_age_seconds"
AGE_METRIC: Final = "spark_liftlog_lag_seconds"
ASKED_METRIC: Final = "spark_liftlog_lag_age_seconds"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
POLL_S: Final = 1
FRESH_S: Final = 1.0
"""A lag that was asked for so shortly ago is not asked for again."""
NO_PROGRESS: Final = "no progress yet"


@dataclass(slots=True)
class _Query:
    """What is known of one run of a query.

    Attributes:
        stirred_s: When it began, made progress, or said that it is idle.
        progress: Its last; None: it has made none.
        found: Its lag when it was last known.
        asked_s: When that was.
    """

    name: str
    stirred_s: float
    progress: dict[str, Any] | None = None
    found: Lag | None = None
    asked_s: float = float("-inf")


class LagListener(StreamingQueryListener):
    """Knows the lag of each query of a session, as it is when it is asked. Thread-safe.

    Spark tells of a start before `start()` returns, and of all else later, from a thread of its own. So the end of a
    run may be told after the start of the next one of the same query: what is known is known of runs.

    Args:
        clock: Seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asking = threading.Lock()  # one at a time: the others find what it has found
        self._runs: dict[str, _Query] = {}  # by their ids, in the order in which they began
        self._server: ThreadingHTTPServer | None = None

    def onQueryStarted(self, event: Any) -> None:
        """It has no lag yet, but it has to make progress from now on."""
        with self._lock:
            self._runs[str(event.runId)] = _Query(event.name or str(event.id), self._clock())

    def onQueryProgress(self, event: Any) -> None:
        """A batch is complete: the lag counts from its end."""
        progress = parse_json(event.progress.json)
        name, found = progress.get("name") or str(progress["id"]), lag(progress)
        with self._lock:
            self._runs[str(progress["runId"])] = _Query(name, self._clock(), progress, found, self._clock())

    def onQueryIdle(self, event: Any) -> None:
        """There is nothing new, or less than the query waits for."""
        with self._lock:
            if (query := self._runs.get(str(event.runId))) is not None:
                query.stirred_s = self._clock()

    def onQueryTerminated(self, event: Any) -> None:
        """A run that ended has no lag any more. The query may run again by now."""
        with self._lock:
            self._runs.pop(str(event.runId), None)

    def lags(self) -> dict[str, Lag]:
        """The lag now, by the query's name, or by its id if it has none. What no broker tells is as it was last."""
        return {query.name: query.found for query in self._asked() if query.found is not None}

    def prometheus(self) -> str:
        """The lags in Prometheus' text format: one line per query, stream and partition."""
        queries, now_s = sorted(self._asked(), key=lambda query: query.name), self._clock()
        lines = [
            f"# HELP {METRIC} Records that are committed and that the query has not processed.",
            f"# TYPE {METRIC} gauge",
        ]
        for query in queries:
            for (stream, partition), records in sorted(query.found.partitions.items() if query.found else ()):
                labels = f'query="{_escaped(query.name)}",stream="{_escaped(stream)}",partition="{partition}"'
                lines.append(f"{METRIC}{{{labels}}} {records}")
        lines += [f"# HELP {AGE_METRIC} Age of the oldest of them.", f"# TYPE {AGE_METRIC} gauge"]
        for query in queries:
            for (stream, partition), age_s in sorted(query.found.ages.items() if query.found else ()):
                labels = f'query="{_escaped(query.name)}",stream="{_escaped(stream)}",partition="{partition}"'
                lines.append(f"{AGE_METRIC}{{{labels}}} {age_s:.3f}")
        lines += [
            f"# HELP {ASKED_METRIC} Since brokers last told the lag of the query.",
            f"# TYPE {ASKED_METRIC} gauge",
        ]
        lines += [
            f'{ASKED_METRIC}{{query="{_escaped(query.name)}"}} {max(0.0, now_s - query.asked_s):.3f}'
            for query in queries
            if query.found is not None
        ]
        lines += [
            f"# HELP {PROGRESS_METRIC} Since the query began, completed a batch, or said that it is idle.",
            f"# TYPE {PROGRESS_METRIC} gauge",
        ]
        lines += [
            f'{PROGRESS_METRIC}{{query="{_escaped(query.name)}"}} {max(0.0, now_s - query.stirred_s):.3f}'
            for query in queries
        ]
        return "\n".join(lines) + "\n"

    def _asked(self) -> list[_Query]:
        """The queries, with the lag that each has now. Brokers that do not answer are asked once, for all queries: each
        question takes seconds then, and whoever scrapes gives up soon."""
        silent: set[str] = set()
        with self._asking:
            with self._lock:
                queries = {query.name: query for query in self._runs.values()}  # the newest run of each
            for query in queries.values():
                if query.progress is None or self._clock() - query.asked_s < FRESH_S:
                    continue
                if silent & (brokers := brokers_of(query.progress)):
                    continue
                try:
                    found = lag_now(query.progress)
                except LiftlogError as error:
                    log.warning("lag.failed query=%s error=%s", query.name, error)
                    if isinstance(error, Retryable):
                        silent |= brokers
                    continue
                if found is not None:
                    query.found, query.asked_s = found, self._clock()
            return list(queries.values())

    def serve(self, port: int, host: str = "127.0.0.1") -> int:
        """Answer `GET /metrics` on a port, in a thread, until `close`. Returns the port (0: any).

        Raises:
            OSError: the port is taken.
        """
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = listener.prometheus().encode()
                self.send_response(200)
                self.send_header("Content-Type", PROMETHEUS)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Scrapes are not worth a line."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        threading.Thread(target=self._server.serve_forever, name="liftlog-lag", daemon=True).start()
        return int(self._server.server_address[1])

    def close(self) -> None:
        """End the thread. Idempotent."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def show_progress(query: StreamingQuery, timeout_s: float | None = None) -> None:
    """In a notebook: show rate and lag of a query, in one place, until it ends or time is up."""
    display = import_module("IPython.display").display  # notebooks have it; nothing here depends on it
    shown = display(_Shown(query), display_id=True)
    waited_s = 0
    while not query.awaitTermination(POLL_S) and (timeout_s is None or waited_s < timeout_s):
        waited_s += POLL_S
        shown.update(_Shown(query))
    shown.update(_Shown(query))


class _Shown:
    """A query's last progress, and how far behind it is now, as a notebook shows it."""

    def __init__(self, query: StreamingQuery | Any) -> None:
        progress: Any = query.lastProgress
        self._progress = progress
        try:
            self._lag = None if progress is None else lag_now(progress)
        except LiftlogError:  # no broker answers: what was known with the progress
            self._lag = lag(progress)

    def _repr_html_(self) -> str:
        return as_html(self._progress, self._lag)

    def __repr__(self) -> str:
        """Where no HTML is shown."""
        return NO_PROGRESS if self._lag is None else _line(self._progress, self._lag)


def as_html(progress: Any, found: Lag | None) -> str:
    """One progress, and the lag, as a small table; None: before the first."""
    if found is None:
        return f"<p>{NO_PROGRESS}</p>"
    rows = "".join(
        f"<tr><td>{html.escape(stream)}</td><td>{partition}</td><td>{records:,}</td></tr>"
        for (stream, partition), records in sorted(found.partitions.items())
    )
    line = html.escape(_line(progress, found))
    return f"<p>{line}</p><table><tr><th>stream</th><th>partition</th><th>lag</th></tr>{rows}</table>"


def _line(progress: Any, found: Lag) -> str:
    return (
        f"{progress['name'] or progress['id']}: batch {progress['batchId']},"
        f" {progress['processedRowsPerSecond']:,.0f} records/s, {found.total:,} behind"
    )


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
