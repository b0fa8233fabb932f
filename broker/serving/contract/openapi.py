"""The contract as an OpenAPI 3.1 document, made of the same table that the server routes by.

The document of a release is its promise; a copy lies beside the tests, so that a reviewer sees each
change of the contract.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from aiohttp import web

import broker
from broker.api import http
from broker.api.answers import Name, Offset, PartitionNumber
from broker.api.errors import (
    DeadlineExceeded,
    ForeignRequest,
    InvalidRequest,
    LiftlogError,
    LimitReached,
    NotReady,
    RequestTimedOut,
    Unauthenticated,
    Unauthorized,
)
from broker.api.permissions import Need, needs
from broker.api.validation import shape_of
from broker.serving.contract.acts import NO_ACT
from broker.serving.contract.endpoint import TIMEOUT, Content, Endpoint, Parameter, Query, Serving
from broker.serving.contract.schemas import COMPONENTS, ref
from broker.serving.http.body import JSON_MEDIA

ANY_OPERATION: Final = (
    InvalidRequest,
    Unauthenticated,
    ForeignRequest,
    Unauthorized,
    LimitReached,
    NotReady,
    DeadlineExceeded,
)
"""Errors that every operation may answer, beside `internal`."""

_NAME, _PARTITION, _OFFSET = (shape_of(hint).schema({}) for hint in (Name, PartitionNumber, Offset))
_PATHS: Final[dict[str, dict[str, Any]]] = {
    "stream": {"description": "Name of a stream.", "schema": _NAME},
    "partition": {"description": "Number of a partition, from 0.", "schema": _PARTITION},
    "consumer": {"description": "Name of a consumer.", "schema": _NAME},
    "group": {"description": "Name of a consumer group.", "schema": _NAME},
    "member": {"description": "Name of a member of a group.", "schema": _NAME},
    "pin": {"description": "Name of a pin.", "schema": _NAME},
    "producer": {"description": "Name of a producer.", "schema": _NAME},
    "sink": {"description": "Name of a sink.", "schema": _NAME},
    "token": {"description": "Id of a token.", "schema": _NAME},
    "broker": {"description": "Id of a broker.", "schema": _NAME},
}
_HEADERS: Final[dict[str, dict[str, Any]]] = {
    http.HIGH_WATERMARK: {
        "description": "First offset that is not committed. Absent while a new leader does not know it yet, and where a"
        " replica answers that does not lead.",
        "schema": _OFFSET,
    },
    http.NEAREST: {
        "description": "HTTP address of the replica to ask instead, with `replica=any`. The answer has no records.",
        "schema": {"type": "string"},
    },
    http.EPOCHS: {
        "description": "Leader epochs of the record before the asked offset, and of the record before"
        " `Liftlog-Next-Offset`: `8, 12`; -1: there is none, or not known. If the first is above the one of the record"
        " that a reader had last, that record was given up and another one written in its place. Not with JSON lines.",
        "schema": {"type": "string"},
    },
    http.LOST: {
        "description": "What the disk has lost of the offsets that were looked at, ends exclusive: `100-120, 130-131`."
        " Absent: nothing.",
        "schema": {"type": "string"},
    },
    **{
        name: {"description": text, "schema": schema, "required": True}
        for name, text, schema in (
            (http.LOG_START_OFFSET, "First offset that is kept.", _OFFSET),
            (http.NEXT_OFFSET, "Where the next read begins.", _OFFSET),
            (http.LEADER_EPOCH, "Epoch of the leader that answered.", {"type": "integer"}),
            (http.INCARNATION, "Incarnation of the stream.", {"type": "string"}),
        )
    },
}


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The OpenAPI document of these endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
        if endpoint.method == "GET":
            paths[endpoint.path]["head"] = _head(endpoint)
    for path, item in paths.items():
        item["parameters"] = [
            {"name": name, "in": "path", "required": True, **_PATHS[name]} for name in re.findall(r"{(\w+)}", path)
        ]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "liftlog",
            "version": broker.__version__,
            "description": "Durable, replayable logs for NATS subjects. Errors are RFC 9457 problem bodies with a"
            " stable `reason`. Clients must ignore keys of answers that they do not know.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "headers": _HEADERS,
            "parameters": {TIMEOUT.name: _parameter(TIMEOUT)},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    responses: dict[str, Any] = {str(status): _content(content) for status, content in endpoint.answers.items()}
    of_bodies = (RequestTimedOut,) if endpoint.request is not None else ()
    for status, errors in sorted(_by_status((*ANY_OPERATION, *of_bodies, *endpoint.errors)).items()):
        if status in endpoint.answers:
            continue
        responses[str(status)] = _problem(", ".join(f"`{error.reason}`" for error in errors))
    responses["default"] = _problem("`internal`, or a refusal by HTTP itself such as 405, 415")
    operation: dict[str, Any] = {
        "operationId": endpoint.operation,
        "summary": endpoint.summary,
        "parameters": [
            *(_parameter(parameter) for parameter in endpoint.query),
            {"$ref": f"#/components/parameters/{TIMEOUT.name}"},
        ],
        "responses": responses,
        "x-permission": [_need(need) for need in endpoint.permission],
        "x-audited": endpoint.act is not None,
    }
    if endpoint.request is not None:
        operation["requestBody"] = {**_content(endpoint.request), "required": True}
    return operation


def _need(need: Need) -> dict[str, str]:
    found = {"action": need.action, "of": need.of, "when": need.when}
    return {key: value for key, value in found.items() if value}


def _head(endpoint: Endpoint) -> dict[str, Any]:
    operation = _operation(endpoint)
    operation["operationId"] = f"{endpoint.operation}_head"
    operation["summary"] = f"The headers of {endpoint.operation}."
    operation["responses"] = {
        status: {key: value for key, value in response.items() if key != "content"}
        for status, response in operation["responses"].items()
    }
    return operation


def _by_status(errors: Iterable[type[LiftlogError]]) -> dict[int, list[type[LiftlogError]]]:
    found: dict[int, list[type[LiftlogError]]] = {}
    for error in errors:
        if error not in found.setdefault(error.status, []):
            found[error.status].append(error)
    return found


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": "query",
        "required": False,
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _content(content: Content) -> dict[str, Any]:
    found: dict[str, Any] = {"description": content.description}
    if content.media:
        found["content"] = {
            media: {"schema": schema} if schema is not None else {} for media, schema in content.media.items()
        }
    if content.headers:
        found["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in content.headers}
    return found


def _problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {http.PROBLEM_JSON: {"schema": ref("Problem")}}}


def endpoint_for(endpoints: Iterable[Endpoint]) -> Endpoint:
    """The endpoint that serves the document of these endpoints and itself."""

    async def openapi(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
        return web.Response(body=body, content_type=JSON_MEDIA)

    endpoint = Endpoint(
        method="GET",
        path="/openapi.json",
        operation="openapi",
        summary="This document.",
        handler=openapi,
        permission=needs("metrics"),
        act=NO_ACT,
        answers={200: Content(description="An OpenAPI 3.1 document.", media={JSON_MEDIA: {"type": "object"}})},
    )
    body = json.dumps(document((*endpoints, endpoint))).encode()
    return endpoint
