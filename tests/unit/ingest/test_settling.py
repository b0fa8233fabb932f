"""Goal: an id is stored once in its window, an expectation holds or its message is refused, and each publisher is told.

Method: messages go through either twin and are settled against a table, as a log does before it appends them; the log's
place is given. Answers are read as JSON.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from broker.api.batch import decode_batch
from broker.ingest.settling import WAITED_US
from broker.storage.memory.ids import IdTable
from broker.storage.memory.subjects import SubjectTable
from tests.unit.ingest.envelopes import envelope, message, tagged
from tests.unit.ingest.twins import builder, run
from tests.unit.ingest.wire import answers_in, hmsg, msg

WINDOW_US = 100
ID, SEQUENCE, LAST_ID = "Nats-Msg-Id", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Msg-Id"
SUBJECT = "Nats-Expected-Last-Subject-Sequence"
FENCE = "Liftlog-Fence"


class Publisher:
    """One partition's intake, its table of ids and its log end."""

    def __init__(self, twin: ModuleType, **settings: Any) -> None:
        self.builder = builder(twin, **settings)
        self.intake = twin.Intake()
        self.intake.route(1, [self.builder], partition_by="subject_suffix")
        self.ids = IdTable()
        self.subjects: SubjectTable | None = SubjectTable()
        self.end = 0

    def settle(
        self,
        *wires: bytes,
        now_us: int = 1_000,
        read_us: int | None = None,
        wall_us: int | None = None,
        ids_max: int = 1_000,
        window_us: int = WINDOW_US,
        subjects_max: int = 1_000,
        log_start: int = 0,
        fence: int = 0,
    ) -> Any:
        wall_us = now_us if wall_us is None else wall_us
        for wire in wires:
            self.intake.feed(wire, wall_us if read_us is None else read_us)
        batch = self.builder.take()
        self.minded = batch.minds_subjects
        table = self.ids if window_us and batch.minds_ids else None
        subjects = self.subjects if subjects_max and batch.minds_subjects else None
        if self.subjects is not None:
            self.subjects.begin(log_start, subjects_max)
        if table is not None:
            batch.make_room(table, now_us=now_us, wall_us=wall_us, window_us=window_us, ids_max=ids_max)
        batch.settle(
            table,
            subjects,
            next_offset=self.end,
            now_us=now_us,
            wall_us=wall_us,
            window_us=window_us,
            ids_max=ids_max,
            subjects_max=subjects_max,
            fence=fence,
        )
        return batch

    def publish(self, *wires: bytes, **options: int) -> tuple[list[Any], dict[str, Any]]:
        """Settle and append; the values that were stored, and the answer on each reply subject."""
        batch = self.settle(*wires, **options)
        told = {reply.decode(): json.loads(body) for reply, body in answers_in(batch.acks(self.end))}
        assert len(told) == batch.awaited_count
        if not batch.record_count:
            return [], told
        if self.subjects is not None and not self.minded:
            batch.note_subjects(self.subjects, self.end)
        rows = decode_batch(bytes(batch.compose(first_offset=self.end, leader_epoch=0, high_watermark=0)))
        assert rows.num_rows == batch.record_count
        self.end += rows.num_rows
        self.ids.last_id = batch.last_id
        return rows.column("value").to_pylist(), told


@pytest.fixture
def publisher(twin: ModuleType) -> Publisher:
    return Publisher(twin)


def ack(offset: int, *, duplicate: bool) -> dict[str, Any]:
    body = {"stream": "orders", "seq": offset + 1}
    return {**body, "duplicate": True} if duplicate else body


def error(answer: dict[str, Any]) -> tuple[int, int, str]:
    return answer["error"]["code"], answer["error"]["err_code"], answer["error"]["description"]


def test_a_repeat_is_answered_with_the_first_offset_and_not_stored(publisher: Publisher) -> None:
    assert publisher.publish(msg("a", b"0"), hmsg("a", b"1", (ID, "x"), reply="r")) == (
        [b"0", b"1"],
        {"r": ack(1, duplicate=False)},
    )
    assert publisher.publish(hmsg("b", b"2", (ID, "x"), reply="r")) == ([], {"r": ack(1, duplicate=True)})
    assert publisher.publish(hmsg("b", b"3", (ID, "y"), reply="r")) == ([b"3"], {"r": ack(2, duplicate=False)})


