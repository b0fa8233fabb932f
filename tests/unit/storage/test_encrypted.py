"""Goal: what a log encrypts cannot be read, changed or moved without its key, and is what it was with it.

Method: messages against the definition in docs/reference/storage.md; logs on a disk of the test, whose files are
searched for what was appended, changed with the CRC made to fit, moved, and opened with other keys.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from broker.api.batch import BatchHeader, decode_batch, encode_batch, read_header, seal, verify_batch
from broker.api.errors import (
    BadBatch,
    CorruptLog,
    DiskFull,
    InvalidSetting,
    KeyMissing,
    StorageFailed,
    WrongKeys,
)
from broker.api.schema import HEADERS_TYPE, SCHEMA, SCHEMA_BYTES
from broker.storage.disk import OsDisk
from broker.storage.encrypted.keys import Keyring, MasterKey
from broker.storage.encrypted.message import is_encrypted, read_stored_header, stored_bytes, verify_stored
from broker.storage.encrypted.vault import Vault
from broker.storage.inspect.inspection import inspect_partition
from broker.storage.inspect.repair import repair
from broker.storage.inspect.scrub import scrub
from broker.storage.log import PartitionLog
from broker.storage.memory.state_files import IDS, list_states, load_state
from broker.storage.rewrite.coalescing import CoalescingSettings, coalesce
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.rewrite.rewriting import BatchShape
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogIdentity, LogSettings, seal_json, write_identity
from tests.support.encrypted_logs import KEYRING, encrypted
from tests.support.logs import (
    FOLDER,
    IDENTITY,
    check_log,
    commit,
    create_log,
    open_log,
    plan_bytes,
    read_records,
    row_batch,
    verified_records,
)
from tests.support.rows import random_rows
from tests.support.simdisk import Crashed, SimDisk

CANARY = b"canary-of-a-user"
SETTINGS = encrypted(LogSettings(segment_bytes=6_000, dedup_window_ms=1_000_000))
KEY = bytes(range(32))


def vault(identity: LogIdentity = IDENTITY, key: bytes = KEY) -> Vault:
    return Vault({1: key}, identity, KEYRING)


def message(compression: str = "none", *, rows: int = 20, first: int = 7) -> bytearray:
    of = random_rows(random.Random(rows), rows, first_offset=first) if rows else SCHEMA.empty_table().to_batches()
    batch = of if isinstance(of, pa.RecordBatch) else pa.RecordBatch.from_pylist([], SCHEMA)
    header = BatchHeader(first_offset=first, last_offset=first + max(rows, 1) - 1, leader_epoch=3, max_timestamp_us=9)
    return encode_batch(batch, header, compression=compression)


def told(value: bytes) -> RowBatch:
    """A record that has the canary wherever a user can put it."""
    columns = [
        pa.array([5], pa.timestamp("us", "UTC")),
        pa.array([CANARY.decode() + ".subject"]),
        pa.array([CANARY + b" key"]),
        pa.array([CANARY + value]),
        pa.array([[("Nats-Msg-Id", CANARY + b" id " + value), (CANARY.decode(), CANARY)]], HEADERS_TYPE),
        pa.array([CANARY.decode() + ".reply"]),
    ]
    return RowBatch(pa.RecordBatch.from_arrays(columns, names=SCHEMA.names[1:]))


def filled(disk: SimDisk, count: int = 30, settings: LogSettings = SETTINGS) -> PartitionLog:
    log = create_log(disk, settings=settings)
    for number in range(count):
        log.append([told(b"%d" % number)], leader_epoch=1, now_us=number)
        commit(log)
    return log


def segments(disk: SimDisk) -> list[str]:
    return sorted(name for name in disk.names if name.endswith(".arrows"))


def change(disk: SimDisk, path: str, at: int, data: bytes) -> None:
    for content in (disk.names[path].content, disk.names[path].durable):
        content[at : at + len(data)] = data


def forged(disk: SimDisk, log: PartitionLog, offset: int, at: int = 500) -> tuple[str, int]:
    """Change a byte of the batch that has an offset, and make the CRC fit, there and in the index."""
    view = log.state.view()
    segment = view.segments[view.segment_of(offset)]
    index = view.index(segment)
    entry = index.entries[index.find(offset)]
    position, length = int(entry["position"]), int(entry["length"])
    batch = bytearray(disk.names[segment.path].content[position : position + length])
    batch[at] ^= 1
    entry["crc"] = seal(batch)
    change(disk, segment.path, position, bytes(batch))
    return segment.path, position


# --- one message ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("rows", [0, 1, 200])
def test_a_message_opens_to_the_bytes_that_it_was_made_of(compression: str, rows: int) -> None:
    plain = message(compression, rows=rows)
    stored = vault().encrypt(plain)
    assert len(stored) == len(plain)
    assert is_encrypted(stored)
    assert stored_bytes(stored[:888]) == len(plain)
    assert verify_stored(stored) == read_stored_header(stored)
    assert replace(read_stored_header(stored), crc=0) == replace(read_header(plain), crc=0)
    assert bytes(vault().open_message(stored)) == bytes(plain)


def test_a_library_that_writes_into_no_memory_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, stored = message(), vault().encrypt(message())
    monkeypatch.setattr("broker.storage.encrypted.vault._INTO", False)
    assert bytes(vault().open_message(stored)) == bytes(plain)
    again = vault().encrypt(plain)
    monkeypatch.undo()
    assert bytes(vault().open_message(again)) == bytes(plain)
    changed = bytearray(again)
    changed[-1] ^= 1
    seal(changed)
    with pytest.raises(BadBatch):
        vault().open_message(changed)


def test_its_bytes_are_those_that_the_document_describes() -> None:
    """Decoded by hand: docs/reference/storage.md, "Encrypted batches"."""
    plain = message()
    stored = bytes(vault().encrypt(plain))
    assert stored[:4] == b"\xff\xff\xff\xff"
    assert struct.unpack_from("<i", stored, 4) == (-880,)
    salt, nonce, number = struct.unpack_from("<16s12sI", stored, 8)
    assert (number, stored[40:48], stored[72:88]) == (1, bytes(8), bytes(16))
    name = json.dumps(["orders", "i1", 0], separators=(",", ":")).encode()
    key = HKDF(SHA256(), 32, salt, b"liftlog messages\0" + name).derive(KEY)
    aad = stored[:56] + stored[72:256]
    assert AESGCM(key).decrypt(nonce, stored[264:] + stored[56:72], aad) == plain[264:]


def test_arrow_does_not_take_it_for_a_batch() -> None:
    with (
        pytest.raises((pa.ArrowInvalid, OSError)),
        pa.ipc.open_stream(SCHEMA_BYTES + vault().encrypt(message())) as stream,
    ):
        stream.read_all()


def test_what_reads_batches_from_a_broker_refuses_it() -> None:
    stored = vault().encrypt(message())
    for read in (verify_batch, decode_batch, read_header):
        with pytest.raises(BadBatch):
            read(stored)


def test_any_byte_that_changes_is_found_though_the_crc_fits() -> None:
    stored = vault().encrypt(message(rows=1))
    for at in range(len(stored)):
        changed = bytearray(stored)
        changed[at] ^= 1
        seal(changed)
        if changed != stored:  # else it was a digit of the CRC
            with pytest.raises(BadBatch):
                vault().open_message(changed)


@pytest.mark.parametrize(
    "other",
    [
        vault(replace(IDENTITY, partition=1)),
        vault(replace(IDENTITY, stream="other")),
        vault(replace(IDENTITY, incarnation="i2")),
        vault(key=bytes(32)),
    ],
)
def test_another_log_does_not_open_it(other: Vault) -> None:
    with pytest.raises(BadBatch, match="not what was encrypted here"):
        other.open_message(vault().encrypt(message()))


def test_a_batch_that_is_not_encrypted_is_refused_in_a_log_that_is() -> None:
    with pytest.raises(BadBatch, match="not encrypted"):
        vault().open_message(message())


def test_no_nonce_comes_twice() -> None:
    """Under one salt nonces differ; who opens the log again has another salt."""
    one, plain = vault(), message(rows=1)
    drawn = {bytes(one.encrypt(plain)[8:36]) for _ in range(2_000)}
    assert len(drawn) == 2_000
    assert len({salt[:16] for salt in drawn}) == 1
    assert bytes(vault().encrypt(plain)[8:24]) not in {salt[:16] for salt in drawn}


# --- keys -----------------------------------------------------------------------------------------------------------


def test_a_master_key_is_32_bytes_in_base64() -> None:
    text = base64.b64encode(KEY)
    assert MasterKey.parse(b"\n " + text + b"\n", where="f").id == MasterKey(KEY).id
    for bad in (b"", b"pa55word", text[:-4], base64.b64encode(bytes(31)), text + b" x", bytes(300)):
        with pytest.raises(InvalidSetting) as raised:
            MasterKey.parse(bad, where="f")
        assert not bad or bad.decode() not in str(raised.value)


def test_without_its_master_key_a_log_is_not_opened_and_nothing_changes() -> None:
    disk = SimDisk()
    filled(disk).close()
    before = {name: bytes(inode.content) for name, inode in disk.names.items()}
    other = Keyring([MasterKey(b"o" * 32)])
    for keyring, says in ((None, "given no master key"), (other, f"wrapped by master key {KEYRING.current}")):
        with pytest.raises(KeyMissing, match=says):
            open_log(disk, settings=encrypted(SETTINGS, keyring))
    assert {name: bytes(inode.content) for name, inode in disk.names.items()} == before
    assert len(verified_records(open_log(disk, settings=SETTINGS))) == 30


def test_without_a_master_key_none_is_made() -> None:
    disk = SimDisk()
    with pytest.raises(KeyMissing):
        create_log(disk, settings=encrypted(SETTINGS, None))
    assert not disk.names
    assert not disk.exists(FOLDER)


def test_a_log_that_was_opened_before_its_stream_was_known_is_encrypted_from_then_on() -> None:
    disk = SimDisk()
    filled(disk, 3).close()
    log = create_log(disk, folder=f"{FOLDER}1", settings=replace(SETTINGS, is_encrypted=False))
    log.remembered.update_settings(SETTINGS)
    log.append([told(b"first")], leader_epoch=1, now_us=0)
    commit(log)
    assert [value for _, _, value in verified_records(log)] == [CANARY + b"first"]
    log.close()
    assert not any(CANARY in bytes(inode.content) for inode in disk.names.values())
    disk.lose(f"{FOLDER}1/keys")
    disk.lose(f"{FOLDER}1/keys.copy")
    with pytest.raises(WrongKeys, match="missing"):
        open_log(disk, folder=f"{FOLDER}1", settings=replace(SETTINGS, is_encrypted=False))


def test_a_log_is_wrapped_anew_when_it_is_opened_by_another_master_key() -> None:
    disk = SimDisk()
    filled(disk).close()
    new, old = MasterKey(b"n" * 32), KEYRING.masters[0]
    records = open_log(disk, settings=encrypted(SETTINGS, Keyring([new, old])))
    found = verified_records(records)
    records.close()
    disk = disk.after_crash("lost")
    with pytest.raises(KeyMissing):
        open_log(disk, settings=SETTINGS)
    assert verified_records(open_log(disk, settings=encrypted(SETTINGS, Keyring([new])))) == found


@pytest.mark.parametrize("name", ["keys", "keys.copy"])
@pytest.mark.parametrize("is_lost", [True, False])
def test_one_of_the_two_files_of_keys_may_go(name: str, is_lost: bool) -> None:
    disk = SimDisk()
    filled(disk).close()
    whole = bytes(disk.names[f"{FOLDER}/{name}"].content)
    if is_lost:
        disk.lose(f"{FOLDER}/{name}")
    else:
        disk.flip(f"{FOLDER}/{name}", 300)
    assert len(verified_records(open_log(disk, settings=SETTINGS))) == 30
    assert bytes(disk.names[f"{FOLDER}/{name}"].content) == whole


def test_without_both_nothing_is_made_anew() -> None:
    disk = SimDisk()
    filled(disk).close()
    flipped = disk.after_crash("lost")
    for name in ("keys", "keys.copy"):
        disk.lose(f"{FOLDER}/{name}")
        flipped.flip(f"{FOLDER}/{name}", 300)
    with pytest.raises(WrongKeys, match="missing"):
        open_log(disk, settings=SETTINGS)
    assert not disk.exists(f"{FOLDER}/keys")
    with pytest.raises(WrongKeys, match="damaged"):
        open_log(flipped, settings=SETTINGS)
    for each in (disk, flipped):
        assert inspect_partition(each, FOLDER, keyring=KEYRING).of_kind("wrong_keys")
        assert repair(each, FOLDER, now_us=0, keyring=KEYRING).refused


def test_on_a_full_disk_no_log_is_made_and_one_that_is_there_opens() -> None:
    disk = SimDisk()
    filled(disk).close()
    new = Keyring([MasterKey(b"n" * 32), *KEYRING.masters])
    disk.bytes_max = disk.used_bytes
    assert len(verified_records(open_log(disk, settings=encrypted(SETTINGS, new)))) == 30
    with pytest.raises(DiskFull):
        PartitionLog.create(disk, f"{FOLDER}1", replace(IDENTITY, partition=1), SETTINGS, now_us=0)
    disk.heal()
    assert len(verified_records(open_log(disk, settings=SETTINGS))) == 30, "it is wrapped as it was"


def test_keys_that_were_put_back_from_elsewhere_are_not_taken_and_write_over_nothing() -> None:
    """Those of another replica, or of before it began anew, are of the same log by name, and unwrap."""
    disk, other = SimDisk(), SimDisk()
    filled(disk).close()
    PartitionLog.create(other, FOLDER, IDENTITY, SETTINGS, now_us=0).close()
    for name in ("keys", "keys.copy"):
        there = disk.after_crash("lost")
        there.replace_file(f"{FOLDER}/{name}", other.read_file(f"{FOLDER}/{name}"))
        before = {each: there.read_file(f"{FOLDER}/{each}") for each in ("keys", "keys.copy")}
        with pytest.raises(WrongKeys, match="of different keys"):
            open_log(there, settings=SETTINGS)
        assert before == {each: there.read_file(f"{FOLDER}/{each}") for each in before}
        there.lose(f"{FOLDER}/{name}")
        assert len(verified_records(open_log(there, settings=SETTINGS))) == 30


@pytest.mark.parametrize("name", ["keys", "keys.copy"])
def test_a_file_of_keys_that_does_not_unwrap_leaves_the_other_one_to_open_the_log(name: str) -> None:
    disk, other = SimDisk(), SimDisk()
    filled(disk).close()
    PartitionLog.create(other, FOLDER, replace(IDENTITY, stream="other"), SETTINGS, now_us=0).close()
    disk.replace_file(f"{FOLDER}/{name}", other.read_file(f"{FOLDER}/{name}"))
    assert len(verified_records(open_log(disk, settings=SETTINGS))) == 30
    assert disk.read_file(f"{FOLDER}/{name}") == other.read_file(f"{FOLDER}/{name}"), "it is somebody's"


@pytest.mark.parametrize("name", ["keys", "keys.copy"])
def test_a_file_of_keys_that_cannot_be_read_is_written_anew_from_the_other(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimDisk()
    filled(disk).close()
    real, before = disk.read_file, disk.read_file(f"{FOLDER}/{name}")

    def read_file(path: str) -> bytes:
        if path == f"{FOLDER}/{name}":
            raise OSError(errno.EIO, "a bad sector")
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "read_file", read_file)
        assert len(verified_records(open_log(disk, settings=SETTINGS))) == 30
    assert disk.read_file(f"{FOLDER}/{name}") == before


def test_a_folder_says_that_it_is_encrypted_to_releases_that_would_take_that_for_damage() -> None:
    """Seen before: one cut the log, and said that its records were lost."""
    disk = SimDisk()
    filled(disk).close()
    create_log(disk, folder=f"{FOLDER}1", settings=replace(SETTINGS, is_encrypted=False)).close()
    versions = [
        json.loads(disk.read_file(f"{folder}/partition.json"))["format_version"] for folder in (FOLDER, f"{FOLDER}1")
    ]
    assert versions == [2, 1]


def test_a_log_whose_stream_does_not_say_so_any_more_stays_encrypted() -> None:
    """Seen before, of a broker that is alone: it took records in clear, and served ciphertext."""
    disk = SimDisk()
    filled(disk).close()
    log = open_log(disk, settings=replace(SETTINGS, is_encrypted=False))
    log.append([told(b"more")], leader_epoch=1, now_us=0)
    commit(log)
    assert verified_records(log)[-1][2] == CANARY + b"more"
    log.close()
    assert not any(CANARY in bytes(inode.content) for inode in disk.names.values())
    with pytest.raises(KeyMissing):
        open_log(disk, settings=replace(SETTINGS, is_encrypted=False, keyring=None))


def test_keys_of_another_log_are_refused() -> None:
    disk, other = SimDisk(), SimDisk()
    filled(disk).close()
    PartitionLog.create(other, FOLDER, replace(IDENTITY, stream="other"), SETTINGS, now_us=0).close()
    for name in ("keys", "keys.copy"):
        disk.replace_file(f"{FOLDER}/{name}", other.read_file(f"{FOLDER}/{name}"))
    with pytest.raises(WrongKeys, match="another log"):
        open_log(disk, settings=SETTINGS)


def contents(disk: SimDisk) -> dict[str, bytes]:
    return {name: bytes(inode.content) for name, inode in disk.names.items()}


def with_keys_of(disk: SimDisk, other: SimDisk, *more: str) -> SimDisk:
    """A copy of a log's disk with both files of keys, and more files, of another replica of it."""
    there = disk.after_crash("lost")
    for name in ("keys", "keys.copy", *more):
        there.replace_file(f"{FOLDER}/{name}", other.read_file(f"{FOLDER}/{name}"))
    return there


