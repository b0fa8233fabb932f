"""Streams over Liftbridge's API: made, deleted, paused, read-only.

What these calls cannot say in this project's terms they refuse, and change nothing: a stream is paused and read-only as
a whole here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from broker.api.proto import liftbridge_pb2 as pb
from broker.api.stream import REPLICAS_MAX
from broker.serving.liftbridge.calls import Handling, Methods
from broker.serving.liftbridge.messages import parsed
from broker.serving.liftbridge.statuses import Code, StatusError

METHODS: Final = Methods()
_EMPTY: Final[bytes] = pb.Empty().SerializeToString()

_SETTINGS: Final = {
    "retention_bytes": "retention_bytes",
    "retention_records": "retention_records",
    "retention_ms": "retention_ms",
    "segment_bytes": "segment_bytes",
    "segment_ms": "segment_age_ms",
}
"""Fields that are settings here; 0 is no limit."""
_NOT_HERE: Final = {
    "auto_pause_ms": "streams do not pause by themselves",
}
"""Fields that would change what a stream does: refused, if they ask for something."""


@METHODS.add("CreateStream", "create_stream")
async def create(asking: Handling) -> None:
    """Create a stream that captures a NATS subject."""
    asked = parsed(pb.CreateStream, await asking.call.message())
    if not asked.name:
        raise StatusError(Code.INVALID_ARGUMENT, "Name cannot be empty")
    if not asked.subject:
        raise StatusError(Code.INVALID_ARGUMENT, "Subject cannot be empty")
    answer = await asking.ask("create_stream", body={"name": asked.name, **settings_of(asked, asking)})
    if not answer.json()["created"]:
        raise StatusError(Code.ALREADY_EXISTS, f"stream {asked.name!r} exists already")
    await asking.call.send([_EMPTY])


def settings_of(asked: Any, asking: Handling) -> dict[str, Any]:
    """The settings that a request to create a stream stands for. Raises StatusError."""
    for field, why in _NOT_HERE.items():
        if asked.HasField(field) and getattr(asked, field).value:
            raise StatusError(Code.INVALID_ARGUMENT, f"{field}: {why}")
    if asked.replication_factor < -1 or asked.partitions < 0:
        raise StatusError(Code.INVALID_ARGUMENT, "replicationFactor and partitions must be numbers from 1")
    values: dict[str, Any] = {"subject": asked.subject, "partition_by": "subject_suffix"}
    if asked.group:
        values["group"] = asked.group
    if asked.partitions:
        values["partitions"] = asked.partitions
    if asked.replication_factor == -1:
        living = sum(1 for broker in asking.serving.backend.brokers() if broker["live"])
        values["replication_factor"] = max(1, min(living, REPLICAS_MAX))
    elif asked.replication_factor:
        values["replication_factor"] = asked.replication_factor
    for field, name in _SETTINGS.items():
        if asked.HasField(field) and (value := getattr(asked, field).value):
            values[name] = value
        elif asked.HasField(field) and name.startswith("retention"):
            values[name] = None
    if asked.HasField("compact") and asked.compact.value:
        values["cleanup"] = "both"
    if asked.HasField("min_isr") and asked.min_isr.value:
        values["min_insync_replicas"] = asked.min_isr.value
    if asked.HasField("encryption") and asked.encryption.value:
        values["encryption"] = "aes-256-gcm"
    if asked.HasField("expects_offsets") and asked.expects_offsets.value:
        values["concurrency_control"] = "optimistic"
    return values


@METHODS.add("DeleteStream", "delete_stream")
async def delete(asking: Handling) -> None:
    """Delete a stream and its records."""
    asked = parsed(pb.DeleteStream, await asking.call.message())
    await asking.ask("delete_stream", path=path_of(asked.name))
    await asking.call.send([_EMPTY])


@METHODS.add("PauseStream", "describe_stream", "pause_stream")
async def pause(asking: Handling) -> None:
    """Pause a stream, all of it. It goes on when somebody resumes it, not with the next publish."""
    asked = parsed(pb.PauseStream, await asking.call.message())
    await whole(asking, asked.name, asked.partitions)
    await asking.ask("pause_stream", path=path_of(asked.name))
    await asking.call.send([_EMPTY])


@METHODS.add("SetStreamReadonly", "describe_stream", "set_stream_read_only")
async def set_read_only(asking: Handling) -> None:
    """Have a stream refuse records, all of it, or take them again."""
    asked = parsed(pb.SetStreamReadonly, await asking.call.message())
    await whole(asking, asked.name, asked.partitions)
    await asking.ask("set_stream_read_only", path=path_of(asked.name), body={"read_only": asked.readonly})
    await asking.call.send([_EMPTY])


async def whole(asking: Handling, name: str, partitions: Collection[int]) -> None:
    """Whether all partitions of a stream are meant. Raises StatusError."""
    if not partitions:
        return
    stream = (await asking.ask("describe_stream", path=path_of(name))).json()
    there = {partition["partition"] for partition in stream["partitions"]}
    if unknown := sorted(set(partitions) - there):
        raise StatusError(Code.NOT_FOUND, f"stream {name!r} has no partition {unknown[0]}", "unknown_partition")
    if set(partitions) != there:
        raise StatusError(
            Code.UNIMPLEMENTED, f"stream {name!r} has {len(there)} partitions: here all of them are changed, or none"
        )


def path_of(stream: str) -> dict[str, str]:
    """The path of a stream. Raises StatusError: it has no name."""
    if not stream:
        raise StatusError(Code.NOT_FOUND, "there is no stream without a name", "unknown_stream")
    return {"stream": stream}
