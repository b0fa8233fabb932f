"""The capture of one replica's messages: begun when it leads, ended when it does not, and what it knows meanwhile.

    a turn ──► see_to ──► capture.begin ──► confirmed by the NATS server ──► serve: clients are answered
                     └──► capture.end

V6  A leader reads from NATS while it has a session, and answers clients once the server has confirmed that it does.
V11  Behind a removal nothing is captured, also by a turn that began before it: captures of one name follow each other
    in the order in which they were begun, and the stream of that name may be another one by now.
V14  A capture that cannot begin is tried again, after twice as long each time: nobody else takes in what is published.
    Clients are answered meanwhile. More partitions are not known of before it has begun (`growth.G1`).
V13  A pause ends the capture first. What the NATS server had sent by then is taken in before the partition refuses, and
    so before anybody is told that the stream is paused. Nor is that told before the partition refuses.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from broker.common.metrics import LEADERSHIP_START_SECONDS
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition
from broker.node.wiring import Host

log = logging.getLogger(__name__)

AGAIN_MS: Final = 1_000
SELDOM_MS: Final = 60_000
"""After so long a capture that could not begin is tried again, first and at most."""


class Capturing:
    """See the module. Its calls but `take_over` come from one turn at a time.

    Args:
        lock: The replica's, over what others leave for its next turn.
        was_removed: Whether a removal waits for the next turn. Asked under `lock`.
        woken: Called when messages are taken in for a stream that is about to have more partitions.
        ask_turn: Called when a capture has ended for a pause (V13).

    Attributes:
        knows: The replica takes in messages under this: (its epoch, how many partitions its stream is about to have, 0
            for no others). It only grows (`growth.G1`).
    """

    __slots__ = (
        "_again_at_ms",
        "_ask_turn",
        "_captured",
        "_failure",
        "_host",
        "_lock",
        "_pausing",
        "_taking_over",
        "_wait_ms",
        "_was_removed",
        "_woken",
        "knows",
    )

    def __init__(
        self,
        host: Host,
        lock: threading.Lock,
        was_removed: Callable[[], bool],
        woken: Callable[[], None],
        ask_turn: Callable[[], None],
    ) -> None:
        self.knows = (-1, 0)
        self._host = host
        self._lock = lock
        self._was_removed = was_removed
        self._woken = woken
        self._ask_turn = ask_turn
        self._pausing: Future[None] | None = None
        self._captured: tuple[Partition, int, StreamInfo] | None = None
        self._wait_ms = AGAIN_MS
        self._again_at_ms: int | None = None  # it could not begin (V14)
        self._failure: BaseException | None = None  # why, the last time
        self._taking_over: tuple[int, int] | None = None  # a leadership that has not served yet, and since when (ms)

    @property
    def is_begun(self) -> bool:
        """Whether messages are captured, or are about to be."""
        return self._captured is not None

    @property
    def failure(self) -> BaseException | None:
        """Why it could not begin, where it will be tried again (V14)."""
        return self._failure if self._again_at_ms is not None else None

    def _is_due_again(self) -> bool:
        at_ms = self._again_at_ms
        return at_ms is not None and self._host.now_ms() >= at_ms

    def take_over(self, epoch: int) -> None:
        """From any thread: the replica is to lead in this epoch. The time until it serves is measured."""
        self._taking_over = epoch, self._host.now_ms()

    def is_wanted(self, partition: Partition, info: StreamInfo) -> bool:
        """Whether the messages of a partition are to be captured now."""
        return partition.leads and not info.paused and self._host.has_session()

    def is_due(self, partition: Partition, info: StreamInfo) -> bool:
        """Whether a turn is to begin or end it."""
        is_wanted = self.is_wanted(partition, info)
        return is_wanted != self.is_begun or (is_wanted and self._is_due_again())

    def see_to(self, partition: Partition, info: StreamInfo) -> None:
        """Begin or end the capture, as the partition's role and its stream are now. The partition goes by `info`."""
        host, epoch = self._host, partition.leader_epoch
        if not self.is_wanted(partition, info):
            self.end()
        elif self._captured != (partition, epoch, info) or self._is_due_again():
            captured = partition, epoch, info
            if host.capture is None:
                self._captured = captured
            else:
                with suppress(RuntimeError):  # the broker stops
                    with self._lock:  # V11
                        if self._was_removed():
                            return
                        begun = host.capture.begin(info, partition)
                    self._captured, self._again_at_ms = captured, None  # now: else it is asked for again (V14)
                    begun.add_done_callback(lambda done: self._begun(partition, epoch, info, done))
        if partition.leads and (host.capture is None or info.paused) and self.may_alter(info):
            self._serve(partition, epoch, info)

    def _begun(self, partition: Partition, epoch: int, info: StreamInfo, done: Future[None]) -> None:
        """The server has confirmed a capture, or it could not begin (V14): clients are answered in either case."""
        if done.cancelled():
            return  # the broker stops
        error = done.exception()
        try:
            self._serve(partition, epoch, info, is_taken_in=error is None)
        except Exception as fault:  # nobody looks at what becomes of a callback
            error = fault
        if error is None:
            self._wait_ms = AGAIN_MS
        else:
            log.error("replica.not_captured partition=%s error=%r", partition, error)
            self._failure = error
            self._try_again()

    def _serve(self, partition: Partition, epoch: int, info: StreamInfo, *, is_taken_in: bool = True) -> None:
        """Messages are taken in under these settings, or there are none."""
        partition.serve(epoch, info)
        if (taking := self._taking_over) is not None and taking[0] == epoch:
            self._taking_over = None
            LEADERSHIP_START_SECONDS.observe((self._host.now_ms() - taking[1]) / 1000)
        if is_taken_in:
            with self._lock:
                self.knows = max(self.knows, (epoch, info.partitions_next))
        if info.partitions_next:
            self._woken()

    def _try_again(self) -> None:
        """V14."""
        self._again_at_ms = self._host.now_ms() + self._wait_ms
        self._wait_ms = min(2 * self._wait_ms, SELDOM_MS)
        self._ask_turn()  # it is not at rest any more

    def may_alter(self, info: StreamInfo) -> bool:
        """Whether the partition may go by this already (V13). If not, another turn is asked for when it may."""
        if not info.paused:
            return True
        if self._captured is not None:
            self._pausing = self.end(with_sent=True)
            if self._pausing is not None:
                self._pausing.add_done_callback(lambda _: self._ask_turn())
        return self._pausing is None or self._pausing.done()

    def end(self, *, with_sent: bool = False) -> Future[None] | None:
        """End the capture, if there is one. Returns when it has ended; None: there is nothing to wait for."""
        captured, self._captured, self._again_at_ms = self._captured, None, None
        if captured is not None and self._host.capture is not None:
            with suppress(RuntimeError):  # the broker stops, and has taken in what there was
                return self._host.capture.end(captured[0], with_sent=with_sent)
        return None
