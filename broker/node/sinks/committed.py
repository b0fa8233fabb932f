"""Appends to a partition that are waited for, and reads of all that it holds: for what is exactly once.

    append          ─► on the disk, and on those of the others in sync ─► here again
    await_committed ─► what the log held is committed ─► a search finds what any former leader has appended

Where this broker alone keeps the partition, its fsync is all there is to wait for. Where others do too, they may be
away: nobody waits for ever, and whoever gave up has to look again.

W1  After `await_committed` the log shows all that it held when it was called: what former leaders have left, and what
    this one has appended. A search that finds nothing then proves that there is nothing.
W2  A caller that gives up waiting does not know the outcome. Its append may be committed later, under the same leader
    epoch. So it waits (W1), and looks, before it appends the same again.
W3  Where others keep the partition too, nothing is concluded from a log that lacks something by damage: they have it.
    It is read again once that has been copied from them, or is left to the next leader (`placed.V5`). It may be copied
    while the log is read: then the log is whole in the end, and what was read of it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from broker.api.encodable import Encodable
from broker.api.errors import DeadlineExceeded, LiftlogError, NotReady, StorageFailed
from broker.node.partitions.partition import Outcome, Partition
from broker.storage.log import AppendResult, StoredGroup

WAIT_S: Final = 20.0
"""So long the others may take; then whoever asked is told that it is not known."""
COMMITTED_S: Final = 5.0
"""So long `await_committed` waits for what the log held before."""
LOOK_S: Final = 0.005


class Awaited:
    """A callback of an append, and what it was told."""

    def __init__(self) -> None:
        self._told: Future[Outcome] = Future()

    def __call__(self, result: AppendResult, outcome: Outcome) -> None:
        self._told.set_result(outcome)

    def outcome(self, partition: Partition, timeout_s: float = WAIT_S) -> None:
        """Return once it is committed there.

        Raises:
            DeadlineExceeded: it is not known (W2). LiftlogError: as the partition said.
        """
        if not partition.replica.waits.ended(self._told, timeout_s):
            raise DeadlineExceeded(
                f"{partition}: not committed within {timeout_s:g} s, and it may still be: the other replicas are away,"
                " or this broker is",
                timeout_ms=int(timeout_s * 1000),
            )
        outcome = self._told.result()
        if isinstance(outcome, LiftlogError):
            raise outcome


def append_durable(
    partition: Partition,
    batches: Sequence[Encodable] | StoredGroup,
    *,
    leader_epoch: int,
    decided: bool = False,
) -> AppendResult:
    """Append one commit group and wait until it is committed and on disk, also where `fsync = interval`.

    Raises:
        DeadlineExceeded: it is not known whether it will be (W2).
        LiftlogError: as `Partition.append_now`. After StorageFailed the group may be there or not.
    """
    if partition.log.state.failure is not None:
        partition.commit_all()
    generation = partition.generation  # before the append: too early is an error too many
    awaited = Awaited()
    result = partition.append_now(batches, awaited, decided=decided, leader_epoch=leader_epoch)
    awaited.outcome(partition)
    if partition.log.state.durable_end < result.next_offset:
        partition.commit_all()
    if generation != partition.generation:
        partition.check_open(decided=True)  # deleted meanwhile: then that is the reason
        raise StorageFailed(f"{partition}: the log had to recover; the group that was appended may be lost")
    return result


def await_committed(partition: Partition, timeout_s: float = COMMITTED_S) -> None:
    """Return once all that the log held before is committed (W1).

    Raises:
        NotReady: it was not in time, or this broker does not lead the partition (any more).
        StorageFailed, DiskFull: it cannot be made durable.
    """
    waits = partition.replica.waits
    held, until_s = partition.log.state.log_end_offset, waits.now_s() + timeout_s
    partition.commit_all()
    held = min(held, partition.log.state.log_end_offset)  # a recovery cuts
    while (end := partition.end) is None or end < held:
        if waits.now_s() > until_s or partition.removed or not partition.leads:
            raise NotReady(
                f"{partition}: what it holds, up to offset {held}, is not committed"
                f" ({'this broker does not answer for it' if end is None else f'{end} is'})"
            )
        waits.pause(LOOK_S)


class WholeRead:
    """A read of a partition that is to miss nothing (W3). Made before it begins."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        # first: who copies raises it before, and says that nothing is lost behind
        self._cuts = partition.log.state.cuts
        self._lost = partition.log.state.lost_ranges

    def check(self) -> None:
        """Raise NotReady if what was read may have passed over something that others have."""
        opened = self._partition.log
        lost = self._lost or opened.state.lost_ranges
        if opened.state.settings.is_sole_replica or not (lost or opened.state.cuts != self._cuts):
            return
        what = f"offsets {lost} are" if lost else "some of what was read may have been"
        raise NotReady(f"{self._partition}: {what} damaged on this broker, and have to be copied from others first")
