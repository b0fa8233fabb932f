"""Brokers that are behind: D1 and D2 of asking_again.py, S5 of views.py, T3 and T4 of task.py.

Method: a cluster whose answers are played: each is given once, the last one for ever. Nothing depends on time but how
long a contradiction that stays is asked about.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api.answers import PartitionDescription, StreamDescription
from broker.api.errors import (
    LiftlogError,
    NotReady,
    OffsetOutOfRange,
    StaleIncarnation,
    UnknownPartition,
    UnknownStream,
)
from broker.client.http.brokers import Brokers
from broker.client.http.calls import Calls
from broker.client.http.interrupt import Interrupt
from spark_liftlog.errors import LogTruncated, RecordsLost
from spark_liftlog.options import source_options
from spark_liftlog.reading import asking_again, batch_reader, cluster, resolving, task
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.asking_again import longest_session_s
from spark_liftlog.reading.batch_reader import LiftlogReader
from spark_liftlog.reading.cluster import Cluster, Resolved
from spark_liftlog.reading.offsets import Key, Offset, ReadPosition, decode, encode
from spark_liftlog.reading.plan import Range
from spark_liftlog.reading.query import driver
from spark_liftlog.reading.query.driver import StreamDriver
from spark_liftlog.reading.refresh import Opening
from spark_liftlog.schema import ROW

AT = 10
"""Where the query stands, in partition 0 of incarnation `new`."""


def view(incarnation: str | None, *ends: int) -> Heads:
    """The ends of stream `s`, as a broker tells them; None: it has no such stream."""
    if incarnation is None:
        return Heads(incarnations={}, partitions={})
    partitions = {("s", number): Head(0, end, 1, "a:1") for number, end in enumerate(ends)}
    return Heads(incarnations={"s": incarnation}, partitions=partitions)


def said(incarnation: str | None, end: int = 0, error: LiftlogError | None = None) -> Resolved:
    """An answer about a position: its offset is the end, unless another one was asked for."""
    return Resolved(
        position=ReadPosition(end, 1),
        incarnation=incarnation or "",
        head=Head(0, end, -1),
        bytes_ahead=0,
        error=error,
    )


GONE = said(None, error=UnknownStream("no stream 's'", stream="s"))
FEWER = said(None, error=UnknownPartition("no partition 1", stream="s", partition=1))


class Played(Cluster):
    """Stands for brokers. `views` and `answers` are played; `asked` counts views."""

    brokers = "a:1,b:2"
    views: Sequence[Heads] = ()
    answers: Sequence[Resolved] = ()

    def __init__(self, brokers: Any) -> None:
        super().__init__(self.brokers)
        self.asked = 0
        self._answered = 0

    def _watch(self, query: dict[str, Any], deadline_s: float, interrupt: Interrupt | None) -> tuple[int, Heads]:
        while interrupt is not None and query["since"] is not None and not interrupt.is_set:
            time.sleep(0.01)  # the thread of a watch, which has nothing new
        self.asked += interrupt is None
        return 1, self.views[max(0, min(self.asked, len(self.views)) - 1)]

    def _resolve(self, positions: Any) -> list[Resolved]:
        found = []
        for _, at in positions:
            one = self.answers[min(self._answered, len(self.answers) - 1)]
            self._answered += 1
            is_offset = isinstance(at, dict) and "offset" in at and one.error is None
            found.append(replace(one, position=ReadPosition(at["offset"], 1)) if is_offset else one)
        return found


Play = Callable[..., None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(asking_again, "AGAIN_S", 0.0)
    for module in (driver, resolving, batch_reader):
        monkeypatch.setattr(module, "Cluster", Played)

    def played(views: Sequence[Heads], answers: Sequence[Resolved], *, brokers: str = "a:1,b:2") -> None:
        for name, value in (("views", views), ("answers", answers), ("brokers", brokers)):
            monkeypatch.setattr(Played, name, value)

    return played


@contextlib.contextmanager
def query(**options: str) -> Iterator[StreamDriver]:
    given = {"brokers": "a:1,b:2", "stream": "s", "startingOffsets": "earliest", "commitOffsets": "false", **options}
    made = StreamDriver(source_options(given, "stream"))
    yield made
    made.close()


def start(*offsets: int) -> dict[str, Any]:
    positions = {("s", number): ReadPosition(offset, 1) for number, offset in enumerate(offsets or (AT,))}
    return encode(Offset(consumer="c", incarnations={"s": "new"}, positions=positions))


def position(value: dict[str, Any], key: Key = ("s", 0)) -> tuple[str, int]:
    offset = decode(value)
    assert offset is not None
    return offset.incarnations[key[0]], offset.positions[key].offset


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("behind", [view("old", 7), view("old", 99), view(None)])
def test_a_view_of_before_the_stream_was_made_anew_is_no_verdict(play: Play, fail: str, behind: Heads) -> None:
    """S5: not a loss, and above all no way back to records of the former stream."""
    play([behind, behind, view("new", AT + 2)], [said("new", AT + 2)])
    with query(failOnDataLoss=fail) as it:
        assert position(it.latest(start())) == ("new", AT + 2)


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("behind", [said("old", 7), said("old", 99), GONE])
def test_an_answer_about_positions_may_be_behind_as_well(play: Play, fail: str, behind: Resolved) -> None:
    play([view("new", AT + 2)], [behind, behind, said("new", AT + 2)])
    with query(failOnDataLoss=fail) as it:
        assert position(it.latest(start())) == ("new", AT + 2)


def test_a_partition_that_one_broker_does_not_know_yet_is_not_gone(play: Play) -> None:
    play([view("new", AT), view("new", AT, AT + 5)], [FEWER, FEWER, said("new", AT + 5)])
    with query() as it:
        assert position(it.latest(start(AT, 3)), ("s", 1)) == ("new", AT + 5)


def test_a_batch_that_is_planned_waits_for_the_view_too(play: Play) -> None:
    play([view("old", 99), view(None), view("new", AT + 2)], [GONE, said("new", AT + 2)])
    with query() as it:
        ranges = it.ranges(start(), start(AT + 2))
        assert [(r.incarnation, r.start, r.end) for r in ranges] == [("new", AT, AT + 2)]


def test_a_query_begins_in_one_incarnation(play: Play) -> None:
    """Heads of the former stream, positions of the new one: neither is mixed with the other."""
    play([view("old", 99), view("new", 5)], [said("new", 5)])
    with query(startingOffsets="latest") as it:
        it._views._watch.fresh()
        assert position(it.latest({"v": 1, "start": "latest"})) == ("new", 5)


def test_a_batch_read_is_planned_in_one_incarnation(play: Play) -> None:
    play([view("old", 99), view("new", 5)], [said("new", 5)])
    reader = LiftlogReader(source_options({"stream": "s"}, "batch"), ROW)
    assert [(r.incarnation, r.end) for each in reader.partitions() for r in each.value] == [("new", 5)]


def test_a_stream_that_was_made_a_moment_ago_is_waited_for(play: Play) -> None:
    play([view(None), view(None), view("new", 5)], [said("new", 5)])
    reader = LiftlogReader(source_options({"stream": "s"}, "batch"), ROW)
    assert [r.end for each in reader.partitions() for r in each.value] == [5]


@pytest.mark.parametrize("now, answer", [(view("newer", 3), said("newer", 3)), (view(None), GONE)])
def test_what_is_said_for_longer_than_a_broker_may_be_behind_is_believed(
    play: Play, monkeypatch: pytest.MonkeyPatch, now: Heads, answer: Resolved
) -> None:
    """D1; and once it is, no further trigger waits for it."""
    monkeypatch.setattr(asking_again, "DOUBTED_S", 0.05)
    play([now], [answer])
    with query() as it, pytest.raises((StaleIncarnation, UnknownStream), match="deleted"):
        it.latest(start())
    with query(failOnDataLoss="false") as it:
        assert isinstance(it._cluster, Played)
        found = it.latest(start())
        asked, waits = it._cluster.asked, []
        assert asked > 1
        monkeypatch.setattr(Interrupt, "pause", lambda self, seconds: waits.append(seconds))
        it._idle = None
        assert it.latest(found) == found
        assert (it._cluster.asked, waits) == (asked, [])


def test_a_broker_that_is_alone_is_believed_at_once(play: Play) -> None:
    """D2."""
    play([view("newer", 3)], [said("newer", 3)], brokers="a:1")
    with query() as it:
        assert isinstance(it._cluster, Played)
        with pytest.raises(StaleIncarnation):
            it.latest(start())
        assert it._cluster.asked == 1


LEFT_OUT = {"stream": "t", "partitions": '{"t": [0]}'}
"""The options of a query that read `s` until it was started again."""
AWAY = Heads(incarnations={"s": "new"}, partitions={}, unknown=frozenset({("s", 0)}))
"""The answer of a broker while nobody leads partition 0."""


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("options", [{}, LEFT_OUT])
def test_a_partition_without_a_leader_is_not_gone_when_a_batch_is_planned_again(
    play: Play, options: dict[str, str], fail: str
) -> None:
    """Nor if its stream was left out since: its position is kept, so what the plan left out would never be read."""
    play([AWAY, AWAY, view("new", AT + 2)], [said("new", AT + 2)])
    with query(**options, failOnDataLoss=fail) as it:
        assert [(r.start, r.end) for r in it.ranges(start(), start(AT + 2))] == [(AT, AT + 2)]


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("options", [{}, LEFT_OUT])
def test_a_log_ends_too_early_only_where_somebody_says_so(play: Play, options: dict[str, str], fail: str) -> None:
    """A leader goes, and the next one learns its high watermark: the time without a leader does not count."""
    play([view("new", AT + 1), AWAY, view("new", AT + 1), view("new", AT + 2)], [said("new", AT + 2)])
    with query(**options, failOnDataLoss=fail, truncationTimeoutMs="20") as it:
        assert [(r.start, r.end) for r in it.ranges(start(), start(AT + 2))] == [(AT, AT + 2)]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_position_is_beyond_its_log_only_where_somebody_says_so(play: Play, fail: str) -> None:
    """As above. With failOnDataLoss=false the query would go back, and read records a second time."""
    away = said(None, error=NotReady("nobody leads it"))
    play([view("new", AT)], [away, said("new", AT - 1), said("new", AT)])
    at = start()
    with query(failOnDataLoss=fail, truncationTimeoutMs="20") as it:
        assert it.latest(at) is at


def test_a_log_that_goes_on_ending_too_early_was_truncated(play: Play) -> None:
    play([view("new", AT + 1)], [said("new", AT + 1)])
    for options in ({}, LEFT_OUT):
        with query(**options, truncationTimeoutMs="20") as it, pytest.raises(LogTruncated):
            it.ranges(start(), start(AT + 2))


class Fetch:
    """Stands for the records of a range: each `until` makes one step, and ends with the next of the errors if any."""

    errors: list[LiftlogError]
    from_: list[int]
    gap_at = -1

    def __init__(self, reader: Any, stream: str, partition: int, at: int, **options: Any) -> None:
        self.position, self.has_gaps = at, False

    def until(self, end: int, take: Any, memory: Any) -> Iterator[Any]:
        self.from_.append(self.position)
        self.has_gaps |= self.position == self.gap_at
        self.position += 1
        yield from ()
        if self.errors:
            raise self.errors.pop(0)


class Gathered:
    """Stands for rows that are gathered."""

    memory = add = None

    def rest(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize("error", [StaleIncarnation("old"), UnknownStream("none"), UnknownPartition("none")])
def test_a_task_asks_again_before_it_takes_a_stream_for_another_one(
    play: Play, monkeypatch: pytest.MonkeyPatch, error: LiftlogError
) -> None:
    """T4, from where it stands."""
    monkeypatch.setattr(task, "PartitionFetch", Fetch)
    monkeypatch.setattr(Fetch, "errors", [error, error], raising=False)
    monkeypatch.setattr(Fetch, "from_", [], raising=False)
    wanted = Range(stream="s", partition=0, incarnation="new", start=AT, end=AT + 9)
    assert list(task.records_of(wanted, Gathered(), "a:1,b:2", None, True, Interrupt())) == []  # type: ignore[arg-type]
    assert Fetch.from_ == [AT, AT + 1, AT + 2]
    monkeypatch.setattr(asking_again, "DOUBTED_S", 0.0)
    monkeypatch.setattr(Fetch, "errors", [error])
    with pytest.raises(type(error)):
        list(task.records_of(wanted, Gathered(), "a:1,b:2", None, True, Interrupt()))  # type: ignore[arg-type]


class Described:
    """Stands for who is asked what a disk lost: plays its answers, the last one for ever."""

    answers: list[Any]

    def __init__(self, brokers: Any, **_: Any) -> None:
        self.brokers = brokers

    def json(self, *_: Any) -> Any:
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, LiftlogError):
            raise found
        return found


def described(incarnation: str, *lost: tuple[int, int], partitions: int = 1) -> StreamDescription:
    parts = tuple(
        PartitionDescription(
            partition=number,
            leader=None,
            replicas=(),
            isr=(),
            leader_epoch=1,
            log_start_offset=0,
            high_watermark=99,
            log_end_offset=99,
            bytes=0,
            segments=1,
            lost_ranges=lost,
        )
        for number in range(partitions)
    )
    return StreamDescription(
        name="s",
        incarnation=incarnation,
        created_ms=0,
        internal=False,
        settings={"partitions": len(parts)},
        warnings=(),
        partitions=parts,
    )


LOST = described("new", (AT, AT + 2))
SURVIVED = OffsetOutOfRange("gone", log_start_offset=AT + 5, high_watermark=AT + 99)


@pytest.fixture
def read(play: Play, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Read a range whose first answer had a gap."""
    monkeypatch.setattr(task, "PartitionFetch", Fetch)
    monkeypatch.setattr(task, "Calls", Described)
    monkeypatch.setattr(task, "understand", lambda cls, value, where: value)
    monkeypatch.setattr(Fetch, "gap_at", AT)
    monkeypatch.setattr(Fetch, "from_", [], raising=False)

    def reading(errors: list[LiftlogError], answers: list[Any], *, fail: bool = True) -> None:
        monkeypatch.setattr(Fetch, "errors", errors, raising=False)
        monkeypatch.setattr(Described, "answers", answers, raising=False)
        wanted = Range(stream="s", partition=0, incarnation="new", start=AT, end=AT + 9)
        assert list(task.records_of(wanted, Gathered(), "a:1,b:2", None, fail, Interrupt())) == []  # type: ignore[arg-type]

    return reading


