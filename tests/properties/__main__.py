"""Run the property tests for as long as asked, each time with another seed: `make prop MINUTES=60`.

    python -m tests.properties --minutes 60 [--seed 7] [--effort 5] [--only sinks]

Every test of this folder in turn, round and round. Each run is a process of its own, with a seed for Hypothesis and
for the faults of the fake disk; its line says which. The first failure ends the run (exit 1) and prints the command
that repeats it. A run that goes on when the time is over is ended, and counts as not run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = "tests/properties"
SEED_MAX = 1 << 31


def collect(only: str) -> list[str]:
    """Ids of the tests whose id holds `only`. Mutants stay with CI's seed: with another one may need more luck."""
    command = [sys.executable, "-m", "pytest", FOLDER, "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith(FOLDER) and "::" in line]
    return [line for line in lines if only in line and "test_mutants" not in line]


def command_of(test: str, seed: int) -> list[str]:
    """The run of one test with a seed, without a time limit of its own."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "--timeout=0", f"--hypothesis-seed={seed}"]
    return [sys.executable, "-m", "pytest", test, *options]


def run(test: str, seed: int, effort: int, seconds: float) -> tuple[int | None, str]:
    """Exit code and output of one run; no code: the time was over."""
    settings = {"LIFTLOG_PROP_SEED": str(seed), "LIFTLOG_PROP_EFFORT": str(effort)}
    child = subprocess.Popen(
        command_of(test, seed),
        cwd=ROOT,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = child.communicate(timeout=seconds)
        return child.returncode, output
    except subprocess.TimeoutExpired:
        child.kill()
        return None, child.communicate()[0]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.properties", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long, 5 unless given")
    parser.add_argument("--seed", type=int, help="the first seed; the others follow from it")
    parser.add_argument("--effort", type=int, default=5, help="times the examples that CI tries, 5 unless given")
    parser.add_argument("--only", default="", help="only tests whose id holds this")
    given = parser.parse_args(arguments)
    first = random.randrange(SEED_MAX) if given.seed is None else given.seed
    tests = collect(given.only)
    if not tests:
        print(f"no test holds {given.only!r}")
        return 2
    rng = random.Random(first)
    end = time.monotonic() + 60 * given.minutes
    print(f"{len(tests)} tests for {given.minutes:g} minutes, first seed {first}, effort {given.effort}", flush=True)
    for count, test in enumerate(itertools.cycle(tests)):
        seed = first if count == 0 else rng.randrange(SEED_MAX)
        begun = time.monotonic()
        code, output = run(test, seed, given.effort, max(0.0, end - begun))
        if code is None:
            print(f"time is over: {count} runs, {count / len(tests):.1f} rounds, no failure")
            return 0
        print(f"seed={seed} {time.monotonic() - begun:.1f} s {'failed' if code else 'passed'} {test}", flush=True)
        if code:
            print(output)
            settings = f"LIFTLOG_PROP_SEED={seed} LIFTLOG_PROP_EFFORT={given.effort}"
            print(f"again: {settings} {shlex.join(command_of(test, seed))}")
            return 1
    raise AssertionError("unreachable")


if __name__ == "__main__":
    sys.exit(main())
