"""Changes of a stream, or of the broker, beside an append that is held; and what holds afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.api.errors import UnknownStream
from tests.properties.gates.rig import Rig
from tests.support.waiting import until


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Attributes:
        act: Returns when its caller is told that it is done.
        after: The answer to a later append over HTTP: a reason, or "" where it is stored.
        forgets: No record of before is there afterwards.
    """

    act: Callable[[Rig, str], Awaitable[object]]
    after: str = ""
    forgets: bool = False


async def stop(rig: Rig, stream: str) -> None:
    await rig.stop()


async def delete(rig: Rig, stream: str) -> None:
    await rig.broker.delete_stream(stream)


async def recreate(rig: Rig, stream: str) -> None:
    await delete(rig, stream)
    await rig.broker.create_stream(stream, {"subject": f"{stream}.>", "partition_by": "key"})


async def alter(rig: Rig, stream: str) -> None:
    await rig.served(
        await rig.broker.alter_stream(
            stream, {"batch_records": 7, "record_bytes_max": 100_000, "segment_bytes": 1 << 20}
        )
    )


async def alter_fsync(rig: Rig, stream: str) -> None:
    await rig.served(await rig.broker.alter_stream(stream, {"fsync": "interval", "fsync_interval_ms": 60_000}))


async def add_partitions(rig: Rig, stream: str) -> None:
    await rig.served(await rig.broker.add_partitions(stream, 3))


async def pause(rig: Rig, stream: str) -> None:
    await rig.served(await rig.broker.set_stream_state(stream, paused=True))


async def pause_and_resume(rig: Rig, stream: str) -> None:
    await pause(rig, stream)
    await rig.served(await rig.broker.set_stream_state(stream, paused=False))


async def read_only(rig: Rig, stream: str) -> None:
    await rig.served(await rig.broker.set_stream_state(stream, read_only=True))


async def trim(rig: Rig, stream: str) -> None:
    """All that there is now, and of what is held at most what is committed by then."""
    info = rig.broker.stream(stream)
    starts = await rig.broker.trim_stream(stream, info.incarnation, {0: 1 << 40})
    assert 1 <= starts[0] <= rig.partition(stream).log.state.high_watermark


CHANGES = {
    "stop": Change(stop),
    "delete": Change(delete, after="unknown_stream", forgets=True),
    "delete and create": Change(recreate, forgets=True),
    "alter": Change(alter),
    "alter fsync": Change(alter_fsync),
    "add partitions": Change(add_partitions),
    "pause": Change(pause, after="stream_paused"),
    "pause and resume": Change(pause_and_resume),
    "read only": Change(read_only, after="read_only"),
    "trim": Change(trim),
}


async def check_after(rig: Rig, stream: str, name: str) -> list[bytes]:
    """The change is in force, in the catalog and for each path that records take. Returns what was stored by this."""
    change = CHANGES[name]
    if name == "stop":
        return []
    if name == "delete":
        try:
            rig.broker.stream(stream)
        except UnknownStream:
            # its capture ends a moment after the catalog has forgotten it
            await until(lambda: not rig.nats.publish(f"{stream}.x", (b"x", "")), "it is still captured")
            return []
        raise AssertionError("it is there")
    info, partitions = rig.broker.stream(stream), rig.broker.partitions(stream)
    assert len(partitions) == info.settings.partitions
    for partition in partitions:
        assert partition.info.settings == info.settings or name == "add partitions"
    if name == "alter":
        assert info.settings.batch_records == 7
        attachment = rig.intake._streams[stream]
        assert [slot.batch_records for slot in attachment.slots] == [7]
    assert (await rig.post(stream, b"after")).reason == change.after
    published: list[bytes] = []
    if name == "pause":
        assert not rig.nats.publish(f"{stream}.x", (b"x", "")), "it is still captured"
    else:
        told = await rig.publish(stream, b"after-nats")
        assert told.reason == change.after
        published = [] if change.after else [b"after-nats"]
    if name == "add partitions":
        for number in (1, 2):
            assert (await rig.post(stream, b"after", partition=number)).fate == "acked"
    return [*([] if change.after else [b"after"]), *published]
