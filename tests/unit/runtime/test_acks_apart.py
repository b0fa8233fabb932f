"""`Liftlog-Ack: leader` is answered once the record is durable here, all else when the replicas in sync have it too.

Method: the real parser (either twin), flusher, partition, core and log, led with two followers whose fetches the test
makes up; effects for other brokers are collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.ingest import load
from broker.replication.events import Effect, FetchArrived, Led, StepOut
from broker.replication.messages import Fetch
from broker.runtime.partitions.leader import ME
from tests.unit.ingest.wire import answers_in, hmsg, msg
from tests.unit.runtime.test_flush import Intake
from tests.unit.runtime.test_partition import HeldPool, pool

__all__ = ["pool"]  # a fixture

OTHERS = ("b", "c")


class Replicated:
    """Stream `a` on sid 1, led in epoch 2 with `b` and `c` in sync."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.partition = partition = intake.partitions[0]
        self.outward: list[Effect] = []
        partition._effects.to_others = self.outward.append
        log = partition.log
        log.lead(2)
        self.step(
            Led(
                epoch=2,
                replicas=(ME, *OTHERS),
                isr=(ME, *OTHERS),
                partition_epoch=1,
                high_watermark=log.high_watermark,
                durable_end=log.durable_end,
                log_end=log.log_end_offset,
            )
        )

    def step(self, event: Led | FetchArrived) -> None:
        with self.partition._lock:
            effects = self.partition._core.step(event)
        self.partition._effects.do(effects)

    def receive(self, *wires: bytes) -> None:
        self.intake.parser.feed(b"".join(wires), 1)
        self.intake.flusher.after_feed()

    def follow(self, durable_end: int) -> None:
        """Both followers have fsynced so far."""
        for name in OTHERS:
            fetch = Fetch(
                follower=name,
                incarnation=(1, 0),
                epoch=2,
                offset=durable_end,
                last_epoch=2,
                durable_end=durable_end,
                log_start=0,
            )
            self.step(FetchArrived(fetch=fetch, epoch_before=2))
        self.intake.flusher._take_synced()

    def told(self) -> list[str]:
        """Who was answered since the last call; a `!` behind who got an error."""
        blob, self.intake.sent[:] = b"".join(self.intake.sent), []
        return [reply.decode() + "!" * (b"error" in body) for reply, body in answers_in(blob)]


@pytest.fixture(params=["compiled", "pure"])
def replicated(request: pytest.FixtureRequest, pool: HeldPool) -> Iterator[Replicated]:
    if request.param == "compiled" and load().IMPLEMENTATION != "compiled":
        pytest.skip("not built here")
    with ThreadPoolExecutor(1) as appender:
        intake = Intake(pool, appender, request.param)
        yield Replicated(intake)
        pool.go.release(1000)
        pool.close()
        intake.loop.close()


def leader(value: bytes, reply: str, *headers: tuple[str, str]) -> bytes:
    return hmsg("s", value, ("Liftlog-Ack", "leader"), *headers, reply=reply)


def test_the_leaders_acks_go_out_while_the_high_watermark_lags(replicated: Replicated) -> None:
    replicated.receive(msg("s", b"0", reply="all"), leader(b"1", "leader"))
    log, flusher = replicated.partition.log, replicated.intake.flusher
    assert (log.durable_end, log.high_watermark) == (2, 0)
    assert replicated.told() == ["leader"]
    replicated.follow(1)
    assert replicated.told() == []
    replicated.follow(2)
    assert (log.high_watermark, replicated.told()) == (2, ["all"])
    assert flusher.counts["acks_sent"] == 2
    assert flusher._pending_bytes == 0


def test_a_batch_that_waits_for_the_leader_alone_is_done_when_it_is_durable(replicated: Replicated) -> None:
    replicated.receive(leader(b"0", "r0"), leader(b"1", "r1"))
    assert (replicated.told(), replicated.intake.flusher._pending_bytes) == (["r0", "r1"], 0)
    assert replicated.intake.flusher.counts["acks_sent"] == 2


def test_a_repeat_waits_for_all_whatever_it_asks_for(replicated: Replicated) -> None:
    identified = ("Nats-Msg-Id", "x")
    replicated.receive(leader(b"0", "first", identified))
    assert replicated.told() == ["first"]
    replicated.receive(leader(b"0", "again", identified), leader(b"1", "new"))
    replicated.intake.flusher._flush(replicated.intake.builders[0].tag, force=True)
    assert replicated.told() == []  # the pool is to sync, as the first batch still waits for the others
    replicated.partition.run_sync()
    replicated.intake.flusher._take_synced()
    assert replicated.told() == ["new"]
    replicated.follow(2)
    assert sorted(replicated.told()) == ["again"]


def test_a_failed_fsync_is_told_to_each_once(replicated: Replicated) -> None:
    replicated.intake.disk.fail("sync", 5, path=".arrows")
    replicated.receive(msg("s", b"0", reply="all"), leader(b"1", "leader"))
    assert sorted(replicated.told()) == ["all!", "leader!"]
    assert [effect for effect in replicated.outward if type(effect) is StepOut]
    replicated.receive(msg("s", b"2", reply="later"))
    assert replicated.told() == ["later!"]
