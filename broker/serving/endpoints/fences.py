"""The fence of a partition: a number that one writer holds, until another one takes the next.

    POST fence {"after": 6}  ─► catalog: 6 becomes 7, or somebody has taken 7 ─► the leader goes by it ─► committed ─► 7

N1  It is answered when the leader goes by it, under whose lock each append is judged (`partition.P21`), and what was
    appended by then is committed. So all that holders of former fences have stored is below `next_offset`, for good. A
    later leader has applied the catalog that made it one, which has the fence.
N2  An append that names no fence is let in.
N3  It is recorded in the audit who took it: a writer that is shut out can find out by whom.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Final

from aiohttp import web

from broker.api.answers import FenceAnswer
from broker.api.errors import (
    DeadlineExceeded,
    ExpectationFailed,
    ReadOnly,
    StaleIncarnation,
    UnknownPartition,
    UnknownStream,
    partly,
)
from broker.api.permissions import of_path
from broker.serving.contract.acts import NO_ACT, Act
from broker.serving.contract.backend import PartitionHandle
from broker.serving.contract.endpoint import Endpoints, Query, Serving, answer, body
from broker.serving.contract.schemas import FenceRaised
from broker.serving.endpoints.append import appendable
from broker.serving.endpoints.records import INCARNATION, end_of, find
from broker.serving.http.waiting import unbroken

ENDPOINTS: Final = Endpoints()
PATH: Final = "/v1/streams/{stream}/partitions/{partition}/fence"
GOES_S: Final = 8.0
"""So long the leader may take to hear of its fence, and to have committed what came before it."""
LOOK_S: Final = 0.005


@ENDPOINTS.add(
    "GET",
    PATH,
    "read_fence",
    answer("Its fence, and its end.", "Fence"),
    permission=of_path("stream:read", "stream"),
    act=NO_ACT,
    query=(INCARNATION,),
    errors=(UnknownStream, UnknownPartition, StaleIncarnation),
)
async def read(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """The number of the newest fence of a partition; 0: it never had one."""
    handle = find(serving, request, query)
    return _told(handle.fence, end_of(handle))


@ENDPOINTS.add(
    "POST",
    PATH,
    "raise_fence",
    answer("The fence that the caller holds now. All that others have stored before is below `next_offset`.", "Fence"),
    permission=of_path("stream:append", "stream"),
    act=Act(("after",)),
    query=(INCARNATION,),
    request=body("The number that it replaces.", "FenceRaised"),
    errors=(UnknownStream, UnknownPartition, StaleIncarnation, ReadOnly, ExpectationFailed),
)
async def raise_one(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Fence a partition: appends that name a former fence are refused from then on."""
    after = (await serving.asked(request, FenceRaised)).after
    handle = find(serving, request, query)
    info = appendable(serving, handle.stream)
    asked = serving.backend.raise_fence(info.name, handle.incarnation, handle.partition, after)
    fence = await unbroken(asked)
    with partly(True):
        try:
            async with asyncio.timeout(GOES_S):
                return _told(fence, await _until_it_holds(serving, request, query, handle, fence))
        except TimeoutError:
            raise DeadlineExceeded(
                f"{handle.stream}/{handle.partition}: fence {fence} is taken, but what was appended before it is not"
                " committed yet: take another one",
                fence=fence,
            ) from None


async def _until_it_holds(
    serving: Serving, request: web.Request, query: Query, handle: PartitionHandle, fence: int
) -> int:
    """N1. Returns the end of what was appended before."""
    while handle.fence < fence:
        await asyncio.sleep(LOOK_S)
        handle = find(serving, request, query, again=handle)
    log = handle.log
    before = log.state.log_end_offset
    while (end := handle.end) is None or end < min(before, log.state.log_end_offset):  # a recovery cuts
        await asyncio.sleep(LOOK_S)
        handle = find(serving, request, query, again=handle)
    return end


def _told(fence: int, next_offset: int) -> web.Response:
    return web.json_response(asdict(FenceAnswer(fence=fence, next_offset=next_offset)))
