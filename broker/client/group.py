"""Read streams as a member of a consumer group: partitions are shared among all members, each record is committed.

    for batch in client.group("billing").read("orders"):
        work(batch)                        # committed when the next batch is asked for

A thread polls for the member while its process works. What is asked back is given up between two batches, once the last
one is committed.

M1  A batch is committed when the next one is asked for, or by `commit`; nothing else says that its work is done. One
    whose work raised, or whose loop was left by `break`, is not: another member, or the next run, reads it again.
M2  Nothing is read before its begin is durable, and nothing is committed that another member has begun since.
M3  An offset that is gone is an error (OffsetOutOfRange), never a jump: `reset` the group to go on elsewhere. So is one
    below which other records were written since it was committed (`fetch.R6`): a commit has the leader epoch of the
    last record that was handed out. It has none where offsets behind that were left out: not all replicas know those'.
    Before it is said, the member begins again: one that stood still may ask for what others have done since.
    So is a range that a disk has lost: who has heard of it and asks for the next batch goes on behind it.
M4  A member that was taken for dead joins again, and goes on with what it is granted then. Streams that were deleted
    meanwhile are left out until they are there again: those who were not taken for dead read on, too. One whose
    instance another process has joined under ends with GroupFenced: both would take each other's place for ever.
M5  A reader that nobody holds any more leaves its group, on a thread of its own: the search for cycles finds it in the
    midst of anything, and what that holds may be what a call needs. A process that ends waits for it.
M6  A reader is of the process that made it. In a child that is forked it reads and commits nothing, and its end there
    does not take the parent out of the group.
M7  A grant that cannot begin, as the log has seen a later one, is given back: the catalog was put back from a copy, and
    grants it again under another epoch. If it is this member's no more, that changes nothing.
M8  Who leaves goes on to another broker when one refuses, as one without a session does: the group would wait for a
    whole timeout. Who stops does not wait for brokers that are gone.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

import pyarrow as pa

from broker.api.errors import (
    GroupFenced,
    InvalidRequest,
    LiftlogError,
    OffsetOutOfRange,
    Retryable,
    StaleIncarnation,
    Unavailable,
    UnknownMember,
    UnknownPartition,
    UnknownStream,
    from_problem,
)
from broker.api.group_answers import GroupStep, GroupSteps, HeldPartition, HeldShare
from broker.api.group_polls import longest_poll_ms
from broker.client.consumers import OFFSETS
from broker.client.group_start import GroupStart, Place
from broker.client.http.calls import Calls, path, understand
from broker.client.http.interrupt import Interrupt
from broker.client.http.patience import Patience
from broker.client.positions import At
from broker.client.reading.fetch import PartitionFetch
from broker.client.reading.session import FetchSession

log = logging.getLogger(__name__)

IDLE_S: Final = 0.2
"""So often a member looks for records where there were none."""
AGAIN_S: Final = 0.5
LEAVE_S: Final = 2.0
"""So long a broker may be silent to who leaves."""
REFUSED_S: Final = 5.0
"""So long who leaves asks others, and again, where brokers refuse for a moment (M8)."""
TIMEOUT_S: Final = 10.0
_LOST: Final = (GroupFenced, UnknownStream, UnknownPartition, StaleIncarnation)
"""A partition is not this member's any more, or is gone."""


