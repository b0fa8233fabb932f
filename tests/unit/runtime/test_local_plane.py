"""Goal: the catalog of a broker that is alone is that of a cluster of one, also where an earlier release has made it:
nothing of it is lost, and each later start finds what was answered.

Method: the plane on the fake disk, which forgets what was not synced; a lone catalog beside it, made as before.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.api.errors import (
    CorruptLog,
    DeadlineExceeded,
    DiskFull,
    LiftlogError,
    NotReady,
    NotSupported,
    StorageFailed,
)
from broker.control import local
from broker.control.catalog_store import CatalogStore, HalfDone
from broker.control.local import MEMBERS_MS, LocalPlane
from broker.control.others import CATALOG_FILE, Addresses, Home
from broker.metadata.catalog import Catalog
from broker.storage.segments.checkpoint import LogIdentity, write_identity
from tests.support.processes import eventually
from tests.support.simdisk import MODES, SimDisk

ADDRESSES = Addresses(http="127.0.0.1:9293", grpc="127.0.0.1:9294")
PATH = f"/data/{CATALOG_FILE}"


class Time:
    ms = 1_000

    def __call__(self) -> int:
        return self.ms


class Slow(SimDisk):
    """`at_sync` is called before each sync of the catalog's file."""

    def __init__(self) -> None:
        super().__init__()
        self.makedirs("/data")
        self.at_sync: Callable[[], object] = lambda: None

    def step(self, call: str, path: str) -> Any:
        if call == "sync" and path == PATH:
            self.at_sync()
        return super().step(call, path)


@pytest.fixture
def halted() -> list[str]:
    return []


