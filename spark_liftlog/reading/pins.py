"""Which ends the tasks of a micro-batch read to, so that all of them, and its replays, read the same rows. Pure.

A micro-batch whose driver dies is run again, by another run of the query, which has loaded its frames anew. What was
appended meanwhile must not be joined then: the sink may have decided the batch. So the first task that reads a frame
in a batch pins the ends, where consumers' offsets are kept (`pinning.py`), and all others read up to them:

    batch 7, run a    first load(), planned at 10 ─► state 0 [0, 11)     used again: state 0
                      2 records are appended
                      second load(), planned at 13 ─► state 1 [0, 13)    used again: state 1
    batch 7, run b    first load(), planned at 90 ─► state 0             second load() ─► state 1

Spark plans a `load()` once, and then keeps the plan: a plan is a load. It has a random name, which only tells it from
others. Over a restart a load is known by its options (the pin's name) and by its place among the loads of the batch.

B1  Whoever asks, and however often, a load has one state in a batch.
B2  A state that is made for a load reaches as far as its plan: `load()` after an append has it. If there is one that
    reaches as far, it is taken: two loads of a job agree.
B3  The n-th load of a replay has the state of the n-th load of the first run, whatever there is by now.
B4  The last two batches are kept: a former driver that still runs one takes nothing from its successor.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.api.plain import parse_json
from spark_liftlog.reading.advance import Head, Heads

VERSION: Final = 1
BATCHES: Final = 2
RUNS: Final = 4
"""Of so many runs of a batch it is known which loads they had."""
LOADS_MAX: Final = 100
"""Loads of one batch with the same options."""
PLAIN_CHARS: Final = 2048
"""A longer text is compressed."""
PLAIN_CHARS_MAX: Final = 4 << 20
"""No text is longer, decompressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A micro-batch as one of its tasks knows it.

    Attributes:
        run: Which run of the query; empty: not known.
    """

    query: str
    number: int
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """What is pinned of one batch.

    Attributes:
        states: Begin and end of what is read of each partition.
        loads: Of each load, in the order in which they were read first, the number of its state.
        runs: Of each run, the first one first, its loads and the places that they have in `loads`.
    """

    number: int
    states: tuple[Heads, ...]
    loads: tuple[int, ...]
    runs: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The state that a load has.

    Attributes:
        is_replay: Another run has read it before: what the log lacks of it is a loss.
    """

    state: Heads
    is_replay: bool


def agreed(pinned: Sequence[Pinned], batch: Batch, load: str) -> Agreed | None:
    """The state of a load, if it is pinned (B1)."""
    found = _of(pinned, batch)
    if found is None:
        return None
    run = _run(found, batch)
    place = found.runs.get(run, {}).get(load)
    if place is None:
        return None
    return Agreed(state=found.states[found.loads[place]], is_replay=_is_replay(found, run, place))


def pin(
    pinned: Sequence[Pinned], batch: Batch, load: str, plan: Heads, now: Callable[[], Heads]
) -> tuple[list[Pinned], Agreed]:
    """Pin the state of a load that has none yet.

    Args:
        plan: What the load was planned to read.
        now: What it would read now, and no less than its plan.
    Returns:
        What is pinned then, the newest batch last; and the state.
    """
    found = _of(pinned, batch) or Pinned(number=batch.number, states=(), loads=(), runs={})
    run = _run(found, batch)
    of_run = found.runs.get(run, {})
    states, loads = found.states, found.loads
    place = _place(found, of_run, load)
    if place == len(loads):
        number = next((number for number, state in enumerate(states) if covers(state, plan)), len(states))  # B2
        if number == len(states):
            states = (*states, now())
        loads = (*loads, number)
    if place < LOADS_MAX:
        runs = {**found.runs, run: {**of_run, load: place}}
        first, *others = runs
        kept = (first, *others[-RUNS + 1 :])
        found = replace(found, states=states, loads=loads, runs={name: runs[name] for name in kept})
    rest = [one for one in pinned if one.number != batch.number][-BATCHES + 1 :]
    return [*rest, found], Agreed(state=states[loads[place]], is_replay=_is_replay(found, run, place))


def covers(state: Heads, plan: Heads) -> bool:
    """Whether the state reaches as far as the plan everywhere."""
    return all(state.incarnations.get(stream) == known for stream, known in plan.incarnations.items()) and all(
        (at := state.partitions.get(key)) is not None and at.high_watermark >= head.high_watermark
        for key, head in plan.partitions.items()
    )


def _of(pinned: Sequence[Pinned], batch: Batch) -> Pinned | None:
    return next((one for one in pinned if one.number == batch.number), None)


def _run(found: Pinned, batch: Batch) -> str:
    """A run that does not say which it is, because the program has set a job group, is the last one."""
    return batch.run or next(reversed(list(found.runs)), "")


def _is_replay(found: Pinned, run: str, place: int) -> bool:
    return any(place in loads.values() for name, loads in found.runs.items() if name != run)


def _place(found: Pinned, of_run: Mapping[str, int], load: str) -> int:
    """Which of the loads of a batch a load is that its run has not read yet (B3)."""
    taken = set(of_run.values())
    for known in found.runs.values():  # of a program that lived through a restart of its query
        if load in known and known[load] not in taken:
            return known[load]
    return next(place for place in range(len(found.loads) + 1) if place not in taken)


def encoded(pinned: Sequence[Pinned]) -> str:
    """The text that is kept."""
    batches = [
        {
            "batch": one.number,
            "states": [_state(state) for state in one.states],
            "loads": list(one.loads),
            "runs": one.runs,
        }
        for one in pinned
    ]
    text = json.dumps({"v": VERSION, "batches": batches}, separators=(",", ":"))
    return text if len(text) <= PLAIN_CHARS else base64.b64encode(zlib.compress(text.encode())).decode()


def decoded(text: str) -> list[Pinned]:
    """What a text says; nothing where this release does not understand it."""
    try:
        if text and not text.startswith("{"):
            text = zlib.decompressobj().decompress(base64.b64decode(text), PLAIN_CHARS_MAX).decode()
        value: Any = parse_json(text) if text else {"v": VERSION, "batches": []}
        if value["v"] != VERSION:
            return []
        return [_pinned(one) for one in value["batches"]]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, zlib.error):
        return []


def _pinned(value: Mapping[str, Any]) -> Pinned:
    found = Pinned(
        number=int(value["batch"]),
        states=tuple(_heads(state) for state in value["states"]),
        loads=tuple(int(number) for number in value["loads"]),
        runs={run: {load: int(place) for load, place in loads.items()} for run, loads in value["runs"].items()},
    )
    for number in found.loads:
        found.states[number]
    for place in (place for loads in found.runs.values() for place in loads.values()):
        found.loads[place]
    return found


def _state(state: Heads) -> dict[str, Any]:
    partitions: dict[str, dict[str, Any]] = {stream: {} for stream in state.incarnations}
    for (stream, partition), head in sorted(state.partitions.items()):
        partitions[stream][str(partition)] = [head.log_start_offset, head.high_watermark, head.leader_epoch]
    return {stream: [known, partitions[stream]] for stream, known in sorted(state.incarnations.items())}


def _heads(value: Mapping[str, Any]) -> Heads:
    return Heads(
        incarnations={stream: str(known) for stream, (known, _) in value.items()},
        partitions={
            (stream, int(partition)): Head(int(start), int(end), int(epoch))
            for stream, (_, partitions) in value.items()
            for partition, (start, end, epoch) in partitions.items()
        },
    )