class ReadingGroup:
    """A consumer group, as one process sees it. Made by `Client.group`.

    Args:
        start_at: Makes a `GroupStart` of a choice and the names of streams.
        timeout_s: A member that is not heard of for so long is taken for dead: its partitions go to others.
        instance: Of a static member: who joins under it takes the place of the former one at once. Give each process
            another one.
    """

    def __init__(
        self,
        calls: Calls,
        start_at: Callable[[At, Sequence[str]], GroupStart],
        name: str,
        *,
        timeout_s: float = TIMEOUT_S,
        instance: str | None = None,
    ) -> None:
        self.name = name
        self._calls = calls
        self._start_at = start_at
        self._timeout_ms = int(timeout_s * 1000)
        self._instance = instance

    def __repr__(self) -> str:
        return f"<consumer group {self.name}>"

    def read(self, *streams: str, start: At = "earliest", max_bytes: int = 1 << 20) -> GroupReader:
        """Read this member's part of some streams, without an end.

        Args:
            start: Where the group begins a partition that it has never read: `"earliest"`, the first record that is
                there; `"latest"`, what comes from now on; or a datetime with time zone, the first record that is not
                older. It moves no group that has begun: `Client.reset_group` does. Give all members the same.
            max_bytes: Approximate size of one request.
        Returns:
            An iterator of `pyarrow.RecordBatch`, each of one partition: `reader.at` says of which. Close it, or use it
            as a context manager: the partitions go to others at once.
        Raises:
            UnknownStream: one is not there. InvalidRequest: none is given, `start` is something else, or the group has
                too many members.
        """
        if not streams:
            raise InvalidRequest("group.read() needs a stream at least")
        begins = self._start_at(start, sorted({*streams}))
        body: dict[str, Any] = {
            "member": uuid.uuid4().hex,
            "streams": sorted({*streams}),
            "timeout_ms": self._timeout_ms,
        }
        if self._instance is not None:
            body["instance"] = self._instance
        return GroupReader(_Life(self._calls, self.name, body), begins, max_bytes)


