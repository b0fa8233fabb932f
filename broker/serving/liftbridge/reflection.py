"""gRPC's reflection: which services, calls and messages there are, so that `grpcurl` and its like need no files.

    broker/api/proto/*.proto ─► their descriptors, under the names on the wire ─► answers

R1  What is described is what is served: services and calls are those of the table of calls. A test compares the two.
R2  Each message that comes is judged, as who may read `/openapi.json`.
R3  What is not there is an `error_response` with NOT_FOUND, and the call goes on: so answer gRPC's own servers. An
    answer repeats the question, so questions are bounded as those of any call are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from broker.api.proto import grpc_health_pb2, grpc_reflection_pb2, liftbridge_pb2
from broker.api.proto import grpc_reflection_pb2 as pb
from broker.serving.liftbridge.call import ASKED_BYTES_MAX
from broker.serving.liftbridge.calls import Handling, Methods
from broker.serving.liftbridge.messages import parsed
from broker.serving.liftbridge.statuses import Code, StatusError

METHODS: Final = Methods()
REFLECTIONS: Final = ("grpc.reflection.v1", "grpc.reflection.v1alpha")


def _under(module: Any, package: str, name: str) -> FileDescriptorProto:
    """The file of a module as one of this package, whose names are on the wire."""
    found = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(found)
    own = f".{found.package}."
    _rename(found.message_type, own, f".{package}.")
    for service in found.service:
        for method in service.method:
            method.input_type = method.input_type.replace(own, f".{package}.", 1)
            method.output_type = method.output_type.replace(own, f".{package}.", 1)
    found.package, found.name = package, name
    return found


def _rename(messages: Iterable[Any], own: str, other: str) -> None:
    for message in messages:
        for field in message.field:
            if field.type_name.startswith(own):
                field.type_name = other + field.type_name.removeprefix(own)
        _rename(message.nested_type, own, other)


FILES: Final = {
    found.name: found
    for found in (
        _under(liftbridge_pb2, "proto", "liftbridge.proto"),
        _under(grpc_health_pb2, "grpc.health.v1", "grpc/health/v1/health.proto"),
        *(
            _under(grpc_reflection_pb2, package, f"{package.replace('.', '/')}/reflection.proto")
            for package in REFLECTIONS
        ),
    )
}
"""None needs another one."""
SERVICES: Final = sorted(f"{found.package}.{service.name}" for found in FILES.values() for service in found.service)


def _in_messages(messages: Iterable[Any], scope: str) -> Iterator[str]:
    for message in messages:
        name = f"{scope}.{message.name}"
        yield name
        yield from (f"{name}.{part.name}" for part in (*message.field, *message.oneof_decl))
        yield from _in_enums(message.enum_type, name)
        yield from _in_messages(message.nested_type, name)


def _in_enums(enums: Iterable[Any], scope: str) -> Iterator[str]:
    for enum in enums:
        yield f"{scope}.{enum.name}"
        yield from (f"{scope}.{value.name}" for value in enum.value)  # they stand beside it


def _symbols(file: FileDescriptorProto) -> Iterator[str]:
    """Full names of all that it declares."""
    yield from _in_messages(file.message_type, file.package)
    yield from _in_enums(file.enum_type, file.package)
    for service in file.service:
        name = f"{file.package}.{service.name}"
        yield name
        yield from (f"{name}.{method.name}" for method in service.method)


_FILE_OF: Final = {symbol: file.name for file in FILES.values() for symbol in _symbols(file)}
_EXTENDABLE: Final = frozenset(f"{file.package}.{each.name}" for file in FILES.values() for each in file.message_type)
"""Messages that others do not stand in. Nothing extends them."""


async def _reflect(asking: Handling) -> None:
    """What there is, of services, calls and messages: an answer to each question."""
    while came := await asking.call.messages():
        await asking.ask("openapi")  # R2
        for message in came:
            if len(message) > ASKED_BYTES_MAX:
                raise StatusError(
                    Code.INVALID_ARGUMENT, f"a question of {len(message)} bytes: at most {ASKED_BYTES_MAX}"
                )
            answer = answered(parsed(pb.ServerReflectionRequest, message))
            await asking.call.send([answer.SerializeToString()])


for _package in REFLECTIONS:
    METHODS.add("ServerReflectionInfo", "openapi", service=f"{_package}.ServerReflection", is_stream=True)(_reflect)


def answered(asked: Any) -> Any:
    """The answer to a question."""
    answer = pb.ServerReflectionResponse(valid_host=asked.host, original_request=asked)
    match asked.WhichOneof("message_request"):
        case "list_services":
            answer.list_services_response.service.extend([pb.ServiceResponse(name=name) for name in SERVICES])
        case "file_by_filename":
            _add_file(answer, asked.file_by_filename)
        case "file_containing_symbol":
            _add_file(answer, _FILE_OF.get(asked.file_containing_symbol))
        case "all_extension_numbers_of_type":
            if asked.all_extension_numbers_of_type in _EXTENDABLE:
                answer.all_extension_numbers_response.base_type_name = asked.all_extension_numbers_of_type
            else:
                _add_error(answer, Code.NOT_FOUND)
        case "file_containing_extension":  # proto3 has none
            _add_error(answer, Code.NOT_FOUND)
        case _:
            _add_error(answer, Code.INVALID_ARGUMENT)
    return answer


def _add_file(answer: Any, name: str | None) -> None:
    found = None if name is None else FILES.get(name)
    if found is None:
        _add_error(answer, Code.NOT_FOUND)
    else:
        answer.file_descriptor_response.file_descriptor_proto.append(found.SerializeToString())


def _add_error(answer: Any, code: Code) -> None:
    text = "there is no such thing here" if code is Code.NOT_FOUND else "there is no question in it"
    answer.error_response.error_code, answer.error_response.error_message = int(code), text
