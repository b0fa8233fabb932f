"""Mistakes in the adapter: each takes one rule of `broker/raft` out. Within so many seeds each is found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import pysyncobj.syncobj as library

from broker.metadata.catalog import Catalog
from broker.raft import core, journal, node
from broker.raft.core import Core
from broker.raft.journal import Base, Journal
from broker.raft.snapshots import Snapshots


class Mutant(NamedTuple):
    """`seeds`: it is found within so many, from 0 on; `known`: by this one. `what`: is taken out."""

    seeds: int
    known: int
    what: str
    patches: Callable[[], list[Any]]


def _vote_in_memory() -> list[Any]:
    def set_term(self: Journal, term: int, vote: str | None) -> None:
        self.term, self.vote = term, vote

    return [patch.object(Journal, "setCurrentTerm", set_term)]


def _unsynced() -> list[Any]:
    def outgoing(self: Core, message: dict[str, Any]) -> dict[str, Any] | None:
        with patch.object(Journal, "sync", lambda _: None):
            return sent(self, message)

    sent = Core.outgoing
    return [patch.object(Core, "outgoing", outgoing)]


def _no_append_filter() -> list[Any]:
    def append(self: Core, sender: Any, message: dict[str, Any]) -> None:
        self._deliver(sender, message)

    return [patch.object(Core, "_append", append), patch.object(Journal, "deleteEntriesFrom", _cut_anything)]


def _cut_anything(self: Journal, at: int) -> None:
    index = self.entries[at][1]
    self._write(journal.encode(journal.CUT, index.to_bytes(8, "little")))
    del self.entries[at:]


def _late_resets() -> list[Any]:
    """The filter of appends keeps the follower from what a reset leads to; both are taken out."""

    def reply(self: Core, sender: Any, message: dict[str, Any]) -> None:
        if message["term"] == self.raftCurrentTerm and self._SyncObj__raftMatchIndex.get(sender) is not None:
            self._deliver(sender, message)

    return [*_no_append_filter(), patch.object(Core, "_reply", reply)]


def _replies_of_any_term() -> list[Any]:
    def reply(self: Core, sender: Any, message: dict[str, Any]) -> None:
        received(self, sender, {**message, "term": self.raftCurrentTerm})

    received = Core._reply
    return [patch.object(Core, "_reply", reply)]


def _commits_its_own_tail() -> list[Any]:
    def lowest(one: int, other: int) -> int:
        return one

    def append(self: Core, sender: Any, message: dict[str, Any]) -> None:
        if message["term"] >= self.raftCurrentTerm and "prevLogIdx" not in message:
            self._deliver(sender, message)
        else:
            received(self, sender, message)

    received = Core._append
    return [patch.object(core, "min", lowest, create=True), patch.object(Core, "_append", append)]


def _votes_twice() -> list[Any]:
    class Never(set[Any]):
        def __contains__(self, _: object) -> bool:
            return False

    def receive(self: Core, sender: Any, message: dict[str, Any]) -> None:
        self._votes = Never()
        received(self, sender, message)

    received = Core._receive
    return [patch.object(Core, "_receive", receive)]


def _old_id() -> list[Any]:
    """A voter that has lost its journal acts under its old id, with all its rights."""

    def open_journal(disk: Any, path: str, *, cluster_id: str, **options: Any) -> tuple[Journal, bool]:
        found, is_sound = opened(disk, path, cluster_id=cluster_id, **options)
        if not is_sound:
            name = found.base.node_id.rpartition("@")[2]
            ids = tuple(f"{each}1@{each}" for each in "abc")
            found = node.form(disk, path, node_id=f"{name}1@{name}", voters=ids, cluster_id=cluster_id)
        return found, is_sound

    opened = node.open_journal
    return [patch.object(node, "open_journal", open_journal)]


def _torn_whatever() -> list[Any]:
    return [patch.object(journal, "_marks_of", lambda data: [])]


def _any_snapshot() -> list[Any]:
    def install(self: Snapshots, data: bytes) -> bool:
        with patch.object(self._journal, "commit_index", 0), patch.object(Journal, "entry_at", lambda *_: None):
            is_done = installed(self, data)
        if is_done:
            self._journal.commit_index = self._journal.entries[1][1]
        return is_done

    installed = Snapshots._install
    return [patch.object(Snapshots, "_install", install)]


def _journal_first_then_snapshot() -> list[Any]:
    """Head of the log and snapshot are two files, written one after the other, as pysyncobj has them."""

    def serialize(self: Snapshots, data: Any, id: int) -> None:
        own = self._journal
        kept = own.base.snapshot, own.base.voters
        entries = [entry for entry in own.entries if entry[1] >= id]
        if own.renew(*kept, entries) and own.renew(self._take(), self._voters_at(id + 1), entries):
            own.entries = entries
            self._state = library.SERIALIZER_STATE.SUCCESS
        self._index = id

    return [patch.object(Snapshots, "serialize", serialize)]


def _trusts_the_cache() -> list[Any]:
    """Entries beyond the last mark are taken as they are read, and synced again (J6)."""

    def open_(cls: type[Journal], disk: Any, path: str, **options: Any) -> Journal:
        def replace(self: Journal, base: Base, entries: Any) -> None:
            self._attach()
            data = disk.read_file(path)
            whole = journal.decode(data)[1]
            self._files.write(bytes(self._files.size - whole), whole)
            self._end, self._synced = whole, 0
            self.sync()

        with patch.object(Journal, "_replace", replace):
            return opened(disk, path, **options)

    opened = Journal.open
    return [patch.object(Journal, "open", classmethod(open_))]


def _forgets_results() -> list[Any]:
    """Nothing is known of the requests that came before a snapshot."""

    def restore(cls: type[Catalog], snapshot: dict[str, Any]) -> Catalog:
        return restored({**snapshot, "requests": []})

    restored = Catalog.restore
    return [patch.object(Catalog, "restore", classmethod(restore))]


def _counts_on() -> list[Any]:
    """A broker that begins with a snapshot has another counter than one that has applied every command."""

    def restore(cls: type[Catalog], snapshot: dict[str, Any]) -> Catalog:
        found = restored(snapshot)
        found.cluster.epoch_last += bool(found.cluster.partitions)
        return found

    restored = Catalog.restore
    return [patch.object(Catalog, "restore", classmethod(restore))]


def _goes_on_after_an_error() -> list[Any]:
    def fail(self: Journal, error: OSError) -> None:
        """Swallowed."""

    return [patch.object(Journal, "_fail", fail)]


def _builds_anew() -> list[Any]:
    return [patch.object(Core, "catch_up", lambda self: None)]


def _voters_as_configured() -> list[Any]:
    """The voters are those that a broker was started with, not those of its log."""
    ids = tuple(f"{each}1@{each}" for each in "abc")
    return [patch.object(Core, "voters_at", lambda self, index: ids)]


def _sends_when_deposed() -> list[Any]:
    """The first form of A13: what waits for a tick goes out with it, whoever leads by then, and of which term."""

    def tick(self: Core, wait_s: float = 0.0) -> None:
        if self.failure is None and self._is_due:
            self._is_due = False
            try:
                self._SyncObj__sendAppendEntries()
            except Exception as error:
                self.fail(error)
        ticked(self, wait_s)

    ticked = Core.tick
    return [patch.object(Core, "tick", tick)]


def _one_step_back() -> list[Any]:
    """A follower with a tail of its own is asked about one entry of it after the other."""
    return [patch.object(Core, "_part", lambda self, node, message, own: self._deliver(node, message))]


MUTANTS: dict[str, Mutant] = {
    "unsynced_sends": Mutant(10, 0, "the sync before each message (A1)", _unsynced),
    "vote_not_synced": Mutant(160, 132, "term and vote on the disk (A1)", _vote_in_memory),
    "no_append_filter": Mutant(30, 4, "the filter of appends (A2)", _no_append_filter),
    "late_resets": Mutant(30, 6, "resets below the match are dropped (A5); and the filter of appends", _late_resets),
    "commit_own_tail": Mutant(40, 2, "a commit index counts as far as a message proves (A3)", _commits_its_own_tail),
    "wiped_keeps_id": Mutant(10, 0, "a lost journal loses its id (J5, N3)", _old_id),
    "two_files": Mutant(20, 12, "head of the log and snapshot are one file", _journal_first_then_snapshot),
    "trusts_the_cache": Mutant(
        100, 77, "what an fsync may have failed to write is written anew (J6)", _trusts_the_cache
    ),
    "errors_swallowed": Mutant(60, 40, "an error ends it (A9, J2)", _goes_on_after_an_error),
    "voters_as_configured": Mutant(10, 0, "voters are counted from the log (A7)", _voters_as_configured),
    "builds_anew_from_the_snapshot": Mutant(10, 1, "the catalog never goes back (N6)", _builds_anew),
    "sends_when_deposed": Mutant(120, 99, "what waits for a tick is sent by a leader alone (A13)", _sends_when_deposed),
    # Those of the catalog; scenarios find them.
    "forgets_results": Mutant(0, 0, "snapshots have the results of requests", _forgets_results),
    "counts_on_from_a_snapshot": Mutant(0, 0, "a snapshot is the catalog, and nothing more", _counts_on),
    # Luck seldom finds these; tests in tests/unit/raft play them.
    "replies_of_any_term": Mutant(0, 0, "replies of earlier terms are dropped (A4)", _replies_of_any_term),
    "votes_twice": Mutant(0, 0, "a voter counts once a term (A6)", _votes_twice),
    "one_step_back": Mutant(0, 0, "where logs part is found in a few round trips (A10)", _one_step_back),
    "torn_whatever": Mutant(0, 0, "marks: what was synced is not torn (J3)", _torn_whatever),
    "any_snapshot": Mutant(0, 0, "no snapshot takes acknowledged entries away (S1, S2)", _any_snapshot),
}
BY_LUCK = sorted(name for name, mutant in MUTANTS.items() if mutant.seeds)


@contextlib.contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """With this mistake, or without any."""
    with contextlib.ExitStack() as stack:
        for each in MUTANTS[name].patches() if name else []:
            stack.enter_context(each)
        yield
