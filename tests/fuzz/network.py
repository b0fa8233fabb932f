"""Decoders of what comes over a network: NATS, HTTP requests, HTTP answers, acks; and of what Spark hands back.

Requests go to a real server on a loopback port, answers come from a raw-socket server: what is between the bytes and
the decoder is then the real thing too. Every answer of the server is held against the OpenAPI document by `Api`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import random
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlparse

import pyarrow as pa
from crc32c import crc32c
from nats.aio.client import Srv
from nats.aio.msg import Msg
from nats.errors import ProtocolError

from broker.api import answers, placements, sink_answers
from broker.api.batch import HEADER_BYTES, VALUE_AT, VALUE_BYTES, decode_batch, seal
from broker.api.columns import Columns, columns_in, schema_bytes
from broker.api.errors import BY_REASON, InvalidRequest, LiftlogError, from_problem
from broker.api.legible import readable_rows
from broker.api.partitioning import parse_partition_by
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.api.stream import settings_from
from broker.cli.local.nats_server import greeting
from broker.client import connect
from broker.client.http.address import Address, parse_addresses
from broker.client.http.brokers import Brokers, read_problem
from broker.client.http.calls import understand
from broker.client.http.patience import told_pause_s
from broker.client.nats_publish import _Publish
from broker.client.reading.frames import read_messages
from broker.control.forming import answer_to
from broker.control.identity import Identity
from broker.control.membership import Membership
from broker.ingest import Intake
from broker.ingest.control import parse_headers, read_control_line, read_operation
from broker.ingest.envelope import COOKIE, Envelope, open_envelope
from broker.intake.nats_seam import make_client
from broker.intake.rights import refusal_in
from broker.metadata.catalog import StreamInfo
from broker.raft.wire import Codec, hello_in
from broker.serving.endpoints.append import encode
from broker.serving.http.app import ENDPOINTS
from broker.serving.http.body import JSON_MEDIA, BodyBudget, Reservation
from spark_liftlog.options import source_options
from spark_liftlog.progress.query_lag import lag
from spark_liftlog.reading import offsets as spark_offsets
from spark_liftlog.reading import pins
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.writing.sink_options import sink_options
from tests.fuzz.decoder import CORPUS, Decoder
from tests.support.messages import projected, split_messages
from tests.unit.client.rawserver import RawServer, Reply, Request
from tests.unit.ingest.envelopes import checked, envelope
from tests.unit.ingest.twins import TWINS, Route, byte_by_byte, run, whole
from tests.unit.ingest.wire import answers_in, hmsg, msg
from tests.unit.serving.server import Answer, Api, Server

JSON_WORDS: Final = (b"null", b"true", b"NaN", b"1e999", b'"v":2', b"[[[[", b'{"a":', b"\\ud800", b"[" * 3000)

# --- NATS -----------------------------------------------------------------------------------------------------------

ROUTES: Final = (Route(1), Route(7, {"stream": "keyed", "record_bytes_max": 60, "expects_offsets": True}, "key", 2))
LIMITS: Final = {"control_line_max": 256, "payload_max": 4096}


def check_intake(data: bytes) -> None:
    """Both twins, whole, byte by byte and in random pieces: the same records, answers, errors."""
    rng = random.Random(data)
    cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.choice([1, 3, 9])))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    outcomes = [
        run(twin, chunks, ROUTES, **LIMITS) for twin in TWINS for chunks in (whole(data), byte_by_byte(data), pieces)
    ]
    for outcome in outcomes[1:]:
        assert outcome == outcomes[0]


def check_lines(data: bytes) -> None:
    headers = parse_headers(data)
    assert headers is None or all(name for name, _ in headers)
    read_control_line(data, 4096)
    operation = read_operation(data)
    if operation[0] == "ERR" and (refusal := refusal_in(operation[1])):
        assert refusal == refusal_in(operation[1])
        assert str(refusal)


def check_info(data: bytes) -> None:
    async def met() -> None:
        client = make_client(Intake(), lambda _: None, lambda: False, _at_once, wide=False)
        client._current_server = Srv(urlparse("nats://127.0.0.1:4222"))
        client.options["dont_randomize"] = True
        client._discovered_server_cb = client._lame_duck_mode_cb = None
        await client._ps.parse(b"INFO " + data.replace(b"\r", b"").replace(b"\n", b"") + b"\r\n")

    asyncio.run(met())


async def _at_once() -> None:
    return None


def check_envelope(data: bytes) -> None:
    wire = msg("a", data, reply="r") + hmsg("a", data, ("Liftlog-Key", "k"), sid=7)
    outcomes = [run(twin, cut(wire), ROUTES, **LIMITS) for twin in TWINS for cut in (whole, byte_by_byte)]
    assert all(outcome == outcomes[0] for outcome in outcomes)
    for blob in (*outcomes[0].acks.values(), outcomes[0].refusals):
        answers_in(blob)  # nothing in an ack inbox begins another line of the protocol
    found = open_envelope(data)
    if found is None:
        return
    inner = data[data[5] :]
    assert data.startswith(COOKIE)
    assert not data[6] & 1 or crc32c(inner) == int.from_bytes(data[8:12], "big")
    assert found == _as_protobuf_takes_it(inner)


def _as_protobuf_takes_it(inner: bytes) -> Envelope:
    """By Google's own decoder, but for the order of the headers and those that stand twice."""
    from broker.api.proto import liftbridge_pb2 as pb

    ours = open_envelope(envelope(inner))
    assert ours is not None
    theirs = pb.Record.FromString(inner)
    # Theirs leaves out a header with a field that it does not know; Go's does not.
    assert {(name.encode(), value) for name, value in theirs.headers.items()} <= {*ours.headers}
    return Envelope(
        key=theirs.key,
        value=theirs.value,
        headers=ours.headers,
        ack_inbox=theirs.ack_inbox.encode(),
        correlation_id=theirs.correlation_id.encode(),
        ack_policy=theirs.ack_policy & 0xFFFFFFFF,
        offset=theirs.offset,
    )


