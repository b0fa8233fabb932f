"""Faults for as long as asked: `make chaos MINUTES=60` on three brokers, `make chaos ROUNDS=50` on one.

    python -m tests.cluster --minutes 60 [--seed 7] [--history kept.jsonl]    everything, on three brokers
    python -m tests.cluster --rounds 50  [--seed 7] [--history kept.jsonl]    kill -9 of one broker

Prints the seed, the wall time, how often each fault was played, and where the history is: what clients saw, as
`tests/history` reads it. It is kept whatever comes of the run. Exit 1 and the folder of the run, left as it is, where
something did not hold. (Faults come at moments that a seed does not fix: it repeats the plan of a run, not the run.)
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cluster import chaos, kill_loop

HISTORIES: Final = Path("chaos-history")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=(__doc__ or "").split("\n")[0])
    how_long = parser.add_mutually_exclusive_group(required=True)
    how_long.add_argument("--minutes", type=float, help="three brokers, for so long")
    how_long.add_argument("--rounds", type=int, help="one broker, so many kills")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--history", type=Path, help=f"a file for what clients saw [{HISTORIES}/seed-SEED.jsonl]")
    given = parser.parse_args(arguments)
    history = (given.history or HISTORIES / f"seed-{given.seed}.jsonl").absolute()
    history.parent.mkdir(parents=True, exist_ok=True)
    folder, began_s = Path(tempfile.mkdtemp(prefix="liftlog-chaos-")), time.monotonic()
    print(f"seed {given.seed}, in {folder}", flush=True)
    try:
        figures = (
            kill_loop.run(folder, given.rounds, given.seed, history)
            if given.rounds is not None
            else chaos.run(folder, given.seed, minutes=given.minutes, history=history)
        )
    except Exception:
        traceback.print_exc()
        print(f"FAILED: see {folder}")
        code = 1
    else:
        shutil.rmtree(folder)
        print(figures)
        code = 0
    print(f"seed {given.seed}, {time.monotonic() - began_s:,.0f} s, history in {history}")
    return code


if __name__ == "__main__":
    sys.exit(main())
