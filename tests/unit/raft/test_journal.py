"""The Raft journal: what was synced is there or is missed, what was not may be torn, and an error ends it."""

from __future__ import annotations

import errno

import pytest

from broker.api.errors import CorruptLog, StorageFailed
from broker.raft.core import first_entries
from broker.raft.journal import Base, Journal
from broker.raft.node import open_journal
from tests.sim.raft.mutants import mutated
from tests.support.simdisk import SimDisk

PATH = "/raft/raft.log"


def made(entries: int = 3, *, synced: bool = True) -> tuple[SimDisk, Journal]:
    disk = SimDisk()
    disk.makedirs("/raft")
    journal = Journal.create(disk, PATH, Base(node_id="a@a", cluster_id="x"), first_entries(("a@a",)))
    journal.setCurrentTerm(4, "b@b")
    for index in range(3, 3 + entries):
        journal.add(b"\x00{}", index, 4)
    if synced:
        journal.sync()
    return disk, journal


def test_what_was_synced_is_read_again_also_after_a_power_cut() -> None:
    disk, journal = made()
    again = Journal.open(disk.after_crash("lost"), PATH)
    assert again.entries == journal.entries
    assert (again.term, again.vote, again.base.node_id) == (4, "b@b", "a@a")


def test_a_cut_and_a_snapshot_stay() -> None:
    disk, journal = made()
    journal.deleteEntriesFrom(4)
    journal.add(b"\x00other", 5, 6)
    journal.sync()
    assert journal.renew({"state": 1}, ("a@a", "c@c"), journal.entries[2:4])
    journal.entries = journal.entries[2:4]
    journal.add(b"\x00more", 5, 6)
    journal.sync()
    again = Journal.open(disk.after_crash("lost"), PATH)
    assert again.base.snapshot == {"state": 1}
    assert again.base.voters == ("a@a", "c@c")
    assert [entry[1] for entry in again.entries] == [3, 4, 5]
    assert again.commit_index == 4


def test_any_flipped_bit_of_what_was_synced_is_damage() -> None:
    """J3: of the last record too, which would look like a torn one."""
    disk, _ = made(1)
    for bit in range(8 * disk.size(PATH)):
        damaged = disk.after_kill()
        damaged.flip(PATH, bit)
        with pytest.raises(CorruptLog):
            Journal.open(damaged, PATH)
    damaged = disk.after_kill()
    damaged.flip(PATH, 8 * disk.size(PATH) - 9)
    with mutated("torn_whatever"):
        assert len(Journal.open(damaged, PATH).entries) == 2, "without marks an entry is gone unnoticed"


def test_a_file_that_was_cut_is_damage_and_gives_another_id() -> None:
    disk, _ = made()
    for size in range(disk.size(PATH)):
        shorter = disk.after_kill()
        del shorter.names[PATH].content[size:]
        with pytest.raises(CorruptLog):
            Journal.open(shorter, PATH)
    journal, is_sound = open_journal(shorter, PATH, new_id=lambda: "new@a", cluster_id="x")
    assert not is_sound
    assert journal.base.node_id == "new@a"
    assert journal.base.voters == ()
    assert shorter.exists(f"{PATH}.damaged")


def test_marks_of_a_file_that_is_gone_say_nothing_of_the_next_one() -> None:
    """Both count their generations from 1, and the next one is shorter at first."""
    disk, _ = made(60)
    disk.flip(PATH, 100)
    fresh, is_sound = open_journal(disk, PATH, new_id=lambda: "new@a", cluster_id="x")
    assert not is_sound
    fresh.add(b"\x00{}", 1, 4)
    fresh.sync()
    again, is_sound = open_journal(disk.after_kill(), PATH, new_id=lambda: "newer@a", cluster_id="x")
    assert is_sound
    assert (again.base.node_id, again.entries) == ("new@a", fresh.entries)


