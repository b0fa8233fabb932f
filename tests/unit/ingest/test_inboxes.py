"""Goal: an ack for the inbox of who did not come over NATS goes where one of an envelope may go, and is one line."""

from __future__ import annotations

import pytest

from broker.ingest.answers import addressed
from broker.ingest.envelope import ACK_HEADER
from broker.ingest.rules import ACK_TEXTS_BYTES_MAX

OWN = (b"_INBOX.", b"acks.")


@pytest.mark.parametrize("inbox", [b"_INBOX.x", b"acks.a.b", "_INBOX.ä".encode()])
def test_an_ack_is_a_message_of_its_own(inbox: bytes) -> None:
    assert addressed(inbox, b"ack", OWN) == b"PUB %b 11\r\n%back\r\n" % (inbox, ACK_HEADER)


NEVER = [
    "orders",
    "$JS.API.x",
    "_INBOX.",
    "_INBOX.*",
    "_INBOX.>",
    "_INBOX.a b",
    "_INBOX.a\r\nPUB b 0",
    "_INBOX.\x7f",
    "",
]


@pytest.mark.parametrize("inbox", NEVER)
def test_no_other_subject_is_told(inbox: str) -> None:
    assert addressed(inbox.encode(), b"ack", OWN) is None
    assert addressed(b"$SYS.x", b"ack", [b"$SYS."]) is None


def test_an_ack_is_no_longer_than_those_of_envelopes() -> None:
    assert addressed(b"_INBOX.x", bytes(ACK_TEXTS_BYTES_MAX), OWN) is not None
    assert addressed(b"_INBOX.x", bytes(ACK_TEXTS_BYTES_MAX + 1), OWN) is None
