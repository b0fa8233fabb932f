"""Goal: a broker that is alone gives up nothing that it cannot open: no log begins anew in the place of one that the
catalog names, whatever became of its folder, and what is put right is opened without a restart.

Method: as `test_placed.py`, with one broker and nobody else.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import LiftlogError, NotReady, StorageFailed
from broker.api.stream import settings_from
from broker.metadata.catalog import StreamInfo
from broker.metadata.partition import Place
from broker.node import capturing, placed
from broker.node.folders import Folders
from broker.node.partitions.partition import Partition
from broker.node.placed import PlacedReplica
from broker.node.replicas import Replicas
from broker.node.sinks.here import StagesHere
from broker.node.streams import PlacedStreams
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity
from tests.support.placed import US, Node, Recorded, ScriptedCatalog, node
from tests.support.processes import eventually
from tests.unit.runtime.test_placed import append

pytestmark = pytest.mark.slow
AT = ("i-s", 0)


@pytest.fixture
def catalog() -> ScriptedCatalog:
    return ScriptedCatalog()


@contextmanager
def alone(tmp_path: Path, catalog: ScriptedCatalog, process: str) -> Iterator[Node]:
    with node(tmp_path, catalog, process, has_others=False) as one:
        yield one


def create(catalog: ScriptedCatalog, name: str, partitions: int = 1) -> list[Place]:
    settings = {"subject": None, "partitions": partitions}
    catalog.apply(
        kind="create_stream", name=name, incarnation=f"i-{name}", created_us=1, settings=settings, replication_factor=1
    )
    return [(f"i-{name}", number) for number in range(partitions)]


def a_former_life(tmp_path: Path, catalog: ScriptedCatalog) -> Path:
    """It has led `s` and `t`, with a record in each. Returns the folder of the log of `s`."""
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        for name in ("s", "t"):
            [at] = create(catalog, name)
            append(one.leading(at))
            eventually(lambda at=at: one.log(at).state.durable_end == 1)  # type: ignore[misc]
    return tmp_path / "streams/s/i-s/0"


def missing(folder: Path) -> None:
    shutil.rmtree(folder)


def without_identity(folder: Path) -> None:
    (folder / "partition.json").unlink()


def damaged(folder: Path) -> None:
    (folder / "partition.json").write_text("{")


def of_another_stream(folder: Path) -> None:
    text = (folder / "partition.json").read_text()
    (folder / "partition.json").write_text(text.replace('"i-s"', '"i-x"'))


def of_a_later_release(folder: Path) -> None:
    values = json.loads((folder / "partition.json").read_text())
    (folder / "partition.json").write_text(json.dumps(values | {"format_version": 99}))


@pytest.mark.parametrize("harm", [missing, without_identity, damaged, of_another_stream, of_a_later_release])
def test_what_cannot_be_opened_is_kept_shut_until_it_is_put_right(
    tmp_path: Path, catalog: ScriptedCatalog, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    """G19."""
    caplog.set_level(logging.INFO)
    folder = a_former_life(tmp_path, catalog)
    shutil.copytree(folder, tmp_path / "copy")
    harm(folder)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        two.leading(("i-t", 0))
        assert list(two.replicas.shut()) == [AT]
        assert "stream.offline stream=s partition=0" in caplog.text
        assert list(two.replicas.unserved()) == ["stream s"]
        assert two.replicas.is_settled(AT)
        streams = PlacedStreams(US, lambda: catalog.catalog, two.replicas, has_session=lambda: True)
        for _ in range(2):
            with pytest.raises(LiftlogError) as caught:
                streams.partition("s", 0)
            assert (caught.value.fields["stream"], caught.value.fields["offline"]) == ("s", True)
        [tried] = two.replicas.open_again("i-s")
        tried.result(60)
        assert list(two.replicas.shut()) == [AT], "nothing was put right"
        assert not folder.exists() or not list(folder.parent.glob("*.aside")), "nothing takes its place"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "copy", folder)
        [tried] = two.replicas.open_again("i-s")
        tried.result(60)
        assert two.leading(AT).log.state.log_end_offset == 1
        assert not two.replicas.shut()
        assert "stream.online stream=s partition=0" in caplog.text
        append(two.leading(AT))


def test_a_start_says_what_it_has_cut_off_and_what_is_lost(
    tmp_path: Path, catalog: ScriptedCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing else says it: a torn tail is gone by then, and a range that is lost is read past."""
    caplog.set_level(logging.INFO)
    folder = a_former_life(tmp_path, catalog)
    [segment] = folder.glob("*.arrows")
    first_end = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"torn" * 25)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        append(two.leading(AT))
    said = [each for each in caplog.records if "partition.recovered" in each.getMessage()]
    assert [each.levelno for each in said] == [logging.INFO]
    assert "partition=s/0" in said[0].getMessage()
    caplog.clear()
    harmed = bytearray(segment.read_bytes())
    harmed[harmed.rindex(b"x", 0, first_end)] ^= 1
    segment.write_bytes(harmed)
    (folder / "checkpoint").unlink()
    with alone(tmp_path, catalog, "p3") as three:
        three.start()
        three.leading(AT)
    said = [each for each in caplog.records if "partition.recovered" in each.getMessage()]
    assert [each.levelno for each in said] == [logging.ERROR]