def check_refused(disk: SimDisk, **options: str) -> None:
    """Nothing is opened or written, by whatever door."""
    before = contents(disk)
    for settings in (SETTINGS, replace(SETTINGS, is_sole_replica=False), replace(SETTINGS, is_encrypted=False)):
        with pytest.raises(WrongKeys, match="those of another replica"):
            open_log(disk, settings=settings, **options)  # type: ignore[arg-type]
    assert inspect_partition(disk, FOLDER, keyring=KEYRING).of_kind("wrong_keys")
    assert "another replica" in str(repair(disk, FOLDER, now_us=0, keyring=KEYRING).refused)
    assert contents(disk) == before


@pytest.mark.parametrize("is_clean", [True, False])
def test_keys_of_another_replica_or_of_before_it_began_anew_open_nothing(is_clean: bool) -> None:
    """Seen before: the log opened, all that was stored was `bad_batch`, and records came with the other key."""
    disk, other = SimDisk(), SimDisk()
    for each in (disk, other):
        filled(each).close(clean=is_clean)
    check_refused(with_keys_of(disk, other))
    check_refused(with_keys_of(disk, other), boot_id="another")
    back = open_log(with_keys_of(disk, disk), settings=SETTINGS)
    commit(back)
    assert len(verified_records(back)) == 30


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("count", [10, 20])
@pytest.mark.parametrize("boot", [{}, {"boot_id": "another"}], ids=["same boot", "another boot"])
def test_keys_that_were_put_back_with_all_small_files_open_nothing(
    is_clean: bool, count: int, boot: dict[str, str]
) -> None:
    """As a copy of before the replica began anew, without its segments, brings them. Its checkpoint may be clean."""
    disk, other = SimDisk(), SimDisk()
    filled(disk).close(clean=is_clean)
    filled(other, count).close()
    check_refused(with_keys_of(disk, other, "checkpoint", "partition.json", "epochs"), **boot)


