"""`rescue begin` and `rescue join` on the folders of brokers: killed at each operation of the disk, called again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.api.errors import CorruptLog, DiskFull, InvalidRequest, LiftlogError, WrongFolder
from broker.control import membership, rescue
from broker.control.forming import Entered, Entrance, answer_to
from broker.control.identity import Identity
from broker.control.membership import FORMING, JOINING, MEMBER, Membership, group_of
from broker.metadata.catalog import Catalog
from broker.raft.core import REGULAR, first_entries, first_voters, voters_in
from broker.raft.journal import Base, Journal
from broker.raft.node import catalog_in
from tests.support.simdisk import Crashed, Mode, SimDisk

FOLDER = "/data"
LOG, FILE = f"{FOLDER}/raft.log", f"{FOLDER}/raft.json"
NAMED = tuple((name, f"{name}:1") for name in "abc")
FIRST = tuple(f"{name}.{name * 4}@{at}" for name, at in NAMED)
GROUP = group_of("x", FIRST)
DIGEST = GROUP.rpartition("/")[2]
KILLS: tuple[Mode | None, ...] = (None, "lost", "kept", "torn", "zeros")


def commands() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"kind": "form_cluster", "cluster_id": "x"}]
    for number, name in enumerate("abc"):
        named = {"broker_id": name, "incarnation": f"{name}s", "http": f"{name}:3", "grpc": f"{name}:2"}
        made.append({"kind": "register_broker", **named, "raft": FIRST[number]})
    create = {"name": "s", "incarnation": "i", "created_us": 1, "settings": {}, "replication_factor": 3}
    made.append({"kind": "create_stream", **create})
    return [{"v": 1, **command} for command in made]


def put_in(journal: Journal, *values: dict[str, Any]) -> None:
    for value in values:
        journal.add(REGULAR + json.dumps(value).encode(), journal.entries[-1][1] + 1, 3)
    journal.sync()


def member(*, snapshot: bool = False, voters: tuple[str, ...] = FIRST) -> SimDisk:
    """The folder of broker a, which was stopped. With a snapshot its journal does not say who the first voters were."""
    disk = SimDisk()
    disk.makedirs(FOLDER)
    journal = Journal.create(disk, LOG, Base(node_id=FIRST[0], cluster_id=GROUP), first_entries(voters))
    journal.setCurrentTerm(3, FIRST[1])
    put_in(journal, {"kind": "barrier"}, *commands()[: 3 if snapshot else None])
    if snapshot:
        kept = journal.entries[-2:]
        assert journal.renew(catalog_in(journal).snapshot(), voters, kept)
        journal.entries = kept
        put_in(journal, *commands()[3:])
    journal.close()
    membership.store(disk, FOLDER, Membership(state=MEMBER, node_id=FIRST[0], group=GROUP, first=FIRST))
    disk.sync_dir("/")
    return disk


def catalog_on(disk: SimDisk) -> tuple[Journal, Catalog]:
    journal = Journal.open(disk, LOG)
    journal.close()
    return journal, catalog_in(journal)


def killed(made: SimDisk, act: Callable[[SimDisk], object]) -> Iterator[SimDisk]:
    """The disk after a kill, and after each kind of power cut, at each operation of what is done."""
    for at in range(1, 200):
        disk = made.after_kill(crash_at=at)
        try:
            act(disk)
        except Crashed:
            pass
        else:
            assert at > 5, "so few operations"
            return
        for mode in KILLS:
            yield disk.after_kill() if mode is None else disk.after_crash(mode, seed=at)
    raise AssertionError("it never ends")


def started(disk: SimDisk, told: dict[str, Any] | None = None) -> Entered:
    """Broker a is started: broker c answers what it is told, or nobody does."""
    me = Identity(broker_id="a", cluster_id="x", address="a:1", bind="a:1", named=NAMED)
    entrance = Entrance(disk, FOLDER, me, clock=lambda: 0.0)

    class Alone:
        def __enter__(self) -> Alone:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def close(self) -> None:
            pass

        def ask(self, addresses: object, hello: Any, *, timeout_s: float) -> dict[str, Any]:
            assert told is None or hello["group"] in ("", told["group"]), "it is refused"
            return {"b:1": "no answer", "c:1": "no answer" if told is None else told}

        def wait(self, seconds: float) -> None:
            raise AssertionError("it waits")

    entrance._lobby = lambda bind: Alone()  # type: ignore[method-assign, assignment, return-value]
    entered = entrance.enter()
    entered.journal.close()
    return entered


def is_new(disk: SimDisk) -> bool:
    """B1: whether this is a broker of the new group; a start knows who is in the one or the other."""
    kept = disk.after_kill()
    entered = started(kept)
    catalog = catalog_in(entered.journal)
    if entered.member.group == GROUP:
        assert entered.member == Membership(state=MEMBER, node_id=FIRST[0], group=GROUP, first=FIRST)
        assert catalog.cluster.rescue is None
        return False
    assert entered.member.first == (entered.member.node_id,) == entered.journal.base.voters
    assert catalog.cluster.rescue is not None
    return True


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_rescue_begins_with_all_that_the_journal_has(snapshot: bool) -> None:
    disk = member(snapshot=snapshot)
    old = disk.read_file(LOG), disk.read_file(FILE)
    before, catalog = catalog_on(disk)
    found = rescue.survey(disk, FOLDER)
    assert (disk.read_file(LOG), disk.read_file(FILE)) == old, "a survey changes nothing"
    assert (found.broker_id, found.cluster_id, found.group, found.number) == ("a", "x", GROUP, 0)
    assert (found.voters, found.brokers, found.streams, found.partitions) == (("a", "b", "c"), ("a", "b", "c"), 1, 1)
    begun = rescue.begin(disk, FOLDER)
    journal, after = catalog_on(disk)
    assert after.cluster.rescue is not None
    assert begun.number == after.cluster.rescue.number == catalog.epoch_last + 1_000_000
    assert after.cluster.rescue.places == (("i", 0),)
    assert not any(info.is_live for info in after.brokers.values())
    assert after.streams == catalog.streams
    assert journal.base.voters == first_voters(journal.entries) == (journal.base.node_id,)
    assert journal.entries[0][1] == before.entries[-1][1] + 1, "B3"
    assert (journal.term, journal.vote) == (3, None)
    assert rescue.begin(disk, FOLDER) == begun, "called again"
    assert (disk.read_file(f"{LOG}.before-rescue-{DIGEST}"), disk.read_file(f"{FILE}.before-rescue-{DIGEST}")) == old


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_kill_at_any_operation_leaves_the_old_group_or_the_new_one(snapshot: bool) -> None:
    made = member(snapshot=snapshot)
    old, seen = made.read_file(LOG), set()
    for disk in killed(made, lambda disk: rescue.begin(disk, FOLDER)):
        seen.add(is_new(disk))
        rescue.begin(disk, FOLDER)
        assert is_new(disk)
        assert disk.read_file(f"{LOG}.before-rescue-{DIGEST}") == old, "B2"
        own = membership.load(disk, FOLDER)
        assert own is not None
        assert own.first == (own.node_id,)
    assert seen == {False, True}


@pytest.mark.parametrize("mode", ["lost", "kept"])
def test_what_was_said_to_be_done_outlives_a_power_cut(mode: Mode) -> None:
    disk = member()
    rescue.begin(disk, FOLDER)
    assert is_new(disk.after_crash(mode, seed=1))
    disk = member()
    rescue.leave(disk, FOLDER)
    assert not disk.after_crash(mode, seed=1).exists(LOG)


def test_a_full_disk_changes_nothing() -> None:
    disk = member()
    old = disk.read_file(LOG)
    disk.bytes_max = disk.used_bytes + 10
    with pytest.raises(DiskFull):
        rescue.begin(disk, FOLDER)
    assert disk.read_file(LOG) == old
    assert not is_new(disk)


def test_on_a_full_disk_nobody_forms_joins_or_leaves_and_each_may_once_there_is_room() -> None:
    """`raft.json` is replaced as a whole: the former one stands."""
    disk = member()
    before = disk.read_file(f"{FOLDER}/raft.json")
    disk.bytes_max = disk.used_bytes
    for state in (FORMING, MEMBER, JOINING):
        with pytest.raises(DiskFull):
            membership.store(disk, FOLDER, Membership(state=state, node_id="b.n@b:1", group="x/new"))
    with pytest.raises(DiskFull):
        rescue.leave(disk, FOLDER)
    assert disk.read_file(f"{FOLDER}/raft.json") == before
    assert not is_new(disk)
    new = SimDisk()
    new.makedirs(FOLDER)
    new.bytes_max = new.used_bytes
    with pytest.raises(DiskFull):
        membership.store(new, FOLDER, Membership(state=FORMING, node_id="b.n@b:1"))
    assert membership.load(new, FOLDER) is None
    disk.heal()
    assert rescue.leave(disk, FOLDER) == GROUP


def test_a_kill_at_any_operation_of_leaving_keeps_the_journal_somewhere() -> None:
    made = member(snapshot=True)
    old, seen = made.read_file(LOG), set()
    new = {"state": MEMBER, "group": "x/new", "first": ["c.n@c:1"], "voters": ["c.n@c:1"], "node_id": "c.n@c:1"}
    for disk in killed(made, lambda disk: rescue.leave(disk, FOLDER)):
        seen.add(disk.exists(LOG))
        if disk.exists(LOG):
            assert not is_new(disk)
        else:
            own = membership.load(disk, FOLDER)
            assert own is not None
            assert own.state == JOINING, "B5"
        rescue.leave(disk, FOLDER)
        assert not disk.exists(LOG)
        assert disk.read_file(f"{LOG}.before-rescue-{DIGEST}") == old, "B2"
        assert json.loads(disk.read_file(f"{FILE}.before-rescue-{DIGEST}"))["state"] == MEMBER, "B2"
        entered = started(disk, new)
        assert (entered.member.group, entered.member.first) == ("x/new", ("c.n@c:1",))
        assert entered.journal.base.node_id not in FIRST
    assert seen == {False, True}


def test_who_left_forms_no_group_though_all_others_are_about_to() -> None:
    """B5. Else two who left by mistake, and an empty folder, would be a new cluster without any stream."""
    disk = member()
    rescue.leave(disk, FOLDER)
    forming = {"state": "forming", "group": "", "first": [], "voters": [], "node_id": "c.f@c:1"}
    with pytest.raises(AssertionError, match="it waits"):
        started(disk, forming)
    again = membership.load(disk, FOLDER)
    assert again is not None
    assert again.state == JOINING


def test_a_majority_that_is_lost_amid_a_rescue_begins_another_one() -> None:
    disk = member()
    first = rescue.begin(disk, FOLDER)
    journal = Journal.open(disk, LOG)
    put_in(journal, *commands()[1:2])
    me = journal.base.node_id
    for voter in ("b.n@b:1", "c.n@c:1"):
        journal.add(b"\x02" + json.dumps(["add", voter]).encode(), journal.entries[-1][1] + 1, 4)
    journal.sync()
    journal.close()
    again = rescue.begin(disk, FOLDER)
    assert again.number > first.number
    assert again.group != first.group
    journal, catalog = catalog_on(disk)
    assert voters_in(journal, journal.entries[-1][1]) == (journal.base.node_id,) != (me,)
    assert catalog.cluster.rescue is not None
    assert not catalog.cluster.rescue.logs


def alone() -> SimDisk:
    disk = SimDisk()
    disk.makedirs(FOLDER)
    disk.replace_file(f"{FOLDER}/catalog.log", b"")
    return disk


def damaged() -> SimDisk:
    disk = member()
    disk.flip(LOG, 999)
    return disk


def removed() -> SimDisk:
    disk = member()
    journal = Journal.open(disk, LOG)
    gone = [{"kind": "delete_stream", "name": "s"}, {"kind": "fail_broker", "broker_id": "a", "registration": 1}]
    put_in(journal, *({"v": 1, **each} for each in [*gone, {"kind": "remove_broker", "broker_id": "a"}]))
    return disk


def unheard() -> SimDisk:
    disk = SimDisk()
    disk.makedirs(FOLDER)
    Journal.create(disk, LOG, Base(node_id=FIRST[0], cluster_id=GROUP)).close()
    return disk


def empty() -> SimDisk:
    disk = SimDisk()
    disk.makedirs(FOLDER)
    return disk


def begun_and_started() -> SimDisk:
    disk = member()
    rescue.begin(disk, FOLDER)
    journal = Journal.open(disk, LOG)
    put_in(journal, {"kind": "barrier"})
    return disk


@pytest.mark.parametrize(
    "made,kind,text",
    [
        (alone, WrongFolder, "is of a broker that is alone"),
        (empty, WrongFolder, r"has no raft\.log"),
        (damaged, CorruptLog, "damaged.* Begin with another"),
        (removed, WrongFolder, "broker a was removed"),
        (unheard, InvalidRequest, "has not heard of its group"),
        (begun_and_started, InvalidRequest, "broker a has the only vote of its group: it needs no other one"),
        (lambda: member(voters=FIRST[:1]), InvalidRequest, "has the only vote"),
    ],
    ids=["alone", "empty", "damaged", "removed", "unheard", "begun", "one voter"],
)
def test_a_folder_that_does_not_fit_is_refused_and_stays(
    made: Callable[[], SimDisk], kind: type[LiftlogError], text: str
) -> None:
    disk = made()
    names = disk.listdir(FOLDER)
    for call in (rescue.survey, rescue.begin):
        with pytest.raises(kind, match=text):
            call(disk, FOLDER)
    assert disk.listdir(FOLDER) == names


def test_who_is_of_no_group_or_is_the_new_one_leaves_nothing() -> None:
    with pytest.raises(InvalidRequest, match="is of no group"):
        rescue.leave(empty(), FOLDER)
    with pytest.raises(WrongFolder, match="is of a broker that is alone"):
        rescue.leave(alone(), FOLDER)
    disk = member()
    rescue.begin(disk, FOLDER)
    with pytest.raises(InvalidRequest, match="so a rescue was begun here"):
        rescue.leave(disk, FOLDER)


@pytest.mark.parametrize("has_file", [True, False])
def test_a_damaged_journal_is_left_behind_too(has_file: bool) -> None:
    disk = damaged()
    old = disk.read_file(LOG)
    if not has_file:
        disk.unlink(FILE)
    rescue.leave(disk, FOLDER)
    assert disk.read_file(f"{LOG}.before-rescue-{DIGEST if has_file else 'unknown'}") == old
    again = membership.load(disk, FOLDER)
    assert again is not None
    assert again.state == JOINING


def test_a_broker_of_another_group_is_told_of_the_command() -> None:
    me = Identity(broker_id="c", cluster_id="x", address="c:1", bind="c:1", named=NAMED)
    own = Membership(state=MEMBER, node_id="c.n@c:1", group="x/new", first=("c.n@c:1",))
    hello = {"cluster": "x", "broker": "a", "node_id": FIRST[0], "group": GROUP, "named": []}
    assert "liftlog cluster rescue join --data" in answer_to(hello, me, own)["refusal"]
