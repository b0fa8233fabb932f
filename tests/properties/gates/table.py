"""One cell of the table: an append is held, a change is made beside it, the gate opens, and all is looked at."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.intake import jetstream
from broker.node.partitions import partition as leader
from tests.properties.gates.appends import KINDS
from tests.properties.gates.changes import CHANGES, check_after
from tests.properties.gates.disk import gated
from tests.properties.gates.rig import BEFORE, Outcome, Rig, soon
from tests.support.waiting import until

SHOWN_S = 0.05
"""A change that does not wait is usually done by then; one that waits never is, so no green test depends on it."""


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome of a cell.

    Attributes:
        outcomes: Outcomes of the append that was held, and of those behind it, in their order.
        after: The records that later appends stored.
    """

    stream: str
    outcomes: Sequence[Outcome]
    after: Sequence[bytes]


def must_wait(kind: str, change: str) -> bool:
    """Whether the change has to wait for what is held."""
    return change == "stop" or (kind.startswith("nats") and change.startswith("pause"))  # for all that was captured


async def captures_nothing(*_: object) -> list[str]:
    return []


@asynccontextmanager
async def running(folder: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A broker, and at its end nothing is left of it."""
    patch.setattr(jetstream, "jetstream_on", captures_nothing)
    patch.setattr(leader, "QUICK_S", 3600.0)  # who may sync what it appends does, however slow the disk is
    rig = await Rig(folder, gated(patch)).start()
    try:
        yield rig
    except BaseException:
        rig.gates.open_all()
        await rig.abandon()
        raise
    await rig.close()


async def play(rig: Rig, kind: str, change: str, point: str) -> Played:
    """Play a cell, on a stream that has the name of the point."""
    what, stream = KINDS[kind], point
    await rig.create(stream)
    given = await what.prepare(rig, stream)
    partitions = rig.broker.partitions(stream)
    gate = rig.gates.hold(point, what.is_meant(stream))
    told: list[asyncio.Future[Outcome]] = [asyncio.ensure_future(what.append(rig, stream, given))]
    await until(gate.reached.is_set, "nothing comes to the gate")
    if what.behind is not None and point in what.behind_at:
        told.append(await what.behind(rig, stream))
    changing = asyncio.ensure_future(CHANGES[change].act(rig, stream))
    await asyncio.wait([changing], timeout=SHOWN_S)
    if must_wait(kind, change):
        assert not changing.done(), "it has not waited"
    # The thread of `fsync = interval` may sync what it was woken for, beside the fsync that is held: durable then.
    if told[0].done() and change != "alter fsync":  # a delete does not let anybody wait for a disk that hangs
        assert change.startswith("delete"), "told before it could be known"
        # A batch that was decided is done when its stream is gone (`coordinator`, C6).
        assert kind == "group" or told[0].result().fate != "acked", "told before it was durable"
    gate.open()
    await soon(changing)
    outcomes: list[Outcome] = [await soon(task) for task in told]
    if change == "stop" or (change.startswith("pause") and kind.startswith("nats")):  # what NATS has sent by then
        assert [outcome.fate for outcome in outcomes] == ["acked"] * len(outcomes), outcomes
    after = await check_after(rig, stream, change)
    if what.again is not None and not rig.is_stopped and not CHANGES[change].forgets:
        again = await what.again(rig, stream, given)
        if outcomes[0].fate == "acked":
            assert again == outcomes[0] or again.reason == CHANGES[change].after != "", "it is known to be stored"
        elif again.fate == "acked":
            outcomes[0] = again
    await rig.rests(partitions)
    return Played(stream, outcomes, after)


def check(rig: Rig, change: str, played: Played) -> None:
    """After the stop: the records of partition 0, of the incarnation that there is, are those of one serial order."""
    found = rig.stored(played.stream)
    if change == "delete":
        assert not found
        return
    kept = [value for value in found[0] if value not in played.after]
    if CHANGES[change].forgets:
        assert kept in ([], [value for outcome in played.outcomes for value in outcome.values]), "of the old one"
        assert played.outcomes[0].fate != "acked" or kept == []
        return
    values = {"acked": [True], "refused": [False], "unknown": [True, False]}
    allowed = []
    for stored in itertools.product(*(values[outcome.fate] for outcome in played.outcomes)):
        rows = [BEFORE]
        for outcome, is_stored in zip(played.outcomes, stored, strict=True):
            rows += outcome.values if is_stored else ()
        allowed.append(rows)
    if change == "trim":
        allowed = [[b""] * gone + rows[gone:] for rows in allowed for gone in range(1, len(rows) + 1)]
    assert kept in allowed, f"{played}: {found}"
    for outcome in played.outcomes:
        if outcome.offset >= 0 and change != "trim":
            assert found[0][outcome.offset : outcome.offset + len(outcome.values)] == list(outcome.values)