def test_what_was_put_right_amid_nothing_is_opened_by_the_next_start(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    folder = a_former_life(tmp_path, catalog)
    folder.rename(tmp_path / "away")
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        two.leading(("i-t", 0))
    (tmp_path / "away").rename(folder)
    with alone(tmp_path, catalog, "p3") as three:
        three.start()
        assert three.leading(AT).log.state.log_end_offset == 1
        assert not three.replicas.shut()


def test_a_stream_that_is_shut_can_be_deleted(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    folder = a_former_life(tmp_path, catalog)
    damaged(folder)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        assert list(two.replicas.shut()) == [AT]
        catalog.apply(kind="delete_stream", name="s")
        eventually(lambda: not folder.exists() and not two.replicas.shut(), what="it to go")
        eventually(lambda: not catalog.catalog.deleted, what="the catalog to forget it")


def test_a_log_that_the_catalog_cannot_be_told_of_says_why_until_it_can(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the catalog refuses. A start waited for such a log, and said nothing."""
    tries = list[object]()

    def refused(command: Mapping[str, Any], **_: object) -> Any:
        tries.append(command["kind"])
        raise StorageFailed("made to fail")

    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        with monkeypatch.context() as patch:
            patch.setattr(catalog, "execute", refused)
            [at] = create(catalog, "s")
            assert str(one.replicas.settle([at], 60)) == "made to fail"
            for count in (2, 3):
                eventually(lambda count=count: tries.count("report_opened") == count)  # type: ignore[misc]
                assert one.replicas.is_settled(at)
                assert list(one.replicas.unserved()) == ["stream s"]
        append(one.leading(at))
        assert one.replicas.unserved() == {}


def test_a_new_stream_needs_no_folder(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    """Its creation may be cut off before its folder is there: it is made then, and nothing is kept shut."""
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
    create(catalog, "s")
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        assert two.leading(AT).log.state.log_end_offset == 0
        assert not two.replicas.shut()


def test_a_copy_that_has_a_later_epoch_than_the_catalog_waits_for_a_restart(
    tmp_path: Path, catalog: ScriptedCatalog
) -> None:
    """What was restored while the broker runs may be from after the catalog's own copy."""
    folder = a_former_life(tmp_path, catalog)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        for _ in range(3):
            epoch = catalog.catalog.cluster.epoch_last
            catalog.apply(kind="register_producer", name=f"p{epoch}")
        append(two.leading(AT))
        eventually(lambda: two.log(AT).state.durable_end == 2)
    newer = tmp_path / "newer"
    folder.rename(newer)
    state = catalog.state(AT)
    with alone(tmp_path, catalog, "p3") as three:
        three.start()
        assert list(three.replicas.shut()) == [AT]
        assert catalog.state(AT).leader_epoch > state.leader_epoch
        newer.rename(folder)
        [tried] = three.replicas.open_again("i-s")
        tried.result(60)
        assert three.leading(AT).log.state.log_end_offset == 2


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_that_an_older_copy_of_the_catalog_does_not_name_stays_as_it_is(
    tmp_path: Path, catalog: ScriptedCatalog
) -> None:
    """G20. Its open would cut a torn end off. Behind that may be acknowledged records."""
    folder = a_former_life(tmp_path, catalog)
    [segment] = folder.glob("*.arrows")
    with segment.open("ab") as file:
        file.write(b"a torn end" * 100)
    before = contents(folder)
    with alone(tmp_path, ScriptedCatalog(), "p2") as two:
        found = two.start()
        assert found.sound == {}
    assert contents(folder) == before


def test_a_log_is_its_streams_also_where_the_catalog_is_from_before_it_had_heard_of_it(
    tmp_path: Path, catalog: ScriptedCatalog
) -> None:
    """V8. A copy of the catalog from between the creation of a stream and the report that its log is there."""
    folder = a_former_life(tmp_path, catalog)
    older = ScriptedCatalog()
    with alone(tmp_path / "else", older, "p0") as other:
        other.start()
    create(older, "s")
    assert not older.state(AT).opened
    with alone(tmp_path, older, "p2") as two:
        synced: list[str] = []

        def sync_dir(path: str) -> None:
            if older.state(AT).opened:
                return  # what is durable after the catalog has heard of it comes too late
            synced.append(path)
            if synced.count(path) == 1 and path == f"{two.root}/s":
                raise OSError(5, "made to fail")

        two.disk.sync_dir = sync_dir  # type: ignore[method-assign]
        two.start()
        eventually(lambda: two.log(AT).state.log_end_offset == 1)
        assert {str(folder), str(folder.parent), f"{two.root}/s", two.root} <= {*synced}, (
            "who made it may have been killed"
        )
        assert two.leading(AT).log.state.log_end_offset == 1
        eventually(lambda: older.state(AT).opened == (US,))
        assert not list(folder.parent.glob("*.aside"))


def test_a_partition_that_is_added_once_more_has_what_it_had(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    """V8. The catalog was restored from before the partition was added. Its epochs may be those of the log, until the
    next start."""
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        for at in create(catalog, "s", 2):
            append(one.leading(at))
            eventually(lambda at=at: one.log(at).state.durable_end == 1)  # type: ignore[misc]
    older, added = ScriptedCatalog(), ("i-s", 1)
    with alone(tmp_path / "else", older, "p0") as other:
        other.start()
    create(older, "s")
    with alone(tmp_path, older, "p2") as two:
        two.start()
        older.apply(kind="add_partitions", name="s", partitions=2)
        eventually(lambda: two.replicas.is_settled(added), what="it to be led, or why not")
        assert two.log(added).state.log_end_offset == 1
    with alone(tmp_path, older, "p3") as three:
        three.start()
        assert three.leading(added).log.state.log_end_offset == 1
    assert not list((tmp_path / "streams/s/i-s").glob("*.aside"))


def test_a_start_does_not_wait_for_what_is_deleted_meanwhile(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    a_former_life(tmp_path, catalog)
    with alone(tmp_path, catalog, "p2") as two:
        assert not two.replicas.is_settled(AT)
        two.start()
        two.leading(AT)
        catalog.apply(kind="delete_stream", name="s")
        assert two.replicas.is_settled(AT)
        eventually(lambda: two.replicas.replica(AT) is None, what="it to go")
        assert two.replicas.is_settled(AT)


def test_who_has_asked_to_open_a_log_is_answered_also_where_it_is_deleted(
    tmp_path: Path, catalog: ScriptedCatalog
) -> None:
    damaged(a_former_life(tmp_path, catalog))
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        replica = two.replicas.replica(AT)
        assert replica is not None
        catalog.apply(kind="delete_stream", name="s")
        replica.open_again().result(10)


def test_who_asked_and_is_gone_ends_it_for_nobody(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    """Whoever awaits a future, and is gone, cancels it."""
    folder = a_former_life(tmp_path, catalog)
    folder.rename(tmp_path / "away")
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        (tmp_path / "away").rename(folder)
        [tried] = two.replicas.open_again("i-s")
        assert not tried.cancel()
        tried.result(10)
        assert two.leading(AT).log.state.log_end_offset == 1


def test_a_log_whose_stages_have_a_later_epoch_waits_for_a_restart(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    """What is beside a log counts as the log does (`test_a_copy_that_has_a_later_epoch_than_the_catalog...`)."""
    folder = a_former_life(tmp_path, catalog)
    folder.rename(tmp_path / "away")
    with alone(tmp_path, catalog, "p2") as two:
        folders = replace(two.host.folders, epoch_beside=lambda opened: 1_000 * (opened.state.identity.stream == "s"))
        two.replicas = Replicas(replace(two.host, folders=folders), "p2")
        two.start()
        (tmp_path / "away").rename(folder)
        [tried] = two.replicas.open_again("i-s")
        tried.result(10)
        assert "restart the broker" in str(two.replicas.shut()[AT])


def test_a_log_that_cannot_be_led_is_led_later_and_ends_no_broker(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is nobody who could lead in its place: to step out would end the process. It is tried some times each
    second, and said once."""
    a_former_life(tmp_path, catalog)
    errors = [StorageFailed("made to fail"), StorageFailed("made to fail")]
    lead = PartitionLog.lead

    def fails(log: PartitionLog, leader_epoch: int) -> int:
        if log.state.identity.stream == "s" and errors:
            log.state.failure = errors.pop()
            raise log.state.failure
        return lead(log, leader_epoch)

    monkeypatch.setattr(PartitionLog, "lead", fails)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        append(two.leading(AT))
        assert not errors
        assert "step_out" not in catalog.kinds()
        assert not two.halted
    assert caplog.text.count("replica.cannot_lead partition=s/0") == 1


def test_nothing_is_let_go_of_a_log_whose_stages_nobody_can_look_for(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    """The cleaner may still have a partition that was just closed: its stages may pin what it has."""
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        [at] = create(catalog, "s")
        one.leading(at)
        stages = StagesHere(one.disk, one.replicas.partition, boot_id="boot", clock=lambda: 1)
        info = catalog.catalog.streams["s"]
        assert not stages.may_have(*at)
        assert not stages.numbers(info)
    closed = StagesHere(one.disk, one.replicas.partition, boot_id="boot", clock=lambda: 1)
    assert closed.may_have(*at)
    assert not closed.numbers(info)


def test_the_disk_is_asked_for_stages_once_until_somebody_is_about_to_stage(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of the cleaner asked for those of ten thousand partitions. Who stages is seen at once."""
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        [at] = create(catalog, "s")
        main = one.leading(at)
        stages = StagesHere(one.disk, one.replicas.partition, boot_id="boot", clock=lambda: 1)
        info = catalog.catalog.streams["s"]
        assert not stages.may_have(*at)
        with monkeypatch.context() as patched:
            patched.setattr(one.disk, "exists", None)
            assert not stages.may_have(*at)
            assert not stages.numbers(info)
        log = stages.log_of(main, main)
        assert not stages.may_have(*at)
        log.open()
        assert stages.may_have(*at)
        assert stages.numbers(info) == [at[1]]
        log.close()


def test_who_stops_keeps_no_log_that_is_made_for_a_new_partition(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    """G17, G22: nobody would close it."""
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        info = StreamInfo(name="s", incarnation="i-s", created_us=1, settings=settings_from({"subject": None}))
        assert one.replicas.make(info, [0, 1]) == [0, 1]
        assert one.replicas.make(info, [0, 1]) == [], "they wait for the catalog"
        one.replicas.stop()
        with pytest.raises(NotReady):
            one.replicas.make(info, [2])
        assert sorted(path.name for path in (tmp_path / "streams/s/i-s").iterdir()) == ["0", "1"]


def test_a_stop_closes_all_logs_while_those_of_a_change_are_taken_back(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G17, G22: its command was refused, as the broker stops."""
    real, closed = PartitionLog.close, list[str]()
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        info = StreamInfo(name="s", incarnation="i-s", created_us=1, settings=settings_from({"subject": None}))
        made = one.replicas.make(info, range(3))

        def close(log: PartitionLog, *, clean: bool) -> None:
            closed.append(log.state.folder)
            if len(closed) == 1:
                one.replicas.unmake(info, made)
            real(log, clean=clean)

        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "close", close)
            one.replicas.stop()
    assert {folder.rpartition("/")[2] for folder in closed} == {"0", "1", "2"}


def test_a_log_that_is_there_already_is_not_taken_back(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    """G22, V8. The catalog is an older copy than the folder, and the command that would place it is refused."""
    folder = a_former_life(tmp_path, catalog)
    info = catalog.catalog.streams["s"]
    older = ScriptedCatalog()
    with alone(tmp_path, older, "p2") as one:
        one.start()
        made = one.replicas.make(info, [0, 1])
        assert made == [1]
        one.replicas.unmake(info, made)
        assert not (folder.parent / "1").exists()
        create(older, "s")
        assert one.leading(AT).log.state.log_end_offset == 1


def test_a_capture_that_could_not_begin_is_tried_again(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`capturing.V14`. It was said once, and nothing was captured until the stream was altered."""
    monkeypatch.setattr(capturing, "AGAIN_MS", 20)
    real, calls, goes = Recorded.begin, [], threading.Event()

    def begin(self: Recorded, info: StreamInfo, partition: Partition) -> Future[None]:
        done = real(self, info, partition)
        calls.append(partition)
        if goes.is_set():
            return done
        failed: Future[None] = Future()
        failed.set_exception(RuntimeError("nats-py counts subscriptions differently"))
        return failed

    monkeypatch.setattr(Recorded, "begin", begin)
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        [at] = create(catalog, "s")
        append(one.leading(at))
        eventually(lambda: len(calls) > 2, what="the third try")
        eventually(lambda: "s/0: captures nothing: RuntimeError" in str(one.replicas.faults()), what="to be told")
        goes.set()
        eventually(lambda: one.placed(at).is_at_rest, what="to be at rest")
        assert not one.replicas.faults()
        count = len(calls)
    assert len(calls) == count, "the last one has begun"


def test_a_fault_of_ours_is_why_a_log_is_not_served_and_no_start_waits_for_it(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V9. It was said by nothing but a traceback, and a start waited for ever."""
    a_former_life(tmp_path, catalog)
    fails, real = threading.Event(), Partition.lead

    def lead(self: Partition, *args: Any) -> None:
        if str(self) == "s/0" and not fails.is_set():
            raise RuntimeError("can't start new thread")
        real(self, *args)

    monkeypatch.setattr(Partition, "lead", lead)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        two.leading(("i-t", 0))
        eventually(lambda: two.replicas.is_settled(AT), what="to be settled")
        assert "can't start new thread" in two.replicas.unserved()["stream s"]
        streams = PlacedStreams(US, lambda: catalog.catalog, two.replicas, has_session=lambda: True)
        with pytest.raises(NotReady, match="can't start new thread"):
            streams.partition("s", 0)
        fails.set()
        two.leading(AT)
        eventually(lambda: not two.replicas.unserved(), what="to be forgotten")


def test_a_fault_of_ours_in_what_was_assigned_keeps_no_start_waiting(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`replicas.G15`: it is looked at again with the next change."""
    a_former_life(tmp_path, catalog)
    real = PlacedReplica.assign

    def assign(self: PlacedReplica, *args: Any, **options: Any) -> None:
        if self.at == AT:
            raise RuntimeError("made to fail")
        real(self, *args, **options)

    with alone(tmp_path, catalog, "p2") as two:
        with monkeypatch.context() as patched:
            patched.setattr(PlacedReplica, "assign", assign)
            two.start()
            two.leading(("i-t", 0))
            assert two.replicas.is_settled(AT)
            assert "made to fail" in two.replicas.unserved()["stream s"]
        create(catalog, "u")
        two.leading(AT)
        assert not two.replicas.unserved()


def test_a_folder_that_cannot_be_removed_is_tried_again_more_and_more_rarely(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try is a line: there were three in each second."""
    monkeypatch.setattr(placed, "AGAIN_MS", 1)
    real, tries = Folders.remove, []

    def remove(self: Folders, *args: Any) -> None:
        tries.append(one.placed(AT)._again_ms)
        if len(tries) < 5:
            raise OSError(5, "made to fail")
        real(self, *args)

    monkeypatch.setattr(Folders, "remove", remove)
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        [at] = create(catalog, "s")
        append(one.leading(at))
        catalog.apply(kind="delete_stream", name="s")
        eventually(lambda: one.replicas.replica(at) is None or one.placed(at).is_gone, what="to be gone")
    assert tries == [1, 2, 4, 8, 16]


def test_an_assignment_with_a_fault_of_ours_is_redone_also_where_nothing_changes(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`replicas.G15`. A broker that is alone may see no change for days, and did not serve it meanwhile."""
    a_former_life(tmp_path, catalog)
    real, tries = PlacedReplica.assign, []

    def assign(self: PlacedReplica, *args: Any, **options: Any) -> None:
        if self.at == AT:
            tries.append(self)
            if len(tries) < 3:
                raise RuntimeError("made to fail")
        real(self, *args, **options)

    monkeypatch.setattr(PlacedReplica, "assign", assign)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        append(two.leading(AT))
        assert two.log(AT).state.log_end_offset == 2
        eventually(lambda: not two.replicas.unserved(), what="to be forgotten")
        assert len(tries) == 3, "it is not assigned again without need"


def test_a_change_that_was_not_looked_at_is_looked_at_again(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, where it is known of no partition."""
    real, fails = Replicas._places_of, [True]

    def places_of(self: Replicas, touched: Any) -> set[Place]:
        if fails and fails.pop():
            raise RuntimeError("made to fail")
        return real(self, touched)

    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        monkeypatch.setattr(Replicas, "_places_of", places_of)
        with pytest.raises(RuntimeError):
            create(catalog, "s")
        append(one.leading(AT))


def test_a_removal_that_met_a_fault_of_ours_is_done_again(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V3. It was forgotten: the folder stayed, and so did what the catalog knew of it, until the next start."""
    real, tries = Folders.remove, []

    def remove(self: Folders, *args: Any) -> None:
        tries.append(args)
        if len(tries) == 1:
            raise RuntimeError("made to fail")
        real(self, *args)

    monkeypatch.setattr(Folders, "remove", remove)
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        [at] = create(catalog, "s")
        append(one.leading(at))
        catalog.apply(kind="delete_stream", name="s")
        eventually(lambda: not catalog.catalog.deleted, what="the catalog to forget it")
        assert not (tmp_path / "streams/s").exists()
        assert not one.replicas.unserved()


def test_a_log_is_closed_also_where_what_is_done_before_meets_a_fault_of_ours(
    tmp_path: Path, catalog: ScriptedCatalog
) -> None:
    """Its files stayed open, and took their room on the disk, until the broker stopped."""
    with alone(tmp_path, catalog, "p1") as one:
        faults = [True]

        def closing(partition: Partition) -> None:
            if faults and faults.pop():
                raise RuntimeError("made to fail")

        one.replicas = Replicas(replace(one.host, closing=closing), "p1")
        one.start()
        [at] = create(catalog, "s")
        log = one.leading(at).log
        catalog.apply(kind="delete_stream", name="s")
        eventually(lambda: not catalog.catalog.deleted, what="the catalog to forget it")
        assert log.state.is_closed


def test_a_deleted_stream_whose_folder_stays_is_none_that_is_not_served(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/readyz` named it until the folder could be removed, be it that there was another stream of its name."""
    damaged(a_former_life(tmp_path, catalog))
    real, goes, tries = Folders.remove, threading.Event(), []

    def remove(self: Folders, *args: Any) -> None:
        tries.append(args)
        if not goes.is_set():
            raise PermissionError(13, "made to fail")
        real(self, *args)

    monkeypatch.setattr(Folders, "remove", remove)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        assert list(two.replicas.unserved()) == ["stream s"]
        catalog.apply(kind="delete_stream", name="s")
        eventually(lambda: tries, what="a try")
        assert not two.replicas.unserved()
        catalog.apply(
            kind="create_stream",
            name="s",
            incarnation="i-s2",
            created_us=1,
            settings={"subject": None, "partitions": 1},
            replication_factor=1,
        )
        append(two.leading(("i-s2", 0)))
        assert not two.replicas.unserved()
        goes.set()
        eventually(lambda: not catalog.catalog.deleted, what="the catalog to forget it")
        append(two.leading(("i-s2", 0)))


@pytest.mark.parametrize("fault", [ValueError, RuntimeError])
def test_a_capture_that_could_not_even_be_asked_for_is_asked_for_again(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch, fault: type[Exception]
) -> None:
    """V14. It was taken for begun: all was well by `/readyz`, and nobody captured anything."""
    real, calls = Recorded.begin, []

    def begin(self: Recorded, info: StreamInfo, partition: Partition) -> Future[None]:
        calls.append(partition)
        if len(calls) == 1:
            raise fault("made to fail")
        return real(self, info, partition)

    monkeypatch.setattr(Recorded, "begin", begin)
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        create(catalog, "s")
        eventually(lambda: one.recorded.begun, what="the capture")
        append(one.leading(AT))
        eventually(lambda: one.placed(AT).is_at_rest, what="to be at rest")
        assert not one.replicas.unserved()


def test_a_log_whose_opening_meets_a_fault_of_ours_is_kept_shut_and_keeps_no_other_from_a_start(
    tmp_path: Path, catalog: ScriptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G19. It ended the start, each time, and no stream was served."""
    a_former_life(tmp_path, catalog)
    real, fails = Folders.open, threading.Event()

    def opened(self: Folders, identity: LogIdentity, *args: Any) -> PartitionLog:
        if identity.stream == "s" and not fails.is_set():
            raise IndexError("made to fail")
        return real(self, identity, *args)

    monkeypatch.setattr(Folders, "open", opened)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        append(two.leading(("i-t", 0)))
        assert "made to fail" in two.replicas.unserved()["stream s"]
        [tried] = two.replicas.open_again("i-s")
        tried.result(60)
        assert list(two.replicas.shut()) == [AT]
        fails.set()
        [tried] = two.replicas.open_again()  # as each round does
        tried.result(60)
        assert two.leading(AT).log.state.log_end_offset == 1
        eventually(lambda: not two.replicas.unserved(), what="to be forgotten")