def test_a_log_without_a_batch_knows_its_keys_by_its_checkpoint() -> None:
    disk, other = SimDisk(), SimDisk()
    for each in (disk, other):
        log = filled(each)
        log.reset(30)
        assert verified_records(log) == []
        log.close()
    check_refused(with_keys_of(disk, other))


def test_a_log_whose_checkpoint_says_nothing_is_proven_by_its_batches() -> None:
    """It is damaged, or of a build that did not write the check value yet; the next checkpoint has it."""
    disk, other = SimDisk(), SimDisk()
    for each in (disk, other):
        filled(each).close()
    flipped = disk.after_crash("lost")
    flipped.flip(f"{FOLDER}/checkpoint", 300)
    check_refused(with_keys_of(flipped, other))
    path = f"{FOLDER}/checkpoint"
    values = json.loads(disk.read_file(path).rpartition(b" ")[0])
    assert values.pop("key") == open_vault(disk).check
    del values["format_version"]
    disk.replace_file(path, seal_json(values))
    check_refused(with_keys_of(disk, other))
    log = open_log(disk, settings=SETTINGS)
    log.append([told(b"more")], leader_epoch=1, now_us=40)
    commit(log)
    log.close()
    assert json.loads(disk.read_file(path).rpartition(b" ")[0])["key"] == open_vault(disk).check


