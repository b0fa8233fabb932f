"""Kill everything, again and again; then every flight of the source must be in the sink once, read without Spark.

    round    append ─ start the job ─ wait for its first commit ─ kill somebody ─ job goes on or ends ─ next round
    end      run the job to its end, compare

Who is killed, with SIGKILL: the driver between stage and commit (`before`), between the sink's commit and Spark's own
(`after`), or at a random moment (`driver`); a Python `worker`, an `executor` (only with executors of their own), the
`broker`. A job that ends by it is started again from its checkpoint, as a person would.

On a standalone cluster (standalone.py) some tasks dawdle, and Spark runs them twice at once. A wait without progress
for a minute writes down what every process does (`stalls.log` in the folder).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from broker.api.errors import LiftlogError
from broker.client.client import Client, connect
from tests.spark.kill_app import SINK, SOURCE
from tests.spark.kill_flights import Flights
from tests.spark.stalls import descendants, stacks
from tests.spark.standalone import Standalone
from tests.support.processes import BrokerProcess

ROOT = Path(__file__).parents[2]
PARTITIONS = 3
STALL_S = 60.0
PATIENCE = 10
"""A wait is given up after so many stalls."""
AT_COMMIT = ("before", "after")


@dataclass
class Rounds:
    """One job, its broker, and what was done to them.

    Args:
        master: For Spark; or `standalone`: a cluster is started.
    """

    folder: Path
    master: str
    luck: random.Random
    stalls: int = 0
    told: Counter[str] = field(default_factory=Counter)
    cluster: Standalone | None = None
    broker: BrokerProcess | None = None
    flights: Flights | None = None

    def run(self, kills: Sequence[str], frame: pd.DataFrame) -> Counter[str]:
        """All rounds and the comparison. Returns how often each kind of kill was carried out.

        Args:
            frame: The flights that the job has to carry, all of them.
        """
        appends = 1 + sum(1 if kill in AT_COMMIT else 3 for kill in kills)
        self.flights = Flights(frame, appends=appends, partitions=PARTITIONS)
        with ExitStack() as stack:
            self.broker = broker = BrokerProcess(self.folder / "broker", None).start()
            stack.callback(broker.stop)
            if self.master == "standalone":
                self.cluster = stack.enter_context(Standalone(self.folder / "cluster"))
            client = stack.enter_context(connect(broker.address, deadline_s=60))
            client.create_stream(SOURCE, partitions=PARTITIONS)
            client.create_stream(SINK, partitions=PARTITIONS)
            for kill in kills:
                try:
                    self._round(client, broker, kill)
                except AssertionError as error:
                    raise AssertionError(f"{kill}, after {dict(self.told)}: {error}\n{self._output()}") from error
                self.flights.check(client.read(SINK).to_table())  # at any time: none is there twice
            self._append(client)
            job = self._start(broker, "once")
            try:
                self._wait(job, lambda: job.poll() is not None, "the last run ends")
                assert job.returncode == 0, self._output()
            finally:
                _end(job)
            for stream in (SOURCE, SINK):
                count = self.flights.check(client.read(stream).to_table())
                assert count == len(frame), f"{stream}: {len(frame) - count} flights are missing"
        return self.told

    def _round(self, client: Client, broker: BrokerProcess, kill: str) -> None:
        self._append(client)
        before = _last_batch(client)
        if kill in AT_COMMIT:
            self.folder.joinpath("kill").write_text(kill)  # at its first commit, of a batch that may be a replay
        job = self._start(broker, "follow")
        try:
            if kill in AT_COMMIT:
                self._wait(job, lambda: self._is_killed(job), "the kill")
                self.told[kill] += 1
                return
            self._wait(job, lambda: self._has_begun(job, client, before), "the job commits")
            self._append(client)
            time.sleep(self.luck.uniform(0, 1.5))  # the moment is what is tried out
            if kill == "broker":
                broker.kill9()
                broker.start()
            else:
                jvm = int(self.folder.joinpath("jvm").read_text())
                roots = [jvm, *(self.cluster.pids if self.cluster else [])]
                victims = [jvm] if kill == "driver" else [p for r in roots for p in descendants(r, _COMMANDS[kill])]
                for victim in self.luck.sample(victims, min(1, len(victims))):
                    with suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
                        self.told[kill] += 1
            self.told[kill] += kill == "broker"
            seen = _last_batch(client)
            self._append(client)  # after a kill that it survives the job goes on; otherwise it ends
            self._wait(job, lambda: job.poll() is not None or _last_batch(client) > seen, "it goes on, or ends")
        finally:
            _end(job)

    def _wait(self, job: subprocess.Popen[bytes], condition: Callable[[], bool], what: str) -> None:
        """Until it is so. Every minute in which it is not, the stacks of all processes are written down."""
        for _ in range(PATIENCE):
            deadline = time.monotonic() + STALL_S
            while time.monotonic() < deadline:
                if condition():
                    return
                time.sleep(0.02)
            self.stalls += 1
            assert self.broker is not None
            roots = [job.pid, self.broker.pid, *(self.cluster.pids if self.cluster else [])]
            with self.folder.joinpath("stalls.log").open("a") as log:
                log.write(f"##### {what}, after {dict(self.told)}\n")
                log.write(stacks([pid for root in roots for pid in (root, *descendants(root))]) + "\n")
        raise AssertionError(f"not within {PATIENCE * STALL_S:.0f} s: {what}; see stalls.log")

    def _is_killed(self, job: subprocess.Popen[bytes]) -> bool:
        """Whether the driver was killed at the commit where it was told to."""
        killed = self.folder.joinpath("killed")
        assert killed.exists() or job.poll() is None, self._output()
        if not killed.exists():
            return False
        job.wait(120)
        killed.unlink()
        return True

    def _has_begun(self, job: subprocess.Popen[bytes], client: Client, before: int) -> bool:
        assert job.poll() is None, self._output()
        return _last_batch(client) > before

    def _append(self, client: Client) -> None:
        assert self.flights is not None
        for partition, rows in enumerate(self.flights.take()):
            client.append(SOURCE, partition, rows)

    def _start(self, broker: BrokerProcess, mode: str) -> subprocess.Popen[bytes]:
        assert self.flights is not None
        self.folder.joinpath("jvm").unlink(missing_ok=True)
        master = self.cluster.url if self.cluster else self.master
        rows_max = str(max(1, self.flights.share * 2 // 3))  # several batches each time
        given = [broker.address, str(self.folder), master, mode, rows_max]
        with self.folder.joinpath("job.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.kill_app", *given],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _output(self) -> str:
        return self.folder.joinpath("job.log").read_text(errors="replace")[-6000:]


_COMMANDS = {"worker": "pyspark.daemon", "executor": "CoarseGrainedExecutorBackend"}


def _last_batch(client: Client) -> int:
    """Of the sink; -1 before its first, or while nobody answers."""
    with suppress(LiftlogError):
        return max((sink.last.batch_id for sink in client.sinks() if sink.last is not None), default=-1)
    return -1


def _end(job: subprocess.Popen[bytes]) -> None:
    """The job and whatever it started: they are a session of their own."""
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait(60)
