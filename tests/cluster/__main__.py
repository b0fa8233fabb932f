"""Faults for as long as asked: `make chaos MINUTES=60` on three brokers, `make chaos ROUNDS=50` on one.

    python -m tests.cluster --minutes 60 [--seed 7] [--history kept.jsonl]    everything, on three brokers
    python -m tests.cluster --rounds 50  [--seed 7] [--history kept.jsonl]    kill -9 of one broker

Prints the seed and the figures; exit 1 and the folder of the run, left as it is, where something did not hold. (Faults
come at moments that a seed does not fix: it repeats the plan of a run, not the run.)
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from tests.cluster import chaos, kill_loop


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=(__doc__ or "").split("\n")[0])
    how_long = parser.add_mutually_exclusive_group(required=True)
    how_long.add_argument("--minutes", type=float, help="three brokers, for so long")
    how_long.add_argument("--rounds", type=int, help="one broker, so many kills")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--history", type=Path, help="what clients saw is kept there, as tests/history reads it")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="liftlog-chaos-"))
    print(f"seed {given.seed}, in {folder}", flush=True)
    try:
        figures = (
            kill_loop.run(folder, given.rounds, given.seed)
            if given.rounds is not None
            else chaos.run(folder, given.seed, minutes=given.minutes)
        )
    except Exception:
        traceback.print_exc()
        print(f"seed {given.seed}: see {folder}")
        return 1
    if given.history is not None:
        shutil.copyfile(folder / "history.jsonl", given.history)
    shutil.rmtree(folder)
    print(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