def test_a_repeat_is_told_with_those_who_wait_for_all_replicas(publisher: Publisher) -> None:
    """The first try may have promised it. A message that is stored keeps what it waits for, wherever it moves."""
    publisher.publish(hmsg("a", b"0", (ID, "x")))
    leader = ("Liftlog-Ack", "leader")
    batch = publisher.settle(
        hmsg("a", b"1", leader, reply="r1"),
        hmsg("a", b"2", (ID, "x"), leader, reply="r2"),
        hmsg("a", b"3", (ID, "y"), leader, reply="r3"),
        hmsg("a", b"4", (SEQUENCE, "9"), ("Liftlog-Ack", "none"), reply="r4"),
        msg("a", b"5", reply="r5"),
    )
    assert (batch.record_count, batch.awaited_count, batch.leader_count) == (3, 5, 2)
    assert [reply for reply, _ in answers_in(batch.acks(1, True))] == [b"r1", b"r3"]
    assert [reply for reply, _ in answers_in(batch.acks(1, False))] == [b"r5", b"r2", b"r4"]
    assert [reply for reply, _ in answers_in(batch.errors(503, 1, "x", True))] == [b"r1", b"r3"]


def test_of_two_equal_ids_in_one_batch_the_second_is_a_repeat_of_the_first(publisher: Publisher) -> None:
    wires = [
        msg("a", b"0"),
        *(hmsg("a", b"%d" % i, (ID, "x"), reply=f"r{i}") for i in (1, 2)),
        msg("a", b"3", reply="q"),
    ]
    stored, told = publisher.publish(*wires)
    assert stored == [b"0", b"1", b"3"]
    assert told == {"r1": ack(1, duplicate=False), "r2": ack(1, duplicate=True), "q": ack(2, duplicate=False)}


def test_an_id_is_known_for_its_window_and_no_longer(publisher: Publisher) -> None:
    assert publisher.publish(hmsg("a", b"1", (ID, "x")), now_us=1_000)[0] == [b"1"]
    assert publisher.publish(hmsg("a", b"2", (ID, "x")), now_us=1_000 + WINDOW_US - 1)[0] == []
    assert publisher.publish(hmsg("a", b"3", (ID, "x")), now_us=1_000 + WINDOW_US)[0] == [b"3"]
    assert publisher.publish(hmsg("a", b"4", (ID, "x"), reply="r"), now_us=1_000 + WINDOW_US + 1) == (
        [],
        {"r": ack(1, duplicate=True)},
    )


@pytest.mark.parametrize("wall_us", [0, 1 << 40, 1 << 50])
def test_a_window_goes_by_the_clock_of_the_table_and_not_by_timestamps(publisher: Publisher, wall_us: int) -> None:
    wire = hmsg("a", b"1", (ID, "x"))
    assert publisher.publish(wire, now_us=1_000, wall_us=1 << 45)[0] == [b"1"]
    assert publisher.publish(wire, now_us=1_000 + WINDOW_US - 1, wall_us=wall_us)[0] == []
    assert publisher.publish(wire, now_us=1_000 + WINDOW_US, wall_us=wall_us)[0] == [b"1"]


def test_a_repeat_counts_from_when_it_was_read_and_no_clock_is_believed_for_more_than_a_minute(
    publisher: Publisher,
) -> None:
    wire = hmsg("a", b"1", (ID, "x"))
    assert publisher.publish(wire, now_us=0)[0] == [b"1"]
    late_us, wall_us = WAITED_US + WINDOW_US, 1 << 45
    for read_us, now_us, is_known in (
        (wall_us - 9, WINDOW_US + 8, True),
        (wall_us - 9, WINDOW_US + 9, False),
        (wall_us - (1 << 40), late_us - 1, True),
        (wall_us - (1 << 40), late_us, False),
        (wall_us + (1 << 40), WINDOW_US, False),
    ):
        publisher.ids = IdTable()
        assert publisher.publish(wire, now_us=0)[0] == [b"1"]
        stored, _ = publisher.publish(wire, now_us=now_us, wall_us=wall_us, read_us=read_us)
        assert (stored == []) is is_known, (read_us, now_us)


