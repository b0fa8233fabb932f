"""The compiled checks. Goal: they say of any bytes what `verify_batch` and `verify_projected` say, error text and all.

Method: right messages of all kinds, then each with bytes changed, cut off or put behind, with the CRC left wrong or
made right again. Of some columns every choice is made; what such a message begins with is the same, byte by byte.
"""

from __future__ import annotations

import random
import re
import struct
from dataclasses import replace
from itertools import combinations

import pytest

from broker.api import columns as twins
from broker.api.batch import (
    BODY_LENGTH_AT,
    BUFFERS_AT,
    CRC_AT,
    FIELDS,
    HEADER_BYTES,
    VALUE_AT,
    VALUE_BYTES,
    BatchHeader,
    encode_batch,
    seal,
    verify_batch,
)
from broker.api.checked import begun, verified, verified_known, verified_projected
from broker.api.columns import Columns, columns_in, head_bytes, verify_projected
from broker.api.errors import BadBatch, LiftlogError
from broker.api.schema import SCHEMA
from tests.support.effort import seeded
from tests.support.messages import projected
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


def outcome(check: object, data: object, *more: object) -> object:
    try:
        return check(data, *more, where="here: ")  # type: ignore[operator]
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


LIES = [-1, 1, 8, 1 << 31, 1 << 48, (1 << 48) + 8, 1 << 62, (1 << 63) - 8, (1 << 63) - 1, -(1 << 63)]
CHOICES = [columns_in(some) for n in range(len(SCHEMA)) for some in combinations(SCHEMA.names[1:], n)]


def known_of(message: bytes) -> bytes:
    known = twins.known_of(message)
    assert known is not None
    return known


def some_of(message: bytes, columns: Columns) -> bytes:
    """As a broker makes it."""
    begins, runs = begun(message[: head_bytes(message)], known_of(message), columns)
    body = message[head_bytes(message) :]
    return begins + b"".join(body[start:end] for start, end in runs)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_known_of_columns_is_the_same(seed: int) -> None:
    rng = random.Random(seed)
    message = random_message(rng)
    assert verified_known(message) == twins.verify_known(message) == (verify_batch(message), known_of(message))
    for _ in range(30):
        changed = bytearray(message)
        if rng.random() < 0.5:
            changed[rng.choice([rng.randrange(320), rng.randrange(len(changed))])] ^= 1 << rng.randrange(8)
        else:
            at = rng.choice([BODY_LENGTH_AT, BUFFERS_AT + 8 * rng.randrange(50)])
            struct.pack_into("<q", changed, at, rng.choice(LIES))
        if rng.random() < 0.5:
            seal(changed)
        if rng.random() < 0.2:
            changed = changed[: rng.randrange(len(changed))]
        assert outcome(verified_known, changed) == outcome(twins.verify_known, changed)


@pytest.mark.parametrize("seed", range(6))
def test_some_columns_begin_as_by_the_twin(seed: int) -> None:
    message = random_message(random.Random(seed))
    head, known = message[: head_bytes(message)], known_of(message)
    for columns in CHOICES:
        assert begun(head, known, columns) == twins.begun(head, known, columns), columns
        assert begun(memoryview(bytearray(head)), known, columns) == twins.begun(head, known, columns), columns
        assert some_of(message, columns) == projected(message, columns), columns


@pytest.mark.parametrize("seed", range(20))
def test_right_messages_of_some_columns_have_the_header_of_their_batch(seed: int) -> None:
    message = random_message(random.Random(seed))
    for columns in CHOICES:
        some = some_of(message, columns)
        assert verified_projected(some, columns) == verify_projected(some, columns) == verify_batch(message)
        assert verified_projected(memoryview(bytearray(some)), columns) == verify_batch(message)


def same(changed: bytes | bytearray, columns: Columns) -> bool:
    """Whether both refuse it, in the same words; or both take it, for the same."""
    by_both = outcome(verified_projected, changed, columns), outcome(verify_projected, changed, columns)
    assert by_both[0] == by_both[1]
    return isinstance(by_both[0], tuple)


def test_a_flipped_bit_of_some_columns_is_judged_as_by_the_twin() -> None:
    rng = random.Random(seeded(259))
    columns = columns_in(["timestamp", "key"])
    some = bytearray(some_of(bytes(encode_batch(random_rows(rng, 9), random_header(rng, 9))), columns))
    for at in range(len(some)):
        bit = 1 << rng.randrange(8)
        some[at] ^= bit
        assert same(some, columns), at
        some[at] ^= bit


