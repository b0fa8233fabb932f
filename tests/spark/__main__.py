"""Rounds of SIGKILL, and the count.

    python -m tests.spark --rounds 20 [--seed 1] [--master local-cluster[2,1,1024] | standalone] [--folder kept]

The rows are the 336,776 flights (examples/flights.py); `--until 2013-02-01` takes those before a day.
`standalone` starts a master and two workers, with speculation on.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from examples import flights
from tests.spark.kills import Rounds

KINDS = ("before", "after", "driver", "worker", "broker", "executor")


def main() -> None:
    """Run them and print what was killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--until", metavar="DATE", help="the day to stop before; default: all flights")
    parser.add_argument("--folder", type=Path, help="keep everything there; default: a folder that goes")
    given = parser.parse_args()
    luck = random.Random(given.seed)
    kinds = KINDS[:-1] if given.master.startswith("local[") else KINDS
    kills = [kinds[n % len(kinds)] for n in range(given.rounds)]
    luck.shuffle(kills)
    frame = flights.load(end=given.until)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rounds = Rounds(folder, given.master, luck)
        told = rounds.run(kills, frame)
    print(
        f"seed {given.seed}: {given.rounds} rounds on {given.master}, killed {dict(sorted(told.items()))},"
        f" {len(frame)} flights, each once, {rounds.stalls} minutes without progress,"
        f" {time.monotonic() - began_s:.0f} s"
    )


if __name__ == "__main__":
    main()
