"""Liftbridge's Subscribe with `reverse`.

Goal: the records of a partition from a position back, each once, with the codes that forward reads have; no more than
a few batches are held; what the disk has lost is told. Method: asked by grpcio, with reads of other sizes, and ranges
that are marked lost. What a server of Liftbridge (26.01.1) answers to the same stands in the decision record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api import http
from broker.api.errors import NotLeader
from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.liftbridge import backward, reading
from tests.support.liftbridge import Client, client_of, opened
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Server

COUNT = 30


@pytest.fixture
def empty(server: Server) -> Iterator[Client]:
    with opened(server) as port, client_of(port.port) as client:
        client.call("CreateStream", name="s", subject="s")
        yield client


@pytest.fixture
def client(empty: Client, server: Server) -> Client:
    for _ in range(COUNT // 10):
        server.api.append("s", values(10))
    return empty


def read(client: Client, **fields: Any) -> tuple[list[int], str, str]:
    """Offsets, and how it ended."""
    found: list[int] = []
    call = client.subscribe(**{"stream": "s", "reverse": True, **fields})
    try:
        for record in call:
            if record != pb.Record():
                assert record.value == b"%d" % (record.offset % 10) + b"." * (len(record.value) - 1)
                found.append(record.offset)
    except grpc.RpcError as error:
        return found, error.code().name, error.details()
    raise AssertionError("it has no end")


def down(newest: int, oldest: int = 0) -> list[int]:
    return list(range(newest, oldest - 1, -1))


BEGINNING, STOP = "the beginning is reached", "the stop position is reached"
POSITIONS: list[tuple[dict[str, Any], list[int], str]] = [
    ({}, down(29), BEGINNING),
    ({"start": pb.LATEST}, down(29), BEGINNING),
    ({"start": pb.EARLIEST}, [0], BEGINNING),
    ({"start": pb.OFFSET, "start_offset": 13}, down(13), BEGINNING),
    ({"start": pb.OFFSET, "start_offset": 300}, down(29), BEGINNING),
    ({"start": pb.OFFSET, "start_offset": -5}, [0], BEGINNING),
    ({"start": pb.TIMESTAMP, "start_timestamp": 1}, [0], BEGINNING),
    ({"start": pb.TIMESTAMP, "start_timestamp": 4_000_000_000 * 10**9}, down(29), BEGINNING),
    ({"stop": pb.AT_OFFSET, "stop_offset": 12}, down(29, 12), STOP),
    ({"start": pb.OFFSET, "start_offset": 13, "stop": pb.AT_OFFSET, "stop_offset": 13}, [13], STOP),
    ({"stop": pb.AT_OFFSET, "stop_offset": -1}, down(29), STOP),
    ({"stop": pb.AT_LATEST}, [29], STOP),
    ({"stop": pb.AT_TIMESTAMP, "stop_timestamp": 1}, down(29), STOP),
    ({"stop": pb.AT_TIMESTAMP, "stop_timestamp": 4_000_000_000 * 10**9}, [29], STOP),
    ({"from_replica": True}, down(29), BEGINNING),
]


def test_records_come_from_the_start_back_to_the_stop(client: Client) -> None:
    for asked, found, text in POSITIONS:
        assert read(client, **asked) == (found, "RESOURCE_EXHAUSTED", text), asked


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"start": pb.OFFSET, "start_offset": 13, "stop": pb.AT_OFFSET, "stop_offset": 14}, "INVALID_ARGUMENT"),
    ({"start": pb.OFFSET, "start_offset": 13, "stop": pb.AT_LATEST}, "INVALID_ARGUMENT"),
    ({"start": 9}, "INVALID_ARGUMENT"),
    ({"stop": 9}, "INVALID_ARGUMENT"),
    ({"consumer": pb.Member(group_id="g", consumer_id="c")}, "INVALID_ARGUMENT"),
    ({"partition": 1}, "NOT_FOUND"),
    ({"stream": "t"}, "NOT_FOUND"),
]


def test_what_cannot_be_read_back_is_refused(client: Client) -> None:
    for asked, code in REFUSED:
        assert read(client, **asked)[:2] == ([], code), asked


def test_an_empty_partition_says_so(empty: Client) -> None:
    assert read(empty) == ([], "RESOURCE_EXHAUSTED", "Stream is empty")


def test_a_step_that_is_far_too_long_costs_a_few_reads(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a gap of compaction. Seen before: all that is in it was read, again and again, for each of its ends."""
    real, starts = reading.read, list[int]()

    async def noted(asking: Any, asked: Any, span: Any, offset: int, **more: Any) -> Any:
        starts.append(offset)
        return await real(asking, asked, span, offset, **more)

    for _ in range(57):
        server.api.append("s", values(10))
    monkeypatch.setattr(reading, "READ_BYTES", 10_000)
    monkeypatch.setattr(backward, "READ_BYTES", 10_000)
    monkeypatch.setattr(reading, "read", noted)
    monkeypatch.setattr(backward, "STEP", 1 << 30)
    assert read(client)[0] == down(599)
    assert len(starts) < 30, starts


