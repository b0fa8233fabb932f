"""Liftbridge's API of a cluster: any broker takes what is published, and the metadata leads to who serves it.

Method: three brokers on three addresses of loopback, so that they have the same port, as they are to have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from broker.api.proto import liftbridge_pb2 as pb
from tests.support.clusters import IDS, RealCluster
from tests.support.liftbridge import client_of
from tests.support.processes import eventually, free_port

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]
HOSTS = {broker: f"127.0.0.{number}" for number, broker in enumerate(IDS, 1)}


class Loopback:
    """A network of one machine."""

    def address(self, broker: str) -> str:
        return HOSTS[broker]

    def prefix(self, broker: str) -> tuple[str, ...]:
        return ()


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[RealCluster]:
    network: Any = Loopback()
    cluster = RealCluster(tmp_path_factory.mktemp("three"), None, network=network)
    for broker, process in cluster.brokers.items():
        process.env["LIFTLOG_LIFTBRIDGE_LISTEN"] = f"{HOSTS[broker]}:{port}"
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def test_every_broker_takes_records_and_tells_who_leads(cluster: RealCluster, port: int) -> None:
    with client_of(port, host=HOSTS["a"]) as client:
        client.call("CreateStream", name="s", subject="s", partitions=3, replication_factor=-1)
    told = []
    for broker in IDS:
        with client_of(port, host=HOSTS[broker]) as client:
            metadata = client.call("FetchMetadata", streams=["s", "__cursors"])
            assert {each.id: (each.host, each.port) for each in metadata.brokers} == {
                each: (HOSTS[each], port) for each in IDS
            }
            told.append([metadata.streams[0].partitions[number].leader for number in range(3)])
            assert metadata.streams[1].partitions[0].leader
            for partition in range(3):
                asked = {"stream": "s", "partition": partition, "value": broker.encode(), "ack_policy": pb.ALL}
                published = eventually(lambda to=client, of=asked: when_ready(to, "Publish", **of), what="its leader")
                assert published.ack.offset == IDS.index(broker), "whoever leads it"
    for broker in IDS:
        with client_of(port, host=HOSTS[broker]) as client:
            asked = (pb.Publish(stream="s", partition=2, value=b"%d" % i, correlation_id=str(i)) for i in (1, 2))
            assert [each.ack.correlation_id for each in client.publish_async(asked)] == ["1", "2"]
    assert told[0] == told[1] == told[2]
    for partition, leader in enumerate(told[0]):
        for broker in IDS:
            with client_of(port, host=HOSTS[broker]) as client:
                asked = {"stream": "s", "partition": partition, "start": pb.EARLIEST, "stop": pb.AT_OFFSET}
                call = client.subscribe(**asked, stop_offset=2)
                if broker == leader:
                    assert next(call) == pb.Record()
                    assert [next(call).offset for _ in range(3)] == [0, 1, 2]
                with pytest.raises(grpc.RpcError) as ended:
                    next(call)
                code = grpc.StatusCode.RESOURCE_EXHAUSTED if broker == leader else grpc.StatusCode.FAILED_PRECONDITION
                assert ended.value.code() == code, broker
                call = client.subscribe(**asked, stop_offset=2, from_replica=True)
                assert next(call) == pb.Record()
                assert [next(call).offset for _ in range(3)] == [0, 1, 2], "any replica has them"
                call.cancel()


def when_ready(client: Any, call: str, /, **fields: Any) -> Any | None:
    """An answer; None: the broker is not there yet, which a client tries again."""
    try:
        return client.call(call, **fields)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return None


def made(client: Any, name: str, **fields: Any) -> bool:
    """Whether a stream is there by now: of a creation that was UNAVAILABLE it may be."""
    try:
        return when_ready(client, "CreateStream", name=name, subject=name, **fields) is not None
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise
        return True


def test_a_group_reads_what_others_lead_and_outlives_its_coordinator(cluster: RealCluster, port: int) -> None:
    """Assignments from the coordinator, subscriptions at the leaders, the place of the group at the one of offsets."""
    group: dict[str, Any] = {"group_id": "g", "consumer_id": "a"}
    with client_of(port, host=HOSTS["b"]) as client:
        client.call("CreateStream", name="u", subject="u", partitions=3, replication_factor=-1)
        for number in range(6):
            client.call("Publish", stream="u", partition=number % 3, value=b"v", ack_policy=pb.ALL)
        joined = eventually(lambda: when_ready(client, "JoinConsumerGroup", **group, streams=["u"]))
        leaders = {n: p.leader for n, p in client.call("FetchMetadata", streams=["u"]).streams[0].partitions.items()}

    def assigned(broker: str) -> Any:
        with client_of(port, host=HOSTS[broker]) as client:
            return when_ready(client, "FetchConsumerGroupAssignments", **group, epoch=joined.epoch)

    def read(number: int, leader: str, epoch: int) -> list[int] | None:
        with client_of(port, host=HOSTS[leader]) as client:
            member = pb.Member(**group, group_epoch=epoch)
            call = client.subscribe(stream="u", partition=number, start=pb.EARLIEST, consumer=member)
            try:
                next(call)
                return [next(call).offset]
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION):
                    raise
                return None
            finally:
                call.cancel()

    share = eventually(lambda: assigned(joined.coordinator))
    assert [list(each.partitions) for each in share.assignments] == [[0, 1, 2]]
    for number, leader in leaders.items():
        assert eventually(lambda n=number, at=leader: read(n, at, share.epoch)) == [0]
    place = {"stream": "u", "partition": 1, "cursor_id": "__group:g"}
    with client_of(port, host=HOSTS[joined.coordinator]) as client:
        client.call("SetCursor", **place, offset=0)
        for number in range(3):
            refused = client.refusal("SetCursor", stream="u", partition=number, cursor_id="__group:g", offset=2)
            assert refused[0] == "OUT_OF_RANGE", "whoever leads it says that it has no record of this offset"
    cluster.brokers[joined.coordinator].kill9()
    other = next(broker for broker in IDS if broker != joined.coordinator)

    def moved() -> str:
        with client_of(port, host=HOSTS[other]) as client:
            metadata = when_ready(client, "FetchMetadata", groups=["g"])  # no session, while another one is elected
            found = "" if metadata is None else str(metadata.groups[0].coordinator)
            return found if found != joined.coordinator else ""

    now = eventually(moved, what="another coordinator")
    again = eventually(lambda: assigned(now), what="assignments of it")
    assert [list(each.partitions) for each in again.assignments] == [[0, 1, 2]]

    def leader_of(number: int) -> str:
        with client_of(port, host=HOSTS[other]) as client:
            metadata = when_ready(client, "FetchMetadata", streams=["u"])
            found = "" if metadata is None else str(metadata.streams[0].partitions[number].leader)
            return "" if found == joined.coordinator else found

    with client_of(port, host=HOSTS[now]) as client:
        assert eventually(lambda: when_ready(client, "FetchCursor", **place)).offset == 0, "what was committed is there"
    assert eventually(lambda: (at := leader_of(1)) and read(1, at, again.epoch)) == [1]
    cluster.brokers[joined.coordinator].start()


def published(client: Any) -> int | None:
    """The offset of one record; None: its leader does not serve yet, which a client tries again."""
    try:
        ack = client.call("Publish", stream="t", value=b"v", ack_policy=pb.ALL, timeout_s=60).ack
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return None
    assert ack.offset == 0
    return int(ack.offset)


def test_after_a_kill_another_broker_is_named(cluster: RealCluster, port: int) -> None:
    at: dict[str, Any] = {"stream": "t", "partition": 0}
    with client_of(port, host=HOSTS["a"]) as client:
        eventually(lambda: made(client, "t", replication_factor=3), what="the stream")
        leader = eventually(lambda: when_ready(client, "FetchPartitionMetadata", **at)).partition.leader
    other = next(broker for broker in IDS if broker != leader)
    cluster.brokers[leader].kill9()
    with client_of(port, host=HOSTS[other]) as client:

        def told() -> tuple[str, set[str]] | None:
            metadata = when_ready(client, "FetchMetadata", streams=["t"])
            if metadata is None:
                return None
            return metadata.streams[0].partitions[0].leader, {each.id for each in metadata.brokers}

        eventually(lambda: (found := told()) is not None and found[0] not in ("", leader), what="another leader")
        eventually(lambda: published(client) is not None, what="the new leader to serve")
        eventually(lambda: (found := told()) is not None and leader not in found[1], what="the end of the former one")
