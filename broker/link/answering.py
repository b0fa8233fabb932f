"""Answers those who fetch from a partition that is led here: the driver of the leader's core, as far as followers go.

    stream's reader ─ asked ─► looks into the log ─► core ─ Send ─► slot of that follower ─┐
    append, commit ─ on_news ──────────────────────────────────────► is there news for it? ├─► the stream's outbox
    0.2 s have passed ─────────────────────────────────────────────────────────────────────┘        │
                                              stream's sender ─ compose ─► reads the log ─► bytes ◄─┘

A slot has the answers that one follower is to get: the one to its last fetch, and others. The later of two answers to
fetches is as good as both, so nothing here grows.

Q1  `Records` without news wait, for `wait_s` at most: news are a record that it lacks, another high watermark or
    another log start than it was told on this stream. A follower that was told last that there is none is calm: it
    waits for `CALM_S`, and knows by the stream's heartbeat that this broker is there. So what is idle costs little.
    Another high watermark alone waits for `COMMIT_S`: the next record takes it along, where they come one by one.
Q2  An answer goes out only while its epoch is led still, looked up after its bytes were read. They were read while it
    led, then: nobody else has written there.
Q3  Bytes go once for each offset that is fetched, unless they are asked for again after `AGAIN_S`. (Each fsync of a
    follower is told by another fetch, while the bytes for the one before it are on their way.) Before they go again
    they are checked: if a follower refuses what is stored here, this disk may be why.
Q4  A question of a leadership that is not known here yet waits, one for each follower, until it is. So does one about a
    partition that is not open here yet (`server.E4`).
Q5  A follower that is not in sync is filled at a limited pace (`pace.py`); one that is in sync has no limit.
Q6  One that is far behind what is committed is told where it can fetch the next `BULK_BYTES_MAX` of that in bulk
    (`bulk.py`), if it takes them so. While it does, nothing lacks. It is answered without bytes, and is not calm. If it
    fetches in vain it asks again, and gets it on the stream (Q3).
Q7  One whose disk has no room gets no bytes, and hears of the log start alone before `wait_s` is over.
Q8  A stream lives as long as two brokers do. Nothing stays with it of a partition that is closed here, and nothing of a
    stream that has ended with the partition.
Q9  A fault of ours in one partition ends no stream: others are answered on it. Its follower asks again.

Q10  A damaged replica asks for a range (`ranges.py`) of any other, in whichever role. The answer names the leader epoch
    in which its lowered mark of compaction was noted (`leader.L9`); -1: this broker does not lead in its epoch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from broker.api.errors import BadBatch, LiftlogError
from broker.common.waiting import Waits
from broker.link.bulk import BulkServer, Transfer
from broker.link.codec import BULK_BYTES_MAX, Answered, Bulk, LinkFrame, Question, encode
from broker.link.pace import Pace
from broker.link.ranges import held
from broker.metadata.partition import Place
from broker.node.partitions.partition import Partition
from broker.replication.events import EndAsked, FetchArrived, RangeAsked, Send, StateAsked
from broker.replication.messages import (
    AskEnd,
    AskRange,
    AskState,
    End,
    Fetch,
    HeldRange,
    Incarnation,
    Records,
    Reply,
    State,
)
from broker.serving.http.meters import RateLimitedLog
from broker.storage.log import PartitionLog
from broker.storage.read import verified_messages

log = logging.getLogger(__name__)

AGAIN_S: Final = 0.25
"""Less than a follower takes to ask again."""
CALM_S: Final = 10.0
COMMIT_S: Final = 0.005
"""See Q1. A commit that is told by itself costs an answer and a question for each follower."""
STATE_PIECE_BYTES: Final = 1 << 20
BULK_BYTES_LEAST: Final = 4 << 20
BULK_S: Final = 0.25
"""Where fewer bytes lack, or may go in that time, they go on the stream."""


class AnswerStream(Protocol):
    """The part of a stream that an answer needs."""

    @property
    def broker(self) -> str:
        """The broker that asks on it."""
        ...

    @property
    def is_over(self) -> bool:
        """Nothing goes out on it any more."""
        ...

    def ready(self, slot: FollowerSlot) -> None:
        """The slot is to be composed."""
        ...

    def later(self, slot: FollowerSlot, at_s: float) -> None:
        """At that time, if it was not before."""
        ...

    def keep(self, slot: FollowerSlot) -> bool:
        """`left` is called for the slot when the stream has ended. False: it has."""
        ...

    def forget(self, slot: FollowerSlot) -> None:
        """The slot has nothing to say any more, and is not to be kept."""
        ...


class Sent(NamedTuple):
    """Bytes that went to a follower: for which fetches, and when."""

    epoch: int
    incarnation: Incarnation
    offset: int
    at_s: float


@dataclass(eq=False)
class FollowerSlot:
    """Answers that one follower of one partition is to get, on one stream.

    Attributes:
        records: The answer to its last fetch; `since_s`: when it came.
        others: Answers of other kinds, one of each.
        told: High watermark and log start as it was told last.
        commit_due_s: When it is to hear of another high watermark at the latest; 0: there is none.
        lacks_state, lacks_room: As its last fetch had them. It is not calm then.
        calm: In which epoch, and as whom, it was told last that there is nothing; None: it was told something else.
        early: A question that waits for Q4.
        range: The last question for a range, and the epoch in which its mark was noted (Q10).
        takes_bulk: As its last fetch had it. `transfer`: what it was told to fetch in bulk last.
    """

    answering: Answering
    stream: AnswerStream
    records: Records | None = None
    since_s: float = 0.0
    others: dict[type, Reply] = field(default_factory=dict)
    told: tuple[int, int] | None = None
    commit_due_s: float = 0.0
    sent: Sent | None = None
    calm: tuple[int, Incarnation] | None = None
    lacks_state: bool = False
    lacks_room: bool = False
    early: Question | None = None
    range: tuple[AskRange, int] | None = None
    takes_bulk: bool = False
    transfer: Transfer | None = None

    @property
    def is_fetching(self) -> bool:
        """In bulk, as far as is known."""
        return self.transfer is not None and not self.transfer.is_over

    def end_transfer(self) -> None:
        transfer, self.transfer = self.transfer, None
        if transfer is not None:
            transfer.end()


class Answering:
    """See the module: `wiring.Followers` of one partition. Thread-safe.

    Args:
        bytes_max: Most bytes of one answer; a single batch may be larger.
        closed: Called once it is of no use any more.
        now_s: A clock that never goes back.
    """

    def __init__(
        self,
        at: Place,
        partition: Partition,
        *,
        bytes_max: int,
        wait_s: float,
        pace: Pace,
        bulk: BulkServer,
        closed: Callable[[Answering], None],
        now_s: Callable[[], float],
        waits: Waits,
    ) -> None:
        self.at = at
        self._partition = partition
        self._log = partition.log
        self._bytes_max = bytes_max
        self._wait_s = wait_s
        self._pace = pace
        self._bulk = bulk
        self._closed = closed
        self._now_s = now_s
        self._waits = waits
        self._lock = threading.Condition()
        self._slots: dict[str, FollowerSlot] = {}
        self._reading = 0
        self._is_closed = False
        self._unanswered_log, self._unread_log = RateLimitedLog(), RateLimitedLog()
        partition.replica.on_news = self.on_news

    def close(self) -> None:
        """As `Followers.close`."""
        self._partition.replica.on_news = None
        self._closed(self)
        with self._lock:
            self._is_closed = True
            for slot in self._slots.values():
                slot.end_transfer()
                slot.stream.forget(slot)
            self._slots.clear()
            self._waits.until(self._lock, lambda: not self._reading)

    def left(self, slot: FollowerSlot) -> None:
        """Its stream has ended."""
        with self._lock:
            slot.end_transfer()
            if self._slots.get(slot.stream.broker) is slot:
                del self._slots[slot.stream.broker]

    # -- questions (on the stream's reader) -------------------------------------------------------------------

    def asked(self, stream: AnswerStream, question: Question, *, takes_bulk: bool = False) -> None:
        """A follower asks. Where nobody answers any more nothing comes of it."""
        with self._lock:
            if self._is_closed or stream.is_over:  # another one may have its place already
                return
            slot = self._slots.get(stream.broker)
            if slot is None or slot.stream is not stream:
                slot = FollowerSlot(self, stream)
                if not stream.keep(slot):
                    return
                self._slots[stream.broker] = slot
            if isinstance(question, Fetch):
                slot.takes_bulk = takes_bulk
                if not takes_bulk and slot.transfer is not None:  # Q6: in vain
                    slot.end_transfer()
                    slot.sent = slot.sent._replace(at_s=0.0) if slot.sent is not None else None
            self._reading += 1
        try:
            self._ask(slot, question)
        except LiftlogError as error:
            self._complain(stream.broker, error)
        except Exception:  # Q9
            log.exception("replica.answer_bug partition=%s to=%s", self._partition, stream.broker)
        finally:
            self._has_read()

    def ask_early(self, stream: AnswerStream, question: Question) -> None:
        """It was asked before this was made: ask now, on the stream's sender. Does not wait."""
        with self._lock:
            if self._is_closed:
                return
            slot = FollowerSlot(self, stream, early=question)
            if stream.keep(slot):
                self._slots[stream.broker] = slot
                stream.ready(slot)

    def _ask(self, slot: FollowerSlot, question: Question) -> None:
        partition = self._partition
        if isinstance(question, AskRange):
            self._ask_range(slot, question)
            return
        leads = partition.leads
        if not leads or question.epoch > partition.leader_epoch:  # Q4
            slot.early = question
            if not partition.leads or question.epoch > partition.leader_epoch:
                return  # else it leads since: whether `on_news` came before or after, it is asked
        slot.early = None
        match question:
            case Fetch():
                state_offset = -1
                slot.lacks_state, slot.lacks_room = question.lacks_state, question.lacks_room
                if question.lacks_state or question.lacks_room:
                    slot.calm = None
                if question.lacks_state:
                    state_offset = self._log.handover.offered(
                        partition.state_from(question.log_start), question.durable_end
                    )
                partition.step_by(lambda: self._fetch_arrived(question, state_offset))
            case AskEnd():
                partition.step_by(lambda: self._end_asked(question))
            case AskState():
                piece = self._log.handover.piece(question.offset, question.at, STATE_PIECE_BYTES)
                length, size = (len(piece[0]), piece[1]) if piece is not None else (0, 0)
                partition.step(StateAsked(ask=question, length=length, size=size))

    def _ask_range(self, slot: FollowerSlot, question: AskRange) -> None:
        """Q10."""
        partition = self._partition
        before = partition.leadership()[0]
        partition.step(RangeAsked(question))
        noted = before if before == partition.leadership()[0] == question.epoch else -1
        with self._lock:
            slot.range = question, noted
        slot.stream.ready(slot)

    def _fetch_arrived(self, fetch: Fetch, state_offset: int) -> FetchArrived:
        opened = self._log
        start = self._first_stored(opened)
        within = opened.reader.batch_start(fetch.offset) if fetch.offset < opened.state.high_watermark else -1
        return FetchArrived(
            fetch=fetch,
            epoch_before=opened.epochs.epoch_of(fetch.offset - 1) if fetch.offset else -1,
            log_start=start,
            start_epoch=opened.epochs.epoch_of(start - 1) if start else -1,
            rewritten_to=opened.handover.rewritten_to(),  # whatever the settings are now: what is gone stays gone
            state_offset=state_offset,
            batch_start=within,
            batch_epoch=opened.epochs.epoch_of(within - 1) if within > 0 else -1,
            compacted_to=opened.state.compacted_to,
            waits_to=opened.state.waits_to,
        )

    def _end_asked(self, ask: AskEnd) -> EndAsked:
        opened = self._log
        start, found = self._first_stored(opened), opened.epochs.end_of(ask.last_epoch)
        before = opened.epochs.epoch_of(start - 1) if start else -1
        return EndAsked(ask=ask, found_epoch=found.epoch, end=found.end_offset, log_start=start, start_epoch=before)

    @staticmethod
    def _first_stored(opened: PartitionLog) -> int:
        """Where the batch begins that holds the log start."""
        start = opened.state.log_start_offset
        return start if start in (0, opened.state.log_end_offset) else opened.reader.batch_start(start)

    # -- what is to be said (any thread) ----------------------------------------------------------------------

    def send(self, effect: Send) -> None:
        """As `Followers.send`."""
        message, now_s = effect.message, self._now_s()
        with self._lock:
            slot = self._slots.get(effect.to)
            if slot is None:
                return
            if isinstance(message, Records):
                if slot.records is not None and _is_earlier(message, slot.records):  # of a stream that has ended since
                    return
                slot.records, slot.since_s = message, now_s
                if not self._has_news(slot, now_s):
                    slot.stream.later(slot, self._due_s(slot, message))
                    return
            else:
                slot.others[type(message)] = message
                if not isinstance(message, (End, State)):
                    slot.records = None  # it answers a later fetch
            slot.stream.ready(slot)

    def on_news(self) -> None:
        """Something was appended or committed here, or the leadership has changed. Waits for nobody's disk."""
        if not self._slots:
            return
        now_s = self._now_s()
        with self._lock:
            for slot in self._slots.values():
                if slot.early is not None:
                    slot.stream.ready(slot)
                elif slot.records is not None:
                    was_due_s = slot.commit_due_s
                    if self._has_news(slot, now_s):
                        slot.stream.ready(slot)
                    elif slot.commit_due_s != was_due_s:
                        slot.stream.later(slot, self._due_s(slot, slot.records))

    def _due_s(self, slot: FollowerSlot, records: Records) -> float:
        """When it is answered at the latest (Q1)."""
        is_calm = slot.calm == (records.epoch, records.incarnation)
        due_s = slot.since_s + (max(CALM_S, self._wait_s) if is_calm else self._wait_s)
        return min(due_s, slot.commit_due_s) if slot.commit_due_s else due_s

    def _has_news(self, slot: FollowerSlot, now_s: float) -> bool:
        """Whether something is to be told now (Q1). Notes when a commit will be."""
        opened = self._log
        assert slot.records is not None
        if (
            slot.told is None
            or slot.told[1] != opened.checkpoints.kept_start_offset
            or self._lacks(slot, slot.records, now_s)
        ):
            return True
        if slot.told[0] == opened.state.high_watermark or slot.lacks_room:
            return False
        if not slot.commit_due_s:
            slot.commit_due_s = now_s + COMMIT_S
        return now_s >= slot.commit_due_s

    def _lacks(self, slot: FollowerSlot, records: Records, now_s: float) -> bool:
        """Whether there are bytes to be sent (Q3, Q7)."""
        if slot.lacks_room or records.offset >= self._log.state.log_end_offset:
            return False
        sent = slot.sent
        if sent is None or sent[:3] != _of(records):
            return True
        return not slot.is_fetching and now_s - sent.at_s >= AGAIN_S

    # -- what is said (on the stream's sender) ----------------------------------------------------------------

    def compose(self, slot: FollowerSlot) -> list[LinkFrame]:
        """The frames that this follower is told now."""
        with self._lock:
            if self._is_closed or self._slots.get(slot.stream.broker) is not slot:
                return []
            self._reading += 1
            others, slot.others = slot.others, {}
            early = slot.early
            asked, slot.range = slot.range, None
        try:
            if early is not None:
                self._ask(slot, early)
            frames = [self._frame(message) for message in others.values() if self._is_of_now(message)]
            if frames:
                slot.calm = None
            if asked is not None:
                frames.append(self._range(*asked))
            records = slot.records
            if records is not None:
                frames += self._records(slot, records)
            return frames
        except LiftlogError as error:
            self._complain(slot.stream.broker, error)
            slot.stream.later(slot, self._now_s() + self._wait_s)
            return []
        except Exception:  # Q9
            log.exception("replica.answer_bug partition=%s to=%s", self._partition, slot.stream.broker)
            slot.stream.later(slot, self._now_s() + self._wait_s)
            return []
        finally:
            self._has_read()

    def _has_read(self) -> None:
        with self._lock:
            self._reading -= 1
            self._lock.notify_all()

    def _is_of_now(self, message: Reply) -> bool:
        """Q2. `Fenced` names the epoch of whoever refuses."""
        epoch, _, _ = self._partition.leadership()
        return message.epoch == epoch

    def _frame(self, message: Reply, data: bytes = b"", bulk: Bulk | None = None) -> LinkFrame:
        if isinstance(message, State) and message.length:
            piece = self._log.handover.piece(message.offset, message.at, message.length)
            data = piece[0] if piece is not None and len(piece[0]) == message.length else b""
            if not data:
                message = replace(message, length=0, size=0)  # it is gone: `state_files`
        return encode(Answered(self.at, message, data, bulk))

    def _range(self, ask: AskRange, noted: int) -> LinkFrame:
        """Q10."""
        found = held(self._log, ask)
        superseded_to, superseded_epoch = self._log.epochs.superseded_there  # behind the bytes
        said = HeldRange(
            epoch=noted,
            incarnation=ask.incarnation,
            request=ask.request,
            start=found.start,
            end=found.end,
            is_damaged=found.is_damaged,
            log_start=self._log.checkpoints.kept_start_offset,
            superseded_to=superseded_to,
            superseded_epoch=superseded_epoch,
        )
        return self._frame(said, found.data)

    def _records(self, slot: FollowerSlot, records: Records) -> list[LinkFrame]:
        now_s, opened = self._now_s(), self._log
        has_news = self._has_news(slot, now_s)
        due_s = self._due_s(slot, records)
        is_due = now_s >= due_s
        if not (is_due or has_news):
            slot.stream.later(slot, due_s)
            return []
        epoch, _, in_sync = self._partition.leadership()
        if epoch != records.epoch:
            self._done(slot, records)
            return []
        data, bulk = b"", None
        if self._lacks(slot, records, now_s):
            is_catching_up = slot.stream.broker not in in_sync
            wait_s = self._pace.wait_s() if is_catching_up else 0.0
            if wait_s > 0 and not is_due:  # Q5
                slot.stream.later(slot, min(due_s, now_s + wait_s))
                return []
            if wait_s == 0:
                slot.end_transfer()
                is_repeat = slot.sent is not None and slot.sent[:3] == _of(records)
                if slot.takes_bulk and is_catching_up and not is_repeat:
                    bulk = self._in_bulk(slot, records)
                if bulk is None:
                    data = self._read(records.offset, is_repeat)
                if is_catching_up:
                    self._pace.take(bulk.byte_count if bulk is not None else len(data))
        epoch, high_watermark, _ = self._partition.leadership()  # Q2
        news = high_watermark, opened.checkpoints.kept_start_offset  # a later start may be undone
        if epoch != records.epoch:
            slot.end_transfer()
            self._done(slot, records)
            return []
        if not data and bulk is None and news == slot.told and not is_due:  # it cannot be read
            slot.calm = None
            slot.stream.later(slot, slot.since_s + self._wait_s)
            return []
        self._done(slot, records)
        slot.told, slot.commit_due_s = news, 0.0
        is_calm = records.offset >= opened.state.log_end_offset and not (data or slot.lacks_state or slot.lacks_room)
        slot.calm = (records.epoch, records.incarnation) if is_calm else None
        if data or bulk is not None:
            slot.sent = Sent(*_of(records), now_s)
        rewritten_to = max(records.rewritten_to, opened.handover.rewritten_to())  # duty 6: the bytes are of before
        superseded_to, superseded_epoch = opened.epochs.superseded_there  # likewise
        said = replace(
            records,
            high_watermark=news[0],
            log_start=news[1],
            rewritten_to=rewritten_to,
            superseded_to=superseded_to,
            superseded_epoch=superseded_epoch,
        )
        return [self._frame(said, data, bulk)]

    def _in_bulk(self, slot: FollowerSlot, records: Records) -> Bulk | None:
        """Q6. None: what it lacks goes on the stream."""
        opened, most = self._log, min(BULK_BYTES_MAX, self._pace.within(BULK_S))
        offset, start = records.offset, max(records.offset, opened.state.log_start_offset)
        if (
            most < BULK_BYTES_LEAST
            or start >= opened.state.high_watermark
            or not self._bulk.has_room(slot.stream.broker)
        ):
            return None
        try:
            plan = opened.reader.read(start, max_bytes=most)
        except (LiftlogError, OSError):
            return None  # `_read` complains
        if plan.first_offset != offset or not BULK_BYTES_LEAST <= plan.bytes <= BULK_BYTES_MAX:
            plan.close()
            return None
        transfer = Transfer(slot.stream.broker, plan, lambda: self._partition.leadership()[0] == records.epoch)
        with self._lock:
            slot.transfer = transfer
            if self._is_closed or slot.stream.is_over:
                slot.end_transfer()
        return self._bulk.offer(transfer)

    def _done(self, slot: FollowerSlot, records: Records) -> None:
        with self._lock:
            if slot.records is records:
                slot.records = None
            elif slot.records is not None:  # another fetch has come meanwhile
                slot.stream.ready(slot)

    def _read(self, offset: int, is_repeat: bool) -> bytes:
        """Stored batches from `offset` on, as they are; nothing if none begins there any more, or it is damaged."""
        opened = self._log
        start = max(offset, opened.state.log_start_offset)  # which may be within the first batch
        try:
            with opened.reader.read(start, max_bytes=self._bytes_max, stored=True) as plan:
                if not plan.ranges or plan.first_offset != offset:
                    return b""  # joined, or let go: the next fetch is told so
                pieces = []
                for place, (segment, file) in zip(plan.ranges, plan.sources, strict=True):
                    if is_repeat:  # Q3
                        try:
                            for _ in verified_messages(file, place):
                                pass
                        except BadBatch:
                            opened.state.repair(segment)  # what is lost is noted: `placed.tick` sees it
                            return b""
                    pieces.append(file.pread(place.length, place.position))
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except (LiftlogError, OSError) as error:
            count = self._unread_log.due()
            if count:
                log.warning(
                    "replica.not_read partition=%s offset=%d count=%d error=%s", self._partition, offset, count, error
                )
            return b""

    def _complain(self, to: str, error: LiftlogError) -> None:
        count = self._unanswered_log.due()
        if count:
            log.warning("replica.not_answered partition=%s to=%s count=%d error=%s", self._partition, to, count, error)


def _of(records: Records) -> tuple[int, Incarnation, int]:
    return records.epoch, records.incarnation, records.offset


def _is_earlier(one: Records, other: Records) -> bool:
    """Whether the one answers a fetch of before the other's."""
    return (one.epoch, one.incarnation) == (other.epoch, other.incarnation) and one.number < other.number