@pytest.mark.parametrize("seed", range(20))
def test_changed_messages_of_some_columns_are_judged_the_same(seed: int) -> None:
    rng = random.Random(seed)
    message = random_message(rng)
    columns = rng.choice(CHOICES)
    for _ in range(100):
        changed = bytearray(some_of(message, columns))
        for _ in range(rng.choice([1, 1, 3])):
            changed[rng.choice([rng.randrange(2 * 896), rng.randrange(len(changed))])] = rng.randrange(256)
        if rng.random() < 0.2:
            changed = changed[: rng.randrange(len(changed))]
        if rng.random() < 0.2:
            changed += bytes(rng.choice([1, 8]))
        same(changed, rng.choice([columns, columns, rng.choice(CHOICES)]))


def with_fitting_crc(some: bytearray, columns: Columns) -> bytearray:
    """What the others add is made such that the CRC fits, if that is all that was wrong."""
    try:
        verify_projected(some, columns)
    except BadBatch as error:
        found = re.fullmatch(r"CRC-32C is (.{8}) by what came .* the batch says b'([0-9a-f]{8})'", str(error))
        if found is not None:
            (added,) = struct.unpack_from("<I", some, 2 * HEADER_BYTES)
            struct.pack_into("<I", some, 2 * HEADER_BYTES, added ^ int(found[1], 16) ^ int(found[2], 16))
    return some


@pytest.mark.parametrize("seed", range(20))
def test_numbers_that_no_batch_has_are_judged_the_same(seed: int) -> None:
    rng = random.Random(seed)
    columns = rng.choice(CHOICES)
    message = bytes(encode_batch(random_rows(rng, 5), random_header(rng, 5)))
    for _ in range(200):
        some = bytearray(some_of(message, columns))
        place = rng.choice([BODY_LENGTH_AT, BUFFERS_AT + 8 * rng.randrange(50)])
        for at in rng.choice([(HEADER_BYTES,), (0, HEADER_BYTES), (0,)]):
            struct.pack_into("<q", some, at + place, rng.choice(LIES))
        same(with_fitting_crc(some, columns), columns)


def with_longer_values(some: bytearray, columns: Columns, longer_by: int) -> bytearray:
    """`value` says to be longer, and all that lies behind it to be further on."""
    stored = some[HEADER_BYTES : 2 * HEADER_BYTES]
    places = list(struct.unpack_from("<50q", stored, BUFFERS_AT))
    last = twins.BUFFERS_OF["value"][1] - 1
    places[2 * last + 1] += -places[2 * last + 1] % 8 + longer_by
    for i in range(last + 1, 25):
        places[2 * i] += longer_by
    struct.pack_into("<50q", stored, BUFFERS_AT, *places)
    (body,) = struct.unpack_from("<q", stored, BODY_LENGTH_AT)
    struct.pack_into("<q", stored, BODY_LENGTH_AT, body + longer_by)
    some[HEADER_BYTES : 2 * HEADER_BYTES] = stored
    return some


SHORT = bytes(encode_batch(random_rows(random.Random(1), 1), BatchHeader(first_offset=0, last_offset=0)))
LONGER = [8, 1 << 20, 1 << 47, 1 << 48, (1 << 48) + 8, 1 << 60, (1 << 63) - (1 << 12)]


@pytest.mark.parametrize("longer_by", LONGER)
def test_a_column_that_is_not_there_may_be_as_long_as_it_says(longer_by: int) -> None:
    columns = columns_in(["timestamp", "reply"])
    some = with_longer_values(bytearray(some_of(SHORT, columns)), columns, longer_by)
    stored = some[HEADER_BYTES : 2 * HEADER_BYTES]
    spans = twins.spans_of(stored)
    assert spans is not None
    some[:HEADER_BYTES] = twins.projected_head(stored, columns, spans)
    assert same(some, columns)
    assert not same(with_fitting_crc(some, columns), columns)


@pytest.mark.parametrize("longer_by", [*LONGER, (1 << 63) - 800])
def test_a_column_that_is_there_may_not(longer_by: int) -> None:
    """Nor be so long that no header can say where the next one is."""
    columns = columns_in(["value"])
    assert same(with_longer_values(bytearray(some_of(SHORT, columns)), columns, longer_by), columns)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_versions_are_judged_the_same(version: int) -> None:
    rng = random.Random(version)
    columns = columns_in(["key"])
    some = bytearray(some_of(bytes(encode_batch(random_rows(rng, 5), random_header(rng, 5))), columns))
    for at in (VALUE_AT, HEADER_BYTES + VALUE_AT):
        some[at : at + 4] = b"%04x" % version
    assert same(with_fitting_crc(some, columns), columns) == (version != 1)
