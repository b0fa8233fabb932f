"""All tests of a lane: `python -m tests first`, or `python -m tests cluster spark` for shards; `long`: every shard.

`make test` runs the first lane, `make test-long` the shards (lanes.py). There are no second tries: a test that waits
in vain is a fault of the test or of the product. With `--lint`, lint runs beside them, and is told in the end.

Each shard leaves `build/long/SHARD.json`: commit, seeds, counts and times. The last lines are a table of all results
that are there, so that shards may run one by one. Further arguments go to pytest.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.lanes import FIRST, SHARDS, WORKERS, WORKERS_DEFAULT
from tests.support.effort import EFFORT, SEED

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "build" / "long"
SLOWEST_COUNT = 20


class Outcomes:
    """What became of each test."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []
        self.skipped: dict[str, str] = {}
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(f"{report.nodeid} ({report.when})")
        if report.skipped and isinstance(report.longrepr, tuple):
            self.skipped[report.nodeid] = report.longrepr[2]
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} (collect)")


def commit() -> str:
    """The commit that is tested; with `+` if files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return (git("rev-parse", "--short=12", "HEAD") or "no commit") + "+" * bool(git("status", "--porcelain"))


def run(lane: str, arguments: Sequence[str]) -> int:
    """One lane in this process. Returns pytest's exit code."""
    outcomes, began, cpu_began = Outcomes(), time.time(), _cpu_seconds()
    workers = WORKERS.get(lane, WORKERS_DEFAULT)
    code = int(pytest.main(["--lane", lane, "-q", "-n", str(workers), *arguments], plugins=[outcomes]))
    seconds, cpu_seconds = round(time.time() - began), round(_cpu_seconds() - cpu_began)
    print(f"{seconds} s, {cpu_seconds} s of CPU time without that of Spark's JVMs")
    if lane != FIRST:
        RESULTS.mkdir(parents=True, exist_ok=True)
        result = {
            "shard": lane,
            "commit": commit(),
            "passed": code == 0,
            "counts": dict(outcomes.counts),
            "failed": outcomes.failed,
            "skipped": outcomes.skipped,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            "seed": SEED,
            "effort": EFFORT,
            "workers": workers,
            "pyspark": metadata.version("pyspark"),
            "arguments": list(arguments),
            "slowest": {name: round(seconds, 1) for name, seconds in outcomes.seconds.most_common(SLOWEST_COUNT)},
        }
        (RESULTS / f"{lane}.json").write_text(json.dumps(result, indent=1) + "\n")
    return code


@contextmanager
def beside(wanted: bool) -> Iterator[list[int]]:
    """Lint, behind everything that wants a core. The list gets its exit code when the block ends."""
    codes: list[int] = []
    if not wanted:
        yield codes
        return
    with TemporaryFile("w+") as output:
        command = ["nice", "make", "--no-print-directory", "lint"]
        lint = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield codes
        except BaseException:
            lint.terminate()
            raise
        codes.append(lint.wait())
        output.seek(0)
        print("\n" + output.read() + ("lint FAILED" if codes[0] else "lint passed"))


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def table() -> Iterator[str]:
    """A line for each shard: of the newest result that is there."""
    yield f"{'shard':12}{'commit':15}{'result':9}{'tests':>7}{'failed':>8}{'skipped':>9}{'minutes':>9}{'seed':>6}"
    for shard in SHARDS:
        try:
            result = json.loads((RESULTS / f"{shard}.json").read_text())
        except FileNotFoundError:
            yield f"{shard:12}not run"
            continue
        counts = result["counts"]
        yield (
            f"{shard:12}{result['commit']:15}{'passed' if result['passed'] else 'FAILED':9}{sum(counts.values()):7}"
            f"{len(result['failed']):8}{counts.get('skipped', 0):9}{result['seconds'] / 60:9.1f}{result['seed']:6}"
        )


def main(arguments: list[str]) -> int:
    lanes: list[str] = []
    while arguments and arguments[0] in (FIRST, "long", *SHARDS):
        name = arguments.pop(0)
        lanes += SHARDS if name == "long" else [name]
    if not lanes:
        print(f"which lane? {FIRST}, long, {', '.join(SHARDS)}", file=sys.stderr)
        return 2
    lints = "--lint" in arguments
    arguments = [each for each in arguments if each != "--lint"]
    if len(lanes) == 1:
        with beside(lints) as codes:
            code = run(lanes[0], arguments)
        code = max(code, *codes, 0)
    else:  # each in a process of its own
        codes = [subprocess.run([sys.executable, "-m", "tests", lane, *arguments]).returncode for lane in lanes]
        code = max(codes)
    if lanes != [FIRST]:
        print("\n" + "\n".join(table()))
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
