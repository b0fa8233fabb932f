"""Judge a history: see the package."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.history.judge import faults, judge
from tests.history.ops import Malformed, read

SHOWN = 8
"""Findings of each kind that are printed, unless all are asked for."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--subscribe", action="store_true", help="readers subscribed: they may begin anew elsewhere")
    parser.add_argument("--all-errors", action="store_true")
    given = parser.parse_args(arguments)
    try:
        with given.file.open(encoding="utf-8") as lines:
            found = judge(read(lines))
    except (Malformed, OSError) as error:
        print(json.dumps({"valid?": "unknown", "error": str(error)}))
        return 2
    wrong = faults(found, by_subscribers=given.subscribe)
    shown = {
        name: {"count": len(each), "errs": each if given.all_errors else each[:SHOWN]} for name, each in found.items()
    }
    print(json.dumps({"valid?": not wrong, "error-types": sorted(found), "bad-error-types": wrong, **shown}, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
