"""People and programs that change and use streams of a cluster amid faults, and what has to become of it.

    Worker.step   one command, drawn by a seed; each has streams of its own, and one try unless it says otherwise
                  ── answered: it holds, on every broker, whoever dies ── refused: it was not done
                  ── in doubt (`sent`, or no answer): all of it, or nothing of it
    Worker.check  once all is quiet and whole: what is stored against what was answered

A stream is known as the set of states that it may be in (`Lives.may_be`): an answered command takes each of them a step
on, one in doubt adds to them, a refusal leaves those that it would have been refused of.

B1  A command that was answered is seen by every broker from then on, also by those that were away.
B2  A command that was refused is never seen. One that changes several things changes all of them or nothing. One in
    doubt comes within `ASKED_S`, or never: so long a broker may be asking whose client is cut off.
B3  A log begins where the last trim that was answered has let it begin, or where one in doubt would have.
B4  A committed offset stays.
B5  Each id, each record of an idempotent producer is stored once and in order.
B6  A message that expects a sequence and is acknowledged stands behind the record with that sequence.
B7  The newest acknowledged record of each key is there, and nothing that was not sent.
B8  Partitions that were added are there; each message is where its ack says, and once in its partition.
B9  A partition that gets other replicas or leaders keeps each record once and in order.
B10  A batch that a sink has committed is there once and whole, of one attempt; no other one is seen by half.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.api.errors import LiftlogError, Retryable
from broker.client import Client
from broker.control.operating.changes import ASKED_S
from tests.cluster.changers import Growing, Moved, Sinking
from tests.cluster.users import Committer, Expecting, Keys, Producing, Trimmer
from tests.cluster.worker import CALM_S, PAUSE_S, Worker


@dataclass(frozen=True)
class Life:
    """A stream as commands have made it; `number` stands in two of its settings."""

    number: int = 0
    paused: bool = False
    read_only: bool = False


State = Life | None
"""None: there is no such stream."""


class Lives(Worker):
    """Streams are created, altered, paused, made read-only and deleted (B1, B2)."""

    names = ("lives-0", "lives-1")

    def prepare(self) -> None:
        self.may_be: dict[str, set[State]] = {name: {None} for name in self.names}
        self._doubt_until_s = dict.fromkeys(self.names, 0.0)
        self._number = 0

    def step(self) -> None:
        name = self.rng.choice(self.names)
        if time.monotonic() < self._doubt_until_s[name]:
            return
        kind = self.rng.choice(["create", "create", "alter", "alter", "pause", "resume", "read", "write", "delete"])
        self._number += 1
        call, effect = self._command(kind, name, self._number)
        outcome, answer = self.attempt(kind, call)
        before = self.may_be[name]
        after = {effect(state) for state in before if not isinstance(effect(state), str)}
        if outcome == "done" and kind == "delete":
            now: set[Any] = {None}  # a client that was cut off, and is told then that there is none, says so too
        elif outcome == "done":
            now = after
        elif outcome == "refused":
            now = {state for state in before if isinstance(effect(state), str)}
        elif outcome == "in doubt":
            now, self._doubt_until_s[name] = before | after, time.monotonic() + ASKED_S
        else:
            now = before
        assert now, f"{kind} {name}: {outcome} ({answer}), and it may only be {before}"
        self.may_be[name] = now  # type: ignore[assignment]
        if self.rng.random() < 0.3:
            self._observe(name)

    def _command(self, kind: str, name: str, number: int) -> tuple[Callable[[], Any], Callable[[State], State | str]]:
        """How to ask, and what it makes of a state; a text: it is refused."""
        client, numbers = self.any, {"retention_ms": 10**9 + number, "retention_records": 10**6 + number}

        def of_one(change: Callable[[Life], Life]) -> Callable[[State], State | str]:
            return lambda state: "unknown" if state is None else change(state)

        match kind:
            case "create":
                settings = {"subject": name, "replication_factor": 3, "min_insync_replicas": 2, **numbers}
                return (
                    lambda: client.create_stream(name, **settings),
                    lambda state: Life(number) if state is None else "exists",
                )
            case "alter":
                return lambda: client.alter(name, **numbers), of_one(lambda life: replace(life, number=number))
            case "pause":
                return lambda: client.pause(name), of_one(lambda life: replace(life, paused=True))
            case "resume":
                return lambda: client.resume(name), of_one(lambda life: replace(life, paused=False))
            case "read" | "write":
                only = kind == "read"
                return (
                    lambda: client.set_read_only(name, only),
                    of_one(lambda life: replace(life, read_only=only)),
                )
            case _:
                return lambda: client.delete_stream(name), of_one(lambda life: None)  # type: ignore[arg-type,return-value]

    def _seen_by(self, client: Client, name: str) -> State | str:
        """As it describes the stream; a text: it does not say."""
        try:
            found = client.describe(name)
        except Retryable as error:
            return str(error)
        except LiftlogError as error:
            if error.reason != "unknown_stream":
                return str(error)
            return None
        number = found.settings["retention_ms"] - 10**9
        assert found.settings["retention_records"] == 10**6 + number, f"B2: {name} is altered by half: {found.settings}"
        return Life(number, found.paused, found.read_only)

    def _observe(self, name: str) -> None:
        """A broker that is behind comes to know it; nobody else is asked meanwhile."""
        client, end_s = self.any, time.monotonic() + CALM_S
        while (seen := self._seen_by(client, name)) not in self.may_be[name]:
            if isinstance(seen, str):
                return self.note("observe", "not now")
            assert time.monotonic() < end_s, f"B1: {name} is {seen}, and may only be {self.may_be[name]}"
            time.sleep(PAUSE_S)
        return self.note("observe", "done")

    def check(self) -> None:
        for name in self.names:
            seen = [self._settled(client, name) for client in self.hasty]
            assert len(set(seen)) == 1, f"B1: brokers disagree about {name}: {seen}"
            assert seen[0] in self.may_be[name], f"B1: {name} is {seen[0]}, and may only be {self.may_be[name]}"

    def _settled(self, client: Client, name: str) -> State:
        end_s = time.monotonic() + CALM_S
        while isinstance(seen := self._seen_by(client, name), str) or seen not in self.may_be[name]:
            if time.monotonic() > end_s:
                break
            time.sleep(PAUSE_S)
        return seen  # type: ignore[return-value]


WORKERS: Final = (Lives, Trimmer, Committer, Producing, Keys, Expecting, Growing, Moved, Sinking)


class Operators:
    """All of them."""

    def __init__(self, addresses: Sequence[str], url: str, seed: int) -> None:
        self.workers = [kind(addresses, url, str(seed)) for kind in WORKERS]

    def begin(self) -> None:
        """Have all of them make what they need, and start."""
        for worker in self.workers:
            worker.begin()

    def close(self) -> None:
        """End all of them, also those that have failed."""
        for worker in self.workers:
            worker.close()

    def look(self) -> None:
        for worker in self.workers:
            worker.look()

    @property
    def done(self) -> int:
        """Commands that were answered."""
        return sum(count for each in self.workers for what, count in each.seen.items() if what.endswith(" done"))

    def stop(self) -> Counter[str]:
        """End, once all brokers are there; then check. Returns what became of the commands."""
        for worker in self.workers:  # all at once: the last step of each may take minutes
            worker.end()
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.check()
        return sum((worker.seen for worker in self.workers), Counter[str]())
