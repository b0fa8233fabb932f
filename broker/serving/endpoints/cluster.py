"""Answers of a broker about itself: cluster, health, metrics, and a page that links them."""

from __future__ import annotations

import asyncio
import html
from dataclasses import asdict
from operator import attrgetter
from typing import Final

from aiohttp import web

from broker.api.permissions import OPEN, needs, of_answer
from broker.serving.contract.acts import NO_ACT
from broker.serving.contract.endpoint import Content, Endpoints, Query, Serving, answer
from broker.serving.http.access import access_now

SHOWN: Final = ("id", "http", "grpc", "live", "rack", "stopping", "session_ms", "auth_mode")
METRICS_MEDIA: Final = "text/plain"


ENDPOINTS: Final = Endpoints()


@ENDPOINTS.add(
    "GET",
    "/v1/cluster",
    "describe_cluster",
    answer("The cluster.", "Cluster"),
    permission=needs("cluster:read"),
    act=NO_ACT,
)
async def cluster(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Cluster id and the addresses of the brokers."""
    backend = serving.backend
    votes = await backend.votes()
    return web.json_response(
        {
            "cluster_id": backend.cluster_id,
            "feature_level": backend.feature_level,
            "controller": await backend.controller(),
            "version": backend.version,
            "brokers": [{key: broker[key] for key in SHOWN} for broker in backend.brokers()],
            "voters": sorted({vote.broker for vote in votes if vote.valid}),
            "votes": [asdict(vote) for vote in votes],
            "answered_by": backend.broker_id,
            "auth_required": backend.access.is_required,
        }
    )


@ENDPOINTS.add("GET", "/livez", "live", answer("It does.", "Live"), permission=OPEN, act=NO_ACT)
async def live(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Whether the process answers."""
    return web.json_response({"status": "live"})


@ENDPOINTS.add(
    "GET",
    "/readyz",
    "ready",
    answer("Ready.", "Ready") | answer("Not ready.", "Ready", 503),
    permission=needs("metrics"),
    act=NO_ACT,
)
async def ready(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Whether the broker can do its work, and what is missing."""
    is_ready, missing = serving.backend.ready()
    if serving.draining.is_set():
        is_ready, missing = False, {**missing, "http": "draining"}
    said = {"ready": is_ready, "missing": missing, "warnings": serving.backend.warnings()}
    return web.json_response(said, status=200 if is_ready else 503)


@ENDPOINTS.add(
    "GET",
    "/metrics",
    "metrics",
    {200: Content(description="Text format 0.0.4.", media={METRICS_MEDIA: None})},
    permission=needs("metrics"),
    act=NO_ACT,
)
async def metrics(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Prometheus metrics."""
    return web.Response(
        body=await asyncio.to_thread(serving.backend.metrics) + serving.meters.text(),
        headers={"Content-Type": f"{METRICS_MEDIA}; version=0.0.4; charset=utf-8"},
    )


@ENDPOINTS.add(
    "GET",
    "/",
    "page",
    {200: Content(description="The page.", media={"text/html": None})},
    permission=needs("metrics") + of_answer("stream:read"),
    act=NO_ACT,
)
async def page(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """A page of links for people."""
    backend = serving.backend
    links = ("/v1/cluster", "/v1/streams", "/v1/consumers", "/readyz", "/metrics", "/openapi.json")
    items = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    for info in access_now.get().seen("stream:read", backend.streams(), attrgetter("name")):
        name = html.escape(info.name)
        items += f'<li><a href="/v1/streams/{name}/partitions/0/records?format=json&amp;limit=100">{name}</a></li>'
    title = f"liftlog {html.escape(backend.version)}: {html.escape(backend.broker_id)}"
    return web.Response(
        text=f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<h1>{title}</h1><ul>{items}</ul></html>\n",
        content_type="text/html",
        headers={"Content-Security-Policy": "default-src 'none'"},
    )
