"""Which commit groups each idempotent producer has appended to one partition. A table: no I/O, no clock.

A producer numbers its commit groups per partition: 0, 1, 2, ... within one epoch. The table keeps, per producer id,
its epoch and its newest groups, and so knows what a request is:

    kept  7 8 9 10 11      sequence 12     the next: append
                           7 ... 11        a repeat whose answer was lost: the offsets of then
                           13, 6           a gap, or too old to tell: out_of_sequence, `expected` 12

I1  One sequence of one epoch is appended at most once, and only after the one before it.
I2  A newer epoch begins at 0 and fences the older ones for good.
I3  A group of an unknown producer is never appended silently: a sequence above 0 of an id that the table does not have,
    because it never did, or has expired, is `unknown_producer`. (A 0 can be a first group; so nobody may repeat one for
    longer than an id is kept.)
I4  A new id is refused where there are `ids_max` of them already; none is forgotten before its time.

Ideas from Kafka's idempotent producer (KIP-98): the window of five, the epochs; from its trouble with expired ids
(KIP-360): an error that says so, after which a producer begins anew under another epoch or id.

Format of a snapshot: docs/reference/storage.md.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from broker.api.errors import (
    CorruptLog,
    OutOfSequence,
    Overloaded,
    ProducerFenced,
    UnknownFormatVersion,
    UnknownProducer,
)

WINDOW_GROUPS: Final = 5
SNAPSHOT_VERSION: Final = 1
_HEAD: Final = struct.Struct("<HI")  # version, producers
_PRODUCER: Final = struct.Struct("<QIqB")  # id, epoch, last used in microseconds, groups
_GROUP: Final = struct.Struct("<QQQ")  # sequence, first offset, next offset


@dataclass(frozen=True, slots=True)
class GroupStamp:
    """The producer of a commit group, and the group's number among its own. `producer_id` is at least 1."""

    producer_id: int
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Group:
    """One commit group of a producer: records [first_offset, next_offset)."""

    sequence: int
    first_offset: int
    next_offset: int


@dataclass(slots=True)
class _Producer:
    """Groups are never empty; by sequence, without gaps except where the log has lost one."""

    epoch: int
    last_used_us: int
    groups: list[Group]


