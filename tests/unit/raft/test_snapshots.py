"""Snapshots of the catalog: of which moment they are, and what is not put in the place of a log."""

from __future__ import annotations

from typing import Any

import pytest

from broker.raft.core import first_entries
from broker.raft.journal import Base, Entry, Journal, decode_transfer
from broker.raft.snapshots import _PIECE, PIECE_BYTES, Chunk, Snapshots
from tests.support.simdisk import SimDisk

PATH = "/raft/raft.log"


def made(last: int) -> tuple[Journal, Snapshots]:
    """A log up to `last`, and what takes snapshots of it. Voters are named after `index`."""
    disk = SimDisk()
    disk.makedirs("/raft")
    journal = Journal.create(disk, PATH, Base(node_id="a@a", cluster_id="x"), first_entries(("a@a",)))
    journal.setCurrentTerm(4, None)
    for index in range(3, last + 1):
        journal.add(b"\x00{}", index, 4)
    journal.sync()
    state = {"applied": "by now"}
    snapshots = Snapshots(
        journal, take=lambda: state, put=lambda _: None, voters_at=lambda index: (f"of {index}",), others=list
    )
    return journal, snapshots


def pieces_of(last: int, *, state: Any = None, term: int = 4) -> list[Chunk]:
    """As another broker sends a snapshot that ends at `last`."""
    _, source = made(last)
    entries: list[Entry] = [(b"\x00{}", last - 1, term), (b"\x00{}", last, term)]
    assert source._journal.renew(state or {"ends": last}, ("a@a", "b@b"), entries)
    source._journal.entries = entries
    found = []
    while not found or not found[-1][2]:
        piece = source.getTransmissionData("to")
        assert piece is not None
        found.append(piece)
    return found


def arrive(snapshots: Snapshots, pieces: list[Chunk]) -> bool:
    return [snapshots.setTransmissionData(piece) for piece in pieces][-1]


def test_one_is_of_the_voters_that_there_were() -> None:
    """Later ones may not be committed, and may never be: nobody could take them out again."""
    journal, snapshots = made(9)
    snapshots.serialize(None, 4)
    assert journal.base.voters == ("of 5",)
    assert [index for _, index, _ in journal.entries] == [4, 5, 6, 7, 8, 9]


def test_what_is_sent_is_what_the_journal_begins_with_and_not_what_is_applied_by_now() -> None:
    """The receiver applies the entries after it. Those that the state holds already would be applied twice."""
    [(data, _, _)] = pieces_of(6)
    snapshot, voters, prev, last = decode_transfer(data[_PIECE.size :])
    assert (snapshot, voters, prev[1], last[1]) == ({"ends": 6}, ("a@a", "b@b"), 5, 6)


def test_one_that_goes_further_than_the_log_is_installed() -> None:
    journal, snapshots = made(5)
    assert arrive(snapshots, pieces_of(8))
    assert (journal.base.snapshot, journal.commit_index) == ({"ends": 8}, 8)
    assert [index for _, index, _ in journal.entries] == [7, 8]


def test_one_that_is_older_than_the_own_one_is_not_installed() -> None:
    """S1. The entry that it ends with is not in this log any more."""
    journal, snapshots = made(30)
    journal.setRaftCommitIndex(20)
    snapshots.serialize(None, 19)
    before = list(journal.entries)
    assert not arrive(snapshots, pieces_of(10))
    assert journal.entries == before
    assert journal.base.snapshot == {"applied": "by now"}


def test_one_that_ends_within_this_log_is_not_installed() -> None:
    """S2. The entries behind it were acknowledged, though nobody has said here that they are committed."""
    journal, snapshots = made(12)
    journal.setRaftCommitIndex(5)
    assert not arrive(snapshots, pieces_of(9))
    assert [index for _, index, _ in journal.entries] == list(range(1, 13))


def test_one_that_ends_with_an_entry_of_another_term_takes_the_place_of_the_log() -> None:
    journal, snapshots = made(12)
    journal.setRaftCommitIndex(5)
    assert arrive(snapshots, pieces_of(9, term=7))
    assert [(index, term) for _, index, term in journal.entries] == [(8, 7), (9, 7)]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_that_was_damaged_on_its_way_is_not_installed(at: int) -> None:
    pieces = pieces_of(8, state={"text": "x" * (2 * PIECE_BYTES)})
    assert len(pieces) == 3
    data = bytearray(pieces[at][0])
    data[-100] ^= 1
    journal, snapshots = made(5)
    assert not arrive(snapshots, [*pieces[:at], (bytes(data), *pieces[at][1:]), *pieces[at + 1 :]])
    assert journal.base.snapshot is None
    assert arrive(snapshots, pieces)


def test_pieces_of_two_do_not_make_one() -> None:
    """The two snapshots have the same length, so lengths tell nothing."""
    one, other = (pieces_of(8, state={"text": letter * (2 * PIECE_BYTES)}) for letter in "xy")
    for mixed in ([one[0], other[1], one[2]], [one[0], one[1], other[2]], [one[0], one[2]], [one[1], one[2]]):
        journal, snapshots = made(5)
        assert not arrive(snapshots, mixed)
        assert journal.base.snapshot is None
    assert arrive(snapshots, [one[0], other[0], *other[1:]])
