"""How far consumer groups are: records of the offset stream, under keys that no consumer can have.

Key `//group/` and then the group, the incarnation of its stream, and the partition, with `/` between; value a JSON
object; the newest record of a key counts. Which records are made, `fencing.py` says.

A1  No consumer can be stored under such a key: no part of a consumer's key is empty. So nobody moves a group but who
    begins and commits under its epochs, whatever consumers are called.
A2  A stream that is made anew has another incarnation: its group begins anew there, and what was committed of the
    former one moves nothing.
A3  A record has the leader epoch of the record before its offset where its member has read that, or a later one from
    before that record could be replaced. Whoever begins there sees by it whether others were written in the place of
    those that are done: these have a greater one. Releases below feature level 15
    take a record with it for none of theirs, so it is stored when all brokers know it.

Format: docs/reference/storage.md, section "Offset stream".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from broker.api.plain import parse_json
from broker.api.validation import build
from broker.groups.fencing import GroupProgress

PROGRESS_VERSION: Final = 1
_PREFIX: Final = b"//group/"
Read = tuple[str, int]
"""A partition that is read: the incarnation of its stream, and its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """The newest record of a partition of a group.

    Attributes:
        offset: The next one that is to be read; None: the group's offsets were removed.
        leader_epoch: Of the record before `offset`, as it was read; -1: not known (A3).
        epoch: Of the grant under which it was stored.
        stream: The name of the stream.
        timestamp_us: When it was stored.
    """

    group: str
    incarnation: str
    partition: int
    epoch: int
    offset: int | None
    stream: str
    timestamp_us: int = 0
    leader_epoch: int = -1

    @property
    def key(self) -> bytes:
        """The record's key."""
        return _PREFIX + "/".join((self.group, self.incarnation, str(self.partition))).encode()

    @property
    def read(self) -> Read:
        """What is read."""
        return self.incarnation, self.partition

    def value(self) -> bytes:
        """The record's value."""
        fields: dict[str, Any] = {"offset": self.offset, "epoch": self.epoch, "stream": self.stream}
        fields["timestamp_us"] = self.timestamp_us
        if self.leader_epoch >= 0:
            fields["leader_epoch"] = self.leader_epoch
        return json.dumps({"v": PROGRESS_VERSION, **fields}, separators=(",", ":")).encode()


def decode_group_offset(key: bytes, value: bytes) -> GroupOffset | None:
    """One record; None if it is none that this release understands."""
    if not key.startswith(_PREFIX):
        return None
    try:
        group, incarnation, partition = key.removeprefix(_PREFIX).decode().split("/")
        fields: dict[str, Any] = parse_json(value)
        if fields.pop("v") != PROGRESS_VERSION or not (partition.isascii() and partition.isdecimal()):
            return None
        names = {"group": group, "incarnation": incarnation, "partition": int(partition)}
        found = build(GroupOffset, {**fields, **names})
        return found if found.key == key else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


@dataclass(slots=True)
class GroupTable:
    """The newest record of each key."""

    _rows: dict[str, dict[Read, GroupOffset]] = field(default_factory=dict)

    def apply(self, batch: pa.RecordBatch) -> None:
        """Take in the records of one batch of the offset stream."""
        values = batch.column("value")
        for row, key in enumerate(batch.column("key").to_pylist()):
            if key is not None and key.startswith(_PREFIX):
                self._put(key, values[row].as_py())

    def _put(self, key: bytes, value: bytes | None) -> None:
        if value is not None:
            if entry := decode_group_offset(key, value):
                self._rows.setdefault(entry.group, {})[entry.read] = entry
            return
        parts = key.removeprefix(_PREFIX).decode(errors="replace").split("/")
        if len(parts) == 3 and parts[2].isdigit() and (rows := self._rows.get(parts[0])):
            rows.pop((parts[1], int(parts[2])), None)
            if not rows:
                del self._rows[parts[0]]

    def groups(self) -> list[str]:
        """Those that have offsets, sorted."""
        return sorted(name for name, rows in self._rows.items() if any(row.offset is not None for row in rows.values()))

    def of(self, group: str) -> dict[Read, GroupOffset]:
        """All records of a group."""
        return dict(self._rows.get(group, {}))

    def rows(self) -> list[GroupOffset]:
        """All records. From any thread."""
        return [row for rows in list(self._rows.values()) for row in list(rows.values())]

    def progress(self, group: str, read: Read) -> GroupProgress:
        """Where a partition is."""
        found = self._rows.get(group, {}).get(read)
        return GroupProgress() if found is None else GroupProgress(found.epoch, found.offset, found.leader_epoch)

    def removed(self, before_us: int) -> list[GroupOffset]:
        """Those without an offset that were stored before a time: nobody can hold a grant of before any more."""
        return [row for row in self.rows() if row.offset is None and row.timestamp_us < before_us]
