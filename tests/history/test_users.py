"""Goal: readers ask the right broker, and judge its answers rightly. Method: a server that answers as each test
wants."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from tests.history.record import Recorder
from tests.history.users import Poller


class Broker(ThreadingHTTPServer):
    """Leads or not; whoever does not answers who asks for any replica. `asked`: the queries."""

    def __init__(self, leader: Broker | None = None, problem: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server_port}"
        self.leader, self.problem = leader, problem
        self.asked: list[dict[str, list[str]]] = []


class Handler(BaseHTTPRequestHandler):
    server: Broker

    def do_GET(self) -> None:
        broker, query = self.server, parse_qs(urlsplit(self.path).query)
        broker.asked.append(query)
        if broker.problem:
            return self._say(416, json.dumps({"status": 416, "reason": broker.problem}).encode())
        if broker.leader is not None and query.get("replica") != ["any"]:
            named = {"reason": "not_leader", "leader": {"http": broker.leader.address}}
            return self._say(421, json.dumps(named).encode())
        table = pa.table({"offset": [0, 1, 2], "value": [b"x", b"y", b"z"]}).slice(int(query["offset"][0]))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        end = {} if broker.leader is not None else {"Liftlog-High-Watermark": "3"}
        return self._say(200, sink.getvalue().to_pybytes(), {"Liftlog-Leader-Epoch": "7", **end})

    def _say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(*brokers: Broker) -> Iterator[None]:
    threads = [threading.Thread(target=broker.serve_forever) for broker in brokers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for broker, thread in zip(brokers, threads, strict=True):
            broker.shutdown()
            thread.join()
            broker.server_close()


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with Recorder(tmp_path / "history.jsonl") as made:
        yield made


def test_a_reader_asks_the_leader_that_is_named(recorder: Recorder) -> None:
    leader = Broker()
    follower = Broker(leader)
    with serving(leader, follower):
        reader = Poller(recorder, [follower.address], "s", 1)
        assert (reader.poll(), reader.poll(), reader.elsewhere, reader.answered) == (3, 0, 0, 2)
    assert [query.keys() for query in leader.asked] == [{"offset", "max_bytes"}] * 2


def test_a_reader_with_luck_reads_from_who_does_not_lead_and_sends_the_epoch(recorder: Recorder) -> None:
    leader = Broker()
    follower = Broker(leader)
    with serving(leader, follower):
        reader = Poller(recorder, [follower.address], "s", 1, luck=random.Random(0))
        assert (reader.poll(), reader.poll(), reader.elsewhere) == (3, 0, 1)
    assert leader.asked == []
    assert [(query["replica"], query["epoch"]) for query in follower.asked] == [(["any"], ["0"]), (["any"], ["7"])]


def test_who_cannot_answer_a_reader_with_luck_is_passed_over_for_the_leader(recorder: Recorder) -> None:
    leader = Broker()
    absent = "127.0.0.1:1"
    with serving(leader):
        reader = Poller(recorder, [absent], "s", 1, luck=random.Random(0))
        reader._leaders[0] = leader.address
        assert (reader.poll(), reader.elsewhere) == (3, 0)


@pytest.mark.parametrize("luck", [None, random.Random(0)])
@pytest.mark.parametrize("problem", ["not_ready", "offset_out_of_range", "unknown_stream", "stale_incarnation"])
def test_what_is_never_right_is_kept(recorder: Recorder, problem: str, luck: random.Random | None) -> None:
    """Without an epoch, an earlier leader may answer that does not know yet that it leads no more."""
    broker = Broker(problem=problem)
    with serving(broker):
        reader = Poller(recorder, [broker.address], "s", 1, luck=luck)
        assert reader.poll() == -1
    never = problem not in {"not_ready"} if luck is not None else problem in {"unknown_stream", "stale_incarnation"}
    assert bool(reader.wrong) is never
