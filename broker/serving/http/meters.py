"""Counts of serving, as Prometheus text beside the broker's own metrics, and log lines that others cause."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

HEALTH: Final = ("/livez", "/readyz", "/metrics")
LOG_INTERVAL_S: Final = 10.0
REFUSED_MAX: Final = 64
"""Principals that are told apart where refusals are counted."""


class Meters:
    """One per application, in a registry of its own so that two brokers in one process do not mix."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        counter, gauge = partial(Counter, registry=self._registry), partial(Gauge, registry=self._registry)
        text = "Requests answered, by operation and HTTP status"
        self.requests = counter("liftlog_http_requests", text, ["operation", "status"])
        text = "Requests refused or failed, by reason code"
        self.problems = counter("liftlog_http_problems", text, ["reason"])
        self.in_flight = gauge("liftlog_http_requests_in_flight", "Requests that have no complete answer yet")
        self.connections = gauge("liftlog_http_connections", "Open HTTP connections")
        text = "Connections beyond http.connections_max"
        self.refused_connections = counter("liftlog_http_connections_refused", text)
        text = "Refusals of callers that had as much as one may, by the key of the limit"
        self.limited = counter("liftlog_http_limit_reached", text, ["limit"])
        text = "Connections without a request that were cut to make room for others"
        self.idle_cut = counter("liftlog_http_connections_idle_cut", text)
        text = "Requests that stopped half-way: in their `head` or their `body`, or before, in the `handshake` of TLS"
        self.timeouts = counter("liftlog_http_timeouts", text, ["what"])
        text = (
            "Handshakes of TLS that failed: the client's certificate, or its refusal of this broker's, or its version"
        )
        self.failed_handshakes = counter("liftlog_http_handshakes_failed", text)
        text = "Connections in plain text to a port that takes TLS, too (`http.tls` is `accept` or `dial`)"
        self.plain_taken = counter("liftlog_http_plain_taken", text)
        self.sent_bytes = counter("liftlog_http_records_sent_bytes", "Bytes of record batches sent to readers")
        text = "Answers of records cut off: `storage`: the stored bytes could not be read; `reader`: it stood still"
        self.cut_answers = counter("liftlog_http_answers_cut", text, ["by"])
        text = "Requests refused, by principal (those beyond the first ones are `other`) and reason code"
        self._refusals = counter("liftlog_http_refusals", text, ["principal", "reason"])
        self._refused: set[str] = set()
        text = (
            "Records of the audit: `written`; `late`: not when the act was answered; `suppressed`: beyond an allowance;"
            " `lost`: for good"
        )
        self.audit_records = counter("liftlog_audit_records", text, ["outcome"])
        for outcome in ("written", "late", "suppressed", "lost"):
            self.audit_records.labels(outcome)
        self.posted_bytes = counter("liftlog_http_records_posted_bytes", "Bytes of request bodies with records")
        self.posted_records = counter("liftlog_http_records_posted", "Records appended over HTTP")

    def refused(self, principal: str, reason: str) -> None:
        """Count a refusal. Certificates may name any number of principals: so many have a line of their own."""
        if principal not in self._refused:
            if len(self._refused) >= REFUSED_MAX:
                principal = "other"
            else:
                self._refused.add(principal)
        self._refusals.labels(principal, reason).inc()

    def text(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self._registry)


class RateLimitedLog:
    """Lets one event through in `LOG_INTERVAL_S`, and says how many there were: for log lines that others cause."""

    def __init__(self) -> None:
        self._count = 0
        self._next_s = 0.0

    def due(self) -> int:
        """Count one event. Returns how many there were since the last line if one is due now, else 0."""
        self._count += 1
        now_s = time.monotonic()
        if now_s < self._next_s:
            return 0
        self._next_s = now_s + LOG_INTERVAL_S
        count, self._count = self._count, 0
        return count
