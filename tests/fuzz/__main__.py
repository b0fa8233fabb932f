"""Fuzz every decoder for as long as asked: `make fuzz MINUTES=60`.

    python -m tests.fuzz --minutes 60 [--seed 7] [--decoder segment]    round and round, other seeds each time
    python -m tests.fuzz --decoder segment --seed 123 --cases 1         one case again
    python -m tests.fuzz --decoder segment --input FILE                 one input
    python -m tests.fuzz --list                                         the table
    python -m tests.fuzz --guided --minutes 60 [--decoder segment]      by coverage (guided.py); goes on where it was
    python -m tests.fuzz --guided --list                                how far that is

Each decoder runs in a process of its own, so that one that dies (a fault in compiled code, memory, a hang) is a
finding like any other: the case that was under way is on record. A finding ends the run with exit 1; its input is kept
in `fuzz-failures/`. Mend the decoder and keep the input as `tests/fuzz/corpus/<decoder>/found-<what>`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FAILURES: Final = ROOT / "fuzz-failures"
SEED_MAX: Final = 1 << 40
CASE_S: Final = 30
MEMORY_BYTES: Final = 8 << 30


def fuzz(name: str, first: int, *, cases: int, seconds: float, progress: str | None) -> int:
    """Meet the cases of seeds `first`, `first` + 1, ...; return how many there were. Raises what a bug raises."""
    from tests.fuzz.table import DECODERS

    decoder = DECODERS[name]
    mark = os.open(progress, os.O_WRONLY) if progress else -1
    end = time.monotonic() + seconds
    taken = 0
    for count in range(cases):
        seed = first + count
        if mark >= 0:
            os.pwrite(mark, b"%020d" % seed, 0)
        data = decoder.case(seed)
        signal.alarm(CASE_S)
        try:
            taken += decoder.meet_once(data)
        except BaseException:
            FAILURES.mkdir(exist_ok=True)
            path = FAILURES / f"{name}-{seed}"
            path.write_bytes(data)
            print(f"{name}: seed {seed}, {len(data)} bytes, kept in {path.relative_to(ROOT)}")
            raise
        finally:
            signal.alarm(0)
        if time.monotonic() > end:
            break
    print(f"{name}: {count + 1} cases from seed {first}, {taken} taken, the others refused as documented", flush=True)
    return count + 1


def child(name: str, seed: int, cases: int, seconds: float) -> int:
    """Run `fuzz` in a process of its own; return its exit code, after telling what became of it."""
    options = ["--decoder", name, "--seed", str(seed)]
    with tempfile.NamedTemporaryFile() as progress:
        command = [sys.executable, "-m", "tests.fuzz", *options, "--cases", str(cases), "--here", progress.name]
        running = subprocess.Popen([*command, "--seconds", str(seconds)], cwd=ROOT)
        try:
            code = running.wait(seconds + 2 * CASE_S + 30)
        except subprocess.TimeoutExpired:
            running.kill()
            code = running.wait()
        if code:
            at = progress.read().decode() or str(seed)
            if code < 0:
                print(f"{name}: the process died of signal {-code}, at seed {int(at)}")
            again = [sys.executable, "-m", "tests.fuzz", "--decoder", name, "--seed", str(int(at)), "--cases", "1"]
            print(f"again: {shlex.join(again)}", flush=True)
    return code


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"a case took more than {CASE_S} s")


def show_table() -> None:
    from tests.fuzz.table import DECODERS, ELSEWHERE

    for name, decoder in DECODERS.items():
        print(f"{name:18} {len(decoder.corpus()):3} inputs  {', '.join(decoder.modules)}")
    for module, why in ELSEWHERE.items():
        print(f"{'-':18}             {module}: {why}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long, 5 unless given")
    parser.add_argument("--decoder", help="only this one")
    parser.add_argument("--seed", type=int, help="the first seed; the others follow from it")
    parser.add_argument("--cases", type=int, default=1 << 60, help="at most so many of each decoder")
    parser.add_argument("--input", type=Path, help="meet this file once")
    parser.add_argument("--list", action="store_true", help="print the table of decoders")
    parser.add_argument("--guided", action="store_true", help="by coverage, until each has had its inputs")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "fuzz", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help=argparse.SUPPRESS)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.guided:
        from tests.fuzz import guided

        if given.list:
            guided.show(given.work)
            return 0
        cases = min(given.cases, guided.INPUTS_MAX)
        return guided.run(given.decoder, minutes=given.minutes, inputs_max=cases, work=given.work)
    from tests.fuzz.table import DECODERS

    if given.list:
        show_table()
        return 0
    if given.decoder not in (None, *DECODERS):
        parser.error(f"no decoder {given.decoder!r}; there are {', '.join(DECODERS)}")
    if given.input:
        if given.decoder is None:
            parser.error("--input needs --decoder")
        print("taken" if DECODERS[given.decoder].meet(given.input.read_bytes()) else "refused as documented")
        return 0
    first = random.randrange(SEED_MAX) if given.seed is None else given.seed
    if given.here or (given.decoder and given.cases < 1 << 60):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        signal.signal(signal.SIGALRM, _out_of_time)
        try:
            fuzz(given.decoder, first, cases=given.cases, seconds=given.seconds, progress=given.here)
        except Exception:
            traceback.print_exc()
            return 1
        return 0
    names = [given.decoder] if given.decoder else list(DECODERS)
    end = time.monotonic() + 60 * given.minutes
    each_s = min(20.0, max(2.0, 60 * given.minutes / len(names)))
    print(f"{len(names)} decoders for {given.minutes:g} minutes, first seed {first}", flush=True)
    rng = random.Random(first)
    for name in itertools.cycle(names):
        left = end - time.monotonic()
        if left < 1:
            print("time is over, nothing found")
            return 0
        if child(name, rng.randrange(SEED_MAX), given.cases, min(each_s, left)):
            return 1
    raise AssertionError("unreachable")


if __name__ == "__main__":
    sys.exit(main())
