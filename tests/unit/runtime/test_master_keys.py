"""Goal: a broker says which master keys its logs need, opened or not, and a former one is needed by none for long.

Method: folders on a disk of the test: a log, one that was moved aside, stages, one with a key that is not here; a clock
of the test.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.background.master_keys import LOOK_S, MasterKeys
from broker.storage.encrypted.in_use import count_masters, wrap_anew
from broker.storage.encrypted.keys import Keyring, MasterKey
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings, seal_json
from tests.support.encrypted_logs import KEYRING, MASTER, encrypted
from tests.support.logs import IDENTITY, commit, open_log, row_batch, verified_records
from tests.support.simdisk import SimDisk

ROOT = "/data/streams"
LOG = f"{ROOT}/orders/i1/0"
NEW = MasterKey(b"n" * 32)
OTHER = MasterKey(b"o" * 32)
SETTINGS = encrypted(LogSettings())


def made(disk: SimDisk, folder: str, keyring: Keyring = KEYRING, **identity: object) -> None:
    log = PartitionLog.create(
        disk,
        folder,
        replace(IDENTITY, **identity),
        encrypted(LogSettings(), keyring),
        now_us=0,  # type: ignore[arg-type]
    )
    log.append([row_batch([b"x"])], leader_epoch=1, now_us=0)
    commit(log)
    log.close()


@pytest.fixture
def disk() -> SimDisk:
    found = SimDisk()
    made(found, LOG)
    made(found, f"{LOG}/stages", stream="orders#stages")
    made(found, f"{LOG}.aside")
    made(found, f"{ROOT}/deleted/i7/3", stream="deleted", incarnation="i7", partition=3)
    PartitionLog.create(found, f"{ROOT}/plain/i2/0", replace(IDENTITY, stream="plain"), LogSettings(), now_us=0).close()
    return found


def counted(keys: MasterKeys) -> dict[str, float]:
    return {values[0]: value for _, _, _, values, value in keys.samples()}


def test_all_of_them_are_counted_and_plain_ones_are_not(disk: SimDisk) -> None:
    assert count_masters(disk, ROOT) == {MASTER.id: 4}
    assert count_masters(disk, "/nowhere") == {}


def test_what_nobody_opens_is_wrapped_anew_and_no_log_needs_the_former_key(disk: SimDisk) -> None:
    keys = MasterKeys(disk, ROOT, Keyring([NEW, MASTER]), now_s=lambda: 1.0)
    assert counted(keys) == {}, "nobody has looked"
    keys.look()
    assert counted(keys) == {NEW.id: 4, MASTER.id: 0}
    log = open_log(disk.after_crash("lost"), settings=encrypted(SETTINGS, Keyring([NEW])), folder=f"{LOG}.aside")
    assert len(verified_records(log)) == 1


def test_it_looks_now_and_then(disk: SimDisk) -> None:
    now = 0.0
    keys = MasterKeys(disk, ROOT, KEYRING, now_s=lambda: now)
    keys.look()
    made(disk, f"{ROOT}/more/i1/0", stream="more")
    keys.look()
    assert counted(keys) == {MASTER.id: 4}
    now = LOOK_S
    keys.look()
    assert counted(keys) == {MASTER.id: 5}


def test_one_whose_key_is_not_here_stays_as_it_is_and_is_told_once(
    disk: SimDisk, caplog: pytest.LogCaptureFixture
) -> None:
    made(disk, f"{ROOT}/foreign/i1/0", Keyring([OTHER]), stream="foreign")
    before = disk.read_file(f"{ROOT}/foreign/i1/0/keys")
    now = 0.0
    keys = MasterKeys(disk, ROOT, Keyring([NEW, MASTER]), now_s=lambda: now)
    with caplog.at_level(logging.WARNING):
        keys.look()
        now = LOOK_S
        keys.look()
    assert counted(keys) == {NEW.id: 4, MASTER.id: 0, OTHER.id: 1}
    assert disk.read_file(f"{ROOT}/foreign/i1/0/keys") == before
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith(f"encryption.not_wrapped path={ROOT}/foreign/i1/0 error=")
    assert OTHER.id in line


def test_on_a_full_disk_a_log_is_counted_for_both_keys_until_it_can_be_written(disk: SimDisk) -> None:
    keyring, now = Keyring([NEW, MASTER]), 0.0
    keys = MasterKeys(disk, ROOT, keyring, now_s=lambda: now)
    disk.fail("write", errno.ENOSPC, path="keys.copy", times=1 << 20)
    keys.look()
    assert counted(keys) == {NEW.id: 4, MASTER.id: 4}
    assert wrap_anew(disk, LOG, keyring)
    disk.heal()
    now = LOOK_S
    keys.look()
    assert counted(keys) == {NEW.id: 4, MASTER.id: 0}


def test_a_broker_without_a_master_key_looks_at_nothing(disk: SimDisk) -> None:
    disk.calls.clear()
    keys = MasterKeys(disk, ROOT, None)
    keys.look()
    assert not disk.calls
    assert counted(keys) == {}


@pytest.mark.parametrize("name", ["keys", "keys.copy"])
def test_keys_that_are_not_those_of_the_log_are_not_wrapped(disk: SimDisk, name: str) -> None:
    """Seen before: of another replica's file beside a damaged one both were made, by the present master key."""
    other, folder = SimDisk(), f"{LOG}.aside"
    made(other, LOG)
    disk.replace_file(f"{folder}/{name}", other.read_file(f"{LOG}/keys"))
    (own,) = {"keys", "keys.copy"} - {name}
    disk.replace_file(f"{folder}/{own}", b"damaged")
    keys = MasterKeys(disk, ROOT, Keyring([NEW, MASTER]), now_s=lambda: 1.0)
    keys.look()
    assert counted(keys) == {NEW.id: 3, MASTER.id: 1}
    assert disk.read_file(f"{folder}/{own}") == b"damaged"
    assert disk.read_file(f"{folder}/{name}") == other.read_file(f"{LOG}/keys")


