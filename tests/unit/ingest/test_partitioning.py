"""Goal: a message goes to the partition that CRC-32 says, the same in both twins and as Liftbridge's clients have it.

Method: known CRC-32 values from outside this code, then whole streams of messages through every way to partition.
"""

from __future__ import annotations

import random
from types import ModuleType
from zlib import crc32

import pytest

from broker.api.partitioning import hashed_part, parse_partition_by
from tests.unit.ingest.twins import Route, builder, run
from tests.unit.ingest.wire import hmsg, msg

# The check value of CRC-32 (IEEE 802.3), and others computed with `cksum -o3`, gzip or published tables.
KNOWN_CRCS = {
    b"": 0x00000000,
    b"a": 0xE8B7BE43,
    b"abc": 0x352441C2,
    b"123456789": 0xCBF43926,
    b"message digest": 0x20159D7F,
    b"abcdefghijklmnopqrstuvwxyz": 0x4C2750BD,
    b"The quick brown fox jumps over the lazy dog": 0x414FA339,
    b"\x00": 0xD202EF8D,
    b"\xff\xff\xff\xff": 0xFFFFFFFF,
}
COUNT = 1021  # a prime: the whole value decides


def partition_of(subject: bytes, key: bytes | None, partition_by: str) -> int:
    """By the definition."""
    return crc32(hashed_part(subject, key, *parse_partition_by(partition_by))) % COUNT


@pytest.mark.parametrize("text, crc", KNOWN_CRCS.items())
def test_the_hash_is_crc32_ieee(text: bytes, crc: int) -> None:
    assert partition_of(b"subject", text, "key") == crc % COUNT
    assert partition_of(text, None, "subject") == crc % COUNT
    assert partition_of(b"a." + text + b".b", None, "token:2") == crc % COUNT


@pytest.mark.parametrize("text", [text for text in KNOWN_CRCS if b"\r" not in text])
def test_a_message_goes_where_its_key_hashes(twin: ModuleType, text: bytes) -> None:
    block = b"NATS/1.0\r\nLiftlog-Key: " + text + b"\r\n\r\n"
    outcome = run(twin, [hmsg("s", block=block)], [Route(1, {}, "key", COUNT)])
    assert list(outcome.rows) == [("orders", KNOWN_CRCS[text] % COUNT)]


@pytest.mark.parametrize("size", range(1, 40))
def test_subjects_of_every_length_hash_the_same_in_both_twins(twin: ModuleType, size: int) -> None:
    subject = random.Random(size).randbytes(size).hex()[:size]
    outcome = run(twin, [msg(subject)], [Route(1, {}, "subject", COUNT)])
    assert list(outcome.rows) == [("orders", crc32(subject.encode()) % COUNT)]


@pytest.mark.parametrize(
    "partition_by, subject, key, hashed",
    [
        ("key", "a.b", "k", b"k"),
        ("key", "a.b", "", b""),
        ("key", "a.b", None, b"a.b"),
        ("subject", "a.b", "k", b"a.b"),
        ("token:1", "a.b.c", "k", b"a"),
        ("token:2", "a.b.c", "k", b"b"),
        ("token:3", "a.b.c", "k", b"c"),
        ("token:4", "a.b.c", "k", b"a.b.c"),
        ("token:1", "abc", None, b"abc"),
        ("token:999", "a.b", None, b"a.b"),
    ],
)
def test_what_is_hashed(twin: ModuleType, partition_by: str, subject: str, key: str | None, hashed: bytes) -> None:
    wire = msg(subject) if key is None else hmsg(subject, b"", ("Liftlog-Key", key))
    raw = None if key is None else key.encode()
    assert partition_of(subject.encode(), raw, partition_by) == crc32(hashed) % COUNT
    outcome = run(twin, [wire], [Route(1, {}, partition_by, COUNT)])
    assert list(outcome.rows) == [("orders", crc32(hashed) % COUNT)]


def test_order_per_key_holds_and_nothing_is_lost(twin: ModuleType) -> None:
    rng = random.Random(5)
    keys = [f"key{rng.randrange(40)}" for _ in range(800)]
    wire = b"".join(hmsg("a", b"%d" % i, ("Liftlog-Key", key)) for i, key in enumerate(keys))
    outcome = run(twin, [wire], [Route(1, {}, "key", 8)])
    assert sum(map(len, outcome.rows.values())) == 800
    for (_, partition), rows in outcome.rows.items():
        numbers = [int(row["value"]) for row in rows]
        assert numbers == [i for i, key in enumerate(keys) if crc32(key.encode()) % 8 == partition]


def test_a_broker_keeps_only_the_partitions_that_it_leads(twin: ModuleType) -> None:
    """And answers only for them: another broker gets the same messages."""
    led = [builder(twin, partition=partition, partition_count=4) for partition in (1, 2)]
    intake = twin.Intake()
    intake.route(1, led, partition_by="subject")
    subjects = [f"s{i}" for i in range(100)]
    refused = b"".join(hmsg(subject, b"", ("Liftlog-Ack", "?"), reply=subject) for subject in subjects)
    intake.feed(b"".join(map(msg, subjects)) + refused, 1)
    here = [subject for subject in subjects if crc32(subject.encode()) % 4 in (1, 2)]
    assert sum(b.record_count for b in led) == len(here)
    counters = intake.counters
    assert counters["skipped_other_partition"] == 2 * (100 - len(here))
    assert counters["refused_bad_option"] == len(here)
    assert intake.refusals().count(b"PUB ") == len(here)


def test_one_partition_of_many_is_still_chosen_by_hash(twin: ModuleType) -> None:
    only = builder(twin, partition=0, partition_count=2)
    intake = twin.Intake()
    intake.route(1, [only], partition_by="subject")
    intake.feed(b"".join(msg(f"s{i}") for i in range(50)), 1)
    assert only.record_count == sum(crc32(b"s%d" % i) % 2 == 0 for i in range(50))


@pytest.mark.parametrize("wrong", ["", "keys", "token", "token:", "token:0", "token:-1", "token:x", "token:\u0661"])
def test_an_unknown_way_to_partition_is_refused(twin: ModuleType, wrong: str) -> None:
    with pytest.raises(ValueError, match="partition_by"):
        twin.Intake().route(1, [builder(twin)], partition_by=wrong)
