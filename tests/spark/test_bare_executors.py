"""Executors need the base install and Spark: nothing that the extra `broker` brings is imported there.

Method: executors of their own, whose Python refuses to import any module of that extra.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from broker.client.client import Client
from tests.spark import bare_app
from tests.spark.kills import ROOT
from tests.support.processes import BrokerProcess


def of_the_broker() -> list[str]:
    """The modules that the extra brings."""
    extras = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {_canonical(re.split(r"[^A-Za-z0-9._-]", wanted, maxsplit=1)[0]) for wanted in extras["broker"]}
    return sorted(
        module for module, brought in packages_distributions().items() if named & {_canonical(name) for name in brought}
    )


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.timeout(600)
def test_source_and_sink_run_on_executors_without_what_brokers_need(
    broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    modules = of_the_broker()
    assert {"aiohttp", "click", "google", "nats", "pysyncobj"} <= set(modules)
    for name in (bare_app.SOURCE, bare_app.STREAMED, bare_app.WRITTEN):
        client.create_stream(name, partitions=2)
    for partition in range(2):
        rows = [{"value": b"%d" % n, "headers": [("h", b"1")]} for n in range(partition, 200, 2)]
        client.append(bare_app.SOURCE, partition, rows)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.bare_app", broker.address, str(tmp_path), ",".join(modules)],
        cwd=ROOT,
        capture_output=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    assert list(tmp_path.glob("bare-*")), "tasks ran where those modules are refused"
    for name in (bare_app.STREAMED, bare_app.WRITTEN):
        values = client.read(name).to_table().column("value").to_pylist()
        assert sorted(map(int, values)) == list(range(200))
