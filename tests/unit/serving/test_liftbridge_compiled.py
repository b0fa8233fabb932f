"""Records of Liftbridge's clients, compiled. Goal: what _records.pyx makes of messages is what protobuf's library makes
of them, or nothing. Method: messages by seed, whole, changed and made up of fields at random.
"""

from __future__ import annotations

import random

import pytest

pytest.importorskip("broker.serving.liftbridge._records", reason="no compiler here")

from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.liftbridge import records
from broker.serving.liftbridge.messages import Messages, framed
from tests.support.liftbridge_records import STORED, check_published

ENTRY = b"\x0a\x01a\x12\x011"
TEXTS = ("", "a", "orders", "x" * 200)


def plain(chance: random.Random) -> pb.Publish:
    return pb.Publish(
        key=chance.choice((b"", b"k", chance.randbytes(300))),
        value=chance.randbytes(chance.choice((0, 1, 127, 128, 20_000))),
        stream=chance.choice(TEXTS),
        partition=chance.choice((0, 1, 300, -1, 2**31 - 1, -(2**31))),
        ack_inbox=chance.choice(TEXTS),
        correlation_id=chance.choice(TEXTS),
        ack_policy=chance.choice((pb.LEADER, pb.ALL, pb.NONE, 7, -3)),
        expected_offset=chance.choice((0, -1, 5, 2**63 - 1, -(2**63))),
        headers={
            chance.choice(("", "a", "b", "ab", "~" * 130)) + str(chance.randrange(3)): chance.randbytes(
                chance.choice((0, 1, 200))
            )
            for _ in range(chance.choice((0, 0, 1, 5)))
        },
    )


def varint(value: int, *, longer: int = 0) -> bytes:
    found = bytearray()
    while value >= 0x80 or longer:
        found.append(value & 0x7F | 0x80)
        longer -= longer > 0 and value < 0x80
        value >>= 7
    return bytes(found) + bytes([value])


def fields(chance: random.Random) -> bytes:
    """Fields of any number and kind, more than once, and of the lengths that they say or others."""
    found = b""
    for _ in range(chance.randrange(6)):
        number, kind = chance.choice((5, chance.randrange(12))), chance.choice((0, 0, 2, 2, 2, 2, 1, 5, 3, 4, 7))
        found += varint(number << 3 | kind, longer=chance.choice((0, 0, 0, 1)))
        if kind == 0:
            found += varint(chance.getrandbits(chance.choice((1, 7, 31, 32, 35, 64, 70))), longer=chance.randrange(3))
        elif kind == 2:
            data = chance.choice((b"", b"a", b"\xff", "ü".encode(), ENTRY, chance.randbytes(150)))
            found += varint(len(data) + chance.choice((0, 0, 0, 0, 1, -1, 1 << 40)) & (1 << 64) - 1) + data
        else:
            found += chance.randbytes(chance.choice((0, 4, 8)))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_plain_records_are_read_as_protobuf_reads_them(seed: int) -> None:
    chance = random.Random(seed)
    for count in (1, 2, 50):
        messages = [plain(chance).SerializeToString() for _ in range(count)]
        assert check_published(messages)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_not_plain_is_left_to_protobuf(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        message = bytearray(plain(chance).SerializeToString())
        for _ in range(chance.randrange(1, 4)):
            if message:
                message[chance.randrange(min(len(message), 60))] = chance.randrange(256)
        check_published([bytes(message)])
        check_published([bytes(message[: chance.randrange(len(message) + 1)])])
        check_published([fields(chance) for _ in range(chance.randrange(1, 3))])
    for other in (
        pb.Publish(stream="sü"),
        pb.Publish(headers={"ü": b""}),
        pb.Publish(headers={str(at): b"" for at in range(65)}),
    ):
        assert not check_published([plain(chance).SerializeToString(), other.SerializeToString()])


def test_the_last_header_of_a_name_counts_and_what_an_entry_lacks_is_empty() -> None:
    entries = [b"\x0a\x01a\x12\x011", b"", b"\x12\x015", b"\x0a\x01b", b"\x0a\x01a\x12\x012", b"\x0a\x01c\x0a\x01d"]
    message = b"".join(b"\x2a" + bytes([len(entry)]) + entry for entry in entries)
    assert dict(pb.Publish.FromString(message).headers) == {"a": b"2", "": b"5", "b": b"", "d": b""}
    assert check_published([message])
    assert check_published([b"", message, message + message])
    assert check_published([pb.Publish(headers={str(at): b"v" for at in range(64)}).SerializeToString()])


def test_a_text_that_another_one_replaces_is_judged_too() -> None:
    """protobuf's library refuses such a message, whatever comes behind."""
    for text in (b"\x1a", b"\x32", b"\x3a"):  # stream, ackInbox, correlationId
        assert not check_published([text + b"\x01\xff" + text + b"\x01a"])
    assert not check_published([b"\x2a\x06\x0a\x01\xff\x0a\x01a"])


def test_many_partitions_are_left_to_protobuf() -> None:
    def messages(count: int) -> list[bytes]:
        return [pb.Publish(stream="s", partition=at % count).SerializeToString() for at in range(3 * count)]

    assert check_published(messages(64))
    assert not check_published(messages(65))
    assert len(list(records.in_order(messages(65)))) == 1


def test_acks_are_those_of_protobuf_at_any_offset() -> None:
    messages = [pb.Publish(stream="s", correlation_id=text, ack_inbox=text).SerializeToString() for text in TEXTS]
    for first in (0, 1, 126, 2**35, 2**63 - 10):
        stored = STORED._replace(first_offset=first)
        assert records.acks(messages, stored) == records._acks(messages, stored)


@pytest.mark.parametrize("seed", range(5))
def test_messages_are_whole_whatever_the_pieces(seed: int) -> None:
    chance = random.Random(seed)
    messages = [chance.randbytes(chance.choice((0, 1, 5, 300, 70_000))) for _ in range(50)]
    said, found, reader = framed(messages), list[bytes](), Messages()
    at = 0
    while at < len(said):
        step = chance.choice((1, 4, 5, 6, 1_000, 100_000))
        found += reader.feed(said[at : at + step])
        at += step
    assert found == messages
    assert not reader.is_amid
