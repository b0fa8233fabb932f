"""Key compaction by a real broker: what shrinks, what stays, and what a reader on the way sees."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.client import connect
from broker.client.client import Client
from broker.control.catalog_store import CatalogStore
from broker.metadata.catalog import COMMAND_VERSION
from broker.storage.disk import OsDisk
from tests.support.processes import BrokerProcess, eventually

SETTINGS = {"LIFTLOG_CLEANER_INTERVAL_MS": "50", "LIFTLOG_CLEANER_OFFSETS_RETENTION_MS": "1000"}
KEYED = {"cleanup": "compact", "segment_bytes": 1 << 16, "min_cleanable_dirty_percent": 1}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, None, env=SETTINGS).start()
    yield process
    process.stop()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with connect(broker.address) as client:
        yield client


def partition(broker: BrokerProcess, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = broker.get(f"/v1/streams/{stream}")["partitions"][0]
    return found


def commit(broker: BrokerProcess, consumer: str, stream: str, offset: int) -> None:
    body = {"offsets": [{"stream": stream, "partition": 0, "offset": offset}]}
    broker.request("POST", f"/v1/consumers/{consumer}/offsets", body)


def committed(broker: BrokerProcess) -> dict[str, int]:
    return {c["consumer"]: c["partitions"][0]["offset"] for c in broker.get("/v1/consumers")["consumers"]}


def metadata_of(broker: BrokerProcess, consumer: str) -> dict[int, int]:
    return {p["partition"]: int(p["metadata"]) for p in broker.get(f"/v1/consumers/{consumer}")["partitions"]}


def append(client: Client, stream: str, keys: list[bytes | None], values: list[bytes | None]) -> None:
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    client.append(stream, 0, pa.record_batch(columns))


def assert_no_fault(broker: BrokerProcess) -> None:
    for word in ("Traceback", "_bug", "failed", " ERROR "):
        assert word not in broker.output(), broker.output()[-4000:]


def test_the_offset_stream_shrinks_and_the_newest_offsets_stay(broker: BrokerProcess) -> None:
    assert broker.get("/v1/streams/__offsets")["settings"]["cleanup"] == "compact"
    broker.request("POST", "/v1/streams", {"name": "orders", "subject": None, "partitions": 100})
    for number in range(45):  # 18 MB: the first segment of 16 MiB is sealed
        items = [{"stream": "orders", "partition": p, "offset": 0, "metadata": f"{number:04000d}"} for p in range(100)]
        broker.request("POST", "/v1/consumers/c/offsets", {"offsets": items})
    found = eventually(lambda: (p := partition(broker, "__offsets"))["bytes"] < 6_000_000 and p, what="it to shrink")
    assert (found["log_start_offset"], found["high_watermark"]) == (0, 4_500)
    assert found["segments"] == 2
    assert metadata_of(broker, "c") == dict.fromkeys(range(100), 44)
    assert_no_fault(broker)
    broker.kill9()
    broker.start()
    assert metadata_of(broker, "c") == dict.fromkeys(range(100), 44)
    assert partition(broker, "__offsets")["lost_ranges"] == []


def test_an_offset_stream_of_an_earlier_release_is_compacted_from_the_next_start_on(broker: BrokerProcess) -> None:
    broker.stop()
    store = CatalogStore(OsDisk(), str(broker.folder / "data" / "catalog.log"))
    alter = {"kind": "alter_stream", "name": "__offsets", "settings": {"cleanup": "delete"}}
    store.execute({"v": COMMAND_VERSION, **alter})
    store.close()
    broker.start()
    assert broker.get("/v1/streams/__offsets")["settings"]["cleanup"] == "compact"


def test_a_consumer_that_leaves_records_unread_is_forgotten_and_one_with_nothing_to_read_is_not(
    broker: BrokerProcess, client: Client
) -> None:
    broker.request("POST", "/v1/streams", {"name": "orders", "subject": None})
    append(client, "orders", [None] * 5, [b"x"] * 5)
    commit(broker, "behind", "orders", 2)
    commit(broker, "done", "orders", 5)
    eventually(lambda: committed(broker) == {"done": 5}, what="the silent consumer to be forgotten")
    eventually(lambda: "offsets.expired consumer=behind" in broker.output(), what="its line, written after the deed")


def test_a_pin_that_is_not_placed_anew_is_forgotten(broker: BrokerProcess) -> None:
    def place(text: str) -> int:
        placed = broker.request("POST", "/v1/pins/query.frame", {"text": text, "version": 0})
        assert (placed["text"], placed["placed"]) == (text, True)
        version: int = placed["version"]
        return version

    first = place("a")
    eventually(lambda: broker.get("/v1/pins/query.frame")["version"] == 0, what="the pin to be forgotten")
    broker.kill9()
    broker.start()
    assert broker.get("/v1/pins/query.frame")["version"] == 0
    assert place("b") > first
    assert_no_fault(broker)


def test_a_consumer_of_a_stream_that_is_offline_is_not_forgotten(broker: BrokerProcess, client: Client) -> None:
    """It had read all there is; whether it still has, nobody can say before the stream is back."""
    for name in ("away", "here"):
        broker.request("POST", "/v1/streams", {"name": name, "subject": None})
        append(client, name, [None] * 5, [b"x"] * 5)
    commit(broker, "waits", "away", 5)
    broker.stop()
    folder = broker.folder / "data" / "streams" / "away"
    folder.rename(broker.folder / "away")
    broker.start(wait=False)
    eventually(lambda: "stream.offline stream=away" in broker.output())
    eventually(lambda: broker.output().count("broker.started") == 2)
    commit(broker, "behind", "here", 2)
    eventually(lambda: "offsets.expired consumer=behind" in broker.output(), what="a look at silent consumers")
    assert committed(broker) == {"waits": 5}
    broker.stop()
    (broker.folder / "away").rename(folder)
    broker.start()
    assert committed(broker) == {"waits": 5}


def test_a_client_reads_a_compacted_stream_by_offsets_not_by_places(broker: BrokerProcess, client: Client) -> None:
    answer = broker.request("POST", "/v1/streams", {"name": "keyed", "subject": None, **KEYED})
    assert any("without a key" in warning for warning in answer["warnings"])
    expected: dict[bytes, tuple[int, bytes]] = {}
    offset = 0
    for number in range(120):
        keys: list[bytes | None] = [b"k%d" % (number % 7), b"only%d" % number if number % 10 == 0 else b"k0", None]
        append(client, "keyed", keys, [b"%d" % number * 300] * 3)
        for i, key in enumerate(keys):
            expected[key or b"none%d" % (offset + i)] = (offset + i, b"%d" % number * 300)
        offset += 3
    eventually(lambda: "compaction.done partition=keyed/0" in broker.output(), what="a pass")
    kept = dict(expected.values())
    for start, end in ((0, offset), (1, 200), (150, 151), (37, 38), (offset - 5, offset)):
        table = client.read("keyed", start=start, end=end).to_table()
        offsets = table.column("offset").to_pylist()
        assert offsets == sorted(set(offsets))
        assert all(start <= at < end for at in offsets)
        found = dict(zip(offsets, table.column("value").to_pylist(), strict=True))
        assert {at: value for at, value in kept.items() if start <= at < end}.items() <= found.items()
    assert client.read("keyed").to_table().num_rows < 3 * 120

    def between_passes() -> tuple[list[int], list[int]] | None:
        """Offsets read with no pass between: by the client, and by a plain Arrow reader, which takes empty batches
        too."""
        before = client.read("keyed").to_table()["offset"].to_pylist()
        with pa.ipc.open_stream(_raw(broker, "keyed")) as stream:
            plain = stream.read_all().column("offset").to_pylist()
        return (before, plain) if client.read("keyed").to_table()["offset"].to_pylist() == before else None

    by_client, plain = eventually(between_passes, what="two reads alike, before and after the plain one")
    assert by_client == plain
    assert_no_fault(broker)


def test_a_stream_is_compacted_from_the_command_line_and_that_can_be_changed(broker: BrokerProcess) -> None:
    def liftlog(*arguments: str) -> None:
        command = [sys.executable, "-m", "broker.cli.main", "stream", *arguments, "--brokers", broker.address]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    liftlog("create", "keyed", "--cleanup", "both", "--min-compaction-lag-ms", "5m", "--delete-retention-ms", "2h")
    liftlog("alter", "keyed", "--min-cleanable-dirty-percent", "20", "--cleanup", "compact")
    found = broker.get("/v1/streams/keyed")["settings"]
    assert (found["cleanup"], found["min_compaction_lag_ms"]) == ("compact", 300_000)
    assert (found["min_cleanable_dirty_percent"], found["delete_retention_ms"]) == (20, 7_200_000)


def _raw(broker: BrokerProcess, stream: str) -> bytes:
    found: bytes = broker.get(f"/v1/streams/{stream}/partitions/0/records")
    return found
