"""A stream that its broker could not open has no partitions to tell of: each call says why, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.api.answers import StreamDescription
from broker.api.errors import CorruptLog, NotReady, StorageFailed
from broker.cli.commands.export import Wanted, export_parquet, sources_of
from broker.cli.main import app
from broker.client import Client, connect
from broker.client.http.interrupt import Interrupt
from spark_liftlog.errors import LiftlogSparkError
from spark_liftlog.options import source_options
from spark_liftlog.reading import task
from spark_liftlog.reading.batch_reader import LiftlogReader
from spark_liftlog.reading.plan import Range
from spark_liftlog.schema import ROW
from spark_liftlog.writing.targets import find
from tests.support.processes import eventually
from tests.unit.serving.arrow import values
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


def test_an_export_is_no_empty_file(client: Client, offline: str, tmp_path: Path) -> None:
    """It replaced a good one, and said that all had gone well."""
    good = tmp_path / "good.parquet"
    good.write_bytes(b"of yesterday")
    for target in (str(good), f"{tmp_path}/folder/"):
        with pytest.raises(CorruptLog, match="damaged"):
            export_parquet(sources_of(client, offline, Wanted()), target, Wanted(), overwrite=True)
    assert good.read_bytes() == b"of yesterday"


def test_it_is_listed_with_its_partitions(server: Server, offline: str) -> None:
    command: Any = app
    listed = CliRunner().invoke(command, ["stream", "list", "--brokers", f"127.0.0.1:{server.port}"]).output
    [line] = [line for line in listed.splitlines() if line.startswith(f"{offline} ")]
    assert line.split()[2:4] == ["open", "4"]


def test_who_follows_is_told(server: Server, client: Client, new_stream: Callable[..., str]) -> None:
    name = new_stream(partitions=4)
    client.append(name, 1, values(1))
    with client.read(name, follow=True) as reader, ThreadPoolExecutor() as pool:
        next(reader)
        server.backend.offline[name] = CorruptLog("partition.json is damaged", stream=name, offline=True)
        with pytest.raises(CorruptLog, match="damaged"):
            pool.submit(next, reader).result(60)
    del server.backend.offline[name]


def test_who_follows_waits_for_what_may_pass(server: Server, client: Client, new_stream: Callable[..., str]) -> None:
    name = new_stream(partitions=4)
    with ThreadPoolExecutor() as pool, client.read(name, follow=True) as reader:
        server.backend.offline[name] = StorageFailed("the disk is gone", stream=name, offline=True)
        row = pool.submit(next, reader)
        eventually(lambda: server.backend._hub._waiter_count, what="it waits")
        del server.backend.offline[name]
        client.append(name, 2, values(1))
        assert row.result(60).num_rows == 1


def test_a_table_that_goes_offline_while_it_is_read(
    server: Server, new_stream: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = new_stream(partitions=2)
    with connect(f"127.0.0.1:{server.port}", deadline_s=0.2) as client:
        described = client.describe(name)
        looks = iter([described])

        def describe(stream: str) -> StreamDescription:
            if (first := next(looks, None)) is None:
                server.backend.offline[name] = StorageFailed("the disk is gone", stream=name, offline=True)
            return first or Client.describe(client, stream)

        monkeypatch.setattr(client, "describe", describe)
        with pytest.raises(NotReady, match=f"nobody can tell of {name}/0 now"):
            client.table(name)
    del server.backend.offline[name]


def test_sparks_task_waits_for_it(server: Server, offline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said that the stream has no such partition any more."""
    monkeypatch.setattr(task, "DEADLINE_S", 0.2)
    incarnation = server.backend.stream(offline).incarnation
    wanted = Range(stream=offline, partition=3, incarnation=incarnation, start=0, end=1)
    with pytest.raises(NotReady, match="nobody can tell of partition 3"):
        task.described(wanted, f"127.0.0.1:{server.port}", Interrupt(), what="asking")


def test_sparks_pattern_leaves_out_no_stream(server: Server, offline: str) -> None:
    given = {"brokers": f"127.0.0.1:{server.port}", "streamPattern": f"({offline}|nothing)"}
    with pytest.raises(LiftlogSparkError, match=r"CORRUPT_LOG.*damaged"):
        LiftlogReader(source_options(given, "batch"), ROW).partitions()
