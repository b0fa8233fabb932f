"""Goal: a filter never hides a batch that holds what is wanted, hides nearly all others, and is bounded.

Method: filters of batches of known content, asked for what is there and for what is not. Whole reads of any log:
tests/properties/storage/test_select.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from broker.api.conditions import Conditions
from broker.api.schema import HEADERS_TYPE, SCHEMA
from broker.storage.blooms import BloomCache, Blooms, Kind, entries_of, questions_of
from broker.storage.disk import OsDisk
from broker.storage.read import _runs, _within
from broker.storage.rows import RowBatch
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.segments.index import ENTRY, IndexView
from broker.storage.segments.segment import Segment
from broker.storage.select import select
from tests.support.encrypted_logs import encrypted
from tests.support.logs import commit, create_log
from tests.support.simdisk import SimDisk


def rows(subjects: Sequence[str], keys: Sequence[bytes | None]) -> pa.RecordBatch:
    n = len(subjects)
    columns = [
        pa.array(range(n), pa.int64()),
        pa.array(range(n), pa.timestamp("us", "UTC")),
        pa.array(subjects),
        pa.array(keys, pa.binary()),
        pa.nulls(n, pa.binary()),
        pa.nulls(n, HEADERS_TYPE),
        pa.nulls(n, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)


def index_of(crcs: Sequence[int], lengths: Sequence[int] | None = None) -> IndexView:
    """Batches of ten offsets each, one behind the other."""
    entries = np.zeros(len(crcs), ENTRY)
    entries["first_offset"], entries["crc"] = np.arange(len(crcs)) * 10, crcs
    entries["length"] = 1_000 if lengths is None else lengths
    entries["position"] = 568 + np.cumsum(entries["length"]) - entries["length"]
    return IndexView(entries)


def may_hold(batch: pa.RecordBatch, wanted: Conditions) -> bool:
    cache, segment = BloomCache(1 << 20), Segment("/x", 0)
    questions = questions_of(wanted)
    for kind in questions:
        cache.learn(segment, kind, [(0, 7, entries_of(batch, kind))])
    may = cache.may_hold(segment, index_of([7]), 0, 1, questions)
    return may is None or bool(may[0])


@pytest.mark.parametrize(
    "pattern, may",
    [
        ("orders.eu.paid", True),
        ("orders.*.paid", True),
        ("orders.>", True),
        (">", True),
        ("*.*.*", True),
        ("a.b.c.d.e.f.g.h.i.j", True),  # tokens from the ninth on are not in a filter
        ("a.b.c.d.e.f.g.h.x.>", True),
        ("*.*.*.*.*.*.*.*.x", True),
        ("orders.eu", False),
        ("orders.us.paid", False),
        ("orders.paid.eu", False),
        ("*.paid.>", False),
        ("eu.>", False),
    ],
)
def test_patterns_ask_for_the_tokens_that_they_name(pattern: str, may: bool) -> None:
    batch = rows(["orders.eu.paid", "orders.eu.paid", "a.b.c.d.e.f.g.h.i.j"], [b"k", None, b""])
    assert may_hold(batch, Conditions(subjects=(pattern,))) == may
    assert may_hold(batch, Conditions(subjects=("nothing.here", pattern))) == may


def test_a_batch_needs_key_and_subject_and_one_without_rows_has_nothing() -> None:
    batch = rows(["a", "b"], [b"", None])
    assert may_hold(batch, Conditions(subjects=("a",), key=b""))
    assert not may_hold(batch, Conditions(subjects=("a",), key=b"k"))
    assert not may_hold(batch, Conditions(subjects=("c",), key=b""))
    assert not may_hold(rows(["a"], [None]), Conditions(key=b"")), "no key is another thing than an empty one"
    assert not may_hold(rows([], []), Conditions(key=b""))
    assert may_hold(rows([], []), Conditions(since_us=0)), "times are not asked here"


def test_all_that_is_there_is_found_and_hardly_anything_else() -> None:
    rng = random.Random(1)
    held = [rng.randbytes(rng.choice([0, 1, 8, 13, 40, 300])) for _ in range(3_000)]
    blooms = Blooms.of([(0, 1, entries_of(rows(["s"] * len(held), held), Kind.KEYS))])
    index = index_of([1])

    def asked(key: bytes) -> bool:
        return bool(blooms.may_hold(index, 0, 1, questions_of(Conditions(key=key))[Kind.KEYS])[0])

    assert all(map(asked, held))
    others = {rng.randbytes(13) for _ in range(4_000)} - set(held)
    assert sum(map(asked, others)) < 0.04 * len(others)
    assert blooms.nbytes < 2 * len(held)


def test_a_filter_counts_for_the_bytes_that_it_was_made_of() -> None:
    cache, segment, kind = BloomCache(1 << 20), Segment("/x", 0), Kind.KEYS
    has, lacks = entries_of(rows(["s"], [b"k"]), kind), entries_of(rows(["s"], [b"other"]), kind)
    asked = questions_of(Conditions(key=b"k"))

    def may(crcs: Sequence[int], begin: int = 0) -> list[bool] | None:
        found = cache.may_hold(segment, index_of(crcs), begin, len(crcs), asked)
        return None if found is None else found.tolist()

    assert may([1, 2, 3]) is None
    cache.learn(segment, kind, [(10, 2, lacks), (20, 3, has)])
    assert may([1, 2, 3]) == [True, False, True]
    cache.learn(segment, kind, [(0, 1, lacks)])  # a read from further up has come first
    assert may([1, 2, 3, 4]) == [False, False, True, True]
    assert may([1, 9, 3], 1) == [True, True], "it was cut off, and something else stands there"
    cache.learn(segment, kind, [(10, 9, lacks)])
    assert may([1, 9, 3]) == [False, False, True]
    assert cache.may_hold(Segment("/x", 0), index_of([1, 9, 3]), 0, 3, asked) is None, "another file of that name"


def test_memory_is_bounded_and_the_segment_that_was_asked_last_stays() -> None:
    kind, entries = Kind.KEYS, entries_of(rows(["s"] * 100, [b"%d" % n for n in range(100)]), Kind.KEYS)
    cache = BloomCache(1_000)
    segments = [Segment("/x", n) for n in range(20)]
    for segment in segments:
        cache.learn(segment, kind, [(0, 1, entries)])
        assert cache.of(segments[0], kind) is not None
        assert cache.byte_count <= 1_000
    assert cache.of(segments[-1], kind) is not None
    assert cache.of(segments[1], kind) is None
    cache.learn(segments[0], kind, [(n, 1, entries) for n in range(1, 40)])
    assert cache.byte_count == 0, "it is more than all that may be kept"


def test_places_of_batches_that_are_wanted() -> None:
    """Against one that looks at each batch in turn."""
    rng = random.Random(2)
    for _ in range(300):
        n = rng.randint(1, 12)
        index = index_of([0] * n, [rng.randrange(1, 5) * 8 for _ in range(n)])
        if rng.random() < 0.5:
            index.entries["position"] += np.cumsum([rng.choice([0, 0, 8]) for _ in range(n)])
            index.contiguous = False
        begin = rng.randrange(n)
        may = np.array([rng.random() < 0.6 for _ in range(begin, n)])
        bytes_max, at_least_one = rng.randrange(-8, 100), rng.random() < 0.5
        end = _within(index, begin, n, may, bytes_max, at_least_one=at_least_one)
        chosen, size = [], 0
        for at in range(begin, n):
            if may[at - begin]:
                size += int(index.entries["length"][at])
                if size > max(0, bytes_max) and (chosen or not at_least_one):
                    break
                chosen.append(at)
        assert [at for at in range(begin, end) if may[at - begin]] == chosen
        runs = _runs(index, begin, end, may)
        assert [at for start, stop in runs for at in range(start, stop)] == chosen
        for start, stop in runs:
            assert index.end_of(stop - 1) - index.positions[start] == index.entries["length"][start:stop].sum()


def test_a_second_read_looks_at_what_may_hold_it_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    log = create_log(OsDisk(), settings=LogSettings(segment_bytes=1 << 15), folder=f"{tmp_path}/log")
    for step in range(100):
        batch = rows(["s"] * 10, [b"%d" % (10 * step + n) for n in range(10)])
        log.append([RowBatch(batch.drop_columns(["offset"]))], leader_epoch=1, now_us=step)
        commit(log)
    wanted = Conditions(key=b"517")

    def read() -> tuple[list[int], int]:
        with log.reader.read(0, questions=questions_of(wanted)) as plan:
            looked_at = plan.bytes
            select(plan, wanted, lambda _: None, asked=0)
            assert plan.next_offset == log.state.high_watermark
            return [part.length for part in plan.ranges], looked_at

    first, all_bytes = read()
    assert len(first) == 1
    again, some_bytes = read()
    assert again == first
    assert some_bytes < all_bytes / 20
    log.close()


def test_nothing_is_learnt_of_an_encrypted_log_and_all_of_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5. Seen before: it was learnt, never asked for, and took the room of others."""
    cache = BloomCache(1 << 20)
    monkeypatch.setattr("broker.storage.select.BLOOMS", cache)
    monkeypatch.setattr("broker.storage.read.BLOOMS", cache)
    log = create_log(SimDisk(), settings=encrypted(LogSettings()))
    for step in range(3):
        log.append([RowBatch(rows(["s"], [b"%d" % step]).drop_columns(["offset"]))], leader_epoch=1, now_us=step)
        commit(log)
    wanted = Conditions(key=b"1")
    for _ in range(2):
        with log.reader.read(0, questions=questions_of(wanted)) as plan:
            assert plan.batch_count == 3
            select(plan, wanted, lambda _: None, asked=0)
            assert (plan.batch_count, plan.first_offset) == (1, 1)
    assert cache.byte_count == 0
