"""Which begins and commits of a consumer group count."""

from __future__ import annotations

import pytest

from broker.groups.fencing import CommitVerdict, GroupProgress, judge_begin, judge_commit

MINE = ("a", 7)


@pytest.mark.parametrize(
    ("newest", "member", "epoch", "granted", "last", "verdict"),
    [
        (GroupProgress(), "a", 7, MINE, 7, CommitVerdict.APPEND),
        (GroupProgress(5, 10), "a", 7, MINE, 9, CommitVerdict.APPEND),
        (GroupProgress(7, 10), "a", 7, MINE, 9, CommitVerdict.DONE),
        (GroupProgress(8, 10), "a", 7, MINE, 7, CommitVerdict.FENCED),  # the catalog is behind here, the log is not
        (GroupProgress(5, 10), "b", 7, MINE, 9, CommitVerdict.FENCED),
        (GroupProgress(5, 10), "a", 6, MINE, 9, CommitVerdict.FENCED),
        (GroupProgress(5, 10), "a", 7, None, 9, CommitVerdict.FENCED),
        (GroupProgress(5, 10), "a", 10, MINE, 9, CommitVerdict.NOT_READY),
    ],
)
def test_who_holds_the_grant_begins(
    newest: GroupProgress, member: str, epoch: int, granted: tuple[str, int] | None, last: int, verdict: CommitVerdict
) -> None:
    assert judge_begin(newest, member, epoch, granted, last) is verdict


@pytest.mark.parametrize(
    ("epoch", "start", "offset", "verdict"),
    [
        (7, 10, 11, CommitVerdict.APPEND),
        (7, 8, 10, CommitVerdict.DONE),  # it comes again
        (7, 10, 10, CommitVerdict.DONE),
        (7, 3, 5, CommitVerdict.FENCED),
        (7, 8, 12, CommitVerdict.FENCED),
        (7, 11, 12, CommitVerdict.FENCED),
        (7, 10, 9, CommitVerdict.FENCED),
        (6, 10, 11, CommitVerdict.FENCED),
        (8, 10, 11, CommitVerdict.FENCED),  # it has not begun
    ],
)
def test_a_commit_counts_under_the_newest_epoch_and_from_where_the_partition_is(
    epoch: int, start: int, offset: int, verdict: CommitVerdict
) -> None:
    assert judge_commit(GroupProgress(7, 10), epoch, start, offset) is verdict


@pytest.mark.parametrize(
    ("leader_epoch", "verdict"), [(-1, CommitVerdict.DONE), (3, CommitVerdict.DONE), (4, CommitVerdict.APPEND)]
)
def test_where_the_partition_is_may_have_a_later_leader_epoch(leader_epoch: int, verdict: CommitVerdict) -> None:
    assert judge_commit(GroupProgress(7, 10, 3), 7, 10, 10, leader_epoch) is verdict
    assert judge_commit(GroupProgress(7, 10, 3), 6, 10, 10, leader_epoch) is CommitVerdict.FENCED