def test_without_a_window_and_without_a_text_ids_mean_nothing(publisher: Publisher) -> None:
    assert publisher.publish(*[hmsg("a", b"1", (ID, "x"))] * 2, window_us=0)[0] == [b"1", b"1"]
    assert publisher.publish(*[hmsg("a", b"1", (ID, ""), (ID, "x"))] * 2)[0] == [b"1", b"1"]
    assert len(publisher.ids) == 0


def test_repeats_on_a_stream_without_acks_are_dropped_in_silence(twin: ModuleType) -> None:
    quiet = Publisher(twin, reply_acks=False)
    assert quiet.publish(*[hmsg("a", b"1", (ID, "x"), (SEQUENCE, "9"), reply="r")] * 2) == ([b"1"], {})


def test_no_ack_is_sent_for_a_repeat_whose_publisher_wants_none_but_errors_are(publisher: Publisher) -> None:
    silent = ("Liftlog-Ack", "none")
    assert publisher.publish(*[hmsg("a", b"1", (ID, "x"), silent, reply="r")] * 2) == ([b"1"], {})
    stored, told = publisher.publish(hmsg("a", b"1", (SEQUENCE, "7"), silent, reply="r"))
    assert (stored, error(told["r"])[1]) == ([], 10071)


def test_a_record_that_names_another_fence_is_dropped_by_itself(publisher: Publisher) -> None:
    """Those without one are let in; a repeat is a repeat, whatever has been taken since."""
    first = hmsg("a", b"1", (FENCE, "6"), (ID, "x"), reply="1")
    assert publisher.publish(first, fence=6)[0] == [b"1"]
    stored, told = publisher.publish(
        first,
        hmsg("a", b"2", (FENCE, "7"), reply="2"),
        hmsg("a", b"3", (FENCE, "6"), (ID, "y"), reply="3"),
        msg("a", b"4", reply="4"),
        hmsg("a", b"5", (FENCE, "8"), (SEQUENCE, "3"), reply="5"),
        hmsg("a", b"6", (FENCE, "007"), (SEQUENCE, "3"), reply="6"),
        hmsg("a", b"7", (FENCE, "7"), (SEQUENCE, "3"), reply="7"),
        fence=7,
    )
    assert stored == [b"2", b"4", b"6"]
    assert told["1"] == ack(0, duplicate=True)
    assert [told[reply] for reply in "246"] == [ack(offset, duplicate=False) for offset in (1, 2, 3)]
    fenced = (400, 10003, "bad request: the fence of the partition is 7 [writer_fenced]")
    assert [error(told[reply]) for reply in "35"] == [fenced] * 2
    assert error(told["7"])[1] == 10071
    assert publisher.publish(hmsg("a", b"8", (ID, "y"), reply="r"), fence=7)[0] == [b"8"], "what is dropped is unknown"


@pytest.mark.parametrize("text", ["", "x", "-1", "1.0", "+1", "1" * 19])
def test_a_fence_that_is_no_number_is_refused(twin: ModuleType, text: str) -> None:
    outcome = run(twin, [hmsg("a", b"1", (FENCE, text), reply="r")])
    assert outcome.counters["refused_bad_option"] == 1
    assert b"Liftlog-Fence must be a number" in outcome.refusals


def test_a_silent_copy_does_not_look_at_fences(twin: ModuleType) -> None:
    """They are of another stream. So an inbox is not told by it that such a message is stored."""
    quiet = Publisher(twin, reply_acks=False)
    inner = message(b"2", headers=[(FENCE.encode(), b"5")], inbox=b"_INBOX.a")
    assert quiet.publish(hmsg("a", b"1", (FENCE, "5"), reply="r"), msg("a", envelope(inner)), fence=6) == (
        [b"1", b"2"],
        {},
    )


def test_each_partition_has_its_own_fence(twin: ModuleType) -> None:
    """Other than sequences, which need a stream of one partition."""
    one = Publisher(twin, partition=1, partition_count=3)
    assert one.publish(hmsg("a", b"1", (FENCE, "2"), reply="r"), fence=2)[0] == [b"1"]


