"""Frames in a micro-batch of which Spark runs a task twice, after a failure or by speculation, while their stream
grows; then the driver is killed, and the batch comes again.

All that has read the frame in the batch has read the same rows. In the function of foreachBatch a replay is skipped by
the sink as a transaction; what it has read is compared all the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.client.client import Client
from tests.spark import again_app
from tests.spark.again_app import EVENTS, JOINED, NAMES, TASKS
from tests.spark.kills import ROOT
from tests.spark.standalone import Standalone
from tests.support.processes import BrokerProcess, eventually

Places = list[tuple[int, int]]


@pytest.fixture
def streams(client: Client) -> Iterator[Client]:
    for name in (EVENTS, NAMES, JOINED):
        client.create_stream(name, partitions=TASKS)
    yield client
    for name in (EVENTS, NAMES, JOINED):
        client.delete_stream(name)


def append(client: Client, stream: str, *keys: bytes) -> None:
    for partition in range(TASKS):
        client.append(stream, partition, [{"key": key, "value": b"%s of %d" % (key, partition)} for key in keys])


def read(folder: Path, batch: int) -> dict[tuple[int, int], Places]:
    """By task and attempt."""
    found = {}
    for file in folder.glob(f"read-{batch}-*"):
        _, _, task, attempt = file.name.split("-")
        found[int(task), int(attempt)] = [(partition, offset) for partition, offset in json.loads(file.read_text())]
    return found


def whole(reads: dict[tuple[int, int], Places]) -> Places:
    """What the tasks have read together; all attempts of a task have read the same."""
    of_task: dict[int, Places] = {}
    for (task, _), places in reads.items():
        assert of_task.setdefault(task, places) == places
    return sorted(place for places in of_task.values() for place in places)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shape", ["static", "function", "cached"])
@pytest.mark.parametrize("again", ["fails", "speculated"])
def test_all_attempts_and_the_replay_read_the_same_while_the_stream_grows(
    broker: BrokerProcess, streams: Client, tmp_path: Path, again: str, shape: str
) -> None:
    client, keys, before = (
        streams,
        (b"a", b"b"),
        [(partition, offset) for partition in range(TASKS) for offset in (0, 1)],
    )
    append(client, EVENTS, *keys)
    append(client, NAMES, *keys)
    (tmp_path / "kill").write_text("after")
    with ExitStack() as stack:
        cluster = None if again == "fails" else stack.enter_context(Standalone(tmp_path / "cluster"))
        master = f"local[{TASKS},2]" if cluster is None else cluster.url

        def start() -> subprocess.Popen[bytes]:
            given = [sys.executable, "-m", again_app.__name__, broker.address, str(tmp_path), master, shape]
            with (tmp_path / "output").open("ab") as output:
                job = subprocess.Popen(given, cwd=ROOT, stdout=output, stderr=output)
            stack.callback(job.kill)
            return job

        job = start()
        eventually(
            lambda: job.poll() is not None or len(read(tmp_path / "first", 0)) == TASKS,
            timeout_s=240,
            what="each task has read",
        )
        assert job.poll() is None, (tmp_path / "output").read_text()[-4000:]
        append(client, NAMES, *keys)
        client.add_partitions(NAMES, TASKS + 1)
        client.append(NAMES, TASKS, [{"key": keys[0], "value": b"added"}])
        (tmp_path / "grown").touch()
        job.wait(400)
        assert (tmp_path / "killed").exists(), (tmp_path / "output").read_text()[-4000:]
        first = read(tmp_path / "first", 0)
        assert {(task, attempt) for task, attempt in first if attempt} == {(TASKS - 1, 1)}
        assert whole(first) == before

        append(client, NAMES, *keys)
        append(client, EVENTS, keys[0])
        assert start().wait(400) == 0, (tmp_path / "output").read_text()[-4000:]
    assert whole(read(tmp_path / "second", 0)) == before, "the batch that came again"
    now = [(partition, offset) for partition in range(TASKS) for offset in range(6)]
    assert whole(read(tmp_path / "second", 1)) == [*now, (TASKS, 0)], "the next batch"
    values = client.read(JOINED, start="earliest").to_table().column("value").to_pylist()
    wanted = Counter({b"%s of %d" % (key, partition): 2 for key in keys for partition in range(TASKS)})
    wanted += Counter({b"a of 0": 6, b"a of 1": 6, b"added": 2})
    assert Counter(values) == wanted
