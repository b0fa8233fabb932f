"""What Prometheus sees. Names follow its conventions: base units, `_total` for counters.

Hot paths do not touch Prometheus objects: counters live where they are counted and are read when scraped.
The list with meanings: docs/operations.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

# One broker per process, so one registry per process.
REGISTRY = CollectorRegistry()

FSYNC_SECONDS = Histogram(
    "liftlog_fsync_seconds",
    "Time of one group commit",
    registry=REGISTRY,
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
)
BATCH_RECORDS = Histogram(
    "liftlog_batch_records",
    "Records per appended intake batch",
    registry=REGISTRY,
    buckets=(1, 4, 16, 64, 256, 1024, 4096, 16384, 65536),
)

Sample = tuple[str, str, tuple[str, ...], tuple[str, ...], float]
"""name, help, label names, label values, value; a name that ends in `_total` is a counter."""


class SampleCollector:
    """Turns samples taken at scrape time into metric families."""

    def __init__(self, sample: Callable[[], Iterable[Sample]]) -> None:
        self._sample = sample

    def collect(self) -> Iterable[Metric]:
        """All families, each once."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, text, labels, values, value in self._sample():
            if name not in families:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                families[name] = kind(name.removesuffix("_total"), text, labels=labels)
            families[name].add_metric(values, value)
        return families.values()


def render() -> bytes:
    """All metrics as Prometheus text."""
    return generate_latest(REGISTRY)


def open_file_count() -> int:
    """Open file descriptors of this process; -1 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return -1
