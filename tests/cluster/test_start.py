"""How a broker begins and ends, through real processes that are killed on the way.

Goal: no two lives of a broker append under one leader epoch, whatever step of the start the first was cut off at; a
stop is clean for every signal that asks for one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from broker.api.batch import decode_batch, read_header
from broker.client import connect
from broker.storage.disk import OsDisk
from broker.storage.log import PartitionLog
from broker.storage.segments.checkpoint import LogSettings
from tests.support.killed_starts import APPENDS, SINK, STREAM
from tests.support.processes import BrokerProcess, eventually, running

ROOT = Path(__file__).parents[2]


def values_of_epochs(data: Path) -> dict[int, list[bytes]]:
    """Values that were appended, by leader epoch."""
    (folder,) = (data / "streams" / STREAM).glob("*/0")
    log = PartitionLog.open(OsDisk(), str(folder), LogSettings(), boot_id="", now_us=0)
    log.state.advance_high_watermark(log.syncer.sync())
    found = defaultdict(list)
    for message in log.reader.batches(0):
        for value in decode_batch(message).column("value").to_pylist():
            found[read_header(message).leader_epoch].append(value)
    log.close()
    return found


def test_no_leader_epoch_is_used_by_two_lives_wherever_the_start_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "tests.support.killed_starts", str(data)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    killed = int(done.stdout)
    assert killed >= 6
    lives = defaultdict(set)
    for line in (data / APPENDS).read_text().splitlines():
        life, partition, epoch = line.split()
        lives[partition, epoch].add(life)
    assert {epoch: used for epoch, used in lives.items() if len(used) > 1} == {}
    values = [value for found in values_of_epochs(data).values() for value in found]
    last = b"%d" % (killed + 1)
    assert {last, last + SINK} <= set(values), "the last one has appended, and committed"
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_signal_that_asks_for_an_end_gets_a_clean_one(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    try:
        broker = BrokerProcess(tmp_path / "broker", None).start()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert broker.process is not None
    os.kill(broker.pid, number)
    assert broker.process.popen.wait(60) == 0, broker.output()
    assert "broker.stopped" in broker.output()
    broker.start()
    try:
        assert "partition.recovered" not in broker.output()
    finally:
        broker.stop()


def test_a_broker_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; a child inherits it
    try:
        broker = BrokerProcess(tmp_path / "broker", None).start()
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        os.kill(broker.pid, signal.SIGHUP)
        broker.request("POST", "/v1/streams", {"name": "s"})
        assert eventually(broker.is_ready)
        assert "broker.stopping" not in broker.output()
    finally:
        assert broker.stop() == 0


def listening(pid: int) -> set[int]:
    """The TCP ports on which a process listens."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed just now
            inodes.add(str(fd.readlink()))
    tables = [Path(f"/proc/{pid}/net/{kind}").read_text() for kind in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


def test_a_broker_alone_listens_for_http_only_and_loads_nothing_of_a_cluster(tmp_path: Path) -> None:
    with running(tmp_path, PYTHONPROFILEIMPORTTIME="1") as (_, broker):
        broker.request("POST", "/v1/streams", {"name": "s", "subject": "s"})
        with connect([broker.address]) as client:
            client.append("s", 0, [{"value": b"x"}])
            assert client.read("s").to_table().num_rows == 1
            client.reset("reader", "s", "latest")
        assert listening(broker.pid) == {broker.port}
        loaded = {line.rpartition("|")[2].strip() for line in broker.output().splitlines() if "import time:" in line}
    assert {"aiohttp", "broker.runtime.broker"} <= loaded
    packages = {name.partition(".")[0] for name in loaded}
    assert packages.isdisjoint({"grpc", "google", "pysyncobj"})
    assert not [name for name in loaded if name.startswith(("broker.raft", "broker.link"))]


def test_a_catalog_from_a_backup_gives_out_no_epoch_that_is_in_the_logs(tmp_path: Path) -> None:
    """Somebody does what `doctor` says and restores `catalog.log` alone, from some starts ago."""
    broker = BrokerProcess(tmp_path / "broker", None).start()
    catalog = tmp_path / "broker" / "data" / "catalog.log"
    try:
        broker.request("POST", "/v1/streams", {"name": STREAM})
        broker.stop()
        backup = catalog.read_bytes()
        with connect(broker.address) as client:
            for life in range(3):
                broker.start()
                client.append(STREAM, 0, pa.table({"value": [b"%d" % life]}))
                broker.stop()
            catalog.write_bytes(backup)
            broker.start()
            client.append(STREAM, 0, pa.table({"value": [b"3"]}))
    finally:
        broker.stop()
    values = values_of_epochs(tmp_path / "broker" / "data")
    assert [values[epoch] for epoch in sorted(values)] == [[b"0"], [b"1"], [b"2"], [b"3"]]


DONE = ["nothing is there", "kept is made", "gone is made", "kept has three", "kept is altered", "gone is deleted"]
BOTH = {"kept": 3, "gone": 1}
FOUND: list[dict[str, int]] = [{}, {"kept": 2}, {"kept": 2, "gone": 1}, BOTH, BOTH, {"kept": 3}]
"""The streams with their partitions, after each of DONE."""


def test_changes_are_made_wholly_or_not_at_all_wherever_they_are_killed(tmp_path: Path) -> None:
    """The next start has what was answered, and all or nothing of the change under way; no stream is offline."""
    answered = tmp_path / "answered"
    command = [sys.executable, "-m", "tests.support.killed_changes", str(tmp_path / "data"), str(answered)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = [json.loads(line) for line in answered.read_text().splitlines()]
    last = None
    left_over: set[str] = set()
    for line in lines:
        if "done" in line:
            last = DONE.index(line["done"])
            continue
        assert line["missing"] == {}
        if last is not None:
            assert line["found"] in FOUND[last : last + 2], (line, DONE[last])
            if last >= 4:
                assert line["settings"]["kept"] == 86_400_000
        extra = set(line["folders"]) - set(line["known"])
        assert len(extra - left_over) <= 1, "of a create that was under way, and of none before"
        left_over |= extra
    assert last == len(DONE) - 1
    assert int(done.stdout) > 20
