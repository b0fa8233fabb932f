"""`python -m benchmarks`: run workloads, then write docs/benchmarks.md; `python -m benchmarks report`: only that."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from benchmarks import report
from benchmarks.harness import RESULTS, WORKLOADS, cases_of, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(WORKLOADS)}; or `report`")
    parser.add_argument("--tiny", action="store_true", help="about a second each: shows that it runs, nothing more")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side (3)")
    parser.add_argument("--only", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where logs and stores go while it runs")
    parser.add_argument("--results", type=Path, metavar="DIR", help=f"JSON lines ({RESULTS.parent.name}/results)")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    given = parser.parse_args(arguments)

    unknown = [name for name in given.names if name not in (*WORKLOADS, "report")]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if given.repeats < 1:
        parser.error(f"--repeats {given.repeats}: must be 1 or more")
    if given.list:
        for workload in WORKLOADS:
            print(workload + ": " + ", ".join(case.name for case in cases_of(workload, tiny=given.tiny)))
        return 0
    # A tiny run gives no figure: its lines go only where they are asked for.
    results = given.results or (None if given.tiny else RESULTS)
    lines = []
    for name in given.names or WORKLOADS:
        if name != "report":
            lines += run(
                name, tiny=given.tiny, repeats=given.repeats, data=given.data, results=results, only=given.only
            )
    if not given.tiny:
        print(f"written: {report.write(given.results or RESULTS)}")
    return 0 if all(side.get("lost", {}).get("median", 0) <= 0 for line in lines for side in _ours(line)) else 1


def _ours(line: dict[str, object]) -> list[dict[str, dict[str, float]]]:
    sides = line["sides"]
    assert isinstance(sides, dict)
    return [measures for name, measures in sides.items() if name.startswith("liftlog")]


if __name__ == "__main__":
    # `timeout` and the like send it: servers and folders are to go as they do at the end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
