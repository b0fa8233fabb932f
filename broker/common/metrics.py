"""The metrics that Prometheus sees. Names follow its conventions: base units, `_total` for counters.

Hot paths do not touch Prometheus objects: counters live where they are counted and are read when scraped.
The list with meanings: docs/reference/metrics.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram, generate_latest

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
LEADERSHIP_START_SECONDS = Histogram(
    "liftlog_leadership_start_seconds",
    "Time from the catalog's word that this broker leads a partition until it serves it",
    registry=REGISTRY,
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
LEADERLESS_SECONDS = Histogram(
    "liftlog_leaderless_seconds",
    "Time that a partition was without a leader, until the catalog named another",
    ("cause",),
    registry=REGISTRY,
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
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
