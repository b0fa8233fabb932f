"""Goal: what is in an envelope of Liftbridge decides where its record goes, and what is beside it keeps its rules.

Method: both twins, whole and in pieces; what an envelope may look like is in vectors.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest

from broker.ingest.envelope import HEADERS_MAX
from broker.ingest.rules import ENVELOPE_PEEK_BYTES_MAX
from tests.unit.ingest.envelopes import envelope, message
from tests.unit.ingest.twins import CUTS, TWINS, Route, builder, run
from tests.unit.ingest.vectors import VECTORS
from tests.unit.ingest.wire import answers_in, hmsg, msg

NONE = "no envelope: "
Cut = Callable[[bytes], list[bytes]]
cuts = pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "liftbridge.md"


def test_the_reference_names_each_payload_that_is_no_envelope() -> None:
    """Vectors of these names say what becomes of each, and the last one is below."""
    said = re.findall(r"^\| (.+) \|$", PAGE.read_text().partition("### Payloads that are no envelope")[2], re.M)
    faults = [each.name.removeprefix(NONE) for each in VECTORS if each.name.startswith(NONE)]
    assert said == ["fault", *faults, f"more than {HEADERS_MAX:,} headers"]


@cuts
def test_its_key_decides_the_partition(twin: ModuleType, cut: Cut) -> None:
    keys = [b"k%d" % at for at in range(8)]
    wire = b"".join(hmsg("a", envelope(message(key, key=key)), ("Liftlog-Key", "another")) for key in keys)
    outcome = run(twin, cut(wire), [Route(1, {}, "key", 3)])
    found = {place[1]: [row["key"] for row in rows] for place, rows in outcome.rows.items()}
    assert found == {at: [key for key in keys if crc32(key) % 3 == at] for at in range(3)}


@cuts
def test_one_that_is_led_elsewhere_is_passed_over(twin: ModuleType, cut: Cut) -> None:
    keys = [b"k%d" % at for at in range(8)]
    target = builder(twin, partition=0, partition_count=3)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="key")
    for key in keys:
        for piece in cut(msg("a", envelope(message(b"v", key=key)))):
            intake.feed(piece, 1)
    here = sum(crc32(key) % 3 == 0 for key in keys)
    assert 0 < here < 8
    assert (target.record_count, intake.counters["skipped_other_partition"]) == (here, 8 - here)


@cuts
def test_nobody_opens_it_where_that_is_off(twin: ModuleType, cut: Cut) -> None:
    payload = envelope(message(b"v", key=b"k"))
    routes = [Route(1, envelopes=False), Route(2, {"stream": "liftbridge"})]
    outcome = run(twin, cut(msg("a", payload) + msg("a", payload, sid=2)), routes)
    assert [(row["key"], row["value"]) for row in outcome.rows["orders", 0]] == [(None, payload)]
    assert [(row["key"], row["value"]) for row in outcome.rows["liftbridge", 0]] == [(b"k", b"v")]


@pytest.mark.slow
def test_one_that_is_too_large_is_opened_up_to_a_limit() -> None:
    """It hashes by its key up to that, and by its subject beyond; whole or in pieces, in both twins alike."""
    key = next(b"%d" % at for at in range(99) if crc32(b"%d" % at) % 2 != crc32(b"a") % 2)
    around = len(envelope(message(bytes(ENVELOPE_PEEK_BYTES_MAX), key=key))) - ENVELOPE_PEEK_BYTES_MAX
    for size in (ENVELOPE_PEEK_BYTES_MAX, ENVELOPE_PEEK_BYTES_MAX + 1):
        payload = envelope(message(bytes(size - around), key=key))
        assert len(payload) == size
        wire = msg("a", payload, reply="r")
        for twin in TWINS:
            for pieces in ([wire], [wire[at : at + 50_000] for at in range(0, len(wire), 50_000)]):
                target = builder(twin, partition=crc32(b"a") % 2, partition_count=2, record_bytes_max=99)
                intake = twin.Intake()
                intake.route(1, [target], partition_by="key")
                for piece in pieces:
                    intake.feed(piece, 1)
                is_opened = len(payload) <= ENVELOPE_PEEK_BYTES_MAX
                assert intake.counters["skipped_other_partition"] == is_opened, (len(payload), twin)
                assert intake.counters["refused_too_large"] == (not is_opened)


@cuts
def test_its_record_is_like_that_of_a_message_with_headers(twin: ModuleType, cut: Cut) -> None:
    """Bytes, weight and ids are those of the same record without an envelope."""

    def taken(wire: bytes) -> Any:
        target = builder(twin)
        intake = twin.Intake()
        intake.route(1, [target], partition_by="subject_suffix")
        for piece in cut(wire):
            intake.feed(piece, 1)
        return target.take()

    pairs = [("Nats-Msg-Id", "7"), ("Nats-Expected-Last-Sequence", "0")]
    enclosed = message(b"v", key=b"k", headers=[(name.encode(), text.encode()) for name, text in pairs], policy=1)
    batch = taken(msg("a", envelope(enclosed), reply="r"))
    plain = taken(hmsg("a", b"v", *pairs, ("Liftlog-Key", "k"), reply="r"))
    for name in ("record_count", "awaited_count", "leader_count", "condition_count", "id_count", "last_id"):
        assert getattr(batch, name) == getattr(plain, name), name
    assert batch.byte_count == plain.byte_count - len("Liftlog-Key") - len("k")
    assert answers_in(batch.acks(4)) == answers_in(plain.acks(4))


@pytest.mark.slow
def test_one_with_more_headers_than_liftbridge_keeps_is_a_plain_message(twin: ModuleType) -> None:
    for count in (HEADERS_MAX, HEADERS_MAX + 1):
        payload = envelope(b"\x4a\x00" * count)
        [row] = run(twin, [msg("a", payload)]).rows["orders", 0]
        is_opened = count <= HEADERS_MAX
        assert (row["value"], len(row["headers"] or ())) == ((b"", count) if is_opened else (payload, 0))


def test_a_batch_is_taken_while_one_arrives(twin: ModuleType) -> None:
    target = builder(twin)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    wire = msg("a", b"before") + msg("a", envelope(message(b"v" * 30, key=b"k")), reply="r")
    seen = []
    for at in range(len(wire)):
        intake.feed(wire[at : at + 1], 1)
        batch = target.take()
        seen += [(at, batch.byte_count)] if batch.record_count else []
    assert seen == [(len(msg("a", b"before")) - 1, 7), (len(wire) - 1, 33)]
    intake.feed(wire[:-20], 1)
    intake.reset()
    intake.feed(msg("b", b"after"), 1)
    assert target.take().record_count == 2
