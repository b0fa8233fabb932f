"""The part of the corpus (seeds.py) that is bytes of a connection, small files beside the log, and arguments."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Final

from broker.api.errors import OffsetOutOfRange
from broker.api.http import HIGH_WATERMARK, INCARNATION, LEADER_EPOCH, LOG_START_OFFSET, NEXT_OFFSET
from broker.link.codec import encode
from broker.storage.segments.checkpoint import seal_json
from tests.fuzz.tokens import part, public, signed
from tests.support.replica_messages import GREETINGS, KINDS, said
from tests.unit.client.logs import body, message

JSON: Final = "Content-Type: application/json\r\n"
ARROW: Final = "Content-Type: application/vnd.apache.arrow.stream\r\n"
P256_POINT: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
"""The generator of the curve: a point of it."""
REQUESTS: Final = {
    "get": "GET /v1/streams HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "old": "GET /livez HTTP/1.0\r\n\r\n",
    "two": "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /nothing?a=%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "json": f'POST /v1/offsets/resolve HTTP/1.1\r\n{JSON}Content-Length: 17\r\n\r\n{{"positions": []}}',
    "read": "GET /v1/streams/orders/partitions/0/records?format=json HTTP/1.1\r\nAccept: */*\r\n\r\n",
    "chunks": f"POST /v1/producers HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n",
    "expects": f"POST /v1/streams/orders/partitions/0/records HTTP/1.1\r\nExpect: 100-continue\r\n{ARROW}"
    "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "nats": "INFO {}\r\nPING\r\n",
    "tls": "\x16\x03\x01\x02\x00\x01\x00",
}


def of_connections() -> Iterator[tuple[str, str, bytes]]:
    """Decoder, name, bytes."""
    for name, text in REQUESTS.items():
        yield "http-raw", name, text.encode("latin-1")
    records = body(message(0, 3), message(3, 9, keep=[4, 8]))
    problem = OffsetOutOfRange("no", log_start_offset=3, high_watermark=9).to_problem()
    for name, status, numbers, sent in (
        ("good", 200, (9, 0, 9, 1), records),
        ("gap", 200, (12, 0, 12, 1), body(message(5, 9))),
        ("nothing", 200, (0, 0, 0, 0), body()),
        ("huge", 200, (10**30, -(10**30), 10**30, 10**9), records),
        ("range", 416, (), json.dumps(problem).encode()),
        ("away", 503, (), b"<html>"),
    ):
        names = (HIGH_WATERMARK, LOG_START_OFFSET, NEXT_OFFSET, LEADER_EPOCH)
        lines = [f"{key}: {number}" for key, number in zip(names, numbers, strict=False)]
        head = [f"HTTP/1.1 {status} X", *lines, f"{INCARNATION}: i", f"Content-Length: {len(sent)}", "", ""]
        yield "client-read", name, "\r\n".join(head).encode() + sent
    yield "client-read", "chunks", b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    yield "client-read", "no-http", b"INFO {}\r\n"
    for name, data in (
        ("two", b'{"total":2,"streams":["b","a"]}'),
        ("none", b'{"streams":null}'),
        ("list", b"[]"),
        ("mixed", b'{"streams":[1,"a"]}'),
        ("deep", b"[" * 3000),
    ):
        yield "jetstream", name, data
    rng = random.Random(1)
    for cls in KINDS:
        yield "replica", cls.__name__, encode(said(cls, rng)).to_bytes()
    for greeting in GREETINGS:
        for target in ("replica", "replica-greeting"):
            yield target, type(greeting).__name__, encode(greeting).to_bytes()
    frames = [encode(said(cls, rng)).to_bytes() for cls in KINDS]
    yield "replica-frames", "all", bytes(12) + b"".join(frames)
    yield "replica-frames", "cut", frames[0][:-1]
    place = {"stream": "orders", "incarnation": "i", "partition": 0, "offset": 7, "finished_us": 5}
    yield "scrub", "good", seal_json(place)
    yield "scrub", "huge", seal_json({**place, "finished_us": 10**400})
    yield "scrub", "text", seal_json({**place, "offset": "7"})
    for name, data in (
        ("days", b"7d"),
        ("size", b"10 GiB"),
        ("long", b"9" * 5000),
        ("time", b"2026-01-31T12:00:00+01:00"),
        ("set", b"http.port=9293"),
    ):
        yield "arguments", name, data


def of_tokens() -> Iterator[tuple[str, str, bytes]]:
    """Decoder, name, bytes."""
    good = {"iss": "i", "aud": "a", "sub": "ana", "exp": 1_800_000_600, "nbf": 1_800_000_000}
    for name, claims in (
        ("good", good),
        ("many", {**good, "aud": ["b", "a"], "iat": 1_800_000_000.5}),
        ("late", {**good, "exp": 7}),
        ("odd", {**good, "sub": {"a": [1]}, "exp": 10**40}),
    ):
        yield "jwt", name, signed(json.dumps(claims).encode())
    yield "jwt", "unsigned", part(b'{"alg":"none"}') + b"." + part(json.dumps(good).encode()) + b"."
    rsa = {"kty": "RSA", "kid": "r", "alg": "RS256", "e": "AQAB", "n": part(b"\xc1" + bytes(254) + b"\x01").decode()}
    x, y = (part(number.to_bytes(32)).decode() for number in P256_POINT)
    curve = {"kty": "EC", "crv": "P-256", "x": x, "y": y}
    for name, keys in (
        ("all", [public(), rsa, curve, {"kty": "oct", "k": "AA"}]),
        ("rsa", [rsa]),
        ("private", [{**public(), "d": "AA"}]),
        ("none", []),
    ):
        yield "jwks", name, json.dumps({"keys": keys}).encode()
    yield "jwks", "deep", b"[" * 3000