@pytest.mark.parametrize("what", ["not readable", "of a later release"])
def test_one_whose_files_cannot_be_read_holds_up_no_other_and_may_need_any_key(
    disk: SimDisk, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen before: the look ended there, so those behind it were not wrapped, and the counts were those of before."""
    real, folder = disk.read_file, f"{ROOT}/deleted/i7/3"
    if what == "of a later release":
        disk.replace_file(f"{folder}/keys", seal_json({"format_version": 9, "keys": []}))

    def read_file(path: str) -> bytes:
        if what == "not readable" and path == f"{folder}/keys":
            raise OSError(errno.EIO, "a bad sector")
        return real(path)

    monkeypatch.setattr(disk, "read_file", read_file)
    keys = MasterKeys(disk, ROOT, Keyring([NEW, MASTER]), now_s=lambda: 1.0)
    keys.look()
    assert counted(keys) == {NEW.id: 4, MASTER.id: 1}


class Meanwhile:
    """Does something in another thread as soon as a file of keys is about to be written, and goes on when that is done,
    or waits for this."""

    def __init__(self, disk: SimDisk, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
        self._real, self._act = disk.replace_file, act
        self.thread: threading.Thread | None = None
        monkeypatch.setattr(disk, "replace_file", self.replace_file)

    def replace_file(self, path: str, data: bytes, *, frees: bool = False) -> None:
        if self.thread is None and path.endswith("/keys"):
            self.thread = threading.Thread(target=self._act)
            self.thread.start()
            self.thread.join(0.2)
        self._real(path, data, frees=frees)


def test_keys_of_a_log_that_is_moved_away_are_not_written_over_those_of_the_next_one(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen before: the keys of the log that had begun anew were gone from both files, and so from the disk."""
    keyring, opened = Keyring([NEW, MASTER]), list[PartitionLog]()

    def begin_anew() -> None:
        disk.remove_tree(f"{LOG}.aside")
        disk.rename(LOG, f"{LOG}.aside")
        settings = encrypted(LogSettings(), keyring)
        log = PartitionLog.create(disk, LOG, IDENTITY, settings, now_us=0)
        log.append([row_batch([b"of the next one"])], leader_epoch=1, now_us=0)
        commit(log)
        opened.append(log)

    meanwhile = Meanwhile(disk, begin_anew, monkeypatch)
    assert not wrap_anew(disk, LOG, keyring)
    assert meanwhile.thread is not None
    meanwhile.thread.join()
    opened[0].close()
    log = open_log(disk.after_crash("lost"), settings=encrypted(SETTINGS, keyring), folder=LOG)
    assert [value for _, _, value in verified_records(log)] == [b"of the next one"]


def test_two_do_not_write_the_files_of_a_log_at_once(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring, order = Keyring([NEW, MASTER]), list[str]()
    replace_file = disk.replace_file

    def noted(path: str, data: bytes, *, frees: bool = False) -> None:
        order.append(f"{threading.current_thread().name} {path.rpartition('/')[2]}")
        replace_file(path, data, frees=frees)

    monkeypatch.setattr(disk, "replace_file", noted)
    meanwhile = Meanwhile(disk, lambda: wrap_anew(disk, LOG, keyring), monkeypatch)
    open_log(disk, settings=encrypted(SETTINGS, keyring), folder=LOG)
    assert meanwhile.thread is not None
    meanwhile.thread.join()
    assert [each.rpartition(" ")[2] for each in order if "Main" in each and "keys" in each] == ["keys", "keys.copy"]
    assert not any("Main" not in each for each in order), "the other one finds that it is done"
