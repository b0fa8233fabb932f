"""Fuzz by coverage: an input that gets to where none was before is the beginning of others.

    corpus ─► one of them ─► changed, half by `mutation.py`, half by libFuzzer ─► sealed ─► the decoder
                  ▲                                                                            │
                  └──────────────────────── kept, if it took a new edge ◄──────────────────────┘

Atheris is libFuzzer for Python: it rewrites the bytecode of `broker` and `spark_liftlog` so that each edge is counted,
and what is compared with an input is tried in it. So it gets behind comparisons that no blind change gets behind.

V1  A decoder is done after `INPUTS_MIN` inputs, or `CPU_MIN_S` of one core, whichever comes first; but not before twice
    as many inputs as it took to the last new edge. `INPUTS_MAX` end it in any case. What was done is kept in
    `build/fuzz`, and the next run goes on from there.
V2  What is compiled by Cython is not seen. Its inputs are guided by the Python around it; the count is all there is.
V3  Each round is a process of its own, as blind ones are: its death is a finding. It is forked off one that has loaded
    all of the code, as to rewrite that takes ten seconds.
V4  An edge is new once: by its place in the code, over all rounds (`edges` in the decoder's folder). libFuzzer's own
    number does for guidance, but not for this: it counts what was taken between two inputs, by a timer of a broker or
    by a thread that still ended what the last input began, with whichever input is under way when it looks.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Final

from tests.fuzz.decoder import Decoder

ROOT: Final = Path(__file__).parents[2]
WORK: Final = ROOT / "build" / "fuzz"
INPUTS_MIN: Final = 100_000
INPUTS_MAX: Final = 10_000_000
CPU_MIN_S: Final = 300
ROUND_S: Final = 20
CASE_S: Final = 30
MEMORY_MIB: Final = 4_096
LENGTH_MAX: Final = 1 << 16
INSTRUMENTED: Final = ["broker", "spark_liftlog", "tests.fuzz.planted"]

_LINE: Final = re.compile(r"^#(\d+)\s+\w+\s+cov: \d+ ft: \d+", re.MULTILINE)


@dataclass
class Progress:
    """Of one decoder.

    Attributes:
        inputs: So many it has met.
        edges: So many were taken.
        last_new: Of the inputs, the one that took the last of these.
        seconds: Of one core, the start of its processes included.
    """

    inputs: int = 0
    edges: int = 0
    last_new: int = 0
    seconds: float = 0.0

    @property
    def left(self) -> int:
        """How many inputs it needs yet (V1)."""
        fewest = INPUTS_MIN if self.seconds < CPU_MIN_S else 0
        return min(max(fewest, 2 * self.last_new), INPUTS_MAX) - self.inputs

    def take(self, told: str, edges: Sequence[str]) -> None:
        """Add a round, by what libFuzzer has said of it, and all edges up to now (V4)."""
        self.edges = len(edges)
        self.last_new = max((int(each.split()[0]) for each in edges), default=0)
        counted = max((int(number) for number in _LINE.findall(told)), default=0)
        self.inputs = max(self.inputs + counted, self.last_new)  # which one ended the process, it does not say


class Edges:
    """Those that a decoder has ever taken: a line each, with the number of the input that took it first (V4).

    Thread-safe.
    """

    def __init__(self, path: Path, inputs: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._known = {each.split()[1] for each in path.read_text().splitlines()}
        self._seen = set[int]()
        self._lock = threading.Lock()
        self._number = inputs

    def begin_input(self) -> None:
        self._number += 1

    def followed(self, count: Callable[[int], None]) -> Callable[[int], None]:
        """What Atheris calls at each edge, with the number that the edge has in this process."""
        seen = self._seen

        def follow(edge: int) -> None:
            if edge not in seen:
                seen.add(edge)
                self._take(sys._getframe(1))
            count(edge)

        return follow

    def _take(self, frame: FrameType) -> None:
        code = frame.f_code
        path = code.co_filename.removeprefix(f"{ROOT}/")
        place = f"{path}:{code.co_firstlineno}:{code.co_qualname}:{frame.f_lasti}"
        with self._lock:
            if place not in self._known:
                self._known.add(place)
                os.write(self._file, f"{self._number} {place}\n".encode())


def edges_of(folder: Path) -> list[str]:
    path = folder / "edges"
    return path.read_text().splitlines() if path.exists() else []


def progress_of(name: str, work: Path = WORK) -> Progress:
    path = work / name / "progress.json"
    return Progress(**json.loads(path.read_text())) if path.exists() else Progress()


def run(only: str | None, *, minutes: float, inputs_max: int = INPUTS_MAX, work: Path = WORK) -> int:
    """Round and round, the decoder that has had least time first, until all are done. Returns the exit code."""
    end_s = time.monotonic() + 60 * minutes
    decoders, failed = loaded(only), set[str]()
    while True:
        found = {name: progress_of(name, work) for name in decoders.keys() - failed}
        left = {name: each for name, each in found.items() if each.left > 0 and each.inputs < inputs_max}
        left_s = end_s - time.monotonic()
        if not left or left_s < 2:
            print(f"{len(left)} are not done. {len(failed)} have found something: {', '.join(sorted(failed)) or '-'}")
            return 1 if failed else 0
        name = min(sorted(left), key=lambda each: left[each].seconds)
        count = min(left[name].left, inputs_max - left[name].inputs)
        round_s = ROUND_S if inputs_max >= INPUTS_MAX else left_s  # who says how many gets the same on any machine
        is_good = one_round(decoders[name], count, min(round_s, left_s), work / name)
        now = progress_of(name, work)
        print(f"{name}: {now.inputs} inputs, {now.edges} edges, the last new one at {now.last_new}", flush=True)
        if not is_good:
            failed.add(name)
            print((work / name / "said").read_text(errors="replace")[-4_000:])
            for path in sorted((work / name / "failures").iterdir()):
                print(f"again: {sys.executable} -m tests.fuzz --decoder {name} --input {path}", flush=True)


def loaded(only: str | None) -> dict[str, Decoder]:
    """The decoders, in code that counts its edges; nothing of it may have been imported before."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.planted import PLANTED

        if only == PLANTED.name:
            return {only: PLANTED}
        from tests.fuzz.table import DECODERS

        for each in DECODERS.values():  # some of the code is only imported when it is used
            for module in each.modules:
                if module.endswith(".py"):
                    import_module(module.removesuffix(".py").replace("/", "."))
    return DECODERS if only is None else {only: DECODERS[only]}


