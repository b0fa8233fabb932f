"""Pins as JSON: a text under a name, and its replacement by who has seen the last one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from aiohttp import web

from broker.api.answers import PinnedText
from broker.api.errors import InvalidName
from broker.api.permissions import of_path
from broker.api.stream import check_name
from broker.groups.pins import Pin
from broker.serving.contract.acts import NO_ACT
from broker.serving.contract.endpoint import Endpoints, Query, Serving, answer, body
from broker.serving.contract.schemas import PinPlaced
from broker.serving.http.waiting import unbroken

ENDPOINTS: Final = Endpoints()


@ENDPOINTS.add(
    "GET",
    "/v1/pins/{pin}",
    "read_pin",
    answer("The pin; of version 0 if there is none.", "Pin"),
    permission=of_path("consumer:read", "pin"),
    act=NO_ACT,
)
async def read(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """The text that is kept under a name."""
    return _told(serving.backend.offsets.pin(request.match_info["pin"]), placed=False)


@ENDPOINTS.add(
    "POST",
    "/v1/pins/{pin}",
    "place_pin",
    answer("The pin as it is then; `placed`: by this request.", "Pin"),
    permission=of_path("consumer:write", "pin"),
    act=NO_ACT,
    request=body("The text, and the version that it replaces.", "PinPlaced"),
    errors=(InvalidName,),
)
async def place(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Keep a text under a name, unless another one has been placed since the version that is named."""
    name = check_name(request.match_info["pin"], what="pin")
    asked = await serving.asked(request, PinPlaced)
    if asked.version == 0 and not serving.backend.offsets.pin(name).version:
        await serving.names.admit("pins", name, _none)
    pin, placed = await unbroken(serving.backend.offsets.place_pin(name, asked.text, version=asked.version))
    return _told(pin, placed=placed)


async def _none() -> tuple[str, ...]:
    """How many there are is not counted: they go with their frames."""
    return ()


def _told(pin: Pin, *, placed: bool) -> web.Response:
    return web.json_response(asdict(PinnedText(text=pin.text, version=pin.version, placed=placed)))
