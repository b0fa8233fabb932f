"""Records of the audit that other brokers tell the leader of `__audit` (`serving/http/trail.py`)."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from broker.api.errors import DiskFull, NotEnoughReplicas, NotLeader, StorageFailed
from broker.api.permissions import needs
from broker.serving.contract.acts import NO_ACT
from broker.serving.contract.backend import AuditRecord
from broker.serving.contract.endpoint import Content, Endpoints, Query, Serving, body
from broker.serving.contract.schemas import AuditTold
from broker.serving.http.trail import PATH
from broker.serving.http.waiting import unbroken

ENDPOINTS: Final = Endpoints()


@ENDPOINTS.add(
    "POST",
    PATH,
    "tell_audit",
    {204: Content(description="They are committed.")},
    permission=needs("audit:tell"),
    act=NO_ACT,
    request=body("The records.", "AuditTold"),
    errors=(NotLeader, NotEnoughReplicas, DiskFull, StorageFailed),
)
async def tell(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Keep records of the audit, each id once. For brokers, which have to prove that they are, in every mode."""
    asked = await serving.asked(request, AuditTold)
    records = [AuditRecord(each.id, each.key, each.value) for each in asked.records]
    await unbroken(serving.backend.audit.append(records))
    return web.Response(status=204)
