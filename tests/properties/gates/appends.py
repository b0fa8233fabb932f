"""The appends that are held at a gate: one of each kind, and the files that it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from broker.api.errors import LiftlogError, Retryable
from broker.api.stream import COMMITS_STREAM
from broker.sinks.ledger import CommitRequest, NamedStage
from broker.storage.rows import RowBatch
from tests.properties.gates.rig import Outcome, Rig
from tests.support.logs import row_batch
from tests.support.waiting import until

POINTS = ("write", "sync", "synced", "effects")
CROWD = tuple(b"held-%d" % i for i in range(20))
STAGE = "0" * 31 + "1"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of append.

    Attributes:
        prepare: Comes before the gate is set; what it returns goes to `append`.
        append: Done when its caller has been told.
        again: The same once more, after all; None: nobody repeats it.
        place: Part of the path of what it writes, below the stream's folder; "": that of `__commits`.
        behind: Another append, which gathers in memory while the first is held at one of the points `behind_at`.
    """

    prepare: Callable[[Rig, str], Awaitable[Any]]
    append: Callable[[Rig, str, Any], Awaitable[Outcome]]
    again: Callable[[Rig, str, Any], Awaitable[Outcome]] | None = None
    points: tuple[str, ...] = POINTS
    place: str = "/0/"
    behind: Callable[[Rig, str], Awaitable[asyncio.Future[Outcome]]] | None = None
    behind_at: tuple[str, ...] = POINTS[1:]

    def is_meant(self, stream: str) -> Callable[[str], bool]:
        name = stream if self.place else COMMITS_STREAM

        def is_meant(path: str) -> bool:
            inside = path.partition(f"/streams/{name}/")[2]
            folder = inside.rpartition("/")[0].partition("/")[2]
            return bool(inside) and f"/{folder}/" == (self.place or "/0/") and not path.endswith((".index", ".tmp"))

        return is_meant


async def nothing(rig: Rig, stream: str) -> None:
    pass


async def alone(rig: Rig, stream: str, _: Any) -> Outcome:
    """Synced by the intake thread itself."""
    return await rig.publish(stream, b"held")


async def crowd(rig: Rig, stream: str, _: Any) -> Outcome:
    """One of many awaits an ack: synced by the pool."""
    return await rig.publish(stream, *CROWD, replies=(3,))


async def gathered(rig: Rig, stream: str) -> asyncio.Future[Outcome]:
    """One more, which is in the builder when this returns."""
    (slot,) = rig.intake._streams[stream].slots
    told = asyncio.ensure_future(rig.publish(stream, b"behind"))
    await until(lambda: slot.builder.record_count == 1, "it is not taken in")
    return told


async def posted(rig: Rig, stream: str, _: Any) -> Outcome:
    return await rig.post(stream, b"held-0", b"held-1")


async def registered(rig: Rig, stream: str) -> tuple[int, int]:
    return await rig.broker.register_producer(None)


async def stamped(rig: Rig, stream: str, producer: tuple[int, int]) -> Outcome:
    return await rig.post(stream, b"held", producer_id=producer[0], producer_epoch=producer[1], sequence=0)


async def opened(rig: Rig, stream: str) -> int:
    return (await rig.broker.sinks.open(f"sink-{stream}", "owner", is_one_shot=False)).epoch


async def staged(rig: Rig, stream: str) -> int:
    epoch = await opened(rig, stream)
    assert (await stage(rig, stream, epoch)).fate == "acked"
    return epoch


async def stage(rig: Rig, stream: str, epoch: int) -> Outcome:
    """Its records are not in the stream, whatever it is told."""
    batches: list[RowBatch] = [row_batch([b"held-0", b"held-1"])]
    sink = f"sink-{stream}"
    call = rig.broker.sinks.stage(stream, 0, batches, sink=sink, epoch=epoch, stage=STAGE, part=0, is_last=True)
    return await told(call, ())


async def commit(rig: Rig, stream: str, epoch: int) -> Outcome:
    asked = CommitRequest(owner="owner", epoch=epoch, batch_id=0, rows=2)
    stages = [NamedStage(stream=stream, partition=0, stage=STAGE, parts=1)]
    call = rig.broker.sinks.commit(f"sink-{stream}", asked, stages, {})
    return await told(call, (b"held-0", b"held-1"))


async def told(call: Awaitable[object], values: tuple[bytes, ...]) -> Outcome:
    try:
        await call
    except LiftlogError as error:
        return Outcome("unknown" if isinstance(error, Retryable) else "refused", values, reason=error.reason)
    except RuntimeError as error:  # its threads have ended
        return Outcome("refused", values, reason=repr(error))
    return Outcome("acked", values)


KINDS = {
    "nats": Kind(nothing, alone),
    "nats crowd": Kind(nothing, crowd, behind=gathered),
    "http": Kind(nothing, posted),
    "http idempotent": Kind(registered, stamped, again=stamped),
    "stage": Kind(opened, stage, again=stage, points=POINTS[:3], place="/0/stages/"),
    "pin": Kind(staged, commit, again=commit, points=POINTS[:3], place="/0/stages/"),
    "decision": Kind(staged, commit, again=commit, place=""),
    "group": Kind(staged, commit, again=commit),
}
