"""Answers to a publisher, on its reply subject: JetStream's PubAck, or JetStream's error.

Any JetStream client library understands both. `seq` is offset + 1, because sequences count from 1. Our own field
`partition` is there only when it is not 0, and `duplicate` only when true, as JetStream's own is: clients parse every
ack, and what says nothing costs them time (decision 126). Codes are JetStream's own where it
has one for the case (nats-server, server/errors.json), else 10003 `bad request`; the text always ends
with liftlog's reason code in brackets.

    {"stream":"orders","seq":43}
    {"stream":"orders","seq":43,"partition":2,"duplicate":true}
    {"error":{"code":400,"err_code":10054,"description":"... [record_too_large]"},"stream":"orders","seq":0}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.api.errors import LiftlogError
from broker.ingest import envelope, rules


@dataclass(frozen=True, slots=True)
class Refusal:
    """How one kind of refusal is counted and answered.

    Attributes:
        counter: Its name in `Intake.counters`.
        code, err_code: JetStream's.
        description: `{size}` and `{limit}` stand for the record's bytes and `record_bytes_max`.
        ack_error: Liftbridge's, in the ack of an envelope; UNKNOWN: there is none.
    """

    counter: str
    code: int
    err_code: int
    description: str
    ack_error: int = envelope.UNKNOWN


REFUSALS: Final = (
    Refusal("refused_bad_header", 400, 10003, "bad request: the header block is malformed [invalid_records]"),
    Refusal(
        "refused_bad_utf8", 400, 10003, "bad request: subject, reply or a header name is not UTF-8 [invalid_records]"
    ),
    Refusal("refused_expected_stream", 400, 10060, "expected stream does not match [expectation_failed]"),
    Refusal(
        "refused_expected_last",
        400,
        10003,
        "bad request: Nats-Expected-Last-* needs a stream of one partition [invalid_request]",
    ),
    Refusal(
        "refused_expected_last",
        400,
        10003,
        "bad request: of Nats-Expected-Last-* only Sequence, Msg-Id and Subject-Sequence are checked [not_supported]",
    ),
    Refusal(
        "refused_expected_last",
        400,
        10003,
        "bad request: Nats-Expected-Last-Subject-Sequence-Subject must be the message's own subject [not_supported]",
    ),
    Refusal(
        "refused_expected_last",
        400,
        10193,
        "missing sequence for expected last sequence per subject [invalid_request]",
    ),
    Refusal("refused_bad_option", 400, 10003, "bad request: Liftlog-Ack must be all, leader or none [invalid_request]"),
    Refusal("refused_bad_option", 400, 10003, "bad request: Liftlog-Fence must be a number [invalid_request]"),
    Refusal(
        "refused_bad_option",
        400,
        10003,
        "bad request: Liftlog-Tombstone must be 1, true, 0 or false [invalid_request]",
    ),
    Refusal(
        "refused_tombstone_without_key",
        400,
        10003,
        "bad request: a tombstone needs a Liftlog-Key header [invalid_records]",
    ),
    Refusal(
        "refused_too_large",
        400,
        10054,
        "message size exceeds maximum allowed: {size} bytes, record_bytes_max is {limit} [record_too_large]",
        envelope.TOO_LARGE,
    ),
    Refusal(
        "refused_batch_full", 429, 10167, "too many requests: the partition does not keep up, try again [overloaded]"
    ),
)
(
    BAD_HEADER,
    BAD_UTF8,
    EXPECTED_STREAM,
    EXPECTED_LAST_PARTITIONS,
    EXPECTED_LAST_UNKNOWN,
    EXPECTED_LAST_OTHER_SUBJECT,
    EXPECTED_LAST_NO_SEQUENCE,
    BAD_ACK,
    BAD_FENCE,
    BAD_TOMBSTONE,
    TOMBSTONE_WITHOUT_KEY,
    TOO_LARGE,
    BATCH_FULL,
) = REFUSALS

WRONG_SEQUENCE: Final = (400, 10071, "wrong last sequence: {} [expectation_failed]")
WRONG_FENCE: Final = (400, 10003, "bad request: the fence of the partition is {} [writer_fenced]")
WRONG_MSG_ID: Final = (400, 10070, "wrong last msg ID: {} [expectation_failed]")
IDS_FULL: Final = (429, 10167, "too many requests: dedup_ids_max={} ids are in their window, try again [overloaded]")
IDS_OFF: Final = (400, 10003, "bad request: Nats-Expected-Last-Msg-Id needs dedup_window_ms over 0 [invalid_request]")
SUBJECTS_NOT_READY: Final = (
    503,
    10163,
    "expected last sequence per subject temporarily unavailable: the log is being read, try again [not_ready]",
)
SUBJECTS_FULL: Final = (
    503,
    10023,
    "insufficient resources: subjects_max={} subjects are known, and this is none of them [overloaded]",
)
SUBJECTS_OFF: Final = (
    400,
    10003,
    "bad request: Nats-Expected-Last-Subject-Sequence needs subjects_max over 0 [invalid_request]",
)
"""Answers of settling.py: code, err_code, description."""

ERROR_CODES: Final[Mapping[str, tuple[int, int]]] = {
    "disk_full": (500, 10047),  # insufficient storage resources available
    "storage_failed": (503, 10077),  # storing a message failed
    "overloaded": (429, 10167),  # too many requests
    "not_ready": (503, 10008),  # JetStream system temporarily unavailable
    "not_leader": (503, 10009),  # cluster can not handle request
    "not_enough_replicas": (503, 10008),
    "unavailable": (503, 10008),
    "deadline_exceeded": (503, 10008),
    "retryable": (503, 10008),
    "read_only": (400, 10109),  # invalid operation on sealed stream
    "record_too_large": (400, 10054),  # message size exceeds maximum allowed
    "unknown_stream": (404, 10059),  # stream not found
    "expectation_failed": (400, 10071),  # wrong last sequence
}
"""Reason of an error -> JetStream's code and err_code, for `PendingBatch.errors`."""


