"""Who votes is what the whole log says, whatever became of it since it was asked last. An entry is looked at once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.raft import votes
from broker.raft.core import voters_in
from broker.raft.journal import Base, Entry
from broker.raft.messages import MEMBERSHIP, REGULAR
from broker.raft.votes import Votes


class Log:
    """A journal of nothing but entries."""

    def __init__(self) -> None:
        self.base, self.entries = Base(node_id="a", cluster_id="x", voters=("a",)), list[Entry]()

    def add(self, command: bytes, term: int = 1) -> None:
        self.entries.append((command, self.entries[-1][1] + 1 if self.entries else 1, term))


def change(kind: str, node_id: str) -> bytes:
    return MEMBERSHIP + f'["{kind}","{node_id}"]'.encode()


@pytest.mark.parametrize("seed", range(50))
def test_the_answer_is_that_of_the_whole_log(seed: int) -> None:
    """E1: it is cut and written on, loses its beginning to a snapshot, or is another one."""
    luck, log = random.Random(seed), Log()
    journal: Any = log
    asked = Votes(journal)
    for _ in range(60):
        match luck.randrange(8):
            case 0 if len(log.entries) > 3:
                del log.entries[luck.randrange(2, len(log.entries)) :]
            case 1 if len(log.entries) > 3:
                first = luck.randrange(len(log.entries) - 1)
                voters = voters_in(journal, log.entries[first + 1][1])
                log.base = Base(node_id="a", cluster_id="x", voters=voters, snapshot={})
                log.entries = log.entries[first:] if luck.random() < 0.5 else log.entries
                del log.entries[: 0 if log.entries[0][1] > first + 1 else first]
            case 2 if log.entries:
                log.entries = [log.entries[-1]]
                log.base = Base(node_id="a", cluster_id="x", voters=("b",))
            case _:
                for _ in range(luck.randrange(1, 4)):
                    node_id = luck.choice("abcde")
                    log.add(luck.choice([REGULAR + b"{}", change("add", node_id), change("rem", node_id)]))
        if len(log.entries) < 2:
            log.add(REGULAR)
            log.add(REGULAR)
        for _ in range(luck.randrange(3)):
            index = luck.randrange(log.entries[-1][1] + 2)
            assert asked.at(index) == voters_in(journal, index)


def test_an_entry_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log, looked = Log(), list[bytes]()
    membership = votes.membership
    monkeypatch.setattr(votes, "membership", lambda command: (looked.append(command), membership(command))[1])
    journal: Any = log
    asked = Votes(journal)
    for each in "bcd":
        log.add(change("add", each))
        for _ in range(3):
            log.add(REGULAR + b"{}")
            asked.at(log.entries[-1][1])
    assert asked.at(1_000) == ("a", "b", "c", "d")
    assert looked == [change("add", each) for each in "bcd"]
