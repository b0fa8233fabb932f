"""Goal: gRPC's own reflection client finds the API, and calls it with what it found. No file of ours takes part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")
pytest.importorskip("grpc_reflection", reason="grpcio-reflection is not installed")

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.support.processes import free_port, running

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[grpc.Channel]:
    address = f"127.0.0.1:{free_port()}"
    with running(tmp_path, LIFTLOG_LIFTBRIDGE_LISTEN=address), grpc.insecure_channel(address) as channel:
        yield channel


def called(channel: grpc.Channel, method: Any, **fields: Any) -> Any:
    ask = channel.unary_unary(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    return ask(GetMessageClass(method.input_type)(**fields), timeout=30)


def test_the_stock_client_of_reflection_calls_what_it_finds(channel: grpc.Channel) -> None:
    found = ProtoReflectionDescriptorDatabase(channel)
    assert {"proto.API", "grpc.health.v1.Health"} < set(found.get_services())
    pool = DescriptorPool(found)
    api, health = (pool.FindServiceByName(name) for name in ("proto.API", "grpc.health.v1.Health"))
    assert called(channel, health.methods_by_name["Check"], service="proto.API").status == 1
    called(channel, api.methods_by_name["CreateStream"], name="s", subject="s")
    [stream] = called(channel, api.methods_by_name["FetchMetadata"], streams=["s"]).streams
    assert stream.subject == "s"
    assert sorted(method.name for method in pool.FindServiceByName("grpc.reflection.v1.ServerReflection").methods) == [
        "ServerReflectionInfo"
    ]
    with pytest.raises(KeyError):
        pool.FindServiceByName("proto.Nothing")