class _Life:
    """The membership: joins, polls on a thread of its own, and knows what is granted. Thread-safe."""

    def __init__(self, calls: Calls, group: str, body: Mapping[str, Any]) -> None:
        self.calls, self.group, self._body = calls, group, body
        self.member = str(body["member"])
        self.news = threading.Event()
        self._lock, self._leaving = threading.Lock(), threading.Lock()
        self._share: HeldShare | None = None
        self._failure: LiftlogError | None = None
        self._over = Interrupt()
        self._pid = os.getpid()
        self._lacks_any = False
        self._join(self._body)
        self._thread = threading.Thread(target=self._work, name="liftlog-group", daemon=True)
        self._thread.start()
        _LIVES.add(self)

    def check_process(self) -> None:
        """Raises InvalidRequest (M6)."""
        if os.getpid() != self._pid:
            raise InvalidRequest(f"this reader of group {self.group} is of the process before the fork: make another")

    def join(self) -> None:
        """Join again, with those of the streams that are there (M4)."""
        streams = list(self._body["streams"])
        while streams:
            try:
                self._join({**self._body, "streams": streams})
                return
            except UnknownStream as error:
                log.info("group.stream_gone group=%s error=%s", self.group, error)
                streams = [each for each in streams if each != error.fields.get("stream", each)]

    def _join(self, body: Mapping[str, Any], *, interrupt: Interrupt | None = None, calls: Calls | None = None) -> None:
        joined = self._call("members", dict(body), interrupt=interrupt, calls=calls)
        with self._lock:
            if self._share is None or self._share.session != joined.session or self._share.version < joined.version:
                self._share = joined
            self._lacks_any = len(body["streams"]) < len(self._body["streams"])

    def _complete(self) -> None:
        """Read those again, too, that were not there (M4). One try: who does not poll meanwhile is taken for dead."""
        once = Calls(self.calls.brokers, timeout_s=self.calls.timeout_s, deadline_s=0)
        with self._leaving, suppress(UnknownStream):
            if self._share is not None:  # it has not left meanwhile
                self._join(self._body, interrupt=self._over, calls=once)
                self.news.set()

    def share(self) -> HeldShare | None:
        """What is granted, as far as it was heard; None: it is no member any more. Raises why it cannot be one."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return self._share

    def release(self, places: Iterable[HeldPartition]) -> None:
        """These are not read any more, and what was done is committed."""
        share = self.share()
        rows = [{"stream": each.stream, "partition": each.partition, "epoch": each.epoch} for each in places]
        if share is not None and rows:
            self._poll(share, released=rows)

    def leave(self) -> None:
        """End. The partitions go to others. Idempotent; waits for another thread that does it."""
        if os.getpid() != self._pid:  # M6
            return
        self._over.set()
        with self._leaving:
            share, self._share = self._share, None
            if share is not None:
                with suppress(LiftlogError):  # it expires
                    self._say_leave(share.session)

    def drop(self) -> None:
        """As `leave`, soon. From anywhere: takes no lock, and waits for nothing (M5)."""
        if not self._over.is_set:
            with suppress(RuntimeError):  # the process ends, and has left
                _thread.start_new_thread(self.leave, ())

    def _say_leave(self, session: int) -> None:
        """M8."""
        target = path("groups", self.group, "members", self.member, "leave")
        once = Calls(self.calls.brokers, timeout_s=min(LEAVE_S, self.calls.timeout_s), deadline_s=0)
        patience = Patience(REFUSED_S)
        while True:
            try:
                once.json("POST", target, {"session": session})
                return
            except Unavailable:  # all of them were asked
                raise
            except Retryable as error:  # who refuses is asked last from then on
                patience.pause(error)

    def _work(self) -> None:
        while not self._over.is_set:
            share = self._share
            if share is None:
                self._over.pause(AGAIN_S)
                continue
            try:
                self._poll(share, wait_ms=longest_poll_ms(share.timeout_ms))
                if self._lacks_any:
                    self._complete()
            except Retryable as error:
                if self._over.is_set:
                    return
                log.warning("group.not_heard group=%s error=%s", self.group, error)
                self._over.pause(AGAIN_S)
            except LiftlogError as error:
                if self._over.is_set:
                    return
                with self._lock:
                    self._failure = error
                self.news.set()
                return

    def _poll(self, share: HeldShare, *, wait_ms: int = 0, **more: Any) -> None:
        body = {"session": share.session, "version": share.version, "wait_ms": wait_ms, **more}
        if "instance" in self._body:
            body["instance"] = self._body["instance"]
        try:
            own = self._over if wait_ms else None  # of the thread: it names one socket
            told = self._call(f"members/{self.member}/poll", body, wait_s=wait_ms / 1000, interrupt=own)
        except UnknownMember:
            told = None
        with self._lock:
            if self._over.is_set or self._share is None or self._share.session != share.session:
                return
            if told is None or told.version >= self._share.version:
                self._share = told
        self.news.set()

    def _call(
        self,
        target: str,
        body: Any,
        *,
        wait_s: float = 0,
        interrupt: Interrupt | None = None,
        calls: Calls | None = None,
    ) -> HeldShare:
        where = path("groups", self.group, *target.split("/"))
        value = (calls or self.calls).json("POST", where, body, wait_s=wait_s, interrupt=interrupt)
        return understand(HeldShare, value, where=f"a member of group {self.group}")


_LIVES: Final = weakref.WeakSet[_Life]()


@atexit.register
def _leave_all() -> None:
    for life in list(_LIVES):
        life.leave()


class _Held:
    """A partition that has begun. `done`: committed up to there; `read`: handed out up to there.

    Attributes:
        epoch_before: The leader epoch of the record before `read`; -1: not known.
        is_kept: Brokers keep it with a commit.
        told: What is lost up to there was said.
    """

    def __init__(self, step: GroupStep, fetch: PartitionFetch) -> None:
        assert step.offset is not None, "it has begun"
        self.epoch, self.incarnation, self.fetch = step.epoch, step.incarnation, fetch
        self.done = self.read = self.told = step.offset
        self.is_kept = step.leader_epoch is not None
        self.epoch_before = -1 if step.leader_epoch is None else step.leader_epoch
        self.go_back()

    def hand_out(self, rows: pa.RecordBatch) -> None:
        """These rows are handed out."""
        self.read = rows.column("offset")[-1].as_py() + 1
        self.epoch_before = self.fetch.epoch_before

    def pass_over(self) -> None:
        """What is gone behind the last row is passed over."""
        if self.fetch.position > self.read:
            self.read, self.epoch_before = self.fetch.position, -1

    def go_back(self) -> None:
        """Read on behind what was handed out."""
        self.fetch.position, self.fetch.epoch_before = self.read, self.epoch_before

    def check_lost(self, at: Place) -> None:
        """Raises OffsetOutOfRange: a disk has lost what comes next (M3)."""
        for first, end in self.fetch.lost:
            if end > max(self.read, self.told):
                self.told = end
                raise OffsetOutOfRange(
                    f"{at[0]}/{at[1]}: a disk has lost the records from offset {first} to {end - 1}: ask for the next"
                    " batch to go on behind them",
                    stream=at[0],
                    partition=at[1],
                    offset=self.read,
                    high_watermark=self.fetch.high_watermark,
                    lost=[first, end],
                )


class GroupReader:
    """The batches of one member. See the module. For one thread at a time.

    Attributes:
        at: Stream and partition of the batch that was handed out last.
        fenced: So many batches were not committed as another member had begun their partition: it reads them again.
    """

    def __init__(self, life: _Life, start: GroupStart, max_bytes: int) -> None:
        self.at: Place | None = None
        self.fenced = 0
        self._life = life
        self._start = start
        self._max_bytes = max_bytes
        self._session = FetchSession(brokers=life.calls.brokers)
        self._held: dict[Place, _Held] = {}
        self._turns: list[Place] = []
        self._answer: tuple[Place, Iterator[pa.RecordBatch]] | None = None
        self._found_any = True
        self._again_s = 0.0
        self._end = weakref.finalize(self, life.drop)  # M5
        self._end.atexit = False  # `_leave_all`

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with suppress(GroupFenced):
            self.commit()
        while self._end.alive:
            rows = self._more()
            if rows is not None:
                return rows
            if self._life.news.is_set() or not self._turns:
                if not self._found_any:
                    self._life.news.wait(IDLE_S)
                self._life.news.clear()
                self._follow()
                self._turns, self._found_any = sorted(self._held), False
            if self._turns and (held := self._held.get(at := self._turns.pop(0))) is not None:
                self._answer = at, held.fetch.answer(None)
        raise StopIteration

    def _more(self) -> pa.RecordBatch | None:
        """The next rows of the answer that is under way; None: there is none."""
        if self._answer is None:
            return None
        at, rows = self._answer
        held = self._held.get(at)
        if held is None or self._life.news.is_set():
            if held is not None:
                held.go_back()
            self._answer = None
            return None
        try:
            for found in rows:
                held.check_lost(at)
                if found.num_rows:
                    held.hand_out(found)
                    self.at, self._found_any = at, True
                    return found
            held.check_lost(at)
            held.pass_over()
        except (UnknownStream, UnknownPartition, StaleIncarnation) as error:  # the catalog says so in a moment
            log.info("group.stream_gone group=%s partition=%s/%d error=%s", self._life.group, *at, error)
            del self._held[at]
        except OffsetOutOfRange as error:
            self._answer = None
            if "lost" in error.fields or self._is_still_at(at, held):
                held.go_back()
                raise
        except BaseException:  # of a signal, perhaps, when rows were read and not handed out yet
            held.go_back()
            self._answer = None
            raise
        self._answer = None
        return None

    def __enter__(self) -> GroupReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group, without a commit (M1). Idempotent."""
        self._end.detach()
        self._life.leave()
        self._held, self._answer = {}, None
        self._session.close()

    @property
    def partitions(self) -> list[Place]:
        """Those that this member reads now."""
        return sorted(self._held)

    def commit(self) -> None:
        """Commit what was handed out.

        Raises:
            GroupFenced: another member has begun a partition since, and reads that part again. The others are
                committed.
            InvalidRequest: this process was forked from the one that reads.
        """
        self._life.check_process()
        due = {at: held for at, held in self._held.items() if held.read > held.done}
        if not due:
            return
        rows = [
            {
                "stream": at[0],
                "partition": at[1],
                "epoch": held.epoch,
                "start": held.done,
                "offset": held.read,
                "incarnation": held.incarnation,
                **({"leader_epoch": held.epoch_before} if held.is_kept else {}),
            }
            for at, held in due.items()
        ]
        fenced = None
        for step in self._committed(rows):
            at = (step.stream, step.partition)
            if step.error is None:
                due[at].done = due[at].read
                continue
            error = from_problem(step.error)
            del self._held[at]
            if not isinstance(error, _LOST):
                raise error
            self.fenced += 1
            log.warning("group.fenced group=%s partition=%s/%d error=%s", self._life.group, *at, error)
            fenced = GroupFenced(str(error), **error.fields)
        if fenced is not None:
            raise fenced

    def _committed(self, rows: list[dict[str, Any]]) -> Iterator[GroupStep]:
        """The end of each commit. Those that may succeed later are tried again."""
        patience = Patience(self._life.calls.deadline_s, what=f"committing for group {self._life.group}")
        while rows:
            again = []
            for row, step in zip(rows, self._steps("commit", {"partitions": rows}), strict=True):
                error = None if step.error is None else from_problem(step.error)
                if isinstance(error, Retryable):
                    again.append((row, error))
                else:
                    yield step
            rows = [row for row, _ in again]
            if again:
                patience.pause(again[0][1])

    def _follow(self) -> None:
        """Give up what is asked back, begin what is granted. All that was handed out is committed."""
        share = self._life.share()
        if share is None:  # M4
            self._held.clear()
            self._life.join()
            return
        granted = {(each.stream, each.partition): each for each in share.partitions}
        for at, held in list(self._held.items()):
            if at not in granted or granted[at].epoch != held.epoch or granted[at].is_revoked:
                del self._held[at]
        self._life.release(each for each in share.partitions if each.is_revoked)
        new = [at for at, each in sorted(granted.items()) if at not in self._held and not each.is_revoked]
        if new:
            self._begin({at: granted[at] for at in new})

    def _begin(self, granted: Mapping[Place, HeldPartition]) -> None:
        firsts = self._start.offsets(list(granted))
        rows = [
            {"stream": at[0], "partition": at[1], "epoch": granted[at].epoch, **first} for at, first in firsts.items()
        ]
        if not rows:
            return
        fenced = list[HeldPartition]()
        for step in self._steps("begin", {"member": self._life.member, "partitions": rows}):
            at = (step.stream, step.partition)
            if step.error is None:
                self._held[at] = _Held(step, self._fetch(step))
                continue
            error = from_problem(step.error)
            if not isinstance(error, (Retryable, *_LOST)):
                raise error
            log.info("group.not_begun group=%s partition=%s/%d error=%s", self._life.group, *at, error)
            if isinstance(error, GroupFenced):
                fenced.append(granted[at])
        if fenced and time.monotonic() >= self._again_s:  # M7
            self._again_s = time.monotonic() + AGAIN_S
            self._life.release(fenced)

    def _is_still_at(self, at: Place, held: _Held) -> bool:
        """Whether the group goes on where this member does. Others may have taken over, and gone on (M3)."""
        share = self._life.share()
        del self._held[at]
        self._life.news.set()  # what is not held is looked at again
        for each in () if share is None else share.partitions:
            if (each.stream, each.partition, each.epoch) == (*at, held.epoch):
                self._begin({at: each})
        return at in self._held and self._held[at].done == held.read

    def _fetch(self, step: GroupStep) -> PartitionFetch:
        assert step.offset is not None, "it has begun"
        return PartitionFetch(
            self._session,
            step.stream,
            step.partition,
            step.offset,
            incarnation=step.incarnation,
            max_bytes=self._max_bytes,
            timeout_s=self._life.calls.timeout_s,
            deadline_s=self._life.calls.deadline_s,
        )

    def _steps(self, what: str, body: Any) -> tuple[GroupStep, ...]:
        value = self._life.calls.json("POST", path("groups", self._life.group, what), body, key=OFFSETS)
        return understand(GroupSteps, value, where=f"group {self._life.group}").partitions
