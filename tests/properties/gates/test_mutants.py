"""Each rule that the table is about, taken out by hand, makes the cell fail that is named with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.intake import flush
from broker.intake.driver import IntakeDriver
from broker.intake.flush import Flusher, FlushSlot
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.acceptance import Acceptance
from broker.node.partitions.partition import Partition
from broker.node.placed import PlacedReplica
from broker.storage.log import AppendResult
from tests.properties.gates.table import check, play, running

pytestmark = pytest.mark.slow
Patch = pytest.MonkeyPatch


def a_pause_does_not_wait_for_batches_in_flight(patch: Patch) -> None:
    async def remove(self: Flusher, slot: FlushSlot) -> None:
        self._flush(slot, force=True)

    patch.setattr(Flusher, "remove", remove)


def a_pause_closes_the_stream_before_it_detaches(patch: Patch) -> None:
    async def detach(self: IntakeDriver, stream: str) -> None:
        info = self._streams[stream].info
        for slot in self._streams[stream].slots:
            slot.partition.alter(type(info)(**{**_fields(info), "paused": True}))
        await real(self, stream)

    real = IntakeDriver._detach
    patch.setattr(IntakeDriver, "_detach", detach)


def an_alter_swaps_the_builder_at_once(patch: Patch) -> None:
    def alter(self: Flusher, slot: FlushSlot, info: StreamInfo) -> None:
        slot.builder = self._make_builder(
            stream=info.name, partition=slot.partition.partition, **flush._builder_settings(info)
        )
        slot.builder.tag = slot
        self._configure(slot, info)

    patch.setattr(Flusher, "alter", alter)


def who_waits_is_told_before_the_fsync(patch: Patch) -> None:
    def append_now(self: Partition, batches: Any, on_durable: Any, **options: Any) -> AppendResult:
        result = real(self, batches, lambda *_: None, **options)
        on_durable(result, result.next_offset)
        return result

    real = Partition.append_now
    patch.setattr(Partition, "append_now", append_now)


def a_delete_leaves_the_logs_open(patch: Patch) -> None:
    def close(self: PlacedReplica, *, clean: bool) -> None:
        self.partition = None

    patch.setattr(PlacedReplica, "_close", close)


def the_state_is_not_looked_at(patch: Patch) -> None:
    patch.setattr(Acceptance, "check_open", lambda self, *, decided=False: None)


TIMES = 5
MUTANTS: list[tuple[Callable[[Patch], None], str, str, str]] = [
    (a_pause_does_not_wait_for_batches_in_flight, "nats crowd", "pause", "sync"),
    (a_pause_does_not_wait_for_batches_in_flight, "nats crowd", "stop", "synced"),
    (a_pause_closes_the_stream_before_it_detaches, "nats crowd", "pause", "sync"),
    (an_alter_swaps_the_builder_at_once, "nats crowd", "alter", "sync"),
    (who_waits_is_told_before_the_fsync, "http", "alter", "sync"),
    (a_delete_leaves_the_logs_open, "http", "delete", "sync"),
    (the_state_is_not_looked_at, "http", "read only", "sync"),
]


def _fields(info: StreamInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in info.__dataclass_fields__}


@pytest.mark.parametrize(
    ("mutant", "kind", "change", "point"), MUTANTS, ids=lambda value: getattr(value, "__name__", "")
)
async def test_a_rule_that_is_taken_out_is_found(
    tmp_path: Path, monkeypatch: Patch, mutant: Callable[[Patch], None], kind: str, change: str, point: str
) -> None:
    async def cell(folder: Path) -> None:
        async with running(folder, monkeypatch) as rig:
            played = await play(rig, kind, change, point)
        check(rig, change, played)

    await cell(tmp_path / "as it is")
    for module in ("rig", "table"):
        monkeypatch.setattr(f"tests.properties.gates.{module}.until", _until)
    monkeypatch.setattr("tests.properties.gates.rig.DEADLINE_S", 5)
    mutant(monkeypatch)

    async def some_times() -> None:
        for attempt in range(TIMES):  # on a busy machine a thread may come too late to do harm
            await cell(tmp_path / f"mutant{attempt}")

    with pytest.raises((AssertionError, TimeoutError)):
        await some_times()


async def _until(condition: Callable[[], bool], what: str) -> None:
    """As `until`, but a mutant is given up sooner."""
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)
