"""See the package."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.sim.groups.mutants import MUTANTS, mutated
from tests.sim.groups.world import Violation, run

STORY_LINES = 80


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.groups")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", help="first..beyond")
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    parser.add_argument("--mutants", action="store_true")
    given = parser.parse_args()
    if given.mutants:
        found = {name: found_at(name, MUTANTS[name].seeds) for name in MUTANTS}
        for name, (seed, why) in found.items():
            print(
                f"{name:22} {'NOT FOUND' if seed is None else f'seed {seed:3}'} of {MUTANTS[name].seeds}  {why[:110]}"
            )
        return sum(seed is None for seed, _ in found.values())
    first, beyond = map(int, (given.seeds or f"{given.seed}..{given.seed + 1}").split(".."))
    saw: Counter[str] = Counter()
    began_s = time.monotonic()
    for seed in range(first, beyond):
        try:
            with mutated(given.mutant):
                world = run(seed)
        except Violation as violation:
            print("\n".join(violation.story[-STORY_LINES:]))
            print(f"seed {seed}: {violation}")
            return 1
        saw.update(world.saw)
        if given.seeds is None:
            print("\n".join(world.story))
    for what, count in sorted(saw.items()):
        print(f"{count:8}  {100 * count / (beyond - first):9.1f} in 100 seeds  {what}")
    print(f"seeds {first}..{beyond} held, {time.monotonic() - began_s:.0f} s")
    return 0


def found_at(name: str, seeds: int, *, first: int = 0) -> tuple[int | None, str]:
    """The first seed that finds a mistake, and how."""
    for seed in range(first, seeds):
        try:
            with mutated(name):
                run(seed)
        except Violation as error:
            return seed, str(error)
    return None, ""


if __name__ == "__main__":
    sys.exit(main())
