"""A stream that its broker could not open has no partitions to tell of: each call says why, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.api.errors import CorruptLog, StorageFailed
from broker.client import Client, connect
from spark_liftlog.writing.targets import find
from tests.unit.serving.server import Server


@pytest.fixture
def offline(server: Server, new_stream: Callable[..., str]) -> Iterator[str]:
    name = new_stream(partitions=4)
    server.backend.offline[name] = CorruptLog("partition.json is damaged", stream=name, offline=True)
    yield name
    del server.backend.offline[name]


@pytest.mark.parametrize(
    "call",
    [
        lambda client, name: client.read(name),
        lambda client, name: client.read(name, partitions=[3]),
        lambda client, name: client.table(name),
        lambda client, name: client.group(name).read(name, start="latest"),
        lambda client, name: next(client.group(name).read(name)),
        lambda client, name: client.append(name, 3, [{"value": b"x"}]),
    ],
    ids=["read", "partition", "table", "latest", "group", "append"],
)
def test_who_reads_is_told_why_it_is_offline(client: Client, offline: str, call: Callable[[Client, str], Any]) -> None:
    with pytest.raises(CorruptLog, match="damaged"):
        call(client, offline)


def test_a_producer_is_told_with_the_first_records(client: Client, offline: str) -> None:
    with client.producer(offline) as producer:
        producer.send(b"x")
        with pytest.raises(CorruptLog, match="damaged"):
            producer.flush()


def test_sparks_writer_knows_how_many_partitions_there_are(client: Client, offline: str) -> None:
    assert find(client._calls, offline).partition_count == 4


def test_what_may_pass_is_asked_again_and_told_in_the_end(server: Server, new_stream: Callable[..., str]) -> None:
    name = new_stream(partitions=2)
    server.backend.offline[name] = StorageFailed("the disk is gone", stream=name, offline=True)
    with (
        connect(f"127.0.0.1:{server.port}", deadline_s=0.2) as client,
        pytest.raises(StorageFailed, match="disk is gone"),
    ):
        client.read(name)
    del server.backend.offline[name]
