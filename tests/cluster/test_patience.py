"""A broker that is away: whoever asks it hears so at once, waits for the same time everywhere, and goes on by itself.

Method: the command line as a child process, a real broker that is killed and started again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.client import connect
from tests.support.processes import BrokerProcess, eventually, free_port

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("LIFTLOG_")}


class Command:
    """`liftlog …` while it runs; its lines of stdout and stderr as they come."""

    def __init__(self, address: str, *arguments: str, retry_s: str | None = None) -> None:
        env = {**CLEAN, "LIFTLOG_BROKERS": address, **({} if retry_s is None else {"LIFTLOG_RETRY_S": retry_s})}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "broker.cli.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._threads = [
            threading.Thread(target=lambda pipe=pipe, into=into: into.extend(iter(pipe.readline, "")), daemon=True)
            for pipe, into in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> int:
        code = self.process.wait(120)
        for thread in self._threads:
            thread.join(60)
        return code


@contextmanager
def running(*arguments: str, retry_s: str | None = None) -> Iterator[Command]:
    command = Command(*arguments, retry_s=retry_s)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            command.process.kill()
        command.end()


@pytest.mark.parametrize("partitions", [1, 2])
def test_tail_says_when_the_broker_is_away_and_when_it_is_back(tmp_path: Path, partitions: int) -> None:
    broker = BrokerProcess(tmp_path / "broker", None).start()
    try:
        with connect(broker.address, deadline_s=60) as client:
            client.create_stream("orders", partitions=partitions)
            with running(broker.address, "tail", "orders", "-f", "--json", "--from", "earliest") as tail:
                for number in range(2):
                    client.append("orders", 0, [{"value": b"%d" % number}])
                    eventually(lambda number=number: len(tail.out) == number + 1, what="the record is shown")
                    assert len(tail.err) == 2 * number
                    broker.kill9()
                    eventually(lambda number=number: len(tail.err) == 2 * number + 1, what="it says that it waits")
                    assert tail.err[-1].startswith("retrying for 30 s: ")
                    assert broker.address in tail.err[-1]
                    broker.start()
                    eventually(lambda number=number: len(tail.err) == 2 * number + 2, what="it says that it goes on")
                    assert tail.err[-1].startswith("answered again after ")
                assert [json.loads(line)["value"] for line in tail.out] == ["0", "1"]
    finally:
        broker.stop()


@pytest.mark.parametrize(
    "arguments",
    [
        ["stream", "list"],
        ["stream", "create", "a"],
        ["consumer", "list"],
        ["sink", "list"],
        ["tail", "a"],
        ["tail", "a", "-f"],
        ["log", "export", "a", "--brokers", "{address}", "--parquet", "{folder}/a.parquet"],
    ],
)
def test_every_command_has_the_same_patience_and_the_same_end(arguments: list[str], tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    given = [argument.format(address=address, folder=tmp_path) for argument in arguments]
    with running(address, *given) as waiting:
        eventually(lambda: any("retrying" in line for line in waiting.err), what="it says that it waits")
        assert waiting.err[-1] == f"retrying for 30 s: {address}: Connection refused\n"
        assert waiting.process.poll() is None
    with running(address, *given, retry_s="0.3") as impatient:
        assert impatient.end() == 3
    assert f"retrying for 0.3 s: {address}: Connection refused\n" in impatient.err
    assert impatient.err[-1].startswith("error[unavailable]: ")
    assert "Connection refused" in impatient.err[-1]
    with running(address, *given, retry_s="0") as none:
        assert none.end() == 3
    assert not any("retrying" in line for line in none.err)
    assert list(tmp_path.iterdir()) == []
