"""Goal: `__activity` tells what happens to streams and groups, each event once by its id and in order, whichever broker
dies: to readers of JSON columns, and to a client of Liftbridge as it knows it. So it does of a broker that is alone.

Method: real brokers. While streams come, change and go, and members join, leave and fall silent, the leader of
`__activity` and the controller are killed. What was asked for is compared with what stands there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.proto import liftbridge_pb2 as pb
from broker.api.stream import ACTIVITY_STREAM
from broker.client import Client, connect
from tests.support.activity_events import read_event
from tests.support.clusters import three
from tests.support.liftbridge import client_of
from tests.support.processes import eventually, free_port, running

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]


def events(client: Client) -> list[dict[str, Any]]:
    """Those of `__activity`, each id once."""
    columns = ["id", "op", "name", "partitions", "read_only", "group", "consumer", "streams", "expired"]
    rows = client.read(ACTIVITY_STREAM, payload="json", columns=columns).to_table().to_pylist()
    found: dict[int, dict[str, Any]] = {}
    last = 0
    for row in rows:
        if row["id"] > last:
            found[last := row["id"]] = {key: value for key, value in row.items() if value is not None}
        else:
            assert row["id"] in found, "one that comes late was never told in its place"
    return [{key: value for key, value in each.items() if key != "id"} for each in found.values()]


def act(client: Client, name: str, **settings: Any) -> list[dict[str, Any]]:
    """Let a stream come, change and go; the events of that."""
    of = {"name": name, "partitions": [0, 1]}
    client.create_stream(name, partitions=2, **settings)
    client.pause(name)
    client.resume(name)
    client.set_read_only(name, True)
    client.delete_stream(name)
    return [
        {"op": "create_stream", **of},
        {"op": "pause_stream", **of},
        {"op": "resume_stream", **of},
        {"op": "set_stream_read_only", **of, "read_only": True},
        {"op": "delete_stream", "name": name},
    ]


def join(client: Client, member: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A member joins; its answer, and the event."""
    asked = {"member": member, "streams": ["kept"], "timeout_ms": 2_000}
    answer = client._calls.json("POST", "/v1/groups/billing/members", asked)
    said = {"op": "join_group", "group": "billing", "consumer": member, "streams": ["kept"]}
    return answer, said


def is_there(client: Client) -> bool:
    return ACTIVITY_STREAM in {each.name for each in client.streams(internal=True)}


def test_what_happens_is_told_whoever_dies(tmp_path: Path) -> None:
    with three(tmp_path, LIFTLOG_ACTIVITY_ENABLED="true") as cluster, cluster.client(deadline_s=120.0) as client:
        eventually(lambda: is_there(client), timeout_s=60.0, what=ACTIVITY_STREAM)
        client.create_stream("kept", replication_factor=3)
        expected = [{"op": "create_stream", "name": "kept", "partitions": [0]}]
        for turn, victim_of in enumerate((lambda: cluster.leader(ACTIVITY_STREAM), cluster.controller, None)):
            victim = victim_of() if victim_of is not None else None
            if victim is not None:
                cluster.brokers[victim].kill9()
            expected += act(client, f"s{turn}", replication_factor=2)
            answer, said = join(client, f"m{turn}")
            expected.append(said)
            if turn == 1:
                left = {"op": "leave_group", "group": "billing", "consumer": f"m{turn}", "expired": False}
                client._calls.json("POST", f"/v1/groups/billing/members/m{turn}/leave", {"session": answer["session"]})
            else:
                left = {"op": "leave_group", "group": "billing", "consumer": f"m{turn}", "expired": True}
                eventually(lambda: not client.describe_group("billing").members, timeout_s=60.0, what="its end")
            expected.append(left)
            if victim is not None:
                cluster.brokers[victim].start(wait=False)
                cluster.wait_ready(victim)
                cluster.in_sync(ACTIVITY_STREAM, 3)
        eventually(lambda: events(client) == expected, timeout_s=60.0, what="all of it")


def test_a_broker_that_is_alone_tells_it_too_and_liftbridges_clients_read_it(tmp_path: Path) -> None:
    port = free_port()
    env = {"LIFTLOG_ACTIVITY_ENABLED": "true", "LIFTLOG_LIFTBRIDGE_LISTEN": f"127.0.0.1:{port}"}
    with running(tmp_path, **env) as (_, broker):
        with connect(broker.address, deadline_s=60.0) as client:
            assert is_there(client)
            expected = act(client, "s")
            eventually(lambda: events(client) == expected, what="all of it")
            broker.kill9()
            broker.env["LIFTLOG_ACTIVITY_ENABLED"] = "false"
            broker.start()
            expected += act(client, "t")
            eventually(lambda: events(client) == expected, what="it stays, once it is there")
        with client_of(port) as theirs:
            metadata = theirs.call("FetchMetadata")
            assert ACTIVITY_STREAM in {each.name for each in metadata.streams}
            call = theirs.subscribe(stream=ACTIVITY_STREAM, start=pb.EARLIEST, stop=pb.AT_LATEST)
            assert next(call) == pb.Record()
            found = [read_event(next(call).value) for _ in range(len(expected))]
    assert [each[1] for each in found] == [0, 2, 3, 4, 1] * 2
    assert found[0][3] == {"stream": "s", "partitions": [0, 1]}
    assert [each[0] for each in found] == sorted({each[0] for each in found})