def test_the_offset_of_an_envelope_counts_where_the_stream_says_so(twin: ModuleType) -> None:
    """R11. As in Liftbridge: 0 is what nobody says, -1 is any; of refusals the inbox hears INCORRECT_OFFSET."""

    def sent(value: bytes, offset: int | None, *headers: tuple[str, str]) -> bytes:
        said = b"" if offset is None else tagged(1, offset % (1 << 64))
        return hmsg("a", envelope(said + message(value, inbox=b"_INBOX." + value)), *headers)

    wires = [
        sent(b"a", None),
        sent(b"b", None),
        sent(b"c", 1),
        sent(b"d", -1),
        sent(b"e", 2),
        sent(b"f", -2),
        sent(b"g", 9, (SEQUENCE, "3")),
        msg("a", b"plain"),
        sent(b"h", 5),
        sent(b"i", 1 << 63),
    ]
    for reply_acks in (True, False):
        stream = Publisher(twin, expects_offsets=True, reply_acks=reply_acks)
        batch = stream.settle(*wires)
        rows = decode_batch(bytes(batch.compose(first_offset=0, leader_epoch=0, high_watermark=0)))
        found = b"".join(rows.column("value").to_pylist())
        assert found == (b"acdgplainh" if reply_acks else b"acdplain"), "of a silent copy no header is looked at"
        acks = dict(answers_in(batch.acks(0)))
        wrong = {inbox for inbox, body in acks.items() if body.endswith(tagged(10, 2))}
        assert wrong == {b"_INBOX." + bytes([each]) for each in (b"befi" if reply_acks else b"befghi")}
    usual = Publisher(twin)
    batch = usual.settle(*wires)
    assert batch.record_count == 9, "but for the one with a header that does not hold"


def test_an_offset_in_an_envelope_is_looked_at_in_any_partition(twin: ModuleType) -> None:
    one = Publisher(twin, partition=1, partition_count=3, expects_offsets=True)
    assert one.publish(msg("a", envelope(tagged(1, 4) + message(b"1"))))[0] == []
    assert one.publish(msg("a", envelope(message(b"1"))))[0] == [b"1"]


def test_an_expected_sequence_is_that_of_the_record_before(publisher: Publisher) -> None:
    stored, told = publisher.publish(
        hmsg("a", b"1", (SEQUENCE, "0"), reply="a"),
        hmsg("a", b"2", (SEQUENCE, "0"), reply="b"),
        hmsg("a", b"3", (SEQUENCE, "1"), reply="c"),
        msg("a", b"4"),
        hmsg("a", b"5", (SEQUENCE, "3"), reply="d"),
        hmsg("a", b"6", (SEQUENCE, "four"), reply="e"),
        hmsg("a", b"7", (SEQUENCE, "9" * 30), reply="f"),
        hmsg("a", b"8", (SEQUENCE, ""), reply="g"),
    )
    assert stored == [b"1", b"3", b"4", b"5", b"8"]
    assert told["a"] == ack(0, duplicate=False)
    assert error(told["b"]) == (400, 10071, "wrong last sequence: 1 [expectation_failed]")
    assert told["b"]["stream"] == "orders"
    assert error(told["e"])[2] == error(told["f"])[2] == "wrong last sequence: 4 [expectation_failed]"
    assert (told["c"], told["d"], told["g"]) == tuple(ack(offset, duplicate=False) for offset in (1, 3, 4))


def test_an_expected_id_is_that_of_the_record_before(publisher: Publisher) -> None:
    assert publisher.publish(hmsg("a", b"1", (ID, "x")))[0] == [b"1"]
    stored, told = publisher.publish(
        hmsg("a", b"2", (LAST_ID, "y"), reply="a"),
        hmsg("a", b"3", (LAST_ID, "x"), (ID, 'y"\x01'), reply="b"),
        hmsg("a", b"4", (ID, "x"), (LAST_ID, "wrong"), reply="c"),
        hmsg("a", b"5", (LAST_ID, "z"), reply="d"),
        hmsg("a", b"6", (LAST_ID, 'y"\x01'), reply="e"),
        hmsg("a", b"7", (LAST_ID, 'y"\x01'), reply="f"),
    )
    assert stored == [b"3", b"6"]
    assert error(told["a"]) == (400, 10070, "wrong last msg ID: x [expectation_failed]")
    assert told["c"] == ack(0, duplicate=True)  # G1
    assert error(told["d"])[2] == 'wrong last msg ID: y"\x01 [expectation_failed]'
    assert error(told["f"])[2] == "wrong last msg ID:  [expectation_failed]"
    stored, told = publisher.publish(hmsg("a", b"8", (LAST_ID, "x"), reply="r"), window_us=0)
    assert (stored, error(told["r"])[:2]) == ([], (400, 10003))