@pytest.mark.parametrize("error", [StaleIncarnation("old"), UnknownStream("none"), UnknownPartition("none")])
def test_a_gap_before_an_interruption_is_asked_about_too(read: Callable[..., None], error: LiftlogError) -> None:
    with pytest.raises(RecordsLost, match=f"records {AT} to {AT + 1} were lost"):
        read([error], [LOST])
    read([error], [described("new")])


def test_a_gap_before_records_that_expired_is_told_too(
    read: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    read([SURVIVED], [LOST], fail=False)
    assert "records 11 to 14 were deleted" in caplog.text
    assert "records 10 to 11 were lost" in caplog.text


GONE_SINCE = [
    (described("newer"), StaleIncarnation, "'s' was deleted and re-created"),
    (described("new", partitions=0), UnknownPartition, "has no partition 0 any more"),
    (UnknownStream("no stream 's'"), UnknownStream, "no stream 's'"),
]


@pytest.mark.parametrize("now, error, says", GONE_SINCE)
def test_a_gap_that_nobody_can_explain_any_more_is_an_error(
    read: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    now: Any,
    error: type[LiftlogError],
    says: str,
) -> None:
    """The stream was made anew between the read and the question. A broker that is behind is asked again."""
    read([], [now, now, described("new")])
    with pytest.raises(RecordsLost):
        read([], [now, LOST])
    monkeypatch.setattr(asking_again, "DOUBTED_S", 0.0)
    with pytest.raises(error, match=says):
        read([], [now])
    read([], [now], fail=False)
    assert says in caplog.text


def test_a_frame_that_is_read_again_asks_again_before_its_stream_is_another_one(play: Play) -> None:
    play([view("old", 99), view(None), view("new", AT + 2)], [GONE])
    wanted = Range(stream="s", partition=0, incarnation="new", start=0, end=AT, is_open=True)
    opening = Opening(always=True, from_earliest=True, added={})
    options = source_options({"brokers": "a:1,b:2", "stream": "s"}, "batch")
    found, _ = resolving.resolved([wanted], opening, Brokers("a:1,b:2"), options)
    assert [(r.start, r.end) for r in found] == [(0, AT + 2)]


def test_the_time_until_a_loss_is_believed_is_longer_than_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """D1 rests on this: else a broker that hangs would be believed for longer than it may lead."""
    from broker.metadata.session import SESSION_MS

    assert asking_again.DOUBTED_S * 1000 >= 1.5 * SESSION_MS
    now_s = [100.0]
    monkeypatch.setattr(asking_again, "longest_session_s", lambda brokers, interrupt: 8.0)
    monkeypatch.setattr(asking_again, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    interrupt = Interrupt()
    monkeypatch.setattr(interrupt, "pause", lambda s: now_s.append(now_s.pop() + s))
    asking = asking_again.AskingAgain(Brokers("a:1,b:2"), interrupt)
    while asking.again():
        pass
    assert now_s[0] >= 112.0


@pytest.mark.parametrize("said, longest_s", [({"session_ms": 8_000}, 8.0), ({}, 2.0)])
def test_brokers_say_how_long_sessions_are(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, int], longest_s: float
) -> None:
    """D3: those of an earlier release have short ones."""
    known = [{"id": "a", "http": "a:1", "grpc": "a:2"}, {"id": "b", "http": "b:1", "grpc": "b:2", **said}]
    value = {"cluster_id": "c", "feature_level": 3, "controller": "a", "version": "1", "brokers": known}
    monkeypatch.setattr(Calls, "json", lambda *given, **named: value)
    assert longest_session_s(Brokers("a:1,b:2"), Interrupt()) == longest_s


def test_what_nobody_says_of_sessions_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any, **named: Any) -> None:
        raise NotReady("not now")

    monkeypatch.setattr(Calls, "json", refused)
    assert longest_session_s(Brokers("a:1,b:2"), Interrupt()) == 0.0
    assert cluster.AGAIN_S == asking_again.AGAIN_S
