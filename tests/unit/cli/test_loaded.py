"""Goal: a command that makes a JSON call waits for no library that only others need.

Method: the command in a process of its own, against a raw server; then its modules are listed. No clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.unit.client.rawserver import RawServer, Reply, Request

pytestmark = pytest.mark.process

HEAVY = {
    "typer",
    "pydantic",
    "rich",
    "numpy",
    "pyarrow",
    "pandas",
    "polars",
    "pyspark",
    "aiohttp",
    "nats",
    "asyncio",
    "prometheus_client",
    "xxhash",
}
"""Arrow and what it brings, loops, and what only the broker needs."""
SCRIPT = """
import sys
sys.argv = ["liftlog", *sys.argv[1:]]
from broker.cli.start import main
try:
    main()
except SystemExit as end:
    print(end.code or 0, *{name.partition(".")[0] for name in sys.modules}, *sys.modules, file=sys.stderr)
"""
STREAM: dict[str, Any] = {
    "name": "s",
    "incarnation": "i",
    "created_ms": 1,
    "internal": False,
    "settings": {"partitions": 1},
    "warnings": [],
    "partitions": [],
}
CONSUMER: dict[str, Any] = {"consumer": "c", "partitions": [], "lag": 0}
SINK: dict[str, Any] = {
    "sink": "k",
    "current_epoch": 1,
    "checkpoint": None,
    "one_shot": False,
    "least_batch_id": 0,
    "changed_ms": 1,
    "last": None,
}
PLACED: dict[str, Any] = {
    "stream": "s",
    "partition": 0,
    "leader": "a",
    "leader_epoch": 1,
    "replicas": ["a"],
    "isr": ["a"],
}
CLUSTER: dict[str, Any] = {
    "cluster_id": "c",
    "feature_level": 1,
    "controller": "a",
    "version": "0.1.0",
    "brokers": [{"id": "a", "http": "a:1", "grpc": "a:2"}],
}
ANSWERS: dict[str, Any] = {
    "/v1/sinks/k": SINK,
    "/v1/sinks/k/reset": SINK,
    "/v1/sinks/k/adopt": SINK,
    "/v1/cluster": CLUSTER,
    "/v1/cluster/partitions": {"partitions": [PLACED], "answered_by": "a"},
    "/v1/cluster/elect": {"moved": [PLACED]},
    "/v1/cluster/rescue": {"rescue": None},
    "/v1/cluster/rescue/end": {"rescue": 1, "partitions": []},
    "/v1/cluster/accept-loss": {"stream": "s", "partition": 0, "leader": "a", "ranges": [[0, 1]], "aside": "f"},
    "/v1/streams": {"streams": [STREAM]},
    "/v1/consumers": {"consumers": [CONSUMER]},
    "/v1/consumers/c": CONSUMER,
    "/v1/sinks": {"sinks": []},
    "/v1/consumers/c/reset": CONSUMER,
    "/v1/streams/s/trim": {"partitions": []},
}


def loaded_by(*arguments: str) -> set[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LIFTLOG_")}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean, timeout=120)
    code, *modules = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
    return set(modules)


def answer(request: Request, reply: Reply) -> None:
    if request.method == "DELETE":
        reply.send(b"HTTP/1.1 204 No Content\r\n\r\n")
    elif request.path == "/v1/streams" and request.method == "POST":
        reply.answer(201, json.dumps(STREAM).encode())
    else:
        reply.answer(200, json.dumps(ANSWERS.get(request.path, STREAM)).encode())


@pytest.mark.parametrize(
    "command",
    [
        "stream list",
        "stream describe s",
        "stream create s",
        "stream alter s --retention-ms 1d",
        "stream pause s",
        "stream resume s",
        "stream read-only s",
        "stream trim s --before latest",
        "stream add-partitions s 2",
        "stream delete s --yes",
        "consumer list",
        "sink list",
        "consumer describe c",
        "consumer reset c --stream s --to latest --yes",
        "consumer delete c --yes",
        "sink describe k",
        "sink reset k --next-batch 1 --yes",
        "sink adopt k --checkpoint f",
        "sink delete k --yes",
        "cluster status",
        "cluster partitions",
        "cluster elect",
        "cluster accept-loss s/0 --yes",
        "cluster remove-broker b --yes",
        "cluster rescue status",
        "cluster rescue end a",
    ],
)
def test_a_command_of_one_json_call_loads_nothing_heavy(command: str) -> None:
    with RawServer(answer) as server:
        loaded = loaded_by("--brokers", server.address, "--json", *command.split())
        assert len(server.requests) == 1
        assert not loaded & {*HEAVY, "broker.client.reading.fetch", "rich"}
        if command.endswith("list"):
            assert not loaded_by("--brokers", server.address, *command.split()) & HEAVY


@pytest.mark.parametrize("command", [[], ["stream"], ["stream", "create"], ["tail"], ["log"], ["up"], ["broker"]])
def test_help_loads_neither_the_client_nor_a_validator(command: list[str]) -> None:
    loaded = loaded_by(*command, "--help")
    assert not loaded & (HEAVY | {"http.client", "ssl", "rich", "broker.client", "broker.runtime", "broker.storage"})


def test_a_broker_starts_without_pandas() -> None:
    """`pyarrow.array` loads it where there is one: a third of what it costs to start a broker."""
    look = "import sys, broker.runtime.assembled, broker.runtime.broker; print('pandas' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_ids_are_found_in_a_log_without_pandas() -> None:
    """Likewise: it would be loaded when a broker begins to lead, on the thread that takes in messages."""
    look = """if True:
        import sys
        from broker.storage.memory.ids import ids_in
        from tests.support.logs import create_log
        from tests.support.published import batch_from_nats, with_id
        from tests.support.simdisk import SimDisk
        log = create_log(SimDisk())
        log.append([batch_from_nats([(b"v", with_id("a")), (b"v", with_id("b"))], 1)], leader_epoch=0, now_us=1)
        [data] = log.reader.messages(0, 2, whole=True)
        print(ids_in(data, data).texts, "pandas" in sys.modules)
    """
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[b'a', b'b', b'a', b'b'] False"