@pytest.mark.parametrize(("read_bytes", "step"), [(1, 256), (3_000, 256), (1 << 20, 1), (1 << 20, 7), (2_500, 3)])
def test_reads_of_every_size_bring_each_record_once(
    client: Client, monkeypatch: pytest.MonkeyPatch, read_bytes: int, step: int
) -> None:
    real, bodies = reading.read, list[int]()

    async def noted(*args: Any, **more: Any) -> Any:
        found = await real(*args, **more)
        bodies.append(len(found.body))
        return found

    monkeypatch.setattr(reading, "READ_BYTES", read_bytes)
    monkeypatch.setattr(reading, "read", noted)
    monkeypatch.setattr(backward, "STEP", step)
    assert read(client)[0] == down(29)
    assert read(client, start=pb.OFFSET, start_offset=25, stop=pb.AT_OFFSET, stop_offset=4)[0] == down(25, 4)
    assert max(bodies) < 4_000 or read_bytes > 4_000, "a few batches at a time"


def test_the_beginning_is_where_retention_has_come_to(client: Client, server: Server) -> None:
    trimmed = server.api.post("/v1/streams/s/trim", {"before": {"offset": 15}})
    assert trimmed.status == 200, trimmed.body
    assert read(client)[:2] == (down(29, 15), "RESOURCE_EXHAUSTED")
    assert read(client, start=pb.OFFSET, start_offset=3)[0] == [15]


def test_retention_that_overtakes_it_is_the_beginning(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backward, "STEP", 1)
    monkeypatch.setattr(backward, "GROWTH", 1)
    real, reads = reading.read, list[int]()

    async def overtaken(asking: Any, asked: Any, span: Any, offset: int, *, wait_ms: int) -> Any:
        reads.append(offset)
        if len(reads) == 2:
            partition = asking.serving.backend.partition("s", 0)
            await asking.serving.in_worker(lambda: partition.log.trim(25))
        return await real(asking, asked, span, offset, wait_ms=wait_ms)

    monkeypatch.setattr(reading, "read", overtaken)
    found, code, text = read(client)
    assert (found[:5], code, text) == (down(29, 25), "RESOURCE_EXHAUSTED", BEGINNING)


