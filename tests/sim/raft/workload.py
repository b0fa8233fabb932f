"""Commands of a real cluster: brokers that start, die and are seen, streams, replicas, leaders, groups of them.

Each is made from a catalog, as somebody would who reads it, and may be out of date when it arrives: many are refused,
and have to be refused alike by all.
"""

from __future__ import annotations

import json
import random
from typing import Any

from broker.metadata.catalog import Catalog

BROKERS = ("b1", "b2", "b3", "b4")


class Workload:
    """See the module. `asked`: how many there were."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.asked = 0

    def command(self, catalog: Catalog) -> dict[str, Any]:
        """The next one, with a request id of its own."""
        self.asked += 1
        rng = self.rng
        cluster = catalog.cluster
        partitions = sorted(cluster.partitions.items())
        kinds = ["_register", "_renew", "_fail", "_producer", "_stream"]
        if partitions:
            kinds += ["_opened", "_opened", "_elect_first", "_alter_isr", "_alter_isr", "_alter_isr"]
            kinds += ["_step_out", "_report", "_reassign", "_preferred", "_delete"]
        if catalog.cluster.cluster_id is None:
            made: dict[str, Any] = {"kind": "form_cluster", "cluster_id": "c"}
        elif len(cluster.brokers) < len(BROKERS) and rng.random() < 0.7:
            made = self._register(catalog, None)
        else:
            made = getattr(self, rng.choice(kinds))(catalog, rng.choice(partitions) if partitions else None)
        return {"v": 1, "request_id": f"w{self.asked}", **made}

    def _register(self, catalog: Catalog, _: Any) -> dict[str, Any]:
        missing = [name for name in BROKERS if name not in catalog.cluster.brokers]
        name = missing[0] if missing else self.rng.choice(BROKERS)
        known = catalog.brokers.get(name)
        sound: dict[str, list[int]] = {}
        for (stream, partition), state in sorted(catalog.cluster.partitions.items()):
            if name in state.replicas and self.rng.random() < 0.9:
                sound.setdefault(stream, []).append(partition)
        of = {"broker_id": name, "incarnation": f"{self.asked}", "http": f"{name}:1", "grpc": f"{name}:2"}
        return {"kind": "register_broker", **of, "after": known.registration if known else 0, "sound": sound}

    def _who(self, catalog: Catalog, names: Any = BROKERS) -> tuple[str, int]:
        name = self.rng.choice([*names])
        known = catalog.brokers.get(name)
        return name, known.registration if known else 0

    def _renew(self, catalog: Catalog, _: Any) -> dict[str, Any]:
        return {"kind": "renew_sessions", "renewals": {n: b.registration for n, b in sorted(catalog.brokers.items())}}

    def _fail(self, catalog: Catalog, _: Any) -> dict[str, Any]:
        name, registration = self._who(catalog)
        known = catalog.brokers.get(name)
        renewal = known.renewal if known else 0
        return {"kind": "fail_broker", "broker_id": name, "registration": registration, "renewal": renewal}

    def _producer(self, catalog: Catalog, _: Any) -> dict[str, Any]:
        return {"kind": "register_producer", "name": f"n{self.rng.randrange(9)}"}

    def _stream(self, catalog: Catalog, _: Any) -> dict[str, Any]:
        name = f"s{self.rng.randrange(6)}"
        stream = {"name": name, "incarnation": f"{name}-{self.asked}", "created_us": 1}
        settings = {"partitions": self.rng.choice((1, 3))}
        return {"kind": "create_stream", **stream, "settings": settings, "replication_factor": 3}

    def _replicas(self, at: Any, state: Any, name: str) -> list[list[Any]]:
        return [[at[0], at[1], state.step_outs_of(name)]]

    def _opened(self, catalog: Catalog, chosen: Any) -> dict[str, Any]:
        at, state = chosen
        name, registration = self._who(catalog, state.replicas)
        replicas = self._replicas(at, state, name)
        return {"kind": "report_opened", "broker_id": name, "registration": registration, "replicas": replicas}

    def _elect_first(self, catalog: Catalog, chosen: Any) -> dict[str, Any]:
        return {"kind": "elect_first", "partitions": {chosen[0][0]: [chosen[0][1]]}}

    def _preferred(self, catalog: Catalog, chosen: Any) -> dict[str, Any]:
        return {"kind": "elect_preferred", "partitions": {chosen[0][0]: [chosen[0][1]]}}

    def _alter_isr(self, catalog: Catalog, chosen: Any) -> dict[str, Any]:
        at, state = chosen
        name, registration = self._who(catalog, state.replicas)
        change = {"add": [name, registration, state.step_outs_of(name)]} if name not in state.isr else {"remove": name}
        epochs = {"leader_epoch": state.leader_epoch, "partition_epoch": state.partition_epoch}
        of = {"broker_id": state.leader or name, "stream": at[0], "partition": at[1]}
        return {"kind": "alter_isr", **of, **epochs, **change}

    def _step_out(self, catalog: Catalog, chosen: Any) -> dict[str, Any]:
        at, state = chosen
        name, registration = self._who(catalog, state.replicas)
        of = {"broker_id": name, "registration": registration, "replicas": self._replicas(at, state, name)}
        return {"kind": "step_out", **of, "why": self.rng.choice(("fsync", "damage"))}

    def _report(self, catalog: Catalog, chosen: Any) -> dict[str, Any]:
        at, state = chosen
        name, registration = self._who(catalog, state.replicas)
        of = {"broker_id": name, "registration": registration, "stream": at[0], "partition": at[1]}
        return {"kind": "report_leader", **of, "leader_epoch": state.leader_epoch, "at_ms": 1, "window_ms": 9}

    def _reassign(self, catalog: Catalog, chosen: Any) -> dict[str, Any]:
        replicas = self.rng.sample(BROKERS, 3)
        return {"kind": "reassign", "stream": chosen[0][0], "partition": chosen[0][1], "replicas": replicas}

    def _delete(self, catalog: Catalog, _: Any) -> dict[str, Any]:
        return {"kind": "delete_stream", "name": f"s{self.rng.randrange(40)}"}


def bytes_of(catalog: Catalog) -> bytes:
    """All of it. Order counts: what one broker iterates over, all do in the same order."""
    return json.dumps(catalog.snapshot(), separators=(",", ":")).encode()
