"""What Subscribe reads and sends, forward and backward: batches of a partition, and each record a message.

A range is read, judged by its CRC (`subscribe.B8`), taken apart (outgoing.py), and sent as the client takes it
(`subscribe.B4`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from broker.api import http
from broker.api.batch import HEADER_BYTES, message_bytes, verify_batch
from broker.api.errors import BadBatch, LiftlogError, NotLeader, Unauthenticated, Unauthorized, from_problem
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.serving.endpoints.records import verify
from broker.serving.http.sending import STALLED_S
from broker.serving.liftbridge.calls import Handling
from broker.serving.liftbridge.door import Within
from broker.serving.liftbridge.outgoing import encoded
from broker.serving.liftbridge.statuses import Code, StatusError

READ_BYTES: Final = 512 << 10
"""Of batches, at a time; a single one may be larger."""
LOOK_S: Final = 1.0
HELD_FACTOR: Final = 2
"""So many times an answer is taken while it is sent: as it was read, and as messages."""


class Stretch(NamedTuple):
    """From which offset on, to which (None: for ever), of which incarnation of the stream.

    Attributes:
        log_start: The first offset that was there when it was resolved.
    """

    start: int
    end: int | None
    incarnation: str
    log_start: int = 0


# --- reading ----------------------------------------------------------------------------------------------------------


async def resolved(asking: Handling, asked: Any, at: Any) -> Any:
    """One position. Raises LiftlogError."""
    body = {"positions": [{"stream": asked.stream, "partition": asked.partition, "at": at}]}
    [found] = (await asking.ask("resolve_offsets", body=body)).json()["positions"]
    if "error" in found:
        raise from_problem(found["error"])
    return found


async def whole(asking: Handling, asked: Any, span: Stretch, offset: int, *, wait_ms: int = 0) -> Within:
    """Batches from an offset on, each as it was stored (`subscribe.B8`). Raises LiftlogError, StatusError."""
    found = await read(asking, asked, span, offset, wait_ms=wait_ms)
    if (damaged := damaged_in(found.body, offset)) is None:
        return found
    try:
        handle = asking.serving.backend.partition(asked.stream, asked.partition)
    except NotLeader:
        raise StatusError(Code.UNAVAILABLE, f"this replica is damaged at offset {damaged}: ask another one") from None
    await asking.serving.in_worker(verify, handle, damaged)
    found = await read(asking, asked, span, offset, wait_ms=0)
    if (damaged := damaged_in(found.body, offset)) is not None:
        raise StatusError(Code.DATA_LOSS, f"the record at offset {damaged} is damaged")
    return found


async def read(asking: Handling, asked: Any, span: Stretch, offset: int, *, wait_ms: int) -> Within:
    """Batches from an offset on, as they are on the disk. Raises LiftlogError."""
    query = {
        "offset": str(offset),
        "max_bytes": str(READ_BYTES),
        "max_wait_ms": str(wait_ms),
        "incarnation": span.incarnation,
    }
    if span.end is not None:
        query["end"] = str(span.end)
    if asked.from_replica:
        query["replica"] = "any"
    path = {"stream": asked.stream, "partition": str(asked.partition)}
    return await asking.ask("read_records", path=path, query=query)


def lost_of(found: Within) -> list[tuple[int, int]]:
    """What the disk has lost of an answer: [first, end), in order."""
    texts = [text.split("-") for text in found.headers.get(http.LOST, "").split(", ") if text]
    return [(int(first), int(end)) for first, end in texts]


def damaged_in(body: bytes, offset: int) -> int | None:
    """Where the first batch of an answer stands that is not what was stored (`subscribe.B8`); None: all are."""
    view, at, end = memoryview(body), len(SCHEMA_BYTES), len(body) - len(END_OF_STREAM)
    while at < end:
        try:
            length = message_bytes(view[at : at + HEADER_BYTES])
            offset = verify_batch(view[at : min(at + length, end)]).last_offset + 1
        except BadBatch:
            return offset
        at += length
    return None


# --- sending ----------------------------------------------------------------------------------------------------------


async def send(
    asking: Handling, asked: Any, body: bytes, offset: int, end: int | None, *, is_backward: bool = False
) -> None:
    """What was read, as the client takes it (`subscribe.B4`). Raises StatusError, LiftlogError, ConnectionError."""
    with asking.serving.lines_budget.reserved() as reservation:
        reservation.grow_to(HELD_FACTOR * len(body))
        try:
            async with reservation.waiting(STALLED_S):
                for written in encoded(asked, body, offset, end, is_backward=is_backward):
                    await _taken(asking, asked, written)
            reservation.complete()
        except TimeoutError:
            raise StatusError(Code.UNAVAILABLE, "others need the memory for what this reader does not take") from None


async def _taken(asking: Handling, asked: Any, written: bytes) -> None:
    """Return when a client has taken this (`subscribe.B5`). Raises as `send`."""
    sending = asyncio.ensure_future(asking.call.send_framed(written))
    try:
        while not (await asyncio.wait({sending}, timeout=LOOK_S))[0]:
            try:
                await resolved(asking, asked, "latest")
            except (Unauthenticated, Unauthorized):
                raise
            except LiftlogError:  # the next read says so
                continue
        await sending
    finally:
        sending.cancel()
