"""Goal: both twins make of the same bytes exactly what vectors.py says, however the bytes are cut.

Method: every vector, whole, in threes and byte by byte; then the twins against each other, bytes included.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from types import ModuleType

import pytest

from broker.ingest.rules import COUNTERS
from tests.unit.ingest.twins import CUTS, TWINS, Outcome, run, whole
from tests.unit.ingest.vectors import VECTORS, Vector
from tests.unit.ingest.wire import answers_in

NAMES = [vector.name for vector in VECTORS]
RECEIVED = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
DERIVED = ("messages", "bytes")


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_bytes_lead_to_what_the_vector_says(
    twin: ModuleType, vector: Vector, cut: Callable[[bytes], list[bytes]]
) -> None:
    outcome = run(twin, cut(vector.wire), [vector.route])
    assert outcome.problem is None
    assert outcome.events == list(vector.events)
    empty = {"key": None, "headers": None, "reply": None}
    assert outcome.rows.get(("orders", 0), []) == [
        {"offset": 7 + i, "timestamp": RECEIVED, **empty, **row} for i, row in enumerate(vector.rows)
    ]
    assert {name: count for name, count in outcome.counters.items() if count and name not in DERIVED} == vector.counters
    assert [reply.decode() for reply, _ in answers_in(outcome.acks.get(("orders", 0), b""))] == list(vector.acked)
    refusals = [(reply.decode(), json.loads(body)["error"]["err_code"]) for reply, body in answers_in(outcome.refusals)]
    assert refusals == list(vector.answers)


@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_every_message_is_counted_once(twin: ModuleType, vector: Vector) -> None:
    counters = run(twin, whole(vector.wire), [vector.route]).counters
    assert list(counters) == list(COUNTERS)
    assert counters["messages"] == sum(counters[name] for name in counters if name not in (*DERIVED, "unanswerable"))


@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_the_twins_agree_to_the_byte(vector: Vector) -> None:
    outcomes: list[Outcome] = [run(twin, cut(vector.wire), [vector.route]) for twin in TWINS for cut in CUTS]
    assert all(outcome == outcomes[0] for outcome in outcomes)
