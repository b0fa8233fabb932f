"""A broker process with Liftbridge's port, as a client of gRPC finds it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.proto import liftbridge_pb2 as pb
from tests.support.liftbridge import client_of
from tests.support.processes import BrokerProcess, eventually, free_port, running

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[BrokerProcess]:
    env = {"LIFTLOG_LIFTBRIDGE_LISTEN": f"127.0.0.1:{port}"}
    with running(tmp_path_factory.mktemp("liftbridge"), **env) as (_, broker):
        yield broker


def test_a_broker_opens_the_port_and_serves_streams_there(broker: BrokerProcess, port: int) -> None:
    with client_of(port) as client:
        client.call("CreateStream", name="orders", subject="orders", partitions=2)
        metadata = client.call("FetchMetadata")
        assert [(each.host, each.port) for each in metadata.brokers] == [("127.0.0.1", port)]
        assert metadata.streams[0].partitions[1].leader == metadata.brokers[0].id
        client.call("DeleteStream", name="orders")
        assert client.refusal("DeleteStream", name="orders")[0] == "NOT_FOUND"
        assert client.call("FetchMetadata", streams=["orders"]).streams[0].error == pb.Stream.UNKNOWN_STREAM


def test_a_stop_ends_calls_and_a_start_takes_the_port_again(broker: BrokerProcess, port: int) -> None:
    with client_of(port) as client:
        client.call("CreateStream", name="kept", subject="kept")
        assert broker.stop() == 0
        broker.start()
        eventually(lambda: client.call("FetchMetadata", streams=["kept"]).streams[0].name == "kept")
