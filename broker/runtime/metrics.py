"""What Prometheus sees. Names follow its conventions: base units, `_total` for counters.

Hot paths do not touch Prometheus objects: counters live where they are counted and are read when scraped.
The list with meanings: docs/operations.md.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

# One broker per process, so one registry per process.
REGISTRY = CollectorRegistry()


class Histogram(Collector):
    """What the library's histogram shows, kept in numbers: theirs takes two locks and walks the buckets in Python.

    Thread-safe.

    Args:
        buckets: Their greatest values, ascending; one without a limit is added.
    """

    def __init__(self, name: str, text: str, *, registry: CollectorRegistry, buckets: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._limits = (*map(float, buckets), float("inf"))
        self._counts = [0] * len(self._limits)
        self._sum = 0.0
        self._lock = threading.Lock()
        self._created_s = None if _hides_created() else time.time()
        registry.register(self)

    def observe(self, value: float) -> None:
        """Count a value; cheap."""
        bucket = bisect_left(self._limits, value)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += value

    def collect(self) -> Iterator[Metric]:
        """For the registry, when it is scraped."""
        with self._lock:
            counts, total = list(accumulate(self._counts)), self._sum
        found = Metric(self._name, self._text, "histogram")
        for limit, count in zip(self._limits, counts, strict=True):
            label = floatToGoString(limit)  # type: ignore[no-untyped-call]
            found.add_sample(f"{self._name}_bucket", {"le": label}, count)
        found.add_sample(f"{self._name}_count", {}, counts[-1])
        found.add_sample(f"{self._name}_sum", {}, total)
        if self._created_s is not None:
            found.add_sample(f"{self._name}_created", {}, self._created_s)
        yield found


def _hides_created() -> bool:
    """Whether the library is told to leave out when a metric began, and so are we."""
    return os.environ.get("PROMETHEUS_DISABLE_CREATED_SERIES", "").lower() in ("true", "1", "t")


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


def render(samples: Iterable[Sample] = ()) -> bytes:
    """All metrics as Prometheus text.

    Samples are written here, not by the library: it makes an object of each, which takes a second for 10,000
    partitions.
    """
    families: dict[str, list[str]] = {}
    for name, text, labels, values, value in samples:
        lines = families.get(name)
        if lines is None:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines = families[name] = [f"# HELP {name} {_help(text)}", f"# TYPE {name} {kind}"]
        at = ",".join([f'{label}="{_quoted(found)}"' for label, found in zip(labels, values, strict=True)])
        lines.append(f"{name}{{{at}}} {float(value)}" if at else f"{name} {float(value)}")
    text = "".join(line + "\n" for lines in families.values() for line in lines)
    return generate_latest(REGISTRY) + text.encode()


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def open_file_count() -> int:
    """Open file descriptors of this process; -1 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return -1
