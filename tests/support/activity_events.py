"""Liftbridge's `ActivityStreamEvent`, as liftbridge-api v2 has it, for protobuf's own library."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TEXT, _INT32, _BOOL = (
    descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
)
_OPS = (
    ("CreateStreamOp", (("stream", _TEXT, False), ("partitions", _INT32, True))),
    ("DeleteStreamOp", (("stream", _TEXT, False),)),
    ("PauseStreamOp", (("stream", _TEXT, False), ("partitions", _INT32, True), ("resumeAll", _BOOL, False))),
    ("ResumeStreamOp", (("stream", _TEXT, False), ("partitions", _INT32, True))),
    ("SetStreamReadonlyOp", (("stream", _TEXT, False), ("partitions", _INT32, True), ("readonly", _BOOL, False))),
    ("JoinConsumerGroupOp", (("groupId", _TEXT, False), ("consumerId", _TEXT, False), ("streams", _TEXT, True))),
    ("LeaveConsumerGroupOp", (("groupId", _TEXT, False), ("consumerId", _TEXT, False), ("expired", _BOOL, False))),
)


def _event() -> Any:
    of = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="activity.proto", package="proto", syntax="proto3")
    event = descriptor_pb2.DescriptorProto(name="ActivityStreamEvent")
    event.field.add(name="id", number=1, type=of.TYPE_UINT64, label=of.LABEL_OPTIONAL)
    event.field.add(name="op", number=2, type=of.TYPE_INT32, label=of.LABEL_OPTIONAL)  # an enum is a number, too
    for number, (name, fields) in enumerate(_OPS, 3):
        made = file.message_type.add(name=name)
        for at, (field, kind, is_repeated) in enumerate(fields, 1):
            label = of.LABEL_REPEATED if is_repeated else of.LABEL_OPTIONAL
            made.field.add(name=field, number=at, type=kind, label=label)
        named = name[0].lower() + name[1:]
        event.field.add(
            name=named, number=number, type=of.TYPE_MESSAGE, type_name=f".proto.{name}", label=of.LABEL_OPTIONAL
        )
    file.message_type.add().CopyFrom(event)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("proto.ActivityStreamEvent"))


EVENT: Any = _event()


def read_event(value: bytes) -> tuple[int, int, str, dict[str, Any]]:
    """Its id, its operation, the name of what it has, and the fields of that."""
    event = EVENT.FromString(value)
    [(field, inner)] = [(field, inner) for field, inner in event.ListFields() if field.number > 2]
    said = {each.name: getattr(inner, each.name) for each in inner.DESCRIPTOR.fields}
    return event.id, event.op, field.name, {k: [*v] if hasattr(v, "append") else v for k, v in said.items()}