def one_round(decoder: Decoder, count: int, seconds: float, folder: Path) -> bool:
    """At most so many inputs, in a process of its own (V3). Returns whether nothing was found."""
    for each in ("seeds", "found", "failures"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(decoder.inputs()):
        (folder / "seeds" / str(number)).write_bytes(data)
    progress = progress_of(decoder.name, folder.parent)
    arguments = [
        *(f"-seed={progress.inputs + 1}", f"-runs={count}", f"-max_total_time={max(1, round(seconds))}"),
        *(f"-timeout={CASE_S}", f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={LENGTH_MAX}", "-len_control=0"),
        *(f"-artifact_prefix={folder}/failures/", str(folder / "found"), str(folder / "seeds")),
    ]
    sys.stdout.flush()
    if not (child := os.fork()):
        os.dup2(os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        fuzz(decoder, arguments, Edges(folder / "edges", progress.inputs))
        raise SystemExit(1)  # as it ends libFuzzer keeps what it was at
    _, status, used = os.wait4(child, 0)
    progress.seconds += used.ru_utime + used.ru_stime
    progress.take((folder / "said").read_text(errors="replace"), edges_of(folder))
    (folder / "progress.json").write_text(json.dumps(asdict(progress)))
    return status == 0


def fuzz(decoder: Decoder, arguments: Sequence[str], edges: Edges) -> None:
    """Meet inputs until libFuzzer ends this process."""
    import atheris

    with open(os.devnull, "w") as nowhere:
        logging.basicConfig(stream=nowhere, level=logging.WARNING)  # lines are made, and not shown

        follow = None

        def meet(data: bytes) -> None:
            nonlocal follow
            if atheris._trace_branch is not follow:  # `Fuzz` sets its own
                follow = atheris._trace_branch = edges.followed(atheris._trace_branch)
            edges.begin_input()
            decoder.meet_once(data)

        def change(data: bytes, length_max: int, seed: int) -> bytes:
            rng = random.Random(seed)
            way = None if rng.random() < 0.5 else lambda inner: bytes(atheris.Mutate(inner, length_max))
            try:
                return decoder.changed(rng, data, way)[:length_max]
            except (ValueError, IndexError):  # it has no seal any more
                return bytes(atheris.Mutate(data, length_max))

        atheris.Setup([decoder.name, *arguments], meet, custom_mutator=change)
        atheris.Fuzz()


def show(work: Path = WORK) -> None:
    """A table of what was done."""
    from tests.fuzz.table import DECODERS

    print("| decoder | inputs | a second | edges | last new one at | |\n|---|---|---|---|---|---|")
    for name, decoder in sorted(DECODERS.items()):
        found = progress_of(name, work)
        rate = found.inputs / found.seconds if found.seconds else 0.0
        is_compiled = any(module.endswith(".pyx") for module in decoder.modules)
        told = ", ".join(filter(None, ("compiled" if is_compiled else "", "" if found.left > 0 else "done")))
        cells = (name, f"{found.inputs:,}", f"{rate:,.0f}", f"{found.edges:,}", f"{found.last_new:,}", told)
        print(f"| {' | '.join(cells)} |")
