"""What one replica has lost on its disk: given up by an operator, or copied from other replicas.

P16  Ranges that an operator gives up are remembered until the process ends: the answer may be lost, and asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from broker.node.partitions.replica import Replica
from broker.storage.recovery import Ranges, merge_ranges
from broker.storage.rewrite.giving_up import give_up
from broker.storage.rewrite.mending import bytes_to_write, mend


class Damage:
    """See the module. Thread-safe.

    Attributes:
        given_up: Ranges that an operator has given up here (P16).
        asks_others: Tells of those who were asked for what is lost here (`node.mending`).
        mended_count: So many offsets that were damaged here were copied from other replicas.
        was_mended: Since somebody last looked, the log has lost nothing any more.
    """

    __slots__ = ("_lock", "_replica", "asks_others", "given_up", "mended_count", "was_mended")

    def __init__(self, replica: Replica) -> None:
        self.given_up: Ranges = ()
        self.asks_others: Callable[[], Mapping[str, bool]] | None = None
        self.mended_count = 0
        self.was_mended = False
        self._replica = replica
        self._lock = threading.Lock()

    def give_up(self, ranges: Ranges, *, leader_epoch: int, aside: str, borders: Sequence[int] = ()) -> None:
        """As `storage.rewrite.giving_up.give_up`. Waits for the disk."""
        log = self._replica.log
        with self._lock:
            give_up(log, ranges, leader_epoch=leader_epoch, aside=aside, borders=borders)
            self.given_up = merge_ranges([*self.given_up, *ranges])
            self.was_mended = not log.state.lost_ranges
        self._replica.note_change()

    def asked_for_lost(self) -> Mapping[str, bool]:
        """The brokers that were asked for all that is lost here, and whether they are damaged there, too."""
        return self.asks_others() if self.asks_others is not None else {}

    def mend(self, lost: tuple[int, int], data: bytes, superseded: tuple[int, int]) -> tuple[int, int]:
        """As `storage.rewrite.mending.mend`. Waits for the disk."""
        replica = self._replica
        if replica.room is not None:
            replica.room.check(bytes_to_write(replica.log, lost, data))
        with self._lock:
            mended = mend(replica.log, lost, data, superseded=superseded)
            self.mended_count += mended[1] - mended[0]
            self.was_mended = not replica.log.state.lost_ranges
        replica.note_change()
        return mended
