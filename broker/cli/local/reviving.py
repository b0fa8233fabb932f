"""The foreground of a cluster: a broker that has ended is started again, and what that does to the cluster is told.

    broker-1 ended ─► 1 s ─► started ─► ended soon ─► 2 s ─► started ─► ... 30 s at most; after CALM_S it is 1 s again

V1  A broker that cannot start, as its folder is refused or its disk is full, costs one start in 30 s, and says so each
    time. The others go on. All of them may end at once, and each is started again.
V2  A broker that is started again is in the record before anything else is done: `down`, and the next `up`, find it.
V3  The line of health is printed when it has changed. Asking for it holds up nobody: a thread does that, and a broker
    that stands still costs it two seconds.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from broker.api.errors import LiftlogError
from broker.api.misfit import Misfit
from broker.api.placements import Placements
from broker.api.plain import parse_json
from broker.api.validation import build
from broker.cli.local.processes import Process
from broker.cli.local.readiness import get
from broker.cli.output import counted

CALM_S: Final = 60.0
PAUSE_MOST_S: Final = 30.0
ASK_EVERY_S: Final = 1.0
BODY_BYTES_READ: Final = 16 << 20

Restart = Callable[[str], Process]
"""Starts the broker of this name, and records it (V2). Raises OSError, LiftlogError."""


class Revival:
    """See the module (V1). `tell`: where lines for the user go."""

    def __init__(
        self, restart: Restart, tell: Callable[[str], object], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._restart, self._tell, self._clock = restart, tell, clock
        self._began_s: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}

    def look(self, process: Process, *, others_left: bool = True) -> Process:
        """One of several brokers: itself while it runs or is to wait, or its successor."""
        name, now_s = process.name, self._clock()
        began_s = self._began_s.setdefault(name, now_s)
        if not process.has_ended():
            return process
        if name not in self._due_s:
            self._wait(process, now_s, lived_s=now_s - began_s, others_left=others_left)
        if now_s < self._due_s[name]:
            return process
        del self._due_s[name]
        self._began_s[name] = now_s
        try:
            made = self._restart(name)
        except (OSError, LiftlogError) as error:
            self._tell(f"{name} cannot be started: {error}")
            return process
        self._tell(f"{name} is started again")
        return made

    def _wait(self, process: Process, now_s: float, *, lived_s: float, others_left: bool) -> None:
        name = process.name
        before_s = self._pause_s.get(name, 0.0)
        pause_s = 1.0 if lived_s >= CALM_S or not before_s else min(2 * before_s, PAUSE_MOST_S)
        self._pause_s[name], self._due_s[name] = pause_s, now_s + pause_s
        how = "the others go on, and it" if others_left else "no broker runs now. It"
        self._tell(f"{name} {process.ending()}; {how} is started again in {pause_s:.0f} s. Its log: {process.log}")


class Health:
    """See the module (V3). `addresses`: of each broker, as `readiness.get` has them."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self._line: str | None = None
        self._shown: str | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()

    def news(self) -> str | None:
        """The line, if it is another one than at the last call."""
        line = self._line
        if line is None or line == self._shown:
            return None
        self._shown = line
        return line

    def _run(self) -> None:
        while not self._is_over.wait(ASK_EVERY_S):
            self._line = self.ask()

    def ask(self) -> str:
        """Ask one broker after the other, until one answers that has a controller."""
        found = "nobody answers"
        for address in self._addresses:
            try:
                cluster, placed = (_json(address, path) for path in ("/v1/cluster", "/v1/cluster/partitions"))
                line = line_of(cluster, build(Placements, placed, is_open=True))
            except (OSError, http.client.HTTPException, LiftlogError, ValueError, KeyError, TypeError, Misfit):
                continue
            if cluster["controller"] is not None:
                return line
            found = line
        return found


def line_of(cluster: Mapping[str, Any], placed: Placements) -> str:
    """How the cluster is, in a line."""
    live = sum(broker["live"] for broker in cluster["brokers"])
    controller = cluster["controller"] or "none"
    counts = Counter(each.health for each in placed.partitions)
    partitions = counted(counts.total(), "partition")
    text = f"{live} of {len(cluster['brokers'])} brokers live, controller {controller}, {partitions}"
    unwell = [f"{counts[how]} {how.replace('_', ' ')}" for how in ("offline", "below_minimum", "under_replicated")]
    bad = [each for each in unwell if not each.startswith("0 ")]
    return f"{text}: {', '.join(bad) or 'all in sync'}"


def _json(address: str, path: str) -> Any:
    answer, body = get(address, path, bytes_max=BODY_BYTES_READ)
    if answer.status != 200:
        raise ValueError(f"status {answer.status}")
    return parse_json(body)
