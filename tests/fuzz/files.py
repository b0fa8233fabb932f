"""Decoders of what is on disk: each file of a partition's folder, the catalog, who owns a data folder, settings.

A file of a partition is met as the broker meets it: it stands in a folder whose other files are good, the log is
opened (after a kill, and after a clean stop), read in every way, appended to and opened again. This must hold for all
bytes:

- it is a `CorruptLog`, or a log; of a log, offsets are strictly increasing, and the append is there at the next open;
- every record that is served stands in a batch in the segment's bytes whose CRC covers it, by a search of our own
  over all positions (`covered`);
- `liftlog log verify` and `repair` say something about it, and what repair leaves opens.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypedDict

import click
import pyarrow as pa
from crc32c import crc32c

from broker.api.batch import BatchHeader, decode_batch, encode_batch, read_header, seal, verify_batch
from broker.api.checked import verified, verified_known
from broker.api.columns import known_of
from broker.api.compression import PACKED_HEADER_BYTES
from broker.api.errors import BadBatch, CorruptLog, InvalidRequest, KeyMissing, UnknownFormatVersion
from broker.api.schema import SCHEMA_BYTES
from broker.background.scrubber import load_position
from broker.cli.commands.broker import assigned
from broker.cli.local.datafolder import UpFolder
from broker.cli.options import byte_count, duration_ms, number, position
from broker.client.http.address import parse_addresses
from broker.client.http.profiles import read_profile
from broker.config.configuration import load
from broker.control import membership
from broker.control.catalog_store import CatalogStore
from broker.groups.offsets import ConsumerOffset, OffsetTable, decode_offset
from broker.groups.pins import decode_pin
from broker.groups.progress import GroupTable, decode_group_offset
from broker.metadata.journal import encode_line
from broker.sinks.ledger import Ledger
from broker.sinks.notes import decode_note, encode_note
from broker.sinks.restamp import RestampedBatch
from broker.sinks.stages import StageTable
from broker.sinks.state import SinkState
from broker.storage.disk import OsDisk
from broker.storage.folder import DataFolder
from broker.storage.inspect.inspection import inspect_partition
from broker.storage.inspect.places import owner_of
from broker.storage.inspect.repair import repair
from broker.storage.log import PartitionLog
from broker.storage.memory.ids import IdTable
from broker.storage.memory.producers import ProducerTable
from broker.storage.memory.state_files import decode_state, state_name
from broker.storage.memory.subjects import SubjectTable, read_head
from broker.storage.rewrite.compaction import CompactionSettings, compact
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.segments.index import counted_entries, sealed_entries
from tests.fuzz.decoder import Decoder
from tests.support.logs import FOLDER, IDENTITY, commit, create_log, open_log, plan_bytes, row_batch, stamped
from tests.support.simdisk import Inode, SimDisk

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "format-v1"
SETTINGS: Final = LogSettings(segment_bytes=3_000)
COMPACTION: Final = CompactionSettings(min_cleanable_dirty_percent=0, delete_retention_ms=0)
STATE_OFFSET: Final = 4
EPOCH_MAX: Final = (1 << 32) - 1
JSON_WORDS: Final = (b"null", b"true", b"NaN", b"Infinity", b"1e999", b'"v":2', b"[[[[", b'{"a":', b"\\ud800")


# --- a partition's folder -------------------------------------------------------------------------------------------


@functools.cache
def folder(*, is_clean: bool) -> SimDisk:
    """A small log with all kinds of files: two sealed segments, an active one, a producer, a compaction."""
    disk = SimDisk()
    log = create_log(disk, settings=SETTINGS)
    for i in range(4):
        log.append([stamped([b"p%d" % i], 7, 0, i)], leader_epoch=1, now_us=i)
        commit(log)
    log.append([row_batch([b"x" * 40, b"y"]), row_batch([b"z"])], leader_epoch=2, now_us=9)
    commit(log)
    log.roll_if_due(1 << 60)
    compact(log, COMPACTION, map_bytes=1 << 12, now_us=9)
    log.append([row_batch([b"tail"])], leader_epoch=3, now_us=10)
    commit(log)
    log.checkpoint()
    if is_clean:
        log.close()
    else:
        log.append([row_batch([b"after", b"the", b"checkpoint"])], leader_epoch=3, now_us=10)
        log.syncer.sync()
    return disk.after_kill()


def with_file(name: str, data: bytes, *, is_clean: bool) -> SimDisk:
    disk = folder(is_clean=is_clean).after_kill()
    disk.names[f"{FOLDER}/{name}"] = Inode(bytearray(data), bytearray(data))
    return disk


def covered(disk: SimDisk) -> set[tuple[int, bytes | None]]:
    """(offset, value) of every record in a batch that stands anywhere in a segment with a CRC that fits."""
    found: set[tuple[int, bytes | None]] = set()
    for path, inode in disk.names.items():
        data = bytes(inode.content) if path.endswith(".arrows") else b""
        at = data.find(b"\xff\xff\xff\xff")
        while at >= 0:
            length = 8 + int.from_bytes(data[at + 4 : at + 8], "little", signed=True)
            length += int.from_bytes(data[at + 48 : at + 56], "little", signed=True)
            if 888 <= length <= len(data) - at:
                found |= _records_of(data[at : at + length])
            at = data.find(b"\xff\xff\xff\xff", at + 1)
    return found


@functools.lru_cache(maxsize=256)
def _records_of(message: bytes) -> set[tuple[int, bytes | None]]:
    if message[256:264] != b"%08x" % crc32c(message[:256] + b"00000000" + message[264:]):
        return set()
    try:
        rows = decode_batch(message)
    except CorruptLog:
        return set()
    return set(zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True))


def read_all(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    """Every record, by `batches`; then by `read` as a client would take it: a batch that is damaged is not decoded."""
    found: list[tuple[int, bytes | None]] = []
    for message in log.reader.batches(log.state.log_start_offset):
        rows = decode_batch(message)
        found += zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True)
    offset = log.state.log_start_offset
    while offset < log.state.high_watermark:
        with log.reader.read(offset, max_bytes=2_000) as plan:
            sent = plan_bytes(plan)
            assert len(sent) == plan.bytes
            assert plan.next_offset > offset
            offset = plan.next_offset
    log.reader.offset_for_time(5)
    log.epochs.epoch_of(log.state.log_start_offset)
    log.epochs.end_of(1)
    log.reader.bytes_between(log.state.log_start_offset, log.state.high_watermark)
    return found


def meet_log(disk: SimDisk, boot_id: str) -> None:
    log = open_log(disk, settings=SETTINGS, boot_id=boot_id)
    log.state.advance_high_watermark(log.state.durable_end)
    served = read_all(log)
    offsets = [offset for offset, _ in served]
    assert offsets == sorted(set(offsets)), "S1"
    assert set(served) <= covered(disk), "served and not covered by a CRC"
    result = log.append([row_batch([b"new"])], leader_epoch=EPOCH_MAX, now_us=11)
    commit(log)
    log.roll_if_due(1 << 60)
    compact(log, COMPACTION, map_bytes=1 << 12, now_us=12)
    log.close()
    log = open_log(disk, settings=SETTINGS, boot_id=boot_id)
    log.state.advance_high_watermark(log.state.durable_end)
    assert (result.first_offset, b"new") in read_all(log)
    log.trim(log.state.high_watermark)
    log.close()
    assert disk.open_files == 0


def meet_after_kill(name: str) -> Callable[[bytes], None]:
    """A check of one file of the folder."""
    return lambda data: meet_log(with_file(name, data, is_clean=False), "boot-2")


def meet_after_stop(name: str) -> Callable[[bytes], None]:
    return lambda data: meet_log(with_file(name, data, is_clean=True), "boot-1")


def meet_offline(name: str) -> Callable[[bytes], None]:
    """By `liftlog log`, which finds something to say of all bytes."""

    def check(data: bytes) -> None:
        disk = with_file(name, data, is_clean=True)
        inspect_partition(disk, FOLDER, expected=IDENTITY)
        report = repair(disk, FOLDER, now_us=1, expected=IDENTITY)
        if report.after is not None and not report.refused:
            open_log(disk, settings=SETTINGS).close(clean=False)

    return check


class Checks(TypedDict):
    """Of a file of the folder."""

    check: Callable[[bytes], None]
    checks_more: tuple[Callable[[bytes], None], ...]


def meet_file(name: str) -> Checks:
    return {"check": meet_after_kill(name), "checks_more": (meet_after_stop(name), meet_offline(name))}


# --- seals ----------------------------------------------------------------------------------------------------------


def unseal_json(data: bytes) -> bytes:
    return data.rstrip(b"\n").rpartition(b" ")[0]


def seal_json(inner: bytes) -> bytes:
    return b"%s %08x\n" % (inner, crc32c(inner))


def unseal_tail(data: bytes) -> bytes:
    return data[:-4]


def seal_tail(inner: bytes) -> bytes:
    return inner + crc32c(inner).to_bytes(4, "little")


def seal_index(inner: bytes) -> bytes:
    """The footer of a sealed segment's index over these entries."""
    inner = inner[: len(inner) // 32 * 32]
    end = 568
    if inner:
        end = int.from_bytes(inner[-24:-16], "little", signed=True) + int.from_bytes(inner[-8:-4], "little")
    footer = b"LIFTINDX" + (1).to_bytes(4, "little") + crc32c(inner).to_bytes(4, "little")
    return inner + footer + (len(inner) // 32).to_bytes(8, "little") + (end % (1 << 63)).to_bytes(8, "little")


def unseal_journal(data: bytes) -> bytes:
    """The last command."""
    return data.rstrip(b"\n").rpartition(b"\n")[2][9:]


def seal_journal(inner: bytes) -> bytes:
    begun = encode_line({"snapshot": _snapshot()})
    return begun + b"%08x %s\n" % (crc32c(inner), inner) + encode_line({"v": 1, "kind": "delete_stream", "name": "s"})


def seal_snapshot(inner: bytes) -> bytes:
    return b"%08x %s\n" % (crc32c(inner), inner)


@functools.cache
def _snapshot() -> dict[str, object]:
    from broker.metadata.catalog import Catalog

    return Catalog().snapshot()


# --- checks of single values ----------------------------------------------------------------------------------------


def check_batch(data: bytes) -> None:
    taken = []
    for check in (verified, verified_known):
        with contextlib.suppress(BadBatch, UnknownFormatVersion):
            taken.append(check(data))
    try:
        header = verify_batch(data)
    except (BadBatch, UnknownFormatVersion):
        assert not taken
        raise
    assert taken == [header, (header, known_of(data))]
    rows = decode_batch(data)
    rows.validate(full=True)
    assert header == read_header(data)
    if header.next_offset - header.first_offset == rows.num_rows:
        restamped = RestampedBatch(bytearray(data), header, 5)
        verify_batch(restamped.compose(first_offset=3, leader_epoch=1, high_watermark=2))


@functools.cache
def compressed_header() -> bytes:
    """That of the first batch of the golden file."""
    data = (GOLDEN / "compressed-lz4.arrows").read_bytes()
    return data[len(SCHEMA_BYTES) :][:PACKED_HEADER_BYTES]


def seal_compressed(inner: bytes) -> bytes:
    """A compressed batch with this body, its length and CRC right: what is behind them must stand any body."""
    inner = inner.ljust(-(-len(inner) // 8) * 8, b"\0")
    message = bytearray(compressed_header() + inner)
    message[48:56] = len(inner).to_bytes(8, "little")
    seal(message)
    return bytes(message)


def check_compressed(data: bytes) -> None:
    """Decompressing stays in its bounds; rows that cannot be are for whoever could write a right CRC."""
    rows = decode_batch(data)
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        return
    rows.drop_columns(["timestamp"]).to_pylist()


def check_state(data: bytes) -> None:
    sections = decode_state(data, STATE_OFFSET, where="")
    for name, section in (sections or {}).items():
        if name == "producers":
            check_producers(section)


def check_producers(data: bytes) -> None:
    table = ProducerTable.restore(data)
    assert table.snapshot() == data


def check_ids(data: bytes) -> None:
    table = IdTable.restore(data)
    again = IdTable.restore(table.snapshot(end=(1 << 63) - 1, since_us=-(1 << 63)))
    assert again.last_id == table.last_id


def check_subjects(data: bytes) -> None:
    table = SubjectTable.restore(data)
    again = SubjectTable.restore(table.snapshot(read_head(data).next_offset))
    assert sorted(again.slots.tolist()) == sorted(table.slots.tolist())
    assert again.missed_end == table.missed_end


def check_index(data: bytes) -> None:
    for entries in (sealed_entries(data), counted_entries(data, len(data) // 32, crc32c(data))):
        assert entries is None or len(entries) <= len(data) // 32


def check_note(data: bytes) -> None:
    note = decode_note(data)
    assert decode_note(encode_note(note)) == note
    table = StageTable()
    table.apply(note, first_offset=3, next_offset=6, byte_count=9)


def check_sink_state(data: bytes) -> None:
    state = SinkState.decode(data)
    assert SinkState.decode(state.encode()) == state
    ledger = Ledger()
    ledger.apply(state)
    ledger.unfinished()


def check_offset(data: bytes) -> None:
    key, _, value = data.partition(b"\n")
    found = decode_offset(key, value)
    if found is not None:
        assert isinstance(found, ConsumerOffset)
        assert decode_offset(found.key, found.value()) == found
        table = OffsetTable()
        table._put(key, value)
        table._put(b"c/s/0", None)
        table.silent(1 << 40)
        assert table.get(found.consumer) == [found]
    pin = decode_pin(key, value)
    if pin is not None:
        assert found is None
        assert decode_pin(pin.key, pin.value()) == pin
    group = decode_group_offset(key, value)
    if group is not None:
        assert found is pin is None
        assert decode_group_offset(group.key, group.value()) == group
    GroupTable()._put(key, value)
    GroupTable()._put(key, None)


def check_catalog(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as path:
        name = os.path.join(path, "catalog.log")
        with open(name, "wb") as file:
            file.write(data)
        store = CatalogStore(OsDisk(), name)
        before = store.catalog.snapshot()
        store.close()
        store = CatalogStore(OsDisk(), name)  # what a start has rewritten, the next one reads
        try:
            assert store.catalog.snapshot() == before
            with_streams = [info.as_dict() for info in store.catalog.streams.values()]
            json.dumps(with_streams)
        finally:
            store.close()


def check_owner(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as path:
        with open(os.path.join(path, "broker.json"), "wb") as file:
            file.write(data)
        owner_of(path)
        with DataFolder.open(path, broker_id="broker-0"):
            pass


def check_membership(data: bytes) -> None:
    found = membership.decode(data)
    assert membership.decode(json.dumps(found.as_dict()).encode()) == found


def check_up_record(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as path:
        os.mkdir(os.path.join(path, "run"))
        with open(os.path.join(path, "run", "up.json"), "wb") as file:
            file.write(data)
        UpFolder(path).load()


def check_config(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        load(file.name, env={})


def check_profiles(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:  # mode 0600
        file.write(data)
        file.flush()
        found = read_profile(f"{file.name}#prod")
    assert found.brokers is None or parse_addresses(found.brokers)
    files = found.files
    assert (files.cert is None) == (files.key is None)
    assert all(path is None or os.path.isabs(path) for path in (files.ca, files.cert, files.key, files.token))


def check_variables(data: bytes) -> None:
    env = {}
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        name, _, value = line.partition("=")
        env[name] = value
    load(None, env=env)


def good_batch() -> bytes:
    """One batch of every kind of column, for the corpus."""
    from tests.unit.client.logs import rows

    return bytes(encode_batch(rows(range(5, 9)), BatchHeader(first_offset=5, last_offset=8, leader_epoch=2)))


# --- the table ------------------------------------------------------------------------------------------------------

CORRUPT: Final = (CorruptLog,)
_LOG: Final = ("broker/storage/log.py", "broker/storage/recovery.py", "broker/storage/inspect/inspection.py")


def _small_file(name: str, module: str) -> Decoder:
    return Decoder(
        name=f"file-{name}",
        modules=(module, "broker/storage/segments/checkpoint.py"),
        **meet_file(name),
        errors=CORRUPT,
        form="json",
        words=JSON_WORDS,
        unseal=unseal_json,
        seal=seal_json,
        weight=20,
    )


def check_scrub(data: bytes) -> None:
    """For all files: a pass can begin at the position that is read, and it is written as it was read."""
    disk = SimDisk()
    disk.makedirs("d")
    disk.names["d/scrub"] = Inode(bytearray(data), bytearray(data))
    found = load_position(disk, "d/scrub")
    assert all(-(1 << 63) <= value < 1 << 63 for value in (found.partition, found.offset, found.finished_us))
    assert found.finished_us / 1e6 <= float(1 << 63)


def check_arguments(data: bytes) -> None:
    """The arguments of a command's options: each text is a value within the limit, or a usage error."""
    text, refused = data.decode("utf-8", "replace"), None
    for make, limit in ((duration_ms, (1, 1 << 50)), (byte_count, (1 << 10, 1 << 60)), (number, (0, 100))):
        try:
            assert limit[0] <= make(limit)(text) <= limit[1]
        except click.BadParameter as error:
            refused = error
    try:
        position(text, "--from")
        assigned([text])
    except (click.BadParameter, InvalidRequest):
        pass
    if refused is not None:
        raise refused


FILES: Final = (
    Decoder(
        name="segment",
        modules=(
            *_LOG,
            "broker/storage/segments/scan.py",
            "broker/storage/inspect/contradictions.py",
            "broker/storage/rewrite/rewriting.py",
        ),
        **meet_file(f"{0:020d}.arrows"),
        errors=CORRUPT,
        words=(b"\xff\xff\xff\xff\0\0\0\0", b"ARROW1"),
        weight=27,
    ),
    Decoder(
        name="segment-active",
        modules=(*_LOG, "broker/storage/rewrite/keymap.py"),
        **meet_file(f"{7:020d}.arrows"),
        errors=CORRUPT,
        words=(b"\xff\xff\xff\xff\0\0\0\0",),
        weight=27,
    ),
    Decoder(
        name="file-index",
        modules=("broker/storage/segments/index.py",),
        **meet_file(f"{0:020d}.index"),
        errors=CORRUPT,
        unseal=lambda data: data[:-32],
        seal=seal_index,
        weight=20,
    ),
    _small_file("checkpoint", "broker/storage/recovery.py"),
    _small_file("epochs", "broker/storage/segments/epochs.py"),
    _small_file("compaction", "broker/storage/rewrite/compaction.py"),
    Decoder(
        name="file-partition.json",
        modules=("broker/storage/segments/checkpoint.py",),
        **meet_file("partition.json"),
        errors=(*CORRUPT, KeyMissing),  # it may say that the log is encrypted
        form="json",
        words=JSON_WORDS,
        weight=20,
    ),
    Decoder(
        name="file-state",
        modules=("broker/storage/memory/state_files.py", "broker/storage/memory/producers.py"),
        **meet_file(state_name(7)),
        errors=CORRUPT,
        unseal=unseal_tail,
        seal=seal_tail,
        weight=20,
    ),
    Decoder(
        name="batch",
        modules=("broker/api/batch.py", "broker/api/_checked.pyx", "broker/sinks/restamp.py"),
        check=check_batch,
        errors=(BadBatch, UnknownFormatVersion),
    ),
    Decoder(
        name="batch-compressed",
        modules=("broker/api/compression.py",),
        check=check_compressed,
        errors=(BadBatch, UnknownFormatVersion),
        unseal=lambda data: data[PACKED_HEADER_BYTES:],
        seal=seal_compressed,
        weight=2,
    ),
    Decoder(
        name="state",
        modules=("broker/storage/memory/state_files.py",),
        check=check_state,
        errors=CORRUPT,
        unseal=unseal_tail,
        seal=seal_tail,
    ),
    Decoder(name="producers", modules=("broker/storage/memory/producers.py",), check=check_producers, errors=CORRUPT),
    Decoder(name="ids", modules=("broker/storage/memory/ids.py",), check=check_ids, errors=CORRUPT),
    Decoder(name="subjects", modules=("broker/storage/memory/subjects.py",), check=check_subjects, errors=CORRUPT),
    Decoder(name="index", modules=("broker/storage/segments/index.py",), check=check_index, errors=()),
    Decoder(
        name="note", modules=("broker/sinks/notes.py",), check=check_note, errors=CORRUPT, form="json", words=JSON_WORDS
    ),
    Decoder(
        name="sink-state",
        modules=("broker/sinks/state.py",),
        check=check_sink_state,
        errors=CORRUPT,
        form="json",
        words=JSON_WORDS,
    ),
    Decoder(
        name="consumer-offset",
        modules=("broker/groups/offsets.py",),
        check=check_offset,
        errors=(),
        form="json",
        unseal=lambda data: data.partition(b"\n")[2],
        seal=lambda inner: b"spark/orders/3\n" + inner,
        words=(*JSON_WORDS, b"/", b"\n"),
    ),
    Decoder(
        name="pin",
        modules=("broker/groups/pins.py",),
        check=check_offset,
        errors=(),
        form="json",
        unseal=lambda data: data.partition(b"\n")[2],
        seal=lambda inner: b"//pin/query.frame\n" + inner,
        words=(*JSON_WORDS, b"/", b"\n"),
    ),
    Decoder(
        name="group-offset",
        modules=("broker/groups/progress.py",),
        check=check_offset,
        errors=(),
        form="json",
        unseal=lambda data: data.partition(b"\n")[2],
        seal=lambda inner: b"//group/billing/i1/3\n" + inner,
        words=(*JSON_WORDS, b"/", b"\n"),
    ),
    Decoder(
        name="catalog",
        modules=(
            "broker/metadata/journal.py",
            "broker/control/catalog_store.py",
            "broker/metadata/catalog.py",
        ),
        check=check_catalog,
        errors=CORRUPT,
        form="json",
        unseal=unseal_journal,
        seal=seal_journal,
        words=JSON_WORDS,
        weight=10,
    ),
    Decoder(
        name="catalog-snapshot",
        modules=("broker/control/catalog_store.py", "broker/metadata/catalog.py"),
        check=check_catalog,
        errors=CORRUPT,
        form="json",
        unseal=lambda data: data.rstrip(b"\n")[9:],
        seal=seal_snapshot,
        words=JSON_WORDS,
        weight=10,
    ),
    Decoder(
        name="broker.json",
        modules=("broker/storage/folder.py", "broker/storage/inspect/places.py"),
        check=check_owner,
        errors=CORRUPT,
        form="json",
        words=JSON_WORDS,
        weight=6,
    ),
    Decoder(
        name="raft.json",
        modules=("broker/control/membership.py",),
        check=check_membership,
        errors=CORRUPT,
        form="json",
        words=JSON_WORDS,
    ),
    Decoder(
        name="up.json",
        modules=("broker/cli/local/datafolder.py",),
        check=check_up_record,
        errors=(),
        form="json",
        words=JSON_WORDS,
        weight=4,
    ),
    Decoder(
        name="scrub",
        modules=("broker/background/scrubber.py",),
        check=check_scrub,
        errors=(),
        form="json",
        words=JSON_WORDS,
        unseal=unseal_json,
        seal=seal_json,
    ),
    Decoder(
        name="arguments",
        modules=("broker/cli/options.py", "broker/cli/commands/broker.py"),
        check=check_arguments,
        errors=(click.BadParameter,),
        words=(b"7d", b"KiB", b"inf", b"1e9", b"none", b"2026-01-31T12:00:00", b"earliest", b"http.port=", b"-"),
    ),
    Decoder(
        name="config",
        modules=("broker/config/configuration.py",),
        check=check_config,
        errors=(InvalidRequest,),
        words=(b"=", b"[nats]\n", b"[defaults]\n", b"port", b"true", b"inf", b"1979-05-27", b'"""', b"nats://a:b@c"),
        weight=4,
    ),
    Decoder(
        name="profiles",
        modules=("broker/client/http/profiles.py",),
        check=check_profiles,
        errors=(InvalidRequest,),
        words=(
            b"=",
            b"[prod]\n",
            b"brokers",
            b"tls_ca",
            b"token_file",
            b'"https://a,https://b:1"',
            b"[[[[",
            b"~/",
            b"\\u0000",
        ),
        weight=4,
    ),
    Decoder(
        name="variables",
        modules=("broker/config/configuration.py",),
        check=check_variables,
        errors=(InvalidRequest,),
        words=(b"LIFTLOG_", b"none", b"nats://[::1", b"nats://u:p@h,nats://x:y@h", b"\n"),
        weight=2,
    ),
)