def check_ack(data: bytes) -> None:
    async def met() -> None:
        import nats.aio.client

        client = nats.aio.client.Client()
        work = _Publish("s", None, 1, 1.0, None)
        work.awaited[0] = (0.0, b"")
        await work._on_answer(Msg(client, subject="_INBOX.x.0", data=data))
        assert work.acked + sum(work.errors.values()) == 1

    asyncio.run(met())


def check_greeting(data: bytes) -> None:
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"INFO " + data)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            greeting("127.0.0.1", listener.getsockname()[1])
        except ConnectionError:
            pass
        finally:
            thread.join()


# --- requests -------------------------------------------------------------------------------------------------------


@functools.cache
def _server() -> Server:
    folder = tempfile.TemporaryDirectory()
    server = Server(Path(folder.name), body_bytes_max=1 << 20)
    atexit.register(folder.cleanup)
    atexit.register(server.close)
    atexit.register(server.api.close)
    return server


def serving() -> Server:
    """The server that all requests go to; there is a stream `orders`."""
    _api()
    return _server()


def _api() -> Api:
    api = _server().api
    if api.get("/v1/streams/orders").status == 404:
        api.create("orders")
    return api


METHODS: Final = ("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS")
RETRYABLE: Final = frozenset({"not_ready", "deadline_exceeded", "stages_full", "overloaded", "stream_paused"})


def check_request(data: bytes) -> None:
    """{"method", "path", "body"}: any request of the API with any JSON body. All other input is passed over."""
    try:
        request = json.loads(data)
        method, path, body = request["method"], request["path"], request["body"]
        target = quote(path, safe="/?=&%:*,")
        payload = None if body is None else json.dumps(body).encode()
    except (ValueError, KeyError, TypeError, RecursionError, UnicodeError):
        return
    if method not in METHODS or not target.startswith("/") or "_ms" in target:
        return
    api = _api()
    answer = api.request(method, target, body=payload, headers={"Content-Type": "application/json"} if payload else {})
    if method != "HEAD":
        check_refused(answer)
    if (method, answer.status) == ("POST", 201) and target == "/v1/streams":
        api.request("DELETE", f"/v1/streams/{answer.json()['name']}")
    api.request("POST", "/v1/streams/orders/resume")