def test_it_ends_behind_what_is_lost_and_another_goes_on_before_it(client: Client, server: Server) -> None:
    server.backend.partition("s", 0).log.state.lost_ranges = ((0, 2), (5, 10), (20, 21), (21, 22))
    asked: dict[str, Any] = {}
    told, offsets = [], []
    while (found := read(client, **asked))[1] == "DATA_LOSS":
        told.append(found[2])
        offsets += found[0]
        if found[2].endswith("before them"):
            break
        asked = {"start": pb.OFFSET, "start_offset": int(found[2].rpartition("from ")[2].split()[0])}
    assert told == [
        "offsets 20 to 21 of s/0 are lost: subscribe from 19 on",
        "offsets 5 to 9 of s/0 are lost: subscribe from 4 on",
        "offsets 0 to 1 of s/0 are lost: nothing more is before them",
    ]
    assert offsets == [*down(29, 22), *down(19, 10), *down(4, 2)]
    assert read(client, start=pb.OFFSET, start_offset=20)[0] == down(19, 10), "it begins before it"
    assert read(client, stop=pb.AT_OFFSET, stop_offset=22)[1] == "RESOURCE_EXHAUSTED", "it is behind the end"


@pytest.mark.parametrize("step", [1, 3, 256])
def test_a_lost_range_is_told_as_a_whole(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(backward, "STEP", step)
    server.backend.partition("s", 0).log.state.lost_ranges = ((10, 20),)
    assert read(client) == (down(29, 20), "DATA_LOSS", "offsets 10 to 19 of s/0 are lost: subscribe from 9 on")


def test_more_lost_ranges_than_a_header_has_are_told_one_by_one(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        server.api.append("s", values(10))
    server.backend.partition("s", 0).log.state.lost_ranges = tuple((at, at + 10) for at in range(0, 80, 20))
    monkeypatch.setattr(http, "LOST_RANGES_MAX", 2)
    assert read(client) == (down(89, 70), "DATA_LOSS", "offsets 60 to 69 of s/0 are lost: subscribe from 59 on")


def test_damaged_bytes_are_no_records(client: Client, server: Server) -> None:
    plan = server.backend.partition("s", 0).log.reader.read(10, end=20)
    (stored,) = plan.ranges
    plan.close()
    with open(stored.path, "r+b") as file:
        file.seek(stored.position + stored.length - 250)
        [byte] = file.read(1)
        file.seek(stored.position + stored.length - 250)
        file.write(bytes([byte ^ 0xFF]))
    assert read(client) == (down(29, 20), "DATA_LOSS", "offsets 10 to 19 of s/0 are lost: subscribe from 9 on")
    assert read(client, start=pb.OFFSET, start_offset=9)[:2] == (down(9), "RESOURCE_EXHAUSTED")


def test_who_leads_no_more_says_so_as_to_forward_reads(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward, "STEP", 10)
    real, reads = reading.read, list[int]()

    async def moved(asking: Any, asked: Any, span: Any, offset: int, *, wait_ms: int) -> Any:
        reads.append(offset)
        if len(reads) == 2:
            raise NotLeader("another broker leads it")
        return await real(asking, asked, span, offset, wait_ms=wait_ms)

    monkeypatch.setattr(reading, "read", moved)
    assert read(client)[:2] == (down(29, 20), "UNAVAILABLE")
    reads[:] = [0]
    assert read(client)[:2] == ([], "FAILED_PRECONDITION")


def test_a_replica_that_is_behind_is_waited_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    real, waited = reading.read, list[int]()
    behind = 2

    async def of_replica(asking: Any, asked: Any, span: Any, offset: int, *, wait_ms: int) -> Any:
        if wait_ms:
            waited.append(offset)
            return None
        found = await real(asking, asked, span, offset, wait_ms=wait_ms)
        if len(waited) < behind:
            return found._replace(headers={**found.headers, http.HIGH_WATERMARK: "20"})
        return found

    monkeypatch.setattr(reading, "read", of_replica)
    assert read(client, from_replica=True)[0] == down(29)
    assert waited == [20, 20]
    behind = 100
    assert read(client, from_replica=True)[:2] == ([], "UNAVAILABLE")


def test_a_paused_stream_is_resumed_if_so_asked(client: Client, server: Server) -> None:
    client.call("PauseStream", name="s")
    assert read(client, resume=True)[0] == down(29)
    assert not server.backend.stream("s").paused
