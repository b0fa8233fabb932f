"""Goal: the twins are one: any messages, in any pieces, taken at any time, lead to the same bytes.

Method: Hypothesis makes connections of valid and refused messages over several streams, cuts them anywhere,
and takes batches, re-routes and resets in between. The pure twin, fed the same, is the oracle; and both must
agree with the messages that were made.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.api.batch import decode_batch
from broker.ingest import load
from broker.storage.memory.ids import IdTable
from broker.storage.memory.subjects import SubjectTable
from tests.support.effort import examples, first_short
from tests.unit.ingest.envelopes import checked, envelope, tagged
from tests.unit.ingest.envelopes import message as enclosed
from tests.unit.ingest.twins import TWIN_IDS, TWINS, Route, builder, run
from tests.unit.ingest.wire import answers_in, hmsg, msg

settings.register_profile("ingest", deadline=None, suppress_health_check=[HealthCheck.too_slow])
IN_TIME = settings(settings.get_profile("ingest"), max_examples=examples(150))

token = st.text(st.characters(codec="utf-8", exclude_characters=" \t\r\n.*>"), min_size=1, max_size=4)
subject = st.lists(token, min_size=1, max_size=4).map(".".join)
reply = st.none() | subject
value = st.binary(max_size=40) | st.sampled_from([b"\r\n", b"MSG a 1 1\r\n", b"x" * 300])
header_value = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8).map(
    lambda t: t.lstrip(" \t")
)
header_name = st.text(st.characters(codec="utf-8", exclude_characters="\r\n:"), min_size=1, max_size=6)
option = st.sampled_from(
    [
        ("Liftlog-Ack", "all"),
        ("Liftlog-Ack", "leader"),
        ("Liftlog-Ack", "none"),
        ("Liftlog-Ack", "often"),
        ("Liftlog-Tombstone", "1"),
        ("Liftlog-Tombstone", "false"),
        ("Liftlog-Tombstone", ""),
        ("Nats-Expected-Stream", "orders"),
        ("Nats-Expected-Stream", "quiet"),
        ("Nats-Expected-Last-Sequence", "4"),
        ("Nats-Expected-Last-Sequence", "2"),
        ("Nats-Expected-Last-Msg-Id", "7"),
        ("Nats-Expected-Last-Subject-Sequence", "7"),
        ("Nats-Expected-Last-Subject-Sequence", "0"),
        ("Nats-Expected-Last-Subject-Sequence", "1"),
        ("Nats-Expected-Last-Subject-Sequence-Subject", "a"),
        ("Liftlog-Fence", "0"),
        ("Liftlog-Fence", "1"),
        ("Liftlog-Fence", "one"),
        ("Nats-Msg-Id", "7"),
        ("Nats-Msg-Id", "a-longer-id"),
    ]
)
key = st.tuples(st.just("Liftlog-Key"), st.sampled_from(["", "k1", "k2", "é"]))
headers = st.lists(st.tuples(header_name, header_value) | option | key, max_size=4)
sid = st.sampled_from([1, 2, 3, 4, 9])
operation = st.sampled_from([b"PING\r\n", b"+OK\r\n", b"-ERR 'x'\r\n", b'INFO {"a": 1}\r\n'])
inner = st.builds(
    lambda offset, v, k, hs, policy, inbox, correlation: (
        (b"" if offset is None else tagged(1, offset))
        + enclosed(
            v,
            key=k.encode(),
            headers=[(name.encode(), text.encode()) for name, text in hs],
            policy=policy,
            inbox=inbox.encode(),
            correlation=correlation.encode(),
        )
    ),
    st.sampled_from([None, 0, 1, 2, 5, 1 << 63, (1 << 64) - 1]),
    value,
    st.sampled_from(["", "k1", "k2", "é"]),
    headers,
    st.sampled_from([0, 1, 2, 3, 1 << 31]),
    st.sampled_from(["", "r.1", "r.2", "r 1", "a\r\nPUB b 0\r\n", "$JS.x", "r.*", ".", "*r", "r\0"]),
    st.text(max_size=4),
)
enveloped = st.builds(envelope, inner | st.binary(max_size=20)) | st.builds(checked, inner)
bad_block = st.sampled_from([b"", b"NATS/1.0\r\n", b"NATS/1.0\r\nx\r\n\r\n", b"NATS/1.0 1\r\nA:\xff\r\n\xff:\r\n\r\n"])
message = st.one_of(
    st.builds(lambda s, v, r, i: msg(s, v, reply=r, sid=i), subject, value, reply, sid),
    st.builds(lambda s, v, h, r, i: hmsg(s, v, *h, reply=r, sid=i), subject, value, headers, reply, sid),
    st.builds(lambda s, v, b, r, i: hmsg(s, v, reply=r, sid=i, block=b), subject, value, bad_block, reply, sid),
    st.builds(lambda s, i: msg(s.encode() + b"\xff", b"", reply="r", sid=i), subject, sid),
    st.builds(lambda s, v, r, i: msg(s, v, reply=r, sid=i), subject, enveloped, reply, sid),
    st.builds(lambda s, v, h, r, i: hmsg(s, v, *h, reply=r, sid=i), subject, enveloped, headers, reply, sid),
    operation,
)
wires = st.lists(message, max_size=25).map(b"".join)
ROUTES = (
    Route(1),
    Route(2, {"stream": "quiet", "reply_acks": False, "expects_offsets": True}),
    Route(3, {"stream": "keyed", "record_bytes_max": 120, "default_ack": "none"}, "key", 3),
    Route(4, {"stream": "token", "expects_offsets": True}, "token:2", 4),
)


def pieces_of(wire: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(wire) + 1) for cut in cuts})
    return [wire[a:b] for a, b in zip([0, *places], [*places, len(wire)], strict=True)]


@pytest.mark.parametrize("count", first_short([50, 150]))
def test_any_connection_in_any_pieces_gives_the_same(count: int) -> None:
    connections = given(wires, st.lists(st.integers(0, 1 << 20), max_size=12))
    settings(IN_TIME, max_examples=examples(count))(connections(in_pieces))()


def in_pieces(wire: bytes, cuts: list[int]) -> None:
    oracle = run(load("pure"), [wire], ROUTES)
    assert oracle.problem is None
    for twin in TWINS:
        assert run(twin, pieces_of(wire, cuts), ROUTES) == oracle


@IN_TIME
@given(st.lists(st.tuples(subject, value, headers, reply), max_size=12), st.lists(st.integers(0, 1 << 20), max_size=6))
@pytest.mark.parametrize("twin", TWINS, ids=TWIN_IDS)
def test_what_goes_in_comes_out(twin: ModuleType, messages: list[Any], cuts: list[int]) -> None:
    """Against the messages themselves: only those that no rule concerns, through a stream hashed by subject."""
    plain = [
        (s, v, [h for h in hs if not h[0].startswith(("Liftlog-", "Nats-"))], r)
        for s, v, hs, r in messages
        if not s.startswith(("_INBOX.", "$"))
    ]
    wire = b"".join(hmsg(s, v, *hs, reply=r) for s, v, hs, r in plain)
    outcome = run(twin, pieces_of(wire, cuts), [Route(1, {}, "subject", 3)])
    expected: dict[tuple[str, int], list[Any]] = {}
    for s, v, hs, r in plain:
        rows = expected.setdefault(("orders", crc32(s.encode()) % 3), [])
        rows.append((s, v, [{"key": name, "value": text.encode()} for name, text in hs], r))
    found = {
        place: [(row["subject"], row["value"], row["headers"], row["reply"]) for row in rows]
        for place, rows in outcome.rows.items()
    }
    assert found == expected
    assert outcome.counters["stored"] == len(plain)


step = st.one_of(
    st.tuples(st.just("feed"), st.integers(1, 60)),
    st.tuples(st.just("take"), st.integers(0, 7)),
    st.tuples(st.just("unroute"), sid),
    st.tuples(st.just("route"), st.integers(0, 7)),
    st.tuples(st.just("alter"), st.integers(0, 31)),
    st.tuples(st.just("refusals"), st.just(0)),
    st.tuples(st.just("reconnect"), st.just(0)),
)


def play(twin: ModuleType, wire: bytes, steps: list[tuple[str, int]]) -> list[Any]:
    """Run the steps; return everything that could be seen."""
    intake = twin.Intake()
    streams = [
        [
            builder(twin, **{**route.settings, "partition": i, "partition_count": route.partition_count})
            for i in range(route.partition_count)
        ]
        for route in ROUTES
    ]
    every = [target for targets in streams for target in targets]
    tables = [IdTable(bytes(16)) for _ in every]
    subject_tables = [SubjectTable(bytes(16)) for _ in every]
    ends = [0] * len(every)
    seen: list[Any] = []
    at = 0

    def route(number: int, *, envelopes: bool = True) -> None:
        by = ROUTES[number].partition_by
        intake.route(ROUTES[number].sid, streams[number], partition_by=by, envelopes=envelopes)

    for number in range(len(ROUTES)):
        route(number)
    for now, (action, argument) in enumerate(steps):
        match action:
            case "feed":
                seen.append(intake.feed(wire[at : at + argument], now))
                at += argument
            case "take":
                batch = every[argument].take()
                seen.append((batch.record_count, batch.byte_count, batch.awaited_count, batch.max_timestamp_us))
                seen.append((batch.condition_count, batch.id_count, batch.minds_ids, batch.last_id))
                seen.append((batch.minds_subjects, batch.ack_bytes))
                if batch.record_count:
                    table, end = tables[argument], ends[argument]
                    subjects, limit = subject_tables[argument], 3 if argument % 2 else 40
                    subjects.begin(end // 2, limit)
                    if batch.condition_count:
                        table_or_none = table if batch.minds_ids and argument != 0 else None
                        subjects_or_none = subjects if batch.minds_subjects and argument != 2 else None
                        batch.settle(
                            table_or_none,
                            subjects_or_none,
                            next_offset=end,
                            now_us=2 * now,
                            wall_us=now + 30 * (argument % 3 - 1),
                            window_us=20,
                            ids_max=3,
                            subjects_max=0 if argument == 3 else limit,
                            fence=argument % 2,
                        )
                        if subjects_or_none is not None and now % 3 == 0:
                            batch.take_back(subjects)
                        seen.append((batch.settled, batch.record_count, batch.byte_count, batch.awaited_count))
                        seen.append((batch.max_timestamp_us, batch.last_id, table.entries.tolist()))
                        seen.append((table.index.tolist(), table.places.tolist()))
                    if batch.record_count:
                        batch.note_subjects(subjects, end)
                    seen.append((sorted(subjects.slots.tolist()), subjects.counts.tolist()))
                    seen.append(batch.leader_count)
                    for leader in (None, True, False):
                        seen += [batch.acks(end, leader), batch.errors(1, 2, "x", leader)]
                        seen += [batch.acks(end, leader, now_us=now), batch.errors(1, 2, "x", leader, ack_error=4)]
                        answers_in(seen[-1] + seen[-2])
                if batch.record_count:
                    seen.append(bytes(batch.compose(first_offset=end, leader_epoch=1, high_watermark=0)))
                    table.last_id = batch.last_id
                    ends[argument] += batch.record_count
            case "unroute":
                intake.unroute(argument)
            case "route":
                route(argument % 4, envelopes=argument < 4)
            case "alter":
                number, kind = argument % 4, argument // 4
                for target in streams[number]:
                    target.alter(
                        partition_count=target.partition_count,
                        reply_acks=bool(kind & 1),
                        default_ack="leader" if kind & 2 else "none",
                        record_bytes_max=20 if kind & 4 else 1000,
                        batch_bytes=1 << 20,
                        batch_records=3,
                    )
            case "refusals":
                seen.append(intake.refusals())
            case "reconnect":
                intake.reset()
                at = wire.find(b"MSG ", at) if b"MSG " in wire[at:] else len(wire)
                at -= wire[at - 1 : at] == b"H"
        seen.append([(target.stream, target.partition, target.record_count) for target in intake.dirty()])
        seen.append((intake.full(), intake.counters))
    return seen


@IN_TIME
@given(wires, st.lists(step, max_size=60))
def test_whatever_happens_in_between_both_show_the_same(wire: bytes, steps: list[tuple[str, int]]) -> None:
    pure, *others = [play_until_error(twin, wire, steps) for twin in TWINS]
    assert all(other == pure for other in others)


def play_until_error(twin: ModuleType, wire: bytes, steps: list[tuple[str, int]]) -> Any:
    """A reconnect amid a payload that looks like protocol may go wrong: then alike."""
    try:
        return play(twin, wire, steps)
    except ValueError as error:
        return str(error)


@IN_TIME
@given(st.integers(1, 80), st.lists(st.integers(0, 2), min_size=1, max_size=80))
def test_nulls_in_any_order_are_encoded_alike(count: int, kinds: list[int]) -> None:
    """Columns are made lazily, at their first value and first null: every order of the two must come out right."""
    make = [
        lambda i: msg("a", b"%d" % i),
        lambda i: hmsg("a", b"", ("Liftlog-Key", f"k{i}"), ("Liftlog-Tombstone", "1"), reply=f"r{i}"),
        lambda i: hmsg("a", b"%d" % i, reply=f"r{i}"),
    ]
    wire = b"".join(make[kinds[i % len(kinds)]](i) for i in range(count))
    oracle, *others = [run(twin, [wire]) for twin in TWINS]
    assert all(other == oracle for other in others)
    assert decode_batch(oracle.messages["orders", 0]).num_rows == count