BODIES: Final = tuple(
    endpoint.path.format(
        stream="orders", consumer="c", group="g", member="m", sink="q", pin="p", partition="0", broker="b"
    )
    for endpoint in ENDPOINTS
    if endpoint.method == "POST" and endpoint.request is not None and JSON_MEDIA in endpoint.request.media
)
"""Every endpoint that takes a JSON body by POST."""
NAMED: Final = ("field", "parameter", "key", "name", "subject", "limit")
"""Facts by which a refusal says what it means."""


def check_refused(answer: Answer) -> None:
    """A refusal is no fault of ours, and names what it is about."""
    assert answer.status < 500 or answer.reason in RETRYABLE or answer.status == 501, (answer.status, answer.body[:300])
    if answer.status == 400:
        problem = answer.problem
        is_named = any(name in problem for name in NAMED) or "twice" in problem["detail"]
        is_said = any(words in problem["detail"] for words in ("not JSON", "JSON object", "takes no request body"))
        assert is_named or is_said, problem


def check_body(data: bytes) -> None:
    """Any bytes as a JSON body."""
    api = _api()
    path = BODIES[sum(data) % len(BODIES)]
    answer = api.request("POST", path, body=data, headers={"Content-Type": "application/json"})
    check_refused(answer)
    if answer.status == 201 and path == "/v1/streams":
        api.request("DELETE", f"/v1/streams/{answer.json()['name']}")


_INFO: Final = StreamInfo(name="orders", incarnation="i", created_us=0, settings=settings_from({}))


def check_arrow(data: bytes) -> None:
    """Records that a stranger posts; what is taken is what its readers will decode."""
    for batch in encode(bytearray(data), _INFO, 5, 1 << 22, Reservation(BodyBudget(1 << 40))):
        message = batch.compose(first_offset=3, leader_epoch=1, high_watermark=0)
        rows = decode_batch(message)
        rows.validate(full=True)
        assert rows.num_rows == batch.record_count
        list(readable_rows(rows))


def check_posted(data: bytes) -> None:
    """The same through the server, for what is before and behind the decoder."""
    api = _api()
    answer = api.append("orders", data)
    assert answer.status < 500, (answer.status, answer.body[:300])
    assert api.read("orders", format="json").status == 200


def check_bundle(data: bytes) -> None:
    """Two bytes: the length of the head; then head and records, of a bundle that is appended, and of one that is
    staged."""
    api, (size, rest) = _api(), (int.from_bytes(data[:2], "big"), data[2:])
    octets = {"Content-Type": "application/octet-stream"}
    for path, query in (("records", {}), ("stages", {"sink": "q", "epoch": 1})):
        answer = api.request("POST", f"/v1/streams/orders/{path}", body=rest, headers=octets, head=size or 1, **query)
        assert answer.status < 500 or answer.json()["reason"] in RETRYABLE, (answer.status, answer.body[:300])
    assert api.read("orders", format="json").status == 200


def check_ndjson(data: bytes) -> None:
    """Any bytes as key, value and header, any text as subject, come out as JSON that says the same."""
    text = data.decode("utf-8", "replace")
    rows = pa.record_batch(
        {
            "value": pa.array([data, None], pa.binary()),
            "key": pa.array([data[:7], b"k"], pa.binary()),
            "headers": pa.array([[(text[:5] or "h", data)], None], pa.map_(pa.string(), pa.binary())),
        }
    )
    from tests.unit.serving.arrow import stream_of

    (batch,) = encode(bytearray(stream_of(rows)), _INFO, 5, 1 << 22, Reservation(BodyBudget(1 << 40)))
    made = decode_batch(batch.compose(first_offset=3, leader_epoch=1, high_watermark=0))
    first, second = (json.loads(json.dumps(row, ensure_ascii=False).encode()) for row in readable_rows(made))
    assert (first["offset"], second["value"]) == (3, None)
    assert first["value"] == text or "base64" in first["value"]


def check_settings(data: bytes) -> None:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(values, dict):
        settings = settings_from(values)
        assert settings_from(settings.as_dict()) == settings
        parse_partition_by(settings.partition_by)


