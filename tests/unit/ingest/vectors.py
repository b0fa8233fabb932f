"""Bytes of a connection, and what they must lead to: one list, run against both twins in several cuts.

A row lists only what is not null. An answer is (reply subject, err_code). Counters that are not listed are 0,
but for `messages` and `bytes`, which test_vectors.py derives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.unit.ingest.envelopes import ALL, NONE, checked, envelope, header, message, tagged
from tests.unit.ingest.twins import Route
from tests.unit.ingest.wire import hmsg, msg


@dataclass(frozen=True)
class Vector:
    name: str
    wire: bytes
    rows: Sequence[Mapping[str, Any]] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    events: Sequence[tuple[Any, ...]] = ()
    acked: Sequence[str] = ()
    answers: Sequence[tuple[str, int]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    partition_by: str = "subject_suffix"

    @property
    def route(self) -> Route:
        return Route(1, self.settings, self.partition_by)


def row(subject: str, value: bytes | None = b"", **columns: Any) -> dict[str, Any]:
    """A row; headers are given as pairs."""
    if "headers" in columns:
        columns["headers"] = [{"key": key, "value": text} for key, text in columns["headers"]]
    return {"subject": subject, "value": value, **columns}


QUIET = {"reply_acks": False}
KEY = ("Liftlog-Key", "k1")
KEYED = [("Liftlog-Key", b"k1")]

STORED = [
    Vector("nothing", b""),
    Vector("a message", msg("a.b", b"hello"), [row("a.b", b"hello")], {"stored": 1}),
    Vector("an empty payload is an empty value", msg("a", b""), [row("a", b"")], {"stored": 1}),
    Vector(
        "a reply is kept and acked",
        msg("a", b"x", reply="r.1"),
        [row("a", b"x", reply="r.1")],
        {"stored": 1},
        acked=["r.1"],
    ),
    Vector(
        "a payload may look like protocol",
        msg("a", b"\r\nPING\r\nMSG a 1 1\r\n"),
        [row("a", b"\r\nPING\r\nMSG a 1 1\r\n")],
        {"stored": 1},
    ),
    Vector("spaces and tabs between fields", b"MSG   a\t1  \t 3 \r\nabc\r\n", [row("a", b"abc")], {"stored": 1}),
    Vector(
        "operations in lower case",
        b"msg a 1 0\r\n\r\nhMsg a 1 12 12\r\nNATS/1.0\r\n\r\n\r\nping\r\n",
        [row("a"), row("a", headers=[])],
        {"stored": 2},
        [("PING",)],
    ),
    Vector(
        "a reply subject without headers may look like a number",
        msg("a", b"x", reply="17"),
        [row("a", b"x", reply="17")],
        {"stored": 1},
        acked=["17"],
    ),
    Vector(
        "subjects and replies in UTF-8",
        msg("é.€", b"x", reply="ü"),
        [row("é.€", b"x", reply="ü")],
        {"stored": 1},
        acked=["ü"],
    ),
    Vector("values need not be UTF-8", msg("a", b"\xff\x00\xfe"), [row("a", b"\xff\x00\xfe")], {"stored": 1}),
    Vector("a long value", msg("a", bytes(range(256)) * 300), [row("a", bytes(range(256)) * 300)], {"stored": 1}),
    Vector(
        "many in a row",
        msg("a", b"1") + msg("b", b"22", reply="r") + hmsg("c", b"3", KEY) + msg("d", b"4"),
        [row("a", b"1"), row("b", b"22", reply="r"), row("c", b"3", key=b"k1", headers=KEYED), row("d", b"4")],
        {"stored": 4},
        acked=["r"],
    ),
]
HEADERS = [
    Vector("headers in order, duplicates kept", hmsg("a", b"v", ("B", "2"), ("A", "1"), ("B", "3")),
           [row("a", b"v", headers=[("B", b"2"), ("A", b"1"), ("B", b"3")])], {"stored": 1}),
    Vector("an empty header block is an empty list", hmsg("a", b"v"), [row("a", b"v", headers=[])], {"stored": 1}),
    Vector("leading blanks of a header value go, nothing else",
           hmsg("a", block=b"NATS/1.0\r\nA: \t x y \r\nB:\r\nC:c:d\r\n D :e\r\n\r\n"),
           [row("a", headers=[("A", b"x y "), ("B", b""), ("C", b"c:d"), (" D ", b"e")])], {"stored": 1}),
    Vector("header values need not be UTF-8", hmsg("a", block=b"NATS/1.0\r\nA: \xff\r\n\r\n"),
           [row("a", headers=[("A", b"\xff")])], {"stored": 1}),
    Vector("lone CR and LF are part of a header value", hmsg("a", block=b"NATS/1.0\r\nA: x\ry\nz\r\r\n\r\n"),
           [row("a", headers=[("A", b"x\ry\nz\r")])], {"stored": 1}),
    Vector("a status line is read past", hmsg("a", block=b"NATS/1.0 503\r\n\r\n")
           + hmsg("a", b"x", block=b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 8\r\n\r\n"),
           [row("a", headers=[]), row("a", b"x", headers=[("Nats-Last-Consumer", b"8")])], {"stored": 2}),
    Vector("headers, and a reply", hmsg("a", b"x", ("traceparent", "00-4b-01"), reply="r"),
           [row("a", b"x", headers=[("traceparent", b"00-4b-01")], reply="r")], {"stored": 1}, acked=["r"]),
    Vector("the id of a message is kept", hmsg("a", b"x", ("Nats-Msg-Id", "7"), reply="r"),
           [row("a", b"x", headers=[("Nats-Msg-Id", b"7")], reply="r")], {"stored": 1}, acked=["r"]),
    *(
        Vector(f"malformed header block: {block!r}", hmsg("a", b"v", reply="r", block=block) + msg("a", b"next"),
               [row("a", b"next")], {"stored": 1, "refused_bad_header": 1}, answers=[("r", 10003)])
        for block in (
            b"", b"NATS/1.0", b"NATS/1.0\r\n", b"NATS/1.1\r\n\r\n", b"NATS/1.0x\r\n\r\n", b"nats/1.0\r\n\r\n",
            b"NATS/1.0\r\nA: b\r\n", b"NATS/1.0\r\nno colon\r\n\r\n", b"NATS/1.0\r\n: no name\r\n\r\n",
            b"NATS/1.0\r\nA: b\r\n\r\nC: d\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n ", b"NATS/1.0\nA: b\n\n    ",
            b"NATS/1.0\r\nLiftlog-Key: k\r\nbad\r\n\r\n",
        )
    ),
]  # fmt: skip
OPTIONS = [
    Vector("the key", hmsg("a", b"v", KEY), [row("a", b"v", key=b"k1", headers=KEYED)], {"stored": 1}),
    Vector("of two keys the first", hmsg("a", b"v", KEY, ("Liftlog-Key", "k2")),
           [row("a", b"v", key=b"k1", headers=[*KEYED, ("Liftlog-Key", b"k2")])], {"stored": 1}),
    Vector("an empty key is a key", hmsg("a", b"v", ("Liftlog-Key", "")),
           [row("a", b"v", key=b"", headers=[("Liftlog-Key", b"")])], {"stored": 1}),
    Vector("header names are compared exactly", hmsg("a", b"v", ("liftlog-key", "k"), ("Liftlog-Keys", "k")),
           [row("a", b"v", headers=[("liftlog-key", b"k"), ("Liftlog-Keys", b"k")])], {"stored": 1}),
    *(
        Vector(f"Liftlog-Ack: {ack}", hmsg("a", b"v", ("Liftlog-Ack", ack), reply="r"),
               [row("a", b"v", headers=[("Liftlog-Ack", ack.encode())], reply="r")], {"stored": 1}, acked=acked,
               settings={"default_ack": default})
        for ack, default, acked in (
            ("all", "none", ["r"]), ("leader", "none", ["r"]), ("none", "all", []), ("none", "leader", []),
        )
    ),
    Vector("a stream that acks nothing", msg("a", b"v", reply="r"), [row("a", b"v", reply="r")], {"stored": 1},
           settings={"default_ack": "none"}),
    Vector("a stream whose replies mean something else", msg("a", b"v", reply="r")
           + hmsg("a", b"w", ("Liftlog-Ack", "all"), reply="r"),
           [row("a", b"v", reply="r"), row("a", b"w", headers=[("Liftlog-Ack", b"all")], reply="r")], {"stored": 2},
           settings=QUIET),
    *(
        Vector(f"Liftlog-Tombstone: {value}", hmsg("a", b"gone", KEY, ("Liftlog-Tombstone", value)),
               [row("a", None, key=b"k1", headers=[*KEYED, ("Liftlog-Tombstone", value.encode())])], {"stored": 1})
        for value in ("1", "true")
    ),
    *(
        Vector(f"Liftlog-Tombstone: {value}", hmsg("a", b"here", ("Liftlog-Tombstone", value)),
               [row("a", b"here", headers=[("Liftlog-Tombstone", value.encode())])], {"stored": 1})
        for value in ("0", "false")
    ),
    Vector("a tombstone without a key", hmsg("a", b"", ("Liftlog-Tombstone", "1"), reply="r"), [],
           {"refused_tombstone_without_key": 1}, answers=[("r", 10003)]),
    Vector("an unknown tombstone", hmsg("a", b"", KEY, ("Liftlog-Tombstone", "TRUE"), reply="r"), [],
           {"refused_bad_option": 1}, answers=[("r", 10003)]),
    Vector("an unknown ack", hmsg("a", b"", ("Liftlog-Ack", "some"), reply="r"), [],
           {"refused_bad_option": 1}, answers=[("r", 10003)]),
    Vector("an unknown ack without a reply", hmsg("a", b"", ("Liftlog-Ack", "some")), [], {"refused_bad_option": 1}),
    Vector("an unknown ack on a quiet stream", hmsg("a", b"", ("Liftlog-Ack", "some"), reply="r"), [],
           {"refused_bad_option": 1}, settings=QUIET),
    Vector("asking for no ack does not silence a refusal",
           hmsg("a", b"", ("Liftlog-Ack", "none"), ("Liftlog-Tombstone", "1"), reply="r"), [],
           {"refused_tombstone_without_key": 1}, answers=[("r", 10003)]),
]  # fmt: skip
SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
EXPECTED = [
    Vector("the expected stream", hmsg("a", b"v", ("Nats-Expected-Stream", "orders"), reply="r"),
           [row("a", b"v", headers=[("Nats-Expected-Stream", b"orders")], reply="r")], {"stored": 1}, acked=["r"]),
    Vector("another stream is expected", hmsg("a", b"v", ("Nats-Expected-Stream", "order"), reply="r"), [],
           {"refused_expected_stream": 1}, answers=[("r", 10060)]),
    Vector("another stream is expected, and more is wrong",
           hmsg("a", b"v", ("Nats-Expected-Stream", "x"), ("Liftlog-Ack", "?"), reply="r"), [],
           {"refused_expected_stream": 1}, answers=[("r", 10060)]),
    Vector("no stream is expected", hmsg("a", b"v", ("Nats-Expected-Stream", ""), reply="r"),
           [row("a", b"v", headers=[("Nats-Expected-Stream", b"")], reply="r")], {"stored": 1}, acked=["r"]),
    Vector("another stream is expected of an observer", hmsg("a", b"v", ("Nats-Expected-Stream", "x"), reply="r"),
           [row("a", b"v", headers=[("Nats-Expected-Stream", b"x")], reply="r")], {"stored": 1}, settings=QUIET),
    *(
        Vector(name, hmsg("a", b"v", (name, "1"), reply="r"), [], {"refused_expected_last": 1},
               answers=[("r", 10003)])
        for name in ("Nats-Expected-Last-Subject-Sequences", "Nats-Expected-Last-", "Nats-Expected-Last-Sequences")
    ),
    Vector("the last record of another subject is expected",
           hmsg("a", b"v", (SUBJECT_SEQUENCE, "1"), (SUBJECT_SEQUENCE + "-Subject", "b"), reply="r"), [],
           {"refused_expected_last": 1}, answers=[("r", 10003)]),
    Vector("a subject is expected without a sequence",
           hmsg("a", b"v", (SUBJECT_SEQUENCE + "-Subject", "a"), (SUBJECT_SEQUENCE, ""), reply="r"), [],
           {"refused_expected_last": 1}, answers=[("r", 10193)]),
    Vector("the last record of its own subject, named, waits for the append",
           hmsg("a", b"v", (SUBJECT_SEQUENCE + "-Subject", "a"), (SUBJECT_SEQUENCE, "1"), reply="r"),
           [row("a", b"v", headers=[(SUBJECT_SEQUENCE + "-Subject", b"a"), (SUBJECT_SEQUENCE, b"1")], reply="r")],
           {"stored": 1}, acked=["r"]),
    Vector("no subject and no sequence is expected",
           hmsg("a", b"v", (SUBJECT_SEQUENCE + "-Subject", ""), (SUBJECT_SEQUENCE, ""), reply="r"),
           [row("a", b"v", headers=[(SUBJECT_SEQUENCE + "-Subject", b""), (SUBJECT_SEQUENCE, b"")], reply="r")],
           {"stored": 1}, acked=["r"]),
    *(
        Vector(f"{name} waits for the append", hmsg("a", b"v", (name, "1"), reply="r"),
               [row("a", b"v", headers=[(name, b"1")], reply="r")], {"stored": 1}, acked=["r"])
        for name in (SUBJECT_SEQUENCE, "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Msg-Id", "Nats-Msg-Id")
    ),
    Vector("an observer does not mind expectations", hmsg("a", b"v", ("Nats-Expected-Last-Sequence", "1"), reply="r"),
           [row("a", b"v", headers=[("Nats-Expected-Last-Sequence", b"1")], reply="r")], {"stored": 1},
           settings=QUIET),
]  # fmt: skip
REFUSED = [
    Vector("a subject that is no UTF-8", msg(b"a.\xff", b"v", reply="r") + msg("a"), [row("a")],
           {"stored": 1, "refused_bad_utf8": 1}, answers=[("r", 10003)]),
    Vector("a header name that is no UTF-8", hmsg("a", b"v", reply="r", block=b"NATS/1.0\r\nA\xc3: b\r\n\r\n"), [],
           {"refused_bad_utf8": 1}, answers=[("r", 10003)]),
    *(
        Vector(f"no UTF-8: {text!r}", msg(b"abcdefgh" + text, b"v"), [], {"refused_bad_utf8": 1})
        for text in (
            b"\x80", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf",
            b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\xc3", b"\xf0\x9f\x98", b"\xc3a", b"\xe2\x82a",
        )
    ),
    *(
        Vector(f"UTF-8: {text!r}", msg("abcdefgh" + text, b"v"), [row("abcdefgh" + text, b"v")], {"stored": 1})
        for text in ("\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff", "\0")
    ),
    Vector("a record at the limit", msg("ab", b"x" * 7, reply="r"), [row("ab", b"x" * 7, reply="r")], {"stored": 1},
           acked=["r"], settings={"record_bytes_max": 10}),
    Vector("a record over the limit", msg("ab", b"x" * 8, reply="r") + msg("a", b"y"), [row("a", b"y")],
           {"stored": 1, "refused_too_large": 1}, answers=[("r", 10054)], settings={"record_bytes_max": 10}),
    Vector("the header block counts", hmsg("a", b"x", KEY, reply="r") + msg("a", b"y"), [row("a", b"y")],
           {"stored": 1, "refused_too_large": 1}, answers=[("r", 10054)], settings={"record_bytes_max": 30}),
    Vector("over the limit, and meant for another stream",
           hmsg("a", b"x" * 50, ("Nats-Expected-Stream", "x"), reply="r"), [], {"refused_expected_stream": 1},
           answers=[("r", 10060)], settings={"record_bytes_max": 30}),
    Vector("a header block too large to look into",
           hmsg("a", b"x", ("Nats-Expected-Stream", "x"), ("A", "y" * 70_000), reply="r"), [],
           {"refused_too_large": 1}, answers=[("r", 10054)], settings={"record_bytes_max": 30}),
    Vector("a large header block within the limit",
           hmsg("a", b"x", ("A", "y" * 70_000), reply="r"),
           [row("a", b"x", headers=[("A", b"y" * 70_000)], reply="r")], {"stored": 1}, acked=["r"]),
    Vector("inboxes are never captured",
           msg("_INBOX.x.1", b"v") + hmsg("_INBOX.y", b"w", reply="r") + msg("_INBOX", b""),
           [row("_INBOX")], {"stored": 1, "skipped_inbox": 2}),
    Vector("the server's own subjects are never captured",
           msg("$JS.API.x", b"v", reply="r") + hmsg("$SYS.y", b"w", ("Liftlog-Ack", "?"), reply="r") + msg("$", b"")
           + msg("a.$", b"x"), [row("a.$", b"x")], {"stored": 1, "skipped_system": 3}),
    Vector("a subscription that nobody knows", msg("a", b"v", sid=9, reply="r") + hmsg("a", b"w", KEY, sid=2)
           + msg("a", b"x"), [row("a", b"x")], {"stored": 1, "unrouted": 2}),
    Vector("a reply too long to answer", msg("a", b"x", reply="r" * 4089) + msg("a", b"x", reply="r" * 4088),
           [row("a", b"x", reply="r" * 4089), row("a", b"x", reply="r" * 4088)], {"stored": 2, "unanswerable": 1},
           acked=["r" * 4088]),
    Vector("a reply to the server's own subjects is kept and not answered",
           msg("a", b"x", reply="$JS.API.STREAM.PURGE.x") + msg("a", b"y", reply="$") + msg("a", b"z", reply="a$")
           + hmsg("a", b"", ("Liftlog-Ack", "?"), reply="$KV.x.y"),
           [row("a", b"x", reply="$JS.API.STREAM.PURGE.x"), row("a", b"y", reply="$"), row("a", b"z", reply="a$")],
           {"stored": 3, "refused_bad_option": 1, "unanswerable": 3}, acked=["a$"]),
    Vector("nobody asks for an answer",
           hmsg("a", b"x", ("Liftlog-Ack", "none"), reply="$x"),
           [row("a", b"x", headers=[("Liftlog-Ack", b"none")], reply="$x")], {"stored": 1}),
    Vector("a refused one with a reply too long to answer",
           hmsg("a", b"x", ("Liftlog-Ack", "?"), reply="r" * 4089), [], {"refused_bad_option": 1, "unanswerable": 1}),
]  # fmt: skip
OPERATIONS = [
    Vector("operations in order", b"INFO {\"a\": 1} \r\nPING\r\n+OK\r\n-ERR 'Stale Connection'\r\nPONG \r\n",
           events=[("INFO", b'{"a": 1}'), ("PING",), ("OK",), ("ERR", "Stale Connection"), ("PONG",)]),
    Vector("errors without quotes, or text, or UTF-8", b"-ERR\r\n-ERR x 'y'\r\n-ERR '\xff'\r\n-ERR '\r\n-ERR ''\r\n",
           events=[("ERR", ""), ("ERR", "x 'y'"), ("ERR", "\ufffd"), ("ERR", "'"), ("ERR", "")]),
    Vector("INFO may be longer than a control line", b"INFO {" + b" " * 9000 + b"}\r\n" + msg("a"), [row("a")],
           {"stored": 1}, [("INFO", b"{" + b" " * 9000 + b"}")]),
    Vector("INFO of nothing", b"INFO\r\n", events=[("INFO", b"")]),
]  # fmt: skip

FULL = message(b"v", key=b"k", headers=[(b"h", b"1"), (b"", b"")], correlation=b"c")
ENCLOSED = row("a", b"v", key=b"k", headers=[("h", b"1"), ("", b"")])
ENVELOPES = [
    Vector("an envelope", msg("a", envelope(FULL)), [ENCLOSED], {"stored": 1}),
    Vector("an envelope with a CRC", msg("a", checked(FULL)), [ENCLOSED], {"stored": 1}),
    Vector("an empty envelope", msg("a", envelope(b"")), [row("a")], {"stored": 1}),
    Vector("an empty envelope with a CRC", msg("a", checked(b"")), [row("a")], {"stored": 1}),
    Vector("an envelope in a message with headers", hmsg("a", envelope(FULL), ("A", "b"), KEY),
           [row("a", b"v", key=b"k", headers=[("A", b"b"), *KEYED, ("h", b"1"), ("", b"")])], {"stored": 1}),
    Vector("the key of its headers", hmsg("a", envelope(message(b"v", headers=[(b"Liftlog-Key", b"k2")])), KEY)
           + msg("a", envelope(message(b"w", headers=[(b"Liftlog-Key", b"k2")]))),
           [row("a", b"v", key=b"k1", headers=[*KEYED, ("Liftlog-Key", b"k2")]),
            row("a", b"w", key=b"k2", headers=[("Liftlog-Key", b"k2")])], {"stored": 2}),
    Vector("options in an envelope",
           msg("a", envelope(message(b"v", key=b"k", headers=[(b"Liftlog-Tombstone", b"1")])))
           + msg("a", envelope(message(b"v", headers=[(b"Liftlog-Tombstone", b"1")])), reply="r1")
           + msg("a", envelope(message(b"v", headers=[(b"Nats-Expected-Stream", b"x")])), reply="r2")
           + msg("a", envelope(message(b"v", headers=[(b"Liftlog-Ack", b"often")])), reply="r3"),
           [row("a", None, key=b"k", headers=[("Liftlog-Tombstone", b"1")])],
           {"stored": 1, "refused_tombstone_without_key": 1, "refused_expected_stream": 1, "refused_bad_option": 1},
           answers=[("r1", 10003), ("r2", 10060), ("r3", 10003)]),
    Vector("ids and expectations in an envelope wait for the append",
           msg("a", envelope(message(headers=[(b"Nats-Msg-Id", b"7"), (b"Nats-Expected-Last-Sequence", b"1")]))),
           [row("a", b"", headers=[("Nats-Msg-Id", b"7"), ("Nats-Expected-Last-Sequence", b"1")])], {"stored": 1}),
    Vector("its ack policy, and its reply", msg("a", envelope(message(b"1")), reply="r1")
           + msg("a", envelope(message(b"2", policy=ALL)), reply="r2")
           + msg("a", envelope(message(b"3", policy=NONE)), reply="r3")
           + msg("a", envelope(message(b"4", policy=7)), reply="r4")
           + hmsg("a", envelope(message(b"5", policy=NONE)), ("Liftlog-Ack", "all"), reply="r5"),
           [row("a", b"1", reply="r1"), row("a", b"2", reply="r2"), row("a", b"3", reply="r3"),
            row("a", b"4", reply="r4"), row("a", b"5", reply="r5", headers=[("Liftlog-Ack", b"all")])],
           {"stored": 5}, acked=["r2", "r5", "r1"]),
    *(
        Vector(f"an envelope with {name}", msg("a", envelope(inner)), [row("a", b"v")], {"stored": 1})
        for name, inner in {
            "two values": message(b"u") + message(b"v"),
            "unknown fields": tagged(1, 7) + tagged(99, b"x") + message(b"v") + tagged(4, (1 << 64) - 1),
            "fields of another type": message(b"v") + tagged(2, 5) + tagged(9, 5) + tagged(12, b"x"),
            "fixed numbers": b"\x21" + bytes(8) + message(b"v") + b"\x25" + bytes(4),
            "a group": b"\x0b\x13" + tagged(3, b"u") + b"\x14\x0c" + message(b"v"),
            "a long tag": b"\x9a\x80\x00\x01v",
        }.items()
    ),
    *(
        Vector(f"no envelope: {name}", msg("a", payload), [row("a", payload)], {"stored": 1})
        for name, payload in {
            "the cookie alone": envelope(b"")[:4],
            "a header in part": envelope(b"")[:7],
            "another version": envelope(FULL, version=1),
            "another type": envelope(FULL, kind=1),
            "a header of less than eight bytes": envelope(FULL, header_size=7),
            "no header": envelope(FULL, header_size=0),
            "a header beyond the payload": envelope(b"abc", header_size=12),
            "a wrong CRC": checked(FULL, crc=1),
            "a CRC in eight bytes": envelope(FULL, flags=1),
            "a CRC in too long a header": envelope(bytes(5) + FULL, flags=1, header_size=13),
            "a field in part": envelope(FULL)[:-1],
            "field 0": envelope(b"\x02\x00"),
            "a field number beyond all": envelope(b"\x80\x80\x80\x80\x10\x00"),
            "an unknown wire type": envelope(b"\x1e"),
            "a group that does not end": envelope(b"\x0b"),
            "a group that ends as another": envelope(b"\x0b\x14"),
            "an end without a group": envelope(b"\x0c"),
            "a hundred and one groups": envelope(b"\x0b" * 101 + b"\x0c" * 101),
            "a number of 65 bits": envelope(b"\x60" + b"\xff" * 9 + b"\x02"),
            "a number of eleven bytes": envelope(b"\x60" + b"\x80" * 10 + b"\x00"),
            "a length beyond all": envelope(b"\x1a" + b"\xff" * 9 + b"\x01"),
            "a header that is no message": envelope(tagged(9, b"\x0a")),
            "a header name that is no UTF-8": envelope(header(b"\xff", b"")),
            "an inbox that is no UTF-8": envelope(tagged(10, b"\xff")),
            "a correlation id that is no UTF-8": envelope(tagged(11, b"\xc3")),
            "a stream that is no UTF-8": envelope(tagged(5, b"\xff")),
        }.items()
    ),
    Vector("an empty header, and one that stands twice", msg("a", envelope(tagged(9, b"") + header(b"h", b"1") * 2)),
           [row("a", b"", headers=[("", b""), ("h", b"1"), ("h", b"1")])], {"stored": 1}),
    Vector("an envelope in a malformed header block", hmsg("a", envelope(FULL), block=b"NATS/1.0\r\nx\r\n\r\n"), [],
           {"refused_bad_header": 1}),
    Vector("an envelope for the inbox, and for nobody",
           msg("_INBOX.a", envelope(FULL)) + msg("a", envelope(FULL), sid=9), [], {"skipped_inbox": 1, "unrouted": 1}),
    Vector("an envelope over the limit", msg("a", envelope(message(b"x" * 50)), reply="r") + msg("b", b"x"),
           [row("b", b"x")], {"stored": 1, "refused_too_large": 1}, answers=[("r", 10054)],
           settings={"record_bytes_max": 40}),
]  # fmt: skip

VECTORS = [*STORED, *HEADERS, *OPTIONS, *EXPECTED, *REFUSED, *ENVELOPES, *OPERATIONS]