ACK_ERRORS: Final[Mapping[str, int]] = {
    "record_too_large": envelope.TOO_LARGE,
    "expectation_failed": envelope.INCORRECT_OFFSET,
    "key_missing": envelope.ENCRYPTION,
    "wrong_keys": envelope.ENCRYPTION,
}
"""Reason of an error -> Liftbridge's, in the ack of an envelope; all others are UNKNOWN: there is none."""


def ack_error(error: LiftlogError) -> int:
    """The error that acks of envelopes give for `error`."""
    return ACK_ERRORS.get(error.reason, envelope.UNKNOWN)


def error_answer(error: LiftlogError) -> tuple[int, int, str]:
    """The arguments of `PendingBatch.errors` that stand for `error`."""
    default = (400, 10003) if 400 <= error.status < 500 else (503, 10077)
    code, err_code = ERROR_CODES.get(error.reason, default)
    return code, err_code, f"{error} [{error.reason}]"


def json_text(text: str) -> bytes:
    """A JSON string, quotes included, in ASCII."""
    return json.dumps(text).encode("ascii")


def ack_head(stream: str) -> bytes:
    """An ack up to its sequence number."""
    return b'{"stream":%b,"seq":' % json_text(stream)


def ack_tail(partition: int, *, duplicate: bool) -> bytes:
    """An ack from behind its sequence number."""
    return b"%b%b}" % (
        b',"partition":%d' % partition if partition else b"",
        b',"duplicate":true' if duplicate else b"",
    )


def error_body(stream: str, code: int, err_code: int, description: str) -> bytes:
    """A JetStream error for a message to `stream`."""
    return b'{"error":{"code":%d,"err_code":%d,"description":%b},"stream":%b,"seq":0}' % (
        code,
        err_code,
        json_text(description),
        json_text(stream),
    )


def refusal_body(refusal: Refusal, stream: str, *, size: int, limit: int) -> bytes:
    """The answer to a refused record of `size` bytes."""
    description = refusal.description.format(size=size, limit=limit)
    return error_body(stream, refusal.code, refusal.err_code, description)


def publish(reply: bytes, body: bytes) -> bytes:
    """One answer as the server takes it."""
    return b"PUB %b %d\r\n%b\r\n" % (reply, len(body), body)


def addressed(inbox: bytes, ack: bytes, prefixes: Sequence[bytes]) -> bytes | None:
    """An `Ack` of who published otherwise than on NATS, for its inbox, as the server takes it.

    Returns:
        None: it may not be told (`rules.R9`).
    """
    is_own = inbox.startswith(tuple(prefixes)) and not inbox.startswith(rules.SYSTEM)
    if not is_own or not envelope.is_publishable(inbox) or len(ack) > rules.ACK_TEXTS_BYTES_MAX:
        return None
    return publish(inbox, envelope.ACK_HEADER + ack)
