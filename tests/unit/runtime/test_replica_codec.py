"""Messages between replicas travel whole; what is none is refused before anybody acts on it."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
from crc32c import crc32c

from broker.api.proto import replica_pb2 as pb
from broker.link.codec import (
    BULK_BYTES_MAX,
    Answered,
    Asked,
    BadFrame,
    Bulk,
    Hello,
    LinkFrame,
    Said,
    Welcome,
    decode,
    encode,
)
from broker.replication.messages import Diverged, Fetch, Records, State
from tests.support.replica_messages import GREETINGS, KINDS, made, said


@pytest.mark.parametrize("cls", KINDS)
def test_each_message_comes_back_as_it_was(cls: type) -> None:
    rng = random.Random(7)
    for _ in range(50):
        sent = said(cls, rng)
        assert decode(LinkFrame.of(encode(sent).to_bytes())) == sent


@pytest.mark.parametrize("sent", GREETINGS, ids=lambda each: type(each).__name__)
def test_each_greeting_comes_back_as_it_was(sent: Said) -> None:
    assert decode(LinkFrame.of(encode(sent).to_bytes())) == sent


@pytest.mark.parametrize("cls", KINDS)
def test_the_proto_has_the_fields_of_the_messages_and_no_others(cls: type) -> None:
    """Or one that a later release adds would stay behind without a word."""
    assert {field.name for field in fields(cls)} == set(getattr(pb, cls.__name__).DESCRIPTOR.fields_by_name)


def test_a_flipped_bit_of_a_head_is_noticed() -> None:
    """Wherever it is: a high watermark has no other check."""
    whole = encode(said(Fetch, random.Random(1))).to_bytes()
    for at in range(len(whole) * 8):
        bad = bytearray(whole)
        bad[at // 8] ^= 1 << at % 8
        with pytest.raises(BadFrame):
            decode(LinkFrame.of(bytes(bad)))


def sealed(head: pb.Head, data: bytes = b"") -> LinkFrame:
    text = head.SerializeToString()
    return LinkFrame(text, crc32c(text), data)


@pytest.mark.parametrize(
    "field,value",
    [("offset", -1), ("durable_end", -5), ("epoch", -2), ("number", -1), ("offset", (1 << 62) + 1), ("last_epoch", -9)],
)
def test_numbers_out_of_their_range_are_refused(field: str, value: int) -> None:
    head = pb.Head()
    head.ParseFromString(encode(Asked(("i", 0), made(Fetch, random.Random(2)))).head)
    setattr(head.asked.fetch, field, value)
    with pytest.raises(BadFrame, match=field):
        decode(sealed(head))


def test_bytes_go_with_records_and_states_alone_and_are_as_many_as_was_said() -> None:
    piece = made(State, random.Random(3), length=4)
    good = encode(Answered(("i", 0), piece, b"four"))
    assert decode(good) == Answered(("i", 0), piece, b"four")
    with pytest.raises(BadFrame, match="and 4 bytes and has"):
        decode(LinkFrame.of(good.to_bytes() + b"!"))
    with pytest.raises(BadFrame, match="a piece of 4 bytes came with 5"):
        decode(encode(Answered(("i", 0), piece, b"five!")))
    head = pb.Head()
    head.ParseFromString(encode(Asked(("i", 0), made(Fetch, random.Random(2)))).head)
    with pytest.raises(BadFrame, match="no bytes go with asked"):
        decode(sealed(head, b"x"))


def test_what_a_later_release_may_say_is_refused_and_not_guessed() -> None:
    asked = pb.Head()
    asked.asked.place.incarnation = "i"
    for head, words in ((pb.Head(), "a frame that"), (asked, "a question that")):
        with pytest.raises(BadFrame, match=words):
            decode(sealed(head))
    with pytest.raises(BadFrame, match="no frame"):
        decode(LinkFrame.of(b"\xff"))


@pytest.mark.parametrize("name", ["", "b" * 257])
def test_names_are_bounded(name: str) -> None:
    with pytest.raises(BadFrame, match="broker_id has"):
        decode(encode(Hello(1, "c", name, 0, "b", b"")))
    with pytest.raises(BadFrame, match="incarnation has"):
        decode(encode(Asked((name, 0), made(Fetch, random.Random(2)))))


def test_an_empty_message_is_one() -> None:
    assert decode(encode(Welcome(b""))) == Welcome(b"")


@pytest.mark.parametrize(
    "bulk,words",
    [
        (Bulk(bytes(31), 1, 1), "a ticket has 32 bytes"),
        (Bulk(bytes(32), 0, 1), "no 0 bytes come in bulk"),
        (Bulk(bytes(32), BULK_BYTES_MAX + 1, 1), "bytes come in bulk"),
        (Bulk(bytes(32), 1, 1 << 16), "at port 65536"),
    ],
)
def test_bulk_that_nobody_could_take_is_refused(bulk: Bulk, words: str) -> None:
    """A follower makes room for as many bytes as it says."""
    with pytest.raises(BadFrame, match=words):
        decode(encode(Answered(("i", 0), made(Records, random.Random(2)), bulk=bulk)))


def test_bulk_comes_with_records_alone_and_with_no_other_bytes() -> None:
    bulk = Bulk(bytes(32), 1, 1)
    for answer, data in ((made(Diverged, random.Random(2)), b""), (made(Records, random.Random(2)), b"x")):
        with pytest.raises(BadFrame, match="nothing comes in bulk with"):
            decode(encode(Answered(("i", 0), answer, data, bulk)))
