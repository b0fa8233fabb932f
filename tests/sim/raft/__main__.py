"""See the package."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.sim.raft.mutants import BY_LUCK, MUTANTS, mutated
from tests.sim.raft.scenarios import SCENARIOS, play
from tests.sim.raft.world import Violation, run

STORY_LINES = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.raft")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", help="first..beyond")
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--cover", help="first..beyond")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS))
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.mutants:
        return mutants([given.mutant] if given.mutant else BY_LUCK)
    first, beyond = map(int, (given.seeds or given.cover or f"{given.seed or 0}..{(given.seed or 0) + 1}").split(".."))
    seen: Counter[str] = Counter()
    began = time.monotonic()
    for seed in range(first, beyond):
        try:
            with mutated(given.mutant):
                world = play(given.scenario, seed) if given.scenario else run(seed)
        except Violation as violation:
            print("\n".join(violation.world.story[-STORY_LINES:]))  # type: ignore[attr-defined]
            print(f"seed {seed}: {violation}")
            return 1
        seen.update(world.seen)
        if given.seed is not None:
            print("\n".join(world.story))
    for what, count in sorted(seen.items()):
        print(f"{count:8}  {100 * count / (beyond - first):9.1f} in 100 seeds  {what}")
    print(f"seeds {first}..{beyond} held, {time.monotonic() - began:.0f} s")
    return 0


def mutants(names: list[str]) -> int:
    lasting = 0
    for name in names:
        seed, why = found_at(name, MUTANTS[name].seeds)
        lasting += seed is None
        print(
            f"{name:22} {'NOT FOUND' if seed is None else f'seed {seed:3}'} of {MUTANTS[name].seeds}  {why[:110]}",
            flush=True,
        )
    return lasting


def found_at(name: str, seeds: int, *, first: int = 0) -> tuple[int | None, str]:
    """The first seed that finds a mutant, and how."""
    for seed in range(first, seeds):
        try:
            with mutated(name):
                run(seed)
        except Exception as error:
            return seed, str(error) or repr(error)
    return None, ""


if __name__ == "__main__":
    sys.exit(main())