def open_vault(disk: SimDisk) -> Vault:
    return Vault.open(disk, FOLDER, IDENTITY, KEYRING, is_empty=False)


def test_batches_that_are_damaged_or_changed_do_not_speak_against_the_keys() -> None:
    disk = SimDisk()
    log = filled(disk, 6, replace(SETTINGS, segment_bytes=1 << 20))
    forged(disk, log, 0)
    entry = log.state.view().index(log.state.view().segments[0]).entries[1]
    disk.flip(segments(disk)[0], 8 * (int(entry["position"]) + 700))
    log.close(clean=False)
    vault = open_vault(disk.after_crash("lost"))
    assert vault.is_of(open_vault(disk).check)


def test_a_disk_that_does_not_read_a_batch_does_not_speak_against_the_keys() -> None:
    disk = SimDisk()
    filled(disk).close(clean=False)
    for call in ("open", "pread"):
        found = disk.after_crash("lost")
        found.fail(call, errno.EIO, path=segments(disk)[-1])
        assert open_log(found, settings=SETTINGS, boot_id="another").state.log_end_offset == 30
        found = disk.after_crash("lost")
        found.lose(f"{FOLDER}/checkpoint")
        found.fail(call, errno.EIO, path=".arrows", times=len(segments(disk)))
        with pytest.raises(StorageFailed):
            open_log(found, settings=SETTINGS, boot_id="another")
        assert open_log(found, settings=SETTINGS, boot_id="another").state.log_end_offset == 30


