"""Goal: `liftlog log …` does on real files what docs/reference/cli.md says, beside a broker that has them open, too.

Method: data folders with logs as the broker makes them; the lock of a broker is held by the test itself. The broker
that `export --brokers` asks is a real process.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from broker.api.errors import FolderInUse, InvalidRequest, LiftlogError, OffsetOutOfRange, UnknownFormatVersion
from broker.api.schema import SCHEMA
from broker.cli.commands.export import ParquetFile
from broker.cli.main import app
from broker.client import connect
from broker.storage.disk import OsDisk
from broker.storage.encrypted.keys import Keyring, MasterKey
from broker.storage.folder import DataFolder
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogIdentity, LogSettings
from tests.support.logs import commit, row_batch
from tests.support.processes import BrokerProcess

SETTINGS = LogSettings(segment_bytes=8_000)
RECORDS = 60


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder: stream orders with two partitions of 60 records, in 10 batches, timestamps 0, 1, 2, …"""
    root = tmp_path / "data"
    with DataFolder.open(root, broker_id="broker-0", cluster_id="c1") as folder:
        for stream, partition in (("orders", 0), ("orders", 1), ("__offsets", 0)):
            identity = LogIdentity(cluster_id="c1", stream=stream, incarnation="i1", partition=partition)
            path = f"{folder.path}/streams/{stream}/i1/{partition}"
            log = PartitionLog.create(OsDisk(), path, identity, SETTINGS, now_us=0)
            for first in range(0, RECORDS, 6):
                values = [f"{partition}:{offset} ".encode() + b"x" * 200 for offset in range(first, first + 6)]
                log.append([row_batch(values, range(first, first + 6))], leader_epoch=1, now_us=first)
                commit(log)
            log.close()
    return root


