"""Goal: go-liftbridge's own examples run on a broker of this project, unchanged: what lift-pub sends, lift-sub reads.

Method: both as processes, built from go-liftbridge's source (`go build -o HOME ./example/lift-pub ./example/lift-sub`).
INTEROP_GO_EXAMPLES names HOME. They are of its first version, and know no address but localhost:9292.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.client import connect
from tests.support.processes import BrokerProcess, eventually, running

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

HOME = "INTEROP_GO_EXAMPLES"
PORT = 9292
STREAM, PARTITION = "bar-stream", 2


@pytest.fixture
def programs() -> Path:
    home = Path(os.environ.get(HOME, "")).absolute()
    if HOME not in os.environ or not all((home / name).is_file() for name in ("lift-pub", "lift-sub")):
        pytest.skip(f"{HOME} names no folder with go-liftbridge's lift-pub and lift-sub")
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind(("127.0.0.1", PORT))
        except OSError:
            pytest.skip(f"port {PORT}, which go-liftbridge's examples ask for, is taken")
    return home


@pytest.fixture
def broker(programs: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    with running(tmp_path, LIFTLOG_LIFTBRIDGE_LISTEN=f"127.0.0.1:{PORT}") as (_, process):
        yield process


def test_go_liftbridges_examples_run(programs: Path, broker: BrokerProcess, tmp_path: Path) -> None:
    def published() -> list[str]:
        """What the partition has that lift-sub reads. The keys of lift-pub are drawn."""
        done = subprocess.run([str(programs / "lift-pub")], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout.endswith("done publishing\n")) == (0, True), done.stdout + done.stderr
        rows = client.read(STREAM, partitions=[PARTITION]).to_table()
        return [
            f"{offset} {key.decode()} {value.decode()}"
            for offset, key, value in zip(*(rows[name].to_pylist() for name in ("offset", "key", "value")), strict=True)
        ]

    with connect(broker.address, deadline_s=60.0) as client:
        expected = eventually(published, what="a record of that partition")
    printed = tmp_path / "printed"
    with printed.open("w") as file, subprocess.Popen([str(programs / "lift-sub")], stdout=file) as reader:
        try:
            eventually(lambda: printed.read_text().count("\n") >= len(expected), what="what lift-sub prints")
        finally:
            reader.kill()
    assert [line.split(" UTC ")[1] for line in printed.read_text().splitlines()] == expected
