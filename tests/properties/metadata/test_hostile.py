"""Goal: whatever JSON somebody submits, the catalog refuses it or carries it out, and is the same everywhere.

Method: commands that mean something (`cluster.py`), with something in them replaced, left out or added; each goes
through JSON, as it does in a journal, to a catalog and to a twin, which begins anew from a snapshot now and then.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final

import pytest

from broker.api.errors import LiftlogError
from broker.api.plain import parse_json
from broker.metadata.catalog import Catalog
from broker.metadata.journal import decode_lines, encode_line
from tests.properties.metadata.cluster import BROKERS, Cluster, Command, refusal
from tests.support.effort import examples, seeded


def nested(times: int) -> Any:
    value: Any = 0
    for _ in range(times):
        value = [value]
    return value


VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 2, 3, 1 << 31, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, -(1 << 63) - 1, 10**30),
    *(
        1.0,
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "a",
        "s1",
        "i1",
        "\x00",
        "\ud800",
        "\U0001f600",
        "x" * 9_000,
    ),
    *([], [[]], {}, {"a": {}}, {"": 0}, [None], ["a", "a"], [["i1", 0, 0]], [["i1", 0]], {"i1": [0]}, {"i1": [True]}),
    *(nested(20), nested(40), nested(900)),
)
KEYS: Final = (
    *("v", "kind", "request_id", "broker_id", "registration", "replicas", "partitions", "stream", "partition", "add"),
    *("leader_epoch", "partition_epoch", "remove", "at_ms", "why", "epoch_seen", "min_insync_replicas", "cluster_id"),
    *(
        "feature_level",
        "incarnation",
        "http",
        "rack",
        "after",
        "sound",
        "behind",
        "renewals",
        "renewal",
        "level",
        "name",
    ),
    *(
        "created_us",
        "settings",
        "internal",
        "replication_factor",
        "paused",
        "leaders",
        "incarnations",
        "rescue",
        "logs",
    ),
)
MORE: Final[tuple[Command, ...]] = (
    {"kind": "form_cluster", "cluster_id": "c"},
    {"kind": "set_feature_level", "level": 2},
    {"kind": "register_producer", "name": "p"},
    {"kind": "register_producer", "request_id": "r"},
    {"kind": "alter_stream", "name": "s1", "settings": {"retention_ms": 5}},
    {"kind": "set_state", "name": "s1", "paused": True},
    {"kind": "raise_fence", "name": "s1", "incarnation": "i1", "partition": 0, "after": 0},
    {"kind": "forget_deleted", "incarnations": ["i1"]},
    {"kind": "begin_rescue", "cluster_id": "c", "epoch_last": 9},
    {
        "kind": "report_logs",
        "broker_id": "a",
        "registration": 1,
        "rescue": 9,
        "epoch_seen": 3,
        "logs": [["i1", 0, 1, 4]],
    },
    {"kind": "excuse_replicas", "broker_id": "a", "rescue": 9},
    {"kind": "end_rescue", "rescue": 9, "brokers": [*BROKERS]},
)


def replaced(value: Any, rng: random.Random) -> Any:
    """Something in it is another thing, is gone, or stands there twice."""
    if isinstance(value, dict) and value and rng.random() < 0.7:
        key = rng.choice(sorted(value))
        others = {each: value[each] for each in value if each != key}
        return others if rng.random() < 0.1 else {**others, key: replaced(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at, way = rng.randrange(len(value)), rng.random()
        middle = [] if way < 0.1 else [value[at]] * 2 if way < 0.2 else [replaced(value[at], rng)]
        return [*value[:at], *middle, *value[at + 1 :]]
    if type(value) is int and rng.random() < 0.3:
        return value + rng.choice((-1, 1, 2, -100, 1 << 40))
    return rng.choice(VALUES)


def drawn(cluster: Cluster, rng: random.Random) -> Command:
    """A command that means something now, or hardly anything."""
    kinds = [name for name in dir(cluster) if name.startswith("do_")]
    command = rng.choice(MORE) if rng.random() < 0.2 else getattr(cluster, rng.choice(kinds))(rng)
    command = {"v": 1, **(command or rng.choice(MORE))}
    if rng.random() < 0.5:
        command = replaced(command, rng)
    if rng.random() < 0.1 and isinstance(command, dict):
        command = {**command, rng.choice(KEYS): rng.choice(VALUES)}
    return command if isinstance(command, dict) else {"v": 1, "kind": command}


def text_of(catalog: Catalog) -> str:
    return json.dumps(catalog.snapshot(), sort_keys=True)


@pytest.mark.parametrize("seed", range(examples(8)))
def test_any_json(seed: int) -> None:
    rng = random.Random(seeded(seed))
    cluster, twin = Cluster(), Catalog()
    for command in cluster.journal:
        twin.apply(command)
    for step in range(150):
        cluster.steps = step
        cluster.streams = max([0, *(int(info.incarnation[1:] or 0) for info in cluster.catalog.streams.values())])
        command = parse_json(json.dumps(drawn(cluster, rng)))
        if command.get("kind") == "create_stream" and not str(command.get("incarnation"))[1:].isdecimal():
            continue  # `do_create` counts them
        before = text_of(cluster.catalog)
        known = cluster.catalog.answered(command)
        try:
            judged = {"ok": cluster.catalog.judge(command)}
        except LiftlogError as error:
            judged = {"error": error.to_problem()}
        assert refusal(cluster.catalog, command) == judged.get("error"), command
        assert text_of(cluster.catalog) == before, "it was only to be judged"
        result = cluster.catalog.apply(command)
        assert "would break" not in str(result), command
        assert known is not None or json.dumps(judged) == json.dumps(result), command
        if "error" in result:
            assert text_of(cluster.catalog) == before, f"refused, and carried out: {command}"
        also = json.dumps(twin.apply(command), sort_keys=True)
        assert also == json.dumps(result, sort_keys=True), command
        assert text_of(twin) == text_of(cluster.catalog), command
        assert cluster.cluster.epoch_last < 1 << 33, f"no number is left: {command}"
        if rng.random() < 0.15:
            [value], _ = decode_lines(encode_line(twin.snapshot()), where="")
            twin = Catalog.restore(value)
            assert text_of(twin) == text_of(cluster.catalog), "a snapshot is the catalog"
