"""A replica copies what it cannot read any more from others: it asks one after another.

    lost ranges ─► own files that were moved aside ─► the leader ─► each other replica that lives ─► batches ─► the log
                                                          round over, nothing came ─► a pause ─► once more

H1  One question at a time, of one range and one broker. A broker answers within `ANSWER_MS`, or is passed over in this
    round. At most `AT_ONCE` replicas of this broker ask at a time: their answers are in memory.
H2  The log is written anew by one thread for all replicas. Answers that come late, or to another question, are dropped.
H3  Whatever came is judged by the log (`storage.rewrite.mending`): its CRCs, its leader epochs.
H4  A log that was ever compacted lowers its mark before it asks, durably. If it follows, its leader hears of that
    before anybody else is asked (`leader.L9`): else tombstones might go which the record that comes back still needs.
    What an earlier fetch says of the mark counts no more by then, though it come later (`insync.I6`).
H5  It is *in vain* once of each range there is some live broker which in `VAIN_ROUNDS` in a row was too old to be
    asked, did not answer, or had what does not fit: the replica may begin anew with its log. So it may if the range is
    not committed. A broker that has just come back is asked as often as any: rounds without it do not count. Where all
    others are damaged in the same place, or do not reach so far, nothing is won by that, and what is whole here would
    be lost: it stays, and asks on.
H6  What the leader has let go is let go here, too, as far as it is committed here: a damaged replica does not follow,
    and would not hear of it (`follower.F6`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from enum import Enum
from typing import Final, NamedTuple

from broker.api.errors import BadBatch, CorruptLog, LiftlogError
from broker.metadata.partition import PartitionState, Place
from broker.node.folders import ASIDE
from broker.node.partitions.partition import Partition
from broker.node.wiring import Host
from broker.replication.messages import AskRange, HeldRange, Incarnation
from broker.serving.http.meters import RateLimitedLog
from broker.storage.aside import read_aside, was_compacted
from broker.storage.rewrite.mending import lower_mark

log = logging.getLogger(__name__)

ANSWER_MS: Final = 3_000
PAUSE_FIRST_MS: Final = 500
PAUSE_LAST_MS: Final = 5_000
VAIN_ROUNDS: Final = 2
AT_ONCE: Final = 2
ASIDE_BYTES: Final = 16 << 20

Lost = tuple[int, int]
"""A range of offsets."""


class NotHad(Enum):
    """What became of a question."""

    DAMAGED = "damaged there too"
    LACKS = "not there"
    SILENT = "no answer"
    UNABLE = "an earlier release"
    GONE = "let go there"
    UNFIT = "not what stood here"
    REFUSED = "this disk refuses"


NOTHING_TO_WIN: Final = frozenset({NotHad.DAMAGED, NotHad.LACKS, NotHad.REFUSED})


def _is_of_no_use(lost: Lost, verdict: NotHad, committed: int) -> bool:
    """Whether the log is worth nothing to who has heard that (H5)."""
    return verdict not in NOTHING_TO_WIN or lost[1] > committed


class OpenQuestion(NamedTuple):
    """The question that is open: of the leader epoch and with the mark of compaction that it names. `at_ms`: when it
    was asked; -1: it is about to be, or its answer is being written."""

    number: int
    to: str
    lost: Lost
    epoch: int
    at_ms: int = -1
    mark: int = 0


class Mender:
    """The thread that writes, and the room for answers, of one broker.

    Args:
        pool: Of one thread (H2). It is shut down by `close`.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._slots = threading.BoundedSemaphore(AT_ONCE)

    def take_slot(self) -> bool:
        """Whether one more may ask (H1)."""
        return self._slots.acquire(blocking=False)

    def give_slot(self) -> None:
        """It does no more."""
        self._slots.release()

    def submit(self, act: Callable[[], None]) -> bool:
        """Do it in the thread. False: the broker stops."""
        try:
            self._pool.submit(act)
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        """For good. Returns when nothing of it is at a log any more."""
        self._pool.shutdown(cancel_futures=True)


