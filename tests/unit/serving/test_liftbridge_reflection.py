"""gRPC's health and reflection on the port of Liftbridge's API.

Goal: a client that has no files of the API finds out what there is, and what it is told is what is served.
Method: asked by grpcio; what comes is put into a pool of protobuf's own, and a call is made with the classes of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("h2", reason="Liftbridge's API needs h2: the extra `liftbridge`")

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from broker.api.proto import grpc_health_pb2 as health_pb
from broker.api.proto import grpc_reflection_pb2 as pb
from broker.serving.http.access import AuthRules
from broker.serving.liftbridge.reflection import FILES, REFLECTIONS, SERVICES
from broker.serving.liftbridge.server import METHODS
from tests.support.liftbridge import Client, client_of, opened
from tests.unit.serving.server import Server, running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with opened(server) as port, client_of(port.port) as client:
        yield client


# --- reflection -----------------------------------------------------------------------------------------------------


def reflected(client: Client, *questions: Any, package: str = REFLECTIONS[0]) -> list[Any]:
    call = client.channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=pb.ServerReflectionRequest.SerializeToString,
        response_deserializer=pb.ServerReflectionResponse.FromString,
    )
    return list(call(iter(questions), timeout=30))


def test_services_are_listed_and_described(client: Client) -> None:
    for package in REFLECTIONS:
        asked = pb.ServerReflectionRequest(host="h", list_services="*")
        symbol = pb.ServerReflectionRequest(file_containing_symbol="proto.API")
        listed, described = reflected(client, asked, symbol, package=package)
        assert [each.name for each in listed.list_services_response.service] == SERVICES
        assert {"proto.API", "grpc.health.v1.Health"} < set(SERVICES)
        assert (listed.valid_host, listed.original_request) == ("h", asked)
        [file] = described.file_descriptor_response.file_descriptor_proto
        assert FileDescriptorProto.FromString(file) == FILES["liftbridge.proto"]


def test_a_client_makes_its_calls_of_what_it_is_told(client: Client) -> None:
    client.call("CreateStream", name="s", subject="s")
    [told] = reflected(client, pb.ServerReflectionRequest(file_containing_symbol="proto.API.FetchMetadata"))
    pool = DescriptorPool()
    pool.AddSerializedFile(told.file_descriptor_response.file_descriptor_proto[0])
    method = pool.FindServiceByName("proto.API").methods_by_name["FetchMetadata"]
    ask = client.channel.unary_unary(
        "/proto.API/FetchMetadata",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    found = ask(GetMessageClass(method.input_type)(streams=["s"]), timeout=30)
    assert found.streams[0].partitions[0].leader == "broker-0"


def test_what_is_described_is_what_is_served() -> None:
    described = {
        f"/{file.package}.{service.name}/{method.name}": method
        for file in FILES.values()
        for service in file.service
        for method in service.method
    }
    assert described.keys() == METHODS.keys()
    for path, method in described.items():
        assert METHODS[path].is_stream == (method.client_streaming or method.server_streaming), path
    pool = DescriptorPool()
    for file in FILES.values():
        pool.Add(file)
        assert "liftlog" not in str(file), "names are those on the wire"
    for name in SERVICES:
        assert pool.FindServiceByName(name).methods


IN_FILE = {
    "proto.API.Publish": "liftbridge.proto",
    "proto.Stream.Error": "liftbridge.proto",
    "proto.Stream.UNKNOWN_STREAM": "liftbridge.proto",
    "proto.Publish.HeadersEntry.key": "liftbridge.proto",
    "proto.NEW_ONLY": "liftbridge.proto",
    "grpc.health.v1.Health": "grpc/health/v1/health.proto",
    "grpc.health.v1.HealthCheckResponse.ServingStatus": "grpc/health/v1/health.proto",
    "grpc.reflection.v1alpha.ServerReflectionRequest.message_request": "grpc/reflection/v1alpha/reflection.proto",
}


def test_each_symbol_and_file_is_found(client: Client) -> None:
    questions = [pb.ServerReflectionRequest(file_containing_symbol=symbol) for symbol in IN_FILE]
    questions += [pb.ServerReflectionRequest(file_by_filename=name) for name in IN_FILE.values()]
    for name, answer in zip([*IN_FILE.values()] * 2, reflected(client, *questions), strict=True):
        [file] = answer.file_descriptor_response.file_descriptor_proto
        assert FileDescriptorProto.FromString(file).name == name


NOWHERE: list[tuple[dict[str, Any], str]] = [
    ({"file_by_filename": "api.proto"}, "NOT_FOUND"),
    ({"file_by_filename": ""}, "NOT_FOUND"),
    ({"file_containing_symbol": "proto.Nothing"}, "NOT_FOUND"),
    ({"file_containing_symbol": "proto"}, "NOT_FOUND"),
    ({"file_containing_extension": pb.ExtensionRequest(containing_type="proto.Stream")}, "NOT_FOUND"),
    ({"all_extension_numbers_of_type": "proto.Nothing"}, "NOT_FOUND"),
    ({}, "INVALID_ARGUMENT"),
]


def test_what_is_not_there_is_an_answer_and_the_call_goes_on(client: Client) -> None:
    questions = [pb.ServerReflectionRequest(**asked) for asked, _ in NOWHERE]
    extended = pb.ServerReflectionRequest(all_extension_numbers_of_type="proto.Stream")
    *answers, last = reflected(client, *questions, extended)
    for (asked, code), answer in zip(NOWHERE, answers, strict=True):
        assert answer.error_response.error_code == grpc.StatusCode[code].value[0], asked
    assert last.all_extension_numbers_response.base_type_name == "proto.Stream"
    with pytest.raises(grpc.RpcError) as refused:
        reflected(client, pb.ServerReflectionRequest(file_by_filename="x" * (65 << 10)))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_who_may_not_read_the_document_of_http_is_told_nothing(tmp_path: Path) -> None:
    rules = AuthRules(mode="enforce", admins=frozenset({"user:root"}))
    with running(tmp_path, auth=rules) as server, opened(server) as port, client_of(port.port) as client:
        with pytest.raises(grpc.RpcError) as refused:
            reflected(client, pb.ServerReflectionRequest(list_services="*"))
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert checked(client, "") == health_pb.HealthCheckResponse.SERVING, "as /livez: everybody may ask"


# --- health ---------------------------------------------------------------------------------------------------------


def checked(client: Client, service: str) -> Any:
    check = client.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb.HealthCheckResponse.FromString,
    )
    return check(health_pb.HealthCheckRequest(service=service), timeout=30).status


def test_health_is_that_of_the_process(client: Client) -> None:
    for service in ("", "proto.API"):
        assert checked(client, service) == health_pb.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as refused:
        checked(client, "other")
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND


def test_who_watches_health_is_told_when_the_broker_stops(client: Client, server: Server) -> None:
    watch = client.channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=health_pb.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb.HealthCheckResponse.FromString,
    )
    known, other = (watch(health_pb.HealthCheckRequest(service=name), timeout=30) for name in ("proto.API", "other"))
    assert next(known).status == health_pb.HealthCheckResponse.SERVING
    assert next(other).status == health_pb.HealthCheckResponse.SERVICE_UNKNOWN
    server.loop.call_soon_threadsafe(server.serving.draining.set)
    assert [each.status for each in known] == [health_pb.HealthCheckResponse.NOT_SERVING]
    assert list(other) == []
