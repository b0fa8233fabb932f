"""Noisy: how much a neighbour that asks for ten times what it may have takes from somebody else.

Each request of a neighbour appends 32 KiB, and the next follows at once, also after a refusal. It may have `QUOTA`
requests under way (`limits.caller_requests_max`, the least that it can be). Somebody else, of another address, appends
ten records every 40 ms; latency counts from when an append was due. One neighbour within its quota fills the thread
that serves, so somebody who asked each 10 ms would queue behind himself, and that queue would be all that is seen.

`liftlog`: the neighbour has ten times its quota of connections. `within`: as many as its quota. `quiet`: there is none.
So `liftlog/within` is what its excess takes from others, and `liftlog/quiet` what it takes at all, its own share of two
cores included. `refused` and `served` count the neighbour's answers.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import ROOT, Case, Measures, Side, Target
from benchmarks.ours import Liftlog
from broker.api.http import ARROW_STREAM
from broker.client.writing.append import encode

QUOTA = 8
EXCESS = 10
EVERY_S = 0.04
NEIGHBOUR = "127.0.0.2"
HEADERS = {"Content-Type": ARROW_STREAM}


def cases(*, tiny: bool) -> Sequence[Case]:
    seconds = 0.3 if tiny else 30.0
    return [
        Case(
            name="noisy-tiny" if tiny else "noisy-neighbour",
            metric="p99_ms",
            unit="ms",
            parameters={"quota": QUOTA, "excess": EXCESS, "seconds": seconds, "every_ms": 1000 * EVERY_S},
            open=_opener(seconds, warm_s=0.1 if tiny else 2.0),
            targets=(Target(of="liftlog/within", most=1.5),),
        )
    ]


def _opener(seconds: float, *, warm_s: float) -> Callable[[Path], Any]:
    @contextmanager
    def open_sides(folder: Path) -> Iterator[Mapping[str, Side]]:
        with Liftlog(folder, env={"LIFTLOG_LIMITS_CALLER_REQUESTS_MAX": str(QUOTA)}) as place:
            place.create_stream("noise", retention_bytes=64 << 20)
            place.create_stream("other")

            def side(connections: int) -> Side:
                def turn() -> Measures:
                    with _neighbour(place.broker.port, connections) as told:
                        time.sleep(warm_s)
                        latencies_s = _appends(place.broker.port, seconds)
                    percentiles = np.percentile(latencies_s, (50, 99)) * 1000
                    return {"p50_ms": float(percentiles[0]), "p99_ms": float(percentiles[1]), **told}

                return turn

            yield {"liftlog": side(EXCESS * QUOTA), "within": side(QUOTA), "quiet": side(0)}

    return open_sides


def _appends(port: int, seconds: float) -> list[float]:
    """Latencies of somebody else's appends, each from when it was due."""
    body = encode([{"value": b"v" * 100}] * 10).to_pybytes()
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    began_s, found = time.perf_counter(), []
    for number in range(int(seconds / EVERY_S)):
        due_s = began_s + number * EVERY_S
        time.sleep(max(0.0, due_s - time.perf_counter()))
        connection.request("POST", "/v1/streams/other/partitions/0/records", body=body, headers=HEADERS)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        found.append(time.perf_counter() - due_s)
    connection.close()
    return found


@contextmanager
def _neighbour(port: int, connections: int) -> Iterator[dict[str, float]]:
    """A process of its own, from its first answer until the block ends; then its answers are in the mapping."""
    told = {"served": 0.0, "refused": 0.0}
    if connections == 0:
        yield told
        return
    command = [sys.executable, "-m", "benchmarks.noisy", str(port), str(connections)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "the neighbour ended without an answer"
            yield told
        finally:
            text, _ = process.communicate()
        told |= json.loads(text)


async def _noise(port: int, connections: int) -> dict[str, int]:
    """Requests over so many connections, each after the answer to the one before, until stdin ends.

    A line to stdout says that the first was answered.
    """
    told = {"served": 0, "refused": 0}
    body = encode(pa.record_batch({"value": [b"n" * 1024] * 32})).to_pybytes()
    head = f"Host: 127.0.0.1\r\nContent-Type: {ARROW_STREAM}\r\nContent-Length: {len(body)}\r\n\r\n"
    request = f"POST /v1/streams/noise/partitions/0/records HTTP/1.1\r\n{head}".encode() + body

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(NEIGHBOUR, 0))
        while True:
            writer.write(request)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            if not any(told.values()):
                print(flush=True)
            told["served" if answer.split(b" ", 2)[1] == b"200" else "refused"] += 1

    tasks = [asyncio.create_task(one()) for _ in range(connections)]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if not isinstance(end, asyncio.CancelledError):
            raise RuntimeError("a connection of the neighbour has ended") from (
                end if isinstance(end, BaseException) else None
            )
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_noise(int(sys.argv[1]), int(sys.argv[2])))))