@pytest.fixture
def plane_of(halted: list[str]) -> Iterator[Callable[..., LocalPlane]]:
    made: list[LocalPlane] = []

    def make(disk: SimDisk, me: str = "a", **options: Any) -> LocalPlane:
        home = Home(
            disk=disk,
            folder="/data",
            cluster_id="c1",
            halt=halted.append,
            session_changed=lambda is_open: None,
            controller_changed=lambda: None,
            waits_for=lambda text: None,
        )
        made.append(LocalPlane(me, home, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()
    assert not halted


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.makedirs("/data")
    return disk


def creation(name: str, partitions: int = 1, **more: Any) -> dict[str, Any]:
    settings = {"subject": None, "partitions": partitions}
    stream = {"name": name, "incarnation": f"i-{name}", "created_us": 1, "settings": settings}
    return {"v": 1, "kind": "create_stream", **stream, **more}


def kept(disk: SimDisk) -> Catalog:
    """A lone broker of an earlier release has led two streams, and has deleted one whose folder may be there."""
    store = CatalogStore(disk, PATH)
    for command in (creation("s", 2), creation("t"), creation("gone")):
        store.execute(command)
    for life in ("p1", "p2"):
        registration = {"http": "h", "grpc": "g", "epoch_seen": -1, "broker_id": "a", "incarnation": life}
        store.execute({"v": 1, "kind": "register_broker", **registration})
    store.execute({"v": 1, "kind": "delete_stream", "name": "gone"})
    assert not store.catalog.cluster.partitions or store.catalog.streams["s"].settings.partitions == 2
    store.close()
    return store.catalog


def kept_by(disk: SimDisk) -> Catalog:
    """What the next start finds."""
    return CatalogStore(disk, PATH).catalog


def begin(plane: LocalPlane, sound: dict[str, list[int]] | None = None) -> Catalog:
    plane.start()
    plane.register(ADDRESSES, sound=sound or {}, epoch_seen=-1)
    return plane.service.catalog


def test_a_registration_waits_for_many_roles_to_be_given_out(plane_of: Callable[..., LocalPlane]) -> None:
    """With 10,000 partitions, or while the disk stands still, that takes longer than a command may: the start went on
    to say that the thread gives no answer, and ended."""
    plane = plane_of(new_disk())
    minutes = iter(range(0, 600, 60))
    plane.service._clock = lambda: float(next(minutes))
    is_over = threading.Event()

    def give_out_roles() -> None:
        if "a" in plane.service.catalog.brokers:
            is_over.wait(1.0)  # longer than the half second that `execute` waits after the end of its time

    plane.service.subscribe(give_out_roles)
    try:
        begin(plane)
    finally:
        is_over.set()
    assert plane.has_session()


@pytest.mark.parametrize("times", [1, 1_000_000])
def test_a_registration_that_the_disk_may_have_or_not_is_tried_once_more(
    plane_of: Callable[..., LocalPlane], times: int
) -> None:
    """The second try begins with a new file (K3): it is recorded there, or the start ends with the disk's word."""
    disk = new_disk()
    kept(disk)
    sound = {"i-s": [0, 1], "i-t": [0]}
    plane = plane_of(disk)
    plane.start()
    for call in ("sync", "create"):
        disk.fail(call, errno.EIO, path=CATALOG_FILE, times=times)
    if times == 1:
        assert plane.register(ADDRESSES, sound=sound) == plane.service.catalog.epoch_last
        return
    with pytest.raises(StorageFailed) as caught:
        plane.register(ADDRESSES, sound=sound)
    assert caught.value.sent
    assert not plane.has_session()
    disk.heal()
    for found in (disk.after_kill(), *(disk.after_crash(mode) for mode in MODES)):
        catalog = begin(plane_of(found), sound)
        assert {state.leader for state in catalog.cluster.partitions.values()} == {"a"}


def test_streams_of_an_earlier_release_are_placed_here_and_led_in_a_new_epoch(
    plane_of: Callable[..., LocalPlane],
) -> None:
    disk = new_disk()
    before = kept(disk)
    catalog = begin(plane_of(disk), {"i-s": [0, 1], "i-t": [0]})
    assert {name: info.settings for name, info in catalog.streams.items()} == {
        name: info.settings for name, info in before.streams.items()
    }
    states = catalog.cluster.partitions
    assert sorted(states) == [("i-s", 0), ("i-s", 1), ("i-t", 0)]
    for state in states.values():
        assert (state.leader, state.replicas, state.isr) == ("a", ("a",), ("a",))
        assert state.leader_epoch > before.epoch_last, "no epoch is used by two lives"


def test_a_later_release_leaves_the_way_back(
    plane_of: Callable[..., LocalPlane], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raised the feature level at its start, also where nothing came of it. A former lone broker never did."""
    disk = new_disk()
    kept(disk)
    sound = {"i-s": [0, 1], "i-t": [0]}
    with monkeypatch.context() as later:
        later.setattr(local, "FEATURE_LEVEL", local.FEATURE_LEVEL + 1)
        plane = plane_of(disk)
        assert begin(plane, sound).brokers["a"].feature_level_max == local.FEATURE_LEVEL
        plane.service.execute({"v": 1, "kind": "delete_stream", "name": "t"})
        plane.stop()
    assert list(begin(plane_of(disk), sound).streams) == ["s"]


def test_a_broker_under_another_name_leads_what_it_kept(plane_of: Callable[..., LocalPlane]) -> None:
    """A catalog does not say whose it is: the folder does, and somebody may have changed that. A broker that is no more
    would be waited for: as a replica of what is there, and of each new stream."""
    disk = new_disk()
    kept(disk)
    plane = plane_of(disk)
    begin(plane, {"i-s": [0, 1], "i-t": [0]})
    plane.service.execute({"v": 1, "kind": "delete_stream", "name": "t"})
    plane.service.execute(creation("new", replication_factor=1))
    plane.stop()
    other = plane_of(disk, me="b")
    catalog = begin(other, {"i-s": [0, 1]})
    assert list(catalog.brokers) == ["b"]
    assert catalog.cluster.is_of_one
    for number in (0, 1):
        state = catalog.cluster.partitions["i-s", number]
        assert (state.leader, state.replicas, state.isr, state.opened) == ("b", ("b",), ("b",), ("b",))
        assert state.leader_epoch == catalog.brokers["b"].registration
    assert not catalog.cluster.partitions["i-new", 0].knows_log_of("b"), "there never was one"
    assert list(catalog.cluster.leftovers) == ["b"]


@pytest.mark.parametrize("end", ["kill", *MODES])
def test_each_start_finds_what_was_answered_before(plane_of: Callable[..., LocalPlane], end: Any) -> None:
    """Commands after the adoption are judged by it when they are read again, too."""
    disk = new_disk()
    kept(disk)
    plane = plane_of(disk)
    begin(plane, {"i-s": [0, 1], "i-t": [0]})
    for command in (
        creation("new", 3, replication_factor=1),
        {"v": 1, "kind": "add_partitions", "name": "s", "partitions": 4},
        {"v": 1, "kind": "delete_stream", "name": "t"},
    ):
        plane.service.execute(command)
    answered = plane.service.catalog.snapshot()
    after = disk.after_kill() if end == "kill" else disk.after_crash(end)
    again = plane_of(after)
    assert again.service.catalog.snapshot() == answered


def test_it_has_a_session_from_its_registration_until_it_leaves(plane_of: Callable[..., LocalPlane]) -> None:
    plane = plane_of(new_disk())
    assert not plane.has_session()
    begin(plane)
    assert plane.has_session()
    plane.leave()
    assert not plane.has_session()
    plane.stop()
    with pytest.raises(NotReady):
        plane.service.execute(creation("late"))


def test_who_hears_of_the_registration_has_a_session_by_then(plane_of: Callable[..., LocalPlane]) -> None:
    """Ten thousand replicas took their roles without one, and had a second turn each to begin to capture."""
    plane, seen = plane_of(new_disk()), list[tuple[bool, bool]]()
    plane.service.subscribe(lambda: seen.append(("a" in plane.service.catalog.brokers, plane.has_session())))
    begin(plane)
    assert set(seen) == {(False, False), (True, True)}


def test_no_log_is_told_to_be_lost(plane_of: Callable[..., LocalPlane]) -> None:
    """The catalog would have it removed, and begin anew."""
    disk = new_disk()
    kept(disk)
    plane = plane_of(disk)
    plane.start()
    before = plane.service.catalog.snapshot()
    with pytest.raises(CorruptLog, match="1 logs were neither opened nor kept shut, the first: \\('i-t', 0\\)"):
        plane.register(ADDRESSES, sound={"i-s": [0, 1]}, epoch_seen=-1)
    assert plane.service.catalog.snapshot() == before
    assert not plane.has_session()


def test_a_command_that_the_disk_refuses_has_no_effect(plane_of: Callable[..., LocalPlane]) -> None:
    disk = new_disk()
    plane = plane_of(disk)
    catalog = begin(plane)
    disk.fail("write", errno.ENOSPC, path=CATALOG_FILE, times=100)
    with pytest.raises(DiskFull):
        plane.service.execute(creation("big"), timeout_s=0.5)
    assert "big" not in catalog.streams
    disk.heal()
    plane.service.execute(creation("big"))
    assert "big" in catalog.streams


def test_a_command_that_the_disk_holds_up_beyond_its_time_is_taken_back(plane_of: Callable[..., LocalPlane]) -> None:
    """L6. It was answered to be in doubt, and carried out later: behind what its client had done since."""
    disk = Slow()
    plane = plane_of(disk)
    catalog = begin(plane)
    goes_on = threading.Event()
    disk.at_sync = lambda: goes_on.wait(60)
    try:
        with pytest.raises(DeadlineExceeded) as caught:
            plane.service.execute({**creation("late"), "request_id": "1"}, until_s=time.monotonic() + 0.05)
        assert caught.value.sent
        with pytest.raises(LiftlogError) as behind:
            plane.service.execute({**creation("behind"), "request_id": "2"}, until_s=time.monotonic() + 0.05)
        assert not behind.value.sent
    finally:
        goes_on.set()
    plane.service.execute(creation("next"))
    assert list(catalog.streams) == ["next"]
    for mode in MODES:
        assert list(kept_by(disk.after_crash(mode)).streams) == ["next"]


def test_a_command_has_all_of_its_time_for_the_disk(plane_of: Callable[..., LocalPlane]) -> None:
    """A try of a cluster's command waits for two seconds, as the controller may have died. Here each would be taken
    back on a disk that takes three."""
    disk, now = Slow(), [100.0]
    plane = plane_of(disk, clock=lambda: now[0])
    catalog = begin(plane)
    disk.at_sync = lambda: now.append(now.pop() + 3)
    plane.service.execute({**creation("slow"), "request_id": "1"}, until_s=now[0] + 8)
    with pytest.raises(DeadlineExceeded) as caught:
        plane.service.execute({**creation("late"), "request_id": "2"}, until_s=now[0] + 2)
    assert not caught.value.sent, "it is taken back by then"
    assert list(catalog.streams) == ["slow"]


def test_a_fault_of_ours_in_the_judgement_of_a_command_is_its_answer_at_once(
    plane_of: Callable[..., LocalPlane], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`service.V10`. It was logged, and who asked waited until the time was up, to hear that nobody knows."""
    plane = plane_of(new_disk())
    catalog = begin(plane)
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "judge", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            plane.service.execute(creation("s"), timeout_s=600)
    plane.service.execute(creation("t"))
    assert list(catalog.streams) == ["t"]


@pytest.mark.parametrize("where", [(CatalogStore, "_write_once"), (Catalog, "apply"), (CatalogStore, "_renew_if_long")])
def test_a_fault_of_ours_that_leaves_a_command_half_done_ends_the_process(
    plane_of: Callable[..., LocalPlane],
    monkeypatch: pytest.MonkeyPatch,
    halted: list[str],
    where: tuple[type, str],
) -> None:
    """L7."""
    plane = plane_of(new_disk())
    begin(plane)
    with monkeypatch.context() as patch:
        patch.setattr(*where, lambda *_: 1 // 0)
        with pytest.raises(HalfDone):
            plane.service.execute(creation("s"), timeout_s=600)
    [why] = halted
    assert why.startswith(f"a create_stream is half done in {PATH}: ZeroDivisionError")
    halted.clear()


def test_who_subscribes_is_called_once_for_all_and_then_for_what_has_changed(
    plane_of: Callable[..., LocalPlane],
) -> None:
    plane = plane_of(new_disk())
    begin(plane)
    seen: list[Any] = []
    plane.service.subscribe(lambda: seen.append(plane.service.touched and set(plane.service.touched.streams)))
    eventually(lambda: seen == [None])
    plane.service.execute(creation("s"))
    eventually(lambda: len(seen) == 2)
    assert seen[1] == {"i-s"}


def test_folders_without_a_catalog_stop_the_start(plane_of: Callable[..., LocalPlane]) -> None:
    disk = new_disk()
    disk.makedirs("/data/streams/s/i-s/0")
    with pytest.raises(CorruptLog, match="restore it from a backup"):
        plane_of(disk)


def test_the_folder_of_a_deleted_stream_goes_at_the_start_and_no_other(plane_of: Callable[..., LocalPlane]) -> None:
    disk = new_disk()
    kept(disk)
    for name in ("gone", "stranger"):
        folder = f"/data/streams/{name}/i-{name}/0"
        disk.makedirs(folder)
        write_identity(disk, folder, LogIdentity(cluster_id="c1", stream=name, incarnation=f"i-{name}", partition=0))
        disk.open(f"{folder}/00000000000000000000.arrows", create=True).close()
    catalog = plane_of(disk).service.catalog
    assert not disk.exists("/data/streams/gone/i-gone")
    assert disk.exists("/data/streams/stranger/i-stranger/0")
    assert not catalog.deleted


def test_members_that_fall_silent_are_ended(plane_of: Callable[..., LocalPlane]) -> None:
    time = Time()
    plane = plane_of(new_disk(), now_ms=time)
    catalog = begin(plane)
    plane.service.execute(creation("s"))
    joined = [
        plane.service.execute(
            {"v": 1, "kind": "join_group", "name": "g", "member": member, "streams": ["s"], "timeout_ms": 6_000}
        )
        for member in ("quiet", "well")
    ]
    session = joined[1]["session"]
    for _ in range(16):
        time.ms += MEMBERS_MS
        plane.member_heard("g", "well", session)
        looked = threading.Event()
        plane._thread.do(lambda _, looked=looked: looked.set())  # type: ignore[misc]
        assert looked.wait(60)
    eventually(lambda: sorted(catalog.groups.named["g"].members) == ["well"], what="the silent one to be ended")


def test_no_member_is_ended_for_a_start_that_opens_logs_for_long(plane_of: Callable[..., LocalPlane]) -> None:
    """L4. All of them were ended: what they had read and not committed was read again by others."""
    disk, now = new_disk(), Time()
    first = plane_of(disk)
    first.start()
    first.register(ADDRESSES)
    first.service.execute(
        {"v": 1, "kind": "create_stream", "name": "s", "incarnation": "i", "created_us": 1, "settings": {}}
    )
    first.service.execute(
        {"v": 1, "kind": "join_group", "name": "g", "member": "m", "streams": ["s"], "timeout_ms": 6_000}
    )
    first.stop()
    plane = plane_of(disk, now_ms=now)
    plane.start()

    def pass_ms(ms: int) -> None:
        for _ in range(ms // MEMBERS_MS):
            now.ms += MEMBERS_MS
            for _ in range(2):  # the look is between the two
                called = threading.Event()
                plane._thread.do(lambda _, called=called: called.set())  # type: ignore[misc]
                assert called.wait(60)

    pass_ms(20_000)
    members = plane.service.catalog.groups.named["g"].members
    assert list(members) == ["m"]
    plane.register(ADDRESSES, sound={"i": [0]})
    pass_ms(4_000)
    assert list(plane.service.catalog.groups.named["g"].members) == ["m"]
    pass_ms(8_000)
    eventually(lambda: not plane.service.catalog.groups.named["g"].members, what="the silent one to be ended")


def test_nobody_votes(plane_of: Callable[..., LocalPlane]) -> None:
    plane = plane_of(new_disk())
    begin(plane)
    with pytest.raises(NotSupported):
        plane.service.change_voters("add", "b")
    status = plane.status()
    assert (status["controller"], status["voters"], [each["broker_id"] for each in status["brokers"]]) == (
        "a",
        [],
        ["a"],
    )


def test_a_broken_catalog_is_no_start(plane_of: Callable[..., LocalPlane]) -> None:
    disk = new_disk()
    kept(disk)
    disk.flip(PATH, 100)
    with pytest.raises(LiftlogError):
        plane_of(disk)


def test_a_deletion_that_is_in_doubt_is_undone_soon_also_where_no_command_follows(
    plane_of: Callable[..., LocalPlane],
) -> None:
    """K3. The broker goes on and takes records of that stream. The next start would find it deleted, with all of them,
    however long after, if nobody changed anything meanwhile."""
    disk, now = new_disk(), Time()
    kept(disk)
    sound = {"i-s": [0, 1], "i-t": [0]}
    plane = plane_of(disk, now_ms=now)
    begin(plane, sound)
    for call in ("sync", "truncate", "create"):
        disk.fail(call, errno.EIO, path=CATALOG_FILE, times=1_000_000)
    with pytest.raises(StorageFailed) as caught:
        plane.service.execute({"v": 1, "kind": "delete_stream", "name": "t"})
    assert caught.value.sent
    assert "t" in plane.service.catalog.streams
    disk.heal()

    def is_undone() -> bool:
        now.ms += MEMBERS_MS
        return all("t" in kept_by(found).streams for found in (disk.after_kill(), *map(disk.after_crash, MODES)))

    eventually(is_undone, what="the file to be as it was answered")
