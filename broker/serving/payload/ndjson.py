"""Records for people: one JSON object per line.

    {"offset": 7, "timestamp": "2013-01-01T05:15:00.000000Z", "subject": "flights.EWR.UA",
     "key": null, "value": "{...}", "headers": [["Nats-Msg-Id", "1"]], "reply": null}

Bytes stand as text where they are UTF-8, else as {"base64": "..."}. Exactly `[offset, end)`, unlike the
Arrow form. One batch is in memory at a time; its CRC is checked before a row of it is shown.

L1  A batch, and the text that its reader has not taken yet, are reserved (`lines_budget`): a reader that takes nothing
    keeps them for long. Without room the answer is `overloaded`; amid it, it is cut.
L2  A reader that has taken nothing for `body.SLOW_S` is cut when others need the memory.
L3  `Liftlog-Next-Offset` is behind the last line where `limit` or `end` ends the answer: what is not shown is not
    passed over. It stands before the lines, so with `limit` the batches up to there are looked at twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from aiohttp import web

from broker.api import http
from broker.api.batch import HEADER_BYTES, decode_batch, message_bytes
from broker.api.errors import LiftlogError
from broker.api.legible import readable_rows
from broker.serving.contract.endpoint import Serving, begin_answer
from broker.serving.http.sending import STALLED_S, AnswerCut, read_piece
from broker.storage.read import FileRange, ReadPlan

CHUNK_BYTES: Final = 256 << 10
ROWS_AT_ONCE_MAX: Final = 1024
BATCH_COPIES: Final = 2
"""So many times a batch is taken: as it is stored, and the rows that are made of it. What is decompressed comes on
top."""
CHUNK_COPIES: Final = 3
"""So many times a chunk: as it grows, as it is handed on, and as it waits to be sent."""


async def send_lines(
    serving: Serving,
    request: web.Request,
    response: web.StreamResponse,
    plan: ReadPlan,
    *,
    offset: int,
    end: int | None,
    limit: int | None,
) -> None:
    """Send the plan's records as lines.

    Raises:
        LiftlogError: nothing could be read, or there is no memory for it; no answer has begun.
        AnswerCut: a later batch is damaged or has no memory, or the reader stands still.
        ConnectionError: the client went away.
    """
    with serving.lines_budget.reserved() as reservation:
        if end is not None or limit is not None:
            found = await serving.in_worker(goes_on_at, plan, offset, end, limit, reservation.grow_to)
            response.headers[http.NEXT_OFFSET] = str(found)
        if request.method == "HEAD":
            await response.prepare(request)
            return
        chunks = lines(plan, offset=offset, end=end, limit=limit, reserve=reservation.grow_to)
        chunk = await serving.in_worker(next, chunks, b"")
        begin_answer()
        await response.prepare(request)
        while chunk:
            try:
                async with reservation.waiting(STALLED_S):
                    await response.write(chunk)
                reservation.complete()  # until the next wait
                chunk = await serving.in_worker(next, chunks, b"")
            except TimeoutError:
                why = "while others need the memory" if reservation.is_condemned else f"in {STALLED_S:.0f} s"
                raise AnswerCut(f"the reader took nothing {why}", is_readers=True) from None
            except LiftlogError as error:
                raise AnswerCut(str(error)) from error
    await response.write_eof()


def lines(
    plan: ReadPlan, *, offset: int, end: int | None, limit: int | None, reserve: Callable[[int], None]
) -> Iterator[bytes]:
    """The lines of a plan's records within `[offset, end)`, at most `limit`, joined to chunks.

    Args:
        reserve: Takes so many bytes in all, before a batch is read (L1).

    Raises:
        BadBatch: stored bytes are damaged.
        Overloaded: as `reserve`.
    """
    left = (1 << 63) if limit is None else limit
    chunk = bytearray()
    for batch, held in _batches(plan.ranges, reserve):
        first, stop = _shown(batch.column("offset").to_numpy(), offset, end, left)
        if stop <= first:
            continue
        left -= stop - first
        at_once = max(1, min(ROWS_AT_ONCE_MAX, CHUNK_BYTES * batch.num_rows // max(1, batch.nbytes)))
        for at in range(first, stop, at_once):
            for row in readable_rows(batch.slice(at, min(at_once, stop - at))):
                chunk += json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()
                chunk += b"\n"
                if len(chunk) >= CHUNK_BYTES:
                    reserve(held + CHUNK_COPIES * len(chunk))
                    yield bytes(chunk)
                    chunk.clear()
        if not left:
            break
    if chunk:
        yield bytes(chunk)


def goes_on_at(plan: ReadPlan, offset: int, end: int | None, limit: int | None, reserve: Callable[[int], None]) -> int:
    """The offset to go on with behind the lines of a plan (L3). Arguments and errors as `lines`."""
    if limit is not None:
        left = limit
        for batch, _ in _batches(plan.ranges, reserve):
            offsets = batch.column("offset").to_numpy()
            first, stop = _shown(offsets, offset, end, left)
            left -= max(0, stop - first)
            if not left:
                return int(offsets[stop - 1]) + 1
    return plan.next_offset if end is None else min(plan.next_offset, end)


def _shown(offsets: npt.NDArray[np.int64], offset: int, end: int | None, left: int) -> tuple[int, int]:
    """Which rows of a batch are shown: [first, stop); none if that is empty."""
    first = int(np.searchsorted(offsets, offset))
    stop = len(offsets) if end is None else int(np.searchsorted(offsets, end))
    return first, min(stop, first + left)


def _batches(ranges: list[FileRange], reserve: Callable[[int], None]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Each batch, and what it takes."""
    held = 0

    def reserve_more(byte_count: int) -> None:
        nonlocal held
        held += byte_count
        reserve(held)

    for part in ranges:
        at, stop = part.position, part.position + part.length
        while at < stop:
            where = f"{part.path} at {at}: "
            length = message_bytes(read_piece(part, HEADER_BYTES, at), where=where)
            held = 0
            reserve_more(BATCH_COPIES * min(length, stop - at))
            message = read_piece(part, min(length, stop - at), at)
            batch = decode_batch(message, where=where, reserve=reserve_more)
            yield batch, held
            at += length
