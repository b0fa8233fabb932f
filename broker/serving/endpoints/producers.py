"""Ids of producers that append idempotently, and the names that some of them have."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from operator import itemgetter
from typing import Final

from aiohttp import web

from broker.api.errors import InvalidName, UnknownProducer
from broker.api.permissions import of_answer, of_any, of_body, of_path
from broker.serving.contract.acts import NO_ACT, Act
from broker.serving.contract.endpoint import Content, Endpoints, Query, Serving, answer, body
from broker.serving.contract.schemas import ProducerName
from broker.serving.http.access import access_now
from broker.serving.http.waiting import unbroken

ENDPOINTS: Final = Endpoints()


@ENDPOINTS.add(
    "GET",
    "/v1/producers",
    "list_producers",
    answer("Those that have names.", "Producers"),
    permission=of_answer("producer:write"),
    act=NO_ACT,
)
async def list_all(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """The producers that have names, by name."""
    found = access_now.get().seen("producer:write", sorted(serving.backend.producers().items()), itemgetter(0))
    rows = [
        {"name": name, "producer_id": each.producer_id, "epoch": each.epoch, "used_ms": each.used_ms}
        for name, each in found
    ]
    return await serving.json_answer(lambda: {"producers": rows})


@ENDPOINTS.add(
    "POST",
    "/v1/producers",
    "register_producer",
    answer("Stamp appends with these.", "Producer"),
    permission=of_body("producer:write", "name", when="there is one") + of_any("stream:append", when="there is none"),
    act=NO_ACT,
    request=body("A name, or nothing.", "ProducerName"),
    errors=(InvalidName,),
)
async def register(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Give an idempotent producer its id and epoch. The same name gets the same id again and the next epoch, which
    fences the epoch before.
    """
    asked = await serving.asked(request, ProducerName)
    await access_now.get().need("producer:write", () if asked.name is None else (asked.name,))
    await access_now.get().need_any("stream:append", is_needed=asked.name is None)
    if asked.name is not None and asked.name not in serving.backend.producers():
        await serving.names.admit("producers", asked.name, partial(_names, serving))
    owner = None if serving.gate.is_off else access_now.get().caller.principal
    producer_id, epoch = await unbroken(serving.backend.register_producer(asked.name, owner))
    return web.json_response({"producer_id": producer_id, "epoch": epoch})


async def _names(serving: Serving) -> Collection[str]:
    return serving.backend.producers().keys()


@ENDPOINTS.add(
    "DELETE",
    "/v1/producers/{producer}",
    "forget_producer",
    {204: Content(description="Forgotten.")},
    permission=of_path("producer:write", "producer"),
    act=Act(),
    errors=(UnknownProducer,),
)
async def forget(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Forget the name of a producer. What comes under its id is refused; under the name another id is given out."""
    await unbroken(serving.backend.forget_producer(request.match_info["producer"]))
    return web.Response(status=204)
