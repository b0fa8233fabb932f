"""The compiled check of a message. Goal: it says of any bytes what `verify_batch` says, error text and all.

Method: right messages of all kinds, then each with bytes changed, cut off or put behind, with the CRC left wrong or
made right again.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from broker.api.batch import CRC_AT, FIELDS, VALUE_AT, VALUE_BYTES, BatchHeader, encode_batch, seal, verify_batch
from broker.api.errors import LiftlogError
from broker.client.reading.frames import verified
from tests.support.rows import random_rows


def random_header(rng: random.Random, count: int) -> BatchHeader:
    first = rng.choice([0, 7, (1 << 63) - 1000, rng.randrange(1 << 60)])
    header = BatchHeader(first_offset=first, last_offset=first + max(count, 1) - 1 + rng.choice([0, 9]))
    for name, digits in FIELDS.items():
        if name not in ("format_version", "first_offset", "last_offset", "crc") and rng.random() < 0.5:
            most = 1 << 4 * digits
            value = rng.choice([1, most - 1, rng.randrange(most)])
            if name == "max_timestamp_us":
                value -= most // 2
            header = replace(header, **{name: value})
    return header


def random_message(rng: random.Random) -> bytes:
    rows = random_rows(rng, rng.choice([0, 1, 30]))
    header = random_header(rng, rows.num_rows)
    return bytes(encode_batch(rows, header, compression=rng.choice(["none", "none", "none", "lz4"])))


def outcome(check: object, data: object) -> object:
    try:
        return check(data, where="here: ")  # type: ignore[operator]
    except LiftlogError as error:
        return type(error), str(error)


@pytest.mark.parametrize("seed", range(40))
def test_a_right_message_has_the_same_header(seed: int) -> None:
    message = random_message(random.Random(seed))
    assert verified(message) == verify_batch(message)
    assert verified(memoryview(bytearray(message))) == verify_batch(message)


def test_every_bit_of_the_header_value_matters_as_it_did() -> None:
    message = random_message(random.Random(1))
    for at in range(VALUE_AT, VALUE_AT + VALUE_BYTES):
        for bit in range(8):
            changed = bytearray(message)
            changed[at] ^= 1 << bit
            assert outcome(verified, changed) == outcome(verify_batch, changed), (at, bit)
            assert isinstance(outcome(verified, changed), tuple), (at, bit)
            if at < CRC_AT:
                seal(changed)
                assert outcome(verified, changed) == outcome(verify_batch, changed), (at, bit)


@pytest.mark.parametrize("seed", range(20))
def test_changed_messages_are_judged_the_same(seed: int) -> None:
    rng = random.Random(seed)
    message = random_message(rng)
    for _ in range(100):
        changed = bytearray(message)
        for _ in range(rng.choice([1, 1, 3])):
            changed[rng.choice([rng.randrange(320), rng.randrange(len(changed))])] = rng.randrange(256)
        if rng.random() < 0.2:
            changed = changed[: rng.randrange(len(changed))]
        if rng.random() < 0.2:
            changed += bytes(rng.choice([1, 8]))
        if rng.random() < 0.5 and len(changed) > CRC_AT + 8:
            seal(changed)
        assert outcome(verified, changed) == outcome(verify_batch, changed)
