"""How far behind the queries of a session are, for Prometheus and for notebooks.

    listener = spark_liftlog.LagListener()
    spark.streams.addListener(listener)
    listener.serve(9464)                        # or hand out listener.prometheus() yourself

    spark_liftlog.show_progress(query)          # in a notebook: a line that changes until the query ends

Both go by the progress that Spark keeps (query_lag.py); the brokers' own view is `liftlog consumer list`.
"""

from __future__ import annotations

import html
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from broker.api.plain import parse_json
from spark_liftlog.progress.query_lag import Lag, lag

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

METRIC: Final = "spark_liftlog_lag_records"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
POLL_S: Final = 1
NO_PROGRESS: Final = "no progress yet"


class LagListener(StreamingQueryListener):
    """Keeps the newest lag of each query of a session. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, tuple[str, Lag]] = {}
        self._server: ThreadingHTTPServer | None = None

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Take the lag out of a progress."""
        progress = parse_json(event.progress.json)
        found = lag(progress)
        if found is not None:
            with self._lock:
                self._queries[str(progress["id"])] = (progress.get("name") or str(progress["id"]), found)

    def onQueryIdle(self, event: Any) -> None:
        """The lag is what it was."""

    def onQueryTerminated(self, event: Any) -> None:
        """A query that ended has no lag any more."""
        with self._lock:
            self._queries.pop(str(event.id), None)

    def lags(self) -> dict[str, Lag]:
        """The newest lag by the query's name, or by its id if it has none."""
        with self._lock:
            return dict(self._queries.values())

    def prometheus(self) -> str:
        """The lags in Prometheus' text format: one line per query, stream and partition."""
        lines = [
            f"# HELP {METRIC} Records that are committed and in no micro-batch of the query yet.",
            f"# TYPE {METRIC} gauge",
        ]
        for query, found in sorted(self.lags().items()):
            for (stream, partition), records in sorted(found.partitions.items()):
                labels = f'query="{_escaped(query)}",stream="{_escaped(stream)}",partition="{partition}"'
                lines.append(f"{METRIC}{{{labels}}} {records}")
        return "\n".join(lines) + "\n"

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
    """A query's last progress as a notebook shows it."""

    def __init__(self, query: StreamingQuery | Any) -> None:
        self._progress = query.lastProgress

    def _repr_html_(self) -> str:
        return as_html(self._progress)

    def __repr__(self) -> str:
        """Where no HTML is shown."""
        found = None if self._progress is None else lag(self._progress)
        return NO_PROGRESS if found is None else _line(self._progress, found)


def as_html(progress: Any) -> str:
    """One progress as a small table; None: before the first."""
    found = None if progress is None else lag(progress)
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
