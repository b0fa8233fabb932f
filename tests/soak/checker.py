"""The checks at the end of a soak. They know the public interfaces alone: HTTP by the Python client.

K1  The record at each acked (partition, offset) is the acked one; unless it was trimmed, expired, compacted or deleted.
K2  Each id is stored once per partition, within its window; over partitions, unless some were added meanwhile.
K3  Offsets are dense, outside of compaction, and nothing counts as lost.
K4  Each record that a reader saw is still there, or gone for one of the reasons of K1.
K5  Each batch of the sink that was committed is there once, whole, of one attempt.
K6  A message that was refused by an error that says that nothing is stored is not stored.
K7  Logs begin no later than the operator and retention may have made them begin.
K8  Each record that was published with the last sequence of its subject names the record before it (`chain.py`).
K9  All replicas have the same records (`replicas.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from broker.api.answers import PartitionDescription, StreamDescription
from broker.client import Client
from tests.soak.chain import check_chain
from tests.soak.ledger import History, Ledger, Message, Violation
from tests.soak.reader import identity_of
from tests.soak.sink import ROWS
from tests.support.processes import eventually

LATE_S = 30.0
"""So long a message may be on its way through NATS."""
COLUMNS = ["offset", "timestamp", "key", "headers", "value"]


@dataclass(slots=True)
class Stored:
    """One record as it is read."""

    offset: int
    time_us: int
    key: bytes | None
    identity: str


@dataclass
class Partition:
    """One partition as it is read."""

    stream: str
    incarnation: str
    partition: int
    log_start_offset: int
    high_watermark: int
    records: dict[int, Stored]
    newest: dict[bytes, int]


def check(client: Client, ledger: Ledger) -> dict[str, int]:
    """Read everything and hold it against the ledger; figures. Raises Violation."""
    figures: Counter[str] = Counter()
    for name, history in ledger.histories.items():
        description = settled(client, name)
        found = [_read(client, ledger, history, description.incarnation, p) for p in description.partitions]
        figures["records"] += sum(len(one.records) for one in found)
        by_id = {stored.identity: (one, stored) for one in found for stored in one.records.values()}
        messages = [m for m in ledger.messages.values() if m.stream == name]
        figures["acks checked"] += _check_acks(ledger, history, found, messages)
        for one in found:
            _check_begin(history, one)
            _check_once(ledger, history, one)
            figures["sights checked"] += _check_seen(ledger, history, one)
        _check_spread(history, found, ledger)
        for message in messages:
            if message.is_refused and message.identity in by_id:
                one, stored = by_id[message.identity]
                _violate(ledger, message, f"K6: {_place(one, stored.offset)} holds a record that was refused")
    figures["sink batches"] = _check_sink(client, ledger)
    figures["links"] = check_chain(client)
    return dict(figures)


def settled(client: Client, stream: str) -> StreamDescription:
    """A stream as it is described once each partition has a leader that answers."""

    def look() -> StreamDescription | None:
        found = client.describe(stream)
        return found if all(one.record_count is not None for one in found.partitions) else None

    found = eventually(look, what=f"leaders of {stream}")
    assert found is not None
    return found


def bounds(described: PartitionDescription) -> tuple[int, int]:
    """The first offset that is there, and the first one that is not committed."""
    start, end = described.log_start_offset, described.high_watermark
    assert start is not None
    assert end is not None
    return start, end


def _place(one: Partition, offset: int) -> str:
    return f"{one.stream}/{one.partition}/{offset}"


def _violate(ledger: Ledger, message: Message | None, text: str) -> None:
    if message is None:
        raise Violation(text)
    began_s = ledger.story.began_s
    times = ", ".join(
        f"{what} {at - began_s:.3f} s"
        for what, at in (("first sent", message.first_s), ("last sent", message.last_s), ("acked", message.acked_s))
        if at
    )
    raise Violation(f"{text} ({message.identity}: {times})", message.first_s, max(message.acked_s, message.last_s))


def _read(
    client: Client, ledger: Ledger, history: History, incarnation: str, described: PartitionDescription
) -> Partition:
    """Read one partition; K3, and that each value is that of its id."""
    one = Partition(history.name, incarnation, described.partition, *bounds(described), {}, {})
    expected = one.log_start_offset
    may_have_gaps = history.may_compact or (history.is_loose and bool(ledger.harmed_s))
    with client.read(history.name, partitions=[one.partition], columns=COLUMNS) as reader:
        for stored, value in _records(reader):
            if expected != stored.offset and not may_have_gaps:
                _violate(ledger, None, f"K3: {_place(one, expected)}: a gap up to {stored.offset}")
            expected = stored.offset + 1
            message = ledger.messages.get(stored.identity)
            if message is None or not message.is_as_stored(value):
                _violate(ledger, message, f"{_place(one, stored.offset)} holds no value of {stored.identity!r}")
            one.records[stored.offset] = stored
            if stored.key is not None:
                one.newest[stored.key] = stored.offset
    if expected < one.high_watermark and not may_have_gaps:
        _violate(ledger, None, f"K3: {_place(one, expected)}: nothing up to {one.high_watermark}")
    if described.lost_ranges and not (history.is_loose and ledger.harmed_s):
        _violate(ledger, None, f"K3: {one.stream}/{one.partition}: lost ranges {described.lost_ranges}")
    return one


def _records(reader: object) -> Iterator[tuple[Stored, bytes]]:
    for rows in reader:  # type: ignore[attr-defined]
        columns = [rows.column(name).to_pylist() for name in ("offset", "key", "headers", "value")]
        times = rows.column("timestamp").cast("int64").to_pylist()
        for (offset, key, headers, value), time_us in zip(zip(*columns, strict=True), times, strict=True):
            yield Stored(offset, time_us, key, identity_of(headers)), value


def _check_acks(ledger: Ledger, history: History, found: list[Partition], messages: list[Message]) -> int:
    """K1; return how many were looked at."""
    count = 0
    if history.is_loose and ledger.harmed_s:
        return 0
    for message in messages:
        if message.offset < 0 or message.first_s <= history.created_s:
            continue
        count += 1
        places = found if message.partition == -2 else [found[message.partition]]
        if any(_is_there(one, message) or _may_be_gone(history, one, message.offset, message.key) for one in places):
            continue
        there = [stored.identity for one in places if (stored := one.records.get(message.offset))]
        where = f"{history.name}/{message.partition}/{message.offset}"
        _violate(ledger, message, f"K1: acked at {where}, where stands {there or 'nothing'}")
    return count


def _is_there(one: Partition, message: Message) -> bool:
    stored = one.records.get(message.offset)
    return stored is not None and stored.identity == message.identity


def _may_be_gone(history: History, one: Partition, offset: int, key: str) -> bool:
    if offset < one.log_start_offset:
        return True  # K7 sees to it that it is not more than asked for
    return history.may_compact and offset not in one.records and one.newest.get(key.encode(), -1) > offset


def _check_begin(history: History, one: Partition) -> None:
    """K7."""
    if not history.may_expire and one.log_start_offset > history.trimmed.get(one.partition, 0):
        raise Violation(
            f"K7: {one.stream}/{one.partition} begins at {one.log_start_offset},"
            f" it was trimmed before {history.trimmed.get(one.partition, 0)}"
        )


def _check_once(ledger: Ledger, history: History, one: Partition) -> None:
    """K2 in one partition."""
    first: dict[str, Stored] = {}
    for stored in one.records.values():
        before = first.setdefault(stored.identity, stored)
        if before is stored:
            continue
        message = ledger.messages[stored.identity]
        until_s = _done_s(message)
        says_nothing = ledger.are_apart or any(message.first_s - 60 <= at <= until_s for at in ledger.clocks_set)
        apart_us = 1e6 * (until_s - message.first_s) if says_nothing else stored.time_us - before.time_us
        if message.repeats and apart_us >= history.least_window_ms(message.first_s, until_s) * 1_000:
            continue
        _violate(ledger, message, f"K2: {_place(one, before.offset)} and {stored.offset} hold the same id")


def _done_s(message: Message) -> float:
    """From when on nothing of it is on its way any more: repeats may come after the ack."""
    return message.acked_s + LATE_S if message.acked_s else float("inf")


def _check_spread(history: History, found: list[Partition], ledger: Ledger) -> None:
    """K2 over partitions."""
    places: dict[str, list[Partition]] = defaultdict(list)
    for one in found:
        for identity in {stored.identity for stored in one.records.values()}:
            places[identity].append(one)
    for identity, several in places.items():
        message = ledger.messages[identity]
        until_s = _done_s(message)
        if len(several) > 1 and not any(a <= until_s and message.first_s <= b for a, b in history.grown):
            _violate(ledger, message, f"K2: {history.name}: {identity} is in {[one.partition for one in several]}")


def _check_seen(ledger: Ledger, history: History, one: Partition) -> int:
    """K4; return how many were looked at."""
    if history.is_loose and ledger.harmed_s:
        return 0
    seen = ledger.seen.get((one.stream, one.incarnation, one.partition), {})
    for offset, identity in seen.items():
        stored = one.records.get(offset)
        message = ledger.messages.get(identity)
        if stored is not None and stored.identity == identity:
            continue
        if stored is None and message and _may_be_gone(history, one, offset, message.key):
            continue
        now = stored.identity if stored else "nothing"
        _violate(ledger, message, f"K4: at {_place(one, offset)} a reader saw {identity}, now stands there {now}")
    return len(seen)


def _check_sink(client: Client, ledger: Ledger) -> int:
    """K5; return how many batches there are."""
    rows: Counter[tuple[int, int]] = Counter()
    attempts: dict[int, set[int]] = defaultdict(set)
    for batch in client.read("sunk", columns=["headers"]):
        for headers in batch.column("headers").to_pylist():
            batch_id, row, attempt = map(int, identity_of(headers).split("-")[1:])
            rows[batch_id, row] += 1
            attempts[batch_id].add(attempt)
    twice = [place for place, count in rows.items() if count > 1]
    if twice:
        raise Violation(f"K5: rows of the sink are there twice: {twice[:5]}")
    for batch_id, found in attempts.items():
        count = sum(1 for place in rows if place[0] == batch_id)
        decided, wanted = ledger.batches.get(batch_id, (next(iter(found)), ROWS))
        if found != {decided} or count != wanted:
            raise Violation(f"K5: batch {batch_id} has {count} rows of the attempts {found}, {decided} was committed")
    missing = sorted(set(ledger.batches) - set(attempts))
    if missing:
        raise Violation(f"K5: batches that were committed are not there: {missing[:5]}")
    return len(attempts)
