"""Committed records of a partition that another broker leads, from the log of an in-sync follower (KIP-392).

    reader ── rack ──► leader: "in your rack is broker-b" ──► broker-b hands out what it knows to be committed
                         ▲                                        │
                         └──── goes on here, from its next offset ┘ when broker-b cannot tell, or is no replica any more

A follower knows less than its leader, later. So it says nothing that a reader could take for an end, a loss or a gap.
The leader answers for all that the follower cannot hand out.

X1  It hands out records below the high watermark that its own log has, and only while its log was found to agree with
    that of the leader of this epoch (`follower.F1`), the catalog has it in sync, and its broker has a session. It looks
    again after it has planned an answer: an answer is of one epoch.
X2  It tells no end. A question for anything but a plain range of its log is `not_leader`: an offset above what it
    knows (after a new start it may know less than before), if it does not hear of it in time (`records.R5`), one below
    its start, a position that is no number, damage.
X3  It names the epoch that it follows, and hands nothing to a reader that has seen a newer one: it may follow a leader
    that was deposed.
X4  A wait ends when it may not answer any more, which is looked at once in `LOOK_S`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from broker.api.errors import NotLeader
from broker.node.partitions.replica import Replica
from broker.storage.inspect.scrub import PIECE_BYTES, Piece
from broker.storage.log import AppendResult, Encodable, PartitionLog

LOOK_S: Final = 0.5


class FollowerRead:
    """Implements `serving.contract.backend.PartitionHandle`, in one leader epoch.

    Args:
        leader_epoch: The one in which it may answer.
        epoch_now: In which one it may answer by now; -1: it may not.
        elsewhere: The error that names the leader.
    """

    end = goes_by = None
    is_changing = False

    def __init__(
        self, replica: Replica, leader_epoch: int, epoch_now: Callable[[], int], elsewhere: Callable[[str], NotLeader]
    ) -> None:
        self.stream, self.partition, self.incarnation = replica.stream, replica.partition, replica.incarnation
        self.leader_epoch = leader_epoch
        self.log: PartitionLog = replica.log
        self._replica = replica
        self._epoch_now = epoch_now
        self.elsewhere = elsewhere

    @property
    def fence(self) -> int:
        """Its leader knows."""
        raise self.elsewhere("its leader has its fence")

    def lags(self) -> dict[str, int]:
        """X2: its leader knows."""
        return {}

    def append(
        self,
        batches: Sequence[Encodable],
        *,
        acks: str = "all",
        expected_offset: int | None = None,
        fence: int | None = None,
    ) -> Future[AppendResult]:
        raise self.elsewhere("a follower takes no records")

    def scrub(self, offset: int, *, bytes_max: int = PIECE_BYTES) -> Piece | None:
        raise self.elsewhere("the leader looks at what it has stored")

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """X4."""
        until_s, log, now_s = self._replica.now_s() + timeout_s, self.log, self._replica.now_s

        def done() -> bool:
            return log.state.high_watermark > offset or self._epoch_now() != self.leader_epoch

        while not done() and (left_s := until_s - now_s()) > 0:
            await self._replica.wait(done, min(left_s, LOOK_S))
