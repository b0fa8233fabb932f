"""Records of consumer groups in the offset stream: they are no consumers, and the newest of each key counts (A1)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from broker.api.errors import GroupFenced, NotEnoughReplicas
from broker.api.stream import OFFSETS_STREAM
from broker.groups.fencing import CommitVerdict, GroupProgress, OffsetAndEpoch, judge_begin, judge_commit, judge_fence
from broker.groups.offsets import ConsumerOffset, OffsetTable, decode_offset, offset_rows
from broker.groups.pins import PinTable, decode_pin
from broker.groups.progress import GroupOffset, GroupTable, decode_group_offset
from broker.node.partitions.consumers import Consumers
from tests.support.backend import LogBackend

ENTRY = GroupOffset(
    group="billing", incarnation="i1", partition=3, epoch=1 << 40, offset=42, stream="orders", timestamp_us=5
)
BYTES = b'{"v":1,"offset":42,"epoch":1099511627776,"stream":"orders","timestamp_us":5}'


def test_a_record_has_the_bytes_of_the_release_before() -> None:
    assert (ENTRY.key, ENTRY.value()) == (b"//group/billing/i1/3", BYTES)
    assert decode_group_offset(ENTRY.key, BYTES) == ENTRY
    removed = BYTES.replace(b"42", b"null")
    found = decode_group_offset(ENTRY.key, removed)
    assert found is not None
    assert found.offset is None
    assert found.value() == removed


def test_the_epoch_of_the_record_before_is_stored_if_it_is_known() -> None:
    """A3."""
    entry = replace(ENTRY, leader_epoch=7)
    assert entry.value() == BYTES[:-1] + b',"leader_epoch":7}'
    assert decode_group_offset(entry.key, entry.value()) == entry
    table = GroupTable()
    table.apply(offset_rows([(entry.key, entry.value())], timestamp_us=1))
    progress = table.progress("billing", entry.read)
    assert (progress.at(0), ENTRY.leader_epoch) == (OffsetAndEpoch(42, 7), -1)
    assert decode_group_offset(entry.key, entry.value().replace(b":7}", b":null}")) is None


@pytest.mark.parametrize(
    "key,value",
    [
        (b"billing/i1/3", BYTES),
        (b"//group/billing/i1/03", BYTES),
        (b"//group/billing/i1/\xb2", BYTES),
        (b"//group/billing/3", BYTES),
        (b"//group/\xff/i1/3", BYTES),
        (ENTRY.key, b"nonsense"),
        (ENTRY.key, BYTES.replace(b'"v":1', b'"v":2')),
        (ENTRY.key, BYTES.replace(b"42", b'"42"')),
    ],
)
def test_a_record_of_another_kind_is_skipped(key: bytes, value: bytes) -> None:
    assert decode_group_offset(key, value) is None
    GroupTable().apply(offset_rows([(key, value), (key, None)], timestamp_us=1))


def test_a_group_is_no_consumer_whatever_either_is_called() -> None:
    consumers, groups, pins = OffsetTable(), GroupTable(), PinTable()
    plain = [ConsumerOffset(consumer=name, stream="i1", partition=3, offset=7) for name in ("billing", "group")]
    rows = [(ENTRY.key, ENTRY.value()), *((each.key, each.value()) for each in plain)]
    for table in (consumers, groups, pins):
        table.apply(offset_rows(rows, timestamp_us=1))
    assert consumers.consumers() == ["billing", "group"]
    assert groups.of("billing") == {("i1", 3): ENTRY}
    consumers.apply(offset_rows([(ENTRY.key, None)], timestamp_us=1))
    groups.apply(offset_rows([(each.key, None) for each in plain], timestamp_us=1))
    assert (len(consumers.consumers()), groups.groups()) == (2, ["billing"])
    assert decode_offset(ENTRY.key, ENTRY.value()) is None
    assert decode_pin(ENTRY.key, ENTRY.value()) is None
    groups.apply(offset_rows([(ENTRY.key, None)], timestamp_us=1))
    assert (groups.groups(), groups.progress("billing", ("i1", 3))) == ([], GroupProgress())


def test_a_removal_keeps_its_epoch_until_nobody_can_be_that_late() -> None:
    """H5."""
    table = GroupTable()
    removed = GroupOffset(group="g", incarnation="i", partition=0, epoch=9, offset=None, stream="s", timestamp_us=1_000)
    table.apply(offset_rows([(removed.key, removed.value())], timestamp_us=1))
    newest = table.progress("g", ("i", 0))
    assert judge_begin(newest, "m", 7, ("m", 7), 9) is CommitVerdict.FENCED, "at a leader that is behind"
    assert judge_commit(newest, 9, 0, 5) is CommitVerdict.FENCED
    assert judge_begin(newest, "m", 10, ("m", 10), 10) is CommitVerdict.APPEND
    assert (newest.at(4), judge_fence(newest, 9), judge_fence(newest, 10)) == (
        OffsetAndEpoch(4),
        CommitVerdict.FENCED,
        CommitVerdict.APPEND,
    )
    assert (table.groups(), table.removed(1_000), table.removed(1_001)) == ([], [], [removed])


async def test_steps_are_judged_by_what_is_committed_and_are_there_after_a_restart(tmp_path: Path) -> None:
    """One step at a time; one that fails counts for nobody. What a removal leaves behind goes after a while."""
    backend = LogBackend(tmp_path)
    kept, seen, at = backend.offsets, list[GroupProgress](), ("i1", 0)

    def step(epoch: int, offset: int | None) -> Coroutine[Any, Any, GroupProgress]:
        def decide(newest: GroupProgress) -> tuple[CommitVerdict, OffsetAndEpoch]:
            seen.append(newest)
            return judge_fence(newest, epoch), OffsetAndEpoch(offset)

        return kept.move_group("g", "orders", at, epoch, decide)

    with patch.object(kept, "_store", refuses), pytest.raises(NotEnoughReplicas):
        await step(5, 9)
    found = await asyncio.gather(step(3, 1), step(2, 7), step(4, 2), return_exceptions=True)
    assert (found[0], found[2]) == (GroupProgress(3, 1), GroupProgress(4, 2))
    assert isinstance(found[1], GroupFenced)
    assert seen == [GroupProgress(), GroupProgress(), GroupProgress(3, 1), GroupProgress(3, 1)]
    assert Consumers(backend.partition(OFFSETS_STREAM, 0)).group_offsets("g")[at].epoch == 4
    await kept.expire_groups(1 << 60)
    assert kept.group_names() == ["g"], "it has an offset"
    await step(6, None)
    await kept.expire_groups(0)
    assert kept.group_offsets("g")[at].epoch == 6
    await kept.expire_groups(1 << 60)
    assert not kept.group_offsets("g")
    assert not Consumers(backend.partition(OFFSETS_STREAM, 0)).group_offsets("g")
    backend.close()


async def refuses(*_: Any, **__: Any) -> Any:
    raise NotEnoughReplicas("too few are in sync")
