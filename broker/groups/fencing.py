"""Which commits of a consumer group count. Pure; for the leader of the offset stream.

    grant of epoch 7 ─► begin: a record of epoch 7, its offset as it was ─► committed ─► its member reads from there
                                                       │
                  commits of epochs before 7 are refused from here on, whoever leads the offset stream

H1  A member begins before it reads. What it begins at is answered when the record that says so is committed: nothing
    that an earlier member commits can come after it.
H2  A commit counts under the newest epoch of its partition, which the log tells. The catalog may be behind here.
H3  Whoever begins holds the grant, as far as the catalog is known here. One that is newer than what is known has to
    wait, or anybody could fence everybody.
H4  A commit names the offset from which its member read on, and counts if that is where the partition is. So nothing
    is committed twice or passed over, also by a member that takes an answer of before for that to its last question.
    The newest one may come again; with a later leader epoch it is stored.
H5  A reset, or a removal, is a record under an epoch that the catalog has given for it alone, while the group had no
    members (`metadata.groups.G8`). It counts if nobody has begun under a later one. What is removed keeps its epoch: an
    earlier member that a leader still takes for one must not begin anew.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class OffsetAndEpoch(NamedTuple):
    """Where a partition of a group is to be. As `GroupProgress` has them."""

    offset: int | None
    leader_epoch: int = -1


class GroupProgress(NamedTuple):
    """The newest record of one partition of a group, as the leader has appended it.

    Attributes:
        epoch: 0: there is no record.
        offset: None: nobody has begun yet, or it was removed.
        leader_epoch: Of the record before `offset`, as it was read; -1: not known.
    """

    epoch: int = 0
    offset: int | None = None
    leader_epoch: int = -1

    def at(self, first: int) -> OffsetAndEpoch:
        """Where a member begins; `first`: if nobody has before."""
        return OffsetAndEpoch(first) if self.offset is None else OffsetAndEpoch(self.offset, self.leader_epoch)


class CommitVerdict(Enum):
    """What becomes of a begin or a commit."""

    APPEND = "append"
    """And answer when that is committed."""
    DONE = "done"
    """Answer when the newest record is committed, with its offset."""
    NOT_READY = "not_ready"
    """The catalog is behind here: to be tried again."""
    FENCED = "fenced"
    """For good."""


def judge_begin(
    newest: GroupProgress, member: str, epoch: int, granted: tuple[str, int] | None, last: int
) -> CommitVerdict:
    """Whether a member may begin under an epoch.

    Args:
        granted: The member that holds the partition and its epoch, as far as it is known here.
        last: The newest epoch that is known here, of all groups.
    """
    if epoch < newest.epoch:  # H2
        return CommitVerdict.FENCED
    if epoch > last:  # H3
        return CommitVerdict.NOT_READY
    if granted != (member, epoch):
        return CommitVerdict.FENCED
    return CommitVerdict.DONE if epoch == newest.epoch else CommitVerdict.APPEND


def judge_commit(newest: GroupProgress, epoch: int, start: int, offset: int, leader_epoch: int = -1) -> CommitVerdict:
    """Whether a commit counts. One whose epoch has not begun does not.

    Args:
        start: Where its member read on (H4).
        offset: The next one that it will read.
        leader_epoch: Of the record before, as `GroupProgress` has it. One that is greater is stored, too.
    """
    if epoch != newest.epoch or newest.offset is None:
        return CommitVerdict.FENCED
    if offset == newest.offset:
        return CommitVerdict.APPEND if leader_epoch > newest.leader_epoch else CommitVerdict.DONE
    return CommitVerdict.APPEND if start == newest.offset < offset else CommitVerdict.FENCED


def judge_fence(newest: GroupProgress, epoch: int) -> CommitVerdict:
    """Whether a reset or a removal counts (H5)."""
    return CommitVerdict.APPEND if epoch > newest.epoch else CommitVerdict.FENCED
