"""Kill everything, again and again; then every flight of the source must be in the sink once, read without Spark.

    round    append ─ start the job, if none runs ─ wait for a commit ─ kill somebody ─ job goes on or ends ─ next round
    end      kill the job, run it to its end on local[2], compare

The kinds of SIGKILL: the driver between stage and commit (`before`; `late`: it dies, and its commit is still sent),
between the sink's commit and Spark's own (`after`), or at a random moment (`driver`); a Python `worker`, an `executor`
(only with executors of their own), the `broker`; or one of them and the broker at once (`before+broker`). A job that
ends by it is started again from its checkpoint, as a person would. With three brokers one dies that leads something of
the job, and comes back when the job has gone on without it, or has ended.

In the kind `checkpoint` the driver is killed, and its checkpoint is lost, too. The job is started with a new one, and
goes on where its progress was published: it may write again what it had read from there on, and nothing before.

On a standalone cluster (standalone.py) some tasks dawdle, and Spark runs them twice at once. A wait without progress
for a minute writes down what every process does (`stalls.log` in the folder).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from broker.api.errors import LiftlogError
from broker.client.client import Client
from tests.spark.kill_app import CONSUMER, SINK, SOURCE
from tests.spark.kill_brokers import PARTITIONS, Brokers
from tests.spark.kill_flights import Flights
from tests.spark.stalls import descendants, stacks
from tests.spark.standalone import Standalone
from tests.spark.streams import published
from tests.support.clusters import store

ROOT = Path(__file__).parents[2]
STALL_S = 60.0
PATIENCE = 10
"""A wait is given up after so many stalls."""
AT_COMMIT = ("before", "late", "after")


@dataclass
class Rounds:
    """One job, its broker, and what was done to them.

    Args:
        master: For Spark; or `standalone`: a cluster is started.
        broker_count: 1 or 3.
        tasks: Of each batch.
        bundled: So many kills at a commit met tasks that had staged bundles. A replay may stage nothing.
    """

    folder: Path
    master: str
    luck: random.Random
    broker_count: int = 1
    tasks: int = 8
    stalls: int = 0
    bundled: int = 0
    told: Counter[str] = field(default_factory=Counter)
    cluster: Standalone | None = None
    brokers: Brokers = field(init=False)
    flights: Flights | None = None
    job: subprocess.Popen[bytes] | None = None
    lost: list[Mapping[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.brokers = Brokers(self.folder / "brokers", self.broker_count, self.luck)

    def run(self, kills: Sequence[str], frame: pd.DataFrame) -> Counter[str]:
        """All rounds and the comparison. Returns how often each kind of kill was carried out.

        Args:
            frame: The flights that the job has to carry, all of them.
        """
        appends = 1 + sum(1 if kill.startswith(AT_COMMIT) else 3 for kill in kills)
        self.flights = Flights(frame, appends=appends, partitions=PARTITIONS)
        with ExitStack() as stack:
            stack.enter_context(self.brokers)
            stack.callback(self._end)
            if self.master == "standalone":
                self.cluster = stack.enter_context(Standalone(self.folder / "cluster"))
            client = stack.enter_context(self.brokers.client())
            self.brokers.create_streams(client)
            for kill in kills:
                try:
                    self._round(client, kill)
                except AssertionError as error:
                    raise AssertionError(f"{kill}, after {dict(self.told)}: {error}\n{self._output()}") from error
                self.flights.check(client.read(SINK).to_table(), self.lost)  # at any time: none is there twice
            self._append(client)
            self._end()
            job = self._start("once", "local[2]")
            self._wait(lambda: job.poll() is not None, "the last run ends")
            assert job.returncode == 0, self._output()
            for stream, lost in ((SOURCE, []), (SINK, self.lost)):
                count = self.flights.check(client.read(stream).to_table(), lost)
                assert count == len(frame), f"{stream}: {len(frame) - count} flights are missing"
        return self.told

    def _round(self, client: Client, kill: str) -> None:
        self._append(client)
        before = _batches(client)
        at_commit = kill.startswith(AT_COMMIT)
        whom, _, with_broker = kill.partition("+")
        if at_commit:  # at its next commit, of a batch that may be a replay
            who_else = f" {self.brokers.victim()}" if with_broker else ""
            order = self.folder.joinpath("order")
            order.write_text(f"{whom}{who_else}")
            order.rename(self.folder / "kill")
        if self._has_ended():
            self._start("follow", self.cluster.url if self.cluster else self.master)
        try:
            if at_commit:
                self._wait(self._is_killed, "the kill")
                self.told[kill] += 1
                return
            self._wait(lambda: self._has_begun(client, before), "the job commits")
            if whom == "checkpoint":
                self._wait(lambda: any(published(client, CONSUMER, SOURCE).values()), "progress is published")
            self._append(client)
            victims = [self.brokers.victim()] if "broker" in kill else []
            time.sleep(self.luck.uniform(0, 1.5))  # the moment is what is tried out
            if whom != "broker":
                victims += self._one_of(whom)
            for victim in victims:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            self.told[kill] += len(victims) == len(kill.split("+"))
            if self.brokers.is_alone and "broker" in kill:
                self.brokers.revive()
            seen = _batches(client)
            self._append(client)  # after a kill that it survives the job goes on; otherwise it ends
            self._wait(lambda: self._has_ended() or _batches(client) > seen, "it goes on, or ends")
            if whom == "checkpoint":
                self._wait(self._has_ended, "its driver is gone")
                self.lost.append(published(client, CONSUMER, SOURCE))
                shutil.rmtree(self.folder / "checkpoint")
        finally:
            if "broker" in kill and (at_commit or not self.brokers.is_alone):
                self.brokers.revive()

    def _one_of(self, whom: str) -> list[int]:
        """The pid of the driver, of a worker or of an executor; none if there is none at the moment."""
        jvm = int(self.folder.joinpath("jvm").read_text())
        if whom in ("driver", "checkpoint"):
            return [jvm]
        roots = [jvm, *(self.cluster.pids if self.cluster else [])]
        found = [pid for root in roots for pid in descendants(root, _COMMANDS[whom])]
        return self.luck.sample(found, min(1, len(found)))

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until it is so. Every minute in which it is not, the stacks of all processes are written down."""
        for _ in range(PATIENCE):
            deadline = time.monotonic() + STALL_S
            while time.monotonic() < deadline:
                if condition():
                    return
                time.sleep(0.02)
            self.stalls += 1
            roots = [*self.brokers.pids, *(self.cluster.pids if self.cluster else [])]
            roots += [self.job.pid] if self.job else []
            with self.folder.joinpath("stalls.log").open("a") as log:
                log.write(f"##### {what}, after {dict(self.told)}\n")
                log.write(stacks([pid for root in roots for pid in (root, *descendants(root))]) + "\n")
        raise AssertionError(f"not within {PATIENCE * STALL_S:.0f} s: {what}; see stalls.log")

    def _is_killed(self) -> bool:
        """Whether the driver was killed at the commit where it was told to."""
        killed = self.folder.joinpath("killed")
        assert self.job is not None
        assert killed.exists() or self.job.poll() is None, self._output()
        if not killed.exists():
            return False
        self.job.wait(120)
        self.bundled += int(killed.read_text()) > self.broker_count  # so several of them were in one bundle
        killed.unlink()
        return True

    def _has_begun(self, client: Client, before: int) -> bool:
        assert not self._has_ended(), self._output()
        return _batches(client) > before

    def _has_ended(self) -> bool:
        """And whatever it had started, too."""
        if self.job is not None and self.job.poll() is None:
            return False
        self._end()
        return True

    def _end(self) -> None:
        """The job and whatever it started: they are a session of their own."""
        if self.job is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.job.pid, signal.SIGKILL)
            self.job.wait(60)
            self.job = None

    def _append(self, client: Client) -> None:
        assert self.flights is not None
        for partition, rows in enumerate(self.flights.take()):
            store(client, SOURCE, partition, rows)

    def _start(self, mode: str, master: str) -> subprocess.Popen[bytes]:
        assert self.flights is not None
        self.folder.joinpath("jvm").unlink(missing_ok=True)
        rows_max = str(max(1, self.flights.share * 2 // 3))  # several batches each time
        starting = "committed" if self.lost else "earliest"
        given = [self.brokers.addresses, str(self.folder), master, mode, rows_max, starting, str(self.tasks)]
        with self.folder.joinpath("job.log").open("ab") as log:
            self.job = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.kill_app", *given],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self.job

    def _output(self) -> str:
        return self.folder.joinpath("job.log").read_text(errors="replace")[-6000:]


_COMMANDS = {"worker": "pyspark.daemon", "executor": "CoarseGrainedExecutorBackend"}


def _batches(client: Client) -> int:
    """So many were committed, for all checkpoints together; 0 while nobody answers."""
    with suppress(LiftlogError):
        return sum(sink.last.batch_id + 1 for sink in client.sinks() if sink.last is not None)
    return 0
