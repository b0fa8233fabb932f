"""The kill loop for as many rounds as asked: `make chaos ROUNDS=50`.

    python -m tests.cluster --rounds 50 [--seed 7]

Prints the seed and the figures; exit 1 and the folder of the run, left as it is, where something did not hold. (Kills
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

from tests.cluster.kill_loop import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=50, help="kills, 50 unless given")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="liftlog-chaos-"))
    print(f"seed {given.seed}, {given.rounds} rounds in {folder}", flush=True)
    try:
        figures = run(folder, given.rounds, given.seed)
    except Exception:
        traceback.print_exc()
        print(f"seed {given.seed}: see {folder}")
        return 1
    shutil.rmtree(folder)
    print(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