def test_without_both_files_a_log_is_not_taken_for_one_in_clear() -> None:
    """Nor where the catalog does not know its stream."""
    disk = SimDisk()
    filled(disk).close()
    for name in ("keys", "keys.copy"):
        disk.lose(f"{FOLDER}/{name}")
    for keyring, error in ((KEYRING, WrongKeys), (None, KeyMissing)):
        with pytest.raises(error):
            open_log(disk, settings=replace(SETTINGS, is_encrypted=False, keyring=keyring))


def test_nor_without_the_mark_in_its_identity() -> None:
    """Seen before: a broker of a cluster opened it as one in clear, registered it, and could not use it."""
    disk = SimDisk()
    filled(disk).close()
    write_identity(disk, FOLDER, IDENTITY)
    for name in ("keys", "keys.copy"):
        disk.lose(f"{FOLDER}/{name}")
    with pytest.raises(WrongKeys, match="is missing"):
        open_log(disk, settings=replace(SETTINGS, is_encrypted=False))
    plain = SimDisk()
    filled(plain, settings=replace(SETTINGS, is_encrypted=False)).close()
    for path in [*segments(disk), *(path.replace(".arrows", ".index") for path in segments(disk))]:
        disk.lose(path)
    for path, inode in plain.names.items():
        if path.endswith((".arrows", ".index")):
            disk.replace_file(path, bytes(inode.content))
    assert inspect_partition(disk, FOLDER, keyring=KEYRING).of_kind("wrong_keys"), "seen before: all was well"


