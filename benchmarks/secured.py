"""Secured: what certificates, tokens and grants cost, beside the same without them.

`calls`: one client asks again and again for a stream's description, over loopback in plain. `liftlog` has `auth.mode =
enforce`, and judges each call by a token and a grant; `off` does not. `more_us` is the server's CPU time that a judged
call takes beyond the other, and `more_us_error` how far that may be off (a standard error of the median of all pairs).
The server runs in this process and changes its mode every `BLOCK` calls: two processes that do the same differ by 40 us
a call, and a core's speed changes by a tenth within a second.

`fetch`: the client reads a whole stream, as in fetch.py. `liftlog` speaks TLS 1.3, `plain` does not; each has a copy of
the same log, in the page cache. `server_cpu_s_per_gb` is what the broker's process used, `client_cpu_s_per_gb` what
this one did.

`window`: three brokers, three replicas, an ack when all in sync have the record on disk, as in replicated.py. The ports
of `liftlog` for Raft, gRPC and bulk need certificates on both sides; those of `plain` do not.

`failover`: the same two clusters, and as in replicated.py: the leader is killed with -9 under paced load, again and
again; each time counts until the next ack.
"""

from __future__ import annotations

import http.client
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import process_time, thread_time
from typing import Any

from benchmarks.acked import Place, turns
from benchmarks.harness import Case, Measures, Side, Target
from benchmarks.intake import run_intake
from benchmarks.ours import Liftlog
from benchmarks.ours_cluster import LiftlogCluster
from benchmarks.peers import STREAM, SUBJECT
from benchmarks.proc import cpu_s, fresh
from benchmarks.replicated import killed_leaders
from benchmarks.window import run_window
from broker.api.principals import new_token
from broker.client.client import connect
from broker.serving.http.access import AuthRules
from tests.support.certificates import Authority
from tests.support.processes import BrokerProcess, eventually
from tests.unit.serving.server import running

SEED = 5
BLOCK = 20
FIRST = 2
"""Calls of a block that are not counted: the connection meets its caller anew."""
WINDOW = 4096
BODY_BYTES = 1024


def cases(*, tiny: bool) -> Sequence[Case]:
    calls, records, messages, kills = (500, 5_000, 5_000, 1) if tiny else (60_000, 400_000, 1_000_000, 20)
    return [
        Case(
            name="secured-calls",
            metric="p50_us",
            unit="us",
            parameters={"calls": calls},
            open=_calls(calls),
            targets=(Target(of="more_us", most=5.0),),
        ),
        Case(
            name="secured-fetch",
            metric="gb_per_s",
            unit="GB/s",
            parameters={"value_bytes": BODY_BYTES, "records": records, "seed": SEED},
            open=_fetch(records),
            targets=(Target(of="gb_per_s", least=0.8),),
        ),
        Case(
            name="secured-window",
            metric="rate",
            unit="messages/s",
            parameters={"value_bytes": 100, "messages": messages, "window": WINDOW, "replicas": 3, "seed": SEED},
            open=_window(messages),
            targets=(Target(of="liftlog/plain", least=0.9),),
        ),
        Case(
            name="secured-failover",
            metric="median_s",
            unit="s",
            parameters={"rounds": kills, "replicas": 3, "brokers": 3, "publisher": "nats-py, one message in flight"},
            open=_failover(kills),
            targets=(Target(of="median_s", most=1.5), Target(of="max_s", most=5.0)),
            repeats_max=1,
        ),
    ]


