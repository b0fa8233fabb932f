# ruff: noqa: E501  (one line for each mistake reads better than six)
"""Deliberate mistakes in the protocol: each a piece of the text of a core, of the catalog or of what drives them, and what
stands there instead. Each is a reading that somebody could have had, or a bug that the field has seen.

Each of `MUTANTS` is found within `seeds` seeds; `seed` is one that finds it, tried first. Those of `NOT_FOUND` are not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import broker.replication.follower
import broker.replication.insync
import broker.replication.leader
import broker.replication.trims
import tests.sim.broker
import tests.sim.catalog
import tests.sim.replica
from tests.sim.cluster import play

MODULES: Final[dict[str, ModuleType]] = {
    "insync": broker.replication.insync,
    "trims": broker.replication.trims,
    "leader": broker.replication.leader,
    "follower": broker.replication.follower,
    "catalog": tests.sim.catalog,
    "replica": tests.sim.replica,
}


@dataclass(frozen=True)
class Mutant:
    """A mistake. Each `before` stands once in the module `file`."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    seed: int
    seeds: int


def of(name: str, file: str, *texts: str, seed: int = 0, seeds: int = 30) -> Mutant:
    return Mutant(name, file, tuple(zip(texts[::2], texts[1::2], strict=True)), seed, seeds)


FOLLOWER_ENDS = ("    log_start: int = 0\n", "    log_start: int = 0\n    log_end: int = 0\n")
NOTES_END = (
    "max(follower.log_start, fetch.log_start)\n",
    "max(follower.log_start, fetch.log_start)\n        follower.log_end = fetch.offset\n",
)

MUTANTS: Final = (
    # what acknowledges
    of("acks before the ISR has it", "leader", "safe_end = in_sync.durable_end(own_end)", "safe_end = own_end"),
    of("acknowledges by fetch offset", "insync", "max(follower.durable_end, fetch.durable_end)", "max(follower.durable_end, fetch.offset)"),
    of("counts a pending removal out", "insync", "if broker in self.members or", "if broker in self.members and broker != (self.pending.remove if self.pending else None) or", seed=1),
    of("does not count a pending addition", "insync", "or broker == added", "", seed=13),
    of("takes the refusal of a second try for the first one's", "replica", "            partition_epoch=partition.partition_epoch,\n            isr=partition.isr,\n            request=ask.request,", "            partition_epoch=self.leader.in_sync.partition_epoch,\n            isr=self.leader.in_sync.members,\n            request=ask.request,", seed=13),
    of("leaves the partition epoch when a session comes back", "catalog", "                p = replace(p, partition_epoch=p.partition_epoch + 1)  # C7\n", "                pass\n", seed=467),
    # fencing
    of("lets a restarted leader lead on in its epoch", "catalog", "            if p.leader in (broker, None):\n                p = self._elected(p)", "            if p.leader is None:\n                p = self._elected(p)"),
    # who may be elected
    of("asks in who has not fsynced it", "insync", *FOLLOWER_ENDS, *NOTES_END, "is_ready = follower.durable_end >= least_end", "is_ready = follower.log_end >= least_end"),
    of("asks in too early", "leader", "least_end=max(self.high_watermark, self.epoch_start)", "least_end=0"),
    of("asks in who lacks the start of the epoch", "leader", "least_end=max(self.high_watermark, self.epoch_start)", "least_end=self.high_watermark", seed=16),
    of("keeps a wiped broker in the ISR", "catalog", "if name not in command.folders and is_known:", "if False:"),
    of("keeps a lost folder in the last ISR", "catalog", "last, opened = _without(last, broker), _without(opened, broker)", "opened = _without(opened, broker)", seed=20),
    of("lets who opens late join", "catalog", "        if not p.is_begun:  # C6\n", "        if True:\n"),
    of("elects whoever is live", "catalog", "live = [who for who in p.replicas if who in p.isr and who in self.live]", "live = [who for who in p.replicas if who in self.live]"),
    of("drops damaged files before it has stepped out", "replica", "            self.checker.damaged(self)\n", "            self.checker.damaged(self)\n            self.create()\n", seed=6),
    # where logs part
    of("truncates by the high watermark alone", "follower", "        if message.found_epoch == log.last_epoch and message.end >= log.log_end:\n            self.phase = Phase.FETCHING\n            return self._ask()\n        cut = max(log.log_start, min(message.end, own_end))", "        cut = log.high_watermark", "do_agree = log.log_end == log.log_start or log.last_epoch == self._found_epoch", "do_agree = True"),
    of("cuts nothing", "follower", "        self.phase = Phase.FETCHING if self.log.log_end == self.log.log_start else Phase.ASKING\n", "        self.phase = Phase.FETCHING\n", "                self.phase = Phase.ASKING\n                return self._ask()\n        return NOTHING\n\n    def _end", "                return NOTHING\n        return NOTHING\n\n    def _end"),
    of("keeps an incomplete group when it leads", "replica", "            log.lead(partition.epoch)\n", "            log.log._led = log.log._told = partition.epoch\n", seed=1),
    of("commits within a group", "leader", "                committed = ends.popleft()", "                committed = ends.popleft()\n            committed = max(committed, safe_end)"),
    of("tells an end before the start of its epoch is committed", "leader", "return self.role is Role.LEADING and self.high_watermark >= self.epoch_start", "return self.role is Role.LEADING", seed=5),
    # trims
    of("answers a trim that it alone has", "trims", "least = min([self.log_start, *starts])", "least = self.log_start", seed=6),
)  # fmt: skip

