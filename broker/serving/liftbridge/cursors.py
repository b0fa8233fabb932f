"""SetCursor and FetchCursor: offsets of consumers, under the name of the cursor.

Some clients store the last offset that they have read, some the next one, as consumers do here. It is kept as it comes:
the lag of a cursor of the former is one too many. A cursor of a consumer group is the group's place (group_offsets.py).
"""

from __future__ import annotations

from typing import Final

from broker.api.errors import LiftlogError, UnknownConsumer
from broker.api.proto import liftbridge_pb2 as pb
from broker.serving.liftbridge.calls import Handling, Methods
from broker.serving.liftbridge.group_offsets import group_of, place, set_place
from broker.serving.liftbridge.messages import parsed
from broker.serving.liftbridge.statuses import Code, StatusError
from broker.serving.liftbridge.streams import path_of

METHODS: Final = Methods()


@METHODS.add("SetCursor", "commit_offsets", "commit_group", "resolve_offsets")
async def set_cursor(asking: Handling) -> None:
    """Store how far a partition was read."""
    asked = parsed(pb.SetCursor, await asking.call.message())
    _check(asked.stream, asked.cursor_id)
    if (group := group_of(asked.cursor_id)) is not None:
        await set_place(asking, group, asked)
        await asking.call.send([pb.Empty().SerializeToString()])
        return
    entry = {"stream": asked.stream, "partition": asked.partition, "offset": asked.offset}
    await asking.ask("commit_offsets", path={"consumer": asked.cursor_id}, body={"offsets": [entry]})
    await asking.call.send([pb.Empty().SerializeToString()])


@METHODS.add("FetchCursor", "describe_consumer", "commit_group")
async def fetch_cursor(asking: Handling) -> None:
    """How far a partition was read; -1: nothing is stored."""
    asked = parsed(pb.FetchCursor, await asking.call.message())
    _check(asked.stream, asked.cursor_id)
    if (group := group_of(asked.cursor_id)) is not None:
        offset = await place(asking, group, asked)
        await asking.call.send([pb.Cursor(offset=offset).SerializeToString()])
        return
    found = -1
    try:
        consumer = (await asking.ask("describe_consumer", path={"consumer": asked.cursor_id})).json()
    except UnknownConsumer:
        consumer = {"partitions": []}
    for each in consumer["partitions"]:
        is_of_now = each["incarnation"] in ("", _incarnation(asking, asked.stream))  # else it is of one that is gone
        if (each["stream"], each["partition"]) == (asked.stream, asked.partition) and is_of_now:
            found = each["offset"]
    await asking.call.send([pb.Cursor(offset=found).SerializeToString()])


def _incarnation(asking: Handling, stream: str) -> str:
    """Of a stream as it is now; empty: there is none."""
    try:
        return asking.serving.backend.stream(stream).incarnation
    except LiftlogError:
        return ""


def _check(stream: str, cursor_id: str) -> None:
    path_of(stream)
    if not cursor_id:
        raise StatusError(Code.INVALID_ARGUMENT, "No cursorId provided")