def test_a_full_table_refuses_new_ids_and_knows_the_old_ones(publisher: Publisher) -> None:
    wires = [hmsg("a", b"%d" % i, (ID, f"id{i % 3}"), reply=f"r{i}") for i in range(5)]
    stored, told = publisher.publish(*wires, ids_max=2)
    assert stored == [b"0", b"1"]
    assert error(told["r2"])[:2] == (429, 10167)
    assert "dedup_ids_max=2 " in error(told["r2"])[2]
    assert (told["r3"], told["r4"]) == (ack(0, duplicate=True), ack(1, duplicate=True))
    assert publisher.publish(msg("a", b"without"), ids_max=2)[0] == [b"without"]
    assert publisher.publish(wires[2], ids_max=2, now_us=1_000 + WINDOW_US)[0] == [b"2"]  # room again


def test_a_table_that_grew_knows_all_its_ids(publisher: Publisher) -> None:
    """In batches of sizes beside those that the compiled twin hashes ahead."""
    wires = [hmsg("a", b"%d" % i, (ID, f"id-{i}"), reply=f"r{i}") for i in range(400)]
    for start, end in ((0, 1), (1, 17), (17, 33), (33, 120), (120, 400)):
        stored, _ = publisher.publish(*wires[start:end])
        assert len(stored) == end - start
    assert publisher.ids.capacity == 512
    stored, told = publisher.publish(*wires)
    assert stored == []
    assert told == {f"r{i}": ack(i, duplicate=True) for i in range(400)}


def test_whoever_awaits_an_answer_gets_the_error_when_nothing_was_appended(publisher: Publisher) -> None:
    batch = publisher.settle(
        hmsg("a", b"1", (ID, "x"), reply="a"),
        hmsg("a", b"2", (ID, "x"), reply="b"),
        hmsg("a", b"3", (SEQUENCE, "9"), reply="c"),
    )
    assert batch.settled == (1, 1, 0, 0)
    told = [
        (reply, json.loads(body)["error"]["err_code"]) for reply, body in answers_in(batch.errors(503, 10077, "no"))
    ]
    assert told == [(b"a", 10077), (b"b", 10077), (b"c", 10077)]


