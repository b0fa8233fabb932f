"""Spark Connect: the format is found on the server, and source and sink run there.

Method: one session takes all steps (connect_app.py); each test looks at what one of them found.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from broker.client.client import Client
from tests.spark import connect_app
from tests.spark.connect_app import EACH, KEYED, RECORDS, SOURCE, STREAMED, WRITTEN
from tests.spark.kills import ROOT
from tests.support.processes import BrokerProcess

ALL = [*range(2 * RECORDS)]


@pytest.fixture(scope="module")
def told(broker: BrokerProcess, client: Client, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each step found."""
    folder = tmp_path_factory.mktemp("connect")
    for name in (SOURCE, STREAMED, EACH, WRITTEN):
        client.create_stream(name, partitions=2)
    client.create_stream(KEYED, partition_by="key")
    client.append(KEYED, 0, [{"key": b"%d" % (n % 3), "value": b"v%d" % n} for n in range(9)])
    for partition in range(2):
        rows = [
            {"value": b'{"n": %d}' % n, "subject": f"connect.{partition}"} for n in range(partition, 2 * RECORDS, 2)
        ]
        client.append(SOURCE, partition, rows)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_app", broker.address, str(folder)],
        cwd=ROOT,
        capture_output=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    found: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return found


def values(client: Client, stream: str) -> list[int]:
    return sorted(json.loads(value)["n"] for value in client.read(stream).to_table().column("value").to_pylist())


def found(told: dict[str, Any], step: str) -> Any:
    assert "error" not in told[step], told[step]["error"]
    return told[step]["found"]


@pytest.mark.timeout(600)
def test_every_step_was_taken(told: dict[str, Any]) -> None:
    assert tuple(told) == connect_app.NAMES


@pytest.mark.parametrize("step", ["batch_read", "json_payload", "register"])
def test_a_read_has_every_record_once(told: dict[str, Any], step: str) -> None:
    assert found(told, step) == ALL


def test_a_read_obeys_its_options(told: dict[str, Any]) -> None:
    assert found(told, "options_of_a_read") == {"columns": ["value"], "n": ALL[:40:2]}
    assert found(told, "key") == ["v1", "v4", "v7"]


def test_a_table_has_the_newest_value_of_each_key(told: dict[str, Any]) -> None:
    assert found(told, "table") == {"0": "v6", "1": "v7", "2": "v8"}


def test_streams_have_views(told: dict[str, Any]) -> None:
    made, count, newest, everything = found(told, "views")
    assert made == [KEYED, f"{KEYED}_table", SOURCE]
    assert (count, newest) == (2 * RECORDS, 3)
    assert set(made) < set(everything)


def test_a_query_writes_exactly_once(told: dict[str, Any], client: Client) -> None:
    assert found(told, "exactly_once") == 0, "its lag is known"
    assert values(client, STREAMED) == ALL


def test_for_each_batch_writes_each_version_once(told: dict[str, Any], client: Client) -> None:
    assert found(told, "for_each_batch") is None
    assert values(client, EACH) == ALL
    (last,) = (sink.last for sink in client.sinks() if EACH in sink.destinations)
    assert last is not None
    assert last.batch_id == 1, "there were two batches"


def test_a_job_writes_a_transaction_once(told: dict[str, Any], client: Client) -> None:
    assert found(told, "batch_write") is None
    assert values(client, WRITTEN) == ALL


def test_insert_into_a_view_writes(told: dict[str, Any], client: Client) -> None:
    assert found(told, "insert_into") is None
    assert client.table(KEYED).to_table().column("value").to_pylist().count(b"b") == 1


def test_a_listener_hands_lags_to_prometheus(told: dict[str, Any]) -> None:
    assert found(told, "lag_listener") is True


def test_an_error_has_its_code(told: dict[str, Any]) -> None:
    assert "LIFTLOG_UNKNOWN_SETTING" in found(told, "error")