# --- answers --------------------------------------------------------------------------------------------------------


def reader(data: bytes, step: int) -> Callable[[memoryview], int]:
    at = 0

    def readinto(view: memoryview) -> int:
        nonlocal at
        count = min(step, len(view), len(data) - at)
        view[:count] = data[at : at + count]
        at += count
        return count

    return readinto


COLUMNS: Final = columns_in(["timestamp", "key"])


def check_frames(data: bytes, columns: Columns | None = None) -> None:
    """Whole and byte by byte: the same batches, the same end."""
    seen = []
    for step in (1 << 20, 1, 7):
        offsets: list[int] = []
        problem: LiftlogError | None = None
        try:
            for message in read_messages(reader(data, step), len(data), buffer_bytes=1_500, columns=columns):
                rows = message.rows()
                rows.validate(full=True)
                offsets += [message.header.first_offset, *rows.column("offset").to_pylist()]
        except LiftlogError as error:
            problem = error
        seen.append((offsets, type(problem), str(problem)))
    assert seen[0] == seen[1] == seen[2]
    if problem is not None:
        raise problem


def unseal_value(data: bytes) -> bytes:
    """The header's 176 characters of the first batch."""
    return data[len(SCHEMA_BYTES) + VALUE_AT :][:VALUE_BYTES]


def seal_value(inner: bytes) -> bytes:
    """A stream whose first batch has these 176 characters and a CRC that fits."""
    data = bytearray((CORPUS / "client-frames" / "two-batches").read_bytes())
    at = len(SCHEMA_BYTES)
    length = HEADER_BYTES + int.from_bytes(data[at + 48 : at + 56], "little")
    data[at + VALUE_AT : at + VALUE_AT + VALUE_BYTES] = inner[:VALUE_BYTES].ljust(VALUE_BYTES, b"0")
    seal(memoryview(data)[at : at + length])
    return bytes(data)


def unseal_stored(data: bytes) -> bytes:
    """The stored header's 176 characters of the first message of some columns."""
    return data[len(SCHEMA_BYTES) + HEADER_BYTES + VALUE_AT :][:VALUE_BYTES]


def seal_stored(inner: bytes) -> bytes:
    """Such a stream with these 176 characters, and a CRC that fits."""
    data = (CORPUS / "client-frames" / "two-batches").read_bytes()
    message = bytearray(next(iter(split_messages(data))))
    message[VALUE_AT : VALUE_AT + VALUE_BYTES] = inner[:VALUE_BYTES].ljust(VALUE_BYTES, b"0")
    seal(message)
    return schema_bytes(COLUMNS) + projected(bytes(message), COLUMNS) + END_OF_STREAM


