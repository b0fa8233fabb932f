"""A history of operations: one JSON object a line.

    {"index": 6, "type": "invoke", "process": 0, "f": "send", "value": [["send", 0, "a7"]], "time": 6000000}
    {"index": 7, "type": "ok",     "process": 0, "f": "send", "value": [["send", 0, [2, "a7"]]], "time": 7000000}
    {"index": 9, "type": "ok",     "process": 3, "f": "poll", "value": [["poll", {"0": [[2, "a7"]]}]], "time": 9000000}

A key is a partition. `fail` means surely not done, `info` that nobody knows. `assign` and `subscribe` name the keys
that a process polls from then on.

O1  Indexes rise, and each process has one operation at a time. A process that is no number is no client: it is passed
    over.
O2  A value is unique in its key, and all of a key are numbers or all are texts: the log is judged by values.
O3  Nothing is read that was never sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Key = int | str
Value = int | str
Placed = tuple[int | None, Value]
"""An offset, as far as it is known, and what is there."""


class Malformed(Exception):
    """The history cannot be judged; says where and why."""


@dataclass(slots=True)
class Op:
    """One end of an operation. `sent`, `polled`: by key, in order. `rebalanced`: keys that changed hands meanwhile."""

    index: int
    kind: str
    process: int
    f: str
    sent: dict[Key, list[Placed]] = field(default_factory=dict)
    polled: dict[Key, list[Placed]] = field(default_factory=dict)
    keys: frozenset[Key] = frozenset()
    rebalanced: frozenset[Key] = frozenset()

    def __str__(self) -> str:
        return f"{self.index} {self.kind} {self.f} by {self.process}"


def read(lines: Iterable[str]) -> list[Op]:
    """The completions of a history. Raises Malformed."""
    return list(_checked(_parsed(number, line) for number, line in enumerate(lines, 1) if line.strip()))


def _parsed(number: int, line: str) -> Op | None:
    try:
        said = json.loads(line)
        if type(said.get("process")) is not int:
            return None
        op = Op(said.get("index", number - 1), said["type"], said["process"], said["f"])
        if op.kind not in ("invoke", "ok", "fail", "info"):
            raise ValueError(f"type {op.kind!r}")
        if op.f in ("assign", "subscribe"):
            op.keys = frozenset(map(_key, said["value"]))
        elif op.f in ("send", "poll", "txn"):
            for micro in said["value"]:
                _take(op, micro)
        op.rebalanced = frozenset(_key(key) for each in said.get("rebalance-log", ()) for key in each["keys"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise Malformed(f"line {number}: {type(error).__name__}: {error}") from error
    return op


def _take(op: Op, micro: Sequence[Any]) -> None:
    if micro[0] == "send":
        _, key, what = micro
        op.sent.setdefault(_key(key), []).append((what[0], what[1]) if isinstance(what, list) else (None, what))
    elif micro[0] == "poll":
        for key, pairs in ((micro[1] if len(micro) > 1 else None) or {}).items():
            if pairs:
                op.polled.setdefault(_key(key), []).extend((offset, value) for offset, value in pairs)
    else:
        raise ValueError(f"micro-operation {micro[0]!r}")


def _key(key: Any) -> Key:
    """JSON has texts for the keys of an object: those that are numbers mean numbers."""
    if isinstance(key, str) and key.lstrip("-").isascii() and key.lstrip("-").isdigit() and len(key) < 19:
        return int(key)
    if not isinstance(key, int | str):
        raise TypeError(f"key {key!r}")
    return key


def _checked(ops: Iterable[Op | None]) -> Iterator[Op]:
    last = -1
    busy: set[int] = set()
    types: dict[Key, type] = {}
    for op in ops:
        if op is None:
            continue
        if op.index <= last:
            raise Malformed(f"index {op.index} comes after {last}")
        last = op.index
        if (op.kind == "invoke") == (op.process in busy):
            what = "begins while another one is under way" if op.kind == "invoke" else "ends, and none was begun"
            raise Malformed(f"index {op.index}: an operation of process {op.process} {what}")
        busy ^= {op.process}
        for pairs_of in (op.sent, op.polled):
            for key, pairs in pairs_of.items():
                for _, value in pairs:
                    if types.setdefault(key, type(value)) is not type(value) or type(value) not in (int, str):
                        raise Malformed(f"index {op.index}: values of key {key} are neither all numbers nor all texts")
        if op.kind != "invoke":
            yield op
