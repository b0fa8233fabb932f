"""Soak for some minutes: `make soak MINUTES=60 SEED=7`.

    python -m tests.soak --minutes 60 [--brokers 3] [--seed 7] [--mutant NAME] [--only alter,trim] [--without freeze]

In rounds of three minutes or less, each with a seed of its own, which follow one another. Where something does not hold
it prints what, the operations near it, and the command that repeats the round; exit 1, and the folder of the round is
left as it is. A seed repeats the sequence of operations; when they meet what others do is another matter.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.cluster import CLUSTER_OPERATIONS
from tests.soak.mutants import MUTANTS
from tests.soak.operator import OPERATIONS
from tests.soak.run import run_round

ROUND_MINUTES = 3.0
OPTIONS = ("brokers", "mutant", "only", "without")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long, 5 unless given")
    parser.add_argument("--seed", type=int, default=None, help="of the first round; random unless given")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="one, or a cluster of three")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="a mend to be taken out: it is to be found")
    parser.add_argument("--go-on", action="store_true", help="go on after a round in which something did not hold")
    parser.add_argument("--without", default="", metavar="NAMES", help="operations to be passed over, with commas")
    parser.add_argument("--only", default="", metavar="NAMES", help="the only operations that there are to be")
    given = parser.parse_args()
    logging.getLogger("broker").setLevel(logging.CRITICAL)  # clients meet errors all the time
    seed = random.randrange(1 << 20) if given.seed is None else given.seed
    known = OPERATIONS if given.brokers == 1 else CLUSTER_OPERATIONS
    operations = set(given.only.split(",") if given.only else known) - set(given.without.split(","))
    left_s, found = given.minutes * 60, 0
    while left_s > 0:
        folder = Path(tempfile.mkdtemp(prefix="liftlog-soak-"))
        seconds, begun_s = min(left_s, ROUND_MINUTES * 60), time.monotonic()
        print(f"seed {seed}: {seconds:.0f} s in {folder}", flush=True)
        outcome = run_round(folder, seed, seconds, mutant=given.mutant, operations=operations, brokers=given.brokers)
        print(f"seed {seed}: {outcome}, {time.monotonic() - begun_s:.0f} s in all", flush=True)
        if outcome.violation is not None:
            options = "".join(
                f" --{name} {value}" for name in OPTIONS if (value := getattr(given, name)) != parser.get_default(name)
            )
            print(f"\n{outcome.violation}\n\nThe operations near it:\n{outcome.story}\n")
            print(f"To repeat it: python -m tests.soak --minutes {seconds / 60:g} --seed {seed}{options}")
            print(f"What is left of it: {folder}", flush=True)
            found += 1
            if not given.go_on:
                return 1
        else:
            shutil.rmtree(folder)
        left_s, seed = left_s - seconds, seed + 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
