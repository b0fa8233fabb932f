"""The journal's own room: without a free byte on the disk it is written, replaced and opened; no node ends for that.

Method: a disk of exactly as many bytes as are used; the power is cut at every step.
"""

from __future__ import annotations

import itertools

import pytest

from broker.api.errors import DiskFull, from_problem
from broker.raft.core import first_entries
from broker.raft.journal import MARKS_BYTES, Base, Journal
from broker.raft.journal_files import KEPT_BYTES
from tests.support.simdisk import MODES, Crashed, SimDisk
from tests.unit.raft.group import Group

PATH = "/raft/raft.log"
ROOM = KEPT_BYTES + 4_000


def made(disk: SimDisk | None = None) -> tuple[SimDisk, Journal]:
    """One that has its room, on a disk that has nothing else."""
    disk = disk or SimDisk()
    disk.makedirs("/raft")
    Journal.create(disk, PATH, Base(node_id="a@a", cluster_id="x"), first_entries(("a@a",))).close()
    journal = Journal.open(disk, PATH, room_bytes=ROOM)
    disk.bytes_max = disk.used_bytes
    return disk, journal


def add(journal: Journal, count: int) -> None:
    for _ in range(count):
        journal.add(b"\x00" + b"x" * 30, journal.entries[-1][1] + 1, 4)
        journal.sync()


def snapshot(journal: Journal) -> bool:
    kept = journal.entries[-2:]
    is_done = journal.renew({"state": kept[-1][1]}, ("a@a",), kept)
    if is_done:
        journal.entries = kept
    return is_done


def test_entries_marks_snapshots_and_starts_need_no_free_byte() -> None:
    disk, journal = made()
    for _ in range(10):
        while not journal.is_crowded:
            assert journal.makes_room(31)
            add(journal, 1)
            journal.setCurrentTerm(journal.term + 1, "b@b")
        assert snapshot(journal)
        free = disk.bytes_max
        for mode in MODES:
            found = disk.after_crash(mode)
            found.bytes_max = found.used_bytes
            again = Journal.open(found, PATH, room_bytes=ROOM)
            assert (again.entries, again.term, again.base.snapshot) == (
                journal.entries,
                journal.term,
                journal.base.snapshot,
            )
            assert snapshot(again), "with the spare file that there is"
        assert disk.used_bytes == free
    assert disk.size(f"{PATH}.marks") == MARKS_BYTES


def test_marks_go_round_and_hide_no_damage() -> None:
    """J3: after the file of marks has begun anew the newest one is still found."""
    disk, journal = made()
    disk.bytes_max = None
    add(journal, MARKS_BYTES // 16 + 7)
    again = Journal.open(disk.after_crash("lost"), PATH, room_bytes=ROOM)
    assert again.entries == journal.entries
    assert again._marks_end == journal._marks_end < 200
    assert again._synced == journal._synced


def test_what_does_not_fit_is_refused_before_it_is_written_and_goes_on_with_room() -> None:
    disk, journal = made()
    assert journal.makes_room(1_000)
    assert not journal.makes_room(2 * KEPT_BYTES)
    assert journal.makes_room(KEPT_BYTES * 3 // 4)
    assert not journal.makes_room(KEPT_BYTES * 3 // 4, grows=True), "what grows leaves half of the room"
    while journal.makes_room(39):
        add(journal, 1)
    for term in range(100):  # nobody can refuse an election
        journal.setCurrentTerm(10 + term, None)
    journal.sync()
    assert journal.failure is None
    disk.bytes_max = None
    assert journal.makes_room(100_000)
    add(journal, 2_000)
    assert Journal.open(disk.after_crash("lost"), PATH, room_bytes=ROOM).entries == journal.entries


def test_a_power_cut_at_any_step_of_a_replacement_leaves_the_old_file_or_the_new_one() -> None:
    """K1 to K3: and whichever it is, it goes on on a full disk, by the other file, which is not its own other name."""
    for step in itertools.count(1):
        disk, journal = made(SimDisk(seed=step))
        add(journal, 20)
        before = list(journal.entries)
        disk.crash_at = disk.steps + step
        try:
            assert snapshot(journal)
            add(journal, 3)
        except Crashed:
            pass
        else:
            break
        for mode in MODES:
            found = disk.after_crash(mode, seed=step)
            found.bytes_max = found.used_bytes
            again = Journal.open(found, PATH, room_bytes=ROOM)
            entries = list(again.entries)
            assert entries[-1][1] >= before[-1][1], "what was synced is there"
            spare = found.names.get(f"{PATH}.spare")
            assert spare is not found.names[PATH], "K3"
            add(again, 5)
            entries = list(again.entries)
            if snapshot(again):
                entries = entries[-2:]
            add(again, 2)
            last = Journal.open(found.after_crash("lost"), PATH, room_bytes=ROOM)
            assert last.entries == again.entries
            assert [entry[1] for entry in last.entries][: len(entries)] == [entry[1] for entry in entries]
    assert step > 8


def test_a_disk_without_links_replaces_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, journal = made()
    disk.fail("link", 1)  # EPERM
    disk.bytes_max = None
    add(journal, 3)
    assert snapshot(journal)
    assert Journal.open(disk.after_crash("lost"), PATH, room_bytes=ROOM).entries == journal.entries
    assert disk.exists(f"{PATH}.spare"), "there was room for another one"


def full(group: Group) -> None:
    for disk in group.disks.values():
        disk.bytes_max = disk.used_bytes


def create(group: Group, name: str, number: int) -> dict[str, object]:
    results: list[object] = []
    command = {"v": 1, "kind": "register_producer", "name": f"p{number}".ljust(120, "x"), "request_id": f"r{number}"}
    group.nodes[name].submit(command, results.append)
    for _ in range(4):
        group.turn()
    [result] = results
    assert isinstance(result, dict)
    return result


def test_a_group_on_full_disks_takes_what_makes_room_after_what_grows_is_refused() -> None:
    group = Group("abc", room_bytes=ROOM)
    group.elect("a")
    full(group)
    for number in itertools.count():
        result = create(group, "a", number)
        if "error" in result:
            break
    assert isinstance(from_problem(result["error"]), DiskFull)
    assert number > 100, "snapshots made room for many"
    done: list[object] = []
    for number in range(200):  # snapshots make room for these, again and again
        command = {"v": 1, "kind": "forget_deleted", "incarnations": [], "request_id": f"d{number}"}
        group.nodes["a"].submit(command, done.append)
        for _ in range(3):
            group.turn()
    assert len(done) == 200
    assert all(isinstance(one, dict) and "ok" in one for one in done)
    assert all(node.core.failure is None for node in group.nodes.values())
    for name in "abc":
        group.disks[name] = group.disks[name].after_kill()
        group.disks[name].bytes_max = group.disks[name].used_bytes
        group.start(name)
    group.elect("b")
    group.turn()
    assert len({frozenset(group.has(name)) for name in "abc"}) == 1


def test_a_follower_without_room_takes_what_fits_and_the_rest_when_there_is_room() -> None:
    group = Group("abc", room_bytes=ROOM)
    group.elect("a")
    group.disks["c"].bytes_max = group.disks["c"].used_bytes
    group.nodes["c"].core._snapshots._pause = 1 << 30  # no snapshot makes room either
    for number in range(400):
        create(group, "a", number)
    assert group.nodes["c"].core.failure is None
    assert 100 < len(group.has("c")) < 400 == len(group.has("a"))
    group.disks["c"].bytes_max = None
    for _ in range(20):
        group.turn()
    assert group.has("c") == group.has("a") == group.has("b")
