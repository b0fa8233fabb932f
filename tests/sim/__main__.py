"""Play seeds. See the package."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext

from tests.sim import mutants, scenarios
from tests.sim.cluster import Cluster, play
from tests.sim.driven import captured, changed, decided
from tests.sim.driven import mutants as of_drivers
from tests.sim.joined import joined
from tests.sim.story import shortened
from tests.sim.world import told

IN_DRIVERS = (*of_drivers.DRIVEN, *changed.QUICK, *changed.CHANGED, *captured.CAPTURED, *decided.DECIDED)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seed", type=int, help="play one, and print its story")
    parser.add_argument("--seeds", help="play A..B, until one fails")
    parser.add_argument("--steps", type=int, help="so many steps of one seed")
    parser.add_argument("--mutant", help="with this mistake in the protocol")
    parser.add_argument("--mutants", action="store_true", help="how many seeds each mistake survives")
    parser.add_argument("--raft", action="store_true", help="the catalog comes through the real pysyncobj")
    parser.add_argument("--whole", action="store_true", help="all of the story, also if something does not hold")
    parser.add_argument("--scenario", choices=scenarios.SCENARIOS, help="a named course of events")
    parser.add_argument("--cover", help="what the seeds A..B have seen")
    options = parser.parse_args()
    mutant = None
    if options.mutant:
        try:
            mutant = mutants.named(options.mutant, (*mutants.MUTANTS, *mutants.STAGED, *mutants.PLAYED, *IN_DRIVERS))
        except ValueError as error:
            parser.error(f"--mutant: {error}")
        if mutant in mutants.PLAYED:
            print(mutants.script_with(mutant))
            return 1
        if mutant in mutants.STAGED:
            options.scenario = options.scenario or mutant.script
        elif options.seed is None and not (options.seeds or options.cover):
            options.seed = mutant.seed
    with mutants.applied(mutant):
        return run(options)


def run(options: argparse.Namespace) -> int:
    if options.mutants:
        for mutant in (*mutants.MUTANTS, *IN_DRIVERS):
            found_by = of_drivers.driven_by if mutant in IN_DRIVERS else mutants.found_by
            found = found_by(mutant, in_order=True)
            stale = "" if found.startswith(f"seed {mutant.seed}:") else f", stated is seed {mutant.seed}"
            print(f"{mutant.name:58} {found or 'NOT FOUND'}  (of {mutant.seeds}{stale})", flush=True)
        return 0
    if options.scenario:
        cluster = scenarios.made(options.scenario, options.seed or 0)
        failure = scenarios.played(cluster, options.scenario)
        return end(cluster, failure, is_whole=options.whole)
    if options.seed is not None:
        with joined() if options.raft else nullcontext():
            cluster = Cluster(options.seed, raft=options.raft)
            with cluster.bugs.noticed():
                failure = scenarios.guarded(lambda: cluster.run(options.steps))
        return end(cluster, failure, is_whole=options.whole)
    first, last = map(int, (options.seeds or options.cover or "0..100").split(".."))
    seen: Counter[str] = Counter()
    begun, played_s = time.process_time(), 0.0
    for seed in range(first, last):
        cluster, failure = play(seed, raft=options.raft)
        seen.update(cluster.world.seen)
        seen["seeds"] += 1
        played_s += cluster.world.now_ms / 1000
        if failure:
            print(f"seed {seed}: {failure}\n  python -m tests.sim --seed {seed}{' --raft' * options.raft}")
            return 1
    took = time.process_time() - begun
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"seeds {first}..{last} of {commit or 'no commit'}: all hold, {took:.0f} s of CPU,", end="")
    print(f" {played_s:.0f} s of clusters: {played_s / took:.0f} for each")
    if options.cover:
        for what, count in sorted(seen.items()):
            print(f"{what:40} {count:8} {count * 100 / (last - first):10.1f} per 100 seeds")
    return 0


def end(cluster: Cluster, failure: str, *, is_whole: bool) -> int:
    world = cluster.world
    print(told(world.story) if is_whole or not failure else shortened(cluster, failure))
    print(f"\n{'something does not hold' if failure else 'all holds'}", end="")
    print(f"  ({world.steps} steps, {world.now_ms / 1000:.1f} s of its time)")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
