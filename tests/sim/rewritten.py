"""The legal remains of a log that replicas write anew, each for itself: which batch stands for which committed ones,
and what a compaction of the committed records may lack.

A batch that no leader has appended was written anew. It is legal if

J   it covers whole committed batches of its own leader epoch, and each record in it is the committed one;
K   a record is missing only from a compacted log, and only if its key has a later committed one, or if it is the newest
    one of its key, a tombstone, and nothing of that key is left: so each key ends as it was committed; the later one
    may have been given up by an operator since, who chose a replica that had copied the compacted batch, but not it;
M   below the mark of compaction no key stands twice;
G   a value is missing only for a newer record of its key below the mark that says so (`clean_state`), whether or not
    the replica has that record already.

J, M and G hold of any replica at any time, K of those that have all that is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from broker.api.batch import decode_batch
from broker.storage.rewrite.clean_state import load_clean_state
from tests.sim.stored import Stored, stored_of

if TYPE_CHECKING:
    from broker.metadata.partition import PartitionState
    from tests.sim.checker import Known
    from tests.sim.driven.seen import Seen

Row = tuple[bytes | None, bytes | None]
"""Key and value; without a value it is a tombstone."""


@dataclass
class Rewritten:
    """The batches of one partition.

    Attributes:
        is_compacted: Records may be missing.
        written: Each batch that a leader has appended, with its records.
        given_up: Batches that were committed, and given up by an operator, by their first offset.
    """

    is_compacted: bool
    written: dict[Stored, tuple[Row, ...]] = field(default_factory=dict)
    given_up: dict[int, Stored] = field(default_factory=dict)
    covered: dict[Stored, list[Stored]] = field(default_factory=dict)


class Illegal(Exception):
    """Says what is not as it must be."""


@lru_cache(5_000)
def _records_of(message: bytes) -> tuple[tuple[int, Row], ...]:
    rows: Any = decode_batch(message)
    offsets, keys, values = (rows.column(name).to_pylist() for name in ("offset", "key", "value"))
    return tuple(zip(offsets, zip(keys, values, strict=True), strict=True))


def records_of(message: bytes | memoryview) -> tuple[tuple[int, Row], ...]:
    """Offset, key and value of each record. Replicas hold the same messages, and are looked at again and again."""
    return _records_of(bytes(message))


def unfold(known: Known, message: bytes | memoryview) -> list[Stored]:
    """The batches that were appended where this one stands: itself, or those that it was made of.

    Raises:
        Illegal: J.
    """
    one, rewritten = stored_of(message), known.rewritten
    if rewritten is None or one in rewritten.written:
        return [one]
    if one not in rewritten.covered:
        try:
            rewritten.covered[one] = _covered(known, rewritten, one, message)
        except Illegal:
            if not known.is_lost:  # else it is not known what was committed
                raise
            return [one]
    return rewritten.covered[one]


def _covered(known: Known, rewritten: Rewritten, one: Stored, message: bytes | memoryview) -> list[Stored]:
    covered: list[Stored] = []
    truth: dict[int, Row] = {}
    at = one.first
    while at < one.next:
        there = [batch for batch in (known.at.get(at), rewritten.given_up.get(at)) if batch is not None]
        batch = next((batch for batch in there if batch.epoch == one.epoch), None)
        if batch is None or batch.next > one.next:
            raise Illegal(f"J: {one} does not stand for what was committed at {at}: {there}")
        truth.update(zip(range(batch.first, batch.next), rewritten.written[batch], strict=True))
        covered.append(batch)
        at = batch.next
    for offset, row in records_of(message):
        if truth.get(offset) != row:
            raise Illegal(f"J: {one} has {row} at {offset}, committed is {truth.get(offset)}")
    return covered


def committed_rows(known: Known) -> dict[int, Row]:
    """All committed records, in order."""
    assert known.rewritten is not None
    written = known.rewritten.written
    return {batch.first + at: row for _, batch in sorted(known.at.items()) for at, row in enumerate(written[batch])}


def _given_up(rewritten: Rewritten) -> Iterator[tuple[int, Row]]:
    for batch in rewritten.given_up.values():
        yield from enumerate(rewritten.written[batch], batch.first)


def check_marks(found: dict[int, Row], compacted_to: int) -> None:
    """Raise Illegal: M."""
    seen: dict[bytes, int] = {}
    for offset, (key, _) in sorted(found.items()):
        if offset < compacted_to and key is not None and seen.setdefault(key, offset) != offset:
            raise Illegal(f"M: {key!r} stands at {seen[key]} and at {offset}, below the mark {compacted_to}")


def check_left(known: Known, found: dict[int, Row], start: int) -> None:
    """Check a replica that has all that is committed. `found`: its records at or above `start`.

    Raises:
        Illegal: K, or J.
    """
    assert known.rewritten is not None
    truth = committed_rows(known)
    later = sorted([*truth.items(), *_given_up(known.rewritten)], key=lambda item: item[0])
    newest = {key: offset for offset, (key, _) in later if key is not None}
    left = {found[offset][0] for offset in truth if offset in found}
    for offset, row in truth.items():
        if offset < start:
            continue
        if offset in found:
            if found[offset] != row:
                raise Illegal(f"J: it has {found[offset]} at {offset}, committed is {row}")
            continue
        key, value = row
        if key is None or not known.rewritten.is_compacted:
            raise Illegal(f"K: {row} at {offset} is gone, and not for a newer one")
        if newest[key] == offset and (value is not None or key in left):
            stays = {at: found[at] for at in truth if at in found and found[at][0] == key}
            raise Illegal(f"K: the newest record of {key!r} at {offset} is gone: {value!r}; what is there: {stays}")


def check_superseded(known: Known, found: dict[int, Row], start: int, end: int, superseded_to: int) -> None:
    """Raise Illegal: G. `found`: the records of a log that has committed ones in [start, end)."""
    assert known.rewritten is not None
    truth = committed_rows(known)
    newer: dict[bytes, int] = {}
    for offset, (key, value) in sorted([*truth.items(), *_given_up(known.rewritten)], reverse=True, key=lambda i: i[0]):
        if key is None:
            continue
        after = newer.get(key)
        newer[key] = offset
        is_gone = start <= offset < end and offset in truth and offset not in found and value is not None
        if is_gone and after is None:
            raise Illegal(f"G: {key!r} at {offset} is gone for no newer one")
        if is_gone and after is not None and after >= superseded_to:
            raise Illegal(f"G: {key!r} at {offset} is gone for {after}, and the mark of that is {superseded_to}")


class OfRewrites:
    """A part of the checker: what replicas write anew."""

    known: dict[str, Known]
    partitions: dict[str, PartitionState]
    fail: Callable[[str], None]

    def wrote(self, name: str, messages: Sequence[bytes | memoryview]) -> None:
        """A leader has appended these."""
        rewritten = self.known[name].rewritten
        if rewritten is not None:
            for message in messages:
                rewritten.written[stored_of(message)] = tuple(row for _, row in records_of(message))

    def unfolded(self, name: str, who: str, message: bytes | memoryview) -> list[Stored]:
        """The batches that were appended where this one stands."""
        try:
            return unfold(self.known[name], message)
        except Illegal as illegal:
            self.fail(f"R4: {name}: {who}: {illegal}")
        return []

    def is_marked(self, replica: Seen) -> None:
        """M: no mark of compaction tells of more than there is, on the disk or as it is told."""
        log = replica.log
        if log is not None and self.known[replica.name].rewritten is not None:
            mark = max(log.state.compacted_to, load_clean_state(log.state.disk, log.state.folder).cleaned_to)
            if mark > log.state.log_end_offset:
                who = f"{replica.name}: {replica.broker.name}"
                self.fail(f"R4: {who}: M: it ends at {log.state.log_end_offset}, and its mark of compaction is {mark}")

    def wrote_anew(self, replica: Seen) -> None:
        """A replica has compacted its log, or joined batches of it."""
        known, who, log = self.known[replica.name], replica.broker.name, replica.log
        if known.rewritten is None or known.is_lost or who in known.bad or log is None:
            return
        partition = self.partitions[replica.name]
        found: dict[int, Row] = {}
        for message in self._all_of(replica, log.state.log_end_offset):
            self.unfolded(replica.name, who, message)
            found.update(records_of(message))
        self._is_legal(replica, found, has_all=who in {*partition.isr, *partition.last_isr} and partition.has_led)

    def _all_of(self, replica: Seen, end: int) -> Iterator[memoryview]:
        log = replica.log
        at = log.state.log_start_offset if log is not None else end
        while at < end and not replica.is_damaged:
            read = replica._read(at, end, 1 << 20)
            if not read and not replica.is_damaged:
                self.fail(f"R4: {replica.name}: {replica.broker.name} cannot read {at}")
            yield from read
            at = stored_of(read[-1]).next if read else end

    def _is_legal(self, replica: Seen, found: dict[int, Row], *, has_all: bool) -> None:
        log, known = replica.log, self.known[replica.name]
        if log is None or replica.is_damaged:
            return
        start = log.state.log_start_offset
        try:
            check_marks(found, log.state.compacted_to)
            check_superseded(known, found, start, min(log.state.log_end_offset, known.end), log.state.superseded[0])
            if has_all:
                check_left(known, {at: row for at, row in found.items() if start <= at < known.end}, start)
        except Illegal as illegal:
            self.fail(f"R4: {replica.name}: {replica.broker.name}: {illegal}")