def test_what_stays_is_stored_as_if_nothing_else_had_come(twin: ModuleType) -> None:
    """Columns are copied row by row: keys, nulls, headers and replies must go to their new places."""
    kinds = [
        lambda i: msg("a", b"%d" % i),
        lambda i: hmsg("bb", b"%d" % i, ("A", str(i)), ("B", ""), reply=f"r{i}"),
        lambda i: hmsg("c", b"", ("Liftlog-Key", f"k{i}"), ("Liftlog-Tombstone", "1"), (ID, f"id{i}")),
        lambda i: hmsg("d", b"%d" % i, (ID, f"id{i}"), (SEQUENCE, ""), ("C", "x"), reply=f"r{i}"),
        lambda i: hmsg("d", b"%d" % i, block=b"NATS/1.0\r\n\r\n"),
    ]
    wires = [kinds[(7 * i + i // 3) % 5](i) for i in range(60)]
    mixed = [part for wire in wires for part in (wire, hmsg("x", b"gone", (ID, "old"), ("D", "y"), reply="q"))]
    plain, dropping = Publisher(twin), Publisher(twin)
    for one in (plain, dropping):
        one.publish(hmsg("x", b"first", (ID, "old")))
    expected, found = plain.settle(*wires), dropping.settle(*mixed)
    assert found.settled == (60, 0, 0, 0)
    place = {"first_offset": 1, "leader_epoch": 2, "high_watermark": 0}
    assert bytes(found.compose(**place)) == bytes(expected.compose(**place))
    assert found.acks(1)[: len(expected.acks(1))] == expected.acks(1)
    for name in ("record_count", "byte_count", "max_timestamp_us", "condition_count", "id_count", "last_id"):
        assert getattr(found, name) == getattr(expected, name), name


def test_an_expected_sequence_of_a_subject_is_that_of_the_last_record_on_it(publisher: Publisher) -> None:
    assert publisher.publish(msg("a", b"0"), msg("b", b"1"), msg("a", b"2"))[0] == [b"0", b"1", b"2"]
    stored, told = publisher.publish(
        hmsg("a", b"3", (SUBJECT, "3"), reply="a"),
        hmsg("b", b"4", (SUBJECT, "3"), reply="b"),
        hmsg("c", b"5", (SUBJECT, "0"), reply="c"),
        msg("b", b"6"),
        hmsg("b", b"7", (SUBJECT, "6"), reply="d"),
        hmsg("b", b"8", (SUBJECT, "2"), reply="e"),
        hmsg("a", b"9", (SUBJECT, "3"), reply="f"),
        hmsg("a", b"10", (SUBJECT, "x"), reply="g"),
        hmsg("a", b"11", (SUBJECT, "4"), (SEQUENCE, "3"), reply="h"),
        hmsg("a", b"12", (SUBJECT, ""), reply="i"),
        hmsg("d", b"13", (SUBJECT, "9" * 30), reply="j"),
        hmsg("a.b", b"14", (SUBJECT, "0"), reply="k"),
    )
    assert stored == [b"3", b"5", b"6", b"7", b"12", b"14"]
    wrong = {reply: error(answer)[2].split()[3] for reply, answer in told.items() if "error" in answer}
    assert wrong == {"b": "2", "e": "7", "f": "4", "g": "4", "h": "7", "j": "0"}
    assert error(told["b"]) == (400, 10071, "wrong last sequence: 2 [expectation_failed]")
    assert [told[reply]["seq"] for reply in "acdik"] == [4, 5, 7, 8, 9]


def test_a_dropped_record_is_not_the_last_of_its_subject(publisher: Publisher) -> None:
    """G2, with a repeat, a wrong sequence and a wrong id before, all in the batch."""
    assert publisher.publish(hmsg("a", b"0", (ID, "x")))[0] == [b"0"]
    stored, told = publisher.publish(
        hmsg("a", b"1", (ID, "x"), reply="a"),
        hmsg("a", b"2", (SEQUENCE, "7"), reply="b"),
        hmsg("a", b"3", (LAST_ID, "y"), (SUBJECT, "1"), reply="c"),
        hmsg("a", b"4", (SUBJECT, "1"), reply="d"),
        hmsg("a", b"5", (SUBJECT, "1"), (ID, "x"), reply="e"),
    )
    assert stored == [b"4"]
    assert told["a"] == told["e"] == ack(0, duplicate=True)
    assert (error(told["b"])[1], error(told["c"])[1], told["d"]) == (10071, 10070, ack(1, duplicate=False))


def test_while_the_last_records_are_not_known_who_expects_one_is_sent_away(publisher: Publisher) -> None:
    publisher.subjects = None
    batch = publisher.settle(msg("a", b"0"), hmsg("a", b"1", (SUBJECT, "1"), reply="r"))
    assert (batch.record_count, batch.settled) == (1, (0, 0, 0, 1))
    [(_, body)] = answers_in(batch.acks(0))
    code, err_code, text = error(json.loads(body))
    assert (code, err_code) == (503, 10163)
    assert text.startswith("expected last sequence per subject temporarily unavailable")
    stored, told = publisher.publish(hmsg("a", b"1", (SUBJECT, "1"), reply="r"), subjects_max=0)
    assert (stored, error(told["r"])[:2]) == ([], (400, 10003))
    assert "subjects_max" in error(told["r"])[2]


def test_a_full_table_answers_for_the_subjects_that_it_has_and_never_guesses(publisher: Publisher) -> None:
    assert publisher.publish(msg("a", b"0"), msg("b", b"1"), subjects_max=2)[0] == [b"0", b"1"]
    stored, told = publisher.publish(
        hmsg("a", b"2", (SUBJECT, "1"), reply="a"),
        hmsg("c", b"3", (SUBJECT, "0"), reply="b"),  # there is none, but it could not be noted
        hmsg("c", b"4", (SUBJECT, "1"), reply="c"),
        msg("c", b"5"),
        hmsg("c", b"6", (SUBJECT, "0"), reply="d"),  # there is one, and it was not noted
        hmsg("c", b"7", (SUBJECT, "4"), reply="e"),
        hmsg("b", b"8", (SUBJECT, "2"), reply="f"),
        subjects_max=2,
    )
    assert stored == [b"2", b"5", b"8"]
    assert [error(told[reply])[:2] for reply in "bcde"] == [(503, 10023), (400, 10071), (503, 10023), (503, 10023)]
    assert "subjects_max=2 " in error(told["d"])[2]
    # With room again, what was missed stays unknown while the log may hold it; a record on the subject tells.
    again = [hmsg("c", b"9", (SUBJECT, "0"), reply="a"), hmsg("d", b"10", (SUBJECT, "0"), reply="b")]
    stored, told = publisher.publish(*again)
    assert (stored, [error(told[reply])[1] for reply in "ab"]) == ([], [10023, 10023])
    assert publisher.publish(msg("c", b"11"), hmsg("c", b"12", (SUBJECT, "6"), reply="r"))[0] == [b"11", b"12"]
    assert publisher.publish(again[1], log_start=4)[0] == [b"10"]


def test_a_subject_whose_last_record_is_below_the_log_start_has_none(publisher: Publisher) -> None:
    assert publisher.publish(msg("a", b"0"), msg("b", b"1"))[0] == [b"0", b"1"]
    stored, told = publisher.publish(
        hmsg("a", b"2", (SUBJECT, "1"), reply="a"),
        hmsg("a", b"3", (SUBJECT, "0"), reply="b"),
        hmsg("b", b"4", (SUBJECT, "2"), reply="c"),
        log_start=1,
    )
    assert (stored, error(told["a"])[2].split()[3]) == ([b"3", b"4"], "0")


def test_a_batch_that_was_not_appended_changes_no_last_record(publisher: Publisher) -> None:
    assert publisher.subjects is not None
    assert publisher.publish(*[msg(f"s{i}", b"") for i in range(20)])[0] == [b""] * 20
    before = [publisher.subjects.find(b"s%d" % i) for i in range(200)]
    wires = [hmsg(f"s{i}", b"", (SUBJECT, str(before[i]))) for i in (0, 30, 31)]
    batch = publisher.settle(*wires, *[msg(f"s{i}", b"") for i in range(200)], msg("s0", b""))
    assert batch.record_count == 204
    assert publisher.subjects.find(b"s0") == 224
    batch.take_back(publisher.subjects)
    assert [publisher.subjects.find(b"s%d" % i) for i in range(200)] == before
    assert publisher.publish(hmsg("s30", b"x", (SUBJECT, "0")))[0] == [b"x"]


def test_a_table_of_subjects_that_grew_knows_all_of_them(publisher: Publisher) -> None:
    """In batches of sizes beside those that the compiled twin hashes ahead, with and without an expectation."""
    expected: list[int] = []
    for start, end in ((0, 1), (1, 17), (17, 33), (33, 120), (120, 400)):
        wires = [msg(f"subject.{i}", b"%d" % i) for i in range(start, end)]
        wires += [hmsg(f"other.{start}", b"x", (SUBJECT, "0"))] if start % 2 else []
        expected += range(publisher.end + 1, publisher.end + 1 + end - start)
        assert len(publisher.publish(*wires)[0]) == len(wires)
    told = publisher.publish(*[hmsg(f"subject.{i}", b"", (SUBJECT, "999999"), reply=f"r{i}") for i in range(400)])[1]
    assert [int(error(told[f"r{i}"])[2].split()[3]) for i in range(400)] == expected


def test_expectations_need_one_partition(twin: ModuleType) -> None:
    split = Publisher(twin, partition_count=2)
    assert split.publish(hmsg("a", b"1", (ID, "x"), reply="r"))[0] == [b"1"]
    split.intake.feed(hmsg("a", b"2", (SEQUENCE, "1"), reply="r"), 1)
    [(_, body)] = answers_in(split.intake.refusals())
    assert error(json.loads(body)) == (
        400,
        10003,
        "bad request: Nats-Expected-Last-* needs a stream of one partition [invalid_request]",
    )
