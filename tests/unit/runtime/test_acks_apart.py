"""`Liftlog-Ack: leader` is answered once the record is durable here, all else when the replicas in sync have it too.

Method: the real parser (either twin), flusher, partition, core and log, led with two followers whose fetches the test
makes up; effects for other brokers are collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.ingest import load
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition
from broker.node.partitions.replica import Replica
from broker.node.partitions.sync import SyncPool
from broker.replication.events import StepOut
from tests.support.replicated import Led
from tests.unit.ingest.wire import answers_in, hmsg, msg
from tests.unit.runtime.test_flush import Intake
from tests.unit.runtime.test_partition import HeldPool, pool

__all__ = ["pool"]  # a fixture


class ReplicatedIntake(Intake):
    """Both streams are kept by three brokers."""

    led: list[Led]

    def partition(
        self, info: StreamInfo, replica: Replica, *, pool: SyncPool, appender: ThreadPoolExecutor
    ) -> Partition:
        self.led = [*getattr(self, "led", []), Led(info, replica, pool=pool, appender=appender)]
        return self.led[-1].partition


class Replicated:
    """Stream `a` on sid 1, led in epoch 2 with `b` and `c` in sync."""

    def __init__(self, intake: ReplicatedIntake) -> None:
        self.intake = intake
        self.led = intake.led[0]
        self.partition = self.led.partition
        self.outward = self.led.outward

    def receive(self, *wires: bytes) -> None:
        self.intake.parser.feed(b"".join(wires), 1)
        self.intake.flusher.after_feed()

    def sync(self) -> None:
        """Sync all that was received here, as a thread of the pool does it."""
        for partition in self.intake.partitions:
            partition.run_sync()
        self.intake.flusher._take_heard()

    def follow(self, durable_end: int) -> None:
        """Both followers have fsynced so far."""
        self.led.follow(durable_end)
        self.intake.flusher._take_heard()

    def told(self) -> list[str]:
        """Those who were answered since the last call; a `!` stands behind each who got an error."""
        blob, self.intake.sent[:] = b"".join(self.intake.sent), []
        return [reply.decode() + "!" * (b"error" in body) for reply, body in answers_in(blob)]


@pytest.fixture(params=["compiled", "pure"])
def replicated(request: pytest.FixtureRequest, pool: HeldPool) -> Iterator[Replicated]:
    if request.param == "compiled" and load().IMPLEMENTATION != "compiled":
        pytest.skip("not built here")
    with ThreadPoolExecutor(1) as appender:
        intake = ReplicatedIntake(pool, appender, request.param)
        yield Replicated(intake)
        pool.go.release(1000)
        pool.close()
        intake.loop.close()


def leader(value: bytes, reply: str, *headers: tuple[str, str]) -> bytes:
    return hmsg("s", value, ("Liftlog-Ack", "leader"), *headers, reply=reply)


def test_the_leaders_acks_go_out_while_the_high_watermark_lags(replicated: Replicated) -> None:
    replicated.receive(msg("s", b"0", reply="all"), leader(b"1", "leader"))
    replicated.sync()
    log, flusher = replicated.partition.log, replicated.intake.flusher
    assert (log.state.durable_end, log.state.high_watermark) == (2, 0)
    assert replicated.told() == ["leader"]
    replicated.follow(1)
    assert replicated.told() == []
    replicated.follow(2)
    assert (log.state.high_watermark, replicated.told()) == (2, ["all"])
    assert flusher.counts["acks_sent"] == 2
    assert flusher._pending_bytes == 0


def test_a_batch_that_waits_for_the_leader_alone_is_done_when_it_is_durable(replicated: Replicated) -> None:
    replicated.receive(leader(b"0", "r0"), leader(b"1", "r1"))
    replicated.sync()
    assert (replicated.told(), replicated.intake.flusher._pending_bytes) == (["r0", "r1"], 0)
    assert replicated.intake.flusher.counts["acks_sent"] == 2


def test_a_repeat_waits_for_all_whatever_it_asks_for(replicated: Replicated) -> None:
    identified = ("Nats-Msg-Id", "x")
    replicated.receive(leader(b"0", "first", identified))
    replicated.sync()
    assert replicated.told() == ["first"]
    replicated.receive(leader(b"0", "again", identified), leader(b"1", "new"))
    replicated.sync()
    assert replicated.told() == ["new"]
    replicated.follow(2)
    assert sorted(replicated.told()) == ["again"]


def test_a_failed_fsync_is_told_to_each_once(replicated: Replicated) -> None:
    replicated.intake.disk.fail("sync", 5, path=".arrows")
    replicated.receive(msg("s", b"0", reply="all"), leader(b"1", "leader"))
    replicated.sync()
    assert sorted(replicated.told()) == ["all!", "leader!"]
    assert [effect for effect in replicated.outward if type(effect) is StepOut]
    replicated.receive(msg("s", b"2", reply="later"))
    replicated.sync()
    assert replicated.told() == ["later!"]
