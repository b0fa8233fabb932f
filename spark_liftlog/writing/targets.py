"""The streams that a task writes to, as they are when it begins."""

from __future__ import annotations

from typing import Any

from broker.api.answers import StreamDescription
from broker.client.http.calls import Calls, path, understand
from broker.client.writing.outgoing import default_subject
from spark_liftlog.writing.rows import Target


def find(calls: Calls, stream: str) -> Target:
    """The stream as it is now: each task asks, since partitions are added and streams made anew.

    Raises:
        UnknownStream: there is no such stream.
    """
    answer: Any = calls.json("GET", path("streams", stream))
    found = understand(StreamDescription, answer, where=str(calls.brokers))
    for each in found.partitions:
        if each.leader is not None:
            calls.brokers.note_leader((stream, each.partition), each.leader.http)
    return Target(
        stream=stream,
        partition_count=len(found.partitions),
        incarnation=found.incarnation,
        record_bytes_max=int(found.settings["record_bytes_max"]),
        subject=default_subject(found),
    )
