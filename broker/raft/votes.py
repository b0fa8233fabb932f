"""Who votes, by the log of a journal (`core.A7`).

It is asked several times a second, and a log has thousands of entries: each is looked at once.

E1  What was looked at is known by its last entry. A log that has the very same entry at the same place begins with the
    same ones; one that was cut, replaced or begun anew has not, and is looked at from its start.
"""

from __future__ import annotations

from broker.raft.journal import Entry, Journal
from broker.raft.messages import MEMBERSHIP, membership


class Votes:
    """See the module."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._changes: list[tuple[int, str, str]] = []  # index, add or rem, whose
        self._count = 0
        self._last: Entry | None = None

    def at(self, index: int) -> tuple[str, ...]:
        """The ids of the voters as of an entry."""
        self._look()
        journal = self._journal
        voters = set(journal.base.voters)
        began = journal.entries[1][1] if journal.base.snapshot is not None else 0
        for at, change, node_id in self._changes:
            if began < at <= index:
                (voters.add if change == "add" else voters.discard)(node_id)
        return tuple(sorted(voters))

    def _look(self) -> None:
        entries, count = self._journal.entries, self._count
        if count > len(entries) or (count and entries[count - 1] is not self._last):  # E1
            self._changes, count = [], 0
        for command, at, _ in entries[count:]:
            if command[:1] == MEMBERSHIP and (change := membership(command)) is not None:
                self._changes.append((at, change[0], change[1]))
        self._count, self._last = len(entries), entries[-1] if entries else None
