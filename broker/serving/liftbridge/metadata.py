"""Where streams are: what clients of Liftbridge look up before they publish or subscribe.

Offsets are of the last record here, and of the next one in the HTTP API: one less.

Clients go with their cursors to the leader of the stream `__cursors`. There is none here: they are told that of
`__offsets` under that name, as it is the one that stores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.api.errors import LiftlogError
from broker.api.proto import liftbridge_pb2 as pb
from broker.api.stream import ACTIVITY_STREAM, OFFSETS_STREAM
from broker.serving.liftbridge.calls import Handling, Methods
from broker.serving.liftbridge.groups import told_of
from broker.serving.liftbridge.messages import parsed
from broker.serving.liftbridge.statuses import Code, StatusError
from broker.serving.liftbridge.streams import path_of

METHODS: Final = Methods()
CURSORS: Final = "__cursors"


@METHODS.add("FetchMetadata", "list_streams", "poll_group")
async def fetch(asking: Handling) -> None:
    """The brokers, and the streams that the caller may read, all or those named, each once."""
    asked = parsed(pb.FetchMetadata, await asking.call.message())
    answer = await asking.ask("list_streams", query={"internal": "true"})
    if not answer.is_told:
        raise StatusError(Code.UNAUTHENTICATED, "unauthenticated", "unauthenticated")
    found = {each["name"]: each for each in answer.json()["streams"] if is_shown(each)}
    metadata = pb.Metadata(brokers=brokers_of(asking, found.values()))
    for name in dict.fromkeys(asked.streams) or [*sorted(found), CURSORS]:
        stream = found.get(name)
        if name == CURSORS and (cursors := cursors_of(asking)) is not None:
            metadata.streams.append(cursors)
        elif name == CURSORS and not asked.streams:
            continue
        elif stream is None:
            metadata.streams.add(name=name, error=pb.Stream.UNKNOWN_STREAM)
        else:
            metadata.streams.append(stream_of(stream))
    metadata.groups.extend([await told_of(asking, name) for name in dict.fromkeys(asked.groups)])
    await asking.call.send([metadata.SerializeToString()])


def is_shown(stream: Mapping[str, Any]) -> bool:
    """Whether clients hear of it: of our own streams Liftbridge has one by this name."""
    return not stream["internal"] or stream["name"] == ACTIVITY_STREAM


def brokers_of(asking: Handling, streams: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Those that live. Their partitions and leaderships are counted over streams that the caller sees."""
    backend = asking.serving.backend
    kept, led = dict[str, int](), dict[str, int]()
    for partition in (partition for stream in streams for partition in stream["partitions"]):
        for replica in partition["replicas"]:
            kept[replica] = kept.get(replica, 0) + 1
        if partition["leader"] is not None:
            leader = partition["leader"]["id"]
            led[leader] = led.get(leader, 0) + 1
    found = []
    for broker in backend.brokers():
        if not broker["live"]:
            continue
        name = str(broker["id"])
        here = name == backend.broker_id
        host, port = asking.addresses.here if here else asking.addresses.of(str(broker["http"]))
        found.append(pb.Broker(id=name, host=host, port=port, partitions=kept.get(name, 0), leaders=led.get(name, 0)))
    return found


def cursors_of(asking: Handling) -> Any | None:
    """The stream that clients take for that of their cursors; None: nobody keeps it yet."""
    try:
        whereabouts = asking.serving.backend.whereabouts(OFFSETS_STREAM)
    except LiftlogError:
        return None
    made = pb.Stream(name=CURSORS)
    for where in whereabouts:
        partition = pb.Partition(id=where.partition, replicas=where.replicas, isr=where.isr)
        partition.leader = "" if where.leader is None else where.leader.id
        made.partitions[where.partition].CopyFrom(partition)
    return made


def stream_of(stream: Mapping[str, Any]) -> Any:
    """A stream, as the HTTP API describes it."""
    made = pb.Stream(
        name=stream["name"], subject=stream["settings"]["subject"] or "", created=stream["created_ms"] * 1_000_000
    )
    for partition in stream["partitions"]:
        made.partitions[partition["partition"]].CopyFrom(partition_of(stream, partition))
    return made


def partition_of(stream: Mapping[str, Any], partition: Mapping[str, Any]) -> Any:
    """One of its partitions. Ends that are not known here are -1, as of an empty one."""
    return pb.Partition(
        id=partition["partition"],
        leader="" if partition["leader"] is None else partition["leader"]["id"],
        replicas=partition["replicas"],
        isr=partition["isr"],
        high_watermark=(partition["high_watermark"] or 0) - 1,
        newest_offset=(partition["log_end_offset"] or 0) - 1,
        paused=stream["paused"],
        readonly=stream["read_only"],
    )


@METHODS.add("FetchPartitionMetadata", "describe_stream")
async def fetch_partition(asking: Handling) -> None:
    """One partition, as its leader has it, whichever broker is asked."""
    asked = parsed(pb.FetchPartition, await asking.call.message())
    stream = (await asking.ask("describe_stream", path=path_of(asked.stream))).json()
    for partition in stream["partitions"]:
        if partition["partition"] == asked.partition:
            answer = pb.PartitionAnswer(partition=partition_of(stream, partition))
            await asking.call.send([answer.SerializeToString()])
            return
    raise StatusError(
        Code.NOT_FOUND, f"stream {asked.stream!r} has no partition {asked.partition}", "unknown_partition"
    )
