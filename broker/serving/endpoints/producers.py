"""Idempotent producers: who appends may be told apart, so that a repeated append is stored once."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from broker.api.errors import InvalidName
from broker.serving.contract.endpoint import Content, Endpoint, Query, Serving
from broker.serving.contract.schemas import ProducerName, ref
from broker.serving.http.body import JSON_MEDIA
from broker.serving.http.waiting import unbroken

PRODUCER_EPOCH_MAX: Final = (1 << 32) - 1


async def register(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Give a producer its id and epoch."""
    asked = await serving.asked(request, ProducerName)
    producer_id, epoch = await unbroken(serving.backend.register_producer(asked.name))
    return web.json_response({"producer_id": producer_id, "epoch": epoch})


ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/v1/producers",
        operation="register_producer",
        summary="Give an idempotent producer its id and epoch. Under a name: the same id again, and the next epoch,"
        " which fences the one before.",
        handler=register,
        request=Content(description="A name, or nothing.", media={JSON_MEDIA: ref("ProducerName")}),
        answers={200: Content(description="Stamp appends with these.", media={JSON_MEDIA: ref("Producer")})},
        errors=(InvalidName,),
    ),
)
