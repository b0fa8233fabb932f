"""The load generators against a real nats-server: what they say they sent arrives, at the rate that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import nats_go
from benchmarks.harness import Skipped
from benchmarks.intake import run_intake
from benchmarks.peers import Drain, JetStream
from benchmarks.publisher import Publishers
from benchmarks.window import AckCounter, AckFailed, run_rate, run_window
from benchmarks.wire import Wire
from tests.support.processes import eventually

ACK = b'MSG _INBOX.bench1.0042 1 26\r\n{"stream":"bench","seq":1}\r\n'


@pytest.fixture(scope="module")
def jetstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JetStream]:
    with JetStream(tmp_path_factory.mktemp("jetstream")) as place:
        yield place


@pytest.mark.parametrize("step", [1, 2, 7, 10, 11, 64, 1000])
def test_acks_are_counted_however_reads_cut_them(step: int) -> None:
    assert fed(ACK * 50, step) == 50


def fed(data: bytes, step: int) -> int:
    counter = AckCounter()
    for at in range(0, len(data), step):
        counter.feed(data[at : at + step])
    return counter.count


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_an_error_answer_ends_the_run(step: int) -> None:
    data = ACK + b'MSG _INBOX.bench1.0043 1 40\r\n{"error":{"code":503,"description":"full"}}\r\n'
    with pytest.raises(AckFailed, match="error"):
        fed(data, step)


def test_all_publishers_reach_the_drain(tmp_path: Path) -> None:
    with Drain(tmp_path, size=100) as place:
        found = run_intake(place, 3, size=100, count=5_000)
    assert (found["published"], found["stored"], found["lost"]) == (15_000, 15_000, 0)


def test_a_paced_publisher_keeps_its_rate(tmp_path: Path) -> None:
    """It is never ahead; how far behind it falls depends on who else uses the machine."""
    with Drain(tmp_path, size=100) as place:
        found = run_intake(place, 1, size=100, seconds=0.4, rate=20_000.0)
    assert found["lost"] == 0
    assert 0 < found["published"] <= 20_000 * 0.4 + 1


def test_publishers_end_with_their_block(jetstream: JetStream) -> None:
    with Publishers(jetstream.port, 2, size=16, seconds=60.0, rate=10.0) as sources:
        sources.go()
        assert sources.running()
    assert not sources.running()


def test_a_publisher_that_cannot_connect_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not start"), Publishers(1, 1, size=16, count=1):
        pass


def test_jetstream_acknowledges_what_it_stores(jetstream: JetStream) -> None:
    before = jetstream.stored()
    run = run_window(jetstream.port, seed=1, size=100, subject="bench.7", count=5_000, window=100)
    assert jetstream.stored() - before == run.count == 5_000
    assert run.latencies_s.shape == (5_000,)
    assert (run.latencies_s > 0).all()
    assert run.percentile_ms(50) <= run.percentile_ms(99) <= run.seconds * 1000


def test_open_loop_latency_counts_from_when_a_message_was_due(jetstream: JetStream) -> None:
    run = run_rate(jetstream.port, seed=1, size=100, subject="bench.7", count=500, rate=5_000.0)
    assert run.seconds >= 499 / 5_000 - 0.001
    assert (run.latencies_s > 0).all()
    assert np.isfinite(run.latencies_s).all()


def test_a_run_that_jetstream_refuses_ends_with_its_error(jetstream: JetStream) -> None:
    with Wire(jetstream.port) as wire:
        wire.request(
            "$JS.API.STREAM.CREATE.small",
            {"name": "small", "subjects": ["small"], "storage": "file", "max_msgs": 10, "discard": "new"},
        )
    with pytest.raises(AckFailed, match="maximum messages exceeded"):
        run_window(jetstream.port, seed=1, size=100, subject="small", count=1_000, window=100)


def test_stock_nats_go_publishes_and_consumes(jetstream: JetStream) -> None:
    try:
        nats_go.program()
    except Skipped as reason:
        pytest.skip(str(reason))
    before = jetstream.stored()
    published = nats_go.publish(jetstream.port, subject="bench.7", size=100, count=2_000, window=64)
    assert published["acked"] == 2_000
    eventually(lambda: jetstream.stored() - before == 2_000)
    assert nats_go.consume(jetstream.port, count=2_000)["rate"] > 0


def test_without_go_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    nats_go.program.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Skipped, match="no Go toolchain"):
        nats_go.publish(1, subject="bench.7", size=100, count=1, window=1)