class Said:
    """As much of an `Exchange` as an error is read from."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.address = Address("broker", 9293)
        self.headers = {"Retry-After": body[:8].decode("latin-1")}
        self._body = body

    def read_all(self, bytes_max: int) -> bytes:
        return self._body[:bytes_max]

    def close(self) -> None:
        return None


def check_hello(data: bytes) -> None:
    """The first words of a stranger at the Raft port: they are answered, in JSON."""
    hello = hello_in(Codec.loads(data))
    if hello is None:
        return
    named = (("b-1", "127.0.0.1:1"), ("b-2", "127.0.0.1:2"))
    at = "127.0.0.1:1"
    me = Identity(broker_id="b-1", cluster_id="c", address=at, bind=at, named=named)
    for state in ("forming", "member"):
        own = Membership(state=state, node_id=f"b-1.x@{at}", group="c/1", first=(f"b-1.x@{at}",))
        answer = answer_to(hello, me, own, voters=own.first, removed={"b-3.y@z": "b-3"}, acted={"b-2": "b-2.y@z"})
        Codec.loads(Codec.dumps(answer))


BROKERS: Final = Brokers("localhost")


def check_problem(data: bytes) -> None:
    for status in (400, 404, 421, 500, 503):
        error = read_problem(Said(status, data))  # type: ignore[arg-type]
        assert isinstance(error, LiftlogError)
        assert isinstance(str(error), str)
        assert from_problem(error.to_problem()).reason == error.reason in BY_REASON
        BROKERS._leader_of(error)  # type: ignore[arg-type]
        assert told_pause_s(error) >= 0


ANSWERS: Final[dict[str, type[Any]]] = {
    "stream": answers.StreamDescription,
    "consumer": answers.ConsumerLag,
    "resolved": answers.Resolved,
    "watch": answers.Watch,
    "cluster": placements.ClusterDescription,
    "placements": placements.Placements,
    "elected": placements.Elected,
    "drained": placements.Drained,
    "given_up": placements.GivenUp,
    "copies": placements.ReplicaEnds,
    "ready": answers.Readiness,
    "appended": answers.AppendAnswer,
    "sink": sink_answers.SinkDescription,
}


def check_answer(data: bytes) -> None:
    """{"kind", "answer"}: any JSON where the client expects that answer."""
    try:
        given = json.loads(data)
        cls, value = ANSWERS[given["kind"]], given["answer"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    assert isinstance(understand(cls, value, where="test"), cls)


_said: list[bytes] = [b""]


@functools.cache
def _raw_server() -> RawServer:
    def answer(request: Request, reply: Reply) -> None:
        reply.answer((200, 200, 200, 400, 503)[sum(_said[0]) % 5], _said[0], {"Content-Type": "application/json"})

    server = RawServer(answer)
    server.__enter__()
    atexit.register(server.__exit__, None, None, None)
    return server


def check_client(data: bytes) -> None:
    """Any body as the answer to any call."""
    _said[0] = data
    failed: LiftlogError | None = None
    with connect(_raw_server().address, timeout_s=5, deadline_s=0) as client:
        for call in (client.cluster, client.streams, client.consumers, client.sinks, client.watch, client.ready):
            try:
                call()
            except LiftlogError as error:
                failed = error
    if failed is not None:
        raise failed


def check_address(data: bytes) -> None:
    for address in parse_addresses(data.decode("utf-8", "replace")):
        assert 1 <= address.port <= 65535


# --- other brokers --------------------------------------------------------------------------------------------------


def seal_frame(inner: bytes) -> bytes:
    """A frame with this head, and a CRC that fits. A piece of a state file is as long as the head says, if that is
    little."""
    from broker.api.proto import replica_pb2 as pb
    from broker.link.codec import LinkFrame

    head = pb.Head()
    with contextlib.suppress(Exception):
        head.ParseFromString(inner)
    said = head.answered
    data = bytes(max(0, min(said.state.length, 1_000)) or len(inner) % 2 * said.HasField("records"))
    return LinkFrame(inner, crc32c(inner), data).to_bytes()


def unseal_frame(data: bytes) -> bytes:
    from broker.link.codec import LinkFrame

    with contextlib.suppress(Exception):
        return LinkFrame.of(data).head
    return b""


def check_replica(data: bytes) -> None:
    """A frame of another broker: refused, or a message that encodes to the same bytes."""
    from broker.link.codec import LinkFrame, decode, encode

    said = decode(LinkFrame.of(data))
    assert decode(LinkFrame.of(encode(said).to_bytes())) == said


def check_replica_greeting(data: bytes) -> None:
    """The first and the second frame of a stranger: refused with a reason, and never let in."""
    from broker.link.codec import BadFrame, LinkFrame
    from broker.link.handshake import NONCE_BYTES, Caller, Doorkeeper, Peer, Refused, key_of

    key, nonce = key_of(b"nobody knows it ...."), bytes(NONCE_BYTES)
    friend = Caller(Peer("broker-1", 7), "c" * 32, "broker-0", key, nonce)
    door = Doorkeeper("broker-0", "c" * 32, key, {"broker-1": 7}.get, nonce)
    try:
        frame = LinkFrame.of(data)
    except BadFrame:
        return
    with contextlib.suppress(Refused):
        door.hello(frame)
    door.hello(friend.hello())
    for meet in (door.proof, friend.challenge, friend.welcome):
        try:
            meet(frame)
        except Refused:
            continue
        assert meet == friend.challenge, "a stranger was let in"  # a challenge proves nothing


def check_replica_frames(data: bytes) -> None:
    """What a connection brings: frames that are as long as they say, until it ends or one is too long."""
    from broker.link.framed import Framed, FrameTooLarge

    here, there = socket.socketpair()
    framed = Framed(here)
    there.settimeout(5)
    writer = threading.Thread(target=_written, args=(there, data))
    writer.start()
    taken = 0
    try:
        with contextlib.suppress(FrameTooLarge, ConnectionError):
            while (frame := framed.read(1 << 20)) is not None:
                taken += len(frame.to_bytes())
                assert taken <= len(data)
    finally:
        framed.close()
        writer.join()


def _written(there: socket.socket, data: bytes) -> None:
    with there, contextlib.suppress(OSError):
        there.sendall(data)


# --- Spark ----------------------------------------------------------------------------------------------------------


def check_spark_offset(data: bytes) -> None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return  # Spark's matter
    found = spark_offsets.decode(value)
    if found is None:
        spark_offsets.starting_point(value)
    else:
        assert spark_offsets.decode(spark_offsets.encode(found)) == found


def check_spark_pins(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    found = pins.decoded(text)
    assert pins.decoded(pins.encoded(found)) == found
    plan = Heads(incarnations={"s": "i"}, partitions={("s", 0): Head(0, 1, -1)})
    for of_run in ("a", "b", ""):
        batch = pins.Batch(query="q", number=7, run=of_run)
        pins.agreed(found, batch, "x")
        found, _ = pins.pin(found, batch, "new", plan, lambda: plan)


def check_spark_options(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for kind in ("batch", "stream"):
        for name in ("startingOffsets", "endingOffsets", "minPartitions", "failOnDataLoss", "consumer", "brokers"):
            try:
                source_options({"stream": "orders", name: text}, kind)  # type: ignore[arg-type]
            except InvalidRequest as error:
                refused = error
    sink_options({"path": "orders", "brokers": text}, "batch")
    raise refused


def check_spark_lag(data: bytes) -> None:
    found = lag({"sources": [{"latestOffset": data.decode("utf-8", "replace")}]})
    assert found is None or found.total >= 0 or min(found.partitions.values()) < 0


# --- clients of Liftbridge ------------------------------------------------------------------------------------------


def check_liftbridge(data: bytes) -> None:
    """What a call brings: messages, whole or in pieces the same, each of them one of the API's or refused."""
    from broker.api.proto import grpc_health_pb2, grpc_reflection_pb2
    from broker.api.proto import liftbridge_pb2 as pb
    from broker.serving.liftbridge.frames import Frames
    from broker.serving.liftbridge.messages import Messages, framed, parsed
    from broker.serving.liftbridge.reflection import answered
    from broker.serving.liftbridge.statuses import StatusError
    from tests.support.liftbridge_records import check_published

    with contextlib.suppress(ValueError):
        Frames().feed(data)
    messages, found = Messages(), list[bytes]()
    try:
        for at in range(0, len(data), 7):
            found += messages.feed(data[at : at + 7])
    finally:
        assert data.startswith(framed(found)), "they are what was sent"
    calls = (
        pb.CreateStream,
        pb.PauseStream,
        pb.FetchMetadata,
        pb.Publish,
        pb.PublishToSubject,
        pb.Subscribe,
        pb.SetCursor,
    )
    check_published(found)
    for message in found:
        check_published([message])
        for cls in (*calls, pb.JoinGroup, pb.LeaveGroup, pb.FetchAssignments, pb.ReportCoordinator):
            with contextlib.suppress(StatusError):
                parsed(cls, message)
        with contextlib.suppress(StatusError):
            parsed(grpc_health_pb2.HealthCheckRequest, message)
        with contextlib.suppress(StatusError):
            asked = parsed(grpc_reflection_pb2.ServerReflectionRequest, message)
            assert answered(asked).original_request == asked


