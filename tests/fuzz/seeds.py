"""Make the corpus: golden files, real bytes of the wire and of the disk, and hand-made nasties.

    python -m tests.fuzz.seeds

Writes what is missing or changed; inputs that fuzzing has found (their names begin with `found-`) are left alone.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from broker.api.columns import schema_bytes
from broker.api.errors import NotLeader, OffsetOutOfRange, StreamExists
from broker.api.schema import END_OF_STREAM, SCHEMA_BYTES
from broker.groups.offsets import ConsumerOffset
from broker.groups.pins import Pin
from broker.groups.progress import GroupOffset
from broker.metadata.catalog import Catalog
from broker.metadata.journal import encode_line
from broker.sinks.notes import GroupFinished, PartStored, StageDropped, StagePinned, encode_note
from broker.sinks.state import Decision, SinkState, StageRef
from broker.storage.memory.ids import IdTable
from broker.storage.memory.producers import GroupStamp, ProducerTable
from broker.storage.memory.state_files import encode_state, state_name
from broker.storage.memory.subjects import SubjectTable
from spark_liftlog.reading.advance import Head, Heads
from spark_liftlog.reading.pins import Pinned, encoded
from tests.fuzz.decoder import CORPUS
from tests.fuzz.encrypted import of_encrypted
from tests.fuzz.files import STATE_OFFSET, folder, good_batch, seal_index, seal_journal, seal_json, seal_snapshot
from tests.fuzz.network import COLUMNS
from tests.fuzz.payloads import END_OF_VALUE, SCHEMAS
from tests.fuzz.raw_seeds import of_connections, of_tokens
from tests.support.logs import FOLDER
from tests.support.messages import projected, split_messages
from tests.support.random_json import random_value
from tests.unit.client.logs import body, message
from tests.unit.ingest.envelopes import checked, envelope, tagged
from tests.unit.ingest.envelopes import message as enclosed
from tests.unit.ingest.vectors import VECTORS
from tests.unit.ingest.wire import hmsg, msg
from tests.unit.serving.arrow import not_utf8, stream_of, values

ROOT = Path(__file__).parents[2]
Inputs = Iterator[tuple[str, str, bytes]]
"""Decoder, name, bytes."""


def js(value: Any) -> bytes:
    return json.dumps(value).encode()


def of_envelopes() -> Iterator[tuple[str, bytes]]:
    full = enclosed(
        b"value", key=b"k", headers=[(b"Nats-Msg-Id", b"7"), (b"h", b"")], inbox=b"_INBOX.a", correlation=b"c", policy=1
    )
    yield "full", envelope(full)
    yield "checked", checked(full)
    yield "empty", envelope(b"")
    yield "groups", envelope(b"\x0b\x13" + tagged(3, b"u") + b"\x14\x0c" + full)
    yield "unknown", envelope(tagged(1, 7) + tagged(99, b"x") + full + b"\x21" + bytes(8) + b"\x25" + bytes(4))
    yield "wide-header", envelope(bytes(5) + full, header_size=13)
    yield "ack", envelope(full, kind=1)
    yield "offset", envelope(tagged(1, (1 << 64) - 2) + full)
    yield "cookie", envelope(b"")[:4]


def of_the_disk() -> Inputs:
    for is_clean in (False, True):
        disk = folder(is_clean=is_clean)
        kind = "clean" if is_clean else "killed"
        for path, inode in sorted(disk.names.items()):
            name, data = path.removeprefix(f"{FOLDER}/"), bytes(inode.content)
            target = {f"{0:020d}.arrows": "segment", f"{7:020d}.arrows": "segment-active"}.get(name)
            target = target or {f"{0:020d}.index": "file-index", state_name(7): "file-state"}.get(name)
            if target is None and name in ("checkpoint", "epochs", "compaction", "partition.json"):
                target = f"file-{name}"
            if target is not None:
                yield target, kind, data
            if target == "file-index":
                yield "index", kind, data
    golden = (ROOT / "tests/golden/format-v1/segment.arrows").read_bytes()
    yield "segment", "golden", golden
    yield "segment", "zeros-behind", golden.removesuffix(END_OF_STREAM) + bytes(4096)
    yield "segment", "behind-a-marker", golden + END_OF_STREAM + golden[len(SCHEMA_BYTES) :]
    yield "segment", "empty", b""
    yield "segment", "schema-only", SCHEMA_BYTES
    yield "segment-active", "other-first-offset", golden
    yield "file-index", "no-entries", seal_index(b"")
    for name, text in (
        ("negative", b'{"format_version":1,"high_watermark":-1,"log_start_offset":-9,"recovery_point":-3}'),
        ("a-list", b"[]"),
        ("a-number", b"5"),
        ("deep", b"[" * 5000),
        ("no-json", b"{"),
    ):
        for target in ("file-checkpoint", "file-epochs", "file-compaction"):
            yield target, name, seal_json(text)
        yield "file-partition.json", name, text


def of_values() -> Inputs:
    yield "batch", "all-columns", good_batch()
    for codec in ("lz4", "zstd"):
        golden = (ROOT / f"tests/golden/format-v1/compressed-{codec}.arrows").read_bytes()
        yield "segment", f"compressed-{codec}", golden
        yield "client-frames", f"compressed-{codec}", golden
        for number, found in enumerate(split_messages(golden)):
            if len(found) > 904 and found[4:8] == (896).to_bytes(4, "little"):
                yield "batch-compressed", f"{codec}-{number}", bytes(found)
                yield "batch", f"{codec}-{number}", bytes(found)
    yield "segment", "rewritten", (ROOT / "tests/golden/format-v1/rewritten.arrows").read_bytes()
    yield "batch", "compacted", message(0, 9, keep=[3, 5])
    table = ProducerTable()
    for i in range(7):
        for producer in (1, 9):
            table.note(GroupStamp(producer, 2, i), 10 * i, 10 * i + 3, now_us=100 + i)
    yield "producers", "two", table.snapshot()
    yield "producers", "none", ProducerTable().snapshot()
    yield "state", "producers", encode_state(STATE_OFFSET, {"producers": table.snapshot()})
    yield "state", "unknown-section", encode_state(STATE_OFFSET, {"later": b"x" * 9, "producers": table.snapshot()})
    yield "state", "none", encode_state(STATE_OFFSET, {})
    ids = IdTable(bytes(range(16)))
    ids.note([b"id-%d" % i for i in range(4)], np.arange(4), np.full(4, 100))
    yield "ids", "four", ids.snapshot(end=4, since_us=0)
    subjects = SubjectTable(bytes(range(16)))
    subjects.begin(0, 3)
    for i in range(5):
        subjects.put(b"orders.%d" % i, i + 1)
    yield "subjects", "full", subjects.snapshot(5)
    yield "subjects", "none", SubjectTable(bytes(range(16))).snapshot(0)
    yield (
        "state",
        "subjects",
        encode_state(STATE_OFFSET, {"producers": table.snapshot(), "subjects": subjects.snapshot(5)}),
    )
    stage, decision = "0f" * 16, "ab" * 16
    notes = (
        PartStored(stage=stage, sink="q", epoch=1, part=0, is_last=True, rows=3, stored_us=5),
        StagePinned(stage=stage, sink="q", epoch=1, batch_id=7, search_from=9, pinned_us=6),
        StageDropped(stage=stage, why="expired"),
        GroupFinished(decision=decision, sink="q", stages=(stage,), first_offset=3, next_offset=6),
    )
    for note in notes:
        yield "note", type(note).__name__, encode_note(note)
    ref = StageRef(stream="s", incarnation="i", partition=0, stage=stage, parts=1, rows=3, search_from=9)
    last = Decision(
        batch_id=7,
        decision=decision,
        owner="o",
        epoch=1,
        stages=(ref,),
        rows=3,
        digest="d",
        attributes={"a": "b"},
        decided_us=9,
    )
    decided = SinkState(sink="q", epoch=1, owners={"o": 1}, checkpoint="/c", last=last, is_done=False)
    yield "sink-state", "decided", decided.encode()
    yield "sink-state", "new", SinkState(sink="q").encode()
    offset = ConsumerOffset(
        consumer="spark",
        stream="orders",
        partition=3,
        offset=42,
        leader_epoch=3,
        incarnation="i",
        timestamp_us=17,
        metadata="m",
    )
    yield "consumer-offset", "whole", offset.key + b"\n" + offset.value()
    entry = GroupOffset(group="billing", incarnation="i1", partition=3, epoch=1 << 28, offset=42, stream="orders")
    yield "group-offset", "whole", entry.key + b"\n" + entry.value()
    yield "group-offset", "removed", entry.key + b"\n" + replace(entry, offset=None).value()
    yield "consumer-offset", "other-partition", b"spark/orders/\xd9\xa3\n" + offset.value()
    pin = Pin(name="query.frame", text="{}", version=17, timestamp_us=17)
    yield "pin", "whole", pin.key + b"\n" + pin.value()


def of_metadata() -> Inputs:
    catalog = Catalog()
    commands: list[dict[str, Any]] = [
        {"kind": "register_broker", "broker_id": "b", "incarnation": "i", "http": "h:1", "grpc": "h:2"},
        {"kind": "create_stream", "name": "s", "incarnation": "i", "created_us": 5, "settings": {"subject": "a.*"}},
        {"kind": "alter_stream", "name": "s", "settings": {"retention_ms": 5000}},
        {"kind": "set_state", "name": "s", "paused": True},
        {"kind": "add_partitions", "name": "s", "partitions": 3},
        {"kind": "register_producer", "name": "p"},
        {"kind": "delete_stream", "name": "s"},
    ]
    commands = [{"v": 1, **command} for command in commands]
    for command in commands:
        yield "catalog", command["kind"], seal_journal(js(command))
        if command["kind"] != "delete_stream":
            catalog.apply(command)
    yield "catalog", "all", b"".join(encode_line(command) for command in commands)
    yield "catalog-snapshot", "all", encode_line({"snapshot": catalog.snapshot()})
    yield "catalog-snapshot", "null", seal_snapshot(b'{"snapshot":null}')
    yield "broker.json", "good", js({"format_version": 1, "cluster_id": "c", "broker_id": "broker-0"})
    yield "broker.json", "list", b"[]"
    member = {"state": "member", "node_id": "a.1@h:1", "group": "c/1", "first": ["a.1@h:1", "b.2@h:2"]}
    yield "raft.json", "member", js(member)
    yield "raft.json", "forming", js({"state": "forming", "node_id": "a.1@h:1", "group": "", "first": []})
    hello = {"type": "hello", "cluster": "c", "broker": "b-2", "node_id": "b-2.y@z", "group": "", "is_forming": True}
    yield "hello", "forming", js({**hello, "named": [["b-1", "127.0.0.1:1"], ["b-2", "127.0.0.1:2"]]})
    yield "hello", "removed", js({**hello, "node_id": "b-3.y@z", "broker": "b-3", "named": []})
    up = {"brokers": [{"id": "broker-0", "http": "h:1", "grpc": "h:2"}], "nats": {"url": "n", "embedded": True}}
    process = {"pid": 1, "started": "5", "boot": "b", "name": "x"}
    yield "up.json", "good", js({**up, "data": "d", "mode": "detached", "processes": {"broker-0": process}})
    for path in ("conf/liftlog.toml", "conf/production.toml"):
        yield "config", Path(path).name, (ROOT / path).read_bytes()
    yield (
        "config",
        "all-kinds",
        b'data_dir = "/d"\n[nats]\nurls = ["nats://u:p@h"]\n[defaults]\nretention_ms = 5\n',
    )
    yield (
        "variables",
        "some",
        b"LIFTLOG_DATA_DIR=/d\nLIFTLOG_HTTP_PORT=9293\nLIFTLOG_NATS_URLS=nats://a,nats://b\nPATH=x",
    )
    settings = {
        "subject": "orders.*",
        "partitions": 3,
        "partition_by": "token:2",
        "retention_ms": None,
        "fsync": "batch",
    }
    yield "settings", "some", js({**settings, "fsync": "batch", "cleanup": "both", "group": "g", "reply_acks": False})


def of_nats() -> Inputs:
    for vector in VECTORS:
        if 0 < len(vector.wire) < 1_500:
            yield "nats-intake", re.sub(r"\W+", "-", vector.name)[:60], vector.wire
    good = msg("a", b"one") + hmsg("b", b"two", ("Liftlog-Key", "k"), reply="r") + msg("c", b"3", sid=7)
    yield "nats-intake", "three-messages", good
    yield (
        "nats-intake",
        "ids-and-expectations",
        b"".join(
            hmsg("a", b"x", (name, value), reply="r")
            for name, value in (
                ("Nats-Msg-Id", "id-1"),
                ("Nats-Expected-Last-Sequence", "4"),
                ("Nats-Expected-Last-Msg-Id", "id-0"),
                ("Nats-Expected-Last-Subject-Sequence", "0"),
                ("Nats-Expected-Stream", "orders"),
                ("Liftlog-Fence", "3"),
                ("Liftlog-Fence", "x"),
            )
        ),
    )
    yield "nats-intake", "size-overflows", good + b"MSG a 1 18446744073709551616\r\n"
    for name, data in of_envelopes():
        yield "nats-envelope", name, data
    yield "nats-lines", "headers", b"NATS/1.0\r\nA: b\r\nA:c\r\n\r\n"
    yield "nats-lines", "control", b"HMSG a.b 1 reply 12 15\r\n"
    yield "nats-lines", "error", b"-ERR 'Authorization Violation'\r\n"
    refused = b'Permissions Violation for Subscription to "a.>" using queue "g"'
    yield "nats-lines", "refused", b"-ERR '" + refused + b"'"
    info = {"server_id": "s", "version": "2.11.0", "headers": True, "max_payload": 1 << 20, "connect_urls": ["h:4222"]}
    for target in ("nats-info", "nats-greeting"):
        yield target, "usual", js({**info, "client_id": 5, "tls_required": False, "ldm": True})
        yield target, "list", b"[]"
        yield target, "deep", b"[" * 3000
    yield "nats-ack", "ours", js({"stream": "orders", "seq": 43, "duplicate": True, "partition": 1})
    yield "nats-ack", "jetstream", js({"stream": "orders", "seq": 43})
    yield "nats-ack", "error", js({"error": {"code": 503, "err_code": 10077, "description": "disk full"}})
    yield "nats-ack", "infinite", b'{"stream":"orders","seq":1e999}'


def of_http() -> Inputs:
    stage = "0f" * 16
    requests: list[tuple[str, str, str, Any]] = [
        ("create", "POST", "/v1/streams", {"name": "new", "subject": "a.*", "partitions": 2, "acks": "all"}),
        ("alter", "PATCH", "/v1/streams/orders", {"retention_ms": 5000, "linger_ms": 1, "fsync": "batch"}),
        ("describe", "GET", "/v1/streams/orders", None),
        ("read", "GET", "/v1/streams/orders/partitions/0/records?offset=earliest&end=9&format=json", None),
        ("read-time", "GET", "/v1/streams/orders/partitions/0/records?offset=time:2020-01-01T00:00:00Z", None),
        ("list", "GET", "/v1/streams?limit=5", None),
        ("watch", "GET", "/v1/watch?streams=or*,x", None),
        ("trim", "POST", "/v1/streams/orders/trim", {"before": {"timestamp_us": 4}, "partitions": [0]}),
        ("read-only", "POST", "/v1/streams/orders/read-only", {"read_only": False}),
        ("grow", "POST", "/v1/streams/orders/partitions", {"partitions": 2}),
        ("pause", "POST", "/v1/streams/orders/pause", None),
        ("producer", "POST", "/v1/producers", {"name": "p"}),
        ("open", "POST", "/v1/sinks/q/open", {"owner": "o", "one_shot": True}),
        ("reset", "POST", "/v1/sinks/q/reset", {"next_batch_id": 4}),
        ("adopt", "POST", "/v1/sinks/q/adopt", {"checkpoint": "/c"}),
        ("forget-sink", "DELETE", "/v1/sinks/q", None),
        ("sinks", "GET", "/v1/sinks", None),
        ("consumers", "GET", "/v1/consumers", None),
        ("forget", "DELETE", "/v1/consumers/c", None),
        (
            "reset-consumer",
            "POST",
            "/v1/consumers/c/reset",
            {"stream": "orders", "to": {"offset": 4}},
        ),
        (
            "commit-offsets",
            "POST",
            "/v1/consumers/c/offsets",
            {"offsets": [{"stream": "orders", "partition": 0, "offset": 3, "leader_epoch": 1, "metadata": "m"}]},
        ),
        (
            "resolve",
            "POST",
            "/v1/offsets/resolve",
            {"positions": [{"stream": "orders", "partition": 0, "at": {"timestamp_us": 5}, "incarnation": "x"}]},
        ),
        (
            "commit",
            "POST",
            "/v1/sinks/q/commit",
            {
                "owner": "o",
                "epoch": 1,
                "batch_id": 0,
                "on_repeat_with_other_rows": "keep_first",
                "rows": 0,
                "digest": "d",
                "attributes": {"checkpoint": "/c"},
                "stages": [{"stream": "orders", "partition": 0, "stage": stage, "parts": 1}],
            },
        ),
        ("abort", "POST", "/v1/sinks/q/abort", {"stages": [{"stream": "orders", "partition": 0, "stage": stage}]}),
    ]
    for name, method, path, given in requests:
        yield "http-request", name, js({"method": method, "path": path, "body": given})
        if isinstance(given, dict):
            yield "http-body", name, js(given)
    yield "http-body", "twice", b'{"name":"a","name":"b"}'
    yield "http-body", "deep", b"[" * 20_000
    yield "http-body", "nan", b'{"name":"a","linger_ms":NaN}'
    yield "http-body", "surrogate", b'{"name":"\\ud800"}'
    streams = {
        "values": stream_of(values(5)),
        "two-batches": stream_of([values(3), values(2)]),
        "lz4": stream_of(values(200), compression="lz4"),
        "zstd": stream_of(values(200), compression="zstd"),
        "all-columns": stream_of(
            pa.record_batch(
                {
                    "key": pa.array([b"k", None]),
                    "value": pa.array([None, b"v"]),
                    "headers": pa.array([[("a", b"1")], None], pa.map_(pa.string(), pa.binary())),
                    "subject": pa.array(["a.b", None]),
                    "timestamp": pa.array([5, None], pa.timestamp("us", tz="UTC")),
                    "reply": pa.array(["r", None]),
                }
            )
        ),
        "dictionary": stream_of(pa.record_batch({"value": pa.array(["a", "b", "a"]).dictionary_encode()})),
        "view": stream_of(pa.record_batch({"value": pa.array([b"x" * 30, None], pa.binary_view())})),
        "nothing": b"",
        **{f"not-utf8-{name}": data for name, data in not_utf8()},
    }
    for name, data in streams.items():
        yield "http-arrow", name, data
        yield "http-posted", name, data
    staged = {"stage": "0" * 32, "part": 0, "last": True}
    bundles = {
        "appended": js({"parts": [{"partition": 0, "rows": 1}, {"partition": 0, "rows": 1}]}),
        "staged": js({"parts": [{"partition": 0, "rows": 2, **staged}]}),
        "too-many": js({"parts": [{"partition": 0, "rows": (1 << 63) - 1}]}),
        "none": js({"parts": []}),
    }
    for name, head in bundles.items():
        yield "http-bundle", name, len(head).to_bytes(2, "big") + head + streams["all-columns"]
    head = js({"parts": [{"partition": 0, "rows": 5}]})
    for name, data in streams.items():
        yield "http-bundle", f"of-{name}", len(head).to_bytes(2, "big") + head + data
    for name, data in (("text", "é".encode()), ("binary", b"\xff\0\xfe"), ("quotes", b'"\\\n\r\t\x7f'), ("none", b"")):
        yield "ndjson", name, data


def of_answers() -> Inputs:
    two = [message(0, 3), message(3, 9, keep=[4, 8])]
    yield "client-frames", "two-batches", body(*two)
    yield "client-frames", "none", body()
    yield "client-frames", "torn", body(*two)[:-100]
    some = [projected(each, COLUMNS) for each in two]
    yield "client-columns", "two-batches", b"".join([schema_bytes(COLUMNS), *some, END_OF_STREAM])
    yield "client-columns", "none", schema_bytes(COLUMNS) + END_OF_STREAM
    yield "client-columns", "whole", body(*two)
    yield "client-frames", "golden", (ROOT / "tests/golden/format-v1/segment.arrows").read_bytes()
    problems = {
        "range": OffsetOutOfRange("no", log_start_offset=3, high_watermark=9).to_problem(),
        "leader": NotLeader("no", leader={"id": "b", "http": "h:9293"}).to_problem(),
        "exists": StreamExists("no", differences={"fsync": ["batch", "interval"]}).to_problem(),
        "unknown-reason": {"reason": "of_a_later_release", "detail": "x", "status": 400},
        "field-message": {"reason": "not_ready", "detail": "x", "message": "y", "self": 1, "args": []},
    }
    for name, problem in problems.items():
        yield "client-problem", name, js(problem)
        if name != "leader":
            yield "client-http", f"problem-{name}", js(problem)
    yield "client-problem", "proxy", b"<html>502 Bad Gateway</html>"
    yield "client-problem", "deep", b"[" * 20_000
    partition = {
        "partition": 0,
        "leader": {"id": "b", "http": "h:1", "grpc": "h:2"},
        "leader_epoch": 3,
        "log_start_offset": 0,
        "high_watermark": 9,
        "log_end_offset": 9,
        "durable_end": 9,
        "bytes": 900,
        "segments": 1,
        "lost_ranges": [[3, 4]],
        "first_timestamp_ms": 5,
        "last_timestamp_ms": None,
        "record_count": 9,
    }
    lagging = {
        "stream": "s",
        "partition": 0,
        "offset": 3,
        "high_watermark": 9,
        "lag": 6,
        "leader_epoch": 1,
        "incarnation": "i",
        "committed_ms": 5,
        "metadata": "m",
    }
    watched = {"log_start_offset": 0, "high_watermark": 9, "leader_epoch": 3, "leader": {"id": "b", "http": "h:1"}}
    stage = {"stream": "s", "partition": 0, "stage": "0f" * 16, "parts": 1, "rows": 3}
    decided = {
        "batch_id": 7,
        "decision": "ab" * 16,
        "epoch": 1,
        "rows": 3,
        "digest": "d",
        "owner": "o",
        "attributes": {"a": "b"},
        "decided_ms": 9,
        "is_complete": True,
        "complete": True,
        "stages": [stage],
    }
    found = {
        "stream": {
            "name": "s",
            "incarnation": "i",
            "created_ms": 5,
            "internal": False,
            "settings": {"subject": "s"},
            "warnings": ["w"],
            "partitions": [partition],
            "paused": False,
            "read_only": False,
        },
        "consumer": {"consumer": "c", "partitions": [lagging], "lag": 6},
        "resolved": {**watched, "stream": "s", "partition": 0, "incarnation": "i", "offset": 3, "bytes_ahead": 9},
        "watch": {"version": 5, "streams": {"s": {"incarnation": "i", "partitions": {"0": watched}}}},
        "cluster": {
            "cluster_id": "c",
            "feature_level": 1,
            "controller": "b",
            "version": "0",
            "brokers": [{"id": "b", "http": "h:1", "grpc": ""}],
        },
        "ready": {"ready": False, "missing": {"nats": "away"}},
        "appended": {"first_offset": 3, "next_offset": 5, "record_count": 2, "leader_epoch": 1, "duplicate": True},
        "sink": {
            "sink": "q",
            "current_epoch": 1,
            "checkpoint": "/c",
            "one_shot": False,
            "least_batch_id": 0,
            "changed_ms": 5,
            "last": decided,
        },
    }
    for kind, answer in found.items():
        yield "client-answer", kind, js({"kind": kind, "answer": answer})
        yield "client-http", kind, js(answer)
    yield (
        "client-http",
        "lists",
        js({"streams": [found["stream"]], "consumers": [found["consumer"]], "sinks": [found["sink"]]}),
    )
    yield "client-http", "deep", b"[" * 20_000
    yield "client-http", "infinite", b'{"version":1e999,"streams":{}}'
    yield "client-answer", "infinite", b'{"kind":"watch","answer":{"version":1e999,"streams":{}}}'
    for name, text in (
        ("one", "h:9293"),
        ("six", "http://[::1]:9293/"),
        ("several", "a:1, b:2,c"),
        ("bare-six", "::1"),
    ):
        yield "address", name, text.encode()


def of_spark() -> Inputs:
    golden: dict[str, str] = json.loads((ROOT / "tests/golden/offsets-v1.json").read_text())
    for name, text in golden.items():
        yield "spark-offset", name.replace(" ", "-"), text.encode()
    yield "spark-options", "offsets", b'{"orders": {"0": 23, "1": -2}}'
    yield "spark-options", "word", b"earliest"
    yield "spark-options", "deep", b'{"orders":' + b"[" * 3000
    yield "spark-options", "other-digits", '{"orders":{"٣":4}}'.encode()
    state = Heads(incarnations={"orders": "i"}, partitions={("orders", n): Head(0, 9 * n, 3) for n in range(3)})
    pinned = Pinned(number=7, states=(state, state), loads=(0, 1), runs={"a": {"x": 0, "y": 1}, "b": {"z": 0}})
    yield "spark-pins", "plain", encoded([pinned]).encode()
    yield "spark-pins", "compressed", encoded([pinned] * 10).encode()
    yield "spark-pins", "deep", b"[" * 3000
    yield "spark-lag", "ours", js({"v": 1, "streams": {"s": {"0": {"high_watermark": 9, "lag": 4}}}})
    yield "spark-lag", "deep", b"[" * 3000


def of_payloads() -> Inputs:
    rng = random.Random(1)
    for number, schema in enumerate(SCHEMAS):
        for kind, wild in (("good", 0.0), ("wild", 0.3)):
            values = [random_value(rng, schema, wild) or b"" for _ in range(4)]
            yield "payload-json", f"{kind}-{number}", bytes([number]) + END_OF_VALUE.join(values)
    for name, text in (
        ("empty", b""),
        ("deep", b"[" * 1200),
        ("levels", b'{"z":' * 999 + b"1" + b"}" * 999),
        ("surrogates", b'{"item":1,"tags":["\\ud83d\\ude00","\\ude00"]}'),
        ("exponents", b'{"price":1e' + b"9" * 400 + b"}"),
    ):
        yield "payload-json", name, b"\0" + text


def main() -> None:
    for make in (
        of_the_disk,
        of_values,
        of_metadata,
        of_nats,
        of_http,
        of_answers,
        of_connections,
        of_tokens,
        of_spark,
        of_payloads,
        of_encrypted,
    ):
        for decoder, name, data in make():
            path = CORPUS / decoder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)


if __name__ == "__main__":
    main()
