"""What is put into the kept folders: a stream for each state that an earlier commit may leave behind.

plain     three partitions, headers, nulls; segments open and sealed; records of several leader epochs
keyed     compacted, with tombstones
packed    rewritten with zstd, and an open segment behind
ids       captured from NATS, with message ids
counted   captured from NATS, with expectations of the last sequence of a subject
stamped   of idempotent producers that have not ended
sunk      of sinks: `done` is complete, `pinned` is not decided, `decided` is not finished in partition 1,
          `staged` was never committed
trimmed, paused, read-only, grown (from one partition to three), rotten (one damaged record), deleted
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa

from broker.api.errors import CorruptLog, LiftlogError
from broker.client import Client, Position
from broker.client.writing.append import Stamp

SMALL = {"segment_bytes": 1 << 16}
COMPACT = {**SMALL, "cleanup": "compact", "min_cleanable_dirty_percent": 1}
ROT = b"this one rots"
REGISTERED = ("one", "two")


def make_streams(client: Client, replication: dict[str, int], alone: dict[str, int]) -> None:
    """`replication`: of most streams; `alone`: of the one that is damaged."""
    for name, settings in {
        "plain": {"partitions": 3, **SMALL},
        "keyed": COMPACT,
        "packed": {**SMALL, "compression": "zstd"},
        "ids": {"subject": "ids.>", "partition_by": "subject", "dedup_window_ms": 7 * 24 * 3_600_000, **SMALL},
        "counted": {"subject": "counted.*", "partition_by": "subject"},
        "stamped": {"partitions": 2, **SMALL},
        "sunk": {"partitions": 2},
        "trimmed": SMALL,
        "paused": {"retention_ms": 86_400_000_000, "linger_ms": 5},
        "read-only": {},
        "grown": {"partition_by": "key"},
        "deleted": {},
    }.items():
        client.create_stream(name, **settings, **replication)
    client.create_stream("rotten", **SMALL, **alone)


def rows(first: int, count: int, *, width: int = 200, keys: int = 0) -> pa.RecordBatch:
    """Values of `width` bytes; with `keys`: of so many keys."""
    numbers = range(first, first + count)
    columns = {"value": pa.array([b"%0*d" % (width, number) for number in numbers], pa.binary())}
    if keys:
        columns["key"] = pa.array([b"k%d" % (number % keys) for number in numbers], pa.binary())
    return pa.record_batch(columns)


def odd_rows() -> list[dict[str, Any]]:
    """With headers, without, with a null value, an empty one, a subject."""
    return [
        {"value": b"headers", "headers": [("a", b"1"), ("a", b"2"), ("b", b"")], "key": b"k"},
        {"value": b"", "headers": None, "key": b""},
        {"value": None, "headers": [], "key": b"\x00\xff"},
        {"value": b"\x00" * 33, "headers": None, "key": None},
    ]


def append_plain(client: Client, round_: int) -> None:
    """One round; each of them is in another leader epoch. The first seals segments."""
    for partition in range(3):
        client.append("plain", partition, odd_rows())
        for number in range(8 if round_ == 0 and partition < 2 else 1):
            client.append("plain", partition, rows(round_ * 1_000 + number * 50, 50))


def append_keyed(client: Client) -> None:
    """Two sealed segments and an open one; `k1` and `gone` end as tombstones."""
    client.append("keyed", 0, [{"key": b"gone", "value": b"early"}])
    for number in range(14):
        client.append("keyed", 0, rows(number * 40, 40, keys=7))
        client.append("keyed", 0, [{"key": b"only%d" % number, "value": b"x"}])
    client.append("keyed", 0, [{"key": b"k1", "value": None}, {"key": b"gone", "value": None}])
    for number in range(14, 24):
        client.append("keyed", 0, rows(number * 40, 40, keys=5)[2:5])
        client.append("keyed", 0, rows(number * 50, 50, keys=1))


def append_others(client: Client) -> None:
    hour_ago_us = time.time_ns() // 1_000 - 3_600_000_000  # what is younger is not written anew
    for number in range(120):
        times = pa.array([hour_ago_us + number] * 5, pa.timestamp("us", "UTC"))
        client.append("packed", 0, rows(number * 10, 5).append_column("timestamp", times))
    for number in range(12):
        client.append("trimmed", 0, rows(number * 50, 50))
    client.trim("trimmed", before=425)
    for name in ("paused", "read-only", "deleted"):
        client.append(name, 0, rows(0, 5))
    client.pause("paused")
    client.set_read_only("read-only")
    client.delete_stream("deleted")
    client.append("grown", 0, rows(0, 20, keys=9))
    client.add_partitions("grown", 3)
    for partition in range(3):
        client.append("grown", partition, rows(100 * partition, 7, keys=9))
    for consumer, offset in (("behind", 7), ("done", 54), ("nowhere", 0)):
        client.commit(consumer, {"plain": {0: offset, 2: 3}, "keyed": {0: offset}}, metadata=f"of {consumer}")
    client.commit("behind", {"plain": {0: 9}}, metadata="again")
    [exact] = client.resolve([Position("plain", 1, 100)])
    place = {"offset": exact.offset, "leader_epoch": exact.leader_epoch, "incarnation": exact.incarnation}
    client.commit("exact", [{"stream": "plain", "partition": 1, **place, "metadata": "to the record"}])
    client.commit("forgotten", {"plain": {0: 1}})
    client.delete_consumer("forgotten")


async def publish(url: str) -> dict[str, Any]:
    """Messages with ids and with expectations; what has to be answered again."""
    connection = await nats.connect(url)
    jetstream = connection.jetstream(timeout=60)
    acks = {}
    for number in range(400):
        headers = {"Nats-Msg-Id": f"id-{number}", "Liftlog-Key": f"k{number % 3}"}
        subject = f"ids.{number % 5}"
        answer = await jetstream.publish(subject, b"%0200d" % number, headers=headers)
        if number % 7 == 0 or number > 390:
            acks[f"id-{number}"] = [subject, answer.seq]
    counted = {}
    for number in range(20):
        subject = f"counted.{number % 4}"
        headers = {"Nats-Expected-Last-Subject-Sequence": str(counted.get(subject, 0))}
        counted[subject] = (await jetstream.publish(subject, b"%d" % number, headers=headers)).seq
    await connection.close()
    return {"ids": acks, "counted": counted}


def append_stamped(client: Client, producers: dict[str, Any]) -> None:
    """Another request of each producer to each partition; `producers` tells all that can be repeated."""
    for name in REGISTERED:
        if name not in producers:
            identity = client.register_producer(name)
            producers[name] = {"id": identity[0], "epoch": identity[1], "last": {}}
        of = producers[name]
        for partition in range(2):
            for _ in range(6):
                sequence = of["last"].get(str(partition), {"sequence": -1})["sequence"] + 1
                value = f"{name}/{partition}/{sequence}/".ljust(300, "s")
                stamp = Stamp(of["id"], of["epoch"], sequence)
                found = client.append("stamped", partition, [{"value": value.encode()}] * 5, stamp=stamp)
                of["last"][str(partition)] = {
                    "sequence": sequence,
                    "value": value,
                    "first_offset": found.first_offset,
                    "next_offset": found.next_offset,
                }


def stage(client: Client, name: str, batch_id: int) -> dict[str, Any]:
    """A run of a sink, and two stages of it, one for each partition."""
    sink = client.sink(name, owner=f"{name}-run")
    sink.open()
    stages = [
        sink.stage([{"value": f"{name}/{batch_id}/{partition}/{row}".encode()} for row in range(4)], "sunk", partition)
        for partition in range(2)
    ]
    return {
        "owner": sink.owner,
        "epoch": sink.epoch,
        "batch_id": batch_id,
        "stages": [{**each.as_json(), "rows": each.rows} for each in stages],
        "sink": (sink, stages),
    }


def commit_all(client: Client, patient: Callable[[], Client], stands: Path) -> dict[str, Any]:
    """Every state that a sink can be in. Ends with two commits that stand still (stepping.py).

    Args:
        patient: Makes a client that waits for them.
    """
    with suppress(LiftlogError):
        client.append("sunk", 0, [{"value": b"of nobody"}])
    runs = {name: stage(client, name, 3) for name in ("done", "staged", "pinned", "decided")}
    for batch_id in (5, 6):
        runs["done"] = stage(client, "done", batch_id)
        sink, stages = runs["done"]["sink"]
        assert sink.commit(batch_id, stages, digest=f"d:{batch_id}", attributes={"checkpoint": "/c"}).outcome
    for name in ("pinned", "decided"):
        threading.Thread(target=_commit, args=(patient(), name, runs[name]), daemon=True).start()
        _wait(lambda name=name: (stands / name).exists(), what=f"{name} stands")  # type: ignore[misc]
    _wait(lambda: b"decided/3/0/3" in values(client, "sunk"), what="the other partition has its group")
    assert not [value for value in values(client, "sunk") if value.startswith((b"pinned", b"decided/3/1", b"staged"))]
    return {name: {key: value for key, value in run.items() if key != "sink"} for name, run in runs.items()}


def _commit(client: Client, name: str, run: dict[str, Any]) -> None:
    with suppress(LiftlogError):  # its broker is killed
        sink = client.sink(name, owner=run["owner"], epoch=run["epoch"])
        sink.commit(run["batch_id"], run["sink"][1], digest="d:3", attributes={"checkpoint": "/c"})


def values(client: Client, stream: str) -> list[bytes]:
    return [value for batch in client.read(stream) for value in batch.column("value").to_pylist()]


def append_rotten(client: Client) -> None:
    for number in range(4):
        client.append("rotten", 0, rows(number, 1))
    client.append("rotten", 0, [{"value": ROT}])
    for number in range(4):
        client.append("rotten", 0, rows(number, 1))


def rot(data: Path) -> bool:
    """Flip a bit of the record that rots, if the folder of a broker has it."""
    for path in sorted(data.glob("streams/rotten/*/0/*.arrows")):
        at = path.read_bytes().find(ROT)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([ROT[0] ^ 4]))
                file.flush()
                os.fsync(file.fileno())
            return True
    return False


def notice(client: Client) -> None:
    """A reader meets the damage; from then on the range counts as lost."""
    with suppress(CorruptLog):  # unless the range was told to be lost before the second try
        values(client, "rotten")
    _wait(lambda: client.describe("rotten").partitions[0].lost_ranges, what="it is told")


def wait_rewritten(client: Client, outputs: Iterable[Callable[[], str]]) -> None:
    """Until each broker has compacted and compressed what there is; given what they write."""
    for output in outputs:
        for line in ("compaction.done partition=keyed/0", "coalescing.done partition=packed/0"):
            _wait(lambda output=output, line=line: line in output(), what=line)  # type: ignore[misc]
    assert None in values(client, "keyed"), "the tombstones stay"


def published(url: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(asyncio.run(publish(url))))
    return found


def _wait(condition: Callable[[], object], *, what: str) -> None:
    from tests.support.processes import eventually

    eventually(condition, what=what)
