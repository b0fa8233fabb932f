"""Streams that are changed while publishers and readers are at work, through real processes.

Goal: whatever is done to a stream, an ack stays a promise, a refusal says why, reads go on, and the state
outlives the process.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import nats.aio.client
import nats.errors
import nats.js.errors
import pyarrow as pa
import pytest

from broker.api.errors import LiftlogError, OffsetOutOfRange, StaleIncarnation, UnknownStream
from broker.client import connect
from broker.client.client import Client
from broker.client.nats_connection import flush
from tests.support.acks import offset_of, place_of
from tests.support.processes import BrokerProcess, NatsServer, eventually, running

Create = Callable[..., dict[str, object]]


def stored(client: Client, stream: str, **options: Any) -> list[bytes]:
    values: list[bytes] = client.read(stream, **options).to_table().column("value").to_pylist()
    return values


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def post(broker: BrokerProcess, stream: str, *values: bytes, query: str = "") -> tuple[int, dict[str, Any]]:
    """Append over HTTP, once. Returns status and answer."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows(*values).schema) as writer:
        writer.write_batch(rows(*values))
    request = urllib.request.Request(
        f"http://{broker.address}/v1/streams/{stream}/partitions/0/records{query}",
        data=sink.getvalue().to_pybytes(),
        headers={"Content-Type": "application/vnd.apache.arrow.stream"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def assert_no_fault(broker: BrokerProcess) -> None:
    """Nothing that was done here is a fault: no error and no traceback in the log."""
    output = broker.output()
    for word in ("Traceback", "_bug", "append_failed", "sync_failed", "cleaner.failed", " ERROR "):
        assert word not in output, output[-4000:]


async def acked(client: nats.aio.client.Client, subject: str, value: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await client.request(subject, value, timeout=60)).data)
    return answer


# -- pause and resume ---------------------------------------------------------------------------------------


async def test_paused_stream_stores_what_was_delivered_and_then_nothing(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Create
) -> None:
    create(subject=name, linger_ms=10_000)
    publisher = await nats.connect(nats_server.url)
    for i in range(3000):
        await publisher.publish(name, b"%d" % i)  # nobody awaits an ack: they linger in the broker
    await flush(publisher, 60)
    with connect(broker.address) as client:
        assert (await asyncio.to_thread(client.pause, name)).paused
        expected = [b"%d" % i for i in range(3000)]
        assert stored(client, name) == expected
        with pytest.raises(nats.errors.NoRespondersError):
            await publisher.request(name, b"no", timeout=60)
        with pytest.raises(nats.js.errors.NoStreamResponseError):
            await publisher.jetstream(timeout=60).publish(name, b"no")
        status, problem = await asyncio.to_thread(post, broker, name, b"no")
        assert (status, problem["reason"], problem["stream"]) == (503, "stream_paused", name)
        assert stored(client, name) == expected
        assert (await asyncio.to_thread(client.pause, name)).paused, "twice is as good as once"

        assert not (await asyncio.to_thread(client.resume, name)).paused
        assert offset_of(await acked(publisher, name, b"yes")) == 3000
        assert (await asyncio.to_thread(post, broker, name, b"too"))[0] == 200
        assert stored(client, name) == [*expected, b"yes", b"too"]
    await publisher.close()
    assert_no_fault(broker)


async def test_pausing_and_resuming_under_load_loses_and_doubles_no_acked_record(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Create
) -> None:
    create(subject=name)
    publisher = await nats.connect(nats_server.url)
    offsets: dict[int, int] = {}
    stop = asyncio.Event()

    async def publish() -> None:
        number = 0
        while not stop.is_set():
            with suppress(nats.errors.NoRespondersError, nats.errors.TimeoutError):
                answer = json.loads((await publisher.request(name, b"%d" % number, timeout=2)).data)
                if "error" not in answer:
                    offsets[number] = offset_of(answer)
            number += 1

    publishing = asyncio.create_task(publish())
    with connect(broker.address) as client:
        for _ in range(10):
            goal = len(offsets) + 20
            await asyncio.to_thread(eventually, lambda goal=goal: len(offsets) >= goal)
            await asyncio.to_thread(client.pause, name)
            await asyncio.to_thread(client.resume, name)
        stop.set()
        await publishing
        values = stored(client, name)
    assert len(offsets) >= 200
    assert [values[offset] for offset in offsets.values()] == [b"%d" % number for number in offsets]
    assert len(set(values)) == len(values)
    await publisher.close()
    assert_no_fault(broker)


@pytest.mark.parametrize("ending", ["stop", "kill9"])
async def test_paused_and_read_only_outlive_the_broker(tmp_path: Path, ending: str) -> None:
    with running(tmp_path) as (nats_server, broker):
        publisher = await nats.connect(nats_server.url)
        with connect(broker.address) as client:
            for name in ("paused", "sealed", "open"):
                client.create_stream(name, subject=name)
                assert offset_of(await acked(publisher, name, b"0")) == 0
            client.pause("paused")
            client.set_read_only("sealed")
            client.pause("open")
            client.resume("open")
            getattr(broker, ending)()
            await asyncio.to_thread(broker.start)
            assert {s.name: s.state for s in client.streams()} == {
                "open": "open",
                "paused": "paused",
                "sealed": "read-only",
            }
            with pytest.raises(nats.errors.NoRespondersError):
                await publisher.request("paused", b"no", timeout=60)
            assert "read_only" in (await acked(publisher, "sealed", b"no"))["error"]["description"]
            assert offset_of(await acked(publisher, "open", b"1")) == 1
            await asyncio.to_thread(client.resume, "paused")
            await asyncio.to_thread(client.set_read_only, "sealed", False)
            for name in ("paused", "sealed"):
                assert offset_of(await acked(publisher, name, b"1")) == 1
                assert stored(client, name) == [b"0", b"1"]
        await publisher.close()


async def test_stream_that_was_paused_without_nats_is_not_captured_when_it_is_back(tmp_path: Path) -> None:
    with running(tmp_path) as (nats_server, broker):
        with connect(broker.address) as client:
            for name in ("paused", "resumed"):
                client.create_stream(name, subject=name)
            client.pause("resumed")
            nats_server.kill9()
            await asyncio.to_thread(eventually, lambda: b"liftlog_intake_connected 0.0" in broker.get("/metrics"))
            await asyncio.to_thread(client.pause, "paused")
            await asyncio.to_thread(client.resume, "resumed")
        nats_server.start()
        await asyncio.to_thread(eventually, lambda: b"intake_reconnects_total 1.0" in broker.get("/metrics"))
        publisher = await nats.connect(nats_server.url)
        assert offset_of(await acked(publisher, "resumed", b"yes")) == 0
        with pytest.raises(nats.errors.NoRespondersError):
            await publisher.request("paused", b"no", timeout=60)
        await publisher.close()


# -- read-only ----------------------------------------------------------------------------------------------


async def test_read_only_stream_tells_every_publisher_so(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Create
) -> None:
    create(subject=name)
    publisher = await nats.connect(nats_server.url)
    await publisher.jetstream(timeout=60).publish(name, b"before")
    with connect(broker.address) as client:
        described = await asyncio.to_thread(client.set_read_only, name)
        assert (described.read_only, described.paused) == (True, False)
        with pytest.raises(nats.js.errors.APIError) as refused:
            await publisher.jetstream(timeout=60).publish(name, b"no")
        assert "read_only" in str(refused.value.description)
        assert (refused.value.code, refused.value.err_code) == (400, 10109)
        status, problem = await asyncio.to_thread(post, broker, name, b"no")
        assert (status, problem["reason"]) == (403, "read_only")
        assert stored(client, name) == [b"before"]
        refusals = 'liftlog_intake_refused_total{reason="stream_closed"}'
        before = broker.metric(refusals)
        for _ in range(100):
            await publisher.publish(name, b"no")
        await flush(publisher, 60)
        await asyncio.to_thread(eventually, lambda: broker.metric(refusals) == before + 100, what="all are refused")
        await asyncio.to_thread(client.set_read_only, name, False)
        await publisher.jetstream(timeout=60).publish(name, b"after")
        assert stored(client, name) == [b"before", b"after"]
    await publisher.close()
    assert_no_fault(broker)


# -- trim ---------------------------------------------------------------------------------------------------


def test_trim_moves_the_start_for_good_and_readers_below_are_told(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "b", None).start()
    try:
        with connect(broker.address) as client:
            client.create_stream("s", partitions=2, segment_bytes=1 << 20)
            folder = next((tmp_path / "b" / "data" / "streams" / "s").iterdir()) / "0"
            for i in range(40):
                client.append("s", 0, rows(*(b"%d" % (i * 10 + j) + b"x" * 20_000 for j in range(10))))
            client.append("s", 1, rows(b"other"))
            before = sum(file.stat().st_size for file in folder.iterdir())
            behind = client.read("s", partitions=[0], start=100, follow=True)

            with pytest.raises(OffsetOutOfRange) as beyond:
                client.trim("s", before=401)
            assert (beyond.value.log_start_offset, beyond.value.high_watermark) == (0, 400)
            assert client.trim("s", before=305, partitions=[0]) == {0: 305}
            assert client.trim("s", before=7, partitions=[0]) == {0: 305}, "what is gone stays gone"
            assert sum(file.stat().st_size for file in folder.iterdir()) < before / 2

            for killed in (False, True):
                if killed:
                    broker.kill9()
                    broker.start()
                assert [p.log_start_offset for p in client.describe("s").partitions] == [305, 0]
                values = stored(client, "s", partitions=[0])
                assert [int(value.strip(b"x")) for value in values] == list(range(305, 400))
                assert stored(client, "s", partitions=[1]) == [b"other"]
                with pytest.raises(OffsetOutOfRange) as gone:
                    client.read("s", partitions=[0], start=304)
                assert (gone.value.log_start_offset, gone.value.high_watermark) == (305, 400)
            with pytest.raises(OffsetOutOfRange):
                next(behind)

            assert client.trim("s", before="latest") == {0: 400, 1: 1}
            assert client.append("s", 0, rows(b"next")).first_offset == 400, "offsets are never used again"
            broker.kill9()
            broker.start()
            assert stored(client, "s") == [b"next"]
        assert_no_fault(broker)
    finally:
        broker.stop()


def test_trim_at_a_time_keeps_the_first_record_that_is_not_older(
    broker: BrokerProcess, name: str, create: Create
) -> None:
    create()
    with connect(broker.address) as client:
        client.append(name, 0, rows(b"old", b"old"))
        time.sleep(0.002)  # timestamps are microseconds of this clock: the next one is later
        now = datetime.now(UTC)
        client.append(name, 0, rows(b"new"))
        assert client.trim(name, before=datetime(2001, 1, 1, tzinfo=UTC)) == {0: 0}
        assert client.trim(name, before=now) == {0: 2}
        assert stored(client, name) == [b"new"]
        assert client.trim(name, before=datetime(2999, 1, 1, tzinfo=UTC)) == {0: 3}
        assert stored(client, name) == []


# -- partitions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_by", ["key", "subject_suffix"])
async def test_partitions_are_added_under_acked_publishing_without_a_gap(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Create, partition_by: str
) -> None:
    create(subject=name, partitions=2, partition_by=partition_by)
    publisher = await nats.connect(nats_server.url)
    got: dict[int, tuple[int, int]] = {}  # number -> partition and offset
    known, stop = [2], asyncio.Event()

    async def publish(worker: int) -> None:
        number = worker
        while not stop.is_set():
            if partition_by == "key":
                subject, headers = name, {"Liftlog-Key": f"k{number}"}
            else:
                partition = (number // 4) % known[0]
                subject, headers = name if partition == 0 else f"{name}.{partition}", None
            answer = json.loads((await publisher.request(subject, b"%d" % number, timeout=60, headers=headers)).data)
            assert "error" not in answer, answer
            got[number] = place_of(answer)
            number += 4

    publishing = [asyncio.create_task(publish(worker)) for worker in range(4)]

    async def more(count: int) -> None:
        goal = len(got) + count
        while len(got) < goal:
            for task in publishing:
                assert not task.done() or task.exception() is None, task.exception()
            await asyncio.sleep(0.005)

    with connect(broker.address) as client:
        await more(200)
        for count in (3, 6):
            changed = await asyncio.to_thread(client.add_partitions, name, count)
            assert len(changed.partitions) == changed.settings["partitions"] == count
            moved = [w for w in changed.warnings if f"to {count} partitions" in w]
            assert bool(moved) == (partition_by == "key"), changed.warnings
            known[0] = count
            await more(300)
        stop.set()
        await asyncio.gather(*publishing)
        table = client.read(name).to_table()
    rows_ = {
        (p, o): v
        for p, o, v in zip(
            *(table.column(c).to_pylist() for c in ("partition", "offset", "value")),
            strict=True,
        )
    }
    assert {place: b"%d" % number for number, place in got.items()} == rows_
    late = [place[0] for number, place in sorted(got.items())][-300:]
    assert set(late) == set(range(6)), "every partition gets its share"
    await publisher.close()
    assert_no_fault(broker)


async def test_added_partitions_outlive_kill_9_and_may_be_added_to_a_paused_stream(tmp_path: Path) -> None:
    with running(tmp_path) as (nats_server, broker), connect(broker.address) as client:
        client.create_stream("s", subject="s", partition_by="key")
        client.pause("s")
        folder = next((broker.folder / "data" / "streams" / "s").iterdir())
        (folder / "1").mkdir()  # what a broker leaves that is killed while it makes partition 1
        assert len(client.add_partitions("s", 3).partitions) == 3
        with pytest.raises(LiftlogError, match="would lose records"):
            client.add_partitions("s", 2)
        broker.kill9()
        await asyncio.to_thread(broker.start)
        assert client.describe("s").state == "paused"
        await asyncio.to_thread(client.resume, "s")
        publisher = await nats.connect(nats_server.url)
        for i in range(60):
            await publisher.request("s", b"%d" % i, timeout=60, headers={"Liftlog-Key": str(i)})
        await publisher.close()
        assert all(p.high_watermark for p in client.describe("s").partitions)
        assert sorted(map(int, stored(client, "s"))) == list(range(60))


# -- alter under load of large messages -----------------------------------------------------------------------


async def test_settings_change_and_partitions_are_added_under_large_messages_and_all_are_acked(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Create
) -> None:
    """The defect: intake ended for good when a change met a message half read. Messages have 20 KB, so that nearly each
    change meets one."""
    create(subject=f"{name}.*", partition_by="subject")
    client = await nats.connect(nats_server.url)
    jetstream = client.jetstream(timeout=60, publish_async_max_pending=64)
    changed = asyncio.Event()
    got: dict[tuple[int, int], bytes] = {}

    async def publish(publisher: int) -> None:
        number = 0
        while not changed.is_set() or number % 16:
            value = b"%d-%d " % (publisher, number)
            ack = json.loads((await client.request(f"{name}.{number % 7}", value * (20_000 // len(value)), 60)).data)
            assert "error" not in ack, ack
            got[place_of(ack)] = value
            number += 1

    publishing = [asyncio.create_task(publish(i)) for i in range(16)]
    with connect(broker.address) as admin:
        for number in range(60):
            if number == 30:
                await asyncio.to_thread(admin.add_partitions, name, 3)
            await asyncio.to_thread(admin.alter, name, linger_ms=number % 3, record_bytes_max=(1 << 20) + number)
        changed.set()
        await asyncio.wait_for(asyncio.gather(*publishing), 60)
        ack = await jetstream.publish(f"{name}.1", b"behind")
        assert ack.stream == name
        table = admin.read(name).to_table()
    rows_ = zip(*(table.column(c).to_pylist() for c in ("partition", "offset", "value")), strict=True)
    values = {(partition, offset): value for partition, offset, value in rows_}
    assert len(values) == len(got) + 1
    assert all(values[place].startswith(value) and len(values[place]) > 19_900 for place, value in got.items())
    await client.close()
    assert_no_fault(broker)


# -- delete and re-create -----------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 2])  # a following read of one partition waits otherwise than one of several
def test_readers_and_consumers_of_a_deleted_stream_are_told_precisely(
    broker: BrokerProcess, name: str, create: Create, partitions: int
) -> None:
    create(partitions=partitions)
    consumer = f"of-{name}"
    errors: list[LiftlogError] = []
    seen = threading.Event()
    with connect(broker.address) as client:

        def follow() -> None:
            try:
                for _ in client.read(name, follow=True):
                    seen.set()
            except LiftlogError as error:
                errors.append(error)

        old = client.describe(name).incarnation
        client.append(name, 0, rows(b"a", b"b"))
        client.commit(consumer, {name: {0: 1}})
        assert client.lag(consumer) == 1
        reader = threading.Thread(target=follow)
        reader.start()
        assert seen.wait(60)
        bounded = client.read(name, partitions=[0])
        client.delete_stream(name)
        client.create_stream(name, partitions=partitions)
        client.append(name, 0, rows(b"c"))
        reader.join(60)
        assert [type(e) for e in errors] in ([StaleIncarnation], [UnknownStream]), errors
        with pytest.raises(StaleIncarnation) as stale:
            next(bounded)
        assert stale.value.incarnation == client.describe(name).incarnation != old
        status, problem = post(broker, name, b"no", query=f"?incarnation={old}")
        assert (status, problem["reason"]) == (409, "stale_incarnation")
        (lag,) = client.consumer(consumer).partitions
        assert (lag.offset, lag.high_watermark, lag.lag, lag.incarnation) == (1, None, None, old)
        assert stored(client, name) == [b"c"]
    assert_no_fault(broker)


def said_by(description: str) -> str:
    """The reason at the end of an error of an ack, or how it begins."""
    found = re.search(r"\[(\w+)\]$", description)
    return found[1] if found is not None else description.partition(":")[0]


async def test_appends_to_a_stream_that_is_deleted_get_a_clear_answer(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Create
) -> None:
    """Publishers and appenders at full speed while the stream goes and comes; every answer is one of the documented."""
    publisher = await nats.connect(nats_server.url)
    create(subject=name)
    answers: dict[str, int] = {}
    stop = threading.Event()

    def append() -> None:
        while not stop.is_set():
            status, body = post(broker, name, *(b"x" * 1000 for _ in range(50)))
            said = "ok" if status == 200 else body["reason"]
            answers[said] = answers.get(said, 0) + 1

    async def publish() -> None:
        while not stop.is_set():
            try:
                answer = json.loads((await publisher.request(name, b"y", timeout=60)).data)
            except nats.errors.NoRespondersError:
                said = "no responders"
            else:
                said = said_by(answer["error"]["description"]) if "error" in answer else "ack"
            answers[said] = answers.get(said, 0) + 1

    threads = [asyncio.create_task(asyncio.to_thread(append)) for _ in range(3)]
    publishing = [asyncio.create_task(publish()) for _ in range(3)]
    try:
        with connect(broker.address) as client:
            for _ in range(12):
                goals = {said: answers.get(said, 0) + 5 for said in ("ok", "ack")}
                await asyncio.to_thread(
                    eventually, lambda goals=goals: all(answers.get(said, 0) >= goal for said, goal in goals.items())
                )
                await asyncio.to_thread(client.delete_stream, name)
                await asyncio.to_thread(client.create_stream, name, subject=name)
    finally:
        stop.set()
    await asyncio.gather(*threads, *publishing)
    assert answers["ok"] > 50
    assert answers["ack"] > 50
    assert set(answers) <= {"ok", "ack", "no responders", "unknown_stream", "stale_incarnation", "not_ready"}, answers
    await publisher.close()
    assert_no_fault(broker)


# -- command line -------------------------------------------------------------------------------------------


def test_command_line_does_and_shows_it_all(broker: BrokerProcess, name: str, create: Create) -> None:
    create(partition_by="key")

    def liftlog(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "broker.cli.main", "--brokers", broker.address, "stream", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == code, done.stderr
        return done

    def state() -> str:
        line = next(line for line in liftlog("describe", name).stdout.splitlines() if line.startswith("state "))
        assert line.split(maxsplit=1)[1].split(", ")[0] in liftlog("list").stdout
        return line.split(maxsplit=1)[1]

    with connect(broker.address) as client:
        client.append(name, 0, rows(b"a", b"b", b"c"))
    assert state() == "open"
    assert liftlog("pause", name).stderr == f"stream {name} is paused\n"
    assert json.loads(liftlog("read-only", name, "--json").stdout)["read_only"] is True
    assert state() == "paused, read-only"
    assert liftlog("resume", name).stderr == f"stream {name} is read-only\n"
    assert liftlog("read-only", name, "--off").stderr == f"stream {name} is open\n"
    added = liftlog("add-partitions", name, "3").stderr
    assert f"stream {name} has 3 partitions" in added
    assert "warning: from 1 to 3 partitions" in added
    beyond = liftlog("trim", name, "--before", "2", code=1).stderr
    assert beyond.startswith("error[offset_out_of_range]: ")
    assert "valid is [0, 0]" in beyond
    trimmed = json.loads(liftlog("trim", name, "--before", "2", "--partition", "0", "--json").stdout)
    assert trimmed == {"stream": name, "partitions": [{"partition": 0, "log_start_offset": 2}]}
    assert "3" in liftlog("trim", name, "--before", "latest").stdout
    assert liftlog("pause", "nobody", code=1).stderr.startswith("error[unknown_stream]: ")
