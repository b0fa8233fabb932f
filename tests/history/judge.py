"""The anomalies of a log, from the completions of a history. The words are those of Jepsen's checker of Kafka.

The log of a key is put together from what was polled and from the offsets of acks: by offset, the values that somebody
saw there. A send of unknown outcome counts as committed if one of its values was read.

    lost-write              committed, not read, although something behind it was read
    unseen                  acknowledged, and never read, also not by the last reader
    duplicate               a value at two offsets              inconsistent-offsets  two values at one offset
    G1a                     read, though its send failed        precommitted-read     read by the one that sends it
    poll-skip, nonmonotonic-poll           from one poll of a process to its next: messages between, or going back
    int-poll-skip, int-nonmonotonic-poll   the same within one poll
    nonmonotonic-send, int-send-skip, int-nonmonotonic-send     likewise of what a process sends

Other senders may come in between, so `int-send-skip` is no fault. Gaps in the offsets (compaction) are none either:
steps are counted over what is known to be there. Cycles (G0, G1c) are not looked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from tests.history.ops import Key, Malformed, Op, Placed, Value

Finding = dict[str, Any]
ALLOWED: Final = frozenset({"int-send-skip"})
ALLOWED_OF_SUBSCRIBERS: Final = frozenset({"poll-skip", "nonmonotonic-poll"})


class Log:
    """One key.

    Attributes:
        at: By offset, what was seen there.
        order: One value of each offset, in order; `place`: where it stands there.
        readers: By value, the first operation that read it.
    """

    def __init__(self) -> None:
        self.at: dict[int, set[Value]] = defaultdict(set)
        self.order: list[Value] = []
        self.place: dict[Value, int] = {}
        self.readers: dict[Value, Op] = {}

    def note(self, pairs: Sequence[Placed]) -> None:
        for offset, value in pairs:
            if offset is not None:
                self.at[offset].add(value)

    def settle(self) -> None:
        self.order = [min(self.at[offset]) for offset in sorted(self.at)]  # type: ignore[type-var]
        self.place = {value: number for number, value in enumerate(self.order)}

    def step(self, first: Value, second: Value) -> int:
        """How far the second stands behind the first; 1 if that is not known."""
        if first in self.place and second in self.place:
            return self.place[second] - self.place[first]
        return 1

    def between(self, first: Value, second: Value) -> list[Value]:
        return self.order[self.place[first] + 1 : self.place[second]]


class Judged:
    """A history, looked through once. Raises Malformed if something was read that nobody sent."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self.logs: dict[Key, Log] = defaultdict(Log)
        self.writers: dict[tuple[Key, Value], Op] = {}
        for op in ops:
            for key, pairs in op.sent.items():
                self.writers |= {(key, value): op for _, value in pairs}
            if op.kind == "ok":
                for key, pairs in op.polled.items():
                    readers = self.logs[key].readers
                    for _, value in pairs:
                        readers.setdefault(value, op)
        for op in ops:
            for key, pairs in op.polled.items():
                for _, value in pairs:
                    if (key, value) not in self.writers:
                        raise Malformed(f"{op} polled {value!r} of key {key}, which was never sent")
                self.logs[key].note(pairs)
            if self.is_committed(op):
                for key, pairs in op.sent.items():
                    self.logs[key].note(pairs)
        for log in self.logs.values():
            log.settle()

    def is_committed(self, op: Op) -> bool:
        if op.kind != "info":
            return op.kind == "ok"
        return any(value in self.logs[key].readers for key, pairs in op.sent.items() for _, value in pairs)


def judge(ops: Sequence[Op]) -> dict[str, list[Finding]]:
    """Findings by the name of the anomaly; those without a finding are left out. Raises Malformed."""
    judged = Judged(ops)
    if not any(op.kind == "ok" and op.f in ("send", "poll", "txn") for op in ops):
        return {"empty-history": [{}]}
    found = {name: list(look(judged)) for name, look in ANOMALIES.items()}
    return {name: findings for name, findings in found.items() if findings}


def faults(found: dict[str, list[Finding]], *, by_subscribers: bool = False) -> list[str]:
    """The names of those that are not allowed."""
    allowed = ALLOWED | ALLOWED_OF_SUBSCRIBERS if by_subscribers else ALLOWED
    return sorted(found.keys() - allowed)


# -- what is in the log ----------------------------------------------------------------------------------------


def _inconsistent_offsets(judged: Judged) -> Iterator[Finding]:
    for key, log in judged.logs.items():
        for offset in sorted(log.at):
            if len(log.at[offset]) > 1:
                yield {"key": key, "offset": offset, "values": sorted(log.at[offset])}  # type: ignore[type-var]


