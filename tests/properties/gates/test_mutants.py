"""Each rule that the table is about, taken out by hand, makes the cell fail that is named with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.metadata.catalog import StreamInfo
from broker.runtime.intake import flush
from broker.runtime.intake.driver import IntakeDriver
from broker.runtime.intake.flush import Flusher, FlushSlot
from broker.runtime.partitions.control import Control
from broker.runtime.partitions.leader import Partition
from broker.runtime.partitions.replica import Replica
from broker.runtime.partitions.streams import Streams
from broker.runtime.sinks.service import SinkService
from broker.storage.log import AppendResult, PartitionLog
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


def settings_are_told_on_the_control_loop(patch: Patch) -> None:
    async def tell(self: Control, info: StreamInfo, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            partition.alter(info)

    patch.setattr(Control, "_tell", tell)
    patch.setattr("tests.properties.gates.disk.DEADLINE_S", 1)


def who_waits_is_told_before_the_fsync(patch: Patch) -> None:
    def append_now(self: Partition, batches: Any, on_durable: Any, **options: Any) -> AppendResult:
        result = real(self, batches, lambda *_: None, **options)
        on_durable(result, result.next_offset)
        return result

    real = Partition.append_now
    patch.setattr(Partition, "append_now", append_now)


def a_delete_does_not_close_the_partition_to_appends(patch: Patch) -> None:
    patch.setattr(Partition, "note_removed", lambda self: None)


def a_delete_leaves_the_logs_open(patch: Patch) -> None:
    patch.setattr(Streams, "_close", lambda self, partitions: None)


def a_delete_leaves_the_stages_open(patch: Patch) -> None:
    patch.setattr(SinkService, "forget", lambda self, partitions: None)


def an_append_that_ends_after_the_delete_is_counted_again(patch: Patch) -> None:
    def appended(self: Replica, result: AppendResult) -> None:
        if self._open_logs is not None:
            self._open_logs.touch(self.log)

    patch.setattr(Replica, "appended", appended)


def the_state_is_not_looked_at(patch: Patch) -> None:
    patch.setattr(Partition, "check_open", lambda self, *, decided=False: None)


def added_partitions_are_not_routed(patch: Patch) -> None:
    async def extend(self: IntakeDriver, info: StreamInfo, partitions: Sequence[Partition]) -> None:
        attachment = self._streams[info.name]
        for slot in attachment.slots:
            slot.builder = self._flusher.add(info, slot.partition).builder

    patch.setattr(IntakeDriver, "_extend", extend)


def a_stop_does_not_wait_for_sinks(patch: Patch) -> None:
    patch.setattr(SinkService, "close", lambda self: None)


def a_trim_lets_go_of_what_is_not_committed(patch: Patch) -> None:
    def trim(self: PartitionLog, before_offset: int) -> int:
        return self._let_go(min(before_offset, self.state.log_end_offset))

    patch.setattr(PartitionLog, "trim", trim)


TIMES = 5
MUTANTS: list[tuple[Callable[[Patch], None], str, str, str]] = [
    (a_pause_does_not_wait_for_batches_in_flight, "nats crowd", "pause", "sync"),
    (a_pause_does_not_wait_for_batches_in_flight, "nats crowd", "stop", "synced"),
    (a_pause_closes_the_stream_before_it_detaches, "nats crowd", "pause", "sync"),
    (an_alter_swaps_the_builder_at_once, "nats crowd", "alter", "sync"),
    (settings_are_told_on_the_control_loop, "http", "alter", "write"),
    (who_waits_is_told_before_the_fsync, "http", "alter", "sync"),
    (a_delete_does_not_close_the_partition_to_appends, "http", "delete", "write"),
    (a_delete_leaves_the_logs_open, "http", "delete", "sync"),
    (a_delete_leaves_the_stages_open, "stage", "delete", "sync"),
    (an_append_that_ends_after_the_delete_is_counted_again, "http", "delete", "write"),
    (the_state_is_not_looked_at, "http", "read only", "sync"),
    (added_partitions_are_not_routed, "nats crowd", "add partitions", "sync"),
    (a_stop_does_not_wait_for_sinks, "stage", "stop", "write"),
    (a_trim_lets_go_of_what_is_not_committed, "nats", "trim", "effects"),
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
