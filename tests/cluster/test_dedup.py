"""Goal: stock JetStream publishers may repeat whatever they like: with ids nothing is stored twice and nothing lost.

Method: a real nats-server and broker, nats-py's `js.publish`; the broker is killed with -9 amid a crowd of publishes,
and everything is published again with the same ids.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import nats
import nats.errors
import nats.js.errors
import pytest

from tests.cluster.test_intake import table
from tests.support.processes import BrokerProcess, NatsServer


def with_id(text: str) -> dict[str, str]:
    return {"Nats-Msg-Id": text}


async def test_a_repeat_is_answered_with_the_sequence_of_the_first(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    create(subject=name)
    client = await nats.connect(nats_server.url)
    jetstream = client.jetstream(timeout=60)
    before = broker.metric("liftlog_intake_duplicate_records_total")
    first = await jetstream.publish(name, b"1", headers=with_id("a"))
    other = await jetstream.publish(name, b"2")
    again = await jetstream.publish(name, b"3", headers=with_id("a"))
    assert (first.seq, bool(first.duplicate)) == (1, False)
    assert (other.seq, bool(other.duplicate)) == (2, False)
    assert (again.seq, again.duplicate, again.stream) == (1, True, name)
    await client.close()
    assert table(broker, name).column("value").to_pylist() == [b"1", b"2"]
    assert broker.metric("liftlog_intake_duplicate_records_total") == before + 1


async def test_expectations_are_answered_with_jetstreams_errors(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    create(subject=f"{name}.*")
    client = await nats.connect(nats_server.url)
    jetstream = client.jetstream(timeout=60)

    async def refused(**headers: str) -> tuple[int | None, str]:
        with pytest.raises(nats.js.errors.BadRequestError) as error:
            await jetstream.publish(f"{name}.x", b"", headers={k.replace("_", "-"): v for k, v in headers.items()})
        return error.value.err_code, str(error.value.description)

    sequence = "Nats-Expected-Last-Sequence"
    answers = await asyncio.gather(
        *(jetstream.publish(f"{name}.{i}", b"%d" % i, headers={sequence: "0"}) for i in range(8)),
        return_exceptions=True,
    )
    won = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert [ack.seq for ack in won] == [1]
    assert {getattr(error, "err_code", 10071) for error in answers} == {10071}
    await jetstream.publish(f"{name}.x", b"", headers={sequence: "1", **with_id("two")})
    assert (await refused(Nats_Expected_Last_Sequence="1"))[1].startswith("wrong last sequence: 2")
    assert (await refused(Nats_Expected_Last_Msg_Id="one"))[1].startswith("wrong last msg ID: two")
    assert (await refused(Nats_Expected_Last_Msg_Id="one"))[0] == 10070
    assert (await refused(Nats_Expected_Stream="other"))[0] == 10060
    assert (await refused(Nats_Expected_Last_Subject="1"))[0] == 10003
    again = await jetstream.publish(f"{name}.x", b"", headers={sequence: "1", **with_id("two")})
    assert (again.seq, again.duplicate) == (2, True)
    await client.close()
    assert len(table(broker, name)) == 2


async def test_killed_and_all_published_again_nothing_is_twice_and_nothing_lost(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    create(subject=name, segment_bytes=1 << 16, dedup_window_ms=3_600_000)
    client = await nats.connect(nats_server.url)
    jetstream = client.jetstream(timeout=60)
    crowd = asyncio.Semaphore(200)
    acked: dict[int, int] = {}

    async def publish(number: int) -> None:
        async with crowd:
            with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, asyncio.CancelledError):
                ack = await jetstream.publish(name, b"%d" % number, headers=with_id(f"id-{number}"))
                assert acked.setdefault(number, ack.seq) == ack.seq

    tasks = [asyncio.create_task(publish(number)) for number in range(3_000)]
    while len(acked) < 1_000:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(broker.kill9)
    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [outcome for outcome in outcomes if isinstance(outcome, AssertionError)]
    await asyncio.to_thread(broker.start)
    for _ in range(2):
        await asyncio.gather(*(publish(number) for number in range(3_000)))
    assert len(acked) == 3_000
    await client.close()
    found = table(broker, name)
    assert sorted(found.column("value").to_pylist(), key=int) == [b"%d" % number for number in range(3_000)]
    for offset, value in zip(found.column("offset").to_pylist(), found.column("value").to_pylist(), strict=True):
        assert acked[int(value)] == offset + 1
