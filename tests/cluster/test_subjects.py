"""Goal: stock JetStream publishers may compare and set per subject: each acknowledged update knew the one before it.

Method: a real nats-server and broker, nats-py's `js.publish(headers=...)`; the broker is killed with -9 amid writers
that count the same subjects up, several times. Afterwards the log itself must be a chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import nats
import nats.errors
import nats.js.errors
from nats.js import JetStreamContext

from tests.cluster.test_intake import table
from tests.support.processes import BrokerProcess, NatsServer

SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
WRITERS, SUBJECTS, KILLS, ACKS_A_ROUND = 6, 3, 2, 60


async def test_answers_are_jetstreams(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    create(subject=f"{name}.*", subjects_max=2)
    client = await nats.connect(nats_server.url)
    jetstream = client.jetstream()

    async def put(token: str, expected: int, **more: str) -> tuple[int, str]:
        headers = {SUBJECT_SEQUENCE: str(expected)} | {k.replace("_", "-"): v for k, v in more.items()}
        try:
            return (await jetstream.publish(f"{name}.{token}", b"", headers=headers)).seq, ""
        except nats.js.errors.APIError as error:
            return -(error.err_code or 0), str(error.description)

    assert (await jetstream.publish(f"{name}.a", b"")).seq == 1
    assert await put("a", 0) == (-10071, "wrong last sequence: 1 [expectation_failed]")
    assert (await put("a", 1))[0] == 2
    assert (await put("b", 0))[0] == 3
    answers = await asyncio.gather(*(put("b", 3) for _ in range(8)))
    assert sorted(seq for seq, _ in answers) == [-10071] * 7 + [4]
    own = {"Nats_Expected_Last_Subject_Sequence_Subject": f"{name}.a"}
    assert (await put("a", 2, **own))[0] == 5
    assert (await put("b", 5, **own))[0] == -10003
    assert (await put("c", 0))[0] == -10023
    assert (await jetstream.publish(f"{name}.c", b"")).seq == 6
    await client.close()
    assert table(broker, name).column("subject").to_pylist() == [f"{name}.{token}" for token in "aabbac"]
    metrics = broker.get("/metrics")
    assert b'liftlog_intake_refused_total{reason="expectation"} 8.0\n' in metrics
    assert b'liftlog_intake_refused_total{reason="subject_unknown"} 1.0\n' in metrics


class Writers:
    """Writers that count subjects up: the value is the sequence that was expected. Each writer keeps its answers."""

    def __init__(self, jetstream: JetStreamContext, name: str) -> None:
        self.jetstream = jetstream
        self.name = name
        self.acked: dict[int, tuple[str, int]] = {}  # sequence -> subject, the one before
        self.stop = False

    async def run(self, writer: int) -> None:
        known = 0
        subject = f"{self.name}.{writer % SUBJECTS}"
        while not self.stop:
            try:
                headers = {SUBJECT_SEQUENCE: str(known)}
                ack = await self.jetstream.publish(subject, b"%d" % known, headers=headers, timeout=5)
            except nats.js.errors.APIError as error:
                text = str(error.description)
                if error.err_code == 10071:
                    known = int(text.removeprefix("wrong last sequence: ").split()[0])
                else:
                    await asyncio.sleep(0.02)
            except (nats.errors.Error, nats.js.errors.Error):
                await asyncio.sleep(0.02)
            else:
                assert ack.seq not in self.acked, "two were given one sequence"
                self.acked[ack.seq] = (subject, known)
                known = ack.seq


async def test_counters_that_several_writers_compare_and_set_lose_no_update_by_kill_9(
    nats_server: NatsServer, broker: BrokerProcess, name: str, create: Callable[..., dict[str, object]]
) -> None:
    create(subject=f"{name}.*", segment_bytes=1 << 16)
    client = await nats.connect(nats_server.url)
    writers = Writers(client.jetstream(), name)
    tasks = [asyncio.create_task(writers.run(writer)) for writer in range(WRITERS)]

    async def progress() -> None:
        wanted = len(writers.acked) + ACKS_A_ROUND
        async with asyncio.timeout(60):
            while len(writers.acked) < wanted:
                for task in tasks:
                    assert not task.done(), task.exception()
                await asyncio.sleep(0.01)

    for _ in range(KILLS):
        await progress()
        await asyncio.to_thread(broker.kill9)
        await asyncio.to_thread(broker.start)
    await progress()
    writers.stop = True
    await asyncio.gather(*tasks)
    await client.close()

    found = table(broker, name)
    last = dict.fromkeys({*found.column("subject").to_pylist()}, 0)
    stored = {}
    for offset, subject, value in zip(
        *(found.column(column).to_pylist() for column in ("offset", "subject", "value")), strict=True
    ):
        assert int(value) == last[subject], f"the record at {offset} did not know the one before it"
        last[subject] = offset + 1
        stored[offset + 1] = (subject, int(value))
    assert writers.acked.items() <= stored.items()
    assert len(last) == SUBJECTS
