"""What serving counts, as Prometheus text beside the broker's own metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class Meters:
    """One per application, in a registry of its own so that two brokers in one process do not mix."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        self.requests = Counter(
            "liftlog_http_requests",
            "Requests answered, by operation and HTTP status",
            ["operation", "status"],
            registry=self._registry,
        )
        self.problems = Counter(
            "liftlog_http_problems",
            "Requests refused or failed, by reason code",
            ["reason"],
            registry=self._registry,
        )
        self.in_flight = Gauge(
            "liftlog_http_requests_in_flight", "Requests that have no complete answer yet", registry=self._registry
        )
        self.connections = Gauge("liftlog_http_connections", "Open HTTP connections", registry=self._registry)
        self.refused_connections = Counter(
            "liftlog_http_connections_refused", "Connections beyond http.connections_max", registry=self._registry
        )
        self.timeouts = Counter(
            "liftlog_http_timeouts",
            "Requests that stopped half-way: in their `head` or their `body`",
            ["what"],
            registry=self._registry,
        )
        self.sent_bytes = Counter(
            "liftlog_http_records_sent_bytes", "Bytes of record batches sent to readers", registry=self._registry
        )
        self.cut_answers = Counter(
            "liftlog_http_answers_cut",
            "Answers of records cut off: `storage`: the stored bytes could not be read; `reader`: it stood still",
            ["by"],
            registry=self._registry,
        )
        self.posted_bytes = Counter(
            "liftlog_http_records_posted_bytes", "Bytes of request bodies with records", registry=self._registry
        )
        self.posted_records = Counter(
            "liftlog_http_records_posted", "Records appended over HTTP", registry=self._registry
        )

    def text(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self._registry)
