# ruff: noqa: E501  (one line for each mistake reads better than six)
"""Deliberate mistakes in the core: each a piece of its text, and what stands there instead.

Each is one that somebody could make, or that the field has seen; the rule that it breaks is named.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

import broker.replication.insync
import broker.replication.leader


@dataclass(frozen=True)
class Mutant:
    """A mistake. `file`: the module; `before` stands there once."""

    name: str
    file: str
    before: str
    after: str


MUTANTS: Final = (
    # alone
    Mutant("acks all at the append", "leader", "event.next <= self.durable_end:", "True:"),
    Mutant("says stored after a failed fsync", "leader", "self._tell_all(Outcome.FAILED, event.error)", "self._advance()"),
    Mutant("forgets who waits at a failed fsync", "leader", "*self._tell_all(Outcome.FAILED, event.error)", ""),
    Mutant("says stored after a recovery", "leader", "self._tell_all(Outcome.UNSURE)", "self._tell_all(Outcome.STORED)"),
    Mutant("keeps who waits over a recovery", "leader", "effects = self._tell_all(Outcome.UNSURE)", "effects = list[Effect]()"),
    Mutant(
        "minds a failure of an earlier generation",
        "leader",
        "event.generation != self.generation or self.role is not Role.LEADING:  # L5: they",
        "self.role is not Role.LEADING:  # L5: they",
    ),
    Mutant("a recovery begins no generation", "leader", "        self._begin_generation()\n        if self.role", "        if self.role"),
    Mutant("takes the log end for the durable end", "leader", "self.durable_end = event.durable_end\n            self._synced", "self.durable_end = self.log_end\n            self._synced"),
    Mutant("no second sync for who came meanwhile", "leader", "        return (*effects, *self._begin_sync())\n\n    def _advance", "        return tuple(effects)\n\n    def _advance"),
    Mutant("two syncs at a time", "leader", "        if self.is_syncing:\n            return NOTHING\n        self.is_syncing = True\n        return self._sync\n\n    def _synced", "        return self._sync\n\n    def _synced"),
    Mutant("a sync that failed is still under way", "leader", "        self.is_syncing = False\n        if event.generation != ", "        if event.generation != "),
    Mutant("answers before it commits", "leader", "        return effects\n\n    def _tell_all", "        return effects[::-1]\n\n    def _tell_all"),
    Mutant("leader is told at the append", "leader", "_stored(self._for_leader, own_end)", "_stored(self._for_leader, self.log_end)"),
    Mutant("one too early", "leader", "_stored(self._for_all, self.high_watermark)", "_stored(self._for_all, self.high_watermark + 1)"),
    Mutant("nobody who waits for all is told after an alter", "leader", "        return (*self._advance(), *self._begin_sync())\n\n    # -- the others", "        return NOTHING\n\n    # -- the others"),
    Mutant("who waits is told twice", "leader", "        self._for_leader.clear()\n", ""),
    Mutant("with fsync=interval nothing is ever synced", "leader", "not is_due or self.durable_end == self.log_end", "True"),
    Mutant("a closed partition lets its waiters wait", "leader", "        return (*self._tell_all(outcome), WAKE)", "        return (WAKE,)"),
    Mutant("commits what a failed log holds", "leader", "self.fsync_each_batch or self.is_failed else", "self.fsync_each_batch else"),
    Mutant("alone, takes what is appended for durable", "leader", "if event.durable_end == event.next and self.in_sync is None", "if self.in_sync is None"),
    Mutant("alone, forgets that others wait", "leader", " and not (self._for_all or self._for_leader):", ":"),
    # of several
    Mutant("of three, commits what came alone", "leader", "event.durable_end == event.next and self.in_sync is None and", "event.durable_end == event.next and"),
    Mutant("commits what the leader alone has", "leader", "safe_end = in_sync.durable_end(own_end)", "safe_end = own_end"),
    Mutant("commits below the minimum", "leader", "elif len(in_sync.members) >= self.min_insync_replicas:", "elif True:"),
    Mutant("a pending addition counts for the minimum", "leader", "elif len(in_sync.members) >= ", "elif 1 + len(in_sync.counting()) >= "),
    Mutant("commits within a group", "leader", "                del ends[:count]", "                del ends[:count]\n            committed = max(committed, safe_end)"),
    Mutant("commits before the start of its epoch", "leader", "if safe_end >= self.epoch_start:", "if True:"),
    Mutant("minds fetches of another epoch", "leader", "is_minded = fetch.epoch == epoch and", "is_minded ="),
    Mutant("asks in who lacks the start of the epoch", "leader", "least_end=max(self.high_watermark, self.epoch_start)", "least_end=self.high_watermark"),
    Mutant("asks in who lacks what is committed", "leader", "least_end=max(self.high_watermark, self.epoch_start)", "least_end=0"),
    Mutant("goes on leading after a failed fsync", "leader", "if self.in_sync is not None:  # L6", "if False:"),
    Mutant("a deposed leader commits", "leader", "event.generation == self.generation and self.role is Role.LEADING:", "event.durable_end <= self.log_end:"),
    Mutant("a pending addition does not count", "insync", "or broker == added", ""),
    Mutant("a pending removal does not count", "insync", "if broker in self.members or", "if broker in self.members and broker != (self.pending.remove if self.pending else None) or"),
    Mutant("a time-out is taken for an answer", "insync", "        if self.pending is not None:\n            return self.pending\n        if worst is None:", "        self.pending = None\n        if worst is None:"),
    Mutant("an old answer is news", "insync", "if event.partition_epoch < self.partition_epoch:", "if False:"),
    Mutant("an answer to another question settles this one", "insync", "is_answer = self.pending is not None and event.request == self.pending.request", "is_answer = self.pending is not None"),
    Mutant("an earlier incarnation counts", "insync", "broker in self.followers and incarnation >= self.followers[broker].incarnation", "broker in self.followers"),
    Mutant("a new incarnation keeps the old one's end", "insync", "follower.incarnation, follower.durable_end, follower.log_start = incarnation, -1, 0", "follower.incarnation = incarnation"),
    Mutant("believes more than there is", "leader", "fetch.offset > self.log_end or not (", "not ("),
    Mutant("a spurious shrink after a leader change", "insync", "caught_up_ms: int | None = None", "caught_up_ms: int | None = 0"),
    Mutant("never asks anybody out", "insync", "follower.caught_up_ms < worst_ms", "False"),
    Mutant("two changes at a time", "insync", "if self.pending is not None or broker in self.members or", "if broker in self.members or"),
    Mutant("keeps followers of the leadership before", "insync", "self.followers = {broker: KnownFollower()", "self.followers = {broker: KnownFollower(durable_end=led.high_watermark)"),
)  # fmt: skip


def mutated(mutant: Mutant) -> ModuleType:
    """The module `leader` with one mistake in it, or in what it uses."""
    modules = {"leader": broker.replication.leader, "insync": broker.replication.insync}
    texts = {name: Path(module.__file__ or "").read_text() for name, module in modules.items()}
    assert texts[mutant.file].count(mutant.before) == 1, (
        f"{mutant.name}: stands there {texts[mutant.file].count(mutant.before)} times"
    )
    texts[mutant.file] = texts[mutant.file].replace(mutant.before, mutant.after)
    made = dict(_executed(texts))
    made["leader"].InSync = made["insync"].InSync  # type: ignore[attr-defined]
    return made["leader"]


def _executed(texts: dict[str, str]) -> Iterator[tuple[str, ModuleType]]:
    for name, text in texts.items():
        module = ModuleType(f"tests.mutated.{name}")
        sys.modules[module.__name__] = module  # dataclasses look themselves up
        exec(compile(text, f"<mutated {name}>", "exec"), module.__dict__)
        yield name, module
