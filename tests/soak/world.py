"""The world on which the operator acts: processes and their disks, and streams, of one broker or of three."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.api.stream import StreamSettings
from broker.client import Client
from tests.soak.faults import Faults
from tests.soak.ledger import Ledger, Violation
from tests.support.processes import BrokerProcess, NatsServer

BAD_WORDS = ("Traceback", "_bug ", ".bug ", "panic:")
"""None of them may be in a log."""
GO_ON_S = {1: 40.0, 3: 60.0}
"""So long all may take to get on, by the number of brokers."""
_SMALL = {"segment_bytes": 1 << 16, "batch_bytes": 4 << 10}
STREAMS: dict[str, dict[str, Any]] = {
    "ids": {"subject": "ids", **_SMALL},
    "short": {"subject": "short", "dedup_window_ms": 1_000, **_SMALL},
    "parts": {"subject": "parts", "partition_by": "key", "partitions": 2, **_SMALL},
    "keyed": {"subject": "keyed", "cleanup": "compact", "min_cleanable_dirty_percent": 1, **_SMALL},
    "loose": {"subject": "loose", "fsync": "interval", "fsync_interval_ms": 50, **_SMALL},
    "brief": {"subject": "brief", **_SMALL},
    "chain": {"subject": "chain", **_SMALL},
    "http": {"partitions": 2, **_SMALL},
    "sunk": {"partitions": 2, **_SMALL},
}
"""The streams of a soak, and how they begin."""
CAPTURED = [name for name, settings in STREAMS.items() if "subject" in settings]
WRITTEN = [name for name in STREAMS if name not in CAPTURED]


def begins_as(stream: str, broker_count: int) -> dict[str, Any]:
    """The settings of a stream. Several brokers keep it on all of them, and refuse `fsync = interval`."""
    settings = STREAMS[stream]
    if broker_count == 1:
        return settings
    kept = {key: value for key, value in settings.items() if not key.startswith("fsync")}
    return kept | {"replication_factor": broker_count, "min_insync_replicas": 2}


def window_ms_of(settings: Mapping[str, Any]) -> int:
    """So long a stream with these settings remembers ids."""
    window_ms: int = settings.get("dedup_window_ms", StreamSettings().dedup_window_ms)
    return window_ms


@dataclass
class World:
    """The processes, their disks, and who uses them.

    Attributes:
        brokers, disks: By id; a disk takes orders while its broker runs.
        victim: The broker that the next operation is done to.
        may_end: Brokers whose process may have ended by itself, since their disk failed.
    """

    nats: NatsServer
    brokers: dict[str, BrokerProcess]
    disks: dict[str, Faults]
    client: Client
    hasty: Client
    ledger: Ledger
    captured: list[str]
    written: list[str]
    victim: str = ""
    may_end: set[str] = field(default_factory=set)
    _log_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def broker(self) -> BrokerProcess:
        """The victim's process."""
        return self.brokers[self.victim]

    @property
    def faults(self) -> Faults:
        """The victim's disk."""
        return self.disks[self.victim]

    @property
    def addresses(self) -> str:
        """The addresses of all brokers, as a client takes them."""
        return ",".join(broker.address for broker in self.brokers.values())

    def everywhere(self, do: str, **values: Any) -> None:
        """Give an order to all disks. OSError: a broker is not there, and not among `may_end`."""
        for name, disk in self.disks.items():
            try:
                disk.order(do, **values)
            except OSError:
                if name not in self.may_end:
                    raise

    def all_go_on(self) -> None:
        """Wait until somebody got an ack, of something new, from each stream."""
        since_s, timeout_s = time.monotonic(), GO_ON_S[len(self.brokers)]
        for stream in [*self.captured, *self.written]:
            while self.ledger.freshest_s.get(stream, 0.0) <= since_s:
                self.look()
                if time.monotonic() > since_s + timeout_s:
                    self.ledger.violate(f"{stream}: no new record was acked for {timeout_s:.0f} s", since_s, since_s)
                time.sleep(0.005)

    def look(self) -> None:
        """Raise what somebody has met."""
        if self.ledger.violations:
            raise self.ledger.violations[0]
        for name, broker in self.brokers.items():
            process = broker.process
            if process is not None and process.popen.poll() is not None and name not in self.may_end:
                self.ledger.violate(f"the broker {name} ended by itself: {process.popen.returncode}")
            with (broker.folder / "broker.log").open("rb") as file:
                file.seek(self._log_bytes.get(name, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._log_bytes[name] = self._log_bytes.get(name, 0) + len(whole)
            check_log(whole.decode(errors="replace"))


def check_log(text: str) -> None:
    """Raise Violation for a traceback in a log."""
    for word in BAD_WORDS:
        if (at := text.find(word)) >= 0:
            raise Violation(f"a log has {word!r}:\n{text[max(0, at - 400) : at + 2_500]}")
