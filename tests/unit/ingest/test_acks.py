"""Goal: publishers read valid PubAcks and errors in JetStream's shape, one for each awaited record.

Method: parse the blobs as a server would, the bodies as JSON, and hand them to nats-py's own types.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import nats.js.api
import nats.js.errors
import pytest

from broker.api.errors import BY_REASON, DiskFull, LiftlogError, NotLeader
from broker.api.stream import NAME_BYTES_MAX
from broker.ingest import answers
from tests.unit.ingest.twins import builder
from tests.unit.ingest.wire import answers_in, hmsg, msg


def taken(twin: ModuleType, *wires: bytes, **settings: Any) -> Any:
    target = builder(twin, **settings)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    intake.feed(b"".join(wires), 1)
    return target.take()


def test_an_ack_reads_as_the_design_says(twin: ModuleType) -> None:
    batch = taken(twin, msg("a", reply="_INBOX.x.1"))
    body = b'{"stream":"orders","seq":43}'
    assert batch.acks(42) == b"PUB _INBOX.x.1 %d\r\n%b\r\n" % (len(body), body)


def test_an_ack_names_its_partition_but_the_first(twin: ModuleType) -> None:
    batch = taken(twin, msg("a", reply="_INBOX.x.1"), partition=12, partition_count=13)
    body = b'{"stream":"orders","seq":43,"partition":12}'
    assert batch.acks(42) == b"PUB _INBOX.x.1 %d\r\n%b\r\n" % (len(body), body)


def test_only_awaited_records_are_acked_each_with_its_own_offset(twin: ModuleType) -> None:
    batch = taken(
        twin, msg("a"), msg("a", reply="r1"), hmsg("a", b"", ("Liftlog-Ack", "none"), reply="r2"), msg("a", reply="r3"),
        stream="s.t-u_v", partition=3, partition_count=5,
    )  # fmt: skip
    assert batch.awaited_count == 2
    acks = [(reply, json.loads(body)) for reply, body in answers_in(batch.acks(8, duplicate=True))]
    common = {"stream": "s.t-u_v", "partition": 3, "duplicate": True}
    assert acks == [(b"r1", {**common, "seq": 10}), (b"r3", {**common, "seq": 12})]


def replies(blob: bytes) -> list[bytes]:
    return [reply for reply, _ in answers_in(blob)]


@pytest.mark.parametrize("default", ["all", "leader"])
def test_acks_of_the_leader_and_acks_of_all_are_told_apart(twin: ModuleType, default: str) -> None:
    kinds = ["all", None, "leader", "none", "leader", None]
    wires = [
        msg("a", reply=f"r{at}") if kind is None else hmsg("a", b"", ("Liftlog-Ack", kind), reply=f"r{at}")
        for at, kind in enumerate(kinds)
    ]
    batch = taken(twin, *wires, msg("a"), hmsg("a", b"", ("Liftlog-Ack", "leader"), reply="$JS.x"), default_ack=default)
    by_leader = [b"r%d" % at for at, kind in enumerate(kinds) if (kind or default) == "leader"]
    by_all = [b"r%d" % at for at, kind in enumerate(kinds) if (kind or default) == "all"]
    assert (batch.awaited_count, batch.leader_count) == (5, len(by_leader))
    for answers_to in (lambda who: batch.acks(7, who), lambda who: batch.errors(500, 10047, "x", who)):
        assert replies(answers_to(True)) == by_leader
        assert replies(answers_to(False)) == by_all
        assert replies(answers_to(None)) == by_all + by_leader
    assert [json.loads(body)["seq"] for _, body in answers_in(batch.acks(7, True))] == [
        8 + int(reply[1:]) for reply in by_leader
    ]


@pytest.mark.parametrize("first", [0, 8, 9, 98, 99, 10**9 - 1, 2**63 - 200])
def test_numbers_of_any_length_make_a_body_of_the_announced_length(twin: ModuleType, first: int) -> None:
    batch = taken(twin, *[msg("a", reply="r")] * 150)
    bodies = [json.loads(body) for _, body in answers_in(batch.acks(first))]
    assert [body["seq"] for body in bodies] == [first + i + 1 for i in range(150)]


def test_nats_py_reads_an_ack(twin: ModuleType) -> None:
    [(_, body)] = answers_in(taken(twin, msg("a", reply="r")).acks(6))
    ack = nats.js.api.PubAck.from_response(json.loads(body))
    assert (ack.stream, ack.seq, bool(ack.duplicate)) == ("orders", 7, False)


def test_nats_py_raises_what_a_failed_append_says(twin: ModuleType) -> None:
    batch = taken(twin, msg("a"), msg("a", reply="r"))
    blob = batch.errors(*answers.error_answer(DiskFull('no space on "/data"')))
    [(reply, body)] = answers_in(blob)
    assert reply == b"r"
    parsed = json.loads(body)
    assert (parsed["stream"], parsed["seq"]) == ("orders", 0)
    with pytest.raises(nats.js.errors.ServerError) as raised:
        nats.js.errors.APIError.from_error(parsed["error"])
    assert raised.value.err_code == 10047
    assert raised.value.description == 'no space on "/data" [disk_full]'


@pytest.mark.parametrize("name", ["a", "A" * NAME_BYTES_MAX, "0.-_", "__offsets", 'not "legal"\\\n\u20ac'])
def test_the_json_is_valid_whatever_the_stream_is_called(twin: ModuleType, name: str) -> None:
    batch = taken(twin, msg("a", reply="r"), stream=name)
    assert json.loads(answers_in(batch.acks(0))[0][1])["stream"] == name
    assert json.loads(answers_in(batch.errors(400, 10003, 'a "b"\n'))[0][1])["stream"] == name
    target = builder(twin, stream=name)
    intake = twin.Intake()
    intake.route(1, [target], partition_by="subject_suffix")
    intake.feed(hmsg("a", b"", ("Liftlog-Ack", "?"), reply="r"), 1)
    assert json.loads(answers_in(intake.refusals())[0][1])["stream"] == name


def test_a_refusal_of_a_large_record_names_size_and_limit(twin: ModuleType) -> None:
    intake = twin.Intake()
    intake.route(1, [builder(twin, record_bytes_max=1000)], partition_by="subject_suffix")
    intake.feed(msg("abc", bytes(1234), reply="rr"), 1)
    [(reply, body)] = answers_in(intake.refusals())
    error = json.loads(body)["error"]
    assert (reply, error["code"], error["err_code"]) == (b"rr", 400, 10054)
    assert "1239 bytes" in error["description"]
    assert "record_bytes_max is 1000 [record_too_large]" in error["description"]
    assert intake.refusals() == b""


def test_every_error_has_a_jetstream_answer_with_its_reason() -> None:
    for reason, error in BY_REASON.items():
        code, err_code, description = answers.error_answer(error("what happened"))
        assert 400 <= code < 600
        assert 10000 <= err_code < 10300
        assert description == f"what happened [{reason}]"
    assert set(answers.ERROR_CODES) <= set(BY_REASON)


def test_a_retryable_error_is_no_fault_of_the_publisher() -> None:
    assert answers.error_answer(NotLeader("elsewhere"))[0] == 503
    assert answers.error_answer(LiftlogError("?"))[0] == 503


def test_every_refusal_carries_a_reason_of_the_error_tree() -> None:
    for refusal in answers.REFUSALS:
        reason = refusal.description.rpartition("[")[2].removesuffix("]")
        assert reason in BY_REASON