def _duplicate(judged: Judged) -> Iterator[Finding]:
    for key, log in judged.logs.items():
        offsets: dict[Value, list[int]] = defaultdict(list)
        for offset in sorted(log.at):
            for value in log.at[offset]:
                offsets[value].append(offset)
        for value, places in offsets.items():
            if len(places) > 1:
                yield {"key": key, "value": value, "offsets": places}


def _lost_write(judged: Judged) -> Iterator[Finding]:
    for key, log in judged.logs.items():
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for number, offset in enumerate(sorted(log.at)):
            for value in log.at[offset]:
                first.setdefault(value, number)
                last[value] = number
        read_to = max((first[value] for value in log.readers if value in first), default=-1)
        for value, number in sorted(last.items(), key=lambda item: item[1]):
            if number <= read_to and value not in log.readers and judged.is_committed(judged.writers[key, value]):
                yield {"key": key, "value": value, "writer": str(judged.writers[key, value]), "read_to": read_to}


def _unseen(judged: Judged) -> Iterator[Finding]:
    missing: dict[Key, list[Value]] = defaultdict(list)
    for (key, value), op in judged.writers.items():
        if op.kind == "ok" and value not in judged.logs[key].readers:
            missing[key].append(value)
    for key, values in missing.items():
        yield {"key": key, "values": sorted(values)}  # type: ignore[type-var]


def _read_though_failed(judged: Judged) -> Iterator[Finding]:
    for op in judged.ops:
        for key, pairs in op.polled.items() if op.kind == "ok" else ():
            for _, value in pairs:
                if judged.writers[key, value].kind == "fail":
                    yield {"key": key, "value": value, "reader": str(op), "writer": str(judged.writers[key, value])}


def _precommitted_read(judged: Judged) -> Iterator[Finding]:
    for op in judged.ops:
        for key, pairs in op.sent.items():
            own = {value for _, value in op.polled.get(key, ())}.intersection(value for _, value in pairs)
            if own:
                yield {"key": key, "value": min(own), "op": str(op)}  # type: ignore[type-var]
                break


# -- in which order --------------------------------------------------------------------------------------------

Step = tuple[int, Finding]


def _within(judged: Judged, kind: str) -> Iterator[Step]:
    for op in judged.ops:
        for key, pairs in (op.polled if kind == "poll" else op.sent).items():
            if kind == "poll" and key in op.rebalanced:
                continue
            log = judged.logs[key]
            for (_, one), (_, next_one) in pairwise(pairs):
                yield log.step(one, next_one), {"key": key, "values": [one, next_one], "op": str(op)}


def _across(judged: Judged, kind: str) -> Iterator[Step]:
    """From where a process ended on a key to where its next operation on that key begins."""
    ended: dict[int, dict[Key, tuple[Value, Op]]] = defaultdict(dict)
    for op in judged.ops:
        mine = ended[op.process]
        if op.f in ("assign", "subscribe") and op.kind != "fail":
            for key in mine.keys() - op.keys:
                del mine[key]
        if kind == "send" and op.kind == "fail":
            continue
        for key, pairs in (op.polled if kind == "poll" else op.sent).items():
            if key in mine:
                value, before = mine[key]
                step = judged.logs[key].step(value, pairs[0][1])
                yield step, {"key": key, "values": [value, pairs[0][1]], "ops": [str(before), str(op)]}
            if op.kind == "ok" or kind == "send":
                mine[key] = pairs[-1][1], op


Steps = Callable[[Judged, str], Iterator[Step]]


def _skips(steps: Steps, kind: str) -> Callable[[Judged], Iterator[Finding]]:
    def look(judged: Judged) -> Iterator[Finding]:
        for step, finding in steps(judged, kind):
            if step > 1:
                skipped = judged.logs[finding["key"]].between(*finding["values"])
                yield {"delta": step, "skipped": skipped, **finding}

    return look


def _backwards(steps: Steps, kind: str) -> Callable[[Judged], Iterator[Finding]]:
    def look(judged: Judged) -> Iterator[Finding]:
        yield from ({"delta": step, **finding} for step, finding in steps(judged, kind) if step < 1)

    return look


ANOMALIES: Final[dict[str, Callable[[Judged], Iterator[Finding]]]] = {
    "lost-write": _lost_write,
    "unseen": _unseen,
    "duplicate": _duplicate,
    "inconsistent-offsets": _inconsistent_offsets,
    "G1a": _read_though_failed,
    "precommitted-read": _precommitted_read,
    "poll-skip": _skips(_across, "poll"),
    "nonmonotonic-poll": _backwards(_across, "poll"),
    "int-poll-skip": _skips(_within, "poll"),
    "int-nonmonotonic-poll": _backwards(_within, "poll"),
    "nonmonotonic-send": _backwards(_across, "send"),
    "int-send-skip": _skips(_within, "send"),
    "int-nonmonotonic-send": _backwards(_within, "send"),
}