def liftbridge_errors() -> tuple[type[BaseException], ...]:
    from broker.serving.liftbridge.statuses import StatusError

    return (StatusError,)


NETWORK: Final = (
    Decoder(
        name="liftbridge",
        modules=(
            "broker/serving/liftbridge/messages.py",
            "broker/serving/liftbridge/frames.py",
            "broker/serving/liftbridge/_records.pyx",
            "broker/serving/liftbridge/records.py",
        ),
        check=check_liftbridge,
        errors=liftbridge_errors(),
        words=(b"\x00\x00\x00\x00", b"\x01", b"\x0a\x01s", b"\xff\xff\xff\xff\x0f"),
    ),
    Decoder(
        name="nats-intake",
        modules=(
            "broker/ingest/_intake.pyx",
            "broker/ingest/pure.py",
            "broker/ingest/pure_fate.py",
            "broker/ingest/answers.py",
        ),
        check=check_intake,
        errors=(),
        words=(
            b"MSG ",
            b"HMSG ",
            b"PING\r\n",
            b"+OK",
            b"-ERR '",
            b"INFO {",
            b"NATS/1.0\r\n",
            b"Liftlog-Key: ",
            b"_INBOX.",
        ),
        weight=6,
    ),
    Decoder(
        name="nats-envelope",
        modules=("broker/ingest/envelope.py", "broker/ingest/_envelope.pxi"),
        check=check_envelope,
        errors=(),
        words=(b"\x12", b"\x1a", b"\x4a", b"\x52", b"\x5a", b"\x60\x01", b"\x0b", b"\x0c", b"\xff" * 9, b"Nats-Msg-Id"),
        unseal=lambda data: data[12:],
        seal=checked,
        weight=8,
    ),
    Decoder(
        name="nats-lines",
        modules=("broker/ingest/control.py", "broker/intake/rights.py"),
        check=check_lines,
        errors=(),
        words=(b"MSG ", b"HMSG ", b"NATS/1.0\r\n", b":", b"\t"),
    ),
    Decoder(
        name="nats-info",
        modules=("broker/intake/nats_seam.py",),
        check=check_info,
        errors=(ProtocolError,),
        form="json",
        words=JSON_WORDS,
        weight=5,
    ),
    Decoder(
        name="nats-ack",
        modules=("broker/client/nats_publish.py",),
        check=check_ack,
        errors=(),
        form="json",
        words=JSON_WORDS,
        weight=5,
    ),
    Decoder(
        name="nats-greeting",
        modules=("broker/cli/local/nats_server.py",),
        check=check_greeting,
        errors=(),
        form="json",
        words=(*JSON_WORDS, b"\r\n"),
        weight=8,
    ),
    Decoder(
        name="http-request",
        modules=(
            "broker/serving/contract/endpoint.py",
            "broker/serving/contract/schemas.py",
            "broker/serving/endpoints/resolve.py",
            "broker/serving/endpoints/changes.py",
            "broker/serving/endpoints/watch.py",
            "broker/serving/endpoints/sinks.py",
            "broker/serving/endpoints/consumers.py",
            "broker/serving/endpoints/streams.py",
        ),
        check=check_request,
        errors=(),
        form="json",
        weight=25,
    ),
    Decoder(
        name="http-body",
        modules=("broker/serving/http/body.py",),
        check=check_body,
        errors=(),
        form="json",
        words=JSON_WORDS,
        weight=15,
    ),
    Decoder(
        name="http-arrow",
        modules=(
            "broker/serving/payload/decode.py",
            "broker/serving/payload/framing.py",
            "broker/serving/payload/rows.py",
        ),
        check=check_arrow,
        errors=(InvalidRequest,),
        words=(b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\0\0\0\0", b"value", b"key\0"),
        weight=3,
    ),
    Decoder(
        name="http-posted",
        modules=("broker/serving/endpoints/append.py", "broker/serving/payload/ndjson.py"),
        check=check_posted,
        errors=(),
        words=(b"\xff\xff\xff\xff",),
        weight=25,
    ),
    Decoder(
        name="http-bundle",
        modules=("broker/serving/endpoints/bundles.py",),
        check=check_bundle,
        errors=(),
        words=(b"\xff\xff\xff\xff", b'"rows":', b'"partition":', b'"part":'),
        weight=25,
    ),
    Decoder(name="ndjson", modules=("broker/serving/payload/ndjson.py",), check=check_ndjson, errors=(), weight=5),
    Decoder(
        name="settings",
        modules=("broker/api/stream.py", "broker/api/partitioning.py"),
        check=check_settings,
        errors=(InvalidRequest,),
        form="json",
        words=(b"token:", b"*", b">", b"."),
    ),
    Decoder(
        name="client-frames",
        modules=("broker/client/reading/frames.py", "broker/client/reading/session.py", "broker/api/batch.py"),
        check=check_frames,
        errors=(LiftlogError,),
        words=(END_OF_STREAM, b"\xff\xff\xff\xff"),
        unseal=unseal_value,
        seal=seal_value,
        weight=10,
    ),
    Decoder(
        name="client-columns",
        modules=("broker/api/columns.py", "broker/api/checked.py", "broker/api/_checked.pyx"),
        check=lambda data: check_frames(data, COLUMNS),
        errors=(LiftlogError,),
        words=(END_OF_STREAM, b"\xff\xff\xff\xff"),
        unseal=unseal_stored,
        seal=seal_stored,
        weight=10,
    ),
    Decoder(
        name="hello",
        modules=("broker/control/forming.py", "broker/raft/greeting.py"),
        check=check_hello,
        errors=(ValueError,),
        form="json",
        words=JSON_WORDS,
    ),
    Decoder(
        name="client-problem",
        modules=("broker/client/http/brokers.py", "broker/api/errors.py"),
        check=check_problem,
        errors=(),
        form="json",
        words=JSON_WORDS,
    ),
    Decoder(
        name="client-answer",
        modules=(
            "broker/api/answers.py",
            "broker/api/sink_answers.py",
            "broker/api/validation.py",
            "broker/client/sinks.py",
        ),
        check=check_answer,
        errors=(LiftlogError,),
        form="json",
        words=JSON_WORDS,
    ),
    Decoder(
        name="client-http",
        modules=("broker/client/http/calls.py", "broker/client/http/pool.py"),
        check=check_client,
        errors=(LiftlogError,),
        form="json",
        words=JSON_WORDS,
        weight=30,
    ),
    Decoder(
        name="address",
        modules=("broker/client/http/address.py",),
        check=check_address,
        errors=(InvalidRequest,),
        words=(b"http://", b"[::1]", b":", b"@", b"https://", b"%00", b"xn--"),
    ),
    Decoder(
        name="replica",
        modules=("broker/link/codec.py",),
        check=check_replica,
        errors=(InvalidRequest,),
        words=(b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x0f", b"\x01", b"\x12\x00"),
        unseal=unseal_frame,
        seal=seal_frame,
    ),
    Decoder(
        name="replica-frames",
        modules=("broker/link/framed.py",),
        check=check_replica_frames,
        errors=(),
        words=(b"\x00\x00\x00\x0c", b"\x00\x10\x00\x00", b"\xff\xff\xff\xff", bytes(12)),
        weight=5,
    ),
    Decoder(
        name="replica-greeting",
        modules=("broker/link/handshake.py",),
        check=check_replica_greeting,
        errors=(),
        words=(b"\x0a\x20", b"broker-1", b"\x01"),
        unseal=unseal_frame,
        seal=seal_frame,
    ),
    Decoder(
        name="spark-offset",
        modules=("spark_liftlog/reading/offsets.py",),
        check=check_spark_offset,
        errors=(LiftlogError,),
        form="json",
        words=JSON_WORDS,
    ),
    Decoder(
        name="spark-pins",
        modules=("spark_liftlog/reading/pins.py",),
        check=check_spark_pins,
        errors=(),
        form="json",
        words=JSON_WORDS,
    ),
    Decoder(
        name="spark-options",
        modules=("spark_liftlog/options.py",),
        check=check_spark_options,
        errors=(InvalidRequest,),
        form="json",
        words=JSON_WORDS,
        weight=2,
    ),
    Decoder(
        name="spark-lag",
        modules=("spark_liftlog/progress/query_lag.py", "spark_liftlog/progress/lag_listener.py"),
        check=check_spark_lag,
        errors=(),
        form="json",
        words=JSON_WORDS,
    ),
)