class Mending:
    """The mending of one log. Thread-safe.

    Args:
        name: The partition's, for people.
        lowered: Called when the mark of compaction was lowered: `FollowerDriver.compacted`.
        woken: Called when something has come of a question.

    Attributes:
        of: Its partition.
    """

    def __init__(
        self,
        host: Host,
        mender: Mender,
        at: Place,
        name: str,
        partition: Partition,
        lowered: Callable[[], int],
        woken: Callable[[], None],
    ) -> None:
        self._host = host
        self._mender = mender
        self._at = at
        self._name = name
        self._partition = self.of = partition
        partition.damage.asks_others = self.asked
        self._lowered = lowered
        self._woken = woken
        self._lock = threading.Lock()
        self._asked: OpenQuestion | None = None
        self._number = 0
        self._has_slot = self._is_closed = False
        self._round: dict[tuple[Lost, str], NotHad] = {}
        self._last: dict[tuple[Lost, str], NotHad] = {}  # of the round before
        self._heard = (-1, 0)  # the epoch in which the leader has noted a mark, and which (H4)
        self._rounds = 0  # in a row that have brought nothing
        self._vain: dict[tuple[Lost, str], int] = {}  # as many rounds in a row (H5)
        self._rests_until_ms = 0
        self._vain_log = RateLimitedLog()

    def tick(self, now_ms: int, state: PartitionState, incarnation: Incarnation) -> None:
        """Time passes. Does not wait."""
        lost = self._partition.log.state.lost_ranges
        with self._lock:
            asked = self._asked
            if self._is_closed or (asked is not None and asked.at_ms < 0):
                return
            if not lost:  # an operator has given it up, or it was let go
                self._forget(asked)
                return
            if asked is not None:
                if now_ms - asked.at_ms < ANSWER_MS:
                    return
                self._judge(asked, NotHad.SILENT)
                self._host.wiring.forget_range(asked.to, self._at)
            live = self._live(state)
            if now_ms < self._rests_until_ms and {broker for _, broker in self._last}.issuperset(live):
                return
            pairs = ((each, to) for each in lost for to in self._others(live, state, each))
            picked = next((pair for pair in pairs if pair not in self._round), None)
            if picked is None:
                self._end_round(now_ms, lost)
                return
            if not (self._has_slot or self._mender.take_slot()):
                return
            self._has_slot = True
            self._number += 1
            asked = self._asked = OpenQuestion(self._number, picked[1], picked[0], state.leader_epoch)
        self._submit(lambda: self._ask(asked, now_ms, incarnation))

    def is_in_vain(self) -> bool:
        """H5."""
        opened = self._partition.log
        committed, lost_now = opened.state.high_watermark, opened.state.lost_ranges
        with self._lock:
            if not lost_now:
                return False
            vain = {
                pair[0]
                for pair, verdict in self._last.items()
                if self._vain.get(pair, 0) >= VAIN_ROUNDS and _is_of_no_use(pair[0], verdict, committed)
            }
            return vain.issuperset(lost_now)

    def asked(self) -> dict[str, bool]:
        """The brokers that were asked for all that is lost, and whether they are damaged in all of that, too."""
        lost = self._partition.log.state.lost_ranges
        with self._lock:
            said = {**self._last, **self._round}
            brokers = {broker for _, broker in said if all((each, broker) in said for each in lost)}
            return {broker: all(said[each, broker] is NotHad.DAMAGED for each in lost) for broker in brokers}

    def close(self) -> None:
        """The log is about to be closed, or the broker stops."""
        with self._lock:
            self._is_closed = True
            asked, self._asked = self._asked, None
            self._give_slot()
        if asked is not None:
            self._host.wiring.forget_range(asked.to, self._at)

    def rest(self) -> None:
        """It is about to step out: nothing is asked meanwhile."""
        with self._lock:
            asked = self._asked
            if asked is None or asked.at_ms >= 0:
                self._forget(asked)

    # -- rounds (with the lock held) ---------------------------------------------------------------------------

    def _live(self, state: PartitionState) -> list[str]:
        """The brokers to ask, in order: the leader first."""
        me, brokers = self._host.me, self._host.service.catalog.brokers
        live = [b for b in state.replicas if b != me and (info := brokers.get(b)) is not None and info.is_live]
        return sorted(live, key=lambda broker: broker != state.leader)

    def _others(self, live: list[str], state: PartitionState, lost: Lost) -> list[str]:
        """Those of them that may be asked for a range now (H4)."""
        epoch, mark = self._heard
        is_noted = state.leader in (self._host.me, None) or (epoch == state.leader_epoch and mark <= lost[0])
        return live if is_noted or self._takes_aside() else [broker for broker in live if broker == state.leader]

    def _forget(self, asked: OpenQuestion | None) -> None:
        """Nothing is to be asked for now."""
        if asked is not None:
            self._host.wiring.forget_range(asked.to, self._at)
        self._brought_something()
        self._round, self._last = {}, {}
        self._give_slot()

    def _brought_something(self) -> None:
        self._asked, self._rounds, self._rests_until_ms, self._vain = None, 0, 0, {}

    def _takes_aside(self) -> bool:
        """Whether this log was never compacted."""
        try:
            return not was_compacted(self._partition.log)
        except LiftlogError:
            return False

    def _judge(self, asked: OpenQuestion, verdict: NotHad) -> None:
        self._round[asked.lost, asked.to] = verdict
        self._asked = None

    def _end_round(self, now_ms: int, lost: Iterable[Lost]) -> None:
        self._rounds += 1
        committed = self._partition.log.state.high_watermark
        self._vain = {
            pair: self._vain.get(pair, 0) + 1
            for pair, verdict in self._round.items()
            if _is_of_no_use(pair[0], verdict, committed)
        }
        self._last, self._round = self._round, {}
        self._rests_until_ms = now_ms + min(PAUSE_LAST_MS, PAUSE_FIRST_MS << min(self._rounds, 10))
        self._give_slot()
        count = self._vain_log.due() if self._last else 0
        if count:
            said = sorted({f"{broker}: {verdict.value}" for (_, broker), verdict in self._last.items()})
            log.warning("replica.not_mended partition=%s ranges=%s count=%d said=%s", self._name, lost, count, said)

    def _give_slot(self) -> None:
        has_slot, self._has_slot = self._has_slot, False
        if has_slot:
            self._mender.give_slot()

    def _submit(self, act: Callable[[], None]) -> None:
        if not self._mender.submit(lambda: self._guarded(act)):
            self.close()

    # -- the thread --------------------------------------------------------------------------------------------

    def _guarded(self, act: Callable[[], None]) -> None:
        """A fault of ours is an answer that is no use."""
        try:
            act()
        except Exception:
            log.exception("replica.mending_bug partition=%s", self._name)
            with self._lock:
                asked = self._asked
                if asked is not None:
                    self._judge(asked, NotHad.UNFIT)

    def _ask(self, asked: OpenQuestion, now_ms: int, incarnation: Incarnation) -> None:
        opened = self._partition.log
        start, end = asked.lost
        verdict, number = NotHad.REFUSED, 0
        try:
            takes_aside = self._takes_aside()
            if takes_aside:
                data = read_aside(
                    opened.state.disk,
                    opened.state.folder + ASIDE,
                    start,
                    end,
                    opened.state.identity,
                    bytes_max=ASIDE_BYTES,
                    is_encrypted=opened.state.is_encrypted,
                    keyring=opened.state.settings.keyring,
                )
                if data and self._mend(asked.lost, data, "aside", (0, -1)) is None:
                    return
            else:
                lower_mark(opened, start)  # H4
                number = self._lowered()
            question = AskRange(
                follower=self._host.me,
                incarnation=incarnation,
                epoch=asked.epoch,
                request=asked.number,
                start=start,
                end=end,
                compacted_to=opened.state.compacted_to,
                takes_aside=takes_aside,
                number=number,
            )
            with self._lock:
                if self._is_closed or self._asked is not asked:
                    return
                self._asked = asked._replace(at_ms=now_ms, mark=question.compacted_to)

            def take(answer: HeldRange, data: bytes) -> None:
                self._arrived(asked.to, answer, data)

            if self._host.wiring.ask_range(asked.to, self._at, question, take):
                return
            verdict = NotHad.UNABLE
        except (LiftlogError, OSError) as error:
            log.warning("replica.not_asked partition=%s range=[%d,%d) error=%s", self._name, start, end, error)
        with self._lock:
            if self._asked is not None and self._asked.number == asked.number:
                self._judge(asked, verdict)

    def _arrived(self, to: str, answer: HeldRange, data: bytes) -> None:
        """On the connection's reader (H2)."""
        with self._lock:
            asked = self._asked
            if asked is None or (asked.number, asked.to) != (answer.request, to) or asked.at_ms < 0:
                return
            self._asked = asked = asked._replace(at_ms=-1)
            if answer.epoch == asked.epoch:
                self._heard = asked.epoch, asked.mark
        self._host.wiring.forget_range(to, self._at)
        self._submit(lambda: self._take(asked, answer, data))

    def _take(self, asked: OpenQuestion, answer: HeldRange, data: bytes) -> None:
        verdict: NotHad | None = NotHad.DAMAGED if answer.is_damaged else NotHad.LACKS
        if asked.lost[0] < answer.log_start:
            verdict = self._let_go(asked, answer) if answer.epoch == asked.epoch else NotHad.GONE
        if data and verdict is not None:
            verdict = self._mend(asked.lost, data, asked.to, (answer.superseded_to, answer.superseded_epoch))
        with self._lock:
            if verdict is not None and self._asked is asked:
                self._judge(asked, verdict)
        self._woken()

    def _let_go(self, asked: OpenQuestion, answer: HeldRange) -> NotHad | None:
        """H6. Returns why not."""
        partition = self._partition
        opened = partition.log
        start = min(answer.log_start, opened.state.high_watermark)
        try:
            if start <= asked.lost[0] or opened.handover.lacks:
                return NotHad.GONE
            with partition.replica.letting_go:
                opened.trim(start)
        except LiftlogError as error:
            log.warning("replica.not_written partition=%s range=[%d,%d) error=%s", self._name, *asked.lost, error)
            return NotHad.REFUSED
        left = opened.state.lost_ranges
        log.warning("replica.let_go partition=%s start=%d left=%s", self._name, start, left)
        with self._lock:
            if self._asked is asked:
                self._brought_something()
        return None

    def _mend(self, lost: Lost, data: bytes, origin: str, superseded: tuple[int, int]) -> NotHad | None:
        """Write it. Returns why not; None: it is written."""
        partition = self._partition
        with self._lock:
            if self._is_closed:
                return NotHad.REFUSED
        try:
            start, end = partition.damage.mend(lost, data, superseded)
        except (BadBatch, CorruptLog) as error:
            log.warning("replica.not_fit partition=%s range=[%d,%d) from=%s error=%s", self._name, *lost, origin, error)
            return NotHad.UNFIT
        except LiftlogError as error:
            log.warning("replica.not_written partition=%s range=[%d,%d) error=%s", self._name, *lost, error)
            return NotHad.REFUSED
        left = partition.log.state.lost_ranges
        log.warning(
            "replica.mended partition=%s range=[%d,%d) from=%s bytes=%d left=%s",
            self._name,
            start,
            end,
            origin,
            len(data),
            left,
        )
        with self._lock:
            self._brought_something()
            if not left:
                self._round, self._last = {}, {}
                self._give_slot()
        self._woken()
        return None
