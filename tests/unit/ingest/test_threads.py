"""Goal: batches are composed in other threads while the intake goes on, and misuse is an error, not a crash.

Method: a thread per batch against results computed alone; and an Intake that is held in `feed` while touched.
"""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.unit.ingest.twins import SETTINGS, builder
from tests.unit.ingest.wire import hmsg, msg


@pytest.fixture
def eager_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switching")
def test_batches_are_composed_and_acked_in_other_threads_while_feeding_goes_on(twin: ModuleType) -> None:
    wires = [
        b"".join(
            hmsg("a.b", b"%d" % j * (i % 50), ("Liftlog-Key", f"k{j}"), reply=f"r.{i}.{j}") for j in range(i % 300 + 1)
        )
        for i in range(120)
    ]

    def compose(batch: object, i: int) -> tuple[bytes, bytes, bytes]:
        message = batch.compose(first_offset=i, leader_epoch=1, high_watermark=0)  # type: ignore[attr-defined]
        return message, batch.acks(i), batch.errors(503, 10077, "x")  # type: ignore[attr-defined]

    def run(pool: concurrent.futures.Executor | None) -> list[tuple[bytes, bytes, bytes]]:
        target = builder(twin)
        intake = twin.Intake()
        intake.route(1, [target], partition_by="subject_suffix")
        results = []
        for i, wire in enumerate(wires):
            intake.feed(wire, i)
            batch = target.take()
            results.append(pool.submit(compose, batch, i) if pool else compose(batch, i))
        return [result.result() if isinstance(result, concurrent.futures.Future) else result for result in results]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert run(pool) == run(None)


def test_one_batch_may_be_composed_by_several_threads_at_once(twin: ModuleType) -> None:
    target = builder(twin)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    intake.feed(msg("a", b"x" * 100, reply="r") * 2000, 1)
    batch = target.take()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        composed = {
            pool.submit(batch.compose, first_offset=5, leader_epoch=1, high_watermark=0).result() for _ in range(8)
        }
        acks = {pool.submit(batch.acks, 5).result() for _ in range(8)}
    assert (len(composed), len(acks)) == (1, 1)


@pytest.mark.slow
def test_other_threads_run_while_a_large_chunk_is_parsed_and_may_not_meddle() -> None:
    """The compiled intake gives the GIL away during `feed`; who then touches it gets an error."""
    compiled = pytest.importorskip("broker.ingest._intake")
    settings = {name: SETTINGS[name] for name in SETTINGS if name not in ("stream", "partition")}
    target = builder(compiled)
    intake = compiled.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    touches = {
        "dirty": intake.dirty,
        "full": intake.full,
        "refusals": intake.refusals,
        "alter": lambda: target.alter(**settings),
        "route": lambda: intake.route(2, [target], partition_by="subject_suffix"),
    }
    refused: dict[str, str] = {}
    done = threading.Event()

    def meddle() -> None:
        while not done.is_set():
            for name, touch in touches.items():
                try:
                    touch()
                except RuntimeError as error:
                    refused[name] = str(error)

    thread = threading.Thread(target=meddle)
    thread.start()
    feeds = 0
    try:
        while feeds < 20 or (set(refused) != set(touches) and feeds < 200):
            intake.feed(msg("a", b"x" * 10) * 200_000, 1)
            feeds += 1
    finally:
        done.set()
        thread.join()
    assert target.record_count == feeds * 200_000
    assert set(refused) == set(touches)
    assert all("belong to one thread" in text for text in refused.values())
