"""Appends that expect an offset.

Goal: they are stored where they expect to be, whole or not at all, and a repeat is a repeat whatever it expects.
"""

from __future__ import annotations

import pytest

from broker.api.errors import UnknownProducer
from broker.storage.log import AppendResult, PartitionLog
from broker.storage.rows import RowBatch
from tests.support.logs import commit, create_log, row_batch, stamped, verified_records
from tests.support.published import batch_from_nats
from tests.support.simdisk import SimDisk


@pytest.fixture
def log() -> PartitionLog:
    return create_log(SimDisk())


def expect(log: PartitionLog, offset: int, *batches: RowBatch) -> AppendResult:
    return log.append(batches or (row_batch([b"x"]),), leader_epoch=0, now_us=1, expected_offset=offset)


def test_it_is_stored_where_it_is_expected_and_nowhere_else(log: PartitionLog) -> None:
    assert expect(log, 0, row_batch([b"a", b"b"]))[:2] == (0, 2)
    for wrong in (0, 1, 3, 1 << 62):
        result = expect(log, wrong)
        assert (result.first_offset, result.next_offset, result.has_records) == (2, 2, False)
    assert log.state.log_end_offset == 2
    assert expect(log, 2)[:2] == (2, 3)
    commit(log)
    assert [value for _, _, value in verified_records(log)] == [b"a", b"b", b"x"]


def test_of_a_group_the_first_record_decides(log: PartitionLog) -> None:
    group = [row_batch([b"a"]), row_batch([b"b", b"c"])]
    assert not expect(log, 1, *group).has_records
    assert expect(log, 0, *group)[:2] == (0, 3)
    assert expect(log, 3, *group)[:2] == (3, 6)


def test_a_repeat_is_answered_as_one_whatever_it_expects(log: PartitionLog) -> None:
    for expected in (0, 0, 7):
        result = expect(log, expected, stamped([b"a", b"b"], 1, 0, 0))
        assert (result.first_offset, result.next_offset) == (0, 2)
    assert result.duplicate
    assert log.state.log_end_offset == 2


def test_what_did_not_hold_uses_up_no_sequence(log: PartitionLog) -> None:
    assert not expect(log, 1, stamped([b"a"], 1, 0, 0)).has_records
    with pytest.raises(UnknownProducer):
        expect(log, 0, stamped([b"b"], 1, 0, 1))
    assert expect(log, 0, stamped([b"a"], 1, 0, 0))[:2] == (0, 1)
    assert not expect(log, 0, stamped([b"b"], 1, 0, 1)).has_records
    assert expect(log, 1, stamped([b"b"], 1, 0, 1))[:2] == (1, 2)


def test_it_counts_behind_what_came_from_nats(log: PartitionLog) -> None:
    log.append([batch_from_nats([(b"n", ()), (b"m", ())], 1)], leader_epoch=0, now_us=1)
    assert not expect(log, 1).has_records
    assert expect(log, 2)[:2] == (2, 3)


def test_behind_a_truncation_it_counts_from_what_is_left(log: PartitionLog) -> None:
    expect(log, 0)
    commit(log)
    expect(log, 1)
    log.truncate(1)
    assert not expect(log, 2).has_records
    assert expect(log, 1)[:2] == (1, 2)
