"""The catalog on disk: every answered command is there after a crash, wherever the crash cut the file."""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker.api.errors import CorruptLog, DiskFull, StreamExists
from broker.control.catalog_store import CatalogStore
from broker.storage.disk import OsDisk
from tests.support.simdisk import CHANGES, SimDisk
from tests.unit.metadata.test_catalog import REGISTER, create


def test_every_answered_command_survives_a_cut_at_any_byte_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "catalog.log"
    store = CatalogStore(OsDisk(), str(path))
    store.execute(create("a"))
    answered = path.stat().st_size
    store.execute(create("b"))
    store.close()
    whole = path.read_bytes()
    for cut in range(answered, len(whole)):
        path.write_bytes(whole[:cut])
        again = CatalogStore(OsDisk(), str(path))
        assert sorted(again.catalog.streams) == ["a"]
        again.close()
    path.write_bytes(whole)
    again = CatalogStore(OsDisk(), str(path))
    assert sorted(again.catalog.streams) == ["a", "b"]
    again.close()


def test_refused_command_changes_nothing_after_a_restart_either(tmp_path: Path) -> None:
    path = str(tmp_path / "catalog.log")
    store = CatalogStore(OsDisk(), path)
    store.execute(create("a"))
    with pytest.raises(StreamExists):
        store.execute(create("a", partitions=9))
    before = store.catalog.snapshot()
    store.close()
    again = CatalogStore(OsDisk(), path)
    assert again.catalog.snapshot() == before
    again.close()


def test_damage_before_the_end_stops_the_start_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "catalog.log"
    store = CatalogStore(OsDisk(), str(path))
    store.execute(create("a"))
    store.execute(create("b"))
    store.close()
    damaged = bytearray(path.read_bytes())
    damaged[20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptLog, match="damaged line at byte 0"):
        CatalogStore(OsDisk(), str(path))
    assert path.read_bytes() == damaged


def test_a_damaged_snapshot_is_no_torn_line_although_it_is_the_last(tmp_path: Path) -> None:
    """A start leaves one line. It came whole, so a bad one is damage, and an empty catalog no answer to it."""
    path = tmp_path / "catalog.log"
    store = CatalogStore(OsDisk(), str(path))
    store.execute(create("a"))
    store.close()
    CatalogStore(OsDisk(), str(path)).close()
    whole = path.read_bytes()
    assert whole.count(b"\n") == 1
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (bytes(flipped), whole[:-1], whole[:30], b""):
        path.write_bytes(damaged)
        with pytest.raises(CorruptLog, match=re.escape(str(path))):
            CatalogStore(OsDisk(), str(path))
        assert path.read_bytes() == damaged


@pytest.mark.parametrize("setting", [{"encryption": "aes-256-gcm"}, {"payload_schema": "a BIGINT"}])
def test_a_stream_with_a_setting_of_later_releases_is_no_line_that_an_earlier_one_passes_over(
    tmp_path: Path, setting: dict[str, Any]
) -> None:
    """It refused the command, as it did when it was given, and its next file was without the stream."""
    path = tmp_path / "catalog.log"
    store = CatalogStore(OsDisk(), str(path))
    store.execute({"v": 1, **REGISTER})  # it is alone
    store.execute(create("a"))
    lines = path.read_bytes().count(b"\n")
    store.execute(create("b"))
    assert path.read_bytes().count(b"\n") == lines + 1, "others are added at the end"
    store.execute(create("c", **setting))
    assert path.read_bytes().count(b"\n") == 1, "the snapshot, which an earlier one cannot read"
    store.execute(create("d"))
    incarnation = store.catalog.streams["a"].incarnation
    fence = {"kind": "raise_fence", "name": "a", "incarnation": incarnation, "partition": 0, "after": 0}
    store.execute({"v": 1, **fence})
    assert path.read_bytes().count(b"\n") == 1, "and so it is with a fence"
    store.execute({"v": 1, **fence, "after": 1})
    assert path.read_bytes().count(b"\n") == 2, "which is there already"
    store.close()
    again = CatalogStore(OsDisk(), str(path))
    assert sorted(again.catalog.streams) == ["a", "b", "c", "d"]
    assert again.catalog.streams["a"].fence_of(0) == 2
    again.close()


def test_many_streams_with_a_setting_of_later_releases_cost_one_new_file(tmp_path: Path) -> None:
    """Each was a new file of all streams: streams with a subject have such a setting."""
    path = tmp_path / "catalog.log"
    store = CatalogStore(OsDisk(), str(path))
    store.execute({"v": 1, **REGISTER})
    for number in range(5):
        store.execute(create(f"stream-{number}", envelopes="open"))
    assert path.read_bytes().count(b"\n") == 5, "one with the first, and a line for each other"
    store.execute(create("schema", payload_schema="a BIGINT"))
    assert path.read_bytes().count(b"\n") == 6, "who knows envelopes knows schemas"
    store.close()
    again = CatalogStore(OsDisk(), str(path))
    again.execute(create("encrypted", encryption="aes-256-gcm"))
    assert path.read_bytes().count(b"\n") == 2, "the file of the start has envelopes, too"
    again.close()


def test_a_setting_of_later_releases_is_a_new_file_again_where_the_file_has_none_left(tmp_path: Path) -> None:
    path = tmp_path / "catalog.log"
    store = CatalogStore(OsDisk(), str(path))
    store.execute({"v": 1, **REGISTER})
    store.execute(create("schema", payload_schema="a BIGINT"))
    store.execute(create("open", envelopes="open"))
    assert path.read_bytes().count(b"\n") == 1, "who knows schemas may not know envelopes"
    store.execute({"v": 1, "kind": "delete_stream", "name": "open"})
    store.close()
    again = CatalogStore(OsDisk(), str(path))
    again.execute(create("other", payload_schema="a BIGINT"))
    assert path.read_bytes().count(b"\n") == 2
    again.execute(create("later", envelopes="open"))
    assert path.read_bytes().count(b"\n") == 1
    again.close()


@pytest.mark.parametrize("call", sorted({*CHANGES, "open"}))
@pytest.mark.parametrize("after", range(4))
def test_what_an_earlier_release_would_pass_over_is_answered_when_it_is_stopped(call: str, after: int) -> None:
    """It was answered also where the new file had failed, as on a disk that is nearly full: the line was in the old
    one, and who went back to an earlier release had a stream less, without a word."""
    disk = SimDisk()
    disk.makedirs("/data")
    store = CatalogStore(disk, "/data/catalog.log")
    store.execute({"v": 1, **REGISTER})
    store.execute(create("a"))
    disk.fail(call, errno.ENOSPC, after=after, times=9)
    is_answered = False
    with suppress(DiskFull):
        store.execute(create("b", envelopes="open"))
        is_answered = True
    [first, *_] = disk.after_kill().read_file("/data/catalog.log").splitlines()
    assert not is_answered or b'"envelopes":"open"' in first
    assert ("b" in store.catalog.streams) == is_answered
    disk.heal()
    store.execute(create("b", envelopes="open"))
    again = CatalogStore(disk.after_crash("lost"), "/data/catalog.log")
    assert sorted(again.catalog.streams) == ["a", "b"]