class ProducerTable:
    """See the module. Not thread-safe: the log's append lock covers it."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()  # longest unused first

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, stamp: GroupStamp, *, record_count: int, now_us: int, expiry_us: int, ids_max: int) -> Group | None:
        """Say what a request is.

        Args:
            record_count: Records in the group that is to be appended.
            expiry_us: An id that was not used for so long is forgotten.
            ids_max: So many are kept (I4).
        Returns:
            None: append it, and `note` it. A group: it was appended already, there.
        Raises:
            ProducerFenced: a newer epoch has appended.
            OutOfSequence: neither the next group nor one of those kept, or another group under a number that was used.
            UnknownProducer: not known, and not a first group (I3).
            Overloaded: a new id, and the table is full.
        """
        self._expire(now_us - expiry_us)
        known = self._producers.get(stamp.producer_id)
        if known is not None and known.last_used_us <= now_us - expiry_us:  # a clock that jumps may leave it amidst
            del self._producers[stamp.producer_id]
            known = None
        if known is None:
            if stamp.sequence > 0:
                raise UnknownProducer(
                    f"producer {stamp.producer_id} is not known here, or has expired, and sequence {stamp.sequence} is"
                    " not its first: nothing was appended; register the producer again",
                    producer_id=stamp.producer_id,
                    sequence=stamp.sequence,
                )
            if len(self._producers) >= ids_max:
                raise Overloaded(
                    f"{len(self._producers)} producers are known to this partition: producers.ids_max={ids_max}",
                    key="producers.ids_max",
                    limit=ids_max,
                )
            return None
        if stamp.epoch < known.epoch:
            raise ProducerFenced(
                f"producer {stamp.producer_id} now has epoch {known.epoch}; epoch {stamp.epoch} is fenced",
                producer_id=stamp.producer_id,
                producer_epoch=known.epoch,
            )
        expected = known.groups[-1].sequence + 1 if stamp.epoch == known.epoch else 0
        if stamp.sequence == expected:
            return None
        found = next((g for g in known.groups if g.sequence == stamp.sequence), None) if expected else None
        if found is None or found.next_offset - found.first_offset != record_count:
            raise _out_of_sequence(stamp, expected, found, record_count)
        known.last_used_us = max(known.last_used_us, now_us)
        self._producers.move_to_end(stamp.producer_id)
        return found

    def note(
        self, stamp: GroupStamp, first_offset: int, next_offset: int, *, now_us: int, continues: bool = False
    ) -> None:
        """Remember a group that was appended, or is found in the log; `continues`: a further batch of the last one."""
        known = self._producers.get(stamp.producer_id)
        if known is not None and stamp.epoch < known.epoch:
            return
        group = Group(stamp.sequence, first_offset, next_offset)
        if known is None or stamp.epoch > known.epoch:
            self._producers[stamp.producer_id] = _Producer(stamp.epoch, now_us, [group])
        else:
            last = known.groups[-1]
            if continues and last.sequence == stamp.sequence:
                known.groups[-1] = Group(last.sequence, last.first_offset, next_offset)
            elif stamp.sequence <= last.sequence:  # found in the log: it had been forgotten in between
                known.groups = [group]
            else:
                known.groups = [*known.groups[1 - WINDOW_GROUPS :], group]
            known.last_used_us = max(known.last_used_us, now_us)
        self._producers.move_to_end(stamp.producer_id)

    def needs(self, stamp: GroupStamp, committed_end: int) -> bool:
        """Whether a batch in the log must keep this stamp, so that the log's headers alone still give this table.

        Not needed: what is older than the groups kept, of an epoch that is fenced, or of an id that is forgotten. As
        long as a group of its producer is not committed all are needed: the log may yet lose that one.
        """
        known = self._producers.get(stamp.producer_id)
        if known is None:
            return False
        if known.groups[-1].next_offset > committed_end or stamp.epoch > known.epoch:
            return True
        return stamp.epoch == known.epoch and stamp.sequence >= known.groups[0].sequence

    def snapshot(self) -> bytes:
        """The table as bytes; the same table gives the same bytes."""
        parts = [_HEAD.pack(SNAPSHOT_VERSION, len(self._producers))]
        for producer_id, known in self._producers.items():
            parts.append(_PRODUCER.pack(producer_id, known.epoch, known.last_used_us, len(known.groups)))
            parts += [_GROUP.pack(g.sequence, g.first_offset, g.next_offset) for g in known.groups]
        return b"".join(parts)

    @classmethod
    def restore(cls, data: bytes, *, now_us: int | None = None) -> ProducerTable:
        """The table that `snapshot` described.

        Args:
            now_us: The newest use becomes one of now, and the others are as much older as they were (`memory.M5`);
                None: as the snapshot has it.
        Raises:
            UnknownFormatVersion: a later release wrote it.
            CorruptLog: it is none.
        """
        table = cls()
        try:
            version, count = _HEAD.unpack_from(data)
            if version != SNAPSHOT_VERSION:
                raise UnknownFormatVersion(
                    f"producer table version {version}, this release reads {SNAPSHOT_VERSION}", version=version
                )
            at = _HEAD.size
            for _ in range(count):
                producer_id, epoch, last_used_us, group_count = _PRODUCER.unpack_from(data, at)
                at += _PRODUCER.size
                groups = [Group(*_GROUP.unpack_from(data, at + i * _GROUP.size)) for i in range(group_count)]
                at += group_count * _GROUP.size
                if not 1 <= group_count <= WINDOW_GROUPS:
                    raise CorruptLog(f"a producer table with {group_count} groups of one producer")
                table._producers[producer_id] = _Producer(epoch, last_used_us, groups)
        except struct.error as error:
            raise CorruptLog(f"a producer table of {len(data)} bytes that ends early") from error
        if at != len(data) or len(table) != count:
            raise CorruptLog(f"a producer table of {len(data)} bytes that is {at} long, with {len(table)} producers")
        if now_us is not None and table._producers:
            later_us = now_us - max(known.last_used_us for known in table._producers.values())
            for known in table._producers.values():
                known.last_used_us += later_us
        return table

    def _expire(self, unused_since_us: int) -> None:
        while self._producers:
            producer_id, known = next(iter(self._producers.items()))
            if known.last_used_us > unused_since_us:
                return
            del self._producers[producer_id]


def _out_of_sequence(stamp: GroupStamp, expected: int, found: Group | None, record_count: int) -> OutOfSequence:
    if found is not None:
        count = found.next_offset - found.first_offset
        why = f"was a group of {count} records, this one has {record_count}"
    else:
        why = "leaves a gap" if stamp.sequence > expected else "is too old to tell whether it was appended"
    return OutOfSequence(
        f"producer {stamp.producer_id}, epoch {stamp.epoch}: sequence {stamp.sequence} {why};"
        f" {expected} is expected, nothing was appended",
        producer_id=stamp.producer_id,
        sequence=stamp.sequence,
        expected=expected,
    )
