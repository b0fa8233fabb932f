"""Messages of a benchmark are deterministic, all different, proper PUB lines; and their hash finds what a log lost."""

from __future__ import annotations

import hashlib
import re

import pyarrow as pa
import pytest

from benchmarks.payload import Messages, ValueHashes


def values(messages: Messages, count: int) -> list[bytes]:
    return messages.values(0, count)


@pytest.mark.parametrize("reply", [None, "_INBOX.x."])
@pytest.mark.parametrize("size", [16, 100, 1024])
def test_block_is_whole_pub_lines_of_one_width(size: int, reply: str | None) -> None:
    messages = Messages(seed=1, size=size, subject="bench.0", reply=reply, block_bytes=10_000)
    block = bytes(messages.block(7))
    assert len(block) == messages.rows * messages.width
    for row in range(messages.rows):
        line = block[row * messages.width :][: messages.width]
        inbox = b"" if reply is None else reply.encode() + b"%04d " % row
        assert re.fullmatch(b"PUB bench.0 %s%d\r\n000000007%04d.*\r\n" % (inbox, size, row), line, re.DOTALL)


def test_no_two_messages_are_equal_and_the_seed_decides_each() -> None:
    """Over block bounds, and for two publishers of one seed."""
    first, again, other = (Messages(seed=1, publisher=n, size=32, subject="s", block_bytes=2_000) for n in (0, 0, 1))
    assert values(first, 500) == values(again, 500)
    assert len({*values(first, 500), *values(other, 500)}) == 1000
    assert values(Messages(seed=2, size=32, block_bytes=2_000), 500) != values(first, 500)


def test_values_are_those_of_the_blocks() -> None:
    messages = Messages(seed=1, size=32, block_bytes=2_000)
    everything = values(messages, 300)
    assert messages.values(70, 100) == everything[70:170]
    line = bytes(messages.block(2))[messages.width :][: messages.width]
    assert line[-34:-2] == everything[2 * messages.rows + 1]


def test_hash_is_over_the_values_in_order() -> None:
    messages = Messages(seed=1, size=32, block_bytes=2_000)
    for count in (0, 1, messages.rows, messages.rows + 1, 3 * messages.rows - 1):
        assert messages.hash(count) == hashlib.sha256(b"".join(values(messages, count))).hexdigest()


def logged(records: list[bytes]) -> ValueHashes:
    """In batches of several sizes, some of them slices, as a log gives them."""
    found = ValueHashes(2, 32)
    array = pa.array(records, pa.binary())
    for start, end in ((0, 1), (1, 90), (90, len(records))):
        found.update(array.slice(start, end - start))
    return found


def test_hashes_of_a_log_equal_the_publishers_however_they_are_mixed() -> None:
    senders = [Messages(seed=1, publisher=n, size=32, block_bytes=2_000) for n in (0, 1)]
    zero, one = (values(sender, 100) for sender in senders)
    mixed = [*zero[:50], *one[:99], *zero[50:], one[99]]
    assert logged(mixed).hexdigests() == [sender.hash(100) for sender in senders]
    assert logged(mixed).counts == [100, 100]


@pytest.mark.parametrize("damage", ["lost", "twice", "swapped", "changed"])
def test_hash_tells_a_log_that_is_not_what_was_sent(damage: str) -> None:
    sender = Messages(seed=1, size=32, block_bytes=2_000)
    records = values(sender, 200)
    match damage:
        case "lost":
            del records[150]
        case "twice":
            records[150:150] = [records[150]]
        case "swapped":
            records[150], records[151] = records[151], records[150]
        case "changed":
            records[150] = records[150][:-1] + bytes([records[150][-1] ^ 1])
    assert logged(records).hexdigests()[0] != sender.hash(200)


def test_what_nobody_published_is_an_error() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        ValueHashes(1, 32).update(pa.array([b"x" * 31]))
    with pytest.raises(ValueError, match="32 bytes"):
        ValueHashes(1, 32).update(pa.array([b"0" * 32, None]))
    with pytest.raises(ValueError, match="publisher 3"):
        ValueHashes(1, 32).update(pa.array([b"3" * 32]))


def test_ids_are_those_of_their_values_and_all_different() -> None:
    messages = Messages(seed=1, publisher=3, size=32, subject="bench.3", ids=True, block_bytes=2_000)
    lines = b"".join(bytes(messages.block(number)) for number in range(2)).split(b"HPUB bench.3 40 72\r\n")[1:]
    ids = [line.partition(b"Nats-Msg-Id: ")[2][:13] for line in lines]
    assert len(set(ids)) == len(ids) == 2 * messages.rows
    for line, text in zip(lines, ids, strict=True):
        block, _, value = line.partition(b"\r\n\r\n")
        assert len(block) + 4 == 40
        assert value.startswith(text)