def test_an_older_copy_of_the_file_alone_is_damage() -> None:
    """J7: put back from a backup, before a snapshot and after it. It would deny what it has acknowledged since."""
    disk, journal = made()
    copies = [disk.read_file(PATH)]
    assert journal.renew({"state": 1}, ("a@a",), journal.entries[2:4])
    journal.entries = journal.entries[2:4]
    for index in range(5, 8):
        journal.add(b"\x00{}", index, 4)
        journal.sync()
        copies.append(disk.read_file(PATH))
    assert Journal.open(disk.after_kill(), PATH).entries == journal.entries
    for copy in copies[:-1]:
        restored = disk.after_kill()
        restored.replace_file(PATH, copy)
        with pytest.raises(CorruptLog):
            Journal.open(restored, PATH)


def test_what_was_not_synced_may_be_torn_anywhere() -> None:
    disk, journal = made(synced=False)
    for seed in range(40):
        for mode in ("torn", "zeros", "lost", "kept", "reordered"):
            again = Journal.open(disk.after_crash(mode, seed=seed), PATH)  # type: ignore[arg-type]
            assert again.entries == journal.entries[: len(again.entries)]
            assert len(again.entries) >= 2


def test_after_a_failed_sync_nothing_is_written_and_the_next_start_trusts_no_page() -> None:
    """J2, J6: Linux shows the pages that it did not write; a later sync of the same file says nothing of them."""
    disk, journal = made(1)
    journal.add(b"\x00{}", 4, 4)
    disk.fail("sync", errno.EIO)
    with pytest.raises(StorageFailed):
        journal.sync()
    for call in (journal.sync, lambda: journal.add(b"\x00{}", 5, 4), lambda: journal.setCurrentTerm(9, None)):
        with pytest.raises(StorageFailed):
            call()
    disk = disk.after_kill()
    found = Journal.open(disk, PATH).entries
    assert Journal.open(disk.after_crash("lost"), PATH).entries == found


def test_committed_entries_are_not_cut() -> None:
    _, journal = made()
    journal.setRaftCommitIndex(4)
    with pytest.raises(AssertionError, match="J4"):
        journal.deleteEntriesFrom(3)


def test_without_room_for_a_snapshot_the_old_file_goes_on() -> None:
    disk, journal = made()
    disk.bytes_max = disk.used_bytes + 30
    assert journal.renew({"state": "x" * 100}, ("a@a",), journal.entries[1:]) is False
    disk.bytes_max = None
    journal.add(b"\x00{}", 6, 4)
    journal.sync()
    assert Journal.open(disk.after_crash("lost"), PATH).entries == journal.entries


def test_term_and_vote_outlive_a_snapshot() -> None:
    """Or a voter would vote twice in a term: their records go with the file that the snapshot replaces."""
    disk, journal = made()
    journal.setCurrentTerm(9, "c@c")
    assert journal.renew({"state": 1}, ("a@a",), journal.entries[1:])
    again = Journal.open(disk.after_crash("lost"), PATH)
    assert (again.term, again.vote) == (9, "c@c")


@pytest.mark.parametrize(
    ("call", "error", "path"),
    [("sync_dir", errno.ENOSPC, "/raft"), ("sync_dir", errno.EIO, "/raft"), ("write", errno.EIO, PATH)],
)
def test_after_a_snapshot_that_failed_nobody_knows_which_file_is_there(call: str, error: int, path: str) -> None:
    """J2. The new file may have the name by then: what is written into the old one would be read by nobody."""
    disk, journal = made()
    disk.fail(call, error, path=path)
    with pytest.raises(StorageFailed):
        journal.renew({"state": "x" * 100}, ("a@a",), journal.entries[1:])
    with pytest.raises(StorageFailed):
        journal.add(b"\x00{}", 6, 4)
    with pytest.raises(StorageFailed):
        journal.sync()


def test_a_torn_mark_does_not_hide_those_after_it() -> None:
    """J3: without the later ones damage would look like the torn end of a write."""
    for lost in range(1, 20):
        disk, _ = made()
        marks = disk.open(f"{PATH}.marks")
        marks.truncate(marks.size() - lost)
        marks.sync()
        journal = Journal.open(disk, PATH)
        for index in (6, 7):
            journal.add(b"\x00{}", index, 4)
            journal.sync()
        disk.flip(PATH, 8 * (disk.size(PATH) - 1))
        with pytest.raises(CorruptLog):
            Journal.open(disk.after_crash("lost"), PATH)
