"""Rounds of SIGKILL, and the count.

    python -m tests.spark --rounds 20 [--seed 1] [--brokers 3] [--folder kept]
        [--master local-cluster[2,1,1024] | standalone] [--until 2013-02-01]

The rows are the 336,776 flights (examples/flights.py); `--until 2013-02-01` takes those before a day.
`standalone` starts a master and two workers, with speculation on. With three brokers one dies in each round, most often
together with something of the job.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from examples import flights
from tests.spark.kills import Rounds

KINDS = {
    1: ("before", "late", "after", "driver", "worker", "broker", "checkpoint", "executor"),
    3: (
        "before+broker",
        "late+broker",
        "after+broker",
        "driver+broker",
        "worker+broker",
        "broker",
        "checkpoint+broker",
        "executor+broker",
    ),
}
"""By the number of brokers. The last one needs executors of their own."""


def main() -> None:
    """Run them and print what was killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--until", metavar="DATE", help="the day to stop before; default: all flights")
    parser.add_argument("--folder", type=Path, help="keep everything there; default: a folder that goes")
    given = parser.parse_args()
    luck = random.Random(given.seed)
    kinds = KINDS[given.brokers][: -1 if given.master.startswith("local[") else None]
    kills = [kinds[n % len(kinds)] for n in range(given.rounds)]
    luck.shuffle(kills)
    frame = flights.load(end=given.until)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rounds = Rounds(folder, given.master, luck, given.brokers)
        told = rounds.run(kills, frame)
    print(
        f"seed {given.seed}: {given.rounds} rounds on {given.master}, killed {dict(sorted(told.items()))},"
        f" {len(frame)} flights, each once but for lost checkpoints, {rounds.bundled} kills met bundles,"
        f" {rounds.stalls} minutes without progress,"
        f" {time.monotonic() - began_s:.0f} s"
    )


if __name__ == "__main__":
    main()
