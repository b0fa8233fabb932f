"""Make checkpoints with the brokers, source and sink of another commit. Run by hand, as make.py:

    /tmp/old/.venv/bin/python tests/folders/make_checkpoints.py /tmp/old OUT

Writes OUT/checkpoints.tar.zst, with the checkpoints of four queries and their broker's data folder, and
OUT/checkpoints.json: the commit, and how many records each source had. One query has ended, of three the driver was
killed at a batch (queries.py). Then the broker was killed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
APPENDS = (70, 30)
"""Records of each source: before all queries run to their end, and before three are killed."""


def main(checkout: Path, out: Path) -> None:
    os.environ["PYTHONPATH"] = str(checkout)
    sys.path[:0] = [str(checkout), str(HERE)]
    import tests

    tests.__path__.append(str(HERE.parent))
    import broker

    assert broker.__file__ is not None
    assert Path(broker.__file__).is_relative_to(checkout), f"{broker.__file__} is not of {checkout}"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        records = make(Path(folder), checkout)
        keep(Path(folder), out / "checkpoints.tar.zst")
    out.joinpath("checkpoints.json").write_text(
        json.dumps({"commit": commit.stdout.strip(), "records": records}) + "\n"
    )


def make(folder: Path, checkout: Path) -> int:
    """Returns how many records each source has."""
    from broker.client import connect
    from tests.folders.queries import KILLS, QUERIES, SOURCES
    from tests.support.processes import BrokerProcess

    os.chdir(checkout)
    broker = BrokerProcess(folder / "broker", None).start()
    records = 0

    def run(name: str, *kill: str) -> None:
        command = [sys.executable, str(HERE / "queries.py"), broker.address, name, *kill]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert (done.returncode != 0) == bool(kill), done.stderr
        folder.joinpath("jvm").unlink()

    try:
        with connect(broker.address) as client:
            for name in SOURCES:
                client.create_stream(name, partitions=2)
            for name in QUERIES:
                client.create_stream(f"sink-{name}", partitions=2)
            for count, runs in zip(APPENDS, ([("all",)], list(KILLS.items())), strict=True):
                append(client, records, count)
                records += count
                for given in runs:
                    run(*given)
        broker.kill9()
    finally:
        broker.stop()
    return records


def append(client: Any, first: int, count: int) -> None:
    """To each source, records that say which they are."""
    from tests.folders.queries import SOURCES

    for name in SOURCES:
        rows = [{"key": b"%d" % (n % 7), "value": f"{name} {n}".encode()} for n in range(first, first + count)]
        for partition in range(2):
            client.append(name, partition, rows[partition::2])


def keep(folder: Path, to: Path) -> None:
    """Pack the broker's data folder and the checkpoints alone."""
    from tests.folders.keep import pack

    shutil.rmtree(folder / "local", ignore_errors=True)
    for other in (folder / "broker").iterdir():
        if other.name != "data":
            other.unlink()
    pack(folder, to)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