def _run(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    """Output and notes of a command that ends with this code."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def _json(*arguments: str | Path, code: int = 0) -> Any:
    return json.loads(_run(*arguments, "--json", code=code)[0])


def _segments(data: Path, partition: int = 0) -> list[Path]:
    return sorted((data / "streams/orders/i1" / str(partition)).glob("*.arrows"))


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def _files(data: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in data.rglob("*") if path.is_file()}


# --- master keys ----------------------------------------------------------------------------------------------


def test_several_master_keys_may_be_named_where_logs_need_different_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    with DataFolder.open(tmp_path / "data", broker_id="broker-0", cluster_id="c1") as folder:
        for number in range(2):
            files.append(tmp_path / f"key {number}")
            key = bytes([number]) * 32
            files[-1].write_bytes(base64.b64encode(key))
            files[-1].chmod(0o600)
            settings = LogSettings(is_encrypted=True, keyring=Keyring([MasterKey(key)]))
            identity = LogIdentity(cluster_id="c1", stream="orders", incarnation="i1", partition=number)
            path = f"{folder.path}/streams/orders/i1/{number}"
            log = PartitionLog.create(OsDisk(), path, identity, settings, now_us=0)
            log.append([row_batch([b"value"])], leader_epoch=1, now_us=0)
            commit(log)
            log.close()
    data = tmp_path / "data"
    named = ["--key-file", files[1], "--key-file", files[0]]
    assert "all is well" in _run("log", "verify", data, *named)[0]
    assert "wrong_keys" in _run("log", "verify", data, *named[:2], code=1)[0]
    assert _run("log", "dump", data, "--records", *named)[0].count("value") >= 2
    _run("log", "export", data / "streams/orders", "--parquet", tmp_path / "out.parquet", *named)
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 2
    before = (data / "streams/orders/i1/0/keys").read_bytes()
    monkeypatch.setenv("LIFTLOG_ENCRYPTION_KEY_FILE", str(files[1]))
    assert "wrong_keys" in _run("log", "verify", data, code=1)[0]
    monkeypatch.setenv("LIFTLOG_ENCRYPTION_FORMER_KEY_FILES", f"{files[0]},")
    assert "all is well" in _run("log", "verify", data)[0]
    assert (data / "streams/orders/i1/0/keys").read_bytes() == before, "verify writes nothing"


# --- verify ---------------------------------------------------------------------------------------------------


def test_verify_of_what_is_well_says_how_much_was_looked_at(data: Path) -> None:
    before = _files(data)
    out, err = _run("log", "verify", data)
    assert out.startswith("3 partitions, ")
    assert " 30 batches, " in out
    assert out.endswith(": all is well\n")
    assert err == ""
    answer = _json("log", "verify", data / "streams/orders")
    assert answer["is_well"]
    assert [one["partition"] for one in answer["partitions"]] == ["orders/i1/0", "orders/i1/1"]
    assert sum(one["batches"] for one in answer["partitions"]) == 20
    assert _files(data) == before


@pytest.mark.parametrize("where", [".", "streams/orders", "streams/orders/i1/0", "segment"])
@pytest.mark.parametrize(
    "command", [("verify",), ("repair", "--dry-run"), ("repair",), ("dump",), ("export", "--parquet", "o.parquet")]
)
def test_a_data_folder_of_another_format_version_is_refused_in_the_words_of_the_broker(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], where: str
) -> None:
    """The rule: nothing in such a folder is read, though its partitions name a known version. Its layout is not
    known."""
    monkeypatch.chdir(tmp_path)
    owner = data / "broker.json"
    owner.write_text(json.dumps({**json.loads(owner.read_text()), "format_version": 2}))
    with pytest.raises(UnknownFormatVersion) as wanted:
        DataFolder.open(data, broker_id="broker-0")
    before = _files(tmp_path)
    with pytest.raises(UnknownFormatVersion) as caught:
        _run("log", command[0], _segments(data)[0] if where == "segment" else data / where, *command[1:])
    assert (caught.value.message, caught.value.fields) == (wanted.value.message, wanted.value.fields)
    assert _files(tmp_path) == before


def test_an_empty_data_folder_of_another_format_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text('{"format_version": "x", "cluster_id": "c", "broker_id": "b"}')
    with pytest.raises(UnknownFormatVersion, match="has format version x, this release reads 1"):
        _run("log", "verify", tmp_path)


def test_verify_names_file_place_offsets_and_what_it_means(data: Path) -> None:
    path = _segments(data)[1]
    _flip(path, 2_000)
    out, _ = _run("log", "verify", data, code=1)
    base = int(path.stem)
    assert f"lost_range: {path}, bytes [568, " in out
    assert f"offsets [{base}, {base + 6})" in out
    assert "restore them from their source" in out
    assert "wrong_index: " in out
    assert out.endswith(": 2 findings\n")
    answer = _json("log", "verify", path, code=1)
    (one,) = answer["partitions"]
    assert {finding["kind"] for finding in one["findings"]} == {"lost_range", "wrong_index"}
    assert _run("log", "verify", _segments(data)[0])[1] == ""


def test_verify_beside_a_broker_says_so_and_takes_no_lock(data: Path) -> None:
    with DataFolder.open(data, broker_id="broker-0"):
        path = _segments(data)[-1]
        path.write_bytes(path.read_bytes() + b"half a batch")
        out, err = _run("log", "verify", data)
        assert "all is well" in out
        assert "is in use by process" in err
        assert _json("log", "verify", data)["used_by"] is not None
        _flip(_segments(data)[0], 3_000)
        assert "lost_range" in _run("log", "verify", data, code=1)[0]


def test_verify_of_nothing_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InvalidRequest):
            _run("log", "verify", path)


# --- repair ---------------------------------------------------------------------------------------------------


def test_repair_of_what_is_well_leaves_it_alone(data: Path) -> None:
    before = _files(data)
    out, err = _run("log", "repair", data)
    assert out == ""
    assert "nothing to repair" in err
    assert {path: content for path, content in _files(data).items() if not path.endswith("/lock")} == {
        path: content for path, content in before.items() if not path.endswith("/lock")
    }


def test_repair_cuts_and_rebuilds_and_says_so(data: Path) -> None:
    last, index = _segments(data)[-1], _segments(data)[0].with_suffix(".index")
    whole = last.read_bytes()
    last.write_bytes(whole + b"torn" * 30)
    index.write_bytes(b"nonsense")
    before = _files(data)
    dry, _ = _run("log", "repair", data, "--dry-run")
    assert _files(data) == before
    assert "would be repaired" in dry
    out, err = _run("log", "repair", data)
    assert f"cut {last} at byte {len(whole)}: 120 bytes" in out
    assert f"rebuilt {index}" in out
    assert last.read_bytes() == whole
    assert not err
    assert _json("log", "verify", data)["is_well"]


def test_a_dry_run_speaks_of_what_would_be_done_and_names_a_file_once(data: Path) -> None:
    """The epochs are taken away and written, an index is wrong and rebuilt: one line for each file."""
    first, second, *_, last = _segments(data)
    last.write_bytes(last.read_bytes() + b"torn")
    _flip(first, 3_500)
    first.with_suffix(".index").write_bytes(b"nonsense")
    second.with_suffix(".index").unlink()
    last.with_suffix(".index").write_bytes(b"nonsense")
    for name in ("epochs", "checkpoint"):
        (first.parent / name).write_bytes(b"nonsense")
    dry = _run("log", "repair", data, "--dry-run")[0].splitlines()
    actions = [line.split() for line in dry if line.startswith("    ") and str(data) in line]
    assert {tuple(words[:1]) for words in actions} == {("would",)}
    for lines, place in ((actions, 2), ([line.split() for line in _run("log", "repair", data)[0].splitlines()], 1)):
        names = [words[place] for words in lines if len(words) > place and words[place].startswith(str(data))]
        assert len(names) >= 6
        assert len(names) == len(set(names)), "a file stands there once"
    assert any("would note" in line and line.endswith("are lost") for line in dry)
    assert not any(word in line for line in dry for word in ("rebuilt", "noted", "removed"))


def test_repair_notes_what_is_lost_and_is_then_done_with_it(data: Path) -> None:
    _flip(_segments(data)[1], 2_000)
    out, _ = _run("log", "repair", data)
    assert "lost_range (known)" in out
    assert _json("log", "verify", data, code=1)["partitions"][1]["findings"][0]["is_known"]
    out, _ = _run("log", "verify", data, "--known-ok")
    assert out.endswith(": 1 finding, 1 of them known\n")
    assert not _json("log", "verify", data, "--known-ok")["is_well"]
    out, _ = _run("log", "repair", data)
    assert "repair cannot help here" in out
    _flip(_segments(data)[2], 2_000)
    out, _ = _run("log", "verify", data, "--known-ok", code=1)
    assert out.endswith(" findings, 1 of them known\n")


def test_repair_refuses_a_folder_in_use_and_one_that_belongs_elsewhere(data: Path) -> None:
    path = _segments(data)[-1]
    path.write_bytes(path.read_bytes() + b"torn")
    before = _files(data)
    with DataFolder.open(data, broker_id="broker-0"):
        for more in ([], ["--dry-run"]):
            with pytest.raises(FolderInUse) as caught:
                _run("log", "repair", path, *more)
            assert caught.value.pid is not None
    assert _files(data)[str(path)] == before[str(path)]
    (data / "streams/orders/i1/0").rename(data / "streams/orders/i1/7")
    out, _ = _run("log", "repair", data / "streams/orders/i1/7", code=1)
    assert "left alone" in out
    assert "belongs to partition 0" in out


def test_repair_leaves_the_checkpoint_of_a_broker_in_a_cluster_to_that(data: Path) -> None:
    """It would begin anew from the others."""
    (data / "raft.json").write_text("{}")
    path = data / "streams/orders/i1/0/checkpoint"
    path.unlink()
    before = _files(data)
    out, _ = _run("log", "repair", data, code=1)
    assert f"left alone: {path}: there is none: start the broker instead" in out
    assert {name: content for name, content in _files(data).items() if not name.endswith("/lock")} == {
        name: content for name, content in before.items() if not name.endswith("/lock")
    }
    (data / "raft.json").unlink()
    assert f"rebuilt {path}" in _run("log", "repair", data)[0]


def test_a_copy_is_repaired_where_it_stands(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (data / "streams/orders/i1/0").rename(copy)
    last = sorted(copy.glob("*.arrows"))[-1]
    whole = last.read_bytes()
    last.write_bytes(whole + b"torn")
    (one,) = _json("log", "repair", copy)["partitions"]
    assert {action["what"] for action in one["actions"]} == {"cut"}
    assert last.read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir() if "aside" in path.name] == []


# --- dump -----------------------------------------------------------------------------------------------------


def test_dump_shows_a_line_for_each_batch(data: Path) -> None:
    lines = _run("log", "dump", data / "streams/orders/i1/0")[0].splitlines()
    batches = [line for line in lines if "records" in line]
    assert len(batches) == 10
    assert "offsets [0, 6)  6 records  epoch 1" in batches[0]
    assert any("end-of-stream marker" in line for line in lines)
    out, _ = _run("log", "dump", data / "streams/orders/i1/0", "--json", "--limit", "3")
    found = [json.loads(line) for line in out.splitlines()]
    assert len(found) == 3
    assert (found[0]["first_offset"], found[0]["last_offset"], found[0]["records"]) == (0, 5, 6)
    some = _run("log", "dump", data / "streams/orders/i1/0", "--start", "7", "--end", "13")[0].splitlines()
    assert ["[6, 12)" in some[0], "[12, 18)" in some[1], len(some)] == [True, True, 2]


def test_dump_shows_records_of_a_range_of_offsets(data: Path) -> None:
    out, _ = _run("log", "dump", data / "streams/orders/i1/1", "--records", "--start", "5", "--end", "8", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [row["offset"] for row in found] == [5, 6, 7]
    assert found[0]["value"].startswith("1:5 ")
    out, _ = _run("log", "dump", data / "streams/orders", "--records", "--limit", "2")
    assert "orders/i1/0" in out
    assert len(out.splitlines()) == 2
    out, _ = _run("log", "dump", data / "streams/orders", "--records", "--json", "--limit", "1")
    assert json.loads(out)["partition"] == "orders/i1/0"


def test_dump_shows_damage_in_its_place_and_the_batches_around_it(data: Path) -> None:
    path = _segments(data)[0]
    _flip(path, 3_500)
    lines = _run("log", "dump", path)[0].splitlines()
    assert "offsets [0, 6)" in lines[0]
    assert "a batch of the offsets [6, 12) whose CRC-32C does not fit" in lines[1]
    assert "offsets [12, 18)" in lines[2]


# --- export ---------------------------------------------------------------------------------------------------


def test_export_of_a_stream_is_one_file_with_its_partitions(data: Path, tmp_path: Path) -> None:
    before = _files(data)
    answer = _json("log", "export", data, "--parquet", tmp_path / "o.parquet")
    assert answer["records"] == 2 * RECORDS
    found = pq.read_table(tmp_path / "o.parquet")
    assert found.schema.names == [*SCHEMA.names, "partition"]
    assert found.column("offset").to_pylist() == [*range(RECORDS), *range(RECORDS)]
    assert found.column("partition").to_pylist() == [0] * RECORDS + [1] * RECORDS
    assert found.column("value").to_pylist()[61].startswith(b"1:1 ")
    assert found.column("timestamp").type == pa.timestamp("us", "UTC")
    assert _files(data) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "o.parquet"]


def test_export_into_a_folder_is_a_file_for_each_partition(data: Path, tmp_path: Path) -> None:
    some = ("--columns", "value,offset", "--start", "10", "--end", "20")
    _run("log", "export", data, "--parquet", f"{tmp_path}/out/", *some)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["orders-0.parquet", "orders-1.parquet"]
    found = pq.read_table(tmp_path / "out/orders-1.parquet")
    assert found.schema.names == ["value", "offset"]
    assert found.column("offset").to_pylist() == list(range(10, 20))


def test_export_takes_times_and_refuses_what_is_not_there(data: Path, tmp_path: Path) -> None:
    folder, target = data / "streams/orders/i1/0", tmp_path / "o.parquet"
    times = ("--start", "1970-01-01T00:00:00.000017", "--end", "1970-01-01T00:00:00.000023")
    _run("log", "export", folder, "--parquet", target, *times)
    assert pq.read_table(target).column("offset").to_pylist() == list(range(17, 23))
    with pytest.raises(InvalidRequest, match="overwrite"):
        _run("log", "export", folder, "--parquet", target)
    _run("log", "export", folder, "--parquet", target, "--overwrite", "--start", "latest")
    assert pq.read_table(target).num_rows == 0
    for more, error in (
        (["--start", "61"], OffsetOutOfRange),
        (["--start", "30", "--end", "20"], InvalidRequest),
        (["--columns", "colour"], InvalidRequest),
    ):
        with pytest.raises(error):
            _run("log", "export", folder, "--parquet", tmp_path / "other.parquet", *more)
    assert not list(tmp_path.glob("other*"))


def test_export_leaves_out_what_is_damaged_and_says_so(data: Path, tmp_path: Path) -> None:
    _flip(_segments(data)[0], 3_500)
    folder = data / "streams/orders/i1/0"
    answer = _json("log", "export", folder, "--parquet", tmp_path / "o.parquet", code=1)
    assert answer["lost"] == [{"stream": "orders", "partition": 0, "start": 6, "end": 12}]
    offsets = pq.read_table(tmp_path / "o.parquet").column("offset").to_pylist()
    assert offsets == [*range(6), *range(12, RECORDS)]
    assert _json("log", "export", folder, "--parquet", tmp_path / "p.parquet", "--start", "12")["lost"] == []


def test_export_of_a_log_that_was_killed_has_what_was_written_and_no_torn_tail(data: Path, tmp_path: Path) -> None:
    path = _segments(data)[-1]
    path.write_bytes(path.read_bytes() + b"torn")
    answer = _json("log", "export", data / "streams/orders/i1/0", "--parquet", tmp_path / "o.parquet")
    assert answer["records"] == RECORDS


def test_row_groups_are_bounded_however_the_batches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.cli.commands.export.ROW_GROUP_ROWS", 100)
    monkeypatch.setattr("broker.cli.commands.export.ROW_GROUP_BYTES", 10_000)
    schema = pa.schema([("value", pa.binary())])
    file = ParquetFile(str(tmp_path / "f.parquet"), schema)
    sizes = [1, 250, 0, 30, 99, 100, 1]
    for size in sizes:
        file.add(pa.record_batch([pa.array([b"x"] * size, pa.binary())], schema=schema))
    file.add(pa.record_batch([pa.array([b"y" * 9_000] * 3, pa.binary())], schema=schema))
    done = file.finish()
    found = pq.ParquetFile(tmp_path / "f.parquet").metadata
    groups = [found.row_group(i).num_rows for i in range(found.num_row_groups)]
    assert (sum(groups), done.records, done.row_groups) == (sum(sizes) + 3, sum(sizes) + 3, len(groups))
    assert max(groups) <= 100
    assert groups[-3:] == [2, 1, 1]  # the small one before them still fits


def test_a_file_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    file = ParquetFile(str(tmp_path / "f.parquet"), SCHEMA)
    assert not (tmp_path / "f.parquet").exists()
    file.drop()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"), None).start()
    yield broker
    broker.stop()


@pytest.mark.process
def test_export_of_json_has_the_columns_that_the_stream_keeps(running: BrokerProcess, tmp_path: Path) -> None:
    with connect(running.address) as client:
        client.create_stream("json", partitions=2, payload_schema="item BIGINT, tags ARRAY<STRING>")
        for partition in (0, 1):
            rows = [{"value": b'{"item": %d, "tags": ["a"]}' % n} for n in range(10)]
            client.append("json", partition, [*rows, {"value": b"?"}])
        file, command = tmp_path / "json.parquet", ("log", "export", "json", "--payload", "json", "--brokers")
        _run(*command, running.address, "--parquet", file, "--start", "5")
        found = pq.read_table(file)
        assert found.schema.names[:4] == ["item", "tags", "_corrupt", "offset"]
        assert found.column("item").to_pylist() == [*range(5, 10), None] * 2
        assert found.column("_corrupt").to_pylist() == [*[None] * 5, b"?"] * 2
        _run(*command, running.address, "--parquet", f"{tmp_path}/out/", "--columns", "offset,item")
        assert pq.read_table(tmp_path / "out" / "json-1.parquet").schema.names == ["offset", "item"]
        client.alter("json", payload_schema=None)
        with pytest.raises(LiftlogError, match="stream 'json' keeps no schema"):
            _run(*command, running.address, "--parquet", tmp_path / "no.parquet")
        client.delete_stream("json")
    _run("log", "export", tmp_path, "--parquet", tmp_path / "no.parquet", "--payload", "json", code=2)
    _run("log", "export", "json", "--parquet", tmp_path / "no.parquet", "--payload", "avro", code=2)


@pytest.mark.process
def test_export_from_a_running_broker_is_what_the_files_give_after_it(running: BrokerProcess, tmp_path: Path) -> None:
    with connect(running.address) as client:
        client.create_stream("orders", partitions=2)
        for partition in (0, 1):
            values = pa.array([f"{partition}:{n}".encode() for n in range(1_000)], pa.binary())
            client.append("orders", partition, pa.record_batch({"value": values}))
    options = ("--columns", "partition,offset,value", "--start", "10")
    _run("log", "export", "orders", "--parquet", tmp_path / "on.parquet", "--brokers", running.address, *options)
    online = pq.read_table(tmp_path / "on.parquet")
    assert online.num_rows == 2 * 990
    with pytest.raises(LiftlogError):
        _run("log", "export", "nowhere", "--parquet", tmp_path / "no.parquet", "--brokers", running.address)
    data = running.folder / "data"
    assert "is in use by process" in _run("log", "verify", data)[1]
    with pytest.raises(FolderInUse):
        _run("log", "repair", data)
    assert running.request("GET", "/readyz")["ready"]
    running.kill9()
    _run("log", "export", data, "--parquet", tmp_path / "off.parquet", *options)
    assert pq.read_table(tmp_path / "off.parquet").equals(online)
    assert _json("log", "verify", data)["is_well"]
    running.start()
