"""What holds of a kept folder once it is opened: nothing is lost, and everything goes on from where it was.

`same` and the others take a client of the brokers that opened it, and the manifest that was kept beside it.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from broker.api.errors import OutOfSequence, ProducerFenced, ReadOnly, SinkFenced, StageLost, StreamPaused
from broker.api.sink_answers import Stage
from broker.client import Client, Sink
from broker.client.writing.append import Stamp
from tests.folders import manifest
from tests.folders.keep import KEPT
from tests.support.processes import eventually

FINISHED = {b"decided/3/1/%d" % row for row in range(4)}
"""The values that a decision had not put into partition 1 of `sunk` yet."""
FOREVER = {
    "LIFTLOG_CLEANER_INTERVAL_MS": "86400000",
    "LIFTLOG_CLEANER_OFFSETS_RETENTION_MS": str(1 << 50),
    "LIFTLOG_SINKS_STAGE_LEASE_MS": str(1 << 50),
}
"""Settings of brokers that forget nothing for its age, and compact nothing: the folders grow old."""


def kept(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((KEPT / f"{name}.json").read_text())
    return found


def same(client: Client, was: dict[str, Any]) -> None:
    """Every record, offset, setting, id and sink that was there is there."""
    eventually(
        lambda: all(each.last is None or each.last.complete for each in client.sinks()), what="decisions finished"
    )
    now = json.loads(json.dumps(manifest.of(client)))
    assert now["consumers"] == was["consumers"]
    for sink in was["sinks"].values():
        if sink["last"] is not None:
            sink["last"]["complete"] = True
    assert now["sinks"] == was["sinks"]
    assert set(now["streams"]) == set(was["streams"])
    for name, before in was["streams"].items():
        same_stream(name, before, now["streams"][name])
    values = values_of(client, "sunk", 1)
    assert set(values) >= FINISHED
    assert len(values) == len(set(values)), "something is there twice"


def same_stream(name: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    plain = ("incarnation", "paused", "read_only", "replication_factor", "min_insync_replicas")
    assert {key: now[key] for key in plain} == {key: before[key] for key in plain}, name
    assert before["settings"].items() <= now["settings"].items(), name
    assert len(now["partitions"]) == len(before["partitions"]), name
    for number, (old, new) in enumerate(zip(before["partitions"], now["partitions"], strict=True)):
        where = f"{name}/{number}"
        for key in ("log_start_offset", "lost_ranges"):
            assert new[key] == old[key], (where, key)
        assert new["epochs"][: len(old["epochs"])] == old["epochs"], where
        assert new["leader_epoch"] > old["leader_epoch"], where
        count = len(old["records"])
        assert new["records"][:count] == old["records"], where
        assert len(new["records"]) - count == (len(FINISHED) if where == "sunk/1" else 0), where


def values_of(client: Client, stream: str, partition: int | None = None) -> list[bytes]:
    partitions = None if partition is None else [partition]
    return [
        value for batch in client.read(stream, partitions=partitions) for value in batch.column("value").to_pylist()
    ]


def producers_go_on(client: Client, was: dict[str, Any]) -> None:
    """The last request of each producer is a repeat; one that is left out is noticed; names keep their ids."""
    for name, producer in was["producers"].items():
        for partition, last in producer["last"].items():
            stamp = Stamp(producer["id"], producer["epoch"], last["sequence"])
            rows = [{"value": last["value"].encode()}] * 5
            again = client.append("stamped", int(partition), rows, stamp=stamp)
            assert again.duplicate
            assert (again.first_offset, again.next_offset) == (last["first_offset"], last["next_offset"])
            with pytest.raises(OutOfSequence):
                client.append("stamped", int(partition), rows, stamp=Stamp(*stamp_of(stamp), last["sequence"] + 2))
            after = client.append("stamped", int(partition), rows, stamp=Stamp(*stamp_of(stamp), last["sequence"] + 1))
            assert not after.duplicate
        identity = client.register_producer(name)
        assert identity == (producer["id"], producer["epoch"] + 1)
        client.append("stamped", 0, [{"value": b"new"}], stamp=Stamp(*identity, 0))
        with pytest.raises(ProducerFenced):
            client.append("stamped", 0, [{"value": b"old"}], stamp=Stamp(producer["id"], producer["epoch"], 99))


def stamp_of(stamp: Stamp) -> tuple[int, int]:
    return stamp.producer_id, stamp.producer_epoch


def sinks_go_on(client: Client, was: dict[str, Any]) -> None:
    """What was decided is a repeat; what was pinned or only staged can be committed; the next batch, too."""
    for name, outcome in {
        "done": "already_done",
        "decided": "already_done",
        "pinned": "committed",
        "staged": "committed",
    }.items():
        sink, stages = run_of(client, was, name)
        batch_id = was["runs"][name]["batch_id"]
        digest = f"d:{batch_id}"
        answer = sink.commit(batch_id, stages, digest=digest, attributes={"checkpoint": "/c"})
        assert answer.outcome == outcome, name
        more = [sink.stage([{"value": b"%s/more/%d" % (name.encode(), number)}], "sunk", number) for number in range(2)]
        assert sink.commit(batch_id + 1, more, attributes={"checkpoint": "/c"}).outcome == "committed", name
    values = values_of(client, "sunk")
    assert len(values) == len(set(values)), "something is there twice"
    for name in ("decided", "pinned", "staged"):
        assert {b"%s/3/%d/%d" % (name.encode(), at // 4, at % 4) for at in range(8)} <= set(values), name


def run_of(client: Client, was: dict[str, Any], name: str) -> tuple[Sink, list[Stage]]:
    """A sink as the run had it that made the folder, and what that had staged last."""
    run = was["runs"][name]
    return client.sink(name, owner=run["owner"], epoch=run["epoch"]), [Stage(**each) for each in run["stages"]]


def stages_expire(client: Client, was: dict[str, Any]) -> None:
    """Where leases are short."""
    eventually(lambda: not any(each.staged for each in client.sinks(staged=True)), what="the stages to go")
    for name in ("staged", "pinned"):
        sink, stages = run_of(client, was, name)
        with pytest.raises((StageLost, SinkFenced)):
            sink.commit(3, stages, attributes={"checkpoint": "/c"})


def takes_appends(client: Client, was: dict[str, Any], hasty: Client) -> None:
    """`hasty` tries once: a paused stream is tried again by others."""
    for name, stream in was["streams"].items():
        for number, partition in enumerate(stream["partitions"]):
            row = [{"value": b"new", "key": b"new"}]
            if stream["paused"] or stream["read_only"]:
                with pytest.raises(StreamPaused if stream["paused"] else ReadOnly):
                    hasty.append(name, number, row)
                continue
            found = client.append(name, number, row)
            assert found.first_offset >= partition["high_watermark"]
            assert found.leader_epoch > partition["leader_epoch"]
    client.resume("paused")
    client.append("paused", 0, [{"value": b"resumed"}])
    client.set_read_only("read-only", False)
    eventually(lambda: is_taken(client, "read-only"), what="it takes records again")  # its leader hears of it later
    client.commit("behind", {"plain": {0: 11}})
    assert client.consumer("behind").offsets("plain") == {0: 11, 2: 3}


def is_taken(client: Client, stream: str) -> bool:
    try:
        return bool(client.append(stream, 0, [{"value": b"open again"}]).record_count)
    except ReadOnly:
        return False


def newest(client: Client) -> dict[bytes, bytes]:
    """Of each key of `keyed`; tombstones are none."""
    found: dict[bytes, bytes | None] = {}
    for batch in client.read("keyed"):
        found |= dict(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
    return {key: value for key, value in found.items() if value is not None}


def hashes_of(table: pa.Table) -> list[list[Any]]:
    """As in a manifest, of what an offline tool has read."""
    return [list(each) for batch in table.to_batches() for each in manifest.hashes(batch)]