NOT_FOUND: Final = (
    # what 60 seeds have not found, or not in the time that there was: each is a rule that no seed is known to need
    of("takes a time-out for an answer", "insync", "        if self.pending is not None:\n            return self.pending\n        return None if worst", "        self.pending = None\n        return None if worst"),
    of("minds neither epochs nor what the follower holds", "leader", "is_minded = fetch.epoch == epoch and in_sync.admits(fetch.follower, incarnation)", "is_minded = fetch.follower in in_sync.followers", "elif fetch.offset > self.log_end or not (", "elif fetch.offset > self.log_end or False and not ("),
    of("minds answers of another epoch", "follower", "is_minded = (message.epoch, message.incarnation) == (self.epoch, self.incarnation)", "is_minded = True"),
    of("minds answers to another question", "follower", "or message.request != self._request", ""),
    of("keeps the followers of the leadership before", "leader", "        self.trims = Trims(event.log_start)\n        return", "        _keep(before, self.in_sync)\n        self.trims = Trims(event.log_start)\n        return", "        effects = self._tell_all(Outcome.DEPOSED)\n        self._begin_generation()\n        self.role, self.is_failed", "        effects, before = self._tell_all(Outcome.DEPOSED), self.in_sync\n        self._begin_generation()\n        self.role, self.is_failed", "\n\nclass Role(Enum):", "\n\ndef _keep(before: Any, now: Any) -> None:\n    if before is not None and now is not None:\n        now.followers = {**now.followers, **{k: v for k, v in before.followers.items() if k in now.followers}}\n\n\nclass Role(Enum):"),
    of("adds whoever is called so, in whatever life", "catalog", "if who not in self.live or not is_same or who in p.isr:", "if who in p.isr:"),
    of("changes an ISR whatever it has become", "catalog", "if not is_current or p.incarnations.get(command.leader) != command.incarnation:  # C4", "if p.leader is None or command.remove == p.leader:"),
    of("forgets who left below the minimum", "catalog", "if len(isr) < p.min_insync_replicas and broker in p.isr:", "if not isr and broker in p.isr:"),
    of("leads on after a failed fsync", "leader", "if self.in_sync is not None:  # L6", "if False:"),
    of("follows with a damaged log", "replica", "        if self.is_damaged:\n            return\n        is_same", "        is_same", "                self._follow_step(f.Unfollowed())  # its durable end would say what is not so\n", "                pass\n"),
    of("asks once where logs part, and believes the fetch", "follower", "do_agree = log.log_end == log.log_start or log.last_epoch == self._found_epoch", "do_agree = True", "            case Diverged() if self.phase is Phase.FETCHING:\n                self.phase = Phase.ASKING\n                return self._ask()\n", ""),
    of("asks in who would undo a trim", "insync", "and follower.log_start >= least_start", ""),
    of("cuts below the leader's log start", "follower", "if cut < message.log_start:", "if False:"),
    of("commits with too few in sync", "leader", "elif len(in_sync.members) >= self.min_insync_replicas:", "elif True:", seed=22),
)  # fmt: skip


@contextmanager
def applied(name: str | None) -> Iterator[dict[str, Any]]:
    """What a cluster takes to make this mistake; nothing for None."""
    if name is None:
        yield {}
        return
    [mutant] = [mutant for mutant in (*MUTANTS, *NOT_FOUND) if mutant.name == name]
    made = _made(mutant)
    before = tests.sim.broker.Replica
    tests.sim.broker.Replica = made["replica"].Replica  # type: ignore[misc]
    try:
        yield {
            "cores": SimpleNamespace(leader=made["leader"], follower=made["follower"]),
            "catalog": made["catalog"].Catalog,
        }
    finally:
        tests.sim.broker.Replica = before  # type: ignore[misc]


def found_by(mutant: Mutant, seeds: int) -> str:
    """Which seed finds it, and how; empty: none of so many."""
    with applied(mutant.name) as options:
        for seed in (mutant.seed, *(seed for seed in range(seeds) if seed != mutant.seed)):
            _, failure = play(seed, **options)
            if failure:
                return f"seed {seed}: {failure[:110]}"
    return ""


def _made(mutant: Mutant) -> dict[str, ModuleType]:
    made = dict(MODULES)
    text = Path(MODULES[mutant.file].__file__ or "").read_text()
    for before, after in mutant.changes:
        assert text.count(before) == 1, f"{mutant.name}: {before!r} stands there {text.count(before)} times"
        text = text.replace(before, after)
    made[mutant.file] = _executed(mutant.file, text)
    if mutant.file in ("insync", "trims"):  # the leader uses them by name
        made["leader"] = _executed("leader", Path(MODULES["leader"].__file__ or "").read_text())
        made["leader"].InSync = made["insync"].InSync  # type: ignore[attr-defined]
        made["leader"].Trims = made["trims"].Trims  # type: ignore[attr-defined]
    return made


def _executed(name: str, text: str) -> ModuleType:
    module = ModuleType(f"tests.sim.mutated.{name}")
    sys.modules[module.__name__] = module  # dataclasses look themselves up
    exec(compile(text, f"<mutated {name}>", "exec"), module.__dict__)
    return module
