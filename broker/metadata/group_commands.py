"""Commands of consumer groups (`groups.py`). Each function takes one, and returns its result.

    join_group         name, member, streams, timeout_ms        a member joins, or reads other streams from now on
                       instance (optional)                      of a static member
    release_partitions name, member, partitions [[stream, partition, epoch]]        it has stopped to read these
    end_members        name, members {member: session}          they have left, or have
                       expired (optional)                       expired, of which events tell (`activity.py`)
    fence_group        name, forget (optional)                  an epoch for a reset, or a removal, of its offsets

Each result has a `version`: a broker whose `Groups.last` has come that far has applied the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from broker.api.errors import UnknownStream
from broker.metadata import fields
from broker.metadata.groups import Groups
from broker.metadata.info import StreamInfo

EPOCH_BITS: Final = 28
"""So many numbers are given out for each of the cluster's, before they might be given out again by a catalog that has
lost its last commands (`groups.G9`)."""


class Counts(Mapping[str, int]):
    """How many partitions each stream has."""

    def __init__(self, streams: Mapping[str, StreamInfo]) -> None:
        self._streams = streams

    def __getitem__(self, name: str) -> int:
        return self._streams[name].settings.partitions

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)


def _join(groups: Groups, counts: Counts, command: Mapping[str, Any]) -> dict[str, Any]:
    name, member, streams = (
        fields.text(command, "name"),
        fields.text(command, "member"),
        fields.names(command, "streams"),
    )
    for each in streams:
        if each not in counts:
            raise UnknownStream(f"no stream {each!r}", stream=each)
    session = groups.join(
        name,
        member,
        streams,
        timeout_ms=fields.whole(command, "timeout_ms", least=1),
        counts=counts,
        instance=fields.text(command, "instance", ""),
    )
    return {"session": session}


def _release(groups: Groups, counts: Counts, command: Mapping[str, Any]) -> dict[str, Any]:
    released = {(stream, number): epoch for stream, number, epoch in fields.rows(command, "partitions", str, int, int)}
    groups.release(fields.text(command, "name"), fields.text(command, "member"), released)
    return {}


def _end(groups: Groups, counts: Counts, command: Mapping[str, Any]) -> dict[str, Any]:
    name, members = fields.text(command, "name"), fields.numbered(command, "members")
    return {"ended": groups.end(name, members, counts)}


def _fence(groups: Groups, counts: Counts, command: Mapping[str, Any]) -> dict[str, Any]:
    return {"epoch": groups.fence(fields.text(command, "name"), forget=fields.flag(command, "forget"))}


_Handler = Callable[[Groups, Counts, Mapping[str, Any]], dict[str, Any]]
_HANDLERS: Final[Mapping[str, _Handler]] = {
    "join_group": _join,
    "release_partitions": _release,
    "end_members": _end,
    "fence_group": _fence,
}
KINDS: Final = frozenset(_HANDLERS)


def apply(groups: Groups, streams: Mapping[str, StreamInfo], command: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Carry one out."""
    result = _HANDLERS[kind](groups, Counts(streams), command)
    return {**result, "version": groups.last}