def test_files_of_keys_that_cannot_be_read_may_be_brought_back(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    filled(disk).close()
    before = contents(disk)
    for number, raised in ((errno.EACCES, WrongKeys), (errno.EIO, WrongKeys), (errno.EMFILE, StorageFailed)):
        real = disk.read_file

        def read_file(path: str, number: int = number, real: Callable[[str], bytes] = real) -> bytes:
            if path.startswith(f"{FOLDER}/keys"):
                raise OSError(number, "refused")
            return real(path)

        with monkeypatch.context() as patched:
            patched.setattr(disk, "read_file", read_file)
            with pytest.raises(raised):
                open_log(disk, settings=SETTINGS)
    assert contents(disk) == before
    assert len(verified_records(open_log(disk, settings=SETTINGS))) == 30


@pytest.mark.parametrize("how", ["checkpoint", "close"])
@pytest.mark.parametrize("names", [("keys",), ("keys.copy",), ("keys", "keys.copy")])
@pytest.mark.parametrize("is_lost", [True, False])
def test_what_goes_of_the_keys_of_an_open_log_is_written_anew(how: str, names: tuple[str, ...], is_lost: bool) -> None:
    """As a tool for backups does it on all brokers at once: the memory of an open log is the last place with them."""
    disk = SimDisk()
    filled(disk).close()
    log = open_log(disk, settings=SETTINGS)
    for name in names:
        if is_lost:
            disk.lose(f"{FOLDER}/{name}")
        else:
            disk.flip(f"{FOLDER}/{name}", 300)
    if how == "close":
        log.close()
    else:
        log.append([told(b"more")], leader_epoch=1, now_us=40)
        commit(log)
        log.checkpoint()
    found = disk.after_crash("lost")
    assert found.read_file(f"{FOLDER}/keys") == found.read_file(f"{FOLDER}/keys.copy")
    log = open_log(found, settings=SETTINGS, boot_id="another")
    commit(log)
    assert len(verified_records(log)) == (30 if how == "close" else 31)


def test_keys_that_were_put_beside_an_open_log_are_not_written_over() -> None:
    disk, other = SimDisk(), SimDisk()
    log = filled(disk)
    filled(other).close()
    for name, gone in (("keys", "keys.copy"), ("keys.copy", "keys")):
        disk.replace_file(f"{FOLDER}/{name}", other.read_file(f"{FOLDER}/{name}"))
        disk.unlink(f"{FOLDER}/{gone}")
        log.checkpoint()
        assert not disk.exists(f"{FOLDER}/{gone}")
        assert disk.read_file(f"{FOLDER}/{name}") == other.read_file(f"{FOLDER}/{name}")


def test_the_power_goes_at_any_step_of_the_first_open_and_of_another_master_key() -> None:
    new = Keyring([MasterKey(b"n" * 32), *KEYRING.masters])
    steps = 0
    for made in (False, True):
        for crash_at in range(1, 200):
            disk = SimDisk()
            if made:
                filled(disk, 3).close()
                disk = disk.after_crash("lost", crash_at=crash_at)
            else:
                disk.crash_at = crash_at
            try:
                if made:
                    open_log(disk, settings=encrypted(SETTINGS, new)).close()
                else:
                    filled(disk, 1).close()
                break
            except Crashed:
                steps += 1
            found = disk.after_crash("lost")
            if found.exists(f"{FOLDER}/partition.json"):
                log = open_log(found, settings=encrypted(SETTINGS, new), boot_id="another")
                log.append([told(b"more")], leader_epoch=1, now_us=9)
                commit(log)
                assert verified_records(log)[-1][2] == CANARY + b"more"
                assert not made or len(verified_records(log)) == 4
    assert steps > 20


# --- a log ----------------------------------------------------------------------------------------------------------


def nothing_told(disk: SimDisk) -> None:
    """No file has what users sent, nor what could be held against a guess of it."""
    assert disk.names
    for path, inode in disk.names.items():
        assert CANARY not in bytes(inode.content), path
    for offset in list_states(disk, FOLDER):
        assert load_state(disk, FOLDER, offset) is None, "without its key a state file says nothing"


def test_no_file_has_what_users_sent() -> None:
    disk = SimDisk()
    log = filled(disk)
    assert len(segments(disk)) > 3
    check_log(log, disk)
    log.close()
    nothing_told(disk)
    log = open_log(disk, settings=SETTINGS)
    assert log.state.recovery.clean
    state = log.remembered.states.load(30)
    assert state is not None
    assert IDS in state
    assert [value for _, _, value in read_records(log, 0)] == [CANARY + b"%d" % number for number in range(30)]


def test_after_a_power_cut_it_is_what_was_synced() -> None:
    disk = SimDisk()
    log = filled(disk, 7)
    log.append([told(b"never synced")], leader_epoch=1, now_us=9)
    found = open_log(disk.after_crash("lost"), settings=SETTINGS, boot_id="another")
    commit(found)
    assert [value for _, _, value in read_records(found, 0)] == [CANARY + b"%d" % number for number in range(7)]
    assert found.state.lost_ranges == ()


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_compaction_and_coalescing_keep_it_encrypted(compression: str) -> None:
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    for number in range(60):
        log.append([told(b"%d" % number), row_batch([b"%d" % number])], leader_epoch=1, now_us=number)
        commit(log)
    log.roll_if_due(1 << 60)
    shape = BatchShape(compression=compression)
    compact(log, CompactionSettings(min_cleanable_dirty_percent=0), map_bytes=1 << 16, now_us=1 << 50, shape=shape)
    while (report := coalesce(log, CoalescingSettings(shape=shape), {}, now_us=1 << 50)) is not None:
        assert not report.failed
    check_scrubbed(log)
    log.close()
    nothing_told(disk)
    log = open_log(disk.after_crash("lost"), settings=SETTINGS)
    values = [value for _, _, value in verified_records(log)]
    assert values[-2:] == [CANARY + b"59", b"59"]
    assert values.count(CANARY + b"59") == 1
    assert inspect_partition(disk, FOLDER, keyring=KEYRING).findings == []


def check_scrubbed(log: PartitionLog) -> None:
    offset = 0
    while (piece := scrub(log, offset, bytes_max=1 << 20)) is not None:
        offset = piece.next_offset
    assert log.state.lost_ranges == ()


def test_a_follower_encrypts_what_its_leader_sends_with_a_key_of_its_own() -> None:
    theirs, ours = SimDisk(), SimDisk()
    leader = filled(theirs)
    follower = create_log(ours, settings=replace(SETTINGS, is_sole_replica=False))
    follower.follow(1)
    while follower.state.log_end_offset < 30:
        with leader.reader.read(follower.state.log_end_offset, max_bytes=4_000, stored=True) as plan:
            sent = plan_bytes(plan)
        assert CANARY in sent
        follower.append_stored(sent, leader_epoch=1, now_us=0)
    commit(follower)
    nothing_told(ours)
    assert verified_records(follower) == verified_records(leader)
    check_log(follower, ours)
    assert theirs.read_file(f"{FOLDER}/keys") != ours.read_file(f"{FOLDER}/keys")
    follower.truncate(11)
    with leader.reader.read(11, stored=True) as plan:
        follower.append_stored(plan_bytes(plan), leader_epoch=1, now_us=0)
    commit(follower)
    assert verified_records(follower) == verified_records(leader)


# --- tampered with --------------------------------------------------------------------------------------------------


def test_a_batch_that_was_changed_is_not_served_and_those_before_it_are() -> None:
    disk = SimDisk()
    log = filled(disk, 6, replace(SETTINGS, segment_bytes=1 << 20))
    forged(disk, log, 4)
    before = {name: bytes(inode.content) for name, inode in disk.names.items()}
    with log.reader.read(2) as plan:
        assert plan.next_offset == 4
        assert plan.batch_count == len(plan_bytes(plan)) // (plan.bytes // plan.batch_count) == 2
    with pytest.raises(BadBatch, match="changed, moved"):
        log.reader.read(4, repairs=False)
    with pytest.raises(BadBatch, match="not encrypted here"):
        log.reader.read(4)
    with pytest.raises(CorruptLog):
        list(log.reader.batches(0))
    assert log.state.lost_ranges == (), "its disk is well: nothing is given up"
    assert [value for _, _, value in read_records(log, 5)] == [CANARY + b"5"]
    assert {name: bytes(inode.content) for name, inode in disk.names.items() if name.endswith(".arrows")} == {
        name: content for name, content in before.items() if name.endswith(".arrows")
    }


def test_who_verifies_with_the_key_finds_it_and_without_it_says_what_was_not_looked_at() -> None:
    disk = SimDisk()
    log = filled(disk)
    path, position = forged(disk, log, 4)
    log.close()
    found = inspect_partition(disk, FOLDER, keyring=KEYRING)
    assert [(each.kind, each.path, each.position) for each in found.of_kind("tampered")] == [
        ("tampered", path, position)
    ]
    without = inspect_partition(disk, FOLDER)
    assert without.of_kind("tampered") == []
    assert "without the master key" in " ".join(without.notes)


def test_a_batch_in_the_place_of_another_is_found() -> None:
    """The one before it, with the offsets, the CRC and the index of the one that stood there."""
    disk = SimDisk()
    log = filled(disk, 4)
    view = log.state.view()
    index = view.index(view.segments[0])
    entries = [index.entries[at] for at in range(2)]
    content = disk.names[view.segments[0].path].content
    old, new = (bytes(content[int(e["position"]) : int(e["position"]) + int(e["length"])]) for e in entries)
    assert len(old) == len(new)
    moved = bytearray(old[:88] + new[88:264] + old[264:])
    entries[1]["crc"] = seal(moved)
    change(disk, view.segments[0].path, int(entries[1]["position"]), bytes(moved))
    with pytest.raises(BadBatch):
        log.reader.read(1)


def test_rot_is_damage_as_in_any_log() -> None:
    disk = SimDisk()
    log = filled(disk, 6, replace(SETTINGS, segment_bytes=1 << 20))
    view = log.state.view()
    entry = view.index(view.segments[0]).entries[3]
    disk.flip(view.segments[0].path, 8 * (int(entry["position"]) + 700))
    with pytest.raises(BadBatch):
        log.reader.read(3, repairs=False)
    assert log.state.lost_ranges == (), "who asks so looks for himself, and tells of it"
    assert [value for _, _, value in read_records(log, 3)] == [CANARY + b"4", CANARY + b"5"]
    assert log.state.lost_ranges == ((3, 4),)


def test_repair_needs_the_key() -> None:
    disk = SimDisk()
    filled(disk).close()
    disk.lose(segments(disk)[0].replace(".arrows", ".index"))
    assert "encrypted" in str(repair(disk, FOLDER, now_us=0).refused)
    report = repair(disk, FOLDER, now_us=0, keyring=KEYRING)
    assert not report.refused
    assert report.after is not None
    assert report.after.findings == []
    nothing_told(disk)


def test_tampering_with_a_state_file_leaves_it_out() -> None:
    disk = SimDisk()
    filled(disk).close()
    path = f"{FOLDER}/state-{30:020d}"
    data = bytearray(disk.read_file(path))
    for at in (0, 9, 20, 40, len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 1
        disk.replace_file(path, bytes(changed))
        assert open_log(disk, settings=SETTINGS).remembered.states.load(30) is None


def test_a_log_that_is_not_encrypted_has_none_of_this() -> None:
    disk = SimDisk()
    log = filled(disk, 5, replace(SETTINGS, is_encrypted=False))
    with log.reader.read(0) as plan:
        assert not plan.is_opened
    assert not disk.exists(f"{FOLDER}/keys")
    log.close()
    stored = bytes(disk.names[segments(disk)[0]].content)
    with pa.ipc.open_stream(stored) as stream:
        assert CANARY in stream.read_all().column("value")[0].as_py()


@pytest.mark.parametrize("into", [True, False])
def test_a_read_reserves_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, into: bool) -> None:
    """Long messages behind short ones: memory that is used again grows."""
    monkeypatch.setattr("broker.storage.encrypted.vault._INTO", into)
    log = PartitionLog.create(OsDisk(), str(tmp_path / "log"), IDENTITY, encrypted(LogSettings()), now_us=0)
    for size in (1_000_000, 2_000_000, 1_500_000):
        log.append([row_batch([bytes(size)])], leader_epoch=1, now_us=0)
    commit(log)
    reserved = [0]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()

        def reserve(byte_count: int) -> None:
            """What was reserved last was enough until now."""
            assert tracemalloc.get_traced_memory()[1] - before + held() <= max(reserved) + 100_000
            tracemalloc.reset_peak()
            reserved.append(byte_count)

        def held() -> int:
            """Of the file in memory, which is no memory of Python."""
            return sum(os.stat(f"/proc/self/fd/{fd}").st_size for fd in memory_files())

        with log.reader.read(0, reserve=reserve) as plan:
            assert plan.batch_count == 3
            peak = tracemalloc.get_traced_memory()[1] - before + plan.bytes
    finally:
        tracemalloc.stop()
        log.close()
    assert peak <= max(reserved) + 100_000
    assert max(reserved) < 12_000_000


def memory_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if "liftlog-made" in os.readlink(f"/proc/self/fd/{fd}"):
                found.append(fd)
    return found