def _calls(count: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(outer: Path) -> Iterator[Mapping[str, Side]]:
        shown, rules = new_token(), {"liftlog": AuthRules(mode="enforce"), "off": AuthRules()}
        with fresh(outer) as folder, running(folder) as server:
            server.api.create(STREAM, subject=SUBJECT)
            grant = {"kind": "put_grants", "principal": "user:reader", "add": [["stream:read", f"{STREAM}*"]]}
            token = {"kind": "put_token", "token_id": shown.id, "sha256": shown.sha256, "principal": "user:reader"}
            server.backend._execute({**grant, "remove": [], "by": "user:ops"})
            server.backend._execute({**token, "expires_ms": 1 << 60, "at_ms": 1, "by": "user:ops"})
            ask = _asker(server.port, {"Authorization": f"Bearer {shown.text}"})

            def block(side: str) -> tuple[float, list[float]]:
                server.serving.gate.rules = rules[side]
                ask(FIRST)
                used_s = thread_time() - process_time()
                took = ask(BLOCK)
                return 1e6 * (used_s - thread_time() + process_time()) / BLOCK, took

            def both() -> Measures:
                cpu_us: dict[str, list[float]] = {side: [] for side in rules}
                took: list[float] = []
                for turn in range(count // BLOCK):
                    for side in sorted(rules, reverse=turn % 2 == 0):
                        used_us, lasted = block(side)
                        cpu_us[side].append(used_us)
                        took += lasted if side == "liftlog" else []
                more_us = [a - b for a, b in zip(cpu_us["liftlog"], cpu_us["off"], strict=True)]
                return {
                    "p50_us": statistics.median(took),
                    "cpu_us": statistics.median(cpu_us["liftlog"]),
                    "more_us": statistics.median(more_us),
                    "more_us_error": _error_of_median(more_us),
                }

            def alone() -> Measures:
                blocks = [block("off") for _ in range(count // BLOCK)]
                took = [each for _, lasted in blocks for each in lasted]
                return {"p50_us": statistics.median(took), "cpu_us": statistics.median(used for used, _ in blocks)}

            yield {"liftlog": both, "off": alone}

    return open_sides


def _error_of_median(values: Sequence[float]) -> float:
    """The standard error of their median, by the quartiles: they hold if some are far off."""
    lower, _, upper = statistics.quantiles(values, n=4)
    return 1.253 * (upper - lower) / 1.349 / math.sqrt(len(values))


def _asker(port: int, headers: Mapping[str, str]) -> Callable[[int], list[float]]:
    """Asks so often, one after the other, on one connection. Returns how long each took, in microseconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(count: int) -> list[float]:
        took = []
        for _ in range(count):
            began_s = time.perf_counter()
            connection.request("GET", f"/v1/streams/{STREAM}", headers=dict(headers))
            answer = connection.getresponse()
            answer.read()
            took.append(1e6 * (time.perf_counter() - began_s))
            assert answer.status == 200, answer.status
        return took

    return ask


def _fetch(count: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(outer: Path) -> Iterator[Mapping[str, Side]]:
        with fresh(outer) as folder:
            with Liftlog(folder) as filled:
                assert run_intake(filled, 1, size=BODY_BYTES, count=count)["stored"] == count
                partitions = filled.broker.get(f"/v1/streams/{STREAM}")["partitions"]
                log_bytes = sum(partition["bytes"] for partition in partitions)
                filled.broker.stop()
                for name in ("plain", "tls"):
                    shutil.copytree(filled.broker.folder, folder / name)
            authority = Authority(folder / "ca")
            settings = {f"LIFTLOG_{k.replace('.', '_').upper()}": v for k, v in authority.settings().items()}
            with _serving(folder / "tls", settings) as secured, _serving(folder / "plain", {}) as plain:

                def read(broker: BrokerProcess, tls_ca: str | None = None) -> Callable[[], Measures]:
                    address = f"{'http' if tls_ca is None else 'https'}://{broker.address}"
                    return lambda: _read_all(address, broker.pid, count, log_bytes, tls_ca)

                yield {"liftlog": read(secured, tls_ca=authority.ca), "plain": read(plain)}

    return open_sides


@contextmanager
def _serving(folder: Path, env: Mapping[str, str]) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(folder, None, env=env)
    broker.start(wait=False)
    try:
        yield broker
    finally:
        broker.stop()


def _read_all(address: str, pid: int, count: int, log_bytes: int, tls_ca: str | None) -> Measures:
    with connect(address, tls_ca=tls_ca) as client:
        eventually(lambda: client.describe(STREAM).partitions[0].high_watermark == count, what=f"{address} ready")
        used_s, own_s, began_s = cpu_s(pid), time.process_time(), time.monotonic()
        rows = sum(batch.num_rows for batch in client.read(STREAM, end=count))
        seconds = time.monotonic() - began_s
        own_s, used_s = time.process_time() - own_s, cpu_s(pid) - used_s
    assert rows == count, f"{rows} records were read, {count} are there"
    gb = log_bytes / 1e9
    return {
        "gb_per_s": gb / seconds,
        "server_cpu_s_per_gb": used_s / gb,
        "client_cpu_s_per_gb": own_s / gb,
        "rate": rows / seconds,
    }


def _window(count: int) -> Callable[[Path], Any]:
    def publish(_: str, port: int) -> Measures:
        run = run_window(port, seed=SEED, size=100, subject=f"{SUBJECT}.0", count=count, window=WINDOW)
        return {"rate": run.count / run.seconds, "acked": run.count, "p99_ms": run.percentile_ms(99)}

    def places(folder: Path) -> Mapping[str, Callable[[], AbstractContextManager[Place]]]:
        return {"liftlog": lambda: LiftlogCluster(folder, env=_mtls(folder)), "plain": lambda: LiftlogCluster(folder)}

    return turns(publish, places)


def _failover(kills: int) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        def side(env: Mapping[str, str]) -> Measures:
            with LiftlogCluster(folder, env=dict(env)) as place:
                return killed_leaders(place, kills)

        with fresh(folder) as certificates:
            env = _mtls(certificates)
            yield {"liftlog": lambda: side(env), "plain": lambda: side({})}

    return open_sides


def _mtls(folder: Path) -> dict[str, str]:
    """Settings by which three brokers speak TLS among each other, and to nobody without a certificate."""
    authority = Authority(folder / "ca")
    issued = authority.issue("among", uris=[f"liftlog:broker/{name}" for name in "abc"])
    settings = {**authority.cluster_settings(issued), "cluster.tls_names": "required"}
    return {f"LIFTLOG_{key.replace('.', '_').upper()}": value for key, value in settings.items()}
